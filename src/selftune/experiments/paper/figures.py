"""The figures of the paper's simulation appendix, and of the regret and the theory's bounds.

Each function takes the dataset that `selftune reproduce` stores and returns a description (`reporting.figure`), which
is drawn for print and for the page. Bands are 95 % bootstrap intervals of the mean over seeds (`selftune.bands`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ...reporting import datasets, matplotlib_figures, statistics
from ...reporting.figure import MARKERS, Axes, Axis, Figure, Rule, Series, banded, literal, ranking
from ...reporting.style import BLUE, GREEN, GREY, PALETTE, VERMILLION
from . import quantities
from .quantities import EXACT, FIXED, NOISE, OURS


def draw_all(
    dataset: xr.Dataset,
    folder: Path,
    *,
    certificates: Mapping[str, dict] | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> list[Path]:
    """Draw every figure as PNG and PDF into `folder`, and return the files in the order of the figures.

    One figure of bounds is drawn for each certificate; `certificates` are by the form of the noise.
    """
    figures = make_figures(dataset.load()) | all_bounds(certificates or {})
    return matplotlib_figures.save(figures, folder, progress=progress)


def files(folder: Path, certificates: Mapping[str, dict] | None = None) -> list[Path]:
    """The files that `draw_all` writes."""
    names = [*FIGURES, *map(_bounds_name, certificates or {})]
    return [path for name in names for path in matplotlib_figures.files_of(Path(folder) / name)]


def make_figures(dataset: xr.Dataset) -> dict[str, Figure]:
    """The figures by name, in the order of the page. They leave out the seeds with a failed run."""
    quantities.check(dataset)
    data, _ = datasets.usable(dataset)
    return {name: describe(data) for name, describe in FIGURES.items()}


def all_bounds(certificates: Mapping[str, dict]) -> dict[str, Figure]:
    return {_bounds_name(noise): bounds(certificate, noise) for noise, certificate in certificates.items()}


def _bounds_name(noise: str) -> str:
    """The name of a figure, for its files and for the id of its element: a stored certificate may have any key."""
    return f"bounds-{re.sub(r'[^0-9A-Za-z-]+', '_', noise)}"


def overview(data: xr.Dataset) -> Figure:
    """Total cost of every algorithm from every start / total cost of the best static gain in hindsight."""
    axes = []
    for noise, costs in quantities.standings(data).items():
        rows = {
            f"$θ_0 = {start:.3g}$": {
                name: (statistics.Band(*by_start.to_static.sel(gain=start).values), 0)
                for name, by_start in costs.items()
            }
            for start in data.gain.values
        }
        colors = {name: quantities.color(name, i) for i, name in enumerate(costs)}
        about = "total cost relative to the best static gain,"
        look: dict[str, Any] = dict(title=NOISE.get(noise, noise), about=about, rules=[Rule(x=1)])
        label = "total cost / total cost of the best static gain"
        axes.append(ranking(label, rows, colors, data.sizes["seed"], **look))
    return Figure(
        "Cost against the best static gain",
        "Total cost of each algorithm from each start, as a multiple of the cost of the best static gain in hindsight. "
        "Dots are means of ratios paired by seed; whiskers are 95 % intervals. With the noise inside Δ(…), the noise "
        f"is Δ times weaker and the gradient $Δ^2$ times smaller. {quantities.RESCALED} compensates with its learning "
        "rate.",
        axes,
        height=0.15 + 0.36 * data.sizes["gain"],
        legend_columns=2,
    )


def parameters(data: xr.Dataset) -> Figure:
    """a* and â of M-GAPS's estimator on one seed, and the distance between them over all seeds.

    Every seed has its own a*, so only the distance has a meaningful mean.
    """
    ours = datasets.thin(data.sel(algorithm=OURS, gain=quantities.start(data)))
    first, noise = ours.isel(seed=0, noise=0), str(data.noise.values[0])
    estimates, truths = [], []
    for feature, color in zip(data.feature.values, (BLUE, VERMILLION, GREEN), strict=False):
        index, truth = int(feature) + 1, first.a_star.sel(feature=feature)
        estimates.append(Series(ours.time.values, first.a_hat.sel(feature=feature), color, rf"$\hat a_{index}$"))
        # Wide and pale, so that both lines are visible where â equals a*.
        truths.append(Series(ours.time.values, truth, color, f"$a^*_{index}$", width=3.2, opacity=0.35))
    gap, rules = quantities.distance(ours), _switches(data)
    distances = [
        banded(ours.time, statistics.band(gap.sel(noise=noise)), color, str(NOISE.get(noise, noise)))
        for noise, color in zip(data.noise.values, (BLUE, GREEN), strict=False)
    ]
    return Figure(
        r"Parameters: $a^*$ and $\hat a$",
        r"One seed: $a^*$ (wide and pale) has a new value in each period, and $\hat a$ follows. All seeds: the "
        r"distance. $\hat a$ need not reach $a^*$. It only has to predict $φ(x)a^*$ on the states that occur.",
        [
            Axes(
                [series for pair in zip(estimates, truths, strict=True) for series in pair],
                _time(data),
                Axis(r"$a^*$, $\hat a$"),
                f"seed {int(first.seed)}, {NOISE.get(noise, noise)}",
                about="traces of a* and â,",
                rules=rules,
            ),
            Axes(
                distances,
                _time(data),
                Axis(r"$‖\hat a - a^*‖$", range=(0, None)),
                "all seeds",
                about="distance of â from a* over time,",
                rules=rules,
            ),
        ],
        has_own_legends=True,
    )


def gain(data: xr.Dataset) -> Figure:
    """θ of M-GAPS from each start, the fixed gain at each start, and the best static gain in hindsight."""
    thinned, ends = datasets.thin(data, 300), np.array([0, datasets.steps(data)])

    def series(noise: Any) -> list[Series]:
        ours, fixed = [], []
        for start in data.gain.values:
            theta = statistics.band(thinned.theta.sel(noise=noise, gain=start, algorithm=OURS))
            ours.append(banded(thinned.time, theta, BLUE, OURS, hover=f"{OURS} from {start:.3g}"))
            fixed.append(Series(ends, np.full(2, start), VERMILLION, FIXED, line="--"))
        best = (np.full(2, part) for part in statistics.band(data.static_gain.sel(noise=noise)))
        return [*ours, *fixed, banded(ends, statistics.Band(*best), GREEN, "best static gain")]

    return Figure(
        "Gain: $θ$",
        "M-GAPS from each start, the fixed gain at each start (dashed), and the best static gain in hindsight.",
        _by_noise(data, series, Axis("$θ$", range=(0, None)), "the gain over time,"),
    )


def model_error(data: xr.Dataset) -> Figure:
    """|φ(x)â − φ(x)a*|, mean over seeds."""
    start, thinned = quantities.start(data), datasets.thin(data)

    def series(noise: Any) -> list[Series]:
        errors = abs(thinned.model_error.sel(noise=noise, gain=start))
        return [
            banded(thinned.time, statistics.band(errors.sel(algorithm=name)), color, name, on_request=name not in MAIN)
            for name, color in _algorithms(data)
            if name != EXACT  # the exact model has no model error
        ]

    return Figure(
        r"Model error: $φ(x)\hat a - φ(x)a^*$",
        f"The absolute value, mean over seeds, {_from(start)}. At the dotted lines $a^*$ changes.",
        _by_noise(
            data, series, Axis(r"$|φ(x)\hat a - φ(x)a^*|$", is_log=True), "size of the model error,", _switches(data)
        ),
        legend=_from(start),
    )


def tracking_error(data: xr.Dataset) -> Figure:
    """x on one seed, with its root mean square over all seeds and recorded steps.

    The sign of x differs between seeds, so a mean of x over seeds has no meaning.
    """
    start, thinned, seed = quantities.start(data), datasets.thin(data), int(data.seed[0])

    def series(noise: Any) -> list[Series]:
        lines = []
        for name, color in _algorithms(data):
            of = dict(noise=noise, gain=start, algorithm=name)
            label = f"{name} ({quantities.root_mean_square(data.x.sel(of)):.3g})"
            look: dict[str, Any] = dict(width=0.6, on_request=name not in MAIN)
            lines.append(Series(thinned.time.values, thinned.x.sel(of).isel(seed=0), color, label, **look))
        return lines

    return Figure(
        "Tracking error: $x$",
        f"On seed {seed}, {_from(start)}. In brackets: the root mean square over all seeds and steps.",
        _by_noise(
            data, series, Axis("$x$"), "x on one seed,", _switches(data), title="{}, RMS of all seeds in brackets"
        ),
        legend=f"seed {seed}, {_from(start)}",
        has_own_legends=True,
    )


def regret_difference(data: xr.Dataset) -> Figure:
    """Cumulative cost of M-GAPS minus the cost of the same gain held fixed."""
    thinned = datasets.thin(data)
    difference = quantities.regret_difference(thinned)
    return Figure(
        "Regret difference",
        "Cumulative cost of M-GAPS minus the cost of the fixed gain at its start. Below zero, M-GAPS has the lower "
        "cost.",
        [
            Axes(
                [
                    banded(
                        thinned.time,
                        statistics.band(difference.sel(noise=noise, gain=start)),
                        BLUE,
                        hover="M-GAPS minus fixed gain",
                    )
                ],
                _time(data),
                Axis("difference of costs"),
                f"{NOISE.get(noise, noise)},\nfrom $θ_0 = {start:.3g}$",
                about="cumulative cost difference over time,",
                rules=[Rule(y=0)],
            )
            for start in data.gain.values
            for noise in data.noise.values
        ],
        columns=data.sizes["noise"],
        height=1.3,
    )


def local_regret(data: xr.Dataset) -> Figure:
    """The local regret of M-GAPS against T, with the fitted slope, and a line of slope 1 (no progress)."""
    regret, slopes = datasets.present(data.local_regret), quantities.slopes(data)
    horizon = regret.horizon.values

    def series(noise: Any) -> list[Series]:
        lines = []
        for i, start in enumerate(data.gain.values):
            slope = statistics.interval_text(slopes.sel(noise=noise, gain=start), ".2f")
            mean = statistics.band(regret.sel(noise=noise, gain=start))
            look: dict[str, Any] = dict(marker=MARKERS[i % len(MARKERS)], size=3, hover=f"$θ_0 = {start:.3g}$")
            lines.append(banded(horizon, mean, PALETTE[i % len(PALETTE)], f"$θ_0 = {start:.3g}$: {slope}", **look))
        lowest = min(float(line.y[0]) for line in lines)
        return [*lines, Series(horizon, lowest / 2 * horizon / horizon[0], GREY, "slope 1", line="--")]

    return Figure(
        "Local regret",
        "$R^L_η(T)$ of M-GAPS, the sum of squared projected gradients of the surrogate cost, with the fitted slope on "
        "these axes. A slope below 1 means that the gradients shrink on average. Persistent noise keeps them from "
        "vanishing, so a gain that has settled has slope 1.",
        _by_noise(
            data,
            series,
            Axis("$R^L_η(T)$", is_log=True),
            "local regret against the horizon,",
            title="{}, slopes with 95 % intervals",
            x=Axis("$T$", is_log=True),
        ),
        height=2.6,
        legend_columns=1,
        has_own_legends=True,
    )


def bounds(certificate: dict, noise: str) -> Figure:
    """The measured value and the bound of each inequality of the theory."""
    rows = quantities.inequalities(certificate)
    names, (left, right) = [literal(str(row["name"])) for row in rows], quantities.edges(rows)
    groups: dict[str, tuple[str, str, list[tuple[int, float]]]] = {
        "measured": (BLUE, "o", []),
        "measured, 0": (BLUE, "<", []),
        **{f"bound, {verdict}": (color, "s", []) for verdict, color in quantities.VERDICTS.items()},
        "bound, none or infinite": (GREY, ">", []),
    }
    lines = []
    for i, row in enumerate(rows):
        measured, bound = quantities.placeable(row["measured"]), quantities.placeable(row["bound"])
        start, end = measured or left, right if bound is None else bound or left
        if measured is not None:
            dotted = measured == 0 or bound is None
            lines.append(Series([start, end], [i, i], GREY, line=":" if dotted else "-", width=0.9))
            groups["measured" if measured else "measured, 0"][2].append((i, start))
        if bound is not None:
            groups[f"bound, {quantities.verdict(row)}"][2].append((i, end))
        elif measured is not None:
            groups["bound, none or infinite"][2].append((i, end))
    series = []
    for group, (color, marker, points) in groups.items():
        if points:
            # A triangle at an edge stands for zero or infinity, so its position is not its value.
            hover = [f"{names[i]}, {group}" + (f": {value:.4g}" if marker in "os" else "") for i, value in points]
            look: dict[str, Any] = dict(line="", marker=marker, size=4.5, is_hollow="vacuous" in group, hover=hover)
            series.append(Series([value for _, value in points], [i for i, _ in points], color, group, **look))
    title = literal(quantities.NOISE.get(noise, noise))
    return Figure(
        f"Measured against bound, {title}",
        "One line for each inequality of the theory, on a logarithmic axis. A hollow square is a vacuous bound: larger "
        "than a bound that holds without the theorem.",
        [
            Axes(
                [*series, *lines],
                Axis("value", is_log=True),
                Axis(ticks=(range(len(rows)), names), range=(len(rows) - 0.4, -0.6)),
                about=f"measured values and their bounds, {title}",
                pixels=140 + 34 * len(rows),
            )
        ],
        height=0.5 + 0.26 * len(rows),
        legend=title,
        legend_columns=2,
    )


FIGURES: dict[str, Callable[[xr.Dataset], Figure]] = {
    "overview": overview,
    "parameters": parameters,
    "gain": gain,
    "model-error": model_error,
    "tracking-error": tracking_error,
    "regret-difference": regret_difference,
    "local-regret": local_regret,
}
MAIN = (OURS, FIXED)
"""The algorithms in printed figures over time."""


def _by_noise(
    data: xr.Dataset,
    series: Callable[[Any], list[Series]],
    y: Axis,
    about: str,
    rules: Sequence[Rule] = (),
    *,
    title: str = "{}",
    x: Axis | None = None,
) -> list[Axes]:
    """A plot of the series for each form of the noise, over time unless `x` is given."""
    return [
        Axes(series(noise), x or _time(data), y, title.format(NOISE.get(noise, noise)), about=about, rules=rules)
        for noise in data.noise.values
    ]


def _algorithms(data: xr.Dataset) -> list[tuple[str, str]]:
    return [(str(name), quantities.color(str(name), i)) for i, name in enumerate(data.algorithm.values)]


def _from(start: float) -> str:
    return f"from $θ_0 = θ_a = {start:.3g}$"


def _time(data: xr.Dataset) -> Axis:
    return Axis("step $t$", range=(0, datasets.steps(data)), in_steps=True)


def _switches(data: xr.Dataset) -> list[Rule]:
    return [Rule(x=int(step), color=GREY, line=":") for step in quantities.switches(data)]
