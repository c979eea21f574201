"""The sum of a model's features: names, bounds and values of the residual."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..foundation.suggestions import nearest
from ..problem.constraints import Box
from .base import Signal, signal
from .features import AbstractFeature, Parameter


class Unknown(eqx.Module):
    r"""The unknown part of a model: a sum of features for each control.

    $$f_i = c \sum_j a_{ij} \varphi_j(x), \qquad f_{m+i} = \text{the same sum of the features with } u_i$$

    The second half exists only if a feature multiplies the control (`GainError`). c converts the unit of a load to the
    unit of the control. The flat vector a has one block (m, features) for each feature.

    **Arguments:**

    - `features`: a tuple of features.
    - `states`: the model's states; `loads`: unit and typical size of the load, one `Signal` for each control.
    - `velocity`, `position`: the names of the states that friction and gravity read, if the model has them.
    - `control_per_load`: c.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> states = (models.Signal("level", "m", 1.0), models.Signal("speed", "m/s", 0.5))
        >>> loads = (models.Signal("force", "N", 20.0),)
        >>> unknown = models.Unknown((models.Load(), models.Viscous()), states=states, loads=loads, velocity="speed")
        >>> print(unknown(jnp.array([0.0, 0.5]), jnp.array([3.0, 2.0])))  # 3 N - 2 N·s/m · 0.5 m/s
        [2.]
    """

    features: tuple[AbstractFeature, ...]
    low: Array
    high: Array
    scales: Array
    control_per_load: Array
    names: tuple[tuple[str, str], ...] = eqx.field(static=True)
    columns: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    counts: tuple[int, ...] = eqx.field(static=True)
    controls: int = eqx.field(static=True)

    def __init__(
        self,
        features: Any,
        *,
        states: tuple[Signal, ...],
        loads: tuple[Signal, ...],
        velocity: str | None = None,
        position: str | None = None,
        control_per_load: Any = 1.0,
    ):
        features = (features,) if isinstance(features, AbstractFeature) else features
        if not isinstance(features, tuple) or not features:
            raise ArgumentError("unknown", "a tuple of at least one feature", arguments.describe(features))
        for feature in features:
            arguments.instance("unknown", feature, AbstractFeature)
        defaults = {
            "velocity": (velocity,),
            "position": (position,),
            "all": tuple(one.name for one in states),
            "none": (),
        }
        found: list[Parameter] = []
        columns, counts = [], []
        for feature in features:
            columns.append(_columns(feature, defaults[feature.reads], states))
            read = tuple(states[i] for i in columns[-1])
            made = [feature.parameters(read, load) for load in loads]
            counts.append(len(made[0]))
            found += [_of_control(one, i, len(loads)) for i, ones in enumerate(made) for one in ones]
        self.features, self.columns, self.counts = features, tuple(columns), tuple(counts)
        self.names = tuple(zip(_unique([one.name for one in found]), [one.unit for one in found], strict=True))
        self.low = _vector("bound", [one.low for one in found])
        self.high = _vector("bound", [one.high for one in found])
        self.scales = _vector("scale", [one.scale for one in states])
        self.control_per_load = arguments.real_array("control_per_load", control_per_load)
        self.controls = len(loads)

    @property
    def parameters(self) -> tuple[Signal, ...]:
        return tuple(
            signal(name, unit, _largest(low, high))
            for (name, unit), low, high in zip(self.names, self.low, self.high, strict=True)
        )

    @property
    def constraint(self) -> Box:
        return Box(self.low, self.high)

    def __call__(self, x: Float[Array, " n"], a: Float[Array, " p"]) -> Float[Array, " k"]:
        added = jnp.zeros(self.controls, x.dtype)
        multiplied = jnp.zeros(self.controls, x.dtype)
        start = 0
        for feature, columns, count in zip(self.features, self.columns, self.counts, strict=True):
            z, scale = (jnp.stack([v[i] for i in columns]) if columns else v[:0] for v in (x, self.scales))
            block = a[start : start + self.controls * count].reshape(self.controls, count)
            start += self.controls * count
            if feature.multiplies_control:
                multiplied = multiplied + block @ feature.values(z, scale)
            else:
                added = added + self.control_per_load * (block @ feature.values(z, scale))
        return jnp.concatenate([added, multiplied]) if self.has_gain_error else added

    @property
    def has_gain_error(self) -> bool:
        return any(feature.multiplies_control for feature in self.features)

    def split(self, u: Float[Array, " m"], f: Float[Array, " k"]) -> tuple[Array, Array]:
        """Return the control as the plant gets it, $u (1 + f_{gain})$, and the part of f that is added."""
        m = self.controls
        return (u * (1 + f[m:]) if self.has_gain_error else u), f[:m]


def _columns(feature: AbstractFeature, default: tuple[str | None, ...], states: tuple[Signal, ...]) -> tuple[int, ...]:
    names = [one.name for one in states]
    wanted = default if feature.state is None else feature.state
    kind = type(feature).__name__
    for name in wanted:
        if name is None:
            raise ArgumentError(
                "unknown",
                f"{kind}(state=…) with one of {', '.join(names)}",
                f"{kind} without a state; the model has no {feature.reads}",
            )
        if name not in names:
            raise ArgumentError("state", f"one of {', '.join(names)}", f"{name!r}{nearest(name, names)}")
    return tuple(names.index(str(name)) for name in wanted)


def _of_control(parameter: Parameter, i: int, controls: int) -> Parameter:
    return parameter if controls == 1 else parameter._replace(name=f"{parameter.name}[{i}]")


def _unique(names: list[str]) -> list[str]:
    """Return the names; the second feature of a kind gets the number 2, and so on."""
    return [name if (nth := names[:i].count(name) + 1) == 1 else f"{name}_{nth}" for i, name in enumerate(names)]


def _vector(name: str, values: list[Any]) -> Array:
    return jnp.stack([arguments.real_array(name, value) for value in values])


def _largest(low: Array, high: Array) -> Any:
    """Return the larger of the absolute values, as a plain number unless JAX is tracing the bounds."""
    raw = arguments.known(low, high)
    return np.max(np.abs(raw)) if raw else jnp.maximum(jnp.abs(low), jnp.abs(high))
