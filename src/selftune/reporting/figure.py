r"""A figure as data. `matplotlib_figures` draws it for print, and `plotly_figures` for the page.

A text may contain formulas between dollar signs, in the notation of TeX: Unicode letters, _, ^, \hat, \tilde and \bar.
`literal` protects the dollar signs of a text that a user wrote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from .statistics import Band, interval_text

MARKERS = "osD^vPX<>*"


@dataclass(frozen=True, eq=False)
class Series:
    """Points with a line through them, with markers, or both.

    An interval of each point, `low` to `high`, is a band along a line; without a line the intervals are whiskers.
    Series of one figure with the same label share one entry of the legend.
    """

    x: Any
    y: Any
    color: str
    label: str = ""
    _: KW_ONLY
    low: Any = None
    high: Any = None
    is_interval_of_x: bool = False
    line: str = "-"
    """"-", "--", ":", or "" for none."""
    marker: str = ""
    """One of `MARKERS`, "x", or "" for none."""
    size: float = 3.5
    """The marker's size in points."""
    width: float = 1.0
    """The line's width, relative to the usual one."""
    opacity: float = 1.0
    is_hollow: bool = False
    costs: Any = None
    """A number of each point, which the axes' `scale` turns into the point's colour."""
    hover: str | Sequence[str] = ""
    """The page's text for the series, or for each point, in place of the label."""
    words: Sequence[str] = ()
    """A short text above each point, for print."""
    on_request: bool = False
    """Not printed; on the page, hidden until the reader clicks the legend."""


def banded(x: Any, band: Band, color: str, label: str = "", **options: Any) -> Series:
    """The series of a mean over seeds, with its interval."""
    return Series(np.asarray(x), band.mean, color, label, low=band.low, high=band.high, **options)


@dataclass(frozen=True)
class Rule:
    """A line across the axes, at `x` or at `y`; with `end`, the shaded area from `x` to `end`."""

    x: float | None = None
    y: float | None = None
    color: str = "#808080"
    line: str = "-"
    end: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Text:
    """A text at the right edge, at the height `y`."""

    y: float
    text: str
    color: str


@dataclass(frozen=True)
class Scale:
    """The colours of costs: light is `low`, dark is `high`."""

    low: float
    high: float
    is_log: bool
    label: str


@dataclass(frozen=True, eq=False)
class Cells:
    """A table of costs in colours. Row i and column j are at the places i and j of the axes.

    `costs` are NaN in empty cells. `words` are the texts that print shows in the cells, and `hover` those of the page.
    """

    costs: np.ndarray
    words: np.ndarray
    hover: np.ndarray
    failed: np.ndarray
    best: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Axis:
    label: str = ""
    _: KW_ONLY
    is_log: bool = False
    range: tuple[float | None, float | None] = (None, None)
    ticks: tuple[Any, Sequence[str]] | None = None
    """The places of the ticks, and their texts."""
    in_steps: bool = False
    """Whether the numbers are steps, which print shows in thousands."""


@dataclass(frozen=True, eq=False)
class Axes:
    """One plot. The first series is on top and the first in the legend."""

    series: Sequence[Series]
    x: Axis
    y: Axis
    title: str = ""
    _: KW_ONLY
    about: str = ""
    """A description for screen readers; they also hear the title."""
    rules: Sequence[Rule] = ()
    texts: Sequence[Text] = ()
    cells: Cells | None = None
    scale: Scale | None = None
    is_equal: bool = False
    """Whether a unit is as long on the x axis as on the y axis."""
    pixels: int = 320
    """The height on the page."""


@dataclass(frozen=True, eq=False)
class Figure:
    """Plots with a heading and a caption for the page. The other fields are the layout for print."""

    title: str
    caption: str
    axes: Sequence[Axes]
    _: KW_ONLY
    columns: int = 1
    width: float = 3.4
    """In inches; the default is one column of a paper."""
    height: float = 1.75
    """Of a row of plots, in inches."""
    share_x: bool = True
    share_y: bool = False
    legend: str = ""
    """The title above the legend."""
    legend_columns: int = 3
    has_own_legends: bool = False
    """Whether each plot has its own legend."""


def ranking(
    label: str, rows: Mapping[str, Mapping[str, tuple[Band, int]]], colors: Mapping[str, str], runs: int, **options: Any
) -> Axes:
    """Ratios of costs on a logarithmic axis: a row for each start, with a marker for each algorithm.

    `rows` has each algorithm's ratio and its number of failed runs of `runs`, which a text states at the right edge.
    """
    points: dict[str, list[tuple[float, Band, str]]] = {name: [] for name in colors}
    texts = []
    for row, (start, ratios) in enumerate(rows.items()):
        for i, (name, (ratio, failed)) in enumerate(ratios.items()):
            place = row + 0.8 * ((i + 0.5) / len(ratios) - 0.5)
            if np.isfinite(ratio.mean):
                points[name].append((place, ratio, f"{name}, {start}: {interval_text(ratio, '.4f')}"))
            if failed:
                texts.append(Text(place, f"{name}: {failed} of {runs} failed", colors[name]))
    series = []
    for i, (name, color) in enumerate(colors.items()):
        if points[name]:
            places, ratios, hover = zip(*points[name], strict=True)
            mean, low, high = np.array(ratios, float).T
            look: dict[str, Any] = dict(line="", marker=MARKERS[i % len(MARKERS)], is_interval_of_x=True, hover=hover)
            series.append(Series(mean, places, color, name, low=low, high=high, **look))
    y = Axis(ticks=(range(len(rows)), list(rows)), range=(len(rows) - 0.5, -0.5))
    return Axes(series, Axis(label, is_log=True), y, texts=texts, **options)


def literal(text: str) -> str:
    """The text without formulas: its dollar signs stay dollar signs."""
    return text.replace("$", r"\$")


def log_ticks(low: float, high: float) -> list[float] | None:
    """The ticks of a logarithmic axis from `low` to `high`; None for whole powers of ten."""
    span = np.log10(high / low)
    if span >= 2 or low < 1e-3 or high > 1e5:
        return None
    steps = (1, 1.2, 1.5, 2, 3, 4, 5, 7) if span < 0.5 else (1, 1.5, 2, 3, 5, 7) if span < 1 else (1, 2, 5)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    return [float(f"{step}e{power}") for power in powers for step in steps]
