"""`certificate.json`: the theory's certificates for a run of the paper's example, and the settings of that run."""

import json
from pathlib import Path
from typing import Any

from ...storage.manifest import StoreError

NAME = "certificate.json"


def read(folder: Path) -> dict[str, Any] | None:
    """The content of the file in a run's folder: `certificates` by the form of the noise, `settings` and `versions`.

    None if there is no file. Raises `StoreError` if the file has another content.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(f"{path}: not readable as JSON ({error}); delete the file, and it is written again") from None
    if not isinstance(value, dict) or not _is_whole(value):
        raise StoreError(
            f"{path}: not a file of certificates (it has no lists of rows); delete the file, and it is written again"
        )
    return value


def _is_whole(value: dict[str, Any]) -> bool:
    made, settings = value.get("certificates"), value.get("settings", {})
    return (
        isinstance(settings, dict)
        and isinstance(made, dict)
        and all(isinstance(one, dict) and isinstance(one.get("rows"), list) for one in made.values())
    )
