"""The figures of the paper's simulation appendix for print: one column wide, in colours for colour-blind readers too.

Each function takes the dataset that `selftune reproduce` stores and returns a matplotlib figure; `draw_all` saves them.
Bands are 95 % bootstrap intervals of the mean over seeds (`selftune.bands`).
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ...foundation.errors import ArgumentError
from ...reporting import datasets, statistics
from ...reporting.print_figures import (
    WIDTH,
    draw_band,
    draw_level,
    files_of,
    legend,
    powers,
    save,
    stack,
    styled,
    time_axis,
)
from ...reporting.style import BLUE, GREEN, GREY, PURPLE, VERMILLION
from . import quantities
from .quantities import COLORS, FIXED, NOISE, OURS

MODEL_ERROR = r"|\phi(x)\hat a - \phi(x)a^*|"


def draw_all(
    dataset: xr.Dataset,
    folder: Path,
    *,
    certificates: Mapping[str, dict] | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> list[Path]:
    """Draw every figure as PNG and PDF into `folder`, and return the files in the order of the figures.

    The files depend only on the data, not on date or machine. One figure of bounds is drawn for each certificate;
    `certificates` are by the form of the noise. `progress` is called with (done, total), in files.
    """
    quantities.check(dataset)
    dataset = dataset.load()
    draw: dict[str, Callable[[], Figure]] = {name: partial(one, dataset) for name, one in _figures().items()}
    for noise, certificate in (certificates or {}).items():
        draw[f"bounds-{noise}"] = partial(bounds, certificate, quantities.NOISE.get(noise, noise))
    made: list[Path] = []
    for name, one in draw.items():
        made += save(one(), Path(folder) / name)
        if progress is not None:
            progress(len(made), 2 * len(draw))
    return made


def files(folder: Path, certificates: Mapping[str, dict] | None = None) -> list[Path]:
    """The files that `draw_all` writes."""
    names = [*_figures(), *(f"bounds-{noise}" for noise in certificates or {})]
    return [path for name in names for path in files_of(Path(folder) / name)]


def _figures() -> dict[str, Callable[[xr.Dataset], Figure]]:
    return {
        "parameters": parameters,
        "gain": gain_traces,
        "model-error": model_error,
        "tracking-error": tracking_error,
        "regret-difference": regret_difference,
        "local-regret": local_regret,
        "overview": overview,
    }


@styled
def parameters(dataset: xr.Dataset, *, seed: int | None = None, gain: float | None = None) -> Figure:
    """a* and â of M-GAPS's estimator on one seed, and below it the distance between them over all seeds.

    Every seed has its own a*, so only the distance has a meaningful mean.
    """
    data, gain = _prepared(dataset, gain)
    seed = int(data.seed[0]) if seed is None else seed
    ours = datasets.thin(data.sel(algorithm=OURS, gain=gain))
    one = ours.sel(seed=seed, noise=data.noise.values[0])
    figure, axes = stack(2, height=1.55, ratios=(1.25, 1.0))
    for feature, color in zip(data.feature.values, (BLUE, VERMILLION, GREEN), strict=False):
        name = int(feature) + 1
        axes[0].plot(ours.time, one.a_hat.sel(feature=feature), color=color, label=rf"$\hat a_{name}$")
        truth = one.a_star.sel(feature=feature)
        # Wide and pale, so that both lines are visible where â equals a*.
        axes[0].plot(ours.time, truth, color=color, linewidth=3.5, alpha=0.35, zorder=1, label=rf"$a^*_{name}$")
    axes[0].set_ylabel(r"$a^*$, $\hat a$")
    axes[0].set_ylim(-0.29, 0.29)
    axes[0].set_title(f"seed {seed}, {NOISE.get(str(one.noise.values), one.noise.values)}", loc="left", pad=3)
    legend(figure, axes[0], ncols=3)
    gap = quantities.distance(ours)
    for noise, color in zip(data.noise.values, (BLUE, GREEN), strict=False):
        draw_band(axes[1], ours.time, statistics.band(gap.sel(noise=noise)), color, str(NOISE.get(noise, noise)))
    axes[1].set_ylabel(r"$\|\hat a - a^*\|$")
    axes[1].set_ylim(bottom=0)
    axes[1].legend(ncols=2, loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0)
    for axis in axes:
        _switches(axis, data)
    time_axis(axes[-1], data)
    return figure


@styled
def gain_traces(dataset: xr.Dataset) -> Figure:
    """θ of M-GAPS from each start, the fixed gain at each start, and the best static gain in hindsight."""
    data, _ = _prepared(dataset, None)
    thinned = datasets.thin(data, 300)
    figure, axes = stack(data.sizes["noise"], height=1.75)
    for axis, noise in zip(axes, data.noise.values, strict=True):
        best = statistics.band(data.static_gain.sel(noise=noise))
        draw_level(axis, best, GREEN, "best static gain")
        for i, gain in enumerate(data.gain.values):
            axis.axhline(gain, color=VERMILLION, linestyle=(0, (4, 1.5)), linewidth=0.9, label=None if i else FIXED)
            theta = thinned.theta.sel(noise=noise, gain=gain, algorithm=OURS)
            draw_band(axis, thinned.time, statistics.band(theta), BLUE, None if i else OURS)
        axis.set_ylabel(r"$\theta$")
        axis.set_ylim(bottom=0)
        _title(axis, noise)
    legend(figure, axes[0], ncols=3)
    time_axis(axes[-1], data)
    return figure


@styled
def model_error(dataset: xr.Dataset, *, gain: float | None = None) -> Figure:
    """|φ(x)â − φ(x)a*|, mean over seeds. At the dotted lines a new a* is drawn."""
    data, gain = _prepared(dataset, gain)
    thinned = datasets.thin(data)
    figure, axes = stack(data.sizes["noise"], height=1.6)
    for axis, noise in zip(axes, data.noise.values, strict=True):
        for name in (FIXED, OURS):
            error = abs(thinned.model_error.sel(noise=noise, gain=gain, algorithm=name))
            draw_band(axis, thinned.time, statistics.band(error), COLORS[name], name)
        axis.set_yscale("log")
        axis.set_ylabel(f"${MODEL_ERROR}$")
        _switches(axis, data)
        _title(axis, noise)
    legend(figure, axes[0], ncols=2, title=rf"from $\theta_0 = \theta_a = {gain:.3g}$")
    time_axis(axes[-1], data)
    return figure


@styled
def tracking_error(dataset: xr.Dataset, *, seed: int | None = None, gain: float | None = None) -> Figure:
    """x on one seed, with its root mean square over all seeds and recorded steps in the title.

    The sign of x differs between seeds, so a mean of x over seeds has no meaning.
    """
    data, gain = _prepared(dataset, gain)
    seed = int(data.seed[0]) if seed is None else seed
    thinned = datasets.thin(data)
    figure, axes = stack(data.sizes["noise"], height=1.7)
    for axis, noise in zip(axes, data.noise.values, strict=True):
        sizes = []
        for name in (FIXED, OURS):
            x = thinned.x.sel(noise=noise, gain=gain, algorithm=name, seed=seed)
            axis.plot(thinned.time, x, color=COLORS[name], linewidth=0.6, label=name)
            sizes.append(
                f"{name} {quantities.root_mean_square(data.x.sel(noise=noise, gain=gain, algorithm=name)):.3g}"
            )
        axis.set_ylabel("$x$")
        _switches(axis, data)
        title = f"{NOISE.get(noise, noise)}\nRMS of all seeds: {', '.join(sizes)}"
        axis.set_title(title, loc="left", pad=3, linespacing=1.0)
    legend(figure, axes[0], ncols=2, title=rf"seed {seed}, from $\theta_0 = \theta_a = {gain:.3g}$")
    time_axis(axes[-1], data)
    return figure


@styled
def regret_difference(dataset: xr.Dataset) -> Figure:
    """Cumulative cost of M-GAPS minus the cost of the fixed gain at its start; below zero M-GAPS has the lower cost."""
    data, _ = _prepared(dataset, None)
    difference = datasets.thin(quantities.regret_difference(data), 300)
    rows, columns = data.sizes["gain"], data.sizes["noise"]
    figure = Figure(figsize=(WIDTH, 0.45 + 1.05 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for row, gain in zip(axes, data.gain.values, strict=True):
        for axis, noise in zip(row, data.noise.values, strict=True):
            draw_band(axis, difference.time, statistics.band(difference.sel(noise=noise, gain=gain)), BLUE, None)
            axis.axhline(0, color=GREY, linewidth=0.6)
            axis.yaxis.set_major_locator(MaxNLocator(3))
            axis.yaxis.set_major_formatter(powers())
        row[0].set_ylabel(rf"$\theta_0 = {gain:.3g}$")
    for axis, noise in zip(axes[0], data.noise.values, strict=True):
        # Above the power of ten at the end of the axis.
        axis.set_title(str(NOISE.get(noise, noise)), loc="left", y=1.26, pad=0)
    for axis in axes[-1]:
        time_axis(axis, data)
    figure.supylabel("cumulative cost, M-GAPS minus fixed gain", fontsize=9)
    return figure


@styled
def local_regret(dataset: xr.Dataset) -> Figure:
    r"""$R^L_\eta(T)$ of M-GAPS against T, with the fitted slope, and a line of slope 1 (no progress)."""
    data, _ = _prepared(dataset, None)
    regret, slope = datasets.present(data.local_regret), quantities.slopes(data)
    horizon = regret.horizon.values
    figure, axes = stack(data.sizes["noise"], height=2.0)
    marks = "osD^vPX*"
    for axis, noise in zip(axes, data.noise.values, strict=True):
        lowest = np.inf
        for i, gain in enumerate(data.gain.values):
            made = statistics.band(regret.sel(noise=noise, gain=gain))
            lowest = min(lowest, float(made.mean[0]))
            text = rf"$\theta_0 = {gain:.3g}$: {statistics.interval_text(slope.sel(noise=noise, gain=gain), '.2f')}"
            color = (BLUE, VERMILLION, GREEN, PURPLE)[i % 4]
            draw_band(axis, horizon, made, color, text, marker=marks[i % len(marks)], markersize=3)
        reference = lowest / 2 * horizon / horizon[0]
        axis.plot(horizon, reference, color=GREY, linestyle=(0, (4, 1.5)), linewidth=0.9, label="slope 1")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylabel(r"$R^L_\eta(T)$")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.legend(
            title=f"{NOISE.get(noise, noise)}, slopes with 95 % intervals",
            title_fontsize=9,
            alignment="left",
            ncols=2,
            loc="lower left",
            bbox_to_anchor=(-0.16, 1.0),
            borderaxespad=0,
        )
    axes[-1].set_xlabel("$T$")
    return figure


@styled
def overview(dataset: xr.Dataset) -> Figure:
    """Total cost of every algorithm from every start / total cost of the best static gain in hindsight."""
    data, _ = _prepared(dataset, None)
    figure = Figure(figsize=(WIDTH, 0.75 + 0.36 * data.sizes["gain"] * data.sizes["noise"]), layout="constrained")
    axes = figure.subplots(data.sizes["noise"], 1, sharex=True, squeeze=False)[:, 0]
    rows = np.arange(data.sizes["gain"])
    for axis, (noise, shown) in zip(axes, quantities.standings(data).items(), strict=True):
        axis.axvline(1, color=GREY, linewidth=0.8)
        for i, (name, costs) in enumerate(shown.items()):
            mean, low, high = costs.to_static.transpose("band", "gain").values
            place = rows + 0.17 * (i - (len(shown) - 1) / 2)
            color = quantities.color(name, i)
            axis.hlines(place, low, high, color=color, linewidth=1.2)
            axis.plot(mean, place, "osD^vPX*"[i % 8], color=color, markersize=3.5, label=name)
        axis.set_xscale("log")
        axis.set_yticks(rows, [rf"$\theta_0 = {gain:.3g}$" for gain in data.gain.values])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        _title(axis, noise)
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    axes[-1].set_xlabel("total cost / total cost of the best static gain")
    legend(figure, axes[-1], ncols=2)
    return figure


@styled
def bounds(certificate: dict, title: str = "") -> Figure:
    """The measured value and the bound of each inequality of the theory; hollow squares are vacuous bounds."""
    rows = quantities.inequalities(certificate)
    figure = Figure(figsize=(WIDTH, 0.85 + 0.26 * len(rows)), layout="constrained")
    axis = figure.subplots()
    left, right = quantities.edges(rows)
    for i, row in enumerate(rows):
        measured, bound = quantities.placeable(row["measured"]), quantities.placeable(row["bound"])
        start, end = measured or left, right if bound is None else bound or left
        if measured is not None:
            dotted = measured == 0 or bound is None
            axis.plot([start, end], [i, i], color=GREY, linewidth=1, linestyle=":" if dotted else "-", zorder=1)
            axis.plot(start, i, "o" if measured else "<", color=BLUE, markersize=4.5)
        if bound is not None:
            axis.plot(end, i, **_square(quantities.verdict(row)))
        elif measured is not None:
            axis.plot(end, i, ">", color=GREY, markersize=4.5)
    axis.set_xscale("log")
    axis.set_yticks(range(len(rows)), [str(row["name"]) for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.set_xlabel("value")
    axis.set_title(title)
    axis.plot([], [], "o", color=BLUE, markersize=4.5, label="measured")
    for kind in [kind for kind in quantities.VERDICTS if kind in map(quantities.verdict, rows)]:
        axis.plot([], [], label=f"bound, {kind}", **_square(kind))
    legend(figure, axis, ncols=2)
    return figure


def _square(verdict: str) -> dict[str, Any]:
    """The marker of a bound; hollow if the bound is vacuous."""
    color = quantities.VERDICTS[verdict]
    fill = "white" if verdict == "vacuous" else color
    return dict(marker="s", linestyle="none", color=color, markerfacecolor=fill, markersize=4.5)


def _prepared(dataset: xr.Dataset, gain: float | None) -> tuple[xr.Dataset, float]:
    """The seeds without failed runs, and the start to show, by default the start nearest to 1."""
    quantities.check(dataset)
    data, _ = datasets.usable(dataset)
    gain = quantities.start(data) if gain is None else gain
    if gain not in data.gain.values:
        raise ArgumentError("gain", f"one of {[float(one) for one in data.gain.values]}", f"{gain!r}")
    return data, gain


def _switches(axis: Axes, dataset: xr.Dataset) -> None:
    for step in quantities.switches(dataset):
        axis.axvline(step, color=GREY, linestyle=":", linewidth=0.7, zorder=0)


def _title(axis: Axes, noise: Any) -> None:
    axis.set_title(str(NOISE.get(noise, noise)), loc="left", pad=3)
