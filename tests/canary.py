"""What XLA once got wrong, computed by the installed JAX and by NumPy: `python -m tests.canary`.

Run in a process of its own, since the tests turn off the optimizations that were at fault.
"""

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from selftune.robots import arm, car, quadrotor

SHAPES = [(3, 3), (4, 6), (2, 5), (6, 4), (8, 8)]
ROWS = {np.float64: (16_385, 20_000, 40_000), np.float32: (20_000, 32_769, 40_000)}
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-4}
"""Of the largest number: sums of 8 products are more exact by far, and wrong rows are wrong in the first digit."""
FUNCTIONS = {
    "sum of squares": (lambda y: jnp.sum(y**2), lambda y: np.sum(y**2, axis=1)),
    "sum": (jnp.sum, lambda y: np.sum(y, axis=1)),
    "largest": (jnp.max, lambda y: np.max(y, axis=1)),
}


def wrong_rows() -> list[str]:
    """jax-ml/jax#39103: from a row on, a reduced product of a matrix and a vector is another row's."""
    rng, wrong = np.random.default_rng(0), []
    for dtype, counts in ROWS.items():
        for shape in SHAPES:
            for rows in counts:
                M = rng.standard_normal(shape).astype(dtype)
                X = rng.standard_normal((rows, shape[1])).astype(dtype)
                got = {name: jax.jit(jax.vmap(lambda x, M=M, f=f: f(M @ x)))(X) for name, (f, _) in FUNCTIONS.items()}
                wrong += _differences(got, X @ M.T, f"{dtype.__name__}, M of {shape}, {rows} rows", TOLERANCE[dtype])
    return wrong


def _differences(got: dict[str, Any], products: np.ndarray, where: str, tolerance: float) -> list[str]:
    found = []
    for name, (_, expect) in FUNCTIONS.items():
        want = expect(products.astype(np.float64))
        bad = ~(np.abs(np.asarray(got[name]) - want) <= tolerance * np.abs(want).max())
        if bad.any():
            found.append(f"{name}, {where}: {bad.sum()} wrong, the first is row {np.argmax(bad)}")
    return found


def growth(short: int = 2_000, factor: int = 16) -> float:
    """jax-ml/jax#40101: how much longer a scan that stacks its outputs takes for `factor` times as many steps."""

    def step(x, w):
        x = 0.9 * x + w
        return x, (x, x * w, jnp.sum(x**2))

    scan = jax.jit(lambda x, w: jax.lax.scan(step, x, w))

    def seconds(steps: int) -> float:
        w = jnp.zeros((steps, 3))
        times = []
        for _ in range(6):  # the first compiles
            start = time.perf_counter()
            jax.block_until_ready(scan(jnp.zeros(3), w))
            times.append(time.perf_counter() - start)
        return min(times[1:])

    return seconds(factor * short) / seconds(short)


def robot_rows(rows: int = 30_000, block: int = 1_000) -> list[str]:
    """A drive's costs and errors, computed in one batch as `robots.base.drive` does, against blocks of few rows."""
    rng, wrong = np.random.default_rng(1), []
    for make in (arm.make, quadrotor.make, car.make):
        robot = make()
        n = robot.make_scenario(2, jax.random.key(0)).x0.size
        m = robot.system.check(np.zeros(n), robot.theta, robot.a_hat, 0).m
        x, u = 0.1 * rng.standard_normal((rows, n)), rng.standard_normal((rows, m))
        theta, t = np.tile(robot.theta, (rows, 1)), np.arange(rows)
        given = (x, u, theta, t)

        @jax.jit
        def judge(x, u, theta, t, robot=robot):
            return jax.vmap(robot.system.cost)(x, u, theta, t), jax.vmap(robot.error)(x, t)

        parts = [judge(*(array[i : i + block] for array in given)) for i in range(0, rows, block)]
        blocks = (np.concatenate(part) for part in zip(*parts, strict=True))
        for name, got, want in zip(("cost", "error"), judge(*given), blocks, strict=True):
            bad = ~(np.abs(np.asarray(got) - want) <= 1e-12 * np.abs(want).max())
            if bad.any():
                wrong.append(f"{name} of the {robot.name}: {bad.sum()} of {rows} rows are wrong")
    return wrong


if __name__ == "__main__":
    wrong = wrong_rows() + robot_rows()
    # Measured: 4 to 8 times as long for 16 times as many steps, and 190 times with the fault.
    if (times := growth()) > 60:
        wrong.append(f"a scan of 16 times as many steps takes {times:.0f} times as long")
    print(f"JAX {jax.__version__}")
    sys.exit("\n".join(wrong) or 0)
