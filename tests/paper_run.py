"""A small run of the paper's simulation, in the form that `selftune reproduce` writes."""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

import selftune as st
from selftune.storage import store
from tests.problems import scalar_system

NOISES, GAINS, ALGORITHMS = ("outside", "inside"), (0.5, 3.0), ("M-GAPS", "fixed gain", "exact model", "GAPS")
SEEDS, PERIOD, PERIODS, STRIDE = 4, 2000, 3, 20
STEPS = PERIOD * PERIODS
HORIZONS = np.array([500, 1000, 2000, 4000, 6000])
DIMS = ("noise", "gain", "algorithm", "seed")


@cache
def dataset() -> xr.Dataset:
    """Really simulated, but for the local regret, in which M-GAPS's own gradient stands for the surrogate's."""
    system, box = scalar_system(), st.Box(0.0, 50.0)
    estimator = st.GradientEstimator(0.005, constraint=st.Box(-0.25, 0.25))
    controllers = {
        "M-GAPS": st.Controller(system, st.MGAPS(1e-4, constraint=box), estimator),
        "fixed gain": st.Controller(system, st.Fixed(), estimator),
        "exact model": st.Controller(system, st.MGAPS(1e-4, constraint=box), st.Known()),
        "GAPS": st.Controller(system, st.GAPS(buffer=20, learning_rate=1e-4, constraint=box), estimator),
    }
    keys = [jax.random.split(jax.random.key(seed)) for seed in range(SEEDS)]
    a_star = jnp.stack([st.PiecewiseConstant(PERIOD, -0.25, 0.25)(ka, STEPS, 3) for ka, _ in keys])
    w = jnp.stack([st.OrnsteinUhlenbeck(0.95, 0.1)(kw, STEPS, 1) for _, kw in keys])
    scenarios = [st.Scenario(jnp.zeros(1), a, n * s) for s in (1.0, 0.01) for a, n in zip(a_star, w, strict=True)]

    def run(controller, gain):
        start = dict(theta=jnp.full(1, gain), a_hat=jnp.zeros(3))
        runs = [st.simulate(controller, s, **start) for s in scenarios]
        fields = ("x", "theta", "a_hat", "cost", "gradient", "f", "f_hat")
        return {name: np.stack([getattr(r, name) for r in runs]).reshape(2, SEEDS, STEPS, -1) for name in fields}

    runs = [[run(controller, gain) for controller in controllers.values()] for gain in GAINS]

    def stacked(value):  # (noise, gain, algorithm, seed, …)
        return np.stack([np.stack([value(r) for r in row], axis=1) for row in runs], axis=1)

    cost = stacked(lambda r: r["cost"][..., 0])
    periods = cost.reshape(*cost.shape[:-1], PERIODS, PERIOD).sum(-1)
    static = st.Controller(system, st.Fixed(), st.Known())
    grid = np.array([2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    tried = np.stack([run(static, gain)["cost"][..., 0] for gain in grid])  # (grid, noise, seed, time)
    best = tried.sum(-1).argmin(0)
    least = np.take_along_axis(tried, best[None, ..., None], axis=0)[0]
    squared = np.cumsum(stacked(lambda r: r["gradient"][..., 0] ** 2)[:, :, 0], axis=-1)
    faster = st.Controller(system, st.MGAPS(1.0, constraint=box), estimator)
    rescaled = np.stack(
        [run(faster, gain)["cost"][1, ..., 0].reshape(SEEDS, PERIODS, PERIOD).sum(-1) for gain in GAINS]
    )
    every = slice(None, None, STRIDE)
    return xr.Dataset(
        {
            "a_star": (("seed", "time", "feature"), np.asarray(a_star)[:, every]),
            "a_hat": ((*DIMS, "time", "feature"), stacked(lambda r: r["a_hat"])[..., every, :].astype(np.float32)),
            "theta": ((*DIMS, "time"), stacked(lambda r: r["theta"][..., 0])[..., every]),
            "model_error": ((*DIMS, "time"), stacked(lambda r: (r["f_hat"] - r["f"])[..., 0])[..., every]),
            "x": ((*DIMS, "time"), stacked(lambda r: r["x"][..., 0])[..., every]),
            "cumulative_cost": ((*DIMS, "time"), np.cumsum(cost, axis=-1)[..., every]),
            "total_cost": (DIMS, cost.sum(-1)),
            "period_cost": ((*DIMS, "period"), periods),
            "result_code": (DIMS, np.zeros(cost.shape[:-1], np.int32)),
            "static_gain": (("noise", "seed"), grid[best]),
            "static_cost": (("noise", "seed"), least.sum(-1)),
            "static_period_cost": (("noise", "seed", "period"), least.reshape(2, SEEDS, PERIODS, PERIOD).sum(-1)),
            "local_regret": (("noise", "gain", "seed", "horizon"), squared[..., HORIZONS - 1]),
            "rescaled_period_cost": (("gain", "seed", "period"), rescaled),
        },
        coords={
            "noise": list(NOISES),
            "gain": list(GAINS),
            "algorithm": list(ALGORITHMS),
            "seed": np.arange(SEEDS),
            "time": np.arange(0, STEPS, STRIDE),
            "period": np.arange(PERIODS),
            "feature": np.arange(3),
            "horizon": HORIZONS,
        },
    )


def certificates() -> dict:
    settings = {"steps": 400, "seed": 3, "gain": 1.0, "theta": [0.5, 20.0]}
    return {"settings": settings, "certificates": {"outside": certificate(), "inside": certificate()}}


def certificate() -> dict:
    """One row of each kind: it holds, it is vacuous, it fails, it has no finite bound, nothing was measured."""
    row = dict(reference="Theorem 1", given=["L_f"], sampled=["ρ"], failed_hypotheses=[], vacuous=False, holds=True)
    return {
        "rows": [
            row | dict(name="contraction", statement="‖y_t‖ ≤ C/(1 − ρ)", measured=3.2, bound=41.0, slack=12.8),
            row | dict(name="local regret", statement="R ≤ …", measured=5e3, bound=8e9, slack=1.6e6, vacuous=True),
            row
            | dict(name="gradient bias", statement="b ≤ …", measured=2.0, bound=1.5, slack=0.75, holds=False)
            | dict(failed_hypotheses=["w is bounded <by W>"]),
            row | dict(name="unbounded", statement="x ≤ ∞", measured=0.0, bound=None, slack=None, vacuous=True),
            row
            | dict(name="lost cause", statement="z ≤ …", measured=2.0, bound=1.0, slack=-1.0, holds=False)
            | dict(must_hold=False, failed_hypotheses=["small noise"]),
            row | dict(name="slow θ", kind="hypothesis", statement="s ≤ …", measured=2.0, bound=1.0, holds=False),
            row | dict(name="not measured", statement="ζ ≤ …", measured=None, bound=3.0, slack=None, holds=None),
        ],
        "constants": {"L_f": 0.75, "ρ": 0.97},
    }


def folder(
    path: Path,
    *,
    data: xr.Dataset | None = None,
    kind: str = "paper",
    finish: bool = True,
    **more: str,
) -> Path:
    """The run in a store. `more`: settings."""
    data = dataset() if data is None else data
    layout = store.Layout(
        task_dims=("seed",),
        coords={str(name): values.values for name, values in data.coords.items()},
        variables={
            str(name): store.Variable(tuple(map(str, values.dims)), str(values.dtype)) for name, values in data.items()
        },
    )
    given = {"learning_rate": 1e-4, "decay": 0.95, "sigma": 0.1, "period": PERIOD}
    settings = given | {"periods": PERIODS, "seeds": SEEDS, "gains": list(GAINS), "note": "<b>x</b> & </script>"} | more
    with store.RunStore.begin(path, kind=kind, settings=settings, layout=layout) as made:
        for (i,) in made.tasks:
            made.write((i,), {str(name): values.isel(seed=i).values for name, values in data.items()})
        if finish:
            made.finish()
    return path
