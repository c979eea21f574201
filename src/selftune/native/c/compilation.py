"""The system's C compiler, a cache of what it made, and the loading of it."""

import atexit
import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

FLAGS = ("-std=c99", "-O2", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
"""C99 proper: numbers are the same on every compiler that keeps to IEEE, as no product is fused with a sum."""
LARGE = 300_000
"""A source of more characters than this is optimized less: the compiler's time grows faster than the source."""


class CompilerError(RuntimeError):
    """There is no C compiler, or it refused what it was given."""


def compiler() -> list[str]:
    """The command of the C compiler: `CC` if it is set, else `cc`, else `gcc` or `clang`."""
    if named := os.environ.get("CC"):
        try:
            command = shlex.split(named)
        except ValueError as error:
            raise CompilerError(f"CC: expected the command of a C compiler, got {named!r} ({error})") from None
        if not command or shutil.which(command[0]) is None:
            raise CompilerError(f"CC: expected the command of a C compiler, got {named!r}, which is not there")
        return command
    for candidate in ("cc", "gcc", "clang"):
        if shutil.which(candidate):
            return [candidate]
    raise CompilerError(
        "engine: the native engine needs a C compiler, and none was found: install one, such as Debian's gcc, or name "
        "its command in the environment variable CC"
    )


@cache
def _version(command: tuple[str, ...]) -> str:
    return subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout


def cache_folder() -> Path:
    """Where compiled programs are kept: `SELFTUNE_CACHE`, or `selftune` in the user's cache folder."""
    if chosen := os.environ.get("SELFTUNE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selftune" / "native"


def build(source: str, *, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """The library made of a C source; compiled once for each source, compiler and flags, ever."""
    command = compiler()
    if len(source) > LARGE:
        flags = tuple("-O1" if flag == "-O2" else flag for flag in flags)
    key = hashlib.sha256("\0".join([source, _version(tuple(command)), *command, *flags]).encode()).hexdigest()[:32]
    library = _compiled(source, command, flags, key)
    try:
        return _load(str(library))
    except OSError:  # the cache was damaged: a machine that stopped, a full disk
        library.unlink(missing_ok=True)
        return _load(str(_compiled(source, command, flags, key)))


def _compiled(source: str, command: list[str], flags: tuple[str, ...], key: str) -> Path:
    folder = cache_folder()
    library = folder / f"{key}.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        work = tempfile.mkdtemp(dir=folder, prefix=".")
    except OSError:  # a home that cannot be written to: for this process alone, then
        folder = Path(tempfile.mkdtemp(prefix="selftune-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        library, work = folder / f"{key}.so", tempfile.mkdtemp(dir=folder)
    try:
        text, made = Path(work) / "program.c", Path(work) / "program.so"
        text.write_text(source)
        done = subprocess.run(
            [*command, *flags, "-x", "c", str(text), "-o", str(made), "-lm"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            first = "\n".join(done.stderr.splitlines()[:12])
            raise CompilerError(f"the C compiler, {shlex.join(command)}, refused a program:\n{first}")
        made.replace(library)  # whole, or not at all
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return library


@cache
def _load(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)
