from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from .base import AbstractModel, AbstractWrappedModel, Signal
from .continuous import in_dtype


class Quantized(AbstractWrappedModel):
    """A plant whose sensor rounds, such as an encoder: `measure` returns multiples of `resolution`.

    Use this class for a simulated plant only, and not for the model of a controller: the derivative of a rounded number
    is zero, so a tuner that differentiates through the sensor would see no effect of the gains.

    **Arguments:** `model`: any model; `resolution`: the size of a step, a number, or one for each output.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> plant = models.Quantized(models.DoubleIntegrator(mass=1.0, dt=0.01), resolution=0.125)
        >>> x = jnp.array([0.3, 0.0])
        >>> print(plant.output(x), plant.measure(x, 0))
        [0.3] [0.25]
    """

    model: AbstractModel
    resolution: Array

    def __init__(self, model: AbstractModel, resolution: Any):
        arguments.instance("model", model, AbstractModel)
        self.model = model
        self.resolution = arguments.variances("resolution", resolution)
        if self.resolution.ndim and self.resolution.shape != (len(model.outputs),):
            expected = f"a number, or one for each of {len(model.outputs)} outputs"
            raise ArgumentError("resolution", expected, arguments.describe(self.resolution))

    @property
    def states(self) -> tuple[Signal, ...]:
        return self.model.states

    @property
    def x0(self) -> Float[Array, " n"]:
        return self.model.x0

    def dynamics(self, x: Float[Array, " n"], u: Float[Array, " m"], f: Float[Array, " k"], t: Any) -> Array:
        return self.model.dynamics(x, u, f, t)

    def residual(self, x: Float[Array, " n"], a: Float[Array, " p"], t: Any) -> Array:
        return self.model.residual(x, a, t)

    def output(self, x: Float[Array, " n"]) -> Array:
        return self.model.output(x)

    def measure(self, x: Float[Array, " n"], t: Any) -> Array:
        resolution = in_dtype(self.resolution, x.dtype)
        return resolution * jnp.round(self.model.measure(x, t) / resolution)
