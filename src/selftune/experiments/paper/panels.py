"""The report's plots: the same data as the printed figures, with hover texts and zoom."""

from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from ...reporting import datasets, plotly_figures, statistics
from ...reporting.panels import Panel, Plot
from ...reporting.statistics import Band
from ...reporting.style import BLUE, GREEN, GREY, PALETTE, VERMILLION
from . import quantities
from .quantities import EXACT, FIXED, NOISE, OURS


def make_panels(dataset: xr.Dataset, gain: float) -> list[Panel]:
    """All figures of the paper's appendix, and the regret. `gain`: the start, in panels that show only one."""
    thinned = datasets.thin(dataset)
    start = f"from θ<sub>0</sub> = θ<sub>a</sub> = {gain:.3g}"
    return [
        Panel(
            "Cost against the best static gain",
            "Total cost of each algorithm from each start, as a multiple of the cost of the best static gain in "
            "hindsight. Dots are means of ratios paired by seed; whiskers are 95 % intervals. With the noise inside "
            "Δ(…), the noise is Δ times weaker and the gradient Δ<sup>2</sup> times smaller. M-GAPS, η/Δ² compensates "
            "with its learning rate.",
            _each(dataset, "overview", "total cost relative to the best static gain", _overview),
        ),
        Panel(
            "Parameters: a* and â",
            "Left, one seed: a* (wide and pale) has a new value in each period, and â follows. Right: the distance. "
            "â need not reach a*. It only has to predict φ(x)a* on the states that occur.",
            [
                Plot("parameters", _one(dataset), "traces of a* and â on one seed", _parameters(thinned, gain)),
                Plot("distance", "all seeds", "distance of â from a* over time", _distance(thinned, gain)),
            ],
        ),
        Panel(
            "Gain: θ",
            "M-GAPS from each start, the fixed gain at each start (dashed), and the best static gain in hindsight.",
            _each(thinned, "gain", "the gain over time", _gains),
        ),
        Panel(
            "Model error: φ(x)â − φ(x)a*",
            f"The absolute value, mean over seeds, {start}. At the dotted lines a* changes.",
            _each(thinned, "model-error", "size of the model error over time", lambda d, n: _model_error(d, n, gain)),
        ),
        Panel(
            "Tracking error: x",
            f"On seed {int(dataset.seed[0])}, {start}. In brackets: the root mean square over all seeds and steps.",
            _each(dataset, "tracking-error", "x over time on one seed", lambda d, n: _tracking_error(d, n, gain)),
        ),
        Panel(
            "Regret difference",
            "Cumulative cost of M-GAPS minus the cost of the fixed gain at its start. Below zero, M-GAPS has the lower "
            "cost. Click a name to hide its line.",
            _each(thinned, "regret-difference", "cumulative cost difference over time", _regret_difference),
        ),
        Panel(
            "Local regret",
            "R<sup>L</sup><sub>η</sub>(T) of M-GAPS, the sum of squared projected gradients of the surrogate cost, "
            "with the fitted slope on these axes. A slope below 1 means that the gradients shrink on average. "
            "Persistent noise keeps them from vanishing, so a gain that has settled has slope 1.",
            _each(dataset, "local-regret", "local regret against the horizon", _local_regret),
        ),
    ]


def bounds(certificate: dict, noise: str) -> Panel:
    """The panel of the measured values and bounds of a certificate."""
    return Panel(
        f"Measured against bound, {quantities.NOISE.get(noise, noise)}",
        "One line for each inequality of the theory, on a logarithmic axis. A hollow square is a vacuous bound: larger "
        "than a bound that holds without the theorem.",
        [
            Plot(
                f"bounds-{noise}",
                "",
                "measured values and their bounds",
                _bounds(quantities.inequalities(certificate)),
            )
        ],
    )


