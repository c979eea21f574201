"""The figures of the robots' comparison, in the style of the paper's figures.

Bands are 95 % bootstrap intervals of the mean over the seeds whose run did not fail. Labels count the failed runs.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ...control import result_codes
from ...reporting import datasets, statistics
from ...reporting.print_figures import WIDTH, draw_band, legend, save, styled
from ...reporting.statistics import Band
from ...reporting.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, YELLOW
from .run import ESTIMATOR, FIXED, OURS, STATIC, TUNER
from .summary import ended_well, smoothed

PINK = "#F781BF"
COLORS = {
    OURS: BLUE,
    TUNER: SKY,
    ESTIMATOR: VERMILLION,
    FIXED: GREY,
    STATIC: GREEN,
    "GAPS": PURPLE,
    "DiffTune 0.25": ORANGE,
    "DiffTune 1": "#A65628",
    "DiffTune 4": YELLOW,
    "OPRF": "#404040",
}
STARTS = (BLUE, SKY, VERMILLION, ORANGE, PURPLE, GREEN)
SHOWN = (FIXED, ESTIMATOR, TUNER, OURS, STATIC)
"""The algorithms in figures that show every start. Later ones are drawn on top."""
MARKS = "osD^vPX*<>"


def color(algorithm: str) -> str:
    """The colour of an algorithm, the same in all figures."""
    return COLORS.get(algorithm, PINK)


def draw_all(
    dataset: xr.Dataset,
    settings: Mapping[str, Any],
    folder: Path,
    *,
    progress: Callable[[int, int], Any] | None = None,
) -> list[Path]:
    """Draw every figure as PNG and PDF into `folder`; with MuJoCo, also the quadrotor's path as PNG."""
    dataset, folder = dataset.load(), Path(folder)
    draw: dict[str, Callable[[], Figure]] = {"overview": partial(overview, dataset, settings)}
    for case in map(str, dataset.case.values):
        draw[f"cost-{slug(case)}"] = partial(costs, dataset, settings, case)
        draw[f"others-{slug(case)}"] = partial(others, dataset, settings, case)
        draw[f"gains-{slug(case)}"] = partial(gains, dataset, settings, case)
        if has_path(dataset, case):
            draw[f"path-{slug(case)}"] = partial(path, dataset, case)
    made: list[Path] = []
    for i, (name, one) in enumerate(draw.items()):
        made += save(one(), folder / name)
        if progress is not None:
            progress(i + 1, len(draw))
    for case in map(str, dataset.case.values):
        if case.split()[0] == "quadrotor" and render(dataset, case, rendered := folder / f"flight-{slug(case)}.png"):
            made.append(rendered)
    return made


def slug(case: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in case)


def start_name(factor: float) -> str:
    return {
        0.25: "a quarter of the gains",
        0.5: "half the gains",
        1.0: "the nominal gains",
        2.0: "twice the gains",
    }.get(factor, f"{factor:g} times the gains")


def about(settings: Mapping[str, Any], case: str) -> Mapping[str, Any]:
    """The part of the settings about a case's robot."""
    return settings["robots"][case.split()[0]]


def lap_seconds(settings: Mapping[str, Any], case: str) -> float:
    robot = about(settings, case)
    return robot["lap"] * robot["dt"]


