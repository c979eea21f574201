"""Run independent tasks in threads on all cores; threads are enough, because XLA runs without Python's global lock."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeAlias

import jax

from . import arguments
from .errors import ArgumentError

Progress: TypeAlias = Callable[[int, int], Any]
"""A function that is called with (done, total) when tasks finish. Both count lane-steps: steps of single rollouts."""


def check(workers: Any, progress: Any) -> int:
    """Return how many threads to use; None means one for each core that this process may use."""
    if progress is not None and not callable(progress):
        raise ArgumentError("progress", "a function of (done, total)", arguments.describe(progress))
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return arguments.count("workers", workers)


class Meter:
    """A counter of finished lane-steps, which calls `progress`."""

    def __init__(self, progress: Progress | None, total: int = 0):
        self.progress, self.done, self.total = progress, 0, total

    def add(self, work: int) -> None:
        self.done += work
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done))


def run(task: Callable[[Any], Any], items: Sequence[Any], work: Sequence[int], workers: int, meter: Meter) -> list[Any]:
    """Return `[task(item) for item in items]`, computed on `workers` threads, with the most work first."""
    order = sorted(range(len(items)), key=lambda i: -work[i])
    results: list[Any] = [None] * len(items)

    # JAX keeps these settings per thread: set them again in the workers, so that a user's `with` block holds there too.
    x64 = getattr(jax.config, "jax_enable_x64")  # noqa: B009 - pyright does not know JAX's options
    promotion = getattr(jax.config, "jax_numpy_dtype_promotion")  # noqa: B009

    def call(i: int) -> Any:
        with jax.enable_x64(x64), jax.numpy_dtype_promotion(promotion):
            return jax.block_until_ready(task(items[i]))

    if workers == 1 or len(items) <= 1:
        for i in order:
            results[i] = call(i)
            meter.add(work[i])
        return results
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(call, i): i for i in order}
        try:
            for future in as_completed(futures):
                i = futures[future]
                results[i] = future.result()
                meter.add(work[i])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results
