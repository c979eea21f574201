"""The page about the robots' comparison, for `report.write`."""

import base64
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from ...reporting import datasets, html_parts, plotly_figures, statistics
from ...reporting.panels import Panel, Plot
from ...reporting.statistics import Band, Interval
from ...reporting.style import GREEN, GREY
from ...storage.manifest import Manifest
from . import figures as robots_figures
from .run import ESTIMATOR, FIXED, OURS, STATIC, TUNER
from .summary import RobotsSummary, Row, ended_well, summarize

COLUMNS = {
    "failed": "failed",
    "cost": "cost of a step",
    "rmse": "RMSE (m or rad)",
    "to_estimator": "relative to EST",
    "to_static": "relative to best static",
    "settled": "the same, last quarter",
    "regret": "quasi-regret (cost · s)",
    "convergence": "converged after (s)",
}


def render(manifest: Manifest, dataset: xr.Dataset, figures: Path, about: str) -> str:
    summary = summarize(dataset, manifest.settings)
    sections = [
        ("results", "Results", _results(summary, dataset)),
        ("checks", "Checks", html_parts.checks(summary.checks, _CHECKED)),
        ("figures", "Figures", html_parts.panels(_panels(dataset, manifest.settings)) + _flights(dataset, figures)),
        ("algorithms", "What is compared", _algorithms(manifest.settings)),
        ("about", "About this run", about),
    ]
    head = "".join(f'<p class="lead">{text}</p>' for text in _answer(summary, dataset))
    runs = int((dataset.result_code != -1).sum())
    cards = [*_headlines(summary), (f"{runs:,}", _size(dataset))]
    return html_parts.page(
        "Robots that tune themselves", "selftune · the robots' comparison", head + html_parts.cards(cards), sections
    )


def command(settings: dict[str, Any]) -> str:
    """The command that repeats the run, as far as the command line has options for the settings."""
    robots = dict.fromkeys(case.split()[0] for case in settings["cases"])
    names = " ".join(f"--robots {name}" for name in robots)
    return f"selftune bench robots {names} --seeds {settings['seeds']} --seconds {settings['seconds']:g}"


def _rows(summary: RobotsSummary, case: str, start: float) -> list[Row]:
    return [row for row in summary.rows if row.case == case and row.start == start]


def _answer(summary: RobotsSummary, dataset: xr.Dataset) -> list[str]:
    """A sentence on the result of each case, with the numbers of the data."""
    start, sentences = float(dataset.start[0]), []
    for case in map(str, dataset.case.values):
        ours = next(row for row in _rows(summary, case, start) if row.algorithm == OURS)
        if ours.cost is None or ours.to_estimator is None or ours.to_static is None:
            sentences.append(
                f"{escape(case)}: from {escape(robots_figures.start_name(start))}, every run of {OURS} failed."
            )
            continue
        after = "" if ours.convergence is None else f". The median time to come near them is {ours.convergence:.1f} s"
        failed = f"; {ours.failed} of {ours.runs} runs failed" if ours.failed else "; no run failed"
        sentences.append(
            f"{escape(case)}: from {escape(robots_figures.start_name(start))}, {OURS} costs "
            f"<b>{html_parts.number(ours.to_estimator.mean)}</b> times as much as the same gains held fixed, and "
            f"<b>{html_parts.number(ours.to_static.mean)}</b> times as much as the best static gains{after}{failed}."
        )
    return sentences


def _headlines(summary: RobotsSummary) -> list[tuple[str, str]]:
    ours = [row for row in summary.rows if row.algorithm == OURS and row.start < 1]
    known = [row for row in ours if row.to_static is not None]
    cards = [
        (
            str(sum(row.failed for row in ours)),
            f"of {sum(row.runs for row in ours)} runs of {OURS} failed, from gains too low",
        )
    ]
    if known:
        worst = max(known, key=lambda row: _mean(row.to_static))
        words = f"times the best static gains' cost in the worst case: {escape(worst.case)}, from {worst.start:g}"
        cards.append((html_parts.number(_mean(worst.to_static)), words))
    return cards


