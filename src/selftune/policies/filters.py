"""Filters with tunable constants, and `Filtered`, which puts them before and behind a policy."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..problem.constraints import AbstractConstraint, Box, Product
from ..problem.memory import Memory, keep_after
from . import base
from .base import AbstractPolicy, Inputs, Parameter


class AbstractFilter(eqx.Module):
    """A filter for a vector of signals: $(z_t, s_{t+1})$ from the signal, the memory s and θ."""

    def __repr__(self) -> str:
        return base.described(self, lambda theta: {k.removeprefix("log_"): jnp.exp(v) for k, v in theta.items()})

    theta: eqx.AbstractVar[dict[str, Array]]
    """The start parameters: logarithms."""
    constraint: eqx.AbstractVar[AbstractConstraint]

    @property
    @abc.abstractmethod
    def parameters(self) -> tuple[Parameter, ...]:
        """One description for each number of θ."""

    @abc.abstractmethod
    def start(self, size: int) -> dict[str, Array]:
        """Return the first memory for a signal of this size."""

    @abc.abstractmethod
    def __call__(
        self, signal: Float[Array, " q"], memory: PyTree, theta: PyTree, dt: Float[Array, ""]
    ) -> tuple[Float[Array, " q"], PyTree]:
        """Return the filtered signal and the next memory."""


class LowPass(AbstractFilter):
    r"""A low-pass filter of first order, by backward differences: $z_t = \frac{T z_{t-1} + h\, s_t}{T + h}$.

    The first value passes unchanged, so the filter starts without a transient. θ: the logarithm of T.

    **Arguments:** `time_constant`: T in seconds, a number, or one for each signal; `constraint`: Θ, by default T
    between 1/100 and 100 times the start.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import policies
        >>> smooth = policies.LowPass(0.1)
        >>> memory = smooth.start(1)
        >>> for signal in (0.0, 1.0, 1.0):
        ...     z, memory = smooth(jnp.array([signal]), memory, smooth.theta, jnp.array(0.1))
        ...     print(z)
        [0.]
        [0.5]
        [0.75]
    """

    theta: dict[str, Array]
    constraint: AbstractConstraint

    def __init__(self, time_constant: Any, *, constraint: AbstractConstraint | None = None):
        self.theta = {"log_time_constant": jnp.log(arguments.variances("time_constant", time_constant))}
        self.constraint = base.checked_constraint(constraint, self.theta, base.log_box(self.theta))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return base.logarithms(self.theta, {"time_constant": "s"}, growth={"time_constant": -1})

    def start(self, size: int) -> dict[str, Array]:
        zero = jnp.zeros(size, self.theta["log_time_constant"].dtype)
        return {"value": zero, "started": zero[0]}

    def __call__(self, signal: Array, memory: PyTree, theta: PyTree, dt: Array) -> tuple[Array, PyTree]:
        T = jnp.exp(theta["log_time_constant"])
        before: Any = jnp.where(memory["started"] > 0, memory["value"], signal)
        value = (T * before + dt * signal) / (T + dt)
        return value, {"value": value, "started": jnp.ones_like(memory["started"])}


class Notch(AbstractFilter):
    r"""A notch filter, which takes out the frequency of a resonance.

    $$N(s) = \frac{s^2 + 2 \zeta d\, \omega s + \omega^2}{s^2 + 2 \zeta \omega s + \omega^2}$$

    The filter passes $d$ of the signal at the frequency ω and everything at frequencies far from ω; ζ is the width. It
    is sampled by Tustin's rule with the frequency ω kept, and starts at rest at the first value. θ: the logarithms of ω
    and ζ.

    **Arguments:** `frequency`: ω in rad/s; `width`: ζ; `depth`: d, a share of the signal; `constraint`: Θ, by default ω
    between 1/2 and 2 times, and ζ between 1/10 and 10 times the start. The sampling must have more than two samples for
    each period of ω.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import policies
        >>> notch = policies.Notch(frequency=30.0)
        >>> memory, out = notch.start(1), []
        >>> for t in range(2000):  # a resonance of 30 rad/s
        ...     signal = jnp.sin(30.0 * 0.005 * jnp.array([t * 1.0]))
        ...     z, memory = notch(signal, memory, notch.theta, jnp.array(0.005))
        >>> print(bool(jnp.abs(z[0]) < 1e-3))
        True
    """

    theta: dict[str, Array]
    constraint: AbstractConstraint
    depth: Array

    def __init__(
        self, frequency: Any, width: Any = 0.5, depth: Any = 0.0, *, constraint: AbstractConstraint | None = None
    ):
        values = {"frequency": arguments.positive("frequency", frequency), "width": arguments.positive("width", width)}
        self.theta = {f"log_{name}": jnp.log(value) for name, value in values.items()}
        self.depth = arguments.number("depth", depth, lambda v: 0 <= v < 1, "a number between 0 and 1")
        reach = {"log_frequency": jnp.log(2.0), "log_width": jnp.log(10.0)}
        default = Box(*({name: self.theta[name] + s * reach[name] for name in reach} for s in (-1, 1)))
        self.constraint = base.checked_constraint(constraint, self.theta, default)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return base.logarithms(self.theta, {"frequency": "rad/s"}, growth={"frequency": 0, "width": 0})

    def start(self, size: int) -> dict[str, Array]:
        zero = jnp.zeros(size, self.depth.dtype)
        return {"first": zero, "second": zero, "started": zero[0]}

    def __call__(self, signal: Array, memory: PyTree, theta: PyTree, dt: Array) -> tuple[Array, PyTree]:
        omega, width = jnp.exp(theta["log_frequency"]), jnp.exp(theta["log_width"])
        depth = self.depth.astype(signal.dtype)
        # s = (ω / tan(ωh/2)) (z − 1)/(z + 1) maps the frequency ω to itself.
        g = jnp.tan(omega * dt / 2)
        a0 = 1 + 2 * width * g + g**2
        b0, b1, b2 = (
            (1 + 2 * width * depth * g + g**2) / a0,
            2 * (g**2 - 1) / a0,
            (1 - 2 * width * depth * g + g**2) / a0,
        )
        a1, a2 = b1, (1 - 2 * width * g + g**2) / a0
        # At rest, the output is the signal; the first memory is that of a constant signal.
        first: Any = jnp.where(memory["started"] > 0, memory["first"], (1 - b0) * signal)
        second: Any = jnp.where(memory["started"] > 0, memory["second"], (b2 - a2) * signal)
        value = b0 * signal + first
        after = {"first": b1 * signal - a1 * value + second, "second": b2 * signal - a2 * value}
        return value, {**after, "started": jnp.ones_like(memory["started"])}


class _Refused(eqx.Module):
    """The filters follow the predicted signals; the policy's own rule decides about its memory."""

    rule: Any

    def __call__(self, before: PyTree, after: PyTree, u: Array) -> PyTree:
        return {**after, "policy": self.rule(before["policy"], after["policy"], u)}


