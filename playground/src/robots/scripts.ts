/** The settings of a robot's panel as a Python script, and as TOML for `selftune run`. */
import numbers from "../controllers/robot_file.json";
import type { Settings, Starts } from "./panel";

const FACTORS: Record<Starts, number> = { soft: 0.1, nominal: 1, stiff: 4 };

/** The numbers of a robot's controller that TOML needs; `robot_controllers.py` writes them. */
export interface ControllerNumbers {
  x0: number[];
  theta_low: number[];
  theta_high: number[];
  a_low: number[];
  a_high: number[];
  a_hat: number[];
  scale: number[];
  learning_rate: number;
  estimator_rate: number;
  guard: Record<string, number | number[]>;
}

/** The condition of the Python plant that is nearest to the sliders. */
function condition(name: "arm" | "quadrotor", { payload, wind, disturbance }: Settings): string {
  if (name === "quadrotor") return wind > 0 ? "wind" : payload > 0 ? "payload" : "calm";
  return disturbance > 0 ? "disturbance" : "payload";
}

export function robotScript(name: "arm" | "quadrotor", values: Settings): string {
  const made = name === "arm" ? "arm.make(links=2)" : "quadrotor.make()";
  const seconds = name === "arm" ? 40 : 24;
  return `"""The ${name} of the playground in MuJoCo. Run it after: pip install 'selftune[robots]'"""

import numpy as np

import selftune as st
from selftune.robots import base, ${name}

robot = ${made}


def make():
    """Return the system; ${name}.toml names this function."""
    return robot.system


def main():
    steps = round(${seconds} / robot.dt)
    theta = robot.detuned(${FACTORS[values.start]})
    for title, tuner in {"tunes itself": None, "fixed gains": st.Fixed()}.items():
        plant = robot.make_plant("${condition(name, values)}", ${values.seed}, steps)
        agent = st.Agent(
            robot.controller(tuner), x=plant.reset(), theta=theta, a_hat=robot.a_hat, guard=st.Guard(**robot.guard)
        )
        run = base.drive(robot, agent, plant, steps, stride=50)
        size = np.linalg.norm(run.error[-robot.lap :], axis=1)
        crashed = ", crashed" if run.crashed else ""
        print(f"{title}: RMS error of the last lap {np.sqrt(np.mean(size**2)):.4f}{crashed}")


if __name__ == "__main__":
    main()
`;
}

export function robotToml(name: string, about: ControllerNumbers, theta: number[]): string {
  const guard = Object.entries(about.guard).map(([key, value]) => `${key} = ${text(value)}`);
  return `# selftune run ${name}.toml
# The ${name} of the playground against its own model. ${name}.py, which the playground also gives, must lie beside this file.

[system]
make = "${name}:make"

[tuner]
name = "MGAPS"
learning_rate = ${about.learning_rate}
constraint = { name = "Box", low = ${text(about.theta_low)}, high = ${text(about.theta_high)} }

[estimator]
name = "GradientEstimator"
learning_rate = ${about.estimator_rate}
preconditioner = ${text(about.scale)}
normalized = true
constraint = { name = "Box", low = ${text(about.a_low)}, high = ${text(about.a_high)} }

[guard]
${guard.join("\n")}

[scenario]
x0 = ${text(about.x0)}
steps = 10_000
a_star = { process = "PiecewiseConstant", period = 2_500, low = ${text(about.a_low.map((low) => 0.2 * low))}, high = ${text(about.a_high.map((high) => 0.2 * high))} }
w = { process = "Gaussian", sigma = 0.0 }

[run]
seeds = 2
theta = ${text(theta)}
a_hat = ${text(about.a_hat)}
stride = 10
record = ["x", "theta", "a_hat", "cost"]
`;
}

export function fileScript(values: Settings): string {
  return `"""A robot from its file, as in the playground. Run it after: pip install 'selftune[robots]'"""

from pathlib import Path

import selftune as st
from selftune import models, policies, robot_rules
from selftune.robots import file_tuning

XML = """${numbers.drawn.trim()}
"""
path = Path(__file__).with_name("bench_arm.xml")
path.write_text(XML)
robot = models.RobotArm.from_file(path, tool="tool")


def make():
    """Return the control loop; file.toml names this function."""
    return st.Loop(robot, policies.ComputedTorque(), noise=robot_rules.measurement_noise(robot))


def main():
    tuned = file_tuning.tune(robot, seconds=20.0, start=${FACTORS[values.start]}, seed=${values.seed}, with_commissioning=False)
    first, last = tuned.rms()
    print("RMS error of each joint in the first lap (rad):", first.round(4))
    print("RMS error of each joint in the last lap (rad): ", last.round(4))


if __name__ == "__main__":
    main()
`;
}

export function fileToml(): string {
  return `# selftune run file.toml
# The robot of the playground against its own model. file.py, which the playground also gives, must lie beside this file.
# The loop in file.py has its own start, tuner, estimator and guard.

[system]
make = "file:make"

[scenario]
steps = 5_000

[run]
seeds = 1
`;
}

const text = (value: number | number[]): string =>
  Array.isArray(value) ? `[${value.join(", ")}]` : `${value}`;
