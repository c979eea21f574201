"""Models that a differential equation describes; an integrator gives the step."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..foundation.suggestions import nearest
from ..problem.constraints import Box
from ..problem.loop_context import coming_period
from .base import AbstractModel, Signal
from .integrators import AbstractIntegrator
from .unknown import Unknown


class AbstractContinuousModel(AbstractModel):
    r"""A plant with a differential equation $\dot x = $ `derivative(x, u, load)`.

    The control and the residual are constant during a sampling period. A leaf class declares the fields, the signals,
    `x0` and `derivative`. Its `__init__` ends with `self.integrator = self.prepared(integrator, linear=…)`.
    `output_matrix` is the matrix C, (q, n), of the outputs y = C x.
    """

    def __repr__(self) -> str:
        names = getattr(self, "output_names", ())
        output = names[0] if len(names) == 1 else names
        features = getattr(self.unknown, "features", None)
        return settings_text.show(self, {"output": output, "C": self.output_matrix, "unknown": features})

    unknown: eqx.AbstractVar[Unknown]
    integrator: eqx.AbstractVar[AbstractIntegrator]
    output_matrix: eqx.AbstractVar[Array]

    @abc.abstractmethod
    def derivative(self, x: Float[Array, " n"], u: Float[Array, " m"], load: Float[Array, " m"]) -> Array:
        """Return dx/dt, (n,), for the control u and the load, which has the unit of u."""

    def prepared(self, integrator: AbstractIntegrator, *, linear: bool) -> AbstractIntegrator:
        """Return the integrator for this model, whose other fields are set; `linear`: the equation is affine in x."""
        arguments.instance("integrator", integrator, AbstractIntegrator)
        x, nothing = self.x0, jnp.zeros(len(self.controls), self.x0.dtype)
        return integrator.prepare(lambda x: self.derivative(x, nothing, nothing), x, self.dt, linear=linear)

    @property
    def references(self) -> tuple[Signal, ...]:
        return self.outputs

    @property
    def parameters(self) -> tuple[Signal, ...]:
        return self.unknown.parameters

    @property
    def a_hat(self) -> Float[Array, " p"]:
        return jnp.zeros_like(self.unknown.low)

    @property
    def a_constraint(self) -> Box:
        return self.unknown.constraint

    def dynamics(self, x: Float[Array, " n"], u: Float[Array, " m"], f: Float[Array, " k"], t: Any) -> Array:
        model, period = in_dtype((self, coming_period(t)), x.dtype)
        applied, load = model.unknown.split(u, f)
        return model.integrator.step(lambda x: model.derivative(x, applied, load), x, self.dt, period)

    def residual(self, x: Float[Array, " n"], a: Float[Array, " p"], t: Any) -> Array:
        return in_dtype(self.unknown, x.dtype)(x, a)

    def output(self, x: Float[Array, " n"]) -> Array:
        return in_dtype(self.output_matrix, x.dtype) @ x

    def measure(self, x: Float[Array, " n"], t: Any) -> Array:
        return self.output(x)


def in_dtype(tree: Any, dtype: Any) -> Any:
    """Return `tree` with all its floating arrays in `dtype`: a state in float32 gives a next state in float32."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree)


def output_names(value: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the argument `output`, one name or several, as a tuple of names."""
    wanted = (value,) if isinstance(value, str) else value
    if not isinstance(wanted, tuple) or not wanted:
        raise ArgumentError("output", f"one or more of {', '.join(names)}", arguments.describe(value))
    for name in wanted:
        if name not in names:
            raise ArgumentError("output", f"one or more of {', '.join(names)}", f"{name!r}{nearest(str(name), names)}")
    return wanted


def selection(states: tuple[Signal, ...], wanted: tuple[str, ...], dtype: Any) -> Array:
    """Return the matrix (q, n) that selects states by their names."""
    names = [one.name for one in states]
    return jnp.eye(len(names), dtype=dtype)[jnp.array([names.index(name) for name in wanted])]


def select(states: tuple[Signal, ...], wanted: tuple[str, ...]) -> tuple[Signal, ...]:
    return tuple(one for name in wanted for one in states if one.name == name)
