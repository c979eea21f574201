"""Memory for the results of runs, which is used again.

The kernel gives a process new memory page by page, and clears each page: this takes longer than many steps whose
results fit in the page. So the memory of large results that nobody uses any more is kept for the next results. The
kernel is told that it may take these pages back whenever it needs memory.
"""

import contextlib
import mmap
import os
import weakref
from typing import Any

import numpy as np

SMALLEST = 1 << 20
"""Smaller results use ordinary memory."""
MOST_KEPT = 1 << 31
"""At most so many bytes are kept without use, and at most a quarter of the machine's memory."""
ROOM = 1.25
"""Memory of at most this many times the needed size is used again."""


class _Lease:
    """Memory in use: an array has it as its base, so it lives as long as the array and its views."""

    def __init__(self, memory: mmap.mmap):
        address = np.frombuffer(memory, np.uint8).ctypes.data
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": (len(memory),), "typestr": "|u1"}


class Memory:
    """Memory of results that are no longer used, kept for the next results.

    There is no lock: the garbage collector and a signal may run other code between any two lines, which may make and
    drop results itself, and a fork copies a lock that another thread holds. `dict.pop` is atomic, so only one caller
    gets a memory.
    """

    def __init__(self, most_kept: int):
        self._most_kept = most_kept
        self._idle: dict[int, mmap.mmap] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialized array at the begin of a page."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        memory = self._take(size)
        lease = _Lease(memory)
        weakref.finalize(lease, self._give_back, memory).atexit = False
        return np.asarray(lease)[:size].view(dtype).reshape(shape)

    def kept(self) -> int:
        """Return the number of bytes that are kept without use."""
        return sum(map(len, list(self._idle.values())))

    def _take(self, size: int) -> mmap.mmap:
        fitting = [(len(memory), key) for key, memory in list(self._idle.items())]
        for _, key in sorted(pair for pair in fitting if size <= pair[0] <= ROOM * size):
            memory = self._idle.pop(key, None)
            if memory is not None:  # nobody else has taken it meanwhile
                return memory
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # the kernel has no large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def _give_back(self, memory: mmap.mmap) -> None:
        try:
            memory.madvise(mmap.MADV_FREE)
        except OSError:  # the kernel could not take the memory back
            return
        self._idle[id(memory)] = memory
        while self.kept() > self._most_kept:
            oldest = next(iter(list(self._idle)), None)
            if oldest is not None:
                self._idle.pop(oldest, None)


def _memory() -> Memory | None:
    """Return the process's memory of results; None where the kernel cannot take pages back."""
    if not all(hasattr(mmap, name) for name in ("MADV_FREE", "MADV_HUGEPAGE")):
        return None
    return Memory(min(MOST_KEPT, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4))


_KEPT = _memory()


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialized array, aligned so that JAX can use it without a copy."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if _KEPT is not None and size >= SMALLEST:
        return _KEPT.empty(shape, dtype)
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)
