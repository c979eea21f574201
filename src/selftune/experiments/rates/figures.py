"""A figure for each finding, as a description. The page shows the finding's title and claim above the figure."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ...reporting import matplotlib_figures
from ...reporting.figure import Axes, Axis, Figure, Rule, Series, banded
from ...reporting.statistics import Band, band
from ...reporting.style import BLUE, GREEN, GREY, PURPLE, SKY, VERMILLION
from .finding import Finding

WIDE = 7.0  # inches: two columns
BLACK = "#000000"
STARTS = {"near": ("start near the optimum", BLUE, "o"), "far": ("start far from the optimum", VERMILLION, "s")}
NAMES = {
    "Σε²": "$∑ε_t^2$",
    "Σε′²": "$∑ε_t'^{2}$",
    "Σ‖ξ−ξ̃‖": r"$∑‖ξ_t-\tilde ξ_t‖$",
    "Σ‖ζ‖/η": "$∑‖ζ_t‖/η$",
    "R_L": "$R^L_η(T)$",
}
POWERS = {0.5: "1/2", 5 / 6: "5/6", 11 / 12: "11/12"}
HORIZON = Axis("$T$", is_log=True)


def draw(finding: Finding, folder: Path) -> list[Path]:
    """Draw the finding's figure as PNG and PDF."""
    return matplotlib_figures.save({finding.name: FIGURES[finding.name](finding)}, folder)


def rates(finding: Finding) -> Figure:
    """Each sum against T with the theory's slope, and a comparison of the fitted slopes with the theory's."""
    data, axes = finding.data, []
    horizons = np.array(data["horizons"])
    for name, by_start in data["sums"].items():
        power, series = data["powers"][name], []
        for start, (label, color, marker) in (STARTS | {"untuned": ("without tuning", GREY, "^")}).items():
            if start in by_start:
                values = np.array(by_start[start])
                series.append(_measured(horizons[: values.shape[1]], band(values), color, label, marker))
        # The theory does not give the constant. Its line is drawn above the data, so that slopes can be compared.
        first = 1.6 * max(np.mean(by_start[start], axis=0)[0] for start in STARTS)
        series.append(_theory(horizons, first * (horizons / horizons[0]) ** power, "slope of the theory"))
        title = f"{NAMES[name]}: slope {data['slopes'][name]['near']['mean']:.2f} $≤$ {POWERS[power]}"
        y = Axis(is_log=True, range=(np.min(by_start["near"]) / 2.5, None))
        axes.append(Axes(series, HORIZON, y, title))
    return Figure("", "", [*axes, _compare(data)], columns=3, width=WIDE, height=2.0, share_x=False, legend_columns=4)


def _compare(data: dict[str, Any]) -> Axes:
    """Fitted slopes with their intervals; bars show the theory's slopes."""
    names, series = list(data["slopes"]), []
    for shift, (start, (_, color, marker)) in zip((-0.12, 0.12), STARTS.items(), strict=True):
        fits = [data["slopes"][name][start] for name in names]
        mean, low, high = ([fit[part] for fit in fits] for part in ("mean", "low", "high"))
        look: dict[str, Any] = dict(low=low, high=high, line="", marker=marker, is_interval_of_x=True)
        series.append(Series(mean, np.arange(len(names)) + shift, color, **look))
    untuned = data["slopes"]["R_L"]["untuned"]["mean"]
    series.append(Series([untuned], [len(names) - 1], GREY, line="", marker="^"))
    for i, name in enumerate(names):
        series.append(Series([data["powers"][name]] * 2, [i - 0.32, i + 0.32], BLACK, width=1.3))
    return Axes(
        series,
        Axis("slope (bar: theory)", range=(0.3, max(1.05, untuned + 0.03))),
        Axis(ticks=(range(len(names)), [NAMES[name] for name in names]), range=(len(names) - 0.5, -0.5)),
        rules=[Rule(x=1, line=":")],
    )


def gradient_errors(finding: Finding) -> Figure:
    """E Σε′² against T, with the theorem's bound and the trivial bound from 𝒜 alone."""
    data = finding.data
    horizons, series = np.array(data["horizons"]), []
    for (name, values), color, marker in zip(data["measured"].items(), (BLUE, SKY, VERMILLION), "oDs", strict=True):
        mean = Band(*(np.array([value[part] for value in values]) for part in ("mean", "low", "high")))
        series.append(_measured(horizons, mean, color, f"{name}, slope {data['slopes'][name]['mean']:.2f}", marker))
    series.append(_theory(horizons, data["bound"], r"Theorem 2: $6\bar ε T ∼ T^{5/6}$"))
    series.append(Series(horizons, data["trivial"], GREY, "trivial: $β_e^2 T$", width=0.8))
    x = Axis("$T$", is_log=True, ticks=(horizons, [f"{steps:,}" for steps in horizons]))
    y = Axis("E $∑_t ε_t'^{2}$", is_log=True)
    return Figure("", "", [Axes(series, x, y)], height=3.25, legend_columns=1)


