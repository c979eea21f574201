"""Small functions with loops, branches, rules of their own, random numbers and rotations."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from .cases import Case


@jax.custom_jvp
def _smooth_abs(x):
    return jnp.sqrt(x * x + 0.01)


@_smooth_abs.defjvp
def _smooth_abs_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return _smooth_abs(x), jnp.sin(x) * dx


@jax.custom_vjp
def _straight_through(x):
    return jnp.round(x)


_straight_through.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))


def _scan(x, us):
    def step(x, u):
        x = 0.9 * x + jnp.sin(u)
        return x, (x * u, jnp.sum(x))

    return lax.scan(step, x, us)


def _scan_reverse(x, us):
    return lax.scan(lambda x, u: (0.5 * x + u, x), x, us, reverse=True)


def _while(x):
    return lax.while_loop(lambda state: state[0] < 4, lambda state: (state[0] + 1, jnp.cos(state[1])), (0, x))[1]


def _switch(i, x):
    return lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * x], x)


def _cond(x):
    return lax.cond(x[0] > 0, lambda x: jnp.sum(x), lambda x: jnp.prod(x), x)


def _bisect(x):
    """A root of y³ + y = x, by a fixed number of Newton's steps."""
    return lax.fori_loop(0, 5, lambda _, y: y - (y**3 + y - x) / (3 * y**2 + 1), x / 2)


def _rk4(x, u):
    def field(x):
        return jnp.stack([x[1], jnp.sin(x[0]) - 0.1 * x[1] + u])

    k1 = field(x)
    k2 = field(x + 0.05 * k1)
    k3 = field(x + 0.05 * k2)
    k4 = field(x + 0.1 * k3)
    return x + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


CONTROL = [
    Case("cond", _cond, "f3"),
    Case("cond_of_bool", lambda b, x: lax.cond(b, jnp.sin, jnp.cos, x), "b f2"),
    Case("cond_of_tree", lambda b, x: lax.cond(b, lambda x: (x, x[0]), lambda x: (-x, x[1]), x), "b f2"),
    Case("switch", _switch, "i f2"),
    Case("cond_vmap", lambda x: jax.vmap(_cond)(x), "f2x3"),
    Case("switch_vmap", lambda i, x: jax.vmap(_switch)(i, x), "i2 f2x2"),
    Case("scan", _scan, "f2 f3x2", 64),
    Case("scan_reverse", _scan_reverse, "f f3"),
    Case("scan_no_input", lambda x: lax.scan(lambda x, _: (x * x, x), x, length=3), "f2"),
    Case("scan_of_nothing", lambda x: lax.scan(lambda x, u: (x + u, x), x, jnp.zeros((0, 2), x.dtype)), "f2"),
    Case("scan_vmap", lambda x, u: jax.vmap(_scan)(x, u), "f2x2 f2x3x2", derive=False),
    Case("scan_counts", lambda x: lax.scan(lambda c, u: ((c[0] + 1, c[1] + u), c[0]), (0, x[0]), x)[0][1], "f3"),
    Case("fori_loop", _bisect, "f2", 64, nasty=False),
    Case("fori_with_index", lambda x: lax.fori_loop(0, 3, lambda i, y: y.at[i].set(jnp.sin(y[i - 1])), x), "f3"),
    Case("map", lambda x: lax.map(lambda row: jnp.sum(row * row), x), "f2x3"),
    Case("associative_scan", lambda x: lax.associative_scan(jnp.add, x), "f4"),
    Case("custom_jvp", lambda x: _smooth_abs(x), "f3", nasty=False),
    Case("custom_vjp", lambda x: jax.vmap(jax.grad(_straight_through))(x), "f3", derive=False),
    Case("custom_vjp_value", lambda x: _straight_through(x), "f", derive=False),
    Case("custom_jvp_vmap", lambda x: jax.vmap(jax.grad(_smooth_abs))(x), "f3", 64),
    Case("checkpoint_name", lambda x: jnp.cos(checkpoint_name(jnp.sin(x), "kept")), "f3"),
    Case("checkpoint", jax.checkpoint(lambda x: jnp.sin(jnp.cos(x) * x)), "f3"),
    Case("nested_jit", jax.jit(lambda x: jax.jit(jnp.sin)(x) + jax.jit(lambda y: y * y)(x)), "f3"),
    Case("stop_gradient", lambda x: x * lax.stop_gradient(jnp.sin(x)), "f3"),
    Case("vmap_of_vmap", lambda x, y: jax.vmap(jax.vmap(jnp.arctan2, (None, 0)), (0, None))(x, y), "f2 f3"),
    Case("hessian", lambda x: jax.hessian(lambda x: jnp.sum(jnp.sin(x) * x[::-1] ** 2))(x), "f3", 64, derive=False),
    Case("gradient", jax.grad(lambda x: jnp.sum(jnp.sin(x)) ** 2), "f3", 64),
    Case(
        "vjp_of_jvp",
        lambda x: jax.grad(lambda x: jnp.sum(jax.jvp(jnp.tanh, (x,), (x,))[1]))(x),
        "f3",
        512,
        derive=False,
    ),
    Case("runge_kutta", _rk4, "f2 f", nasty=False),
]
# A loop with an end that is known takes no derivative in reverse, if it is written as a while.
CONTROL += [Case("while", _while, "f2", derive=False)]


