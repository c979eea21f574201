"""The rules that make a control loop of a quadrotor's own numbers: the policy with its start gains and box, path, cost,
noise and limits.

Every rule is one function of the quadrotor, and every number that it gives can be given instead. The same numbers serve
all quadrotors.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..models.quadrotor import Quadrotor
from ..policies.geometric import Geometric
from ..problem.constraints import Box
from .references import Swing
from .tracking import FlightTracking

PACE, TILT_ERROR, YAW_ERROR = 0.85, 0.1, 0.25
"""The natural frequency of tilt times the latency; the errors of tilt and yaw (rad) that use all of the angular
acceleration. The second number decides if the rotors are weak."""
OUTER, YAW = 7.0, 4.0
"""The natural frequency of tilt is this many times that of the position, and that of yaw."""
DAMPING, TILT_DAMPING = 0.8, 0.7
"""The damping ratios of the start gains: position and yaw; tilt."""
FREQUENCY_RANGE, TILT_RANGE, YAW_RANGE = (1 / 3, 4 / 3), (0.5, 1.4), (0.4, 1.9)
"""The box of the natural frequencies of position, tilt and yaw, as multiples of the start."""
DAMPING_RANGE, TILT_DAMPING_RANGE = (0.35, 1.5), (0.6, 1.5)
"""The box of the damping ratios. The loop of the tilt must be well damped for the loop of the position around it."""
ANGULAR, THRUST, FEEDBACK, BRISK = 0.5, 2.25, 0.5, 6.0
"""The policy may use this share of the largest torques; this multiple of the weight as thrust, if the rotors have as
much; this share of the acceleration upwards for feedback, and at most 6 m/s²."""
SIZE, TURNS, LAP = (1.0, 0.4, 0.2), (1, 2, 1), 4.0
"""The path: the largest distances from its center along x, y and z (m), the turns in a lap, the seconds of a lap."""
EFFORT = 0.7
"""The path needs at most this share of the thrust beyond the weight and of the angular acceleration that the policy may
use."""
TORQUE, TORQUE_SHARE = 40.0, 0.5
"""The torque that counts as 1 gives an angular acceleration of 40 rad/s², or takes this share of the largest torque."""
NOISE = (1e-3, 4e-3, 1e-3, 1e-2)
"""The noise of the sensors: position (m), velocity (m/s), rotation (rad) and rates (rad/s)."""


def geometric(drone: Quadrotor) -> Geometric:
    """Return the geometric controller for a quadrotor: its mass, moments of inertia and limits, start gains and box.

    The tilt is as fast as the latency allows, 0.85 / latency, and slower if the rotors are too weak for that: an error
    of 0.1 rad may use half of the largest torque. The position is 7 times slower than the tilt, and yaw at least 4
    times. The policy neglects the products of inertia, which the model has.

    !!! Example

        >>> from selftune import models, quadrotor_rules
        >>> x, y = [0.1, -0.1, -0.1, 0.1], [0.1, 0.1, -0.1, -0.1]
        >>> wrench = [[1.0] * 4, y, [-one for one in x], [-0.02, 0.02, -0.02, 0.02]]
        >>> drone = models.Quadrotor(0.5, (0.001, 0.001, 0.002), wrench, rotor_high=4.0, lag=0.017)
        >>> policy = quadrotor_rules.geometric(drone)
        >>> print(policy.gains(policy.theta)["attitude_frequency"].round(1))  # tilt: 0.85 / (17 ms + 1.5 · 2 ms)
        [42.5  9.9]
    """
    arguments.instance("drone", drone, Quadrotor)
    angular = ANGULAR * _angular_limits(drone)
    tilt = min(PACE / drone.latency, float(np.sqrt(min(angular[:2]) / TILT_ERROR)))
    yaw = min(tilt / YAW, float(np.sqrt(angular[2] / YAW_ERROR)))
    thrust = min(drone.thrust_limit, THRUST * drone.weight)
    start = {
        "frequency": np.full(3, tilt / OUTER),
        "damping": np.full(3, DAMPING),
        "attitude_frequency": np.array([tilt, yaw]),
        "attitude_damping": np.array([TILT_DAMPING, DAMPING]),
    }
    box = {
        "frequency": start["frequency"] * np.array(FREQUENCY_RANGE)[:, None],
        "damping": np.broadcast_to(np.array(DAMPING_RANGE)[:, None], (2, 3)),
        "attitude_frequency": start["attitude_frequency"] * np.array([TILT_RANGE, YAW_RANGE]).T,
        "attitude_damping": np.array([TILT_DAMPING_RANGE, DAMPING_RANGE]).T,
    }
    low, high = ({f"log_{name}": jnp.asarray(np.log(rows[i])) for name, rows in box.items()} for i in (0, 1))
    return Geometric(
        drone.mass,
        np.diag(np.array(drone.inertia)),
        gravity=drone.gravity,
        **start,
        acceleration_limit=min(BRISK, FEEDBACK * (drone.thrust_limit - drone.weight) / drone.mass),
        thrust_limit=thrust,
        angular_limit=angular,
        constraint=Box(low, high),
    )


def _angular_limits(drone: Quadrotor) -> np.ndarray:
    """Return the largest angular acceleration about each axis while the body hovers, in rad/s²."""
    return np.array(drone.torque_limits) / np.diag(np.array(drone.inertia))


def flight_path(drone: Quadrotor) -> Swing:
    """Return a figure eight of 2 m by 0.8 m that also rises and falls. It starts at rest at the origin.

    The path shrinks by factors of 0.8 until it needs at most 70 % of the thrust beyond the weight and of the angular
    acceleration that the policy may use.
    """
    arguments.instance("drone", drone, Quadrotor)
    thrust = drone.weight + EFFORT * (min(drone.thrust_limit, THRUST * drone.weight) - drone.weight)
    angular = EFFORT * ANGULAR * min(_angular_limits(drone)[:2])
    scale, points = 1.0, 400
    for _ in range(60):
        path = Swing(np.zeros(3), scale * np.array(SIZE), TURNS, LAP)
        rows = np.asarray(path.rows(jax.random.key(0), points, LAP / points, 12), float)
        force = rows[:, 6:9] + np.array([0.0, 0.0, drone.gravity])
        size = np.linalg.norm(force, axis=1)
        up = force / size[:, None]
        turning = (np.roll(up, -1, 0) - 2 * up + np.roll(up, 1, 0)) / (LAP / points) ** 2
        if np.max(size) * drone.mass <= thrust and np.max(np.linalg.norm(turning, axis=1)) <= angular:
            return path
        scale *= 0.8
    raise ArgumentError(
        "drone",
        "rotors that allow a motion beside hovering",
        f"a thrust of {drone.thrust_limit / drone.weight:.3g} times the weight, and angular accelerations of "
        f"{', '.join(f'{value:.3g}' for value in _angular_limits(drone))} rad/s²",
        "give larger rotor_limits",
    )


def flight_cost(drone: Quadrotor) -> FlightTracking:
    """Return the cost of a quadrotor: an error of 0.1 m counts as 1, one of 0.5 m/s as 0.3; thrust and torques beside
    those of hovering have small costs."""
    arguments.instance("drone", drone, Quadrotor)
    position, velocity = (drone.outputs[i].scale for i in (0, 3))
    torques = np.minimum(TORQUE * np.diag(np.array(drone.inertia)), TORQUE_SHARE * np.array(drone.torque_limits))
    return FlightTracking(position, velocity, hover=drone.weight, torque=torques)


def measurement_noise(drone: Quadrotor) -> np.ndarray:
    """Return the noise of the sensors that simulations use, (16,): 1 mm, 4 mm/s, 1 mrad, 10 mrad/s, and a thousandth of
    the scale for thrust and torques, which are commands that the program knows."""
    arguments.instance("drone", drone, Quadrotor)
    return np.concatenate([np.repeat(NOISE, 3), 1e-3 * np.array([signal.scale for signal in drone.controls])])


def guard_settings(drone: Quadrotor) -> dict[str, Any]:
    """Return settings of `Guard` that differ from those of other loops: the safe control is hovering, and thrust and
    torques have the limits of the rotors."""
    arguments.instance("drone", drone, Quadrotor)
    torques = list(drone.torque_limits)
    return {
        "safe_u": [drone.weight, 0.0, 0.0, 0.0],
        "u_low": [0.0, *(-torque for torque in torques)],
        "u_high": [drone.thrust_limit, *torques],
    }
