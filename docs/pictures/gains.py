"""Gains that converge: the loop of the moving picture from six different starts, in the plane of its two gains."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import selftune as st

from .moving_pid import loop
from .svg import Colours, Drawing

STEPS, EVERY = 30_000, 100
STARTS = ((0.1, 0.1), (0.1, 4.0), (0.4, 0.1), (3.0, 0.15), (2.5, 5.0), (0.3, 1.0))
LEFT, RIGHT, TOP, BOTTOM = 80, 620, 40, 400
LOW, HIGH = 0.05, 10.0


def place(kp: Any, ki: Any) -> tuple[Any, Any]:
    """The pixels of a pair of gains, on logarithmic axes."""
    x, y = (np.log(np.asarray(gain) / LOW) / np.log(HIGH / LOW) for gain in (kp, ki))
    return LEFT + x * (RIGHT - LEFT), BOTTOM - y * (BOTTOM - TOP)


def paths() -> list[tuple[np.ndarray, np.ndarray]]:
    """The gains over 300 s, for each start."""
    controller, found = loop.controller(), []
    for kp, ki in STARTS:
        start = {"log_kp": jnp.log(jnp.asarray(kp)), "log_ki": jnp.log(jnp.asarray(ki))}
        run: st.Run = loop.simulate(STEPS, seed=0, controller=controller, theta=start, record=("theta",), stride=EVERY)
        found.append((np.exp(run.theta["log_kp"]), np.exp(run.theta["log_ki"])))
    return found


def draw(colours: Colours, found: list[tuple[np.ndarray, np.ndarray]]) -> Drawing:
    picture = Drawing(660, 460, "The gains of one loop from six starts: all paths end at the same gains", colours)
    for gain in (0.1, 1.0, 10.0):
        (x, _), (_, y) = place(gain, LOW), place(LOW, gain)
        picture.line([(x, TOP), (x, BOTTOM)], colour=colours.muted, width=0.5)
        picture.line([(LEFT, y), (RIGHT, y)], colour=colours.muted, width=0.5)
        picture.text(x, BOTTOM + 20, f"{gain:g}", size=13, colour=colours.muted)
        picture.text(LEFT - 10, y + 4, f"{gain:g}", size=13, colour=colours.muted, anchor="end")
    picture.text((LEFT + RIGHT) / 2, BOTTOM + 45, "kp", bold=True)
    picture.text(LEFT - 45, (TOP + BOTTOM) / 2, "ki", bold=True)
    for (kp, ki), (start_kp, start_ki) in zip(found, STARTS, strict=True):
        picture.line(list(zip(*place(kp, ki), strict=True)), colour=colours.blue, width=1.8)
        x, y = place(start_kp, start_ki)
        picture.raw(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colours.orange}"/>')
        x, y = place(kp[-1], ki[-1])
        picture.raw(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colours.green}"/>')
    picture.text(RIGHT, 24, "after 300 s", size=14, colour=colours.green, anchor="end")
    picture.text(RIGHT - 100, 24, "start", size=14, colour=colours.orange, anchor="end")
    return picture
