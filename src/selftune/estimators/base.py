"""What every estimator is."""

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from ..problem.system import System


class EstimatorInfo(eqx.Module):
    """What a person or a metric reads of an estimator's step."""

    innovation: Float[Array, " k"]
    r"""$\tilde f_t - f_t(x_t, \hat a_t)$: what the observation said that the estimate did not."""


class AbstractEstimator(eqx.Module):
    r"""EST of the meta-framework (Algorithm "Meta-Framework"): settings only; the state is threaded."""

    is_oracle: ClassVar[bool] = False
    """Whether `Controller.reveal` gives this estimator $a^*_t$ before each step."""

    @abc.abstractmethod
    def init(self, system: System, x: Float[Array, " n"], a_hat: PyTree) -> PyTree:
        r"""The state before the first step, from the first x and $\hat a_0$."""

    @abc.abstractmethod
    def update(
        self, system: System, x: Float[Array, " n"], f_obs: Float[Array, " k"], a_hat: PyTree, t: Any, state: PyTree
    ) -> tuple[PyTree, PyTree, EstimatorInfo]:
        r"""From the observation $\tilde f_t$ of $f_t(x_t, a^*_t)$ to $\hat a_{t+1}$: `(a_hat, state, info)`."""
