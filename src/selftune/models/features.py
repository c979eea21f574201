"""Terms of a residual in physical words: loads, friction, and an error of the control's gain. All are linear in a."""

import abc
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from .base import Signal

Reads: TypeAlias = Literal["velocity", "position", "all", "none"]


class Parameter(NamedTuple):
    """One unknown parameter of a feature: its name, its unit and its bounds, which are numbers or arrays ()."""

    name: str
    unit: str
    low: Any
    high: Any


class AbstractFeature(eqx.Module):
    r"""A term $\sum_j a_j \varphi_j(x)$ of the residual.

    `state` names the states that the feature reads, one name or several. None means the states that `reads` names: the
    model's velocity, the model's position, all states, or no state.
    """

    state: eqx.AbstractVar[tuple[str, ...] | None]
    reads: ClassVar[Reads]
    multiplies_control: ClassVar[bool] = False

    @abc.abstractmethod
    def values(self, z: Float[Array, " r"], scale: Float[Array, " r"]) -> Float[Array, " features"]:
        """Return $\varphi$ for the states `z` that the feature reads; `scale` has their typical sizes."""

    @abc.abstractmethod
    def parameters(self, read: tuple[Signal, ...], load: Signal) -> tuple[Parameter, ...]:
        """Return one `Parameter` for each feature. `load` has the unit and the typical size of the model's load."""


def state_names(value: Any) -> tuple[str, ...] | None:
    names = (value,) if isinstance(value, str) else value
    if names is None or (isinstance(names, tuple) and names and all(isinstance(name, str) for name in names)):
        return names
    raise ArgumentError("state", "the name of a state, a tuple of names or None", arguments.describe(value))


def optional_bound(value: Any) -> Array | None:
    """Return the bound of a feature's parameters; None means the bound that the model's scales give."""
    return None if value is None else arguments.positive("bound", value)


def bound_or(bound: Array | None, default: Any) -> Any:
    return default if bound is None else bound


class Load(AbstractFeature):
    r"""A constant load or disturbance, $\varphi = 1$, $|a| \le$ `bound`. The default bound is the rated control.

    !!! Example

        >>> from selftune import models
        >>> models.DoubleIntegrator(mass=1.0, dt=0.01, unknown=(models.Load(bound=2.0),)).parameters
        (Signal(name='load', unit='N', scale=2.0),)
    """

    bound: Array | None = eqx.field(default=None, converter=optional_bound)
    state: tuple[str, ...] | None = eqx.field(static=True, default=None, converter=state_names)
    reads: ClassVar[Reads] = "none"

    def values(self, z: Float[Array, " r"], scale: Float[Array, " r"]) -> Float[Array, " features"]:
        return jnp.ones(1, z.dtype)

    def parameters(self, read: tuple[Signal, ...], load: Signal) -> tuple[Parameter, ...]:
        bound = bound_or(self.bound, load.scale)
        return (Parameter("load", load.unit, -bound, bound),)


class Gravity(AbstractFeature):
    r"""The load of a weight on a lever: $\varphi = (-\sin q, -\cos q)$ of the angle q, $|a_j| \le$ `bound`.

    An angle from the hanging position needs only $a_{\sin} = m g l$; an angle from the horizontal, only
    $a_{\cos} = m g l$. Both together fit a lever whose zero position is not known.

    !!! Example

        >>> from selftune import models
        >>> motor = models.DCMotor(
        ...     resistance=1.0, torque_constant=0.05, rotor_inertia=1e-4, dt=0.001, output="position",
        ...     unknown=(models.Gravity(),),
        ... )
        >>> [parameter.name for parameter in motor.parameters]
        ['gravity_sin', 'gravity_cos']
    """

    bound: Array | None = eqx.field(default=None, converter=optional_bound)
    state: tuple[str, ...] | None = eqx.field(static=True, default=None, converter=state_names)
    reads: ClassVar[Reads] = "position"

    def values(self, z: Float[Array, " r"], scale: Float[Array, " r"]) -> Float[Array, " features"]:
        return jnp.stack([-jnp.sin(z[0]), -jnp.cos(z[0])])

    def parameters(self, read: tuple[Signal, ...], load: Signal) -> tuple[Parameter, ...]:
        bound = bound_or(self.bound, load.scale)
        return tuple(Parameter(f"gravity_{wave}", load.unit, -bound, bound) for wave in ("sin", "cos"))


