"""`python -m benchmarks.tuned_margins`: the margins of tuned gains, and the cost of gains with larger margins.

Each robot learns for 40 s from a quarter of the gains of the rules, on the plant of `selftune tune` with seed 0,
without commissioning. Then `Loop.back_off` looks for gains with margins, and each θ drives 8 s with the heavy payload;
the last 4 s count. The robots are names of `selftune bench arms`, or files.
"""

import argparse

import jax
import numpy as np

import selftune as st
from selftune import policies, robot_rules
from selftune.experiments.arms.run import load
from selftune.robots.file_arm_plant import FileArmPlant
from selftune.robots.file_tuning import drive

WANTED = ((1.5, 20.0), (2.0, 30.0))
SECONDS, LAP = 40.0, 4.0


def measure(name: str) -> None:
    robot = load(name)
    loop = st.Loop(robot, policies.ComputedTorque())
    agent, payload = loop.agent(), robot_rules.payloads(robot)
    steps, half = round(SECONDS / robot.dt), round(LAP / robot.dt)
    start = loop.constraint.project(robot_rules.detuned(loop.theta, 0.25))
    agent.reset(x=robot.x0, theta=start, a_hat=loop.a_hat)
    agent.resume()
    run = drive(loop, agent, FileArmPlant(robot, 0, payload=payload, payload_step=steps // 2), steps)

    def cost(theta: object) -> float:
        agent.reset(x=robot.x0, theta=theta, a_hat=run.last_a_hat)
        agent.freeze()
        plant = FileArmPlant(robot, 0, payload=(payload[1], payload[1]))
        return float(np.mean(drive(loop, agent, plant, 2 * half).cost[half:]))

    tuned = cost(run.last_theta)
    print(f"{robot.name}: tuned gains, {loop.margins(run.last_theta)}")
    for gain, phase in WANTED:
        theta = loop.back_off(run.last_theta, gain_margin=gain, phase_margin=phase)
        print(f"  with margins of {gain:g} and {phase:g}°: cost × {cost(theta) / tuned:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("robots", nargs="*", default=["ur5e", "panda"])
    given, _ = parser.parse_known_args()
    with jax.enable_x64(True):
        for name in given.robots:
            measure(name)


if __name__ == "__main__":
    main()
