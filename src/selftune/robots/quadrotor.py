"""A quadrotor of 32 g that flies a figure eight: the model of its controller, and the gains to tune."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..foundation.rotations import rotation_matrix, rotation_rate
from ..policies import Geometric, Inputs
from ..problem.constraints import Box
from ..problem.noise import Gaussian, PiecewiseConstant
from ..problem.scenario import Scenario
from ..problem.system import System
from .base import Plant, Robot

GRAVITY = 9.81
DT = 0.002
MASS = 0.032
MOMENTS = (16.6e-6, 16.7e-6, 29.3e-6)
"""Moments of inertia, kg·m²."""
LAG = 0.024
"""The time constant, in seconds, with which thrust and torques follow their commands in the model."""
LAP = 2000
"""Steps of one figure eight."""
SIZE = (1.0, 0.4, 0.2)
"""Half of the figure eight's length, width and height, in metres."""
ACCELERATION_LIMIT = 6.0
THRUST_LIMIT = 0.7
ANGULAR_LIMIT = (250.0, 250.0, 40.0)
"""The policy's limits on feedback (m/s²), thrust (N) and angular acceleration (rad/s²)."""

GAINS = tuple(f"log {gain}" for gain in (
    "frequency x", "frequency y", "frequency z", "damping x", "damping y", "damping z",
    "frequency tilt", "frequency yaw", "damping tilt", "damping yaw",
))  # fmt: skip
PARAMETERS = tuple(
    [f"wind {axis} (N)" for axis in "xy"] + [f"drag {axis} (N·s/m)" for axis in "xyz"] + ["payload's weight (N)"]
)


def reference(t: Any, dtype: Any) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """A figure eight that also rises and falls: desired position, velocity, acceleration and jerk at step t."""
    size = jnp.array(SIZE, dtype)
    turns = 2 * np.pi / (LAP * DT)
    rate = jnp.array([turns, 2 * turns, turns], dtype)
    # Take the remainder first, so that the phase in float32 is still exact after an hour.
    phase = rate * (DT * jax.lax.rem(jnp.asarray(t), jnp.asarray(LAP, jnp.asarray(t).dtype)).astype(dtype))
    sine, cosine = size * jnp.sin(phase), size * jnp.cos(phase)
    return sine, rate * cosine, -(rate**2) * sine, -(rate**3) * cosine


def dynamics(x, u, f, t):
    """(position, velocity, rotation vector, body rates, thrust, torques) after a period; f is a force on the body."""
    p, v, r, body_rate = x[:12].reshape(4, 3)
    inertia, up = jnp.array(MOMENTS, x.dtype), jnp.array([0.0, 0.0, 1.0], x.dtype)
    wrench = x[12:] + (1 - np.exp(-DT / LAG).item()) * (u - x[12:])
    v = v + DT * ((wrench[0] * rotation_matrix(r)[:, 2] + f) / MASS - GRAVITY * up)
    body_rate = body_rate + DT * (wrench[1:] - jnp.cross(body_rate, inertia * body_rate)) / inertia
    return jnp.concatenate([p + DT * v, v, r + DT * rotation_rate(r, body_rate), body_rate, wrench])


def residual(x, a, t):
    """The force of a horizontal wind, of drag, and of a payload that is held up and accelerated along the reference."""
    load = reference(t, x.dtype)[2] / GRAVITY + jnp.array([0.0, 0.0, 1.0], x.dtype)
    return jnp.concatenate([a[:2], jnp.zeros_like(a[:1])]) - a[2:5] * x[3:6] - a[5] * load


@cache
def geometric(dtype: Any) -> Geometric:
    """The policy, with numbers of this dtype."""
    with jax.ensure_compile_time_eval():  # the policy's settings are numbers, also if JAX is tracing
        return Geometric(
            MASS,
            MOMENTS,
            gravity=GRAVITY,
            acceleration_limit=ACCELERATION_LIMIT,
            thrust_limit=THRUST_LIMIT,
            angular_limit=ANGULAR_LIMIT,
        )


def policy(x, theta, f, t):
    """A thrust vector for the position, an attitude for the thrust vector, and torques for the attitude."""
    inputs = Inputs(x[:3], jnp.concatenate(reference(t, x.dtype)), x, f, jnp.asarray(DT, x.dtype), t)
    frequency, damping, attitude_frequency, attitude_damping = jnp.split(theta, (3, 6, 8))
    gains = {
        "log_frequency": frequency,
        "log_damping": damping,
        "log_attitude_frequency": attitude_frequency,
        "log_attitude_damping": attitude_damping,
    }
    return geometric(x.dtype)(inputs, None, gains)[0]


