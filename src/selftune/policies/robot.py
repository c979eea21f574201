"""Policies for the joints of a robot: what they need to know of the robot, and what they share."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.constraints import AbstractConstraint, Box
from .base import AbstractPolicy


class RobotNumbers(NamedTuple):
    """The numbers and functions of a robot from which its policies get what the user leaves out.

    !!! Example

        >>> import selftune as st
        >>> from selftune import models, robot_rules
        >>> link = models.Link("shoulder", axis=(0.0, -1.0, 0.0), mass=2.0, center=(0.0, 0.0, -0.3))
        >>> robot = models.RobotArm(models.RigidBody((link,)), torque_limits=20.0)
        >>> robot_rules.numbers(robot).u_max
        (20.0,)
    """

    joints: int
    inverse_dynamics: Callable[..., Any]
    """(q, rate, acceleration) to the torques, without the viscous damping of the joints."""
    gravity_torque: Callable[..., Any]
    """q to the torques at rest."""
    drag: tuple[float, ...]
    """The viscous damping of each joint."""
    latency: float
    """The time in seconds from a measurement to the torque."""
    inertia: tuple[float, ...]
    """The inertia at each joint in the home position; the damping counts for the length of the latency."""
    hold: tuple[float, ...]
    """The torques that hold the robot at home."""
    u_max: tuple[float, ...]
    frequency: tuple[float, ...]
    """The start of the natural frequencies (rad/s)."""
    damping: float
    frequency_range: tuple[float, float]
    """Θ, as multiples of `frequency`."""
    damping_range: tuple[float, float]

    def box(self, start: dict[str, Array]) -> Box:
        """Return Θ for logarithms of frequencies and damping ratios, wide enough for the start."""
        nominal = {"frequency": np.array(self.frequency), "damping": np.ones(self.joints)}
        ranges = {"frequency": self.frequency_range, "damping": self.damping_range}
        low, high = (
            {
                f"log_{name}": jnp.asarray(np.log(pick(nominal[name] * ranges[name][i], np.asarray(value))))
                for name, value in start.items()
            }
            for i, pick in ((0, np.minimum), (1, np.maximum))
        )
        return Box(low, high)


class AbstractRobotPolicy(AbstractPolicy):
    """A policy that takes what the user leaves out from a robot."""

    @abc.abstractmethod
    def for_robot(self, robot: RobotNumbers) -> AbstractPolicy:
        """Return the policy for this robot."""


def given_settings(constraint: AbstractConstraint | None, **numbers: Any) -> dict[str, Any]:
    """Return the settings that are not None, after a check: numbers or vectors > 0, and a constraint."""
    arguments.instance("constraint", constraint, AbstractConstraint, optional=True)
    given = {name: arguments.variances(name, value) for name, value in numbers.items() if value is not None}
    return given if constraint is None else given | {"constraint": constraint}


def unfitted(policy: AbstractPolicy) -> ArgumentError:
    kind = type(policy).__name__
    expected = f"a {kind} with its numbers, or a Loop with a models.RobotArm, which gives them"
    return ArgumentError("policy", expected, f"{kind}() without numbers")


def with_derivatives(reference: Array, size: int, count: int) -> list[Array]:
    """Return the reference and its derivatives, `count` vectors in all; those that are left out are 0."""
    given, rest = divmod(reference.size, size)
    if rest or not 1 <= given <= count:
        sizes = " or ".join(str(size * k) for k in range(1, count + 1))
        raise ArgumentError("reference", f"{sizes} numbers", arguments.describe(reference))
    parts = list(jnp.split(reference, given)) if given > 1 else [reference]
    return parts + [jnp.zeros(size, reference.dtype)] * (count - given)


def soft_limit(v: Array, limit: Array) -> Array:
    """Return v limited smoothly to ±limit: 1.2 % below v at three quarters of the limit, 8 % below at the limit.

    The weight of a robot often takes more than half of the limit, so the knee must be sharp: each percent below v is a
    disturbance that the feedback must remove, and joints with little inertia feel it most.
    """
    share = jnp.minimum(jnp.maximum(v / limit, -1e4), 1e4)  # the eighth power of larger numbers overflows in float32
    square = share * share
    return limit * share / jnp.sqrt(jnp.sqrt(jnp.sqrt(1 + (square * square) ** 2)))
