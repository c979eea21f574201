"""The ring in shared memory between an agent and its telemetry writer: one writes, one reads, and nobody waits.

This module is without JAX, because the writer's process must start fast and be small.
"""

import mmap
from collections.abc import Iterator

import numpy as np

HEADER = 128
"""The bytes before the first slot: counters of 64 bits."""
LAYOUT = {"written": 0, "read": 1, "dropped": 2, "closing": 3, "started": 4, "port": 5}
"""The places of the counters."""


class Ring:
    """Slots of one size. Slot k % slots has record k, which begins with the number k.

    The record is complete before the counter `written` counts it. A record that is overwritten while it is read has
    another number afterwards, and is dropped.
    """

    def __init__(self, memory: mmap.mmap, size: int, slots: int):
        self.memory, self.size, self.slots = memory, size, slots
        self.counters = np.frombuffer(memory, np.int64, HEADER // 8)

    def new(self) -> Iterator[bytes]:
        """Yield the records that are new, and count those that were overwritten before they could be read."""
        counters = self.counters
        written = int(counters[LAYOUT["written"]])
        for number in range(int(counters[LAYOUT["read"]]), written):
            begin = HEADER + number % self.slots * self.size
            record = self.memory[begin : begin + self.size]
            # The agent may be writing record `written` now: then the slot of record `written − slots` is not whole.
            if int.from_bytes(record[:8], "little") == number > int(counters[LAYOUT["written"]]) - self.slots:
                yield record
            else:
                counters[LAYOUT["dropped"]] += 1
            counters[LAYOUT["read"]] = number + 1
