import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs
from hypothesis.extra import numpy as hnp

import selftune as st

CONSTRAINTS = {
    "unconstrained": st.Unconstrained(),
    "box": st.Box(-1.0, 2.0),
    "box by element": st.Box([-1.0, 0.0, -3.0], [1.0, 0.0, jnp.inf]),
    "ball": st.Ball(1.5),
    "ball off centre": st.Ball(0.5, center=[1.0, -2.0, 30.0]),
    "simplex": st.Simplex(),
    "scaled simplex": st.Simplex(total=3.0),
}
each = pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
# Up to the square root of what float32 can hold, where a careless norm would overflow.
LARGEST = float(np.float32(1e25))
vectors = {
    np.float32: hnp.arrays(np.float32, 3, elements=hs.floats(-LARGEST, LARGEST, width=32)),
    np.float64: hnp.arrays(np.float64, 3, elements=hs.floats(-1e200, 1e200)),
}
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@each
@dtypes
@settings(max_examples=60, deadline=None)
@given(hdata=hs.data())
def test_projection(constraint, dtype, hdata):
    """In the set, idempotent, nonexpansive, and of the dtype that came."""
    v, w = (jnp.asarray(hdata.draw(vectors[dtype])) for _ in range(2))
    pv, pw = constraint.project(v), constraint.project(w)
    assert pv.dtype == v.dtype
    assert pv.shape == v.shape
    assert bool(constraint.contains(pv))
    scale = float(jnp.max(jnp.abs(pv))) + 1.0
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(constraint.project(pv), pv, rtol=8 * eps, atol=8 * eps * scale)
    apart = math.dist(v.tolist(), w.tolist())  # does not overflow
    # A simplex projection subtracts numbers of v's own size, so its rounding is of that size.
    size = float(jnp.maximum(jnp.max(jnp.abs(v)), jnp.max(jnp.abs(w)))) if isinstance(constraint, st.Simplex) else 0.0
    assert math.dist(pv.tolist(), pw.tolist()) <= apart * (1 + 8 * eps) + 32 * eps * (scale + size + 100)


@each
def test_a_point_inside_stays(constraint):
    inside = {"ball off centre": [1.1, -2.1, 30.1], "simplex": [0.2, 0.3, 0.5], "scaled simplex": [1.0, 1.5, 0.5]}
    name = next(name for name, value in CONSTRAINTS.items() if value is constraint)
    v = jnp.array(inside.get(name, [0.5, 0.0, -0.5]))
    assert bool(constraint.contains(v))
    np.testing.assert_allclose(constraint.project(v), v, rtol=1e-14)


@each
@pytest.mark.parametrize("where", [0, 1, 2])
def test_nan_never_projects_to_a_bound(constraint, where):
    v = jnp.array([0.1, 0.2, 0.3]).at[where].set(jnp.nan)
    projected = constraint.project(v)
    assert bool(jnp.isnan(projected[where]))
    assert not bool(constraint.contains(v))
    assert not bool(constraint.contains(projected))


@pytest.mark.parametrize("name", ["box", "box by element", "ball", "ball off centre", "simplex"])
@pytest.mark.parametrize("bad", [jnp.inf, -jnp.inf])
def test_an_overflow_never_projects_to_a_bound(name, bad):
    projected = CONSTRAINTS[name].project(jnp.array([0.1, bad, 0.3]))
    assert bool(jnp.isnan(projected[1]))


@each
def test_optimality(constraint):
    """⟨v − Π(v), z − Π(v)⟩ ≤ 0 for every z of the set: what makes it the nearest point."""
    keys = jax.random.split(jax.random.key(0), 2)
    outside = 5 * jax.random.normal(keys[0], (50, 3))
    members = jax.vmap(constraint.project)(10 * jax.random.normal(keys[1], (200, 3)))
    projected = jax.vmap(constraint.project)(outside)
    products = jnp.einsum("vi,vzi->vz", outside - projected, members[None] - projected[:, None])
    assert float(jnp.max(products)) < 1e-10


