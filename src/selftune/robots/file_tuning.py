"""A robot from a file tunes itself in MuJoCo: commissioning, learning with a payload that grows, and the results."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..loop import robot_rules
from ..loop.commissioning import GAIN_MARGIN, PHASE_MARGIN, Commissioned, commission
from ..loop.control_loop import Loop
from ..loop.dry_run import INTERRUPTED
from ..loop.stability import Margins
from ..loop.tracking import JointTracking
from ..models.robot_arm import RobotArm
from ..policies.computed_torque import ComputedTorque
from ..problem.constraints import Box
from ..realtime.agent import Agent
from .file_arm_plant import FileArmPlant, Mismatch

ROWS = 600
"""The number of points over time that a result keeps."""
NEAR = 0.01
"""A gain is at a bound of Θ if its distance is less than this share of the range."""


@dataclass(frozen=True, eq=False)
class Drive:
    """A run of a robot on its plant; row t has the value used at step t. After a crash there are no more rows."""

    x: np.ndarray
    """The true state, (T, 3j)."""
    u: np.ndarray
    reference: np.ndarray
    joint_cost: np.ndarray
    """The cost of each step and joint at the true state, (T, j)."""
    times: np.ndarray
    """The times of the rows of θ, â and payload, in seconds."""
    theta: dict[str, np.ndarray]
    """The gains, each (rows, j)."""
    a_hat: np.ndarray
    payload: np.ndarray
    """The true payload at these times, in kg."""
    decisions: dict[str, int]
    """How often the guard decided what."""
    last_theta: Any
    last_a_hat: Any
    crashed: bool

    @property
    def cost(self) -> np.ndarray:
        """The cost of each step at the true state, (T,): the mean over the joints."""
        return self.joint_cost.mean(axis=1)

    @property
    def error(self) -> np.ndarray:
        """The errors of the joints, (T, j), in rad or m."""
        j = self.u.shape[1]
        return self.x[:, :j] - self.reference[:, :j]


def drive(
    loop: Loop,
    agent: Agent,
    plant: FileArmPlant,
    steps: int,
    *,
    progress: Callable[[int, int], Any] | None = None,
) -> Drive:
    """Let an agent drive a plant from its home position, for `steps` steps or until it crashes."""
    j, dt, every = plant.robot.joints, plant.robot.dt, max(1, steps // ROWS)
    reference = np.asarray(loop.reference.rows(jax.random.key(0), steps + 1, dt, 3 * j), float)
    x, u = np.zeros((steps, 3 * j)), np.zeros((steps, j))
    times, theta, a_hat, payload = [], [], [], []
    decisions: Counter[str] = Counter()
    measured, crashed, done = plant.reset(), False, 0
    for t in range(steps):
        if t % every == 0:
            times.append(t * dt)
            theta.append(agent.theta)
            a_hat.append(np.asarray(agent.a_hat, float))
            payload.append(plant.carried)
            if progress is not None:
                progress(t, steps)
        x[t] = plant.truth
        u[t] = agent.act(measured, reference=reference[t])
        measured = plant.step(u[t])
        if made := agent.decisions:
            decisions.update(str(made).split(", "))
        done = t + 1
        if crashed := plant.has_crashed(reference[t + 1]):
            break
    gains = jax.vmap(loop.gains)(jax.tree.map(lambda *rows: np.stack(rows), *theta))
    return Drive(
        x=x[:done],
        u=u[:done],
        reference=reference[:done],
        joint_cost=np.asarray(_joint_costs(loop.cost, x, u, reference[:-1]))[:done],
        times=np.array(times),
        theta={name: np.asarray(rows, float) for name, rows in gains.items()},
        a_hat=np.array(a_hat),
        payload=np.array(payload),
        decisions=dict(decisions),
        last_theta=jax.tree.map(np.asarray, agent.theta),
        last_a_hat=np.asarray(agent.a_hat, float),
        crashed=crashed,
    )


@eqx.filter_jit
def _joint_costs(cost: JointTracking, x: Any, u: Any, reference: Any) -> Array:
    return jax.vmap(cost.by_joint)(x, u, reference)


class AtBound(NamedTuple):
    """A tuned gain that is at a bound of Θ."""

    gain: str
    joint: str
    value: float
    bound: str
    """ "lowest" or "highest"."""

    def __str__(self) -> str:
        return f"{self.gain} of {self.joint} ({self.value:.3g}, the {self.bound} value)"


@dataclass(frozen=True, eq=False)
class Robustness:
    """The stability margins of the start gains and of the tuned gains, on the model."""

    start: Margins
    tuned: Margins
    safer: Any
    """The nearest gains that `Loop.back_off` finds with a gain margin of 2 and a phase margin of 30°; None if the tuned
    gains have these margins, or if there are none."""
    safer_margins: Margins | None
    safer_cost: float | None
    """The cost of a lap with these gains and the heavy payload, relative to that of the tuned gains."""

    @property
    def faults(self) -> list[str]:
        """What is small about the tuned gains, in words; empty if they have the margins."""
        if not self.tuned.is_stable:
            return ["the loop is unstable on the model"]
        found = []
        if self.tuned.gain_margin < GAIN_MARGIN:
            found.append(f"the gain margin is {self.tuned.gain_margin:.3g}")
        if self.tuned.phase_margin < PHASE_MARGIN:
            found.append(f"the phase margin is {self.tuned.phase_margin:.3g}°")
        return found

    def warning(self) -> str:
        """Return what to know about small margins, and what to do; "" if the margins are large enough."""
        if not self.faults:
            return ""
        text = f"Small margins: with the tuned gains, {' and '.join(self.faults)} on the model, without friction. "
        if self.safer is None:
            return text + "No gains nearby have a gain margin of 2 and a phase margin of 30°."
        text += f"The gains with margins have a gain margin of {GAIN_MARGIN:g} and a phase margin of {PHASE_MARGIN:g}°"
        if self.safer_cost is None:
            return text + ", but the simulated robot crashed with them."
        return text + f", and cost {self.safer_cost:.2f} times as much. Put these on a robot first."


@dataclass(frozen=True, eq=False)
class Tuned:
    """The result of `tune`: the loop, its commissioning, and the runs with the start gains and with learning."""

    robot: RobotArm
    loop: Loop
    start: float
    seconds: float
    seed: int
    payload: tuple[float, float]
    commissioned: Commissioned | None
    before: Drive
    """One lap with the start gains and the heavy payload. θ stays, and the estimator begins with the last parameters of
    the run, so that `before` and `after` differ in the gains alone."""
    run: Drive
    after: Drive
    """The same with the last gains."""
    robustness: Robustness | None
    """None if the robot crashed, or if it did not learn."""

    @property
    def laps(self) -> int:
        """The number of steps of a lap."""
        return round(self.loop.reference.period(self.robot.dt))

    @property
    def units(self) -> dict[str, str]:
        """The units of the gains by name; "1" for a number without a unit."""
        units = {one.name.removeprefix("log ").rstrip(" 0123456789"): one.unit for one in self.loop.policy.parameters}
        return {name: units.get(name.replace("_", " ")) or "1" for name in self.run.theta}

    def at_bounds(self) -> list[AtBound]:
        """Return the tuned gains that are at a bound of Θ."""
        box = self.loop.constraint
        if not isinstance(box, Box):
            return []
        gains = self.loop.gains(self.run.last_theta)
        found = []
        for name in gains:
            key = next(key for key in self.run.last_theta if key.endswith(name))
            low, high, at = (
                np.ravel(np.asarray(part[key], float)) for part in (box.low, box.high, self.run.last_theta)
            )
            for i, link in enumerate(self.robot.body.links):
                for bound, distance in (("lowest", at[i] - low[i]), ("highest", high[i] - at[i])):
                    if distance < NEAR * (high[i] - low[i]):
                        found.append(AtBound(name.replace("_", " "), link.name, float(gains[name][i]), bound))
        return found

    def payload_estimates(self) -> dict[str, float]:
        """Return the estimated payloads at the ends of both halves of the run, in kg, and the true ones."""
        half = len(self.run.times) // 2
        return {
            "light estimate": float(self.run.a_hat[half - 1, 0]),
            "light truth": self.payload[0],
            "heavy estimate": float(self.run.a_hat[-1, 0]),
            "heavy truth": self.payload[1],
        }

    def rms(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the RMS error of each joint in the first and in the last lap of the run, both with learning."""
        error, lap = self.run.error, min(self.laps, len(self.run.error))
        return tuple(np.sqrt(np.mean(part**2, axis=0)) for part in (error[:lap], error[-lap:]))  # type: ignore[return-value]

    def quarters(self) -> np.ndarray:
        """Return the mean cost of a step in each quarter of the run."""
        return np.array([part.mean() for part in np.array_split(self.run.cost, 4)])


