"""The rules that make a control loop of a robot's own numbers: start gains, box, path, cost and noise.

Every rule is one function of the robot, and every number that it gives can be given instead. The same numbers serve
all robots.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..models.robot_arm import RobotArm, bandwidth
from ..policies.base import AbstractPolicy
from ..policies.robot import AbstractRobotPolicy, RobotNumbers
from .references import Swing
from .tool_paths import tool_path as tool_path
from .tracking import JointTracking

DAMPING = 1.0
"""The damping ratio of the start gains."""
FREQUENCY_RANGE = (0.25, 2.0)
"""The box of the natural frequencies, as multiples of the bandwidth."""
DAMPING_RANGE = (0.35, 1.5)
"""The box of the damping ratios. Below, a joint swings; above, noise of the rate reaches the motor."""
CHANGE = 0.12
"""The difference of command and torque that counts as 1, as a share of the rated torque."""
SWING, ROOM = 0.4, 0.4
"""The largest swing of a joint in radians (for a slide, times its length), and as a share of the room to its limits."""
LAP = 4.0
"""The seconds of a lap; every second joint swings twice in a lap."""
EFFORT, SPARE = 0.6, 0.1
"""The path needs at most this share of the torque limits; if gravity alone needs more, 10 % beyond gravity."""
POSITION_NOISE, RATE_NOISE = 0.015, 0.1
"""The noise of the sensors, as shares of the errors that count as 1."""


def numbers(robot: RobotArm) -> RobotNumbers:
    """Return what the policies of a robot need: functions, torque limits, start gains and box.

    !!! Example

        >>> from selftune import models, robot_rules
        >>> link = models.Link("shoulder", axis=(0.0, -1.0, 0.0), mass=2.0, center=(0.0, 0.0, -0.3))
        >>> robot = models.RobotArm(models.RigidBody((link,)), torque_limits=20.0, dt=0.002, lag=0.007)
        >>> robot_rules.numbers(robot).frequency  # 0.25 / (7 ms + 1.5 · 2 ms), in rad/s
        (25.0,)
    """
    arguments.instance("robot", robot, RobotArm)
    with jax.ensure_compile_time_eval():
        inertia = np.diag(np.asarray(robot.body.mass_matrix(jnp.asarray(robot.home)), float))
    drag = np.array([link.damping for link in robot.body.links])
    still = robot.body.without_damping()
    return RobotNumbers(
        joints=robot.joints,
        inverse_dynamics=still.inverse_dynamics,
        gravity_torque=still.gravity_torque,
        drag=tuple(map(float, drag)),
        latency=robot.latency,
        inertia=tuple(map(float, inertia + robot.latency * drag)),
        hold=robot.hold,
        u_max=robot.torque_limits,
        frequency=(float(f"{bandwidth(robot):.6g}"),) * robot.joints,
        damping=DAMPING,
        frequency_range=FREQUENCY_RANGE,
        damping_range=DAMPING_RANGE,
    )


def fitted_policy(policy: AbstractRobotPolicy, robot: RobotArm) -> AbstractPolicy:
    """Return the policy with the robot's numbers where the user gives none."""
    return policy.for_robot(numbers(robot))


def default_policy(policy: AbstractRobotPolicy, robot: RobotArm) -> AbstractPolicy:
    """Return a policy of the same kind in which all numbers are those of the rules."""
    kind: Any = type(policy)
    return fitted_policy(kind(), robot)


def detuned(theta: dict[str, Any], factor: float) -> dict[str, Any]:
    r"""Return the start gains of `ComputedTorque`, `GravityPD` or `Geometric` with all feedback gains multiplied by a
    factor.

    The gains are $\omega^2$ and $2 \zeta \omega$, so ω and ζ change by the square root of the factor.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import robot_rules
        >>> start = {"log_frequency": jnp.log(jnp.array([20.0])), "log_damping": jnp.log(jnp.array([1.0]))}
        >>> lower = robot_rules.detuned(start, 0.25)
        >>> print(jnp.exp(lower["log_frequency"]).round(3), jnp.exp(lower["log_damping"]).round(3))
        [10.] [0.5]
    """
    step = 0.5 * float(np.log(arguments.positive("factor", factor)))
    return {name: leaf + step if name.endswith(("frequency", "damping")) else leaf for name, leaf in theta.items()}


