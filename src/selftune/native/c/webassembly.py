"""Compilation of C to WebAssembly, with clang and a C library for it, or with PyPI's `ziglang`."""

import shlex
import shutil
import sys
from functools import cache

from .compilation import CompilerError, compile_files, has_zig

FLAGS = ("-std=c99", "-O2", "-ffp-contract=off", "-fno-math-errno")
"""No product is fused with a sum, so the numbers have the same bits as on other processors."""
LINKER_FLAGS = ("-mexec-model=reactor", "-Wl,--no-entry", "-Wl,--strip-all", "-Wl,-z,stack-size=1048576")
"""A library without `main` and without names of functions, with a stack of 1 MiB."""
CLANG = (("clang", "--target=wasm32-wasi"), ("clang", "--target=wasm32-wasi", "--sysroot=/"))
"""Debian's clang needs the second form to find the headers of wasi-libc."""
PROBE = "#include <math.h>\ndouble f(double x);\ndouble f(double x) { return nextafter(fmod(x, 3), 1); }\n"


@cache
def compiler() -> tuple[str, ...]:
    """Return the command that compiles C to WebAssembly; raise `CompilerError` if there is none."""
    candidates: list[tuple[str, ...]] = list(CLANG)
    if has_zig():
        candidates.append((sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-wasi"))
    for command in candidates:
        if shutil.which(command[0]) and _run(command, {"probe.c": PROBE}) is not None:
            return command
    raise CompilerError(
        "export_web needs a C compiler for WebAssembly, and none was found: run pip install 'selftune[compiler]', or "
        "install clang, lld and wasi-libc, such as Debian's packages clang, lld, wasi-libc and libclang-rt-dev-wasm32"
    )


def is_available() -> bool:
    try:
        return bool(compiler())
    except CompilerError:
        return False


def build(sources: dict[str, str]) -> bytes:
    """Return the WebAssembly module of C sources and headers, given by their file names."""
    module = _run(compiler(), sources)
    if module is None:
        raise CompilerError(f"the C compiler, {shlex.join(compiler())}, rejected a program for WebAssembly")
    return module


def command(*sources: str, output: str) -> str:
    """Return the command as a user types it."""
    words = ["python" if word == sys.executable else word for word in compiler()]
    return shlex.join([*words, *FLAGS, *LINKER_FLAGS, *sources, "-o", output])


def _run(command: tuple[str, ...], sources: dict[str, str]) -> bytes | None:
    return compile_files(command, (*FLAGS, *LINKER_FLAGS), sources)[0]