class Viscous(AbstractFeature):
    r"""Friction that grows with the velocity v: $\varphi = -v$, $|a| \le$ `bound`.

    The parameter may be negative, because the nominal model can have too much friction. The default bound is the
    friction that takes the whole rated control at the typical velocity.

    !!! Example

        >>> from selftune import models
        >>> models.DoubleIntegrator(mass=1.0, dt=0.01, unknown=(models.Viscous(bound=0.5),)).parameters
        (Signal(name='viscous', unit='N/(m/s)', scale=0.5),)
    """

    bound: Array | None = eqx.field(default=None, converter=optional_bound)
    state: tuple[str, ...] | None = eqx.field(static=True, default=None, converter=state_names)
    reads: ClassVar[Reads] = "velocity"

    def values(self, z: Float[Array, " r"], scale: Float[Array, " r"]) -> Float[Array, " features"]:
        return -z[:1]

    def parameters(self, read: tuple[Signal, ...], load: Signal) -> tuple[Parameter, ...]:
        bound = bound_or(self.bound, load.scale / read[0].scale)
        return (Parameter("viscous", f"{load.unit}/({read[0].unit})", -bound, bound),)


class Coulomb(AbstractFeature):
    r"""Dry friction, made smooth: $\varphi = -\tanh(v / \text{width})$, $0 \le a \le$ `bound`.

    `width` is the velocity, in its own unit, below which the friction falls off. The default is 2 % of the velocity's
    scale. The friction is constant during a sampling period, so a width that is small against a dt / mass makes the
    simulated velocity jump back and forth around zero.

    !!! Example

        >>> from selftune import models
        >>> models.DoubleIntegrator(mass=1.0, dt=0.01, unknown=(models.Coulomb(width=0.05),)).parameters
        (Signal(name='coulomb', unit='N', scale=1.0),)
    """

    width: Array | None = eqx.field(
        default=None, converter=lambda v: None if v is None else arguments.positive("width", v)
    )
    bound: Array | None = eqx.field(default=None, converter=optional_bound)
    state: tuple[str, ...] | None = eqx.field(static=True, default=None, converter=state_names)
    reads: ClassVar[Reads] = "velocity"

    def values(self, z: Float[Array, " r"], scale: Float[Array, " r"]) -> Float[Array, " features"]:
        return -jnp.tanh(z[:1] / (0.02 * scale[:1] if self.width is None else self.width))

    def parameters(self, read: tuple[Signal, ...], load: Signal) -> tuple[Parameter, ...]:
        return (Parameter("coulomb", load.unit, 0.0, bound_or(self.bound, load.scale)),)


class Stribeck(AbstractFeature):
    r"""The additional friction at low velocity: $\varphi = -\tanh(v/w)\,e^{-(v/v_s)^2}$, $0 \le a \le$ `bound`.

    `speed` is the Stribeck velocity $v_s$, in the unit of the velocity; w is `width`, by default a tenth of `speed`.
    With `Coulomb`, a is the difference between static and sliding friction.

    !!! Example

        >>> from selftune import models
        >>> friction = (models.Viscous(), models.Coulomb(), models.Stribeck(speed=0.1))
        >>> len(models.DoubleIntegrator(mass=1.0, dt=0.01, unknown=friction).parameters)
        3
    """

    speed: Array = eqx.field(converter=lambda v: arguments.positive("speed", v))
    width: Array | None = eqx.field(
        default=None, converter=lambda v: None if v is None else arguments.positive("width", v)
    )
    bound: Array | None = eqx.field(default=None, converter=optional_bound)
    state: tuple[str, ...] | None = eqx.field(static=True, default=None, converter=state_names)
    reads: ClassVar[Reads] = "velocity"

    def values(self, z: Float[Array, " r"], scale: Float[Array, " r"]) -> Float[Array, " features"]:
        v, width = z[:1], self.speed / 10 if self.width is None else self.width
        return -jnp.tanh(v / width) * jnp.exp(-jnp.square(v / self.speed))

    def parameters(self, read: tuple[Signal, ...], load: Signal) -> tuple[Parameter, ...]:
        return (Parameter("stribeck", load.unit, 0.0, bound_or(self.bound, load.scale)),)


class GainError(AbstractFeature):
    r"""A relative error of the control's effect: the plant gets $u\,(1 + a)$, $|a| \le$ `bound` < 1.

    The error has channels of its own in the residual, because $u$ is not an argument of the residual.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> model = models.FirstOrder(
        ...     gain=2.0, time_constant=0.5, dt=0.01, unknown=(models.Load(), models.GainError())
        ... )
        >>> print(model.residual(model.x0, jnp.array([0.3, -0.2]), 0))  # added to u, and relative to u
        [ 0.3 -0.2]
    """

    bound: Array = eqx.field(
        default=0.5, converter=lambda v: arguments.number("bound", v, lambda v: 0 < v < 1, "a number in (0, 1)")
    )
    state: tuple[str, ...] | None = eqx.field(static=True, default=None, converter=state_names)
    reads: ClassVar[Reads] = "none"
    multiplies_control: ClassVar[bool] = True

    def values(self, z: Float[Array, " r"], scale: Float[Array, " r"]) -> Float[Array, " features"]:
        return jnp.ones(1, z.dtype)

    def parameters(self, read: tuple[Signal, ...], load: Signal) -> tuple[Parameter, ...]:
        return (Parameter("gain_error", "1", -self.bound, self.bound),)
