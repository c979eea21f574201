from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .. import _check, _descent
from ..constraint import AbstractConstraint, Unconstrained
from ..system import System
from .base import AbstractEstimator, EstimatorInfo


class RLSState(eqx.Module):
    information: Float[Array, "p p"]
    """The inverse of the covariance, R_t."""
    prior: Float[Array, "p p"]
    """R_0, which forgetting relaxes to."""


class RLS(AbstractEstimator):
    r"""Recursive least squares with forgetting that does not wind up.

    For residuals affine in a, with $J_t = \partial f_t / \partial a$ and information matrix $R_0 = P_0^{-1}$,

    $$R_{t+1} = \lambda R_t + (1 - \lambda) R_0 + J_t^\top J_t, \qquad
    \hat a_{t+1} = \Pi_{\mathcal A}\big(\hat a_t + R_{t+1}^{-1} J_t^\top (\tilde f_t - f_t(x_t, \hat a_t))\big)$$

    Plain forgetting, without the $R_0$ term, lets the covariance $R^{-1}$ grow without bound when excitation
    vanishes. Here $R_t \succeq R_0$ always, so the covariance never exceeds $P_0$ and stays positive definite; what
    was learned stays too. With λ = 1 it is ordinary recursive least squares. For a residual not affine in a, the step
    is that of its linearization at $\hat a_t$.

    **Arguments:**

    - `forgetting`: λ in (0, 1].
    - `covariance`: $P_0$, a number, the (p,) diagonal, or a positive definite (p, p) matrix; in units of the
      observation noise's variance.
    - `constraint`: 𝒜.

    !!! Example

        >>> import selftune as st
        >>> estimator = st.RLS(forgetting=0.999, covariance=10.0, constraint=st.Box(-1.0, 1.0))
    """

    forgetting: Array = eqx.field(
        converter=lambda v: _check.number("forgetting", v, lambda v: 0 < v <= 1, "a number in (0, 1]")
    )
    covariance: Array = eqx.field(converter=lambda v: _check.positive_definite("covariance", v))
    constraint: AbstractConstraint = eqx.field(default_factory=Unconstrained, converter=_descent.constraint)

    def init(self, system: System, a_hat: PyTree) -> RLSState:
        flat = ravel_pytree(a_hat)[0]
        covariance = _check.as_matrix("covariance", self.covariance, flat.size).astype(flat.dtype)
        information = jax.scipy.linalg.solve(covariance, jnp.eye(flat.size, dtype=flat.dtype), assume_a="pos")
        return RLSState(information, information)

    def update(
        self, system: System, x: Float[Array, " n"], f_obs: Float[Array, " k"], a_hat: PyTree, t: Any, state: RLSState
    ) -> tuple[PyTree, RLSState, EstimatorInfo]:
        forgetting = self.forgetting.astype(x.dtype)
        f_hat, J = system.residual_and_jacobian(x, a_hat, t)
        innovation = f_obs - f_hat
        R = forgetting * state.information + (1 - forgetting) * state.prior + J.T @ J
        flat, unravel = ravel_pytree(a_hat)
        flat = flat + jax.scipy.linalg.solve(R, J.T @ innovation, assume_a="pos")
        return self.constraint.project(unravel(flat)), RLSState(R, state.prior), EstimatorInfo(innovation)
