"""Run the unfinished tasks of a stored run on all cores."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any

import jax

from ..foundation import worker_pool
from .store import RunStore, Task

Compute = Callable[[Task, Callable[[int], Any]], Mapping[str, Any]]
"""A function of (task, tell) that returns the task's arrays. It calls `tell` with the work done since the last call."""


def run_tasks(
    store: RunStore,
    compute: Compute,
    work: Sequence[int],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> None:
    """Compute and write all pending tasks, the longest first, and complete the run."""
    workers = worker_pool.check(workers, progress)
    if store.complete:
        return
    sizes = dict(zip(store.tasks, work, strict=True))
    pending = store.pending()
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
    worker_pool.run(one, pending, [sizes[task] for task in pending], workers, worker_pool.Meter(None))
    store.finish()


def run_in_processes(
    store: RunStore,
    compute: Callable[[Any, Task], Mapping[str, Any]],
    settings: Any,
    work: Sequence[int],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> None:
    """Run `compute(settings, task)` for all pending tasks in processes. For Python loops, which hold Python's lock.

    `compute` is a function of a module. Tasks run in order. After an interruption, running tasks are finished and
    written.
    """
    workers = worker_pool.check(workers, progress)
    if store.complete:
        return
    sizes = dict(zip(store.tasks, work, strict=True))
    pending = store.pending()
    done, total = sum(work) - sum(sizes[task] for task in pending), sum(work)

    def keep(task: Task, arrays: Mapping[str, Any]) -> None:
        nonlocal done
        store.write(task, arrays)
        done += sizes[task]
        if progress is not None:
            progress(done, total)

    if progress is not None:
        progress(done, total)
    if workers == 1 or len(pending) <= 1:
        for task in pending:
            keep(task, compute(settings, task))
    else:
        x64 = getattr(jax.config, "jax_enable_x64")  # noqa: B009 - pyright does not know JAX's options
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker, initargs=(x64,)) as pool:
            running: dict[Future[Mapping[str, Any]], Task] = {}
            try:
                # Submit no more tasks than can run, because tasks in the pool's own queue could not be cancelled.
                while pending or running:
                    while pending and len(running) < workers:
                        task = pending.pop(0)
                        running[pool.submit(compute, settings, task)] = task
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        keep(running.pop(future), future.result())
            except BaseException:
                for future, task in running.items():
                    if future.exception() is None:
                        keep(task, future.result())
                raise
    store.finish()


def _start_worker(x64: bool) -> None:
    """Set up a worker process: the owner's precision, no reaction to Ctrl-C, and an end when the owner ends."""
    jax.config.update("jax_enable_x64", x64)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # faster for many small calls
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner handles Ctrl-C
    owner = multiprocessing.parent_process()

    def follow() -> None:
        if owner is not None:
            owner.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
