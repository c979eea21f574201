"""The same bits everywhere: elementary functions and an agent, by several compilers and on several processors."""

import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from benchmarks._problems import pendulum

import selftune as st
from selftune.control import guarded_step
from selftune.native.c import elementary
from selftune.native.c.compilation import CPU_INFO, LEVELS, _level
from selftune.native.firmware import Firmware

from . import cortex_m4

pytestmark = pytest.mark.slow

EXACT = ("-std=c99", "-ffp-contract=off")
COUNT, STEPS = 20_000, 2_000
# A stand-in for the header of a target without a C library.
MATH_H = """
#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()
#define HUGE_VAL __builtin_inf()
#define sqrt __builtin_sqrt
#define sqrtf __builtin_sqrtf
#define fabs __builtin_fabs
#define fabsf __builtin_fabsf
"""
HARNESS = """
static uint32_t hash = 2166136261u;
static void add(const void *data, int size)
{
    for (int i = 0; i < size; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 16777619u;
}
static uint64_t seed = 1;
static uint64_t word(void) { return seed = seed * 6364136223846793005u + 1442695040888963407u; }
static REAL unit(void) { return (REAL)((int32_t)(word() >> 32)) / (REAL)2147483648.0; }
"""


def functions(ctype: str) -> str:
    """A program that hashes all functions, at numbers of usual sizes and at any bits."""
    names = [f"{name}_{ctype}" for name in elementary.FUNCTIONS]
    bits = "uint32_t" if ctype == "float" else "uint64_t"
    lines = []
    for name in names:
        second = ", b" if name.startswith(("pow_", "atan2_")) else ""
        # The bits of a NaN are not part of the promise.
        lines.append(f'    {{ {ctype} y = {name}(a{second}); if (y == y) add(&y, sizeof y); else add("N", 1); }}')
    body = "\n".join(lines)
    main = f"""
uint32_t checksum(void);
uint32_t checksum(void)
{{
    for (int i = 0; i < {COUNT}; i++) {{
        union {{ {bits} bits; {ctype} number; }} any;
        any.bits = ({bits})(word() ^ (word() >> 29));
        const {ctype} scale = i % 4 == 0 ? 1 : i % 4 == 1 ? 30 : 800;
        const {ctype} a = i % 4 == 3 ? any.number : scale * unit(), b = 5 * unit();
{body}
    }}
    return hash;
}}
"""
    helpers = "\n".join(elementary.needed(names).values())
    return "#include <math.h>\n#include <stdint.h>\n" + helpers + HARNESS.replace("REAL", ctype) + main


@cache
def agent(ctype: str) -> str:
    """A program that hashes the state of a guarded, tuning agent after many steps."""
    dtype = jnp.float32 if ctype == "float" else jnp.float64
    problem = pendulum(dtype)
    guard = st.Guard()
    zero = jnp.zeros((), jnp.int32)
    state = guarded_step.begin(problem.controller, guard, jnp.zeros(2, dtype), problem.theta, problem.a_hat, zero)
    text = Firmware(problem.controller, guard, state, name="agent").whole()
    main = f"""
uint32_t checksum(void);
uint32_t checksum(void)
{{
    static agent_state s;
    agent_init(&s);
    {ctype} u[1], x[2] = {{0, 0}};
    for (int i = 0; i < {STEPS}; i++) {{
        agent_act(&s, x, i, u, 0);
        add(u, sizeof u);
        x[0] = (x[0] + unit() / 4) / 2;
        x[1] = (x[1] + unit()) / 2;
        agent_observe_state(&s, x);
        add(s.theta, sizeof s.theta);
        add(s.a_hat, sizeof s.a_hat);
    }}
    return hash;
}}
"""
    return text + HARNESS.replace("REAL", ctype) + main


def with_main(source: str) -> str:
    return (
        source + '\n#include <stdio.h>\nint main(void) { printf("%08lx\\n", (unsigned long)checksum()); return 0; }\n'
    )


