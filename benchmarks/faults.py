"""Faults of every kind, at random, on robots that learn: does the cost come back? `python -m benchmarks.faults`"""

import argparse
import collections
import itertools
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

import selftune as st
from selftune.robots import arm, car, quadrotor
from selftune.robots.base import Robot
from selftune.robots.faults import KINDS, SENSOR, Fault, Faulty

LAPS_LEARNED, LAPS_BEFORE, LAPS_AFTER, LAPS_JUDGED = 12, 3, 5, 2
FAST = "learning rate"
"""Not of the plant: the learning rate becomes a hundred times too large, and stays so."""
ROBOTS = {"arm": arm.make, "quadrotor": quadrotor.make, "car": car.make}
LONGEST = {"arm2": 0.3, "quadrotor": 0.06, "car": 0.3}
"""Seconds for which a sensor may fail. A quadrotor that does not know its attitude for longer falls with any gains."""
SENSED = {"arm2": 4, "quadrotor": 12, "car": 6}
CALM = {"arm2": "nominal", "quadrotor": "calm", "car": "grip"}


@dataclass(frozen=True)
class Outcome:
    """One case: costs a step of the laps before the fault and of the last ones, and what must never be."""

    robot: str
    kind: str
    seed: int
    steps: int
    before: float
    after: float
    crashed: bool
    finite: bool
    inside: bool
    rollbacks: int

    @property
    def recovered(self) -> bool:
        return not self.crashed and self.after <= 1.2 * self.before


class Bench:
    """A robot with its agents, compiled once and set back for each case."""

    def __init__(self, robot: Robot, *, guarded: bool = True):
        guard = st.Guard(**robot.guard) if guarded else st.Guard(rate=None, y_limit=None, authority=None, rollback=None)
        plant = robot.make_plant(robot.conditions[0], 0, 10)
        self._start: dict[str, Any] = dict(x=plant.reset(), theta=robot.theta, a_hat=robot.a_hat, guard=guard)
        self.robot = robot
        self.agent = self._agent(1)
        self.start = self._learned()
        self.cost = jax.jit(jax.vmap(robot.system.cost, in_axes=(0, 0, None, 0)))

    def _agent(self, times: float) -> st.Agent:
        tuner = st.MGAPS(times * self.robot.learning_rate, constraint=self.robot.theta_box)
        return st.Agent(self.robot.controller(tuner), **self._start)

    def _learned(self) -> Any:
        """The agent's state when it has settled, on a plant of its own: so that "before" is not on the way there."""
        plant = self.robot.make_plant(CALM[self.robot.name], 10**6, 10**9)
        x = plant.reset()
        for t in range(LAPS_LEARNED * self.robot.lap):
            x = plant.step(self.agent.act(x, t))
            self.agent.observe_state(x)
        return self.agent._machine.state()

    @cached_property
    def fast(self) -> st.Agent:
        return self._agent(100)

    def case(self, kind: str, seed: int) -> Outcome:
        robot, draw = self.robot, np.random.default_rng([seed, KINDS.index(kind) if kind in KINDS else 99])
        seconds = draw.uniform(0, LONGEST[robot.name]) if kind in SENSOR else 0.5
        steps = max(1, round(seconds / robot.dt))
        begin = LAPS_BEFORE * robot.lap + int(draw.integers(robot.lap))
        condition = "payload" if kind == "payload" else CALM[robot.name]
        plant = robot.make_plant(condition, seed, 0 if kind == "payload" else 10**9)
        if kind != FAST:
            plant = Faulty(plant, Fault(kind, begin, steps, seed), SENSED[robot.name])
        agent = self.agent
        agent._machine.set_state(self.start)
        x, rows, us = plant.reset(), [], []
        finite = inside = True
        low, high = np.asarray(robot.theta_box.low) - 1e-12, np.asarray(robot.theta_box.high) + 1e-12
        for t in range(begin + LAPS_AFTER * robot.lap):
            if kind == FAST and t == begin:
                self.fast._machine.set_state(agent._machine.state())
                agent = self.fast
            rows.append(plant.truth)
            u = agent.act(x, t)
            us.append(u)
            finite &= bool(np.all(np.isfinite(u)))
            if t % 25 == 0:
                inside &= bool(np.all((agent.theta >= low) & (agent.theta <= high)))
            x = plant.step(u)
            agent.observe_state(x)
            if plant.crashed:
                break
        cost = np.asarray(self.cost(np.array(rows), np.array(us), robot.theta, np.arange(len(rows))))
        judged = LAPS_JUDGED * robot.lap
        before, after = cost[begin - judged : begin].mean(), cost[-judged:].mean()
        window = agent._machine.state().guard.window
        return Outcome(
            robot.name,
            kind,
            seed,
            steps,
            float(before),
            float(after),
            plant.crashed,
            finite,
            inside,
            0 if window is None else int(window.rollbacks),
        )


def campaign(cases: int, names: Iterable[str] = tuple(ROBOTS), *, guarded: bool = True) -> list[Outcome]:
    """`cases` in all, over robots and kinds in turn."""
    logging.getLogger("selftune").setLevel(logging.ERROR)
    benches = [Bench(ROBOTS[name](), guarded=guarded) for name in names]
    pairs = list(itertools.product((*KINDS, FAST), benches))
    return [pairs[i % len(pairs)][1].case(pairs[i % len(pairs)][0], i // len(pairs)) for i in range(cases)]


def table(outcomes: list[Outcome]) -> str:
    groups = collections.defaultdict(list)
    for one in outcomes:
        groups[one.robot, one.kind].append(one)
    lines = [
        f"{'robot':<10} {'fault':<14} {'cases':>5} {'recovered':>9} {'crashed':>7} {'median ratio':>12} {'worst':>7}"
    ]
    for (robot, kind), ones in sorted(groups.items()):
        ratios = sorted(one.after / one.before for one in ones)
        lines.append(
            f"{robot:<10} {kind:<14} {len(ones):>5} {sum(one.recovered for one in ones):>9} "
            f"{sum(one.crashed for one in ones):>7} {ratios[len(ratios) // 2]:>12.3f} {ratios[-1]:>7.2f}"
        )
    share = sum(one.recovered for one in outcomes) / len(outcomes)
    kept = all(one.finite and one.inside for one in outcomes)
    return "\n".join([*lines, f"{share:.1%} of {len(outcomes)} recovered; every u finite and every θ in Θ: {kept}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=54, help="two of each kind and robot by default")
    parser.add_argument("--unguarded", action="store_true", help="without rate limit, bound on y, authority, rollback")
    parser.add_argument("--robot", choices=sorted(ROBOTS))
    given = parser.parse_args()
    begin = time.perf_counter()
    with jax.enable_x64(True):
        outcomes = campaign(given.cases, [given.robot] if given.robot else ROBOTS, guarded=not given.unguarded)
    print(table(outcomes))
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
