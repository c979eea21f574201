"""`python -m benchmarks.lanes`: batches in vector lanes, on one core, against C by hand and against single runs.

All times are CPU times, so other programs on the machine disturb them less.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

import selftune as st
from selftune.native import loop

from ._by_hand import RECORD, hand_written
from ._measure import interleaved, table
from ._problems import PROBLEMS, Problem

STEPS = {"scalar": 200_000, "pendulum": 40_000, "arm": 20_000, "quadrotor": 5_000}
ROUNDS = 7


@contextmanager
def one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cores)])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def batch(problem: Problem, lanes: int, steps: int, *, stride: int, in_lanes: bool) -> Callable[[], object]:
    """A batch of seeds that records x, θ, â and the cost; one run at a time without `in_lanes`."""
    scenarios = jax.block_until_ready(jax.vmap(lambda seed: problem.scenario(steps, seed))(np.arange(lanes)))

    def simulate(scenario: st.Scenario) -> st.Run:
        start: dict[str, Any] = {"theta": problem.theta, "a_hat": problem.a_hat}
        return st.simulate(problem.controller, scenario, **start, record=RECORD, stride=stride, engine="native")

    def run() -> object:
        limits = loop.MIN_LANES, loop.WORTH_LANES
        loop.MIN_LANES, loop.WORTH_LANES = (2, 0) if in_lanes else (lanes + 1, 0)
        try:
            return jax.block_until_ready(jax.vmap(simulate)(scenarios))
        finally:
            loop.MIN_LANES, loop.WORTH_LANES = limits

    return run


def against_hand_written() -> None:
    problem = PROBLEMS["scalar"]()
    long = 1_000_000
    by_hand, _ = hand_written(problem, problem.scenario(long))
    functions: dict[str, Callable[[], object]] = {"C by hand, one run": by_hand}
    steps = {"C by hand, one run": long}
    for lanes in (64, 512):
        length = STEPS["scalar"] * 64 // lanes
        for stride in (1, 10):
            name = f"{lanes} lanes, one row in {stride}" if stride > 1 else f"{lanes} lanes, every row"
            functions[name] = batch(problem, lanes, length, stride=stride, in_lanes=True)
            steps[name] = lanes * length
    with one_core():
        seconds = interleaved(functions, rounds=ROUNDS, clock=time.process_time)
    table("scalar: time for each step of a lane, float64, one core", seconds, steps, "C by hand, one run")


def against_one_by_one() -> None:
    for name, length in STEPS.items():
        problem = PROBLEMS[name]()
        functions = {
            title: batch(problem, 64, length, stride=10, in_lanes=in_lanes)
            for title, in_lanes in (("64 runs, one by one", False), ("64 runs in lanes", True))
        }
        with one_core():
            seconds = interleaved(functions, rounds=ROUNDS, clock=time.process_time)
        steps = dict.fromkeys(functions, 64 * length)
        table(f"{name}: {length:,} steps, one row in 10, one core", seconds, steps, "64 runs, one by one")


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    against_hand_written()
    against_one_by_one()


if __name__ == "__main__":
    main()
