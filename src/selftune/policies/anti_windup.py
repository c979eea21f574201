"""Anti-windup: what the integral does while the actuator is at its limit."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import arguments


class AbstractAntiWindup(eqx.Module):
    """A rule for the integral of a PID while the control u differs from the wanted control v."""

    @abc.abstractmethod
    def step(self, step: Float[Array, " m"], v: Array, u: Array, dt: Array, tracking_time: Array) -> Float[Array, " m"]:
        """Return the change of the integral term. `step` is the change without a limit, $k_i h (r - y)$."""


class BackCalculation(AbstractAntiWindup):
    r"""The integral follows the limited control.

    $$I_{t+1} = I_t + k_i h\, e_t + \frac{h}{T_t} (u_t - v_t)$$

    v is the wanted control and u the limited control. A tracking time shorter than the period h counts as h.

    **Arguments:**

    - `tracking_time`: $T_t$ in seconds. By default $\sqrt{T_i T_d}$, or $T_i$ without a derivative, of the current
      gains (Åström and Hägglund, *Advanced PID Control*, section 3.5).
    - `tunable`: if True, the logarithm of $T_t$ is a part of θ.

    !!! Example

        >>> from selftune import policies
        >>> rule = policies.BackCalculation(tracking_time=0.2)
        >>> pid = policies.PID(kp=2.0, ki=1.0, u_min=-1.0, u_max=1.0, anti_windup=rule)
    """

    tracking_time: Array | None
    tunable: bool = eqx.field(static=True)

    def __init__(self, tracking_time: Any = None, *, tunable: bool = False):
        self.tracking_time = None if tracking_time is None else arguments.variances("tracking_time", tracking_time)
        self.tunable = tunable

    def step(self, step: Array, v: Array, u: Array, dt: Array, tracking_time: Array) -> Array:
        return step + dt / jnp.maximum(tracking_time, dt) * (u - v)


class Clamping(AbstractAntiWindup):
    r"""The integral stops while the control is limited and the error would drive it farther (conditional integration).

    $$I_{t+1} = I_t + k_i h\, e_t \text{ if } (v_t - u_t)\, k_i e_t \le 0, \text{ otherwise } I_{t+1} = I_t$$

    !!! Example

        >>> from selftune import policies
        >>> pid = policies.PID(kp=2.0, ki=1.0, u_min=-1.0, u_max=1.0, anti_windup=policies.Clamping())
    """

    def step(self, step: Array, v: Array, u: Array, dt: Array, tracking_time: Array) -> Array:
        return jnp.where((v - u) * step > 0, jnp.zeros_like(step), step)


class Windup(AbstractAntiWindup):
    r"""No anti-windup: the integral continues at the limit. Use it only for comparisons.

    !!! Example

        >>> from selftune import policies
        >>> pid = policies.PID(kp=2.0, ki=1.0, u_min=-1.0, u_max=1.0, anti_windup=policies.Windup())
    """

    def step(self, step: Array, v: Array, u: Array, dt: Array, tracking_time: Array) -> Array:
        return step
