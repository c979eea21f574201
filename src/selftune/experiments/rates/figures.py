"""A figure for each finding, in the style of `selftune.experiments.paper.figures`."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ...reporting.print_figures import WIDTH, draw_band, legend, save, styled
from ...reporting.statistics import Band, band
from ...reporting.style import BLUE, GREEN, GREY, PURPLE, SKY, VERMILLION
from .finding import Finding

WIDE = 7.0  # inches: two columns
THEORY: dict[str, Any] = dict(color="black", linestyle=(0, (4, 1.5)), linewidth=0.9)
STARTS = {"near": ("start near the optimum", BLUE, "o"), "far": ("start far from the optimum", VERMILLION, "s")}
NAMES = {
    "Σε²": r"$\sum\varepsilon_t^2$",
    "Σε′²": r"$\sum\varepsilon_t'^{\,2}$",
    "Σ‖ξ−ξ̃‖": r"$\sum\Vert\xi_t-\tilde\xi_t\Vert$",
    "Σ‖ζ‖/η": r"$\sum\Vert\zeta_t\Vert/\eta$",
    "R_L": r"$R^L_\eta(T)$",
}
POWERS = {0.5: "1/2", 5 / 6: "5/6", 11 / 12: "11/12"}


def draw(finding: Finding, folder: Path) -> list[Path]:
    """Draw the finding's figure as PNG and PDF."""
    return save(FIGURES[finding.name](finding), Path(folder) / finding.name)


