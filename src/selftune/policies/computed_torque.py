"""Computed torque: the inverse dynamics of a robot make each joint a mass–spring–damper."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.constraints import AbstractConstraint, Box, Unconstrained
from . import base
from .base import Inputs, Parameter
from .robot import AbstractRobotPolicy, RobotNumbers, given_settings, soft_limit, unfitted, with_derivatives


class ComputedTorque(AbstractRobotPolicy):
    r"""Computed torque for a robot with joint angles q.

    $$u = \mathrm{limit}(\tau(q, \dot q, a) - \hat f), \qquad
    a = \ddot r + \omega^2 (r - q) + 2 \zeta \omega (\dot r - \dot q)$$

    $\tau$ is the model's inverse dynamics: the torques for a wanted acceleration. With an exact model, each joint then
    moves like a mass with a spring and a damper, with natural frequency ω and damping ratio ζ. θ: the logarithms of ω
    and ζ, one for each joint (`log_damping`, `log_frequency`).

    The limit is smooth, $v / (1 + (v/u_{max})^8)^{1/8}$, so that the tuner sees that the control stays near its limit.

    The policy reads q and $\dot q$ from the first 2j components of x. The reference has the wanted angles, then the
    wanted rates, then the wanted accelerations, 3j numbers. Rates and accelerations that are left out are 0.

    In a `Loop` with a robot of `models.RobotArm`, everything that is left out comes from the robot.

    **Arguments:**

    - `inverse_dynamics`: τ, a function `(q (j,), rate (j,), acceleration (j,)) -> (j,)`.
    - `joints`: j.
    - `frequency`, `damping`: ω (rad/s) and ζ at the start, numbers or vectors (j,); by default 10 rad/s and 1.
    - `u_max`: the largest torques, a number or a vector (j,); None for no limit.
    - `drag`: the viscous damping of the joints that τ does not contain, (j,), and `latency`: the time in seconds from a
      measurement to the torque. The control then adds $d\,(\dot r + T e)$, where T is the latency and e the feedback
      in a. To cancel the damping at the measured rate would make a joint with much damping swing.
    - `constraint`: Θ; by default ω between 1/10 and 10 times the start, and ζ between 1/4 and 4 times the start.

    !!! Example

        A pendulum with the inertia 2 kg·m² and the weight 5 N at a length of 1 m:

        >>> import jax.numpy as jnp
        >>> from selftune import policies
        >>> def torque(q, rate, acceleration):
        ...     return 2.0 * acceleration + 5.0 * jnp.sin(q)
        >>> policy = policies.ComputedTorque(torque, joints=1, frequency=10.0, damping=1.0)
        >>> inputs = policies.Inputs.of(output=[0.0], reference=[0.1], x=[0.0, 0.0], dt=0.01)
        >>> print(policy(inputs, None, policy.theta)[0].round(6))  # 2 · 10² · 0.1
        [20.]
    """

    inverse_dynamics: Callable[..., Any] | None
    theta: dict[str, Array]
    constraint: AbstractConstraint
    u_max: Array | None
    drag: Array | None
    latency: Array
    given: dict[str, Any]

    def __init__(
        self,
        inverse_dynamics: Callable[..., Any] | None = None,
        joints: int | None = None,
        *,
        frequency: Any = None,
        damping: Any = None,
        u_max: Any = None,
        drag: Any = None,
        latency: Any = 0.0,
        constraint: AbstractConstraint | None = None,
    ):
        self.inverse_dynamics, self.drag = inverse_dynamics, None
        self.latency = arguments.non_negative("latency", latency)
        self.given = {}
        if inverse_dynamics is None:
            self.given = given_settings(constraint, frequency=frequency, damping=damping, u_max=u_max)
            self.theta, self.constraint, self.u_max = {}, Unconstrained(), None
            return
        if not callable(inverse_dynamics):
            raise ArgumentError("inverse_dynamics", "a function", arguments.describe(inverse_dynamics))
        size = (arguments.count("joints", joints),)
        start = {"damping": arguments.variances("damping", 1.0 if damping is None else damping)}
        start["frequency"] = arguments.variances("frequency", 10.0 if frequency is None else frequency)
        self.theta = {f"log_{name}": jnp.log(arguments.fit_shape(name, value, size)) for name, value in start.items()}
        self.u_max = None if u_max is None else base.bound("u_max", arguments.variances("u_max", u_max), size[0])
        reach = {"log_damping": math.log(4.0), "log_frequency": math.log(10.0)}
        default = Box(*({name: leaf + s * reach[name] for name, leaf in self.theta.items()} for s in (-1, 1)))
        self.constraint = base.checked_constraint(constraint, self.theta, default)
        if drag is not None:
            self.drag = jnp.array(arguments.fit_shape("drag", arguments.non_negatives("drag", drag), size))

    def for_robot(self, robot: RobotNumbers) -> "ComputedTorque":
        if self.inverse_dynamics is not None:
            return self
        settings = {"frequency": robot.frequency, "damping": robot.damping, "u_max": robot.u_max} | self.given
        start = {
            name: arguments.fit_shape(name, jnp.asarray(settings[name]), (robot.joints,))
            for name in ("frequency", "damping")
        }
        if any(robot.drag):
            settings |= {"drag": jnp.asarray(robot.drag), "latency": robot.latency}
        return ComputedTorque(robot.inverse_dynamics, robot.joints, **({"constraint": robot.box(start)} | settings))

    @property
    def memory(self) -> None:
        return None

    @property
    def limits(self) -> tuple[Array, Array]:
        if self.inverse_dynamics is None:
            raise unfitted(self)
        low = None if self.u_max is None else -self.u_max
        return base.as_limits(low, self.u_max, self.theta["log_frequency"])

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return base.logarithms(self.theta, {"frequency": "rad/s"}, growth={}, damps=("damping",))

    def gains(self, theta: PyTree) -> dict[str, Array]:
        """Return the natural frequencies (rad/s) and the damping ratios."""
        return {name.removeprefix("log_"): jnp.exp(value) for name, value in theta.items()}

    def __call__(self, inputs: Inputs, memory: PyTree, theta: PyTree) -> tuple[Float[Array, " m"], PyTree]:
        if self.inverse_dynamics is None:
            raise unfitted(self)
        joints = self.theta["log_frequency"].size
        q, rate = inputs.x[:joints], inputs.x[joints : 2 * joints]
        wanted, wanted_rate, wanted_acceleration = with_derivatives(inputs.reference, joints, 3)
        gains = self.gains(theta)
        frequency, ratio = gains["frequency"], gains["damping"]
        feedback = frequency * (frequency * (wanted - q) + 2 * ratio * (wanted_rate - rate))
        torque = self.inverse_dynamics(q, rate, wanted_acceleration + feedback) - inputs.f
        if self.drag is not None:
            drag, latency = self.drag.astype(torque.dtype), self.latency.astype(torque.dtype)
            torque = torque + drag * (wanted_rate + latency * feedback)
        return torque if self.u_max is None else soft_limit(torque, self.u_max.astype(torque.dtype)), None
