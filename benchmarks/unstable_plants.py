"""`GaussNewton` on plants that are unstable, or that answer first in the wrong direction, with state feedback.

python -m benchmarks.unstable_plants --seeds 16                    the plants on which the rule was chosen
python -m benchmarks.unstable_plants --seeds 16 --random 12        plants drawn at random; nothing was chosen on them
python -m benchmarks.unstable_plants --guard                       all tuners with a guard of default settings
python -m benchmarks.unstable_plants --rest 400                    with the setting `rest` of GaussNewton

The reference is `MGAPS` with the best learning rate of a grid, as in `benchmarks.no_knobs`; the start gains held fixed
are a second row. A run starts at the LQR gains for a hundred times the cost of u ("weak"), or for the cost itself
("optimal"). Θ is wide and has both signs: [−c, c] for each gain, with c three or more times the larger of both gains.
"""

import argparse
import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import expm, solve_discrete_are

import selftune as st

from . import no_knobs
from .no_knobs import Problem

WEAK = 100.0
"""How much more the control costs for the weak start gains."""
STEPS = 3_000


def lqr(A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray) -> np.ndarray:
    P = solve_discrete_are(A, B, Q, R)
    return np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)


def linear(
    name: str,
    A: Sequence[Sequence[float]] | np.ndarray,
    B: Sequence[float] | np.ndarray,
    *,
    state_cost: Sequence[float] | np.ndarray,
    effort: float | Sequence[float],
    dt: float,
    push: Sequence[float] | np.ndarray,
    x0: Sequence[float] | np.ndarray,
    wide: float = 3.0,
) -> Problem:
    """The plant dx/dt = A x + B u, sampled, with a random push at every step and u = −K x."""
    A = np.asarray(A, float)
    B = np.asarray(B, float).reshape(len(A), -1)
    n, m = B.shape
    both = expm(np.block([[A, B], [np.zeros((m, n + m))]]) * dt)
    A, B = both[:n, :n], both[:n, n:]
    Q, R = np.diag(np.asarray(state_cost, float)), np.diag(np.broadcast_to(np.asarray(effort, float), m))
    starts = {"weak": lqr(A, B, Q, WEAK * R).ravel(), "optimal": lqr(A, B, Q, R).ravel()}
    reach = wide * np.max(np.abs(list(starts.values())), axis=0)

    def scenario(steps: int, seed: int) -> st.Scenario:
        w = st.Gaussian(1.0)(jax.random.key(seed), steps, n) * jnp.asarray(push) * math.sqrt(dt)
        return st.Scenario(jnp.asarray(x0, float), jnp.zeros((steps, m)), w)

    system = st.System(
        dynamics=lambda x, u, f, t: jnp.asarray(A) @ x + jnp.asarray(B) @ (u + f),
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: -(theta.reshape(m, n) @ x) - f,
        cost=lambda x, u, theta, t: x @ (jnp.asarray(Q) @ x) + u @ (jnp.asarray(R) @ u),
    )
    return Problem(name, system, st.Frozen(), st.Box(-reach, reach), starts, np.zeros(m), scenario, STEPS)


