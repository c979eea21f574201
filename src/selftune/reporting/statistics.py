"""Means over seeds with their confidence intervals."""

from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from pydantic import BaseModel, ConfigDict

from ..foundation import numbers
from ..regret import bands

BOOTSTRAP_SEED = 0
"""The seed of every bootstrap. It is fixed, so that the same data always gives the same figure."""


class Band(NamedTuple):
    """Mean over seeds and its 95 % bootstrap interval, which is NaN if there is only one seed."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(values: Any) -> Band:
    """The band of an array with the seeds first, or of a DataArray with `seed`; NaN where some value is not finite."""
    array = np.asarray(values.transpose("seed", ...) if isinstance(values, xr.DataArray) else values, dtype=float)
    columns = array.reshape(len(array), -1)
    known = np.flatnonzero(np.isfinite(columns).all(axis=0))
    made = np.full((3, columns.shape[1]), np.nan)
    if len(array) == 1:
        made[0] = columns[0]
    else:
        for start in range(0, known.size, _AT_ONCE):
            part = known[start : start + _AT_ONCE]
            block = np.zeros((len(array), _AT_ONCE))
            block[:, : part.size] = columns[:, part]
            with jax.enable_x64(True):
                over = bands(block, key=jax.random.key(BOOTSTRAP_SEED))
            made[:, part] = np.stack([over.mean, over.low, over.high])[:, : part.size]
    return Band(*made.reshape(3, *array.shape[1:]))


# Columns are padded to blocks of one size: compiling takes a second for each size, a block some milliseconds.
_AT_ONCE = 128


def interval_text(values: Any, form: str = ".3g") -> str:
    """The text `mean [low, high]` of (mean, low, high)."""
    mean, low, high = (float(value) for value in values)
    return format(mean, form) if np.isnan(low) else f"{mean:{form}} [{low:{form}}, {high:{form}}]"


class Interval(BaseModel):
    """A mean over seeds with its 95 % bootstrap interval; its ends are None if there is only one seed."""

    model_config = ConfigDict(frozen=True)

    mean: float
    low: float | None
    high: float | None

    @property
    def lowest(self) -> float:
        return self.mean if self.low is None else self.low

    @property
    def highest(self) -> float:
        return self.mean if self.high is None else self.high

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return numbers.together(self.mean)[0]
        return "{} [{}, {}]".format(*numbers.together(self.mean, self.low, self.high))


class Check(BaseModel):
    """A condition on a measured value. `holds` is None if the condition is not for the settings of the run."""

    name: str
    expected: str
    measured: Interval
    holds: bool | None


def interval(values: Any) -> Interval:
    """The mean and interval of `values`, which have one number for each seed."""
    array = np.asarray(values, float)
    if array.size < 2 or not np.all(np.isfinite(array)):
        return Interval(mean=float(np.mean(array)), low=None, high=None)
    band = bands(array, key=jax.random.key(BOOTSTRAP_SEED))
    return Interval(mean=float(band.mean), low=float(band.low), high=float(band.high))
