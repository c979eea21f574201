"""An exported controller on a Cortex-M4F: cross-compiled, run under QEMU by semihosting, and measured."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

BOARD = Path(__file__).parent / "mps2"
CC = "arm-none-eabi-gcc"
QEMU = "qemu-system-arm"
STACK = 64 * 1024  # bytes watched, as in the linker script
MACHINE = ("-std=c99", "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-O2")
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wdouble-promotion", "-Werror")
EXACT = ("-ffp-contract=off",)  # bit for bit what the C says
FAST = ("-ffp-contract=fast", "-fno-math-errno")  # fused multiply-add, and square roots without a call


class Measured(NamedTuple):
    """Bytes, and instructions a step. Flash is NAME.c alone, without what it calls in libm; `stack` is with it."""

    flash_text: int
    flash_rodata: int
    ram_state: int
    stack: int
    act_instructions: float
    observe_instructions: float


def missing() -> list[str]:
    """The Debian packages that are not here."""
    packages = {"gcc-arm-none-eabi": shutil.which(CC), "qemu-system-arm": shutil.which(QEMU)}
    if packages["gcc-arm-none-eabi"]:  # the compiler answers with a path only if it has the file
        packages["libnewlib-arm-none-eabi"] = _call(CC, "-print-file-name=rdimon.specs").strip() != "rdimon.specs"
    else:
        packages["libnewlib-arm-none-eabi"] = False
    return sorted(package for package, found in packages.items() if not found)


def available() -> bool:
    """Whether the cross-compiler, its C library and QEMU are here."""
    return not missing()


def advice() -> str:
    """What to install."""
    return f"for firmware, Debian packages are missing: apt-get install --no-install-recommends {' '.join(missing())}"


def compile_object(folder: Path, name: str, into: Path, flags: Sequence[str] = EXACT) -> Path:
    """NAME.c as an object of its own, without a warning."""
    target = into / f"{name}.o"
    _call(CC, *MACHINE, *STRICT, *flags, "-c", folder / f"{name}.c", "-o", target)
    return target


def build(folder: Path, name: str, main: Path, into: Path, flags: Sequence[str] = EXACT) -> Path:
    """NAME.c of the folder linked with a main and the board's startup: an ELF file in `into`."""
    controller = compile_object(folder, name, into, flags)
    elf = into / f"{main.stem}.elf"
    _call(
        *(CC, *MACHINE, *EXACT, "-Wall", "-Wextra", "-Werror", f"-DNAME={name}", f"-I{folder}"),
        *(main, BOARD / "startup.c", controller),
        *("-nostartfiles", "--specs=rdimon.specs", "-T", BOARD / "mps2-an386.ld", "-Wl,--fatal-warnings", "-lm"),
        *("-o", elf),
    )
    return elf


def run(elf: Path, timeout: float = 300) -> str:
    """What the program printed; a `RuntimeError` with that text if it did not return 0.

    An instruction is one virtual nanosecond (`-icount shift=0`), so that the board's timers count instructions.
    """
    machine = ("-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none", "-icount", "shift=0")
    return _call(QEMU, *machine, "-semihosting-config", "enable=on,target=native", "-kernel", elf, timeout=timeout)


def symbols(compiled: Path) -> set[str]:
    """What an object needs from elsewhere."""
    return set(re.findall(r"^ +U (\S+)$", _call("arm-none-eabi-nm", "--undefined-only", compiled), re.MULTILINE))


def sections(compiled: Path) -> dict[str, int]:
    """Bytes of each kind of section: .text, .rodata, .data, .bss."""
    sizes: dict[str, int] = {".text": 0, ".rodata": 0, ".data": 0, ".bss": 0}
    listed = _call("arm-none-eabi-size", "-A", compiled)
    for section, size in re.findall(r"^(\.[a-z]+)\S* +(\d+)", listed, re.MULTILINE):
        if section in sizes:
            sizes[section] += int(size)
    return sizes


def measure(folder: Path, name: str, flags: Sequence[str] = EXACT) -> Measured:
    """What NAME.c costs, over the inputs of the folder's replay.h."""
    with tempfile.TemporaryDirectory() as into:
        printed = run(build(folder, name, BOARD / "count.c", Path(into), flags))
        sizes = sections(Path(into) / f"{name}.o")
    counted = dict(line.split() for line in printed.splitlines())
    return Measured(
        flash_text=sizes[".text"],
        flash_rodata=sizes[".rodata"],
        ram_state=int(counted["state"]) + sizes[".data"] + sizes[".bss"],
        stack=int(counted["stack"]),
        act_instructions=float(counted["act"]),
        observe_instructions=float(counted["observe"]),
    )


def _call(*command: str | Path, timeout: float = 300) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(0 if available() else advice())