def plants() -> Iterator[Problem]:
    """A levitated ball, a first-order plant, an inverse response, a ball on a beam, a balancing robot, an aircraft's
    altitude, a double integrator, two coupled unstable axes, and a pole on a cart."""
    for wide, note in ((3.0, ""), (30.0, ", wide Θ")):
        yield linear(
            f"ball{note}", [[0, 1], [100, 0]], [0, 10],
            state_cost=[100, 1], effort=0.1, dt=0.002, push=[0, 0.3], x0=[0.05, 0], wide=wide,
        )  # fmt: skip
        yield linear(
            f"first order{note}", [[2]], [1], state_cost=[1], effort=0.1, dt=0.02, push=[0.3], x0=[0.5], wide=wide
        )
    yield linear(
        "inverse response", [[0, 1, 0], [0, -0.5, 2], [0, 0, -1]], [0, -1, 1],
        state_cost=[1, 0.1, 0.1], effort=0.05, dt=0.02, push=[0, 0.3, 0.1], x0=[1, 0, 0],
    )  # fmt: skip
    yield linear(
        "ball on a beam", [[0, 1, 0, 0], [0, 0, 7, 0], [0, 0, 0, 1], [0, 0, 0, 0]], [0, 0, 0, 1],
        state_cost=[10, 1, 1, 0.1], effort=0.02, dt=0.02, push=[0, 0.05, 0, 0.1], x0=[0.3, 0, 0, 0],
    )  # fmt: skip
    for wide, note in ((3.0, ""), (20.0, ", wide Θ")):
        yield linear(
            f"balancing robot{note}", [[0, 1, 0, 0], [0, 0, -3, 0], [0, 0, 0, 1], [0, 0, 30, 0]], [0, 1, 0, -2],
            state_cost=[1, 0.1, 10, 0.1], effort=0.01, dt=0.01, push=[0, 0.1, 0, 0.3], x0=[0.2, 0, 0.03, 0], wide=wide,
        )  # fmt: skip
    yield linear(
        "aircraft", [[-1, 1, 0, 0], [1.5, -1.2, 0, 0], [0, 1, 0, 0], [-5, 0, 5, 0]], [-0.1, -6, 0, 0.5],
        state_cost=[0.1, 0.1, 1, 1], effort=1.0, dt=0.02, push=[0.02, 0.1, 0, 0.02], x0=[0, 0, 0, 1],
    )  # fmt: skip
    yield linear(
        "double integrator",
        [[0, 1], [0, 0]],
        [0, 1],
        state_cost=[1, 0.1],
        effort=0.1,
        dt=0.02,
        push=[0, 0.3],
        x0=[1, 0],
    )
    yield linear(
        "two inputs", [[0, 1, 0, 0], [0.5, -0.2, 1, 0], [0, 0, 0, 1], [0.3, 0, 1, -0.1]],
        np.array([[0, 0], [1, 0.2], [0, 0], [-0.3, 1]]),
        state_cost=[1, 0.1, 1, 0.1], effort=[0.1, 0.2], dt=0.02, push=[0, 0.2, 0, 0.2], x0=[0.5, 0, -0.3, 0],
    )  # fmt: skip
    yield no_knobs.cart_pole()
    yield no_knobs.cart_pole(widen=10.0)


def drawn(count: int) -> Iterator[Problem]:
    """Random plants of 2 to 5 states and 1 or 2 inputs, whose fastest unstable mode grows by e in 0.3 to 2 seconds."""
    for i in range(count):
        rng = np.random.default_rng(1_000 + i)
        n, m = int(rng.integers(2, 6)), int(rng.integers(1, 3))
        A, B = rng.normal(size=(n, n)), rng.normal(size=(n, m))
        A = A / math.sqrt(n)
        A += (1 / rng.uniform(0.3, 2.0) - np.linalg.eigvals(A).real.max()) * np.eye(n)
        yield linear(
            f"random {i}: n={n}, m={m}", A, B,
            state_cost=10 ** rng.uniform(-1, 1, n), effort=10 ** rng.uniform(-2, 0), dt=0.02,
            push=0.2 * rng.uniform(size=n), x0=0.3 * rng.normal(size=n), wide=10 ** rng.uniform(0.3, 1.3),
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="the number of seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--random", type=int, default=0, help="only so many random plants")
    parser.add_argument("--guard", action="store_true", help="run with a guard of default settings")
    parser.add_argument("--rest", type=int, help="the setting `rest` of GaussNewton")
    options = parser.parse_args()
    seeds = list(range(options.first, options.first + options.seeds))
    print(f"\n{len(seeds)} seeds from {options.first}, guard: {'default' if options.guard else 'none'}")
    print(no_knobs.HEADER)
    with jax.enable_x64(True):
        for problem in drawn(options.random) if options.random else plants():
            no_knobs.compare(
                problem.guarded("default" if options.guard else None), seeds, with_fixed=True, rest=options.rest
            )


if __name__ == "__main__":
    main()
