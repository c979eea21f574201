"""Compilation with the system's C compiler, a cache of compiled libraries, and their loading."""

import atexit
import ctypes
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ...foundation.errors import InputError
from ...storage import files
from . import stored
from .parts import ATTRIBUTES
from .sign_of_life import spinner
from .stored import CPU_INFO

FLAGS = (
    *("-std=c99", "-O2", "-ffp-contract=off"),
    *("-fno-unsafe-math-optimizations", "-fno-associative-math", "-fno-reciprocal-math", "-fsigned-zeros"),
    *("-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-nostartfiles"),
)
"""No product is fused with a sum, and no sum is done in another order, whatever `CC` says; so all compilers that follow
IEEE 754 give the same numbers. No start files are linked, which a library does not need: with options such as
-ffast-math and -mpc32, one of them would change the arithmetic of the whole process, for example flush subnormal
numbers to zero."""
VECTOR_FLAGS = (*FLAGS, "-ftree-vectorize", "-fopenmp-simd")
"""The flags of functions whose loops are marked for vector instructions; `vector_flags` adds those of the processor."""
HELPFUL_FLAGS = ("-fno-tree-pre",)
"""Without this flag, gcc moves comparisons into branches, which it then computes in vectors of bytes, or not at all."""
LEVELS = {
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v3": ("avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"),
    "x86-64-v2": ("sse4_1", "sse4_2", "ssse3", "popcnt"),
}
"""The levels of x86-64 processors, the highest first, and the instructions that each adds."""
LARGE = 300_000
"""A source with more characters than this is optimized less, because the compiler's time grows faster than the size.
Least of all if its loops are functions that have their own level."""
LEAST = ("-Og", "-finline-small-functions")
BUILD = ".build-"
"""How the name of a folder begins in which a program is compiled."""
OLD = 3600
"""A folder of this age, in seconds, belongs to a process that was killed: no compilation takes as long."""


class CompilerError(InputError, RuntimeError):
    """There is no C compiler, or it rejected a program."""


def compiler() -> list[str]:
    """Return the command of the C compiler: `CC` if it is set, else `cc`, `gcc` or `clang`, else that of `ziglang`."""
    if named := os.environ.get("CC"):
        try:
            command = shlex.split(named)
        except ValueError as error:
            raise CompilerError(f"CC: expected the command of a C compiler, got {named!r} ({error})") from None
        if not command or shutil.which(command[0]) is None:
            raise CompilerError(f"CC: expected the command of a C compiler, got {named!r}, which was not found")
        return command
    for candidate in ("cc", "gcc", "clang"):
        if shutil.which(candidate):
            return [candidate]
    if has_zig():
        return [sys.executable, "-m", "ziglang", "cc"]
    raise CompilerError(
        "engine: the native engine needs a C compiler, and none was found: install one, such as Debian's gcc, or run "
        "pip install 'selftune[compiler]', or set the environment variable CC to its command"
    )


def has_zig() -> bool:
    return importlib.util.find_spec("ziglang") is not None


def processor_flags() -> tuple[str, ...]:
    """Return the flag for the instructions of this processor, as far as the compiler knows them.

    A processor that is not an x86-64, such as an ARM, needs no flag for its vector instructions.
    """
    level = _level(CPU_INFO)
    if level is None:
        return ()
    # Zig's compiler spells the names of processors with underscores.
    spelled = (f"-march={level}", f"-march={level.replace('-', '_')}")
    return next(((flag,) for flag in spelled if _accepts(tuple(compiler()), flag)), ())


def vector_flags() -> tuple[str, ...]:
    """Return the flags for vector instructions of this processor, as far as the compiler knows them."""
    command = tuple(compiler())
    flags = [flag for flag in HELPFUL_FLAGS if _accepts(command, flag)]
    flags += processor_flags()
    if _level(CPU_INFO) == "x86-64-v4" and _accepts(command, "-mprefer-vector-width=512"):
        flags.append("-mprefer-vector-width=512")
    return (*VECTOR_FLAGS, *flags)


@cache
def _level(cpu_info: Path) -> str | None:
    """Return the level of the processor; None for the lowest level, and for other processors."""
    words = set(stored.processor(cpu_info).get("flags", "").split())
    reached = None
    for level, needed in reversed(LEVELS.items()):
        if not words.issuperset(needed):
            break
        reached = level
    return reached


@cache
def _accepts(command: tuple[str, ...], flag: str) -> bool:
    """Return whether the compiler knows a flag."""

    def ask() -> tuple[str, bool]:
        # Zig's compiler leaves a file in its working folder.
        with tempfile.TemporaryDirectory(prefix="selftune-") as work:
            asked = [*command, flag, "-x", "c", "-c", "-", "-o", os.devnull]
            done = subprocess.run(asked, cwd=work, input="", capture_output=True, text=True, check=False)
        return ("no", False) if done.returncode else ("yes", True)  # a full disk is another reason for a "no"

    return stored.answer(command, f"accepts {flag}", ask) == "yes"


