"""Compute the tasks of a stored run that are not finished."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..foundation.errors import in_one_line
from ..foundation.executors import Executor, ExecutorError, Meter
from .store import RunStore, Task

Arrays = Mapping[str, Any]


def run_tasks(
    store: RunStore,
    compute: Callable[..., Arrays],
    work: Sequence[int],
    executor: Executor,
    meter: Meter,
    *,
    reports_progress: bool = False,
    arrays_of_failed: Callable[[Task], Arrays] | None = None,
) -> None:
    """Compute and write all pending tasks, those with the most work first, and complete the run.

    After an error or Ctrl-C, finished tasks are stored, and the same call continues from there.

    - `compute`: a function of a task that returns its arrays.
    - `work`: the amount of work of each task of the store. `meter` counts it.
    - `reports_progress`: `compute` has a second argument, a function that it calls with the work done since the last
      call. This needs threads.
    - `arrays_of_failed`: gives the arrays to store of a task that raised an error; then the error is recorded, and
      other tasks continue. By default the error is raised.
    """
    if store.complete:
        return
    amounts = dict(zip(store.tasks, work, strict=True))
    pending = sorted(store.pending(), key=lambda task: -amounts[task])
    meter.total, meter.done = sum(work), sum(work) - sum(amounts[task] for task in pending)

    def receive(task: Task, result: Callable[[], Arrays]) -> None:
        failed = None
        try:
            arrays = result()
        except Exception as error:
            if arrays_of_failed is None or isinstance(error, ExecutorError):
                raise
            arrays, failed = arrays_of_failed(task), in_one_line(error)
        store.write(task, arrays, failed=failed)
        if not reports_progress:
            meter.add(amounts[task])

    meter.add(0)
    executor.run((lambda task: compute(task, meter.add)) if reports_progress else compute, pending, receive)
    store.finish()
