"""The quadrotor's controller on Crazyflow, a simulator that others wrote and identified from flights of Crazyflies.

SCIPY_ARRAY_API=1 python -m benchmarks.crazyflie               all runs; `make crazyflow` installs Crazyflow first
SCIPY_ARRAY_API=1 python -m benchmarks.crazyflie --direct      the controls go to the rotors without a rotor driver

The controller is that of `selftune bench robots`, with its model, its start values, its Θ and its guard. Nothing in it
comes from Crazyflow. Halfway through a run, the drone picks up a payload. Printed are means over the seeds, with the
standard deviation of the cost.
"""

import argparse
import importlib
import importlib.util
import logging
import os
import warnings
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune.robots import quadrotor
from selftune.robots.base import Drive, Plant, drive
from selftune.robots.quadrotor import DT, GRAVITY, LAG, LAP, SIZE

DRONES = ("cf2x_L250", "cf21B_500")
"""Crazyflow's names of the Crazyflie 2.x (33 g) and of the Crazyflie 2.1 Brushless (43 g). The model has 32 g."""
STARTS = (0.25, 1.0, 2.0)
"""All feedback gains are multiplied by these numbers."""
PAYLOAD = 0.005
"""Mass that is added halfway, in kilograms."""
HEIGHT = 2.0
"""The height of the figure eight's centre above Crazyflow's floor, in metres."""
RATE = 1000
"""Steps of Crazyflow in a second; a control period has two."""
NOISE = np.array([1e-3] * 3 + [4e-3] * 3 + [1e-3] * 3 + [1e-2] * 3)
"""Standard deviations of the measurement noise: position, velocity, rotation vector, body rates."""
FIXED, ESTIMATOR, MGAPS, DEFAULTS = "fixed gains", "fixed gains, estimator", "M-GAPS, estimator", "defaults"


class RotorDriver:
    """Commands that make slow rotors follow like those of the controller's model.

    The rotors follow a command with the time constant `lag`. The driver predicts their thrust and torques, and adds to
    the command `lag / LAG − 1` times the difference between the wanted and the predicted ones. Then they follow the
    wanted ones with the model's time constant `LAG`, as long as no rotor is at a limit. It is the identity if
    `lag` is `LAG`.
    """

    def __init__(self, lag: float, wrench: np.ndarray):
        self._lead, self._pole = lag / LAG, np.exp(-DT / lag)
        self._predicted = np.array(wrench)

    def __call__(self, wanted: np.ndarray) -> np.ndarray:
        """Return the command for (thrust, torques)."""
        command = self._predicted + self._lead * (wanted - self._predicted)
        self._predicted = command + self._pole * (self._predicted - command)
        return command


@cache
def _simulator(drone: str) -> tuple[Any, Any]:
    """Return the data of Crazyflow's drone at rest, and the function of a control period."""
    control, dynamics, sim, integration = (  # by name, because only `make crazyflow` installs Crazyflow
        importlib.import_module(f"crazyflow.{name}") for name in ("control", "dynamics", "sim", "sim.integration")
    )
    with warnings.catch_warnings(action="ignore"):  # of MuJoCo, about names in Crazyflow's scene
        made = sim.Sim(
            dynamics=dynamics.Dynamics.first_principles,
            control=control.Control.force_torque,
            integrator=integration.Integrator.rk4,
            drone=drone,
            freq=RATE,
            force_torque_freq=round(1 / DT),
            fused_mjx_model=True,
        )
    step = made.build_step_fn()
    period = jax.jit(lambda data, u: step(sim.functional.force_torque_control(data, u), n_steps=round(DT * RATE)))
    return made.default_data, period


def rotor_lag(drone: str) -> float:
    """Return the mean of the rotors' time constants for rising and for falling speed, at hover, in seconds."""
    parameters = _simulator(drone)[0].params
    hover = _hover_speed(parameters, float(parameters.mass[0]))
    rise, rise_squared, fall, fall_squared = np.asarray(parameters.rotor_dyn_coef).ravel()
    return float(np.mean([1 / (rise + 2 * rise_squared * hover), 1 / (fall + 2 * fall_squared * hover)]))


def _hover_speed(parameters: Any, mass: float) -> float:
    constant, linear, square = np.asarray(parameters.rpm2thrust).ravel()
    return float(np.roots([square, linear, constant - mass * GRAVITY / 4]).max())


