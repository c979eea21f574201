"""The folder of a tuned robot: the page with figures and a video, the gains as TOML, and the numbers as JSON."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..foundation import json_values
from ..loop.commissioning import text_of
from ..loop.stability import Margins
from ..models.base import Signal
from ..reporting import pages, plotly_figures
from ..reporting.figure import Axes, Axis, Figure, Rule, Series, literal
from ..reporting.style import BLUE, GREY, PALETTE, VERMILLION
from ..storage import files
from .file_arm_plant import mjcf
from .file_tuning import Tuned
from .file_video import video

PAGE, GAINS, NUMBERS, VIDEO = "report.html", "tuned.toml", "tuned.json", "tuning.gif"
POINTS = 1000
"""A line has at most this many points."""


def write(tuned: Tuned, folder: Path, *, with_video: bool = True) -> Path:
    """Write the page, the gains, the numbers and the video to the folder, and return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    j = tuned.robot.joints
    shown = with_video and video(
        mjcf(tuned.robot, tuned.robot.body.links, lag=tuned.robot.lag),
        tuned.before.x[:, :j],
        tuned.after.x[:, :j],
        tuned.after.reference[:, :j],
        folder / VIDEO,
        seconds=tuned.laps * tuned.robot.dt,
        reach=tuned.robot.reach,
    )
    files.write(folder / GAINS, toml(tuned).encode())
    files.write(folder / NUMBERS, json_values.text(summary(tuned)).encode())
    files.write(folder / PAGE, render(tuned, folder / VIDEO if shown else None).encode())
    return folder / PAGE


def summary(tuned: Tuned) -> dict[str, Any]:
    """Return the results as plain values."""
    first, last = tuned.rms()
    names = [link.name for link in tuned.robot.body.links]
    made = tuned.commissioned
    return {
        "robot": tuned.robot.name,
        "joints": names,
        "seconds": tuned.seconds,
        "start": tuned.start,
        "seed": tuned.seed,
        "commissioning": None if made is None else {"ok": made.ok, "reasons": list(made.reasons)},
        "crashed": tuned.run.crashed,
        "cost": {"start gains": float(tuned.before.cost.mean()), "tuned gains": float(tuned.after.cost.mean())},
        "cost of each quarter": tuned.quarters().tolist(),
        "rms error": {"first lap": first.tolist(), "last lap": last.tolist()},
        "payload": tuned.payload_estimates(),
        "gains": {name: rows[-1].tolist() for name, rows in tuned.run.theta.items()},
        "gain units": tuned.units,
        "gains at a bound": [str(one) for one in tuned.at_bounds()],
        "gains with margins": _safer(tuned),
        "margins": _margins(tuned),
        "parameters": dict(
            zip([p.name for p in tuned.robot.parameters], map(float, tuned.run.last_a_hat), strict=True)
        ),
        "guard": tuned.run.decisions,
        "notes": list(tuned.robot.notes),
    }


def _safer(tuned: Tuned) -> dict[str, list[float]] | None:
    """Return the gains with margins by name; None if there are none, or if the tuned gains have the margins."""
    if tuned.robustness is None or tuned.robustness.safer is None:
        return None
    return {name: np.asarray(row, float).tolist() for name, row in tuned.loop.gains(tuned.robustness.safer).items()}


def _margins(tuned: Tuned) -> dict[str, Any] | None:
    found = tuned.robustness
    if found is None:
        return None
    rows = {"start gains": found.start, "tuned gains": found.tuned, "gains with margins": found.safer_margins}
    named = {name: row._asdict() for name, row in rows.items() if row is not None}
    return named | {"warning": found.warning(), "cost of the gains with margins / tuned": found.safer_cost}


