"""The summary of the robots' comparison: a table of costs and ratios, and the checks."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import xarray as xr
from pydantic import BaseModel

from ...control import result_codes
from ...reporting.statistics import Check, Interval, interval
from .run import ESTIMATOR, OURS, STATIC, Settings


class Row(BaseModel):
    """One case, start and algorithm: means over the seeds whose runs did not fail; ratios are paired by seed."""

    case: str
    start: float
    algorithm: str
    runs: int
    failed: int
    cost: Interval | None
    """The mean cost of a step. This and all following intervals are None if every run failed."""
    second_half: Interval | None
    rmse: Interval | None
    to_estimator: Interval | None
    """The cost / the cost of the same gains held fixed, with the estimator."""
    to_static: Interval | None
    """The cost / the cost of the best static gains."""
    settled: Interval | None
    """The same ratio in the last quarter of the run, after the first learning and after the change halfway."""
    regret: Interval | None
    """The cost minus the cost of the best static gains, over the whole run: cost times seconds."""
    converged: int
    convergence: float | None
    """Seconds until the cost stays near the cost of the best static gains, in the first half of the run: the median
    over all runs; None if most runs did not converge."""


class RobotsSummary(BaseModel):
    rows: list[Row]
    checks: list[Check]

    @property
    def ok(self) -> bool:
        return all(check.holds is not False for check in self.checks)


def summarize(dataset: xr.Dataset, settings: Mapping[str, Any]) -> RobotsSummary:
    """Return the summary of a stored run. `settings`: those of its manifest."""
    asked = settings_of(settings)
    with jax.enable_x64(True):
        rows = [
            _row(dataset.sel(case=case, start=start), asked, str(case), float(start), str(algorithm))
            for case in dataset.case.values
            for start in dataset.start.values
            for algorithm in dataset.algorithm.values
            if (dataset.result_code.sel(case=case, start=start, algorithm=algorithm) != result_codes.NOT_RUN).any()
        ]
        return RobotsSummary(rows=rows, checks=_checks(dataset, rows, asked))


def settings_of(kept: Mapping[str, Any]) -> Settings:
    """The settings in a manifest, as `Settings`."""
    made: dict[str, Any] = {name: kept[name] for name in Settings.__dataclass_fields__}
    for name in ("cases", "starts", "episodes"):
        made[name] = tuple(made[name])
    return Settings(**made)


def last_quarter(dataset: xr.Dataset) -> xr.DataArray:
    """The mean cost of a step in the last quarter of the run."""
    return dataset.cost.isel(time=slice(3 * dataset.sizes["time"] // 4, None)).mean("time")


def ended_well(dataset: xr.Dataset) -> xr.DataArray:
    return dataset.result_code == result_codes.OK


def _row(here: xr.Dataset, settings: Settings, case: str, start: float, algorithm: str) -> Row:
    one = here.sel(algorithm=algorithm)
    ok = ended_well(one)

    def over(values: xr.DataArray, others: xr.DataArray | None = None) -> Interval | None:
        used = values.values[(ok if others is None else ok & others).values]
        return interval(used) if used.size else None

    def ratio(name: str) -> Interval | None:
        other = here.sel(algorithm=name)
        return over(one.mean_cost / other.mean_cost, ended_well(other))

    static = here.sel(algorithm=STATIC)
    time = one.convergence_time.sel(half="first").values
    median = float(np.median(np.where(np.isnan(time), np.inf, time)))
    return Row(
        case=case,
        start=start,
        algorithm=algorithm,
        runs=int(ok.size),
        failed=int((~ok).sum()),
        cost=over(one.mean_cost),
        second_half=over(one.half_cost.sel(half="second")),
        rmse=over(one.rmse),
        to_estimator=None if algorithm == STATIC else ratio(ESTIMATOR),
        to_static=ratio(STATIC),
        settled=over(last_quarter(one) / last_quarter(static), ended_well(static)),
        regret=over(settings.seconds * (one.mean_cost - static.mean_cost), ended_well(static)),
        converged=int(np.isfinite(time).sum()),
        convergence=median if np.isfinite(median) else None,
    )


TARGETS = {"arm": (0.6, 1.2, 0.9), "quadrotor": (0.35, 1.4, 1.0)}
"""Limits by robot. From a quarter of the gains: the largest ratio of the cost to that of the estimator alone, and in
the last quarter of the run to that of the best static gains. From twice the gains: the least share of runs that
recover."""


def _checks(dataset: xr.Dataset, rows: list[Row], settings: Settings) -> list[Check]:
    found: list[Check] = []

    def check(name: str, expected: str, measured: Interval | None, holds: bool) -> None:
        shown = measured or Interval(mean=float("nan"), low=None, high=None)
        found.append(
            Check(name=name, expected=expected, measured=shown, holds=bool(holds) if settings.is_full else None)
        )

    for row in rows:
        if row.algorithm != OURS:
            continue
        label, robot = f"{row.case}, from {row.start:g}:", row.case.split()[0]
        low, near, share = TARGETS.get(robot, (1.0, None, None))
        if row.start < 1:
            failed = Interval(mean=row.failed, low=None, high=None)
            check(f"{label} failures", "0", failed, row.failed == 0)
        if row.start == 0.25:
            ratio = row.to_estimator
            check(f"{label} cost / EST", f"≤ {low:g}", ratio, ratio is not None and ratio.mean <= low)
            if near is not None:
                ratio = row.settled
                check(
                    f"{label} last quarter / best static",
                    f"≤ {near:g}",
                    ratio,
                    ratio is not None and ratio.mean <= near,
                )
        if row.start == 2 and share is not None:
            measured = recovered(dataset.sel(case=row.case, start=row.start), settings)
            got = Interval(mean=float(measured.mean()), low=None, high=None)
            check(f"{label} share that recovers", f"≥ {share:g}", got, got.mean >= share)
    return found


def recovered(here: xr.Dataset, settings: Settings) -> np.ndarray:
    """For each seed, whether the run of M-GAPS + EST did not fail and ended near the best static gains."""
    one, static = here.sel(algorithm=OURS), here.sel(algorithm=STATIC)
    near = last_quarter(one) <= settings.recovered * last_quarter(static)
    return (ended_well(one) & near).values


def smoothed(values: xr.DataArray, lap: float) -> xr.DataArray:
    """The mean over the last `lap` seconds, or over the time so far: within a lap the cost has its own peaks."""
    step = float(values.time[1] - values.time[0]) if values.sizes["time"] > 1 else 1.0
    return values.rolling(time=max(1, min(round(lap / step), values.sizes["time"])), min_periods=1).mean()
