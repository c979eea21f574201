"""The base class of all estimators."""

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from ..foundation import settings_text
from ..problem.system import AbstractSystem


class EstimatorInfo(eqx.Module):
    """An estimator's report of one step, for people and metrics.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.System(
        ...     dynamics=lambda x, u, f, t: x + u + f,
        ...     residual=lambda x, a, t: a,
        ...     policy=lambda x, theta, f, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> estimator = st.GradientEstimator(0.1)
        >>> x, a_hat = jnp.zeros(1), jnp.ones(1)
        >>> _, _, info = estimator.update(system, x, jnp.full(1, 3.0), a_hat, 0, estimator.init(system, x, a_hat))
        >>> print(info.innovation)  # 3 was observed, 1 was predicted
        [2.]
    """

    innovation: Float[Array, " k"]
    r"""The innovation $\tilde f_t - f_t(x_t, \hat a_t)$: the observed residual minus the estimated one."""


class AbstractEstimator(eqx.Module):
    r"""EST of the meta-framework (Algorithm "Meta-Framework"): it holds only settings; the state is passed from call to
    call.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> class LastObservation(st.AbstractEstimator):  # for a residual f = a
        ...     def init(self, system, x, a_hat, t=0):
        ...         return None
        ...     def update(self, system, x, f_obs, a_hat, t, state):
        ...         return f_obs, state, st.EstimatorInfo(innovation=f_obs - a_hat)
        >>> a_hat, _, info = LastObservation().update(None, jnp.zeros(1), jnp.ones(1), jnp.zeros(1), 0, None)
        >>> print(a_hat, info.innovation)
        [1.] [1.]
    """

    __repr__ = settings_text.show

    is_oracle: ClassVar[bool] = False
    """Whether `Controller.reveal` gives this estimator $a^*_t$ before each step."""

    @abc.abstractmethod
    def init(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, t: Any = 0) -> PyTree:
        r"""Return the state before the first step, from the first x, $\hat a_0$ and the first context t. An estimator
        needs t if it evaluates or traces the residual here."""

    @abc.abstractmethod
    def update(
        self,
        system: AbstractSystem,
        x: Float[Array, " n"],
        f_obs: Float[Array, " k"],
        a_hat: PyTree,
        t: Any,
        state: PyTree,
    ) -> tuple[PyTree, PyTree, EstimatorInfo]:
        r"""Return `(a_hat, state, info)` with $\hat a_{t+1}$, from the observation $\tilde f_t$ of the true residual
        $f_t(x_t, a^*_t)$."""

    def reset(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, state: PyTree) -> PyTree:
        r"""Return the state of an estimator that continues at $\hat a$ but forgets its data; a guard calls this when it
        restores an earlier $\hat a$.

        By default this is the state before the first step.
        """
        return self.init(system, x, a_hat)
