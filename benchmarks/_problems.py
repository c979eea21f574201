"""Four closed loops for benchmarks and tests: the paper's scalar example, a pendulum, and two of `selftune.robots`.

Each loop starts from gains that are far too low, and learns forces and torques that the model does not have. All
numbers of a loop have one dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune.experiments.paper.run import example_system
from selftune.robots import arm as robots_arm
from selftune.robots import quadrotor as robots_quadrotor
from selftune.robots.base import Robot

GRAVITY = 9.81


@dataclass(frozen=True)
class Problem:
    """A controller, its start, and a function `(steps, seed) -> Scenario`."""

    name: str
    controller: st.Controller
    scenario_maker: Callable[[int, int], st.Scenario]
    theta: jax.Array
    a_hat: jax.Array

    def scenario(self, steps: int, seed: int = 0) -> st.Scenario:
        return self.scenario_maker(steps, seed)


def _maker(x0: Any, a_star: st.AbstractProcess, p: int, w: st.AbstractProcess, v: st.AbstractProcess | None, k: int):
    """A maker of scenarios in the dtype of `x0`."""

    def scenario(steps: int, seed: int) -> st.Scenario:
        ka, kw, *kv = jax.random.split(jax.random.key(seed), 2 if v is None else 3)
        noise = None if v is None else v.stream(kv[0], k)
        return st.Scenario(x0, a_star.stream(ka, p), w.stream(kw, x0.shape), noise, steps=steps).materialize()

    return scenario


def scalar(dtype: Any = jnp.float64) -> Problem:
    """The paper's example: one state, one gain."""
    controller = st.Controller(
        example_system(),
        st.MGAPS(1e-4, constraint=st.Box(0.0, 50.0)),
        st.GradientEstimator(0.005, preconditioner=jnp.eye(3), constraint=st.Box(-0.25, 0.25)),
    )
    a_star = st.PiecewiseConstant(period=40_000, low=-0.25, high=0.25)
    scenario = _maker(jnp.zeros(1, dtype), a_star, 3, st.OrnsteinUhlenbeck(decay=0.95, sigma=0.1), None, 1)
    return Problem("scalar", controller, scenario, theta=jnp.ones(1, dtype), a_hat=jnp.zeros(3, dtype))


@cache
def pendulum_system() -> st.MatchedSystem:
    """A damped pendulum (angle from hanging, rate) with a torque, following a sinusoid at 200 Hz.

    θ: the logarithms of stiffness, damping and the share of the reference's inertia torque that is fed forward.
    a: Coulomb friction (N·m), viscous friction (N·m·s) and a payload's weight times its arm (N·m).
    """
    dt, mass, length, damping = 0.005, 1.0, 0.5, 0.05
    inertia, weight = mass * length**2, mass * GRAVITY * length
    amplitude, frequency = 0.8, 2.0

    def reference(x, t):
        phase = frequency * dt * jnp.asarray(t).astype(x.dtype)
        angle = amplitude * jnp.sin(phase)
        return angle, amplitude * frequency * jnp.cos(phase), -(frequency**2) * angle

    def dynamics(x, v, t):
        angle, rate = x
        rate = rate + dt * (v[0] - damping * rate - weight * jnp.sin(angle)) / inertia
        return jnp.stack([angle + dt * rate, rate])

    def residual(x, a, t):
        angle, rate = x
        return -jnp.stack([a[0] * jnp.tanh(10 * rate) + a[1] * rate + a[2] * jnp.sin(angle)])

    def actuation(x, theta, t):
        angle, rate = x
        stiffness, derivative, forward = jnp.exp(theta)
        wanted, wanted_rate, wanted_acceleration = reference(x, t)
        feedback = stiffness * (wanted - angle) + derivative * (wanted_rate - rate)
        return jnp.stack([forward * inertia * wanted_acceleration + weight * jnp.sin(angle) + feedback])

    def cost(x, u, theta, t):
        return ((x[0] - reference(x, t)[0]) / 0.05) ** 2 + 0.01 * u[0] ** 2

    return st.MatchedSystem(dynamics, residual, actuation, cost)


def pendulum(dtype: Any = jnp.float64) -> Problem:
    """A pendulum: n = 2, d = 3, p = 3."""
    controller = st.Controller(
        pendulum_system(),
        st.MGAPS(1e-3, constraint=st.Box(np.log([2.0, 0.5, 0.2]), np.log([100.0, 15.0, 5.0]))),
        st.GradientEstimator(0.02, constraint=st.Box(0.0, 2.0)),
    )
    scenario = _maker(
        jnp.zeros(2, dtype),
        st.PiecewiseConstant(period=5_000, low=[0.1, 0.02, 0.2], high=[0.4, 0.2, 1.0]),
        3,
        st.Gaussian(sigma=[1e-4, 1e-2]),
        st.Gaussian(sigma=0.05),
        1,
    )
    theta = jnp.asarray(np.log([12.0, 2.0, 0.5]), dtype)
    return Problem("pendulum", controller, scenario, theta=theta, a_hat=jnp.zeros(3, dtype))


def _robot(name: str, robot: Robot, dtype: Any) -> Problem:
    """A robot of `selftune.robots` with a quarter of its feedback gains; the model itself is the plant."""

    def scenario(steps: int, seed: int) -> st.Scenario:
        drawn = robot.make_scenario(steps, jax.random.key(seed)).materialize()
        return jax.tree.map(lambda leaf: leaf.astype(dtype), drawn)

    theta, a_hat = (jnp.asarray(part, dtype) for part in (robot.detuned(0.25), robot.a_hat))
    return Problem(name, robot.controller(), scenario, theta, a_hat)


def arm(dtype: Any = jnp.float64) -> Problem:
    """The two-link arm: n = 6, d = 4, p = 7."""
    return _robot("arm", robots_arm.make(), dtype)


def quadrotor(dtype: Any = jnp.float64) -> Problem:
    """The quadrotor: n = 16, m = 4, k = 3, d = 10, p = 6."""
    return _robot("quadrotor", robots_quadrotor.make(), dtype)


PROBLEMS = {"scalar": scalar, "pendulum": pendulum, "arm": arm, "quadrotor": quadrotor}