@styled
def rates(finding: Finding) -> Figure:
    """Each sum against T with the theory's slope, and a comparison of the fitted slopes with the theory's."""
    data = finding.data
    horizons = np.array(data["horizons"])
    figure = Figure(figsize=(WIDE, 4.3), layout="constrained")
    axes = figure.subplots(2, 3)
    for axis, (name, by_start) in zip(axes.flat, data["sums"].items(), strict=False):
        near, power = np.array(by_start["near"]), data["powers"][name]
        # The theory does not give the constant. Its line is drawn above the data, so that slopes can be compared.
        line = 1.6 * max(np.mean(by_start[start], axis=0)[0] for start in STARTS)
        axis.plot(horizons, line * (horizons / horizons[0]) ** power, label="slope of the theory", **THEORY)
        for start, (label, color, marker) in STARTS.items():
            values = np.array(by_start[start])
            draw_band(axis, horizons[: values.shape[1]], band(values), color, label, marker=marker, markersize=3)
        if "untuned" in by_start:
            values = np.array(by_start["untuned"])
            draw_band(axis, horizons[: values.shape[1]], band(values), GREY, "without tuning", marker="^", markersize=3)
        axis.set_title(f"{NAMES[name]}: {_slopes(data['slopes'][name], power)}", loc="left", pad=4)
        _log_log(axis)
        axis.set_ylim(bottom=near.min() / 2.5)
    _compare(axes[1, 2], data)
    for axis in axes[1, :2]:
        axis.set_xlabel("$T$")
    axes[0, 2].set_xlabel("$T$")
    figure.legend(*axes[1, 1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _slopes(fits: dict[str, Any], power: float) -> str:
    return rf"slope {fits['near']['mean']:.2f} $\leq$ {POWERS[power]}"


def _compare(axis: Axes, data: dict[str, Any]) -> None:
    """Fitted slopes with their intervals; bars show the theory's slopes."""
    names = list(data["slopes"])
    for i, name in enumerate(names):
        axis.plot([data["powers"][name]] * 2, [i - 0.32, i + 0.32], color="black", linewidth=1.4)
        for shift, (start, (_, color, marker)) in zip((-0.12, 0.12), STARTS.items(), strict=True):
            fit = data["slopes"][name][start]
            axis.plot([fit["low"], fit["high"]], [i + shift] * 2, color=color, linewidth=1.2)
            axis.plot(fit["mean"], i + shift, marker, color=color, markersize=3.5)
    untuned = data["slopes"]["R_L"]["untuned"]["mean"]
    axis.plot(untuned, len(names) - 1, "^", color=GREY, markersize=3.5)
    axis.axvline(1, color=GREY, linewidth=0.6, linestyle=":")
    axis.set_yticks(range(len(names)), [NAMES[name] for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlim(0.3, max(1.05, untuned + 0.03))
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.set_xlabel("slope (bar: theory)")


@styled
def gradient_errors(finding: Finding) -> Figure:
    """E Σε′² against T, with the theorem's bound and the trivial bound from 𝒜 alone."""
    data = finding.data
    horizons = np.array(data["horizons"])
    figure = Figure(figsize=(WIDTH, 3.7), layout="constrained")
    axis = figure.subplots()
    axis.plot(horizons, data["trivial"], color=GREY, linewidth=0.9, label=r"trivial: $\beta_e^2 T$")
    axis.plot(horizons, data["bound"], label=r"Theorem 2: $6\bar\epsilon T \sim T^{5/6}$", **THEORY)
    shown = zip(data["measured"].items(), (BLUE, SKY, VERMILLION), "oDs", strict=True)
    for (name, values), color, marker in shown:
        made = Band(*(np.array([one[part] for one in values]) for part in ("mean", "low", "high")))
        label = f"{name}, slope {data['slopes'][name]['mean']:.2f}"
        draw_band(axis, horizons, made, color, label, marker=marker, markersize=3.5)
    _log_log(axis)
    axis.set_xlabel("$T$")
    axis.set_xticks(horizons, [f"{steps:,}" for steps in horizons])
    axis.set_ylabel(r"$\mathrm{E}\,\sum_t \varepsilon_t'^{\,2}$")
    legend(figure, axis, ncols=1)
    return figure


@styled
def gaps(finding: Finding) -> Figure:
    """Errors of the gradient against B; the B that GAPS needs against T; the cost of a step against B."""
    data = finding.data
    horizons, buffers = np.array(data["horizons"]), np.array(data["buffers"])
    figure = Figure(figsize=(WIDE, 2.6), layout="constrained")
    error, enough, cost = figure.subplots(1, 3)
    shown = [0, len(horizons) // 2, len(horizons) - 1]
    for j, color, marker in zip(shown, (BLUE, VERMILLION, GREEN), "osD", strict=True):
        truncated, whole = np.array(data["truncated"])[:, j], np.array(data["whole"])[:, j]
        label = rf"$T = 10^{{{round(np.log10(horizons[j]))}}}$"
        draw_band(error, buffers, band(truncated), color, label, marker=marker, markersize=3)
        error.axhline(whole.mean(), color=color, linestyle=":", linewidth=0.9)
    error.set_yscale("log")
    error.set_xlabel("buffer $B$")
    error.set_title(r"GAPS: $\Vert G'_t - \nabla F_t \Vert$; dotted: M-GAPS", loc="left", pad=4)
    error.legend()
    measured = np.array(data["needed"])
    draw_band(enough, horizons, band(measured), BLUE, "measured", marker="o", markersize=3)
    slope = 1 / (2 * np.log(1 / data["rho"]))
    line = measured.mean() + slope * (np.log(horizons) - np.log(horizons).mean())
    enough.plot(horizons, line, label=r"$\ln T\, /\, (2 \ln \rho^{-1}) + c$", **THEORY)
    enough.set_xscale("log")
    enough.set_ylim(bottom=0)
    enough.set_xlabel(r"$T$, with $\eta = T^{-1/2}/2$")
    enough.set_title("$B$ that GAPS needs", loc="left", pad=4)
    enough.legend(loc="lower right")
    cost.plot(data["timed"], data["cost_ratios"], color=PURPLE, marker="o", markersize=3, label="GAPS")
    cost.axhline(1, color=BLUE, linewidth=1.1, label="M-GAPS")
    cost.set_ylim(bottom=0)
    cost.set_xlabel("buffer $B$")
    cost.set_title("time of a step, relative", loc="left", pad=4)
    cost.legend(loc="upper left")
    return figure


@styled
def switches(finding: Finding) -> Figure:
    """Time to recover and excess cost against ι; Σε² against T for numbers of switches that grow with T."""
    data = finding.data
    rates, sizes, horizons = (np.array(data[name]) for name in ("rates", "sizes", "horizons"))
    by_rate, by_size = np.array(data["by_rate"]), np.array(data["by_size"])
    figure = Figure(figsize=(WIDE, 4.4), layout="constrained")
    (time, cost), (error, growth) = figure.subplots(2, 2)
    draw_band(time, rates, band(by_rate[:, :, 0]), BLUE, "measured", marker="o", markersize=3)
    mean = by_rate[:, :, 0].mean(axis=0)
    time.plot(rates, 1.5 * mean[0] * rates[0] / rates, label=r"slope $-1$", **THEORY)
    time.set_title("steps to recover from a switch", loc="left", pad=4)
    draw_band(cost, rates, band(by_rate[:, :, 2]), BLUE, None, marker="o", markersize=3)
    cost.set_title("excess cost of a switch", loc="left", pad=4)
    draw_band(error, sizes, band(by_size[:, :, 1]), BLUE, "measured", marker="o", markersize=3)
    mean = by_size[:, :, 1].mean(axis=0)
    error.plot(sizes, 1.5 * mean[0] * (sizes / sizes[0]) ** 2, label="slope 2", **THEORY)
    error.set_title(r"$\sum\varepsilon_t^2$ of a switch", loc="left", pad=4)
    for axis, label in ((time, r"$\iota$"), (cost, r"$\iota$"), (error, "size of the switch"), (growth, "$T$")):
        _log_log(axis)
        axis.set_xlabel(label)
    for axis, ticks in ((time, rates), (cost, rates), (error, sizes)):
        axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
        axis.minorticks_off()
    cost.set_yscale("linear")
    cost.set_ylim(bottom=0)
    shown = zip(data["totals"].items(), (BLUE, GREEN, VERMILLION), "oDs", strict=True)
    for (power, totals), color, marker in shown:
        values = np.array(totals["squared_error"])
        label = rf"$N \sim T^{{{power}}}$: slope {data['slopes'][power]['mean']:.2f}"
        draw_band(growth, horizons, band(values), color, label, marker=marker, markersize=3)
        line = 1.3 * values.mean(axis=0)[0] * (horizons / horizons[0]) ** ((1 + float(Fraction(power))) / 2)
        growth.plot(horizons, line, **THEORY)
    growth.set_title(r"$\sum\varepsilon_t^2$ with $N$ switches; dashed: $(1+\alpha)/2$", loc="left", pad=4)
    for axis in (time, error, growth):
        axis.legend()
    return figure


@styled
def adversary(finding: Finding) -> Figure:
    """The share of each bound that the adversary reaches, against ε; and where Theorem 1 promises its conclusion."""
    data = finding.data
    epsilon = np.array(data["epsilon"])
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axis = figure.subplots()
    axis.axvspan(
        epsilon.min() / 2, data["allowed"][0], color=SKY, alpha=0.2, linewidth=0, label="Theorem 1 allows this ε"
    )
    axis.axhline(1, label="bound", **THEORY)
    shown = {
        "distance": (r"$\sum\Vert\xi_t-\tilde\xi_t\Vert$", BLUE, "o"),
        "perturbation": (r"$\sum\Vert\zeta_t\Vert$", VERMILLION, "s"),
        "largest_perturbation": (r"$\max_t\Vert\zeta_t\Vert$", GREEN, "D"),
    }
    for part, (label, color, marker) in shown.items():
        axis.plot(epsilon, data[part], color=color, marker=marker, markersize=3.5, label=label)
    _log_log(axis)
    axis.set_xlim(epsilon.min() / 2, epsilon.max() * 1.5)
    axis.set_xlabel(r"mismatch $\epsilon$ that the adversary may use")
    axis.set_ylabel("reached share of the bound")
    legend(figure, axis, ncols=2)
    return figure


def _log_log(axis: Axes) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(LogLocator(numticks=6))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_minor_formatter(NullFormatter())


FIGURES: dict[str, Callable[[Finding], Figure]] = {
    "rates": rates,
    "gradient-errors": gradient_errors,
    "gaps": gaps,
    "switches": switches,
    "adversary": adversary,
}
