"""The plan of `surrogate`: which steps have exact rollouts (from step 0), which have a window, and how long it is."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

TRIALS = 16
"""The number of places of the run where `measured` tries windows."""
TRIAL_LANES = 32


class RolloutPlan(NamedTuple):
    """Windowed blocks, each (first lane, window), that tile [start, T), and the exact ranges.

    The lanes from `start` to 2 `start` are windowed *and* exact. Their values are the exact ones; the windowed ones
    provide the error estimates that later lanes need.
    """

    start: int
    steps: int
    size: int
    blocks: list[tuple[int, int]]
    exact: list[tuple[int, int]]

    @property
    def longest(self) -> int:
        return max(window for _, window in self.blocks)

    def counted(self) -> list[tuple[int, int]]:
        """The range of lanes of each block that count. The last block begins early, so that it ends at T."""
        return [(max(0, self.start + i * self.size - first), self.size) for i, (first, _) in enumerate(self.blocks)]

    def is_exact(self) -> np.ndarray:
        """Whether each lane is exact."""
        lanes = np.zeros(self.steps, bool)
        for a, b in self.exact:
            lanes[a:b] = True
        return lanes

    def windows(self) -> np.ndarray:
        """How many steps before lane t its rollout begins."""
        lanes = np.arange(self.steps)
        for (first, window), (a, b) in zip(self.blocks, self.counted(), strict=True):
            lanes[first + a : first + b] = window
        return np.where(self.is_exact(), np.arange(self.steps), lanes)


def fixed(window: int, steps: int, size: int) -> RolloutPlan:
    """The plan with the same window for all blocks."""
    return _tile(window, steps, size, lambda first, last: window)


def measured(
    steps: int, size: int, tolerance: float, trial: Callable[[int, int, int], tuple[float, float]]
) -> RolloutPlan:
    """The plan with windows that are chosen by trials at a few places of the run."""
    places = np.unique(np.linspace(0, steps - TRIAL_LANES, TRIALS + 1).astype(int)[1:])
    needed = np.zeros(len(places))
    window = 32
    for i in reversed(range(len(places))):
        needed[i] = window = _needed(int(places[i]), max(8, int(window)), tolerance, trial)

    def around(first: int, last: int) -> int:
        before, after = np.searchsorted(places, first, "right") - 1, np.searchsorted(places, last, "left")
        return int(np.max(needed[max(0, before) : after + 1]) * 1.15) + 8

    # A rollout of t steps is cheaper than a window of t / 2 with its twin, so shorter rollouts are exact.
    begin = around(0, 0)
    while any(2 * around(first, first + size) > first for first in range(2 * begin, steps, size)) and 2 * begin < steps:
        begin = int(1.5 * begin) + 1
    return _tile(begin, steps, size, around)


def _needed(place: int, window: int, tolerance: float, trial: Callable[[int, int, int], tuple[float, float]]) -> int:
    """The approximate minimal window at one place; `place` itself if no window up to half of it suffices."""
    while 2 * window <= place:
        error, rate = trial(place, window, TRIAL_LANES)
        if error <= tolerance:
            # How much shorter the window could be. All blocks around this place become cheaper as well.
            spare = math.log(tolerance / max(error, 1e-300)) / -math.log(min(max(rate, 1e-12), 1 - 1e-12))
            return max(1, window - int(0.9 * min(spare, window / 2)))
        more = math.log(error / tolerance) / -math.log(min(rate, 1 - 1e-12)) if math.isfinite(error) else window
        window += max(1, min(int(1.05 * more) + 4, 3 * window))
    return place


def repaired(plan: RolloutPlan, errors: np.ndarray, tolerance: float) -> RolloutPlan | None:
    """The plan with longer windows, or exact ranges, where errors exceed the tolerance; None if none does."""
    bad = ~(errors <= tolerance) & ~plan.is_exact()
    if not bad.any():
        return None
    blocks, exact = [], list(plan.exact)
    for (first, window), (a, b) in zip(plan.blocks, plan.counted(), strict=True):
        if bad[first + a : first + b].any():
            longer = int(1.3 * window) + 8
            if 2 * longer > first:
                exact.append((first + a, first + b))
            else:
                window = longer
        blocks.append((first, window))
    return plan._replace(blocks=blocks, exact=exact)


def _tile(window: int, steps: int, size: int, around: Callable[[int, int], int]) -> RolloutPlan:
    start = window
    if 2 * start >= steps:
        return RolloutPlan(start, steps, size, [], [(0, steps)])
    size = min(size, steps - start)
    blocks = []
    for begin in range(start, steps, size):
        first = min(begin, steps - size)
        blocks.append((first, min(window if begin < 2 * start else around(begin, begin + size), first)))
    return RolloutPlan(start, steps, size, blocks, [(0, 2 * start)])
