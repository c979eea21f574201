"""The cascade of a robot's drives: a position controller around a velocity controller."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..problem.constraints import AbstractConstraint, Box, Unconstrained
from ..problem.memory import Memory
from . import base
from .base import Inputs, Parameter
from .robot import AbstractRobotPolicy, RobotNumbers, given_settings, soft_limit, unfitted, with_derivatives

POSITION_SHARE, INTEGRAL_SHARE = 0.3, 4.0
"""Start values: the position gain over the velocity gain, and the integral time times the velocity gain."""
REACH = 4.0
"""Θ: each number may be this many times larger or smaller than its start."""


class VelocityCascade(AbstractRobotPolicy):
    r"""For each joint a position controller (P) with a velocity controller (PI) inside, as most drives have.

    $$v = \dot r + k_p (r - q), \qquad u = \mathrm{limit}\big(J k_v (v - \dot q) + I\big), \qquad
    I_{t+1} = I_t + \frac{h}{T_i} J k_v (v - \dot q)$$

    J is the constant inertia of each joint. No model of the robot is needed at run time; the integral carries the
    weight. It starts with the torques that hold the robot at home, and it stops while the drive is near its limit. θ:
    the logarithms of $k_p$ (1/s), $k_v$ (1/s) and $T_i$ (s), one for each joint.

    The numbers come from the robot of the `Loop`; see `models.RobotArm`.

    **Arguments:** `position_gain`, `velocity_gain`, `integral_time`: the start, numbers or vectors; `constraint`: Θ.

    !!! Example

        >>> import selftune as st
        >>> from selftune import models, policies
        >>> link = models.Link("shoulder", axis=(0.0, -1.0, 0.0), mass=2.0, center=(0.0, 0.0, -0.3))
        >>> robot = models.RobotArm(models.RigidBody((link,)), torque_limits=20.0, lag=0.007)
        >>> loop = st.Loop(robot, policies.VelocityCascade(velocity_gain=30.0))
        >>> print({name: round(float(gain[0]), 3) for name, gain in loop.gains(loop.theta).items()})
        {'integral_time': 0.133, 'position_gain': 9.0, 'velocity_gain': 30.0}
    """

    theta: dict[str, Array]
    constraint: AbstractConstraint
    inertia: Array | None
    hold: Array | None
    u_max: Array | None
    given: dict[str, Any]

    def __init__(
        self,
        *,
        position_gain: Any = None,
        velocity_gain: Any = None,
        integral_time: Any = None,
        constraint: AbstractConstraint | None = None,
        robot: RobotNumbers | None = None,
    ):
        self.given = given_settings(
            constraint, position_gain=position_gain, velocity_gain=velocity_gain, integral_time=integral_time
        )
        self.theta, self.constraint = {}, Unconstrained()
        self.inertia = self.hold = self.u_max = None
        if robot is None:
            return
        size = (robot.joints,)
        velocity = arguments.variances("velocity_gain", robot.frequency if velocity_gain is None else velocity_gain)
        velocity = arguments.fit_shape("velocity_gain", velocity, size)
        start = {"velocity_gain": velocity}
        start["position_gain"] = POSITION_SHARE * velocity if position_gain is None else position_gain
        start["integral_time"] = INTEGRAL_SHARE / velocity if integral_time is None else integral_time
        self.theta = {
            f"log_{name}": jnp.log(arguments.fit_shape(name, arguments.variances(name, value), size))
            for name, value in sorted(start.items())
        }
        self.inertia, self.u_max, self.hold = (jnp.asarray(v) for v in (robot.inertia, robot.u_max, robot.hold))
        reach = float(np.log(REACH))
        default = Box(*({name: leaf + s * reach for name, leaf in self.theta.items()} for s in (-1, 1)))
        self.constraint = base.checked_constraint(constraint, self.theta, default)

    def for_robot(self, robot: RobotNumbers) -> "VelocityCascade":
        return VelocityCascade(robot=robot, **self.given)

    @property
    def memory(self) -> Memory:
        if self.hold is None:
            raise unfitted(self)
        return Memory({"integral": self.hold})

    @property
    def limits(self) -> tuple[Array, Array]:
        if self.u_max is None:
            raise unfitted(self)
        return -self.u_max, self.u_max

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        units = {"position_gain": "1/s", "velocity_gain": "1/s", "integral_time": "s"}
        return base.logarithms(self.theta, units, growth={"integral_time": -1}, damps=("velocity_gain",))

    def gains(self, theta: PyTree) -> dict[str, Array]:
        """Return the gains of the position and of the velocity controller (1/s), and the integral times (s)."""
        return {name.removeprefix("log_"): jnp.exp(value) for name, value in theta.items()}

    def __call__(self, inputs: Inputs, memory: PyTree, theta: PyTree) -> tuple[Float[Array, " m"], PyTree]:
        if self.inertia is None or self.u_max is None:
            raise unfitted(self)
        joints = self.inertia.size
        q, rate = inputs.x[:joints], inputs.x[joints : 2 * joints]
        wanted, wanted_rate, _ = with_derivatives(inputs.reference, joints, 3)
        gains, limit = self.gains(theta), self.u_max.astype(q.dtype)
        error = wanted_rate + gains["position_gain"] * (wanted - q) - rate
        push = self.inertia.astype(q.dtype) * gains["velocity_gain"] * error
        integral = memory["integral"]
        u = soft_limit(push + integral, limit)
        step = inputs.dt / gains["integral_time"] * push
        stuck = (jnp.abs(push + integral) > limit) & ((push + integral) * step > 0)
        return u, {"integral": integral + jnp.where(stuck, jnp.zeros_like(step), step)}
