"""The cost of surrogate gradients on the paper's example, in float64.

    python -m benchmarks.regret

1. Exact, with the native engine and with XLA: nanoseconds a lane-step (T²/2 of them for T steps), on one core, at
   T = 20,000, in CPU time, because other programs may run.
2. The same on all cores, by the clock.
3. `window=AutoWindow(tolerance)`, which interpolates here, and windows of `WINDOW` steps, at T = 200,000, against the
   exact one at T = 20,000 scaled up by 10² = 100.

Compilation is not counted. All is measured in turns, so that a busy machine hits all alike.
"""

import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

import selftune as st
from selftune.experiments import paper
from selftune.native.choice import Engine

from ._measure import interleaved

SHORT, LONG = 20_000, 200_000
ROUNDS = 3
TOLERANCES = (1e-3, 1e-9)
WINDOW = 900
"""With windows of so many steps, the largest estimated error is near the smallest tolerance."""


def scenario(key: jax.Array, steps: int) -> st.Scenario:
    periods = -(-steps // paper.Settings.period)
    return paper.scenario(paper.Settings(periods=periods), key)[:steps]


def tuned(example: st.System, nature: st.Scenario) -> jax.Array:
    controller = st.Controller(
        example,
        st.MGAPS(1e-4, constraint=st.Box(0.1, 50.0)),
        st.GradientEstimator(0.005, constraint=st.Box(-0.25, 0.25)),
    )
    return st.simulate(controller, nature, theta=jnp.ones(1), a_hat=jnp.zeros(3), record=("theta",)).theta


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    example, long = paper.example_system(), scenario(jax.random.key(0), LONG)
    thetas, short = tuned(example, long), long[:SHORT]
    cores = len(os.sched_getaffinity(0))
    last: dict[str, st.Surrogate] = {}

    def exact(workers: int, engine: Engine = "native") -> None:
        last["exact"] = jax.block_until_ready(
            st.surrogate(example, short, thetas[:SHORT], workers=workers, engine=engine)
        )

    def within(name: str, window: int | st.AutoWindow) -> None:
        last[name] = jax.block_until_ready(st.surrogate(example, long, thetas, window=window, workers=1))

    faster: dict[str, int | st.AutoWindow] = {f"AutoWindow({value:g})": st.AutoWindow(value) for value in TOLERANCES}
    faster[f"window={WINDOW}"] = WINDOW
    functions: dict[str, Callable[[], object]] = {
        "XLA": lambda: exact(1, "xla"),
        "native": lambda: exact(1),
        **{name: partial(within, name, window) for name, window in faster.items()},
    }
    seconds = interleaved(functions, rounds=ROUNDS, clock=time.process_time)
    by_clock = interleaved({"one": lambda: exact(1), "all": lambda: exact(cores)}, rounds=ROUNDS)
    lane_steps = SHORT**2 / 2
    print(f"\nSurrogate gradients of the scalar example, float64, {ROUNDS} rounds")
    for name in ("native", "XLA"):
        each = [1e9 * s / lane_steps for s in seconds[name]]
        median = statistics.median(each)
        print(f"  exact, one thread, {name:6} {min(each):6.1f} ns of CPU time a lane-step, {median:6.1f} in the median")
    gain = [a / b for a, b in zip(by_clock["one"], by_clock["all"], strict=True)]
    print(
        f"  {cores} threads, by the clock: {statistics.median(gain):.2f} times as fast as one, {max(gain):.2f} at best"
    )
    for name in faster:
        speedup = statistics.median(100 * a / b for a, b in zip(seconds["native"], seconds[name], strict=True))
        found = last[name]
        error = float(jnp.max(jnp.linalg.norm(found.gradient[:SHORT] - last["exact"].gradient, axis=1)))
        largest = float(jnp.max(found.gradient_error))
        print(f"  {name} at T = {LONG}: {min(seconds[name]):.2f} s of CPU time, {speedup:.0f} times as fast as exact")
        print(f"    largest error of the first {SHORT} gradients: {error:.1e}; largest estimate: {largest:.1e}")


if __name__ == "__main__":
    main()
