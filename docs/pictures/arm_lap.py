"""An arm of `selftune.robots`: a lap with its first gains and nothing learned, and a lap after learning.

MuJoCo simulates the arm, with friction, slower motors, noise and a payload that the model does not know. The errors of
the joints are drawn five times as large as they are. The grey arm shows the wanted motion.
"""

import logging

import numpy as np

import selftune as st
from selftune.robots import arm
from selftune.robots.base import drive

from .svg import Colours, Drawing

LAPS, LARGER, PIXELS, EVERY = 15, 5.0, 330.0, 10
LENGTHS = arm.ARMS[2].lengths


def laps() -> dict[str, tuple[np.ndarray, np.ndarray, float]]:
    """The wanted angles and the errors of the last lap, (steps, 2) in degrees, and the tool's RMS error in mm."""
    logging.getLogger("selftune").setLevel(logging.ERROR)  # the guard limits the first steps
    robot = arm.make(2)
    steps, found = LAPS * robot.lap, {}
    learning = st.GaussNewton(constraint=robot.theta_box), st.AutoEstimator(constraint=robot.a_box)
    for name, parts in {"without learning": (st.Fixed(), st.Frozen()), "after learning": learning}.items():
        plant = robot.make_plant("payload", 0, steps)
        controller = robot.controller(*parts)
        guard, theta = st.Guard(**robot.guard), robot.detuned(0.25)
        agent = st.Agent(controller, x=plant.reset(), theta=theta, a_hat=robot.a_hat, guard=guard)
        made = drive(robot, agent, plant, steps, stride=100)
        angles, error = made.x[-robot.lap :, :2], made.error[-robot.lap :]
        apart = np.linalg.norm(tool(angles) - tool(angles - error), axis=1)
        found[name] = np.degrees(angles - error), np.degrees(error), 1000 * float(np.sqrt(np.mean(apart**2)))
    return found


def tool(angles: np.ndarray) -> np.ndarray:
    """The position of the tool in metres, from the angles of the joints; the arm hangs down at 0."""
    from_down = np.cumsum(angles, axis=1)
    return np.stack([np.sin(from_down) @ LENGTHS, -np.cos(from_down) @ LENGTHS], axis=1)


def moving(angles: np.ndarray, colour: str, width: float, opacity: float) -> str:
    """Two links that turn about the shoulder and the elbow. The arm hangs down at 0; a positive angle lifts it to the
    right."""
    upper, fore = (PIXELS * length for length in LENGTHS)
    turns = [
        f'<animateTransform attributeName="transform" type="rotate" dur="{arm.LAP * arm.DT:g}s" '
        f'repeatCount="indefinite" values="{";".join(f"{-angle:.2f}" for angle in column)}"/>'
        for column in angles.T
    ]
    link = f'stroke="{colour}" stroke-width="{width:g}" stroke-linecap="round"'
    return (
        f'<g opacity="{opacity:g}"><g>{turns[0]}<line x1="0" y1="0" x2="0" y2="{upper:g}" {link}/>'
        f'<g transform="translate(0 {upper:g})"><g>{turns[1]}<line x1="0" y1="0" x2="0" y2="{fore:g}" {link}/>'
        f'<circle cx="0" cy="{fore:g}" r="{0.9 * width:g}" fill="{colour}"/></g></g></g></g>'
    )


def draw(colours: Colours, found: dict[str, tuple[np.ndarray, np.ndarray, float]]) -> Drawing:
    picture = Drawing(860, 430, "An arm without learning and after learning", colours)
    shown = zip(found.items(), (120, 540), (colours.orange, colours.blue), strict=True)
    for (name, (wanted, error, millimetres)), centre, colour in shown:
        picture.text(
            centre + 90, 30, f"{name}: error of the tool {millimetres:.0f} mm", size=16, colour=colour, bold=True
        )
        picture.raw(f'<g transform="translate({centre} 140)">')
        picture.raw(moving(wanted[::EVERY], colours.muted, 16, 0.35))
        picture.raw(moving((wanted + LARGER * error)[::EVERY], colour, 8, 1.0))
        picture.raw("</g>")
    remark = f"lap {LAPS}, the payload grew in the middle of the run; errors are drawn {LARGER:.0f} times as large"
    picture.text(430, 415, remark, size=14, colour=colours.muted)
    return picture
