"""Every formula against numbers worked out by hand, and every closed sum against the sum itself.

The system: x' = x/4 + v/2, ψ = −θx with θ in [0, 1/2], f = ax with a in [−1/4, 1/4], h = (x² + u²)/2, |x| ≤ 1,
|u| ≤ 1; the closed loop's factor is in [0, 1/4], and ρ = 1/2 with C̄ = 1 is taken for it.
"""

import math

import numpy as np
import pytest

import selftune as st
from selftune import theory
from selftune.theory.matched import GradientBias, fading_sum

CONSTANTS = st.Constants(
    L_phi_x=1 / 4, L_phi_u=1 / 2, ell_phi_x=0, ell_phi_u=0, L_psi_x=1 / 2, L_psi_theta=1, ell_psi_x=1, ell_psi_theta=1,
    L_f_x=1 / 4, L_f_a=1, ell_f_x=1, ell_f_a=1, L_h_x=1, L_h_u=1, L_h_theta=0, ell_h_x=1, ell_h_u=1, ell_h_theta=0,
)  # fmt: skip
CONTRACTION = st.Contraction(C_bar=1, rho=1 / 2, R_S=1 / 3)
RADII = theory.radii(CONSTANTS, CONTRACTION, x_radius=1.0, x0_norm=1 / 6)


def numbers(module):
    return pytest.approx(module, rel=1e-14)


def test_multi_step_dynamics():
    g = theory.multi_step_dynamics(CONSTANTS, CONTRACTION)
    assert (g.L_x, g.L_theta, g.l_x_x, g.l_x_theta, g.l_theta_x, g.l_theta_theta) == numbers((1, 1, 2, 3, 2, 2))


def test_multi_step_dynamics_of_curved_dynamics():
    """ℓ_φ = 1 and C̄ = 2 as well: Λ = (3/2)(1 + 1/2) + 1/2 = 11/4."""
    k = CONSTANTS.replace(ell_phi_x=1, ell_phi_u=1)
    g = theory.multi_step_dynamics(k, st.Contraction(C_bar=2, rho=1 / 2, R_S=1))
    assert (g.L_x, g.L_theta) == numbers((2, 2))
    assert g.l_x_x == numbers(11 / 4 * 8 * 4)
    assert g.l_x_theta == numbers(11 / 4 * 8 / 2 * 4 + (3 / 2 + 1 / 2) * 2 * 4)
    assert g.l_theta_x == numbers(11 / 4 * (1 / 4 + 1 / 4) * 8 / 2 * 8 + 2 * (3 / 2 + 1 / 2) * 2)
    assert g.l_theta_theta == numbers(11 / 4 / 4 * 8 * 8 + (1 / 2 + 1) * 2 * 2)


def test_multi_step_cost():
    h = theory.multi_step_cost(CONSTANTS, CONTRACTION)
    expected = (7 / 4, 7 / 4, 137 / 16, 165 / 16, 137 / 16, 137 / 16)
    assert (h.L_x, h.L_theta, h.l_x_x, h.l_x_theta, h.l_theta_x, h.l_theta_theta) == numbers(expected)


def test_multi_step_cost_where_the_present_counts_most():
    """A control of hardly any effect, and a cost that depends on θ: what is left is h itself, at t = τ."""
    k = CONSTANTS.replace(L_phi_u=1e-9, L_h_theta=2, ell_h_theta=3)
    h = theory.multi_step_cost(k, CONTRACTION)
    assert h.L_theta == numbers(2 + 2)
    assert h.l_x_theta == numbers((1 + 3) * 7 / 4 + 2)
    assert h.l_theta_x == numbers(7 / 4 + 2 + 3 * 7 / 4)
    assert h.l_theta_theta == numbers((1 + 6) + 2 + 3)


def test_surrogate():
    F = theory.surrogate_constants(CONSTANTS, CONTRACTION)
    assert (F.L, F.ell) == numbers((7 / 2, 439 / 8))


def test_radii():
    assert (RADII.x, RADII.x_star, RADII.y, RADII.y_star) == numbers((1, 1 / 2, 2, 1))
    assert RADII.margin == numbers(1 / 2)


def test_lipschitz_in_the_model():
    L = theory.model_lipschitz(CONSTANTS, RADII, learning_rate=0.1)
    assert (L.alpha_x, L.beta_x, L.alpha_y, L.beta_y) == (1 / 2, 0, 0, 0)
    assert (L.alpha_theta, L.beta_theta) == numbers((0.45, 0.2))
    assert (L.L_theta_x, L.L_theta_y) == numbers((10.3 / 8, 0.7 / 4))
    with_theta = theory.model_lipschitz(CONSTANTS.replace(ell_h_theta=4), RADII, learning_rate=0.1)
    assert (with_theta.alpha_theta, with_theta.L_theta_x) == numbers((0.85, 10.3 / 8 + 0.7))


