"""Small files that are written whole or not at all, and the lock of a folder.

A file is on the disk before its name is, and a name is on the disk before the next file is written (`fsync`). So after
a loss of power, no file is there without its content, and none without the files that were written before it.

A folder is a `Path`, or a `UPath` if it was given as a URL. Functions here take both; `object_store` handles URLs.
"""

import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..foundation import json_values
from ..foundation.errors import ArgumentError, StoreError

if TYPE_CHECKING:
    from upath import UPath

    Folder = Path | UPath
else:  # a folder on this machine needs neither upath nor fsspec
    Folder = Any


def as_folder(folder: str | os.PathLike[str] | Folder) -> Folder:
    """The folder as a `Path` if it is on this machine, otherwise as a `UPath`."""
    if isinstance(folder, str) and (url := re.match(r"([A-Za-z][\w+.-]+)(://|::)", folder)):
        if url[1] not in ("file", "local"):
            return object_store().as_folder(folder)
        folder = folder[url.end() :]
    if not isinstance(folder, str | os.PathLike):
        return object_store().as_folder(folder)
    folder = Path(folder)
    if len(folder.parts) > 1 and re.fullmatch(r"[A-Za-z][\w+.-]+:", folder.parts[0]):
        raise ArgumentError("folder", "a URL as a str", f"{folder!r}, in which a slash was lost")
    return folder


def is_leftover(name: str) -> bool:
    """Whether a file comes from a run that was killed before it wrote a manifest."""
    return name == ".lock" or (name.startswith(".") and name.endswith(".tmp"))


def remove_leftovers(*folders: Folder, pattern: str = ".*.tmp") -> None:
    """Remove the temporary files of a process that died while writing. An object store has none."""
    for folder in folders:
        if isinstance(folder, Path):
            for path in folder.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def as_json(value: Any) -> bytes:
    return f"{json_values.text(value)}\n".encode()


def exists(path: Folder) -> bool:
    return path.exists() if isinstance(path, Path) else object_store().exists(path)


def names(folder: Folder) -> set[str]:
    """The names of all entries of a folder, from one listing; empty if there is no folder."""
    try:
        return set(os.listdir(folder)) if isinstance(folder, Path) else object_store().names(folder)
    except FileNotFoundError:
        return set()
    except NotADirectoryError:
        if not folder.is_file():  # then a parent of the folder is a file
            raise
        raise StoreError(f"{folder}: expected a folder, got a file") from None


def read(path: Folder) -> bytes:
    return path.read_bytes() if isinstance(path, Path) else object_store().read(path)


def write(path: Folder, data: bytes, *, mode: int = 0o666) -> None:
    """Write `data` to `path` atomically: the file is there whole or not at all, also after a loss of power.

    A link at `path` is replaced, not followed. `mode` has the permissions of the file, before the umask.
    """
    if not isinstance(path, Path):
        return object_store().write(path, data)
    make_folder(path.parent)
    temporary = _temporary(path)
    # O_EXCL: a link that somebody else has put there is an error.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)
    return None


_BINARY = getattr(os, "O_BINARY", 0)  # Windows only


def _temporary(path: Path) -> Path:
    """Return a new name beside `path` that nobody can guess; `remove_leftovers` knows it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def make_folder(folder: Path) -> None:
    """Make a folder and its parents if they are missing, and write their names to the disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync(path.parent)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk (`fsync`). Not every system can do this for folders."""
    is_folder = path.is_dir()
    if is_folder and sys.platform == "win32":
        return
    try:
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if not is_folder or error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def sync_inside(folder: Path, paths: Iterable[Path]) -> None:
    """Write files to the disk, then the names of the files and of all folders between them and `folder`."""
    parents = set()
    for path in paths:
        sync(path)
        parents.update(parent for parent in path.parents if parent == folder or folder in parent.parents)
    for parent in sorted(parents, key=lambda parent: -len(parent.parts)):
        sync(parent)


def remove(path: Folder) -> None:
    if not isinstance(path, Path):
        return object_store().remove(path)
    path.unlink(missing_ok=True)
    return sync(path.parent) if path.parent.exists() else None


@contextmanager
def creating(path: Folder, last: str) -> Iterator[Path]:
    """A local folder to fill, which is then moved to `path` as a whole; on an object store, the file `last` is last."""
    if not isinstance(path, Path):
        with object_store().creating(path, last) as local:
            yield local
        return
    temporary = _temporary(path)
    yield temporary
    sync_inside(temporary, [file for file in temporary.rglob("*") if file.is_file()])
    temporary.rename(path)
    sync(path.parent)


def is_created(path: Folder, last: str) -> bool:
    """Whether `creating` has finished."""
    return exists(path if isinstance(path, Path) else path / last)


def rename(folder: Folder, to: Folder, last: str) -> None:
    """Rename a folder, atomically on a disk. On an object store the objects move one by one, `last` as the last."""
    if isinstance(folder, Path):
        folder.rename(to)  # pyright: ignore[reportArgumentType]
        sync(folder.parent)
    else:
        object_store().rename(folder, to, last)


def map_parallel(folder: Folder, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """`map`; in parallel threads for an object store, where requests take long."""
    return map(function, items) if isinstance(folder, Path) else object_store().map_parallel(function, items)


def store_errors(path: Folder) -> AbstractContextManager[Any]:
    """A context in which errors of an object store become a `StoreError` that names `path`."""
    return nullcontext() if isinstance(path, Path) else object_store().store_errors(path)


def lock(folder: Folder) -> Any:
    """Lock the folder, and return the open lock file. The system releases the lock when the file or process ends."""
    if not isinstance(folder, Path):
        return object_store().Lock(folder)
    make_folder(folder)
    file = (folder / ".lock").open("a+")
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise StoreError(f"{folder}: in use by another process; wait for it, or choose another folder") from None
    return file


def object_store() -> Any:
    from . import object_store

    return object_store
