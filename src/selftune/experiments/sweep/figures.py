"""The figures of a sweep: cost against each setting, over each pair of settings, and over time.

Bands are 95 % bootstrap intervals of the mean over seeds. Settings that a figure does not show have their best values
at each point. A setting with a failed run has no mean: crosses and hatched cells mark failed runs.
"""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from ...reporting import matplotlib_figures, statistics
from ...reporting.figure import MARKERS, Axes, Axis, Cells, Figure, Scale, Series, banded, literal
from ...reporting.statistics import Band
from ...reporting.style import GREY, PALETTE, VERMILLION
from ...sweeps.point_table import Points, dataset_of, in_words, lengths, points, show, spans_decades

MOST_LINES = 8
MOST_PAIRS = 15
MOST_WORDS = 12
"""With more values than this along an axis, there is no room for text at each value."""
WIDTH = 3.4


class Curve(NamedTuple):
    """Cost against a setting: for each of its values, the best point (-1 if none) and the number of failed runs."""

    name: str
    rows: np.ndarray
    failed: np.ndarray


def draw_all(sweep: Any, folder: Path, *, progress: Callable[[int, int], Any] | None = None) -> list[Path]:
    """Draw every figure that has data as PNG and PDF into `folder`. `sweep`: a `Sweep` or its dataset."""
    return matplotlib_figures.save(make_figures(dataset_of(sweep).load()), folder, progress=progress)


def make_figures(dataset: xr.Dataset) -> dict[str, Figure]:
    """The figures by name, in the order of the page."""
    table, figures = points(dataset), {}
    if table.varying:
        figures["costs"] = costs(dataset)
    if len(table.varying) > 1:
        figures["pairs"] = pairs(dataset)
    if table.ok.any() and "part_cost" in dataset:
        figures["time"] = time(dataset)
    return figures


def is_grid(dataset: xr.Dataset) -> bool:
    return "point" not in dataset.dims


def line_setting(table: Points, across: str | None = None) -> str | None:
    """The first setting with few text values: each value has its own line. None if this setting is `across`."""
    texts = [name for name in table.varying if not table.is_numeric(name)]
    first = next((name for name in texts if len(table.levels(name)[0]) <= MOST_LINES), None)
    return None if first == across else first


def others(table: Points, *on_axes: str | None) -> str:
    """A note on the settings that are not on an axis and have their best values; empty if there are none."""
    left = [name for name in table.varying if name not in on_axes]
    named = ", ".join(left) if len(left) < 3 else f"the {len(left)} others"
    return literal(f"{named} at {'its' if len(left) == 1 else 'their'} best") if left else ""


def curves(table: Points, across: str) -> tuple[list[Any], list[Curve]]:
    """The values of a setting in the order of an axis, and a curve for each value of `line_setting`."""
    by = line_setting(table, across)
    cells = table.cells([across] if by is None else [across, by])
    values = cells.levels[0]
    order = _order(table, across, values)
    best, failed = (array.reshape(len(values), -1)[order] for array in (cells.best, cells.failed))
    names = [""] if by is None else [show(value) for value in cells.levels[1]]
    return [values[i] for i in order], [Curve(name, best[:, j], failed[:, j]) for j, name in enumerate(names)]


def chosen_pairs(table: Points) -> list[tuple[str, str]]:
    """Each pair of varying settings. The setting with more values comes first, because the x axis is longer."""
    size = {name: len(table.levels(name)[0]) for name in table.varying}
    return [(a, b) if size[a] >= size[b] else (b, a) for a, b in combinations(table.varying, 2)][:MOST_PAIRS]


def costs(dataset: xr.Dataset) -> Figure:
    """Cost against each varying setting, with a line for each value of the first text setting."""
    table, grid = points(dataset), is_grid(dataset)
    columns = min(len(table.varying), 2)
    best = "Settings that are not on an axis have their best values. " if grid and len(table.varying) > 1 else ""
    failed = "× marks failed runs. " if table.failed.any() else ""
    return Figure(
        "Cost against each setting",
        f"Mean over seeds, with its 95 % band. {best}{failed}Click a name to hide its line.",
        [(_curves if grid else _dots)(table, name) for name in table.varying],
        columns=columns,
        width=WIDTH * (1.2 if columns == 1 else columns),
        height=2.15,
        share_x=False,
        legend=literal(line_setting(table) or ""),
        legend_columns=4,
    )


