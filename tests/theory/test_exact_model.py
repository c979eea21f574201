"""The special case f = w = 0, Θ = ℝ^d: the bound of Lin et al. (2023) comes back (after Lemma "recover exact regret").

R^L(T) = O((1 + V_sys)/η + η T + η³ T), of the plain gradients, with no perturbation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import theory

STEPS, RATE, HIGHEST, SWING = 400, 5e-3, 1.0, 0.05
TARGETS = 0.3 + SWING * np.sin(2 * np.pi * np.arange(STEPS) / STEPS)


@pytest.fixture(scope="module")
def run():
    """x' = x/4 + θ/2, h_t = (x − r_t)²/2 + 0.05 u²: time-varying, nothing unknown and nothing random."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: x / 4 + v / 2,
        residual=lambda x, a, t: 0 * x,
        actuation=lambda x, theta, t: theta,
        cost=lambda x, u, theta, t: 0.5 * jnp.sum((x - t) ** 2) + 0.05 * jnp.sum(u**2),
    )
    controller = st.Controller(system, st.MGAPS(RATE), st.Frozen())  # Θ = ℝ^d: no constraint
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((STEPS, 1)), w=jnp.zeros((STEPS, 1)), t=jnp.asarray(TARGETS))
    return controller, scenario, st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))


@pytest.fixture(scope="module")
def known():
    stable = 0.5 * HIGHEST / 0.75
    radius = 2 * stable * (1 + 1e-9)
    constants = st.Constants(
        L_phi_x=1 / 4, L_phi_u=1 / 2, ell_phi_x=0, ell_phi_u=0, L_psi_x=0, L_psi_theta=1, ell_psi_x=0, ell_psi_theta=0,
        L_f_x=0, L_f_a=0, ell_f_x=0, ell_f_a=0, L_h_x=radius + 0.3 + SWING, L_h_u=0.1 * HIGHEST, L_h_theta=0,
        ell_h_x=1, ell_h_u=0.1, ell_h_theta=0,
    )  # fmt: skip
    contraction = st.Contraction(C_bar=1.0, rho=1 / 4, R_S=stable)
    # sup |h_t − h_{t−1}| ≤ (R + r_t) |r_t − r_{t−1}|, and nothing else varies.
    variation = float((radius + TARGETS.max()) * np.abs(np.diff(TARGETS)).sum())
    return constants, contraction, radius, variation


@pytest.fixture(scope="module")
def certificate(run, known):
    constants, contraction, radius, variation = known
    # Θ is ℝ^d for the tuner; the theory's constants are asked for on a bounded part, which the run does not leave.
    sets = st.Sets(x_radius=radius, u_radius=HIGHEST, theta=st.Box(0.0, HIGHEST), a=st.Box(-1.0, 1.0), theta_step=0.1)
    return st.certify(*run, sets, constants=constants, contraction=contraction, variation=variation, window=None)


def test_nothing_is_perturbed(certificate):
    for name in ("distance, in all", "perturbation, in all", "Lipschitzness of x", "Lipschitzness of θ"):
        row = certificate.row(name)
        assert row.must_hold
        assert row.measured == row.bound == 0


def test_the_regret_is_of_plain_gradients(run, certificate):
    """Without a constraint the projected gradient is the gradient: here by differentiating whole rollouts."""
    made = run[2]

    def surrogate(theta, t):
        def step(x, target):
            cost = 0.5 * jnp.sum((x - target) ** 2) + 0.05 * jnp.sum(theta**2)
            return x / 4 + theta / 2, cost

        return jax.lax.scan(step, jnp.zeros(1), jnp.asarray(TARGETS))[1][t]

    gradients = jax.vmap(jax.grad(surrogate))(made.theta, jnp.arange(STEPS))
    row = certificate.row("regret of M-GAPS")
    assert row.measured == pytest.approx(float(jnp.sum(gradients**2)), rel=1e-9)
    assert row.must_hold
    assert row.holds


def test_the_bound_is_that_of_lin_et_al(known, certificate):
    """(F_0 + S_0) 2/η + c_1 η T + c_3 η³ T, and S_0 depends on the system's variation alone."""
    constants, contraction, radius, variation = known
    F, bias = theory.surrogate_constants(constants, contraction), theory.gradient_bias(constants, contraction)
    K, Z = bias.per_rate, bias.per_perturbation
    S0 = theory.surrogate_variation_bound(constants, contraction, x_radius=radius, system=variation, residual=0.0, w=0)
    first = 0.5 * TARGETS[0] ** 2  # F_0(0): x = u = 0
    expected = 2 / RATE * (first + S0) + STEPS * (2 * F.L * K * RATE + 2 * F.ell * (1 + K + Z) * K * RATE**3)
    assert certificate.row("regret of M-GAPS").bound == pytest.approx(expected, rel=1e-9)


def test_at_the_best_rate_the_bound_grows_as_the_root_of_t(known):
    """η ~ T^{−1/2}, which the noise-free bound asks for: bound / √T stays, and with it R/T → 0."""
    constants, contraction, radius, variation = known
    F, bias = theory.surrogate_constants(constants, contraction), theory.gradient_bias(constants, contraction)
    S0 = theory.surrogate_variation_bound(constants, contraction, x_radius=radius, system=variation, residual=0.0, w=0)

    def bound(steps):
        rate = 0.01 * (1e4 / steps) ** 0.5
        sums = theory.bias_sums(bias, learning_rate=rate, perturbations=0.0, squared_perturbations=0.0, steps=steps)
        return theory.local_regret_bound(
            first=0.05, variation=S0, lipschitz=F.L, smoothness=F.ell, learning_rate=rate, sums=sums
        )

    slope = np.log(bound(10**10) / bound(10**8)) / np.log(100)
    assert slope == pytest.approx(0.5, abs=1e-3)
