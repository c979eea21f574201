from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.system import AbstractSystem
from .base import AbstractEstimator, EstimatorInfo


def _preconditioner(value: Any) -> Array:
    P = arguments.positive_definite("preconditioner", value)
    if P.ndim == 2 and (raw := arguments.known(P)) and not np.any(raw[0] - np.diag(np.diag(raw[0]))):
        return jnp.asarray(np.diag(raw[0]))  # then the projection onto a box has a closed form
    return P


class GradientEstimator(AbstractEstimator):
    r"""Online gradient descent on the prediction loss (Algorithm "Gradient Estimator").

    $$\hat a_{t+1} = \Pi^{P^{-1}}_{\mathcal A}\Big(\hat a_t - \iota\, P\, \frac{\partial}{\partial a}
    \|f_t(x_t, \hat a_t) - \tilde f_t\|^2\Big)$$

    The projection is in the $P^{-1}$-norm (`AbstractConstraint.project_in_metric`), the norm in which the step brings
    $\hat a$ nearer to $a^*$. The paper uses a Euclidean projection. If P is not a multiple of the identity, the
    Euclidean projection can undo the step, and the estimate then stays at a wrong point for ever, even on data without
    noise. For a `Box` and a diagonal P the two projections are the same.

    On data without noise and with $a^* \in \mathcal A$,
    $\sum_t \epsilon_t^2 \le \|\hat a_0 - a^*\|^2_{P^{-1}} / (4 \iota (1 - \iota c))$ for every $\iota < 1/c$, where
    c bounds the largest eigenvalue of $J P J^\top$, $J = \partial f/\partial a$.

    The derivative includes the factor 2 of the square: the simulation appendix's step
    $\hat a - \Delta P \phi\, (\phi \hat a - \phi a^*)$ needs `learning_rate=Δ/2`. Without excitation the gradient is
    zero and the estimate does not change.

    **Arguments:**

    - `learning_rate`: ι, a number, an optax schedule, or any `optax.GradientTransformation`.
    - `preconditioner`: P, symmetric positive definite (p, p), or its (p,) diagonal, or a number; by default 1. A
      diagonal matrix is stored as its diagonal.
    - `constraint`: 𝒜.
    - `normalized`: divide the step by $1 + \mathrm{tr}(J P J^\top)$, $J = \partial f/\partial a$ (normalized least mean
      squares). Any ι < 1 is then stable for features of any size, and small features give small steps.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> P = jnp.diag(jnp.array([1.0, 2.0, 2.0]))
        >>> estimator = st.GradientEstimator(learning_rate=0.005, preconditioner=P, constraint=st.Box(-1.0, 1.0))
    """

    learning_rate: projected_step.LearningRate = eqx.field(converter=projected_step.learning_rate)
    preconditioner: Array = eqx.field(default=1.0, converter=_preconditioner)
    constraint: AbstractConstraint = eqx.field(default_factory=Unconstrained, converter=projected_step.constraint)
    normalized: bool = eqx.field(default=False, static=True)

    def init(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, t: Any = 0) -> PyTree:
        arguments.fits("preconditioner", self.preconditioner, ravel_pytree(a_hat)[0].size)
        return projected_step.init(self.learning_rate, a_hat)

    def update(
        self,
        system: AbstractSystem,
        x: Float[Array, " n"],
        f_obs: Float[Array, " k"],
        a_hat: PyTree,
        t: Any,
        state: PyTree,
    ) -> tuple[PyTree, PyTree, EstimatorInfo]:
        f_hat, J = system.residual_and_jacobian(x, a_hat, t)
        error = f_hat - f_obs
        gradient = self._precondition(jnp.sum(2 * error[:, None] * J, axis=0))
        if self.normalized:
            gradient = gradient / (1 + jnp.sum(J * self._precondition(J)))
        a_hat, state = projected_step.update(
            self.learning_rate, self.constraint, a_hat, gradient, state, preconditioner=self.preconditioner
        )
        return a_hat, state, EstimatorInfo(innovation=-error)

    def _precondition(self, v: Float[Array, "*rows p"]) -> Float[Array, "*rows p"]:
        P = self.preconditioner.astype(v.dtype)
        # A sum instead of a dot product: XLA fuses it with its neighbours, which saves most of the time if p is small.
        return P * v if P.ndim < 2 else jnp.sum(P * v[..., None, :], axis=-1)
