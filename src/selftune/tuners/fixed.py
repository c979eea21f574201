from typing import Any

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..system import System
from .base import AbstractTuner, TunerInfo


class Fixed(AbstractTuner):
    r"""No tuning: $\theta_{t+1} = \theta_t$. With an estimator, the adaptive controller of the simulation appendix.

    !!! Example

        >>> import selftune as st
        >>> tuner = st.Fixed()
    """

    def init(self, system: System, x: Float[Array, " n"], theta: PyTree) -> None:
        return None

    def update(
        self, system: System, x: Float[Array, " n"], theta: PyTree, a_hat: PyTree, t: Any, state: None
    ) -> tuple[PyTree, None, TunerInfo]:
        return theta, None, TunerInfo(gradient=jnp.zeros_like(ravel_pytree(theta)[0]), y=None)
