from typing import Any, ClassVar

from jaxtyping import Array, Float, PyTree

from ..problem.system import AbstractSystem
from .base import AbstractEstimator, EstimatorInfo


class Known(AbstractEstimator):
    r"""The oracle, which knows the true parameters: $\hat a_t = a^*_t$. With a tuner, it is ALG* of the paper.

    `simulate` gives $a^*_t$ to this estimator before each step. If you do not use `simulate`, call `Controller.reveal`
    before `Controller.act`.

    !!! Example

        >>> import selftune as st
        >>> estimator = st.Known()
    """

    is_oracle: ClassVar[bool] = True

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
