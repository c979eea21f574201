"""Projections in the norm of a metric, against SciPy and against the conditions of optimality."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import selftune as st


class Own(st.AbstractConstraint):
    """A set as a user writes one: the two methods that are asked for, and no more."""

    inside: st.AbstractConstraint

    def project(self, v):
        return self.inside.project(v)

    def contains(self, v):
        return self.inside.contains(v)


def product(p):
    half = p // 2
    return lambda first, second: (
        st.Product({"a": first, "b": second}),
        lambda flat: {"a": flat[..., :half], "b": flat[..., half:]},
    )


def flat_parts(tree):
    return np.concatenate([tree["a"], tree["b"]], axis=-1)


def same(array):
    return array


def sets(p):
    """Each set, how its parameter is made of a flat one, and back."""
    rng = np.random.default_rng(p)
    low = -rng.uniform(0.1, 2.0, p)
    high = np.where(np.arange(p) % 3 == 0, np.inf, low + rng.uniform(0.0, 2.0, p))
    high[1] = low[1]  # a number that is pinned
    parts = product(p)
    made = {
        "unconstrained": st.Unconstrained(),
        "box": st.Box(-1.0, 1.0),
        "box by element": st.Box(low, high),
        "ball": st.Ball(1.5),
        "ball off centre": st.Ball(0.5, center=rng.normal(size=p)),
        "simplex": st.Simplex(2.0),
        "own": Own(st.Ball(1.0)),
    }
    return {name: (one, same, same) for name, one in made.items()} | {
        "box and simplex": (*parts(st.Box(-1.0, 0.5), st.Simplex()), flat_parts),
        "simplex and whole": (*parts(st.Simplex(), st.Unconstrained()), flat_parts),
        "ball and simplex": (*parts(st.Ball(1.0), st.Simplex()), flat_parts),
    }


NAMES = list(sets(3))
ROWS = 200


@cache
def compiled(name, p, own=False):
    """`project_in_metric` of a set for ROWS points and as many metrics, all flat."""
    constraint, tree, flat = sets(p)[name]
    constraint = Own(constraint) if own else constraint
    run = jax.jit(jax.vmap(lambda v, P: constraint.project_in_metric(tree(v), P)))
    return lambda v, P: flat(run(jnp.asarray(v), jnp.asarray(P)))


def metrics(rng, count, p, condition):
    """Random P with eigenvalues spread over `condition`, and the covariances of badly excited least squares."""
    bases = np.linalg.qr(rng.normal(size=(count, p, p)))[0]
    values = condition ** -rng.uniform(0, 1, (count, p))
    return np.einsum("nij,nj,nkj->nik", bases, values, bases)


def far_points(rng, count, p):
    return rng.normal(size=(count, p)) * 10 ** rng.uniform(-1, 1.5, (count, 1))


def optimality(v, P, x, members):
    """The largest ⟨P⁻¹(v - x), z - x⟩ over members z, per length of both: above zero where x is not the nearest."""
    apart = np.linalg.solve(P, (v - x)[..., None])[..., 0]
    ways = members[None] - x[:, None]
    # A rounding of x by 1e-16 is multiplied by the other factor's length: lengths below one count as one.
    lengths = np.maximum(1, np.linalg.norm(apart, axis=1))[:, None] * np.maximum(1, np.linalg.norm(ways, axis=2))
    return np.max(np.einsum("nzi,ni->nz", ways, apart) / lengths)


@pytest.mark.parametrize(("name", "p"), [(name, 3) for name in NAMES] + [("box", 2), ("simplex", 7), ("ball", 7)])
def test_nearest(name, p):
    """In the set, and no member of the set in a nearer direction: what makes it the nearest."""
    constraint, tree, flat = sets(p)[name]
    rng = np.random.default_rng(1)
    v, P = far_points(rng, ROWS, p), metrics(rng, ROWS, p, 1e3)
    x = compiled(name, p)(v, P)
    assert bool(jax.vmap(lambda x: constraint.contains(tree(x)))(x).all())
    members = flat(jax.jit(jax.vmap(lambda z: constraint.project(tree(z))))(3 * rng.normal(size=(1000, p))))
    assert optimality(v, P, np.asarray(x), np.asarray(members)) < 1e-11


@pytest.mark.parametrize("condition", [1e2, 1e6])
def test_box_against_scipy(condition):
    """Bounded least squares by SciPy's active-set method. A rounding of 1e-16 may grow by the condition."""
    rng = np.random.default_rng(2)
    for p in (2, 3, 8, 22):
        low, high = -rng.uniform(0, 1, p), rng.uniform(0, 1, p)
        v, P = far_points(rng, 60, p), metrics(rng, 60, p, condition)
        got = jax.jit(jax.vmap(st.Box(low, high).project_in_metric))(v, P)
        for i in range(60):
            whiten = np.linalg.inv(np.linalg.cholesky(P[i]))
            known = scipy.optimize.lsq_linear(whiten, whiten @ v[i], (low, high), method="bvls", tol=1e-14)
            np.testing.assert_allclose(got[i], known.x, atol=1e-13 * condition)


