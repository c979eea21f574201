"""Estimators with a constraint: on data without noise the model's error vanishes, in whatever metric they step."""

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.estimators.test_updates import linear_system


class Euclidean(st.AbstractConstraint):
    """The set, projected onto as the paper writes it, whatever the metric."""

    inside: st.AbstractConstraint

    def project(self, v):
        return self.inside.project(v)

    def contains(self, v):
        return self.inside.contains(v)

    def project_in_metric(self, v, inverse_metric, *, exact=True):
        return self.inside.project(v)


def learn(estimator, features, truth, start):
    """Features (T, k, p) of a linear residual, one by one: the errors (T, k), the estimates and the covariances."""
    system = linear_system(truth.size, features.shape[1])

    def step(carry, row):
        a, state = carry
        x = row.ravel()
        a, state, info = estimator.update(system, x, system.residual(x, truth, 0), a, 0, state)
        return (a, state), (info.innovation, a, getattr(state, "covariance", 0.0))

    first = estimator.init(system, features[0].ravel(), start)
    return jax.lax.scan(step, (start, first), features)[1]


CORRELATED = jnp.array([[1.0, -0.9], [-0.9, 1.0]])
SPREAD = jnp.array([0.02, 1.0])
STALLS = {
    "gradient, box": (lambda c: st.GradientEstimator(0.05, preconditioner=CORRELATED, constraint=c), st.Box(-1.0, 1.0)),
    "gradient, ball": (lambda c: st.GradientEstimator(0.05, preconditioner=SPREAD, constraint=c), st.Ball(2**0.5)),
    "rls, box": (lambda c: st.RLS(1.0, CORRELATED, constraint=c), st.Box(-1.0, 1.0)),
    "rls with forgetting, ball": (lambda c: st.RLS(0.99, 10 * CORRELATED, constraint=c), st.Ball(2**0.5)),
    "kalman, simplex": (lambda c: st.KalmanEstimator(1e-5, 0.1, covariance=SPREAD, constraint=c), st.Simplex(2.0)),
}


@pytest.mark.parametrize("name", STALLS)
def test_no_stall_where_the_euclidean_projection_stalls(name):
    """Residual a₀ + 0.1 a₁, a* = (1, 1) in the set, one feature for ever: with a Euclidean projection ε stays."""
    make, constraint = STALLS[name]
    truth, start = jnp.ones(2), constraint.project(jnp.zeros(2))
    start = jnp.array([0.0, 2.0]) if "simplex" in name else start
    features = jnp.broadcast_to(jnp.array([1.0, 0.1]), (20_000, 1, 2))
    run = eqx.filter_jit(lambda estimator: learn(estimator, features, truth, start)[0][:, 0])
    right, euclidean = run(make(constraint)), run(make(Euclidean(constraint)))
    assert float(jnp.abs(right[-1])) < 5e-3
    assert float(jnp.abs(euclidean[-1])) > 0.05
    np.testing.assert_allclose(euclidean[-1000:], euclidean[-1], rtol=0.05)  # for ever
    if name == "gradient, box":
        assert float(jnp.sum(euclidean**2)) == pytest.approx(806, abs=1)


SETS = {
    "box": st.Box(-1.0, 1.0),
    "ball": st.Ball(1.0),
    "simplex": st.Simplex(),
    "product": st.Product([st.Box(0.0, 1.0), st.Simplex()]),
    "ball and box": st.Product([st.Ball(1.0), st.Box(-0.5, 0.5)]),
}
ESTIMATORS = {
    "gradient": lambda P, rate, c: st.GradientEstimator(rate, preconditioner=P, constraint=c),
    "normalized": lambda P, rate, c: st.GradientEstimator(0.5, preconditioner=P, constraint=c, normalized=True),
    "rls": lambda P, rate, c: st.RLS(1.0, P, constraint=c),
    "rls with forgetting": lambda P, rate, c: st.RLS(0.98, P, constraint=c),
    "kalman": lambda P, rate, c: st.KalmanEstimator(1e-3, 0.5, covariance=2.0, constraint=c),
}


# Every estimator in a box; in the other sets, one whose metric is given and one whose metric is computed.
CASES = [("box", 4, name) for name in ESTIMATORS] + [("box", 9, name) for name in ("gradient", "rls", "kalman")]
CASES += [(within, 4, name) for within in SETS if within != "box" for name in ("gradient", "rls with forgetting")]


