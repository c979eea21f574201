from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.system import AbstractSystem
from . import _scales, _square_root
from ._scales import Scales
from .base import AbstractEstimator, EstimatorInfo

_EVERYWHERE = Unconstrained()


class Learned(eqx.Module):
    scales: Scales
    level: Float[Array, " k"]
    """The noise level of the data that R contains. It falls as slowly as data are forgotten."""


class RLSState(eqx.Module):
    root: Float[Array, "p p"]
    """S, a square root of the covariance: P = S Sᵀ."""
    prior: Float[Array, "p p"] | None
    """U₀ with P₀⁻¹ = U₀ᵀ U₀; forgetting moves the information matrix back to P₀⁻¹. None if P₀ is not given."""
    learned: Learned | None = None
    """What was learned of the noise level and of the parameters' scales; None if P₀ is given."""

    @property
    def covariance(self) -> Float[Array, "p p"]:
        return self.root @ self.root.T


class RLS(AbstractEstimator):
    r"""Recursive least squares with forgetting, whose covariance stays bounded. It needs no numbers.

    For residuals affine in a, with $J_t = \partial f_t / \partial a$ and information matrix $R_0 = P_0^{-1}$,

    $$R_{t+1} = \lambda R_t + (1 - \lambda) R_0 + J_t^\top J_t, \qquad
    \hat a_{t+1} = \Pi^{R_{t+1}}_{\mathcal A}\big(\hat a_t
    + R_{t+1}^{-1} J_t^\top (\tilde f_t - f_t(x_t, \hat a_t))\big)$$

    The projection is in the norm of the information matrix R (`AbstractConstraint.project_in_metric`), and the next
    step starts from the projected estimate. So $\|\hat a_t - a^*\|^2_{R_t}$ never grows on data without noise and with
    $a^* \in \mathcal A$, and $\sum_t \epsilon_t^2 \le (1 + c) \|\hat a_0 - a^*\|^2_{R_0}$, where c bounds the largest
    eigenvalue of $J P_0 J^\top$. A Euclidean projection has no such bound: it can keep the estimate at a wrong point.

    Plain forgetting, without the $R_0$ term, lets the covariance $P = R^{-1}$ grow without bound if there is no
    excitation. Here $R_t \succeq R_0$ always, so the covariance never exceeds $P_0$ (up to rounding), and the estimate
    does not change without excitation. The covariance is stored as a square root, so it stays positive definite in
    float32 too. With λ = 1 and no constraint, this is ordinary recursive least squares. If the residual is not affine
    in a, the step uses its linearization at $\hat a_t$.

    **Without a covariance**, $P_0$ comes from 𝒜 or from the data, as in `KalmanEstimator`, and each component of
    $J_t$ and of the innovation is divided by $\sqrt{L_t}$. The level $L_t$ is the noise level $\hat V_t$ of
    `KalmanEstimator`, but falls only as fast as data are forgotten:
    $L_t = \hat V_t + \max(\lambda (L_{t-1} - \hat V_t), 0)$. When $L_t$ rises, the data in R are worth less: λ is
    multiplied by $L_{t-1} / L_t$ (the geometric mean over the components of f). The predictions then do not depend on
    the units of x, f and a.

    **Arguments:**

    - `forgetting`: λ in (0, 1]; by default 0.99, a memory of 100 steps.
    - `covariance`: $P_0$, a number, the (p,) diagonal, or a positive definite (p, p) matrix; in units of the
      variance of the observation noise. It may be left out.
    - `constraint`: 𝒜.

    !!! Example

        >>> import selftune as st
        >>> estimator = st.RLS(constraint=st.Box([0.0, -4.0], [1.5, 4.0]))
        >>> estimator = st.RLS(forgetting=0.999, covariance=10.0, constraint=st.Box(-1.0, 1.0))
    """

    forgetting: Array
    covariance: Array | None
    constraint: AbstractConstraint
    bounded: bool = eqx.field(static=True)
    """Whether each parameter has two finite bounds; if not, scales are learned."""

    def __init__(self, forgetting: Any = 0.99, covariance: Any = None, constraint: Any = _EVERYWHERE):
        self.forgetting = arguments.number("forgetting", forgetting, lambda v: 0 < v <= 1, "a number in (0, 1]")
        self.covariance = None if covariance is None else arguments.positive_definite("covariance", covariance)
        self.constraint = projected_step.constraint(constraint)
        self.bounded = _scales.are_bounds_known(constraint)

    def init(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, t: Any = 0) -> RLSState:
        flat = ravel_pytree(a_hat)[0]
        if self.covariance is None:
            return self._begin(a_hat, _scales.begin(a_hat, system.check_plant(x, a_hat, t), bounded=self.bounded))
        covariance = arguments.as_matrix("covariance", self.covariance, flat.size).astype(flat.dtype)
        root = jnp.linalg.cholesky(covariance)
        prior = jnp.linalg.solve(root, jnp.eye(flat.size, dtype=flat.dtype))
        return RLSState(root, prior)

    def reset(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, state: RLSState) -> RLSState:
        """Return the state with the prior covariance and without data."""
        if state.learned is None:
            return self.init(system, x, a_hat)
        return self._begin(a_hat, _scales.restart(state.learned.scales))

    def update(
        self,
        system: AbstractSystem,
        x: Float[Array, " n"],
        f_obs: Float[Array, " k"],
        a_hat: PyTree,
        t: Any,
        state: RLSState,
    ) -> tuple[PyTree, RLSState, EstimatorInfo]:
        forgetting = self.forgetting.astype(x.dtype)
        f_hat, J = system.residual_and_jacobian(x, a_hat, t)
        innovation = error = f_obs - f_hat
        root, prior, learned = state.root, state.prior, state.learned
        if learned is not None:
            root, prior, learned, remains = self._rescaled(root, learned, innovation, J, a_hat)
            precision = 1 / jnp.sqrt(learned.level)
            J, error, forgetting = precision[:, None] * J, precision * innovation, forgetting * remains
        rows = jnp.concatenate([jnp.sqrt(1 - forgetting) * cast(Array, prior), J])
        root = _square_root.add_information(root / jnp.sqrt(forgetting), rows)
        a_hat = _square_root.correct(a_hat, root, J, error, self.constraint)
        return a_hat, RLSState(root, state.prior, learned), EstimatorInfo(innovation)

    def _begin(self, a_hat: PyTree, scales: Scales) -> RLSState:
        learned = Learned(scales, jnp.zeros_like(scales.noise))
        return RLSState(jnp.diag(jnp.sqrt(self._variances(a_hat, learned))), None, learned)

    def _variances(self, a_hat: PyTree, learned: Learned) -> Float[Array, " p"]:
        return _scales.prior(learned.scales, self.constraint, a_hat)

    def _rescaled(
        self, root: Array, before: Learned, innovation: Array, J: Array, a_hat: PyTree
    ) -> tuple[Array, Array, Learned, Array]:
        """Return the square roots of P and of P₀⁻¹ with the scales of this step, these scales, and the weight of the
        data in R that is left if the level rose."""
        scales = _scales.observe(before.scales, innovation, J)
        level = scales.noise + jnp.maximum(self.forgetting.astype(J.dtype) * (before.level - scales.noise), 0)
        P0 = _scales.prior(scales, self.constraint, a_hat)
        # Remember the level that weighs the data: after a level of 0, a rise would not make the data worth less.
        after = Learned(scales, level := _scales.above_rounding(level, J, P0))
        if scales.innovation is not None:
            root = _square_root.widen(root, jnp.maximum(P0 - self._variances(a_hat, before), 0))
        prior = jnp.diag(jnp.where(P0 > 0, 1 / jnp.sqrt(jnp.where(P0 > 0, P0, 1)), 0))
        known = before.level > 0
        weight = jnp.where(known, before.level / jnp.where(known, jnp.maximum(level, before.level), 1), 1)
        # Rounding cannot tell a smaller weight from no weight, and 0 would divide by 0.
        remains = jnp.maximum(jnp.prod(weight ** (1 / weight.size)), jnp.finfo(J.dtype).eps)
        return root, prior, after, remains
