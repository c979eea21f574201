"""The folder of compiled programs: which of its files are trusted, and the answers of the C compiler that it keeps."""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ...storage import files

CPU_INFO = Path("/proc/cpuinfo")
CPU_FIELDS = {
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
}
"""The lines about a processor that say which instructions it has: of an x86, and of an ARM."""
COMPILER_NAME = re.compile(r"(.*-)?(cc|gcc|clang)(-[0-9.]+)?")
PLAIN_OPTION = re.compile(r"-[mOg][\w.=+-]*|-f[\w-]+")
"""An option that names no file, whose content could change."""
REDIRECTING = ("COMPILER_PATH", "GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS", "QA_OVERRIDE_GCC3_OPTIONS")
"""Environment variables that put other programs or options in the place of the compiler's own."""
READ_BY_COMPILER = (
    *("CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES"),
)


def cache_folder() -> Path:
    """Return the folder of compiled programs: `SELFTUNE_CACHE`, or `selftune/native` in the user's cache folder."""
    if chosen := os.environ.get("SELFTUNE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selftune" / "native"


def made_folder() -> tuple[Path, str] | None:
    """Return the cache folder, made if it is missing, and why others could write to it, if so; None if it cannot be
    made."""
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder, fault(folder.stat())
    except (OSError, RuntimeError):  # `Path.home` raises a RuntimeError for a user who has no home folder
        return None


def fault(about: os.stat_result) -> str:
    """Return why other users could have written a file or a folder; empty if only this user and root can write to it.
    Windows has other permissions, which are not checked."""
    if not hasattr(os, "geteuid"):
        return ""
    if about.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({about.st_uid})"
    return "is writable for other users" if about.st_mode & 0o022 else ""


def library(folder: Path, key: str) -> Path | None:
    """Return the compiled library of a key. Its name contains the checksum of its content."""
    for path in folder.glob(f"{key}-*.so"):
        try:
            with path.open("rb") as file:
                is_safe = not fault(os.fstat(file.fileno()))
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            continue
        if is_safe and path.stem == f"{key}-{checksum}":
            return path
        with suppress(OSError):
            path.unlink()  # the compiler makes it again
    return None


def answer(command: Sequence[str], question: str, ask: Callable[[], tuple[str, bool]]) -> str:
    """Return the answer of a compiler to a question: that of an earlier process, or that of `ask()`, which also says
    whether to keep the answer for later processes.

    An answer is kept for one compiler, its environment and the processor. It can still be out of date, for example if a
    part of the compiler was replaced but its command was not. Then the program that is loaded was made by the older
    compiler, of the same source, with the same flags, for the same processor. So it computes the same numbers.
    """
    about, made = _description(command), made_folder()
    if about is None or made is None or made[1]:
        return ask()[0]
    key = hashlib.sha256(os.fsencode("\0".join([*about, question]))).hexdigest()[:32]
    path = made[0] / f"{key}.answer"
    if (kept := _read(path)) is not None:
        return kept
    found, is_kept = ask()
    if is_kept:
        with suppress(OSError):  # the folder is read-only, or the disk is full
            files.write(path, f"{_checksum(path, found)}\n{found}".encode(), mode=0o600)
    return found


def _read(path: Path) -> str | None:
    """Return the answer in a file; None if there is no file, or if it is damaged or not trusted."""
    try:
        with path.open("rb") as file:
            content = b"" if fault(os.fstat(file.fileno())) else file.read()
        checksum, _, found = content.decode().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return found if checksum == _checksum(path, found) else None


def _checksum(path: Path, text: str) -> str:
    return hashlib.sha256(f"{path.name}\n{text}".encode()).hexdigest()


def _description(command: Sequence[str]) -> list[str] | None:
    """Return all that decides the answers of a compiler; None if this is not known.

    It is known for gcc and clang on Linux if the command is the compiler itself. A script, ccache or the Python package
    of Zig calls another program, which can be replaced while the file of the command stays the same.
    """
    found = shutil.which(command[0])
    about_processor = processor(CPU_INFO)
    if found is None or not about_processor.keys() & {"flags", "Features"} or not sys.platform.startswith("linux"):
        return None
    if any(map(os.environ.get, REDIRECTING)) or not all(map(PLAIN_OPTION.fullmatch, command[1:])):
        return None
    path = Path(found).resolve()
    try:
        with path.open("rb") as file:
            is_program, about = file.read(4) == b"\x7fELF", os.fstat(file.fileno())
    except OSError:
        return None
    if not is_program or not COMPILER_NAME.fullmatch(path.name):
        return None
    numbers = (about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    environment = [f"{name}={os.environ.get(name)}" for name in READ_BY_COMPILER]
    return [*command, str(path), *map(str, numbers), *environment, f"{about_processor}"]


def processor(cpu_info: Path) -> dict[str, str]:
    """Return what Linux says about the instructions of the first processor; empty if it says nothing."""
    try:
        with cpu_info.open() as file:
            lines = file.read(1 << 14).partition("\n\n")[0].splitlines()  # the rest is about the other processors
    except OSError:
        return {}
    fields = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in fields if name.strip() in CPU_FIELDS}
