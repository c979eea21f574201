from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.system import AbstractSystem
from . import _square_root
from .base import AbstractEstimator, EstimatorInfo


class RLSState(eqx.Module):
    root: Float[Array, "p p"]
    """S, a square root of the covariance: P = S Sᵀ."""
    prior: Float[Array, "p p"]
    """U₀ with P₀⁻¹ = U₀ᵀ U₀; forgetting moves the information matrix back to P₀⁻¹."""

    @property
    def covariance(self) -> Float[Array, "p p"]:
        return self.root @ self.root.T


class RLS(AbstractEstimator):
    r"""Recursive least squares with forgetting, whose covariance stays bounded.

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

    **Arguments:**

    - `forgetting`: λ in (0, 1].
    - `covariance`: $P_0$, a number, the (p,) diagonal, or a positive definite (p, p) matrix; in units of the
      variance of the observation noise.
    - `constraint`: 𝒜.

    !!! Example

        >>> import selftune as st
        >>> estimator = st.RLS(forgetting=0.999, covariance=10.0, constraint=st.Box(-1.0, 1.0))
    """

    forgetting: Array = eqx.field(
        converter=lambda v: arguments.number("forgetting", v, lambda v: 0 < v <= 1, "a number in (0, 1]")
    )
    covariance: Array = eqx.field(converter=lambda v: arguments.positive_definite("covariance", v))
    constraint: AbstractConstraint = eqx.field(default_factory=Unconstrained, converter=projected_step.constraint)

    def init(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree) -> RLSState:
        flat = ravel_pytree(a_hat)[0]
        covariance = arguments.as_matrix("covariance", self.covariance, flat.size).astype(flat.dtype)
        root = jnp.linalg.cholesky(covariance)
        prior = jnp.linalg.solve(root, jnp.eye(flat.size, dtype=flat.dtype))
        return RLSState(root, prior)

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
        innovation = f_obs - f_hat
        rows = jnp.concatenate([jnp.sqrt(1 - forgetting) * state.prior, J])
        root = _square_root.add_information(state.root / jnp.sqrt(forgetting), rows)
        a_hat = _square_root.correct(a_hat, root, J, innovation, self.constraint)
        return a_hat, RLSState(root, state.prior), EstimatorInfo(innovation)
