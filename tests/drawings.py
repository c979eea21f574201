"""Whether both renderers draw every part of a figure's description."""

from typing import Any

import numpy as np

from selftune.reporting import matplotlib_figures, plotly_figures
from selftune.reporting.figure import Axes, Figure, Series


def check(figure: Figure) -> Any:
    """Compare the matplotlib figure and the plotly figures with the description; give the matplotlib figure."""
    printed = matplotlib_figures.draw(figure)
    printed.draw_without_rendering()
    (panel,) = plotly_figures.panels({"name": figure})
    assert len(panel.plots) == len(figure.axes)
    assert len(printed.axes) == len(figure.axes) + (figure.axes[0].scale is not None)  # and the bar of colours
    for axes, place, plot in zip(figure.axes, printed.axes, panel.plots, strict=False):
        _check_print(axes, place)
        _check_page(axes, plot.figure)
    labels = {one.label for axes in figure.axes for one in axes.series if one.label and not one.on_request}
    legends = [*printed.legends, *(place.get_legend() for place in printed.axes if place.get_legend())]
    assert labels <= {text.get_text() for legend in legends for text in legend.get_texts()}
    return printed


def _check_print(axes: Axes, place: Any) -> None:
    lines = [line.get_xydata() for line in place.lines]
    dots = [np.asarray(part.get_offsets()) for part in place.collections]
    for series in axes.series:
        points = _points(series)
        if not series.on_request:
            assert any(_same(points, drawn) for drawn in [*lines, *dots]), series.label
    bands = sum(series.low is not None and not series.on_request for series in axes.series)
    assert len(place.collections) >= bands
    assert place.get_xlabel() in ("", axes.x.label, f"{axes.x.label} / 1000")


def _check_page(axes: Axes, figure: Any) -> None:
    traces = [np.stack([trace.x, trace.y], axis=-1) for trace in figure.data if trace.type == "scatter"]
    for series in axes.series:
        # The page has single precision.
        assert any(_same(_points(series), trace, rtol=1e-6) for trace in traces), series.label
    named = [trace.name for trace in figure.data if trace.showlegend]
    assert len(named) == len(set(named)) == len({series.label for series in axes.series} - {""})
    hidden = [trace for trace in figure.data if trace.visible == "legendonly" and trace.name]
    assert len(hidden) == sum(series.on_request for series in axes.series)
    assert len(figure.layout.shapes) == len(axes.rules) + (axes.cells is not None and axes.cells.best is not None)
    assert len(figure.layout.annotations) == len(axes.texts)


def _points(series: Series) -> np.ndarray:
    points = np.stack([np.atleast_1d(series.x), np.atleast_1d(series.y)], axis=-1).astype(float)
    return points if series.costs is None else points[np.lexsort(points.T)]


def _same(points: np.ndarray, drawn: np.ndarray, rtol: float = 0.0) -> bool:
    """Whether the points are the same, in the same order or sorted."""
    if points.shape != drawn.shape:
        return False
    drawn = np.asarray(drawn, float)
    return any(
        np.allclose(points, one, rtol=rtol, atol=0, equal_nan=True) for one in (drawn, drawn[np.lexsort(drawn.T)])
    )
