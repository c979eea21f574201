"""Windows on random systems that the error estimate was not made with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import random_scenario, random_system


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_every_step_is_inside_its_estimate(seed):
    sizes_key, system_key, scenario_key = jax.random.split(jax.random.key(seed), 3)
    n, m, k, p, d = (int(size) for size in jax.random.randint(sizes_key, (5,), 1, 5))
    rate = float(10 ** jax.random.uniform(sizes_key, (), minval=-4, maxval=-1))
    ball = st.Ball(3.0)
    system, scenario = random_system(system_key, n, m, k, p, d), random_scenario(scenario_key, 300, n, p, k)
    controller = st.Controller(system, st.MGAPS(rate, constraint=ball), st.GradientEstimator(0.02))
    theta = ball.project(jax.random.normal(system_key, (d,)))
    run = st.simulate(controller, scenario, theta=theta, a_hat=jnp.zeros(p))
    exact = st.surrogate(system, scenario, run.theta)
    for window in (8, 16, 32, 64):
        near = st.surrogate(system, scenario, run.theta, window=window)
        assert bool(jnp.all(jnp.abs(near.value - exact.value) <= near.value_error))
        assert bool(np.all(np.linalg.norm(near.gradient - exact.gradient, axis=1) <= near.gradient_error))
