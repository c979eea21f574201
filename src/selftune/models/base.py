"""The interface of all models, and the names, units and scales of their signals."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import Array, Float

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..problem.constraints import Box


class Signal(NamedTuple):
    """The name, the unit and the typical size of one number: of a state, a control, an output or a parameter.

    `scale` is the size that counts as 1. Error scales, guard limits and plots use this number.

    !!! Example

        >>> from selftune import models
        >>> models.DCMotor(resistance=1.0, torque_constant=0.05, rotor_inertia=1e-4, dt=0.001).states
        (Signal(name='speed', unit='rad/s', scale=480.0),)
    """

    name: str
    unit: str
    scale: float


def signal(name: str, unit: str, scale: Any) -> Signal:
    """Return a `Signal` whose scale is a plain number; a scale that JAX is tracing stays an array."""
    raw = arguments.known(scale)
    return Signal(name, unit, float(raw[0]) if raw else scale)


class AbstractModel(eqx.Module):
    r"""A plant in discrete time, with a residual that is to be learned.

    $$x_{t+1} = g(x_t, u_t, f_t, t), \qquad f_t = f(x_t, a, t)$$

    `dynamics` and `residual` are two of the four functions of a `System`. All functions are pure JAX functions, which
    both engines run. With $a = 0$ the residual is zero, and the model is the nominal one.

    The residual f has the unit of the control. Its first m numbers are added to the control's effect. If the model has
    a `GainError`, m more numbers follow: the relative errors of the control's effect.

    If the context is a `LoopContext` with `dt`, the model uses that sampling period in place of its own.
    """

    __repr__ = settings_text.show

    dt: eqx.AbstractVar[float]

    @property
    @abc.abstractmethod
    def states(self) -> tuple[Signal, ...]:
        """The n states."""

    @property
    @abc.abstractmethod
    def controls(self) -> tuple[Signal, ...]:
        """The m controls."""

    @property
    @abc.abstractmethod
    def outputs(self) -> tuple[Signal, ...]:
        """The q controlled variables."""

    @property
    @abc.abstractmethod
    def references(self) -> tuple[Signal, ...]:
        """The numbers of a reference: the wanted outputs, and after them derivatives that some policies read."""

    @property
    @abc.abstractmethod
    def parameters(self) -> tuple[Signal, ...]:
        """The p unknown parameters a; the scale of a parameter is the largest size that its bounds allow."""

    @property
    @abc.abstractmethod
    def x0(self) -> Float[Array, " n"]:
        """The state of the plant at rest, without control."""

    @property
    @abc.abstractmethod
    def a_hat(self) -> Float[Array, " p"]:
        """The start of the estimate: zeros, which stand for the nominal model."""

    @property
    @abc.abstractmethod
    def a_constraint(self) -> Box:
        """The physical bounds of a, all finite."""

    @abc.abstractmethod
    def dynamics(self, x: Float[Array, " n"], u: Float[Array, " m"], f: Float[Array, " k"], t: Any) -> Array:
        """Return the next state, (n,)."""

    @abc.abstractmethod
    def residual(self, x: Float[Array, " n"], a: Float[Array, " p"], t: Any) -> Array:
        """Return the residual f, (k,), which is linear in a."""

    @abc.abstractmethod
    def output(self, x: Float[Array, " n"]) -> Array:
        """Return the controlled variables, (q,)."""

    @abc.abstractmethod
    def measure(self, x: Float[Array, " n"], t: Any) -> Array:
        """Return the outputs as the sensor reports them, (q,)."""


class AbstractWrappedModel(AbstractModel):
    """A model that changes a part of another model. The signals and parameters that a wrapper does not change are those
    of the model inside."""

    model: eqx.AbstractVar[AbstractModel]

    @property
    def dt(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride] (Equinox allows this)
        return self.model.dt

    @property
    def controls(self) -> tuple[Signal, ...]:
        return self.model.controls

    @property
    def outputs(self) -> tuple[Signal, ...]:
        return self.model.outputs

    @property
    def references(self) -> tuple[Signal, ...]:
        return self.model.references

    @property
    def parameters(self) -> tuple[Signal, ...]:
        return self.model.parameters

    @property
    def a_hat(self) -> Float[Array, " p"]:
        return self.model.a_hat

    @property
    def a_constraint(self) -> Box:
        return self.model.a_constraint


def sampling_period(value: Any) -> float:
    """Return `dt` as a plain number, which is a part of the compiled program."""
    if not arguments.is_known(value):
        raise ArgumentError("dt", "a plain number, which is known when the model is made", arguments.describe(value))
    arguments.positive("dt", value)
    return float(value)
