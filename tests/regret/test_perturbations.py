import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selftune as st
from tests.problems import golden_controller, golden_scenario, planar_system, scalar_system
from tests.regret.cases import golden_run, paper_scenario, windowed_case

TUNERS = {
    "mgaps": st.MGAPS(0.02, constraint=st.Box(-1.0, 4.0)),
    "adam": st.MGAPS(optax.adam(1e-2), constraint=st.Box(-1.0, 4.0)),
    "gaps": st.GAPS(buffer=5, learning_rate=0.02, constraint=st.Box(-1.0, 4.0)),
}


@pytest.mark.parametrize("name", TUNERS)
def test_replaying_alg_star_with_them_gives_the_same_theta(name):
    """ALG* with perturbations, by hand: one update at a time, θ from its own update plus ζ."""
    tuner, system, scenario = TUNERS[name], planar_system(), windowed_case("planar").scenario[:300]
    controller = st.Controller(system, tuner, st.GradientEstimator(0.05))
    run = st.simulate(controller, scenario, theta=jnp.array([1.0, 1.0, 0.2, 0.1]), a_hat=jnp.zeros(3))
    zeta = st.perturbations(system, scenario, run, tuner=tuner)

    @jax.jit
    def replay(carry, tau):
        x, theta, state = carry
        now = scenario.row(tau)
        f = system.residual(x, now.a_star, now.t)
        u = system.policy(x, theta, f, now.t)
        update, state, _ = tuner.update(system, x, theta, now.a_star, now.t, state)
        return system.dynamics(x, u, f, now.t) + now.w, update + zeta.perturbation[tau], state

    carry = (scenario.x0, run.theta[0], tuner.init(system, scenario.x0, run.theta[0]))
    for t in range(300):
        # To 1e-12: each step adds a rounding of θ, and a contractive loop forgets them.
        np.testing.assert_allclose(carry[1], run.theta[t], rtol=0, atol=1e-12)
        carry = replay(carry, jnp.asarray(t))
    np.testing.assert_allclose(carry[1], run.final.state.theta, rtol=0, atol=1e-12)
    assert zeta.norm.max() > 1e-4  # or there would have been nothing to replay


def test_none_where_the_model_is_known():
    system, scenario = scalar_system(), paper_scenario(0, 100)
    tuner = st.MGAPS(1e-3, constraint=st.Box(0.0, 10.0))
    run = st.simulate(st.Controller(system, tuner, st.Known()), scenario, theta=jnp.ones(1))
    np.testing.assert_allclose(st.perturbations(system, scenario, run, tuner=tuner).perturbation, 0, atol=1e-13)


def test_total_is_the_sum_of_norms():
    run, tuner = golden_run("planar"), golden_controller("planar").tuner
    zeta = st.perturbations(planar_system(), golden_scenario("planar"), run, tuner=tuner)
    assert zeta.norm.max() > 1e-6
    np.testing.assert_allclose(zeta.norm, np.linalg.norm(zeta.perturbation, axis=1), rtol=1e-14)
    np.testing.assert_allclose(zeta.total, zeta.norm.sum(), rtol=1e-12)


def test_a_run_without_theta_is_refused():
    system, scenario = scalar_system(), paper_scenario(0, 20)
    run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.ones(1), record=("x",))
    with pytest.raises(ValueError, match="run: expected a run that recorded theta"):
        st.perturbations(system, scenario, run, tuner=st.Fixed())