def gaps(finding: Finding) -> Figure:
    """Errors of the gradient against B; the B that GAPS needs against T; the cost of a step against B."""
    data = finding.data
    horizons, buffers = np.array(data["horizons"]), np.array(data["buffers"])
    errors, levels = [], []
    for j, color, marker in zip(
        (0, len(horizons) // 2, len(horizons) - 1), (BLUE, VERMILLION, GREEN), "osD", strict=True
    ):
        label = f"$T = 10^{{{round(np.log10(horizons[j]))}}}$"
        errors.append(_measured(buffers, band(np.array(data["truncated"])[:, j]), color, label, marker))
        levels.append(Rule(y=float(np.array(data["whole"])[:, j].mean()), color=color, line=":"))
    needed = np.array(data["needed"])
    line = needed.mean() + (np.log(horizons) - np.log(horizons).mean()) / (2 * np.log(1 / data["rho"]))
    timed = np.array(data["timed"])
    costs = [
        Series(timed, data["cost_ratios"], PURPLE, "GAPS", marker="o", size=3),
        Series(timed, np.ones(timed.size), BLUE, "M-GAPS"),
    ]
    title = "GAPS: $‖G'_t - ∇F_t‖$; dotted: M-GAPS"
    axes = [
        Axes(errors, Axis("buffer $B$"), Axis(is_log=True), title, rules=levels),
        Axes(
            [
                _measured(horizons, band(needed), BLUE, "measured", "o"),
                _theory(horizons, line, "ln $T$ / (2 ln $ρ^{-1}$) + $c$"),
            ],
            Axis("$T$, with $η = T^{-1/2}/2$", is_log=True),
            Axis(range=(0, None)),
            "$B$ that GAPS needs",
        ),
        Axes(costs, Axis("buffer $B$"), Axis(range=(0, None)), "time of a step, relative"),
    ]
    return Figure("", "", axes, columns=3, width=WIDE, height=2.3, share_x=False, has_own_legends=True)


def switches(finding: Finding) -> Figure:
    """Time to recover and excess cost against ι; Σε² against T for numbers of switches that grow with T."""
    data = finding.data
    rates, sizes, horizons = (np.array(data[name]) for name in ("rates", "sizes", "horizons"))
    by_rate, by_size = np.array(data["by_rate"]), np.array(data["by_size"])
    by_iota, by_size_of_switch = (
        Axis(label, is_log=True, ticks=(values, [f"{value:g}" for value in values]))
        for label, values in (("$ι$", rates), ("size of the switch", sizes))
    )
    recovery = by_rate[:, :, 0].mean(axis=0)[0] * rates[0] / rates
    error = by_size[:, :, 1].mean(axis=0)[0] * (sizes / sizes[0]) ** 2
    growth, theory = [], []
    for (power, totals), color, marker in zip(data["totals"].items(), (BLUE, GREEN, VERMILLION), "oDs", strict=True):
        values = np.array(totals["squared_error"])
        label = f"$N ∼ T^{{{power}}}$: {data['slopes'][power]['mean']:.2f}"
        growth.append(_measured(horizons, band(values), color, label, marker))
        line = 1.3 * values.mean(axis=0)[0] * (horizons / horizons[0]) ** ((1 + float(Fraction(power))) / 2)
        theory.append(_theory(horizons, line))
    axes = [
        Axes(
            [
                _measured(rates, band(by_rate[:, :, 0]), BLUE, "measured", "o"),
                _theory(rates, 1.5 * recovery, "slope $-1$"),
            ],
            by_iota,
            Axis(is_log=True),
            "steps to recover from a switch",
        ),
        Axes(
            [_measured(rates, band(by_rate[:, :, 2]), BLUE, "measured", "o")],
            by_iota,
            Axis(range=(0, None)),
            "excess cost of a switch",
        ),
        Axes(
            [
                _measured(sizes, band(by_size[:, :, 1]), BLUE, "measured", "o"),
                _theory(sizes, 1.5 * error, "slope 2"),
            ],
            by_size_of_switch,
            Axis(is_log=True),
            "$∑ε_t^2$ of a switch",
        ),
        Axes(
            [*growth, *theory],
            HORIZON,
            Axis(is_log=True),
            "$∑ε_t^2$ with $N$ switches and its slope; dashed: $(1+α)/2$",
        ),
    ]
    return Figure("", "", axes, columns=2, width=WIDE, height=2.1, share_x=False, has_own_legends=True)


def adversary(finding: Finding) -> Figure:
    """The share of each bound that the adversary reaches, against ε; and where Theorem 1 promises its conclusion."""
    data = finding.data
    epsilon = np.array(data["epsilon"])
    low, high = epsilon.min() / 2, epsilon.max() * 1.5
    parts = {
        "distance": (r"$∑‖ξ_t-\tilde ξ_t‖$", BLUE, "o"),
        "perturbation": ("$∑‖ζ_t‖$", VERMILLION, "s"),
        "largest_perturbation": ("max$_t‖ζ_t‖$", GREEN, "D"),
    }
    series = [
        Series(epsilon, data[part], color, label, marker=marker) for part, (label, color, marker) in parts.items()
    ]
    series.append(_theory(np.array([low, high]), np.ones(2), "bound"))
    axes = Axes(
        series,
        Axis("mismatch $ϵ$ that the adversary may use", is_log=True, range=(low, high)),
        Axis("reached share of the bound", is_log=True),
        rules=[Rule(x=low, end=data["allowed"][0], color=SKY, label="Theorem 1 allows this $ϵ$")],
    )
    return Figure("", "", [axes], height=2.95, legend_columns=2)


def _measured(x: np.ndarray, mean: Band, color: str, label: str, marker: str) -> Series:
    return banded(x, mean, color, label, marker=marker, size=3)


def _theory(x: np.ndarray, y: Any, label: str = "") -> Series:
    return Series(x, y, BLACK, label, line="--", width=0.8)


FIGURES: dict[str, Callable[[Finding], Figure]] = {
    "rates": rates,
    "gradient-errors": gradient_errors,
    "gaps": gaps,
    "switches": switches,
    "adversary": adversary,
}
