"""Export the robots of the playground: their controllers, the numbers of their plants, and recorded runs.

Run it from the root of the repository: `python playground/robot_controllers.py`. It writes
`src/controllers/robot_*` and `tests/recorded_robots.json`. It takes some minutes, because the controller of the robot
from its file is large.

The physics of a panel is the plant's own MJCF. The page computes what `selftune.robots` computes around MuJoCo: delay,
noise, wind and payload. So the numbers come from the plants, and the tests compare the page's runs with these runs.
"""

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

import selftune as st
from selftune import models, policies, robot_rules
from selftune.robots import arm, arm_plant, base, file_arm_plant, quadrotor, quadrotor_plant

HERE = Path(__file__).parent
SEED = 0
"""The seed of the plants: it decides how they differ from the models of their controllers."""
STARTS = {"soft": 0.1, "nominal": 1.0, "stiff": 4.0}
"""The start gains, as factors on all feedback gains."""
RECORDED = 1500
"""The number of steps of a recorded run. Its payload changes halfway."""


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    folder = HERE / "src" / "controllers"
    recorded = {"arm": _arm(folder), "quadrotor": _quadrotor(folder), "file": _file(folder)}
    (HERE / "tests" / "recorded_robots.json").write_text(json.dumps(recorded) + "\n")


def _arm(folder: Path) -> dict[str, Any]:
    robot, links = arm.make(2), arm.ARMS[2]
    plant = arm_plant.ArmPlant(links, "payload", SEED, RECORDED)
    turns, size = np.array(links.turns), np.array(links.size)
    numbers = {
        "dt": arm.DT,
        "substeps": round(arm.DT / arm_plant.PHYSICS_DT),
        "xml": plant.xml,
        "order": [0, 1],
        "limits": links.limits,
        "follow": 1 - math.exp(-arm.DT / arm.LAG),
        "delay": arm_plant.DELAY,
        "noise": np.repeat([arm_plant.ANGLE_NOISE, arm_plant.RATE_NOISE], 2),
        "crash": np.repeat([arm_plant.ERROR_LIMIT, arm_plant.RATE_LIMIT], 2),
        "start": plant.data.qpos,
        "payload": arm_plant.LIGHT,
        "disturbance": plant.disturbance,
        "path": {
            "lap": arm.LAP,
            "center": links.centre,
            "waves": [{"turns": turns, "cosine": -size, "sine": 0 * size}],
        },
        "gains": {name: robot.detuned(factor) for name, factor in STARTS.items()},
        "settings": _settings(robot),
    }
    _export_robot(robot, plant.reset(), folder / "robot_arm", numbers)
    return _drive(robot, plant, np.random.default_rng([SEED, 1]).standard_normal((RECORDED + 1, 4)), arm_plant.HEAVY)


def _quadrotor(folder: Path) -> dict[str, Any]:
    robot = quadrotor.make()
    plant = quadrotor_plant.QuadrotorPlant("payload", SEED, RECORDED)
    measured = plant.reset()
    size = np.array(quadrotor.SIZE)
    numbers = {
        "dt": quadrotor.DT,
        "substeps": round(quadrotor.DT / quadrotor_plant.PHYSICS),
        "xml": plant.xml,
        "gear": plant.model.actuator_gainprm[:, 0],
        "mixer": quadrotor_plant.MIXER,
        "mass": plant.mass,
        "moments": plant.moments,
        "gravity": quadrotor.GRAVITY,
        "linearDrag": plant.linear_drag,
        "squareDrag": plant.square_drag,
        "wind": plant.wind,
        "noise": quadrotor_plant.NOISE,
        "follow": 1 - math.exp(-quadrotor.DT / quadrotor.LAG),
        "start": plant.truth[:6],
        "wrench": quadrotor.start()[12:],
        "path": {
            "lap": quadrotor.LAP,
            "center": [0, 0, 0],
            "waves": [{"turns": [1, 2, 1], "cosine": [0, 0, 0], "sine": size}],
        },
        "gains": {name: robot.detuned(factor) for name, factor in STARTS.items()},
        "settings": _settings(robot),
    }
    _export_robot(robot, measured, folder / "robot_quadrotor", numbers)
    noise = np.random.default_rng([SEED, 2]).standard_normal((RECORDED + 1, 12))
    return _drive(robot, plant, noise, quadrotor_plant.PAYLOAD * plant.mass)


