"""One page with all findings: claim, figure, table and checks of each."""

from pathlib import Path
from typing import Any

from ...reporting import pages, plotly_figures
from ...storage import files
from . import figures
from .finding import Finding


def write(folder: Path, stored: dict[str, Finding]) -> Path:
    """Write `report.html`, and return its path."""
    path = Path(folder) / "report.html"
    page = pages.render(
        "experiments/rates/page.html",
        title="The theory in experiments",
        eyebrow="selftune · Online Policy Optimization in Unknown Nonlinear Systems",
        failed=sum(len(finding.failed) for finding in stored.values()),
        checks=sum(len(finding.checks) for finding in stored.values()),
        findings=findings(stored),
    )
    files.write(path, page.encode())
    return path


def findings(stored: dict[str, Finding]) -> list[dict[str, Any]]:
    """The data of the template `finding.html`."""
    return [
        {
            "name": name,
            **{part: getattr(finding, part) for part in ("title", "claim", "columns", "rows", "checks")},
            "panels": plotly_figures.panels({name: figures.FIGURES[finding.name](finding)}),
        }
        for name, finding in stored.items()
    ]