def cost(x, u, theta, t):
    """Position and velocity errors, and a little effort; yaw has no cost."""
    wanted, wanted_velocity, _, _ = reference(t, x.dtype)
    position, velocity = (x[:3] - wanted) / 0.1, (x[3:6] - wanted_velocity) / 0.5
    thrust = (u[0] - MASS * GRAVITY) / (MASS * GRAVITY)
    angular = u[1:] / (40.0 * jnp.array(MOMENTS, x.dtype))
    return jnp.sum(position**2) + 0.3 * jnp.sum(velocity**2) + 0.02 * thrust**2 + jnp.sum(angular**2)


def error(x, t):
    """The error of the position, in metres."""
    return x[:3] - reference(t, x.dtype)[0]


def start(dtype: Any = np.float64) -> np.ndarray:
    """x_0: on the figure eight, level, with the thrust of hovering."""
    turns = 2 * np.pi / (LAP * DT)
    velocity = np.array(SIZE) * turns * np.array([1, 2, 1])
    return np.concatenate([np.zeros(3), velocity, np.zeros(6), [MASS * GRAVITY], np.zeros(3)]).astype(dtype)


def _gains(position, position_ratio, tilt, yaw, tilt_ratio, yaw_ratio) -> np.ndarray:
    return np.log([position] * 3 + [position_ratio] * 3 + [tilt, yaw, tilt_ratio, yaw_ratio])


def _plant(condition: str, seed: int, steps: int) -> Plant:
    from .quadrotor_plant import QuadrotorPlant  # MuJoCo is an extra

    return QuadrotorPlant(condition, seed, steps)


def _scenario(steps: int, key: jax.Array) -> Scenario:
    ka, kw, kv = jax.random.split(key, 3)
    low, high = [-0.06] * 2 + [0.0] * 4, [0.06] * 2 + [0.015] * 3 + [0.1]
    a_star = PiecewiseConstant(period=6000, low=low, high=high)
    w = Gaussian(sigma=[0.0] * 3 + [2e-3] * 3 + [0.0] * 3 + [1e-2] * 3 + [0.0] * 4)
    return Scenario(
        start(), a_star.stream(ka, 6), w.stream(kw, 16), Gaussian(sigma=0.02).stream(kv, 3), steps=steps
    ).materialize()


def _guard() -> dict[str, Any]:
    torque = 0.95 * np.array(MOMENTS) * np.array(ANGULAR_LIMIT)
    return {
        "x_limit": [4.0] * 3 + [10.0] * 3 + [3.5] * 3 + [50.0] * 3 + [1.0] + [0.02] * 3,
        "f_limit": 2.0,
        "u_low": [0.02, *-torque],
        "u_high": [0.97 * THRUST_LIMIT, *torque],
        "rate": 0.0015,
        "stuck": 3,
        "safe_u": [MASS * GRAVITY, 0.0, 0.0, 0.0],  # hover
        "y_limit": 700.0,
        "rollback": 8.0,
        "cost_floor": 1.0,
        "window": LAP,
    }


@cache
def make() -> Robot:
    """A Crazyflie-like quadrotor at 500 Hz: n = 16, m = 4, k = 3, d = 10, p = 6."""
    return Robot(
        name="quadrotor",
        dt=DT,
        system=System(dynamics, residual, policy, cost),
        gains=GAINS,
        theta=_gains(4.5, 0.8, 32.0, 8.0, 0.7, 0.8),
        power=np.full(10, 0.5),
        # The plant's lag and delay reduce damping that the model has. Θ is limited so that the inner loop stays fast
        # and damped enough for the outer loop, even with a payload of 60 %.
        theta_box=Box(_gains(1.5, 0.35, 16.0, 3.0, 0.7, 0.35), _gains(6.0, 1.5, 46.0, 15.0, 1.5, 1.5)),
        parameters=PARAMETERS,
        a_hat=np.zeros(6),
        a_box=Box([-0.15] * 2 + [0.0] * 3 + [-0.1], [0.15] * 2 + [0.06] * 3 + [0.3]),
        learning_rate=0.003,
        estimator_rate=0.02,
        conditions=("calm", "wind", "payload"),
        make_plant=_plant,
        make_scenario=_scenario,
        error=error,
        lap=LAP,
        guard=_guard(),
    )
