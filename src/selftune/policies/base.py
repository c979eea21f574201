"""The interface of policies, and what several policies share."""

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Box
from ..problem.memory import Memory


class Inputs(NamedTuple):
    """The values that a policy sees at one step.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import policies
        >>> inputs = policies.Inputs.of(output=[0.5], reference=[1.0], dt=0.01)
        >>> print(inputs.reference - inputs.output)
        [0.5]
    """

    output: Float[Array, " q"]
    """The measured variables that the policy controls."""
    reference: Float[Array, " r"]
    """The wanted values of the output. Some policies also take the wanted derivatives, after the values."""
    x: Float[Array, " n"]
    """The state, measured or estimated, for state feedback and for the inner loops of a cascade."""
    f: Float[Array, " k"]
    """The estimated residual at x."""
    dt: Float[Array, ""]
    """The sampling period from this step to the next one in seconds."""
    t: Any
    """The context of the step."""
    last_dt: Float[Array, ""] | None = None
    """The time since the step before in seconds, if it differs from `dt`."""

    @property
    def elapsed(self) -> Float[Array, ""]:
        """The time since the step before in seconds: `last_dt`, or `dt` if there is none."""
        return self.dt if self.last_dt is None else self.last_dt

    @staticmethod
    def of(
        output: Any, reference: Any, x: Any = None, f: Any = None, *, dt: Any, t: Any = 0, dtype: Any = None
    ) -> "Inputs":
        """Return inputs from numbers and lists. By default x is the output, f is zero like the output, and the dtype is
        that of the output."""
        output = arguments.real_array("output", output, finite=False)
        dtype = output.dtype if dtype is None else dtype
        given = {"reference": reference, "x": output if x is None else x, "f": 0 * output if f is None else f, "dt": dt}
        rest = {name: arguments.real_array(name, value, finite=False).astype(dtype) for name, value in given.items()}
        return Inputs(output.astype(dtype), **rest, t=t)


class Parameter(NamedTuple):
    """One number of θ, for tables and plots: its name, the unit of the physical gain, and the direction of higher gain.

    !!! Example

        >>> from selftune import policies
        >>> [parameter.name for parameter in policies.PID(kp=2.0, ki=1.0).parameters]
        ['log ki', 'log kp']
    """

    name: str
    unit: str = ""
    growth: int = 1
    """1 if a larger number is a higher gain of the loop, −1 if it is a lower gain, 0 if neither is known."""
    damps: bool = False
    """Whether a higher gain damps slow oscillations, as a derivative gain does. A guard does not lower such a gain when
    the loop oscillates."""
    is_logarithm: bool = False
    """Whether the number is the logarithm of a gain."""


class AbstractPolicy(eqx.Module):
    r"""A control law with parameters θ, and with a memory if it keeps numbers between steps.

    $$(u_t, s_{t+1}) = \pi(\text{inputs}_t, s_t, \theta_t)$$

    A policy is a frozen module of settings. To add a policy, subclass, declare θ and its constraint as fields, and
    implement the properties, `__call__` and `gains`. `selftune.testing.check_policy` checks it.
    """

    def __repr__(self) -> str:
        return described(self, self.gains)

    theta: eqx.AbstractVar[dict[str, Any]]
    """The start parameters, in the policy's own coordinates, such as the logarithms of the gains."""
    constraint: eqx.AbstractVar[AbstractConstraint]
    """Θ, the set in which a tuner may move θ."""

    @property
    @abc.abstractmethod
    def memory(self) -> Memory | None:
        """The first memory, and how a guard treats it; None if the policy has no memory."""

    @property
    @abc.abstractmethod
    def limits(self) -> tuple[Array, Array]:
        """The least and the largest u, each (m,); infinite if there is no limit."""

    @property
    @abc.abstractmethod
    def parameters(self) -> tuple[Parameter, ...]:
        """One description for each number of θ, in the order of `jax.flatten_util.ravel_pytree`."""

    @property
    def growth(self) -> tuple[int, ...]:
        """For each number of θ, whether a larger number is a higher gain (1), a lower gain (−1) or neither (0)."""
        return tuple(parameter.growth for parameter in self.parameters)

    @property
    def calming(self) -> tuple[int, ...]:
        """`growth` of the gains that a guard lowers when the loop oscillates, and 0 for the others."""
        return tuple(0 if parameter.damps else parameter.growth for parameter in self.parameters)

    @abc.abstractmethod
    def __call__(self, inputs: Inputs, memory: PyTree, theta: PyTree) -> tuple[Float[Array, " m"], PyTree]:
        """Return the control and the next memory. The memory is None if the policy has none."""

    @abc.abstractmethod
    def gains(self, theta: PyTree) -> dict[str, Array]:
        """Return the physical gains of θ, by name, for people."""


