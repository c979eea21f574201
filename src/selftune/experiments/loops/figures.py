"""The figures of the loops' comparison, as descriptions that are drawn for print and for the page.

Bands are 95 % bootstrap intervals of the mean over seeds.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ...control import result_codes
from ...reporting import matplotlib_figures, statistics
from ...reporting.figure import Axes, Axis, Figure, Rule, Series, ranking
from ...reporting.statistics import Band
from ...reporting.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, YELLOW
from .run import RULES, STATIC
from .summary import NAMES, ended_well

STARTS = (GREY, BLUE, SKY, VERMILLION, ORANGE, PURPLE, YELLOW, "#404040", "#A65628")
COLORS = {"self-tuning, worst start": BLUE, **dict(zip(RULES, (VERMILLION, ORANGE, PURPLE, GREY), strict=True))}
WIDTH = 3.4


def draw_all(
    dataset: xr.Dataset,
    settings: Mapping[str, Any],
    folder: Path,
    *,
    progress: Callable[[int, int], Any] | None = None,
) -> list[Path]:
    """Draw every figure as PNG and PDF into `folder`."""
    return matplotlib_figures.save(make_figures(dataset.load(), settings), Path(folder), progress=progress)


def make_figures(dataset: xr.Dataset, settings: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the figures by name, in the order of the page."""
    figures = {"overview": overview(dataset)}
    for loop in map(str, dataset.loop.values):
        figures[f"cost-{slug(loop)}"] = costs(dataset, settings, loop)
        figures[f"gains-{slug(loop)}"] = gains(dataset, settings, loop)
    return figures


def slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def starts_of(dataset: xr.Dataset, loop: str) -> list[str]:
    """Return the starts that a loop has."""
    ran = (dataset.result_code.sel(loop=loop) != result_codes.NOT_RUN).any(["plant", "seed"])
    return [str(start) for start in dataset.start.values[ran.values]]


def _time(dataset: xr.Dataset, settings: Mapping[str, Any], loop: str) -> np.ndarray:
    """Return the start of each row in seconds."""
    return np.arange(dataset.sizes["row"]) * settings["periods"] * settings["about"][loop]["period"] / settings["rows"]


def costs(dataset: xr.Dataset, settings: Mapping[str, Any], loop: str) -> Figure:
    """Return the cost over time from each start, for each plant, as a multiple of the best static gains' cost."""
    time, axes = _time(dataset, settings, loop), []
    width = max(1, 4 * settings["rows"] // settings["periods"])
    for plant in map(str, dataset.plant.values):
        here = dataset.sel(loop=loop, plant=plant)
        static = _smooth(here.rival_cost.sel(rival=STATIC).values, width)
        series = []
        for i, start in enumerate(starts_of(dataset, loop)):
            one = here.sel(start=start)
            if (ok := ended_well(one)).any():
                ratio = (_smooth(one.cost.values, width) / static)[ok]
                series.append(Series(time, ratio.mean(axis=0), STARTS[i % len(STARTS)], start))
        rules = [Rule(y=1.0, color=GREEN), Rule(x=float(time[time.size // 2]), line=":")]
        axes.append(
            Axes(
                series,
                Axis("time (s)"),
                Axis("cost / best static", is_log=True),
                NAMES.get(plant, plant),
                about=f"cost over time, {loop},",
                rules=rules,
            )
        )
    return Figure(
        f"{loop}: cost over time",
        "The cost from each start, averaged over four periods of the reference and over seeds, as a multiple of the "
        "cost of the best static gains in the same time (green line). At the dotted line, load and friction change.",
        axes,
        columns=2,
        width=2 * WIDTH,
        legend_columns=5,
    )


def _smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Return the mean over the last `width` rows, or over the rows so far."""
    sums = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    ends = np.arange(1, values.shape[-1] + 1)
    begins = np.maximum(0, ends - width)
    return (sums[..., ends] - sums[..., begins]) / (ends - begins)


def gains(dataset: xr.Dataset, settings: Mapping[str, Any], loop: str) -> Figure:
    """Return each gain from each start, on the first plant and the last, with the best static gain."""
    time, axes = _time(dataset, settings, loop), []
    nominal = settings["about"][loop]["gains"]
    for plant in dict.fromkeys(map(str, dataset.plant.values[[0, -1]])):
        here = dataset.sel(loop=loop, plant=plant)
        for gain, value in nominal.items():
            series = []
            for i, start in enumerate(starts_of(dataset, loop)):
                one = here.sel(start=start, gain=gain)
                if (ok := ended_well(one)).any():
                    path = np.exp(one.theta.values[ok].mean(axis=0)) / value
                    series.append(Series(time, path, STARTS[i % len(STARTS)], start))
            best = np.exp(here.rival_theta.sel(rival=STATIC, gain=gain).values.mean()) / value
            series.append(Series(time[[0, -1]], np.full(2, best), GREEN, STATIC))
            axes.append(
                Axes(
                    series,
                    Axis("time (s)"),
                    Axis("gain / nominal", is_log=True),
                    f"{gain}, {NAMES.get(plant, plant)}",
                    about=f"gain over time, {loop},",
                    pixels=240,
                )
            )
    return Figure(
        f"{loop}: gains",
        "The gains from each start, as multiples of the nominal gains: geometric means over seeds.",
        axes,
        columns=len(nominal),
        width=2 * WIDTH,
        height=1.4,
        legend_columns=5,
    )


def overview(dataset: xr.Dataset) -> Figure:
    """Return the cost of the rules' gains and of the worst start of the tuner, in the last quarter."""
    axes, seeds = [], dataset.sizes["seed"]
    for loop in map(str, dataset.loop.values):
        rows = {
            NAMES.get(plant, plant): _standings(dataset.sel(loop=loop, plant=plant), starts_of(dataset, loop))
            for plant in map(str, dataset.plant.values)
        }
        label = "cost of the last quarter / that of the best static gains"
        axes.append(
            ranking(label, rows, COLORS, seeds, title=loop, about=f"cost, {loop},", rules=[Rule(x=1, color=GREEN)])
        )
    return Figure(
        "Cost against the best static gains",
        "The cost in the last quarter of the run, as a multiple of that of the best static gains, by loop and plant. "
        "The self-tuning loop is shown with the start that ends worst. The rules' gains are fixed. Whiskers are 95 % "
        "intervals over seeds.",
        axes,
        width=1.5 * WIDTH,
        height=1.6,
        legend_columns=3,
    )


def _standings(here: xr.Dataset, starts: list[str]) -> dict[str, tuple[Band, int]]:
    static = here.rival_last.sel(rival=STATIC).values
    found: dict[str, tuple[Band, int]] = {}
    by_start = [
        (here.last_cost.sel(start=start).values / static)[ok]
        for start in starts
        if (ok := ended_well(here.sel(start=start))).any()
    ]
    failed = sum(int((~ended_well(here.sel(start=start))).sum()) for start in starts)
    name = next(iter(COLORS))
    found[name] = (statistics.band(max(by_start, key=np.mean)) if by_start else _nothing(), failed)
    for rule in RULES:
        one = here.sel(rival=rule)
        ratio = one.rival_last.values / static
        ok = (one.rival_code.values == result_codes.OK) & np.isfinite(ratio)
        found[rule] = (statistics.band(ratio[ok]) if ok.any() else _nothing(), int((~ok).sum()))
    return found


def _nothing() -> Band:
    return Band(*np.full(3, np.nan))