@styled
def costs(dataset: xr.Dataset, settings: Mapping[str, Any], case: str) -> Figure:
    """Cost over time, averaged over the last lap, from each start."""
    starts = dataset.start.values
    figure = Figure(figsize=(2 * WIDTH, 0.5 + 1.75 * -(-len(starts) // 2)), layout="constrained")
    axes = figure.subplots(-(-len(starts) // 2), 2, sharex=True, sharey=True, squeeze=False)
    for axis, start in zip(axes.flat, starts, strict=False):
        _costs(axis, dataset, settings, case, float(start), SHOWN)
        axis.set_title(f"from {start_name(float(start))}", loc="left", pad=3)
    for axis in axes.flat[len(starts) :]:
        axis.remove()
    _finish(figure, axes, dataset)
    return figure


@styled
def others(dataset: xr.Dataset, settings: Mapping[str, Any], case: str) -> Figure:
    """Cost over time from the first start, for every tuner."""
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    axes = figure.subplots(1, 1, squeeze=False)
    names = [str(name) for name in dataset.algorithm.values if name not in (TUNER, FIXED)]
    _costs(axes[0, 0], dataset, settings, case, float(dataset.start[0]), names[::-1])
    axes[0, 0].set_title(f"{case}, from {start_name(float(dataset.start[0]))}", loc="left", pad=3)
    _finish(figure, axes, dataset)
    return figure


def traces(
    dataset: xr.Dataset, settings: Mapping[str, Any], case: str, start: float, names: Any
) -> dict[str, tuple[np.ndarray, Band, int]]:
    """For each algorithm with a successful run: seconds, the cost with its band, and the number of failed runs."""
    made = {}
    for name in names:
        here = dataset.sel(case=case, start=start, algorithm=name)
        ok = ended_well(here)
        if ok.any():
            shown = smoothed(here.cost.isel(seed=np.flatnonzero(ok)), lap_seconds(settings, case))
            shown = datasets.thin(shown.dropna("time"), 300)
            if shown.sizes["time"]:
                made[name] = shown.time.values, statistics.band(shown), int((~ok).sum())
    return made


def _costs(axis: Axes, dataset: Any, settings: Any, case: str, start: float, names: Any) -> None:
    for name, (time, made, failed) in traces(dataset, settings, case, start, names).items():
        label = name + (f" ({failed} failed)" if failed else "")
        draw_band(axis, time, made, color(name), label, zorder=3 if name == OURS else 2)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _finish(figure: Figure, axes: Any, dataset: xr.Dataset) -> None:
    for axis in axes[:, 0]:
        axis.set_ylabel("cost of a step")
    for axis in axes[-1]:
        axis.set_xlabel("time (s)")
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        if axis.figure is not None:
            axis.axvline(end(dataset) / 2, color=GREY, linestyle=":", linewidth=0.7, zorder=0)
            axis.set_xlim(0, end(dataset))
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=3 if axes.size == 1 else 5)


def end(dataset: xr.Dataset) -> float:
    time = dataset.time.values
    return float(time[-1] + (time[1] - time[0] if time.size > 1 else 0))


@styled
def gains(dataset: xr.Dataset, settings: Mapping[str, Any], case: str) -> Figure:
    """Each gain of M-GAPS + EST from each start, and the best static gain, as multiples of the nominal gain."""
    robot = about(settings, case)
    names, nominal = robot["gains"], np.asarray(robot["theta"])
    rows = -(-len(names) // 2)
    figure = Figure(figsize=(2 * WIDTH, 0.6 + 1.15 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, sharex=True, squeeze=False)
    for k, (axis, name) in enumerate(zip(axes.flat, names, strict=False)):
        best = dataset.theta.sel(case=case, algorithm=STATIC).isel(start=0, gain=k, time=0).values
        axis.axhline(np.exp(best - nominal[k]).mean(), color=GREEN, linewidth=1.0, label="best static")
        for i, start in enumerate(dataset.start.values):
            here = dataset.sel(case=case, algorithm=OURS, start=start)
            shown = here.theta.isel(gain=k, seed=np.flatnonzero(ended_well(here)))
            if shown.sizes["seed"]:
                shown = datasets.thin(shown, 200)
                band = Band(*(np.exp(part - nominal[k]) for part in statistics.band(shown)))
                draw_band(axis, shown.time, band, STARTS[i % len(STARTS)], f"from {start:g}")
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_title(name.removeprefix("log "), loc="left", pad=3)
        axis.set_xlim(0, end(dataset))
    for axis in axes.flat[len(names) :]:
        axis.remove()
    for axis in axes[-1]:
        axis.set_xlabel("time (s)")
    figure.supylabel("gain / nominal gain", fontsize=9)
    legend(figure, axes[0, 0], ncols=5)
    return figure


def standings(dataset: xr.Dataset, case: str, start: float) -> dict[str, tuple[Band, int]]:
    """Each algorithm's cost / that of the best static gains, with its band, and the number of failed runs."""
    here = dataset.sel(case=case, start=start)
    static, made = here.sel(algorithm=STATIC), {}
    for name in map(str, here.algorithm.values):
        one = here.sel(algorithm=name)
        if name == STATIC or (one.result_code == result_codes.NOT_RUN).all():
            continue
        ok = (ended_well(one) & ended_well(static)).values
        ratio = (one.mean_cost / static.mean_cost).values[ok]
        band = statistics.band(ratio) if ratio.size else Band(*np.full(3, np.nan))
        made[name] = band, int((~ended_well(one)).sum())
    return made


@styled
def overview(dataset: xr.Dataset, settings: Mapping[str, Any]) -> Figure:
    """The mean cost of every algorithm, as a multiple of the cost of the best static gains, by case and start."""
    cases = [str(case) for case in dataset.case.values]
    starts = [float(start) for start in dataset.start.values]
    height = 0.9 + sum(0.25 + 0.42 * len(starts) for _ in cases)
    figure = Figure(figsize=(1.5 * WIDTH, height), layout="constrained")
    axes = figure.subplots(len(cases), 1, sharex=True, squeeze=False)[:, 0]
    seeds = dataset.sizes["seed"]
    known: dict[str, Any] = {}
    for axis, case in zip(axes, cases, strict=True):
        axis.axvline(1, color=GREEN, linewidth=0.8)
        for row, start in enumerate(starts):
            shown = standings(dataset, case, start)
            for i, (name, (band, failed)) in enumerate(shown.items()):
                mark = MARKS[list(dataset.algorithm.values).index(name) % len(MARKS)]
                place = row + 0.8 * ((i + 0.5) / len(shown) - 0.5)
                if np.isfinite(band.mean):
                    axis.hlines(place, band.low, band.high, color=color(name), linewidth=1.2)
                    (dot,) = axis.plot(band.mean, place, mark, color=color(name), markersize=3.5)
                    known.setdefault(name, dot)
                if failed:
                    words = dict(fontsize=6, va="center", ha="right", transform=axis.get_yaxis_transform())
                    axis.text(1, place, f"{name}: {failed} of {seeds} failed", color=color(name), **words)
        axis.set_xscale("log")
        axis.set_yticks(range(len(starts)), [f"from {start:g}" for start in starts])
        axis.set_ylim(len(starts) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.set_title(case, loc="left", pad=3)
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    axes[-1].set_xlabel("mean cost / mean cost of the best static gains")
    figure.legend(list(known.values()), list(known), loc="outside upper center", ncols=4)
    return figure


def has_path(dataset: xr.Dataset, case: str) -> bool:
    """Whether the state and the tracking error begin with a position, and both laps are complete."""
    return case.split()[0] == "quadrotor" and bool(np.isfinite(laps(dataset, case)[0][:, :, :3]).all())


def laps(dataset: xr.Dataset, case: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """States (first or last lap, point, state) of M-GAPS + EST, and the desired positions."""
    one = dataset.sel(case=case).isel(seed=seed)
    state = one.lap_state.values.astype(float)
    return state, state[:, :, :3] - one.lap_error.values.astype(float)[:, :, :3]


@styled
def path(dataset: xr.Dataset, case: str) -> Figure:
    """The quadrotor's first and last lap, from above and from the side, with the desired path."""
    state, wanted = laps(dataset, case)
    figure = Figure(figsize=(2 * WIDTH, 3.0), layout="compressed")
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    for column, words in enumerate(("first lap", "last lap")):
        for row, (i, j) in enumerate(((0, 1), (0, 2))):
            axis = axes[row, column]
            for line, style in ((wanted, dict(color=GREY, linewidth=3, alpha=0.35)), (state, dict(color=BLUE))):
                closed = line[column][[*range(len(line[column])), 0] if line is wanted else slice(None)]
                axis.plot(closed[:, i], closed[:, j], label="desired" if line is wanted else "flown", **style)
            axis.set_aspect("equal")
        axes[0, column].set_title(words, loc="left", pad=3)
        axes[1, column].set_xlabel("x (m)")
    axes[0, 0].set_ylabel("y (m)")
    axes[1, 0].set_ylabel("z (m)")
    legend(figure, axes[0, 0], ncols=2)
    return figure


def render(dataset: xr.Dataset, case: str, file: Path) -> bool:
    """Draw the same paths with MuJoCo's renderer; False if there is none."""
    try:
        from ...robots.render import flight
    except ImportError:
        return False
    state, _ = laps(dataset, case)
    # The renderer expects ten times as many points.
    fine, coarse = np.linspace(0, 1, 10 * state.shape[1]), np.linspace(0, 1, state.shape[1])
    before, after = (np.stack([np.interp(fine, coarse, column) for column in lap.T], axis=1) for lap in state[:, :, :3])
    return bool(np.isfinite(state[:, :, :3]).all() and flight(before, after, file))
