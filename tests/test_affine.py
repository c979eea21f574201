"""`is_affine` never says yes to a residual that is not affine in a; and says yes to those that users write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.problem.affine import is_affine
from selftune.robots import arm, car, quadrotor

pytestmark = pytest.mark.versions

X = jnp.array([0.4, -0.7])
A = jnp.array([0.1, -0.2, 0.3])
WEIGHTS = np.arange(6.0).reshape(2, 3)


def system(residual):
    return st.System(
        dynamics=lambda x, u, f, t: x,
        residual=residual,
        policy=lambda x, theta, f, t: f,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )


def loop(x, a, t):
    return jax.lax.scan(lambda total, row: (0.5 * total + row * a[:2], None), jnp.zeros(2), jnp.ones((4, 1)))[0]


def solve(x, a, t):
    L = jnp.array([[2.0, 0.0], [0.5, 1.0]]) + jnp.diag(x**2)
    return jax.lax.linalg.triangular_solve(L, a[:2, None], left_side=True, lower=True)[:, 0]


AFFINE = {
    "features": lambda x, a, t: jnp.stack([a[0] * jnp.sin(x[0]) + a[1], a[2] * x[1] ** 3]),
    "matrix": lambda x, a, t: (WEIGHTS * jnp.exp(x)[:, None]) @ a,
    "einsum": lambda x, a, t: jnp.einsum("ij,j->i", WEIGHTS, a) - x,
    "unpacked": lambda x, a, t: (lambda p, q, r: jnp.array([p * x[0] - q, r / (1 + x[1] ** 2)]))(*a),
    "constant": lambda x, a, t: jnp.sin(x),
    "branch on x": lambda x, a, t: jnp.where(x > 0, a[0] * x, a[1] - a[2]),
    "cond on x": lambda x, a, t: jax.lax.cond(x[0] > 0, lambda a: a[:2] * 2, lambda a: a[1:] + 1, a),
    "jit": lambda x, a, t: jax.jit(lambda a: a[:2] * x)(a),
    "checkpoint": lambda x, a, t: jax.checkpoint(lambda a: a[:2] * jnp.sin(x))(a),
    "index by t": lambda x, a, t: a[t] * x,
    "scatter": lambda x, a, t: jnp.zeros(2).at[0].add(a[0]) + jnp.concatenate([a[1:2], jnp.cumsum(a)[-1:]]),
    "scan": loop,
    "triangular solve": solve,
    "solve": lambda x, a, t: jnp.linalg.solve(jnp.array([[2.0, 0.3], [0.5, 1.0]]) + jnp.diag(x**2), a[:2]),
    "polyval": lambda x, a, t: jnp.polyval(a, x),
    "set": lambda x, a, t: x.at[0].set(a[0]),
    "interpolated table": lambda x, a, t: jnp.interp(x, jnp.array([-1.0, 0.0, 1.0]), a),
    "convolution": lambda x, a, t: jnp.convolve(a, x)[:2],
    "tile": lambda x, a, t: jnp.tile(a, 2)[:2] * x,
    "derivative in x": lambda x, a, t: jax.grad(lambda x: jnp.sum(a[:2] * jnp.sin(x)))(x),
}
NOT_AFFINE = {
    "product": lambda x, a, t: a[:2] * a[1],
    "square": lambda x, a, t: a[:2] ** 2,
    "sine": lambda x, a, t: jnp.sin(a[0] * x),
    "divided": lambda x, a, t: x / (2 + a[:2]),
    "clip": lambda x, a, t: jnp.clip(a[:2], -1.0, 1.0),
    "absolute": lambda x, a, t: jnp.abs(a[:2]) * x,
    "rounded": lambda x, a, t: a[:2] + jnp.floor(a[1:]),
    "through integers": lambda x, a, t: a[:2] + a[1:].astype(jnp.int32).astype(a.dtype),
    "branch on a": lambda x, a, t: jnp.where(a[0] > 0, a[:2], a[1:]),
    "cond on a": lambda x, a, t: jax.lax.cond(a[0] > 0, lambda: x, lambda: 2 * x),
    "jit": lambda x, a, t: jax.jit(jnp.tanh)(a[:2]),
    "scan": lambda x, a, t: jax.lax.scan(lambda z, row: (z * a[:2], None), jnp.ones(2), jnp.ones(3))[0],
    "late in a scan": lambda x, a, t: jax.lax.scan(
        lambda c, _: ((a[0] * c[1], c[0]), None), (jnp.ones(2), a[:2]), length=3
    )[0][1],
    "while": lambda x, a, t: jax.lax.fori_loop(0, 3, lambda i, z: z * a[0], x),
    "max": lambda x, a, t: jnp.maximum(a[:2], x),
    "stop_gradient": lambda x, a, t: jax.lax.stop_gradient(a[:2]) * x,
    "own derivative": lambda x, a, t: _doubled(a[:2]),
    "einsum": lambda x, a, t: jnp.einsum("i,j,j->i", x, a, a),
    "polyval": lambda x, a, t: jnp.polyval(x, a[:2]),
    "solve": lambda x, a, t: jnp.linalg.solve(jnp.eye(2) + a[0], x),
    "applied at an index": lambda x, a, t: a.at[0].apply(jnp.sin)[:2],
    "index by a": lambda x, a, t: x[(a[0] > 0).astype(jnp.int32)] * x,
    "convolution": lambda x, a, t: jnp.convolve(a, a)[:2],
    "solve that is not linear": lambda x, a, t: jax.lax.custom_linear_solve(lambda v: v, a[:2], lambda _, b: b**2),
}


@jax.custom_jvp
def _doubled(v):
    return 2 * v


@_doubled.defjvp
def _(primals, tangents):
    return _doubled(*primals), 5 * tangents[0]


@pytest.mark.parametrize("name", AFFINE)
def test_affine(name):
    assert is_affine(system(AFFINE[name]), X, A, 0)


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_not_affine(name):
    assert not is_affine(system(NOT_AFFINE[name]), X, A, 0)


@pytest.mark.parametrize("name", AFFINE)
def test_the_examples_are_affine_indeed(name):
    """The difference quotient over a long distance equals the derivative."""
    f = lambda a: AFFINE[name](X, a, 0)
    change = jnp.array([3.0, -5.0, 7.0])
    slope = jax.jvp(f, (A,), (change,))[1]
    np.testing.assert_allclose(f(A + change) - f(A), slope, atol=1e-13)


def test_trees_contexts_and_shapes_only():
    residual = lambda x, a, t: a["slope"] * jnp.sin(x + t["reference"]) + a["level"]
    a = {"slope": jnp.ones(1), "level": jnp.zeros(2)}
    t = {"reference": jax.ShapeDtypeStruct((2,), jnp.float64)}
    assert is_affine(system(residual), X, a, t)
    assert not is_affine(system(lambda x, a, t: residual(x, a, t) * a["level"]), X, a, t)
    # As inside of `jit`, where x and a have no values.
    seen = []
    jax.jit(lambda x, a: seen.append(is_affine(system(residual), x, a, {"reference": x})))(X, a)
    assert seen == [True]


@pytest.mark.parametrize("make", [arm.make, quadrotor.make, car.make])
def test_the_robots_residuals_are_affine(make):
    robot = make()
    x = robot.make_scenario(1, jax.random.key(0)).x0
    assert is_affine(robot.system, x, jnp.asarray(robot.a_hat), 0)
