"""The cost of surrogate gradients on the paper's example, in float64.

    python -m benchmarks.regret

1. Exact: nanoseconds a lane-step (T²/2 of them for T steps), on one core and on all, at T = 20,000.
2. `window=AutoWindow(1e-9)`, at T = 200,000, against the exact one at T = 20,000 scaled up by 10² = 100.

Compilation is not counted. All is measured in one run, in turns, so that a busy machine hits all alike.
"""

import os
import statistics

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune.experiments import paper

from ._measure import interleaved

SHORT, LONG = 20_000, 200_000
ROUNDS = 3


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

    def exact(workers: int) -> None:
        last["exact"] = st.surrogate(example, short, thetas[:SHORT], workers=workers)

    def auto() -> None:
        last["auto"] = st.surrogate(example, long, thetas, window=st.AutoWindow(1e-9))

    # What a lane-step cannot do without here: the residual's sines and the cosines of its derivative, and nothing else.
    fixed = st.Controller(example, st.Fixed(), st.Known())
    imagined = st.simulate(fixed, short[:512], theta=thetas[-1], record=("x",)).x[:, 0]

    @jax.jit
    def trigonometry(x: jax.Array) -> jax.Array:
        def step(_, z):
            y = x + 1e-9 * z.imag
            return jax.lax.complex(jnp.sin(y) + jnp.sin(2 * y), jnp.cos(y) + jnp.cos(2 * y))

        return jax.lax.fori_loop(0, SHORT, step, x.astype(complex))

    seconds = interleaved(
        {
            "sines": lambda: jax.block_until_ready(trigonometry(imagined)),
            "one": lambda: exact(1),
            "all": lambda: exact(cores),
            "auto": auto,
        },
        rounds=ROUNDS,
    )
    lane_steps = SHORT**2 / 2
    print(f"\nSurrogate gradients of the scalar example, float64, {cores} cores, {ROUNDS} rounds")
    for name, label in (("one", "exact, one thread"), ("all", f"exact, {cores} threads")):
        each = [1e9 * s / lane_steps for s in seconds[name]]
        print(f"  {label:24} {min(each):6.1f} ns a lane-step at best, {statistics.median(each):6.1f} in the median")
    each = [1e9 * s / (SHORT * imagined.size) for s in seconds["sines"]]
    print(f"  {'its sin and cos alone':24} {min(each):6.1f} ns at best, {statistics.median(each):6.1f} in the median")
    gain = statistics.median(a / b for a, b in zip(seconds["one"], seconds["all"], strict=True))
    print(f"  {'threads gain':24} {gain:6.2f}×")
    speedup = [100 * a / b for a, b in zip(seconds["all"], seconds["auto"], strict=True)]
    window = np.asarray(last["auto"].window)
    used = window[window < np.arange(LONG)]
    print(f"  auto at T = {LONG}: {min(seconds['auto']):.1f} s at best, windows of {used.min()} to {used.max()} steps")
    print(f"  exact at T = {SHORT} × 100, over auto: {statistics.median(speedup):.0f}× in the median of rounds")
    error = float(jnp.max(jnp.linalg.norm(last["auto"].gradient[:SHORT] - last["exact"].gradient, axis=1)))
    largest = float(jnp.max(last["auto"].gradient_error))
    print(f"  largest error of auto's first {SHORT} gradients: {error:.1e}; largest estimate: {largest:.1e}")


if __name__ == "__main__":
    main()
