"""The cost of a control loop: how far the output is from the reference, and how much control that takes."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError


def _weight(name: str) -> Callable[[Any], Array]:
    return lambda v: arguments.number(name, v, lambda v: 0 <= v < jnp.inf, "a finite number >= 0")


class Tracking(eqx.Module):
    r"""A quadratic cost of the tracking error, of the control and of its rate.

    $$h = w_e \sum_i \Big(\frac{r_i - y_i}{Y_i}\Big)^2 + w_u \sum_j \Big(\frac{u_j}{U_j}\Big)^2
    + w_d \sum_j \Big(\frac{\dot u_j}{U_j}\Big)^2$$

    $Y_i$ and $U_j$ are the sizes of output and control that count as 1. They come from the plant (`Signal.scale`),
    unless you give them here. The rate $\dot u$ is the change from the last control, divided by the sampling period.
    Before the first step, the last control is `u_start` of the PID, or 0.

    **Arguments:**

    - `error`, `effort`, `effort_rate`: the weights $w_e, w_u, w_d$. The weight of the rate is for a rate in units per
      second.
    - `output_scale`, `control_scale`: the sizes that count as 1, each a number or one for each signal; None takes the
      plant's.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> cost = st.Tracking(error=1.0, effort=0.01, output_scale=2.0, control_scale=10.0)
        >>> error, u, rate = jnp.array([1.0]), jnp.array([10.0]), jnp.array([0.0])
        >>> print(cost(error, u, rate))  # (1/2)² + 0.01 · 1²
        0.26
    """

    __repr__ = settings_text.show

    error: Any = eqx.field(default=1.0, converter=_weight("error"))
    effort: Any = eqx.field(default=0.01, converter=_weight("effort"))
    effort_rate: Any = eqx.field(default=0.0, converter=_weight("effort_rate"))
    output_scale: Any = None
    control_scale: Any = None

    def __check_init__(self) -> None:
        weights = arguments.known(self.error, self.effort, self.effort_rate)
        if weights is not None and not np.any(weights):
            raise ArgumentError("error", "a weight above 0, at least one of error, effort and effort_rate", "0")
        for name in ("output_scale", "control_scale"):
            if (value := getattr(self, name)) is not None:
                arguments.variances(name, value)  # positive numbers

    def scaled_to(self, output_scale: tuple[float, ...], control_scale: tuple[float, ...]) -> "Tracking":
        """Return this cost with the given scales where it has none of its own."""
        scales = []
        for name, value, default in (
            ("output_scale", self.output_scale, output_scale),
            ("control_scale", self.control_scale, control_scale),
        ):
            array = arguments.real_array(name, default if value is None else value)
            if array.ndim > 1 or array.size not in (1, len(default)):
                raise ArgumentError(name, f"one number or {len(default)}", arguments.describe(array))
            scales.append(jnp.array(jnp.broadcast_to(array, (len(default),))))
        return Tracking(self.error, self.effort, self.effort_rate, *scales)

    def __call__(self, error: Float[Array, " q"], u: Float[Array, " m"], rate: Float[Array, " m"]) -> Float[Array, ""]:
        dtype = u.dtype
        terms = ((self.error, error, self.output_scale), (self.effort, u, self.control_scale))
        terms += ((self.effort_rate, rate, self.control_scale),)
        total = jnp.zeros((), dtype)
        for weight, value, scale in terms:
            scale = jnp.asarray(1.0 if scale is None else scale, dtype)
            total = total + weight.astype(dtype) * jnp.sum((value / scale) ** 2)
        return total


class AbstractStateCost(eqx.Module):
    """A cost of a control loop that reads the state, the control and the reference.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> class FinalState(st.AbstractStateCost):
        ...     def __call__(self, x, u, reference):
        ...         return (x[-1] - reference[0]) ** 2
        >>> print(FinalState()(jnp.array([0.0, 3.0]), jnp.zeros(1), jnp.ones(1)))
        4.0
    """

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " n"], u: Float[Array, " m"], reference: Float[Array, " r"]) -> Float[Array, ""]:
        """Return the cost of a step."""


class JointTracking(AbstractStateCost):
    r"""The cost of a robot's joints: errors of the positions and of the rates, and the change of the torques.

    $$h = \frac1j \sum_i \Big(\frac{r_i - q_i}{P_i}\Big)^2 + \Big(\frac{\dot r_i - \dot q_i}{V_i}\Big)^2
    + \Big(\frac{u_i - \tau_i}{U_i}\Big)^2$$

    The difference of command and torque is the rate of the torque, times the lag of the motor. This term keeps gains
    from growing until they only amplify noise. The state is $(q, \dot q, \tau)$, as that of `models.RobotArm`.

    **Arguments:** `position`, `rate`, `change`: P, V and U, each a number or one for each joint.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> cost = st.JointTracking(position=0.02, rate=0.2, change=[2.0])
        >>> print(cost(jnp.array([0.0, 0.0, 1.0]), jnp.array([1.0]), jnp.array([0.02, 0.0, 0.0])))
        1.0
    """

    __repr__ = settings_text.show

    position: Any = eqx.field(converter=lambda v: arguments.variances("position", v))
    rate: Any = eqx.field(converter=lambda v: arguments.variances("rate", v))
    change: Any = eqx.field(converter=lambda v: arguments.variances("change", v))

    def __call__(self, x: Float[Array, " n"], u: Float[Array, " m"], reference: Float[Array, " r"]) -> Float[Array, ""]:
        return jnp.sum(self.by_joint(x, u, reference)) / u.size

    def by_joint(
        self, x: Float[Array, " n"], u: Float[Array, " m"], reference: Float[Array, " r"]
    ) -> Float[Array, " m"]:
        """Return the terms of the sum, one for each joint; the cost is their mean."""
        j = u.size
        q, rate, torque = jnp.split(x, 3)
        terms = (
            (reference[:j] - q, self.position),
            (reference[j : 2 * j] - rate, self.rate),
            (u - torque, self.change),
        )
        total = jnp.zeros_like(u)
        for value, scale in terms:
            total = total + (value / scale.astype(u.dtype)) ** 2
        return total


class FlightTracking(AbstractStateCost):
    r"""The cost of a quadrotor: errors of position and velocity, and thrust and torques beside those of hovering.

    $$h = \Big\lVert \frac{r - p}{P} \Big\rVert^2 + 0.3 \Big\lVert \frac{\dot r - v}{V} \Big\rVert^2
    + 0.02 \Big(\frac{u_1 - W}{W}\Big)^2 + \sum_i \Big(\frac{u_{1+i}}{U_i}\Big)^2$$

    The state is that of `models.Quadrotor`, and the control is (thrust, torques). Yaw has no cost of its own.

    **Arguments:** `position`, `velocity`: P (m) and V (m/s); `hover`: W, the weight (N); `torque`: U, a number or one
    for each axis (N·m).

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> cost = st.FlightTracking(position=0.1, velocity=0.5, hover=3.0, torque=0.2)
        >>> hovering = jnp.array([3.0, 0.0, 0.0, 0.0])
        >>> print(cost(jnp.zeros(16).at[0].set(0.2), hovering, jnp.zeros(12)).round(6))
        4.0
    """

    __repr__ = settings_text.show

    position: Any = eqx.field(converter=lambda v: arguments.positive("position", v))
    velocity: Any = eqx.field(converter=lambda v: arguments.positive("velocity", v))
    hover: Any = eqx.field(kw_only=True, converter=lambda v: arguments.positive("hover", v))
    torque: Any = eqx.field(kw_only=True, converter=lambda v: arguments.variances("torque", v))

    def __call__(self, x: Float[Array, " n"], u: Float[Array, " m"], reference: Float[Array, " r"]) -> Float[Array, ""]:
        settings = (self.position, self.velocity, self.hover, self.torque)
        P, V, W, U = (value.astype(u.dtype) for value in settings)
        position, velocity = (reference[:3] - x[:3]) / P, (reference[3:6] - x[3:6]) / V
        effort = 0.02 * ((u[0] - W) / W) ** 2 + jnp.sum((u[1:] / U) ** 2)
        return jnp.sum(position**2) + 0.3 * jnp.sum(velocity**2) + effort