def traces(dataset: xr.Dataset) -> list[Panel]:
    """Panels for any dataset: each variable over time, with its mean and band over seeds."""
    made = []
    for name, values in dataset.data_vars.items():
        if not {"seed", "time"} <= set(values.dims) or values.dtype.kind not in "fiu" or not values.sizes["seed"]:
            continue
        thinned = datasets.thin(values.transpose("seed", "time", ...))
        columns = thinned.values.reshape(*thinned.shape[:2], -1)
        label, shown = str(name), min(columns.shape[-1], len(PALETTE))
        figure = plotly_figures.figure(f"<b>{escape(label)}</b>")
        for i in range(shown):
            component = escape(label) if columns.shape[-1] == 1 else f"{escape(label)}[{i}]"
            plotly_figures.band(figure, thinned.time.values, statistics.band(columns[..., i]), PALETTE[i], component)
        more = "" if shown == columns.shape[-1] else f" The first {shown} of {columns.shape[-1]} components."
        plotly_figures.time(figure, dataset)
        plot = Plot(f"trace-{len(made)}", "", f"{label} over time, mean over seeds", figure)
        what = escape(str(values.attrs.get("long_name", ""))).rstrip(".")
        made.append(Panel(label, f"{f'{what}. ' if what else ''}Mean over seeds, with its 95 % band.{more}", [plot]))
    return made


def _each(dataset: xr.Dataset, name: str, description: str, draw: Any) -> list[Plot]:
    """One plot for each form of the noise."""
    titles = {noise: str(NOISE.get(noise, noise)) for noise in dataset.noise.values}
    return [
        Plot(f"{name}-{i}", title, f"{description}, {title}", draw(dataset, noise))
        for i, (noise, title) in enumerate(titles.items())
    ]


