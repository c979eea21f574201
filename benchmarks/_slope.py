"""How the local regret of the paper's example grows with T, for a learning rate proportional to T^(-1/2).

    python -m benchmarks._slope [seeds] [T …]

The paper's simulation appendix: a* redrawn every 40,000 steps, Ornstein–Uhlenbeck disturbances, M-GAPS with the
gradient estimator. Surrogate gradients with `window="auto"`. The slope is that of log R_L against log T by least
squares, with a bootstrap interval over seeds.
"""

import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune.experiments import paper

HORIZONS = (2_000, 6_300, 20_000, 63_000, 200_000)


class Slope(NamedTuple):
    regret: np.ndarray
    """(seeds, horizons)."""
    slope: float
    low: float
    high: float


def scenario(key: jax.Array, steps: int) -> st.Scenario:
    periods = -(-steps // paper.Settings.period)
    return paper.scenario(paper.Settings(periods=periods), key)[:steps]


def measure(seeds: int, horizons: tuple[int, ...] = HORIZONS, report=lambda text: None) -> Slope:
    example, box = paper.example_system(), st.Box(0.1, 50.0)
    regret = np.zeros((seeds, len(horizons)))
    keys = jax.random.split(jax.random.key(2024), seeds)
    for j, steps in enumerate(horizons):
        begin, rate = time.perf_counter(), 1e-2 / steps**0.5  # 1e-4, the paper's, at T = 10,000
        estimator = st.GradientEstimator(0.005, constraint=st.Box(-0.25, 0.25))
        controller = st.Controller(example, st.MGAPS(rate, constraint=box), estimator)
        for i in range(seeds):
            nature = scenario(keys[i], steps)
            run = st.simulate(controller, nature, theta=jnp.ones(1), a_hat=jnp.zeros(3), record=("theta",))
            local = st.local_regret(
                example, nature, run.theta, learning_rate=rate, constraint=box, window="auto", tolerance=1e-6
            )
            regret[i, j] = float(local.cumulative[-1])
        report(
            f"T = {steps:>7}: R_L = {regret[:, j].mean():.4g} (sd {regret[:, j].std():.2g}), R_L/T = "
            f"{regret[:, j].mean() / steps:.4g}, {time.perf_counter() - begin:.0f} s"
        )
    logs = np.log(np.array(horizons))
    weights = (logs - logs.mean()) / np.sum((logs - logs.mean()) ** 2)
    each = np.log(regret) @ weights
    band = st.bands(each, key=jax.random.key(1))
    return Slope(regret, float(band.mean), float(band.low), float(band.high))


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    numbers = [int(argument) for argument in sys.argv[1:]]
    seeds, horizons = numbers[0] if numbers else 16, tuple(numbers[1:]) or HORIZONS
    found = measure(seeds, horizons, report=lambda text: print(text, flush=True))
    print(f"slope {found.slope:.4f}, 95 % interval [{found.low:.4f}, {found.high:.4f}], {seeds} seeds")


if __name__ == "__main__":
    main()
