"""The results of a sweep: the best setting or tuner, and the uncertainty of the choice.

Seed s draws the same noise at every point of a sweep. So settings are compared seed by seed, and the effect that a seed
has on all settings cancels. Intervals are 95 % bootstrap intervals over whole seeds, by `selftune.bands`. Intervals for
comparisons with the best setting are wider: the best was selected among many, and they hold for all simultaneously.
"""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from pydantic import BaseModel, ConfigDict

from ..foundation.errors import ArgumentError
from ..reporting import statistics
from ..reporting.statistics import Interval
from .point_table import Gap, Points, ToBest, chosen_by_others, in_words, points, show, to_best

FEW = 8
"""With fewer seeds, an interval of `bands` is much too narrow. The texts then say so."""

Setting = dict[str, bool | int | float | str]


class Standing(BaseModel):
    """A setting without failed runs, compared with the best setting seed by seed.

    - `difference`: its cost minus that of the best, the mean over seeds.
    - `ratio`: its cost divided by that of the best, the geometric mean over seeds; None if a cost is not positive.
    - `near`: the data cannot distinguish it from the best.

    The intervals of `difference` and `ratio` hold for all settings of the sweep simultaneously.
    """

    model_config = ConfigDict(frozen=True)

    setting: Setting
    cost: Interval
    difference: Interval
    ratio: Interval | None
    near: bool


class Failed(BaseModel):
    """A setting with failed runs: their number, the number of all runs, and the reason of the first failure."""

    model_config = ConfigDict(frozen=True)

    setting: Setting
    failed: int
    runs: int
    reason: str


class Best(BaseModel):
    """The best setting of a sweep, and the uncertainty of this choice. `str` gives a summary in words.

    - `cost` is its mean over seeds. It is biased low, because the setting with the lowest mean was selected.
    - `fair` is the expected cost of this choice on a new seed, without that bias (leave-one-out): the mean over seeds
      of the cost on each seed of the setting that is best on all other seeds.
    - `chance` is the share of bootstrap resamples of the seeds in which this setting has the lowest mean: whether
      the same choice would be made again. A resample draws the same seeds for all settings.
    - `rivals` are the settings that the seeds cannot distinguish from the best, the nearest first: the interval of
      `difference` contains zero, the interval of `ratio` contains one, and they are not worse on nearly every seed. The
      intervals hold for all settings simultaneously: the true best is this setting or a rival in about 95 % of sweeps,
      for any number of settings.
    - `edge` names the settings whose best value is the lowest or highest of three or more values that were tried. A
      value beyond it may be better.

    With one seed the spread is unknown: `fair`, `chance` and the ends of the intervals are None, and every other
    setting is a rival.

    !!! Example

        >>> import numpy as np, xarray as xr, selftune as st
        >>> cost = np.array([[3.0, 3.1], [1.0, 1.1], [2.0, 2.2]])  # three learning rates, two seeds
        >>> sweep = xr.Dataset({"mean_cost": (("learning_rate", "seed"), cost)}, {"learning_rate": [0.001, 0.01, 0.1]})
        >>> found = st.best(sweep)
        >>> found.setting, round(found.cost.mean, 2), len(found.edge)
        ({'learning_rate': 0.01}, 1.05, 0)
    """

    model_config = ConfigDict(frozen=True)

    setting: Setting
    cost: Interval
    fair: Interval | None
    chance: float | None
    rivals: list[Standing]
    edge: list[str]
    failed: list[Failed]
    points: int
    seeds: int
    judged: str

    def __str__(self) -> str:
        lines = [self._worth(), self.sure(), *self.beyond(), self.lost()]
        return "\n".join([in_words(self.setting), *(f"  {text}" for text in lines)])

    def _worth(self) -> str:
        fair = "" if self.fair is None else f"; expected cost on a new seed: {self.fair}"
        return f"{self.judged}: {self.cost} over {_count(self.seeds, 'seed')}{fair}"

    def sure(self) -> str:
        """The uncertainty of the choice, in words."""
        if self.points - len(self.failed) == 1:
            return "every other setting has a failed run" if self.failed else "there is no other setting"
        if self.chance is None:
            return "one seed gives no confidence interval"
        few = "; with so few seeds the interval of the cost is too narrow" if self.seeds < FEW else ""
        others = "the seeds distinguish it from every other setting"
        if self.rivals:
            count = _count(len(self.rivals), "other")
            others = f"{count} {self.undecided()}, the nearest {in_words(self.rivals[0].setting)}"
        return f"the lowest of {self.points - len(self.failed):,} in {percent(self.chance)} of resamples; {others}{few}"

    def undecided(self) -> str:
        """The description of the rivals. It says so if there are few seeds."""
        if self.seeds >= FEW:
            return "cannot be distinguished from the best"
        return f"cannot be distinguished from the best by {_count(self.seeds, 'seed')}: more seeds may help"

    def beyond(self) -> list[str]:
        """A note on the settings whose best value is at the edge of the values that were tried."""
        verb = "is" if len(self.edge) == 1 else "are"
        return [f"{', '.join(self.edge)} {verb} at the edge of the values tried"] if self.edge else []

    def lost(self) -> str:
        """The failed runs, in words."""
        if not self.failed:
            return "no run failed"
        first = self.failed[0]
        runs = sum(setting.failed for setting in self.failed)
        return (
            f"{_count(runs, 'run')} failed, at {len(self.failed)} of {_count(self.points, 'setting')}; "
            f"first failure: {in_words(first.setting)}: {first.reason}"
        )


