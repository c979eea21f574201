r"""Algorithms 1–3 of the paper and the quantities that its theorems speak of, written as the paper writes them.

Every derivative is a complex step: for an analytic φ, φ(z + ih) = φ(z) + ihφ'(z) + O(h²), so that Im φ(z + ih)/h is
φ'(z) to rounding, without any subtraction. The functions of a problem must therefore be analytic and accept complex
arrays: no `abs`, `conj`, `max` or norm. Projections are applied to real arrays only.

Speed does not matter here; agreement with the paper's text does. Vectors are one-dimensional arrays, and `t` is the
number of the step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

TINY = 1e-100


@dataclass(frozen=True)
class Box:
    """Between `low` and `high`, entry by entry."""

    low: Any
    high: Any

    def project(self, v: ndarray) -> ndarray:
        return np.minimum(np.maximum(v, self.low), self.high)


@dataclass(frozen=True)
class Ball:
    """Within `radius` of `center`."""

    center: Any
    radius: float

    def project(self, v: ndarray) -> ndarray:
        offset = v - self.center
        distance = np.sqrt(np.sum(offset**2))
        return v if distance <= self.radius else self.center + offset * (self.radius / distance)


@dataclass(frozen=True)
class Everything:
    """The whole space."""

    def project(self, v: ndarray) -> ndarray:
        return v


@dataclass(frozen=True)
class Problem:
    """The four functions, the settings of the algorithms, and what nature decides."""

    dynamics: Callable  # g_t(x, u, f), without w_t
    residual: Callable  # f_t(x, a)
    policy: Callable  # π_t(x, θ, f)
    cost: Callable  # h_t(x, u, θ)
    x0: ndarray
    theta0: ndarray
    a0: ndarray
    eta: float
    iota: float
    P: ndarray  # the preconditioner of the estimator, (p, p)
    theta_set: Any  # Θ
    a_set: Any  # 𝒜
    a_star: ndarray  # (T, p)
    w: ndarray  # (T, n)
    v: ndarray  # (T, k): the estimator observes f_t(x_t, a*_t) + v_t

    def __len__(self) -> int:
        return len(self.w)

    def control(self, x: ndarray, theta: ndarray, a: ndarray, t: int) -> ndarray:
        """u = π_t(x, θ, f_t(x, a))."""
        return self.policy(x, theta, self.residual(x, a, t), t)

    def closed_loop(self, x: ndarray, theta: ndarray, a: ndarray, t: int) -> ndarray:
        """g_{t+1|t}: the state that follows x under the policy if a is the true parameter, without w_t."""
        return self.dynamics(x, self.control(x, theta, a, t), self.residual(x, a, t), t)

    def stage_cost(self, x: ndarray, theta: ndarray, a: ndarray, t: int) -> Any:
        """h_{t|t}."""
        return self.cost(x, self.control(x, theta, a, t), theta, t)


def derivative(function: Callable, z: ndarray) -> ndarray:
    """The derivative of an analytic function at a real vector; its last axis is that of z."""
    columns = []
    for j in range(len(z)):
        step = z.astype(complex)
        step[j] += 1j * TINY
        columns.append(np.imag(function(step)) / TINY)
    return np.stack(columns, axis=-1)


class MGAPS:
    """Algorithm 2: the accumulator y carries ∂x_t/∂θ along the trajectory."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.y = np.zeros((len(problem.x0), len(problem.theta0)))

    def update(self, x: ndarray, theta: ndarray, a_hat: ndarray, t: int) -> tuple[ndarray, ndarray]:
        """θ_{t+1} and G_t."""
        problem = self.problem
        g_x = derivative(lambda z: problem.closed_loop(z, theta, a_hat, t), x)
        g_theta = derivative(lambda z: problem.closed_loop(x, z, a_hat, t), theta)
        h_x = derivative(lambda z: problem.stage_cost(z, theta, a_hat, t), x)
        h_theta = derivative(lambda z: problem.stage_cost(x, z, a_hat, t), theta)
        G = h_x @ self.y + h_theta
        self.advance(g_x, g_theta)
        return problem.theta_set.project(theta - problem.eta * G), G

    def advance(self, g_x: ndarray, g_theta: ndarray) -> None:
        self.y = g_x @ self.y + g_theta


class GAPS(MGAPS):
    """M-GAPS with a buffer in place of the accumulator: ∂x_t/∂θ_s for the last `buffer` steps s, and y their sum."""

    def __init__(self, problem: Problem, buffer: int):
        super().__init__(problem)
        self.buffer, self.parts = buffer, []

    def advance(self, g_x: ndarray, g_theta: ndarray) -> None:
        self.parts = [*(g_x @ part for part in self.parts), g_theta][-self.buffer :]
        self.y = np.sum(self.parts, axis=0)


