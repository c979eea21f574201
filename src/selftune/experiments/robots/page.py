"""The page about the robots' comparison."""

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from ...control import result_codes
from ...reporting import datasets, pages, plotly_figures, statistics
from ...reporting.panels import Panel, Plot
from ...reporting.statistics import Band
from ...reporting.style import GREEN, GREY
from ..registry import Experiment, Progress, StoredRun
from . import figures as robots_figures
from .run import ESTIMATOR, FIXED, OURS, STATIC, TUNER
from .summary import RobotsSummary, Row, ended_well, summarize


def render(run: StoredRun) -> str:
    settings: dict[str, Any] = run.manifest.settings
    dataset, summary = run.dataset, run.summary
    cases, first = list(map(str, dataset.case.values)), float(dataset.start[0])
    low = [row for row in summary.rows if row.algorithm == OURS and row.start < 1]
    return pages.render(
        "experiments/robots/page.html",
        title="Robots that tune themselves",
        eyebrow="selftune · the robots' comparison",
        OURS=OURS,
        start=robots_figures.start_name(first),
        ours=[next(row for row in _rows(summary, case, first) if row.algorithm == OURS) for case in cases],
        failed=sum(row.failed for row in low),
        started=sum(row.runs for row in low),
        worst=max((row for row in low if row.to_static is not None), key=_to_static, default=None),
        runs=int((dataset.result_code != result_codes.NOT_RUN).sum()),
        seconds=robots_figures.end(dataset),
        sizes=dataset.sizes,
        tables=[
            (case, [(f"{start:g}", _table_rows(summary, case, float(start))) for start in dataset.start.values])
            for case in cases
        ],
        checks=summary.checks,
        panels=_panels(dataset, settings),
        paths=_paths(cases, run.folder / "figures"),
        algorithms=_algorithms(settings),
        rates={
            name: {key: robot[key] for key in ("learning_rate", "estimator_rate", "guard")}
            for name, robot in settings["robots"].items()
        },
        about=pages.about(run.manifest, _command(settings)),
    )


def _draw(run: StoredRun, progress: Progress) -> None:
    robots_figures.draw_all(run.dataset, run.manifest.settings, run.folder / "figures", progress=progress)


EXPERIMENT = Experiment(
    summarize=lambda run: summarize(run.dataset, run.manifest.settings),
    render=render,
    draw=_draw,
    figures=lambda run: [run.folder / "figures" / "overview.png"],
)


def _command(settings: dict[str, Any]) -> str:
    """The command that repeats the run, as far as the command line has options for the settings."""
    robots = dict.fromkeys(case.split()[0] for case in settings["cases"])
    names = " ".join(f"--robots {name}" for name in robots)
    return f"selftune bench robots {names} --seeds {settings['seeds']} --seconds {settings['seconds']:g}"


def _rows(summary: RobotsSummary, case: str, start: float) -> list[Row]:
    return [row for row in summary.rows if row.case == case and row.start == start]


def _to_static(row: Row) -> float:
    return np.nan if row.to_static is None else row.to_static.mean


def _table_rows(summary: RobotsSummary, case: str, start: float) -> list[dict[str, Any]]:
    return [
        {
            "name": row.algorithm,
            "color": robots_figures.color(row.algorithm),
            "ours": row.algorithm == OURS,
            "values": row,
        }
        for row in _rows(summary, case, start)
    ]


def _paths(cases: list[str], figures: Path) -> list[tuple[str, dict[str, Any]]]:
    """The picture of the first and last lap of each case, a rendered flight rather than a plot."""
    found = []
    for case in cases:
        images = (pages.image(figures / f"{kind}-{robots_figures.slug(case)}.png") for kind in ("flight", "path"))
        found += [(case, image) for image in images if image is not None][:1]
    return found


def _algorithms(settings: dict[str, Any]) -> dict[str, str]:
    """The compared algorithms, in words."""
    return {
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
