"""The numbers that both the figures and the report show, from a dataset of `selftune reproduce`."""

from typing import Any

import numpy as np
import xarray as xr

from ...foundation.errors import ArgumentError
from ...reporting.datasets import present, usable
from ...reporting.statistics import Band, band
from ...reporting.style import BLUE, GREEN, GREY, PALETTE, PURPLE, SKY, VERMILLION
from .run import ALGORITHMS, CELL, VARIABLES

OURS, FIXED, EXACT = ALGORITHMS[:3]
RESCALED = "M-GAPS, η/Δ²"
VERDICTS = {"holds": GREEN, "vacuous": GREEN, "fails": VERMILLION, "not promised": GREY, "not checked": GREY}
COLORS = {OURS: BLUE, FIXED: VERMILLION, EXACT: GREEN, "GAPS": PURPLE, RESCALED: SKY}
NOISE = {"outside": "noise outside Δ(…)", "inside": "noise inside Δ(…)"}


def check(dataset: xr.Dataset) -> None:
    """Raise `ValueError` about the first missing or unexpected variable, unless this is the paper's simulation."""
    for name, (dims, _, _) in VARIABLES.items():
        if name == "local_regret_error":
            continue  # no figure shows it
        if name not in dataset:
            raise ArgumentError("dataset", f"a variable {name!r} with dimensions {dims}", f"{list(dataset)}")
        if set(dataset[name].dims) != set(dims):
            raise ArgumentError("dataset", f"{name!r} with dimensions {dims}", f"{dataset[name].dims}")
    for name in (OURS, FIXED, EXACT):
        if name not in dataset.algorithm.values:
            raise ArgumentError("dataset", f"an algorithm {name!r}", f"{list(dataset.algorithm.values)}")
    if not usable(dataset)[0].sizes["seed"]:
        raise ArgumentError("dataset", "a seed without failed runs", f"none of {dataset.sizes['seed']}")


def root_mean_square(data: xr.DataArray) -> float:
    """The root mean square over all seeds and recorded steps."""
    return float(np.sqrt(np.mean(data.values.astype(float) ** 2)))


def switches(dataset: xr.Dataset) -> np.ndarray:
    """The recorded steps at which a* changes."""
    changed = (dataset.a_star.diff("time") != 0).any(["seed", "feature"])
    return changed.time.values[changed.values]


def distance(dataset: xr.Dataset) -> xr.DataArray:
    """‖â − a*‖."""
    return np.sqrt(((dataset.a_hat - dataset.a_star) ** 2).sum("feature"))  # pyright: ignore[reportReturnType]


def regret_difference(dataset: xr.Dataset) -> xr.DataArray:
    """Cumulative cost of M-GAPS minus the cost of the same gain held fixed, for each seed."""
    cost = dataset.cumulative_cost
    return cost.sel(algorithm=OURS, drop=True) - cost.sel(algorithm=FIXED, drop=True)


def table(dataset: xr.Dataset) -> xr.Dataset:
    """Total costs and their ratios, each with its interval: (noise, gain, algorithm, band).

    Ratios are paired: both runs have the same seed, and so the same a* and w. The ratios are averaged over seeds.
    """
    return _compared(dataset, dataset.period_cost, dataset.total_cost)


def rescaled(dataset: xr.Dataset) -> xr.Dataset:
    """The values of `table` for M-GAPS with the learning rate η/Δ² and the noise inside Δ(…): (gain, band)."""
    costs = dataset.rescaled_period_cost
    return _compared(dataset.sel(noise="inside", drop=True), costs, costs.sum("period"))


def standings(dataset: xr.Dataset) -> dict[str, dict[str, xr.Dataset]]:
    """`table` and `rescaled` by noise and by algorithm, in the order of display: each (gain, band)."""
    costs = table(dataset)
    costs_by_noise = {
        str(noise): {str(name): costs.sel(noise=noise, algorithm=name) for name in costs.algorithm.values}
        for noise in costs.noise.values
    }
    if "inside" in costs_by_noise:
        costs_by_noise["inside"][RESCALED] = rescaled(dataset)
    return costs_by_noise


def _compared(dataset: xr.Dataset, periods: xr.DataArray, total: xr.DataArray) -> xr.Dataset:
    """Costs, and their ratios to the reference costs of `dataset`."""
    later = slice(1, None)
    ratios = {
        "total_cost": total,
        "to_fixed": total / dataset.total_cost.sel(algorithm=FIXED, drop=True),
        "to_exact": total / dataset.total_cost.sel(algorithm=EXACT, drop=True),
        "to_static": total / dataset.static_cost,
    }
    if dataset.sizes["period"] > 1:
        best = dataset.static_period_cost.isel(period=later).sum("period")
        ratios["to_static_later"] = periods.isel(period=later).sum("period") / best
    dims = [name for name in CELL if name in total.dims]
    made = {name: np.stack(band(values.transpose("seed", *dims)), axis=-1) for name, values in ratios.items()}
    coords: dict[str, Any] = {name: dataset[name] for name in dims} | {"band": list(Band._fields)}
    return xr.Dataset({name: ((*dims, "band"), values) for name, values in made.items()}, coords)


def slopes(dataset: xr.Dataset) -> xr.DataArray:
    """d log R / d log T of the local regret, fitted by least squares for each seed: (noise, gain, band)."""
    regret = present(dataset.local_regret).transpose("seed", "noise", "gain", "horizon")
    centred = np.log(regret.horizon.values)
    centred = centred - centred.mean()
    # Zero has no logarithm, so the smallest positive number replaces it.
    logs = np.log(np.maximum(regret.values, np.finfo(float).tiny))
    fitted = (logs * centred).sum(-1) / (centred**2).sum()
    coords: dict[str, Any] = {"noise": dataset.noise, "gain": dataset.gain, "band": list(Band._fields)}
    return xr.DataArray(np.stack(band(fitted), axis=-1), coords, ("noise", "gain", "band"))


def color(name: str, index: int) -> str:
    """The colour of an algorithm; algorithms without a colour of their own take one from the palette."""
    return COLORS.get(name, PALETTE[(4 + index) % len(PALETTE)])


def placeable(value: Any) -> float | None:
    """A number that fits on a logarithmic axis, or 0; None for missing, infinite or negative numbers."""
    return None if value is None or not np.isfinite(float(value)) or float(value) < 0 else float(value)


def edges(rows: list[dict]) -> tuple[float, float]:
    """The places of zero and of infinity on the axis: one decade beyond all numbers of the rows."""
    both = [placeable(row[key]) for row in rows for key in ("measured", "bound")]
    numbers = [value for value in both if value] or [10.0]
    return min(numbers) / 10, max(numbers) * 10


def verdict(row: dict) -> str:
    """The verdict on a row of a certificate: "holds", "vacuous", "fails", "not promised" or "not checked".

    A vacuous bound holds, but a bound without the theorem is smaller. An inequality was not promised if it does not
    hold and a hypothesis of it does not hold either.
    """
    if row.get("holds") is None:
        return "not checked"
    if not row["holds"]:
        return "fails" if row.get("must_hold", True) or row.get("kind") == "hypothesis" else "not promised"
    return "vacuous" if row.get("vacuous") else "holds"


def inequalities(certificate: dict) -> list[dict]:
    """The rows with a bound, without the hypotheses."""
    return [row for row in certificate["rows"] if row.get("kind") != "hypothesis"]


def start(dataset: xr.Dataset) -> float:
    """The start nearest to 1, for figures that show only one."""
    gains = dataset.gain.values
    return float(gains[np.abs(gains - 1).argmin()])
