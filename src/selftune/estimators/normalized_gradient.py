from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.system import AbstractSystem
from . import _scales
from ._scales import Scales
from .base import AbstractEstimator, EstimatorInfo

_EVERYWHERE = Unconstrained()


class NormalizedGradient(AbstractEstimator):
    r"""Normalized gradient steps whose scales come from 𝒜 and from the data. It needs no numbers, and the residual may
    be any function of a.

    With $J_t = \partial f_t/\partial a$, the innovation $e_t = \tilde f_t - f_t(x_t, \hat a_t)$, the prior variances
    $P = \mathrm{diag}(P_0)$ and the noise levels $V = \mathrm{diag}(\hat V)$ of `KalmanEstimator`:

    $$\hat a_{t+1} = \Pi^{P^{-1}}_{\mathcal A}\Big(\hat a_t
    + \mu\, \frac{P J^\top V^{-1} e_t}{k + \mathrm{tr}(V^{-1} J P J^\top)}\Big)$$

    For one residual, k = 1, this is normalized least mean squares, $\mu P J^\top e / (\hat V + J P J^\top)$. The
    predictions do not depend on the units of x, f and a. `GradientEstimator(learning_rate, P, normalized=True)` divides
    by $1 + \mathrm{tr}(J P J^\top)$ instead, which depends on the unit of f, and its numbers must be chosen.

    For residuals affine in a, `KalmanEstimator` learns much faster.

    **Arguments:**

    - `share`: μ, the share of an innovation that one step removes if there is no noise and k = 1; in (0, 1].
    - `constraint`: 𝒜. Parameters without bounds get their scale from the data, as in `KalmanEstimator`.

    !!! Example

        >>> import selftune as st
        >>> estimator = st.NormalizedGradient(constraint=st.Box([0.0, -4.0], [1.5, 4.0]))
    """

    share: Array
    constraint: AbstractConstraint
    bounded: bool = eqx.field(static=True)
    """Whether each parameter has two finite bounds; if not, scales are learned."""

    def __init__(self, share: Any = 0.06, constraint: Any = _EVERYWHERE):
        self.share = arguments.number("share", share, lambda v: 0 < v <= 1, "a number in (0, 1]")
        self.constraint = projected_step.constraint(constraint)
        self.bounded = _scales.are_bounds_known(constraint)

    def init(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, t: Any = 0) -> Scales:
        return _scales.begin(a_hat, system.check_plant(x, a_hat, t), bounded=self.bounded)

    def reset(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, state: Scales) -> Scales:
        """Return the state without data."""
        return _scales.restart(state)

    def update(
        self,
        system: AbstractSystem,
        x: Float[Array, " n"],
        f_obs: Float[Array, " k"],
        a_hat: PyTree,
        t: Any,
        state: Scales,
    ) -> tuple[PyTree, Scales, EstimatorInfo]:
        f_hat, J = system.residual_and_jacobian(x, a_hat, t)
        innovation = f_obs - f_hat
        state = _scales.observe(state, innovation, J)
        P = _scales.prior(state, self.constraint, a_hat)
        precision = 1 / jnp.sqrt(_scales.above_rounding(state.noise, J, P))
        J, error = precision[:, None] * J, precision * innovation
        total = f_obs.size + jnp.sum(J**2 * P)
        flat, unravel = ravel_pytree(a_hat)
        moved = unravel(flat + self.share.astype(x.dtype) * P * jnp.sum(error[:, None] * J, axis=0) / total)
        return self.constraint.project_in_metric(moved, P, exact=False), state, EstimatorInfo(innovation)