def described(part: Any, gains: Callable[[PyTree], dict[str, Array]], **settings: Any) -> str:
    """Return the text of a policy, a filter or an observer, with its start gains and these settings. Θ is not shown."""
    # JAX replaces arrays by shapes (`eval_shape`), and Equinox replaces them by None (`partition`).
    is_complete = all(map(eqx.is_array, jax.tree.leaves(part.theta, is_leaf=lambda leaf: leaf is None)))
    start = gains(part.theta) if is_complete else {}
    shown = {name: _rounded(gain) for name, gain in start.items()}
    return settings_text.show(part, shown | settings | {"constraint": None})


def _rounded(gain: Array) -> Any:
    """Return a gain in six digits: exp(log k) differs from k in the last digit."""
    if not (raw := arguments.known(gain)):
        return gain
    return np.vectorize(lambda k: float(f"{k:.6g}"), otypes=[float])(raw[0])


def log_box(theta: PyTree, factor: float = 100.0) -> Box:
    """Return the box of all logarithms whose gains differ from the start by at most this factor."""
    reach = math.log(factor)
    return Box(jax.tree.map(lambda leaf: leaf - reach, theta), jax.tree.map(lambda leaf: leaf + reach, theta))


def checked_constraint(constraint: AbstractConstraint | None, theta: PyTree, default: AbstractConstraint) -> Any:
    """Return the given constraint, or the default; raise `ArgumentError` if the start θ is outside."""
    if constraint is None:
        return default
    arguments.instance("constraint", constraint, AbstractConstraint)
    projected_step.check_inside("theta", theta, constraint)
    return constraint


def logarithms(
    theta: dict[str, Array], units: dict[str, str], growth: dict[str, int], damps: tuple[str, ...] = ()
) -> tuple[Parameter, ...]:
    """Describe each number of `{"log_" + name: …}`, in the order in which JAX flattens the dictionary. A name that is
    not in `growth` is a gain: a larger number is a higher gain. `damps` has the names of gains that damp."""
    found = []
    for key in sorted(theta):
        name, leaf = key.removeprefix("log_"), theta[key]
        axes = [""] if leaf.ndim == 0 else [f" {i + 1}" for i in range(leaf.size)]
        text = name.replace("_", " ")
        rest = units.get(name, ""), growth.get(name, 1), name in damps, True
        found += [Parameter(f"log {text}{axis}", *rest) for axis in axes]
    return tuple(found)


def bound(name: str, value: Any, size: int) -> Array | None:
    """Return a limit of u as an array (m,); None if there is none."""
    if value is None:
        return None
    array = arguments.real_array(name, value, finite=False)
    if (raw := arguments.known(array)) and not np.all(np.isfinite(raw[0])):
        raise ArgumentError(name, "finite numbers, or None", f"{raw[0]}")
    return jnp.array(arguments.fit_shape(name, array, (size,)))


def ordered(low: Array | None, high: Array | None) -> None:
    """Raise `ArgumentError` unless u_min < u_max."""
    if low is not None and high is not None and (raw := arguments.known(low, high)) and not np.all(raw[0] < raw[1]):
        raise ArgumentError("u_min", "less than u_max", f"u_min={raw[0]}, u_max={raw[1]}")


def saturate(v: Array, low: Array | None, high: Array | None) -> Array:
    """Return v within the limits that are given."""
    v = v if low is None else jnp.maximum(v, low.astype(v.dtype))
    return v if high is None else jnp.minimum(v, high.astype(v.dtype))


def as_limits(low: Array | None, high: Array | None, like: Array) -> tuple[Array, Array]:
    """Return both limits, each with the shape and dtype of `like`; infinite if there is none."""
    return (
        jnp.full_like(like, -jnp.inf) if low is None else low,
        jnp.full_like(like, jnp.inf) if high is None else high,
    )


def compensated(v: Array, compensation: Array | None, f: Array) -> Array:
    """Return v minus the control that has the effect of the estimated residual."""
    if compensation is None:
        return v
    share = compensation.astype(v.dtype)
    return v - (share @ f if share.ndim == 2 else share * f)


def fits_output(output: Array, size: int) -> None:
    """Raise `ArgumentError` unless there is one measured variable for each control."""
    if output.shape != (size,):
        raise ArgumentError("output", f"shape ({size},), one number for each control", arguments.describe(output))