def _curves(table: Points, name: str) -> Axes:
    values, lines = curves(table, name)
    places, axis = _places(table, name, values)
    is_own = name == line_setting(table)  # each value then has the colour of its line in the other plots
    series = []
    for i, (label, rows, _) in enumerate(lines):
        known = np.flatnonzero(rows >= 0)
        if known.size:
            band = statistics.band(table.cost[rows[known]].T)
            if table.is_numeric(name):
                gaps = Band(*np.full((3, len(rows)), np.nan))  # the line is interrupted where all settings failed
                for part, values_of_part in zip(gaps, band, strict=True):
                    part[known] = values_of_part
                size = 3.5 if len(values) <= MOST_WORDS else 1.5
                series.append(_series(places, gaps, i, label or "cost", size=size))
            elif is_own:
                for j, where in enumerate(known):
                    single = Band(*(part[[j]] for part in band))
                    series.append(_series(places[[where]], single, int(where), show(values[where]), line=""))
            else:
                beside = places[known] + 0.5 * ((i + 0.5) / len(lines) - 0.5)
                series.append(_series(beside, band, i, label or "cost", line=""))
    crosses = []
    for j, (place, value) in enumerate(zip(places, values, strict=True)):
        who = [i for i, line in enumerate(lines) if line.failed[j]]
        if who:
            counts = ", ".join(f"{lines[i].name} {lines[i].failed[j]:,}".strip() for i in who)
            color = PALETTE[who[0]] if len(lines) > 1 and len(who) == 1 else GREY
            total = f"{sum(int(line.failed[j]) for line in lines):,}" if len(values) <= MOST_WORDS else ""
            crosses.append((place, color, total, f"{name} {_tick(value)}, failed runs: {counts}"))
    return _against(table, series, crosses, axis, name, others(table, name, line_setting(table, name)))


def _dots(table: Points, name: str) -> Axes:
    """Draw each point on its own, because in a random design points share no values."""
    values, codes = table.levels(name)
    all_places, axis = _places(table, name, values)
    places, by, series = all_places[codes], line_setting(table), []
    levels, level_of = ([""], np.zeros(len(table), int)) if by is None else table.levels(by)
    for i, level in enumerate(levels):
        here = np.flatnonzero(table.ok & (level_of == i))
        if here.size:
            band = statistics.band(table.cost[here].T)
            hover = [
                f"{in_words(table.setting(row))}: {statistics.interval_text(ends, '.4g')}"
                for row, ends in zip(here, np.stack(band, axis=-1), strict=True)
            ]
            look: dict[str, Any] = dict(line="", size=2.5, hover=[literal(text) for text in hover])
            series.append(_series(places[here], band, i, show(level) or "cost", **look))
    lost = np.flatnonzero(~table.ok)
    crosses = [(places[row], GREY, "", f"{in_words(table.setting(row))}: failed") for row in lost]
    note = f"{lost.size:,} of {len(table):,} points failed" if lost.size else ""
    return _against(table, series, crosses, axis, name, note)


def _series(x: np.ndarray, band: Band, index: int, label: str, **options: Any) -> Series:
    look = dict(marker=MARKERS[index % len(MARKERS)]) | options
    return banded(x, band, PALETTE[index % len(PALETTE)], literal(label), **look)


