"""Memory of results is used again, but never while something can read it."""

import gc
import mmap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.native import interruption, result_memory
from selftune.native.result_memory import ROOM, SMALLEST, Memory

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_FREE"), reason="the kernel cannot take pages back")
SIZE = 2 * SMALLEST


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_memory_is_used_again_by_results_of_about_the_same_size():
    memory = Memory(most_kept=4 * SIZE)
    first = memory.empty((SIZE // 8,), np.float64)
    place = address(first)
    del first
    gc.collect()
    assert memory.kept() == SIZE
    assert address(memory.empty((int(SIZE / ROOM) - 100_000,), np.uint8)) != place  # much smaller
    gc.collect()
    second = memory.empty((2, SIZE // 9), np.uint32)
    assert address(second) == place
    assert second.shape == (2, SIZE // 9)


def test_memory_in_use_is_not_given_away():
    memory = Memory(most_kept=4 * SIZE)
    array = memory.empty((SIZE // 8,), np.float64)
    array[:] = np.arange(array.size)
    view, place = array[5::7].reshape(-1, 1), address(array)
    del array
    gc.collect()
    other = memory.empty((SIZE // 8,), np.float64)
    assert address(other) != place
    other[:] = -1.0
    assert view[1, 0] == 12.0
    del view
    gc.collect()
    assert address(memory.empty((SIZE // 8,), np.float64)) == place


def test_a_jax_array_keeps_its_memory():
    memory = Memory(most_kept=4 * SIZE)
    array = memory.empty((SIZE // 8,), np.float64)
    array[:] = 3.0
    place = address(array)
    in_jax = jnp.from_dlpack(array)
    assert in_jax.unsafe_buffer_pointer() == place  # no copy
    del array
    gc.collect()
    memory.empty((SIZE // 8,), np.float64)[:] = 4.0
    assert float(in_jax[-1]) == 3.0


def test_no_more_is_kept_than_allowed():
    memory = Memory(most_kept=2 * SIZE)
    arrays = [memory.empty((SIZE,), np.uint8) for _ in range(4)]
    arrays.clear()
    gc.collect()
    assert memory.kept() == 2 * SIZE


def test_code_that_runs_in_between_gets_other_memory():
    """The garbage collector or a signal may run code that makes results, while a result is being made."""
    memory, nested, code = Memory(most_kept=8 * SIZE), [], []

    class Interrupted(mmap.mmap):
        def __len__(self):
            if code:
                nested.append(code.pop()((SIZE,), np.uint8))
            return super().__len__()

    memory._give_back(Interrupted(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    code.append(memory.empty)
    outer = memory.empty((SIZE,), np.uint8)
    outer[:], nested[0][:] = 1, 2
    assert outer.max() == 1
    assert memory.kept() == 0


def test_memory_that_the_kernel_has_taken_back():
    """Under memory pressure the kernel takes idle pages, whenever it likes; those in use keep their numbers."""
    page_out = 21  # MADV_PAGEOUT of Linux does at once what memory pressure does
    memory = Memory(most_kept=8 * SIZE)
    held, idle = memory.empty((SIZE // 8,), np.float64), memory.empty((SIZE // 8,), np.float64)
    held[:] = idle[:] = np.arange(held.size)
    place = address(idle)
    del idle
    gc.collect()
    for pages in memory._idle.values():
        try:
            pages.madvise(page_out)
        except OSError:
            pytest.skip("the kernel is older than 5.4")
    again = memory.empty((SIZE // 8,), np.float64)
    assert address(again) == place
    assert again[-1] in (0.0, held[-1])  # the kernel gives a page of zeros, or the old one
    again[: SIZE // 16] = 5.0
    again[SIZE // 16 :] = 6.0
    np.testing.assert_array_equal(np.unique(again), [5.0, 6.0])
    np.testing.assert_array_equal(held, np.arange(held.size))


def test_every_byte_of_a_result_is_written(monkeypatch):
    """Whatever the memory had before: also rows after a failure, and with a stride."""
    steps = SMALLEST // 8 + 77
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: jnp.where(t < steps // 2, x + 0.1 * v, 3.0 * x + 1.0),
        residual=lambda x, a, t: a,
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    controller = st.Controller(system, st.Fixed(), st.GradientEstimator(0.1))
    scenario = st.Scenario(jnp.ones(1), jnp.ones((steps, 1)), jnp.zeros((steps, 1)))

    def run(stride):
        start = {"theta": jnp.ones(1), "a_hat": jnp.zeros(1)}
        made = st.simulate(controller, scenario, **start, stride=stride, throw=False, engine="native")
        assert made.result.message != "ok"
        return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(made.recorded)]

    monkeypatch.setattr(result_memory, "_KEPT", Memory(most_kept=64 * SIZE))
    for stride in (1, 3):
        first = run(stride)
        gc.collect()
        dirty = [result_memory.empty((size,), np.uint8) for size in range(SMALLEST, 2 * SMALLEST, SMALLEST // 8)]
        for array in dirty:
            array[:] = 0xA5
        dirty.clear()
        gc.collect()
        assert run(stride) == first


def test_memory_of_threads_that_still_run_is_not_used_again(monkeypatch):
    """A second Ctrl-C ends the wait for the threads; they write for another tenth of a second."""
    steps = SMALLEST // 8
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.5 * x + 0.1 * v,
        residual=lambda x, a, t: a,
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    controller = st.Controller(system, st.Fixed(), st.GradientEstimator(0.1))
    scenario = st.Scenario(jnp.ones(1), jnp.ones((steps, 1)), jnp.zeros((steps, 1)))
    monkeypatch.setattr(result_memory, "_KEPT", Memory(most_kept=64 * SIZE))
    going_on, threads, places = threading.Event(), [], []
    given = result_memory.empty

    def noted(shape, dtype):
        array = given(shape, dtype)
        if array.nbytes >= SMALLEST:
            places.append(address(array))
        return array

    def leave(self, run, items, workers=None):
        def late():
            going_on.wait(20)
            for item in items:
                run(item)

        threads.append(threading.Thread(target=late))
        threads[0].start()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(result_memory, "empty", noted)
        patched.setattr(interruption.Interruption, "run_all", leave)
        with pytest.raises(KeyboardInterrupt):
            st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1), record=("x",), engine="native")
    gc.collect()
    others = [given((steps,), np.float64) for _ in range(8)]
    assert places
    assert not {address(array) for array in others} & set(places)
    for array in others:
        array[:] = 7.0
    going_on.set()
    threads[0].join()
    assert all((array == 7.0).all() for array in others)


def test_arrays_of_all_sizes_are_aligned_for_jax():
    for size in (3, 1000, SMALLEST, SMALLEST + 1):
        array = result_memory.empty((size,), np.uint8)
        assert array.size == size
        assert address(array) % 64 == 0
