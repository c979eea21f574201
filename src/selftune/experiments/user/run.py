"""A user's controller on a scenario, with several seeds, as one stored run (`selftune run CONFIG.toml`)."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
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
        settings["run"]["record"] = loaded.record
        # The system is code. If the code changes, the numbers change.
        settings["system"]["sha256"] = {
            name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in loaded.sources.items()
        }
        if loaded.reference_file is not None:  # so that a run cannot be continued with another reference
            digest = hashlib.sha256(loaded.reference_file.read_bytes()).hexdigest()
            settings["scenario"]["t"]["sha256"] = digest
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
    values = loaded.start
    try:
        made = loaded.controller
        state = made.init(loaded.x0, **values, t=loaded.first_context)
    except ValueError as error:
        raise loaded.refuse_argument(error, {name: f"run.{name}" for name in values}, "run") from error
    for name, process in loaded.processes.items():
        try:
            process(jax.random.key(config.run.seed_list[0]), 1, widths_of(sizes)[name])
        except ValueError as error:
            raise loaded.refuse(f"scenario.{name}", str(error)) from error
    measured = jnp.zeros(sizes["measurement"])
    info = jax.eval_shape(lambda t: made.act(state, measured, t)[2], loaded.first_context)
    absent = {name: f"the tuner {type(made.tuner).__name__} keeps no {name}" for name in _OF_TUNER}
    absent = {name: text for name, text in absent.items() if getattr(info.tuner, name) is None}
    if loaded.guard is None:
        absent["guard"] = "there is no table [guard]"
    if loaded.system.memory is None:
        absent["memory"] = "the policy has no memory"
    if loaded.system.measure is None and loaded.loop is None:
        absent["measured"] = "the controller gets the state itself"
    if not sizes["output"]:
        absent["reference"] = "there is no reference; the table [scenario.t] gives one"
    for name in loaded.record:
        if name in absent:
            raise loaded.refuse("run.record", absent[name])
    if loaded.guard is not None:
        try:
            q, m, k, d = (sizes[name] for name in ("measurement", "control", "residual", "parameter"))
            loaded.guard.check(q, m, k, d, measured.dtype)
        except ArgumentError as error:
            raise loaded.refuse(f"guard.{error.argument}", error.mistake) from error
    return made


_OF_TUNER = ("y", "gradient", "contraction")


def widths_of(sizes: dict[str, int]) -> dict[str, int]:
    """The number of components of each random sequence: a*, w and v."""
    return {"a_star": sizes["model_parameter"], "w": sizes["state"], "v": sizes["residual"]}


def sizes_of(loaded: Loaded) -> dict[str, int]:
    theta, a_hat = loaded.start["theta"], loaded.start["a_hat"]
    try:
        sizes = loaded.system.check(loaded.x0, theta, a_hat, loaded.first_context, thorough=True)
    except ValueError as error:
        places = {"theta": "run.theta", "a": "run.a_hat", "x": "scenario.x0"}
        raise loaded.refuse_argument(error, places, "run") from error
    reference = getattr(loaded.first_context, "reference", None)
    return dict(
        output=0 if reference is None else reference.shape[0],
        state=sizes.n,
        measurement=sizes.q,
        memory_number=sizes.s,
        loop_state=sizes.n + sizes.s,
        control=sizes.m,
        residual=sizes.k,
        parameter=sizes.d,
        model_parameter=sizes.p,
    )


def _recorded(loaded: Loaded) -> tuple[str, ...]:
    return tuple(dict.fromkeys(loaded.record))


def _layout(loaded: Loaded) -> Layout:
    config, sizes = loaded.config, sizes_of(loaded)
    variables = {
        name: Variable(("seed", "time", *FIELDS[name].axes), "float64", FIELDS[name].__doc__ or "")
        for name in _recorded(loaded)
    }
    used = {dim for variable in variables.values() for dim in variable.dims}
    names = {} if loaded.loop is None else {FIELDS[name].axes[0]: given for name, given in loaded.loop.names.items()}
    return Layout(
        task_dims=("seed",),
        coords={
            "seed": np.asarray(config.run.seed_list),
            "time": np.arange(0, config.scenario.steps, config.run.stride),
            **{dim: names.get(dim, np.arange(size)) for dim, size in sizes.items() if dim in used},
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
    scenario = loaded.scenario(jax.random.key(seed))
    start: dict[str, Any] = loaded.start
    options: dict[str, Any] = {"guard": loaded.guard, "infer": loaded.loop is not None}
    parts: dict[str, list[np.ndarray]] = {name: [] for name in dict.fromkeys((*fields, "cost"))}
    code, failed_at = result_codes.OK, -1
    # In chunks, for the progress of a long run. The result is bit-identical to one run over all steps.
    for chunk in _chunks(config.scenario.steps):
        done = st.simulate(controller, scenario[chunk], **start, **options, record=tuple(parts), throw=False)
        for name, rows in parts.items():
            rows.append(_flat(getattr(done, name)))
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


def _flat(rows: Any) -> np.ndarray:
    """The rows of a pytree as one array; the order is that of `ravel_pytree`."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(rows)]
    if eqx.is_array(rows):
        return leaves[0]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _chunks(steps: int) -> list[slice]:
    size = max(_LEAST_CHUNK, -(-steps // _MOST_CHUNKS))
    return [slice(begin, begin + size) for begin in range(0, steps, size)]