def _against(
    table: Points, series: list[Series], crosses: list[tuple[float, str, str, str]], x: Axis, name: str, note: str
) -> Axes:
    """The plot of series, with a cross above them for each failure: (place, colour, count, text)."""
    y, top = Axis(literal(table.judged), ticks=((), ()), range=(0, 1.2)), 1.0
    if series:
        ends = np.concatenate([np.ravel([curve.y, curve.low, curve.high]) for curve in series])
        low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
        is_log = spans_decades(np.concatenate([curve.y for curve in series]))
        top = high * (high / low) ** 0.08 if is_log and low > 0 else high + 0.08 * (high - low or abs(high) or 1.0)
        y = Axis(literal(table.judged), is_log=is_log)
    for color in dict.fromkeys(color for _, color, *_ in crosses):
        here = [cross for cross in crosses if cross[1] == color]
        look: dict[str, Any] = dict(line="", marker="x", words=[count for *_, count, _ in here])
        hover = [literal(text) for *_, text in here]
        series = [*series, Series([x for x, *_ in here], [top] * len(here), color, "failed runs", hover=hover, **look)]
    return Axes(series, x, y, note, about=f"{table.judged} against {literal(name)}")


def _places(table: Points, name: str, values: list[Any]) -> tuple[np.ndarray, Axis]:
    """The places of a setting's values along an axis: numbers, or 0, 1, … for text and for zero on a log scale."""
    numbers = np.asarray(values, float) if table.is_numeric(name) else np.empty(0)
    if numbers.size and not (numbers.min() == 0 and spans_decades(numbers[numbers > 0])):
        ticks = (numbers, [_tick(value) for value in values]) if len(values) <= 8 else None
        return numbers, Axis(literal(name), is_log=spans_decades(numbers), ticks=ticks)
    return np.arange(len(values), dtype=float), _categories(name, values)


def _categories(name: str, values: list[Any]) -> Axis:
    indices = range(0, len(values), -(-len(values) // 12))
    return Axis(literal(name), ticks=(indices, [_tick(values[i]) for i in indices]), range=(-0.5, len(values) - 0.5))


def pairs(dataset: xr.Dataset) -> Figure:
    """Cost over each pair of varying settings: cells for a grid, points for other designs."""
    table, grid = points(dataset), is_grid(dataset)
    chosen = chosen_pairs(table)
    means = table.mean[table.ok]
    scale = None
    if means.size:
        label = literal(f"{table.judged}; frame: the best") + ("; ×: failed runs" if table.failed.any() else "")
        scale = Scale(float(means.min()), float(means.max()), spans_decades(means), label)
    columns = 1 if len(chosen) == 1 else 2 if len(chosen) <= 4 else 3
    count = len(table.varying) * (len(table.varying) - 1) // 2
    best = "Settings that are not on an axis have their best values. " if grid and len(table.varying) > 2 else ""
    return Figure(
        "Cost over each pair of settings",
        f"Mean over seeds; yellow means a low cost. {best}{'× marks failed runs. ' if table.failed.any() else ''}"
        "Frame: the best setting." + (f" The first {len(chosen)} of {count} pairs." if count > len(chosen) else ""),
        [(_cells if grid else _scatter)(table, a, b, scale) for a, b in chosen],
        columns=columns,
        width=WIDTH * (1.2, 2.0, 2.55)[columns - 1],
        height=2.4,
        share_x=False,
    )


def _cells(table: Points, a: str, b: str, scale: Scale | None) -> Axes:
    cells = table.cells([a, b])
    orders = [_order(table, name, values) for name, values in zip((a, b), cells.levels, strict=True)]
    best, failed = (array[np.ix_(*orders)].T for array in (cells.best, cells.failed))
    costs = np.where(best >= 0, table.mean[best], np.nan)
    is_roomy = max(costs.shape) <= MOST_WORDS
    words, hover = np.full(costs.shape, "", object), np.full(costs.shape, "", object)
    lost = (best < 0) & (failed > 0)
    for place in np.ndindex(*costs.shape):
        count = f"× {failed[place]:,}" if failed[place] else ""
        known = best[place] >= 0
        if is_roomy:
            words[place] = "\n".join(filter(None, [f"{costs[place]:.3g}" if known else "", count]))
        if lost[place]:
            hover[place] = f"{failed[place]:,} runs failed"
        elif known:
            after = f"; {failed[place]:,} runs failed" if failed[place] else ""
            hover[place] = literal(f"{in_words(table.setting(int(best[place])))}: {costs[place]:.4g}{after}")
    across, up = (
        _categories(name, [values[i] for i in order])
        for name, values, order in zip((a, b), cells.levels, orders, strict=True)
    )
    where = np.argwhere(best == int(np.argmin(table.mean)))[0] if table.ok.any() else None
    frame = None if where is None else (int(where[0]), int(where[1]))
    return Axes(
        [],
        across,
        up,
        others(table, a, b),
        about=literal(f"cost over {a} and {b}"),
        cells=Cells(costs, words, hover, lost, frame),
        scale=scale,
        pixels=360,
    )


def _scatter(table: Points, a: str, b: str, scale: Scale | None) -> Axes:
    (x, across), (y, up) = (_columns(table, name) for name in (a, b))
    texts = [literal(in_words(table.setting(row))) for row in range(len(table))]
    series = []
    if table.ok.any():
        best = int(np.argmin(table.mean))
        look: dict[str, Any] = dict(line="", marker="o", size=7, is_hollow=True, hover=[f"the best: {texts[best]}"])
        series.append(Series(x[[best]], y[[best]], VERMILLION, **look))
    for rows, look in (
        (np.flatnonzero(table.ok), dict(marker="o", costs=table.mean[table.ok])),
        (np.flatnonzero(~table.ok), dict(marker="x")),
    ):
        if rows.size:
            hover = [f"{texts[row]}: {f'{table.mean[row]:.4g}' if table.ok[row] else 'failed'}" for row in rows]
            series.append(Series(x[rows], y[rows], VERMILLION, line="", hover=hover, **look))
    about = literal(f"cost over {a} and {b}")
    return Axes(series, across, up, about=about, scale=scale, pixels=360)


def _columns(table: Points, name: str) -> tuple[np.ndarray, Axis]:
    """The place of each point along a setting's axis."""
    if table.is_numeric(name):
        numbers = table.columns[name].astype(float)
        return numbers, Axis(literal(name), is_log=spans_decades(numbers))
    values, codes = table.levels(name)
    return codes.astype(float), _categories(name, values)


def time(dataset: xr.Dataset) -> Figure:
    """The cost over time of the three best points and of the worst point without failed runs."""
    table = points(dataset)
    order = np.argsort(table.mean, kind="stable")[: int(table.ok.sum())]
    rows = [*order[:3], *order[3:][-1:]]
    dims = [str(dim) for dim in dataset.mean_cost.dims if dim != "seed"]
    cost = dataset.part_cost.transpose(*dims, "seed", "part").values
    cost = cost.reshape(-1, *cost.shape[-2:])
    middle = dataset["part"].values + lengths(dataset) / 2
    series = []
    for i, (row, rank) in enumerate(zip(rows, ("best", "second", "third", "worst"), strict=False)):
        text = ", ".join(f"{name} {show(value)}" for name, value in table.setting(row).items() if name in table.varying)
        label = literal(f"{rank}: {text}" if text else "the only point")
        look: dict[str, Any] = dict(marker=MARKERS[i], size=2.5)
        series.append(banded(middle, statistics.band(cost[row]), GREY if i == 3 else PALETTE[i], label, **look))
    is_log = spans_decades(np.concatenate([curve.y for curve in series]))
    y = Axis("mean cost of a step", is_log=is_log)
    return Figure(
        "Cost over time",
        "The three best settings, and the worst setting without failed runs.",
        [Axes(series, Axis("step $t$", range=(0, None)), y, about="cost over time", pixels=400)],
        width=1.4 * WIDTH,
        height=1.6 + 0.16 * len(series),
        legend_columns=1,
    )


def _order(table: Points, name: str, values: list[Any]) -> np.ndarray:
    """The order of a setting's values along an axis."""
    return np.argsort(values) if table.is_numeric(name) else np.arange(len(values))


def _tick(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else show(value)
    return literal(text if len(text) <= 18 else f"{text[:17]}…")
