"""Figures for the page, as plotly's JSON.

The page's style sheet colours text and grid, so that they follow the light or dark mode.
"""

import re
import unicodedata
from collections.abc import Mapping
from html import escape, unescape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from .figure import Axes, Axis, Cells, Figure, Rule, Scale, Series, log_ticks
from .panels import Panel, Plot
from .style import GREY, VERMILLION

CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "displayModeBar": "hover",
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
}
DASHES = {"--": "6px,3px", ":": "dot"}
SYMBOLS = {
    "o": "circle",
    "s": "square",
    "D": "diamond",
    "^": "triangle-up",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "<": "triangle-left",
    ">": "triangle-right",
    "*": "star",
    "x": "x-thin",
}


def panels(figures: Mapping[str, Figure]) -> list[Panel]:
    """The parts of a page, one for each figure. The figure's name and a number are the id of a plot's element."""
    return [
        Panel(
            _plain(figure.title),
            to_html(figure.caption),
            [
                Plot(f"{name}-{i}", to_html(axes.title), _plain(f"{axes.about} {axes.title}".strip()), draw(axes))
                for i, axes in enumerate(figure.axes)
            ],
        )
        for name, figure in figures.items()
    ]


def draw(axes: Axes) -> go.Figure:
    traces, seen = [], set()
    for series in axes.series:
        traces += reversed(_traces(series, axes.scale, is_named=bool(series.label) and series.label not in seen))
        seen.add(series.label)
    if axes.cells is not None:
        traces += _cells(axes.cells, axes.scale)
    has_lines = any(series.line and series.label for series in axes.series)
    return go.Figure(
        traces[::-1],  # plotly draws the last trace on top
        dict(
            template="none",
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            font=dict(family="inherit", size=13),
            margin=dict(l=8, r=8, t=8, b=8),
            height=axes.pixels,
            hovermode="x unified" if has_lines else "closest",
            hoverlabel=dict(namelength=-1),
            showlegend=len(seen - {""}) > 1,
            legend=dict(orientation="h", yanchor="bottom", y=1.02, xanchor="left", x=0, traceorder="reversed"),
            xaxis=_axis(axes.x, _reach(axes, "x")) | dict(showgrid=axes.x.is_log and axes.y.ticks is not None),
            yaxis=_axis(axes.y, _reach(axes, "y"))
            | dict(showgrid=axes.y.ticks is None)
            | (dict(scaleanchor="x") if axes.is_equal else {}),
            shapes=[_shape(rule) for rule in axes.rules] + _frame(axes),
            annotations=[
                dict(x=1, y=text.y, xref="paper", text=to_html(text.text), showarrow=False, xanchor="right")
                | dict(font=dict(color=text.color, size=10))
                for text in axes.texts
            ],
        ),
    )


def _traces(series: Series, scale: Scale | None, *, is_named: bool) -> list[dict[str, Any]]:
    """The band and the points of a series; one click in the legend hides both."""
    x, y = np.atleast_1d(series.x), np.atleast_1d(series.y)
    label = to_html(series.label)
    common = dict(legendgroup=label, visible="legendonly" if series.on_request else True, type="scatter")
    traces: list[dict[str, Any]] = []
    points: dict[str, Any] = common | dict(
        x=_single(x),
        y=_single(y),
        mode="+".join(["lines"] * bool(series.line) + ["markers"] * bool(series.marker)),
        name=label,
        showlegend=is_named,
        opacity=series.opacity,
        line=dict(color=series.color, width=1.8 * series.width, dash=DASHES.get(series.line)),
        marker=_marker(series, scale),
    )
    value = "%{x:.4g}" if series.is_interval_of_x else "%{y:.4g}"
    if series.low is not None:
        low, high = np.atleast_1d(series.low), np.atleast_1d(series.high)
        known = np.isfinite(low)
        if series.line and known.any():
            # Each run of known values is an area of its own, and NaN stands between the areas.
            runs = [run for run in np.split(np.arange(x.size), np.flatnonzero(np.diff(known)) + 1) if known[run[0]]]
            outline = dict(
                x=_single(np.concatenate([[*x[run], *x[run][::-1], np.nan] for run in runs])[:-1]),
                y=_single(np.concatenate([[*high[run], *low[run][::-1], np.nan] for run in runs])[:-1]),
            )
            fill = dict(fill="toself", fillcolor=_translucent(series.color), line=dict(width=0), mode="lines")
            traces.append(common | outline | fill | dict(hoverinfo="skip", showlegend=False))
        elif not series.line:
            middle = x if series.is_interval_of_x else y
            ends = dict(type="data", symmetric=False, array=high - middle, arrayminus=middle - low)
            points["error_x" if series.is_interval_of_x else "error_y"] = ends | dict(width=0, thickness=1.2)
        if known.any():
            points["customdata"] = _single(np.stack([low, high], axis=-1))
            value += " [%{customdata[0]:.4g}, %{customdata[1]:.4g}]"
    if not isinstance(series.hover, str):
        points |= dict(text=[to_html(text) for text in series.hover], hovertemplate="%{text}<extra></extra>")
    elif series.hover or series.label:
        points["hovertemplate"] = f"{to_html(series.hover or series.label)}: {value}<extra></extra>"
    else:
        points["hoverinfo"] = "skip"
    return [*traces, points]