def estimate(problem: Problem, x: ndarray, f_obs: ndarray, a_hat: ndarray, t: int) -> ndarray:
    """Algorithm 3, the gradient estimator, with the preconditioner of the simulation appendix: â_{t+1}."""
    gradient = derivative(lambda a: np.sum((problem.residual(x, a, t) - f_obs) ** 2), a_hat)
    return problem.a_set.project(a_hat - problem.iota * problem.P @ gradient)


def run(problem: Problem, buffer: int | None = None) -> dict[str, ndarray]:
    """Algorithm 1, the meta-framework, with M-GAPS or, where `buffer` is given, with GAPS.

    Row t of every array is the value used at step t. `theta_end` is θ_T, which no step uses.
    """
    tuner = MGAPS(problem) if buffer is None else GAPS(problem, buffer)
    x, theta, a_hat = problem.x0, problem.theta0, problem.a0
    rows = []
    for t in range(len(problem)):
        a_star = problem.a_star[t]
        f_hat, f_true = problem.residual(x, a_hat, t), problem.residual(x, a_star, t)
        u = problem.policy(x, theta, f_hat, t)
        y = tuner.y
        theta_next, G = tuner.update(x, theta, a_hat, t)
        f_x_hat, f_x_true = (derivative(lambda z, a=a, t=t: problem.residual(z, a, t), x) for a in (a_hat, a_star))
        rows.append(
            {
                "x": x,
                "u": u,
                "theta": theta,
                "a_hat": a_hat,
                "y": y,
                "grad": G,
                "cost": problem.cost(x, u, theta, t),
                "f_hat": f_hat,
                "f_true": f_true,
                "eps": np.sqrt(np.sum((f_hat - f_true) ** 2)),
                "eps_prime": np.sqrt(np.sum((f_x_hat - f_x_true) ** 2)),
            }
        )
        a_next = estimate(problem, x, f_true + problem.v[t], a_hat, t)
        x = problem.dynamics(x, u, f_true, t) + problem.w[t]
        theta, a_hat = theta_next, a_next
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]} | {"theta_end": theta}


def surrogate(problem: Problem, thetas: ndarray, t: int) -> tuple[float, ndarray]:
    """F_t(θ_t) and ∇F_t(θ_t): θ_t is used from step 0 on, with the exact model; one rollout for each derivative."""

    def cost(theta: ndarray) -> Any:
        x = problem.x0
        for s in range(t):
            x = problem.closed_loop(x, theta, problem.a_star[s], s) + problem.w[s]
        return problem.stage_cost(x, theta, problem.a_star[t], t)

    return float(cost(thetas[t])), derivative(cost, thetas[t])


def surrogates(problem: Problem, thetas: ndarray) -> tuple[ndarray, ndarray]:
    """F_t(θ_t) and ∇F_t(θ_t) at each step."""
    values, gradients = zip(*(surrogate(problem, thetas, t) for t in range(len(problem))), strict=True)
    return np.array(values), np.stack(gradients)


def local_regret(problem: Problem, thetas: ndarray, gradients: ndarray) -> ndarray:
    """The running sum of ‖∇_{Θ,η} F_t(θ_t)‖², given the ∇F_t(θ_t)."""
    eta = problem.eta
    projected = [
        (theta - problem.theta_set.project(theta - eta * gradient)) / eta
        for theta, gradient in zip(thetas, gradients, strict=True)
    ]
    return np.cumsum([np.sum(row**2) for row in projected])


def companion(problem: Problem, thetas: ndarray, theta_end: ndarray, buffer: int | None = None) -> dict[str, ndarray]:
    """The trajectory (x̃, ỹ) that uses the θ of a run and the exact model, and the perturbations ζ of ALG*.

    ζ_t is what must be added to the update of the tuner with the exact model, so that it gives the run's θ_{t+1}.
    """
    tuner = MGAPS(problem) if buffer is None else GAPS(problem, buffer)
    x, rows = problem.x0, []
    for t, (theta, following) in enumerate(zip(thetas, [*thetas[1:], theta_end], strict=True)):
        a_star, y = problem.a_star[t], tuner.y
        updated, _ = tuner.update(x, theta, a_star, t)
        rows.append({"x": x, "y": y, "zeta": following - updated})
        x = problem.closed_loop(x, theta, a_star, t) + problem.w[t]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def gap(x: ndarray, y: ndarray, exact: dict[str, ndarray]) -> ndarray:
    """‖(x_t, y_t) − (x̃_t, ỹ_t)‖ at each step, over all entries."""
    return np.sqrt(np.sum((x - exact["x"]) ** 2, axis=1) + np.sum((y - exact["y"]) ** 2, axis=(1, 2)))