SMOOTH = {
    "ball": ({"type": "ineq", "fun": lambda x: 1.0 - x @ x, "jac": lambda x: -2 * x}, None),
    "simplex": ({"type": "eq", "fun": lambda x: np.sum(x) - 2.0, "jac": np.ones_like}, (0, None)),
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("own", [False, True])
def test_ball_and_simplex_against_scipy(name, own):
    """SciPy's sequential quadratic programming, whose own accuracy is about 1e-7."""
    constraint = {"ball": st.Ball(1.0), "simplex": st.Simplex(2.0)}[name]
    condition, bounds = SMOOTH[name]
    rng = np.random.default_rng(3)
    v, P = far_points(rng, 20, 4), metrics(rng, 20, 4, 30.0)
    got = jax.jit(jax.vmap((Own(constraint) if own else constraint).project_in_metric))(v, P)
    for i in range(20):
        M = np.linalg.inv(P[i])
        M = M / np.trace(M)
        known = scipy.optimize.minimize(
            lambda x, M=M, i=i: (x - v[i]) @ M @ (x - v[i]),
            np.full(4, 0.5),
            jac=lambda x, M=M, i=i: 2 * M @ (x - v[i]),
            method="SLSQP",
            constraints=[condition],
            bounds=bounds and [bounds] * 4,
            options={"ftol": 1e-15, "maxiter": 500},
        )
        np.testing.assert_allclose(got[i], known.x, atol=2e-6)


@pytest.mark.parametrize(("name", "p"), [("box by element", 3), ("box", 7), ("box and simplex", 7), ("ball", 7)])
def test_two_methods_agree_on_badly_conditioned_metrics(name, p):
    """Active sets and the secular equation against Newton's method for any set, at a condition of 1e6.

    Newton's method, the one without a guarantee, may miss one in twenty; where the two differ, its point is farther.
    """
    rng = np.random.default_rng(4)
    v, P = far_points(rng, ROWS, p), metrics(rng, ROWS, p, 1e6)
    exact, newton = compiled(name, p)(v, P), compiled(name, p, own=True)(v, P)
    distance = lambda x: np.einsum("ni,nij,nj->n", x - v, np.linalg.inv(P), x - v)
    apart = np.max(np.abs(exact - newton), axis=1)
    assert np.mean(apart > 1e-7) <= 0.05
    assert np.all(distance(exact) <= distance(newton) * (1 + 1e-6) + 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_multiple_of_the_identity_is_the_euclidean_projection(name):
    constraint, tree, flat = sets(3)[name]
    v = far_points(np.random.default_rng(5), ROWS, 3)
    expected = flat(jax.jit(jax.vmap(lambda v: constraint.project(tree(v))))(v))
    got = compiled(name, 3)(v, np.broadcast_to(0.5 * np.eye(3), (ROWS, 3, 3)))
    np.testing.assert_allclose(got, expected, atol=1e-12)
    one = flat(jax.jit(jax.vmap(lambda v: constraint.project_in_metric(tree(v), 2.0)))(v))
    np.testing.assert_array_equal(one, expected)


def test_a_diagonal_metric_leaves_the_box_projection_as_it_is():
    v = far_points(np.random.default_rng(6), 50, 3)
    box, diagonal = st.Box([-1.0, -0.5, -jnp.inf], 1.0), jnp.array([1.0, 1e-3, 7.0])
    expected = jax.vmap(box.project)(v)
    np.testing.assert_array_equal(jax.vmap(lambda v: box.project_in_metric(v, diagonal))(v), expected)
    np.testing.assert_array_equal(jax.vmap(lambda v: box.project_in_metric(v, jnp.diag(diagonal)))(v), expected)


@pytest.mark.parametrize("name", ["ball", "box and simplex", "ball and simplex"])
def test_a_diagonal_is_a_matrix(name):
    """Given as p numbers: the same projection, by parts where there are parts."""
    v = far_points(np.random.default_rng(7), ROWS, 3)
    diagonal = np.broadcast_to([1.0, 0.1, 3.0], (ROWS, 3))
    matrix = np.einsum("ni,ij->nij", diagonal, np.eye(3))
    np.testing.assert_allclose(compiled(name, 3)(v, diagonal), compiled(name, 3)(v, matrix), atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_points_inside_stay_and_numbers_that_are_not_finite_become_nan(name):
    constraint, tree, flat = sets(3)[name]
    rng = np.random.default_rng(8)
    P = metrics(rng, ROWS, 3, 1e3)
    inside = flat(jax.jit(jax.vmap(lambda z: constraint.project(tree(z))))(rng.normal(size=(ROWS, 3))))
    np.testing.assert_allclose(compiled(name, 3)(inside, P), inside, atol=1e-12)
    bad = np.tile(np.array([[0.1, bad, 0.3] for bad in (np.nan, np.inf, -np.inf, np.nan)]), (ROWS // 4, 1))
    if name != "unconstrained":
        assert np.isnan(compiled(name, 3)(bad, P)[:, 1]).all()


@pytest.mark.parametrize("name", NAMES)
def test_float32(name):
    """The dtype is kept, the point is in the set, and a metric that is singular in float32 makes no NaN."""
    constraint, tree, _ = sets(3)[name]
    rng = np.random.default_rng(10)
    P = np.concatenate([metrics(rng, ROWS // 2, 3, condition) for condition in (1e2, 1e12)])
    x = compiled(name, 3)(far_points(rng, ROWS, 3).astype(np.float32), P.astype(np.float32))
    assert x.dtype == np.float32
    assert bool(jax.vmap(lambda x: constraint.contains(tree(x)))(x).all())


@pytest.mark.parametrize("name", ["box", "box by element", "ball off centre", "simplex", "simplex and whole", "own"])
def test_derivative(name):
    """In v and in P, forward and in reverse, against central differences."""
    constraint, tree, _ = sets(4)[name]
    rng = np.random.default_rng(11)

    def value(v, P):
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(constraint.project_in_metric(tree(v), P))])

    forward, reverse = jax.jit(jax.jacfwd(value, argnums=(0, 1))), jax.jit(jax.jacrev(value, argnums=(0, 1)))
    value = jax.jit(value)
    for v, P in zip(np.concatenate([far_points(rng, 6, 4), np.zeros((1, 4))]), metrics(rng, 7, 4, 10.0), strict=True):
        if not np.any(v):
            assert all(np.all(np.isfinite(J)) for J in reverse(v, P))
            continue
        for J, K in zip(forward(v, P), reverse(v, P), strict=True):
            np.testing.assert_allclose(J, K, atol=1e-9)
        dv, dP = rng.normal(size=4), metrics(rng, 1, 4, 10.0)[0]
        step = 1e-6
        difference = (value(v + step * dv, P + step * dP) - value(v - step * dv, P - step * dP)) / (2 * step)
        along = forward(v, P)[0] @ dv + np.tensordot(forward(v, P)[1], dP, 2)
        np.testing.assert_allclose(along, difference, atol=1e-5 * (1 + np.abs(v).max()))


def test_one_compilation_for_new_numbers():
    traces = []

    @eqx.filter_jit
    def run(constraint, v, P):
        traces.append(0)
        return constraint.project_in_metric(v, P)

    for bound in (1.0, 2.0):
        run(st.Box(-bound, bound), jnp.ones(3) * 3, jnp.eye(3) + 0.1)
    assert len(traces) == 1


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("P", "message"),
    [
        (np.ones(2), "inverse_metric: expected one entry for each of 3 numbers"),
        (np.ones((3, 2)), "inverse_metric: expected a number, a diagonal of shape"),
        (np.ones((3, 3, 3)), "inverse_metric: expected a number, a diagonal of shape"),
        ("none", "inverse_metric: expected real numbers"),
    ],
)
def test_refused(P, message):
    with pytest.raises(ValueError, match=message):
        st.Box(0.0, 1.0).project_in_metric(jnp.zeros(3), P)
