"""Faults of every kind, at random, on robots that learn: does the cost come back? `python -m benchmarks.faults`"""

import argparse
import collections
import itertools
import logging
import multiprocessing
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

import selftune as st
from selftune.robots import arm, car, quadrotor
from selftune.robots.base import Plant, Robot
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
    twin: float
    """Of the last laps too, of the same robot on the same floor and in the same noise, without the fault."""
    crashed: bool
    finite: bool
    inside: bool
    rollbacks: int

    @property
    def ratio(self) -> float:
        """To the twin, and not to the laps before: on a rough floor one lap costs 20 % more than another."""
        return self.after / self.twin

    @property
    def recovered(self) -> bool:
        return not self.crashed and self.ratio <= 1.2


class Bench:
    """A robot in service: gains that were tuned before, an agent that goes on tuning; compiled once."""

    def __init__(self, robot: Robot, *, guarded: bool = True):
        guard = st.Guard(**robot.guard) if guarded else st.Guard(rate=None, y_limit=None, authority=None, rollback=None)
        self.robot, self._guard = robot, guard
        self._x = robot.make_plant(robot.conditions[0], 0, 10).reset()
        first = self._agent(1, robot.theta, robot.a_hat)
        plant = robot.make_plant(CALM[robot.name], 10**6, 10**9)
        x = plant.reset()
        for t in range(LAPS_LEARNED * robot.lap):
            x = plant.step(first.act(x, t))
            first.observe_state(x)
        tuned: tuple[Any, Any] = first.theta, first.a_hat
        self.agent, self.fast = self._agent(1, *tuned), self._agent(100, *tuned)
        self._start = self.agent.state
        self._cost = jax.jit(jax.vmap(robot.system.cost, in_axes=(0, 0, None, 0)))
        self._twins: dict[tuple[str, int], np.ndarray] = {}

    def _agent(self, times: float, theta: Any, a_hat: Any) -> st.Agent:
        tuner = st.MGAPS(times * self.robot.learning_rate, constraint=self.robot.theta_box)
        return st.Agent(self.robot.controller(tuner), x=self._x, theta=theta, a_hat=a_hat, guard=self._guard)

    def case(self, kind: str, seed: int) -> Outcome:
        robot, draw = self.robot, np.random.default_rng([seed, KINDS.index(kind) if kind in KINDS else 99])
        seconds = draw.uniform(0, LONGEST[robot.name]) if kind in SENSOR else 0.5
        steps = max(1, round(seconds / robot.dt))
        begin = LAPS_BEFORE * robot.lap + int(draw.integers(robot.lap))
        end, judged = begin + LAPS_AFTER * robot.lap, LAPS_JUDGED * robot.lap
        condition = "payload" if kind == "payload" else CALM[robot.name]
        if (condition, seed) not in self._twins:
            whole = self._drive(self._plant(condition, seed), (LAPS_BEFORE + 1 + LAPS_AFTER) * robot.lap)
            self._twins[condition, seed] = whole.cost
        plant = self._plant(condition, seed)
        if kind != FAST:
            plant = Faulty(plant, Fault(kind, begin, steps, seed), SENSED[robot.name])
        drive = self._drive(plant, end, begin if kind == FAST else None)
        return Outcome(
            robot.name,
            kind,
            seed,
            steps,
            before=float(drive.cost[begin - judged : begin].mean()),
            after=float(drive.cost[-judged:].mean()),
            twin=float(self._twins[condition, seed][end - judged : end].mean()),
            crashed=plant.crashed,
            finite=drive.finite,
            inside=drive.inside,
            rollbacks=drive.rollbacks,
        )

    def _plant(self, condition: str, seed: int) -> Plant:
        return self.robot.make_plant(condition, seed, 0 if condition == "payload" else 10**9)

    def _drive(self, plant: Plant, steps: int, fast_from: int | None = None) -> "_Drive":
        robot, agent = self.robot, self.agent
        agent.state = self._start
        x, rows, us = plant.reset(), [], []
        finite = inside = True
        state: Any = self._start
        for t in range(steps):
            if t == fast_from:
                self.fast.state = agent.state
                agent = self.fast
            rows.append(plant.truth)
            u = agent.act(x, t)
            us.append(u)
            finite &= bool(np.isfinite(u).all())
            x = plant.step(u)
            agent.observe_state(x)
            state = agent.state
            inside &= _is_inside(robot.theta_box, state.theta) and _is_inside(robot.a_box, state.a_hat)
            if plant.crashed:
                break
        cost = np.asarray(self._cost(np.array(rows), np.array(us), robot.theta, np.arange(len(rows))))
        window = state.guard.window
        return _Drive(cost, finite, inside, 0 if window is None else int(window.rollbacks))


