"""The figures of a user's run: each recorded field over time, with all seeds."""

from pathlib import Path

import xarray as xr

from ...foundation.executors import Progress
from ...reporting import datasets, matplotlib_figures, run_figures
from ...reporting.figure import Figure


def on_page(dataset: xr.Dataset) -> dict[str, Figure]:
    """The figures of the page: one for each field."""
    return {f"field-{i}": figure for i, figure in enumerate(run_figures.by_field(_shown(dataset)).values())}


def draw_all(dataset: xr.Dataset, folder: Path, *, progress: Progress | None = None) -> list[Path]:
    """Draw the figure for print, with all fields, as PNG and PDF into `folder`; no figure if no field was recorded."""
    return matplotlib_figures.save(_for_print(dataset), folder, progress=progress)


def files(dataset: xr.Dataset, folder: Path) -> list[Path]:
    """The files that `draw_all` writes."""
    return [path for name in _for_print(dataset) for path in matplotlib_figures.files_of(folder / name)]


def _for_print(dataset: xr.Dataset) -> dict[str, Figure]:
    shown = _shown(dataset)
    if "time" not in shown.sizes or not run_figures.by_field(shown):
        return {}
    title = f"{shown.sizes['seed']} seeds, {datasets.steps(shown):,} steps"
    return {"run": run_figures.overview(shown.assign_attrs(title=title))}


def _shown(dataset: xr.Dataset) -> xr.Dataset:
    """The seeds without a failure; if all failed, all seeds, which the figures show up to their failures."""
    usable, failed = datasets.usable(dataset)
    everything_failed = bool(failed) and not usable.sizes["seed"]
    return dataset if everything_failed and "failed_at" in dataset else usable
