"""The figures of the robots' comparison, as descriptions that are drawn for print and for the page.

Bands are 95 % bootstrap intervals of the mean over the seeds whose run did not fail. Labels count the failed runs.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ...control import result_codes
from ...reporting import datasets, matplotlib_figures, statistics
from ...reporting.figure import Axes, Axis, Figure, Rule, Series, banded, ranking
from ...reporting.statistics import Band
from ...reporting.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, YELLOW
from .run import DEFAULTS, ESTIMATOR, FIXED, OURS, STATIC, TUNER
from .summary import ended_well, smoothed

PINK = "#F781BF"
COLORS = {
    OURS: BLUE,
    DEFAULTS: "#000000",
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
SHOWN = (STATIC, OURS, DEFAULTS, TUNER, ESTIMATOR, FIXED)
"""The algorithms in figures that show every start. The first ones are drawn on top."""
WIDTH = 3.4


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
    cases = [str(case) for case in dataset.case.values]
    figures = make_figures(dataset, settings)
    figures |= {f"path-{slug(case)}": path(dataset, case) for case in cases if has_path(dataset, case)}
    saved = matplotlib_figures.save(figures, folder, progress=progress)
    for case in cases:
        if case.split()[0] == "quadrotor" and render(dataset, case, rendered := folder / f"flight-{slug(case)}.png"):
            saved.append(rendered)
    return saved


def make_figures(dataset: xr.Dataset, settings: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures by name, in the order of the page."""
    figures = {"overview": overview(dataset)}
    for case in map(str, dataset.case.values):
        figures[f"cost-{slug(case)}"] = costs(dataset, settings, case)
        figures[f"others-{slug(case)}"] = others(dataset, settings, case)
        figures[f"gains-{slug(case)}"] = gains(dataset, settings, case)
    return figures


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


def costs(dataset: xr.Dataset, settings: Mapping[str, Any], case: str) -> Figure:
    """Cost over time, averaged over the last lap, from each start."""
    return Figure(
        f"{case}: cost over time",
        f"The cost of a step, averaged over the last lap ({lap_seconds(settings, case):g} s) and over seeds. At the "
        "dotted line, halfway, the plant changes.",
        [
            _costs(dataset, settings, case, start, SHOWN, f"from {start_name(start)}")
            for start in map(float, dataset.start.values)
        ],
        columns=2,
        width=2 * WIDTH,
        share_y=True,
        legend_columns=5,
    )


def others(dataset: xr.Dataset, settings: Mapping[str, Any], case: str) -> Figure:
    """Cost over time from the first start, for every tuner."""
    names = [str(name) for name in dataset.algorithm.values if name not in (TUNER, FIXED)]
    start = float(dataset.start[0])
    return Figure(
        f"{case}: other tuners",
        f"The cost over time from {start_name(start)}. The number after DiffTune is the length of its episode in laps. "
        "Click a name to hide its line.",
        [_costs(dataset, settings, case, start, names, "")],
        height=2.55,
        legend=f"{case},\nfrom {start_name(start)}",
    )


def traces(
    dataset: xr.Dataset, settings: Mapping[str, Any], case: str, start: float, names: Any
) -> dict[str, tuple[np.ndarray, Band, int]]:
    """For each algorithm with a successful run: seconds, the cost with its band, and the number of failed runs."""
    by_name = {}
    for name in names:
        here = dataset.sel(case=case, start=start, algorithm=name)
        ok = ended_well(here)
        if ok.any():
            cost = smoothed(here.cost.isel(seed=np.flatnonzero(ok)), lap_seconds(settings, case))
            cost = datasets.thin(cost.dropna("time"), 300)
            if cost.sizes["time"]:
                by_name[name] = cost.time.values, statistics.band(cost), int((~ok).sum())
    return by_name


def _costs(dataset: Any, settings: Any, case: str, start: float, names: Any, title: str) -> Axes:
    series = [
        banded(time, band, color(name), name + (f" ({failed} failed)" if failed else ""))
        for name, (time, band, failed) in traces(dataset, settings, case, start, names).items()
    ]
    y, about = Axis("cost of a step", is_log=True), f"cost over time, {case}"
    return Axes(series, _seconds(dataset), y, title, about=about, rules=[_change(dataset)])


def _seconds(dataset: xr.Dataset) -> Axis:
    return Axis("time (s)", range=(0, end(dataset)))


def _change(dataset: xr.Dataset) -> Rule:
    """The time at which the plant changes."""
    return Rule(x=end(dataset) / 2, line=":")


def end(dataset: xr.Dataset) -> float:
    time = dataset.time.values
    return float(time[-1] + (time[1] - time[0] if time.size > 1 else 0))