def _marker(series: Series, scale: Scale | None) -> dict[str, Any]:
    symbol = SYMBOLS.get(series.marker, "circle") + ("-open" if series.is_hollow else "")
    edge = dict(width=2 if series.is_hollow or series.marker == "x" else 0, color=series.color)
    marker: dict[str, Any] = dict(color=series.color, symbol=symbol, size=2 * series.size + 1, line=edge)
    if series.costs is None or scale is None:
        return marker
    ends, bar = _color_bar(scale)
    shades = dict(color=_shade(series.costs, scale), cmin=ends[0], cmax=ends[1], colorbar=bar, reversescale=True)
    return marker | shades | dict(colorscale="Cividis", line=dict(width=0.5, color=GREY))


def _cells(cells: Cells, scale: Scale | None) -> list[dict[str, Any]]:
    """The crosses of failed cells, and the colours of the others."""
    hover = np.vectorize(to_html, otypes=[object])(cells.hover)
    rows, columns = np.nonzero(cells.failed)
    crosses = Series(
        columns, rows, VERMILLION, line="", marker="x", hover=[str(text) for text in cells.hover[rows, columns]]
    )
    traces = _traces(crosses, None, is_named=False) if rows.size else []
    if scale is not None:
        (low, high), bar = _color_bar(scale)
        shades = dict(z=_shade(cells.costs, scale), zmin=low, zmax=high, colorbar=bar, colorscale="Cividis")
        text = dict(text=hover, hovertemplate="%{text}<extra></extra>", hoverongaps=False)
        traces.append(dict(type="heatmap", reversescale=True, **shades, **text))
    return traces


def _frame(axes: Axes) -> list[dict[str, Any]]:
    """The frame around the best cell."""
    if axes.cells is None or axes.cells.best is None:
        return []
    row, column = axes.cells.best
    corners = dict(x0=column - 0.5, x1=column + 0.5, y0=row - 0.5, y1=row + 0.5)
    return [dict(type="rect", line=dict(width=2.5, color=VERMILLION), **corners)]


def _shade(costs: Any, scale: Scale) -> np.ndarray:
    return np.log10(costs) if scale.is_log else np.asarray(costs)


def _color_bar(scale: Scale) -> tuple[tuple[float, float], dict[str, Any]]:
    low, high = _shade([scale.low, scale.high], scale)
    ticks = np.linspace(low, high, 4)
    texts = [f"{10**tick if scale.is_log else tick:.3g}" for tick in ticks]
    return (low, high), dict(thickness=10, outlinewidth=0, tickvals=ticks, ticktext=texts, tickfont_size=11)


def _shape(rule: Rule) -> dict[str, Any]:
    line = dict(color=rule.color, width=1, dash=DASHES.get(rule.line))
    if rule.y is not None:
        return dict(type="line", xref="paper", x0=0, x1=1, y0=rule.y, y1=rule.y, line=line, layer="below")
    places = dict(x0=rule.x, x1=rule.x if rule.end is None else rule.end, yref="paper", y0=0, y1=1, layer="below")
    if rule.end is None:
        return dict(type="line", line=line, **places)
    legend = dict(name=to_html(rule.label), showlegend=bool(rule.label))
    return dict(type="rect", fillcolor=_translucent(rule.color), line=dict(width=0), **legend, **places)


