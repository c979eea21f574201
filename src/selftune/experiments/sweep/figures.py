"""The figures of a sweep: cost against each setting, over each pair of settings, and over time.

Bands are 95 % bootstrap intervals of the mean over seeds. Settings that a figure does not show have their best values
at each point. A setting with a failed run has no mean; the number of failed runs stands at the top edge or in the cell.
"""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ...foundation.errors import ArgumentError
from ...reporting import statistics
from ...reporting.print_figures import WIDTH, save, styled
from ...reporting.statistics import Band
from ...reporting.style import GREY, PALETTE, VERMILLION
from ...sweeps.point_table import Points, dataset_of, lengths, points, show, spans_decades

MARKS = "osD^vPX<"
MOST_LINES = 8
MOST_PAIRS = 15
MOST_WORDS = 12
"""With more values than this along an axis, the cells have no room for text."""
INK = "#202020"
FAILED = "failed runs"
COLORMAP = "cividis_r"  # light means a low cost; also for colour-blind readers


class Curve(NamedTuple):
    """Cost against a setting: for each of its values, the best point (-1 if none) and the number of failed runs."""

    name: str
    rows: np.ndarray
    failed: np.ndarray


class Trace(NamedTuple):
    """A point's cost over time, with its name."""

    name: str
    step: np.ndarray
    cost: Band


def draw_all(sweep: Any, folder: Path, *, progress: Callable[[int, int], Any] | None = None) -> list[Path]:
    """Draw every figure that has data as PNG and PDF into `folder`. `sweep`: a `Sweep` or its dataset."""
    dataset = dataset_of(sweep).load()
    found = points(dataset)
    draw: dict[str, Callable[[xr.Dataset], Figure]] = {}
    if found.varying:
        draw["costs"] = costs
    if len(found.varying) > 1:
        draw["pairs"] = pairs
    if found.ok.any() and "part_cost" in dataset:
        draw["time"] = time
    made: list[Path] = []
    for i, (name, one) in enumerate(draw.items()):
        made += save(one(dataset), Path(folder) / name)
        if progress is not None:
            progress(i + 1, len(draw))
    return made


def is_grid(dataset: xr.Dataset) -> bool:
    return "point" not in dataset.dims


def line_setting(found: Points, across: str | None = None) -> str | None:
    """The first setting with few text values: each value has its own line. None if this setting is `across`."""
    words = [name for name in found.varying if not found.is_numeric(name)]
    first = next((name for name in words if len(found.levels(name)[0]) <= MOST_LINES), None)
    return None if first == across else first


def others(found: Points, *shown: str | None) -> str:
    """A note on the settings that are not shown and have their best values; empty if there are none."""
    left = [name for name in found.varying if name not in shown]
    named = ", ".join(left) if len(left) < 3 else f"the {len(left)} others"
    return f"{named} at {'its' if len(left) == 1 else 'their'} best" if left else ""


def curves(found: Points, across: str) -> tuple[list[Any], list[Curve]]:
    """The values of a setting in the order of an axis, and a curve for each value of `line_setting`."""
    by = line_setting(found, across)
    made = found.cells([across] if by is None else [across, by])
    values = made.levels[0]
    order = np.argsort(values) if found.is_numeric(across) else np.arange(len(values))
    best, failed = (array.reshape(len(values), -1)[order] for array in (made.best, made.failed))
    names = [""] if by is None else [show(value) for value in made.levels[1]]
    return [values[i] for i in order], [Curve(name, best[:, j], failed[:, j]) for j, name in enumerate(names)]


def traces(dataset: xr.Dataset) -> list[Trace]:
    """The cost over time of the three best points and of the worst point without failed runs."""
    found = points(dataset)
    order = np.argsort(found.mean, kind="stable")[: int(found.ok.sum())]
    rows, most = [*order[:3], *order[3:][-1:]], 4
    dims = [str(dim) for dim in dataset.mean_cost.dims if dim != "seed"]
    cost = dataset.part_cost.transpose(*dims, "seed", "part").values
    cost = cost.reshape(-1, *cost.shape[-2:])
    middle = dataset["part"].values + lengths(dataset) / 2
    made = []
    for i, row in enumerate(rows):
        text = ", ".join(f"{name} {show(value)}" for name, value in found.setting(row).items() if name in found.varying)
        place = "worst" if i == most - 1 else ("best", "second", "third")[i]
        made.append(Trace(f"{place}: {text}" if text else "the only point", middle, statistics.band(cost[row])))
    return made


