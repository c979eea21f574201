"""Interleaved timing: everything that is compared takes its turn in every round, so that noise hits all alike."""

import statistics
import time
from collections.abc import Callable


def interleaved(
    functions: dict[str, Callable[[], object]], rounds: int = 9, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each call, a list a function, after one call to warm up."""
    for function in functions.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = clock()
            function()
            seconds[name].append(clock() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, reference: str) -> float:
    """The median over rounds of how much longer `name` took than `reference` in the same round."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[reference], strict=True))


def table(title: str, seconds: dict[str, list[float]], steps: dict[str, int], reference: str) -> None:
    print(f"\n{title}")
    print(f"  {'':34} {'ns a step':>10} {'ratio':>8}")
    for name, times in seconds.items():
        per_step = 1e9 * statistics.median(times) / steps[name]
        scaled = ratio(seconds, name, reference) * steps[reference] / steps[name]
        print(f"  {name:34} {per_step:10.1f} {scaled:8.2f}")
