"""One page with all findings: claim, figure, table and checks of each."""

import base64
from html import escape
from pathlib import Path

from ...reporting import html_parts
from ...storage import files
from .finding import Finding


def write(folder: Path, findings: dict[str, Finding]) -> Path:
    """Write `report.html`, which contains the figures of `folder`/figures, and return its path."""
    folder = Path(folder)
    sections = [(name, escape(one.title), section(one, folder / "figures")) for name, one in findings.items()]
    failed = sum(len(one.failed) for one in findings.values())
    checks = sum(len(one.checks) for one in findings.values())
    verdict = f"All {checks} checks hold." if not failed else f"{failed} of {checks} checks fail."
    head = f'<p class="lead">The paper\'s statements, each with the experiment that tests it. {verdict}</p>'
    path = folder / "report.html"
    eyebrow = "selftune · Online Policy Optimization in Unknown Nonlinear Systems"
    files.write(path, html_parts.page("The theory in experiments", eyebrow, head, sections).encode())
    return path


def section(finding: Finding, figures: Path) -> str:
    """The HTML of one finding; without the figure if its file does not exist."""
    image, file = "", figures / f"{finding.name}.png"
    if file.is_file():
        content = file.read_bytes()
        data = base64.b64encode(content).decode()
        width = int.from_bytes(content[16:20], "big") // 2  # the PNG header's width; two image pixels per page pixel
        image = (
            f'<section class="panel"><figure><img width="{width}" style="max-width:100%;background:white" '
            f'alt="{escape(finding.title)}" src="data:image/png;base64,{data}"></figure></section>'
        )
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in finding.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in finding.rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    note = "Means over seeds with 95 % bootstrap intervals. The end of the interval is checked, not the mean."
    return f"<p>{escape(finding.claim)}</p>{image}{html_parts.scroll(table, finding.title)}" + html_parts.checks(
        finding.checks, note
    )
