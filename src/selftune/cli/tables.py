"""The tables that the commands print."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from .screen import new_table

if TYPE_CHECKING:
    from ..experiments.loops.summary import LoopsSummary
    from ..experiments.paper.summary import Summary
    from ..experiments.rates.finding import Finding
    from ..experiments.robots.summary import RobotsSummary
    from ..loop.commissioning import CommissioningStep
    from ..reporting.statistics import Check, Interval
    from ..sweeps.summary import Best, Comparison, Standing


def paper(summary: "Summary") -> list[Table | str]:
    """Two tables of costs, the checks, and the reasons for empty cells and for checks that are not judged."""
    from ..sweeps.summary import FEW

    names = ("M-GAPS", "fixed gain", "exact model", "GAPS")
    costs = new_table("total cost, mean over seeds", "noise", "θ₀", *names, "best static")
    ratios = new_table(
        "paired ratios of costs, with 95 % bootstrap intervals",
        *("noise", "θ₀ = θ_a", "M-GAPS / fixed gain", "M-GAPS / best static *", "the same, η/Δ²"),
    )
    for row in summary.rows:
        start = (row.noise, f"{row.gain:g}")
        costs.add_row(*start, *(f"{row.cost[name].mean:.4g}" for name in names), f"{row.static_cost.mean:.4g}")
        compared = [_ratio(row.ratio), _ratio(row.after)]
        ratios.add_row(*start, *compared, _ratio(row.rescaled) if row.noise == "inside" else "")
    note = ""
    if summary.seeds < FEW:
        note += f"intervals over fewer than {FEW} seeds mean little; this run has {summary.seeds}\n"
    if any(row.after is None for row in summary.rows):
        note += "–: the ratio leaves out the first period, and this run has only one period; give --periods 2 or more\n"
    if any(check.holds is None for check in summary.checks):
        note += "not judged: the checks are for the paper's settings and at least two periods\n"
    return [costs, ratios, _checks(summary.checks, _ratio), note + _NOTE]


def _ratio(one: "Interval | None") -> str:
    """With at most four decimals: a tighter interval, such as [0.99999814, 0.99999899], is hard to read."""
    if one is None:
        return "–"
    text = str(one)
    if max((len(number) for number in re.findall(r"\.(\d+)", text)), default=0) > 4:
        ends = "" if one.low is None or one.high is None else f" [{one.low:.4f}, {one.high:.4f}]"
        text = f"{one.mean:.4f}{ends}"
    return escape(text)


def of_checks(title: str, rows: "Sequence[CommissioningStep]") -> Table:
    """The rows of a commissioning or of a replay."""
    table = new_table(title, "verdict", "check", "finding")
    colors = {"ok": "green", "warning": "yellow", "no-go": "red"}
    for row in rows:
        table.add_row(f"[{colors[row.verdict]}]{row.verdict}[/]", row.name, escape(row.sentence))
    return table


def _checks(found: "list[Check]", measured: "Callable[[Interval], str]" = lambda one: escape(str(one))) -> Table:
    table = new_table("checks", "quantity", "expected", "measured", "")
    words = {True: "[green]holds[/]", False: "[red]FAILS[/]", None: "not judged"}
    for check in found:
        table.add_row(escape(check.name), check.expected, measured(check.measured), words[check.holds])
    return table


def robots(summary: "RobotsSummary") -> list[Table | str]:
    """One table for each case, the checks, and a note on the columns."""
    parts: list[Table | str] = []
    columns = ("start", "algorithm", "failed", "cost", "RMSE", "/ EST", "/ static", "last ¼", "near after")
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
        parts.append(table)
    note = "not judged: this is not the full comparison\n" if any(c.holds is None for c in summary.checks) else ""
    return [*parts, _checks(summary.checks), note + _NOTE_ROBOTS]


def loops(summary: "LoopsSummary") -> list[Table | str]:
    """A table of ratios to the best static gains, and the checks."""
    from ..experiments.loops.page import overview_rows
    from ..experiments.loops.run import RULES

    columns = ("loop", "plant", "failed", "worst start", "last ¼", "median", "whole run", *RULES)
    table, before = new_table("cost / cost of the best static gains, means over seeds", *columns), None
    for row in overview_rows(summary):
        table.add_row(
            "" if row["loop"] == before else row["loop"],
            row["plant"],
            f"{row['failed']}/{row['runs']}",
            row["worst_start"],
            *(f"{row[name]:.3g}" for name in ("last", "median", "total")),
            *("–" if one is None else f"{one.mean:.3g}" for one in row["rules"]),
        )
        before = row["loop"]
    note = "not judged: this is not the full comparison\n" if any(c.holds is None for c in summary.checks) else ""
    return [table, _checks(summary.checks), note + _NOTE_LOOPS]


def arms(summary: Any) -> list[Table | str]:
    """A table of ratios to the best static gains, and the checks."""
    columns = ("robot", "start", "crashed", "last ¼", "worst seed", "fixed", "fixed crashed")
    table, before = new_table("cost in the last quarter / that of the best static gains", *columns), None
    for row in summary.rows:
        table.add_row(
            "" if row.robot == before else escape(row.robot),
            f"{row.start:g}",
            f"{row.failed}/{row.runs}",
            "–" if row.last is None else f"{row.last.mean:.3g}",
            "–" if row.worst is None else f"{row.worst:.3g}",
            "–" if row.fixed is None else f"{row.fixed:.3g}",
            f"{row.fixed_failed}/{row.runs}",
        )
        before = row.robot
    note = "not judged: this is not the full comparison" if any(c.holds is None for c in summary.checks) else ""
    return [table, _checks(summary.checks), *([note] if note else [])]


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
    """The main numbers of one experiment of the theory, and its checks."""
    table = new_table(made.title, *made.columns)
    for row in made.rows:
        table.add_row(*map(escape, row))
    return [table, _checks(made.checks)]


def sweep(won: "Best", standing: "list[Standing]") -> list[Table | str]:
    """A table of the settings in `standing`, and the best setting in words."""
    from ..sweeps.point_table import show

    title = f"{won.judged}, mean and 95 % interval over seeds"
    table = new_table(title, *won.setting, "cost", "difference to the best", "ratio to the best")
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
    table = new_table(title, *made.by, made.over, "other settings", "cost", f"difference to {show(made.to)}", "failed")
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
* relative to the best static gain in hindsight, from the second period on. With
  the noise inside Δ(…), the noise is Δ times weaker and gradients are Δ² times
  smaller. With learning rate η, M-GAPS has not yet reached the best static gain;
  with η/Δ² it does.
"""

_NOTE_LOOPS = (
    "last ¼: from the start that ends worst, in the last quarter of the run; median: over the starts, in the last "
    "quarter; whole run: the start that costs most. The rules' gains are fixed, and are compared in the last quarter."
)
_NOTE_ROBOTS = """\
start: the factor on all gains at the start. Costs are costs of a step, over the
runs that did not fail. / EST: ratio to the same gains held fixed, with the
estimator. / static: ratio to the best static gains; last ¼: the same ratio in the
last quarter of the run. near after: the time after which the cost stays within
1.2 times that of the best static gains, in the first half of the run; the median
over seeds.
"""
