"""The page about a run of a user's configuration: every recorded variable over time."""

import xarray as xr

from ...reporting import datasets, pages, plotly_figures, statistics
from ..paper import figures
from ..registry import Experiment, StoredRun


def render(run: StoredRun) -> str:
    dataset, failed = datasets.usable(run.dataset)
    return pages.render(
        "experiments/user/page.html",
        title=run.folder.resolve().name,
        eyebrow="selftune · a run",
        seeds=dataset.sizes.get("seed", 1),
        steps=datasets.steps(dataset) if "time" in dataset.sizes else None,
        failed=failed,
        totals=_totals(dataset),
        panels=plotly_figures.panels(figures.traces(dataset)),
        about=pages.about(run.manifest, "selftune run CONFIG.toml"),
    )


EXPERIMENT = Experiment(
    summarize=lambda run: statistics.interval(run.dataset.total_cost),
    render=render,
    plant_settings=("system", "scenario"),
)


def _totals(dataset: xr.Dataset) -> list[tuple[str, statistics.Band, float, float]]:
    """The variables that have one number for each seed, such as the total cost: mean, minimum and maximum."""
    return [
        (str(name), statistics.band(values.values), float(values.min()), float(values.max()))
        for name, values in dataset.data_vars.items()
        if values.dims == ("seed",) and values.dtype.kind == "f" and values.size
    ]
