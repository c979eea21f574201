"""The run-time diagnostic: closed loops whose exponent is known, told apart and measured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.tuners import _contraction


def loop(step, memory=jnp.inf, tuner="mgaps"):
    """A controller around x ↦ step(x, θ, t), with nothing to learn."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: v,
        residual=lambda x, a, t: jnp.zeros_like(x),
        actuation=step,
        cost=lambda x, u, theta, t: 0.0 * jnp.sum(x**2),
    )
    tuners = {
        "mgaps": st.MGAPS(1e-3, contraction_memory=memory),
        "gaps": st.GAPS(2, 1e-3, contraction_memory=memory),
        "fixed": st.Fixed(contraction_memory=memory),
    }
    return st.Controller(system, tuners[tuner], st.Frozen())


def watch(controller, n, steps=4000, x0=None, t=None):
    scenario = st.Scenario(
        jnp.zeros(n) if x0 is None else x0, a_star=jnp.zeros((steps, 1)), w=jnp.zeros((steps, n)), t=t
    )
    start = dict(theta=jnp.zeros(1), a_hat=jnp.zeros(1))
    return np.asarray(st.simulate(controller, scenario, **start, record=("contraction",)).contraction)


def linear(matrix, **kwargs):
    return watch(loop(lambda x, theta, t: jnp.asarray(matrix) @ x + theta, **kwargs), len(matrix))


def rotation(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


@pytest.mark.parametrize("tuner", ["mgaps", "gaps", "fixed"])
def test_a_contractive_linear_loop(tuner):
    skew = np.array([[1.0, 3.0, 0.0], [0.0, 1.0, -2.0], [0.0, 0.0, 1.0]])
    matrix = skew @ np.diag([0.98, 0.9, -0.5]) @ np.linalg.inv(skew)
    np.testing.assert_allclose(np.log(linear(matrix, tuner=tuner)[-1]), np.log(0.98), rtol=0.05)


def test_a_spiral_a_centre_and_a_saddle():
    """|λ| of 0.95, of 1 and of 1.02; the first turns, so that no direction stays the slowest."""
    np.testing.assert_allclose(np.log(linear(0.95 * rotation(0.3))[-1]), np.log(0.95), rtol=0.05)
    assert abs(np.log(linear(rotation(1.0))[-1])) < 1e-3
    np.testing.assert_allclose(np.log(linear(np.diag([1.02, 0.2]))[-1]), np.log(1.02), rtol=0.05)


def test_a_chaotic_loop():
    """Along x ↦ 4x(1−x) trajectories part by a factor of 2 a step, on average."""
    x0 = jnp.array([0.1234])
    rho = watch(loop(lambda x, theta, t: 4 * x * (1 - x) + 0 * theta), 1, steps=20_000, x0=x0)
    np.testing.assert_allclose(np.log(rho[-1]), np.log(2), rtol=0.05)


def test_it_is_the_product_that_counts():
    """Each factor alone has a norm above 1; two in a row contract."""
    even, odd = np.array([[0.0, 2.0], [0.1, 0.0]]), np.array([[0.0, 0.1], [2.0, 0.0]])
    pair = even @ odd  # diag(4, 0.01): unstable in the first coordinate
    swapped = np.array([[0.0, 2.0], [0.1, 0.0]]) @ np.array([[0.0, 2.0], [0.1, 0.0]])  # 0.2 I
    assert np.linalg.norm(even, 2) > 1
    np.testing.assert_allclose(swapped, 0.2 * np.eye(2))
    np.testing.assert_allclose(np.log(linear(even)[-1]), np.log(0.2) / 2, rtol=0.05)
    both = jnp.stack([jnp.asarray(odd), jnp.asarray(even)])
    rho = watch(loop(lambda x, theta, t: both[t % 2] @ x + theta, tuner="fixed"), 2)
    np.testing.assert_allclose(np.log(rho[-1]), np.log(pair[0, 0]) / 2, rtol=0.05)


def test_the_memory_forgets():
    """The loop turns unstable half-way: soon after, so does the estimate; with no memory limit it lags."""
    controller = loop(lambda x, theta, t: jnp.where(t < 2000, 0.9, 1.01) * x + theta, memory=100)
    rho = watch(controller, 1)
    np.testing.assert_allclose(rho[1999], 0.9, rtol=1e-6)
    np.testing.assert_allclose(rho[-1], 1.01, rtol=1e-3)
    crossed = 2000 + int(np.argmax(rho[2000:] > 1))
    assert 2000 < crossed < 2400
    forever = watch(loop(lambda x, theta, t: jnp.where(t < 2000, 0.9, 1.01) * x + theta), 1)
    assert forever[-1] < 1


def test_the_first_estimate_is_the_first_jacobian():
    rho = watch(loop(lambda x, theta, t: 0.7 * x + theta, memory=1000), 1, steps=3)
    np.testing.assert_allclose(rho, 0.7, rtol=1e-12)


@pytest.mark.parametrize("broken", [0.0, np.inf, np.nan])
def test_one_step_that_forgets_or_explodes_does_not_blind_it(broken):
    """It counts as a machine's precision, and the direction starts anew: never a NaN."""
    memory = jnp.asarray(50.0)
    factors = jnp.full(2000, 0.9).at[3].set(broken)

    def step(state, factor):
        return _contraction.update(memory, state, factor * state.direction)

    _, rho = jax.lax.scan(step, _contraction.init(memory, jnp.zeros(2)), factors)
    assert np.all(np.isfinite(rho))
    assert (rho[3] > rho[2]) == (broken != 0)
    np.testing.assert_allclose(rho[-1], 0.9, rtol=1e-6)


def test_it_is_off_unless_asked_for():
    controller = st.Controller(loop(lambda x, theta, t: x).system, st.MGAPS(1e-3), st.Frozen())
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((5, 1)), w=jnp.zeros((5, 1)))
    run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
    with pytest.raises(AttributeError, match="contraction was not recorded: this tuner does not compute it"):
        run.contraction  # noqa: B018


