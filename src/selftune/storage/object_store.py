"""A run's folder on an object store: what `_files` does, for a `UPath`.

A PUT puts an object there whole or not at all, so nothing is renamed into place. Every answer is asked for anew: what
fsspec remembers of a listing may be older than what other machines have written. Credentials, endpoints and how often a
request is tried again are the driver's (its environment, or fsspec's configuration).
"""

import errno
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..foundation.errors import StoreError

if TYPE_CHECKING:
    from upath import UPath
else:
    UPath = Any

SIDE_BY_SIDE = 32
"""How many tasks are read at a time: enough for a request's way to an object store not to matter."""


def place(folder: str | UPath) -> UPath:
    try:
        from upath import UPath
    except ImportError:
        raise StoreError(f"{folder}: an object store needs more packages: pip install 'selftune[cluster]'") from None
    try:
        found = UPath(folder)
        if found.protocol in ("s3", "s3a") and "max_concurrency" not in found.storage_options:
            # Else s3fs asks for an object's size before it reads it, in parts if it is large; ours are not.
            found = UPath(found, max_concurrency=1)
        _ = found.fs  # the driver is looked for here
    except ImportError as error:
        raise StoreError(f"{folder}: its driver is not installed: {error} (with pip)") from None
    except ValueError as error:
        raise ValueError(
            f"folder: expected a path, or a URL that fsspec knows, got {str(folder)!r} ({error})"
        ) from None
    except Exception as error:
        raise _unreachable(folder, error) from error
    if not found.name:
        raise ValueError(f"folder: expected a folder in a bucket, got the bucket itself, {str(folder)!r}")
    return found


@contextmanager
def reaching(path: UPath) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise _unreachable(path, error) from error


def exists(path: UPath) -> bool:
    with reaching(path):
        path.fs.invalidate_cache(path.path)
        return path.fs.exists(path.path)


def names(folder: UPath) -> set[str]:
    fs, where = folder.fs, folder.path
    fs.invalidate_cache(where)
    try:
        found = fs.ls(where, detail=False)
    except FileNotFoundError:
        return set()
    except Exception as error:
        raise _unreachable(folder, error) from error
    if found == [where]:
        raise NotADirectoryError(where)
    # Some tools put an empty object at "folder/".
    return {path.rsplit("/", 1)[-1] for path in found if path.rstrip("/") != where}


def read(path: UPath) -> bytes:
    try:
        return path.fs.cat_file(path.path)  # pyright: ignore[reportReturnType]
    except FileNotFoundError:
        raise
    except Exception as error:
        raise _unreachable(path, error) from error


def write(path: UPath, data: bytes) -> None:
    with reaching(path):
        path.fs.pipe_file(path.path, data)


def remove(path: UPath) -> None:
    with reaching(path), suppress(FileNotFoundError):
        path.fs.rm_file(path.path)


@contextmanager
def making(path: UPath, last: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        yield made
        found = {file.relative_to(made).as_posix(): file for file in made.rglob("*") if file.is_file()}
        end = found.pop(last)
        with reaching(path):
            path.fs.pipe({f"{path.path}/{name}": file.read_bytes() for name, file in found.items()})
        write(path / last, end.read_bytes())


def rename(folder: UPath, to: UPath, last: str) -> None:
    """Copy all, then remove all; whenever it is cut short, no object is lost, and one of the two has all of them."""
    fs, where = folder.fs, folder.path
    with reaching(folder):
        fs.invalidate_cache()
        found = [path for path in fs.find(where) if path not in (f"{where}/{last}", f"{where}/.lock")]
        for paths in (found, [f"{where}/{last}"]):
            fs.copy(paths, [to.path + path.removeprefix(where) for path in paths])
        for paths in (found, [f"{where}/{last}"]):
            if paths:
                fs.rm(paths)


def each(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield from pool.map(function, items)  # which calls off what has not begun, once one raised


class Lock:
    """An object that says who owns a folder. It outlives a process that is killed: then a person must delete it.

    It is created on the condition that there is none, where the store can do that (S3, Google's and Azure's). Where it
    cannot, two that begin within the same moment may both own the folder. That costs work, not correctness: both would
    write the same bytes, and what does not have its marker's checksum is found.
    """

    def __init__(self, folder: UPath):
        self._path, self._owner = folder / ".lock", uuid.uuid4().hex.encode()
        fs, where = folder.fs, self._path.path
        if not exists(self._path):
            with reaching(folder):
                try:
                    fs.pipe_file(where, self._owner, mode="create")
                except FileExistsError:
                    pass
                except OSError as error:
                    if error.errno == errno.ENOSYS:
                        fs.pipe_file(where, self._owner)
                    elif not exists(self._path):
                        raise
        # Asked for in any case: a request that was tried again may have met its own object.
        if (there := self._read()) != self._owner:
            raise StoreError(
                f"{folder}: in use by another process (owner {there.decode(errors='replace')[:32]}); wait for it, or "
                f"choose another folder. An object store cannot tell whether it is alive: if not, delete {self._path}"
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
    said = f"{type(error).__name__}: {error}"
    return StoreError(f"{path}: the store refused or was not reached ({said}); its driver decides where and as whom")
