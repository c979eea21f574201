"""Independent pieces of work on all the cores there are: XLA runs outside Python's lock."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeAlias

import jax

from . import arguments

Progress: TypeAlias = Callable[[int, int], Any]
"""Called with (done, total), in lane-steps, as pieces of the work finish."""


def check(workers: Any, progress: Any) -> int:
    """How many threads to use; None is one for each core this process may use."""
    if progress is not None and not callable(progress):
        raise ValueError(f"progress: expected a function of (done, total), got {arguments.describe(progress)}")
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return arguments.count("workers", workers)


class Meter:
    """Counts finished lane-steps, and tells."""

    def __init__(self, progress: Progress | None, total: int = 0):
        self.progress, self.done, self.total = progress, 0, total

    def add(self, work: int) -> None:
        self.done += work
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done))


def run(task: Callable[[Any], Any], items: Sequence[Any], work: Sequence[int], workers: int, meter: Meter) -> list[Any]:
    """`[task(item) for item in items]`, the largest first, on `workers` threads."""
    order = sorted(range(len(items)), key=lambda i: -work[i])
    results: list[Any] = [None] * len(items)

    # These settings are each thread's own: a user's `with` block must hold in the workers too.
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