class CrazyflowPlant(Plant):
    """A Crazyflie of Crazyflow, with measurement noise and a delay of one sample.

    The seed draws the mass within 3 %, the start and the noise. Halfway the drone becomes heavier by `PAYLOAD`. The
    four states of the actuators are not measured: the plant filters the controls as the model does.
    """

    def __init__(self, drone: str, seed: int, steps: int, *, has_driver: bool = True):
        self._rest, self._period = _simulator(drone)
        self._seed, self._half = seed, steps // 2
        self._lag = rotor_lag(drone) if has_driver else LAG
        draw = np.random.default_rng([seed, 1])
        self._mass = float(self._rest.params.mass[0]) * draw.uniform(0.97, 1.03)
        self._start = quadrotor.start()
        self._start[:3] += draw.normal(0, 0.02, 3)

    def reset(self) -> np.ndarray:
        self._draw, self._t = np.random.default_rng([self._seed, 2]), 0
        wrench = np.array([self._mass * GRAVITY, 0.0, 0.0, 0.0])
        self._driver, self._filtered = RotorDriver(self._lag, wrench), wrench.copy()
        states = self._rest.states.replace(
            pos=jnp.asarray(self._start[:3] + np.array([0.0, 0.0, HEIGHT]))[None, None],
            vel=jnp.asarray(self._start[3:6])[None, None],
            rotor_vel=jnp.full((1, 1, 4), _hover_speed(self._rest.params, self._mass)),
        )
        self._data = self._rest.replace(states=states)
        self._load(0.0)
        self._late = self._sense()
        return np.concatenate([self._late, self._filtered])

    def step(self, u: np.ndarray) -> np.ndarray:
        if self._t == self._half:
            self._load(PAYLOAD)
        self._data = self._period(self._data, jnp.asarray(self._driver(u))[None, None])
        self._filtered = self._filtered + (1 - np.exp(-DT / LAG)) * (u - self._filtered)
        self._t += 1
        late, self._late = self._late, self._sense()
        return np.concatenate([late, self._filtered])

    def drop(self) -> None:
        self._load(0.0)

    @property
    def truth(self) -> np.ndarray:
        return np.concatenate([self._body, self._filtered])

    @property
    def crashed(self) -> bool:
        away = self._body[:3] - np.array(SIZE) * np.sin(2 * np.pi / LAP * np.array([1, 2, 1]) * self._t)
        # A tilt of 100°, or 3 m from the path, as for the plant in MuJoCo.
        return not (np.all(np.isfinite(self._body)) and self._upright > -0.17 and away @ away < 9.0)

    def _load(self, payload: float) -> None:
        mass = jnp.full_like(self._rest.params.mass, self._mass + payload)
        self._data = self._data.replace(params=self._data.params.replace(mass=mass))

    def _sense(self) -> np.ndarray:
        from scipy.spatial.transform import Rotation

        states = jax.device_get(self._data.states)
        rotation = Rotation.from_quat(states.quat[0, 0])
        self._upright = rotation.as_matrix()[2, 2]
        place = states.pos[0, 0] - [0.0, 0.0, HEIGHT]
        self._body = np.concatenate([place, states.vel[0, 0], rotation.as_rotvec(), states.ang_vel[0, 0]])
        return self._body + NOISE * self._draw.standard_normal(12)


@cache  # an agent takes seconds to make, and every start and seed uses it again
def _agent(algorithm: str) -> st.Agent:
    robot = quadrotor.make()
    parts: dict[str, Any] = {
        FIXED: (st.Fixed(), st.Frozen()),
        ESTIMATOR: (st.Fixed(), None),
        MGAPS: (None, None),
        DEFAULTS: (st.GaussNewton(constraint=robot.theta_box), st.AutoEstimator(constraint=robot.a_box)),
    }
    guard = st.Guard(**robot.guard)
    start: dict[str, Any] = dict(x=quadrotor.start(), theta=robot.theta, a_hat=robot.a_hat)
    return st.Agent(robot.controller(*parts[algorithm]), **start, guard=guard)


def fly(algorithm: str, plant: Plant, factor: float, steps: int) -> Drive:
    """One run from detuned gains."""
    robot, agent = quadrotor.make(), _agent(algorithm)
    agent.reset(x=plant.reset(), theta=robot.detuned(factor), a_hat=robot.a_hat)
    return drive(robot, agent, plant, steps, stride=50)


def row(runs: list[Drive], steps: int) -> str:
    """The means over the seeds: cost and error of the last lap before the payload, the same at the end, crashes."""
    halves = [(steps // 2 - LAP, steps // 2), (steps - LAP, steps)]
    cells = []
    for begin, end in halves:
        whole = [run for run in runs if len(run.cost) >= end and not (run.crashed and len(run.cost) == end)]
        if not whole:
            cells += ["–", "–"]
            continue
        costs = np.array([run.cost[begin:end].mean() for run in whole])
        errors = [np.sqrt(np.mean(np.sum(run.error[begin:end] ** 2, axis=1))) for run in whole]
        cells += [f"{costs.mean():.4f} ± {costs.std(ddof=1):.4f}" if len(whole) > 1 else f"{costs[0]:.4f}"]
        cells += [f"{100 * np.mean(errors):.2f}"]
    crashes = sum(run.crashed for run in runs)
    return " | ".join([*cells, f"{crashes} of {len(runs)}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--laps", type=int, default=8)
    parser.add_argument("--drones", nargs="+", default=list(DRONES), choices=DRONES)
    parser.add_argument("--direct", action="store_true", help="no rotor driver")
    given, _ = parser.parse_known_args()
    if importlib.util.find_spec("crazyflow") is None or os.environ.get("SCIPY_ARRAY_API") != "1":
        print("crazyflie: Crazyflow is not installed, or SCIPY_ARRAY_API is not 1; run `make crazyflow`")
        return
    logging.getLogger("selftune").setLevel(logging.ERROR)  # the guard's interventions are expected here
    steps = given.laps * LAP
    with jax.enable_x64(True):
        for drone in given.drones:
            with_driver = "without a rotor driver" if given.direct else "with a rotor driver"
            print(f"\n{drone}, rotors' lag {1e3 * rotor_lag(drone):.0f} ms, {with_driver}, {given.seeds} seeds\n")
            print("| gains at the start | algorithm | cost, last lap before the payload | error, cm |", end="")
            print(" cost, last lap with it | error, cm | crashes |\n|---|---|--:|--:|--:|--:|--:|")
            for factor in STARTS:
                for algorithm in (FIXED, ESTIMATOR, MGAPS, DEFAULTS):
                    plants = (
                        CrazyflowPlant(drone, seed, steps, has_driver=not given.direct) for seed in range(given.seeds)
                    )
                    runs = [fly(algorithm, plant, factor, steps) for plant in plants]
                    print(f"| × {factor:g} | {algorithm} | {row(runs, steps)} |", flush=True)


if __name__ == "__main__":
    main()
