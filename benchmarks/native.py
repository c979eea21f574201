"""`python -m benchmarks.native`: the native engine against C by hand, against XLA, and one call at a time.

XLA is measured in a process of its own each way: as it comes, and with the size limit of its small-loop pass raised
(docs/speed.md).
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

import selftune as st

from ._by_hand import BY_HAND, RECORD, hand_written
from ._measure import interleaved, ratio, table
from ._problems import PROBLEMS, Problem

Engine: TypeAlias = Literal["xla", "native"]
ENGINES: tuple[Engine, Engine] = ("xla", "native")
SMALL_LOOPS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=65536"
LONG, SHORT, CALLS, SEEDS = 1_000_000, 100_000, 20_000, 64


def simulation(problem: Problem, scenario: st.Scenario, engine: Engine) -> Callable[[], object]:
    def run():
        return jax.block_until_ready(
            st.simulate(
                problem.controller, scenario, theta=problem.theta, a_hat=problem.a_hat, record=RECORD, engine=engine
            )
        )

    return run


def against_hand_written() -> None:
    for name in BY_HAND:
        problem = PROBLEMS[name]()
        scenario = problem.scenario(LONG)
        by_hand, outputs = hand_written(problem, scenario)
        native = simulation(problem, scenario, "native")
        by_hand()
        for field in RECORD:
            np.testing.assert_allclose(
                np.squeeze(getattr(native(), field)), np.squeeze(outputs[field]), rtol=1e-6, atol=1e-9, err_msg=field
            )
        seconds = interleaved({"C by hand": by_hand, "native": native}, clock=time.process_time)
        table(f"{name}: {LONG:,} steps, float64", seconds, dict.fromkeys(seconds, LONG), "C by hand")


def measure_xla() -> None:
    """Nanoseconds a step of both engines, as JSON: for `against_xla`, in a process of its own."""
    jax.config.update("jax_enable_x64", True)
    found = {}
    for name in PROBLEMS:
        problem = PROBLEMS[name]()
        scenario = problem.scenario(SHORT)
        seconds = interleaved({engine: simulation(problem, scenario, engine) for engine in ENGINES}, rounds=5)
        found[name] = {
            "ratio": ratio(seconds, "xla", "native"),
            **{engine: 1e9 * statistics.median(times) / SHORT for engine, times in seconds.items()},
        }
    print(json.dumps(found))


def against_xla() -> None:
    print(f"\nNative against XLA's scan, {SHORT:,} steps")
    print(f"  {'':34} {'native ns':>10} {'xla ns':>10} {'ratio':>8}")
    for title, flags in {"XLA as it comes": "", "its small-loop limit raised": SMALL_LOOPS}.items():
        environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
        command = [sys.executable, "-c", "from benchmarks.native import measure_xla; measure_xla()"]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        for name, found in json.loads(done.stdout).items():
            label = f"{name}, {title}"
            print(f"  {label:40} {found['native']:10.0f} {found['xla']:10.0f} {found['ratio']:8.1f}")


def one_call_at_a_time() -> None:
    print(f"\nAgent.act + Agent.observe from Python, {CALLS:,} calls, microseconds")
    print(f"  {'':34} {'median':>10} {'p99':>8}")
    # The native ones first: XLA's threads are then not there yet.
    for engine, calls in zip(reversed(ENGINES), (CALLS, CALLS // 10), strict=True):
        for name in PROBLEMS:
            median, slow = _latency(PROBLEMS[name](), engine, calls)
            label = f"{name}, {engine}"
            print(f"  {label:34} {median:10.1f} {slow:8.1f}")


def _latency(problem: Problem, engine: Engine, calls: int) -> tuple[float, float]:
    """Median and 99th percentile of a step's microseconds."""
    start: dict[str, Any] = {"theta": problem.theta, "a_hat": problem.a_hat}
    run = st.simulate(problem.controller, problem.scenario(calls), **start, engine="native", record=("x", "f"))
    x, f = np.asarray(run.x), np.asarray(run.f)
    agent = st.Agent(problem.controller, x=x[0], **start, engine=engine)
    taken = np.empty(calls)
    for t in range(calls):
        begin = time.perf_counter()
        agent.act(x[t], t)
        agent.observe(f[t])
        taken[t] = time.perf_counter() - begin
    return 1e6 * float(np.median(taken)), 1e6 * float(np.percentile(taken, 99))


def batch() -> None:
    cores = sorted(os.sched_getaffinity(0))
    problem = PROBLEMS["arm"]()
    scenarios = jax.vmap(lambda seed: problem.scenario(SHORT, seed))(np.arange(SEEDS))

    def run():
        return jax.block_until_ready(
            jax.vmap(
                lambda scenario: st.simulate(
                    problem.controller,
                    scenario,
                    theta=problem.theta,
                    a_hat=problem.a_hat,
                    record=RECORD,
                    stride=10,
                    engine="native",
                )
            )(scenarios)
        )

    def on(some: list[int]) -> Callable[[], object]:
        def pinned():
            os.sched_setaffinity(0, some)
            try:
                return run()
            finally:
                os.sched_setaffinity(0, cores)

        return pinned

    seconds = interleaved({"one core": on(cores[:1]), f"{len(cores)} cores": on(cores)}, rounds=5)
    table(
        f"arm: {SEEDS} seeds of {SHORT:,} steps", seconds, dict.fromkeys(seconds, SEEDS * SHORT), f"{len(cores)} cores"
    )


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    against_hand_written()
    against_xla()
    one_call_at_a_time()
    batch()


if __name__ == "__main__":
    main()
