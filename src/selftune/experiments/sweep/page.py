"""The page about a sweep."""

from pathlib import Path

import xarray as xr

from ...reporting import pages, plotly_figures
from ...storage.store import open_run, read_manifest
from ...sweeps.point_table import Points, in_words, points, show
from ...sweeps.summary import Best, best, compare_settings, failures, percent, standings
from ..registry import Experiment, Progress, StoredRun
from . import figures

MOST = 50
DESIGNS = {"grid": "a full grid", "random": "a random design", "latin hypercube": "a Latin hypercube"}


def render(run: StoredRun) -> str:
    dataset, won, table = run.dataset, run.summary, points(run.dataset)
    design = str(dataset.attrs.get("design", "grid"))
    return pages.render(
        "experiments/sweep/page.html",
        title=run.folder.resolve().name,
        eyebrow="selftune · a sweep",
        MOST=MOST,
        won=won,
        design=DESIGNS.get(design, design),
        points=table,
        failed=failures(table),
        standings=[] if won is None else standings(table, MOST),
        comparisons=[] if won is None else [compare_settings(dataset, name) for name in _compared(table)],
        panels=plotly_figures.panels(figures.make_figures(dataset)),
        about=pages.about(run.manifest, "selftune sweep CONFIG.toml"),
        in_words=in_words,
        percent=percent,
        show=show,
    )


def _summarize(run: StoredRun) -> Best | None:
    """The best setting; None if every setting has a failed run."""
    return best(run.dataset) if points(run.dataset).ok.any() else None


def _draw(run: StoredRun, progress: Progress) -> None:
    figures.draw_all(run.dataset, run.folder / "figures", progress=progress)


def _load(folder: Path) -> xr.Dataset:
    from ...sweeps.sweeper import Sweep

    return Sweep(folder).to_dataset() if read_manifest(folder).state == "complete" else open_run(folder)[0]


EXPERIMENT = Experiment(summarize=_summarize, render=render, draw=_draw, load=_load)


def _compared(table: Points) -> list[str]:
    """The settings with text values, such as tuners or estimators."""
    return [name for name in table.varying if not table.is_numeric(name) and len(table.levels(name)[0]) <= MOST]