@pytest.mark.parametrize(
    ("within", "p", "name"), [pytest.param(*case, marks=() if case[1] == 4 else pytest.mark.slow) for case in CASES]
)
def test_error_vanishes(within, p, name):
    """Random features, metrics and a* of the set, at its edge as often as not; no noise.

    The distance to a* in the metric never grows, the squared errors have the sum that its decrease allows, and they
    tend to zero. With more than four numbers the projection is Hildreth's, cut off after a few turns.
    """
    constraint, k, steps = SETS[within], 2, 1500
    split = lambda a: [a[:2], a[2:]] if isinstance(constraint, st.Product) else a
    flat = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]

    class Flat(st.AbstractConstraint):
        """Of a flat a, which the linear system has."""

        def project(self, v):
            return flat(constraint.project(split(v)))

        def contains(self, v):
            return constraint.contains(split(v))

        def project_in_metric(self, v, inverse_metric, *, exact=True):
            return flat(constraint.project_in_metric(split(v), inverse_metric, exact=exact))

    @jax.jit
    @jax.vmap
    def run(key):
        kf, kp, kt, ks, kn = jax.random.split(key, 5)
        mix = jax.random.normal(kp, (p, p))
        P = 2.0 * jnp.eye(p) if name == "kalman" else mix @ mix.T / p + 0.2 * jnp.eye(p)
        # Some directions are seen less than others.
        seen = jax.random.orthogonal(kn, p) * jnp.geomspace(1, 0.4, p)
        features = jax.random.normal(kf, (steps, k, p)) @ seen.T
        truth = flat(constraint.project(split(2 * jax.random.normal(kt, (p,)))))
        start = flat(constraint.project(split(2 * jax.random.normal(ks, (p,)))))
        sizes = jnp.linalg.norm(jnp.einsum("tki,ij,tlj->tkl", features, P, features), 2, axis=(1, 2))
        c = jnp.max(sizes)
        rate = 0.5 / c
        errors, a, covariance = learn(ESTIMATORS[name](P, rate, Flat()), features, truth, start)
        covariance = jnp.broadcast_to(P, (steps, p, p)) if covariance.ndim == 1 else covariance
        off = jnp.concatenate([start[None], a]) - truth
        metrics = jnp.concatenate([P[None], covariance])
        distance = jnp.einsum("ti,ti->t", off, jnp.linalg.solve(metrics, off[..., None])[..., 0])
        traces = jnp.einsum("tki,ij,tkj->t", features, P, features)
        total = jnp.sum(errors**2 / (1 + traces)[:, None]) if name == "normalized" else jnp.sum(errors**2)
        noise = 0.5 if name == "kalman" else 1.0
        allowed = {"gradient": 1 / (4 * rate * 0.5), "normalized": 1.0}.get(name, noise + c) * distance[0]
        return distance, total / allowed, jnp.sum(errors**2, axis=1)

    distance, share, squares = run(jax.random.split(jax.random.key(0), 8))
    assert bool(jnp.all(distance[:, 1:] <= distance[:, :-1] * (1 + 1e-9) + 1e-12))
    assert float(jnp.max(share)) <= 1 + 1e-9
    # An error that stays would fail here, however small a share of the sum it is.
    assert bool(jnp.all(jnp.mean(squares[:, -100:], axis=1) < 1e-3 * jnp.max(squares, axis=1)))


def problem(constraint, split, estimator, p=3):
    frequency = jnp.arange(1.0, p + 1)
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.9 * x + 0.1 * v,
        residual=lambda x, a, t: jnp.sum(
            jnp.sin(frequency * (x + 0.1 * jnp.asarray(t, x.dtype))) * jax.flatten_util.ravel_pytree(a)[0]
        )[None],
        actuation=lambda x, theta, t: -theta * x + jnp.sin(0.3 * jnp.asarray(t, x.dtype)),
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    controller = st.Controller(system, st.MGAPS(1e-2, constraint=st.Box(0.0, 5.0)), estimator)
    steps = 60
    key = jax.random.key(0)
    a_star = jax.vmap(lambda z: constraint.project(split(z)))(2 * jax.random.normal(key, (steps, p)))
    w = 0.1 * jax.random.normal(key, (steps, 1))
    return (
        controller,
        st.Scenario(jnp.zeros(1), a_star, w, v=w),
        dict(theta=jnp.ones(1), a_hat=constraint.project(split(jnp.zeros(p)))),
    )


class Slab(st.AbstractConstraint):
    """A user's own: -1 <= sum of a <= 1."""

    def project(self, v):
        return v - (jnp.sum(v) - jnp.clip(jnp.sum(v), -1.0, 1.0)) / v.size

    def contains(self, v):
        return jnp.abs(jnp.sum(v)) <= 1 + 1e-9


SLOW = [
    pytest.param(within, marks=pytest.mark.slow) for within in ("ball", "simplex", "product", "ball and box", "slab")
]


@pytest.mark.parametrize("within", ["box", *SLOW])
def test_native_engine(within):
    """The C program agrees with XLA for every set, with a matrix that is known and with one that is computed."""
    constraint = Slab() if within == "slab" else SETS[within]
    split = lambda a: [a[:2], a[2:]] if isinstance(constraint, st.Product) else a
    mix = np.random.default_rng(0).normal(size=(3, 3))
    estimators = [st.GradientEstimator(0.1, preconditioner=mix @ mix.T + 0.1 * np.eye(3), constraint=constraint)]
    if within in ("box", "simplex"):
        estimators += [st.RLS(0.95, 2.0, constraint=constraint), st.KalmanEstimator(0.1, 0.1, constraint=constraint)]
    for estimator in estimators:
        controller, scenario, start = problem(constraint, split, estimator)
        xla, native = (st.simulate(controller, scenario, engine=engine, **start) for engine in ("xla", "native"))
        for one, other in zip(jax.tree.leaves(xla.a_hat), jax.tree.leaves(native.a_hat), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-9)
        assert bool(jax.vmap(constraint.contains)(native.a_hat).all())
        inside = jax.vmap(lambda a: jnp.all(a == constraint.project(a)))(native.a_hat) if within == "box" else None
        assert inside is None or bool(inside.all())
