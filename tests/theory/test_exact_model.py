"""The special case f = w = 0, Θ = ℝ^d: the bound of Lin et al. (2023) comes back (after Lemma "recover exact regret").

R^L(T) = O((1 + V_sys)/η + η T + η³ T), of the plain gradients, with no perturbation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selftune import theory
from selftune.experiments.certificates import special_cases

STEPS = 400
TARGETS = special_cases.targets(STEPS)
RATE = special_cases.RATE
CONSTANTS, CONTRACTION = special_cases.EXACT_CONSTANTS, special_cases.EXACT_CONTRACTION


@pytest.fixture(scope="module")
def certificate():
    return special_cases.nothing_unknown(steps=STEPS)


def test_nothing_is_perturbed(certificate):
    for name in ("distance, in all", "perturbation, in all", "Lipschitzness of x", "Lipschitzness of θ"):
        row = certificate.row(name)
        assert row.must_hold
        assert row.measured == row.bound == 0


def test_the_regret_is_of_plain_gradients(certificate):
    """Without a constraint the projected gradient is the gradient: here by differentiating whole rollouts."""
    made = special_cases.exact_run(STEPS)[2]

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


def test_the_bound_is_that_of_lin_et_al(certificate):
    """(F_0 + S_0) 2/η + c_1 η T + c_3 η³ T, and S_0 depends on the system's variation alone."""
    constants, contraction = CONSTANTS, CONTRACTION
    radius, variation = special_cases.RADIUS, special_cases.exact_variation(STEPS)
    F, bias = theory.surrogate_constants(constants, contraction), theory.gradient_bias(constants, contraction)
    K, Z = bias.per_rate, bias.per_perturbation
    S0 = theory.surrogate_variation_bound(constants, contraction, x_radius=radius, system=variation, residual=0.0, w=0)
    first = 0.5 * TARGETS[0] ** 2  # F_0(0): x = u = 0
    expected = 2 / RATE * (first + S0) + STEPS * (2 * F.L * K * RATE + 2 * F.ell * (1 + K + Z) * K * RATE**3)
    assert certificate.row("regret of M-GAPS").bound == pytest.approx(expected, rel=1e-9)


def test_at_the_best_rate_the_bound_grows_as_the_root_of_t():
    """η ~ T^{−1/2}, which the noise-free bound asks for: bound / √T stays, and with it R/T → 0."""
    constants, contraction = CONSTANTS, CONTRACTION
    radius, variation = special_cases.RADIUS, special_cases.exact_variation(STEPS)
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
