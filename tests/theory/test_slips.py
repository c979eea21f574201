"""Where the printed constants fail, on systems simple enough to work out by hand, and the ones used here do not.

Each test names the place; `docs/paper.md` has the list.
"""

import math

import numpy as np
import pytest

import selftune as st
from selftune import theory
from selftune.theory.constants import NAMES


def constants(**given):
    return st.Constants(**dict.fromkeys(NAMES, 0.0) | given)


RHO = 0.9
LOOP = st.Contraction(C_bar=1.0, rho=RHO, R_S=10.0)
# x' = ρx + bθ: the control is θ itself.
B = 0.5
PUSHED = constants(L_phi_x=RHO, L_phi_u=B, L_psi_theta=1.0)


def test_alpha_x():
    """x' = v, f = a: a mismatch ε moves x' by ε, whatever the cost. Printed: ℓ_hu L_ψθ, here 0."""
    k = constants(L_phi_u=1.0, L_psi_theta=1.0, L_f_a=1.0)
    radii = theory.radii(k, LOOP, x_radius=20.0)
    printed = k.ell_h_u * k.L_psi_theta
    assert printed < 1.0 <= theory.model_lipschitz(k, radii, learning_rate=0.1).alpha_x


def test_c_0_of_the_main_theorem():
    """x' = ρx + b(u + f), u = θ − f̂, h = x²/2 and a model that is off by ε: x − x̃ → b ε / (1 − ρ), y → b / (1 − ρ), so
    ζ = η (x − x̃) y. Printed: C_0 has ℓ_hu L_ψθ, here 0, in the place of α_x, and all that remains is R_y ℓ_hx."""
    k, eta, eps, steps = PUSHED.replace(L_h_x=20.0, ell_h_x=1.0, L_f_a=1.0), 1e-6, 0.01, 400
    radii = theory.radii(k, LOOP, x_radius=20.0)
    x = y = total = 0.0
    for _ in range(steps):
        total += eta * x * y
        x, y = RHO * x + B * eps, RHO * y + B
    printed = radii.y * k.ell_h_x * eta * eps * steps
    bound = theory.total_perturbation_bound(
        theory.model_lipschitz(k, radii, learning_rate=eta), theory.joint_contraction(k, LOOP, radii),
        mismatch=eps * steps, mismatch_gradient=0.0,
    )  # fmt: skip
    assert 2 * printed < total <= bound


@pytest.mark.parametrize("rho", [0.72, 0.75, 0.9])
def test_the_sum_of_squares(rho):
    """Σ k² ρ^k = ρ (1 + ρ) / (1 − ρ)³. Printed: at most 1/(1 − ρ)² + 1/(1 − ρ)³, which fails above √3 − 1.

    There are k (k − 1) / 2 terms where the text has k², and their sum is below the printed bound for every ρ.
    """
    k = np.arange(2000)
    printed = 1 / (1 - rho) ** 2 + 1 / (1 - rho) ** 3
    assert np.sum(k**2 * rho**k) == pytest.approx(rho * (1 + rho) / (1 - rho) ** 3)
    assert (np.sum(k**2 * rho**k) > printed) == (rho > math.sqrt(3) - 1)
    assert np.sum(k * (k - 1) / 2 * rho**k) == pytest.approx(rho**2 / (1 - rho) ** 3)
    assert rho**2 / (1 - rho) ** 3 < printed


def test_the_margin_of_y():
    """Printed: R_y* = C_Lgθ / (1 − ρ) = R_y, so that no mismatch at all would be allowed."""
    radii = theory.radii(PUSHED, LOOP, x_radius=20.0)
    printed = theory.multi_step_dynamics(PUSHED, LOOP).L_theta / (1 - RHO)
    assert printed == pytest.approx(radii.y)
    assert radii.y_star < radii.y
    # What y grows to: b (1 + ρ + ρ² + …).
    assert radii.y_star == pytest.approx(B / (1 - RHO))


def test_the_jacobian_of_the_closed_loop():
    """x' = v/2, ψ = −θ tanh x, θ ≤ 1: the slope changes with x. Printed: L_φx ℓ_ψx, here 0."""
    k = constants(L_phi_u=0.5, L_psi_x=1.0, L_psi_theta=1.0, ell_psi_x=math.hypot(0.77, 1), ell_psi_theta=1.0)
    slope = lambda x: -0.5 / np.cosh(x) ** 2
    change = abs(slope(0.6) - slope(0.5)) / 0.1
    printed = (k.L_phi_x * k.ell_psi_x) / (RHO * (1 - RHO))
    assert printed * RHO < change <= theory.multi_step_dynamics(k, LOOP).l_x_x * RHO


def test_the_cost_sees_the_residual():
    """u = θ − 3x, h = u²/2: the slope in x is 3u. Printed: L_h C̄ (1 + L_ψx) = L_h."""
    u = 2.0
    k = PUSHED.replace(L_f_x=3.0, L_h_u=u)
    measured, printed = 3 * u, k.L_h * 1.0
    assert printed < measured <= theory.multi_step_cost(k, LOOP).L_x


