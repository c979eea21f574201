from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..foundation import arguments
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.system import AbstractSystem
from .base import AbstractTuner, TunerInfo


class OPRFState(eqx.Module):
    center: PyTree
    """The parameters that are optimized; the θ in use is a perturbation of them."""
    direction: Float[Array, " d"]
    cost: Float[Array, ""]
    """The cost of the episode so far."""
    previous: Float[Array, ""]
    """The cost of the previous episode."""
    step: Int[Array, ""]
    episodes: Int[Array, ""]
    optimizer: PyTree


class OPRF(AbstractTuner):
    r"""One-point residual feedback: a model-free method that uses only costs (after Zhang et al. 2022).

    In episode i, of H steps, the θ in use is $\Pi_\Theta(c_i + \varepsilon\, v_i)$, with $v_i$ uniform on the unit
    sphere, and the total cost is $J_i$. At the end of the episode,

    $$c_{i+1} = \Pi_\Theta\Big(c_i - \eta\, \frac{d}{\varepsilon} (J_i - J_{i-1})\, v_i\Big)$$

    Episode 0 runs at the initial θ, with $v_0 = 0$: it gives the first $J_{i-1}$ and makes no step. `cost` is evaluated
    at the actual state and never differentiated.

    **Arguments:** `learning_rate` and `constraint` as in `MGAPS`, and

    - `episode`: H ≥ 1.
    - `radius`: ε > 0, in the units of θ.
    - `key`: the key of all its random numbers; direction i depends only on (key, i).

    !!! Example

        >>> import jax, selftune as st
        >>> tuner = st.OPRF(episode=400, radius=0.1, key=jax.random.key(0), learning_rate=1e-6)
    """

    episode: int = eqx.field(static=True, converter=lambda v: arguments.count("episode", v))
    radius: Array = eqx.field(converter=lambda v: arguments.positive("radius", v))
    key: PRNGKeyArray = eqx.field(converter=lambda v: arguments.key("key", v))
    learning_rate: projected_step.LearningRate = eqx.field(converter=projected_step.learning_rate)
    constraint: AbstractConstraint = eqx.field(default_factory=Unconstrained, converter=projected_step.constraint)

    def init(self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree) -> OPRFState:
        zero = jnp.zeros((), x.dtype)
        count = jnp.zeros((), jnp.int32)
        direction = jnp.zeros_like(ravel_pytree(theta)[0])
        return OPRFState(theta, direction, zero, zero, count, count, projected_step.init(self.learning_rate, theta))

    def update(
        self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree, a_hat: PyTree, t: Any, state: OPRFState
    ) -> tuple[PyTree, OPRFState, TunerInfo]:
        d = state.direction.size
        radius = self.radius.astype(x.dtype)
        _, cost = system.step(x, theta, a_hat, t)
        J = state.cost + cost
        ends = state.step == self.episode - 1
        G = jnp.where(ends, d / radius * (J - state.previous) * state.direction, 0)

        center, optimizer = projected_step.update(self.learning_rate, self.constraint, state.center, G, state.optimizer)
        episodes = state.episodes + 1
        v = jax.random.normal(jax.random.fold_in(self.key, episodes), (d,), x.dtype)
        v = v / jnp.linalg.norm(v)
        flat, unravel = ravel_pytree(center)
        perturbed = self.constraint.project(unravel(flat + radius * v))

        next_episode = (
            perturbed,
            OPRFState(center, v, jnp.zeros_like(J), J, jnp.zeros_like(state.step), episodes, optimizer),
        )
        same_episode = (theta, eqx.tree_at(lambda s: (s.cost, s.step), state, (J, state.step + 1)))
        theta, state = jax.tree.map(lambda new, old: jnp.where(ends, new, old), next_episode, same_episode)
        return theta, state, TunerInfo(gradient=G, y=None)