def test_joint_contraction():
    J = theory.joint_contraction(CONSTANTS, CONTRACTION, RADII)
    assert [J.gamma(tau) for tau in (0, 1, 3)] == numbers([5, 7 / 2, 11 / 8])
    assert J.total == numbers(18)
    assert sum(J.gamma(tau) for tau in range(200)) <= J.total


def test_the_range_of_the_learning_rate():
    assert theory.learning_rate_limit(CONSTANTS, CONTRACTION, theta_step=3.5) == numbers(4 / 439)
    assert theory.learning_rate_limit(CONSTANTS, CONTRACTION, theta_step=0.01) == numbers(0.01 / 3.5)
    limit = lambda **k: theory.perturbation_limit(CONSTANTS, CONTRACTION, **k)
    assert limit(learning_rate=0.1, theta_step=1.0) == numbers(0.65)
    assert limit(learning_rate=0.1, theta_step=9.0) == 1.0
    assert limit(learning_rate=1.0, theta_step=1.0) == numbers(-2.5)


def test_how_wrong_the_model_may_be():
    L = theory.model_lipschitz(CONSTANTS, RADII, learning_rate=0.1)
    J = theory.joint_contraction(CONSTANTS, CONTRACTION, RADII)
    slope = 10.3 / 8 + 0.7 / 4
    limits = theory.mismatch_limits(L, J, RADII, perturbation_limit=0.65)
    room = min(math.sqrt(2) * 0.65 / (4 * slope * 18), 0.5 / 18)
    assert limits.C_f == numbers(min(room / 0.5, 0.65 / (4 * 0.45)))
    assert limits.C_f_prime == numbers(0.65 / (4 * 0.2))  # β_x = 0 limits nothing
    assert theory.mismatch_limit(L, J, margin=0.5, perturbation_limit=0.65) == numbers(room)
    assert theory.mismatch_limits(L, J, RADII, perturbation_limit=-1.0).C_f == 0.0


def test_gradient_bias():
    B = theory.gradient_bias(CONSTANTS, CONTRACTION)
    expected = (959 / 16, 959 / 16, 1155 / 32, 137 / 8, 165 / 16, 137 / 8)
    assert numbers(expected) == (B.C0, B.C1, B.C2, B.C3, B.C4, B.C5)
    assert (B.per_rate, B.per_perturbation) == numbers((792.75, 219.5))


def test_fading_sums():
    values = np.random.default_rng(0).uniform(size=40)
    by_hand = [sum((2 + 3 * tau) * 0.7**tau * values[t - tau] for tau in range(t + 1)) for t in range(40)]
    np.testing.assert_allclose(fading_sum(0.7, 2.0, 3.0, values), by_hand, rtol=1e-13)


def test_gradient_bias_bound_is_its_sum():
    """And no smaller than the sum over τ of the theorem's first inequality, of which it is the sum."""
    B = GradientBias(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, rho=0.8)
    zeta, eta = np.random.default_rng(1).uniform(size=30), 0.01
    bound = theory.gradient_bias_bound(B, learning_rate=eta, perturbations=zeta)
    for t in (0, 1, 7, 29):
        formula = B.per_rate * eta + sum(
            (4 / 0.2 + 5 / 0.2**2 + 6 * (t - tau)) * 0.8 ** (t - tau) * zeta[tau] for tau in range(t)
        )
        assert bound[t] == pytest.approx(formula, rel=1e-12)
        terms = 0.0
        for tau in range(t + 1):
            lag = t - tau
            # Σ (t − τ') over τ < τ' < t, which the text rounds up to its square.
            terms += (1 + 2 * lag + 3 * lag * (lag - 1) / 2) * 0.8**lag * eta
            terms += sum((4 + 5 * (s - tau)) * zeta[s] for s in range(tau, t)) * 0.8**lag
            terms += 6 * sum(0.8 ** (t - s) * zeta[s] for s in range(tau))
        assert terms <= bound[t] * (1 + 1e-12)


