"""Estimators without numbers against the estimators whose numbers were set by hand for each problem.

    python -m benchmarks.estimators

The model itself is the plant; its parameters a* change while the controller runs. Every problem keeps its own tuner.
The table has the mean cost and the root mean square of the mismatch ε, each divided by that of the hand-set estimator
on the same seeds.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune.experiments import paper
from selftune.robots import car

from ._problems import Problem, _robot, arm, pendulum, quadrotor, scalar

STEPS, SEEDS = 20_000, 4
ESTIMATORS: dict[str, Callable[[st.AbstractConstraint], st.AbstractEstimator]] = {
    "Auto, box": lambda box: st.AutoEstimator(constraint=box),
    "Auto, no box": lambda box: st.AutoEstimator(),
    "RLS, box": lambda box: st.RLS(constraint=box),
    "RLS, no box": lambda box: st.RLS(),
    "NormalizedGradient, box": lambda box: st.NormalizedGradient(constraint=box),
    "NormalizedGradient, no box": lambda box: st.NormalizedGradient(),
}


def inside(dtype: Any = jnp.float64) -> Problem:
    """The paper's example with its noise inside the dynamics, which is a hundred times smaller."""
    base = scalar(dtype)

    def scenario(steps: int, seed: int) -> st.Scenario:
        drawn = base.scenario(steps, seed)
        return st.Scenario(drawn.x0, drawn.a_star, paper.run.DELTA * drawn.w)

    return Problem("paper, noise inside", base.controller, scenario, base.theta, base.a_hat)


PROBLEMS = {
    "paper, noise outside": scalar,
    "paper, noise inside": inside,
    "pendulum": pendulum,
    "arm": arm,
    "quadrotor": quadrotor,
    "car": lambda: _robot("car", car.make(), jnp.float64),
}


def measure(problem: Problem, estimator: Any, steps: int, seed: int) -> tuple[float, float]:
    """The mean cost and the root mean square of the mismatch; infinite if the run diverged."""
    system, tuner = problem.controller.system, problem.controller.tuner
    scenario = problem.scenario(steps, seed)
    run = st.simulate(
        st.Controller(system, tuner, estimator), scenario, theta=problem.theta, a_hat=problem.a_hat, throw=False
    )
    mismatch = st.model_mismatch(system, scenario, run).mismatch
    values = float(jnp.mean(run.cost)), float(jnp.sqrt(jnp.mean(mismatch**2)))
    return values if np.isfinite(values).all() else (np.inf, np.inf)


def table(steps: int, seeds: range) -> None:
    print(f"\n{'cost / mismatch over those of the hand-set estimator':30}", end="")
    print("".join(f"{name:>22}" for name in PROBLEMS))
    problems = {name: make() for name, make in PROBLEMS.items()}

    def means(problem: Problem, estimator: Any) -> np.ndarray:
        return np.mean([measure(problem, estimator, steps, seed) for seed in seeds], axis=0)

    hand = {name: means(problem, problem.controller.estimator) for name, problem in problems.items()}
    for title, make in ESTIMATORS.items():
        cells = []
        for name, problem in problems.items():
            cost, mismatch = means(problem, make(problem.controller.estimator.constraint)) / hand[name]
            cells.append(f"{f'{cost:.2f} / {mismatch:.2f}':>22}")
        print(f"{title:52}" + "".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options, _ = parser.parse_known_args()
    with jax.enable_x64(True):
        table(options.steps, range(options.seeds))


if __name__ == "__main__":
    main()
