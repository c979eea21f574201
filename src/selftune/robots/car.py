"""A small car that drives circles at a speed at which its tyres slip: model, policy and cost.

The state is (error along the path, error across the path, error of the heading; velocity along and across the car, yaw
rate; steering angle; drive force). The errors are relative to a point that moves on the circle, in the frame of that
point. The model is a bicycle model with linear tyres, at 100 Hz, in SI units.
"""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from ..problem.constraints import Box
from ..problem.noise import Gaussian, PiecewiseConstant
from ..problem.scenario import Scenario
from ..problem.system import System
from .base import Robot
from .car_plant import CONDITIONS, CarPlant, random_car

DT, LAP, RADIUS = 0.01, 480, 1.5
RIPPLE = 0.1
"""The reference's speed varies by this share, twice in each lap."""
MEAN_SPEED = 2 * math.pi * RADIUS / (LAP * DT)

MASS, INERTIA, FRONT, REAR = 3.0, 0.045, 0.15, 0.15
WHEELBASE, LEVER = FRONT + REAR, MASS * FRONT / INERTIA
FRONT_STIFFNESS, REAR_STIFFNESS = 80.0, 100.0
STEERING_LAG, DRIVE_LAG = 0.07, 0.09
"""The lags of servo and motor together with the delay of the measurements, as seen in a step response."""

STEERING_LIMIT, DRIVE_LIMIT = 0.45, 15.0


def _reference(x, t, later: float = 0.0):
    """Desired heading, speed, turn rate and acceleration, `later` steps after step t. Only the dtype of x is used."""
    step = jnp.remainder(jnp.asarray(t), LAP).astype(x.dtype) + later
    phase = (2 * math.pi / LAP) * step
    speed = MEAN_SPEED * (1 + RIPPLE * jnp.sin(2 * phase))
    acceleration = (2 * RIPPLE * MEAN_SPEED**2 / RADIUS) * jnp.cos(2 * phase)
    return phase + RIPPLE / 2 * (1 - jnp.cos(2 * phase)), speed, speed / RADIUS, acceleration


def reference(t: int) -> tuple[float, float, float, float]:
    """Desired position on the floor, heading and speed at step t: counterclockwise around the origin."""
    phase = 2 * math.pi / LAP * t
    around = phase + RIPPLE / 2 * (1 - math.cos(2 * phase))
    speed = MEAN_SPEED * (1 + RIPPLE * math.sin(2 * phase))
    return RADIUS * math.sin(around), -RADIUS * math.cos(around), around, speed


def _soft_clamp(v, limit: float):
    """v limited smoothly to ±limit. It is nearer to a hard clamp than tanh, so it is linear in normal driving."""
    ratio = jnp.maximum(jnp.minimum(v / limit, 1e3), -1e3)
    square = ratio * ratio
    return limit * ratio / jnp.sqrt(jnp.sqrt(1 + square * square))


def _tyres(x):
    """Side forces of the front and the rear axle, linear in the slip angle."""
    _, _, _, vx, vy, r, steering, _ = x
    forward = jnp.maximum(vx, 0.5)
    return (
        FRONT_STIFFNESS * (steering - (vy + FRONT * r) / forward),
        -REAR_STIFFNESS * (vy - REAR * r) / forward,
    )


def _motion(x, u, f, t, later: float):
    """dx/dt; f is the unknown part: acceleration along and across, and yaw acceleration / `LEVER`."""
    along, across, turned, vx, vy, r, steering, drive = x
    _, speed, turn_rate, _ = _reference(x, t, later)
    front, rear = _tyres(x)
    sine, cosine = jnp.sin(turned), jnp.cos(turned)
    front_side = front * jnp.cos(steering)
    return jnp.stack(
        [
            vx * cosine - vy * sine - speed + turn_rate * across,
            vx * sine + vy * cosine - turn_rate * along,
            r - turn_rate,
            (drive - front * jnp.sin(steering)) / MASS + vy * r + f[0],
            (front_side + rear) / MASS - vx * r + f[1],
            (FRONT * front_side - REAR * rear) / INERTIA + LEVER * f[2],
            (u[0] - steering) / STEERING_LAG,
            (u[1] - drive) / DRIVE_LAG,
        ]
    )


def _dynamics(x, u, f, t):
    middle = x + DT / 2 * _motion(x, u, f, t, 0.0)
    return x + DT * _motion(middle, u, f, t, 0.5)


def _residual(x, a, t):
    """The side forces of the axles minus the model's, the slope of the floor, and drag. A side force differs by a
    share of the force that the curve needs, as with stiffer tyres, a payload or a grippy floor. At the front it also
    differs by a constant push, as with a servo out of trim."""
    turned, vx, steering = x[2], x[3], x[6]
    front_share, rear_share, front_push, drag, slope_x, slope_y = a
    around, speed, turn_rate, _ = _reference(x, t)
    sine, cosine = jnp.sin(around + turned), jnp.cos(around + turned)
    curve = speed * turn_rate / WHEELBASE
    front = (front_share * REAR * curve + front_push) * jnp.cos(steering)
    rear = rear_share * FRONT * curve
    return jnp.stack(
        [
            slope_x * cosine + slope_y * sine - drag * jnp.tanh(vx / 0.2) - front * jnp.tan(steering),
            slope_y * cosine - slope_x * sine + front + rear,
            front - REAR / FRONT * rear,
        ]
    )


