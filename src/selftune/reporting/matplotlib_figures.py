"""Figures for print: PNG and PDF, in colours for colour-blind readers too."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.axes
import matplotlib.figure
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator, ScalarFormatter

from ..storage import files
from .figure import Axes, Axis, Cells, Figure, Scale, Series, log_ticks
from .style import GREY, VERMILLION

STYLE: Any = {
    # Fonts that come with matplotlib, so that every machine writes the same file.
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titlepad": 3,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.title_fontsize": 9,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.borderaxespad": 0.2,
    "legend.columnspacing": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.1,
    "pdf.fonttype": 42,
    "figure.dpi": 100,
    "savefig.dpi": 300,
}
LINES: dict[str, Any] = {"-": "-", "--": (0, (4, 1.5)), ":": ":", "": "none"}
COLORS = "cividis_r"


def files_of(stem: Path) -> list[Path]:
    return [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "pdf")]


def save(
    figures: Mapping[str, Figure], folder: Path, *, progress: Callable[[int, int], Any] | None = None
) -> list[Path]:
    """Save each figure by its name as PNG and PDF. The files depend only on the figures: they contain no date.

    `progress` is called with (done, total), in files.
    """
    folder, saved = Path(folder), []
    for name, figure in figures.items():
        png, pdf = files_of(folder / name)
        with matplotlib.rc_context(STYLE):
            drawn = draw(figure)
            _write(drawn, png, {"Software": None})
            drawn.set_layout_engine("none")  # the layout is done; a second layout would take longer than the drawing
            _write(drawn, pdf, {"CreationDate": None, "Creator": None, "Producer": None})
        saved += [png, pdf]
        if progress is not None:
            progress(len(saved), 2 * len(figures))
    return saved


def _write(drawn: matplotlib.figure.Figure, path: Path, metadata: dict[str, None]) -> None:
    content = io.BytesIO()
    drawn.savefig(content, format=path.suffix.removeprefix("."), metadata=metadata)
    files.write(path, content.getvalue())


class Drawing(matplotlib.figure.Figure):
    """A figure that notebooks show as an image. It does not belong to pyplot, so no window opens."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=100)
        return file.getvalue()


