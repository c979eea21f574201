"""The numbers of a user's run: totals, costs at the beginning and at the end, and the parameters at the end."""

from typing import NamedTuple

import numpy as np
import xarray as xr

from ...reporting import statistics
from ...reporting.statistics import Band


class Row(NamedTuple):
    """A quantity that each seed has: its mean over the seeds with the 95 % interval, its minimum and its maximum."""

    name: str
    band: Band
    low: float
    high: float


def rows(dataset: xr.Dataset) -> list[Row]:
    """The totals, the mean cost of the first and of the last tenth of the recorded steps, and the last θ and â."""
    if not dataset.sizes.get("seed", 0):
        return []
    made = [
        _row(str(name), values)
        for name, values in dataset.data_vars.items()
        if values.dims == ("seed",) and values.dtype.kind == "f"
    ]
    if "cost" in dataset and dataset.sizes.get("time", 0) >= 10:
        size = dataset.sizes["time"] // 10
        for name, part in {"first": slice(0, size), "last": slice(-size, None)}.items():
            made.append(_row(f"mean cost, {name} tenth", dataset.cost.isel(time=part).mean("time")))
    for name, symbol in {"theta": "θ", "a_hat": "â"}.items():
        if name in dataset and dataset.sizes["time"]:
            last = dataset[name].isel(time=-1).stack(component=dataset[name].dims[2:])
            labels = dataset[dataset[name].dims[2]].values
            for i, label in enumerate(labels):
                text = label if isinstance(label, str) else f"{symbol}[{i}]"
                made.append(_row(f"{text} at the end", last.isel(component=i)))
    return made


def _row(name: str, values: xr.DataArray) -> Row:
    array = np.asarray(values.values, float)
    return Row(name, statistics.band(array), float(array.min()), float(array.max()))