class Side(BaseModel):
    """One value of the compared setting `over`, at one value of each setting in `by`.

    The other settings are chosen for each seed by all other seeds, so that a value has no advantage if more settings
    were tried. `setting` is the choice of all seeds together. `difference` is to the reference value, paired by seed.
    All three are None if every point has a failed run; `reason` is then the reason of the first failure.
    """

    model_config = ConfigDict(frozen=True)

    by: Setting
    value: bool | int | float | str
    setting: Setting | None
    cost: Interval | None
    difference: Interval | None
    failed: int
    runs: int
    reason: str | None = None


class Comparison(BaseModel):
    """The result of `compare_settings`: the values of `over`, compared with the value `to`, for each value of `by`."""

    model_config = ConfigDict(frozen=True)

    over: str
    by: list[str]
    to: bool | int | float | str
    seeds: int
    judged: str
    sides: list[Side]


Names = str | Sequence[str]


@overload
def best(
    sweep: Any, *, cost: str = ..., last: float | None = ..., across: Names = ..., over: tuple[()] = ...
) -> Best: ...
@overload
def best(
    sweep: Any, *, cost: str = ..., last: float | None = ..., across: Names = ..., over: Names
) -> dict[Any, Best | None]: ...


def best(
    sweep: Any, *, cost: str = "mean_cost", last: float | None = None, across: Names = (), over: Names = ()
) -> Best | dict[Any, Best | None]:
    """The best setting of a sweep: the lowest mean cost over seeds among the settings without failed runs.

    Needs the extra `experiments`.

    **Arguments:** `sweep`: a `Sweep`, the result of its `to_dataset()`, or a selection of that, such as
    `dataset.sel(noise=0.1)`. `cost`: the variable to compare. `last`: count only the last share of each run, for
    example 0.25, without the cost of the first learning. `across`: one or several settings of the environment, for
    example the noise; the cost is then the mean over all their values, and a seed counts as failed if one of these runs
    failed. `over`: one or several settings; the result is then a dictionary of the best setting for each value (or
    tuple of values), with None where every setting has a failed run.

    **Returns:** a `Best`: the setting, its cost with an interval, the expected cost on a new seed, the uncertainty of
    the choice, the settings that cannot be distinguished from it, and the failed runs. Raises `ValueError` if every
    setting has a failed run.

    !!! Example

        >>> import numpy as np, xarray as xr, selftune as st
        >>> noise = np.random.default_rng(0).normal(size=16)  # of each seed, the same at all settings
        >>> cost = np.array([3.0, 1.0, 1.0, np.nan])[:, None] + noise + np.array([0, 0, 1, 0])[:, None] * noise**3 / 9
        >>> rates = [0.001, 0.01, 0.1, 1.0]
        >>> sweep = xr.Dataset({"mean_cost": (("learning_rate", "seed"), cost)}, {"learning_rate": rates})
        >>> found = st.best(sweep)
        >>> found.setting["learning_rate"] in (0.01, 0.1), len(found.rivals), found.failed[0].setting
        (True, 1, {'learning_rate': 1.0})
    """
    table = _averaged(points(sweep, cost=cost, last=last), across)
    names = _names("over", over, table)
    if not table.ok.any():
        place = np.argwhere(table.failed)[0]
        raise ArgumentError(
            "sweep",
            "a setting without failed runs",
            f"failures at all {len(table)} ({int(table.failed.sum())} of {table.failed.size} runs); the first: "
            f"{in_words(table.setting(place[0]))}, seed {table.seeds[place[1]]}: {table.reason[tuple(place)]}",
        )
    if not names:
        return _best(table)
    parts = [(key, table.at(rows)) for key, rows in table.groups(names)]
    single = isinstance(over, str)
    return {key[0] if single else key: _best(part) if part.ok.any() else None for key, part in parts}


