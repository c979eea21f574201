"""Small files that are there whole or not at all, and the lock of a folder."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from ._errors import StoreError


def is_ours(path: Path) -> bool:
    """What a run leaves that was killed before it had a manifest."""
    return path.name == ".lock" or (path.name.startswith(".") and path.name.endswith(".tmp"))


def remove_leftovers(*folders: Path) -> None:
    """What a process left that died while it wrote."""
    for folder in folders:
        for path in folder.glob(".*.tmp"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def as_json(value: Any) -> bytes:
    plain = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    return (json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    """Put `data` at `path` whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with made.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)


def lock(folder: Path) -> Any:
    """An open file whose lock the system lets go when it is closed or its process dies: it cannot become stale."""
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
