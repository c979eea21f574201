"""Run the experiments, and store their findings in a folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...storage import files, manifest
from . import adversary, gradient_errors, growth, switches, truncation
from .finding import Finding

EXPERIMENTS: dict[str, Callable[..., Finding]] = {
    "rates": growth.find,
    "gradient-errors": gradient_errors.find,
    "gaps": truncation.find,
    "switches": switches.find,
    "adversary": adversary.find,
}
"""The experiments by name, each a function of `workers` and `progress`. The longest comes first."""
NAME = "findings.json"


def compute(
    name: str,
    *,
    workers: int | None = None,
    progress: Callable[[str, int, int], Any] = lambda name, done, total: None,
) -> Finding:
    """The finding of one experiment. `progress` is called with (name, done, total)."""
    return EXPERIMENTS[name](workers=workers, progress=lambda done, total: progress(name, done, total))


def write(folder: Path, findings: dict[str, Finding], *, data_only: bool = False) -> Path:
    """Write `findings.json` and, unless `data_only`, the figures and `report.html`; return the last file written.

    Findings of other experiments stay in the folder if the same code made them.
    """
    path = Path(folder) / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = read(folder, versions=manifest.versions()) | findings
    findings = {name: stored[name] for name in EXPERIMENTS if name in stored}
    files.write(path, files.as_json({"versions": manifest.versions(), "findings": findings}))
    if data_only:
        return path
    from . import figures, page

    for finding in findings.values():
        figures.draw(finding, Path(folder) / "figures")
    return page.write(folder, findings)


def read(folder: Path, *, versions: dict[str, str] | None = None) -> dict[str, Finding]:
    """The findings that `write` stored. Empty if there is no file, or if other than the given versions made it."""
    path = Path(folder) / NAME
    if not path.is_file():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        findings = {name: Finding.model_validate(one) for name, one in stored["findings"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise manifest.StoreError(
            f"{path}: not a file of findings ({error}); delete the file, and it is written again"
        ) from None
    return {} if versions is not None and stored.get("versions") != versions else findings
