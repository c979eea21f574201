"""One page with all findings: claim, figure, table and checks of each."""

from pathlib import Path
from typing import Any

from ...reporting import pages
from ...storage import files
from .finding import Finding


def write(folder: Path, stored: dict[str, Finding]) -> Path:
    """Write `report.html`, which contains the figures of `folder`/figures, and return its path."""
    path = Path(folder) / "report.html"
    page = pages.render(
        "experiments/rates/page.html",
        title="The theory in experiments",
        eyebrow="selftune · Online Policy Optimization in Unknown Nonlinear Systems",
        failed=sum(len(finding.failed) for finding in stored.values()),
        checks=sum(len(finding.checks) for finding in stored.values()),
        findings=findings(path.parent, stored),
    )
    files.write(path, page.encode())
    return path


def findings(folder: Path, stored: dict[str, Finding]) -> list[dict[str, Any]]:
    """The data of the template `finding.html`; without the figure if its file does not exist."""
    return [
        {
            "name": name,
            **{part: getattr(finding, part) for part in ("title", "claim", "columns", "rows", "checks")},
            "image": pages.image(folder / "figures" / f"{finding.name}.png"),
        }
        for name, finding in stored.items()
    ]
