"""All runs of one robot and seed: learning and fixed gains from each start, and the best static gains."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree

from ...control import result_codes
from ...loop import robot_rules
from ...loop.control_loop import Loop
from ...models.robot_arm import RobotArm
from ...policies.computed_torque import ComputedTorque
from ...realtime.agent import Agent
from ...robots.file_arm_plant import FileArmPlant
from ...robots.file_tuning import Drive, drive
from .run import ALGORITHMS, FIXED, STATIC, TUNED, Settings

CRASHED = 1e3
"""The cost that the search gives to gains with which the robot crashes."""


def fill_arrays(settings: Settings, robot: RobotArm, seed: int, arrays: dict[str, np.ndarray]) -> None:
    with jax.enable_x64(True):
        loop = Loop(robot, ComputedTorque())
        agent = loop.agent()
        work = _Work(settings, robot, loop, agent, seed)
        ends = []
        for s, factor in enumerate(settings.starts):
            theta = loop.constraint.project(robot_rules.detuned(loop.theta, factor))
            for algorithm in (TUNED, FIXED):
                made = work.run(theta, learns=algorithm == TUNED)
                work.store(arrays, (s, ALGORITHMS.index(algorithm)), made)
                if algorithm == TUNED and not made.crashed:
                    ends.append(made.last_theta)
        best, tried = work.search([loop.theta, *ends])
        made = work.run(best, learns=False)
        for s in range(len(settings.starts)):
            work.store(arrays, (s, ALGORITHMS.index(STATIC)), made)
        arrays["payload"][:] = robot_rules.payloads(robot)
        arrays["tried"][...] = tried


class _Work:
    def __init__(self, settings: Settings, robot: RobotArm, loop: Loop, agent: Agent, seed: int):
        self.settings, self.robot, self.loop, self.agent, self.seed = settings, robot, loop, agent, seed
        self.steps = round(settings.seconds / robot.dt)

    def run(self, theta: Any, *, learns: bool, steps: int | None = None) -> Drive:
        """Run from home with these start gains; the estimator always learns."""
        steps = self.steps if steps is None else steps
        self.agent.reset(x=self.robot.x0, theta=theta, a_hat=self.loop.a_hat)
        if learns:
            self.agent.resume()
        else:
            self.agent.freeze()
        return drive(self.loop, self.agent, FileArmPlant(self.robot, self.seed, payload_step=steps // 2), steps)

    def search(self, candidates: list[Any]) -> tuple[Any, int]:
        """Return the best of the candidates and of the gains that COBYQA finds from the best candidate."""
        short = min(self.steps, round(self.settings.short / self.robot.dt))
        flat, unravel = ravel_pytree(self.loop.theta)
        low, high = (np.asarray(ravel_pytree(bound)[0]) for bound in self.loop.constraint.bounds(self.loop.theta))
        seen: list[tuple[float, np.ndarray]] = []

        def cost(v: np.ndarray) -> float:
            made = self.run(unravel(jnp.asarray(np.clip(v, low, high), flat.dtype)), learns=False, steps=short)
            seen.append((CRASHED if made.crashed else float(np.mean(made.cost)), np.clip(v, low, high)))
            return float(np.log(seen[-1][0]))

        starts = [np.asarray(ravel_pytree(one)[0], float) for one in candidates]
        costs = [cost(one) for one in starts]
        left = self.settings.tries - len(starts)
        if left > 0:
            bounds: Any = list(zip(low, high, strict=True))
            options = {"maxfev": left, "initial_tr_radius": 0.3}
            scipy.optimize.minimize(
                cost, starts[int(np.argmin(costs))], method="COBYQA", bounds=bounds, options=options
            )
        # The best few, over the whole run.
        finals = [one[1] for one in sorted(seen, key=lambda one: one[0])[:2]] + starts
        whole = [self._whole(unravel(jnp.asarray(v, flat.dtype))) for v in finals]
        return unravel(jnp.asarray(finals[int(np.argmin(whole))], flat.dtype)), len(seen)

    def _whole(self, theta: Any) -> float:
        made = self.run(theta, learns=False)
        return CRASHED if made.crashed else float(np.mean(made.cost[3 * len(made.cost) // 4 :]))

    def store(self, arrays: dict[str, np.ndarray], at: tuple[int, int], made: Drive) -> None:
        rows = self.settings.rows
        arrays["result_code"][at] = result_codes.DIVERGED if made.crashed else result_codes.OK
        if made.crashed:
            return
        arrays["cost"][at] = [part.mean() for part in np.array_split(made.cost, rows)]
        arrays["mean_cost"][at] = made.cost.mean()
        quarter = 3 * len(made.cost) // 4
        arrays["last_cost"][at] = made.cost[quarter:].mean()
        scales = np.array([signal.scale for signal in self.robot.outputs[: self.robot.joints]])
        arrays["error"][at] = np.sqrt(np.mean((made.error[quarter:] / scales) ** 2))
        half = len(made.a_hat) // 2
        arrays["estimate"][at] = made.a_hat[half - 1, 0], made.a_hat[-1, 0]
