"""All runs of one robot and seed: learning and fixed gains from each start, and the best static gains."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...control import guarded_step, result_codes
from ...control.guarded_step import GuardedState
from ...loop import robot_rules
from ...loop.control_loop import Loop
from ...policies.computed_torque import ComputedTorque
from ...robots.file_arm_plant import FileArmPlant
from ...robots.file_tuning import Drive, drive
from .. import logs
from .run import ALGORITHMS, FIXED, STATIC, TUNED, Settings, load

CRASHED = 1e3
"""The cost that the search gives to gains with which the robot crashes."""
SETTLE, LAPS = 2.0, 1
"""A short run of the search: the seconds that do not count, and the laps that do."""
FIRST_STEP, SHRINK = 0.3, 0.6
"""The search's first step of the logarithms, and its factor after a round."""


def fill_arrays(settings: Settings, robot: str, seed: int, arrays: dict[str, np.ndarray]) -> None:
    with jax.enable_x64(True), logs.errors_alone():
        driver = _driver(robot)
        work = _Work(settings, driver, seed)
        loop, ends = driver.loop, []
        for s, factor in enumerate(settings.starts):
            theta = loop.constraint.project(robot_rules.detuned(loop.theta, factor))
            for algorithm in (TUNED, FIXED):
                made = work.run(theta, learns=algorithm == TUNED)
                work.store(arrays, (s, ALGORITHMS.index(algorithm)), made)
                if algorithm == TUNED and not made.crashed:
                    ends.append(made)
        made, tried = work.best_static(ends)
        for s in range(len(settings.starts)):
            work.store(arrays, (s, ALGORITHMS.index(STATIC)), made)
        arrays["payload"][:] = robot_rules.payloads(driver.robot)
        arrays["tried"][...] = tried


class _Driver:
    """A robot, its loop and its agent, which serve all seeds."""

    def __init__(self, name: str):
        self.robot = robot = load(name)
        self.loop = loop = Loop(robot, ComputedTorque(), noise=robot_rules.measurement_noise(robot))
        self.agent = agent = loop.agent()
        t = agent.state.t

        @jax.jit
        def start(theta: Any, a_hat: Any) -> GuardedState:
            return guarded_step.start(agent.controller, agent.guard, robot.x0, theta, a_hat, t)

        self.start = start  # `agent.reset` checks the whole system, which takes as long as thousands of steps


@lru_cache(maxsize=1)
def _driver(name: str) -> _Driver:
    return _Driver(name)


class _Work:
    def __init__(self, settings: Settings, driver: _Driver, seed: int):
        self.settings, self.driver, self.seed = settings, driver, seed
        self.robot, self.loop = driver.robot, driver.loop
        self.steps = round(settings.seconds / self.robot.dt)
        self.light, self.heavy = robot_rules.payloads(self.robot)

    def run(self, theta: Any, *, learns: bool) -> Drive:
        """Run from home with these start gains; the payload grows halfway. The estimator always learns."""
        plant = FileArmPlant(self.robot, self.seed, payload=(self.light, self.heavy), payload_step=self.steps // 2)
        return self._drive(plant, theta, self.loop.a_hat, self.steps, learns=learns)

    def best_static(self, ends: list[Drive]) -> tuple[Drive, int]:
        """Return the whole run with the best static gains that the search finds, and how many gains it tried.

        The search makes short runs with the heavy payload and with the estimate of a run that has learned. Each joint
        has its own part of the cost, and mostly its own gains decide about it. So one run tries a step for all joints,
        and each joint keeps its step if its own part of the cost falls. The search begins with the rules' gains and
        with those that the learning runs end with. The best of all tried gains make a whole run.
        """
        a_hat = ends[0].last_a_hat if ends else self.loop.a_hat
        names = ("log_frequency", "log_damping")
        seen: list[tuple[float, dict[str, np.ndarray]]] = []

        def parts(theta: dict[str, np.ndarray]) -> np.ndarray:
            theta = jax.tree.map(np.asarray, self.loop.constraint.project(theta))
            cost = self._short(theta, a_hat)
            seen.append((float(cost.mean()), theta))
            return cost

        starts = [
            {name: np.asarray(theta[name], float) for name in names}
            for theta in (self.loop.theta, *(made.last_theta for made in ends))
        ]
        best = starts[0]
        costs = parts(best)
        for other in starts[1:]:
            best, costs = _better(best, costs, other, parts(other))
        step = FIRST_STEP
        while len(seen) + 5 <= self.settings.tries:
            for name in names:
                for sign in (1.0, -1.0):
                    other = best | {name: best[name] + sign * step}
                    best, costs = _better(best, costs, other, parts(other))
            costs = parts(best)  # all joints together
            step *= SHRINK
        return self.run(min(seen, key=lambda one: one[0])[1], learns=False), len(seen)

    def _short(self, theta: Any, a_hat: np.ndarray) -> np.ndarray:
        """Return the cost of each joint in a short run with the heavy payload, (j,)."""
        dt = self.robot.dt
        settle, lap = round(SETTLE / dt), round(self.loop.reference.period(dt))
        plant = FileArmPlant(self.robot, self.seed, payload=(self.heavy, self.heavy))
        made = self._drive(plant, theta, a_hat, settle + LAPS * lap, learns=False)
        if made.crashed:
            return np.full(self.robot.joints, CRASHED)
        return made.joint_cost[settle:].mean(axis=0)

    def _drive(self, plant: FileArmPlant, theta: Any, a_hat: Any, steps: int, *, learns: bool) -> Drive:
        agent = self.driver.agent
        agent.state = self.driver.start(jax.tree.map(jnp.asarray, theta), jnp.asarray(a_hat))
        if learns:
            agent.resume()
        else:
            agent.freeze()
        return drive(self.loop, agent, plant, steps)

    def store(self, arrays: dict[str, np.ndarray], at: tuple[int, int], made: Drive) -> None:
        rows = self.settings.rows
        arrays["result_code"][at] = result_codes.DIVERGED if made.crashed else result_codes.OK
        if made.crashed:
            return
        arrays["cost"][at] = [part.mean() for part in np.array_split(made.cost, rows)]
        arrays["mean_cost"][at] = made.cost.mean()
        quarter = 3 * len(made.cost) // 4
        arrays["last_cost"][at] = _last_quarter(made)
        scales = np.array([signal.scale for signal in self.robot.outputs[: self.robot.joints]])
        arrays["error"][at] = np.sqrt(np.mean((made.error[quarter:] / scales) ** 2))
        half = len(made.a_hat) // 2
        arrays["estimate"][at] = made.a_hat[half - 1, 0], made.a_hat[-1, 0]


def _better(
    best: dict[str, np.ndarray], costs: np.ndarray, other: dict[str, np.ndarray], others: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return for each joint the gains, and their part of the cost, that are better."""
    wins = others < costs
    return {name: np.where(wins, other[name], value) for name, value in best.items()}, np.where(wins, others, costs)


def _last_quarter(made: Drive) -> float:
    return float(np.mean(made.cost[3 * len(made.cost) // 4 :]))
