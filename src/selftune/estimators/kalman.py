from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .. import _check, _descent
from ..constraint import AbstractConstraint, Unconstrained
from ..system import System
from .base import AbstractEstimator, EstimatorInfo


class KalmanState(eqx.Module):
    covariance: Float[Array, "p p"]


class KalmanEstimator(AbstractEstimator):
    r"""Kalman filter for parameters that drift, with a covariance that saturates.

    For residuals affine in a, $\tilde f_t = f_t(x_t, a) + v$, $v \sim (0, V)$, with $J_t = \partial f_t/\partial a$:

    $$K = P J^\top (J P J^\top + V)^{-1}, \quad
    \hat a_{t+1} = \Pi_{\mathcal A}\big(\hat a_t + K (\tilde f_t - f_t(x_t, \hat a_t))\big), \quad
    P^+ = (I - K J) P (I - K J)^\top + K V K^\top, \quad P_{t+1} = \alpha P^+ \alpha + Q$$

    With α = 1 that is a random walk of a, whose covariance grows without bound when excitation vanishes. Here
    $\alpha_i = \sqrt{1 - Q_i / P_{0,i}}$: the covariance of a parameter that is not seen grows to its prior $P_0$ and
    no further ($P \preceq P_0$ is kept by both halves of the step), and it stays at least Q, so positive definite.
    Only the covariance is pulled: the estimate stays. For a residual not affine in a this is the extended filter.

    **Arguments:**

    - `process_noise`: Q, variance of a's drift in one step; a number or one for each parameter; 0 < Q < P₀.
    - `observation_noise`: V, variance of the observation's noise; a number or one for each component of f.
    - `covariance`: P₀, prior variance and ceiling; a number or one for each parameter.
    - `constraint`: 𝒜.

    !!! Example

        >>> import selftune as st
        >>> estimator = st.KalmanEstimator(process_noise=1e-6, observation_noise=1e-2, covariance=1.0)
    """

    process_noise: Array = eqx.field(converter=lambda v: _check.variances("process_noise", v))
    observation_noise: Array = eqx.field(converter=lambda v: _check.variances("observation_noise", v))
    covariance: Array = eqx.field(default=1.0, converter=lambda v: _check.variances("covariance", v))
    constraint: AbstractConstraint = eqx.field(default_factory=Unconstrained, converter=_descent.constraint)

    def __check_init__(self) -> None:
        Q, P0 = self.process_noise, self.covariance
        if (raw := _check.known(Q, P0)) and not np.all(raw[0] < raw[1]):
            raise ValueError(f"process_noise: expected less than covariance, got {Q} and {P0}")

    def init(self, system: System, a_hat: PyTree) -> KalmanState:
        flat = ravel_pytree(a_hat)[0]
        _check.fits("process_noise", self.process_noise, flat.size)
        return KalmanState(_check.as_matrix("covariance", self.covariance, flat.size).astype(flat.dtype))

    def update(
        self,
        system: System,
        x: Float[Array, " n"],
        f_obs: Float[Array, " k"],
        a_hat: PyTree,
        t: Any,
        state: KalmanState,
    ) -> tuple[PyTree, KalmanState, EstimatorInfo]:
        P = state.covariance
        p, k = P.shape[0], f_obs.shape[0]
        Q = self.process_noise.astype(x.dtype)
        V = _check.as_matrix("observation_noise", self.observation_noise, k).astype(x.dtype)
        f_hat, J = system.residual_and_jacobian(x, a_hat, t)
        innovation = f_obs - f_hat

        K = jax.scipy.linalg.solve(J @ P @ J.T + V, J @ P, assume_a="pos").T
        left = jnp.eye(p, dtype=x.dtype) - K @ J
        # Joseph's form: symmetric and positive definite whatever the rounding of K.
        P = left @ P @ left.T + K @ V @ K.T
        alpha = jnp.broadcast_to(jnp.sqrt(1 - Q / self.covariance.astype(x.dtype)), (p,))
        P = alpha[:, None] * P * alpha + jnp.diag(jnp.broadcast_to(Q, (p,)))

        flat, unravel = ravel_pytree(a_hat)
        a_hat = self.constraint.project(unravel(flat + K @ innovation))
        return a_hat, KalmanState((P + P.T) / 2), EstimatorInfo(innovation)
