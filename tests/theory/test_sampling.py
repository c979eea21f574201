"""What is sampled is below what is true, and close to it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import theory
from selftune.theory.constants import NAMES
from selftune.theory.sampling import fit_contraction

from .families import planar_case, scalar_case

KEY = jax.random.key(0)


def sampled(case, **more):
    arguments = (case.controller.system, case.scenario, case.sets)
    theta = jax.tree.map(lambda leaf: leaf[0], case.run.theta)
    return (
        st.sample_constants(*arguments, theta=theta, key=KEY, **more),
        st.sample_contraction(*arguments, theta=theta, key=KEY),
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [scalar_case, planar_case])
def test_against_constants_known_by_hand(make):
    """Lower, as labelled; and within a few per cent where the value by hand is attained."""
    case = make(np.random.default_rng(4))
    found, contraction = sampled(case)
    assert set(found.source.values()) == {"sampled"}
    for name in NAMES:
        true = getattr(case.constants, name)
        assert getattr(found, name) <= true * (1 + 1e-9) + 1e-12, name
    attained = {
        scalar_case: ("L_phi_u", "L_psi_theta", "ell_psi_theta", "L_f_x", "ell_f_a", "ell_h_u"),
        planar_case: ("L_phi_x", "L_phi_u", "L_psi_x", "L_psi_theta", "ell_psi_x", "ell_psi_theta", "L_f_x", "L_f_a",
                      "ell_f_x", "ell_f_a", "L_h_x", "L_h_u", "ell_h_x", "ell_h_u"),
    }[make]  # fmt: skip
    for name in attained:
        assert getattr(found, name) >= 0.9 * getattr(case.constants, name), name
    assert contraction.source == "sampled"
    assert contraction.R_S <= case.contraction.R_S * (1 + 1e-9)
    # (C̄, ρ) are chosen together, for the smallest C̄/(1 − ρ): no larger than the true pair's, of which they see samples.
    assert contraction.contracts
    true = case.contraction
    assert contraction.C_bar / (1 - contraction.rho) <= true.C_bar / (1 - true.rho) * (1 + 1e-6)
    assert contraction.rho >= 0.3 * true.rho


@pytest.mark.slow
def test_a_matrix_is_measured_by_its_operator_norm():
    """φ = A x + B v with singular values known; a bilinear ψ whose second derivative is a tensor of norm 1."""
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(3, 3)), rng.normal(size=(3, 2))
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: jnp.asarray(A) @ x + jnp.asarray(B) @ v,
        residual=lambda x, a, t: a,
        actuation=lambda x, theta, t: jnp.stack([theta["p"][0] * x[0], theta["q"] * x[1]]),
        cost=lambda x, u, theta, t: 0.5 * jnp.sum((jnp.asarray(A) @ x) ** 2),
    )
    theta = {"p": jnp.zeros(1), "q": jnp.zeros(())}
    scenario = st.Scenario(jnp.zeros(3), a_star=jnp.zeros((9, 2)), w=jnp.zeros((9, 3)))
    constraint = st.Product({"p": st.Ball(2.0), "q": st.Box(-1.0, 1.0)})
    sets = st.Sets(x_radius=1.5, u_radius=1.0, theta=constraint, a=st.Box(-1.0, 1.0), theta_step=0.1)
    found = st.sample_constants(system, scenario, sets, theta=theta, key=KEY)
    top = np.linalg.norm(A, 2)
    np.testing.assert_allclose(found.L_phi_x, top, rtol=1e-9)
    np.testing.assert_allclose(found.L_phi_u, np.linalg.norm(B, 2), rtol=1e-9)
    np.testing.assert_allclose(found.ell_h_x, top**2, rtol=1e-9)
    np.testing.assert_allclose(found.L_h_x, top**2 * 1.5, rtol=1e-4)
    np.testing.assert_allclose(found.ell_psi_x, 1.0, rtol=1e-6)
    np.testing.assert_allclose(found.L_psi_x, 2.0, rtol=1e-4)
    np.testing.assert_allclose(constraint.diameter(theta), math.hypot(4.0, 2.0), rtol=1e-12)


@pytest.mark.parametrize(("low", "contracts"), [(0.5, True), (0.0, False), (-0.1, False)])
def test_a_loop_that_may_not_contract_says_so(low, contracts):
    """x' = (1 − 0.1 θ) x: marginal where θ may be 0, unstable where it may be negative."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: x + 0.1 * v,
        residual=lambda x, a, t: a,
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((400, 1)), w=jnp.zeros((400, 1)))
    sets = st.Sets(x_radius=1.0, u_radius=5.0, theta=st.Box(low, 2.0), a=st.Box(-1.0, 1.0), theta_step=0.01)
    found = st.sample_contraction(system, scenario, sets, theta=jnp.ones(1), key=KEY)
    assert found.contracts == contracts
    np.testing.assert_allclose(found.rho, 1 - 0.1 * low, rtol=1e-3)


