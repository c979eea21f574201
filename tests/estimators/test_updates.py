"""Each estimator's update against a closed form or a slow independent implementation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import planar_system

X = jnp.array([0.4, -0.7])
F_OBS = jnp.array([0.3, -0.2])
A = jnp.array([0.1, -0.2, 0.3])


def linear_system(p, k):
    """f(x, a) = Φ(x) a + offset with Φ read off the state: x is Φ, flattened."""
    return st.System(
        dynamics=lambda x, u, f, t: x,
        residual=lambda x, a, t: x.reshape(k, p) @ a + 0.3,
        policy=lambda x, theta, f, t: f,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )


def run(estimator, features, observations, a, *, state=None):
    """Feed a sequence; returns â and the state after it."""
    k = observations.shape[1]
    system = linear_system(a.size, k)

    def step(carry, data):
        a, state = carry
        a, state, info = estimator.update(system, data[0].ravel(), data[1], a, 0, state)
        return (a, state), info.innovation

    start = (a, estimator.init(system, features[0].ravel(), a) if state is None else state)
    (a, state), innovations = eqx.filter_jit(jax.lax.scan)(step, start, (features, observations))
    return a, state, innovations


def data(key, steps, k, p, truth, noise=0.1):
    kf, kn = jax.random.split(key)
    features = jax.random.normal(kf, (steps, k, p))
    return features, jnp.einsum("tkp,p->tk", features, truth) + 0.3 + noise * jax.random.normal(kn, (steps, k))


def loss(a):
    return jnp.sum((planar_system().residual(X, a, 0) - F_OBS) ** 2)


@pytest.mark.parametrize(
    "P", [jnp.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 3.0]]), jnp.array([1.0, 2.0, 3.0]), 2.5]
)
def test_gradient_step(P):
    box = st.Box(-0.25, 0.25)
    estimator = st.GradientEstimator(0.1, preconditioner=P, constraint=box)
    system = planar_system()
    a, _, info = estimator.update(system, X, F_OBS, A, 0, estimator.init(system, X, A))
    matrix = P if jnp.ndim(P) == 2 else jnp.diag(jnp.broadcast_to(P, (3,)))
    np.testing.assert_allclose(a, box.project(A - 0.1 * matrix @ jax.grad(loss)(A)), rtol=1e-13)
    np.testing.assert_allclose(info.innovation, F_OBS - system.residual(X, A, 0), rtol=1e-13)


def test_normalized_step():
    P = jnp.array([1.0, 2.0, 3.0])
    estimator = st.GradientEstimator(0.1, preconditioner=P, normalized=True)
    system = planar_system()
    a, _, _ = estimator.update(system, X, F_OBS, A, 0, estimator.init(system, X, A))
    J = jax.jacobian(lambda a: system.residual(X, a, 0))(A)
    expected = A - 0.1 * P * jax.grad(loss)(A) / (1 + jnp.trace(J @ jnp.diag(P) @ J.T))
    np.testing.assert_allclose(a, expected, rtol=1e-13)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_normalized_step_is_stable_for_features_of_any_size(scale):
    truth = jnp.array([0.5, -1.0, 2.0])
    features, _ = data(jax.random.key(0), 3000, 1, 3, truth, noise=0.0)
    features = scale * features
    observations = jnp.einsum("tkp,p->tk", features, truth) + 0.3
    a, _, _ = run(st.GradientEstimator(0.9, normalized=True), features, observations, jnp.zeros(3))
    assert float(jnp.linalg.norm(a)) <= float(jnp.linalg.norm(truth)) + 1e-9  # the error never grows
    if scale >= 1:
        np.testing.assert_allclose(a, truth, atol=1e-6)


@pytest.mark.parametrize("k", [1, 2])
def test_rls_without_forgetting_is_ridge_regression(k):
    truth, prior = jnp.array([0.5, -1.0, 2.0]), jnp.array([0.2, 0.0, 0.1])
    covariance = jnp.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.0], [0.0, 0.0, 4.0]])
    features, observations = data(jax.random.key(1), 60, k, 3, truth)
    a, state, _ = run(st.RLS(forgetting=1.0, covariance=covariance), features, observations, prior)
    Phi, y = features.reshape(-1, 3), observations.ravel() - 0.3
    information = jnp.linalg.inv(covariance) + Phi.T @ Phi
    np.testing.assert_allclose(state.covariance, jnp.linalg.inv(information), rtol=1e-10)
    np.testing.assert_allclose(a, prior + jnp.linalg.solve(information, Phi.T @ (y - Phi @ prior)), rtol=1e-11)


def test_rls_with_forgetting_follows_its_recursion():
    truth, forgetting = np.array([0.5, -1.0]), 0.9
    features, observations = data(jax.random.key(2), 40, 2, 2, truth)
    a, state, _ = run(st.RLS(forgetting=forgetting, covariance=3.0), features, observations, jnp.zeros(2))
    R0 = np.eye(2) / 3.0
    R, expected = R0.copy(), np.zeros(2)
    for Phi, y in zip(np.asarray(features), np.asarray(observations), strict=True):
        R = forgetting * R + (1 - forgetting) * R0 + Phi.T @ Phi
        expected = expected + np.linalg.inv(R) @ Phi.T @ (y - 0.3 - Phi @ expected)
    np.testing.assert_allclose(state.covariance, np.linalg.inv(R), rtol=1e-11)
    np.testing.assert_allclose(a, expected, rtol=1e-11)


def test_rls_forgets_and_ordinary_least_squares_does_not():
    before, after = jnp.array([1.0, -1.0]), jnp.array([-1.0, 1.0])
    f1, y1 = data(jax.random.key(3), 2000, 1, 2, before, noise=0.01)
    f2, y2 = data(jax.random.key(4), 500, 1, 2, after, noise=0.01)
    features, observations = jnp.concatenate([f1, f2]), jnp.concatenate([y1, y2])
    forgetful, _, _ = run(st.RLS(forgetting=0.98, covariance=10.0), features, observations, jnp.zeros(2))
    ordinary, _, _ = run(st.RLS(forgetting=1.0, covariance=10.0), features, observations, jnp.zeros(2))
    assert float(jnp.linalg.norm(forgetful - after)) < 0.05
    assert float(jnp.linalg.norm(ordinary - after)) > 1.0


def test_kalman_without_drift_is_bayesian_regression():
    """With a drift too small to matter, the posterior of linear regression with known noise."""
    truth, variance = jnp.array([0.5, -1.0, 2.0]), 0.04
    features, observations = data(jax.random.key(5), 50, 2, 3, truth, noise=variance**0.5)
    estimator = st.KalmanEstimator(process_noise=1e-16, observation_noise=variance, covariance=[1.0, 2.0, 3.0])
    a, state, _ = run(estimator, features, observations, jnp.zeros(3))
    Phi, y = features.reshape(-1, 3), observations.ravel() - 0.3
    posterior = jnp.linalg.inv(jnp.diag(1 / jnp.array([1.0, 2.0, 3.0])) + Phi.T @ Phi / variance)
    np.testing.assert_allclose(state.covariance, posterior, rtol=1e-8)
    np.testing.assert_allclose(a, posterior @ Phi.T @ y / variance, rtol=1e-8)


def test_kalman_covariance_is_the_errors():
    """Filtering data drawn from its own model, the mean squared error is what the covariance says."""
    Q, V, P0, steps, seeds = 1e-4, 0.25, 1.0, 300, 400
    alpha = np.sqrt(1 - Q / P0)

    def one(key):
        ka, kf, kq, kv = jax.random.split(key, 4)
        start = jax.random.normal(ka, (2,)) * P0**0.5
        kicks = jax.random.normal(kq, (steps, 2)) * Q**0.5
        # The model behind the saturating covariance: parameters that drift and are pulled back, slowly, to the prior.
        truth = jax.lax.scan(lambda a, kick: (alpha * a + kick, a), start, kicks)[1]
        features = jax.random.normal(kf, (steps, 1, 2))
        noise = jax.random.normal(kv, (steps, 1)) * V**0.5
        a, state, _ = run(
            st.KalmanEstimator(Q, V, covariance=P0),
            features,
            jnp.einsum("tkp,tp->tk", features, truth) + 0.3 + noise,
            jnp.zeros(2),
        )
        return jnp.sum((a - truth[-1]) ** 2), jnp.trace(state.covariance)

    squares, traces = jax.vmap(one)(jax.random.split(jax.random.key(6), seeds))
    # 400 draws of a 2-dof chi square: a standard error of 5 %. The filter keeps its mean, so it is slightly worse.
    assert float(jnp.mean(squares) / jnp.mean(traces)) == pytest.approx(1.0, abs=0.2)


ESTIMATORS = {
    "rls": st.RLS(forgetting=0.95, covariance=5.0),
    "kalman": st.KalmanEstimator(process_noise=1e-2, observation_noise=0.1, covariance=5.0),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("excitation", ["none", "one direction"])
def test_covariance_stays_bounded_when_excitation_vanishes(name, excitation):
    """10⁵ steps of features that are zero, or that show one direction only."""
    estimator, truth = ESTIMATORS[name], jnp.array([0.5, -1.0, 2.0])
    features, observations = data(jax.random.key(7), 200, 1, 3, truth, noise=0.01)
    learned, state, _ = run(estimator, features, observations, jnp.zeros(3))
    direction = jnp.array([0.0, 0.0, 0.0]) if excitation == "none" else jnp.array([1.0, 0.0, 0.0])
    quiet = jnp.broadcast_to(direction, (100_000, 1, 3))
    answers = jnp.broadcast_to(direction @ truth + 0.3, (100_000, 1))
    a, state, _ = run(estimator, quiet, answers, learned, state=state)
    eigenvalues = np.linalg.eigvalsh(state.covariance)
    assert eigenvalues.min() > 1e-6
    assert eigenvalues.max() <= 5.0 * (1 + 1e-6)
    if excitation == "none":
        np.testing.assert_allclose(eigenvalues, 5.0, rtol=1e-6)  # all the way back to the prior
    # What is not seen is not touched, but through what was learned of it together with what is seen.
    np.testing.assert_allclose(a[1:], learned[1:], atol=1e-12 if excitation == "none" else 0.02)
    a, _, _ = run(estimator, features, observations, a, state=state)
    np.testing.assert_allclose(a, truth, atol=0.05)  # and it learns again


SINGLE = {
    "rls, no forgetting": (lambda P0: st.RLS(1.0, P0)),
    "rls": (lambda P0: st.RLS(0.999, P0)),
    "rls, fast": (lambda P0: st.RLS(0.95, P0)),
    "kalman": (lambda P0: st.KalmanEstimator(1e-3, 1e-4, covariance=P0)),
}


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("P0", [100.0, 1e4, 1e6])
@pytest.mark.parametrize("features", ["constant", "nearly collinear", "rich"])
def test_float32_survives_large_priors_and_poor_features(name, P0, features):
    """In float32 a covariance that is carried itself, or its inverse, turns to NaN within a few steps of these."""
    single = jnp.float32
    noise = jax.random.normal(jax.random.key(9), (5000, 1, 3), single)
    rows = {"constant": 0.0, "nearly collinear": 1e-3, "rich": 1.0}[features] * noise + jnp.ones(3, single)
    truth = jnp.array([0.5, -1.0, 2.0], single)
    answers = jnp.einsum("tkp,p->tk", rows, truth) + single(0.3)
    a, state, innovations = run(SINGLE[name](P0), rows, answers, jnp.zeros(3, single))
    assert a.dtype == single
    assert bool(jnp.isfinite(a).all() & jnp.isfinite(state.root).all())
    eigenvalues = np.linalg.eigvalsh(np.asarray(state.covariance, np.float64))
    assert eigenvalues.max() <= P0 * 1.01
    # Where the prior has not swamped the arithmetic, it has learned what the features show.
    assert float(jnp.abs(innovations[-1]).max()) < 2e-3 * max(1.0, P0 / 1e4)


def test_the_constraint_does_not_lose_what_was_learned():
    """A truth inside the set is found about as fast with the set as without, though early estimates are outside."""
    truth = jnp.array([1.0, 1.0])
    first = jnp.array([[[1.0, 2.0]], [[1.0, 0.0]]])
    features = jnp.concatenate([first, jnp.tile(jnp.eye(2)[:, None, :], (20, 1, 1))])
    observations = jnp.einsum("tkp,p->tk", features, truth) + 0.3
    for make in (lambda c: st.RLS(1.0, 1e3, constraint=c), lambda c: st.KalmanEstimator(1e-9, 1e-3, constraint=c)):
        free, _, _ = run(make(st.Unconstrained()), features, observations, jnp.zeros(2))
        held, _, _ = run(make(st.Box(-1.0, 1.0)), features, observations, jnp.zeros(2))
        assert float(jnp.linalg.norm(held - truth)) < 2 * float(jnp.linalg.norm(free - truth))
        np.testing.assert_allclose(held, truth, atol=2e-3)


@pytest.mark.parametrize("name", ["gradient", "normalized", *ESTIMATORS])
def test_estimate_stays_in_its_constraint(name):
    box = st.Box(-0.3, 0.3)
    estimator = {
        "gradient": st.GradientEstimator(0.05, constraint=box),
        "normalized": st.GradientEstimator(0.5, normalized=True, constraint=box),
        "rls": st.RLS(0.95, 5.0, constraint=box),
        "kalman": st.KalmanEstimator(1e-2, 0.1, covariance=5.0, constraint=box),
    }[name]
    features, observations = data(jax.random.key(8), 100, 1, 3, jnp.array([0.5, -1.0, 2.0]))
    a, _, _ = run(estimator, features, observations, jnp.zeros(3))
    assert bool(box.contains(a))
    assert float(jnp.max(jnp.abs(a))) == 0.3  # the truth is outside, so the bound is where it ends


def test_frozen_and_known():
    system = planar_system()
    for estimator in (st.Frozen(), st.Known()):
        a, _, info = estimator.update(system, X, F_OBS, A, 0, estimator.init(system, X, A))
        np.testing.assert_array_equal(a, A)
        np.testing.assert_allclose(info.innovation, F_OBS - system.residual(X, A, 0))