def call(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def by(*command: str, start: tuple[str, ...] = ()) -> Callable[[str, Path], str]:
    """Compile by a command and run, on this processor or by an emulator."""

    def run(source: str, folder: Path) -> str:
        (folder / "program.c").write_text(with_main(source))
        call(*command, *EXACT, folder / "program.c", "-o", folder / "program", "-lm")
        return call(*start, folder / "program")

    return run


def on_cortex_m4(source: str, folder: Path) -> str:
    main = folder / "program.c"
    main.write_text(with_main(source))
    board = cortex_m4.BOARD
    call(
        *(cortex_m4.CC, *cortex_m4.MACHINE, *EXACT, main, board / "startup.c", "-nostartfiles", "--specs=rdimon.specs"),
        *("-T", board / "mps2-an386.ld", "-lm", "-o", folder / "program.elf"),
    )
    return cortex_m4.run(folder / "program.elf", timeout=900).strip()


def in_web_assembly(source: str, folder: Path) -> str:
    (folder / "math.h").write_text(MATH_H)
    (folder / "program.c").write_text(source)
    call(
        *(clang(), "--target=wasm32", "-nostdlib", "-ffreestanding", "-O2", "-fno-math-errno", *EXACT, f"-I{folder}"),
        *("-Wl,--no-entry", "-Wl,--export=checksum", folder / "program.c", "-o", folder / "program.wasm"),
    )
    script = (
        "WebAssembly.instantiate(require('fs').readFileSync(process.argv[1])).then("
        "m => console.log((m.instance.exports.checksum() >>> 0).toString(16).padStart(8, '0')))"
    )
    return call("node", "-e", script, folder / "program.wasm")


def clang() -> str:
    return next((name for name in ("clang", "clang-14", "clang-16", "clang-19") if shutil.which(name)), "clang")


def level_at_least(level: str) -> bool:
    order = [*LEVELS][::-1]
    mine = _level(CPU_INFO)
    return mine is not None and order.index(mine) >= order.index(level)


VECTOR = ("-O3", "-fno-math-errno", "-fno-trapping-math")
PLACES: dict[str, tuple[Callable[[], bool], Callable[[str, Path], str]]] = {
    "gcc -O0": (lambda: shutil.which("gcc") is not None, by("gcc", "-O0")),
    "gcc x86-64-v3": (lambda: level_at_least("x86-64-v3"), by("gcc", *VECTOR, "-march=x86-64-v3")),
    "gcc x86-64-v4": (lambda: level_at_least("x86-64-v4"), by("gcc", *VECTOR, "-march=x86-64-v4")),
    "clang": (lambda: shutil.which(clang()) is not None, by(clang(), "-O2")),
    "aarch64": (
        lambda: all(map(shutil.which, ("aarch64-linux-gnu-gcc", "qemu-aarch64"))),
        by("aarch64-linux-gnu-gcc", "-O2", "-static", start=("qemu-aarch64",)),
    ),
    "Cortex-M4F": (cortex_m4.available, on_cortex_m4),
    "WebAssembly": (lambda: all(map(shutil.which, (clang(), "wasm-ld", "node"))), in_web_assembly),
}


@cache
def expected(what: str, ctype: str, folder: Path) -> str:
    return by("gcc", "-O2")(SOURCES[what](ctype), folder)


SOURCES = {"functions": functions, "agent": agent}


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("gcc"), reason="compares with gcc on x86-64")
@pytest.mark.parametrize("ctype", ["float", "double"])
@pytest.mark.parametrize("what", SOURCES)
@pytest.mark.parametrize("place", PLACES)
def test_the_same_bits(place, what, ctype, tmp_path, tmp_path_factory):
    is_here, run = PLACES[place]
    if not is_here():
        pytest.skip(f"the tools for {place} are not installed")
    if place == "Cortex-M4F" and ctype == "double":
        pytest.skip("the processor has no double precision; the emulation of each operation takes long")
    assert jax.config.read("jax_enable_x64")
    wanted = expected(what, ctype, tmp_path_factory.getbasetemp())
    assert re.fullmatch("[0-9a-f]{8}", wanted)
    assert run(SOURCES[what](ctype), tmp_path) == wanted
