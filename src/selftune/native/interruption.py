"""Calls into C that Ctrl-C can interrupt: Python reacts only between two calls, so each call takes a short time."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..foundation import executors

SECONDS = 0.1
"""The time that a call into C should take."""
FIRST = 64
"""The number of steps of the first call, whose time is not known: few enough for the largest programs."""
GROWTH = 8
"""The largest ratio of the steps of two calls in a row: the time of a short call may be far from the mean."""


class Interruption:
    """A switch that ends the runs of several threads at their next call into C."""

    def __init__(self):
        self._is_set = threading.Event()

    def is_set(self) -> bool:
        return self._is_set.is_set()

    def calls(self, steps: int) -> Iterator[tuple[int, int]]:
        """Yield the first and the last step (exclusive) of each call; one call without steps if there are none."""
        begin, size = 0, FIRST
        while not self._is_set.is_set():
            end, started = min(begin + size, steps), time.perf_counter()
            yield begin, end
            if end >= steps:
                return
            took = max(time.perf_counter() - started, 1e-9)
            most = min(GROWTH * size, int(size * SECONDS / took))
            # Rows begin where vectors may begin, as long as a call is not too short for that.
            begin, size = end, most // FIRST * FIRST if most > FIRST else max(1, most)

    def run_all(self, run: Callable[[Any], None], items: Sequence[Any], workers: int | None = None) -> None:
        """Call a function on all items, in threads: by default, one for each core. After an interrupt or an error, all
        calls end soon."""
        workers = executors.cores() if workers is None else workers
        if workers == 1 or len(items) <= 1:
            for item in items:
                run(item)
            return
        pool = ThreadPoolExecutor(workers)
        try:
            list(pool.map(run, items))
        except BaseException:
            self._is_set.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)  # start no more runs