def chosen_pairs(found: Points) -> list[tuple[str, str]]:
    """Each pair of varying settings. The setting with more values comes first, because the x axis is longer."""
    size = {name: len(found.levels(name)[0]) for name in found.varying}
    return [(a, b) if size[a] >= size[b] else (b, a) for a, b in combinations(found.varying, 2)][:MOST_PAIRS]


@styled
def costs(dataset: xr.Dataset) -> Figure:
    """Cost against each varying setting, with a line for each value of the first text setting."""
    found, grid = points(dataset), is_grid(dataset)
    if not found.varying:
        raise ArgumentError("sweep", "a setting with several values", "one point")
    figure, axes = _panels(len(found.varying), 1.9)
    for axis, name in zip(axes, found.varying, strict=True):
        (_curves if grid else _dots)(axis, found, name)
        axis.set_xlabel(_text(name))
        title = others(found, name, line_setting(found, name)) if grid else ""
        axis.set_title(_text(title), loc="left", pad=15 if found.failed.any() else 3, fontsize=8)
    for axis in axes[:: len(axes) if len(axes) == 1 else 2]:
        axis.set_ylabel(_text(found.judged))
    _legend_of_all(figure, axes, line_setting(found))
    return figure


def _curves(axis: Axes, found: Points, name: str) -> None:
    values, lines = curves(found, name)
    places = np.asarray(values, float) if found.is_numeric(name) else np.arange(len(values), dtype=float)
    roomy = len(values) <= MOST_WORDS
    own = name == line_setting(found)  # each value then has the colour of its line in the other panels
    for i, (label, rows, _) in enumerate(lines):
        known = rows >= 0
        band = Band(*np.full((3, len(rows)), np.nan))
        if known.any():
            for part, here in zip(band, statistics.band(found.cost[rows[known]].T), strict=True):
                part[known] = here
        color, mark = PALETTE[i % len(PALETTE)], MARKS[i % len(MARKS)]
        label = _text(label) or None
        if found.is_numeric(name):
            axis.plot(places, band.mean, color=color, marker=mark, markersize=3.5 if roomy else 1.5, label=label)
            axis.fill_between(places, band.low, band.high, color=color, alpha=0.25, linewidth=0)
        else:
            beside = places + 0.5 * ((i + 0.5) / len(lines) - 0.5)
            colors = [PALETTE[j % len(PALETTE)] for j in range(len(places))] if own else [color] * len(places)
            axis.vlines(beside, band.low, band.high, color=colors, linewidth=1.2)
            axis.scatter(beside, band.mean, c=colors, marker=mark, s=16, zorder=3, label=label)
    _scales(
        axis, found, name, values, np.concatenate([found.cost[rows[rows >= 0]].mean(axis=1) for _, rows, _ in lines])
    )
    if not roomy and found.failed.any():
        _count(axis, f"{int(found.failed.sum()):,} runs failed")
    for j, place in enumerate(places):
        who = [i for i, line in enumerate(lines) if line.failed[j]]
        if who:
            count = sum(int(line.failed[j]) for line in lines) if roomy else None
            _cross(axis, place, count, PALETTE[who[0]] if len(lines) > 1 and len(who) == 1 else INK)


def _dots(axis: Axes, found: Points, name: str) -> None:
    """Draw each point on its own, because in a random design points share no values."""
    by, ok = line_setting(found), found.ok
    codes = np.zeros(len(found), int) if by is None else found.levels(by)[1]
    labels = [None] if by is None else [_text(show(value)) for value in found.levels(by)[0]]
    values, where = found.levels(name)
    places = np.asarray(found.columns[name], float) if found.is_numeric(name) else where.astype(float)
    band = statistics.band(found.cost[ok].T) if ok.any() else Band(*np.empty((3, 0)))
    for i, label in enumerate(labels):
        here, color = codes[ok] == i, PALETTE[i % len(PALETTE)]
        axis.vlines(places[ok][here], band.low[here], band.high[here], color=color, linewidth=0.8, alpha=0.5)
        mark = MARKS[i % len(MARKS)]
        axis.plot(places[ok][here], band.mean[here], mark, color=color, markersize=2.5, label=label)
    _scales(axis, found, name, values, band.mean)
    for place in places[~ok]:
        _cross(axis, place, None, INK)
    if not ok.all():
        _count(axis, f"{int((~ok).sum()):,} of {len(ok):,} points failed")


