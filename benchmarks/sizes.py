"""`python -m benchmarks.sizes`: what a native `Agent` costs by the size of its system: lowering, compiling, and a step.

The linear systems have a dense n × n matrix and d gains. All times are CPU times in float64. Each agent is compiled
afresh, in a temporary folder.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

from . import _seven_joints
from ._problems import PROBLEMS

CALLS, ROUNDS = 20, 30


@dataclass(frozen=True)
class Case:
    controller: st.Controller
    start: dict[str, Any]


def linear(n: int, d: int, tuner: Callable[..., st.AbstractTuner]) -> Case:
    """x' = A x + B u + a-dependent residual, with u = -θ x for the first d numbers of x."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((n, n))
    A *= 0.95 / np.max(np.abs(np.linalg.eigvals(A)))
    E = rng.standard_normal((n, 4)) / n
    system = st.System(
        dynamics=lambda x, u, f, t: A @ x + jnp.zeros_like(x).at[:d].set(0.1 * u) + f,
        residual=lambda x, a, t: E @ a,
        policy=lambda x, theta, f, t: -theta * x[:d],
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.01 * jnp.sum(u**2),
    )
    controller = st.Controller(
        system, tuner(constraint=st.Box(0.0, 5.0)), st.AutoEstimator(constraint=st.Box(-1.0, 1.0))
    )
    return Case(controller, {"x": jnp.ones(n), "theta": jnp.ones(d), "a_hat": jnp.zeros(4)})


def known(name: str) -> Case:
    problem = PROBLEMS[name]()
    x = problem.scenario(1).x0
    return Case(problem.controller, {"x": x, "theta": problem.theta, "a_hat": problem.a_hat})


def seven_joints(tuner: Callable[..., st.AbstractTuner]) -> Case:
    box = st.Box(np.log(5.0), np.log(2000.0))
    controller = st.Controller(
        _seven_joints.system(), tuner(constraint=box), st.AutoEstimator(constraint=st.Box(-5.0, 5.0))
    )
    return Case(controller, _seven_joints.start())


def mgaps(constraint: Any) -> st.AbstractTuner:
    return st.MGAPS(1e-4, constraint=constraint)


def gaps(buffer: int) -> Callable[..., st.AbstractTuner]:
    return lambda constraint: st.GAPS(buffer, 1e-4, constraint=constraint)


CASES: dict[str, Callable[[], Case]] = {
    "two-link arm, M-GAPS": lambda: known("arm"),
    "quadrotor, M-GAPS": lambda: known("quadrotor"),
    "seven joints, M-GAPS": lambda: seven_joints(mgaps),
    "seven joints, Gauss-Newton": lambda: seven_joints(st.GaussNewton),
    "linear, M-GAPS, 10": lambda: linear(10, 10, mgaps),
    "linear, M-GAPS, 20": lambda: linear(20, 20, mgaps),
    "linear, M-GAPS, 50": lambda: linear(50, 50, mgaps),
    "linear, Gauss-Newton, 10": lambda: linear(10, 10, st.GaussNewton),
    "linear, Gauss-Newton, 20": lambda: linear(20, 20, st.GaussNewton),
    "linear, Gauss-Newton, 50": lambda: linear(50, 50, st.GaussNewton),
    "linear, GAPS with a buffer of 200": lambda: linear(6, 4, gaps(200)),
}


def measure(case: Case) -> tuple[float, float, float]:
    """The CPU seconds of Python and of the compiler, and the µs of `act` and `observe_state`."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SELFTUNE_CACHE"] = folder
        own, others = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        agent = st.Agent(case.controller, **case.start, engine="native")
        own = time.process_time() - own
        others = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - others
    x = np.asarray(case.start["x"])
    best = np.inf
    for _ in range(ROUNDS):
        begin = time.process_time()
        for t in range(CALLS):
            agent.act(x, t)
            agent.observe_state(x)
        best = min(best, (time.process_time() - begin) / CALLS)
    return own, others, 1e6 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(CASES)}; all if none is given")
    jax.config.update("jax_enable_x64", True)
    print(f"{'':36} {'n':>4} {'d':>4} {'lowering, s':>12} {'compiling, s':>13} {'a step, us':>11}")
    for name in parser.parse_args().names or CASES:
        case = CASES[name]()
        n, d = (case.start[part].size for part in ("x", "theta"))
        lowering, compiling, step = measure(case)
        print(f"{name:36} {n:4} {d:4} {lowering:12.1f} {compiling:13.1f} {step:11.1f}", flush=True)


if __name__ == "__main__":
    main()
