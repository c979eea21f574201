"""Learning rates in all their forms, and θ of any structure."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selftune as st
from tests.problems import planar_system, random_scenario

THETA = jnp.array([1.0, 1.0, 0.2, 0.1])
SCENARIO = random_scenario(jax.random.key(0), 40, 2, 3, 2)


def thetas(tuner, system=None, theta=THETA):
    controller = st.Controller(system or planar_system(), tuner, st.Known())
    return st.simulate(controller, SCENARIO, theta=theta)


@pytest.mark.parametrize(
    "make",
    [
        lambda rate: st.MGAPS(rate),
        lambda rate: st.GAPS(buffer=3, learning_rate=rate),
        lambda rate: st.DiffTune(episode=4, learning_rate=rate),
    ],
)
def test_a_number_is_sgd(make):
    expected = thetas(make(0.01)).theta
    np.testing.assert_array_equal(thetas(make(optax.sgd(0.01))).theta, expected)
    np.testing.assert_allclose(thetas(make(optax.constant_schedule(0.01))).theta, expected, rtol=1e-15)


def test_schedule():
    def schedule(count):
        return 0.1 / (1.0 + count)

    run = thetas(st.MGAPS(schedule))
    steps = -np.diff(run.theta, axis=0) / np.asarray(run.gradient)[:-1]
    expected = 0.1 / (1.0 + np.arange(39))
    # θ is of order 1 and its steps of order 1e-3, so that their ratio is good to about 1e-12.
    np.testing.assert_allclose(steps, np.broadcast_to(expected[:, None], steps.shape), rtol=1e-9)


def test_adam_follows_optax():
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.03))
    run = thetas(st.MGAPS(optimizer))
    theta, state = THETA, optimizer.init(THETA)
    for t in range(40):
        np.testing.assert_allclose(run.theta[t], theta, rtol=1e-12)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(run.gradient[t], state, theta)
            theta = optax.apply_updates(theta, updates)


def test_theta_and_a_may_be_pytrees():
    """The same problem with θ as a dictionary: the same numbers."""
    flat = planar_system()

    def join(theta):
        return jnp.concatenate([theta["linear"], theta["tanh"]["cross"]])

    nested = st.MatchedSystem(
        dynamics=flat.phi,
        residual=lambda x, a, t: flat.residual(x, jnp.stack(a), t),
        actuation=lambda x, theta, t: flat.actuation(x, join(theta), t),
        cost=lambda x, u, theta, t: flat.cost(x, u, join(theta), t),
    )
    estimator = st.GradientEstimator(0.01, preconditioner=jnp.array([1.0, 2.0, 3.0]))
    a = jnp.array([0.1, 0.2, 0.3])
    expected = st.simulate(
        st.Controller(flat, st.MGAPS(0.01, constraint=st.Box(0.0, 1.05)), estimator), SCENARIO, theta=THETA, a_hat=a
    )
    parts = st.Product({"linear": st.Box(0.0, 1.05), "tanh": {"cross": st.Box(0.0, 1.05)}})
    got = st.simulate(
        st.Controller(nested, st.MGAPS(0.01, constraint=parts), estimator),
        st.Scenario(SCENARIO.x0, tuple(SCENARIO.a_star.T), SCENARIO.w, SCENARIO.v),
        theta={"linear": THETA[:2], "tanh": {"cross": THETA[2:]}},
        a_hat=tuple(a),
    )
    np.testing.assert_allclose(jax.vmap(join)(got.theta), expected.theta, rtol=1e-13)
    np.testing.assert_allclose(jnp.stack(got.a_hat, axis=1), expected.a_hat, rtol=1e-13)
    np.testing.assert_allclose(got.gradient, expected.gradient, rtol=1e-12, atol=1e-14)


def test_fixed_does_not_tune():
    run = thetas(st.Fixed())
    np.testing.assert_array_equal(run.theta, jnp.broadcast_to(THETA, (40, 4)))
