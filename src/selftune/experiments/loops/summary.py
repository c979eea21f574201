"""The summary of the loops' comparison: a row for each loop, plant and start, the rules' costs, and the checks."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import xarray as xr
from pydantic import BaseModel

from ...control import result_codes
from ...reporting.statistics import Check, Interval, interval
from .run import RIVALS, STATIC, Settings

NAMES = {"exact": "the model", "light": "30 % lighter", "heavy": "30 % heavier", "delayed": "lighter, more delay"}

AT_THE_BEST = 1.02
"""A gain need not move if the last quarter costs at most this multiple of the cost of the best static gains."""


class StartRow(BaseModel):
    """One loop, plant and start. Ratios are to the best static gains of the same seed."""

    loop: str
    plant: str
    start: str
    runs: int
    failed: int
    backed_off: float
    """The largest factor by which `Loop.back_off` lowered a start gain before the run."""
    total: Interval | None
    """The cost of the whole run, as a ratio. This and the next intervals are None if every run failed."""
    last: Interval | None
    """The cost of the last quarter, as a ratio."""
    worst: float | None
    """The largest ratio in the last quarter over the seeds."""
    fixed: float | None
    """The cost of the start gains held fixed, as a ratio; the mean over seeds. None if it is not finite."""
    moved: int
    """The number of runs in which every gain moved."""
    tuned: int
    """The number of runs in which every gain moved, or in which the last quarter costs as little as the best static
    gains: some gains hardly matter for the cost."""


class RivalRow(BaseModel):
    """One loop, plant and rule: the cost of the rule's gains, as a ratio to the best static gains."""

    loop: str
    plant: str
    rule: str
    gains: list[float | None]
    total: Interval | None
    last: Interval | None


class LoopsSummary(BaseModel):
    starts: list[StartRow]
    rivals: list[RivalRow]
    checks: list[Check]

    @property
    def ok(self) -> bool:
        return all(check.holds is not False for check in self.checks)


def summarize(dataset: xr.Dataset, settings: Mapping[str, Any]) -> LoopsSummary:
    """Return the summary of a stored run. `settings`: those of its manifest."""
    asked = settings_of(settings)
    with jax.enable_x64(True):
        starts, rivals = [], []
        for loop in map(str, dataset.loop.values):
            for plant in map(str, dataset.plant.values):
                here = dataset.sel(loop=loop, plant=plant)
                starts += [
                    _start_row(here, asked, loop, plant, start)
                    for start in map(str, dataset.start.values)
                    if (here.result_code.sel(start=start) != result_codes.NOT_RUN).any()
                ]
                rivals += [_rival_row(here, loop, plant, rule) for rule in RIVALS if rule != STATIC]
        return LoopsSummary(starts=starts, rivals=rivals, checks=_checks(starts, asked))


def settings_of(kept: Mapping[str, Any]) -> Settings:
    """Return the settings in a manifest, as `Settings`."""
    made: dict[str, Any] = {name: kept[name] for name in Settings.__dataclass_fields__}
    for name in ("loops", "plants"):
        made[name] = tuple(made[name])
    return Settings(**made)


def ended_well(here: xr.Dataset) -> np.ndarray:
    """For each seed, whether the run of the tuner ended with finite numbers."""
    return (here.result_code.values == result_codes.OK) & np.isfinite(here.mean_cost.values)


def _over(values: np.ndarray, ok: np.ndarray) -> Interval | None:
    used = values[ok & np.isfinite(values)]
    return interval(used) if used.size else None


def _start_row(here: xr.Dataset, settings: Settings, loop: str, plant: str, start: str) -> StartRow:
    one, static = here.sel(start=start), here.sel(rival=STATIC)
    ok = ended_well(one)
    total, last = one.mean_cost.values / static.rival_mean.values, one.last_cost.values / static.rival_last.values
    fixed = float(np.mean(one.fixed_cost.values / static.rival_mean.values))
    path = one.theta.values  # (seed, row, gain)
    used = np.isfinite(one.start_theta.values)
    reach = np.max(np.abs(path[..., used] - path[:, :1, used]), axis=1)
    moved = np.all(reach > settings.moved, axis=1)
    return StartRow(
        loop=loop,
        plant=plant,
        start=start,
        runs=int(ok.size),
        failed=int((~ok).sum()),
        backed_off=float(one.backed_off),
        total=_over(total, ok),
        last=_over(last, ok),
        worst=float(np.max(last[ok])) if ok.any() else None,
        fixed=fixed if np.isfinite(fixed) else None,
        moved=int(moved.sum()),
        tuned=int((moved | (last <= AT_THE_BEST)).sum()),
    )


def _rival_row(here: xr.Dataset, loop: str, plant: str, rule: str) -> RivalRow:
    one, static = here.sel(rival=rule), here.sel(rival=STATIC)
    ok = one.rival_code.values == result_codes.OK
    gains = np.exp(one.rival_theta.values[0])
    return RivalRow(
        loop=loop,
        plant=plant,
        rule=rule,
        gains=[float(gain) if np.isfinite(gain) else None for gain in gains],
        total=_over(one.rival_mean.values / static.rival_mean.values, ok),
        last=_over(one.rival_last.values / static.rival_last.values, ok),
    )


def _checks(rows: list[StartRow], settings: Settings) -> list[Check]:
    found: list[Check] = []

    def check(name: str, expected: str, measured: float, holds: bool) -> None:
        shown = Interval(mean=measured, low=None, high=None)
        found.append(Check(name=name, expected=expected, measured=shown, holds=holds if settings.is_full else None))

    for loop in dict.fromkeys(row.loop for row in rows):
        for plant in dict.fromkeys(row.plant for row in rows):
            here = [row for row in rows if (row.loop, row.plant) == (loop, plant)]
            worst = max((np.inf if row.last is None else row.last.mean for row in here), default=np.inf)
            failed, tuned = sum(row.failed for row in here), sum(row.tuned for row in here)
            runs, label = sum(row.runs for row in here), f"{loop}, {NAMES.get(plant, plant)}:"
            check(
                f"{label} last quarter / best static, worst start",
                f"≤ {settings.limit:g}",
                worst,
                worst <= settings.limit,
            )
            check(f"{label} failed runs", "0", failed, failed == 0)
            named = f"{label} runs in which every gain moved, or the cost is within 2 % of the best"
            check(named, f"{runs}", tuned, tuned == runs)
    return found
