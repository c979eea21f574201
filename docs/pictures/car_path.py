"""A car of `selftune.robots` on its circle: its last lap with gains that are too low, and after it has tuned itself.

The car is simulated by MuJoCo, with tyres, lags and noise that the model does not know. Deviations from the circle are
drawn ten times as large as they are.
"""

import logging

import numpy as np

import selftune as st
from selftune.robots import car
from selftune.robots.base import drive

from .svg import Colours, Drawing

LAPS, LARGER, PIXELS = 30, 10.0, 115.0


def laps() -> dict[str, tuple[np.ndarray, float]]:
    """The path of the last lap, (points, 2) in metres, and its root mean square error in centimetres."""
    logging.getLogger("selftune").setLevel(logging.ERROR)  # the guard limits the first steps
    robot = car.make()
    steps = LAPS * robot.lap
    found = {}
    for name, tuner in {"first gains": st.Fixed(), "tuned": st.GaussNewton(constraint=robot.theta_box)}.items():
        plant = robot.make_plant("grip", 0, steps)
        controller = robot.controller(tuner, st.AutoEstimator(constraint=robot.a_box))
        guard, theta = st.Guard(**robot.guard), robot.detuned(0.25)
        agent = st.Agent(controller, x=plant.reset(), theta=theta, a_hat=robot.a_hat, guard=guard)
        made = drive(robot, agent, plant, steps, stride=100)
        error = made.error[-robot.lap :]
        found[name] = floor(error[::4], robot.lap), 100 * float(np.sqrt(np.mean(np.sum(error**2, axis=1))))
    return found


def floor(error: np.ndarray, lap: int) -> np.ndarray:
    """The positions on the floor, with enlarged deviations, from the deviations along and across the path."""
    x, y, heading, _ = np.array([car.reference(t) for t in np.linspace(0, lap, len(error), endpoint=False)]).T
    along, across = LARGER * error.T
    sine, cosine = np.sin(heading), np.cos(heading)
    return np.stack([x + along * cosine - across * sine, y + along * sine + across * cosine], axis=1)


def draw(colours: Colours, found: dict[str, tuple[np.ndarray, float]]) -> Drawing:
    picture = Drawing(860, 500, "A car on its circle, with its first gains and after it has tuned itself", colours)
    shown = zip(found.items(), (230, 630), (colours.orange, colours.blue), strict=True)
    for (name, (lap, error)), centre, colour in shown:
        picture.text(centre, 30, f"{name}: error {error:.1f} cm", size=16, colour=colour, bold=True)
        picture.raw(
            f'<circle cx="{centre}" cy="260" r="{car.RADIUS * PIXELS:g}" fill="none" stroke="{colours.muted}" '
            'stroke-dasharray="5 4"/>'
        )
        points = [(centre + PIXELS * x, 260 - PIXELS * y) for x, y in lap]
        picture.line(points, colour=colour)
        path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        moves = f'<animateMotion dur="4.8s" repeatCount="indefinite" path="{path}"/>'
        picture.raw(f'<circle r="8" fill="{colour}">{moves}</circle>')
    remark = f"lap {LAPS}; deviations from the circle are drawn {LARGER:.0f} times as large"
    picture.text(430, 485, remark, size=14, colour=colours.muted)
    return picture