def standings(table: Points, most: int | None = None) -> list[Standing]:
    """The settings without failed runs, at most `most` of them, in ascending order of the mean cost."""
    return _standings(table, to_best(table.cost[table.ok]), most)


def _standings(table: Points, less: ToBest, most: int | None = None) -> list[Standing]:
    good = np.flatnonzero(table.ok)
    order = np.argsort(table.mean[good], kind="stable")[:most]
    costs = intervals(table.cost[good[order]].T)
    return [
        Standing(
            setting=table.setting(int(good[i])),
            cost=cost,
            difference=_interval(less.difference, i),
            ratio=_ratio(less.log_ratio, i),
            near=bool(less.near[i]),
        )
        for i, cost in zip(order, costs, strict=True)
    ]


def _interval(gap: Gap, row: Any) -> Interval:
    mean, reach = float(gap.mean[row]), float(gap.reach[row])
    return Interval(
        mean=mean, low=None if np.isnan(reach) else mean - reach, high=None if np.isnan(reach) else mean + reach
    )


def _ratio(gap: Gap, row: Any) -> Interval | None:
    if np.isnan(gap.mean[row]):
        return None
    with np.errstate(over="ignore"):
        logs = _interval(gap, row)
        ends = (None if end is None else float(np.exp(end)) for end in (logs.low, logs.high))
        return Interval(mean=float(np.exp(logs.mean)), low=next(ends), high=next(ends))


def failures(table: Points) -> list[Failed]:
    """All settings with failed runs."""
    failed = []
    for row in np.flatnonzero(~table.ok):
        reason = str(table.reason[row, int(np.argmax(table.failed[row]))])
        lost = int(table.failed[row].sum())
        failed.append(Failed(setting=table.setting(row), failed=lost, runs=table.failed.shape[1], reason=reason))
    return failed


def intervals(columns: np.ndarray) -> list[Interval]:
    """The mean and interval over seeds of each column of an array (seed, …)."""
    band = statistics.band(columns)
    return [
        Interval(
            mean=float(mean), low=None if np.isnan(low) else float(low), high=None if np.isnan(high) else float(high)
        )
        for mean, low, high in zip(*band, strict=True)
    ]


def compare_settings(
    sweep: Any,
    over: str,
    by: str | Sequence[str] = (),
    *,
    to: Any = None,
    cost: str = "mean_cost",
    last: float | None = None,
) -> Comparison:
    """Compare the values of the setting `over`, for example tuners, at each value of `by`, for example noises.

    Each value has its best other settings, chosen for each seed by all other seeds. Differences are to the value `to`,
    by default the first value, and are paired by seed. `cost` and `last` are as in `best`.
    """
    table = points(sweep, cost=cost, last=last)
    (name,), by_names = _names("over", over, table), _names("by", by, table)
    if name in by_names:
        raise ArgumentError("by", "other settings than over", f"{name!r} in both")
    values, _ = table.levels(name)
    base = values[0] if to is None else next((value for value in values if show(value) == show(to)), None)
    if base is None:
        raise ArgumentError("to", f"a value of {name}, one of {[show(value) for value in values]}", f"{to!r}")
    sides, columns = [], []
    for key, rows in table.groups(by_names):
        here = table.at(rows)
        parts = [(value, here.at(where)) for (value,), where in here.groups([name])]
        # Compare by text, because NaN is not equal to itself.
        reference = next((_each_seed(part) for value, part in parts if show(value) == show(base)), None)
        for value, part in parts:
            each = _each_seed(part)
            first = show(value) == show(base)
            columns += [each, None if each is None or reference is None or first else each - reference]
            sides.append((dict(zip(by_names, key, strict=True)), value, part))
    known = iter(intervals(np.stack([column for column in columns if column is not None] or [np.zeros(1)], axis=1)))
    costs = [None if column is None else next(known) for column in columns]
    return Comparison(
        over=name,
        by=by_names,
        to=base,
        seeds=table.seeds.size,
        judged=table.judged,
        sides=[
            _side(by_values, value, part, [name, *by_names], cost, difference)
            for (by_values, value, part), cost, difference in zip(sides, costs[::2], costs[1::2], strict=True)
        ],
    )