def gains(dataset: xr.Dataset, settings: Mapping[str, Any], case: str) -> Figure:
    """Each gain of M-GAPS + EST from each start, and the best static gain, as multiples of the nominal gain."""
    robot, axes, ends = about(settings, case), [], np.array([0.0, end(dataset)])
    for k, (name, nominal) in enumerate(zip(robot["gains"], robot["theta"], strict=True)):
        series = []
        for i, start in enumerate(dataset.start.values):
            here = dataset.sel(case=case, algorithm=OURS, start=start)
            theta = datasets.thin(here.theta.isel(gain=k, seed=np.flatnonzero(ended_well(here))), 200)
            if theta.sizes["seed"]:
                band = Band(*(np.exp(part - nominal) for part in statistics.band(theta)))
                series.append(banded(theta.time, band, STARTS[i % len(STARTS)], f"from {start:g}"))
        best = dataset.theta.sel(case=case, algorithm=STATIC).isel(start=0, gain=k, time=0).values
        series.append(Series(ends, np.full(2, np.exp(best - nominal).mean()), GREEN, STATIC))
        y, title = Axis("gain / nominal gain", is_log=True), name.removeprefix("log ")
        look: dict[str, Any] = dict(about=f"gain over time, {case},", rules=[_change(dataset)], pixels=240)
        axes.append(Axes(series, _seconds(dataset), y, title, **look))
    return Figure(
        f"{case}: gains",
        f"Each gain of {OURS} from each start, as a multiple of the nominal gain. Green: the best static gain.",
        axes,
        columns=2,
        width=2 * WIDTH,
        height=1.3,
        legend_columns=5,
    )


def standings(dataset: xr.Dataset, case: str, start: float) -> dict[str, tuple[Band, int]]:
    """Each algorithm's cost / that of the best static gains, with its band, and the number of failed runs."""
    here = dataset.sel(case=case, start=start)
    static, ratios = here.sel(algorithm=STATIC), {}
    for name in map(str, here.algorithm.values):
        run = here.sel(algorithm=name)
        if name == STATIC or (run.result_code == result_codes.NOT_RUN).all():
            continue
        ok = (ended_well(run) & ended_well(static)).values
        ratio = (run.mean_cost / static.mean_cost).values[ok]
        band = statistics.band(ratio) if ratio.size else Band(*np.full(3, np.nan))
        ratios[name] = band, int((~ended_well(run)).sum())
    return ratios


def overview(dataset: xr.Dataset) -> Figure:
    """The mean cost of every algorithm, as a multiple of the cost of the best static gains, by case and start."""
    starts = [float(start) for start in dataset.start.values]
    colors = {name: color(name) for name in map(str, dataset.algorithm.values)}
    label, seeds = "mean cost / mean cost of the best static gains", dataset.sizes["seed"]
    look: dict[str, Any] = dict(
        about="cost relative to the best static gains,", rules=[Rule(x=1, color=GREEN)], pixels=460
    )
    axes = []
    for case in map(str, dataset.case.values):
        rows = {f"from {start:g}": standings(dataset, case, start) for start in starts}
        axes.append(ranking(label, rows, colors, seeds, title=case, **look))
    return Figure(
        "Cost against the best static gains",
        "Mean cost of each algorithm as a multiple of the cost of the best static gains, by start. Dots are means of "
        "ratios paired by seed; whiskers are 95 % intervals. Failed runs are left out.",
        axes,
        width=1.5 * WIDTH,
        height=0.4 + 0.42 * len(starts),
        legend_columns=4,
    )


def has_path(dataset: xr.Dataset, case: str) -> bool:
    """Whether the state and the tracking error begin with a position, and both laps are complete."""
    return case.split()[0] == "quadrotor" and bool(np.isfinite(laps(dataset, case)[0][:, :, :3]).all())


def laps(dataset: xr.Dataset, case: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """States (first or last lap, point, state) of M-GAPS + EST, and the desired positions."""
    run = dataset.sel(case=case).isel(seed=seed)
    state = run.lap_state.values.astype(float)
    return state, state[:, :, :3] - run.lap_error.values.astype(float)[:, :, :3]


def path(dataset: xr.Dataset, case: str) -> Figure:
    """The quadrotor's first and last lap, from above and from the side, with the desired path."""
    state, desired = laps(dataset, case)
    axes = []
    for j, name in ((1, "y (m)"), (2, "z (m)")):
        for lap, title in enumerate(("first lap", "last lap")):
            closed = np.concatenate([desired[lap], desired[lap][:1]])
            series = [
                Series(state[lap, :, 0], state[lap, :, j], BLUE, "flown"),
                Series(closed[:, 0], closed[:, j], GREY, "desired", width=2.7, opacity=0.35),
            ]
            axes.append(Axes(series, Axis("x (m)"), Axis(name), title if j == 1 else "", is_equal=True))
    return Figure(f"{case}: the path", "", axes, columns=2, width=2 * WIDTH, height=1.3)


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
