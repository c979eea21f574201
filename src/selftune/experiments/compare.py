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
    """A run's total cost, and its ratio to the first folder's, seed by seed; or else the reason why it has none."""

    name: str
    seeds: int
    cost: Interval
    ratio: Interval | None
    reason: str | None = None


def compare(folders: Sequence[Path]) -> list[Compared]:
    """Every total cost in the folders; the first folder's is what the same one of the others is divided by."""
    rows: list[Compared] = []
    with jax.enable_x64(True):
        opened = [(folder, *open_run(folder)) for folder in folders]
        base = dict(_costs(opened[0][1]))
        for folder, dataset, manifest in opened:
            differs = "it is the first" if folder is folders[0] else _differs(opened[0][2], manifest)
            for label, cost in _costs(dataset):
                ratio = _ratio(cost, base[label]) if differs is None and label in base else None
                reason = None if ratio else differs or ("no seed in common" if label in base else "not in the first")
                name = f"{folder} {label}".strip()
                rows.append(
                    Compared(name=name, seeds=cost.sizes["seed"], cost=interval(cost), ratio=ratio, reason=reason)
                )
    return rows


def _costs(dataset: xr.Dataset) -> list[tuple[str, xr.DataArray]]:
    """The total costs, (seed,), each with what it is of."""
    total = dataset.total_cost
    dims = [dim for dim in total.dims if dim != "seed"]
    if not dims:
        return [("", total)]
    stacked = total.stack(of=dims)
    return [(", ".join(f"{value}" for value in key), stacked.sel(of=key)) for key in stacked["of"].values]


def _differs(one: Manifest, other: Manifest) -> str | None:
    """Why costs cannot be divided; None where a seed means the same draws, on the same system."""
    if one.kind != other.kind:
        return "another kind of run"
    nature = ("system", "scenario") if one.kind == "run" else ("decay", "sigma", "period", "periods", "x0")
    other_than = [name for name in nature if one.settings[name] != other.settings[name]]
    return f"another {' and '.join(other_than)}" if other_than else None


def _ratio(cost: xr.DataArray, base: xr.DataArray) -> Interval | None:
    shared = np.intersect1d(cost.seed, base.seed)
    if not shared.size:
        return None
    return interval(cost.sel(seed=shared).values / base.sel(seed=shared).values)
