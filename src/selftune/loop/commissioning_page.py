"""The page about a commissioning: its decision, its checks, the limits of the guard, and plots of the dry runs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ..foundation import json_values
from ..logs.plant_log import PlantLog
from ..models.base import Signal
from ..reporting import pages, plotly_figures, run_figures
from ..reporting.figure import Axes, Axis, Figure, Series, literal
from ..reporting.style import BLUE, GREY, VERMILLION
from ..simulation import run_dataset
from ..storage import files
from ._replay import Replay
from .commissioning import Commissioned, text_of
from .control_loop import Loop

PAGE = "commissioning.html"
RUNS = {"dry-run": "the dry run with learning paused", "estimator-run": "the dry run in which the estimator learns"}
POINTS = 1500
"""A line has at most this many points."""
KINDS = {"ok": "good", "warning": "warn", "no-go": "bad"}


def write(commissioned: Commissioned, folder: Path) -> Path:
    """Write the page, the logs as CSV and the result as JSON to the folder, and return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    logs = {"dry-run": commissioned.log, "estimator-run": commissioned.learning_log}
    kept = {name: log for name, log in logs.items() if log is not None}
    for name, log in kept.items():
        log.write_csv(folder / f"{name}.csv")
    files.write(folder / "commissioning.json", json_values.text(commissioned.to_json()).encode())
    files.write(folder / PAGE, render(commissioned).encode())
    return folder / PAGE


def render(commissioned: Commissioned) -> str:
    figures = {}
    for name, log, replayed in (
        ("dry-run", commissioned.log, commissioned.replay),
        ("estimator-run", commissioned.learning_log, commissioned.learning_replay),
    ):
        if log is not None and replayed is not None and len(log) > 2:
            drawn = log_figures(commissioned.loop, log, replayed, RUNS[name])
            figures |= {f"{name}-{key}": figure for key, figure in drawn.items()}
    return pages.render(
        "loop/commissioning_page.html",
        title="Go" if commissioned.ok else "No-go",
        eyebrow="selftune · commissioning",
        ok=commissioned.ok,
        reasons=commissioned.reasons,
        rows=commissioned.rows,
        kinds=KINDS,
        numbers={row.name: row.numbers for row in commissioned.rows if row.numbers},
        guard=[(rule.setting, text_of(rule.value), rule.rule) for rule in commissioned.guard_rules],
        choices={
            "gains": {name: text_of(gain) for name, gain in commissioned.loop.gains(commissioned.theta).items()},
            "tuner": repr(commissioned.controller.tuner),
            "estimator": repr(commissioned.controller.estimator),
        },
        panels=plotly_figures.panels(figures),
    )


def log_figures(loop: Loop, log: PlantLog, replayed: Replay, about: str) -> dict[str, Figure]:
    """Return the figures of a recorded run and of the model along the run."""
    plant = loop.plant
    steps = np.arange(len(log))
    every = slice(None, None, -(-len(log) // POINTS))
    axis = Axis("step $t$", range=(0, len(log)))
    observed = loop.observer is not None
    signals = plant.outputs if observed else plant.states
    outputs = log.measurement
    if not observed:  # the reference belongs to the outputs, which are a part of the measured state
        outputs = np.asarray(jax.vmap(plant.output)(jnp.asarray(log.measurement, plant.x0.dtype)))
    tracking = [
        Axes(
            [
                Series(steps[every], log.reference[every, i], GREY, "reference", line="--"),
                Series(steps[every], outputs[every, i], BLUE, "measured"),
            ],
            axis,
            Axis(label(one)),
            about=f"{literal(one.name)} and its reference over time",
        )
        for i, one in enumerate(plant.outputs)
    ]
    error = log.measurement[1:] - replayed.predicted
    noise = np.asarray(loop.noise, float)
    errors = [
        Axes(
            [
                Series(steps[:-1][every], error[every, i], VERMILLION, "error one step ahead"),
                Series(steps[[0, -1]], np.full(2, noise[i]), GREY, "sensor noise", line=":"),
                Series(steps[[0, -1]], np.full(2, -noise[i]), GREY, "sensor noise", line=":"),
            ],
            axis,
            Axis(label(one)),
            about=f"prediction error of {literal(one.name)} over time",
        )
        for i, one in enumerate(signals)
    ]
    names = {"u": [one.name for one in plant.controls], "a_hat": [one.name for one in plant.parameters]}
    recorded = {"u": log.u, "cost": replayed.cost}
    if np.any(replayed.a_hat != replayed.a_hat[0]):
        recorded["a_hat"] = replayed.a_hat
    dataset = run_dataset.make(recorded, steps, names=names)
    others = run_figures.by_field(dataset)
    return {
        "outputs": Figure(f"Outputs in {about}", "The measured outputs and their references.", tracking),
        **{name: Figure(f"{figure.title} in {about}", figure.caption, figure.axes) for name, figure in others.items()},
        "prediction": Figure(
            f"Prediction errors in {about}",
            "The measurement minus the model's prediction, one step ahead. Without errors of the model, the errors are "
            "about as large as the sensor noise.",
            errors,
        ),
    }


def label(signal: Signal) -> str:
    """Return the name of a signal with its unit, for an axis."""
    return literal(signal.name if signal.unit == "1" else f"{signal.name} / {signal.unit}")
