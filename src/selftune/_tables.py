"""What the commands print, as tables."""

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from ._screen import new_table

if TYPE_CHECKING:
    from .experiments.summary import Summary


def paper(summary: "Summary") -> list[Table | str]:
    names = ("M-GAPS", "fixed gain", "exact model", "GAPS")
    costs = new_table("total cost, mean over seeds", "noise", "θ₀", *names, "best static")
    ratios = new_table(
        "paired ratios of costs, with 95 % bootstrap intervals",
        *("noise", "θ₀ = θ_a", "M-GAPS / fixed gain", "M-GAPS / best static *"),
    )
    checks = new_table("checks", "what", "expected", "measured", "")
    for row in summary.rows:
        start = (row.noise, f"{row.gain:g}")
        costs.add_row(*start, *(f"{row.cost[name].mean:.4g}" for name in names), f"{row.static_cost.mean:.4g}")
        ratios.add_row(*start, *("" if one is None else escape(str(one)) for one in (row.ratio, row.after)))
    words = {True: "[green]holds[/]", False: "[red]FAILS[/]", None: "not judged"}
    for check in summary.checks:
        checks.add_row(escape(check.name), check.expected, escape(str(check.measured)), words[check.holds])
    note = "not judged: other settings than the paper's\n" if any(c.holds is None for c in summary.checks) else ""
    return [costs, ratios, checks, note + _NOTE]


def certificate(name: str, made: Any) -> Table:
    table = new_table(name, "", "property or theorem", "measured", "bound", "notes")
    colors = {"holds": "green", "vacuous": "yellow", "fails": "yellow", "does not hold": "yellow", "VIOLATED": "red"}
    for row in made.rows:
        verdict = f"[{colors[row.verdict]}]{row.verdict}[/]"
        table.add_row(
            verdict, escape(row.name), f"{row.measured:.4g}", f"{row.bound:.4g}", escape("; ".join(row.notes))
        )
    return table


_NOTE = """\
* the best static gain in hindsight, from the second period on. Inside Δ(…) the
  noise is Δ times weaker and gradients Δ² times smaller: with learning rate η
  M-GAPS is still on its way there, with η/Δ² it arrives.
"""
