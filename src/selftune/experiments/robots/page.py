"""The page about the robots' comparison."""

from pathlib import Path
from typing import Any

import numpy as np

from ...control import result_codes
from ...reporting import pages, plotly_figures
from ..registry import Experiment, Progress, StoredRun
from . import figures as robots_figures
from .run import DEFAULTS, ESTIMATOR, FIXED, OURS, STATIC, TUNER
from .summary import RobotsSummary, Row, summarize


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
        panels=plotly_figures.panels(robots_figures.make_figures(dataset, settings)),
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
        DEFAULTS: "the tuner GaussNewton and the estimator AutoEstimator with default settings: no learning rates",
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
