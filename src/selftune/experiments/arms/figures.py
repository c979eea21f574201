"""The figures of the arms' comparison, as descriptions that are drawn for print and for the page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ...reporting import matplotlib_figures
from ...reporting.figure import Axes, Axis, Figure, Rule, Series
from ...reporting.style import BLUE, GREY, PALETTE, VERMILLION
from .run import FIXED, STATIC, TUNED

COLORS = {TUNED: BLUE, FIXED: VERMILLION, STATIC: GREY}


def draw_all(dataset: xr.Dataset, folder: Path, *, progress: Callable[[int, int], Any] | None = None) -> list[Path]:
    """Draw every figure as PNG and PDF into `folder`."""
    return matplotlib_figures.save(make_figures(dataset.load()), Path(folder), progress=progress)


def make_figures(dataset: xr.Dataset) -> dict[str, Figure]:
    """Return the figures by name, in the order of the page."""
    return {"overview": overview(dataset), "cost": costs(dataset)}


def overview(dataset: xr.Dataset) -> Figure:
    """The ratio of each robot in the last quarter, from each start."""
    ratio = dataset.last_cost.sel(algorithm=TUNED) / dataset.last_cost.sel(algorithm=STATIC)
    names = [str(name).rsplit("/", 1)[-1] for name in dataset.robot.values]
    series = []
    for i, start in enumerate(dataset.start.values):
        values = ratio.sel(start=start).values  # (robot, seed)
        places = np.broadcast_to(np.arange(len(names))[:, None] + 0.15 * (i - 1), values.shape)
        ok = np.isfinite(values)
        series.append(
            Series(values[ok], places[ok], PALETTE[i % len(PALETTE)], f"from {start:g}", line="", marker="oDs"[i % 3])
        )
    axes = Axes(
        series,
        Axis("cost in the last quarter / that of the best static gains", is_log=True),
        Axis(ticks=(range(len(names)), names), range=(len(names) - 0.5, -0.5)),
        about="ratio of the cost for each robot, start and seed",
        rules=[Rule(x=1.2, color=GREY, line=":")],
        pixels=120 + 34 * len(names),
    )
    caption = "Each marker is a seed. The dotted line is 1.2."
    return Figure("Overview", caption, [axes], height=0.6 + 0.25 * len(names))


def costs(dataset: xr.Dataset) -> Figure:
    """The cost over time of each robot from the first start, the mean over seeds."""
    here = dataset.isel(start=0)
    plots = [
        Axes(
            [
                Series(
                    here.time.values,
                    np.nanmean(here.cost.sel(robot=robot, algorithm=name).values, axis=0),
                    color,
                    name,
                )
                for name, color in COLORS.items()
                if np.isfinite(here.cost.sel(robot=robot, algorithm=name).values).any()
            ],
            Axis("time / s"),
            Axis("cost", is_log=True),
            title=str(robot).rsplit("/", 1)[-1],
            about="cost over time",
        )
        for robot in dataset.robot.values
    ]
    start = float(dataset.start.values[0])
    caption = f"The mean cost of a step over time, from {start:g} of the gains. The payload grows halfway."
    return Figure("Cost over time", caption, plots, columns=2, width=6.8)
