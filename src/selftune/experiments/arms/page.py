"""The page about the arms' comparison."""

from typing import Any

from ...reporting import pages, plotly_figures
from ..registry import Experiment, Progress, StoredRun
from . import figures as arms_figures
from .summary import summarize


def render(run: StoredRun) -> str:
    settings: dict[str, Any] = run.manifest.settings
    summary = run.summary
    low = [row for row in summary.rows if row.start < 1]
    return pages.render(
        "experiments/arms/page.html",
        title="Arms from their files",
        eyebrow="selftune · the arms' comparison",
        rows=summary.rows,
        failed=sum(row.failed for row in summary.rows),
        runs=sum(row.runs for row in summary.rows),
        cells=len(low),
        reached=sum(row.last is not None and row.last.mean <= settings["limit"] for row in low),
        settings=settings,
        checks=summary.checks,
        panels=plotly_figures.panels(arms_figures.make_figures(run.dataset)),
        robots=settings["about"],
        about=pages.about(run.manifest, _command(settings)),
    )


def _draw(run: StoredRun, progress: Progress) -> None:
    arms_figures.draw_all(run.dataset, run.folder / "figures", progress=progress)


EXPERIMENT = Experiment(
    summarize=lambda run: summarize(run.dataset, run.manifest.settings),
    render=render,
    draw=_draw,
    figures=lambda run: [run.folder / "figures" / "overview.png"],
)


def _command(settings: dict[str, Any]) -> str:
    """Return the command that repeats the run."""
    robots = " ".join(f'--robots "{name}"' for name in settings["robots"])
    return f"selftune bench arms {robots} --seeds {settings['seeds']} --seconds {settings['seconds']:g}"
