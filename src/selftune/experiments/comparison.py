"""Comparison of stored runs."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import xarray as xr
from pydantic import BaseModel

from ..foundation.errors import ArgumentError, InputError
from ..reporting.statistics import Interval, interval
from ..storage.manifest import Manifest
from ..storage.store import open_run, read_manifest
from ..sweeps.summary import Comparison, compare_settings
from .registry import StoredRun, find


class Compared(BaseModel):
    """The total cost of a run and its ratio to the first run, paired by seed; or the reason why there is no ratio."""

    name: str
    seeds: int
    cost: Interval
    ratio: Interval | None
    reason: str | None = None


def compare(folders: Sequence[Path]) -> list[Compared]:
    """The total costs of all runs in the folders, each divided by the matching cost of the first folder."""
    rows: list[Compared] = []
    with jax.enable_x64(True):
        opened = [(folder, *open_run(folder)) for folder in folders]
        base = dict(_costs(opened[0][1]))
        for folder, dataset, manifest in opened:
            differs = "the reference" if folder is folders[0] else _differs(opened[0][2], manifest)
            for label, cost in _costs(dataset):
                ratio = _ratio(cost, base[label]) if differs is None and label in base else None
                reason = None if ratio else differs or ("no common seed" if label in base else "not in the first run")
                name = f"{folder} {label}".strip()
                rows.append(
                    Compared(name=name, seeds=cost.sizes["seed"], cost=interval(cost), ratio=ratio, reason=reason)
                )
    return rows


def compare_sweep(
    folders: Sequence[Path],
    *,
    over: str | None = None,
    by: Sequence[str] | None = None,
    to: str | None = None,
    last: float | None = None,
) -> Comparison | None:
    """The comparison of the values of a sweep's setting (`compare_settings`), or None if the folders are runs.

    `over` is optional if the sweep has only one setting.
    """
    asked = [f"--{name}" for name, value in {"over": over, "by": by, "to": to, "last": last}.items() if value]
    sweeps = [folder for folder in folders if read_manifest(folder).kind == "sweep"]
    if not sweeps:
        if asked:
            raise InputError(f"{', '.join(asked)}: expected a sweep, got {folders[0]}, which is a run")
        return None
    if len(folders) > 1:
        raise InputError(
            f"expected either one sweep or several runs, got {len(folders)} folders with the sweep {sweeps[0]}"
        )
    dataset = StoredRun.open(folders[0]).dataset
    names = [str(name) for name in dataset.attrs["settings"]]
    if over is None and len(names) > 1:
        raise InputError(f"--over: expected a setting of the sweep, one of {', '.join(names)}, got none")
    try:
        return compare_settings(dataset, over or names[0], by or (), to=to, last=last)
    except ArgumentError as error:
        raise InputError(f"--{error.argument}: {error.mistake}") from None


def _costs(dataset: xr.Dataset) -> list[tuple[str, xr.DataArray]]:
    """The total costs, (seed,), each with a label of its other coordinates."""
    total = dataset.total_cost
    dims = [dim for dim in total.dims if dim != "seed"]
    if not dims:
        return [("", total)]
    stacked = total.stack(of=dims)
    return [(", ".join(f"{value}" for value in key), stacked.sel(of=key)) for key in stacked["of"].values]


def _differs(one: Manifest, other: Manifest) -> str | None:
    """Why costs cannot be divided; None if the systems are the same and a seed gives the same random draws."""
    if one.kind != other.kind:
        return "different kind of run"
    names = find(one.kind).plant_settings or tuple(one.settings | other.settings)
    other_than = [name for name in names if one.settings.get(name) != other.settings.get(name)]
    return f"different {' and '.join(other_than)}" if other_than else None


def _ratio(cost: xr.DataArray, base: xr.DataArray) -> Interval | None:
    shared = np.intersect1d(cost.seed, base.seed)
    if not shared.size:
        return None
    return interval(cost.sel(seed=shared).values / base.sel(seed=shared).values)