def toml(tuned: Tuned) -> str:
    """Return the gains and the learned parameters as TOML."""
    robot, robust, safer = tuned.robot, tuned.robustness, _safer(tuned)
    comments = {name: "" if unit == "1" else f"  # {unit}" for name, unit in tuned.units.items()}

    def row(values: Any) -> str:
        return "[" + ", ".join(f"{float(v):.6g}" for v in np.ravel(values)) + "]"

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = [
        "# Gains of policies.ComputedTorque, one number for each joint: u = limit(M (r'' + w² e + 2 z w e') + ... - f)",
        "[robot]",
        f"name = {quoted(robot.name)}",
        f"joints = [{', '.join(quoted(link.name) for link in robot.body.links)}]",
        f"control_period = {robot.dt:g}  # s",
        f"motor_lag = {robot.lag:g}  # s",
        f"torque_limits = {row(robot.torque_limits)}  # {', '.join(one.unit for one in robot.controls)}",
        "",
        "[gains]  # the last gains of the tuner" + _in_words(robust and robust.tuned),
        *(f"{name} = {row(rows[-1])}{comments[name]}" for name, rows in tuned.run.theta.items()),
        "",
        *([] if safer is None else [f"[gains_with_margins]  # nearby{_in_words(robust and robust.safer_margins)}"]),
        *([] if safer is None else [f"{name} = {row(values)}{comments[name]}" for name, values in safer.items()]),
        *([] if safer is None else [""]),
        "[learned]  # the estimator's parameters at the end",
        *(
            f"{quoted(parameter.name)} = {float(value):.6g}  # {parameter.unit}"
            for parameter, value in zip(robot.parameters, tuned.run.last_a_hat, strict=True)
        ),
    ]
    return "\n".join(lines) + "\n"


def _in_words(margins: Margins | None) -> str:
    return "" if margins is None else f"; on the model: {margins}"


def render(tuned: Tuned, shown: Path | None) -> str:
    numbers, made, safer = summary(tuned), tuned.commissioned, _safer(tuned)
    first, last = tuned.rms()
    limits = zip(tuned.robot.body.links, first, last, strict=True)
    moving = None if shown is None else "data:image/gif;base64," + base64.b64encode(shown.read_bytes()).decode()
    return pages.render(
        "robots/file_tuning_page.html",
        title=tuned.robot.name,
        eyebrow="selftune · tune",
        numbers=numbers,
        crashed=tuned.run.crashed,
        made=made,
        verdicts={} if made is None else {row.name: f"{row.verdict}: {row.sentence}" for row in made.rows},
        joints=[(link.name, "rad" if link.kind == "hinge" else "m", a, b) for link, a, b in limits],
        gains=[
            (link.name, *(f"{rows[0][i]:.3g} → {rows[-1][i]:.3g}" for rows in tuned.run.theta.values()))
            for i, link in enumerate(tuned.robot.body.links)
        ],
        gain_names=gain_titles(tuned),
        margins=[] if tuned.robustness is None else _margin_rows(tuned),
        warning="" if tuned.robustness is None else tuned.robustness.warning(),
        safer=safer is not None,
        safer_rows=[]
        if safer is None
        else [
            (link.name, *(f"{values[i]:.3g}" for values in safer.values()))
            for i, link in enumerate(tuned.robot.body.links)
        ],
        bounds=[str(one) for one in tuned.at_bounds()],
        learned={
            "payload (kg)": _short(numbers["payload"]),
            "parameters": {
                f"{parameter.name} ({parameter.unit})": f"{numbers['parameters'][parameter.name]:.4g}"
                for parameter in tuned.robot.parameters
            },
            "decisions of the guard (steps)": numbers["guard"],
        },
        rules={
            "torque limits": _with_units(tuned.robot.torque_limits, tuned.robot.controls),
            "rated torques": _with_units(tuned.robot.rated_torques, tuned.robot.controls),
            "home": _with_units(tuned.robot.home, tuned.robot.outputs),
            "swing": _with_units(np.asarray(getattr(tuned.loop.reference, "size", 0.0)), tuned.robot.outputs),
            "control period": f"{tuned.robot.dt:g} s",
            "motor lag in the model": f"{tuned.robot.lag:g} s",
            "guard": repr(tuned.loop.guard() if made is None else made.guard),
        },
        moving=moving,
        panels=plotly_figures.panels(_figures(tuned)),
    )