def test_the_fit():
    k = np.arange(200.0)
    C_bar, rho = fit_contraction(0.9**k)
    np.testing.assert_allclose((C_bar, rho), (1.0, 0.9), rtol=1e-6)
    norms = 0.9**k * (1 + 0.5 * k)
    C_bar, rho = fit_contraction(norms)
    assert np.all(norms <= C_bar * rho**k * (1 + 1e-9))
    assert 0.9 < rho < 1
    best = min(np.max(norms / r**k) / (1 - r) for r in np.linspace(0.9, 0.999, 500))
    assert C_bar / (1 - rho) <= 1.01 * best
    assert fit_contraction(1.1**k)[1] == pytest.approx(1.1)
    assert fit_contraction(np.array([1.0, math.inf, 1.0])) == (math.inf, 1.0)
    deadbeat = fit_contraction(np.array([1.0, 0.5, 0.0, 0.0]))
    assert deadbeat[0] * deadbeat[1] >= 0.5


@pytest.mark.parametrize(
    ("constraint", "size"),
    [(st.Box(-1.0, [1.0, 2.0]), math.hypot(2, 3)), (st.Ball(2.0), 4.0), (st.Simplex(3.0), 3 * math.sqrt(2))],
)
def test_diameters(constraint, size):
    np.testing.assert_allclose(constraint.diameter(jnp.zeros(2)), size, rtol=1e-12)
    assert float(st.Unconstrained().diameter(jnp.zeros(2))) == math.inf


class TestRefusals:
    def refused(self, match, **bad):
        case = scalar_case(np.random.default_rng(0), steps=10)
        good = dict(system=case.controller.system, scenario=case.scenario, sets=case.sets, theta=jnp.ones(1), key=KEY)
        arguments = good | bad
        positional = [arguments.pop(name) for name in ("system", "scenario", "sets")]
        for function in (st.sample_constants, st.sample_contraction):
            with pytest.raises(ValueError, match=match):
                function(*positional, **arguments)

    def test_by_name(self, as_a_user):
        general = st.System(lambda x, u, f, t: x, lambda x, a, t: a, lambda x, p, f, t: p, lambda x, u, p, t: x[0])
        self.refused("system: expected a MatchedSystem", system=general)
        self.refused("sets: expected Sets", sets=3)
        self.refused("key: expected a PRNG key", key=0)
        unbounded = st.Sets(x_radius=1.0, u_radius=1.0, theta=st.Unconstrained(), a=st.Box(-1.0, 1.0), theta_step=0.1)
        self.refused("sets.theta: expected a bounded", sets=unbounded)

    def test_more_ascents_than_starts(self, as_a_user):
        case = scalar_case(np.random.default_rng(0), steps=10)
        arguments = (case.controller.system, case.scenario, case.sets)
        with pytest.raises(ValueError, match="ascents: expected at most the number of starts, 4, got 8"):
            st.sample_constants(*arguments, theta=jnp.ones(1), key=KEY, starts=4, ascents=8)


def test_the_namespace():
    assert theory.sample_constants is st.sample_constants
