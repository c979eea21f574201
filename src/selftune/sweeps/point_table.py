"""The points of a sweep as a list, with one row for each point of any design. Tables and figures use it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy import special

from ..control import result_codes
from ..foundation.errors import ArgumentError
from ..reporting.statistics import BOOTSTRAP_SEED
from .design import JOINED, NO_TEXT


class Cells(NamedTuple):
    """The points by the values of some settings. Each array has one axis for each of these settings."""

    levels: list[list[Any]]
    best: np.ndarray
    """The point that is best over all other settings; -1 if every point has failed runs, or there is no point."""
    failed: np.ndarray
    """The number of failed runs of all points of the cell."""


@dataclass(frozen=True)
class Points:
    """Costs (point, seed), NaN for failed runs, and each setting's value at every point."""

    columns: dict[str, np.ndarray]
    cost: np.ndarray
    failed: np.ndarray
    reason: np.ndarray
    """The reason of the failure; "" if the run did not fail."""
    seeds: np.ndarray
    judged: str
    """The name of the cost."""
    is_joined: bool = False
    """Whether the design joins several grids, so that a setting may not apply to a point."""

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    @cached_property
    def ok(self) -> np.ndarray:
        """The points without failed runs."""
        return np.logical_not(self.failed.any(axis=1))

    @cached_property
    def mean(self) -> np.ndarray:
        """The mean cost over seeds; infinite if a run failed."""
        means = np.full(len(self), np.inf)
        means[self.ok] = self.cost[self.ok].mean(axis=1)
        return means

    @cached_property
    def varying(self) -> list[str]:
        return [name for name in self.columns if len(self.levels(name)[0]) > 1]

    def at(self, rows: np.ndarray) -> "Points":
        columns = {name: values[rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, cost=self.cost[rows], failed=self.failed[rows], reason=self.reason[rows])

    def setting(self, row: int | np.integer) -> dict[str, Any]:
        """The settings of a point; without those that do not apply to it."""
        setting = {name: plain(values[row]) for name, values in self.columns.items()}
        return {name: value for name, value in setting.items() if not (self.is_joined and applies_not(value))}

    def levels(self, name: str) -> tuple[list[Any], np.ndarray]:
        """The distinct values of a setting in the order of the points, and the index of each point's value."""
        values = self.columns[name]
        _, first, codes = np.unique(values, return_index=True, return_inverse=True)  # NaN counts as one value
        order = np.argsort(first)
        return [plain(values[row]) for row in first[order]], np.argsort(order)[codes]

    def is_numeric(self, name: str) -> bool:
        """Whether the values are finite numbers, which have places on an axis."""
        values = self.columns[name]
        return values.dtype.kind in "iuf" and bool(np.isfinite(values).all())

    def groups(self, names: Sequence[str]) -> list[tuple[tuple[Any, ...], np.ndarray]]:
        """The existing combinations of values, each with its rows."""
        levels = [self.levels(name) for name in names]
        codes = np.stack([codes for _, codes in levels], axis=1) if names else np.zeros((len(self), 1), int)
        there, which = np.unique(codes, axis=0, return_inverse=True)
        order = np.argsort(which.ravel(), kind="stable")
        rows = np.split(order, np.cumsum(np.bincount(which.ravel()))[:-1])
        keys = [tuple(values[i] for (values, _), i in zip(levels, combination, strict=False)) for combination in there]
        return list(zip(keys, rows, strict=True))

    def cells(self, names: Sequence[str]) -> Cells:
        levels = [self.levels(name) for name in names]
        shape = tuple(len(values) for values, _ in levels)
        where = np.ravel_multi_index(tuple(codes for _, codes in levels), shape)
        order = np.argsort(self.mean, kind="stable")[::-1]
        order = order[self.ok[order]]
        best = np.full(int(np.prod(shape)), -1)
        best[where[order]] = order  # from the worst to the best, so that the best is written last
        failed = np.bincount(where, self.failed.sum(axis=1), best.size).astype(int)
        return Cells([values for values, _ in levels], best.reshape(shape), failed.reshape(shape))


def applies_not(value: Any) -> bool:
    """Whether this is the value of a setting that does not apply to a point of a joined design."""
    return value == NO_TEXT or (isinstance(value, float) and math.isnan(value))


def plain(value: Any) -> Any:
    """A NumPy scalar as a Python value."""
    return value.item() if isinstance(value, np.generic) else value


def dataset_of(sweep: Any) -> xr.Dataset:
    dataset = sweep if isinstance(sweep, xr.Dataset) else sweep.to_dataset() if hasattr(sweep, "to_dataset") else None
    if not isinstance(dataset, xr.Dataset):
        raise ArgumentError("sweep", "a Sweep, or the result of its to_dataset()", f"{type(sweep).__name__}")
    return dataset


def points(sweep: Any, *, cost: str = "mean_cost", last: float | None = None) -> Points:
    """The points of a `Sweep` or its dataset. A setting that was selected, `dataset.sel(noise=0.1)`, is constant."""
    data = dataset_of(sweep)
    values, judged = _judged(data, cost, last)
    dims = [str(dim) for dim in values.dims if dim != "seed"]
    if not values.size:
        raise ArgumentError("sweep", "at least one point and one seed", f"{dict(values.sizes)}")
    flat = _flat(values, dims).astype(float)
    failed = ~np.isfinite(flat)
    if "result_code" in data:
        failed |= _flat(data.result_code, dims) != 0
    return Points(
        columns=_columns(data, values, dims),
        cost=np.where(failed, np.nan, flat),
        failed=failed,
        reason=_reasons(data, dims, failed),
        seeds=np.asarray(data["seed"].values),
        judged=judged,
        is_joined=data.attrs.get("design") == JOINED,
    )


def _judged(data: xr.Dataset, cost: str, last: float | None) -> tuple[xr.DataArray, str]:
    name = cost if last is None else "part_cost"
    if name not in data:
        raise ArgumentError("cost", f"a variable of the sweep, one of {sorted(map(str, data))}", f"{name!r}")
    dims = {"seed"} if last is None else {"seed", "part"}
    if not dims <= set(data[name].dims) or data[name].dtype.kind not in "fiu":
        raise ArgumentError("cost", f"a number for each of {sorted(dims)}", f"{name!r} with {data[name].dims}")
    if last is None:
        return data[name], "mean cost of a step" if cost == "mean_cost" else cost
    if cost != "mean_cost":
        raise ArgumentError("last", "only with the cost 'mean_cost', which is stored in parts", f"{cost!r}")
    if isinstance(last, bool) or not isinstance(last, int | float) or not 0 < last <= 1:
        raise ArgumentError("last", "a share of the run, above 0 and at most 1", f"{last!r}")
    parts = data.sizes["part"]
    begins = slice(parts - max(1, round(last * parts)), None)
    length = xr.DataArray(lengths(data), dims=("part",)).isel(part=begins)
    share = round(100 * float(length.sum()) / steps(data))
    costs = data.part_cost.isel(part=begins).astype(float)
    # Not by xarray's weighted mean, because a NaN must stay: a failed run has no mean.
    mean = (costs * length).sum("part", skipna=False) / float(length.sum())
    return mean, f"mean cost of a step in the last {share} % of the run"


def steps(data: xr.Dataset) -> int:
    if "steps" in data.attrs:
        return int(data.attrs["steps"])
    begins = data["part"].values
    return int(2 * begins[-1] - begins[-2]) if begins.size > 1 else int(begins[-1]) + 1


def lengths(data: xr.Dataset) -> np.ndarray:
    """The lengths of the parts of a run, in steps."""
    return np.diff(data["part"].values, append=steps(data)).astype(float)


def _flat(values: xr.DataArray, dims: list[str]) -> np.ndarray:
    array = values.transpose(*dims, "seed").values
    return array.reshape(-1, array.shape[-1])


def _columns(data: xr.Dataset, values: xr.DataArray, dims: list[str]) -> dict[str, np.ndarray]:
    """The value of each setting at every point."""
    grid = np.indices([values.sizes[dim] for dim in dims]).reshape(len(dims), -1)
    if "settings" in data.attrs:
        names = [str(name) for name in np.atleast_1d(data.attrs["settings"]) if name in data.coords]
    else:
        names = [str(name) for name in data.coords if name not in ("seed", "part", "parameter", "point")]
    columns = {}
    for name in names:
        known = data[name]
        if not set(known.dims) <= set(dims):
            raise ArgumentError("sweep", f"the setting {name!r} along {dims}", f"{known.dims}")
        where = tuple(grid[dims.index(str(dim))] for dim in known.dims)
        columns[name] = known.values[where] if where else np.repeat(known.values[None], values.size // values.seed.size)
    return columns


def _reasons(data: xr.Dataset, dims: list[str], failed: np.ndarray) -> np.ndarray:
    reasons = np.full(failed.shape, "", object)
    text = _flat(data["reason"], dims) if "reason" in data else None
    code = _flat(data.result_code, dims) if "result_code" in data else None
    at = _flat(data.failed_at, dims) if "failed_at" in data else None
    for place in zip(*np.nonzero(failed), strict=True):
        reason = "" if text is None else str(text[place])
        if not reason:
            number = result_codes.NON_FINITE if code is None else int(code[place])
            reason = result_codes.WORDS.get(number, "failed")
            reason += f" at step {int(at[place])}" if at is not None and at[place] >= 0 else ""
        reasons[place] = reason
    return reasons


def show(value: Any) -> str:
    """The text of a setting's value."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def in_words(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {show(value)}" for name, value in setting.items()) or "the only point"


def spans_decades(values: Any) -> bool:
    """Whether a logarithmic axis is better: all values positive, over a factor of ten, and most of them small."""
    array = np.asarray(values, float)
    array = array[np.isfinite(array)]
    if not array.size or array.min() <= 0 or array.max() < 10 * array.min():
        return False
    return np.unique(array).size == 2 or bool(np.median(array) < (array.min() + array.max()) / 4)


def chosen_by_others(cost: np.ndarray) -> np.ndarray:
    """For each seed, the cost on this seed of the point that has the lowest mean cost on all other seeds."""
    # Sums from both ends, without a subtraction: it would lose all digits if one seed has a huge cost.
    before, after = np.zeros_like(cost), np.zeros_like(cost)
    before[:, 1:] = np.cumsum(cost[:, :-1], axis=1)
    after[:, :-1] = np.cumsum(cost[:, :0:-1], axis=1)[:, ::-1]
    others = before + after
    return np.take_along_axis(cost, others.argmin(axis=0)[None], axis=0)[0]


class Gap(NamedTuple):
    """The mean difference of each point to the best point, and the half width of its interval."""

    mean: np.ndarray
    reach: np.ndarray
    """NaN if there is only one seed."""


class ToBest(NamedTuple):
    """The comparison of each point with the best point, paired by seed.

    `difference`: of costs. `log_ratio`: of their logarithms, NaN if a cost is not positive. `near`: the points that the
    data cannot distinguish from the best. `chance`: the share of bootstrap resamples of the seeds in which no mean
    difference is below zero.
    """

    difference: Gap
    log_ratio: Gap
    near: np.ndarray
    chance: float | None


def to_best(cost: np.ndarray, *, level: float = 0.95, resamples: int = 2000) -> ToBest:
    """Compare all points with the best, with intervals that hold for all points simultaneously. `cost`: (point, seed).

    The best point was selected, which is a bias: with more points to choose from, the best is further below points that
    are equally good. So an interval has as many standard errors as the largest of all differences has in `level` of the
    resamples (a bootstrap of Dunnett's comparison with one point, as in Hsu's comparison with the best), with Student's
    distribution instead of the normal one. The true best is then within reach of zero with probability `level`, for any
    number of points.

    A point is distinguished from the best if one of three tests does so: the difference of costs, for settings that add
    to the cost; the ratio of costs, for settings that multiply it, when costs of very different sizes make the standard
    error of the difference unreliable; and the sign test, if the point is worse on more seeds than chance allows.
    """
    points, seeds = cost.shape
    best = cost[int(np.argmin(cost.mean(axis=1)))]
    differences = cost - best
    shares = np.full(seeds, 1 / seeds)
    drawn = np.random.default_rng(BOOTSTRAP_SEED).multinomial(seeds, shares, size=resamples).astype(float)
    difference = _gap(differences, drawn, level)
    positive = (cost > 0).all(axis=1) & (best > 0).all()
    log_ratio = Gap(np.full(points, np.nan), np.full(points, np.nan))
    if positive.any():  # the difference of logarithms, because a ratio of costs may overflow
        ratios = _gap(np.log(cost[positive]) - np.log(best), drawn, level)
        for whole, part in zip(log_ratio, ratios, strict=True):
            whole[positive] = part
    if seeds == 1:
        return ToBest(difference, log_ratio, np.ones(points, bool), None)
    as_good = (differences <= 0).sum(axis=1)
    worse = special.bdtr(as_good, seeds, 0.5) * max(points - 1, 1) < (1 - level) / 2
    distinct = worse | (difference.mean > difference.reach) | (log_ratio.mean > log_ratio.reach)
    lowest = np.ones(resamples, bool)
    for part in _parts(points):
        lowest &= (drawn @ differences[part].T >= 0).all(axis=1)
    return ToBest(difference, log_ratio, ~distinct, float(lowest.mean()))


def _gap(differences: np.ndarray, drawn: np.ndarray, level: float) -> Gap:
    """The gap of differences (point, seed). `drawn`: how often each resample draws each seed."""
    points, seeds = differences.shape
    mean = differences.mean(axis=1)
    if seeds == 1:
        return Gap(mean, np.full(points, np.nan))
    apart = differences - mean[:, None]
    size = np.abs(apart).max(axis=1, keepdims=True)  # scale first, so that squares do not overflow
    unit = np.divide(apart, size, out=np.zeros_like(apart), where=size > 0)
    spread = np.sqrt((unit**2).sum(axis=1, keepdims=True))
    scaled = np.divide(unit, spread, out=np.zeros_like(unit), where=spread > 0)
    farthest = np.zeros(len(drawn))
    for part in _parts(points):
        farthest = np.maximum(farthest, np.abs(drawn @ scaled[part].T).max(axis=1))
    tail = special.ndtr(-float(np.quantile(farthest, level)))
    if seeds < RESAMPLED:
        tail = min(tail, (1 - level) / 2 / max(points - 1, 1))
    errors = -special.stdtrit(seeds - 1, tail)
    return Gap(mean, errors * (size * spread)[:, 0] / np.sqrt(seeds * (seeds - 1)))


RESAMPLED = 4
"""With fewer seeds there are too few distinct resamples, so an interval is at least as wide as Bonferroni's."""


def _parts(points: int) -> Iterator[slice]:
    """Slices of the points, each small enough for memory."""
    return (slice(start, start + 4096) for start in range(0, points, 4096))
