"""A robot in the loop: what the agent takes of each control period, next to MuJoCo, with either engine."""

import time
from typing import Any, Literal

import jax
import numpy as np

import selftune as st
from selftune.robots import arm, quadrotor
from selftune.robots.base import Robot

STEPS = {"native": 10_000, "xla": 1_000}


def in_the_loop(robot: Robot, engine: Literal["native", "xla"], steps: int) -> dict[str, np.ndarray]:
    """Microseconds of every `act`, `observe_state` and step of the plant, in the order in which they come."""
    plant = robot.make_plant(robot.conditions[0], 0, steps)
    x = plant.reset()
    start: dict[str, Any] = dict(x=x, theta=robot.theta, a_hat=robot.a_hat, guard=st.Guard(**robot.guard))
    agent = st.Agent(robot.controller(), **start, engine=engine)
    clock = time.perf_counter_ns
    marks = np.zeros((steps, 4), np.int64)
    for t in range(steps):
        begin = clock()
        u = agent.act(x, t)
        acted = clock()
        x = plant.step(u)
        moved = clock()
        agent.observe_state(x)
        marks[t] = begin, acted, moved, clock()
    if plant.crashed or agent.refused:
        raise RuntimeError(f"{robot.name}: expected an orderly run to time")
    act, plant_step, observe = 1e-3 * np.diff(marks, axis=1).T
    return {"act": act, "observe": observe, "agent, both": act + observe, "plant": plant_step}


def main() -> None:
    with jax.enable_x64(True):
        print(f"\nin the loop with MuJoCo, µs{'':22} {'median':>8} {'p99':>8} {'p99.9':>8} {'of the period':>14}")
        # The native ones first: XLA's threads are then not there yet.
        for engine in ("native", "xla"):
            for robot in (arm.make(), quadrotor.make()):
                for name, times in in_the_loop(robot, engine, STEPS[engine]).items():
                    middle, slow, slowest = np.percentile(times, [50, 99, 99.9])
                    share = f"{100e-6 * middle / robot.dt:.2f} %"
                    title = f"{robot.name}, {engine}: {name}"
                    print(f"  {title:46} {middle:8.1f} {slow:8.1f} {slowest:8.1f} {share:>14}")


if __name__ == "__main__":
    main()
