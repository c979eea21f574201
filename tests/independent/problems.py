"""Problems on which selftune is compared with this program: other sizes, sets and structures than the golden ones.

The four functions are written once, for an array module `xp`: NumPy here, `jax.numpy` where the tests hand it over. So
both programs solve the same problem, and only the algorithms are written twice.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .algorithms import Ball, Box, Everything, Problem

STEPS = 120


class Functions(NamedTuple):
    """g(x, u, f, t), f(x, a, t), π(x, θ, f, t) and h(x, u, θ, t).

    Where `matched`, the first is φ(x, u + f, t) and the third is ψ(x, θ, t) = π + f.
    """

    matched: bool
    dynamics: Callable
    residual: Callable
    policy: Callable
    cost: Callable


class Case(NamedTuple):
    functions: Callable[[Any], Functions]
    problem: Problem
    buffer: int


def time(xp: Any, x: Any, t: Any) -> Any:
    """The step's number as a number of x's type."""
    return xp.asarray(t).astype(x.dtype)


def pendulum(xp: Any) -> Functions:
    """Matched; n = 2, m = k = 1, p = 2, d = 3; a moving reference, and a cost of θ."""

    def error(x, t):
        return x[0] - 0.6 * xp.sin(0.08 * time(xp, x, t))

    return Functions(
        matched=True,
        dynamics=lambda x, v, t: x + 0.1 * xp.stack([x[1], -xp.sin(x[0]) - 0.3 * x[1] + v[0]]),
        residual=lambda x, a, t: xp.stack([a[0] * xp.cos(x[0]) + a[1] * xp.tanh(3 * x[1])]),
        policy=lambda x, theta, t: xp.stack([-theta[0] * error(x, t) - theta[1] * x[1] + theta[2] * xp.sin(x[0])]),
        cost=lambda x, u, theta, t: error(x, t) ** 2 + 0.05 * x[1] ** 2 + 0.01 * xp.sum(u**2) + 0.01 * xp.sum(theta**2),
    )


_MIX = np.random.default_rng(1).normal(size=(3, 3)) / 3
_DRIVE = np.random.default_rng(2).normal(size=(3, 2)) / 2


def mixer(xp: Any) -> Functions:
    """Not matched; n = 3, m = 2, k = 1, p = 2, d = 2; a residual that is nonlinear in a and has a path of its own."""
    return Functions(
        matched=False,
        dynamics=lambda x, u, f, t: 0.8 * xp.tanh(_MIX @ x + _DRIVE @ u) + 0.2 * f[0] * xp.cos(x),
        residual=lambda x, a, t: xp.stack([xp.sin(a[0] * x[0]) + a[1] ** 2 * xp.cos(x[1])]),
        policy=lambda x, theta, f, t: xp.stack([-theta[0] * x[0] - 0.3 * f[0], xp.sin(theta[1] * x[2]) + f[0] ** 2]),
        cost=lambda x, u, theta, t: xp.sum((x - 0.4) ** 2) + 0.1 * xp.sum(u**2) + 0.05 * x[0] * u[1],
    )


_TURN = np.array([[0.6, 0.3, 0.0], [-0.3, 0.6, 0.1], [0.0, -0.1, 0.5]])


def drifting(xp: Any) -> Functions:
    """Matched; n = m = k = 3, p = 4, d = 4; dynamics, residual and cost all change with time; both sets are balls."""

    def season(x, t):
        return 1 + 0.2 * xp.sin(0.1 * time(xp, x, t))

    def residual(x, a, t):
        return xp.stack([a[0] * xp.sin(x[1]) + a[3], a[1] * x[2] * season(x, t), a[2] * xp.cos(x[0]) - a[3] * x[1]])

    return Functions(
        matched=True,
        dynamics=lambda x, v, t: season(x, t) * (_TURN @ xp.sin(x)) + 0.4 * v,
        residual=residual,
        policy=lambda x, theta, t: -theta[:3] * x + theta[3] * xp.tanh(x[::-1]),
        cost=lambda x, u, theta, t: xp.sum((x - 0.5 * season(x, t)) ** 2) + 0.02 * xp.sum(u**2),
    )


def integrating(xp: Any) -> Functions:
    """Not matched; n = 2, m = k = 1, p = 3, d = 2: proportional-integral control that cancels half of the residual."""

    def error(x, t):
        return x[0] - xp.cos(0.05 * time(xp, x, t))

    return Functions(
        matched=False,
        dynamics=lambda x, u, f, t: xp.stack([0.9 * x[0] + 0.2 * (u[0] + f[0]), 0.95 * x[1] + 0.1 * error(x, t)]),
        residual=lambda x, a, t: xp.stack([a[0] + a[1] * xp.sin(x[0]) + a[2] * xp.sin(2 * x[0])]),
        policy=lambda x, theta, f, t: xp.stack([-theta[0] * error(x, t) - theta[1] * x[1] - 0.5 * f[0]]),
        cost=lambda x, u, theta, t: error(x, t) ** 2 + 0.05 * xp.sum(u**2),
    )


_draw = np.random.default_rng(3)
_A, _B, _C = (0.4 * _draw.normal(size=(4, k)) / np.sqrt(k) for k in (4, 2, 3))
_R, _S, _W, _D = (_draw.normal(size=shape) / np.sqrt(shape[1]) for shape in ((3, 4), (3, 5), (2, 4), (2, 6)))


def network(xp: Any) -> Functions:
    """Not matched; n = 4, m = 2, k = 3, p = 5, d = 6: every function uses every number that it is given."""
    return Functions(
        matched=False,
        dynamics=lambda x, u, f, t: xp.tanh(_A @ x + _B @ u + _C @ f),
        residual=lambda x, a, t: xp.sin(_R @ x) * (_S @ a) + 0.2 * (_S @ a),
        policy=lambda x, theta, f, t: xp.tanh(_W @ x + _D @ theta) * (_D @ theta) - 0.3 * f[:2] * xp.cos(f[2]),
        cost=lambda x, u, theta, t: xp.sum((x - 0.3) ** 2) + 0.1 * xp.sum(u**2) + 0.01 * xp.sum(theta**2) * x[0] ** 2,
    )


def _case(
    functions: Callable[[Any], Functions],
    *,
    seed: int,
    theta0: list[float],
    a: int,
    k: int,
    x0: list[float],
    a_size: float,
    w: float,
    v: float,
    buffer: int,
    **settings: Any,
) -> Case:
    """a* is drawn anew, uniform of size `a_size`, after each third of the steps; w and v are uniform of their sizes."""
    draw, parts = np.random.default_rng(seed), functions(np)
    problem = Problem(
        dynamics=(lambda x, u, f, t: parts.dynamics(x, u + f, t)) if parts.matched else parts.dynamics,
        residual=parts.residual,
        policy=(lambda x, theta, f, t: parts.policy(x, theta, t) - f) if parts.matched else parts.policy,
        cost=parts.cost,
        x0=np.array(x0),
        theta0=np.array(theta0),
        a0=np.zeros(a),
        a_star=np.repeat(draw.uniform(-a_size, a_size, (3, a)), STEPS // 3, axis=0),
        w=draw.uniform(-w, w, (STEPS, len(x0))),
        v=draw.uniform(-v, v, (STEPS, k)),
        **settings,
    )
    return Case(functions, problem, buffer)


CASES = {
    "pendulum": _case(
        pendulum,
        seed=21,
        x0=[0.5, -0.3],
        theta0=[1.0, 1.0, 0.1],
        a=2,
        k=1,
        a_size=1.0,
        w=0.02,
        v=0.05,
        buffer=4,
        eta=0.05,
        iota=0.05,
        P=np.diag([2.0, 0.5]),
        theta_set=Box(np.array([0.9, 0.3, -0.2]), np.array([1.6, 1.1, 0.2])),
        a_set=Box(np.full(2, -0.6), np.full(2, 0.6)),
    ),
    "mixer": _case(
        mixer,
        seed=22,
        x0=[0.2, 0.0, -0.5],
        theta0=[0.3, 0.5],
        a=2,
        k=1,
        a_size=0.8,
        w=0.1,
        v=0.02,
        buffer=3,
        eta=0.02,
        iota=0.1,
        P=np.array([[1.0, 0.4], [0.4, 0.7]]),
        theta_set=Everything(),
        a_set=Everything(),
    ),
    "drifting": _case(
        drifting,
        seed=23,
        x0=[0.4, -0.4, 0.1],
        theta0=[0.2, 0.1, 0.3, 0.0],
        a=4,
        k=3,
        a_size=0.6,
        w=0.05,
        v=0.05,
        buffer=6,
        eta=0.05,
        iota=0.05,
        P=0.7 * np.eye(4),
        theta_set=Ball(np.array([0.2, 0.1, 0.2, 0.1]), 0.4),
        a_set=Ball(np.zeros(4), 0.5),
    ),
    "integrating": _case(
        integrating,
        seed=24,
        x0=[0.0, 0.0],
        theta0=[0.5, 0.1],
        a=3,
        k=1,
        a_size=0.25,
        w=0.02,
        v=0.0,
        buffer=1,
        eta=0.05,
        iota=0.1,
        P=np.eye(3),
        theta_set=Box(np.array([0.0, 0.0]), np.array([0.9, 0.3])),
        a_set=Everything(),
    ),
    "network": _case(
        network,
        seed=25,
        x0=[0.5, -0.5, 0.2, 0.0],
        theta0=[0.1, 0.0, -0.1, 0.2, 0.0, 0.1],
        a=5,
        k=3,
        a_size=0.7,
        w=0.1,
        v=0.05,
        buffer=8,
        eta=0.1,
        iota=0.2,
        P=np.diag([1.0, 0.5, 2.0, 1.0, 0.8]),
        theta_set=Ball(np.zeros(6), 0.3),
        a_set=Box(np.full(5, -0.2), np.full(5, 0.3)),
    ),
}