def test_bias_sums_bound_the_sums_of_biases():
    B = GradientBias(0.1, 0.2, 0.03, 0.4, 0.05, 0.6, rho=0.7)
    zeta, eta = 0.01 * np.random.default_rng(2).uniform(size=400), 0.01
    beta = zeta / eta + theory.gradient_bias_bound(B, learning_rate=eta, perturbations=zeta)
    S1, S2 = theory.bias_sums(
        B, learning_rate=eta, perturbations=zeta.sum(), squared_perturbations=(zeta**2).sum(), steps=400
    )
    assert beta.sum() <= S1 <= 2 * beta.sum()
    assert (beta**2).sum() <= S2
    K, Z = B.per_rate, B.per_perturbation
    assert numbers((100 + Z) * zeta.sum() + K * 4) == S1
    assert numbers((1 + K + Z) * ((1e4 + Z) * (zeta**2).sum() + K * 1e-4 * 400)) == S2


def test_meta_framework():
    L = theory.model_lipschitz(CONSTANTS, RADII, learning_rate=0.1)
    J = theory.joint_contraction(CONSTANTS, CONTRACTION, RADII)
    eps, slope_eps = np.array([1.0, 0.0, 2.0, 0.0]), np.zeros(4)
    gap = theory.gap_bound(L, J, eps, slope_eps)
    assert list(gap) == numbers([0, 5 / 2, 7 / 4, 5 + 9 / 8])
    assert theory.total_gap_bound(L, J, mismatch=3.0, mismatch_gradient=7.0) == numbers(18 * 1.5)
    zeta = theory.total_perturbation_bound(L, J, mismatch=3.0, mismatch_gradient=7.0)
    assert zeta == numbers(0.45 * 3 + 0.2 * 7 + math.sqrt(2) * (10.3 / 8 + 0.7 / 4) * 27)


def test_cost_against_surrogate():
    zeta = np.array([1.0, 0.0, 0.0])
    bound = theory.surrogate_gap_bound(CONSTANTS, CONTRACTION, learning_rate=0.1, perturbations=zeta)
    rate = 0.5 * 7 / 4 * 0.1 * 8
    assert list(bound) == numbers([7 / 4 * rate, 7 / 4 * (rate + 1), 7 / 4 * (rate + 1 / 2)])


def test_regret():
    ogd = theory.biased_ogd_bound(
        first=2.0, variation=3.0, lipschitz=4.0, smoothness=5.0, learning_rate=0.1, biases=np.array([1.0, 2.0])
    )
    assert ogd == numbers(5 / 0.05 + (4 * 3 + 0.5 * 5) / 0.5)
    late = dict(first=2.0, variation=3.0, lipschitz=4.0, smoothness=5.0, learning_rate=0.2, biases=np.zeros(1))
    assert theory.biased_ogd_bound(**late) == math.inf
    robust = theory.local_regret_bound(
        first=2.0, variation=3.0, lipschitz=4.0, smoothness=5.0, learning_rate=0.1, sums=(3.0, 5.0)
    )
    assert robust == numbers(20 * 5 + 2 * (12 + 2.5))


def test_variation_of_the_surrogate():
    S0 = theory.surrogate_variation_bound(CONSTANTS, CONTRACTION, x_radius=1.0, system=1.0, residual=2.0, w=4.0)
    assert numbers(2 * 7 / 4 * 3 / 2 * 8 * 7 + 7 / 2 * 2 * 2) == S0
    flat = CONSTANTS.replace(L_h_x=1e-9, L_h_u=1e-9)  # h hardly depends on anything, but may still be another h
    S0 = theory.surrogate_variation_bound(flat, CONTRACTION, x_radius=1.0, system=1.0, residual=0.0, w=0.0)
    assert pytest.approx(1.0, abs=1e-6) == S0


def test_estimator():
    shape = dict(diameter=3.0, path_length=2.0, residual_range=0.5, noise=0.25, slope=2.0, steps=100)
    assert theory.estimator_loss_bound(learning_rate=0.1, **shape) == numbers(21 / 0.2 + 0.05 * 9 * 100)
    best = theory.estimator_learning_rate(**shape)
    assert best == numbers(math.sqrt(21) / (3 * 10))
    at_best = theory.estimator_loss_bound(learning_rate=best, **shape)
    assert at_best == numbers(3 * math.sqrt(21) * 10)
    assert all(theory.estimator_loss_bound(learning_rate=best * f, **shape) > at_best for f in (0.9, 1.1))


def test_gradient_error():
    bound = theory.gradient_error_bound(
        noise_bound=0.1, noise_covariance=0.002, slope=2.0, curvature=0.5, dimension=3, steps=1000
    )
    assert bound == numbers(6 / 0.002 * 2.5 * 1e-3 * 1000 + 6 * 0.25 * 0.01 * 1000)
    limit = theory.excitation_limit
    assert [limit(slope=0, curvature=0), limit(slope=0, curvature=4), limit(slope=2, curvature=4)] == [
        1 / 4,
        1 / 8,
        1 / 32,
    ]


