from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .. import _check, _descent
from ..constraint import AbstractConstraint, Unconstrained
from ..system import System
from . import _square_root
from .base import AbstractEstimator, EstimatorInfo


class RLSState(eqx.Module):
    root: Float[Array, "p p"]
    """S, a square root of the covariance: P = S Sᵀ."""
    prior: Float[Array, "p p"]
    """U₀ with P₀⁻¹ = U₀ᵀ U₀, which forgetting relaxes to."""
    estimate: Float[Array, " p"]
    """The least-squares estimate, of which â is the projection."""

    @property
    def covariance(self) -> Float[Array, "p p"]:
        return self.root @ self.root.T


class RLS(AbstractEstimator):
    r"""Recursive least squares with forgetting that does not wind up.

    For residuals affine in a, with $J_t = \partial f_t / \partial a$ and information matrix $R_0 = P_0^{-1}$,

    $$R_{t+1} = \lambda R_t + (1 - \lambda) R_0 + J_t^\top J_t, \qquad
    b_{t+1} = b_t + R_{t+1}^{-1} J_t^\top (\tilde f_t - f_t(x_t, b_t)), \qquad
    \hat a_{t+1} = \Pi_{\mathcal A}(b_{t+1})$$

    Plain forgetting, without the $R_0$ term, lets the covariance $P = R^{-1}$ grow without bound when excitation
    vanishes. Here $R_t \succeq R_0$ always, so the covariance never exceeds $P_0$ (but for rounding); it is carried as
    a square root, so it stays positive definite in float32 too. What was learned stays. With λ = 1, b is ordinary
    recursive least squares. The projection is applied to what is used, not to what is learned from: data that point
    outside 𝒜 for a while are not lost. For a residual not affine in a, the step is that of its linearization at
    $\hat a_t$.

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
        root = jnp.linalg.cholesky(covariance)
        prior = jnp.linalg.solve(root, jnp.eye(flat.size, dtype=flat.dtype))
        return RLSState(root, prior, flat)

    def update(
        self, system: System, x: Float[Array, " n"], f_obs: Float[Array, " k"], a_hat: PyTree, t: Any, state: RLSState
    ) -> tuple[PyTree, RLSState, EstimatorInfo]:
        forgetting = self.forgetting.astype(x.dtype)
        J, innovation, error = _square_root.predict(system, x, f_obs, a_hat, state.estimate, t)
        rows = jnp.concatenate([jnp.sqrt(1 - forgetting) * state.prior, J])
        root = _square_root.add_information(state.root / jnp.sqrt(forgetting), rows)
        estimate = state.estimate + root @ (root.T @ (J.T @ error))
        a_hat = _square_root.deploy(estimate, a_hat, self.constraint)
        return a_hat, RLSState(root, state.prior, estimate), EstimatorInfo(innovation)
