from typing import Any

from jaxtyping import Array, Float, PyTree

from ..problem.system import AbstractSystem
from .base import AbstractEstimator, EstimatorInfo


class Frozen(AbstractEstimator):
    r"""No learning: $\hat a_{t+1} = \hat a_t$; the model keeps its initial parameters.

    !!! Example

        >>> import selftune as st
        >>> estimator = st.Frozen()
    """

    def init(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, t: Any = 0) -> None:
        return None

    def update(
        self,
        system: AbstractSystem,
        x: Float[Array, " n"],
        f_obs: Float[Array, " k"],
        a_hat: PyTree,
        t: Any,
        state: None,
    ) -> tuple[PyTree, None, EstimatorInfo]:
        return a_hat, None, EstimatorInfo(innovation=f_obs - system.residual(x, a_hat, t))