@dataclass(frozen=True)
class _Drive:
    cost: np.ndarray
    finite: bool
    inside: bool
    rollbacks: int


def _is_inside(box: st.Box, value: np.ndarray) -> bool:
    return bool(((value >= np.asarray(box.low) - 1e-12) & (value <= np.asarray(box.high) + 1e-12)).all())


@cache
def _bench(name: str, guarded: bool) -> Bench:
    logging.getLogger("selftune").setLevel(logging.ERROR)
    return Bench(ROBOTS[name](), guarded=guarded)


def _case(name: str, kind: str, seed: int, guarded: bool) -> Outcome:
    with jax.enable_x64(True):
        return _bench(name, guarded).case(kind, seed)


def campaign(cases: int, names: Iterable[str] = tuple(ROBOTS), *, guarded: bool = True) -> list[Outcome]:
    """`cases` in all, over kinds and robots in turn, on every core."""
    pairs = list(itertools.product((*KINDS, FAST), names))
    drawn = [(name, kind, i // len(pairs)) for i, (kind, name) in zip(range(cases), itertools.cycle(pairs))]
    # A robot's cases of one seed follow each other: they share a twin.
    drawn.sort(key=lambda case: (case[0], case[2]))
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        columns = zip(*drawn, strict=True)
        return list(pool.map(_case, *columns, [guarded] * cases, chunksize=len(KINDS) + 1))


def table(outcomes: list[Outcome]) -> str:
    groups = collections.defaultdict(list)
    for one in outcomes:
        groups[one.robot, one.kind].append(one)
    lines = [
        f"{'robot':<10} {'fault':<14} {'cases':>5} {'recovered':>9} {'crashed':>7} {'median ratio':>12} {'worst':>7}"
    ]
    for (robot, kind), ones in sorted(groups.items()):
        ratios = sorted(one.ratio for one in ones)
        lines.append(
            f"{robot:<10} {kind:<14} {len(ones):>5} {sum(one.recovered for one in ones):>9} "
            f"{sum(one.crashed for one in ones):>7} {ratios[len(ratios) // 2]:>12.3f} {ratios[-1]:>7.2f}"
        )
    lines += [
        f"not recovered: {one.robot}, {one.kind}, seed {one.seed}" + (", crashed" if one.crashed else "")
        for one in outcomes
        if not one.recovered
    ]
    share = sum(one.recovered for one in outcomes) / len(outcomes)
    raw = sum(not one.crashed and one.after <= 1.2 * one.before for one in outcomes) / len(outcomes)
    kept = all(one.finite and one.inside for one in outcomes)
    return "\n".join([
        *lines,
        f"{share:.1%} of {len(outcomes)} within 1.2× of a twin without the fault; {raw:.1%} of their own laps before",
        f"every u finite, every θ in Θ and every â in 𝒜: {kept}",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=54, help="two of each kind and robot by default")
    parser.add_argument("--unguarded", action="store_true", help="without rate limit, bound on y, authority, rollback")
    parser.add_argument("--robot", choices=sorted(ROBOTS))
    given = parser.parse_args()
    begin = time.perf_counter()
    outcomes = campaign(given.cases, [given.robot] if given.robot else ROBOTS, guarded=not given.unguarded)
    print(table(outcomes))
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
