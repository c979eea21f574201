"""Executors: objects that call a function on many items, in threads or in processes.

`sweeps/cluster.py` has one for a Dask cluster. All have the method `run(function, items, receive)`. It calls
`receive(item, result)` in the calling thread for each item, as soon as its call has ended. `result()` returns the
value of `function(item)`, or raises its error. After an error in `receive`, or Ctrl-C, no more calls start. Calls that
have begun in threads or processes are finished, and their values are received; calls on a cluster are cancelled. With
one worker, each call runs in the calling thread inside `result()`, and Ctrl-C stops it.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeAlias

import jax

from . import arguments, jax_settings
from .errors import ArgumentError, InputError

Progress: TypeAlias = Callable[[int, int], Any]
"""A function that is called with (done, total) when work is done, in any unit of work."""
Receive: TypeAlias = Callable[[Any, Callable[[], Any]], None]


class ExecutorError(InputError):
    """A fault of the executor, not of the function that it calls."""


class Executor(Protocol):
    def run(self, function: Callable[[Any], Any], items: Sequence[Any], receive: Receive) -> None: ...


class Threads:
    """Worker threads. They are enough for JAX and the native engine, which run without Python's global lock."""

    def __init__(self, workers: int | None = None, *, retries: int = 0):
        """`workers`: None means one for each core. `retries`: how often a call that raises an error is repeated."""
        self.workers, self.retries = cores() if workers is None else arguments.count("workers", workers), retries

    def run(self, function: Callable[[Any], Any], items: Sequence[Any], receive: Receive) -> None:
        settings = jax_settings.current()

        def call(item: Any) -> Any:
            with jax_settings.applied(settings):
                for _ in range(self.retries):
                    with suppress(Exception):
                        return jax.block_until_ready(function(item))
                return jax.block_until_ready(function(item))

        if self.workers == 1 or len(items) <= 1:
            for item in items:
                receive(item, partial(call, item))
            return
        with ThreadPoolExecutor(self.workers) as pool:
            run_in_pool(partial(pool.submit, call), items, receive, room=lambda: self.workers)

    def map(
        self, function: Callable[[Any], Any], items: Sequence[Any], meter: "Meter", work: Sequence[int] | None = None
    ) -> list[Any]:
        """Return `[function(item) for item in items]`. Calls with the most `work` (by default 1) start first."""
        amounts = [1] * len(items) if work is None else work
        results = [None] * len(items)

        def receive(i: int, result: Callable[[], Any]) -> None:
            results[i] = result()
            meter.add(amounts[i])

        self.run(lambda i: function(items[i]), sorted(range(len(items)), key=lambda i: -amounts[i]), receive)
        return results


class Processes:
    """Worker processes, for Python loops, which hold Python's global lock. The function must be defined at the top
    level of a module."""

    def __init__(self, workers: int | None = None):
        self.workers = cores() if workers is None else arguments.count("workers", workers)

    def run(self, function: Callable[[Any], Any], items: Sequence[Any], receive: Receive) -> None:
        if self.workers == 1 or len(items) <= 1:
            for item in items:
                receive(item, partial(function, item))
            return
        import multiprocessing  # loaded here, because `simulate` needs only threads
        from concurrent.futures import ProcessPoolExecutor

        spawn, settings = multiprocessing.get_context("spawn"), jax_settings.current()
        with ProcessPoolExecutor(self.workers, spawn, initializer=_start_process, initargs=(settings,)) as pool:
            run_in_pool(partial(pool.submit, function), items, receive, room=lambda: self.workers)


def run_in_pool(
    submit: Callable[[Any], Future[Any]], items: Sequence[Any], receive: Receive, *, room: Callable[[], int]
) -> None:
    """Submit all items, at most `room()` at a time, so that after an error few calls are still in
    the pool's own queue, which it does not cancel."""
    waiting, running = deque(items), dict[Future[Any], Any]()

    def fill() -> None:
        places = room() - len(running) if waiting else 0
        for _ in range(min(places, len(waiting))):
            item = waiting.popleft()
            running[submit(item)] = item

    try:
        fill()
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                item = running.pop(future)
                try:
                    if not future.cancelled():  # otherwise the connection to a cluster is lost
                        fill()
                finally:
                    receive(item, future.result)
    except BaseException:
        for future, item in running.items():
            if not future.cancel() and future.exception() is None:
                with suppress(Exception):  # the first error is raised; the other results are still received
                    receive(item, future.result)
        raise


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Meter:
    """A counter of finished work, which calls `progress`. Any thread may add to it."""

    def __init__(self, progress: Progress | None, total: int = 0):
        if progress is not None and not callable(progress):
            raise ArgumentError("progress", "a function of (done, total)", arguments.describe(progress))
        self.progress, self.total, self.done, self._lock = progress, total, 0, threading.Lock()

    def add(self, work: int) -> None:
        with self._lock:
            self.done += work
            if self.progress is not None:
                self.progress(self.done, max(self.total, self.done))


def _start_process(settings: Mapping[str, Any]) -> None:
    """Set up a worker process: the owner's settings of JAX, no reaction to Ctrl-C, and an end when the owner ends."""
    import multiprocessing

    for name, value in settings.items():
        jax.config.update(name, value)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # faster for many small calls
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner handles Ctrl-C
    owner = multiprocessing.parent_process()

    def follow() -> None:
        if owner is not None:
            owner.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
