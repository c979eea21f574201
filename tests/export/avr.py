"""A sketch for an Arduino Uno or Mega: compiled with Debian's Arduino core, and run in simavr."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

CORE = Path("/usr/share/arduino/hardware/arduino/avr")
PACKAGES = {"avr-gcc": "gcc-avr", "avr-size": "binutils-avr", "simavr": "simavr"}
MACHINE = ("-DF_CPU=16000000L", "-DARDUINO=10819", "-DARDUINO_ARCH_AVR")
FLAGS = ("-Os", "-ffunction-sections", "-fdata-sections", "-flto")
MAIN = """
#include <Arduino.h>
#include <avr/sleep.h>
#include "{sketch}"
// simavr ends when the processor sleeps without interrupts.
int main() {{ init(); setup(); loop(); Serial.flush(); cli(); sleep_mode(); return 0; }}
"""
DIGITS = "-DDECIMAL_DIG=__DECIMAL_DIG__"
"""Debian's compiler is older than the core, and its header has this name for C only."""


class Board(NamedTuple):
    chip: str
    variant: str
    flash: int
    """Bytes, without those of the boot loader."""
    ram: int


UNO = Board("atmega328p", "standard", 32_256, 2_048)
MEGA = Board("atmega2560", "mega", 253_952, 8_192)


class Built(NamedTuple):
    board: Board
    elf: Path
    flash: int
    ram: int
    """Without the stack."""


def missing() -> list[str]:
    """The Debian packages that are not here."""
    packages = [package for tool, package in PACKAGES.items() if not shutil.which(tool)]
    return packages if (CORE / "cores" / "arduino" / "Arduino.h").is_file() else [*packages, "arduino-core-avr"]


def build(board: Board, library: Path, sketch: str, into: Path) -> Built:
    """Compile a sketch of a library and the core. The program ends after `setup` and one `loop`."""
    machine = (f"-mmcu={board.chip}", *MACHINE)
    core = CORE / "cores" / "arduino"
    (into / "main.cpp").write_text(MAIN.format(sketch=library / "examples" / sketch / f"{sketch}.ino"))
    sources = [into / "main.cpp", *sorted((library / "src").glob("*.c"))]
    sources += [path for pattern in ("*.c", "*.cpp") for path in sorted(core.glob(pattern)) if path.name != "main.cpp"]
    includes = [f"-I{folder}" for folder in (core, CORE / "variants" / board.variant, library / "src")]
    objects = []
    for source in sources:
        compiled = into / f"{source.name}.o"
        cpp = source.suffix == ".cpp"
        language = ("-std=gnu++11", "-fno-exceptions", "-fno-threadsafe-statics", DIGITS) if cpp else ("-std=gnu11",)
        _call("avr-g++" if cpp else "avr-gcc", *machine, *FLAGS, *language, *includes, "-c", source, "-o", compiled)
        objects.append(compiled)
    elf = into / f"{sketch}.elf"
    _call("avr-gcc", *machine, *FLAGS, "-fuse-linker-plugin", "-Wl,--gc-sections", *objects, "-o", elf, "-lm")
    sizes = {name: int(size) for name, size in re.findall(r"^(\.\w+) +(\d+)", _call("avr-size", "-A", elf), re.M)}
    data = sizes.get(".data", 0)
    return Built(board, elf, sizes[".text"] + data, data + sizes.get(".bss", 0) + sizes.get(".noinit", 0))


def run(built: Built) -> str:
    """What the sketch prints on its serial port."""
    printed = _call("simavr", "-m", built.board.chip, "-f", "16000000", built.elf)
    return re.sub(r"\x1b\[\d*m", "", printed)


def _call(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr
