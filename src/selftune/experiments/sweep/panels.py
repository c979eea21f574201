"""The plots of a sweep's report: the same data as the printed figures, with hover texts and zoom."""

from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from ...reporting import plotly_figures, statistics
from ...reporting.panels import Panel, Plot
from ...reporting.statistics import Band
from ...reporting.style import BLUE, GREY, PALETTE, VERMILLION
from ...sweeps.point_table import Points, in_words, points, show, spans_decades
from . import figures

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "triangle-left")
COLORS = "Cividis"


def make_panels(dataset: xr.Dataset) -> list[Panel]:
    found, grid, made = points(dataset), figures.is_grid(dataset), []
    best = "Settings that are not on an axis have their best values. " if grid and len(found.varying) > 1 else ""
    failed = "× marks failed runs. " if found.failed.any() else ""
    if found.varying:
        text = f"Mean over seeds, with its 95 % band. {best}{failed}Click a name to hide its line."
        draw = _against if grid else _dots
        plots = [
            Plot(f"cost-{i}", name, f"cost against {name}", draw(found, name)) for i, name in enumerate(found.varying)
        ]
        made.append(Panel("Cost against each setting", text, plots))
    if pairs := figures.chosen_pairs(found):
        text = f"Mean over seeds; yellow means a low cost. {best}{failed}Frame: the best setting. "
        count = len(found.varying) * (len(found.varying) - 1) // 2
        text += f"The first {len(pairs)} of {count} pairs." if count > len(pairs) else ""
        draw = _heat if grid else _scatter
        plots = [
            Plot(f"pair-{i}", f"{b} against {a}", f"cost over {a} and {b}", draw(found, a, b))
            for i, (a, b) in enumerate(pairs)
        ]
        made.append(Panel("Cost over each pair of settings", text, plots))
    if found.ok.any() and "part_cost" in dataset:
        text = "The three best settings, and the worst setting without failed runs."
        made.append(Panel("Cost over time", text, [Plot("time", "", "cost over time", _time(dataset))]))
    return made


def _places(figure: go.Figure, found: Points, name: str, values: list[Any]) -> np.ndarray:
    """The places of a setting's values along x: numbers, or 0, 1, … for text and for zero on a log scale."""
    numbers = np.asarray(values, float) if found.is_numeric(name) else np.empty(0)
    apart = spans_decades(numbers[numbers > 0])
    if numbers.size and not (numbers.min() == 0 and apart):
        log = spans_decades(numbers)
        ticks: Any = dict(tickvals=numbers, ticktext=[_label(value) for value in values]) if len(values) <= 8 else {}
        if log and not ticks:
            ticks = dict(exponentformat="power", dtick=max(1, round(float(np.ptp(np.log10(numbers))) / 5)))
        figure.update_xaxes(type="log" if log else "linear", **ticks)
        return numbers
    shown = range(0, len(values), -(-len(values) // 12))
    figure.update_xaxes(
        tickvals=list(shown), ticktext=[_label(values[i]) for i in shown], range=[-0.5, len(values) - 0.5]
    )
    return np.arange(len(values), dtype=float)


def _against(found: Points, name: str) -> go.Figure:
    figure = plotly_figures.figure(escape(found.judged), escape(name))
    values, lines = figures.curves(found, name)
    places = _places(figure, found, name, values)
    shown = []
    for i, (label, rows, _) in enumerate(lines):
        known = rows >= 0
        if known.any():
            band = statistics.band(found.cost[rows[known]].T)
            shown.append(band)
            if found.is_numeric(name):
                plotly_figures.band(
                    figure, places[known], band, PALETTE[i], escape(label or "cost"), mode="lines+markers"
                )
            elif name == figures.line_setting(found):  # each value in the colour of its line in the other panels
                for j, where in enumerate(np.flatnonzero(known)):
                    one = Band(*(part[[j]] for part in band))
                    _whiskers(figure, places[[where]], one, int(where), show(values[where]))
            else:
                _whiskers(figure, places[known] + 0.06 * (i - (len(lines) - 1) / 2), band, i, label or "cost")
    top = _finish(figure, shown)
    crosses = []
    for j, (place, value) in enumerate(zip(places, values, strict=True)):
        if who := [f"{escape(line.name)} {line.failed[j]:,}".strip() for line in lines if line.failed[j]]:
            crosses.append((place, f"{escape(name)} {_label(value)}, failed runs: {', '.join(who)}"))
    _crosses(figure, crosses, top, GREY if len(lines) > 1 else VERMILLION)
    return figure.update_layout(showlegend=len(lines) > 1, hovermode="closest")


def _dots(found: Points, name: str) -> go.Figure:
    figure = plotly_figures.figure(escape(found.judged), escape(name))
    values, codes = found.levels(name)
    places = _places(figure, found, name, values)[codes]
    by, ok = figures.line_setting(found), found.ok
    levels, of = ([""], np.zeros(len(found), int)) if by is None else found.levels(by)
    shown = []
    for i, level in enumerate(levels):
        here = np.flatnonzero(ok & (of == i))
        if here.size:
            shown.append(statistics.band(found.cost[here].T))
            words = [in_words(found.setting(row)) for row in here]
            _whiskers(figure, places[here], shown[-1], i, show(level) or "cost", words)
    lost = [(places[row], f"{_words(found, row)}: failed") for row in np.flatnonzero(~ok)]
    _crosses(figure, lost, _finish(figure, shown), VERMILLION if by is None else GREY)
    return figure.update_layout(showlegend=by is not None, hovermode="closest")


def _whiskers(figure: go.Figure, x: np.ndarray, band: Band, index: int, name: str, words: Any = None) -> None:
    mean, low, high = band
    figure.add_scatter(
        x=x,
        y=mean,
        error_y=dict(type="data", symmetric=False, array=high - mean, arrayminus=mean - low, width=0, thickness=1),
        mode="markers",
        marker=dict(color=PALETTE[index % len(PALETTE)], size=7, symbol=SYMBOLS[index % len(SYMBOLS)]),
        name=escape(name),
        text=[escape(one) for one in words] if words else [escape(name)] * len(mean),
        customdata=np.stack([low, high], axis=-1),
        hovertemplate="%{text}: %{y:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}]<extra></extra>",
    )


def _finish(figure: go.Figure, shown: list[Band]) -> float:
    """Set the scale of the cost axis, and return a place above all costs."""
    if not shown:
        figure.update_yaxes(visible=False, range=[0, 1.2])
        return 1.0
    means = np.concatenate([band.mean for band in shown])
    high = float(np.nanmax(np.concatenate([np.concatenate([band.mean, band.high]) for band in shown])))
    if spans_decades(means):
        plotly_figures.decades(figure)
        return high * (high / float(means.min())) ** 0.08
    return high + 0.08 * (high - float(np.nanmin(means))) if high > means.min() else high + 0.1 * abs(high) + 1e-300


def _crosses(figure: go.Figure, crosses: list[tuple[float, str]], top: float, color: str) -> None:
    if crosses:
        figure.add_scatter(
            x=[place for place, _ in crosses],
            y=[top] * len(crosses),
            mode="markers",
            marker=dict(symbol="x-thin", size=9, line=dict(width=2, color=color)),
            name="failed",
            text=[text for _, text in crosses],
            hovertemplate="%{text}<extra></extra>",
        )


def _heat(found: Points, a: str, b: str) -> go.Figure:
    figure = plotly_figures.figure(escape(b), escape(a))
    cells = found.cells([a, b])
    orders = [
        np.argsort(values) if found.is_numeric(name) else np.arange(len(values))
        for name, values in zip((a, b), cells.levels, strict=True)
    ]
    best, failed = (array[np.ix_(*orders)].T for array in (cells.best, cells.failed))
    across, up = ([_label(values[i]) for i in order] for values, order in zip(cells.levels, orders, strict=True))
    low, bar = _scale(found)
    mean = np.where(best >= 0, found.mean[best], np.nan)
    words = np.full(best.shape, "", object)
    for place in zip(*np.nonzero(best >= 0), strict=True):
        lost = f"; {failed[place]:,} runs failed" if failed[place] else ""
        words[place] = f"{_words(found, best[place])}: {mean[place]:.4g}{lost}"
    if found.ok.any():
        figure.add_heatmap(
            x=across,
            y=up,
            z=low(mean),
            colorscale=COLORS,
            reversescale=True,
            zmin=bar["cmin"],
            zmax=bar["cmax"],
            colorbar=bar["colorbar"],
            text=words,
            hovertemplate="%{text}<extra></extra>",
            hoverongaps=False,
        )
        row, column = np.argwhere(best == int(np.argmin(found.mean)))[0]
        _frame(figure, [across[column]], [up[row]], str(words[row, column]), "square-open")
    lost = np.argwhere((best < 0) & (failed > 0))
    if lost.size:
        figure.add_scatter(
            x=[across[column] for _, column in lost],
            y=[up[row] for row, _ in lost],
            mode="markers",
            marker=dict(symbol="x-thin", size=8 if lost.size < 400 else 5, line=dict(width=1.5, color=VERMILLION)),
            text=[f"{failed[row, column]:,} runs failed" for row, column in lost],
            hovertemplate=f"{escape(a)} %{{x}}, {escape(b)} %{{y}}: %{{text}}<extra></extra>",
        )
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=across, nticks=12)
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=up, nticks=12, showgrid=False)
    return figure.update_layout(hovermode="closest", showlegend=False, height=360)


def _scatter(found: Points, a: str, b: str) -> go.Figure:
    figure = plotly_figures.figure(escape(b), escape(a))
    places = []
    for name, update in ((a, figure.update_xaxes), (b, figure.update_yaxes)):
        values, codes = found.levels(name)
        if found.is_numeric(name):
            places.append(found.columns[name].astype(float))
            update(type="log" if spans_decades(places[-1]) else "linear", exponentformat="power")
        else:
            places.append(codes.astype(float))
            update(tickvals=list(range(len(values))), ticktext=[_label(value) for value in values])
    ok = found.ok
    low, bar = _scale(found)
    for rows, marker in (
        (np.flatnonzero(~ok), dict(symbol="x-thin", size=8, line=dict(width=1.5, color=VERMILLION))),
        (np.flatnonzero(ok), dict(size=9, colorscale=COLORS, reversescale=True, line=dict(width=0.5, color=GREY))),
    ):
        if rows.size:
            good = bool(ok[rows[0]])
            end = [f"{found.mean[row]:.4g}" if good else "failed" for row in rows]
            figure.add_scatter(
                x=places[0][rows],
                y=places[1][rows],
                mode="markers",
                marker=marker | (dict(color=low(found.mean[rows]), **bar) if good else {}),
                text=[f"{_words(found, row)}: {result}" for row, result in zip(rows, end, strict=True)],
                hovertemplate="%{text}<extra></extra>",
            )
    if ok.any():
        best = int(np.argmin(found.mean))
        _frame(figure, places[0][[best]], places[1][[best]], _words(found, best), "circle-open")
    return figure.update_layout(hovermode="closest", showlegend=False, height=360)


def _frame(figure: go.Figure, x: Any, y: Any, words: str, symbol: str) -> None:
    look = dict(symbol=symbol, size=16, line=dict(width=2.5, color=VERMILLION))
    figure.add_scatter(
        x=x, y=y, mode="markers", marker=look, text=[f"the best: {words}"], hovertemplate="%{text}<extra></extra>"
    )


def _scale(found: Points) -> tuple[Any, dict[str, Any]]:
    """A function from costs to colour values (logarithms if costs span decades), and the colour bar."""
    means = found.mean[found.ok]
    if not means.size:
        return (lambda values: values), dict(cmin=0, cmax=1, colorbar=dict())
    low = np.log10 if spans_decades(means) else lambda values: values
    ends = float(low(means.min())), float(low(means.max()))
    ticks = np.linspace(*ends, 4)
    labels = [f"{10**tick if spans_decades(means) else tick:.3g}" for tick in ticks]
    bar = dict(thickness=10, outlinewidth=0, tickvals=ticks, ticktext=labels, tickfont_size=11)
    return low, dict(cmin=ends[0], cmax=ends[1], colorbar=bar)


def _time(dataset: xr.Dataset) -> go.Figure:
    figure = plotly_figures.figure("mean cost of a step", "step t")
    shown = figures.traces(dataset)
    colors = [*PALETTE[:3], GREY] if len(shown) == 4 else [BLUE, *PALETTE[1:]]
    for (name, step, cost), color in zip(shown, colors, strict=False):
        plotly_figures.band(figure, step, cost, color, escape(name), mode="lines+markers")
    if spans_decades(np.concatenate([cost.mean for *_, cost in shown])):
        plotly_figures.decades(figure)
    figure.update_xaxes(rangemode="tozero", hoverformat=",d", tickformat="~s", nticks=7)
    return figure.update_layout(legend=dict(orientation="v"), height=400)


def _label(value: Any) -> str:
    return escape(f"{value:.6g}" if isinstance(value, float) else show(value))


def _words(found: Points, row: Any) -> str:
    return escape(in_words(found.setting(row)))
