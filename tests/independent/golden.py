"""The two golden problems and the arrays of their files: `tests/golden/README.md`."""

import numpy as np
from numpy import ndarray

from . import algorithms
from .algorithms import Box, Problem


def scalar() -> Problem:
    """The paper's simulation example, with a* drawn anew after 300 of 600 steps and no observation noise."""
    steps, draw = 600, np.random.default_rng(7)
    w = np.zeros((steps, 1))
    shocks = 0.1 * draw.standard_normal(steps - 1)
    for t in range(steps - 1):
        w[t + 1, 0] = 0.95 * w[t, 0] + shocks[t]
    return Problem(
        dynamics=lambda x, u, f, t: x + 0.01 * (u + f),
        residual=lambda x, a, t: np.array([a[0] + a[1] * np.sin(x[0]) + a[2] * np.sin(2 * x[0])]),
        policy=lambda x, theta, f, t: -theta * x - f,
        cost=lambda x, u, theta, t: x[0] ** 2 + 0.1 * u[0] ** 2,
        x0=np.zeros(1),
        theta0=np.ones(1),
        a0=np.zeros(3),
        eta=1e-4,
        iota=0.005,
        P=np.eye(3),
        theta_set=Box(np.zeros(1), np.full(1, 50.0)),
        a_set=Box(np.full(3, -0.25), np.full(3, 0.25)),
        a_star=np.repeat(draw.uniform(-0.25, 0.25, (2, 3)), 300, axis=0),
        w=w,
        v=np.zeros((steps, 1)),
    )


def planar() -> Problem:
    """Two states and two controls, a moving reference, a cost of θ, observation noise."""
    steps, draw = 300, np.random.default_rng(11)

    def error(x: ndarray, t: int) -> ndarray:
        return x - np.array([np.sin(0.05 * t), np.cos(0.03 * t)])

    def dynamics(x: ndarray, u: ndarray, f: ndarray, t: int) -> ndarray:
        v = u + f
        return np.array(
            [
                x[0] + 0.05 * (np.sin(x[1]) + v[0]),
                x[1] + 0.05 * (-x[0] * x[1] / (1 + x[0] ** 2) + 1.3 * v[1]),
            ]
        )

    def residual(x: ndarray, a: ndarray, t: int) -> ndarray:
        return np.array([a[0] * np.sin(x[0]) + a[1] * x[1], a[2] * np.cos(x[1]) + a[1] * x[0] * x[1]])

    def policy(x: ndarray, theta: ndarray, f: ndarray, t: int) -> ndarray:
        e = error(x, t)
        return -f + np.array([-theta[0] * e[0] - theta[2] * np.tanh(e[1]), -theta[1] * e[1] - theta[3] * np.tanh(e[0])])

    def cost(x: ndarray, u: ndarray, theta: ndarray, t: int):
        e = error(x, t)
        return np.sum(e * e) + 0.05 * np.sum(u * u) + 0.001 * np.sum(theta * theta)

    w = draw.uniform(-0.02, 0.02, (steps, 2))
    a_star = np.repeat(draw.uniform(-1.0, 1.0, (3, 3)), 100, axis=0)
    v = draw.uniform(-0.05, 0.05, (steps, 2))
    return Problem(
        dynamics=dynamics,
        residual=residual,
        policy=policy,
        cost=cost,
        x0=np.array([0.3, -0.2]),
        theta0=np.array([1.0, 1.0, 0.2, 0.1]),
        a0=np.zeros(3),
        eta=0.02,
        iota=0.05,
        P=np.diag([1.0, 2.0, 0.5]),
        theta_set=Box(np.array([0.5, 0.5, -1.0, -1.0]), np.array([4.0, 1.6, 1.0, 1.0])),
        a_set=Box(np.full(3, -1.0), np.full(3, 1.0)),
        a_star=a_star,
        w=w,
        v=v,
    )


PROBLEMS = {"scalar": scalar, "planar": planar}

# Other versions of NumPy and other machines round otherwise; over 600 steps that adds up to less than 1e-13.
TOLERANCE = 1e-12


def differences(made: dict[str, ndarray], stored: dict[str, ndarray]) -> dict[str, float]:
    """Of each array the largest difference, relative to the array's largest number; infinite where shapes differ."""

    def one(name: str) -> float:
        if name not in made or name not in stored or made[name].shape != stored[name].shape:
            return np.inf
        return float(np.max(np.abs(made[name] - stored[name])) / (np.max(np.abs(stored[name])) or 1.0))

    return {name: one(name) for name in [*made, *(name for name in stored if name not in made)]}


def arrays(problem: Problem, *, surrogates: bool = True) -> dict[str, ndarray]:
    """Every array of a golden file; without the surrogates, which take most of the time, where they are not wanted."""
    tuned, truncated = algorithms.run(problem), algorithms.run(problem, buffer=5)
    theta, theta_end = tuned["theta"], tuned.pop("theta_end")
    del truncated["theta_end"]
    exact = algorithms.companion(problem, theta, theta_end)
    return {
        **{f"mgaps_{name}": rows for name, rows in tuned.items()},
        **{f"gaps5_{name}": rows for name, rows in truncated.items()},
        **(_surrogates(problem, theta) if surrogates else {}),
        "x_exact": exact["x"],
        "y_exact": exact["y"],
        "gap": algorithms.gap(tuned["x"], tuned["y"], exact),
        "a_star": problem.a_star,
        "w": problem.w,
        "v": problem.v,
        "x0": problem.x0,
        "theta0": problem.theta0,
        "a0": problem.a0,
        "eta": np.array(problem.eta),
        "iota": np.array(problem.iota),
        "P": problem.P,
        "theta_low": problem.theta_set.low,
        "theta_high": problem.theta_set.high,
        "a_low": problem.a_set.low,
        "a_high": problem.a_set.high,
    }


def _surrogates(problem: Problem, theta: ndarray) -> dict[str, ndarray]:
    values, gradients = algorithms.surrogates(problem, theta)
    regret = algorithms.local_regret(problem, theta, gradients)
    return {"surrogate": values, "surrogate_grad": gradients, "local_regret": regret}