def _side(by: Setting, value: Any, part: Points, fixed: list[str], cost: Any, difference: Any) -> Side:
    chosen = part.setting(int(np.argmin(part.mean))) if part.ok.any() else None
    failed = failures(part)
    return Side(
        by=by,
        value=value,
        setting=None if chosen is None else {name: value for name, value in chosen.items() if name not in fixed},
        cost=cost,
        difference=difference,
        failed=int(part.failed.sum()),
        runs=part.failed.size,
        reason=failed[0].reason if failed else None,
    )


def _each_seed(part: Points) -> np.ndarray | None:
    """For each seed, the cost of the setting that all other seeds choose; a single seed chooses for itself."""
    cost = part.cost[part.ok]
    if not cost.size:
        return None
    return chosen_by_others(cost) if cost.shape[1] > 1 else cost.min(axis=0)


def _best(table: Points) -> Best:
    cost = table.cost[table.ok]
    less = to_best(cost)
    standing = _standings(table, less)
    return Best(
        setting=standing[0].setting,
        cost=standing[0].cost,
        fair=intervals(chosen_by_others(cost)[:, None])[0] if cost.shape[1] > 1 else None,
        chance=less.chance,
        rivals=[rival for rival in standing[1:] if rival.near],
        edge=[name for name, value in standing[0].setting.items() if _is_edge(table, name, value)],
        failed=failures(table),
        points=len(table),
        seeds=table.seeds.size,
        judged=table.judged,
    )


def _is_edge(table: Points, name: str, value: Any) -> bool:
    numbers = table.columns[name].astype(float) if table.columns[name].dtype.kind in "iuf" else np.empty(0)
    values = np.unique(numbers[~np.isnan(numbers)] if table.is_joined else numbers)
    if len(values) < 3 or not np.isfinite(values).all():
        return False
    return value in (min(values), max(values))


def _averaged(table: Points, across: Names) -> Points:
    """The points with the mean over all values of the settings `across`."""
    names = _names("across", across, table)
    left = [name for name in table.names if name not in names]
    groups = [rows for _, rows in table.groups(left)]
    if not names:
        return table
    if (size := int(np.prod([len(table.levels(name)[0]) for name in names]))) * len(groups) != len(table):
        raise ArgumentError(
            "across",
            f"each of {size} values of {', '.join(names)} with every other setting, as in a grid",
            f"{len(table)} points of {len(groups)} other settings",
        )
    rows = np.stack(groups)  # (setting, value)
    failed = np.asarray(table.failed[rows].any(axis=1))
    first = table.failed[rows].argmax(axis=1)
    return Points(
        columns={name: table.columns[name][rows[:, 0]] for name in left},
        cost=np.where(failed, np.nan, table.cost[rows].mean(axis=1)),
        failed=failed,
        reason=table.reason[np.take_along_axis(rows, first, axis=1), np.arange(failed.shape[1])],
        seeds=table.seeds,
        judged=f"{table.judged}, the mean over {', '.join(names)}",
        is_joined=table.is_joined,
    )


def _names(argument: str, given: str | Sequence[str], table: Points) -> list[str]:
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in table.columns:
            raise ArgumentError(argument, f"a setting of the sweep, one of {table.names}", f"{name!r}")
    return names


def percent(share: float) -> str:
    """A whole percentage, but "less than 1 %" or "over 99 %" near the ends."""
    if 0 < share < 0.01:
        return "less than 1 %"
    return "over 99 %" if 0.99 < share < 1 else f"{100 * share:.0f} %"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"
