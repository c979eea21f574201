"""The tasks of a stored run that are not done yet, on all cores."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..regret import _parallel
from ..store import RunStore, Task

Compute = Callable[[Task, Callable[[int], Any]], Mapping[str, Any]]
"""(task, tell) to the task's arrays; it calls `tell` with the work it has done, as it goes."""


def run_tasks(
    store: RunStore,
    compute: Compute,
    work: Sequence[int],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> None:
    """Compute and write each task that has no marker, the longest first, and complete the run."""
    workers = _parallel.check(workers, progress)
    if store.complete:
        return
    sizes = dict(zip(store.tasks, work, strict=True))
    pending = [task for task in store.tasks if not store.done(task)]
    done, total, guard = sum(work) - sum(sizes[task] for task in pending), sum(work), threading.Lock()

    def tell(amount: int) -> None:
        nonlocal done
        with guard:
            done += amount
            if progress is not None:
                progress(done, total)

    def one(task: Task) -> None:
        store.write(task, jax.device_get(compute(task, tell)))

    tell(0)
    _parallel.run(one, pending, [sizes[task] for task in pending], workers, _parallel.Meter(None))
    store.finish()
