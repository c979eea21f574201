"""Four closed loops, from the paper's scalar example to a quadrotor: what benchmarks and tests run on.

Each starts from gains that are far too low and learns, on the way, forces and torques that the model does not have.
All are of one dtype, that of the state: constants are Python numbers, or arrays made like it.
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
from selftune.robots.rotation import rotation_matrix, rotation_rate

GRAVITY = 9.81


@dataclass(frozen=True)
class Problem:
    """A controller, where it starts, and a maker `(steps, seed) -> Scenario` of what it meets."""

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


@cache
def arm_system() -> st.MatchedSystem:
    """A planar arm of two links in the vertical plane (angles, the first from hanging; rates), torques, 250 Hz.

    The policy is computed torque. θ, each a pair of logarithms, one a joint: natural frequency (rad/s), damping ratio,
    and the shares of the reference's rate and acceleration that are fed forward.
    a: viscous (N·m·s) and Coulomb friction (N·m) and a constant torque (N·m) of each joint, and a payload (kg).
    """
    dt = 0.004
    m1, m2, l1, l2 = 1.5, 1.0, 0.4, 0.35
    c1, c2 = l1 / 2, l2 / 2  # the centres of mass
    i1, i2 = m1 * l1**2 / 12, m2 * l2**2 / 12

    def reference(x, t):
        """Angles, rates and accelerations wanted."""
        time = dt * jnp.asarray(t).astype(x.dtype)
        centre = jnp.array([0.6, 0.8], x.dtype)
        size, frequency = jnp.array([0.5, -0.7], x.dtype), jnp.array([2.0, 3.0], x.dtype)
        wave = size * jnp.sin(frequency * time)
        return centre + wave, size * frequency * jnp.cos(frequency * time), -(frequency**2) * wave

    def mass_matrix(q):
        coupling = m2 * l1 * c2 * jnp.cos(q[1])
        second = i2 + m2 * c2**2
        first = i1 + m1 * c1**2 + second + m2 * l1**2 + 2 * coupling
        across = second + coupling
        return jnp.stack([first, across, across, jnp.full_like(first, second)]).reshape(2, 2)

    def gravity(q, mass_1, centre_1, mass_2, centre_2):
        elbow = mass_2 * centre_2 * jnp.sin(q[0] + q[1])
        return GRAVITY * jnp.stack([(mass_1 * centre_1 + mass_2 * l1) * jnp.sin(q[0]) + elbow, elbow])

    def bias(q, qd):
        """Centrifugal, Coriolis and gravity torques."""
        h = m2 * l1 * c2 * jnp.sin(q[1])
        return jnp.stack([-h * qd[1] * (2 * qd[0] + qd[1]), h * qd[0] ** 2]) + gravity(q, m1, c1, m2, c2)

    def dynamics(x, v, t):
        q, qd = x[:2], x[2:]
        qd = qd + dt * jnp.linalg.solve(mass_matrix(q), v - bias(q, qd))
        return jnp.concatenate([q + dt * qd, qd])

    def residual(x, a, t):
        q, qd = x[:2], x[2:]
        viscous, coulomb, constant, payload = a[:2], a[2:4], a[4:6], a[6]
        return constant - viscous * qd - coulomb * jnp.tanh(10 * qd) - gravity(q, 0.0, 0.0, payload, l2)

    def actuation(x, theta, t):
        q, qd = x[:2], x[2:]
        frequency, ratio, rate_share, acceleration_share = jnp.exp(theta).reshape(4, 2)
        wanted, wanted_rate, wanted_acceleration = reference(x, t)
        acceleration = (
            acceleration_share * wanted_acceleration
            + 2 * ratio * frequency * (rate_share * wanted_rate - qd)
            + frequency**2 * (wanted - q)
        )
        return mass_matrix(q) @ acceleration + bias(q, qd)

    def cost(x, u, theta, t):
        wanted, wanted_rate, _ = reference(x, t)
        error, error_rate = x[:2] - wanted, x[2:] - wanted_rate
        effort = (u - gravity(x[:2], m1, c1, m2, c2)) / jnp.array([10.0, 2.0], x.dtype)
        return jnp.sum((error / 0.1) ** 2) + 0.1 * jnp.sum(error_rate**2) + 0.2 * jnp.sum(effort**2)

    return st.MatchedSystem(dynamics, residual, actuation, cost)


def arm(dtype: Any = jnp.float64) -> Problem:
    """A two-link arm: n = 4, m = 2, d = 8, p = 7."""

    def pairs(*values):
        return np.log(np.repeat(values, 2))

    controller = st.Controller(
        arm_system(),
        st.MGAPS(2e-4, constraint=st.Box(pairs(3.0, 0.35, 0.2, 0.2), pairs(60.0, 2.0, 3.0, 3.0))),
        st.GradientEstimator(0.02, constraint=st.Box([0, 0, 0, 0, -1, -1, 0], [1, 1, 1, 1, 1, 1, 1]), normalized=True),
    )
    scenario = _maker(
        jnp.asarray(np.array([0.6, 0.8, 1.0, -2.1]), dtype),
        st.PiecewiseConstant(
            period=5_000, low=[0.05, 0.05, 0.1, 0.1, -0.3, -0.3, 0.0], high=[0.3, 0.3, 0.5, 0.5, 0.3, 0.3, 0.6]
        ),
        7,
        st.Gaussian(sigma=[1e-5, 1e-5, 3e-2, 3e-2]),
        st.Gaussian(sigma=0.05),
        2,
    )
    theta = jnp.asarray(pairs(8.0, 0.5, 0.5, 0.5), dtype)
    return Problem("arm", controller, scenario, theta=theta, a_hat=jnp.zeros(7, dtype))


@cache
def quadrotor_system() -> st.System:
    """A small quadrotor (position, velocity, rotation vector, body rates) with thrust and torques, 500 Hz, SI units.

    The policy is geometric: a thrust vector for the position, an attitude for the thrust vector, torques for the
    attitude. θ, all logarithms: natural frequency (rad/s) and damping ratio of x, y, z, then of tilt and yaw.
    a: the wind's force (N) and linear drag (N·s/m) along each axis.
    """
    dt, mass, moments = 0.002, 0.032, (16.6e-6, 16.7e-6, 29.3e-6)
    radius, height, turn_rate = 1.0, 0.2, 1.5
    acceleration_limit, thrust_limit, angular_limit = 6.0, 0.65, (200.0, 200.0, 40.0)

    def reference(x, t):
        """A figure eight that also rises and falls: position, velocity, acceleration, jerk."""
        size = jnp.array([radius, radius / 2, height], x.dtype)
        rate = jnp.array([turn_rate, 2 * turn_rate, turn_rate], x.dtype)
        phase = rate * (dt * jnp.asarray(t).astype(x.dtype))
        sine, cosine = size * jnp.sin(phase), size * jnp.cos(phase)
        return sine, rate * cosine, -(rate**2) * sine, -(rate**3) * cosine

    def unit(v):
        return v / jnp.sqrt(jnp.sum(v * v) + 1e-9)

    def soft_clamp(v, limit):
        return limit * jnp.tanh(v / limit)

    def dynamics(x, u, f, t):
        p, v, r, body_rate = x.reshape(4, 3)
        inertia, up = jnp.array(moments, x.dtype), jnp.array([0.0, 0.0, 1.0], x.dtype)
        v = v + dt * ((u[0] * rotation_matrix(r)[:, 2] + f) / mass - GRAVITY * up)
        body_rate = body_rate + dt * (u[1:] - jnp.cross(body_rate, inertia * body_rate)) / inertia
        return jnp.concatenate([p + dt * v, v, r + dt * rotation_rate(r, body_rate), body_rate])

    def residual(x, a, t):
        return a[:3] - a[3:] * x[3:6]

    def policy(x, theta, f, t):
        p, v, r, body_rate = x.reshape(4, 3)
        gains = jnp.exp(theta)
        frequency, ratio = gains[:3], gains[3:6]
        tilt, yaw, tilt_ratio, yaw_ratio = gains[6:]
        inertia, up = jnp.array(moments, x.dtype), jnp.array([0.0, 0.0, 1.0], x.dtype)
        wanted, wanted_velocity, wanted_acceleration, wanted_jerk = reference(x, t)

        feedback = frequency**2 * (wanted - p) + 2 * ratio * frequency * (wanted_velocity - v)
        force = wanted_acceleration + soft_clamp(feedback, acceleration_limit) - f / mass + GRAVITY * up
        R = rotation_matrix(r)
        half = thrust_limit / 2
        thrust = half + soft_clamp(mass * jnp.sum(force * R[:, 2]) - half, half)

        # The attitude with its third axis along the force and no yaw, and the rates that the reference's jerk asks for.
        z = unit(force)
        y = unit(jnp.cross(z, jnp.array([1.0, 0.0, 0.0], x.dtype)))
        wanted_R = jnp.stack([jnp.cross(y, z), y, z], axis=1)
        swing = wanted_R.T @ wanted_jerk / jnp.sum(force * z)
        wanted_rate = jnp.stack([-swing[1], swing[0], jnp.zeros_like(yaw)])
        difference = wanted_R.T @ R
        error = jnp.stack([difference[2, 1], difference[0, 2], difference[1, 0]])
        error = (error - jnp.stack([difference[1, 2], difference[2, 0], difference[0, 1]])) / 2
        stiffness = jnp.stack([tilt, tilt, yaw]) ** 2
        damping = 2 * jnp.stack([tilt_ratio * tilt, tilt_ratio * tilt, yaw_ratio * yaw])
        angular = soft_clamp(
            -stiffness * error - damping * (body_rate - wanted_rate), jnp.array(angular_limit, x.dtype)
        )
        return jnp.concatenate([thrust[None], inertia * angular + jnp.cross(body_rate, inertia * body_rate)])

    def cost(x, u, theta, t):
        wanted, wanted_velocity, _, _ = reference(x, t)
        position, velocity = (x[:3] - wanted) / 0.1, (x[3:6] - wanted_velocity) / 0.5
        thrust = (u[0] - mass * GRAVITY) / (mass * GRAVITY)
        torque = u[1:] / (jnp.array(moments, x.dtype) * jnp.array(angular_limit, x.dtype))
        return jnp.sum(position**2) + jnp.sum(velocity**2) + 0.1 * thrust**2 + jnp.sum(torque**2)

    return st.System(dynamics, residual, policy, cost)


def quadrotor(dtype: Any = jnp.float64) -> Problem:
    """A quadrotor: n = 12, m = 4, k = 3, d = 10, p = 6."""

    def gains(position, position_ratio, tilt, yaw, tilt_ratio, yaw_ratio):
        values = [position] * 3 + [position_ratio] * 3 + [tilt, yaw, tilt_ratio, yaw_ratio]
        return np.log(values)

    controller = st.Controller(
        quadrotor_system(),
        st.MGAPS(
            3e-4, constraint=st.Box(gains(1.0, 0.35, 8.0, 3.0, 0.35, 0.35), gains(8.0, 2.0, 50.0, 20.0, 2.0, 2.0))
        ),
        st.GradientEstimator(0.01, constraint=st.Box([-0.1] * 3 + [0.0] * 3, [0.1] * 3 + [0.05] * 3), normalized=True),
    )
    scenario = _maker(
        jnp.asarray(np.array([0, 0, 0, 1.5, 1.5, 0.3, 0, 0, 0, 0, 0, 0]), dtype),
        st.PiecewiseConstant(period=5_000, low=[-0.05] * 3 + [0.0] * 3, high=[0.05] * 3 + [0.03] * 3),
        6,
        st.Gaussian(sigma=[0.0] * 3 + [5e-3] * 3 + [0.0] * 3 + [2e-2] * 3),
        st.Gaussian(sigma=5e-3),
        3,
    )
    theta = jnp.asarray(gains(2.0, 0.5, 15.0, 6.0, 0.5, 0.5), dtype)
    return Problem("quadrotor", controller, scenario, theta=theta, a_hat=jnp.zeros(6, dtype))


PROBLEMS = {"scalar": scalar, "pendulum": pendulum, "arm": arm, "quadrotor": quadrotor}
