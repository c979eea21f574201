"""What figures and pages of every experiment ask of a dataset."""

from typing import Any

import numpy as np
import xarray as xr


def usable(dataset: xr.Dataset) -> tuple[xr.Dataset, list[int]]:
    """Without the seeds of which some run failed, so that what is compared stays paired; and those seeds."""
    if "result_code" not in dataset:
        return dataset, []
    code = dataset.result_code
    failed = (code != 0).any([name for name in code.dims if name != "seed"]).values
    return dataset.isel(seed=np.flatnonzero(~failed)), [int(seed) for seed in dataset.seed.values[failed]]


def present(values: xr.DataArray) -> xr.DataArray:
    """The seeds of which every number is there."""
    return values.dropna("seed")


def thin(data: Any, most: int = 500) -> Any:
    """Every k-th recorded step, with the least k that leaves at most `most`."""
    return data.isel(time=slice(None, None, -(-data.sizes["time"] // most)))


def steps(dataset: xr.Dataset) -> int:
    """T, as far as it can be told from the recorded steps."""
    time = dataset.time.values
    return int(2 * time[-1] - time[-2]) if time.size > 1 else int(time[-1]) + 1
