from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..problem.system import AbstractSystem
from . import _contraction
from .base import AbstractTuner, TunerInfo


class Fixed(AbstractTuner):
    r"""No tuning: $\theta_{t+1} = \theta_t$. With an estimator, this is the simulation appendix's adaptive controller.

    **Arguments:** `contraction_memory`: as in `MGAPS`; use it to check your loop before you tune it.

    !!! Example

        >>> import selftune as st
        >>> tuner = st.Fixed()
        >>> watched = st.Fixed(contraction_memory=1000)
    """

    contraction_memory: Float[Array, ""] | None = eqx.field(default=None, converter=_contraction.memory)

    def init(
        self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree
    ) -> _contraction.ContractionState | None:
        return _contraction.init(self.contraction_memory, x)

    def update(
        self,
        system: AbstractSystem,
        x: Float[Array, " n"],
        theta: PyTree,
        a_hat: PyTree,
        t: Any,
        state: _contraction.ContractionState | None,
    ) -> tuple[PyTree, _contraction.ContractionState | None, TunerInfo]:
        rho = None
        zeros = jnp.zeros_like(ravel_pytree(theta)[0])
        if state is not None:
            _, push = system.linearize(x, theta, a_hat, t)
            pushed, _ = push(state.direction[:, None], zeros[:, None])
            state, rho = _contraction.update(self.contraction_memory, state, pushed[:, 0])
        return theta, state, TunerInfo(gradient=zeros, y=None, contraction=rho)
