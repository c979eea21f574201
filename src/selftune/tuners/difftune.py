from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from ..foundation import arguments
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.system import AbstractSystem
from .base import AbstractTuner, TunerInfo


class DiffTuneState(eqx.Module):
    y: Float[Array, "n d"]
    gradient: Float[Array, " d"]
    """The sum of the episode's gradients so far."""
    step: Int[Array, ""]
    optimizer: PyTree


class DiffTune(AbstractTuner):
    r"""Episodic tuning by sensitivity propagation (after DiffTune, Cheng et al. 2022).

    θ is constant during an episode of H steps. The sensitivities of M-GAPS start from $y = 0$ at the first step of the
    episode. At its last step, one gradient step is made on the total cost of the episode:

    $$\theta \leftarrow \Pi_\Theta\Big(\theta - \eta \sum_{t \in \text{episode}} G_t\Big)$$

    The system is not reset between episodes: there is a single trajectory.

    **Arguments:** `learning_rate` and `constraint` as in `MGAPS`; `episode`: H ≥ 1.

    !!! Example

        >>> import selftune as st
        >>> tuner = st.DiffTune(episode=400, learning_rate=1e-4, constraint=st.Box(0.0, 50.0))
    """

    episode: int = eqx.field(static=True, converter=lambda v: arguments.count("episode", v))
    learning_rate: projected_step.LearningRate = eqx.field(converter=projected_step.learning_rate)
    constraint: AbstractConstraint = eqx.field(default_factory=Unconstrained, converter=projected_step.constraint)

    def init(self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree) -> DiffTuneState:
        d = ravel_pytree(theta)[0].size
        return DiffTuneState(
            jnp.zeros((x.shape[0], d), x.dtype),
            jnp.zeros(d, x.dtype),
            jnp.zeros((), jnp.int32),
            projected_step.init(self.learning_rate, theta),
        )

    def update(
        self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree, a_hat: PyTree, t: Any, state: DiffTuneState
    ) -> tuple[PyTree, DiffTuneState, TunerInfo]:
        _, y_next, _, G = system.sensitivity(x, state.y, theta, a_hat, t)
        total = state.gradient + G
        stepped = projected_step.update(self.learning_rate, self.constraint, theta, total, state.optimizer)
        ends = state.step == self.episode - 1
        theta, optimizer = jax.tree.map(lambda new, old: jnp.where(ends, new, old), stepped, (theta, state.optimizer))
        info = TunerInfo(gradient=G, y=state.y)
        state = DiffTuneState(
            jnp.where(ends, 0, y_next), jnp.where(ends, 0, total), jnp.where(ends, 0, state.step + 1), optimizer
        )
        return theta, state, info
