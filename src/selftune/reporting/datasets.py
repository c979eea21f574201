"""Selections from a dataset that the figures and pages of every experiment need."""

from typing import Any

import numpy as np
import xarray as xr


def usable(dataset: xr.Dataset) -> tuple[xr.Dataset, list[int]]:
    """The dataset without the seeds that have a failed run, so that all comparisons stay paired; and those seeds."""
    if "result_code" not in dataset:
        return dataset, []
    code = dataset.result_code
    failed = (code != 0).any([name for name in code.dims if name != "seed"]).values
    return dataset.isel(seed=np.flatnonzero(~failed)), [int(seed) for seed in dataset.seed.values[failed]]


def present(values: xr.DataArray) -> xr.DataArray:
    """The seeds without missing numbers."""
    return values.dropna("seed")


def thin(data: Any, most: int = 500) -> Any:
    """Every k-th recorded step, with the smallest k that leaves at most `most` steps."""
    return data.isel(time=slice(None, None, -(-data.sizes["time"] // most)))


def steps(dataset: xr.Dataset) -> int:
    """The number of steps T, estimated from the recorded steps."""
    time = dataset.time.values
    return int(2 * time[-1] - time[-2]) if time.size > 1 else int(time[-1]) + 1
