"""`certificate.json`: what the theory says about a run of the paper's example, and which run that was."""

import json
from pathlib import Path
from typing import Any

from ...storage.manifest import StoreError

NAME = "certificate.json"


def read(folder: Path) -> dict[str, Any] | None:
    """The file of a run's folder: `certificates` by the form of the noise, their `settings` and `versions`.

    None where there is no file; one that is something else is a `StoreError`.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(f"{path}: not readable as JSON ({error}); delete it, and it is made anew") from None
    if not isinstance(value, dict) or not _is_whole(value):
        raise StoreError(
            f"{path}: not a file of certificates (it has no lists of rows); delete it, and it is made anew"
        )
    return value


def _is_whole(value: dict[str, Any]) -> bool:
    made, settings = value.get("certificates"), value.get("settings", {})
    return (
        isinstance(settings, dict)
        and isinstance(made, dict)
        and all(isinstance(one, dict) and isinstance(one.get("rows"), list) for one in made.values())
    )
