"""The summary of the paper's simulation: a table of costs and ratios, and the checks."""

from collections.abc import Mapping
from typing import Any

import jax
import xarray as xr
from pydantic import BaseModel

from ...reporting.statistics import Check, Interval, interval
from .run import GIVEN, given


class CostRow(BaseModel):
    """One form of the noise and one gain: mean costs over seeds, and ratios paired by seed."""

    noise: str
    gain: float
    cost: dict[str, Interval]
    static_cost: Interval
    ratio: Interval
    """Cost of M-GAPS / cost of the fixed gain, over the whole run."""
    after: Interval | None
    """Cost of M-GAPS / cost of the best static gain, from the second period on; None if there is only one period."""
    rescaled: Interval | None
    """The same ratio with learning rate η/Δ², for the noise inside."""


class Summary(BaseModel):
    seeds: int
    rows: list[CostRow]
    checks: list[Check]

    @property
    def ok(self) -> bool:
        return all(check.holds is not False for check in self.checks)


def summarize(dataset: xr.Dataset, settings: Mapping[str, Any]) -> Summary:
    """Return the summary of a stored run. `settings`: those of its manifest."""
    with jax.enable_x64(True):
        rows = [
            _row(dataset, str(noise), float(gain)) for noise in dataset.noise.values for gain in dataset.gain.values
        ]
    same = len(given(settings)) == len(GIVEN) and settings["periods"] > 1
    return Summary(seeds=dataset.sizes["seed"], rows=rows, checks=_checks(dataset, rows, same))


def _row(dataset: xr.Dataset, noise: str, gain: float) -> CostRow:
    here = dataset.sel(noise=noise, gain=gain)
    total = here.total_cost
    later = slice(1, None)
    best = here.static_period_cost.isel(period=later).sum("period")
    ours = here.period_cost.sel(algorithm="M-GAPS").isel(period=later).sum("period")
    rescaled = here.rescaled_period_cost.isel(period=later).sum("period")
    several = dataset.sizes["period"] > 1
    return CostRow(
        noise=noise,
        gain=gain,
        cost={str(name): interval(total.sel(algorithm=name)) for name in dataset.algorithm.values},
        static_cost=interval(here.static_cost),
        ratio=interval(total.sel(algorithm="M-GAPS") / total.sel(algorithm="fixed gain")),
        after=interval(ours / best) if several else None,
        rescaled=interval(rescaled / best) if several and noise == "inside" else None,
    )


def _checks(dataset: xr.Dataset, rows: list[CostRow], judged: bool) -> list[Check]:
    found: list[Check] = []

    def check(name: str, expected: str, measured: Interval, holds: bool) -> None:
        found.append(Check(name=name, expected=expected, measured=measured, holds=bool(holds) if judged else None))

    near = {
        noise: min((row.gain for row in rows), key=lambda gain, noise=noise: abs(gain - _best_gain(dataset, noise)))
        for noise in ("outside", "inside")
    }
    for row in rows:
        start = f"{row.noise} {row.gain:g}:"
        about = {0.5: 0.2, 1.0: 0.4}.get(row.gain)
        if about is not None and row.noise == "outside":
            check(f"{start} M-GAPS / fixed", f"{about} ± 0.05", row.ratio, abs(row.ratio.mean - about) <= 0.05)
        elif about is not None:
            check(f"{start} M-GAPS / fixed", "< 1", row.ratio, row.ratio.highest < 1)
        if row.gain == near[row.noise]:
            check(f"{start} M-GAPS / fixed", "≤ 1.01", row.ratio, row.ratio.highest <= 1.01)
        if row.after is not None and row.noise == "outside":
            check(f"{start} M-GAPS / static *", "≤ 1.05", row.after, row.after.highest <= 1.05)
        if row.rescaled is not None:
            # With η, M-GAPS has not settled yet: the noise inside is Δ times smaller, so the gradients are Δ² smaller.
            holds = row.rescaled.highest <= 1.05
            check(f"{start} η/Δ² / static *", "≤ 1.05", row.rescaled, holds)
    return found


def _best_gain(dataset: xr.Dataset, noise: str) -> float:
    return float(dataset.static_gain.sel(noise=noise).mean())
