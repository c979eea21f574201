"""Figures of one run, or of a batch of runs, over time: states, controls, gains, costs and decisions of the guard.

The functions take the dataset of `Run.to_dataset`, of `History.to_dataset` or of a stored run (`selftune run`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from ..control.guard import Decision
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from . import matplotlib_figures
from .figure import Axes, Axis, Figure, Rule, Series, literal
from .style import BLUE, GREEN, GREY, ORANGE, PALETTE, VERMILLION

POINTS = 600
"""A line has at most this many points, if the user does not choose another number."""
ON_A_PLOT = 6
"""At most this many components share a plot."""
ALIKE = 20.0
"""Components share a plot only if the range of the largest is at most this many times that of the smallest."""
WINDOW = 20
"""The moving average of the cost is over one part in this many of the run."""
DETAILS = ("reference", "measured", "memory", "f_hat", "y", "gradient", "contraction", "f", "innovation")
"""Fields that are drawn only if the user asks for them."""
TITLES = {
    "x": "states $x$",
    "reference": "references",
    "measured": "measurements",
    "memory": "memory of the policy $s$",
    "u": "controls $u$",
    "theta": "policy parameters $θ$",
    "a_hat": r"estimated model parameters $\hat a$",
    "f_hat": r"estimated residual $\hat f$",
    "cost": "cost of a step",
    "gradient": "gradient $G$",
    "y": "sensitivity $y$",
    "contraction": r"contraction $\hat ρ$",
    "f": "true residual $f$",
    "guard": "decisions of the guard",
}
SYMBOLS = {
    "x": "$x$",
    "reference": "$r$",
    "measured": "measured",
    "memory": "$s$",
    "u": "$u$",
    "theta": "$θ$",
    "a_hat": r"$\hat a$",
    "f_hat": r"$\hat f$",
    "gradient": "$G$",
    "y": "$y$",
    "f": "$f$",
}
COLORS = {Decision.SAVED: GREEN, Decision.STILL: GREY} | dict.fromkeys(
    (Decision.SATURATED, Decision.LIMITED, Decision.HELD), ORANGE
)
"""The colours of a guard's usual decisions; the others are red."""


def plot(dataset: xr.Dataset, fields: Sequence[str] | None = None, *, dt: Any = None, every: Any = None) -> Any:
    """Return the figure for matplotlib; `Run.plot` explains the arguments."""
    return matplotlib_figures.draw(overview(dataset, fields, dt=dt, every=every))


def overview(dataset: xr.Dataset, fields: Sequence[str] | None = None, *, dt: Any = None, every: Any = None) -> Figure:
    """Return one figure with all plots."""
    dataset = _until_failure(dataset)
    time = _Time.of(dataset, dt, every)
    chosen = _chosen(dataset, fields)
    axes = [each for name in chosen for each in _axes(dataset, name, time)]
    columns = 1 if len(axes) <= 6 else 2
    caption = time.caption(_runs(dataset[chosen[0]]))
    return Figure(
        "The run over time",
        caption,
        axes,
        columns=columns,
        width=7.5 if columns == 1 else 11.0,
        height=1.55,
        legend="\n".join(filter(None, [literal(str(dataset.attrs.get("title", ""))), caption])),
        legend_columns=ON_A_PLOT,
        has_own_legends=True,
    )


def by_field(dataset: xr.Dataset) -> dict[str, Figure]:
    """Return a figure for each field over time that the dataset has, for the page."""
    dataset = _until_failure(dataset)
    time = _Time.of(dataset, None, None)
    return {
        name: Figure(
            TITLES.get(name, literal(name)),
            _page_caption(dataset[name], time),
            [replace(axes, title="") for axes in _axes(dataset, name, time)],
        )
        for name in _over_time(dataset)
        if name != "reference" or _tracking(dataset) is None  # otherwise it is in the figure of the outputs
    }


def _page_caption(values: xr.DataArray, time: "_Time") -> str:
    if values.name == "guard":
        return "Marks: the steps of the decision. The number is the decision's share of the recorded steps."
    about = "" if values.name in TITLES else literal(str(values.attrs.get("long_name", "")))
    return " ".join(filter(None, [about, time.caption(_runs(values))]))