def test_pytrees():
    v = {"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}
    ball = st.Ball(1.0).project(v)
    np.testing.assert_allclose([ball["a"][0], ball["b"][0, 0]], [0.6, 0.8])
    simplex = st.Simplex().project(v)
    assert float(simplex["a"][0] + simplex["b"][0, 0]) == pytest.approx(1.0)
    box = st.Box({"a": 0.0, "b": 0.0}, {"a": 1.0, "b": [[2.0]]}).project(v)
    assert (float(box["a"][0]), float(box["b"][0, 0])) == (1.0, 2.0)
    product = st.Product({"a": st.Box(0.0, 1.0), "b": st.Unconstrained()})
    assert float(product.project(v)["b"][0, 0]) == 4.0
    assert not bool(product.contains(v))
    assert bool(product.contains(product.project(v)))


def test_under_vmap_over_bounds():
    tops = jnp.array([1.0, 2.0])
    np.testing.assert_array_equal(jax.vmap(lambda top: st.Box(0.0, top).project(jnp.array(5.0)))(tops), tops)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: st.Box(1.0, 0.0), "low: expected low <= high"),
        (lambda: st.Box(jnp.nan, 1.0), "low: expected no NaN"),
        (lambda: st.Box("none", 1.0), "low: expected real numbers, got 'none'"),
        (lambda: st.Box([0.0, 0.0], [1.0, 1.0, 1.0]), r"high: expected a shape that fits low's \(2,\), got \(3,\)"),
        (lambda: st.Box({"a": 0.0}, {"b": 1.0}), "high: expected the structure of low"),
        (
            lambda: st.Box([0.0, 0.0], 1.0).project(jnp.zeros(3)),
            r"low: expected a shape that fits \(3,\), got float64\[2\]",
        ),
        (lambda: st.Box({"a": 0.0}, 1.0).project(jnp.zeros(3)), "low: expected the structure of the parameter"),
        (lambda: st.Ball(0.0), "radius: expected a finite number > 0, got 0.0"),
        (lambda: st.Ball(-1.0), "radius"),
        (lambda: st.Ball(jnp.inf), "radius"),
        (lambda: st.Ball(jnp.nan), "radius: expected a finite number > 0, got nan"),
        (lambda: st.Ball([1.0, 2.0]), "radius"),
        (lambda: st.Ball(True), "radius"),
        (lambda: st.Ball(1.0, center={"a": 0.0}).project(jnp.zeros(3)), "center: expected the structure"),
        (lambda: st.Ball(1.0, center=jnp.zeros((3, 1))).project(jnp.zeros(3)), "center: expected a shape that fits"),
        (lambda: st.Simplex(total=0.0), "total"),
        (lambda: st.Product({"a": 3.0}), "parts: expected a pytree of constraints"),
        (lambda: st.Product({"a": st.Ball(1.0)}).project({"b": jnp.zeros(1)}), "parts: expected the structure"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


SIZES = {
    "box": 3 * math.sqrt(3),
    "ball": 3.0,
    "ball off centre": 1.0,
    "simplex": math.sqrt(2),
    "scaled simplex": 3 * math.sqrt(2),
}


@pytest.mark.parametrize("name", SIZES)
def test_diameter_and_samples(name):
    """Samples are in the set, are spread over it, and no two are farther apart than the diameter, which is attained."""
    constraint, like = CONSTRAINTS[name], jnp.zeros(3)
    size = float(constraint.diameter(like))
    assert size == pytest.approx(SIZES[name], rel=1e-12)
    points = jax.vmap(lambda key: constraint.sample(key, like))(jax.random.split(jax.random.key(0), 400))
    assert bool(jax.vmap(constraint.contains)(points).all())
    apart = jnp.linalg.norm(points[:, None] - points[None], axis=-1)
    assert 0.6 * size < float(jnp.max(apart)) <= size * (1 + 1e-12)
    # The farthest points of the set itself, from far away: corners, and both ends of every axis and diagonal.
    directions = jnp.array(np.stack(np.meshgrid(*[[-1.0, 0.0, 1.0]] * 3), axis=-1).reshape(-1, 3))
    edge = jax.vmap(constraint.project)(1e6 * directions)
    assert float(jnp.max(jnp.linalg.norm(edge[:, None] - edge[None], axis=-1))) == pytest.approx(size, rel=1e-6)


BOUNDS = {
    "box": (st.Box([-1.0, 0.0, -jnp.inf], 2.0), [-1.0, 0.0, -np.inf], [2.0, 2.0, 2.0]),
    "ball": (st.Ball(1.5), [-1.5] * 3, [1.5] * 3),
    "ball off centre": (st.Ball(0.5, jnp.array([1.0, 2.0, 3.0])), [0.5, 1.5, 2.5], [1.5, 2.5, 3.5]),
    "simplex": (st.Simplex(2.0), [0.0] * 3, [2.0] * 3),
    "whole space": (st.Unconstrained(), [-np.inf] * 3, [np.inf] * 3),
    "product": (st.Product([st.Box(0.0, 1.0), st.Ball(2.0)]), [0.0, -2.0, -2.0], [1.0, 2.0, 2.0]),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name):
    constraint, low, high = BOUNDS[name]
    like = [jnp.zeros(1, jnp.float32), jnp.zeros(2, jnp.float32)] if name == "product" else jnp.zeros(3, jnp.float32)
    got = constraint.bounds(like)
    np.testing.assert_allclose(got, [low, high])
    assert all(bound.dtype == jnp.float32 for bound in got)


def test_samples_of_parts():
    constraint = st.Product({"a": st.Box(0.0, 2.0), "b": st.Ball(1.0)})
    like = {"a": jnp.zeros(1, jnp.float32), "b": jnp.zeros((1, 2), jnp.float32)}
    point = constraint.sample(jax.random.key(0), like)
    assert bool(constraint.contains(point))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), point) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), like
    )
    assert float(constraint.diameter(like)) == pytest.approx(math.hypot(2, 2))


