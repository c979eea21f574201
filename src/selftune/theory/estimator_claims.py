"""The rows of the paper's claims about the estimator, and of the main theorem, which combines them with the tuner's."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..estimators import GradientEstimator
from ..foundation.errors import ArgumentError
from . import estimation
from .claims import MATCHED_ONLY, ONE_RATE, Claims
from .constants import number


@dataclass(frozen=True, kw_only=True)
class Noise:
    r"""Your knowledge of the disturbance: $\|w_t\| \le \bar\epsilon$, and its covariance is at least $\underline\sigma
    I$.

    Both hold conditionally on the past, as in Property "perturb the input"; $c = \underline\sigma / \bar\epsilon^2$.
    The property also requires that the estimator has no information on $w_t$ before $x_{t+1}$. An observation that was
    inferred from $x_{t+1}$ (`infer_residual`, `Agent.observe_state`) contains $w_t$ and violates the property. The
    certificate tests the scenario's w and v for this, and for correlation over time.

    !!! Example

        >>> import selftune as st
        >>> uniform = st.Noise(bound=0.1, covariance=0.1**2 / 3)  # each entry uniform in ±0.1
    """

    bound: float
    covariance: float

    def __post_init__(self) -> None:
        for name in ("bound", "covariance"):
            object.__setattr__(self, name, number(name, getattr(self, name), positive=True))
        if self.covariance > self.bound**2:
            raise ArgumentError("covariance", f"at most bound², {self.bound**2}", f"{self.covariance}")


_PLACES = {
    "estimator's loss": 'Lemma "gradient estimator"',
    "gradient error": 'Theorem 2, "gradient error bound"',
    "main theorem: distance": 'Theorem 3, "matched disturbance"',
    "main theorem: regret": 'Theorem 3, "matched disturbance"',
}
SIGMAS = 5.0
"""The correlation of independent sequences may be this many standard deviations, 1/√T, from zero."""


def estimator_rows(claims: Claims, noise: Noise | None) -> None:
    """Add all rows."""
    ledger = claims.ledger
    estimator = claims.problem.controller.estimator
    m, k = claims.m, claims.k
    rate = _plain_rate(estimator)
    if k is None:
        for name, place in _PLACES.items():
            if name == "estimator's loss" or noise is not None:
                reason = "needs the constants of f: give constants, of which only those of f are used"
                ledger.not_applicable(name, "", place, MATCHED_ONLY if "regret" in name else reason)
        return
    ledger.hypothesis(
        "plain gradient estimator",
        "EST is gradient descent with a constant rate, P a multiple of the identity, on 𝒜 (0: yes)",
        'Algorithm "Gradient Estimator"',
        float(rate is None),
        0.0,
    )
    if rate is None:
        return
    reach = k.L_f_a * claims.a_size
    ledger.hypothesis(
        "residual affine in a",
        "f_t(x, ·) is affine",
        'Assumption "linear function approximation"',
        m.affine,
        2.0**12 * ledger.precision * (1 + reach),
    )
    shape: Any = dict(
        diameter=claims.a_size,
        path_length=m.path,
        residual_range=reach,
        noise=m.observation_noise,
        slope=k.L_f_a,
        steps=claims.steps,
    )
    loss = estimation.estimator_loss_bound(learning_rate=rate, **shape)
    needs = ("plain gradient estimator", "residual affine in a", "a in 𝒜", "state in its ball")
    ledger.inequality(
        "estimator's loss",
        "Σ (‖f̂_t − f̃_t‖² − ‖f_t − f̃_t‖²) ≤ (D² + 2 D P_T) / (2ι) + ι/2 (2 D_f (C_f + e_f))² T; "
        "without noise the left side is Σ ε_t²",
        _PLACES["estimator's loss"],
        m.excess,
        loss,
        uses=("L_f_a",),
        needs=needs,
        trivial=claims.steps * reach**2,
        says="no less than T C_f²",
    )
    if noise is not None:
        _excitation(claims, noise, reach, loss, needs)


def _excitation(claims: Claims, noise: Noise, reach: float, loss: float, needs: tuple[str, ...]) -> None:
    ledger = claims.ledger
    m, k = claims.m, claims.k
    assert k is not None
    slope, curvature = 2 * k.L_f_x, 2 * k.ell_f_x
    w = np.linalg.norm(np.asarray(claims.problem.scenario.w, float), axis=1)
    dimension = int(claims.problem.run.f.shape[1])
    where = _PLACES["gradient error"]
    chance = SIGMAS / math.sqrt(claims.steps)
    ledger.hypothesis(
        "noise without memory",
        "E[w_t | past] = 0: no entry of w_t correlates with w_{t−1} beyond 5/√T",
        'Assumption "estimator and environment"',
        m.memory_w,
        chance,
    )
    ledger.hypothesis(
        "unbiased observation",
        "E[f̃_t | past] = f_t: the mean of v and its correlations with v_{t−1} and w_{t−1} are within 5/√T of 0",
        'Assumption "estimator and environment"',
        m.memory_v,
        chance,
    )
    ledger.hypothesis(
        "observation hides w",
        "f̃_t has no information on w_t, a part of x_{t+1}: no entry of v_t correlates with w_t beyond 5/√T",
        'Property "perturb the input"',
        m.revealed,
        chance,
    )
    ledger.hypothesis("noise below ε̄", "‖w_t‖ ≤ ε̄", 'Property "perturb the input"', w.max(), noise.bound)
    limit = estimation.excitation_limit(slope=slope, curvature=curvature)
    ledger.hypothesis("small noise", "ε̄ ≤ min{1/4, 1/(2γ_e), 1/(4β_eγ_e)}", where, noise.bound, limit)
    ledger.hypothesis("small loss", "E Σ ℓ_t ≤ ε̄³ T", where, loss, noise.bound**3 * claims.steps)
    gradient_loss = estimation.gradient_error_bound(
        noise_bound=noise.bound,
        noise_covariance=noise.covariance,
        slope=slope,
        curvature=curvature,
        dimension=dimension,
        steps=claims.steps,
    )
    excited = (
        *needs,
        "noise below ε̄",
        "small noise",
        "small loss",
        "unbiased observation",
        "observation hides w",
    )
    ledger.inequality(
        "gradient error",
        "E Σ (ε'_t)² ≤ 2k/σ (1 + γ_e + β_e γ_e) ε̄³ T + 2k γ_e² ε̄² T",
        where,
        float((m.mismatch_gradient[1:] ** 2).sum()),
        gradient_loss,
        uses=("L_f_x", "ell_f_x", "L_f_a"),
        needs=excited,
        trivial=claims.steps * dimension * slope**2,
        says="no less than T k β_e²",
        in_expectation=True,
    )
    _main_theorem(claims, reach, loss, gradient_loss, needs, excited)


def _main_theorem(
    claims: Claims, reach: float, loss: float, gradient_loss: float, needs: tuple[str, ...], excited: tuple[str, ...]
) -> None:
    r"""Add the rows of the main theorem. They use the smaller of the proved bounds and the bounds that the sets imply.

    The sets alone imply $\varepsilon_t \le C_f$ and $\varepsilon_t'^2 \le k \beta_e^2$. If such a bound is the smaller
    one, the rows do not need the hypotheses of the estimator's lemma or of Theorem 2.
    """
    ledger, m, k = claims.ledger, claims.m, claims.k
    assert k is not None
    dimension = int(claims.problem.run.f.shape[1])
    one_step = dimension * (2 * k.L_f_x) ** 2
    sure, sure_gradient = claims.steps * reach**2, claims.steps * one_step
    gradient_loss += one_step  # Theorem 2 begins at step 1, because x_0 is not random
    learns, excites = loss < sure, gradient_loss < sure_gradient
    R0, R1 = min(loss, sure), min(gradient_loss, sure_gradient)
    used = f"R_0 = {'R_0(ι)' if learns else 'T C_f²'}, R_1 = {'of Theorem 2' if excites else 'T k β_e²'}"
    more: Any = dict(uses=(*claims.uses, "L_f_x", "ell_f_x", "L_f_a"), in_expectation=learns or excites)
    everything = (
        *claims.ROOM,
        *((*needs, "unbiased observation") if learns else ("a in 𝒜",)),
        *((*excited, "noise without memory") if excites else ()),
        "small mismatch of the state",
        "small mismatch of the update",
        *(("η in its range",) if claims.general is None else ()),
    )
    everything = tuple(dict.fromkeys(everything))
    rows = m.rows
    ledger.inequality(
        "main theorem: distance",
        "E Σ (‖x_t − x̃_t‖ + ‖y_t − ỹ_t‖) ≤ √2 C (α_x √(R_0 T) + β_x √(R_1 T)) = O(T^{3/4} + √(m ε̄) T); " + used,
        _PLACES["main theorem: distance"],
        rows.apart.sum(),
        estimation.main_distance_bound(claims.lipschitz, claims.joint, loss=R0, gradient_loss=R1, steps=claims.steps),
        needs=everything,
        trivial=2 * math.sqrt(2) * math.hypot(claims.sets.x_radius, claims.radii.y) * claims.steps,
        says="no less than T times the size of the balls",
        **more,
    )
    if claims.general is not None or claims.problem.scheduled:
        reason = MATCHED_ONLY if claims.general is not None else ONE_RATE
        ledger.not_applicable("main theorem: regret", "", _PLACES["main theorem: regret"], reason)
        return
    ledger.inequality(
        "main theorem: regret",
        "E R^L_η(T) = O((1 + V_sys + ε̄ T)/η + η T + (√(m ε̄) + m ε̄) T), with its constants; " + used,
        _PLACES["main theorem: regret"],
        m.local_regret,
        estimation.main_regret_bound(
            claims.lipschitz,
            claims.joint,
            claims.bias,
            first=float(m.surrogate[0]),
            variation=claims.surrogate_variation(),
            surrogate_lipschitz=claims.F.L,
            surrogate_smoothness=claims.F.ell,
            learning_rate=claims.eta,
            perturbation_limit=claims.zeta_limit,
            loss=R0,
            gradient_loss=R1,
            steps=claims.steps,
            truncation=claims.truncation,
        ),
        needs=(*everything, "non-negative cost"),
        trivial=claims.steps * claims.F.L * claims.F.L,
        says="no less than T L_F²",
        error=m.local_regret_error,
        **more,
    )


def _plain_rate(estimator: Any) -> float | None:
    """The ι of a gradient estimator that satisfies the lemma's conditions; None for other estimators."""
    if not isinstance(estimator, GradientEstimator) or estimator.normalized:
        return None
    if not isinstance(estimator.learning_rate, jax.Array):
        return None
    P = np.asarray(estimator.preconditioner, float)
    if P.ndim == 2 and not np.allclose(P, P[0, 0] * np.eye(len(P)), rtol=1e-12, atol=0):
        return None
    if P.ndim == 1 and not np.allclose(P, P[0], rtol=1e-12):
        return None
    return float(estimator.learning_rate) * float(P.reshape(-1)[0])
