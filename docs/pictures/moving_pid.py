"""The moving picture of the README: a PI controller that tunes itself, beside the same one with its first gains."""

from functools import cache

import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune import models, policies

from .svg import Colours, Drawing

STEPS, DT, EVERY = 9_000, 0.01, 15
LEFT, RIGHT = 60, 800

loop = st.Loop(
    plant=models.Delayed(models.FirstOrder(gain=2.0, time_constant=0.5, dt=DT), samples=10),
    policy=policies.PID(kp=0.1, ki=0.1, u_min=-10.0, u_max=10.0),
    cost=st.Tracking(error=1.0, effort=0.001),
    reference=st.references.Square(6.0, low=0.0, high=1.0),
)


@cache
def runs() -> tuple[st.Run, st.Run]:
    fixed = loop.controller(tuner=st.Fixed())
    return loop.simulate(STEPS, seed=0), loop.simulate(STEPS, seed=0, controller=fixed)


def points(values, low: float, high: float, top: float, bottom: float) -> list[tuple[float, float]]:
    values = np.asarray(values, float)
    x = np.linspace(LEFT, RIGHT, len(values))
    y = bottom - (values - low) / (high - low) * (bottom - top)
    return list(zip(x, np.clip(y, top - 12, bottom), strict=True))


def draw(colours: Colours) -> Drawing:
    tuned, fixed = runs()
    picture = Drawing(
        860, 440, "A PI controller that tunes itself, and the same controller with its first gains", colours
    )
    reveal = (
        f'<clipPath id="reveal"><rect x="0" y="0" width="860" height="440"><animate attributeName="width" '
        f'values="{LEFT};{RIGHT + 5};860;860" keyTimes="0;0.75;0.76;1" dur="12s" '
        'repeatCount="indefinite"/></rect></clipPath>'
    )
    picture.raw(reveal)
    clip = 'clip-path="url(#reveal)"'

    picture.text(LEFT, 26, "output", size=16, anchor="start", bold=True)
    picture.text(LEFT + 80, 26, "with the first gains", size=14, colour=colours.orange, anchor="start")
    picture.text(LEFT + 225, 26, "tuning itself", size=14, colour=colours.blue, anchor="start")
    picture.text(LEFT + 325, 26, "reference", size=14, colour=colours.muted, anchor="start")
    upper = (-0.15, 1.2, 46, 250)
    picture.line(points(tuned.reference[::EVERY, 0], *upper), colour=colours.muted, width=1.4, dashed=True)
    picture.line(points(fixed.x[::EVERY, 0], *upper), colour=colours.orange, width=1.8, more=clip)
    picture.line(points(tuned.x[::EVERY, 0], *upper), colour=colours.blue, width=2.2, more=clip)

    picture.text(LEFT, 282, "gains", size=16, anchor="start", bold=True)
    lower = (0.0, 2.5, 296, 400)
    for name, colour in (("kp", colours.blue), ("ki", colours.green)):
        gains = jnp.exp(tuned.theta[f"log_{name}"][:: 4 * EVERY])
        line = points(gains, *lower)
        picture.line(line, colour=colour, width=2.2, more=clip)
        place = line[-1][1] + (1 if name == "kp" else 13)  # both gains end so near each other that the names overlap
        picture.text(RIGHT + 10, place, f"{name} {float(gains[-1]):.1f}", size=14, colour=colour, anchor="start")
    picture.line([(LEFT, 400), (RIGHT, 400)], colour=colours.muted, width=1)
    for seconds in range(0, 91, 15):
        picture.text(LEFT + (RIGHT - LEFT) * seconds / 90, 420, f"{seconds} s", size=13, colour=colours.muted)
    return picture
