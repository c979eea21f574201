from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.system import AbstractSystem
from . import _contraction
from .base import AbstractTuner, TunerInfo


class MGAPSState(eqx.Module):
    y: Float[Array, "n d"]
    optimizer: PyTree
    contraction: _contraction.ContractionState | None


class MGAPS(AbstractTuner):
    r"""Memoryless gradient-based adaptive policy selection (Algorithm "M-GAPS"): O(1) time and memory per step.

    $\hat g, \hat h$ are the closed loop by the model with $\hat a_t$ (`System.step`). With $y_0 = 0$,

    $$G_t = \frac{\partial \hat h}{\partial x} y_t + \frac{\partial \hat h}{\partial \theta}, \qquad
    y_{t+1} = \frac{\partial \hat g}{\partial x} y_t + \frac{\partial \hat g}{\partial \theta}, \qquad
    \theta_{t+1} = \Pi_\Theta(\theta_t - \eta G_t),$$

    where all derivatives are at $(x_t, \theta_t)$. $y$ (n, d) is the forward-mode derivative of the state with respect
    to a common shift of all past θ. One linearization and d tangents give both $y_{t+1}$ and $G_t$.

    **Arguments:**

    - `learning_rate`: η, a number or an optax schedule; or an `optax.GradientTransformation` that replaces $-\eta G$.
      The transformation must need only the gradient (line searches also need the cost's value).
    - `constraint`: Θ.
    - `contraction_memory`: N ≥ 1 steps, or None to turn this estimate off. `TunerInfo.contraction` then shows whether
      the theory's main hypothesis (Definition "time-varying contractive perturbation") holds at present.

    For this estimate, one more tangent $z$ is propagated,
    $z_{t+1} = \frac{\partial \hat g}{\partial x} z_t / \|\cdot\|$, and

    $$\hat\rho_t = \exp \frac{\sum_{s \le t} (1 - 1/N)^{t-s} \log \|\frac{\partial \hat g}{\partial x} z_s\|}
    {\sum_{s \le t} (1 - 1/N)^{t-s}}$$

    estimates ρ over about the last N steps. The loop is contractive below 1, marginal at 1, unstable above 1.

    !!! Example

        >>> import optax, selftune as st
        >>> plain = st.MGAPS(learning_rate=1e-4, constraint=st.Box(0.0, 50.0))
        >>> fancy = st.MGAPS(learning_rate=optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)))
        >>> watched = st.MGAPS(learning_rate=1e-4, contraction_memory=1000)
    """

    learning_rate: projected_step.LearningRate = eqx.field(converter=projected_step.learning_rate)
    constraint: AbstractConstraint = eqx.field(default_factory=Unconstrained, converter=projected_step.constraint)
    contraction_memory: Float[Array, ""] | None = eqx.field(default=None, converter=_contraction.memory)

    def init(self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree) -> MGAPSState:
        d = ravel_pytree(theta)[0].size
        optimizer = projected_step.init(self.learning_rate, theta)
        watch = _contraction.init(self.contraction_memory, x)
        return MGAPSState(jnp.zeros((x.shape[0], d), x.dtype), optimizer, watch)

    def update(
        self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree, a_hat: PyTree, t: Any, state: MGAPSState
    ) -> tuple[PyTree, MGAPSState, TunerInfo]:
        watch, rho = state.contraction, None
        if watch is None:
            _, y_next, _, G = system.sensitivity(x, state.y, theta, a_hat, t)
        else:
            d = state.y.shape[1]
            _, push = system.linearize(x, theta, a_hat, t)
            tangents = jnp.concatenate([state.y, watch.direction[:, None]], axis=1)
            pushed, dh = push(tangents, jnp.eye(d, d + 1, dtype=x.dtype))
            y_next, G = pushed[:, :d], dh[:d]
            watch, rho = _contraction.update(self.contraction_memory, watch, pushed[:, d])
        theta, optimizer = projected_step.update(self.learning_rate, self.constraint, theta, G, state.optimizer)
        return theta, MGAPSState(y_next, optimizer, watch), TunerInfo(gradient=G, y=state.y, contraction=rho)

    def reset(self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree, state: MGAPSState) -> MGAPSState:
        """Return the state with $y = 0$."""
        return MGAPSState(jnp.zeros_like(state.y), state.optimizer, state.contraction)
