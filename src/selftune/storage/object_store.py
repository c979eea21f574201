"""A run's folder on an object store: the functions of `files`, for a `UPath`.

A PUT writes an object whole or not at all, so no renaming is needed. Caches are bypassed: fsspec's cached listing may
be older than the objects that other machines wrote. The driver decides credentials, endpoints and retries, by its
environment or fsspec's configuration.
"""

import errno
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..foundation.errors import ArgumentError, StoreError, cause

if TYPE_CHECKING:
    from upath import UPath
else:
    UPath = Any

THREADS = 32
"""How many requests run at a time: enough to hide their latency."""


def as_folder(folder: str | UPath) -> UPath:
    try:
        from upath import UPath
    except ImportError:
        raise StoreError(f"{folder}: an object store needs more packages: pip install 'selftune[cluster]'") from None
    try:
        path = UPath(folder)
        if path.protocol in ("s3", "s3a") and "max_concurrency" not in path.storage_options:
            # Otherwise s3fs asks for an object's size first and reads large ones in parts; our objects are small.
            path = UPath(path, max_concurrency=1)
        _ = path.fs  # this loads the driver
    except ImportError as error:
        raise StoreError(f"{folder}: its driver is not installed: {error} (with pip)") from None
    except ValueError as error:
        raise ArgumentError("folder", "a path, or a URL that fsspec supports", f"{str(folder)!r} ({error})") from None
    except Exception as error:
        raise _unreachable(folder, error) from cause(error)
    if not path.name:
        raise ArgumentError("folder", "a folder in a bucket", f"the bucket itself, {str(folder)!r}")
    return path


@contextmanager
def store_errors(path: UPath) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise _unreachable(path, error) from cause(error)


def exists(path: UPath) -> bool:
    with store_errors(path):
        path.fs.invalidate_cache(path.path)
        return path.fs.exists(path.path)


def names(folder: UPath) -> set[str]:
    fs, where = folder.fs, folder.path
    fs.invalidate_cache(where)
    try:
        paths = fs.ls(where, detail=False)
    except FileNotFoundError:
        return set()
    except Exception as error:
        raise _unreachable(folder, error) from cause(error)
    if paths == [where]:
        raise NotADirectoryError(where)
    # Some tools put an empty object at "folder/".
    return {path.rsplit("/", 1)[-1] for path in paths if path.rstrip("/") != where}


def read(path: UPath) -> bytes:
    try:
        return path.fs.cat_file(path.path)  # pyright: ignore[reportReturnType]
    except FileNotFoundError:
        raise
    except Exception as error:
        raise _unreachable(path, error) from cause(error)


def write(path: UPath, data: bytes) -> None:
    with store_errors(path):
        path.fs.pipe_file(path.path, data)


def remove(path: UPath) -> None:
    with store_errors(path), suppress(FileNotFoundError):
        path.fs.rm_file(path.path)


@contextmanager
def creating(path: UPath, last: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / path.name
        yield local
        objects = {file.relative_to(local).as_posix(): file for file in local.rglob("*") if file.is_file()}
        last_file = objects.pop(last)
        with store_errors(path):
            path.fs.pipe({f"{path.path}/{name}": file.read_bytes() for name, file in objects.items()})
        write(path / last, last_file.read_bytes())


def rename(folder: UPath, to: UPath, last: str) -> None:
    """Copy all objects, then remove all. After an interruption, no object is lost, and one folder is complete."""
    fs, where = folder.fs, folder.path
    with store_errors(folder):
        fs.invalidate_cache()
        objects = [path for path in fs.find(where) if path not in (f"{where}/{last}", f"{where}/.lock")]
        for paths in (objects, [f"{where}/{last}"]):
            fs.copy(paths, [to.path + path.removeprefix(where) for path in paths])
        for paths in (objects, [f"{where}/{last}"]):
            if paths:
                fs.rm(paths)


def map_parallel(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(function, items)  # after an error, tasks that have not begun are cancelled


class Lock:
    """An object that names the owner of a folder. After a process is killed, a person must delete it.

    It is created only if none exists, on stores that support this (S3, Google's and Azure's). On others, two processes
    that start at the same moment may both own the folder. Results stay correct, but work is done twice: both write the
    same bytes, and an array that differs from its marker's checksum is detected.
    """

    def __init__(self, folder: UPath):
        self._path, self._owner = folder / ".lock", uuid.uuid4().hex.encode()
        fs, where = folder.fs, self._path.path
        if not exists(self._path):
            with store_errors(folder):
                try:
                    fs.pipe_file(where, self._owner, mode="create")
                except FileExistsError:
                    pass
                except OSError as error:
                    if error.errno == errno.ENOSYS:
                        fs.pipe_file(where, self._owner)
                    elif not exists(self._path):
                        raise
        # Read it in any case: a repeated request may have found its own object.
        if (there := self._read()) != self._owner:
            raise StoreError(
                f"{folder}: in use by another process (owner {there.decode(errors='replace')[:32]}); wait for it, or "
                f"choose another folder. If that process is dead, which a store cannot know, delete {self._path}"
            )

    def close(self) -> None:
        if self._read() == self._owner:
            remove(self._path)

    def _read(self) -> bytes:
        try:
            return read(self._path)
        except FileNotFoundError:
            return b""


def _unreachable(path: Any, error: Exception) -> StoreError:
    reason = f"{type(error).__name__}: {error}"
    return StoreError(
        f"{path}: the store refused the request or was not reached ({reason}); check the driver's endpoint and "
        f"credentials"
    )
