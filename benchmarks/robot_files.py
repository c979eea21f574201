"""`python -m benchmarks.robot_files`: the times of a robot from a file: first control, a step, and 1 kHz beside MuJoCo.

The robot is a name of `selftune bench arms`, by default the Panda with seven joints, or the path of a file. The agent
is made twice, in a temporary folder: the second time, the compiled program comes from that folder. All times but one
are CPU times in float64, in one process that is bound to one core; the compiler's time is a part of them.

The last row is a race against the clock: control and MuJoCo's physics share the core, at 1000 control periods a second.
It counts the periods that ended late. Other programs on the same core make this number worse.
"""

import argparse
import os
import resource
import tempfile
import time

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

import selftune as st
from selftune import models, policies
from selftune.experiments.arms.run import load
from selftune.robots.file_arm_plant import FileArmPlant

CALLS, ROUNDS = 500, 10


def cpu() -> float:
    """The CPU seconds of this process and of the compilers that it called."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def measure(robot: models.RobotArm, seconds: float) -> None:
    steps = round(seconds / robot.dt)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SELFTUNE_CACHE"] = folder
        for name in ("first control, nothing stored, s", "first control, program stored, s"):
            jax.clear_caches()
            begin = cpu()
            loop = st.Loop(robot, policies.ComputedTorque())
            agent = loop.agent(engine="native")
            plant = FileArmPlant(robot, 0)
            rows = np.asarray(loop.reference.rows(jax.random.key(0), steps, robot.dt, 3 * robot.joints), float)
            agent.act(plant.reset(), reference=rows[0])
            print(f"{name:52} {cpu() - begin:8.1f}", flush=True)
    n, d, p = (ravel_pytree(part)[0].size for part in (loop.x, loop.theta, loop.a_hat))
    print(f"{robot.name}: {n = }, {d = }, {p = }")
    x, best = plant.reset(), np.inf
    for _ in range(ROUNDS):
        begin = time.process_time()
        for t in range(CALLS):
            agent.act(x, reference=rows[t])  # calls observe_state for the last step first
        best = min(best, (time.process_time() - begin) / CALLS)
    print(f"{'act + observe_state, us':52} {1e6 * best:8.1f}", flush=True)
    agent.reset(x=robot.x0, theta=loop.theta, a_hat=loop.a_hat)
    measured, late, own = plant.reset(), 0, time.process_time()
    begin = time.perf_counter()
    for t in range(steps):
        measured = plant.step(agent.act(measured, reference=rows[t]))
        deadline = begin + (t + 1) * robot.dt
        left = deadline - time.perf_counter()
        if left < 0:
            late += 1
            begin -= (
                left  # the clock of the race starts again, so that one late period does not make the next ones late
            )
        else:
            time.sleep(left)
    share = (time.process_time() - own) / (steps * robot.dt)
    print(f"{f'{1 / robot.dt:.0f} Hz beside MuJoCo: CPU time / real time, %':52} {100 * share:8.1f}")
    print(f"{f'{1 / robot.dt:.0f} Hz beside MuJoCo: periods that ended late, %':52} {100 * late / steps:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("robot", nargs="?", default="panda", help="a name of `selftune bench arms`, or a file")
    parser.add_argument("--seconds", type=float, default=20.0, help="the length of the race against the clock")
    given, _ = parser.parse_known_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    jax.config.update("jax_enable_x64", True)
    measure(load(given.robot, dt=0.001), given.seconds)


if __name__ == "__main__":
    main()