def _count(axis: Axes, words: str) -> None:
    axis.text(1, 1.06, words, transform=axis.transAxes, ha="right", va="bottom", fontsize=7, color=INK)


def _cross(axis: Axes, place: float, count: int | None, color: str) -> None:
    """A cross at the top edge with the number of failed runs; in the colour of a line if only that line failed."""
    across = axis.get_xaxis_transform()
    look: Any = dict(color=color, markersize=4.5, clip_on=False, zorder=5, label=FAILED)
    axis.plot([place], [1.0], "x", transform=across, **look)
    if count is not None:
        axis.text(place, 1.04, f"{count:,}", transform=across, ha="center", va="bottom", fontsize=7, color=color)


def _scales(axis: Axes, found: Points, name: str, values: list[Any], means: np.ndarray) -> None:
    if not found.is_numeric(name):
        shown = range(0, len(values), -(-len(values) // 12))
        turned: Any = dict(rotation=30, ha="right") if sum(len(_tick(values[i])) for i in shown) > 24 else {}
        axis.set_xticks(list(shown), [_tick(values[i]) for i in shown], **turned)
        axis.set_xlim(-0.5, len(values) - 0.5)
    else:
        numbers = np.asarray(values, float)
        above = numbers[numbers > 0]
        if spans_decades(numbers):
            axis.set_xscale("log")
        elif numbers.min() == 0 and spans_decades(above):  # for example a learning rate of zero among others
            axis.set_xscale("symlog", linthresh=float(above.min()), linscale=0.6)
    if means.size and spans_decades(means):
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if means.max() < 100 * means.min() else (1,)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
    if not means.size:
        axis.set_ylim(0, 1)
        axis.set_yticks([])


@styled
def pairs(dataset: xr.Dataset) -> Figure:
    """Cost over each pair of varying settings: a heat map for a grid, a scatter plot for other designs."""
    found, grid = points(dataset), is_grid(dataset)
    chosen = chosen_pairs(found)
    if not chosen:
        raise ArgumentError("sweep", "two settings with several values", f"{found.varying}")
    figure, axes = _panels(len(chosen), 2.3, columns=1 if len(chosen) == 1 else 2 if len(chosen) <= 4 else 3)
    means = found.mean[found.ok]
    norm = _norm(means)
    for axis, (a, b) in zip(axes, chosen, strict=True):
        (_heat if grid else _scatter)(axis, found, a, b, norm)
        axis.set_xlabel(_text(a))
        axis.set_ylabel(_text(b))
        axis.set_title(_text(others(found, a, b)) if grid else "", loc="left", pad=3, fontsize=8)
    if means.size:
        shown = ScalarMappable(norm, COLORMAP)
        bar = figure.colorbar(shown, ax=axes, location="top", shrink=0.6, aspect=30, pad=0.02)
        bar.set_label(_text(f"{found.judged}; frame: the best") + ("; ×: failed runs" if found.failed.any() else ""))
        bar.outline.set_linewidth(0.6)  # pyright: ignore[reportCallIssue]
    return figure


def _norm(means: np.ndarray) -> Normalize:
    if not means.size:
        return Normalize(0, 1)
    return (LogNorm if spans_decades(means) else Normalize)(float(means.min()), float(means.max()))


def _heat(axis: Axes, found: Points, a: str, b: str, norm: Normalize) -> None:
    made = found.cells([a, b])
    orders = [
        np.argsort(values) if found.is_numeric(name) else np.arange(len(values))
        for name, values in zip((a, b), made.levels, strict=True)
    ]
    best, failed = (array[np.ix_(*orders)].T for array in (made.best, made.failed))
    mean = np.where(best >= 0, found.mean[best], np.nan)
    axis.pcolormesh(np.ma.masked_invalid(mean), norm=norm, cmap=COLORMAP, rasterized=mean.size > 400)
    roomy = max(mean.shape) <= MOST_WORDS
    for row, column in zip(*np.nonzero((best < 0) & (failed > 0)), strict=True):
        axis.add_patch(
            Rectangle((column, row), 1, 1, facecolor="white", edgecolor=GREY, hatch="////" if roomy else "//////", lw=0)
        )
    if roomy:
        _words(axis, mean, failed, norm)
    if found.ok.any():
        row, column = np.argwhere(best == int(np.argmin(found.mean)))[0]
        axis.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=VERMILLION, lw=1.6, zorder=4))
    for values, order, axes in zip(made.levels, orders, (axis.xaxis, axis.yaxis), strict=True):
        shown = range(0, len(values), -(-len(values) // 8))
        axes.set_ticks([i + 0.5 for i in shown], [_tick(values[order[i]]) for i in shown])
        if axes is axis.xaxis and sum(len(_tick(values[order[i]])) for i in shown) > 28:
            axis.tick_params(axis="x", rotation=30)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _words(axis: Axes, mean: np.ndarray, failed: np.ndarray, norm: Normalize) -> None:
    """Write the mean and the number of failed runs into each cell."""
    for (row, column), value in np.ndenumerate(mean):
        lost = f"× {failed[row, column]:,}" if failed[row, column] else ""
        if np.isfinite(value):
            color = "white" if norm(value) > 0.55 else "black"
            text = f"{value:.3g}" + (f"\n{lost}" if lost else "")
            axis.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=6.5, color=color)
        elif lost:
            box = dict(facecolor="white", edgecolor="none", pad=1.0)
            axis.text(
                *(column + 0.5, row + 0.5, lost), ha="center", va="center", fontsize=6.5, color=VERMILLION, bbox=box
            )


def _scatter(axis: Axes, found: Points, a: str, b: str, norm: Normalize) -> None:
    places = [
        np.asarray(found.columns[name], float) if found.is_numeric(name) else found.levels(name)[1].astype(float)
        for name in (a, b)
    ]
    ok = found.ok
    axis.plot(places[0][~ok], places[1][~ok], "x", color=VERMILLION, markersize=3.5)
    mean = found.mean[ok]
    order = np.argsort(-mean)  # the best on top
    axis.scatter(
        *(one[ok][order] for one in places), c=mean[order], norm=norm, cmap=COLORMAP, s=14, edgecolors=GREY, lw=0.3
    )
    if ok.any():
        best = int(np.argmin(found.mean))
        axis.plot(places[0][best], places[1][best], "o", mfc="none", mec=VERMILLION, markersize=7, mew=1.4)
    for name, scale, ticks in ((a, axis.set_xscale, axis.set_xticks), (b, axis.set_yscale, axis.set_yticks)):
        if not found.is_numeric(name):
            values = found.levels(name)[0]
            ticks(range(len(values)), [_tick(value) for value in values])
        elif spans_decades(found.columns[name]):
            scale("log")


@styled
def time(dataset: xr.Dataset) -> Figure:
    """The cost over time of the three best points and of the worst point without failed runs."""
    shown = traces(dataset)
    if not shown:
        raise ArgumentError("sweep", "a setting without failed runs", "none")
    figure = Figure(figsize=(1.4 * WIDTH, 2.0 + 0.16 * len(shown)), layout="constrained")
    axis = figure.subplots()
    colors = [*PALETTE[: len(shown) - 1], GREY] if len(shown) == 4 else PALETTE
    for (name, step, cost), color, mark in zip(shown, colors, MARKS, strict=False):
        axis.plot(step, cost.mean, color=color, marker=mark, markersize=2.5, label=_text(name))
        axis.fill_between(step, cost.low, cost.high, color=color, alpha=0.25, linewidth=0)
    means = np.concatenate([cost.mean for *_, cost in shown])
    if spans_decades(means):
        axis.set_yscale("log")
    axis.set_xlim(left=0)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.set_xlabel("step $t$")
    axis.set_ylabel("mean cost of a step")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=1)
    return figure


def _panels(count: int, height: float, *, columns: int | None = None) -> tuple[Figure, list[Axes]]:
    columns = min(count, 2) if columns is None else columns
    rows = -(-count // columns)
    width = WIDTH * (1.2 if columns == 1 else columns * (1.0 if columns == 2 else 0.85))
    figure = Figure(figsize=(width, 0.7 + height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def _legend_of_all(figure: Figure, axes: list[Axes], name: str | None) -> None:
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        place: Any = dict(loc="outside upper center", ncols=min(len(handles), 4))
        figure.legend(list(handles.values()), list(handles), title=None if name is None else _text(name), **place)


def _tick(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else show(value)
    return _text(text if len(text) <= 18 else f"{text[:17]}…")


def _text(text: str) -> str:
    """The text with its dollar signs escaped, so that matplotlib reads no formula."""
    return text.replace("$", r"\$")
