"""The problems on which the regret bounds say something: less than T L_F², which holds for every θ."""

import math

import jax
import jax.numpy as jnp
import pytest

import selftune as st
from selftune.experiments.certificates import informative


def level(certificate: st.Certificate, steps: int) -> float:
    return steps * certificate.derived["L_F"] ** 2


STEPS = 3000


@pytest.fixture(scope="module")
def certificate():
    return informative.informative_regret(steps=STEPS, seed=0)


def test_the_regret_of_mgaps(certificate):
    row = certificate.row("regret of M-GAPS")
    assert certificate.ok
    assert row.must_hold
    assert row.verdict == "holds"
    assert 0 < row.measured <= row.bound < 0.8 * level(certificate, STEPS)


def test_the_regret_is_that_of_gradient_descent(certificate):
    """In closed form: at rest x = 2θ/3, so F' = κ(θ − 18/49) with κ = 4/9 + 1/10, and θ decays to 18/49 at the rate ηκ.

    The transient of x and of y, a few steps long, is what the tolerance is for.
    """
    slope, optimum, rate = 4 / 9 + 0.1, 18 / 49, 2e-3
    decay = math.exp(-rate * slope * STEPS)
    expected = (slope * optimum) ** 2 * (1 - decay**2) / (2 * rate * slope)
    assert certificate.row("regret of M-GAPS").measured == pytest.approx(expected, rel=0.01)
    assert certificate.row("control in its ball").measured == pytest.approx(optimum * (1 - decay), rel=0.01)


def test_the_main_theorem_without_excitation(certificate):
    """Theorem 2 does not apply, so T k β_e² takes the place of R_1, and its hypotheses are not needed."""
    assert certificate.row("small loss").verdict == "fails"
    assert certificate.row("gradient error").failed_hypotheses == ("small loss",)
    row = certificate.row("main theorem: regret")
    assert "R_1 = T k β_e²" in row.statement
    assert row.failed_hypotheses == ()
    assert row.verdict == "holds"
    assert row.bound < 0.8 * level(certificate, STEPS)


@pytest.mark.slow
def test_the_main_theorem():
    """Every hypothesis holds, and the bound rests on the estimator's lemma and on Theorem 2."""
    steps = 100_000
    certificate = informative.informative_main_theorem(steps=steps, seed=0)
    assert all(row.holds for row in certificate.rows)
    assert all(row.verdict == "holds" for row in certificate.rows)
    row = certificate.row("main theorem: regret")
    assert "R_0 = R_0(ι), R_1 = of Theorem 2" in row.statement
    assert row.in_expectation
    assert row.measured <= row.bound < 0.6 * level(certificate, steps)
    # Each step of the way says more than the sets do.
    loss, gradient = certificate.row("estimator's loss"), certificate.row("gradient error")
    assert certificate.constants is not None
    slope = 2 * certificate.constants.L_f_x
    assert gradient.measured <= gradient.bound < 0.6 * steps * slope**2
    assert loss.bound < 0.02 * steps * (certificate.constants.L_f_a * 140.0) ** 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "system", "theta", "a"),
    [
        (informative.informative_regret, informative._SETPOINT, st.Box(0.0, 0.6), st.Box(-1e-3, 1e-3)),
        (informative.informative_main_theorem, informative._EFFORT, st.Box(0.0, 0.03), st.Box(-70.0, 70.0)),
    ],
)
def test_the_constants_are_not_too_small(make, system, theta, a):
    """A search finds none above the given ones."""
    certificate = make(steps=50, seed=0)
    given, radius = certificate.constants, certificate.derived["R_x"]
    control = certificate.row("room for every control").bound
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((9, 1)), w=jnp.zeros((9, 1)))
    sets = st.Sets(x_radius=radius, u_radius=control, theta=theta, a=a, theta_step=1.0)
    found = st.sample_constants(system, scenario, sets, theta=jnp.zeros(1), key=jax.random.key(0))
    for name in found.source:
        assert getattr(found, name) <= getattr(given, name) * (1 + 1e-9), name
