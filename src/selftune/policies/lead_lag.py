"""The lead or lag compensator."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..problem.constraints import AbstractConstraint
from ..problem.memory import Memory
from . import base
from .base import AbstractPolicy, Inputs, Parameter


class LeadLag(AbstractPolicy):
    r"""A lead compensator (`lead` > `lag`) or a lag compensator (`lead` < `lag`) on the error $e = r - y$.

    $$C(s) = k\, \frac{T_1 s + 1}{T_2 s + 1}: \qquad
    z_t = \frac{T_2 z_{t-1} + h\, e_t}{T_2 + h}, \quad u_t = k \left(z_t + \frac{T_1}{h} (z_t - z_{t-1})\right)$$

    (Backward differences with the sampling period h; z is the filtered error.) θ: the logarithms of k, $T_1$ and $T_2$.

    **Arguments:**

    - `gain`: k, a number, or a vector (m,) for one compensator on each axis; all of one sign on each axis.
    - `lead`, `lag`: the time constants $T_1$ and $T_2$ in seconds, numbers or vectors (m,).
    - `u_min`, `u_max`: the limits of u.
    - `compensation`, `constraint`, `units`: as in `PID`.

    !!! Example

        >>> from selftune import policies
        >>> lead = policies.LeadLag(gain=2.0, lead=0.5, lag=0.05)
        >>> [parameter.name for parameter in lead.parameters]
        ['log gain', 'log lag', 'log lead']
        >>> inputs = policies.Inputs.of(output=[0.0], reference=[1.0], dt=0.05)
        >>> u, memory = lead(inputs, lead.memory.initial, lead.theta)
        >>> print(u.round(6))  # a peak of k (T1 + h) / (T2 + h)
        [11.]
    """

    theta: dict[str, Array]
    constraint: AbstractConstraint
    sign: Float[Array, " m"]
    u_min: Array | None
    u_max: Array | None
    compensation: Array | None
    units: tuple[str, str] = eqx.field(static=True)

    def __init__(
        self,
        gain: Any,
        lead: Any,
        lag: Any,
        *,
        u_min: Any = None,
        u_max: Any = None,
        compensation: Any = None,
        constraint: AbstractConstraint | None = None,
        units: tuple[str, str] = ("u", "y"),
    ):
        gain = arguments.real_array("gain", gain)
        arguments.variances("gain", jnp.abs(gain))
        values = {"gain": jnp.abs(gain), "lead": arguments.variances("lead", lead)}
        values["lag"] = arguments.variances("lag", lag)
        shape = jnp.broadcast_shapes(*(value.shape for value in values.values()))
        self.theta = {f"log_{name}": jnp.log(jnp.broadcast_to(value, shape)) for name, value in values.items()}
        m = self.theta["log_gain"].size
        self.sign = jnp.broadcast_to(jnp.sign(gain), (m,))
        self.u_min, self.u_max = base.bound("u_min", u_min, m), base.bound("u_max", u_max, m)
        base.ordered(self.u_min, self.u_max)
        self.compensation = None if compensation is None else arguments.real_array("compensation", compensation)
        self.constraint = base.checked_constraint(constraint, self.theta, base.log_box(self.theta))
        self.units = units

    @property
    def memory(self) -> Memory:
        return Memory({"filtered": jnp.zeros_like(self.sign)})

    @property
    def limits(self) -> tuple[Array, Array]:
        return base.as_limits(self.u_min, self.u_max, self.sign)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        units = {"gain": "/".join(self.units), "lead": "s", "lag": "s"}
        return base.logarithms(self.theta, units, growth={"lag": -1})

    def gains(self, theta: PyTree) -> dict[str, Array]:
        sizes = {name.removeprefix("log_"): jnp.exp(value) for name, value in theta.items()}
        sign = self.sign.reshape(sizes["gain"].shape).astype(sizes["gain"].dtype)
        return {**sizes, "gain": sign * sizes["gain"]}

    def __call__(self, inputs: Inputs, memory: PyTree, theta: PyTree) -> tuple[Float[Array, " m"], PyTree]:
        error, h, before = inputs.reference - inputs.output, inputs.elapsed, memory["filtered"]
        base.fits_output(inputs.output, self.sign.size)
        gains = self.gains(theta)
        filtered = (gains["lag"] * before + h * error) / (gains["lag"] + h)
        u = gains["gain"] * (filtered + gains["lead"] * (filtered - before) / h)
        u = base.compensated(u, self.compensation, inputs.f)
        return base.saturate(u, self.u_min, self.u_max), {"filtered": filtered}
