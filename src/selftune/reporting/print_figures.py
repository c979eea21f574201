"""Figures for print: one column wide, in colours for colour-blind readers too."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, ScalarFormatter

from . import datasets
from .statistics import Band

WIDTH = 3.4  # inches: one column


STYLE: Any = {
    # Fonts that come with matplotlib, so that every machine writes the same file.
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
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


_P = ParamSpec("_P")


def styled(draw: Callable[_P, Figure]) -> Callable[_P, Figure]:
    """Draw in the style of selftune, and restore the caller's settings afterwards."""

    @wraps(draw)
    def drawn(*args: _P.args, **kwargs: _P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def files_of(stem: Path) -> list[Path]:
    return [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "pdf")]


def save(figure: Figure, stem: Path) -> list[Path]:
    """Save `stem`.png and `stem`.pdf, without a date in them."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, pdf = files_of(stem)
    with matplotlib.rc_context(STYLE):
        figure.savefig(png, metadata={"Software": None})
        figure.set_layout_engine("none")  # the layout is done; a second layout would take longer than the drawing
        figure.savefig(pdf, metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return [png, pdf]


def stack(rows: int, *, height: float, ratios: tuple[float, ...] | None = None) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, 0.45 + height * rows), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    return figure, list(axes)


def draw_band(axis: Axes, across: Any, made: Band, color: str, label: str | None, **line: Any) -> None:
    across = np.asarray(across)
    axis.plot(across, made.mean, color=color, label=label, **line)
    axis.fill_between(across, made.low, made.high, color=color, alpha=0.25, linewidth=0)


def draw_level(axis: Axes, made: Band, color: str, label: str) -> None:
    axis.axhline(float(made.mean), color=color, linewidth=1.0, label=label)
    if np.isfinite(made.low):
        axis.axhspan(float(made.low), float(made.high), color=color, alpha=0.25, linewidth=0)


def time_axis(axis: Axes, dataset: xr.Dataset) -> None:
    axis.set_xlim(0, datasets.steps(dataset))
    axis.xaxis.set_major_locator(MaxNLocator(4))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}"))
    axis.set_xlabel("step $t$ / 1000")


def legend(figure: Figure, axis: Axes, **options: Any) -> None:
    """One legend for all panels, above the panels."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", **options)


def powers() -> ScalarFormatter:
    made = ScalarFormatter(useMathText=True)
    made.set_powerlimits((-2, 3))
    return made
