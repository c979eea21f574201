"""Sweeps: every point of a design with every seed, on this machine or on a cluster."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..control import result_codes
from ..control.controller import Controller
from ..control.guard import Guard
from ..control.run_fields import FIELDS
from ..foundation import arguments, extras, json_values
from ..foundation.errors import ArgumentError
from ..foundation.executors import Meter, Progress, Threads
from ..native.choice import Engine, check_engine, settle
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from ..simulation.simulator import check_record
from ..storage import files
from .design import FLOAT, Design
from .design import grid as full_grid
from .plan import Plan, make_plan
from .problem import Problem, parts_of

if TYPE_CHECKING:
    import xarray as xr

    from ..storage.manifest import Manifest
    from ..storage.store import Layout, RunStore

KIND = "sweep"
_REFUSED = "refused.json"


def sweep(
    make_controller: Callable[..., Controller],
    make_scenario: Callable[..., Scenario],
    grid: Mapping[str, Iterable[Any]] | Sequence[Mapping[str, Iterable[Any]]] | Design,
    seeds: int | Sequence[int],
    *,
    theta: Any,
    a_hat: Any = None,
    folder: str | os.PathLike[str],
    executor: Any = None,
    engine: Engine = "auto",
    plant: AbstractSystem | None = None,
    guard: Guard | None = None,
    infer: bool = False,
    limit: float = 1e8,
    record: Sequence[str] = (),
    stride: int = 1,
    lanes: int | None = None,
    retries: int = 2,
    redo: Sequence[int] = (),
    workers: int | None = None,
    progress: Progress | None = None,
) -> "Sweep":
    r"""Run every point of a design with every seed. The same call continues an interrupted sweep.

    Each function is called with the settings that are its parameters. Settings that are floating-point numbers, or
    lists of numbers, are traced: points that differ only in them share one compiled program and run as a batch. Each
    value of other settings, such as integers and strings, has its own program. A point that raises an error or
    diverges does not stop the others; its reason is recorded.

    For seed s, `make_scenario` gets the key `jax.random.key(s)` at every point, so comparisons between points are
    paired. If `make_controller` has a parameter `key`, it gets another key, which also depends only on s. So the
    results are bit-identical on one core, on many cores and on a cluster of the same CPU type.

    **Arguments:**

    - `make_controller`, `make_scenario`: functions of settings that return a `Controller` and a `Scenario`.
      `make_scenario` also has a parameter `key`.
    - `grid`: lists of values by the setting's name; every combination is run. Or a list of such grids, whose points are
      joined; use it if a setting does not apply to some points, such as the learning rate of a tuner that has none. At
      these points the setting is NaN, or "–" if it is not a number. Or a design that draws (`random_design`,
      `latin_hypercube`).
    - `seeds`: the number of seeds, from 0; or a list of seeds.
    - `theta`, `a_hat`: θ₀ and â₀, as for `simulate`, or functions of settings.
    - `folder`: where the results are stored, task by task; a folder, or an address that fsspec supports.
    - `executor`: None runs in this process, on all cores. The address of a Dask scheduler ("tls://…"), or a
      `dask.distributed.Client`, runs the same tasks on the cluster. The functions of your script are sent to
      the workers; modules must be installed there. "tcp://…" has no authentication: use it only in a private network.
    - `engine`, `plant`, `guard`, `infer`, `limit`: as for `simulate`.
    - `record`, `stride`: more fields of `Run` to store, at steps 0, stride, 2·stride, …
    - `lanes`: the largest number of runs in a task; by default as many as fit in 256 MB and about a second.
    - `retries`: how often a task is tried again if it raises an error; then it is recorded as failed. If a worker of a
      cluster dies, Dask runs its tasks on other workers.
    - `redo`: the numbers of tasks to compute again, such as `Sweep(folder).failed_tasks()`.
    - `workers`: the number of tasks that run at the same time in this process; by default the number of cores.
    - `progress`: called with (done, total), in runs.

    !!! Example

        >>> import tempfile, jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.1 * v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
        ... )
        >>> def make_controller(learning_rate):
        ...     tuner = st.MGAPS(learning_rate, constraint=st.Box(0.0, 8.0))
        ...     return st.Controller(system, tuner, st.GradientEstimator(0.05))
        >>> def make_scenario(key, noise):
        ...     ka, kw = jax.random.split(key)
        ...     return st.Scenario(jnp.zeros(1), st.Constant(0.5)(ka, 500, 1), noise * st.Gaussian(1.0)(kw, 500, 1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = st.sweep(
        ...         make_controller, make_scenario, {"learning_rate": [0.01, 0.1], "noise": [0.1, 0.2]}, seeds=4,
        ...         theta=jnp.ones(1), a_hat=jnp.zeros(1), folder=folder,
        ...     )
        ...     dict(done.to_dataset().mean_cost.sizes)
        {'learning_rate': 2, 'noise': 2, 'seed': 4}
    """
    extras.load("storage.store", asked_for="selftune.sweep")
    from ..storage.store import RunStore
    from ..storage.tasks import run_tasks
    from .cluster import Cluster
    from .programs import Programs

    retries = arguments.whole("retries", retries)
    threads, meter = Threads(workers, retries=retries), Meter(progress)
    runner = threads if executor is None else Cluster(executor, retries=retries)
    design = grid if isinstance(grid, Design) else full_grid(grid)
    problem = Problem(
        make_controller,
        make_scenario,
        theta,
        a_hat,
        plant,
        guard,
        limit=float(arguments.number("limit", limit, lambda v: v > 0, "a number > 0")),
        engine=settle(check_engine(engine)),
        record=check_record(record),
        stride=arguments.count("stride", stride),
        infer=infer,
    )
    if "guard" in problem.record and guard is None:
        raise ArgumentError("record", "no 'guard', because there is no guard", f"{problem.record}")
    redo, seeds = _check_redo(redo), _check_seeds(seeds)
    plan = make_plan(problem, design, seeds, lanes=None if lanes is None else arguments.count("lanes", lanes))
    layout = _layout(plan)
    if taken := {*layout.coords, *layout.variables, "reason"}.intersection(design.names):
        raise ArgumentError("grid", "names that are not names of results", f"{', '.join(sorted(taken))}")
    with RunStore.begin(
        files.as_folder(folder), kind=KIND, settings=_settings(plan), layout=layout, differing=_differing
    ) as store:
        # Not in the settings, which must be the same in a second call: an error message may contain a path.
        files.write(store.folder / _REFUSED, files.as_json({str(i): text for i, text in plan.refused.items()}))
        _mark_as_not_done(store, redo)
        programs, runs = Programs(plan), [len(batch.points) * len(batch.seeds) for batch in plan.batches]
        run_tasks(store, programs, runs, runner, meter, arrays_of_failed=programs.failed)
    return Sweep(folder)


class Sweep:
    """A stored sweep, complete or not: the result of `sweep`, or an existing folder opened again.

    !!! Example

        >>> import tempfile, jax.numpy as jnp, selftune as st
        >>> system = st.System(
        ...     dynamics=lambda x, u, f, t: x + 0.1 * (u + f),
        ...     residual=lambda x, a, t: a,
        ...     policy=lambda x, theta, f, t: -theta * x - f,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> def make_controller(learning_rate):
        ...     return st.Controller(system, st.MGAPS(learning_rate), st.GradientEstimator(0.1))
        >>> def make_scenario(key):
        ...     return st.Scenario(jnp.ones(1), jnp.ones((50, 1)), st.Gaussian(0.1)(key, 50, 1))
        >>> start = {"theta": jnp.ones(1), "a_hat": jnp.zeros(1)}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = st.sweep(make_controller, make_scenario, {"learning_rate": [0.1]}, seeds=2, folder=folder, **start)
        ...     again = st.Sweep(folder)
        ...     again.is_complete, again.design.points, again.to_dataset().mean_cost.shape
        (True, ({'learning_rate': 0.1},), (1, 2))
    """

    def __init__(self, folder: str | os.PathLike[str]):
        extras.load("storage.store", asked_for="selftune.Sweep")
        from ..storage.store import RunStore, StoreError

        self.folder = files.as_folder(folder)
        self._store: RunStore = RunStore(self.folder)
        if self._store.manifest.kind != KIND:
            raise StoreError(f"{folder}: expected a sweep, got a run of kind {self._store.manifest.kind!r}")

    @property
    def manifest(self) -> "Manifest":
        return self._store.manifest

    @property
    def design(self) -> Design:
        settings: Any = self.manifest.settings
        points = [_from_json(point) for point in settings["points"]]
        return Design(settings["design"], tuple(settings["names"]), tuple(points))

    @property
    def seeds(self) -> list[int]:
        seeds: Any = self.manifest.settings["seeds"]
        return list(seeds)

    @property
    def is_complete(self) -> bool:
        return self._store.complete

    def __repr__(self) -> str:
        design, seeds = self.design, len(self.seeds)
        over = f" over {', '.join(design.names)}" if design.names else ""
        state = "complete" if self.is_complete else "not complete"
        runs = f"{len(design.points):,} point{'s' * (len(design.points) != 1)} × {seeds:,} seed{'s' * (seeds != 1)}"
        return f"<Sweep of {runs}, {design.kind}{over}, in {self.folder}; {state}>"

    def failed_tasks(self) -> list[int]:
        """The numbers of the tasks that raised an error at every try. `sweep` computes them again with `redo`."""
        return [task for (task,) in self._store.failures()]

    def to_dataset(self) -> "xr.Dataset":
        """The results of all finished tasks, verified.

        A grid has a dimension for each setting; another design has the dimension `point`. Every variable also has the
        dimension `seed`:

        - `mean_cost`: the mean cost of a step, NaN if the run failed; `part_cost`: the same in each of up to 20 equal
          parts of the run;
        - `theta_end`: θ after the last step;
        - `result_code`: 0 ok, 1 diverged, 2 a number stopped being finite, 3 raised an error, −1 not done yet;
        - `failed_at`: the step of the failure, −1 if there was none; `reason`: the reason in words;
        - the recorded fields, which have the dimension `time`.
        """
        return _dataset(self)


def _dataset(sweep: Sweep) -> "xr.Dataset":
    import xarray as xr

    design, seeds, stored = sweep.design, sweep.seeds, sweep._store.dataset()
    point, order = stored.point.values, np.argsort(seeds)
    column = order[np.searchsorted(seeds, stored.seed.values, sorter=order)]
    has_run = point >= 0
    shape = len(design.points), len(seeds)
    data: dict[str, Any] = {}
    for name, array in stored.data_vars.items():
        if name not in ("point", "seed"):
            values = np.full(shape + array.shape[2:], np.nan if array.dtype.kind == "f" else -1, array.dtype)
            values[point[has_run], column[has_run]] = array.values[has_run]
            data[str(name)] = (("point", "seed", *array.dims[2:]), values, array.attrs)
    codes, failed_at, reason = data["result_code"][1], data["failed_at"][1], np.full(shape, "", object)
    for i, text in _refused(sweep).items():
        codes[i], reason[i] = result_codes.RAISED, text
    for task, text in sweep._store.failures().items():
        runs = has_run[task]
        reason[point[task][runs], column[task][runs]] = text
    for cell in zip(*np.nonzero((codes > 0) & (reason == "")), strict=True):
        reason[cell] = result_codes.describe_failure(int(codes[cell]), int(failed_at[cell]))
    reason[codes < 0] = "not done yet"
    data["reason"] = (("point", "seed"), reason)
    coords = {name: stored[name] for name in stored.coords if name not in ("task", "lane")}
    steps: Any = sweep.manifest.settings["steps"]
    attrs = {"design": design.kind, "settings": list(design.names), "steps": steps}
    dataset = xr.Dataset(data, coords={"point": np.arange(shape[0]), "seed": seeds, **coords}, attrs=attrs)
    return _on_grid(dataset, design) if design.kind == "grid" else _on_points(dataset, design)


def _on_points(dataset: "xr.Dataset", design: Design) -> "xr.Dataset":
    columns = {name: ("point", _coordinate(design.column(name))) for name in design.names}
    return dataset.assign_coords(columns)


def _on_grid(dataset: "xr.Dataset", design: Design) -> "xr.Dataset":
    import xarray as xr

    columns = {name: list({repr(v): v for v in design.column(name)}.values()) for name in design.names}
    sizes = tuple(len(values) for values in columns.values())
    data = {
        name: (
            (*design.names, *array.dims[1:]),
            array.values.reshape(sizes + array.shape[1:]),
            array.attrs,
        )
        for name, array in dataset.data_vars.items()
    }
    coords = {name: _coordinate(values) for name, values in columns.items()}
    coords |= {str(name): array for name, array in dataset.coords.items() if name != "point"}
    return xr.Dataset(data, coords=coords, attrs=dataset.attrs)


def _coordinate(values: list[Any]) -> np.ndarray:
    """The values of a coordinate: numbers and strings unchanged, labels for lists and tables."""
    if {bool} == {*map(type, values)} or {int, float} >= {*map(type, values)}:
        return np.asarray(values)
    labels = [value if isinstance(value, str) else _label(value) for value in values]
    if len(set(labels)) < len({repr(value) for value in values}):
        labels = [json.dumps(value) for value in values]
    return np.asarray(labels)


def _label(value: Any) -> str:
    """A short text for a list or a table; a table is labelled by its name."""
    if isinstance(value, dict) and (name := value.get("name", value.get("process"))):
        return str(name)
    return json.dumps(value)


def _check_seeds(seeds: Any) -> list[int]:
    if isinstance(seeds, (int, np.integer)) and not isinstance(seeds, bool):
        return list(range(arguments.count("seeds", seeds)))
    if not isinstance(seeds, (list, tuple, range, np.ndarray)) or len(seeds) == 0:
        raise ArgumentError("seeds", "a number of seeds or a list of seeds", arguments.describe(seeds))
    numbers = [arguments.whole("seeds", seed) for seed in seeds]
    if len(set(numbers)) < len(numbers) or max(numbers) >= 2**31:
        raise ArgumentError("seeds", "whole numbers below 2³¹, each once", f"{seeds}")
    return numbers


def _settings(plan: Plan) -> dict[str, Any]:
    """The settings in the manifest: everything that determines the numbers."""
    problem = plan.problem
    return {
        "design": plan.design.kind,
        "names": list(plan.design.names),
        "points": json_values.plain(plan.design.points, not_finite=lambda number: {FLOAT: str(number)}),
        "seeds": list(plan.seeds),
        "steps": plan.steps,
        "engine": problem.engine,
        "jax": plan.numerical_settings,
        "record": list(problem.record),
        "stride": problem.stride,
        "functions": sorted(group.digest for group in plan.groups),
        "lanes": [list(group.shape) for group in plan.groups],
        "refused": sorted(plan.refused),
    }


_PROGRAM = ("functions", "lanes")
"""Settings that follow from the functions and from the points."""


def _differing(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of the settings of two sweeps, in words. Each setting of the design is named with its values."""
    from ..storage.manifest import differing

    if dict(there) == dict(now):
        return []
    texts = []
    columns = [_columns(settings) for settings in (there, now)]
    for name in dict.fromkeys([*columns[0], *columns[1]]):
        before, after = (column.get(name) for column in columns)
        if before != after:
            texts.append(f"{name} {_in_words(before)} there, {_in_words(after)} now")
    own = {*_PROGRAM, "points", "names", "refused"}
    texts += differing(*({key: value for key, value in each.items() if key not in own} for each in (there, now)))
    if not texts and there.get("points") != now.get("points"):
        texts.append("the points of the design are others")
    if not texts:
        texts.append("the functions make_controller, make_scenario, theta or a_hat compute something else")
    return texts


def _columns(settings: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Each value of each setting once, in the order of the points."""
    columns: dict[str, dict[str, Any]] = {}
    for point in settings.get("points", ()):
        for name, value in point.items():
            columns.setdefault(name, {}).setdefault(repr(value), value)
    return {name: list(values.values()) for name, values in columns.items()}


def _in_words(values: list[Any] | None) -> str:
    if values is None:
        return "missing"
    more = f", … ({len(values):,} values)" if len(values) > 4 else ""
    return f"[{', '.join(f'{value!r}'[:40] for value in values[:4])}{more}]"


def _refused(sweep: Sweep) -> dict[int, str]:
    refused: Any = sweep.manifest.settings["refused"]
    texts: Any = {} if not refused else json.loads(files.read(sweep.folder / _REFUSED))
    return {int(i): texts.get(str(i), "refused") for i in refused}


def _from_json(value: Any) -> Any:
    """The value with the numbers that are not finite: in the manifest they are tables with the key `FLOAT`."""
    if isinstance(value, dict):
        if value.keys() == {FLOAT}:
            return float(value[FLOAT])
        return {name: _from_json(entry) for name, entry in value.items()}
    return [_from_json(entry) for entry in value] if isinstance(value, list) else value


def _layout(plan: Plan) -> "Layout":
    from ..storage.store import Layout, Variable

    run, number = ("task", "lane"), "float64" if plan.x64 else "float32"
    variables = {
        "point": Variable(run, "int32", "the number of the setting; -1 where there is no run"),
        "seed": Variable(run, "int32", "the seed; -1 where there is no run"),
        "mean_cost": Variable(run, number, "mean cost of a step; NaN where the run failed"),
        "part_cost": Variable((*run, "part"), number, "mean cost of a step in each part of the run"),
        "theta_end": Variable((*run, "parameter"), number, "θ at the end"),
        "result_code": Variable(run, "int32", "how the run ended; 0 is ok"),
        "failed_at": Variable(run, "int32", "the step at which it went wrong; -1 where it did not"),
    }
    sizes = {"part": parts_of(plan.steps), "parameter": np.arange(plan.shapes["theta_end"][0])}
    for name in plan.problem.record:
        field, dims = FIELDS[name], ("time", *FIELDS[name].axes)
        sizes |= {dim: np.arange(size) for dim, size in zip(dims, plan.shapes[name], strict=True)}
        variables[name] = Variable((*run, *dims), field.dtype or number, field.__doc__ or "")
    if "time" in sizes:
        sizes["time"] = np.arange(0, plan.steps, plan.problem.stride)
    coords = {"task": [plan.identity(batch) for batch in plan.batches], "lane": np.arange(plan.lanes), **sizes}
    return Layout(task_dims=("task",), coords=coords, variables=variables)


def _check_redo(redo: Any) -> list[int]:
    if isinstance(redo, str) or not isinstance(redo, (Sequence, np.ndarray)):
        raise ArgumentError("redo", "the numbers of tasks", arguments.describe(redo))
    return [arguments.whole("redo", i) for i in redo]


def _mark_as_not_done(store: "RunStore", redo: list[int]) -> None:
    """Mark the tasks as not done. All numbers are checked first, so that an invalid one changes nothing."""
    from ..storage.store import StoreError, computed_otherwise

    if beyond := [i for i in redo if i >= len(store.tasks)]:
        raise ArgumentError("redo", f"tasks below {len(store.tasks)}", f"{beyond[0]}")
    if not redo:
        return
    if texts := computed_otherwise(store.manifest):
        raise StoreError(
            f"{store.folder}: redo: computed by other code; one sweep may not mix both: {'; '.join(texts)}"
        )
    store.redo(*((i,) for i in redo))
