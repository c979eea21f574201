"""The page about the loops' comparison."""

from typing import Any

import numpy as np

from ...reporting import pages, plotly_figures
from ..registry import Experiment, Progress, StoredRun
from . import figures as loops_figures
from .run import RULES
from .summary import NAMES, LoopsSummary, StartRow, summarize


def render(run: StoredRun) -> str:
    settings: dict[str, Any] = run.manifest.settings
    dataset, summary = run.dataset, run.summary
    rows: list[StartRow] = summary.starts
    good = [row for row in rows if row.last is not None]
    return pages.render(
        "experiments/loops/page.html",
        title="Control loops that tune themselves",
        eyebrow="selftune · the loops' comparison",
        runs=sum(row.runs for row in rows),
        failed=sum(row.failed for row in rows),
        cells=len(rows),
        reached=sum(row.last is not None and row.last.mean <= settings["limit"] for row in rows),
        limit=settings["limit"],
        margin=settings["margin"],
        worst=max(good, key=lambda row: _mean(row.last), default=None),
        sizes=dataset.sizes,
        periods=settings["periods"],
        names=NAMES,
        overview=overview_rows(summary),
        rules=RULES,
        tables=[
            (
                loop,
                [
                    (NAMES.get(plant, plant), _table_rows(summary, loop, plant))
                    for plant in map(str, dataset.plant.values)
                ],
            )
            for loop in map(str, dataset.loop.values)
        ],
        checks=summary.checks,
        panels=plotly_figures.panels(loops_figures.make_figures(dataset, settings)),
        loops=settings["about"],
        search=settings["rounds"] * settings["candidates"],
        about=pages.about(run.manifest, _command(settings)),
    )


def overview_rows(summary: LoopsSummary) -> list[dict[str, Any]]:
    """Return a row for each loop and plant: the worst start's ratios, and those of the rules."""
    rows = []
    for loop, plant in dict.fromkeys((row.loop, row.plant) for row in summary.starts):
        here = _of(summary, loop, plant)
        rules = {row.rule: row.last for row in summary.rivals if (row.loop, row.plant) == (loop, plant)}
        rows.append(
            {
                "loop": loop,
                "plant": NAMES.get(plant, plant),
                "last": max(_mean(row.last) for row in here),
                "median": float(np.median([_mean(row.last) for row in here])),
                "total": max(_mean(row.total) for row in here),
                "worst_start": max(here, key=lambda row: _mean(row.last)).start,
                "failed": sum(row.failed for row in here),
                "runs": sum(row.runs for row in here),
                "moved": sum(row.moved for row in here),
                "rules": [rules[rule] for rule in RULES],
            }
        )
    return rows


def _table_rows(summary: LoopsSummary, loop: str, plant: str) -> list[dict[str, Any]]:
    """Return the rows of a table, with the colours of the figures."""
    return [
        {"name": row.start, "values": row, "color": color, "ours": False}
        for row, color in zip(_of(summary, loop, plant), loops_figures.STARTS, strict=False)
    ]


def _of(summary: LoopsSummary, loop: str, plant: str) -> list[StartRow]:
    return [row for row in summary.starts if (row.loop, row.plant) == (loop, plant)]


def _mean(measured: Any) -> float:
    return np.inf if measured is None else measured.mean


def _draw(run: StoredRun, progress: Progress) -> None:
    loops_figures.draw_all(run.dataset, run.manifest.settings, run.folder / "figures", progress=progress)


EXPERIMENT = Experiment(
    summarize=lambda run: summarize(run.dataset, run.manifest.settings),
    render=render,
    draw=_draw,
    figures=lambda run: [run.folder / "figures" / "overview.png"],
)


def _command(settings: dict[str, Any]) -> str:
    """Return the command that repeats the run, as far as the command line has options for the settings."""
    loops = " ".join(f'--loops "{name}"' for name in settings["loops"])
    return f"selftune bench loops {loops} --seeds {settings['seeds']} --periods {settings['periods']}"
