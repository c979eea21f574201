import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import SYSTEMS, golden, golden_scenario, scalar_system
from tests.regret.cases import golden_run, paper_scenario


@pytest.mark.parametrize("name", SYSTEMS)
def test_golden(name):
    g = golden(name)
    m = st.model_mismatch(SYSTEMS[name](), golden_scenario(name), golden_run(name))
    for got, field in ((m.mismatch, "mgaps_eps"), (m.mismatch_gradient, "mgaps_eps_prime")):
        # Differences of like numbers: 1e-8 of the largest where they are small.
        np.testing.assert_allclose(got, g[field], rtol=1e-8, atol=1e-8 * g[field].max())
    np.testing.assert_allclose(m.total, g["mgaps_eps"].sum(), rtol=1e-8)
    np.testing.assert_allclose(m.total_gradient, g["mgaps_eps_prime"].sum(), rtol=1e-8)


def test_nothing_is_wrong_with_the_truth():
    system, scenario = scalar_system(), paper_scenario(0, 50)
    run = st.simulate(st.Controller(system, st.MGAPS(1e-3), st.Known()), scenario, theta=jnp.ones(1))
    m = st.model_mismatch(system, scenario, run)
    # But for rounding: XLA may compute the same thing twice in two ways.
    np.testing.assert_allclose(m.mismatch, 0, atol=1e-15)
    np.testing.assert_allclose(m.mismatch_gradient, 0, atol=1e-15)


def test_plant_is_the_truth_where_it_is_given():
    """A plant whose residual is the model's plus 0.3·cos x: with the model's own a* that is all the mismatch."""
    system, scenario = scalar_system(), paper_scenario(0, 50)
    plant = st.System(
        system.dynamics, lambda x, a, t: system.residual(x, a, t) + 0.3 * jnp.cos(x), system.policy, system.cost
    )
    run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.ones(1), plant=plant)
    m = st.model_mismatch(system, scenario, run, plant=plant)
    np.testing.assert_allclose(m.mismatch, 0.3 * np.abs(np.cos(run.x[:, 0])), atol=1e-15)
    np.testing.assert_allclose(m.mismatch_gradient, 0.3 * np.abs(np.sin(run.x[:, 0])), atol=1e-15)


def test_vmap_equals_loop():
    system = scalar_system()
    controller = st.Controller(system, st.MGAPS(1e-3), st.GradientEstimator(0.005))

    def metric(key):
        scenario = st.Scenario(jnp.zeros(1), 0.1 * jnp.ones((60, 3)), st.Gaussian(0.1)(key, 60, 1))
        run = st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(3))
        mismatch = st.model_mismatch(system, scenario, run)
        gap = st.exact_model_gap(system, scenario, run)
        zeta = st.perturbations(system, scenario, run, tuner=controller.tuner)
        lengths = st.path_lengths(system, scenario, run, key=key)
        quasi = st.quasi_regret(run, run)
        return mismatch, gap, zeta, lengths, quasi

    keys = jax.random.split(jax.random.key(0), 2)
    batch = jax.vmap(metric)(keys)
    for i in range(2):
        one, of_batch = jax.tree.leaves(metric(keys[i])), [leaf[i] for leaf in jax.tree.leaves(batch)]
        for a, b in zip(one, of_batch, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)  # a batch is fused differently


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"record": ("x",)}, "run: expected a run that recorded a_hat"),
        ({"stride": 2}, "run.x: expected 20 rows, one for each step of the scenario"),
    ],
)
def test_bad_input_is_refused_by_name(options, message):
    system, scenario = scalar_system(), paper_scenario(0, 20)
    run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.ones(1), **options)
    with pytest.raises(ValueError, match=message):
        st.model_mismatch(system, scenario, run)
