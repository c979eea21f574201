"""Lines, bands and axes in plotly, in the report's style.

The page's style sheet colours text and grid, so that they follow the light or dark mode.
"""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from . import datasets
from .statistics import Band
from .style import GREY, PALETTE

CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "displayModeBar": "hover",
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
}
DASHED = "6px,3px"


def figure(y: str, x: str = "") -> go.Figure:
    axis: dict[str, Any] = dict(
        showline=False, zeroline=False, ticks="", automargin=True, tickfont_size=12, gridcolor=GREY, title_standoff=8
    )
    return go.Figure(
        layout=dict(
            template="none",
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            font=dict(family="inherit", size=13),
            margin=dict(l=8, r=8, t=8, b=8),
            height=320,
            hovermode="x unified",
            hoverlabel=dict(namelength=-1),
            legend=dict(orientation="h", yanchor="bottom", y=1.02, xanchor="left", x=0),
            xaxis=axis | dict(title=dict(text=x), showgrid=False),
            yaxis=axis | dict(title=dict(text=y)),
        )
    )


def time(figure: go.Figure, dataset: Any) -> go.Figure:
    whole = [0, datasets.steps(dataset)]
    return figure.update_xaxes(title=dict(text="step t"), range=whole, hoverformat=",d", tickformat="~s", nticks=7)


def decades(figure: go.Figure) -> None:
    """Make the y axis logarithmic, with ticks at whole powers of ten and a small font, as plotly draws powers large."""
    values = np.concatenate([np.ravel(trace["y"]) for trace in cast(Any, figure.data)])
    span = np.ptp(np.log10(values[values > 0])) if (values > 0).any() else 1.0
    figure.update_yaxes(
        type="log", exponentformat="power", dtick=max(1, round(float(span) / 5)), tickfont=dict(size=10)
    )


def line(
    figure: go.Figure,
    x: Any,
    y: Any,
    color: str,
    name: str,
    dash: str | None = None,
    width: float = 1.8,
    **options: Any,
) -> None:
    form = dict(hovertemplate="%{y:.4g}") if "hoverinfo" not in options else {}
    line = dict(color=color, width=width, dash=dash)
    figure.add_scatter(x=_single(x), y=_single(y), mode="lines", line=line, name=name, **(form | options))


def band(
    figure: go.Figure,
    x: Any,
    made: Band,
    color: str,
    name: str,
    *,
    hover: str | None = None,
    shown: bool = True,
    mode: str = "lines",
    showlegend: bool = True,
) -> None:
    """Draw the mean and its band; one click in the legend hides both."""
    common: dict[str, Any] = dict(legendgroup=name, visible=True if shown else "legendonly")
    if np.isfinite(made.low).all():
        figure.add_scatter(
            x=_single(np.concatenate([x, x[::-1]])),
            y=_single(np.concatenate([made.high, made.low[::-1]])),
            fill="toself",
            fillcolor=_translucent(color),
            line=dict(width=0),
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
            **common,
        )
    figure.add_scatter(
        x=_single(x),
        y=_single(made.mean),
        customdata=_single(np.stack([made.low, made.high], axis=-1)),
        mode=mode,
        line=dict(color=color, width=1.8),
        name=name,
        showlegend=showlegend,
        hovertemplate=f"{hover or name}: %{{y:.4g}} [%{{customdata[0]:.4g}}, %{{customdata[1]:.4g}}]<extra></extra>",
        **common,
    )


def _single(values: Any) -> np.ndarray:
    """The values in single precision, which is enough for a screen; in double precision if they exceed its range."""
    double = np.asarray(values, dtype=np.float64)
    size, reach = np.abs(double[np.isfinite(double) & (double != 0)]), np.finfo(np.float32)
    fits = not size.size or (size.min() >= reach.tiny and size.max() <= reach.max)
    return double.astype(np.float32) if fits else double


def _translucent(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"


def cycle() -> Iterable[str]:
    return PALETTE * 8
