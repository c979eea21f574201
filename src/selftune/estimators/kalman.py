from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.system import AbstractSystem
from . import _square_root
from .base import AbstractEstimator, EstimatorInfo


class KalmanState(eqx.Module):
    root: Float[Array, "p p"]
    """S, a square root of the covariance: P = S Sᵀ."""

    @property
    def covariance(self) -> Float[Array, "p p"]:
        return self.root @ self.root.T


class KalmanEstimator(AbstractEstimator):
    r"""Kalman filter for drifting parameters, with a covariance that is limited.

    For residuals affine in a, $\tilde f_t = f_t(x_t, a) + v$, $v \sim (0, V)$, with $J_t = \partial f_t/\partial a$:

    $$P^+ = (P_t^{-1} + J^\top V^{-1} J)^{-1}, \quad
    \hat a_{t+1} = \Pi^{(P^+)^{-1}}_{\mathcal A}\big(\hat a_t
    + P^+ J^\top V^{-1} (\tilde f_t - f_t(x_t, \hat a_t))\big), \quad
    P_{t+1} = \alpha P^+ \alpha + Q$$

    The projection is in the norm of the covariance's inverse (`AbstractConstraint.project_in_metric`): with Gaussian
    noise, it is the most likely point of 𝒜. As in `RLS`, the next step starts from the projected estimate, and the
    projection does not change the covariance.

    With α = 1 the model is a random walk of a, whose covariance grows without bound if there is no excitation. Here
    $\alpha_i = \sqrt{1 - Q_i / P_{0,i}}$: the covariance of a parameter that is not observed grows to its prior $P_0$
    and no further (both halves of the step keep $P \preceq P_0$, up to rounding). α acts only on the covariance; it
    does not change the estimate.

    The covariance is stored as a square root, so it stays positive definite in float32 too. A drift below the dtype's
    resolution, Q/P₀ < 1e-7 in float32, is lost in rounding, and the covariance then does not reach P₀. If the residual
    is not affine in a, this is the extended Kalman filter.

    **Arguments:**

    - `process_noise`: Q, the variance of a's drift in one step; a number or one for each parameter; 0 < Q < P₀.
    - `observation_noise`: V, the variance of the observation noise; a number or one for each component of f.
    - `covariance`: P₀, the prior variance and upper limit; a number or one for each parameter.
    - `constraint`: 𝒜.

    !!! Example

        >>> import selftune as st
        >>> estimator = st.KalmanEstimator(process_noise=1e-6, observation_noise=1e-2, covariance=1.0)
    """

    process_noise: Array = eqx.field(converter=lambda v: arguments.variances("process_noise", v))
    observation_noise: Array = eqx.field(converter=lambda v: arguments.variances("observation_noise", v))
    covariance: Array = eqx.field(default=1.0, converter=lambda v: arguments.variances("covariance", v))
    constraint: AbstractConstraint = eqx.field(default_factory=Unconstrained, converter=projected_step.constraint)

    def __check_init__(self) -> None:
        Q, P0 = self.process_noise, self.covariance
        if Q.ndim and P0.ndim:
            arguments.fits("process_noise", Q, P0.size)
        if (raw := arguments.known(Q, P0)) and not np.all(raw[0] < raw[1]):
            raise ArgumentError("process_noise", "less than covariance", f"{Q} and {P0}")

    def init(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree) -> KalmanState:
        flat = ravel_pytree(a_hat)[0]
        arguments.fits("process_noise", self.process_noise, flat.size)
        covariance = arguments.as_matrix("covariance", self.covariance, flat.size).astype(flat.dtype)
        return KalmanState(jnp.sqrt(covariance))  # a diagonal

    def update(
        self,
        system: AbstractSystem,
        x: Float[Array, " n"],
        f_obs: Float[Array, " k"],
        a_hat: PyTree,
        t: Any,
        state: KalmanState,
    ) -> tuple[PyTree, KalmanState, EstimatorInfo]:
        p = state.root.shape[0]
        Q, P0 = self.process_noise.astype(x.dtype), self.covariance.astype(x.dtype)
        arguments.fits("observation_noise", self.observation_noise, f_obs.size)
        precision = jnp.broadcast_to(1 / jnp.sqrt(self.observation_noise.astype(x.dtype)), f_obs.shape)
        f_hat, J = system.residual_and_jacobian(x, a_hat, t)
        innovation = f_obs - f_hat

        # Scale rows and errors by the standard deviation of the noise.
        J, error = precision[:, None] * J, precision * innovation
        root = _square_root.add_information(state.root, J)
        a_hat = _square_root.correct(a_hat, root, J, error, self.constraint)

        # α P⁺ α + Q is the product of [α S, √Q] and its transpose; a QR factorization gives a square root of it.
        alpha = jnp.broadcast_to(jnp.sqrt(1 - Q / P0), (p,))
        drift = jnp.diag(jnp.broadcast_to(jnp.sqrt(Q), (p,)))
        root = jnp.linalg.qr(jnp.concatenate([(alpha[:, None] * root).T, drift]), mode="r").T
        return a_hat, KalmanState(root), EstimatorInfo(innovation)
