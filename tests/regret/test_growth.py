"""Local regret grows more slowly than T, at the rate that the main theorem gives, from a start at the optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.experiments.rates import growth
from selftune.experiments.rates.finding import DEVELOPMENT_SEEDS, slopes


@pytest.fixture(scope="module")
def small():
    return growth.measure(horizons=(1_000, 8_000), seeds=4, first_seed=DEVELOPMENT_SEEDS[0])


@pytest.mark.slow
def test_regret_and_errors_grow_as_the_theory_says(small):
    """Each slope, with its interval over seeds, is below the theory's; without tuning it is that of linear growth."""
    found = growth.judge(small, (1_000, 8_000))
    assert not found.failed
    assert len(found.checks) == 15


def test_a_run_from_the_optimum_has_no_transient(small):
    """The first tenth of the run has about a tenth of the regret."""
    nature = growth.scenario(8_000, jax.random.key(3))
    start = growth.starts(8_000)[0]
    run = st.simulate(growth.controller(8_000), nature, theta=start.theta, a_hat=start.a_hat, record=("theta",))
    regret = growth.local_regret(8_000, nature, run.theta).cumulative
    assert 0.05 < regret[799] / regret[-1] < 0.2


def test_linear_growth_is_a_fault():
    horizons = (1_000, 10_000, 100_000)
    steps = np.array(horizons)[:, None]
    linear = np.broadcast_to(steps * np.ones(6), (3, 3, 6))
    found = growth.judge({"near": linear, "far": linear, "untuned": linear[:, :, :1]}, horizons)
    assert len(found.failed) == 10  # each slope; R_L/T does not fall, but it does not rise either
    allowed = np.stack([steps[:, 0] ** float(one.power) for one in growth.QUANTITIES] + [steps[:, 0]], axis=1)
    allowed = np.broadcast_to(allowed * (1 - 1e-9) ** np.arange(3)[:, None], (3, 3, 6))
    assert not growth.judge({"near": allowed, "far": allowed, "untuned": linear[:, :, :1]}, horizons).failed


def test_a_slope_is_the_power_of_a_power_law():
    horizons = (1_000, 7_000, 30_000)
    np.testing.assert_allclose(slopes(horizons, 3.0 * np.array(horizons) ** np.array([[0.3], [1.1]])), [0.3, 1.1])


def test_the_near_start_is_the_optimum():
    """Against a search by hand: no step of 0.02 in any direction inside Θ lowers the mean cost."""
    best = np.asarray(growth.optimum(1_000))
    noise = st.Uniform(growth.noise_size(1_000))(jax.random.key(0), 2_000, 1)
    held = st.Scenario(jnp.zeros(1), a_star=jnp.tile(jnp.array([growth.RADIUS, 0.0]), (2_000, 1)), w=noise)
    fixed = st.Controller(growth.SYSTEM, st.Fixed(), st.Known())

    def cost(theta):
        return float(jnp.sum(st.simulate(fixed, held, theta=jnp.asarray(theta), record=("cost",)).cost))

    here = cost(best)
    assert all(
        cost(best + 0.02 * np.array([np.cos(a), np.sin(a)])) > here
        for a in np.linspace(0, 2 * np.pi, 8, endpoint=False)
    )
