from typing import Any, cast

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
from . import _scales, _square_root
from ._scales import Scales
from .base import AbstractEstimator, EstimatorInfo


class KalmanState(eqx.Module):
    root: Float[Array, "p p"]
    """S, a square root of the covariance: P = S Sᵀ."""
    scales: Scales | None = None
    """What was learned of the noise level and of the parameters' scales; None if all numbers were given."""

    @property
    def covariance(self) -> Float[Array, "p p"]:
        return self.root @ self.root.T


_EVERYWHERE = Unconstrained()
DRIFT = 1e-4
"""Q / P₀ of an estimator without numbers: a parameter crosses its set in about 10,000 steps."""


class KalmanEstimator(AbstractEstimator):
    r"""Kalman filter for drifting parameters, with a covariance that is limited. It needs no numbers.

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

    **Without numbers**, each scale comes from 𝒜 or from the data, and the predictions do not depend on the units of x,
    f and a:

    - V is the mean square of each innovation over the last n steps, the current one included; n grows up to 300. So one
      outlier e moves the estimate by no more than an innovation of √(300 (V + J P Jᵀ)) would. V is at least
      $(300/n - 1) J P_0 J^\top$: a mean of few squares may be far too small, and P would then be too small for a long
      time. With this limit, the first guess takes about 25 steps, so that it does not push the loop.
    - P₀ of a parameter with two finite bounds is the variance of the uniform distribution between them, w²/12 for the
      width w.
    - P₀ of a parameter without bounds is learned: it is the variance with which this parameter alone would explain the
      largest mean square of the innovations so far. P increases by the same amount whenever P₀ increases. The first
      steps of such a parameter can be far too large, because nothing is known about its size; give a `Box` if you can.
    - Q = 1e-4 P₀.

    **Arguments:** each may be left out.

    - `process_noise`: Q, the variance of a's drift in one step; a number or one for each parameter; 0 < Q < P₀. Give
      also `covariance` or `observation_noise`.
    - `observation_noise`: V, the variance of the observation noise; a number or one for each component of f.
    - `covariance`: P₀, the prior variance and upper limit; a number or one for each parameter. The default is 1 if both
      `process_noise` and `observation_noise` are given.
    - `constraint`: 𝒜.

    !!! Example

        >>> import selftune as st
        >>> estimator = st.KalmanEstimator(constraint=st.Box([0.0, -4.0], [1.5, 4.0]))
        >>> estimator = st.KalmanEstimator(process_noise=1e-6, observation_noise=1e-2, covariance=1.0)
    """

    process_noise: Array | None
    observation_noise: Array | None
    covariance: Array | None
    constraint: AbstractConstraint
    bounded: bool = eqx.field(static=True)
    """Whether each parameter has two finite bounds; if not, scales are learned."""

    def __init__(
        self,
        process_noise: Any = None,
        observation_noise: Any = None,
        covariance: Any = None,
        constraint: Any = _EVERYWHERE,
    ):
        if covariance is None and process_noise is not None:
            if observation_noise is None:
                raise ArgumentError("covariance", "a number, because process_noise is given", "None")
            covariance = 1.0
        self.process_noise = _variances("process_noise", process_noise)
        self.observation_noise = _variances("observation_noise", observation_noise)
        self.covariance = _variances("covariance", covariance)
        self.constraint = projected_step.constraint(constraint)
        self.bounded = _scales.are_bounds_known(constraint)

    def __check_init__(self) -> None:
        Q, P0 = self.process_noise, self.covariance
        if Q is None or P0 is None:
            return
        if Q.ndim and P0.ndim:
            arguments.fits("process_noise", Q, P0.size)
        if (raw := arguments.known(Q, P0)) and not np.all(raw[0] < raw[1]):
            raise ArgumentError("process_noise", "less than covariance", f"{Q} and {P0}")

    def init(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, t: Any = 0) -> KalmanState:
        p = ravel_pytree(a_hat)[0].size
        for name in ("process_noise", "covariance"):
            if (value := getattr(self, name)) is not None:
                arguments.fits(name, value, p)
        scales = None
        if self.covariance is None or self.observation_noise is None:
            bounded = self.bounded or self.covariance is not None
            scales = _scales.begin(a_hat, system.check_plant(x, a_hat, t), bounded=bounded)
        return self._begin(a_hat, scales)

    def reset(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, state: KalmanState) -> KalmanState:
        """Return the state with the prior covariance and without data."""
        return self._begin(a_hat, None if state.scales is None else _scales.restart(state.scales))

    def update(
        self,
        system: AbstractSystem,
        x: Float[Array, " n"],
        f_obs: Float[Array, " k"],
        a_hat: PyTree,
        t: Any,
        state: KalmanState,
    ) -> tuple[PyTree, KalmanState, EstimatorInfo]:
        f_hat, J = system.residual_and_jacobian(x, a_hat, t)
        innovation = f_obs - f_hat
        root, scales = state.root, state.scales
        if scales is not None:
            scales = _scales.observe(scales, innovation, J)
        P0 = self._prior(a_hat, scales)
        if scales is not None and scales.innovation is not None:
            root = _square_root.widen(root, jnp.maximum(P0 - self._prior(a_hat, state.scales), 0))
        precision = jnp.broadcast_to(1 / jnp.sqrt(self._noise(scales, J, P0)), f_obs.shape)

        # Scale rows and errors by the standard deviation of the noise.
        J, error = precision[:, None] * J, precision * innovation
        root = _square_root.add_information(root, J)
        a_hat = _square_root.correct(a_hat, root, J, error, self.constraint)

        # α P⁺ α + Q
        if self.process_noise is None:
            Q, kept = DRIFT * P0, jnp.asarray(1 - DRIFT, P0.dtype)
        else:
            Q = self.process_noise.astype(P0.dtype)
            kept = 1 - Q / P0
        alpha, Q = (jnp.broadcast_to(v, root.shape[:1]) for v in (jnp.sqrt(kept), Q))
        return a_hat, KalmanState(_square_root.widen(alpha[:, None] * root, Q), scales), EstimatorInfo(innovation)

    def _begin(self, a_hat: PyTree, scales: Scales | None) -> KalmanState:
        flat = ravel_pytree(a_hat)[0]
        covariance = arguments.as_matrix("covariance", self._prior(a_hat, scales), flat.size)
        return KalmanState(jnp.sqrt(covariance), scales)  # a diagonal

    def _prior(self, a_hat: PyTree, scales: Scales | None) -> Array:
        """Return P₀: a number, or one for each parameter."""
        if self.covariance is None and scales is not None:
            return _scales.prior(scales, self.constraint, a_hat)
        return cast(Array, self.covariance).astype(ravel_pytree(a_hat)[0].dtype)

    def _noise(self, scales: Scales | None, J: Float[Array, "k p"], P0: Array) -> Array:
        """Return V: a number, or one for each component of f."""
        if self.observation_noise is None and scales is not None:
            # A mean of n squares says little about the noise if n is small. Without this limit, a first innovation that
            # is small by chance would make its estimate certain.
            missing = (_scales.WINDOW - scales.count) / jnp.maximum(scales.count, 1)
            least = missing * jnp.sum(J**2 * P0, axis=1)
            return _scales.above_rounding(jnp.maximum(scales.noise, least), J, P0)
        V = cast(Array, self.observation_noise)
        arguments.fits("observation_noise", V, J.shape[0])
        return V.astype(J.dtype)


def _variances(name: str, value: Any) -> Array | None:
    return None if value is None else arguments.variances(name, value)
