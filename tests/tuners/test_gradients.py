"""What the tuners' gradients are, against differentiation through whole rollouts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import planar_system, random_scenario, random_system

SIZES = [(1, 1, 1, 1, 1), (2, 1, 1, 3, 2), (3, 2, 4, 2, 5), (6, 3, 2, 6, 4), (4, 6, 6, 5, 6), (5, 2, 1, 1, 6)]
# In every gate: one of each, few residuals with many gains, and more parameters than states.
IN_EVERY_GATE = (SIZES[0], SIZES[4], SIZES[5])
sizes = pytest.mark.parametrize(
    "size", [size if size in IN_EVERY_GATE else pytest.param(size, marks=pytest.mark.slow) for size in SIZES], ids=str
)
STEPS = 25


def problem(size, seed=0):
    n, _, k, p, d = size
    key = jax.random.key(seed)
    return random_system(key, *size), random_scenario(key, STEPS, n, p, k), jax.random.normal(key, (d,))


def rollout_costs(system, scenario, thetas):
    """h_t of the true closed loop under θ_0…θ_{T-1} (T, d): a bare loop, an oracle independent of `simulate`."""

    def step(x, now):
        t, theta, row = now
        x_next, cost = system.step(x, theta, row.a_star, t)
        return x_next + row.w, cost

    times = jnp.arange(len(scenario))
    rows = jax.vmap(scenario.row)(times)
    return jax.lax.scan(step, scenario.x0, (times, thetas, rows))[1]


def surrogate_gradients(system, scenario, thetas):
    """∇F_t(θ_t) for all t: differentiate the whole rollout with θ_t throughout, and take row t."""
    total = lambda theta: rollout_costs(system, scenario, jnp.broadcast_to(theta, thetas.shape))
    return jax.jit(lambda thetas: jax.vmap(jax.jacobian(total))(thetas))(thetas)[jnp.arange(STEPS), jnp.arange(STEPS)]


@sizes
def test_mgaps_gradient_is_that_of_a_shared_shift(size):
    """G_t = d h_t / dδ at δ = 0, where every θ_0…θ_t is shifted by the same δ (with exact parameters)."""
    system, scenario, theta = problem(size)
    controller = st.Controller(system, st.MGAPS(0.05, constraint=st.Ball(5.0)), st.Known())
    run = st.simulate(controller, scenario, theta=theta)
    assert float(jnp.max(jnp.abs(run.theta[-1] - run.theta[0]))) > 1e-3  # θ does move, or this would test a constant
    shifted = lambda shift: rollout_costs(system, scenario, run.theta + shift)
    # Reverse mode, where M-GAPS goes forward: nothing is shared but the functions.
    expected = jax.jit(jax.jacrev(shifted))(jnp.zeros_like(theta))
    np.testing.assert_allclose(run.gradient, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@sizes
def test_gaps_with_a_long_buffer_is_mgaps(size):
    system, scenario, theta = problem(size)

    def run(tuner):
        return st.simulate(st.Controller(system, tuner, st.Known()), scenario, theta=theta)

    short, long = run(st.MGAPS(0.05)), run(st.GAPS(buffer=STEPS, learning_rate=0.05))
    for name in ("x", "theta", "gradient", "y"):
        np.testing.assert_allclose(getattr(long, name), getattr(short, name), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("buffer", [1, 4])
def test_gaps_truncates_to_its_buffer(buffer):
    """G_t is the derivative in θ_{t-B}…θ_t: the sum of those blocks of the full Jacobian."""
    system, scenario, theta = problem((3, 2, 2, 2, 4))
    tuner = st.GAPS(buffer=buffer, learning_rate=0.05)
    run = st.simulate(st.Controller(system, tuner, st.Known()), scenario, theta=theta)
    blocks = jax.jit(jax.jacrev(lambda thetas: rollout_costs(system, scenario, thetas)))(run.theta)  # (t, tau, d)
    age = jnp.arange(STEPS)[:, None] - jnp.arange(STEPS)
    inside = ((age >= 0) & (age <= buffer)).astype(float)
    np.testing.assert_allclose(run.gradient, jnp.einsum("ts,tsd->td", inside, blocks), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_mgaps_gradient_tends_to_the_surrogates_as_the_rate_vanishes():
    system, scenario, theta = problem((3, 2, 2, 2, 4))

    def largest_error(rate):
        run = st.simulate(st.Controller(system, st.MGAPS(rate), st.Known()), scenario, theta=theta)
        return float(jnp.max(jnp.abs(run.gradient - surrogate_gradients(system, scenario, run.theta))))

    errors = [largest_error(rate) for rate in (1e-2, 1e-3, 1e-4)]
    # The imagined trajectory differs from the actual one in proportion to η: each tenth of η is a tenth of the error.
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.3)
    assert errors[2] == pytest.approx(errors[1] / 10, rel=0.1)
    assert largest_error(1e-14) < 1e-10


def test_ideal_ogd_follows_finite_differences_of_the_surrogate():
    system, scenario, theta = problem((3, 2, 2, 2, 4))
    ball, rate, step = st.Ball(2.0), 0.1, 1e-6
    ideal = st.ideal_ogd(system, scenario, theta=ball.project(theta), learning_rate=rate, constraint=ball)

    @jax.jit
    def surrogate(thetas):
        """F_t(θ_t) for all t, by a rollout each."""
        whole = lambda theta: rollout_costs(system, scenario, jnp.broadcast_to(theta, thetas.shape))
        return jnp.diagonal(jax.vmap(whole)(thetas))

    np.testing.assert_allclose(ideal.surrogate, surrogate(ideal.theta), rtol=1e-12)
    for i in range(4):
        unit = step * jnp.eye(4)[i]
        difference = (surrogate(ideal.theta + unit) - surrogate(ideal.theta - unit)) / (2 * step)
        # A central difference of step 1e-6 is good to about 1e-9: cancellation, eps / step.
        np.testing.assert_allclose(ideal.gradient[:, i], difference, rtol=1e-6, atol=1e-8)
    following = jnp.concatenate([ideal.theta[1:], ideal.final[None]])
    expected = jax.vmap(ball.project)(ideal.theta - rate * ideal.gradient)
    np.testing.assert_allclose(following, expected, rtol=1e-12)


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


@pytest.mark.slow
def test_difftune_descends_the_episodes_total_cost():
    size, episode, rate = (3, 2, 2, 2, 4), 8, 0.05
    system, scenario, theta = problem(size)
    tuner = st.DiffTune(episode=episode, learning_rate=rate, constraint=st.Ball(3.0))
    run = st.simulate(st.Controller(system, tuner, st.Known()), scenario, theta=theta)
    for start in (0, episode, 2 * episode):
        inside = run.theta[start : start + episode]
        np.testing.assert_array_equal(inside, jnp.broadcast_to(inside[0], inside.shape))

        def total(theta, start=start):
            part = eqx.tree_at(lambda s: s.x0, scenario[start : start + episode], run.x[start])
            times = jnp.arange(start, start + episode)

            def step(x, now):
                t, row = now
                x_next, cost = system.step(x, theta, row.a_star, t)
                return x_next + row.w, cost

            return jnp.sum(jax.lax.scan(step, part.x0, (times, jax.vmap(part.row)(times - start)))[1])

        expected = tuner.constraint.project(inside[0] - rate * jax.jit(jax.grad(total))(inside[0]))
        np.testing.assert_allclose(run.theta[start + episode], expected, rtol=1e-10)
        assert float(jnp.max(jnp.abs(expected - inside[0]))) > 1e-4