@matplotlib.rc_context(STYLE)
def draw(figure: Figure) -> Drawing:
    count, columns = len(figure.axes), min(figure.columns, len(figure.axes))
    rows = -(-count // columns)
    drawn = Drawing(figsize=(figure.width, 0.45 + figure.height * rows), layout="constrained")
    grid = drawn.subplots(
        rows, columns, sharex="col" if figure.share_x else False, sharey=figure.share_y, squeeze=False
    )
    for place in grid.flat[count:]:
        place.remove()
    for place, axes in zip(grid.flat, figure.axes, strict=False):
        _draw_axes(place, axes)
    for i, (place, axes) in enumerate(zip(grid.flat, figure.axes, strict=False)):
        _draw_axis(place, "x", axes.x)  # after all plots, because they may share an axis
        _draw_axis(place, "y", axes.y)
        is_last = i + columns >= count
        place.tick_params(labelbottom=is_last or not figure.share_x)
        if figure.share_x and not is_last:
            place.set_xlabel("")
        if i % columns and (figure.share_y or axes.y.label == figure.axes[i - 1].y.label):
            place.set_ylabel("")
        if figure.has_own_legends and place.get_legend_handles_labels()[0]:
            place.set_title("")
            entries = _entries([place])
            place.legend(
                entries.values(),
                entries.keys(),
                title=axes.title or None,
                alignment="left",
                ncols=min(len(entries), figure.legend_columns),
                loc="lower left",
                bbox_to_anchor=(0.0, 1.0),
                borderaxespad=0,
                borderpad=0.1,
            )
    entries = {} if figure.has_own_legends else _entries(list(grid.flat[:count]))
    if entries:
        look: Any = dict(ncols=min(len(entries), figure.legend_columns), title=figure.legend or None)
        drawn.legend(list(entries.values()), list(entries), loc="outside upper center", **look)
    elif figure.legend:
        drawn.suptitle(figure.legend, fontsize=9)
    scale = figure.axes[0].scale
    if scale is not None:
        _draw_scale(drawn, list(grid.flat[:count]), scale)
    return drawn


def _entries(places: list[matplotlib.axes.Axes]) -> dict[str, Any]:
    """The handles of the legend, one for each label."""
    entries: dict[str, Any] = {}
    for place in places:
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return entries


def _draw_axes(place: matplotlib.axes.Axes, axes: Axes) -> None:
    norm = None if axes.scale is None else _norm(axes.scale)
    printed = [series for series in axes.series if not series.on_request]
    for rank, series in enumerate(printed):
        _draw_series(place, series, -rank / len(printed), norm)
    for rule in axes.rules:
        look: Any = dict(color=rule.color, label=rule.label)
        if rule.end is not None:
            place.axvspan(rule.x or 0, rule.end, alpha=0.2, linewidth=0, **look)
        elif rule.x is not None:
            place.axvline(rule.x, linestyle=LINES[rule.line], linewidth=0.7, zorder=0.5, **look)
        else:
            place.axhline(rule.y or 0, linestyle=LINES[rule.line], linewidth=0.7, zorder=0.5, **look)
    if axes.cells is not None:
        _draw_cells(place, axes.cells, norm)
    across = place.get_yaxis_transform()
    for text in axes.texts:
        place.text(1, text.y, text.text, color=text.color, fontsize=6, va="center", ha="right", transform=across)
    place.set_title(axes.title)
    if axes.is_equal:
        place.set_aspect("equal")


def _draw_series(place: matplotlib.axes.Axes, series: Series, rank: float, norm: Normalize | None) -> None:
    x, y = np.atleast_1d(series.x), np.atleast_1d(series.y)
    look: Any = dict(color=series.color, alpha=series.opacity, zorder=3 + rank, label=series.label or None)
    if series.low is not None:
        low, high = np.atleast_1d(series.low), np.atleast_1d(series.high)
        band: Any = dict(color=series.color, linewidth=0, alpha=0.25 * series.opacity, zorder=2 + rank)
        whiskers: Any = dict(color=series.color, linewidth=1.1, alpha=series.opacity, zorder=3 + rank)
        if series.line:
            place.fill_between(x, low, high, **band)
        elif series.is_interval_of_x:
            place.hlines(y, low, high, **whiskers)
        else:
            place.vlines(x, low, high, **whiskers)
    if series.costs is not None:
        order = np.argsort(-np.asarray(series.costs))  # the lowest cost on top
        colors: Any = dict(c=np.asarray(series.costs)[order], norm=norm, cmap=COLORS, edgecolors=GREY, linewidths=0.3)
        place.scatter(x[order], y[order], s=series.size**2, zorder=look["zorder"], **colors)
    else:
        place.plot(
            x,
            y,
            linestyle=LINES[series.line],
            linewidth=1.1 * series.width,
            marker=series.marker or "none",
            markersize=series.size,
            markerfacecolor="white" if series.is_hollow and not series.line else series.color,
            **look,
        )
    if any(series.words):
        place.margins(y=0.14)  # room for the texts
    for where, height, text in zip(x, y, series.words, strict=False):
        above: Any = dict(xytext=(0, 3), textcoords="offset points", ha="center", va="bottom", annotation_clip=False)
        place.annotate(text, (where, height), fontsize=7, color=series.color, **above)


def _draw_axis(place: matplotlib.axes.Axes, which: str, axis: Axis) -> None:
    ticks: Any = place.xaxis if which == "x" else place.yaxis
    ticks.set_label_text(axis.label + (" / 1000" if axis.in_steps else ""))
    if axis.is_log:
        place.set(**{f"{which}scale": "log"})
    if axis.range != (None, None):
        place.set(**{f"{which}lim": axis.range})
    low, high = sorted(getattr(place, f"get_{which}lim")())
    if axis.ticks is not None:
        places, texts = axis.ticks
        is_long = which == "x" and sum(map(len, texts)) > 28
        ticks.set_ticks(places, texts, **(dict(rotation=30, ha="right") if is_long else {}))
        ticks.set_minor_locator(NullLocator())
        if which == "y":
            ticks.set_tick_params(length=0)
            place.spines["left"].set_visible(False)
    elif axis.is_log:
        chosen = log_ticks(low, high)
        ticks.set_major_locator(LogLocator(numticks=7) if chosen is None else FixedLocator(chosen))
        ticks.set_minor_locator(NullLocator())
        if chosen is not None:
            ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    else:
        ticks.set_major_locator(MaxNLocator(4 if which == "x" else 5, steps=[1, 2, 2.5, 5, 10]))
        power = ScalarFormatter(useMathText=True)
        if axis.in_steps:
            ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}"))
        elif not 1e-2 <= max(-low, high) < 1e5:
            ticks.set_major_formatter(FuncFormatter(lambda value, _: f"${power.format_data(value)}$" if value else "0"))


def _norm(scale: Scale) -> Normalize:
    return (LogNorm if scale.is_log else Normalize)(scale.low, scale.high)


def _draw_scale(drawn: matplotlib.figure.Figure, places: list[matplotlib.axes.Axes], scale: Scale) -> None:
    shades = ScalarMappable(_norm(scale), COLORS)
    bar = drawn.colorbar(shades, ax=places, location="top", shrink=0.6, aspect=30, pad=0.02)
    bar.set_label(scale.label)
    bar.outline.set_linewidth(0.6)  # pyright: ignore[reportCallIssue]


def _draw_cells(place: matplotlib.axes.Axes, cells: Cells, norm: Normalize | None) -> None:
    rows, columns = cells.costs.shape
    edges = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
    is_large = cells.costs.size > 400
    place.pcolormesh(*edges, np.ma.masked_invalid(cells.costs), norm=norm, cmap=COLORS, rasterized=is_large)
    for row, column in np.argwhere(cells.failed):
        box: Any = dict(facecolor="white", edgecolor=GREY, hatch="//////" if is_large else "////", lw=0)
        place.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **box))
    for (row, column), text in np.ndenumerate(cells.words):
        is_dark = norm is not None and norm(cells.costs[row, column]) > 0.55
        color = VERMILLION if cells.failed[row, column] else "white" if is_dark else "black"
        box = dict(facecolor="white", edgecolor="none", pad=1.0) if cells.failed[row, column] and text else None
        place.text(column, row, text, ha="center", va="center", fontsize=6.5, color=color, bbox=box)
    if cells.best is not None:
        row, column = cells.best
        place.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=VERMILLION, lw=1.6, zorder=4))
    place.tick_params(length=0)
    place.spines[:].set_visible(False)
