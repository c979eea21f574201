"""`python -m benchmarks.sweep`: thousands of runs as one sweep, against C by hand; and what a task costs by itself.

The sweep is of the paper's example, whole: drawing what nature decides, running, averaging and storing.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import selftune as st

from ._by_hand import hand_written
from ._measure import interleaved, table
from ._problems import PROBLEMS, Problem

RATES, SEEDS, STEPS, LANES, ROUNDS = (1e-4, 3e-4, 1e-3, 3e-3), 64, 200_000, 16, 3
SMALL = {"points": 50, "seeds": 8, "steps": 20}


def _controller(problem: Problem, learning_rate: Any) -> st.Controller:
    tuner = st.MGAPS(learning_rate, constraint=problem.controller.tuner.constraint)  # pyright: ignore
    return st.Controller(problem.controller.system, tuner, problem.controller.estimator)


def _scenario(key: jax.Array, steps: int) -> st.Scenario:
    ka, kw = jax.random.split(key)
    a_star = st.PiecewiseConstant(period=40_000, low=-0.25, high=0.25)(ka, steps, 3)
    return st.Scenario(jnp.zeros(1), a_star, st.OrnsteinUhlenbeck(decay=0.95, sigma=0.1)(kw, steps, 1))


def _sweep(problem: Problem, folder: str, rates: Any, seeds: int, steps: int, **options: Any) -> st.Sweep:
    def make_controller(learning_rate):
        return _controller(problem, learning_rate)

    def make_scenario(key):
        return _scenario(key, steps)

    start: dict[str, Any] = {"theta": problem.theta, "a_hat": problem.a_hat}
    return st.sweep(make_controller, make_scenario, {"learning_rate": rates}, seeds, **start, folder=folder, **options)


def against_hand_written() -> None:
    """What a run's step costs once programs are compiled: from the first tasks' end to the last one's."""
    problem = PROBLEMS["scalar"]()
    by_hand, _ = hand_written(problem, problem.scenario(STEPS))
    by_hand()
    seconds: dict[str, list[float]] = {"C by hand, one core": [], "its runs, drawn before": [], "the sweep": []}
    runs = _runs_alone(problem)
    for _ in range(ROUNDS):
        told: list[tuple[int, float]] = []
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            _sweep(problem, folder, RATES, SEEDS, STEPS, lanes=LANES, progress=_clock(told))
        whole = time.perf_counter() - begin
        (early, at), (last, end) = told[1 + len(told) // 8], told[-1]
        seconds["the sweep"].append((end - at) / (last - early))
        alone = {"C by hand, one core": by_hand, "its runs, drawn before": runs}
        counts = {"C by hand, one core": 1, "its runs, drawn before": len(RATES) * LANES}
        for name, times in interleaved(alone, rounds=5).items():
            seconds[name].append(statistics.median(times) / counts[name])
        print(f"{len(RATES)} learning rates × {SEEDS} seeds × {STEPS:,} steps: {whole:.1f} s, all in all")
    cores = len(os.sched_getaffinity(0))
    table(f"a run's step, {cores} cores, to the store", seconds, dict.fromkeys(seconds, STEPS), "C by hand, one core")


def _runs_alone(problem: Problem) -> Callable[[], object]:
    """A batch of the sweep's runs, on what was drawn before; only mean costs come back."""
    drawn = jax.jit(jax.vmap(lambda seed: _scenario(jax.random.key(seed), STEPS)))(jnp.arange(LANES))

    def mean(rate: Any, scenario: st.Scenario) -> Any:
        start: dict[str, Any] = {"theta": problem.theta, "a_hat": problem.a_hat}
        controller = _controller(problem, rate)
        return jnp.mean(st.simulate(controller, scenario, **start, record=("cost",), engine="native").cost)

    batch = jax.jit(jax.vmap(lambda scenario: jax.vmap(lambda rate: mean(rate, scenario))(jnp.asarray(RATES))))
    return lambda: jax.block_until_ready(batch(drawn))


def _clock(told: list[tuple[int, float]]) -> Callable[[int, int], None]:
    return lambda done, total: told.append((done, time.perf_counter()))


def a_task_by_itself() -> None:
    """Tasks of next to no steps: what is left is planning, calling, storing, and on a cluster the scheduler."""
    from dask.distributed import LocalCluster

    problem, rates = PROBLEMS["scalar"](), list(jnp.geomspace(1e-4, 1e-2, SMALL["points"]).tolist())
    options: dict[str, Any] = {"rates": rates, "seeds": SMALL["seeds"], "steps": SMALL["steps"], "lanes": 1}
    tasks = SMALL["points"] * SMALL["seeds"]
    print(f"\n{tasks} tasks of one run of {SMALL['steps']} steps, milliseconds a task after the first")
    made: Any = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0")
    with made as cluster:
        for name, executor in {
            "in this process": None,
            "on a cluster of 2 processes": cluster.scheduler_address,
        }.items():
            told: list[tuple[int, float]] = []
            with tempfile.TemporaryDirectory() as folder:
                _sweep(problem, folder, executor=executor, progress=_clock(told), **options)
            warm = [one for one in told if one[0] >= tasks // 4]
            print(f"  {name:34} {1e3 * (warm[-1][1] - warm[0][1]) / (warm[-1][0] - warm[0][0]):10.1f}")


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    against_hand_written()
    a_task_by_itself()


if __name__ == "__main__":
    main()