def _mean(made: Interval | None) -> float:
    return np.nan if made is None else made.mean


def _size(dataset: xr.Dataset) -> str:
    end = robots_figures.end(dataset)
    return (
        f"runs of {end:g} s: {dataset.sizes['case']} cases, {dataset.sizes['start']} starts, "
        f"{dataset.sizes['algorithm']} algorithms, {dataset.sizes['seed']} seeds"
    )


def _results(summary: RobotsSummary, dataset: xr.Dataset) -> str:
    made = [
        '<p class="caption">Means over the seeds whose run did not fail, with 95 % bootstrap intervals. Ratios are '
        "paired: both runs have the same seed and the same plant. A ratio below 1 means a lower cost. Converged after: "
        "the time after which the cost of a lap stays near the cost of the best static gains, in the first half of the "
        "run; the median over seeds.</p>"
    ]
    head = "".join(f'<th scope="col" class="left">{title}</th>' for title in ("start", "algorithm"))
    head += "".join(f'<th scope="col">{title}</th>' for title in COLUMNS.values())
    for case in map(str, dataset.case.values):
        groups = "".join(_group(f"{start:g}", _rows(summary, case, float(start))) for start in dataset.start.values)
        inside = f"<caption>{escape(case)}</caption><thead><tr>{head}</tr></thead>{groups}"
        made.append(html_parts.scroll(f"<table class=groups>{inside}</table>", case))
    return "".join(made)


def _group(start: str, rows: list[Row]) -> str:
    made = []
    for i, row in enumerate(rows):
        first = f'<th scope="rowgroup" rowspan="{len(rows)}">{start}</th>' if i == 0 else ""
        dot = f'<span class="dot" style="background:{robots_figures.color(row.algorithm)}"></span>'
        kind = ' class="ours"' if row.algorithm == OURS else ""
        cells = "".join(_cell(row, name) for name in COLUMNS)
        made.append(f'<tr{kind}>{first}<th scope="row">{dot}{escape(row.algorithm)}</th>{cells}</tr>')
    return f'<tbody class="group">{"".join(made)}</tbody>'


def _cell(row: Row, name: str) -> str:
    value = getattr(row, name)
    if name == "failed":
        return f"<td{' class=bad' if value else ''}>{value}/{row.runs}</td>"
    if name == "convergence":
        return f"<td>{html_parts.number(value, '.1f')}<small>{row.converged} of {row.runs}</small></td>"
    if value is None:
        return f"<td>{html_parts.number(None)}</td>"
    return html_parts.cell([value.mean, *(np.nan if end is None else end for end in (value.low, value.high))])


_CHECKED = (
    "The checks are about M-GAPS + EST, from a multiple of the nominal gains. The mean is checked, and only if the "
    "settings are those of the full comparison."
)


def _panels(dataset: xr.Dataset, settings: dict[str, Any]) -> list[Panel]:
    first = float(dataset.start[0])
    made = [
        Panel(
            "Cost against the best static gains",
            "Mean cost of each algorithm as a multiple of the cost of the best static gains, by start. Dots are means "
            "of ratios paired by seed; whiskers are 95 % intervals. Failed runs are left out.",
            [
                Plot(f"overview-{i}", case, f"cost relative to the best static gains, {case}", _overview(dataset, case))
                for i, case in enumerate(map(str, dataset.case.values))
            ],
        )
    ]
    for i, case in enumerate(map(str, dataset.case.values)):
        lap = robots_figures.lap_seconds(settings, case)
        plots = [
            Plot(
                f"cost-{i}-{j}",
                f"from {robots_figures.start_name(float(start))}",
                f"cost over time, {case}",
                _costs(dataset, settings, case, float(start), robots_figures.SHOWN),
            )
            for j, start in enumerate(dataset.start.values)
        ]
        made.append(
            Panel(
                f"{case}: cost over time",
                f"The cost of a step, averaged over the last lap ({lap:g} s) and over seeds. At the dotted line, "
                "halfway, the plant changes.",
                plots,
            )
        )
        names = [str(name) for name in dataset.algorithm.values if name not in (TUNER, FIXED)][::-1]
        made.append(
            Panel(
                f"{case}: other tuners",
                f"The cost over time from {escape(robots_figures.start_name(first))}. The number after DiffTune is the "
                "length of its episode in laps. Click a name to hide its line.",
                [
                    Plot(
                        f"others-{i}",
                        "",
                        f"cost of other tuners, {case}",
                        _costs(dataset, settings, case, first, names),
                    )
                ],
            )
        )
        made.append(
            Panel(
                f"{case}: gains",
                f"Each gain of {OURS} from each start, as a multiple of the nominal gain. Green: the best static gain.",
                _gains(dataset, settings, case, i),
            )
        )
    return made


