"""How low may the integral gain of a PID become? Three lower bounds of ki, on the motor position.

    python -m benchmarks.integral_bound

A bound of 1/100 of the start gain, and bounds by the integral time kp/ki: at most 20 periods of the reference, as `Loop`
has it, and at most 60. Printed is the mean cost of the last quarter of the run, relative to the nominal gains held
fixed, as a mean over the seeds, for each start.
"""

import argparse
from typing import Any

import jax
import numpy as np

from selftune.experiments.loops.batches import Batch, flat, last_quarter
from selftune.experiments.loops.cases import Case, load
from selftune.experiments.loops.run import Settings, steps
from selftune.experiments.logs import errors_alone
from selftune.policies import PID

BOUNDS = (None, 20, 60)
"""The longest integral time, in periods of the reference; None: ki is at least 1/100 of the start gain."""


def box(pid: Any, seconds: float | None) -> Any:
    """Return Θ of a PID whose integral time is at most this long."""
    assert isinstance(pid, PID)
    return pid.constraint if seconds is None else pid.constraint_within(seconds)


def ratios(case: Case, plant: str, settings: Settings) -> dict[str, list[float]]:
    """Return the cost of each start, by the bounds."""
    length = steps(settings, case.name)
    batch = Batch(case, plant, length, settings.first_seed + np.arange(settings.seeds))
    nominal = np.broadcast_to(flat(case.loop().theta), (settings.seeds, 1, len(case.gains)))
    held = last_quarter(batch.fixed(nominal).cost)
    loops = [case.loop(gains) for gains in case.starts.values()]
    first = np.stack([flat(loop.back_off(gain_margin=settings.margin)) for loop in loops])
    period = case.reference.period(case.model.dt) * case.model.dt
    columns = []
    for bound in BOUNDS:
        seconds = None if bound is None else bound * period
        edges = [box(loop.policy, seconds).bounds(loop.theta) for loop in loops]
        low, high = (np.asarray(part) for part in zip(*edges, strict=True))
        tuned = batch.tuned(first, low, high, rows=settings.rows)
        columns.append((last_quarter(tuned.cost) / held).mean(axis=0))
    return {start: list(row) for start, row in zip(case.starts, np.stack(columns, axis=1), strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop", default="motor position")
    parser.add_argument("--seeds", type=int, default=4)
    given, _ = parser.parse_known_args()
    settings = Settings(seeds=given.seeds, first_seed=0)
    names = ["1/100" if bound is None else f"{bound} periods" for bound in BOUNDS]
    with jax.enable_x64(True), errors_alone():
        for plant in ("exact", "delayed"):
            print(f"\n{given.loop}, {plant}: bound of ki  " + "  ".join(names))
            for start, row in ratios(load(given.loop), plant, settings).items():
                print(f"  {start:10}" + "".join(f"{value:8.2f}" for value in row))


if __name__ == "__main__":
    main()
