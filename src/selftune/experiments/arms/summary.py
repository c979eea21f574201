"""The summary of the arms' comparison: a row for each robot and start, and the checks."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from pydantic import BaseModel

from ...control import result_codes
from ...reporting.statistics import Check, Interval, interval
from .run import FIXED, STATIC, TUNED, Settings


class ArmRow(BaseModel):
    """One robot and start. Ratios are to the best static gains of the same seed, in the last quarter of the run."""

    robot: str
    start: float
    runs: int
    failed: int
    fixed_failed: int
    last: Interval | None
    """None if every run failed."""
    worst: float | None
    fixed: float | None
    """The ratio of the start gains held fixed, the mean over the seeds that did not fail."""
    recovered: int
    """The number of seeds whose last quarter costs at most the limit."""
    fixed_recovered: int
    """The same for the start gains, held fixed."""
    lost: int
    """The number of seeds on which the fixed start gains recover, and learning does not."""


class ArmsSummary(BaseModel):
    rows: list[ArmRow]
    checks: list[Check]

    @property
    def ok(self) -> bool:
        return all(check.holds is not False for check in self.checks)


def settings_of(kept: Mapping[str, Any]) -> Settings:
    """Return the settings in a manifest, as `Settings`."""
    made: dict[str, Any] = {name: kept[name] for name in Settings.__dataclass_fields__}
    for name in ("robots", "starts"):
        made[name] = tuple(made[name])
    return Settings(**made)


def summarize(dataset: xr.Dataset, settings: Mapping[str, Any]) -> ArmsSummary:
    """Return the summary of a stored run. `settings`: those of its manifest."""
    asked = settings_of(settings)
    rows = [
        _row(dataset.sel(robot=robot, start=start), asked, str(robot), float(start))
        for robot in dataset.robot.values
        for start in dataset.start.values
    ]
    return ArmsSummary(rows=rows, checks=_checks(rows, asked))


def _row(here: xr.Dataset, settings: Settings, robot: str, start: float) -> ArmRow:
    tuned, fixed, static = (here.sel(algorithm=name) for name in (TUNED, FIXED, STATIC))
    good, held = ((one.result_code == result_codes.OK).values for one in (tuned, fixed))
    ratio = tuned.last_cost.values / static.last_cost.values
    held_ratio = fixed.last_cost.values / static.last_cost.values
    used, others = ratio[good], held_ratio[held]
    recovers, would = good & (ratio <= settings.limit), held & (held_ratio <= settings.limit)
    return ArmRow(
        robot=robot,
        start=start,
        runs=int(good.size),
        failed=int((~good).sum()),
        fixed_failed=int((~held).sum()),
        last=interval(used) if used.size else None,
        worst=float(np.max(used)) if used.size else None,
        fixed=float(np.mean(others)) if others.size else None,
        recovered=int(recovers.sum()),
        fixed_recovered=int(would.sum()),
        lost=int((would & ~recovers).sum()),
    )


def _checks(rows: list[ArmRow], settings: Settings) -> list[Check]:
    found = []
    for row in rows:
        label = f"{row.robot}, from {row.start:g}:"
        if row.start >= 1:
            share = Interval(mean=row.recovered / row.runs, low=None, high=None)
            # Where the fixed gains recover, learning must, too; elsewhere, in most of the runs.
            hard = row.runs - row.fixed_recovered
            of_hard = row.recovered - (row.fixed_recovered - row.lost)
            holds = row.lost == 0 and 2 * of_hard >= hard if settings.is_full else None
            least = (row.fixed_recovered + math.ceil(hard / 2)) / row.runs
            found.append(
                Check(name=f"{label} share that recovers", expected=f"≥ {least:g}", measured=share, holds=holds)
            )
            continue
        measured = row.last or Interval(mean=float("nan"), low=None, high=None)
        holds = row.failed == 0 and row.last is not None and row.last.mean <= settings.limit
        found.append(
            Check(
                name=f"{label} last quarter / best static",
                expected=f"≤ {settings.limit:g}, no crash",
                measured=measured,
                holds=holds if settings.is_full else None,
            )
        )
    return found
