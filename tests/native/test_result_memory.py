"""Memory of results is used again, but never while something can read it."""

import gc
import mmap

import jax.numpy as jnp
import numpy as np
import pytest

from selftune.native import result_memory
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


def test_arrays_of_all_sizes_are_aligned_for_jax():
    for size in (3, 1000, SMALLEST, SMALLEST + 1):
        array = result_memory.empty((size,), np.uint8)
        assert array.size == size
        assert address(array) % 64 == 0