class _Time(NamedTuple):
    """The intervals of rows that the points of a line stand for."""

    steps: np.ndarray
    """The step, or the time, of each row."""
    every: int
    """The number of rows in an interval."""
    stride: int
    """The number of steps from row to row."""
    axis: Axis

    @classmethod
    def of(cls, dataset: xr.Dataset, dt: Any, every: Any) -> "_Time":
        if dt is not None and not (isinstance(dt, int | float) and 0 < dt < np.inf):
            raise ArgumentError("dt", "a number of seconds > 0", arguments.describe(dt))
        steps = np.asarray(dataset.time.values) if "time" in dataset else np.zeros(0)
        size = -(-steps.size // POINTS) if steps.size > 2 * POINTS else 1
        size = size if every is None else arguments.count("every", every)
        stride = max(int(steps[1] - steps[0]), 1) if steps.size > 1 else 1
        scale = 1 if dt is None else float(dt)
        ends = (float(scale * steps[0]), float(scale * (steps[-1] + stride))) if steps.size else (None, None)
        if dt is not None:
            return cls(scale * steps, size, stride, Axis("time $t$ / s", range=ends))
        return cls(steps, size, stride, Axis("step $t$", range=ends, in_steps=bool(steps.size and steps[-1] >= 1e4)))

    def bins(self, values: np.ndarray) -> np.ndarray:
        """Return the values, (runs, time), as (runs, intervals, rows of an interval); NaN fills the last interval."""
        padding = np.full((len(values), -values.shape[1] % self.every), np.nan)
        return np.concatenate([values, padding], axis=1).reshape(len(values), -1, self.every)

    def middles(self) -> np.ndarray:
        return _mean(self.bins(self.steps[None].astype(float)), axis=2)[0]

    def caption(self, runs: int) -> str:
        """Return what lines and shades are; empty if each line has all rows of one run."""
        means = f"means over {self.every * self.stride:,} steps" if self.every > 1 else ""
        medians = f"medians over {runs} runs" if runs > 1 else ""
        if not (means or medians):
            return ""
        return f"Lines: {' of '.join(filter(None, [medians, means]))}; shades: from the smallest to the largest value."


def _until_failure(dataset: xr.Dataset) -> xr.Dataset:
    """Return the dataset up to the last failure if all runs failed: later rows have no meaning."""
    if "failed_at" not in dataset or "time" not in dataset or not (dataset.failed_at >= 0).all():
        return dataset
    after = np.flatnonzero(dataset.time.values >= int(dataset.failed_at.max()))
    return dataset.isel(time=slice(0, int(after[0]) + 1)) if after.size else dataset


def _over_time(dataset: xr.Dataset) -> list[str]:
    """Return the fields over time that the dataset has, in the order of the plots."""
    first, last = ("x", "u", "theta", "a_hat"), ("cost", "guard")
    over = [
        str(name)
        for name, values in dataset.data_vars.items()
        if "time" in values.dims and values.dtype.kind in "fiu" and values.size
    ]
    order = [*first, *(name for name in over if name not in first + last), *last]
    return [name for name in order if name in over]


def _chosen(dataset: xr.Dataset, fields: Sequence[str] | None) -> list[str]:
    known = _over_time(dataset)
    if fields is None:
        tracking = [name for name in (_tracking(dataset) or "reference",) if name in known and "reference" in known]
        usual = [name for name in known if name not in DETAILS] or known
        chosen = list(dict.fromkeys(tracking + usual))
    else:
        chosen = [fields] if isinstance(fields, str) else list(fields)
    if not chosen or not set(chosen) <= set(known):
        raise ArgumentError("fields", f"fields that were recorded, of {', '.join(known) or 'none'}", f"{chosen}")
    return chosen


def _axes(dataset: xr.Dataset, name: str, time: _Time) -> list[Axes]:
    values, failed = _rows(dataset, name)
    title = TITLES.get(name, literal(name))
    rules = [Rule(x=float(time.steps[row]), color=VERMILLION, line="--") for row in failed[:1] if len(values) == 1]
    if name == "guard":
        return [_guard(values[..., 0], time, title, rules)]
    if name == "cost":
        return [_cost(values[..., 0], time, title, rules)]
    labels = _labels(dataset[name])
    wanted = _rows(dataset, "reference")[0] if name == _tracking(dataset) else None
    made = []
    for group in _groups(values):
        colors = list(zip(group, PALETTE[:ON_A_PLOT], strict=False))
        series = [_series(values[..., i], time, color, labels[i]) for i, color in colors]
        if wanted is not None:
            series += _references(wanted, time, labels, colors)
        about = f"{literal(name)} over time"
        made.append(Axes(series, time.axis, Axis(SYMBOLS.get(name, literal(name))), title, about=about, rules=rules))
    return made


def _tracking(dataset: xr.Dataset) -> str | None:
    """Return the field that is drawn together with the reference: the measurements, or else the states, if there is one
    for each number of the reference."""
    over = set(_over_time(dataset))
    if "reference" not in over:
        return None
    fields = (name for name in ("measured", "x") if name in over)
    return next((name for name in fields if dataset[name].shape == dataset.reference.shape), None)


def _references(wanted: np.ndarray, time: _Time, labels: list[str], colors: Sequence[tuple[int, str]]) -> list[Series]:
    """Return dashed lines for the references of some components, (runs, time, components)."""
    one = len(colors) == 1
    return [
        Series(
            time.middles(),
            _line(wanted[..., i], time)[0],
            GREY if one else color,
            "reference" if one else f"{labels[i]}, reference",
            line="--",
        )
        for i, color in colors
    ]


def _rows(dataset: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the values as (runs, time, components), with NaN after a failure; and the rows of the failures."""
    values = dataset[name]
    components = math.prod(values.sizes[axis] for axis in _component_axes(values))
    array = np.array(values.values, float).reshape(_runs(values), values.sizes["time"], components)
    array = np.where(np.isfinite(array), array, np.nan)
    if "failed_at" not in dataset:
        return array, np.zeros(0, int)
    failed_at = np.broadcast_to(dataset.failed_at.values.reshape(-1), len(array))
    has_failed = failed_at >= 0
    is_past = has_failed[:, None] & (dataset.time.values >= np.where(has_failed, failed_at, 0)[:, None])
    array[is_past] = np.nan
    return array, np.array([np.flatnonzero(row)[0] for row in is_past if row.any()], int)


def _runs(values: xr.DataArray) -> int:
    """Return the number of runs: the axes of a batch, or of the seeds, are in front of the time axis."""
    return math.prod(values.shape[: values.dims.index("time")])


def _component_axes(values: xr.DataArray) -> list[str]:
    return [str(dim) for dim in values.dims[values.dims.index("time") + 1 :]]


def _labels(values: xr.DataArray) -> list[str]:
    """Return a label for each component: its name, or the symbol of the field with its number."""
    symbol = SYMBOLS.get(str(values.name), literal(str(values.name)))
    columns = [values[axis].values for axis in _component_axes(values)]
    labels = []
    for index in np.ndindex(*map(len, columns)):
        parts = [column[i] for column, i in zip(columns, index, strict=True)]
        if len(parts) == 1 and isinstance(parts[0], str):
            labels.append(literal(str(parts[0])))
        else:
            labels.append(f"{symbol}[{', '.join(literal(str(part)) for part in parts)}]" if parts else symbol)
    return labels


def _groups(values: np.ndarray) -> list[list[int]]:
    """Return which components share a plot: few of them, and of similar size."""
    flat = values.reshape(-1, values.shape[-1])
    with np.errstate(all="ignore"):
        low, high = np.fmin.reduce(flat, axis=0), np.fmax.reduce(flat, axis=0)
        size = np.where(high > low, high - low, np.maximum(np.abs(low), np.abs(high)))
    groups: list[list[int]] = []
    for i in sorted(range(len(size)), key=lambda i: (np.nan_to_num(size[i]), i)):
        is_alike = bool(groups) and not size[i] > ALIKE * size[groups[-1][0]]
        if is_alike or (groups and not size[groups[-1][-1]] > 0):  # a component that is 0 fits any plot
            groups[-1].append(i)
        else:
            groups.append([i])
    chunks = []
    for group in groups:
        parts = -(-len(group) // ON_A_PLOT)
        chunks += [list(map(int, part)) for part in np.array_split(sorted(group), parts)]
    return sorted(chunks)


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the mean without missing numbers; NaN if all are missing."""
    known = np.isfinite(values)
    with np.errstate(all="ignore"):
        return np.where(known, values, 0).sum(axis) / np.where(known.any(axis), known.sum(axis), np.nan)


def _median(values: np.ndarray) -> np.ndarray:
    """Return the median over the first axis without missing numbers; NaN if all are missing."""
    ordered, count = np.sort(values, axis=0), np.isfinite(values).sum(axis=0)  # NaN comes last
    low, high = (
        np.take_along_axis(ordered, np.maximum(place, 0)[None], axis=0)[0] for place in ((count - 1) // 2, count // 2)
    )
    return np.where(count > 0, 0.5 * low + 0.5 * high, np.nan)


def _line(values: np.ndarray, time: _Time) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the middle, the smallest and the largest value of each interval, of a component (runs, time)."""
    bins = time.bins(values)
    rows = np.moveaxis(bins, 1, 0).reshape(bins.shape[1], -1)
    return _median(_mean(bins, axis=2)), np.fmin.reduce(rows, axis=1), np.fmax.reduce(rows, axis=1)


def _series(values: np.ndarray, time: _Time, color: str, label: str, **options: Any) -> Series:
    middle, low, high = _line(values, time)
    has_band = len(values) > 1 or time.every > 1
    band = dict(low=low, high=high) if has_band else {}
    return Series(time.middles(), middle, color, label, **band, **options)


def _cost(values: np.ndarray, time: _Time, title: str, rules: list[Rule]) -> Axes:
    """Return the cost, with its average over longer intervals; on a logarithmic axis if the average changes a lot."""
    series = _series(values, time, BLUE, "cost", width=0.7, opacity=0.45)
    average, width = _moving_average(values, time)
    known = average[np.isfinite(average)]
    is_log = bool(known.size and known.min() > 0 and known.max() > 10 * known.min())
    axis = Axis("cost", is_log=is_log)
    if is_log:
        floor = float(known.min() / 30)
        parts = {name: getattr(series, name) for name in ("y", "low", "high") if getattr(series, name) is not None}
        top = float(np.nanmax(np.concatenate([known, *parts.values()])))
        clipped: Any = {name: np.maximum(part, floor) for name, part in parts.items()}
        series = replace(series, **clipped)
        axis = Axis("cost", is_log=True, range=(floor, 1.5 * top))
    over = f"mean of the last {width * time.every * time.stride:,} steps"
    lines = [Series(time.middles(), average, VERMILLION, over, width=1.3)] if width > 1 else []
    return Axes([*lines, series], time.axis, axis, title, about="cost over time", rules=rules)


def _moving_average(values: np.ndarray, time: _Time) -> tuple[np.ndarray, int]:
    """Return the moving average of (runs, time), as the median over the runs; and its width, in intervals.

    Each value is the mean over the last intervals, so that the line does not rise before the cost does. There is none
    before the first whole window.
    """
    bins = time.bins(values)
    known = np.isfinite(bins)
    sums, counts = np.where(known, bins, 0).sum(axis=2), known.sum(axis=2).astype(float)
    width = max(1, bins.shape[1] // WINDOW)
    window = np.ones(width)
    with np.errstate(all="ignore"):
        total, count = (
            np.array([np.convolve(row, window)[: row.size] for row in part]).reshape(part.shape)
            for part in (sums, counts)
        )
        averages = np.where(counts > 0, total / np.where(count > 0, count, np.nan), np.nan)
    averages[:, : width - 1] = np.nan
    return _median(averages), width


def _guard(values: np.ndarray, time: _Time, title: str, rules: list[Rule]) -> Axes:
    """Return a row of marks for each decision that the guard made."""
    known = np.isfinite(values)
    codes = np.where(known, values, 0).astype(np.int64)
    series, ticks = [], []
    for decision in Decision:
        made = (codes & int(decision)) != 0
        if not made.any():
            continue
        bins = time.bins(made.astype(float)) > 0  # NaN, beyond the last row, is not greater than 0
        at = time.middles()[bins.any(axis=(0, 2))]
        share = made.sum() / known.sum()
        marks: Any = dict(line="", marker="s", size=2.0, hover=f"{decision}")
        series.append(Series(at, np.full(at.size, len(ticks)), COLORS.get(decision, VERMILLION), **marks))
        ticks.append(f"{decision}, {_percent(share)}")
    ticks = ticks or ["none"]
    rows = Axis(ticks=(list(range(len(ticks))), ticks), range=(len(ticks) - 0.5, -0.5))
    return Axes(series, time.axis, rows, title, about="decisions of the guard over time", rules=rules)


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %" if share >= 0.001 else "below 0.1 %"
