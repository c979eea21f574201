"""The tasks of a stored run: which are computed, in which order, and what an error or Ctrl-C leaves behind."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selftune.foundation.executors import ExecutorError, Meter, Threads
from selftune.storage.store import Layout, RunStore, Variable, open_run
from selftune.storage.tasks import run_tasks

LAYOUT = Layout(("seed",), {"seed": np.arange(6)}, {"square": Variable(("seed",), "float64")})
WORK = [1, 2, 3, 4, 5, 6]


def begin(folder):
    return RunStore.begin(folder, kind="run", settings={}, layout=LAYOUT)


def square(task):
    return {"square": np.asarray(float(task[0] ** 2))}


def nothing(task):
    return {"square": np.asarray(np.nan)}


def run(folder, compute=square, workers=1, progress=None, **options):
    with begin(folder) as store:
        run_tasks(store, compute, WORK, Threads(workers), Meter(progress), **options)


def done(folder):
    store = RunStore(folder)
    return [task[0] for task in store.tasks if store.done(task)]


def test_most_work_comes_first_and_finished_tasks_are_not_computed_again(tmp_path):
    order, calls = [], []
    with begin(tmp_path) as store:
        store.write((4,), square((4,)))

    def compute(task):
        order.append(task[0])
        return square(task)

    run(tmp_path, compute, progress=lambda *now: calls.append(now))
    assert order == [5, 3, 2, 1, 0]
    assert calls == [(5, 21), (11, 21), (15, 21), (18, 21), (20, 21), (21, 21)]
    np.testing.assert_array_equal(open_run(tmp_path)[0].square, np.arange(6) ** 2)


def test_a_task_may_report_its_own_progress(tmp_path):
    calls = []

    def compute(task, tell):
        tell(task[0])
        tell(1)
        return square(task)

    run(tmp_path, compute, workers=3, progress=lambda *now: calls.append(now), reports_progress=True)
    assert max(calls) == (21, 21)
    assert len(calls) == 1 + 2 * 6  # at the start, and twice in each task


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_running_tasks_are_stored_and_no_more_start(tmp_path, error):
    both, begun, stopped = threading.Barrier(2), [], threading.Event()

    def compute(task):
        begun.append(task[0])
        if task[0] >= 4:
            both.wait(10)
        if task[0] < 5:
            assert stopped.wait(10)  # these run while the error is raised
        return square(task)

    def progress(at, total):
        if at == 6:  # task 5 is stored
            stopped.set()
            raise error

    with pytest.raises(error):
        run(tmp_path, compute, workers=2, progress=progress)
    assert done(tmp_path) == sorted(begun)
    assert begun[2:] == [3]
    run(tmp_path)
    np.testing.assert_array_equal(open_run(tmp_path)[0].square, np.arange(6) ** 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_or_recorded_and_a_fault_of_the_executor_is_never_recorded(tmp_path, workers):
    def compute(task):
        if task[0] == 2:
            raise RuntimeError("two\nlines")
        return square(task)

    with pytest.raises(RuntimeError, match="two"):
        run(tmp_path / "raised", compute, workers)
    assert 2 not in done(tmp_path / "raised")
    run(tmp_path / "recorded", compute, workers, arrays_of_failed=nothing)
    store = RunStore(tmp_path / "recorded")
    assert store.complete
    assert store.failures() == {(2,): "RuntimeError: two"}

    def lost(task):
        raise ExecutorError("lost")

    with pytest.raises(ExecutorError):
        run(tmp_path / "lost", lost, workers, arrays_of_failed=nothing)
    assert done(tmp_path / "lost") == []


def test_a_call_that_raises_is_repeated(tmp_path):
    errors = iter([ValueError("first"), ValueError("second")])

    def call(item):
        if error := next(errors, None):
            raise error
        return item

    assert Threads(1, retries=2).map(call, ["x"], Meter(None)) == ["x"]


def test_threads_have_the_settings_of_their_caller():
    def dtype(item):
        return jnp.zeros(()).dtype.name, str(jax.random.key_impl(jax.random.key(0)))

    with jax.enable_x64(False), jax.default_prng_impl("rbg"):
        assert Threads(2).map(dtype, [0, 1], Meter(None)) == [("float32", "rbg")] * 2
    with jax.enable_x64(True):
        assert [name for name, _ in Threads(2).map(dtype, [0, 1], Meter(None))] == ["float64"] * 2