def _overview(dataset: xr.Dataset, noise: Any) -> go.Figure:
    shown = quantities.standings(dataset)[str(noise)]
    figure = plotly_figures.figure("", "total cost / total cost of the best static gain")
    rows, symbols = np.arange(dataset.sizes["gain"]), ("circle", "square", "diamond", "triangle-up", "triangle-down")
    for i, (name, costs) in enumerate(shown.items()):
        mean, low, high = costs.to_static.transpose("band", "gain").values
        figure.add_scatter(
            x=mean,
            y=rows + 0.16 * (i - (len(shown) - 1) / 2),
            error_x=dict(type="data", symmetric=False, array=high - mean, arrayminus=mean - low, width=0),
            mode="markers",
            marker=dict(color=quantities.color(name, i), size=8, symbol=symbols[i % len(symbols)]),
            name=escape(name),
            customdata=np.stack([dataset.gain.values, low, high], axis=-1),
            hovertemplate=f"{escape(name)} from %{{customdata[0]:.3g}}: "
            "%{x:.4f} [%{customdata[1]:.4f}, %{customdata[2]:.4f}]<extra></extra>",
        )
    ticks = [1, 1.2, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100]
    figure.update_xaxes(type="log", showgrid=True, tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    figure.update_yaxes(
        tickvals=rows,
        ticktext=[f"θ<sub>0</sub> = {gain:.3g}" for gain in dataset.gain.values],
        range=[len(rows) - 0.5, -0.5],
        showgrid=False,
    )
    figure.add_vline(x=1, line=dict(color=GREY, width=1))
    return figure.update_layout(hovermode="closest")


def _one(dataset: xr.Dataset) -> str:
    noise = dataset.noise.values[0]
    return f"seed {int(dataset.seed[0])}, {NOISE.get(noise, noise)}"


def _parameters(dataset: xr.Dataset, gain: float) -> go.Figure:
    one = dataset.isel(seed=0, noise=0).sel(gain=gain, algorithm=OURS)
    figure = plotly_figures.figure("a*, â")
    for feature, color in zip(dataset.feature.values, (BLUE, VERMILLION, GREEN), strict=False):
        sub = f"<sub>{int(feature) + 1}</sub>"
        plotly_figures.line(figure, dataset.time.values, one.a_hat.sel(feature=feature), color, f"â{sub}")
        plotly_figures.line(
            figure, dataset.time.values, one.a_star.sel(feature=feature), color, f"a*{sub}", width=6.0, opacity=0.35
        )
    return plotly_figures.time(figure, dataset)


def _distance(dataset: xr.Dataset, gain: float) -> go.Figure:
    gap = quantities.distance(dataset.sel(gain=gain, algorithm=OURS))
    figure = plotly_figures.figure("‖â − a*‖")
    for noise, color in zip(dataset.noise.values, (BLUE, GREEN), strict=False):
        plotly_figures.band(
            figure, dataset.time.values, statistics.band(gap.sel(noise=noise)), color, str(NOISE.get(noise, noise))
        )
    figure.update_yaxes(rangemode="tozero")
    return plotly_figures.time(figure, dataset)


def _gains(dataset: xr.Dataset, noise: Any) -> go.Figure:
    figure, time = plotly_figures.figure("θ"), dataset.time.values
    ends = time[[0, -1]]
    best = statistics.band(dataset.static_gain.sel(noise=noise))
    plotly_figures.band(figure, ends, Band(*(np.full(2, part) for part in best)), GREEN, "best static gain")
    for i, gain in enumerate(dataset.gain.values):
        plotly_figures.line(
            figure,
            ends,
            np.full(2, gain),
            VERMILLION,
            FIXED,
            dash=plotly_figures.DASHED,
            showlegend=i == 0,
            legendgroup=FIXED,
        )
        made = statistics.band(dataset.theta.sel(noise=noise, gain=gain, algorithm=OURS))
        plotly_figures.band(figure, time, made, BLUE, OURS, showlegend=i == 0, hover=f"M-GAPS from {gain:.3g}")
    figure.update_yaxes(rangemode="tozero")
    return plotly_figures.time(figure, dataset)


def _model_error(dataset: xr.Dataset, noise: Any, gain: float) -> go.Figure:
    figure = plotly_figures.figure("|φ(x)â − φ(x)a*|")
    for i, name in _under(dataset):
        if name != EXACT:  # the exact model has no model error
            error = abs(dataset.model_error.sel(noise=noise, gain=gain, algorithm=name))
            plotly_figures.band(
                figure,
                dataset.time.values,
                statistics.band(error),
                quantities.color(name, i),
                name,
                shown=name in (OURS, FIXED),
            )
    plotly_figures.decades(figure)
    figure.update_layout(legend_traceorder="reversed")
    return plotly_figures.time(_draw_switches(figure, dataset), dataset)


def _under(dataset: xr.Dataset) -> list[tuple[int, str]]:
    """The algorithms with their indices, in reverse: the first is drawn last, on top. The legend reverses the order."""
    return [(i, str(name)) for i, name in enumerate(dataset.algorithm.values)][::-1]


def _tracking_error(dataset: xr.Dataset, noise: Any, gain: float) -> go.Figure:
    figure, thinned = plotly_figures.figure("x"), datasets.thin(dataset)
    for i, name in _under(dataset):
        of = dict(noise=noise, gain=gain, algorithm=name)
        plotly_figures.line(
            figure,
            thinned.time.values,
            thinned.x.sel(of).isel(seed=0),
            quantities.color(name, i),
            f"{escape(name)} ({quantities.root_mean_square(dataset.x.sel(of)):.3g})",
            width=1.0,
            visible=True if name in (OURS, FIXED) else "legendonly",
        )
    figure.update_layout(legend_traceorder="reversed")
    return plotly_figures.time(_draw_switches(figure, dataset), dataset)


def _regret_difference(dataset: xr.Dataset, noise: Any) -> go.Figure:
    difference = quantities.regret_difference(dataset)
    figure = plotly_figures.figure("difference of cumulative costs")
    for gain, color in zip(dataset.gain.values, plotly_figures.cycle(), strict=False):
        made = statistics.band(difference.sel(noise=noise, gain=gain))
        plotly_figures.band(figure, dataset.time.values, made, color, f"θ<sub>0</sub> = {gain:.3g}")
    figure.update_yaxes(zeroline=True, exponentformat="power")
    return plotly_figures.time(figure, dataset)


def _local_regret(dataset: xr.Dataset, noise: Any) -> go.Figure:
    regret, slope = datasets.present(dataset.local_regret), quantities.slopes(dataset)
    horizon = regret.horizon.values
    figure, lowest = plotly_figures.figure("R<sup>L</sup><sub>η</sub>(T)", "T"), np.inf
    for gain, color in zip(dataset.gain.values, plotly_figures.cycle(), strict=False):
        made = statistics.band(regret.sel(noise=noise, gain=gain))
        lowest = min(lowest, float(made.mean[0]))
        text = f"θ<sub>0</sub> = {gain:.3g}: slope {statistics.interval_text(slope.sel(noise=noise, gain=gain), '.2f')}"
        plotly_figures.band(
            figure, horizon, made, color, text, hover=f"θ<sub>0</sub> = {gain:.3g}", mode="lines+markers"
        )
    plotly_figures.line(
        figure,
        horizon,
        lowest / 2 * horizon / horizon[0],
        GREY,
        "slope 1",
        dash=plotly_figures.DASHED,
        hoverinfo="skip",
    )
    figure.update_xaxes(type="log", showgrid=False, tickvals=horizon, tickformat="~s")
    plotly_figures.decades(figure)
    return figure.update_layout(legend=dict(orientation="v"), height=400)


def _bounds(rows: list[dict]) -> go.Figure:
    figure = plotly_figures.figure("", "value")
    names = [escape(str(row["name"])) for row in rows]
    left, right = quantities.edges(rows)
    groups: dict[str, tuple[str, str, list[tuple[int, float]]]] = {
        "measured": (BLUE, "circle", []),
        "measured, 0": (BLUE, "triangle-left", []),
    }
    for kind, color in quantities.VERDICTS.items():
        groups[f"bound, {kind}"] = (color, "square-open" if kind == "vacuous" else "square", [])
    groups["bound, none or infinite"] = (GREY, "triangle-right", [])
    for i, row in enumerate(rows):
        measured, bound = quantities.placeable(row["measured"]), quantities.placeable(row["bound"])
        ends = [measured or left, right if bound is None else bound or left]
        if measured is not None:
            dash = "dot" if measured == 0 or bound is None else None
            plotly_figures.line(figure, ends, [i, i], GREY, "", dash=dash, showlegend=False, hoverinfo="skip")
            groups["measured" if measured else "measured, 0"][2].append((i, ends[0]))
        if bound is not None:
            groups[f"bound, {quantities.verdict(row)}"][2].append((i, ends[1]))
        elif measured is not None:
            groups["bound, none or infinite"][2].append((i, ends[1]))
    for group, (color, symbol, points) in groups.items():
        if points:
            # A triangle at an edge stands for zero or infinity, so its position is not its value.
            value = "" if symbol.startswith("triangle") else ": %{x:.4g}"
            figure.add_scatter(
                x=[value for _, value in points],
                y=[i for i, _ in points],
                mode="markers",
                name=group,
                marker=dict(color=color, symbol=symbol, size=10, line=dict(width=2, color=color)),
                text=[names[i] for i, _ in points],
                hovertemplate=f"%{{text}}, {group}{value}<extra></extra>",
            )
    figure.update_xaxes(type="log", exponentformat="power", showgrid=True)
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=names, range=[len(rows) - 0.5, -0.5], showgrid=False)
    return figure.update_layout(hovermode="closest", height=140 + 34 * len(rows))


def _draw_switches(figure: go.Figure, dataset: xr.Dataset) -> go.Figure:
    for step in quantities.switches(dataset):
        figure.add_vline(x=int(step), line=dict(color=GREY, width=1, dash="dot"), layer="below")
    return figure
