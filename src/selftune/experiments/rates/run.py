"""Run the experiments, and keep what they find in a folder."""

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
"""By name, each a function of `workers` and `progress`. The longest comes first."""
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
    """`findings.json` and, unless `data_only`, a figure for each finding and `report.html`; the last file written.

    Findings of other experiments stay in the folder if the same code made them.
    """
    path = Path(folder) / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = read(folder, versions=manifest.versions()) | findings
    findings = {name: kept[name] for name in EXPERIMENTS if name in kept}
    plain = {name: json.loads(one.model_dump_json()) for name, one in findings.items()}
    files.write(path, files.as_json({"versions": manifest.versions(), "findings": plain}))
    if data_only:
        return path
    from . import figures, page

    for finding in findings.values():
        figures.draw(finding, Path(folder) / "figures")
    return page.write(folder, findings)


def read(folder: Path, *, versions: dict[str, str] | None = None) -> dict[str, Finding]:
    """The findings that `write` kept; none where there is no file, or where it is not of the given versions."""
    path = Path(folder) / NAME
    if not path.is_file():
        return {}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        findings = {name: Finding.model_validate(one) for name, one in kept["findings"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise manifest.StoreError(f"{path}: not a file of findings ({error}); delete it, and it is made anew") from None
    return {} if versions is not None and kept.get("versions") != versions else findings