def joint_cost(robot: RobotArm) -> JointTracking:
    """Return the cost of a robot: an error of 0.02 rad counts as 1 (for a slide, 0.02 times its length); so does the
    rate error that belongs to it at half the bandwidth, and a difference of command and torque of 12 % of the rated
    torque."""
    j = robot.joints
    scales = np.array([signal.scale for signal in robot.outputs])
    return JointTracking(scales[:j], scales[j:], CHANGE * np.array(robot.rated_torques))


def measurement_noise(robot: RobotArm) -> np.ndarray:
    """Return the noise of a robot's sensors that simulations use, (3j,): positions (3e-4 rad), rates and torques."""
    j = robot.joints
    scales = np.array([signal.scale for signal in robot.outputs])
    return np.concatenate([POSITION_NOISE * scales[:j], RATE_NOISE * scales[j:], 1e-3 * np.array(robot.rated_torques)])


def joint_path(robot: RobotArm) -> Swing:
    """Return a path that starts at rest at home and that fits the joint ranges and the torque limits.

    Each joint swings by at most 0.4 rad (for a slide, 0.4 times its length) and by 40 % of the room to its limits. The
    whole path shrinks by factors of 0.8 until no joint needs more than 60 % of its torque limit.

    !!! Example

        >>> from selftune import models, robot_rules
        >>> link = models.Link("shoulder", axis=(0.0, -1.0, 0.0), mass=2.0, center=(0.0, 0.0, -0.3))
        >>> robot = models.RobotArm(models.RigidBody((link,)), torque_limits=20.0, low=-0.5, high=0.5)
        >>> print(robot_rules.joint_path(robot).size)
        [0.2]
    """
    home, limits = np.array(robot.home), np.array(robot.torque_limits)
    hold = np.abs(robot.hold)
    if np.any(hold > 0.95 * limits):
        i = int(np.argmax(hold / limits))
        raise ArgumentError(
            "torque_limits",
            "motors that can hold the robot at home",
            f"{limits[i]:g} for {robot.body.links[i].name}, which needs {hold[i]:.3g}",
            "give home=… or torque_limits=…",
        )
    lengths = np.array(robot.lengths)
    room = np.minimum(home - np.array(robot.low), np.array(robot.high) - home)
    size = np.minimum(SWING * lengths, np.where(np.isfinite(room), ROOM * room, np.inf))
    allowed = np.maximum(EFFORT * limits, np.minimum(hold + SPARE * limits, 0.95 * limits))
    turns = tuple(1 + i % 2 for i in range(robot.joints))
    needed = jax.jit(jax.vmap(robot.body.inverse_dynamics))
    for _ in range(40):
        path = Swing(home, size, turns, LAP)
        rows = np.asarray(path.rows(jax.random.key(0), 100, LAP / 100, 3 * robot.joints))
        torques = np.max(np.abs(np.asarray(needed(*np.split(rows, 3, axis=1)))), axis=0)
        if np.all(torques <= allowed):
            return path
        size = 0.8 * size
    hint = "give home=… or torque_limits=…, or correct the masses and inertias"
    expected = "limits that allow a motion around home"
    raise ArgumentError("torque_limits", expected, f"{limits}", " ".join([hint + ".", *robot.notes]).rstrip("."))


def payloads(robot: RobotArm) -> tuple[float, float]:
    """Return a light and a heavy payload in kg: the heavy one takes 15 % of some joint's rated torque, with the arm
    stretched out, and is five times the light one."""
    heavy = 0.3 * robot.payload_limit
    return heavy / 5, heavy
