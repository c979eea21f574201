"""The problems that tests share: the two golden ones, and random nonlinear ones of any size."""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st


@cache
def scalar_system() -> st.System:
    """The paper's simulation example."""

    def residual(x, a, t):
        return jnp.stack([a[0] + a[1] * jnp.sin(x[0]) + a[2] * jnp.sin(2 * x[0])])

    return st.System(
        dynamics=lambda x, u, f, t: x + 0.01 * (u + f),
        residual=residual,
        policy=lambda x, theta, f, t: -theta * x - f,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )


@cache
def planar_system() -> st.MatchedSystem:
    """Two states, two controls, a moving reference: `tests/golden/README.md`."""

    def error(x, t):
        time = jnp.asarray(t).astype(x.dtype)
        return x - jnp.stack([jnp.sin(0.05 * time), jnp.cos(0.03 * time)])

    def phi(x, v, t):
        drift = jnp.stack([jnp.sin(x[1]), -x[0] * x[1] / (1 + x[0] ** 2)])
        return x + 0.05 * (drift + jnp.stack([v[0], 1.3 * v[1]]))

    def residual(x, a, t):
        return jnp.stack([a[0] * jnp.sin(x[0]) + a[1] * x[1], a[2] * jnp.cos(x[1]) + a[1] * x[0] * x[1]])

    def actuation(x, theta, t):
        e = error(x, t)
        return -theta[:2] * e - theta[2:] * jnp.tanh(e[::-1])

    def cost(x, u, theta, t):
        e = error(x, t)
        return jnp.sum(e * e) + 0.05 * jnp.sum(u * u) + 0.001 * jnp.sum(theta * theta)

    return st.MatchedSystem(dynamics=phi, residual=residual, actuation=actuation, cost=cost)


SYSTEMS = {"scalar": scalar_system, "planar": planar_system}


@cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "golden" / f"{name}.npz") as arrays:
        return dict(arrays)


def golden_scenario(name: str) -> st.Scenario:
    g = golden(name)
    return st.Scenario(g["x0"], g["a_star"], g["w"], g["v"])


def golden_controller(name: str, tuner: str = "mgaps") -> st.Controller:
    g = golden(name)
    box = st.Box(g["theta_low"], g["theta_high"])
    tuners = {
        "mgaps": st.MGAPS(learning_rate=float(g["eta"]), constraint=box),
        "gaps5": st.GAPS(buffer=5, learning_rate=float(g["eta"]), constraint=box),
    }
    estimator = st.GradientEstimator(
        learning_rate=float(g["iota"]), preconditioner=g["P"], constraint=st.Box(g["a_low"], g["a_high"])
    )
    return st.Controller(SYSTEMS[name](), tuners[tuner], estimator)


def random_system(key: jax.Array, n: int, m: int, k: int, p: int, d: int) -> st.System:
    """A smooth, contractive, nonlinear, time-varying system, every function of which uses all that it is given."""
    keys = iter(jax.random.split(key, 12))

    def matrix(*shape, scale=1.0):
        return scale * jax.random.normal(next(keys), shape) / jnp.sqrt(shape[-1])

    A, B, C = matrix(n, n, scale=0.4), matrix(n, m, scale=0.4), matrix(n, k, scale=0.4)
    R, S = matrix(k, n), matrix(k, p)
    W, D, E = matrix(m, n), matrix(m, d), matrix(m, k)
    Q, U, H = matrix(n), matrix(m), matrix(d)

    def phase(t):
        return 1 + 0.3 * jnp.sin(0.1 * jnp.asarray(t).astype(A.dtype))

    return st.System(
        dynamics=lambda x, u, f, t: jnp.tanh(A @ x + B @ u + C @ f) * phase(t),
        residual=lambda x, a, t: jnp.sin(R @ x) * (S @ a) * phase(t) + 0.1 * (S @ a),
        policy=lambda x, theta, f, t: jnp.tanh(W @ x) * (D @ theta) - jnp.tanh(E @ f) * phase(t),
        cost=lambda x, u, theta, t: jnp.sum((x - Q) ** 2) + 0.1 * jnp.sum((u - U) ** 2) + 0.01 * jnp.sum(H * theta**2),
    )


def random_scenario(key: jax.Array, steps: int, n: int, p: int, k: int) -> st.Scenario:
    kx, ka, kw, kv = jax.random.split(key, 4)
    return st.Scenario(
        x0=jax.random.normal(kx, (n,)),
        a_star=st.RandomWalk(sigma=0.05, low=-1.0, high=1.0)(ka, steps, p),
        w=st.Gaussian(sigma=0.1)(kw, steps, n),
        v=st.Uniform(bound=0.05)(kv, steps, k),
    )