def _file(folder: Path) -> dict[str, Any]:
    path = HERE / "robots" / "bench_arm.xml"
    robot = models.RobotArm.from_file(path, tool="tool")
    loop = st.Loop(robot, policies.ComputedTorque(), noise=robot_rules.measurement_noise(robot))
    light, heavy = robot_rules.payloads(robot)
    plant = file_arm_plant.FileArmPlant(robot, SEED, payload_step=RECORDED // 2)
    lengths, swing, joints = np.array(robot.lengths), robot_rules.joint_path(robot), robot.joints
    size, turns = np.asarray(swing.size) / (0.75 * math.sqrt(3.0)), np.array(swing.turns)

    def start(factor: float) -> Any:
        return loop.constraint.project(robot_rules.detuned(loop.theta, factor))

    numbers = {
        "dt": robot.dt,
        "substeps": round(robot.dt / plant.model.opt.timestep),
        "xml": plant.xml,
        "drawn": path.read_text(),
        "order": plant.order,
        "damping": plant.model.dof_damping,
        "friction": plant.model.dof_frictionloss,
        "limits": robot.torque_limits,
        "follow": 1 - math.exp(-robot.dt / robot.lag),
        "delay": plant.mismatch.delay,
        "noise": plant.mismatch.noise * robot_rules.measurement_noise(robot)[: 2 * joints],
        "crash": np.concatenate([file_arm_plant.CRASH_ANGLE * lengths, file_arm_plant.CRASH_RATE * lengths]),
        "start": robot.home,
        "payload": light,
        "heavy": heavy,
        "disturbance": 0.1 * np.array(robot.rated_torques) * np.array([1, -1, 1, -1]),
        "path": {
            "lap": round(swing.seconds / robot.dt),
            "center": swing.center,
            "waves": [
                {"turns": turns, "cosine": 0 * size, "sine": size},
                {"turns": 2 * turns, "cosine": 0 * size, "sine": -0.5 * size},
            ],
        },
        "gains": {
            name: {f"theta_{key}": value for key, value in start(factor).items()} for name, factor in STARTS.items()
        },
    }
    loop.export_web(folder / "robot_file", dtype="float64", name="robot_file", overwrite=True)
    _write_numbers(folder / "robot_file", numbers)
    agent = loop.agent(theta=start(STARTS["soft"]))
    rows = np.asarray(loop.reference.rows(jax.random.key(0), RECORDED + 1, robot.dt, 3 * joints), float)
    measured, controls, states = plant.reset(), [], []
    for t in range(RECORDED):
        states.append(plant.truth)
        controls.append(agent.act(measured, reference=rows[t]))
        measured = plant.step(controls[-1])
    noise = np.random.default_rng([SEED, 8]).standard_normal((RECORDED + 1, 2 * joints))
    theta = [number for leaf in jax.tree.leaves(agent.theta) for number in np.ravel(leaf)]
    return _record(noise, controls, states, theta, heavy) | {"reference": _plain(rows[::50])}


def _export_robot(robot: base.Robot, measured: np.ndarray, folder: Path, numbers: dict[str, Any]) -> None:
    guard = st.Guard(**robot.guard)
    start: dict[str, Any] = {"x": measured, "theta": robot.theta, "a_hat": robot.a_hat}
    st.export_web(robot.controller(), folder, **start, dtype="float64", name=folder.name, guard=guard, overwrite=True)
    _write_numbers(folder, numbers)


def _settings(robot: base.Robot) -> dict[str, Any]:
    """Return the numbers of a robot's controller that a TOML file for `selftune run` needs."""
    scenario = robot.make_scenario(2, jax.random.key(SEED))
    return {
        "x0": scenario.x0,
        "theta_low": robot.theta_box.low,
        "theta_high": robot.theta_box.high,
        "a_low": robot.a_box.low,
        "a_high": robot.a_box.high,
        "a_hat": robot.a_hat,
        "scale": np.broadcast_to(np.asarray(robot.a_scale) ** 2, robot.a_hat.shape),
        "learning_rate": robot.learning_rate,
        "estimator_rate": robot.estimator_rate,
        "guard": dict(robot.guard),
    }


def _write_numbers(folder: Path, numbers: dict[str, Any]) -> None:
    (folder.parent / f"{folder.name}.json").write_text(json.dumps(_plain(numbers)) + "\n")


def _drive(robot: base.Robot, plant: base.Plant, noise: np.ndarray, payload: float) -> dict[str, Any]:
    """Drive a plant from soft gains, and record the run."""
    measured = plant.reset()
    theta = robot.detuned(STARTS["soft"])
    agent = st.Agent(robot.controller(), x=measured, theta=theta, a_hat=robot.a_hat, guard=st.Guard(**robot.guard))
    driven = base.drive(robot, agent, plant, RECORDED)
    return _record(noise, driven.u, driven.x, agent.theta, payload)


def _record(noise: Any, controls: Any, states: Any, theta: Any, payload: float) -> dict[str, Any]:
    return _plain({"noise": noise, "u": controls[::50], "x": states[::50], "theta": theta, "payload": payload})


def _plain(value: Any) -> Any:
    """Return numbers, lists and dictionaries that JSON has, with every digit."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return np.asarray(value).tolist() if not isinstance(value, str) else value


if __name__ == "__main__":
    main()
