"""What the tuners' gradients are, against differentiation through whole rollouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import planar_system, random_scenario, random_system

SIZES = [(1, 1, 1, 1, 1), (2, 1, 1, 3, 2), (3, 2, 4, 2, 5), (6, 3, 2, 6, 4), (4, 6, 6, 5, 6), (5, 2, 1, 1, 6)]
sizes = pytest.mark.parametrize("size", SIZES, ids=str)
STEPS = 25


def problem(size, seed=0):
    n, _, k, p, d = size
    key = jax.random.key(seed)
    return random_system(key, *size), random_scenario(key, STEPS, n, p, k), jax.random.normal(key, (d,))


def rollout_cost(system, scenario, thetas, until):
    """h_until of the true closed loop with θ_τ = thetas(τ): a plain loop, an oracle independent of `simulate`."""
    x = scenario.x0
    for t in range(until):
        now = scenario.row(t)
        x = system.step(x, thetas(t), now.a_star, t)[0] + now.w
    return system.step(x, thetas(until), scenario.row(until).a_star, until)[1]


@sizes
def test_mgaps_gradient_is_that_of_a_shared_shift(size):
    """G_t = d h_t / dδ at δ = 0, where every θ_0…θ_t is shifted by the same δ (with exact parameters)."""
    system, scenario, theta = problem(size)
    controller = st.Controller(system, st.MGAPS(0.05, constraint=st.Ball(5.0)), st.Known())
    run = st.simulate(controller, scenario, theta=theta)
    assert run.theta is not None
    assert run.gradient is not None
    assert float(jnp.max(jnp.abs(run.theta[-1] - run.theta[0]))) > 1e-3  # θ does move, or this would test a constant
    for t in (0, 1, 7, STEPS - 1):
        shifted = jax.grad(lambda shift, t=t: rollout_cost(system, scenario, lambda tau: run.theta[tau] + shift, t))
        expected = shifted(jnp.zeros_like(theta))
        np.testing.assert_allclose(run.gradient[t], expected, rtol=1e-10, atol=1e-12)


@sizes
def test_gaps_with_a_long_buffer_is_mgaps(size):
    system, scenario, theta = problem(size)

    def run(tuner):
        return st.simulate(st.Controller(system, tuner, st.Known()), scenario, theta=theta)

    short, long = run(st.MGAPS(0.05)), run(st.GAPS(buffer=STEPS, learning_rate=0.05))
    for name in ("x", "theta", "gradient", "y"):
        np.testing.assert_allclose(getattr(long, name), getattr(short, name), rtol=1e-10, atol=1e-12)


def test_gaps_truncates_to_its_buffer():
    """G_t is the derivative in θ_{t-B}…θ_t: shift only those."""
    size, buffer = (3, 2, 2, 2, 4), 4
    system, scenario, theta = problem(size)
    run = st.simulate(
        st.Controller(system, st.GAPS(buffer=buffer, learning_rate=0.05), st.Known()), scenario, theta=theta
    )
    assert run.theta is not None
    assert run.gradient is not None
    for t in (0, 2, buffer, buffer + 1, STEPS - 1):

        def cost(shift, t=t):
            return rollout_cost(system, scenario, lambda tau: run.theta[tau] + shift * float(t - tau <= buffer), t)

        np.testing.assert_allclose(run.gradient[t], jax.grad(cost)(jnp.zeros_like(theta)), rtol=1e-10, atol=1e-12)


def test_mgaps_gradient_tends_to_the_surrogates_as_the_rate_vanishes():
    size = (3, 2, 2, 2, 4)
    system, scenario, theta = problem(size)

    def largest_error(rate):
        run = st.simulate(st.Controller(system, st.MGAPS(rate), st.Known()), scenario, theta=theta)
        assert run.theta is not None
        assert run.gradient is not None
        errors = []
        for t in range(0, STEPS, 6):
            surrogate = jax.grad(lambda theta, t=t: rollout_cost(system, scenario, lambda _: theta, t))
            errors.append(jnp.max(jnp.abs(run.gradient[t] - surrogate(run.theta[t]))))
        return float(max(errors))

    errors = [largest_error(rate) for rate in (1e-2, 1e-3, 1e-4)]
    # The imagined trajectory differs from the actual one in proportion to η: each tenth of η is a tenth of the error.
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.3)
    assert errors[2] == pytest.approx(errors[1] / 10, rel=0.1)
    assert largest_error(1e-14) < 1e-10


def test_ideal_ogd_follows_finite_differences_of_the_surrogate():
    system, scenario, theta = problem((3, 2, 2, 2, 4))
    ball = st.Ball(2.0)
    ideal = st.ideal_ogd(system, scenario, theta=ball.project(theta), learning_rate=0.1, constraint=ball)
    step = 1e-6
    for t in (0, 1, 10, STEPS - 1):
        here = ideal.theta[t]

        def surrogate(theta, t=t):
            return rollout_cost(system, scenario, lambda _: theta, t)

        assert float(ideal.surrogate[t]) == pytest.approx(float(surrogate(here)), rel=1e-12)
        for i in range(4):
            unit = step * jnp.eye(4)[i]
            difference = (surrogate(here + unit) - surrogate(here - unit)) / (2 * step)
            # A central difference of step 1e-6 is good to about 1e-9: cancellation, eps / step.
            assert float(ideal.gradient[t, i]) == pytest.approx(float(difference), rel=1e-6, abs=1e-8)
        following = ideal.theta[t + 1] if t + 1 < STEPS else ideal.final
        np.testing.assert_allclose(following, ball.project(here - 0.1 * ideal.gradient[t]), rtol=1e-12)


def test_mgaps_is_close_to_ideal_ogd_on_a_slow_problem():
    """M-GAPS with exact parameters approximates the ideal: same direction, same end, at a small rate."""
    system = planar_system()
    scenario = random_scenario(jax.random.key(3), 150, 2, 3, 2)
    theta, box = jnp.array([1.0, 1.0, 0.2, 0.1]), st.Box(-5.0, 5.0)
    ideal = st.ideal_ogd(system, scenario, theta=theta, learning_rate=1e-3, constraint=box)
    run = st.simulate(st.Controller(system, st.MGAPS(1e-3, constraint=box), st.Known()), scenario, theta=theta)
    moved, apart = jnp.linalg.norm(ideal.final - theta), jnp.linalg.norm(ideal.final - run.final.state.theta)
    assert float(moved) > 0.05
    assert float(apart / moved) < 0.1


def test_difftune_descends_the_episodes_total_cost():
    size, episode, rate = (3, 2, 2, 2, 4), 8, 0.05
    system, scenario, theta = problem(size)
    tuner = st.DiffTune(episode=episode, learning_rate=rate, constraint=st.Ball(3.0))
    run = st.simulate(st.Controller(system, tuner, st.Known()), scenario, theta=theta)
    assert run.theta is not None
    assert run.x is not None
    for start in (0, episode, 2 * episode):
        inside = run.theta[start : start + episode]
        np.testing.assert_array_equal(inside, jnp.broadcast_to(inside[0], inside.shape))

        def total(theta, start=start):
            x, cost = run.x[start], jnp.zeros(())
            for t in range(start, start + episode):
                now = scenario.row(t)
                x_next, h = system.step(x, theta, now.a_star, t)
                x, cost = x_next + now.w, cost + h
            return cost

        expected = tuner.constraint.project(inside[0] - rate * jax.grad(total)(inside[0]))
        np.testing.assert_allclose(run.theta[start + episode], expected, rtol=1e-10)
        assert float(jnp.max(jnp.abs(expected - inside[0]))) > 1e-4
