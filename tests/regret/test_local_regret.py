import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import SYSTEMS, golden, golden_scenario, scalar_system
from tests.regret.cases import exact, paper_scenario, windowed_case


@pytest.mark.parametrize("name", SYSTEMS)
def test_golden(name):
    g = golden(name)
    box = st.Box(g["theta_low"], g["theta_high"])
    R = st.local_regret(
        SYSTEMS[name](), golden_scenario(name), g["mgaps_theta"], learning_rate=float(g["eta"]), constraint=box
    )
    # The golden program divides a difference of θ's by η: rounding of 1e-16/η = 1e-12 in a gradient, which shows in the
    # first nonzero value, of size 5e-12, only.
    np.testing.assert_allclose(R.cumulative, g["local_regret"], rtol=1e-8, atol=1e-15)


def test_unconstrained_is_the_gradient():
    case, F = windowed_case("planar"), exact("planar")
    R = st.local_regret(*case, learning_rate=0.1, surrogate=F)
    np.testing.assert_array_equal(R.projected_gradient, F.gradient)
    np.testing.assert_allclose(R.cumulative, np.cumsum(np.sum(np.asarray(F.gradient) ** 2, axis=1)), rtol=1e-12)


@pytest.mark.parametrize("constraint", [st.Box(0.0, 1.0), st.Ball(1.0), st.Simplex()])
def test_projected_gradient_by_its_definition(constraint):
    (system, scenario, _), eta = windowed_case("planar"), 0.05
    scenario = scenario[:40]
    thetas = jax.vmap(constraint.project)(jax.random.normal(jax.random.key(0), (40, 4)))
    R = st.local_regret(system, scenario, thetas, learning_rate=eta, constraint=constraint)
    for t in range(40):
        stepped = constraint.project(thetas[t] - eta * R.surrogate.gradient[t])
        # The paper's other way of saying it: θ − η ∇_{Θ,η}F = Π(θ − η∇F).
        np.testing.assert_allclose(thetas[t] - eta * R.projected_gradient[t], stepped, atol=1e-14)


def test_zero_at_a_corner_that_holds_theta():
    system, scenario = scalar_system(), paper_scenario(0, 300)
    box = st.Box(0.0, 0.5)  # the noise wants a gain well above
    R = st.local_regret(system, scenario, jnp.full((300, 1), 0.5), learning_rate=1e-3, constraint=box)
    pushed_out = np.asarray(R.surrogate.gradient)[:, 0] < 0
    assert pushed_out.any()
    assert not np.asarray(R.projected_gradient)[pushed_out].any()


def test_error_bounds_that_of_a_window():
    case, true = windowed_case("paper"), exact("paper")
    box = st.Box(0.5, 50.0)
    R = st.local_regret(*case, learning_rate=1e-4, constraint=box, window=200)
    S = st.local_regret(*case, learning_rate=1e-4, constraint=box, surrogate=true)
    error = np.abs(R.cumulative - S.cumulative)
    # Sums of 3000 terms: rounding of eps · 3000.
    assert (error <= R.cumulative_error + 1e-12 * S.cumulative).all()
    assert not S.cumulative_error.any()
    assert error.max() > 0


def test_ideal_descent_on_a_stationary_problem_goes_to_zero_at_its_rate():
    """Constant disturbance, constant a*: F_t converges to one smooth F, and gradient descent on F converges linearly.

    x' = 0.5x − θx + 1 settles at x̄ = 1/(0.5 + θ), so F(θ) = x̄² + 0.1θ² with F' = −2/(0.5 + θ)³ + 0.2θ, and near its
    minimum θ* descent multiplies the gradient by 1 − η F''(θ*) at each step.
    """
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.5 * x + v,
        residual=lambda x, a, t: a * jnp.sin(x),
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(theta**2),
    )
    steps, eta = 400, 0.05
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.ones((steps, 1)), w=jnp.ones((steps, 1)))
    ideal = st.ideal_ogd(system, scenario, theta=jnp.full(1, 0.5), learning_rate=eta)
    R = st.local_regret(system, scenario, ideal.theta, learning_rate=eta)
    slope = lambda theta: -2 / (0.5 + theta) ** 3 + 0.2 * theta
    low, high = 0.5, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    curvature = 6 / (0.5 + low) ** 4 + 0.2
    np.testing.assert_allclose(ideal.final[0], low, rtol=1e-5)
    norms = np.abs(np.asarray(R.projected_gradient)[:, 0])
    rate = (norms[300] / norms[200]) ** (1 / 100)
    # Linearized about θ*: what is left of θ − θ* at step 200, 1e-3, changes the rate by as much of 1 − rate = 0.03.
    np.testing.assert_allclose(rate, 1 - eta * curvature, rtol=2e-4)
    # So the local regret converges: its second half adds next to nothing, where any constant gradient would double it.
    assert R.cumulative[-1] - R.cumulative[200] < 1e-3 * R.cumulative[200]


def test_vmap_over_seeds():
    system = scalar_system()
    scenarios = [paper_scenario(seed, 120) for seed in (0, 1)]
    a_star, w = (jnp.stack([getattr(s, name) for s in scenarios]) for name in ("a_star", "w"))
    thetas = jnp.linspace(1, 3, 120)[:, None]

    def metric(a_star, w):
        scenario = st.Scenario(jnp.zeros(1), a_star, w)
        return st.local_regret(system, scenario, thetas, learning_rate=1e-4, constraint=st.Box(0.0, 2.5)).cumulative

    batch = jax.vmap(metric)(a_star, w)
    for i, scenario in enumerate(scenarios):
        one = st.local_regret(system, scenario, thetas, learning_rate=1e-4, constraint=st.Box(0.0, 2.5)).cumulative
        np.testing.assert_allclose(batch[i], one, rtol=1e-11)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate: expected a finite number > 0"),
        ({"thetas": jnp.ones((9, 1))}, "thetas: expected 10 rows"),
        ({"window": 11}, "window: expected at most"),
    ],
)
def test_bad_input_is_refused_by_name(change, message):
    options = {"thetas": jnp.ones((10, 1)), "learning_rate": 0.1} | change
    with pytest.raises(ValueError, match=message):
        st.local_regret(scalar_system(), paper_scenario(0, 10), options.pop("thetas"), **options)


def test_a_surrogate_of_another_run_is_refused():
    F = st.surrogate(scalar_system(), paper_scenario(0, 9), jnp.ones((9, 1)))
    with pytest.raises(ValueError, match="surrogate: expected a gradient of shape"):
        st.local_regret(scalar_system(), paper_scenario(0, 10), jnp.ones((10, 1)), learning_rate=0.1, surrogate=F)
