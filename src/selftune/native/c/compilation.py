"""Compilation with the system's C compiler, a cache of compiled libraries, and their loading."""

import atexit
import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

from ...foundation.errors import InputError
from ...storage import files

FLAGS = ("-std=c99", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
"""No product is fused with a sum, so all compilers that follow IEEE 754 give the same numbers."""
LARGE = 300_000
"""A source with more characters than this is optimized less, because the compiler's time grows faster than the size."""
BUILD = ".build-"
"""How the name of a folder begins in which a program is compiled."""
OLD = 3600
"""A folder of this age, in seconds, belongs to a process that was killed: no compilation takes as long."""


class CompilerError(InputError, RuntimeError):
    """There is no C compiler, or it rejected a program."""


def compiler() -> list[str]:
    """Return the command of the C compiler: `CC` if it is set, else `cc`, else `gcc` or `clang`."""
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
    raise CompilerError(
        "engine: the native engine needs a C compiler, and none was found: install one, such as Debian's gcc, or set "
        "the environment variable CC to its command"
    )


@cache
def _identity(command: tuple[str, ...]) -> str:
    """Return the version of a compiler, and its predefined macros: with `-march=native` they depend on the CPU."""
    asked = (["--version"], ["-dM", "-E", "-x", "c", os.devnull])
    return "\0".join(
        subprocess.run([*command, *arguments], capture_output=True, text=True, check=False).stdout
        for arguments in asked
    )


def cache_folder() -> Path:
    """Return the folder of compiled programs: `SELFTUNE_CACHE`, or `selftune/native` in the user's cache folder."""
    if chosen := os.environ.get("SELFTUNE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selftune" / "native"


def build(source: str, *, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """Return the library of a C source; each source is compiled only once for each compiler, CPU and flags.

    A compiled library is loaded only if nobody else can have written it, and if it has its checksum. Otherwise it is
    compiled again.
    """
    command = compiler()
    if len(source) > LARGE:
        flags = tuple("-O1" if flag == "-O2" else flag for flag in flags)
    parts = [source, _identity(tuple(command)), *command, *flags]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    folder = _trusted_folder()
    library = None if folder is None else _cached(folder, key)
    if library is None:
        place = _temporary_folder() if folder is None or not os.access(folder, os.W_OK) else folder
        library = _cached(place, key) or _compiled(source, command, flags, place, key)
    try:
        return _load(str(library))
    except OSError as error:  # for example, the folder is on a disk from which nothing may be executed
        raise CompilerError(
            f"{library}: the compiled program cannot be loaded ({error}); set SELFTUNE_CACHE to another folder"
        ) from error


def _trusted_folder() -> Path | None:
    """Return the cache folder, made if it is missing; None if it cannot be made, or if others can write to it."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fault = _fault(folder.stat())
    except OSError:
        return None
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


def _fault(about: os.stat_result) -> str:
    """Return why other users could have written a file or a folder; empty if only this user and root can write to it.
    Windows has other permissions, which are not checked."""
    if not hasattr(os, "geteuid"):
        return ""
    if about.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({about.st_uid})"
    return "is writable for other users" if about.st_mode & 0o022 else ""


def _cached(folder: Path, key: str) -> Path | None:
    """Return the compiled library of a key. Its name contains the checksum of its content."""
    for library in folder.glob(f"{key}-*.so"):
        try:
            with library.open("rb") as file:
                is_safe = not _fault(os.fstat(file.fileno()))
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            continue
        if is_safe and library.stem == f"{key}-{checksum}":
            return library
        with suppress(OSError):
            library.unlink()  # the compiler makes it again
    return None


def _compiled(source: str, command: list[str], flags: tuple[str, ...], folder: Path, key: str) -> Path:
    _remove_old_builds(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=BUILD, ignore_cleanup_errors=True) as work:
        program, compiled = Path(work) / "program.c", Path(work) / "program.so"
        program.write_text(source)
        done = subprocess.run(
            [*command, *flags, "-x", "c", str(program), "-o", str(compiled), "-lm"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            first = "\n".join(done.stderr.splitlines()[:12])
            raise CompilerError(f"the C compiler, {shlex.join(command)}, rejected a program:\n{first}")
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