def _policy(x, theta, f, t):
    along, across, turned, vx, vy, r, steering, _ = x
    side, side_ratio, yaw, pace, pace_ratio, share = jnp.exp(theta)
    _, speed, turn_rate, acceleration = _reference(x, t)
    forward = jnp.maximum(vx, 0.5)
    front, _ = _tyres(x)
    sine, cosine = jnp.sin(turned), jnp.cos(turned)
    rate_along, rate_across = vx * cosine - vy * sine - speed, vx * sine + vy * cosine

    # The turn rate for the desired side acceleration, and the side forces for this turn.
    wanted = share * speed * turn_rate - side**2 * across - 2 * side_ratio * side * rate_across
    wanted_turn = wanted / forward
    force, moment = MASS * (wanted - f[1]), MASS * FRONT * f[2]
    wanted_front = (REAR * force - moment) / WHEELBASE
    wanted_rear = (FRONT * force + moment) / WHEELBASE
    angle = WHEELBASE * wanted_turn / forward + wanted_front / FRONT_STIFFNESS - wanted_rear / REAR_STIFFNESS
    angle = angle + yaw * (wanted_turn - r)

    push = acceleration - pace**2 * along - 2 * pace_ratio * pace * rate_along
    drive = MASS * (push - f[0] - vy * r) + front * jnp.sin(steering)
    return jnp.stack([_soft_clamp(angle, STEERING_LIMIT), _soft_clamp(drive, DRIVE_LIMIT)])


def _cost(x, u, theta, t):
    _, speed, _, _ = _reference(x, t)
    along, across, turned, vx, vy, _, steering, drive = x
    sine, cosine = jnp.sin(turned), jnp.cos(turned)
    rate_along, rate_across = vx * cosine - vy * sine - speed, vx * sine + vy * cosine
    position = (along / 0.06) ** 2 + (across / 0.03) ** 2
    velocity = (rate_along / 0.3) ** 2 + (rate_across / 0.2) ** 2
    return position + velocity + ((u[0] - steering) / 0.35) ** 2 + ((u[1] - drive) / 25) ** 2


def _error(x, t):
    return x[:2]


def _make_plant(condition: str, seed: int, steps: int) -> CarPlant:
    car = random_car(np.random.default_rng([seed, 0]))
    return CarPlant(car, condition, seed, steps, reference, DT)


A_LOW, A_HIGH = np.array([-1.5, -1.5, -2.0, -1.0, -1.5, -1.5]), np.array([1.5, 1.5, 2.0, 1.5, 1.5, 1.5])


def _make_scenario(steps: int, key: jax.Array) -> Scenario:
    ka, kw, kv = jax.random.split(key, 3)
    return Scenario(
        x0=jnp.array([0.0, 0.05, 0.0, MEAN_SPEED, 0.0, MEAN_SPEED / RADIUS, WHEELBASE / RADIUS, 0.0]),
        a_star=PiecewiseConstant(period=2_000, low=A_LOW / 4, high=A_HIGH / 4)(ka, steps, 6),
        w=Gaussian(sigma=[0.0, 0.0, 0.0, 5e-3, 1e-2, 6e-2, 0.0, 0.0])(kw, steps, 8),
        v=Gaussian(sigma=0.1)(kv, steps, 3),
    )


@cache
def make() -> Robot:
    """The car. Its gains: natural frequency and damping ratio across the path, steering per yaw rate, natural frequency
    and damping ratio along the path, and the share of the curve's acceleration that is fed forward."""
    return Robot(
        name="car",
        dt=DT,
        system=System(_dynamics, _residual, _policy, _cost),
        gains=("log ωn across", "log ζ across", "log yaw (s)", "log ωn along", "log ζ along", "log curve share"),
        theta=np.log([5.5, 1.1, 0.1, 6.0, 1.5, 1.0]),
        power=np.array([0.5, 0.5, 1.0, 0.5, 0.5, 0.0]),
        theta_box=Box(np.log([1.0, 0.35, 0.005, 0.7, 0.35, 0.7]), np.log([15.0, 2.5, 0.3, 15.0, 2.5, 1.4])),
        parameters=(
            "front side force, relative",
            "rear side force, relative",
            "push at the front axle (m/s²)",
            "drag (m/s²)",
            "slope along x (m/s²)",
            "slope along y (m/s²)",
        ),
        a_hat=np.zeros(6),
        a_box=Box(A_LOW, A_HIGH),
        learning_rate=0.003,
        estimator_rate=0.02,
        conditions=CONDITIONS,
        make_plant=_make_plant,
        make_scenario=_make_scenario,
        error=_error,
        lap=LAP,
        guard={
            "x_limit": np.array([3.0, 3.0, 3.2, 10.0, 5.0, 30.0, 1.0, 40.0]),
            # A soft clamp never reaches its limit, so this value counts as saturation.
            "u_low": np.array([-0.95 * STEERING_LIMIT, -0.95 * DRIVE_LIMIT]),
            "u_high": np.array([0.95 * STEERING_LIMIT, 0.95 * DRIVE_LIMIT]),
            "rate": 0.004,
            "y_limit": 2000.0,
            "stuck": 3,
            "growth": np.array([1.0, 0.0, 1.0, 1.0, 0.0, 0.0]),
            "window": LAP,
        },
    )
