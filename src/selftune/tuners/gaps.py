from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from ..foundation import arguments
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.system import AbstractSystem
from . import _contraction
from .base import AbstractTuner, TunerInfo


class GAPSState(eqx.Module):
    buffer: Float[Array, "buffer n d"]
    """Each slot holds ∂x_t/∂θ_s for one of the last `buffer` steps s; an unused slot holds zeros."""
    oldest: Int[Array, ""]
    optimizer: PyTree
    contraction: _contraction.ContractionState | None


class GAPS(AbstractTuner):
    r"""Gradient-based adaptive policy selection with a buffer of B steps: O(B) time and memory per step.

    It uses the gradient of M-GAPS, truncated to the last B steps ("Useful Lemmas"; Lin et al. 2023):

    $$G_t = \sum_{\tau=0}^{\min(B, t)} \frac{\partial h_{t|0}}{\partial \theta_{t-\tau}}, \qquad
    \theta_{t+1} = \Pi_\Theta(\theta_t - \eta G_t)$$

    With B ≥ t it is M-GAPS. The paper's text sums to `t - B`; it means the last B steps, which are used here.

    **Arguments:** `learning_rate`, `constraint` and `contraction_memory` as in `MGAPS`; `buffer`: B ≥ 1.

    !!! Example

        >>> import selftune as st
        >>> tuner = st.GAPS(buffer=50, learning_rate=1e-4, constraint=st.Box(0.0, 50.0))
    """

    buffer: int = eqx.field(static=True, converter=lambda v: arguments.count("buffer", v))
    learning_rate: projected_step.LearningRate = eqx.field(converter=projected_step.learning_rate)
    constraint: AbstractConstraint = eqx.field(default_factory=Unconstrained, converter=projected_step.constraint)
    contraction_memory: Float[Array, ""] | None = eqx.field(default=None, converter=_contraction.memory)

    def init(self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree) -> GAPSState:
        d = ravel_pytree(theta)[0].size
        return GAPSState(
            jnp.zeros((self.buffer, x.shape[0], d), x.dtype),
            jnp.zeros((), jnp.int32),
            projected_step.init(self.learning_rate, theta),
            _contraction.init(self.contraction_memory, x),
        )

    def update(
        self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree, a_hat: PyTree, t: Any, state: GAPSState
    ) -> tuple[PyTree, GAPSState, TunerInfo]:
        n, d = state.buffer.shape[1:]
        _, push = system.linearize(x, theta, a_hat, t)
        # The n + d unit tangents give both Jacobians; each slot then costs one n×n product.
        J, dh = push(jnp.eye(n, n + d, dtype=x.dtype), jnp.eye(d, n + d, k=n, dtype=x.dtype))
        y = jnp.sum(state.buffer, axis=0)
        G = dh[:n] @ y + dh[n:]
        pushed = jnp.einsum("ij,bjk->bik", J[:, :n], state.buffer)
        # Not `.at[oldest].set(…)`: without an index, the native engine keeps the buffer in an array.
        is_oldest = jnp.arange(self.buffer, dtype=state.oldest.dtype) == state.oldest
        buffer = jnp.where(is_oldest[:, None, None], J[:, n:], pushed)
        theta, optimizer = projected_step.update(self.learning_rate, self.constraint, theta, G, state.optimizer)
        watch, rho = state.contraction, None
        if watch is not None:
            watch, rho = _contraction.update(self.contraction_memory, watch, J[:, :n] @ watch.direction)
        state = GAPSState(buffer, (state.oldest + 1) % self.buffer, optimizer, watch)
        return theta, state, TunerInfo(gradient=G, y=y, contraction=rho)

    def reset(self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree, state: GAPSState) -> GAPSState:
        """Return the state with an empty buffer."""
        return GAPSState(jnp.zeros_like(state.buffer), state.oldest, state.optimizer, state.contraction)
