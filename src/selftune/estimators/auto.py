from typing import Any

from jaxtyping import Array, Float, PyTree

from ..foundation import settings_text
from ..problem.affine import is_affine
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.system import AbstractSystem
from ._scales import Scales
from .base import AbstractEstimator, EstimatorInfo
from .kalman import KalmanEstimator, KalmanState
from .normalized_gradient import NormalizedGradient

_EVERYWHERE = Unconstrained()


class AutoEstimator(AbstractEstimator):
    r"""The estimator that fits the residual: `KalmanEstimator()` if the residual is affine in a, and
    `NormalizedGradient()` otherwise. It needs no numbers.

    `init` traces the residual once and chooses; the choice costs nothing afterwards. "Affine" must be visible in the
    traced program, for all x, a and t. If the program contains an operation whose effect on a is not known, such as a
    function with a derivative of its own, the choice is `NormalizedGradient`.

    **Arguments:** `constraint`: 𝒜. A `Box` gives the size of each parameter. Without bounds, the sizes are learned; see
    `KalmanEstimator`.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.1 * v,
        ...     residual=lambda x, a, t: a[:1] * jnp.sin(x) + a[1:],
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> estimator = st.AutoEstimator(constraint=st.Box(-1.0, 1.0))
        >>> type(estimator.init(system, jnp.zeros(1), jnp.zeros(2))).__name__
        'KalmanState'
    """

    kalman: KalmanEstimator
    gradient: NormalizedGradient

    def __repr__(self) -> str:
        return settings_text.show(self, {"constraint": self.constraint})

    def __init__(self, constraint: Any = _EVERYWHERE):
        self.kalman = KalmanEstimator(constraint=constraint)
        self.gradient = NormalizedGradient(constraint=constraint)

    @property
    def constraint(self) -> AbstractConstraint:
        return self.kalman.constraint

    def init(self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, t: Any = 0) -> KalmanState | Scales:
        chosen = self.kalman if is_affine(system, x, a_hat, t) else self.gradient
        return chosen.init(system, x, a_hat, t)

    def reset(
        self, system: AbstractSystem, x: Float[Array, " n"], a_hat: PyTree, state: KalmanState | Scales
    ) -> KalmanState | Scales:
        """Return the state without data; the choice stays."""
        return self._chosen(state).reset(system, x, a_hat, state)

    def update(
        self,
        system: AbstractSystem,
        x: Float[Array, " n"],
        f_obs: Float[Array, " k"],
        a_hat: PyTree,
        t: Any,
        state: KalmanState | Scales,
    ) -> tuple[PyTree, KalmanState | Scales, EstimatorInfo]:
        return self._chosen(state).update(system, x, f_obs, a_hat, t, state)

    def _chosen(self, state: PyTree) -> AbstractEstimator:
        """Return the estimator to which a state belongs."""
        return self.kalman if isinstance(state, KalmanState) else self.gradient