def gain_titles(tuned: Tuned) -> list[str]:
    """Return the names of the gains with their units, for tables."""
    units = tuned.units
    return [name.replace("_", " ") + ("" if units[name] == "1" else f" / ({units[name]})") for name in tuned.run.theta]


def _margin_rows(tuned: Tuned) -> list[tuple[str, str, str, str, str]]:
    found = tuned.robustness
    assert found is not None
    rows = {"start gains": found.start, "tuned gains": found.tuned, "gains with margins": found.safer_margins}
    return [
        (
            name,
            f"{row.gain_margin:.3g}",
            f"{row.gain_reduction:.3g}",
            f"{row.phase_margin:.3g}",
            f"{1e3 * row.delay_margin:.3g}",
        )
        for name, row in rows.items()
        if row is not None
    ]


def _with_units(values: Any, signals: Sequence[Signal]) -> str:
    """Return numbers with their units; each with its own if these differ."""
    values = np.broadcast_to(np.asarray(values, float), (len(values) if np.ndim(values) else 1,))
    units = [signal.unit for signal in signals[: len(values)]]
    if len(set(units)) == 1:
        return f"{text_of(values)} {units[0]}"
    return ", ".join(f"{value:.3g} {unit}" for value, unit in zip(values, units, strict=True))


def _short(values: dict[str, float]) -> dict[str, str]:
    return {name: f"{value:.4g}" for name, value in values.items()}


def _figures(tuned: Tuned) -> dict[str, Figure]:
    robot, run = tuned.robot, tuned.run
    names = [literal(link.name) for link in robot.body.links]
    half = Rule(x=tuned.seconds / 2, color=GREY, line=":", label="the payload grows")
    time = Axis("time / s", range=(0, tuned.seconds))
    smooth = max(1, len(run.cost) // POINTS)
    cost = run.cost[: len(run.cost) // smooth * smooth].reshape(-1, smooth).mean(axis=1)
    at = smooth * robot.dt * np.arange(len(cost))
    gains = [
        Axes(
            [Series(run.times, rows[:, i], PALETTE[i % len(PALETTE)], name) for i, name in enumerate(names)],
            time,
            Axis(literal(gain.replace("_", " ") + (" / (rad/s)" if gain == "frequency" else ""))),
            about=f"{gain} of each joint over time",
            rules=[half],
        )
        for gain, rows in run.theta.items()
    ]
    payload = Axes(
        [
            Series(run.times, run.payload, GREY, "true", line="--"),
            Series(run.times, run.a_hat[:, 0], BLUE, "estimated"),
        ],
        time,
        Axis("payload / kg"),
        about="estimated and true payload over time",
        rules=[half],
    )
    every = slice(None, None, max(1, tuned.laps // 400))
    laps = [
        Axes(
            [
                Series(robot.dt * np.arange(len(lap.error))[every], 1e3 * lap.error[every, i], color, label)
                for lap, color, label in (
                    (tuned.before, VERMILLION, "start gains"),
                    (tuned.after, BLUE, "tuned gains"),
                )
            ],
            Axis("time in the lap / s"),
            Axis(f"error of {name} / {'mrad' if robot.body.links[i].kind == 'hinge' else 'mm'}"),
            about=f"tracking error of {name} before and after tuning",
        )
        for i, name in enumerate(names)
    ]
    return {
        "cost": Figure(
            "Cost",
            "The cost of a step over time: errors of position and rate, and the change of the torques.",
            [
                Axes(
                    [Series(at, cost, BLUE, "cost")],
                    time,
                    Axis("cost", is_log=True),
                    about="cost over time",
                    rules=[half],
                )
            ],
        ),
        "errors": Figure(
            "Tracking", "One lap with the start gains, and one with the tuned gains, both with the heavy payload.", laps
        ),
        "gains": Figure("Gains", "The gains of each joint while the robot learns.", gains),
        "payload": Figure(
            "Payload",
            "The links are heavier than the model says, and the estimate contains a part of that. "
            "In a small motion, the estimator takes a part of the payload for offsets of the torques.",
            [payload],
        ),
    }