def _uniform(i, x):
    return jax.random.uniform(jax.random.fold_in(jax.random.key(7), i), x.shape, x.dtype)


def _normal(i, x):
    return jax.random.normal(jax.random.fold_in(jax.random.key(7), i), x.shape, x.dtype)


def _split(i):
    one, other = jax.random.split(jax.random.fold_in(jax.random.key(3), i))
    return jax.random.bits(one, (2,)), jax.random.key_data(other), jax.random.bits(other, (), "uint64")


RANDOM = [
    Case("random_bits", lambda i: jax.random.bits(jax.random.fold_in(jax.random.key(0), i), (3,)), "i", derive=False),
    Case("random_split", _split, "i", derive=False),
    Case("random_uniform", _uniform, "i f3", 0, derive=False),
    Case("random_normal", _normal, "i f3", derive=False),
    Case(
        "random_signs",
        lambda i: jax.random.rademacher(jax.random.fold_in(jax.random.key(1), i), (3,)),
        "i",
        derive=False,
    ),
    Case("random_old_key", lambda i: jax.random.bits(jax.random.fold_in(jax.random.PRNGKey(0), i)), "i", derive=False),
]


def _hat(v):
    zero = jnp.zeros_like(v[0])
    return jnp.array([[zero, -v[2], v[1]], [v[2], zero, -v[0]], [-v[1], v[0], zero]])


def _exp(v):
    """The rotation by the vector v, with series where it is small."""
    square: jax.Array = v @ v
    small = square < 1e-6
    angle = jnp.sqrt(jnp.where(small, 1.0, square))
    a = jnp.where(small, 1 - square / 6, jnp.sin(angle) / angle)
    b = jnp.where(small, 0.5 - square / 24, (1 - jnp.cos(angle)) / angle**2)
    K = _hat(v)
    return jnp.eye(3, dtype=v.dtype) + a * K + b * K @ K


def _log(R):
    cosine = jnp.clip((jnp.trace(R) - 1) / 2, -1.0, 1.0)
    w = jnp.stack([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]]) / 2
    sine = jnp.sqrt(jnp.where(w @ w < 1e-12, 1.0, w @ w))
    return jnp.where(w @ w < 1e-12, 1.0, jnp.arctan2(sine, cosine) / sine) * w


def _multiply(p, q):
    return jnp.concatenate([(p[0] * q[0] - p[1:] @ q[1:])[None], p[0] * q[1:] + q[0] * p[1:] + jnp.cross(p[1:], q[1:])])


def _rotate(q, v):
    q = q / jnp.linalg.norm(q)
    return v + 2 * jnp.cross(q[1:], jnp.cross(q[1:], v) + q[0] * v)


ROTATIONS = [
    Case("rotation_exp", _exp, "f3", 64, nasty=False),
    Case("rotation_exp_small", lambda v: _exp(1e-4 * v), "f3", 64, nasty=False),
    Case("rotation_log", lambda v: _log(_exp(0.3 * v)), "f3", 4096, nasty=False),
    Case("quaternion_product", _multiply, "f4 f4", nasty=False),
    Case("quaternion_rotate", _rotate, "f4 f3", 64, nasty=False),
    Case(
        "quaternion_step",
        lambda q, w: _multiply(q, jnp.concatenate([jnp.ones_like(w[:1]), 0.01 * w])),
        "f4 f3",
        nasty=False,
    ),
    Case("euler", lambda e: jnp.array([jnp.cos(e[0]) * jnp.cos(e[1]), jnp.sin(e[2]), -jnp.sin(e[1])]), "f3"),
    Case("unit", lambda v: v / jnp.maximum(jnp.linalg.norm(v), 1e-9), "f3", nasty=False),
    Case("saturated", partial(jnp.clip, min=-0.5, max=0.5), "f3"),
]
