"""Stored runs side by side."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import xarray as xr
from pydantic import BaseModel

from ..manifest import Manifest
from ..store import open_run
from .summary import Interval, interval


class Compared(BaseModel):
    """A run's total cost, and its ratio to the first folder's, seed by seed; None where those are not comparable."""

    name: str
    seeds: int
    cost: Interval
    ratio: Interval | None


def compare(folders: Sequence[Path]) -> list[Compared]:
    """Every total cost in the folders; the first folder's is what the same one of the others is divided by."""
    rows: list[Compared] = []
    with jax.enable_x64(True):
        opened = [(folder, *open_run(folder)) for folder in folders]
        base = dict(_costs(opened[0][1]))
        for folder, dataset, manifest in opened:
            paired = folder is not folders[0] and _same_nature(opened[0][2], manifest)
            for label, cost in _costs(dataset):
                ratio = _ratio(cost, base[label]) if paired and label in base else None
                name = f"{folder} {label}".strip()
                rows.append(Compared(name=name, seeds=cost.sizes["seed"], cost=interval(cost), ratio=ratio))
    return rows


def _costs(dataset: xr.Dataset) -> list[tuple[str, xr.DataArray]]:
    """The total costs, (seed,), each with what it is of."""
    total = dataset.total_cost
    dims = [dim for dim in total.dims if dim != "seed"]
    if not dims:
        return [("", total)]
    stacked = total.stack(of=dims)
    return [(", ".join(f"{value}" for value in key), stacked.sel(of=key)) for key in stacked["of"].values]


def _same_nature(one: Manifest, other: Manifest) -> bool:
    """Whether a seed means the same draws in both."""
    if one.kind != other.kind:
        return False
    if one.kind == "run":
        return one.settings["scenario"] == other.settings["scenario"]
    nature = ("decay", "sigma", "period", "periods", "x0")
    return all(one.settings[name] == other.settings[name] for name in nature)


def _ratio(cost: xr.DataArray, base: xr.DataArray) -> Interval | None:
    shared = np.intersect1d(cost.seed, base.seed)
    if not shared.size:
        return None
    return interval(cost.sel(seed=shared).values / base.sel(seed=shared).values)
