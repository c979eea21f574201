from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import arguments
from .base import AbstractModel, AbstractWrappedModel, Signal


class Delayed(AbstractWrappedModel):
    r"""A model whose control acts k samples later: $x_{t+1} = g(x_t, u_{t-k}, f_t, t)$.

    The state is $(x_t, u_{t-k}, \dots, u_{t-1})$, so the tuner sees the delay. Output, measurement and residual depend
    on $x_t$ alone. The queue is empty (zeros) at the start.

    **Arguments:** `model`: any model; `samples`: k ≥ 1.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> plant = models.Delayed(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), samples=3)
        >>> [state.name for state in plant.states]
        ['output', 'input[t-3]', 'input[t-2]', 'input[t-1]']
        >>> print(plant.dynamics(plant.x0, jnp.ones(1), jnp.zeros(1), 0))
        [0. 0. 0. 1.]
    """

    model: AbstractModel
    samples: int = eqx.field(static=True)

    def __init__(self, model: AbstractModel, samples: int):
        arguments.instance("model", model, AbstractModel)
        self.model, self.samples = model, arguments.count("samples", samples)

    @property
    def states(self) -> tuple[Signal, ...]:
        ages = range(self.samples, 0, -1)
        return (
            *self.model.states,
            *(one._replace(name=f"{one.name}[t-{age}]") for age in ages for one in self.model.controls),
        )

    @property
    def x0(self) -> Float[Array, " n"]:
        x = self.model.x0
        return jnp.concatenate([x, jnp.zeros(self.samples * len(self.controls), x.dtype)])

    def dynamics(self, x: Float[Array, " n"], u: Float[Array, " m"], f: Float[Array, " k"], t: Any) -> Array:
        n, m = len(self.model.states), len(self.controls)
        x, oldest, younger = x[:n], x[n : n + m], x[n + m :]
        return jnp.concatenate([self.model.dynamics(x, oldest, f, t), younger, u])

    def residual(self, x: Float[Array, " n"], a: Float[Array, " p"], t: Any) -> Array:
        return self.model.residual(x[: len(self.model.states)], a, t)

    def output(self, x: Float[Array, " n"]) -> Array:
        return self.model.output(x[: len(self.model.states)])

    def measure(self, x: Float[Array, " n"], t: Any) -> Array:
        return self.model.measure(x[: len(self.model.states)], t)