@cache
def _identity(command: tuple[str, ...]) -> str:
    """Return a checksum of the compiler's version and of its predefined macros: with `-march=native` these depend on
    the CPU."""

    def ask() -> tuple[str, bool]:
        questions = (["--version"], ["-dM", "-E", "-x", "c", os.devnull])
        done = [subprocess.run([*command, *each], capture_output=True, text=True, check=False) for each in questions]
        told = "\0".join(each.stdout for each in done)
        return hashlib.sha256(told.encode()).hexdigest(), not any(each.returncode for each in done)

    return stored.answer(command, "identity", ask)


def build(source: str, *, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """Return the library of a C source; each source is compiled only once for each compiler, CPU and flags.

    A compiled library is loaded only if nobody else can have written it, and if it has its checksum. Otherwise it is
    compiled again.
    """
    command = compiler()
    if len(source) > LARGE:
        is_divided = ATTRIBUTES in source and all(_accepts(tuple(command), flag) for flag in LEAST)
        less = LEAST if is_divided else ("-O1",)
        flags = tuple(other for flag in flags for other in (less if flag == "-O2" else (flag,)))
    parts = [source, _identity(tuple(command)), *command, *flags]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    folder = _trusted_folder()
    library = None if folder is None else stored.library(folder, key)
    if library is None:
        place = _temporary_folder() if folder is None or not os.access(folder, os.W_OK) else folder
        library = stored.library(place, key) or _compiled(source, command, flags, place, key)
    try:
        return _load(str(library))
    except OSError as error:  # for example, the folder is on a disk from which nothing may be executed
        raise CompilerError(
            f"{library}: the compiled program cannot be loaded ({error}); set SELFTUNE_CACHE to another folder"
        ) from error


def compile_files(
    command: Sequence[str], flags: Sequence[str], sources: dict[str, str], libraries: Sequence[str] = ()
) -> tuple[bytes | None, str]:
    """Return the compiled program of C sources and headers, given by their file names, and the compiler's messages.
    The program is None if the compiler rejected a source."""
    with tempfile.TemporaryDirectory(prefix="selftune-") as work:
        for name, text in sources.items():
            (Path(work) / name).write_text(text, encoding="utf-8")
        names = [name for name in sources if name.endswith(".c")]
        asked = [*command, *flags, *names, "-o", "program.out", *libraries]
        done = subprocess.run(asked, cwd=work, capture_output=True, text=True, check=False)
        return (Path(work) / "program.out").read_bytes() if done.returncode == 0 else None, done.stderr


def shared_library(sources: dict[str, str], *, zig_target: str | None = None) -> bytes:
    """Return a shared library of C sources and headers, given by their file names: for this machine, or for a target of
    the compiler of `ziglang`, such as `x86_64-windows-gnu`."""
    if zig_target is None:
        command = compiler()
    elif has_zig():
        command = [sys.executable, "-m", "ziglang", "cc", "-target", zig_target, "-s"]
    else:
        raise CompilerError(f"a library for {zig_target} needs the compiler of: pip install 'selftune[compiler]'")
    is_large = sum(map(len, sources.values())) > LARGE
    flags = [("-O1" if is_large else flag) if flag == "-O2" else flag for flag in FLAGS]
    if zig_target is not None and "windows" in zig_target:
        flags = [flag for flag in flags if flag not in ("-fPIC", "-nostartfiles")]
    with spinner("selftune: compiling a library"):
        library, messages = compile_files(command, flags, sources, ["-lm"])
    if library is None:
        raise CompilerError(_rejection(command, messages))
    return library


def _rejection(command: Sequence[str], messages: str) -> str:
    first = "\n".join(messages.splitlines()[:12])
    return f"the C compiler, {shlex.join(command)}, rejected a program:\n{first}"


def _trusted_folder() -> Path | None:
    """Return the cache folder; None if it cannot be made, or, with a warning, if others can write to it."""
    made = stored.made_folder()
    if made is None:
        return None
    folder, fault = made
    if not fault:
        return folder
    warnings.warn(
        f"{folder}: compiled programs are not kept, because this folder {fault}, who could replace them: use "
        f"`chmod go-w`, or set SELFTUNE_CACHE to a folder of your own",
        RuntimeWarning,
        stacklevel=3,
    )
    return None


@cache
def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="selftune-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _compiled(source: str, command: list[str], flags: tuple[str, ...], folder: Path, key: str) -> Path:
    _remove_old_builds(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=BUILD, ignore_cleanup_errors=True) as work:
        program, compiled = Path(work) / "program.c", Path(work) / "program.so"
        program.write_text(source)
        with spinner("selftune: compiling a controller"):
            done = subprocess.run(
                [*command, *flags, "-x", "c", str(program), "-o", str(compiled), "-lm"],
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            raise CompilerError(_rejection(command, done.stderr))
        content = compiled.read_bytes()
    library = folder / f"{key}-{hashlib.sha256(content).hexdigest()}.so"
    files.write(library, content, mode=0o600)
    return library


def _remove_old_builds(folder: Path) -> None:
    """Remove the folders in which a process was compiling when it was killed."""
    for work in folder.glob(f"{BUILD}*"):
        try:
            if time.time() - work.stat().st_mtime > OLD:
                shutil.rmtree(work, ignore_errors=True)
        except OSError:  # another process has removed it
            continue


@cache
def _load(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)