@pytest.mark.parametrize("bad", [0.5, -1, np.nan, "many", True])
def test_a_bad_memory_is_refused(bad, as_a_user):
    with pytest.raises(ValueError, match="contraction_memory: expected"):
        st.MGAPS(1e-3, contraction_memory=bad)


def test_it_does_not_change_the_gradient():
    key = jax.random.key(0)
    A = 0.3 * jax.random.normal(key, (3, 3))
    make = lambda memory: loop(lambda x, theta, t: jnp.tanh(A @ x) + theta * jnp.cos(x), memory=memory)
    scenario = st.Scenario(jnp.ones(3), a_star=jnp.zeros((50, 1)), w=jnp.ones((50, 3)))
    with_it, without = (
        st.simulate(make(memory), scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1)) for memory in (10.0, None)
    )
    np.testing.assert_allclose(with_it.y, without.y, rtol=1e-13)
    np.testing.assert_allclose(with_it.gradient, without.gradient, rtol=1e-13)


@pytest.mark.bits
def test_chunks_and_strides():
    """Of the estimate too, chunks are bit for bit what one go gives."""
    controller = loop(lambda x, theta, t: 0.9 * jnp.sin(x) + 0.1 * jnp.cos(x[::-1]) + theta, memory=20)
    scenario = st.Scenario(jnp.ones(2), a_star=jnp.zeros((40, 1)), w=jnp.ones((40, 2)))
    start = dict(theta=jnp.zeros(1), a_hat=jnp.zeros(1))
    whole = st.simulate(controller, scenario, **start)
    first = st.simulate(controller, scenario[:17], **start)
    second = st.simulate(controller, scenario[17:], resume=first.final)
    np.testing.assert_array_equal(np.concatenate([first.contraction, second.contraction]), whole.contraction)
    strided = st.simulate(controller, scenario, **start, stride=7, record=("contraction",))
    np.testing.assert_allclose(strided.contraction, whole.contraction[::7], rtol=1e-12)
