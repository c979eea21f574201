import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import scalar_system
from tests.regret.cases import paper_scenario, windowed_case

KEY = jax.random.key(0)


def test_of_w_and_a_star():
    scenario = paper_scenario(0, 100, period=10)
    lengths = st.path_lengths(scalar_system(), scenario)
    np.testing.assert_allclose(lengths.w, np.abs(np.diff(scenario.w[:, 0])).sum(), rtol=1e-13)
    jumps = np.linalg.norm(np.diff(np.asarray(scenario.a_star), axis=0), axis=1)
    assert (jumps > 0).sum() == 9
    np.testing.assert_allclose(lengths.a_star, jumps.sum(), rtol=1e-13)
    assert lengths.system is None


def test_a_system_that_does_not_vary_has_no_length():
    system, scenario = scalar_system(), paper_scenario(0, 60)
    run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.ones(1))
    assert st.path_lengths(system, scenario, run, key=KEY).system == 0


def test_closed_form():
    """φ_t = x + v + c_t, ψ_t = −θx + 2c_t, h_t = 3c_t + x²: each difference is the same for all samples."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.5 * x + v + t,
        residual=lambda x, a, t: a,
        actuation=lambda x, theta, t: -theta * x + 2 * t,
        cost=lambda x, u, theta, t: 3 * t + jnp.sum(x**2),
    )
    c = jnp.sin(jnp.arange(40.0))
    scenario = st.Scenario(jnp.zeros(1), jnp.ones((40, 1)), jnp.zeros((40, 1)), t=c)
    run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.zeros(1))
    length = st.path_lengths(system, scenario, run, key=KEY).system
    np.testing.assert_allclose(length, 6 * np.abs(np.diff(c)).sum(), rtol=1e-12)
    general = st.System(system.dynamics, system.residual, system.policy, system.cost)
    np.testing.assert_allclose(st.path_lengths(general, scenario, run, key=KEY).system, length, rtol=1e-12)


def test_a_lower_estimate_that_grows_with_samples():
    system, scenario, _ = windowed_case("planar")
    scenario = scenario[:200]
    controller = st.Controller(system, st.MGAPS(0.02), st.GradientEstimator(0.05))
    run = st.simulate(controller, scenario, theta=jnp.ones(4), a_hat=jnp.zeros(3))
    few, many = (
        np.mean([st.path_lengths(system, scenario, run, key=key, samples=n).system for key in jax.random.split(KEY, 5)])
        for n in (4, 256)
    )
    assert 0 < few < many
    # The reference moves at most 0.05 and 0.03 a step; ψ and h are Lipschitz in it on what was visited, with constants
    # below 12 in all.
    assert many < 200 * 0.06 * 12


def test_bad_input_is_refused_by_name():
    system, scenario = scalar_system(), paper_scenario(0, 20)
    controller = st.Controller(system, st.Fixed(), st.Known())
    run = st.simulate(controller, scenario, theta=jnp.ones(1))
    with pytest.raises(ValueError, match="key: expected a PRNG key"):
        st.path_lengths(system, scenario, run)
    with pytest.raises(ValueError, match="samples: expected a whole number >= 1"):
        st.path_lengths(system, scenario, run, key=KEY, samples=0)
    short = st.simulate(controller, scenario, theta=jnp.ones(1), record=("x", "u", "theta"))
    with pytest.raises(ValueError, match="run: expected a run that recorded f,"):
        st.path_lengths(system, scenario, short, key=KEY)