def _overview(dataset: xr.Dataset, case: str) -> go.Figure:
    figure = plotly_figures.figure("", "mean cost / mean cost of the best static gains")
    starts = [float(start) for start in dataset.start.values]
    shown = [robots_figures.standings(dataset, case, start) for start in starts]
    for name in dict.fromkeys(name for one in shown for name in one):
        rows = [
            (row + 0.8 * ((list(one).index(name) + 0.5) / len(one) - 0.5), *one[name], starts[row])
            for row, one in enumerate(shown)
            if name in one and np.isfinite(one[name][0].mean)
        ]
        if rows:
            mean, low, high = (
                np.array([float(getattr(band, part)) for _, band, _, _ in rows]) for part in Band._fields
            )
            figure.add_scatter(
                x=mean,
                y=[place for place, *_ in rows],
                error_x=dict(type="data", symmetric=False, array=high - mean, arrayminus=mean - low, width=0),
                mode="markers",
                marker=dict(color=robots_figures.color(name), size=8),
                name=escape(name),
                customdata=[
                    [start, lo, hi, failed] for (_, _, failed, start), lo, hi in zip(rows, low, high, strict=True)
                ],
                hovertemplate=f"{escape(name)} from %{{customdata[0]:.3g}}: %{{x:.3f}} [%{{customdata[1]:.3f}}, "
                "%{customdata[2]:.3f}], %{customdata[3]} failed<extra></extra>",
            )
    ticks = [1, 1.2, 1.5, 2, 3, 5, 7, 10, 20, 50, 100]
    figure.update_xaxes(type="log", showgrid=True, tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    figure.update_yaxes(
        tickvals=list(range(len(starts))),
        ticktext=[f"from {start:g}" for start in starts],
        range=[len(starts) - 0.5, -0.5],
        showgrid=False,
    )
    figure.add_vline(x=1, line=dict(color=GREEN, width=1))
    return figure.update_layout(hovermode="closest", height=460)


def _costs(dataset: xr.Dataset, settings: dict[str, Any], case: str, start: float, names: Any) -> go.Figure:
    figure = plotly_figures.figure("cost of a step")
    for name, (time, band, failed) in robots_figures.traces(dataset, settings, case, start, names).items():
        label = escape(name) + (f" ({failed} failed)" if failed else "")
        plotly_figures.band(figure, time, band, robots_figures.color(name), label)
    if figure.data:
        plotly_figures.decades(figure)
    figure.update_layout(legend_traceorder="reversed")
    return _seconds(figure, dataset)


def _gains(dataset: xr.Dataset, settings: dict[str, Any], case: str, index: int) -> list[Plot]:
    robot, made = robots_figures.about(settings, case), []
    for k, name in enumerate(robot["gains"]):
        nominal = robot["theta"][k]
        figure = plotly_figures.figure("gain / nominal gain")
        best = dataset.theta.sel(case=case, algorithm=STATIC).isel(start=0, gain=k, time=0).values
        ends = np.array([0.0, robots_figures.end(dataset)])
        plotly_figures.line(figure, ends, np.full(2, np.exp(best - nominal).mean()), GREEN, STATIC)
        for i, start in enumerate(dataset.start.values):
            here = dataset.sel(case=case, algorithm=OURS, start=start)
            shown = datasets.thin(here.theta.isel(gain=k, seed=np.flatnonzero(ended_well(here))), 150)
            if shown.sizes["seed"]:
                band = Band(*(np.exp(part - nominal) for part in statistics.band(shown)))
                plotly_figures.band(figure, shown.time.values, band, robots_figures.STARTS[i % 6], f"from {start:g}")
        figure.update_layout(height=240)
        title = name.removeprefix("log ")
        made.append(Plot(f"gain-{index}-{k}", title, f"the gain {title} over time, {case}", _seconds(figure, dataset)))
    return made


def _seconds(figure: go.Figure, dataset: xr.Dataset) -> go.Figure:
    end = robots_figures.end(dataset)
    figure.add_vline(x=end / 2, line=dict(color=GREY, width=1, dash="dot"), layer="below")
    return figure.update_xaxes(title=dict(text="time (s)"), range=[0, end], hoverformat=".1f")


def _flights(dataset: xr.Dataset, figures: Path) -> str:
    """The pictures of the first and last lap, embedded in the page."""
    made = []
    for case in map(str, dataset.case.values):
        for kind in ("flight", "path"):
            file = figures / f"{kind}-{robots_figures.slug(case)}.png"
            if file.is_file():
                data = base64.b64encode(file.read_bytes()).decode()
                made.append(
                    f'<section class="panel"><h3>{escape(case)}: the path</h3><figure><figcaption class="caption">'
                    f"{OURS} on the first seed, from {escape(robots_figures.start_name(float(dataset.start[0])))}: the "
                    'first lap and the last lap.</figcaption><img style="max-width:100%;background:white" '
                    f'alt="paths of the first and of the last lap, {escape(case)}" src="data:image/png;base64,{data}">'
                    "</figure></section>"
                )
                break
    return "".join(made)


def _algorithms(settings: dict[str, Any]) -> str:
    """A table of the compared algorithms, with the learning rate of each."""
    words = {
        OURS: "M-GAPS with the robot's learning rate, and the estimator",
        TUNER: "M-GAPS without the estimator: the model stays unchanged",
        ESTIMATOR: "fixed gains, and the estimator",
        FIXED: "fixed gains, and no estimator",
        "GAPS": f"a buffer of {settings['buffer']} steps, the learning rate of M-GAPS, and the estimator; left out if "
        f"the buffer would have more than {settings['buffer_limit']:,} numbers",
        "DiffTune": f"episodes of {', '.join(f'{laps:g}' for laps in settings['episodes'])} laps, "
        f"{settings['difftune_rate']:g} times the learning rate of M-GAPS on a sum of gradients, and the estimator",
        "OPRF": f"episodes of {settings['oprf_episode']:g} laps, radius {settings['oprf_radius']:g}, learning rate "
        f"{settings['oprf_rate']:g} divided by the cost of an episode at the start, and the estimator",
        STATIC: f"found offline for each seed, with the estimator: COBYQA tries {settings['search']} gains for "
        f"{settings['search_seconds']:g} s each; the nominal gains and the gains that M-GAPS found are candidates too",
    }
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="left">{text}</td></tr>' for name, text in words.items()
    )
    rates = {
        name: {key: robot[key] for key in ("learning_rate", "estimator_rate", "guard")}
        for name, robot in settings["robots"].items()
    }
    return (
        '<p class="caption">All algorithms have the same guard, which limits how far the gains move in a second. An '
        "episodic tuner may move the gains by as much in one episode as an online tuner may in the same time.</p>"
        + html_parts.scroll(f"<table><tbody>{rows}</tbody></table>", "algorithms")
        + "<h3>The robots' own settings</h3>"
        + html_parts.mapping(rates)
    )