def tune(
    robot: RobotArm,
    *,
    seconds: float = 60.0,
    start: float = 0.25,
    payload: tuple[float, float] | None = None,
    seed: int = 0,
    with_commissioning: bool = True,
    mismatch: Mismatch | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Tuned:
    """Tune computed torque for a robot on its plant in MuJoCo; see `selftune tune`.

    The feedback gains start at `start` times the gains of the rules. Halfway, the payload grows from the first to the
    second number (kg). With a no-go of the commissioning, nothing is learned and the result has the reasons.
    """
    arguments.instance("robot", robot, RobotArm)
    seconds = float(arguments.positive("seconds", seconds))
    loop = Loop(robot, ComputedTorque())
    theta = loop.constraint.project(robot_rules.detuned(loop.theta, start))
    payload = robot_rules.payloads(robot) if payload is None else payload
    steps = round(seconds / robot.dt)
    lap = round(loop.reference.period(robot.dt))

    def plant(after: int | None = None, carried: tuple[float, float] = payload) -> FileArmPlant:
        return FileArmPlant(robot, seed, payload=carried, payload_step=after, mismatch=mismatch)

    made = commission(loop, plant(), theta=theta, seed=seed) if with_commissioning else None
    if made is not None and any(INTERRUPTED in reason for reason in made.reasons):
        raise KeyboardInterrupt  # on a real plant, Ctrl-C stops only the dry run; here it stops everything
    is_refused = made is not None and not made.ok
    agent = loop.agent(theta=theta) if made is None or is_refused else made.agent()
    if is_refused:
        agent.freeze()  # the run shows the start gains
    run = drive(loop, agent, plant(steps // 2), steps, progress=progress)

    def lap_with(gains: Any) -> Drive:
        agent.reset(x=robot.x0, theta=gains, a_hat=run.last_a_hat)
        agent.freeze()
        return drive(loop, agent, plant(None, (payload[1], payload[1])), lap)

    before, after = lap_with(theta), lap_with(run.last_theta)
    robustness = None if run.crashed or is_refused else _robustness(loop, theta, run, after, lap_with)
    return Tuned(robot, loop, start, seconds, seed, payload, made, before, run, after, robustness)


def _robustness(loop: Loop, theta: Any, run: Drive, after: Drive, lap_with: Callable[[Any], Drive]) -> Robustness:
    found = loop.margins(run.last_theta)
    safer = margins = cost = None
    if not found.is_stable or found.gain_margin < GAIN_MARGIN or found.phase_margin < PHASE_MARGIN:
        with suppress(ArgumentError):  # there are none
            safer = loop.back_off(run.last_theta, gain_margin=GAIN_MARGIN, phase_margin=PHASE_MARGIN)
    if safer is not None:
        margins, lap = loop.margins(safer), lap_with(safer)
        cost = None if lap.crashed else float(lap.cost.mean() / after.cost.mean())
    return Robustness(loop.margins(theta), found, safer, margins, cost)