class _Restored(eqx.Module):
    """The filters stay; the policy's own rule decides about its memory."""

    rule: Any

    def __call__(self, memory: PyTree, initial: PyTree) -> PyTree:
        return {**memory, "policy": self.rule(memory["policy"], initial["policy"])}


class Filtered(AbstractPolicy):
    r"""A policy with a filter for the measured output, for the reference or for the control.

    θ is `{"policy": …, "output": …, "reference": …, "control": …}`, with an entry for each part that is there. The
    limits are those of the policy. A low-pass filter stays inside them; the filtered control is also clipped to them.

    **Arguments:** `policy`; `output`, `reference`, `control`: a `LowPass`, a `Notch` or None; `size`: the number of
    measured outputs, by default that of the controls.

    !!! Example

        >>> from selftune import policies
        >>> pid = policies.Filtered(policies.PID(kp=2.0, ki=1.0), output=policies.LowPass(0.02))
        >>> [parameter.name for parameter in pid.parameters]
        ['output: log time constant', 'log ki', 'log kp']
    """

    theta: dict[str, Any]
    constraint: AbstractConstraint
    policy: AbstractPolicy
    filters: dict[str, AbstractFilter]
    size: int = eqx.field(static=True)

    def __init__(
        self,
        policy: AbstractPolicy,
        *,
        output: AbstractFilter | None = None,
        reference: AbstractFilter | None = None,
        control: AbstractFilter | None = None,
        size: int | None = None,
    ):
        arguments.instance("policy", policy, AbstractPolicy)
        self.policy = policy
        given = {"output": output, "reference": reference, "control": control}
        for name, value in given.items():
            arguments.instance(name, value, AbstractFilter, optional=True)
        self.filters = {name: value for name, value in given.items() if value is not None}
        self.size = policy.limits[0].size if size is None else arguments.count("size", size)
        self.theta = {name: part.theta for name, part in self._parts.items()}
        self.constraint = Product({name: part.constraint for name, part in self._parts.items()})

    def __repr__(self) -> str:
        return base.described(self, self.gains, **self.filters)

    @property
    def _parts(self) -> dict[str, Any]:
        return {"policy": self.policy, **self.filters}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        def prefix(name: str) -> str:
            return "" if name == "policy" else f"{name}: "

        return tuple(
            parameter._replace(name=prefix(name) + parameter.name)
            for name, part in sorted(self._parts.items())
            for parameter in part.parameters
        )

    @property
    def limits(self) -> tuple[Array, Array]:
        return self.policy.limits

    @property
    def memory(self) -> Memory | None:
        m, own = self.policy.limits[0].size, self.policy.memory
        first = {name: part.start(m if name == "control" else self.size) for name, part in self.filters.items()}
        if own is None:
            return Memory(first, refused=keep_after) if first else None
        return Memory({"policy": own.initial, **first}, refused=_Refused(own.refused), restored=_Restored(own.restored))

    def gains(self, theta: PyTree) -> dict[str, Array]:
        found = dict(self.policy.gains(theta["policy"]))
        for name in self.filters:
            found |= {f"{name}.{key.removeprefix('log_')}": jnp.exp(value) for key, value in theta[name].items()}
        return found

    def __call__(self, inputs: Inputs, memory: PyTree, theta: PyTree) -> tuple[Float[Array, " m"], PyTree]:
        after = {}

        def apply(name: str, signal: Array) -> Array:
            if name not in self.filters:
                return signal
            signal, after[name] = self.filters[name](signal, memory[name], theta[name], inputs.elapsed)
            return signal

        inputs = inputs._replace(output=apply("output", inputs.output), reference=apply("reference", inputs.reference))
        own = None if self.policy.memory is None else memory["policy"]
        u, own = self.policy(inputs, own, theta["policy"])
        u = apply("control", u)
        if "control" in self.filters:
            u = base.saturate(u, *self.limits)
        if own is not None:
            after["policy"] = own
        return u, after or None
