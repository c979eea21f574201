"""Sweeps whose answers are known: datasets as `Sweep.to_dataset` gives them, made without running anything."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

STEPS = 1000


def dataset(
    settings: Mapping[str, Any],
    cost: Any,
    *,
    failed: Mapping[tuple[int, ...], tuple[int, str]] | None = None,
    parts: int = 20,
    design: str = "grid",
) -> xr.Dataset:
    """Of a cost (…, seed); it is twice as high at a run's start as at its end. `failed`: places, codes, reasons."""
    cost = np.asarray(cost, float)
    seeds = cost.shape[-1]
    shape, dims = cost.shape, (*(settings if design == "grid" else ["point"]), "seed")
    code, at, reason = np.zeros(shape, np.int32), np.full(shape, -1), np.full(shape, "", object)
    for place, (number, said) in (failed or {}).items():
        code[place], at[place], reason[place] = number, 10, said
    cost = np.where(code == 0, cost, np.nan)
    decline = np.linspace(4 / 3, 2 / 3, parts)  # the mean is one
    coords: dict[str, Any] = {
        name: values if design == "grid" else ("point", values) for name, values in settings.items()
    }
    return xr.Dataset(
        {
            "mean_cost": (dims, cost),
            "part_cost": ((*dims, "part"), cost[..., None] * decline),
            "theta": ((*dims, "parameter"), np.ones((*shape, 1))),
            "result_code": (dims, code),
            "failed_at": (dims, at),
            "reason": (dims, reason.astype(str)),
        },
        coords | {"seed": np.arange(seeds), "part": np.arange(parts) * (STEPS // parts)},
        {"design": design, "settings": list(settings), "steps": STEPS},
    )


def tuners(seeds: int = 16, *, bad: bool = True) -> xr.Dataset:
    """Tuner × learning rate × noise: M-GAPS is best, at 0.01; what a seed shares is far larger. Some of 1.0 diverge."""
    rng = np.random.default_rng(3)
    rates, names, noises = [0.001, 0.01, 0.1, 1.0], ["M-GAPS", "GAPS"], [0.1, 0.2]
    level = np.array([1.6, 1.0, 1.2, 5.0])[:, None] + np.array([0.0, 0.1])
    cost = (level[..., None] * np.array([1.0, 4.0]))[..., None] + 0.02 * rng.normal(size=(4, 2, 2, seeds))
    cost = cost + 3 + 0.5 * rng.normal(size=seeds)
    failed = {}
    if bad:
        failed = {(3, 1, j, seed): (1, "diverged at step 10") for j in range(2) for seed in range(seeds)}
        failed[3, 0, 1, 0] = (2, "a number stopped being finite at step 10")
    return dataset({"learning_rate": rates, "tuner": names, "noise": noises}, cost, failed=failed)
