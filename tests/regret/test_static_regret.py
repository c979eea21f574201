import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import selftune as st
from selftune.regret._projected_descent import Method, minimize
from tests.problems import golden, golden_controller, golden_scenario, planar_system, scalar_system
from tests.regret.cases import golden_run, paper_scenario

KEY = jax.random.key(0)


def total_cost(system, scenario, theta):
    run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=theta, throw=False)
    return float(jnp.sum(run.cost))


def test_scalar_minimum_is_that_of_a_fine_grid():
    system, scenario = scalar_system(), paper_scenario(0, 800)
    box = st.Box(0.0, 50.0)
    controller = st.Controller(system, st.MGAPS(1e-4, constraint=box), st.GradientEstimator(0.005))
    run = st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(3))
    S = st.static_regret(system, scenario, run, constraint=box, key=KEY)
    fixed = st.Controller(system, st.Fixed(), st.Known())
    costs = jax.vmap(lambda theta: jnp.sum(st.simulate(fixed, scenario, theta=theta, record=("cost",)).cost))
    grid = jnp.linspace(0, 50, 251)[:, None]
    near = S.theta + jnp.linspace(-0.01, 0.01, 21)[:, None]
    assert S.minimum <= costs(grid).min()
    np.testing.assert_allclose(S.minimum, costs(near).min(), rtol=1e-10)
    np.testing.assert_allclose(S.minimum, total_cost(system, scenario, S.theta), rtol=1e-12)
    np.testing.assert_allclose(S.regret, jnp.sum(run.cost) - S.minimum, rtol=1e-12)
    np.testing.assert_allclose(S.cumulative[-1], S.regret, rtol=1e-9)
    assert S.agreement == 1
    assert S.converged.all()
    assert S.spread < 1e-6 * S.minimum


def test_box_that_binds_agrees_with_scipy():
    g = golden("planar")
    system, scenario, run = planar_system(), golden_scenario("planar"), golden_run("planar")
    box = golden_controller("planar").tuner.constraint
    S = st.static_regret(system, scenario, run, constraint=box, key=KEY)

    @jax.jit
    def objective(theta):
        def step(x, tau):
            now = scenario.row(tau)
            x, cost = system.step(x, theta, now.a_star, now.t)
            return x + now.w, cost

        return jnp.sum(jax.lax.scan(step, scenario.x0, jnp.arange(len(scenario)))[1])

    found = scipy.optimize.minimize(
        objective,
        g["theta0"],
        jac=jax.jit(jax.grad(objective)),
        method="L-BFGS-B",
        bounds=list(zip(g["theta_low"], g["theta_high"], strict=True)),
        options={"ftol": 1e-15, "gtol": 1e-9},
    )
    np.testing.assert_allclose(S.minimum, found.fun, rtol=1e-8)
    np.testing.assert_allclose(S.theta, found.x, atol=1e-4)  # flat to 1e-8 in value is flat to its root in θ
    assert ((S.theta >= g["theta_low"]) & (S.theta <= g["theta_high"])).all()
    assert S.agreement > 0.5


@pytest.mark.parametrize("constraint", [st.Unconstrained(), st.Ball(1.0), st.Simplex(), st.Box(-0.3, 0.4)])
def test_descent_solves_a_quadratic_over_each_set(constraint):
    """min ½(v − c)ᵀQ(v − c): at the minimum a projected gradient step goes nowhere, and the problem is convex."""
    root = jax.random.normal(KEY, (4, 4))
    Q, c = root @ root.T + 0.01 * jnp.eye(4), jnp.array([0.9, -0.5, 0.8, 0.3])

    def objective(v):
        return 0.5 * (v - c) @ Q @ (v - c), Q @ (v - c)

    method = Method(constraint.project, jnp.asarray(1e-10))
    found = minimize(objective, method, jnp.zeros(4), iterations=500)
    assert found.converged
    step = constraint.project(found.best - 0.1 * objective(found.best)[1]) - found.best
    np.testing.assert_allclose(step, 0, atol=1e-8)


def test_disagreement_is_seen():
    """A cost with two valleys in θ, of different depth: starts on either side end apart."""
    system = st.System(
        dynamics=lambda x, u, f, t: 0.5 * x + f,
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: theta,
        cost=lambda x, u, theta, t: jnp.sum((u**2 - 1) ** 2 + 0.1 * u + 0 * x),
    )
    scenario = st.Scenario(jnp.zeros(1), jnp.zeros((20, 1)), jnp.zeros((20, 1)))
    run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.ones(1))
    starts = jnp.array([[-1.5], [-0.8], [1.4], [0.9]])
    S = st.static_regret(system, scenario, run, starts=starts)
    assert S.agreement == 0.5
    assert -1.1 < S.theta[0] < -1
    np.testing.assert_allclose(S.spread, 20 * 0.2, rtol=0.01)  # 0.1·(1 − (−1)) a step, to second order
    assert (S.minima[2:] > S.minima[:2].max()).all()


def test_a_start_that_blows_up_is_left_out():
    system, scenario = scalar_system(), paper_scenario(0, 2000)
    run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.ones(1))
    S = st.static_regret(system, scenario, run, starts=jnp.array([[500.0], [3.0]]))  # 1 − 0.01·500 = −4
    assert S.minima[0] > S.minima[1]
    assert jnp.isfinite(S.minimum)


def test_vmap_over_seeds():
    system, box = scalar_system(), st.Box(0.0, 50.0)
    controller = st.Controller(system, st.MGAPS(1e-4, constraint=box), st.Known())

    def metric(key):
        scenario = st.Scenario(jnp.zeros(1), jnp.zeros((200, 3)), st.Gaussian(0.1)(key, 200, 1))
        run = st.simulate(controller, scenario, theta=jnp.ones(1))
        return st.static_regret(system, scenario, run, constraint=box, starts=4, key=KEY)

    keys = jax.random.split(jax.random.key(5), 2)
    batch = jax.vmap(metric)(keys)
    for i in range(2):
        one = metric(keys[i])
        np.testing.assert_allclose(batch.minimum[i], one.minimum, rtol=1e-9)
        np.testing.assert_allclose(batch.regret[i], one.regret, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "key: expected a PRNG key"),
        ({"starts": 0, "key": KEY}, "starts: expected a whole number >= 1"),
        ({"starts": True, "key": KEY}, "starts: expected a whole number or"),
        ({"starts": jnp.ones((3, 2))}, "starts: expected rows like theta's"),
        ({"tolerance": -1.0, "key": KEY}, "tolerance: expected"),
    ],
)
def test_bad_input_is_refused_by_name(options, message):
    system, scenario = scalar_system(), paper_scenario(0, 20)
    run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.ones(1))
    with pytest.raises(ValueError, match=message):
        st.static_regret(system, scenario, run, **options)


def test_a_run_without_costs_is_refused():
    system, scenario = scalar_system(), paper_scenario(0, 20)
    run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.ones(1), record=("theta",))
    with pytest.raises(ValueError, match="run: expected a run that recorded cost"):
        st.static_regret(system, scenario, run, key=KEY)
