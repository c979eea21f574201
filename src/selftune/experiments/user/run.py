"""A user's controller on a scenario, with several seeds, as one stored run (`selftune run CONFIG.toml`)."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

from ...control import result_codes
from ...control.run_fields import FIELDS
from ...foundation.errors import ArgumentError
from ...foundation.executors import Meter, Threads
from ...storage.store import Layout, RunStore, Variable
from ...storage.tasks import run_tasks
from .config import Loaded

if TYPE_CHECKING:
    from ...storage.manifest import Manifest

_LEAST_CHUNK, _MOST_CHUNKS = 50_000, 20


def compute(
    loaded: Loaded,
    folder: Path,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> "Manifest":
    """Compute the seeds that `folder` does not have yet, in float64, and return the manifest. A task is a seed."""
    with jax.enable_x64(True):
        config, seeds = loaded.config, loaded.config.run.seed_list
        settings = config.model_dump(exclude_none=True, exclude={"sweep"})
        # The system is code. If the code changes, the numbers change.
        settings["system"]["sha256"] = {
            name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in loaded.sources.items()
        }
        made = check(loaded)
        with RunStore.begin(folder, kind="run", settings=settings, layout=_layout(loaded)) as store:
            run_tasks(
                store,
                lambda task, tell: _one_seed(loaded, made, seeds[task[0]], tell),
                [len(_chunks(config.scenario.steps))] * len(seeds),
                Threads(workers),
                Meter(progress),
                reports_progress=True,
            )
            return store.manifest


def check(loaded: Loaded) -> st.Controller:
    """The controller, after checking that all values and noise processes fit it. Runs before a folder is created."""
    config, sizes = loaded.config, sizes_of(loaded)
    x = jnp.asarray(config.scenario.x0, float)
    values = {name: jnp.asarray(getattr(config.run, name), float) for name in ("theta", "a_hat")}
    try:
        made = st.Controller(loaded.system, loaded.tuner, loaded.estimator)
        state = made.init(x, **values)
    except ValueError as error:
        raise loaded.refuse_argument(error, {name: f"run.{name}" for name in values}, "run") from error
    for name, process in loaded.processes.items():
        try:
            process(jax.random.key(config.run.seed_list[0]), 1, widths_of(loaded, sizes)[name])
        except ValueError as error:
            raise loaded.refuse(f"scenario.{name}", str(error)) from error
    info = jax.eval_shape(lambda: made.act(state, x, 0))[2].tuner
    for name in config.run.record:
        if name in ("y", "gradient", "contraction") and getattr(info, name) is None:
            raise loaded.refuse("run.record", f"the tuner {config.tuner.name} keeps no {name}")
        if name == "guard" and loaded.guard is None:
            raise loaded.refuse("run.record", "there is no table [guard]")
    if loaded.guard is not None:
        try:
            loaded.guard.check(sizes["state"], sizes["control"], sizes["residual"], sizes["parameter"])
        except ArgumentError as error:
            raise loaded.refuse(f"guard.{error.argument}", error.mistake) from error
    return made


def widths_of(loaded: Loaded, sizes: dict[str, int]) -> dict[str, int]:
    """The number of components of each random sequence: a*, w and v."""
    return {"a_star": len(loaded.config.run.a_hat), "w": sizes["state"], "v": sizes["residual"]}


def sizes_of(loaded: Loaded) -> dict[str, int]:
    part = loaded.config.run
    x, theta, a_hat = (jnp.asarray(values, float) for values in (loaded.config.scenario.x0, part.theta, part.a_hat))
    try:
        sizes = loaded.system.check(x, theta, a_hat, jax.ShapeDtypeStruct((), jnp.int32), thorough=True)
    except ValueError as error:
        places = {"theta": "run.theta", "a": "run.a_hat", "x": "scenario.x0"}
        raise loaded.refuse_argument(error, places, "run") from error
    return dict(
        state=sizes.n, control=sizes.m, residual=sizes.k, parameter=len(part.theta), model_parameter=len(part.a_hat)
    )


def _recorded(loaded: Loaded) -> tuple[str, ...]:
    return tuple(dict.fromkeys(loaded.config.run.record))


def _layout(loaded: Loaded) -> Layout:
    config, sizes = loaded.config, sizes_of(loaded)
    variables = {
        name: Variable(("seed", "time", *FIELDS[name].axes), "float64", FIELDS[name].__doc__ or "")
        for name in _recorded(loaded)
    }
    used = {dim for variable in variables.values() for dim in variable.dims}
    return Layout(
        task_dims=("seed",),
        coords={
            "seed": np.asarray(config.run.seed_list),
            "time": np.arange(0, config.scenario.steps, config.run.stride),
            **{dim: np.arange(size) for dim, size in sizes.items() if dim in used},
        },
        variables={
            **variables,
            "total_cost": Variable(("seed",), "float64", "cost of all steps"),
            "result_code": Variable(("seed",), "int32", "how the run ended; 0 is ok"),
            "failed_at": Variable(("seed",), "int64", "the step at which it went wrong; -1 where it did not"),
        },
    )


def _one_seed(
    loaded: Loaded, controller: st.Controller, seed: int, tell: Callable[[int], Any]
) -> dict[str, np.ndarray]:
    config, fields = loaded.config, _recorded(loaded)
    widths = widths_of(loaded, sizes_of(loaded))
    scenario = draw(config.scenario.x0, config.scenario.steps, loaded.processes, widths, jax.random.key(seed))
    start: dict[str, Any] = {name: jnp.asarray(getattr(config.run, name), float) for name in ("theta", "a_hat")}
    parts: dict[str, list[np.ndarray]] = {name: [] for name in dict.fromkeys((*fields, "cost"))}
    code, failed_at = result_codes.OK, -1
    # In chunks, for the progress of a long run. The result is bit-identical to one run over all steps.
    for chunk in _chunks(config.scenario.steps):
        done = st.simulate(controller, scenario[chunk], **start, guard=loaded.guard, record=tuple(parts), throw=False)
        for name, rows in parts.items():
            rows.append(np.asarray(getattr(done, name), np.float64))
        if code == result_codes.OK:
            code, failed_at = int(done.outcome.code), int(done.outcome.step)
        start = {"resume": done.final}
        tell(1)
    rows = {name: np.concatenate(each) for name, each in parts.items()}
    return {
        **{name: rows[name][:: config.run.stride] for name in fields},
        "total_cost": rows["cost"].sum(),
        "result_code": np.asarray(code, np.int32),
        "failed_at": np.asarray(failed_at, np.int64),
    }


def draw(x0: Any, steps: int, processes: dict[str, Any], widths: dict[str, int], key: jax.Array) -> st.Scenario:
    """The scenario that `processes` draw for a key."""
    keys: dict[str, Any] = dict(zip(("a_star", "w", "v"), jax.random.split(key, 3), strict=True))
    drawn = {name: process(keys[name], steps, widths[name]) for name, process in processes.items()}
    return st.Scenario(jnp.asarray(x0, float), drawn["a_star"], drawn["w"], drawn.get("v"))


def _chunks(steps: int) -> list[slice]:
    size = max(_LEAST_CHUNK, -(-steps // _MOST_CHUNKS))
    return [slice(begin, begin + size) for begin in range(0, steps, size)]
