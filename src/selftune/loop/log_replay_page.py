"""The page about a replayed log: its findings, the predicted savings and how they are predicted, and plots."""

from pathlib import Path

import numpy as np

from ..foundation import json_values
from ..reporting import pages, plotly_figures
from ..reporting.figure import Axes, Axis, Figure, Series, literal
from ..reporting.style import BLUE, GREEN, GREY, PALETTE, VERMILLION
from ..storage import files
from .commissioning import text_of
from .commissioning_page import KINDS, POINTS, label, log_figures
from .log_replay import Replayed

PAGE = "replay.html"
WINDOWS = 150
"""Errors and costs are shown as means over this many parts of the log."""


def write(replayed: Replayed, folder: Path) -> Path:
    """Write the page, the rows of the log as CSV and the findings as JSON, and return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    replayed.log.write_csv(folder / "log.csv")
    files.write(folder / "replay.json", json_values.text(replayed.to_json()).encode())
    files.write(folder / PAGE, render(replayed).encode())
    return folder / PAGE


def render(replayed: Replayed) -> str:
    loop = replayed.loop
    recorded = log_figures(loop, replayed.log, replayed.learned, "the log")
    figures = {name: figure for name, figure in recorded.items() if name != "prediction"}
    figures = {"outputs": figures.pop("outputs"), "mismatch": _mismatch(replayed), **figures}
    if replayed.agent is not None:
        figures |= {"costs": _costs(replayed), "gains": _gains(replayed)}
    logged = _text(replayed, replayed.theta)
    start = None if replayed.start_theta is None else _text(replayed, replayed.start_theta)
    return pages.render(
        "loop/log_replay_page.html",
        title="Replay of a log",
        eyebrow="selftune · replay",
        reasons=replayed.reasons,
        rows=replayed.rows,
        kinds=KINDS,
        saving=replayed.saving,
        start_saving=replayed.start_saving,
        gains=[(name, text, "–" if start is None else start[name]) for name, text in logged.items()],
        numbers={row.name: row.numbers for row in replayed.rows if row.numbers},
        panels=plotly_figures.panels(figures),
    )


def _text(replayed: Replayed, theta: object) -> dict[str, str]:
    return {name: text_of(np.asarray(gain)) for name, gain in replayed.loop.gains(theta).items()}


def _parts(replayed: Replayed, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the middle and the mean of each of some parts of the log."""
    size = max(1, len(rows) // WINDOWS)
    count = len(rows) // size
    time = replayed.time[: count * size].reshape(count, size)
    return time.mean(axis=1), rows[: count * size].reshape(count, size, *rows.shape[1:]).mean(axis=1)


def _axis(replayed: Replayed) -> Axis:
    return Axis("time / s", range=(float(replayed.time[0]), float(replayed.time[-1])))


def _mismatch(replayed: Replayed) -> Figure:
    plant = replayed.loop.plant
    signals = plant.states if replayed.loop.observer is None else plant.outputs
    noise = np.asarray(replayed.loop.noise, float)
    made = []
    for i, signal in enumerate(signals):
        series = []
        for rows, color, name in (
            (replayed.mismatch, VERMILLION, "first parameters"),
            (replayed.mismatch_learned, BLUE, "with the estimator"),
        ):
            time, mean = _parts(replayed, rows[:, i] ** 2)
            series.append(Series(time, np.sqrt(mean), color, name))
        series.append(Series(replayed.time[[0, -1]], np.full(2, noise[i]), GREY, "sensor noise", line=":"))
        about = f"error of {literal(signal.name)} one step ahead"
        made.append(Axes(series, _axis(replayed), Axis(label(signal), is_log=True), about=about))
    caption = "The error of the prediction one step ahead (RMS over parts of the log)."
    return Figure("Model mismatch over time", caption, made)


def _costs(replayed: Replayed) -> Figure:
    assert replayed.before is not None
    assert replayed.agent is not None
    series = []
    for run, color, name in ((replayed.before, GREY, "logged gains"), (replayed.agent, GREEN, "agent that learns")):
        time, mean = _parts(replayed, np.asarray(run.cost, float))
        series.append(Series(time, mean, color, name))
    axes = Axes(series, _axis(replayed), Axis("mean cost"), about="costs of the re-simulations over time")
    return Figure("Costs in the re-simulation", "Both have the disturbances that were inferred from the log.", [axes])


def _gains(replayed: Replayed) -> Figure:
    gains = replayed.gains
    assert gains is not None
    every = slice(None, None, -(-len(replayed.log) // POINTS))
    made = []
    for name, path in gains.items():
        columns = path.reshape(len(path), -1)
        series = [
            Series(replayed.time[every], column[every], PALETTE[i % len(PALETTE)], f"{i}" if len(columns.T) > 1 else "")
            for i, column in enumerate(columns.T)
        ]
        made.append(Axes(series, _axis(replayed), Axis(literal(name)), about=f"{literal(name)} over time"))
    return Figure("Gains of the agent", "The gains that the tuner would have used, in the re-simulation.", made)
