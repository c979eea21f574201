"""What the commands print, as tables."""

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from .screen import new_table

if TYPE_CHECKING:
    from ..experiments.paper.summary import Summary
    from ..experiments.rates.finding import Finding
    from ..experiments.robots.summary import RobotsSummary
    from ..reporting.statistics import Check
    from ..sweeps.summary import Best, Comparison, Standing


def paper(summary: "Summary") -> list[Table | str]:
    names = ("M-GAPS", "fixed gain", "exact model", "GAPS")
    costs = new_table("total cost, mean over seeds", "noise", "θ₀", *names, "best static")
    ratios = new_table(
        "paired ratios of costs, with 95 % bootstrap intervals",
        *("noise", "θ₀ = θ_a", "M-GAPS / fixed gain", "M-GAPS / best static *"),
    )
    for row in summary.rows:
        start = (row.noise, f"{row.gain:g}")
        costs.add_row(*start, *(f"{row.cost[name].mean:.4g}" for name in names), f"{row.static_cost.mean:.4g}")
        ratios.add_row(*start, *("" if one is None else escape(str(one)) for one in (row.ratio, row.after)))
    note = "not judged: other settings than the paper's\n" if any(c.holds is None for c in summary.checks) else ""
    return [costs, ratios, _checks(summary.checks), note + _NOTE]


def _checks(found: "list[Check]") -> Table:
    table = new_table("checks", "what", "expected", "measured", "")
    words = {True: "[green]holds[/]", False: "[red]FAILS[/]", None: "not judged"}
    for check in found:
        table.add_row(escape(check.name), check.expected, escape(str(check.measured)), words[check.holds])
    return table


def robots(summary: "RobotsSummary") -> list[Table | str]:
    """A table for each case."""
    made: list[Table | str] = []
    columns = ("from", "algorithm", "failed", "cost", "RMSE", "/ EST", "/ static", "last ¼", "near after")
    for case in dict.fromkeys(row.case for row in summary.rows):
        table = new_table(f"{case}: means over seeds", *columns)
        rows, before = [row for row in summary.rows if row.case == case], None
        for row in rows:
            means = (row.cost, row.rmse, row.to_estimator, row.to_static, row.settled)
            table.add_row(
                "" if row.start == before else f"{row.start:g}",
                escape(row.algorithm),
                f"{row.failed}/{row.runs}",
                *("–" if one is None else f"{one.mean:.3g}" for one in means),
                "–" if row.convergence is None else f"{row.convergence:.1f} s",
            )
            before = row.start
        made.append(table)
    note = "not judged: not the full comparison\n" if any(c.holds is None for c in summary.checks) else ""
    return [*made, _checks(summary.checks), note + _NOTE_ROBOTS]


def certificate(name: str, made: Any) -> Table:
    table = new_table(name, "", "property or theorem", "measured", "bound", "notes")
    colors = {"holds": "green", "vacuous": "yellow", "fails": "yellow", "does not hold": "yellow", "VIOLATED": "red"}
    colors["not applicable"] = "dim"
    for row in made.rows:
        verdict = f"[{colors[row.verdict]}]{row.verdict}[/]"
        table.add_row(
            verdict, escape(row.name), f"{row.measured:.4g}", f"{row.bound:.4g}", escape("; ".join(row.notes))
        )
    return table


def finding(made: "Finding") -> list[Table | str]:
    """The main numbers of one of the theory's experiments, and its checks."""
    table = new_table(made.title, *made.columns)
    for row in made.rows:
        table.add_row(*map(escape, row))
    return [table, _checks(made.checks)]


def sweep(won: "Best", standing: "list[Standing]") -> list[Table | str]:
    """The best settings, in words the first of them, and what failed. `standing`: as many as are to be shown."""
    from ..sweeps.point_table import show

    title = f"{won.judged}, mean and 95 % interval over seeds"
    table = new_table(title, *won.setting, "cost", "more than the best", "times the best")
    for i, one in enumerate(standing):
        more = ("–", "–") if i == 0 else (str(one.difference), "–" if one.ratio is None else str(one.ratio))
        near = " *" if i > 0 and one.near else ""
        cells = (*map(show, one.setting.values()), str(one.cost), more[0], more[1] + near)
        table.add_row(*map(escape, cells))
    note = f"* {won.undecided()}\n" if won.rivals else ""
    return [table, f"{note}best: {won}"]


def comparison(made: "Comparison") -> Table:
    from ..sweeps.point_table import in_words, show

    title = f"{made.judged}, mean and 95 % interval over {made.seeds} seeds"
    table = new_table(title, *made.by, made.over, "the rest", "cost", f"more than {show(made.to)}", "failed")
    before = None
    for side in made.sides:
        rest = in_words(side.setting) if side.setting else "" if side.cost else f"– ({side.reason})"
        numbers = ("–" if one is None else str(one) for one in (side.cost, side.difference))
        place = ["" if side.by == before else show(value) for value in side.by.values()]
        cells = (*place, show(side.value), rest, *numbers, f"{side.failed}/{side.runs}")
        table.add_row(*map(escape, cells))
        before = side.by
    return table


_NOTE = """\
* the best static gain in hindsight, from the second period on. Inside Δ(…) the
  noise is Δ times weaker and gradients Δ² times smaller: with learning rate η
  M-GAPS is still on its way there, with η/Δ² it arrives.
"""

_NOTE_ROBOTS = """\
from: what all gains are multiplied by at the start. Costs of a step, of the runs
that did not fail; / EST: to the same gains held fixed, with the estimator; /
static: to the best static gains, and the same in the last quarter alone; near
after: when the cost stays within 1.2 times theirs, the median of the first half.
"""