def _axis(axis: Axis, reach: tuple[float, float] | None) -> dict[str, Any]:
    low, high = axis.range
    layout: dict[str, Any] = dict(
        title=dict(text=to_html(axis.label), standoff=8),
        **dict(showline=False, zeroline=False, ticks="", automargin=True, tickfont_size=12, gridcolor=GREY),
    )
    if low is not None and high is not None:
        layout["range"] = [np.log10(low), np.log10(high)] if axis.is_log else [low, high]
    elif low == 0:
        layout["rangemode"] = "tozero"
    if axis.ticks is not None:
        layout |= dict(tickvals=list(axis.ticks[0]), ticktext=[to_html(text) for text in axis.ticks[1]])
    elif axis.is_log and reach is not None and (places := log_ticks(*reach)) is not None:
        layout |= dict(tickvals=places, ticktext=[f"{place:,g}" for place in places])
    elif axis.is_log:
        # Whole powers of ten, in a small font, because plotly draws powers large.
        decades = 1.0 if reach is None else float(np.log10(reach[1] / reach[0]))
        layout |= dict(exponentformat="power", dtick=max(1, round(decades / 5)), tickfont_size=10)
    elif axis.in_steps:
        layout |= dict(hoverformat=",d", tickformat="~s", nticks=7)
    else:
        layout |= dict(exponentformat="power")
    return layout | (dict(type="log") if axis.is_log else {})


def _reach(axes: Axes, which: str) -> tuple[float, float] | None:
    """The smallest and largest positive number of the series; None if there are none."""
    values = [np.ravel(getattr(series, which)) for series in axes.series]
    for series in axes.series:
        if series.low is not None and series.is_interval_of_x == (which == "x"):
            values += [np.ravel(series.low), np.ravel(series.high)]
    numbers = np.concatenate([np.asarray(part, float) for part in values]) if values else np.empty(0)
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    return (float(numbers.min()), float(numbers.max())) if numbers.size else None


def _single(values: Any) -> np.ndarray:
    """The values in single precision, which is enough for a screen; in double precision if they exceed its range."""
    double = np.asarray(values, dtype=np.float64)
    size, reach = np.abs(double[np.isfinite(double) & (double != 0)]), np.finfo(np.float32)
    fits = not size.size or (size.min() >= reach.tiny and size.max() <= reach.max)
    return double.astype(np.float32) if fits else double


def _translucent(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"


_ACCENTS = {"hat": "\u0302", "tilde": "\u0303", "bar": "\u0304"}


def to_html(text: str) -> str:
    """A text of a figure as HTML: formulas have <sub> and <sup>, and everything else is escaped."""
    parts = re.split(r"(?<!\\)\$", text)
    return "".join(
        _formula(part) if i % 2 else escape(part.replace(r"\$", "$"), quote=False) for i, part in enumerate(parts)
    )


def _formula(tex: str) -> str:
    text = re.sub(r"\\(hat|tilde|bar) ?(\w)", lambda match: match[2] + _ACCENTS[match[1]], tex)
    text = unicodedata.normalize(
        "NFC", escape(text.replace("^*", "*").replace("-", "−").replace("'", "′"), quote=False)
    )
    for sign, tag in (("_", "sub"), ("^", "sup")):
        text = re.sub(
            rf"\{sign}(?:{{([^}}]*)}}|(.))", lambda match, tag=tag: f"<{tag}>{match[1] or match[2]}</{tag}>", text
        )
    return text


_SUBSCRIPTS = str.maketrans("0123456789at", "₀₁₂₃₄₅₆₇₈₉ₐₜ")


def _plain(text: str) -> str:
    """A text of a figure as plain Unicode, for titles and screen readers."""
    text = re.sub("<sub>(.*?)</sub>", lambda match: match[1].translate(_SUBSCRIPTS), to_html(text))
    return unescape(re.sub("</?su[bp]>", "", text))