def test_the_cost_of_the_present():
    """u = −θx, h = u²/2, and a control that hardly moves x: ∂²h/∂θ² = x². Printed: only what comes through later x."""
    k = constants(L_phi_x=RHO, L_phi_u=1e-9, L_psi_x=1, L_psi_theta=2, ell_psi_x=1, ell_psi_theta=1, L_h_u=2, ell_h_u=1)
    g = theory.multi_step_dynamics(k, LOOP)
    printed = k.L_h * 2 * g.l_theta_theta + ((k.ell_h_u) * 2 + k.L_h * 1) * g.L_theta**2
    assert printed < 2.0**2 <= theory.multi_step_cost(k, LOOP).l_theta_theta


def test_the_smoothness_of_the_surrogate():
    """x' = ρx + bθ, h = x²/2: F'' → b² / (1 − ρ)². Printed: C_ℓhθθ / (1 − ρ) = b² / (ρ² (1 − ρ))."""
    k = PUSHED.replace(L_h_x=10.0, ell_h_x=1.0)
    printed = theory.multi_step_cost(k, LOOP).l_theta_theta / (1 - RHO)
    measured = B**2 / (1 - RHO) ** 2
    assert printed < measured <= theory.surrogate_constants(k, LOOP).ell


def test_a_late_perturbation_counts_in_full():
    """θ is 0 until the last step and then z: the surrogate's state is at b z / (1 − ρ). Printed: ρ times that."""
    k, z, steps = PUSHED.replace(L_h_x=1.0), 0.3, 200
    zeta = np.zeros(steps)
    zeta[-2] = z
    bound = theory.surrogate_gap_bound(k, LOOP, learning_rate=1e-12, perturbations=zeta)[-1]
    measured = B * z * (1 - RHO ** (steps - 1)) / (1 - RHO)
    assert RHO * bound < measured <= bound * (1 + 1e-9)


def test_the_bias_of_a_curved_policy():
    """x' = ρx + bθ²/2, h = x, and θ moves by z in the last step: ∂h_t/∂θ_{t−1} is off by b z, and of the theorem's
    sum only Ĉ_3 ρ z is there to cover it. Printed: Ĉ_3 is a multiple of C_ℓhθx, here 0."""
    k, z = PUSHED.replace(L_h_x=1.0, ell_psi_theta=1.0), 0.3
    printed = RHO * theory.multi_step_dynamics(k, LOOP).L_theta * theory.multi_step_cost(k, LOOP).l_theta_x / (1 - RHO)
    assert printed * RHO * z < B * z <= theory.gradient_bias(k, LOOP).C3 * RHO * z


def test_the_surrogate_follows_the_residual():
    """h = u², u = θ − a: each switch of a* between 0 and 1 moves F by up to 1. Printed: V_sys + V_w, here 0."""
    k = PUSHED.replace(L_f_a=1.0, L_h_u=4.0, ell_h_u=2.0)
    switches = 10_000
    S0 = lambda residual: theory.surrogate_variation_bound(k, LOOP, x_radius=20.0, system=0.0, residual=residual, w=0.0)
    assert S0(0.0) < switches <= S0(switches * 1.0)


def test_a_cost_that_is_another_every_step():
    """h_t = c_t: F varies as c does. Printed: S_0 is a multiple of L_h, here 0."""
    S0 = theory.surrogate_variation_bound(constants(), LOOP, x_radius=1.0, system=7.0, residual=0.0, w=0.0)
    assert S0 == 7.0


def test_two_mismatches_share_one_allowance():
    """Theorem 1 asks for α_θ ε + β_θ ε' ≤ ζ̄/2; the printed C_f, C_f' reach ζ̄ together."""
    k = PUSHED.replace(L_h_u=1.0, ell_h_u=1.0, ell_h_x=1.0)
    radii = theory.radii(k, LOOP, x_radius=1e9)
    lipschitz = theory.model_lipschitz(k, radii, learning_rate=1e-3)
    joint = theory.joint_contraction(k, LOOP, radii)
    limits = theory.mismatch_limits(lipschitz, joint, radii, perturbation_limit=0.5)
    used = lipschitz.alpha_theta * limits.C_f + lipschitz.beta_theta * limits.C_f_prime
    printed = lipschitz.alpha_theta * min(limits.C_f, 0.5 / (2 * lipschitz.alpha_theta)) + 0.5 / 2
    assert used <= 0.25 * (1 + 1e-12) < printed


def test_an_estimator_that_sees_little():
    """f = δa on [−1, 1], from â = −1 with a* = 1 and the printed ι: it loses δ² · 4 a step for long.

    Printed: 2√3 (C_f + e_f)³ D_f' √(C_p T), with C_f = 2δ and D_f' = δ.
    """
    delta, steps = 0.01, 1000
    printed_rate = 2 * delta / delta * math.sqrt(1 / steps)
    printed = 2 * math.sqrt(3) * (2 * delta) ** 3 * delta * math.sqrt(steps)
    a, lost = -1.0, 0.0
    for _ in range(steps):
        lost += (delta * (a - 1.0)) ** 2
        a = min(1.0, max(-1.0, a - printed_rate * 2 * delta**2 * (a - 1.0)))
    bound = theory.estimator_loss_bound(
        learning_rate=printed_rate, diameter=2.0, path_length=0.0, residual_range=2 * delta, noise=0.0, slope=delta,
        steps=steps,
    )  # fmt: skip
    assert 100 * printed < lost <= bound
