"""A folder that an export writes: only its own files are replaced or removed, and none is left half-written."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..control.controller import Controller
from ..foundation.errors import OverwriteError, StoreError
from ..storage import files
from .recorded_firmware import Exported, Options, prepare

MANIFEST = "selftune.json"
NAMES = re.compile(
    r"(\w+/){0,3}(Kbuild|Kconfig|Makefile|app-config|\w+([.-]\w+)?\."
    r"(c|h|md|txt|wasm|mjs|d\.mts|json|fmu|csv|py|properties|ino|cpp|hpp|xml|yaml|cmake|config))",
    re.ASCII,
)
"""Names of files that an export writes, with those of their folders."""


class Content(NamedTuple):
    """The files of an export by name, and what its manifest says beside the list of files."""

    files: dict[str, str | bytes]
    about: dict[str, Any]


def export(
    make: Callable[[Exported], Content], controller: Controller, folder: str | os.PathLike[str], options: Options
) -> Path:
    """Write the files that `make` returns for a controller, and return the folder. Every export is such a call."""
    folder = Path(folder)
    settings: dict[str, Any] = {**options}
    before = check(folder, bool(settings.pop("overwrite", False)))
    exported = prepare(controller, folder, **settings)
    content = make(exported)
    encoded = {path: text if isinstance(text, bytes) else text.encode() for path, text in content.files.items()}
    write(folder, encoded, before, {"name": exported.name, **content.about})
    return folder


def check(folder: Path, overwrite: bool) -> dict[str, list[str]]:
    """Return the checksums of the files of an earlier export; raise `StoreError` for other or changed files."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder}: expected a folder, got a file")
    if not folder.is_dir() or not any(folder.iterdir()):
        return {}
    try:
        about = json.loads((folder / MANIFEST).read_bytes())
        written = {path: list(sums) for path, sums in about.get("before", {}).items()}
        for path, checksum in about["files"].items():
            written[path] = [*written.get(path, []), checksum]
        # Such a file may come from anywhere: only names of files in this folder are believed.
        if strange := [path for path in written if not NAMES.fullmatch(path)]:
            raise ValueError(strange)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        if overwrite:
            return {}
        raise OverwriteError(f"{folder}: not empty, and not written by an export of selftune") from None
    _refuse_links(folder, written)
    for path, sums in written.items():
        if not overwrite and (folder / path).exists() and _checksum(folder / path) not in sums:
            raise OverwriteError(f"{folder / path}: changed since it was written")
    return written


def write(folder: Path, contents: dict[str, bytes], before: dict[str, list[str]], about: dict[str, Any]) -> None:
    """Write the files of an export, and remove those of an earlier export that are not among them.

    **Arguments:** `before`, as `check` returned it; `about`, what the manifest says beside the list of the files.
    """
    _refuse_links(folder, contents)
    sums = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    about = {"format": "selftune export", "version": 1} | about | {"files": sums}
    # Write the list of files first, with the old ones, so that a half-written folder is still known as an export.
    files.write(folder / MANIFEST, files.as_json(about | {"before": before}))
    for path, content in contents.items():
        files.write(folder / path, content)
    for path in before.keys() - sums.keys():  # files of an earlier export under another name
        if _checksum(folder / path) in before[path]:
            (folder / path).unlink()
            for parent in list(Path(path).parents)[:-1]:
                with suppress(OSError):  # the folder has other files
                    (folder / parent).rmdir()
    files.write(folder / MANIFEST, files.as_json(about))


def _refuse_links(folder: Path, paths: Iterable[str]) -> None:
    """Raise `StoreError` if a folder inside the export's folder is a link: files behind it belong to someone else."""
    for inside in {parent for path in paths for parent in list(Path(path).parents)[:-1]}:
        if (folder / inside).is_symlink():
            raise StoreError(f"{folder / inside}: expected a folder, got a link to one; remove the link")


def _checksum(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