def test_main_theorem():
    L = theory.model_lipschitz(CONSTANTS, RADII, learning_rate=0.1)
    J = theory.joint_contraction(CONSTANTS, CONTRACTION, RADII)
    B = theory.gradient_bias(CONSTANTS, CONTRACTION)
    losses = dict(loss=4.0, gradient_loss=9.0, steps=100)
    assert theory.main_distance_bound(L, J, **losses) == numbers(math.sqrt(2) * 18 * 0.5 * 20)
    zeta = 0.45 * 20 + 0.2 * 30 + math.sqrt(2) * (10.3 / 8 + 0.7 / 4) * 18 * 0.5 * 20
    S1 = (10 + 219.5) * zeta + 792.75 * 0.1 * 100
    S2 = (1 + 792.75 + 219.5) * ((100 + 219.5) * 0.65 * zeta + 792.75 * 0.01 * 100)
    regret = theory.main_regret_bound(
        L, J, B, first=1.0, variation=2.0, surrogate_lipschitz=3.5, surrogate_smoothness=439 / 8,
        learning_rate=0.1, perturbation_limit=0.65, **losses,
    )  # fmt: skip
    assert regret == numbers(20 * 3 + 2 * (3.5 * S1 + 439 / 80 * S2))


def test_what_does_not_contract_bounds_nothing():
    loose = st.Contraction(C_bar=1.0, rho=1.0, R_S=1.0)
    assert not loose.contracts
    assert math.inf == theory.surrogate_constants(CONSTANTS, loose).L
    assert theory.learning_rate_limit(CONSTANTS, loose, theta_step=1.0) == 0.0
    assert math.inf == theory.gradient_bias(CONSTANTS, loose).C0
    assert theory.radii(CONSTANTS, loose, x_radius=1.0).margin == -math.inf
    assert theory.joint_contraction(CONSTANTS, loose, RADII).total == math.inf
    assert theory.multi_step_cost(CONSTANTS, loose).l_x_x == math.inf


class TestRefusals:
    @pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "1", True])
    def test_a_constant(self, bad, as_a_user):
        with pytest.raises(ValueError, match="L_phi_x: expected"):
            CONSTANTS.replace(L_phi_x=bad)

    def test_a_name(self, as_a_user):
        with pytest.raises(ValueError, match=r"replace: expected names from .*, got \['L_phi'\]"):
            CONSTANTS.replace(L_phi=1.0)
        values = dict.fromkeys(theory.constants.NAMES, 1.0)
        with pytest.raises(ValueError, match="source: expected names of constants with 'given' or 'sampled'"):
            st.Constants(**values, source={"L_phi_x": "guessed"})

    @pytest.mark.parametrize(
        ("field", "bad"), [("C_bar", 0.5), ("rho", 0.0), ("R_S", -1.0), ("R_C", math.nan), ("source", "seen")]
    )
    def test_a_contraction(self, field, bad, as_a_user):
        with pytest.raises(ValueError, match=f"{field}: expected"):
            st.Contraction(**dict(C_bar=1.0, rho=0.5, R_S=1.0) | {field: bad})

    @pytest.mark.parametrize(
        ("field", "bad"), [("x_radius", 0.0), ("u_radius", math.inf), ("theta_step", -1.0), ("theta", 3.0), ("a", None)]
    )
    def test_sets(self, field, bad, as_a_user):
        good = dict(x_radius=1.0, u_radius=1.0, theta=st.Box(0.0, 1.0), a=st.Box(0.0, 1.0), theta_step=0.1)
        with pytest.raises(ValueError, match=f"{field}: .*expected"):
            st.Sets(**good | {field: bad})

    def test_noise(self, as_a_user):
        with pytest.raises(ValueError, match="covariance: expected at most"):
            st.Noise(bound=0.1, covariance=0.02)
        with pytest.raises(ValueError, match="bound: expected"):
            st.Noise(bound=0.0, covariance=0.02)


def test_sources_are_kept_apart():
    sampled = st.Constants(
        **dict.fromkeys(theory.constants.NAMES, 1.0), source=dict.fromkeys(theory.constants.NAMES, "sampled")
    )
    assert len(sampled.sampled) == 18
    mixed = sampled.replace(L_h_u=2.0)
    assert mixed.L_h_u == 2.0
    assert mixed.source["L_h_u"] == "given"
    assert len(mixed.sampled) == 17
    assert CONSTANTS.sampled == ()