class Slab(st.AbstractConstraint):
    """A set as a user writes one, without diameter and sample."""

    def project(self, v):
        return v - (jnp.sum(v) - jnp.clip(jnp.sum(v), -1.0, 1.0)) / v.size

    def contains(self, v):
        return jnp.abs(jnp.sum(v)) <= 1 + 1e-9


@pytest.mark.parametrize(
    "constraint", [st.Unconstrained(), st.Box(0.0, jnp.inf), Slab(), st.Product([st.Box(0.0, 1.0), Slab()])]
)
def test_unbounded_sets_have_no_samples(constraint):
    like = [jnp.zeros(2), jnp.zeros(2)] if isinstance(constraint, st.Product) else jnp.zeros(2)
    assert float(constraint.diameter(like)) == math.inf
    with pytest.raises(ValueError, match="sample: expected a bounded set"):
        constraint.sample(jax.random.key(0), like)


class Diamond(st.AbstractConstraint):
    """|v₀| + |v₁| <= 1: a user's own bounded set, with all that the theory's functions ask for."""

    def project(self, v):
        turned = jnp.array([v[0] + v[1], v[0] - v[1]])  # a square, turned by 45°
        one, two = jnp.clip(turned, -1.0, 1.0)
        return jnp.array([one + two, one - two]) / 2

    def contains(self, v):
        return jnp.sum(jnp.abs(v)) <= 1 + 1e-12

    def diameter(self, like):
        return jnp.asarray(2.0, like.dtype)

    def sample(self, key, like):
        one, two = jax.random.uniform(key, (2,), like.dtype, -1.0, 1.0)
        return jnp.array([one + two, one - two]) / 2


def test_a_set_of_ones_own_in_the_theory():
    """f = a₀ x + 10 a₁: ∂f/∂x is at most 1 over the diamond, which only its corners attain."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.5 * x + 0.1 * v,
        residual=lambda x, a, t: a[0] * x + 10 * a[1],
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    scenario = st.Scenario(jnp.zeros(1), jnp.zeros((20, 2)), jnp.zeros((20, 1)))
    sets = st.Sets(x_radius=1.0, u_radius=9.0, theta=st.Box(0.5, 4.0), a=Diamond(), theta_step=0.1)
    found = st.sample_constants(
        system, scenario, sets, theta=jnp.ones(1), key=jax.random.key(0), starts=64, ascents=4, iterations=40
    )
    assert found.L_f_x == pytest.approx(1.0, rel=1e-3)
    unknown = st.Sets(x_radius=1.0, u_radius=9.0, theta=st.Box(0.5, 4.0), a=Slab(), theta_step=0.1)
    with pytest.raises(ValueError, match=r"sets\.a: expected a bounded set"):
        st.sample_constants(system, scenario, unknown, theta=jnp.ones(1), key=jax.random.key(0))


class Picky(st.AbstractConstraint):
    """A set of the user's own, whose `contains` fails for a reason of its own."""

    def project(self, v):
        return v

    def contains(self, v):
        raise ValueError("the table of limits is empty")


@pytest.mark.parametrize("constraint", [Picky(), st.Product({"k": Picky(), "b": Picky()})])
def test_the_error_of_a_set_of_ones_own_is_not_taken_for_a_wrong_shape(constraint):
    with pytest.raises(ValueError, match="the table of limits is empty") as error:
        st.projected_step.check_inside("theta", {"k": jnp.ones(2), "b": jnp.ones(())}, constraint)
    assert not isinstance(error.value, st.ArgumentError)


def test_a_pytree_under_jit():
    """Inside `jit` the values are not known: shapes are checked, and the numbers pass."""
    box = st.Product({"k": st.Box(0.0, 1.0), "b": st.Box([0.0, 0.0], [1.0, 1.0])})

    @jax.jit
    def checked(theta):
        st.projected_step.check_inside("theta", theta, box)
        return theta

    far = {"k": jnp.full(3, 9.0), "b": jnp.full(2, 9.0)}
    assert jax.tree.leaves(checked(far))[1].tolist() == [9.0, 9.0, 9.0]
    with pytest.raises(st.ArgumentError, match=r"theta: expected a value that fits its constraint, Product, got .*low"):
        checked({"k": jnp.ones(3), "b": jnp.ones(3)})
    with pytest.raises(
        st.ArgumentError, match=r"theta: expected a value that fits its .* parts: expected the structure"
    ):
        checked({"k": jnp.ones(3)})
