"""The robots' comparison: tuners with and without an estimator, from wrong gains, on plants with unknown physics.

`selftune bench robots` stores the comparison as one run. A task is a case (a robot and a condition) and a seed: every
algorithm from every start on the same plant, and the best static gains for this plant, found offline.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ...foundation import arguments
from ...foundation.errors import ArgumentError, InputError
from ...robots.base import Robot

if TYPE_CHECKING:
    from ...storage.store import Layout, Manifest, Task

ROBOTS = ("arm", "quadrotor", "car")
CONDITIONS = {"arm": ("payload",), "quadrotor": ("wind", "payload"), "car": ("slippery",)}
"""The conditions that run by default, for robots with more: the full comparison should take half an hour."""
OURS, TUNER, ESTIMATOR, FIXED, STATIC = "M-GAPS + EST", "M-GAPS", "EST", "fixed", "best static"
DEFAULTS = "Gauss–Newton"
"""`GaussNewton` and `AutoEstimator` with their default settings: no learning rates."""
EVERYWHERE = (OURS, DEFAULTS, ESTIMATOR, STATIC)
"""The algorithms that run from every start. All others run only from the first start."""
HALVES = ("first", "second")
LAPS = ("first", "last")


@dataclass(frozen=True)
class Settings:
    """All numbers that determine the results, except the robots' own settings. All were chosen for this comparison."""

    cases: tuple[str, ...] = ()
    """The cases, each "robot condition"; by default those of `ROBOTS`."""
    starts: tuple[float, ...] = (0.25, 0.5, 2.0, 1.0)
    """The factors on all feedback gains at the start. Algorithms that run from one start use the first."""
    seeds: int = 10
    first_seed: int = 100
    """The first seed. The robots' own settings were chosen on lower seeds."""
    seconds: float = 60.0
    rows: int = 300
    """The number of time intervals. The mean cost of each interval and the gains at its start are stored."""
    within: float = 1.2
    """A run has converged when its cost over a lap stays below this multiple of the cost of the best static gains."""
    recovered: float = 1.5
    """A run has recovered if it did not fail and its last quarter costs at most this multiple of theirs."""
    failure: float = 3.0
    """A run fails if it crashes, or costs more than this multiple of the first start's gains held fixed,
    without the estimator."""
    buffer: int = 25
    """The buffer of GAPS in steps; 0 leaves GAPS out."""
    buffer_limit: int = 2_000
    """GAPS is left out if its buffer has more numbers than this. The quadrotor's would take minutes to compile."""
    episodes: tuple[float, ...] = (0.25, 1.0, 4.0)
    """The episodes of DiffTune, in laps."""
    difftune_rate: float = 0.01
    """The learning rate of DiffTune / that of M-GAPS and GAPS. It is small because DiffTune steps on a sum."""
    oprf_episode: float = 1.0
    """The episode of OPRF in laps; 0 leaves OPRF out."""
    oprf_radius: float = 0.1
    oprf_rate: float = 0.005
    """The learning rate of OPRF for the logarithm of the cost."""
    search: int = 30
    """How many static gains are tried, in addition to the nominal gains and the gains that M-GAPS found."""
    search_seconds: float = 12.0
    """The length of each try. The best gains are then compared over the whole time."""
    search_radius: float = 0.25
    """The initial radius of the search around the best candidate, in units of θ."""

    def __post_init__(self) -> None:
        for name in ("seeds", "rows"):
            arguments.count(name, getattr(self, name))
        for name in ("first_seed", "search", "buffer", "buffer_limit"):
            arguments.whole(name, getattr(self, name))
        for name in (
            "seconds",
            "within",
            "recovered",
            "failure",
            "difftune_rate",
            "oprf_rate",
            "oprf_radius",
            "search_seconds",
        ):
            arguments.positive(name, getattr(self, name))
        for name in ("starts", "episodes", "cases"):
            values = getattr(self, name)
            if (name != "cases" and not all(value > 0 for value in values)) or len(set(values)) != len(values):
                raise ArgumentError(name, "different numbers > 0", f"{values}")
        if not self.starts:
            raise ArgumentError("starts", "at least one factor", "none")

    @property
    def algorithms(self) -> tuple[str, ...]:
        others = ["GAPS"] if self.buffer else []
        others += [f"DiffTune {laps:g}" for laps in self.episodes] + (["OPRF"] if self.oprf_episode else [])
        return (OURS, DEFAULTS, TUNER, ESTIMATOR, FIXED, *others, STATIC)

    @property
    def is_full(self) -> bool:
        """Whether the checks apply: the settings are at least those of the full comparison. Any cases count."""
        least = Settings()
        shared = {"cases": least.cases, "seeds": least.seeds, "seconds": least.seconds}
        return (
            self.seeds >= least.seeds and self.seconds >= least.seconds and dataclasses.replace(self, **shared) == least
        )

    def runs(self, algorithm: str, start: float) -> bool:
        return algorithm in EVERYWHERE or start == self.starts[0]


@cache
def load(name: str) -> Robot:
    """The robot `arm`, `quadrotor` or `car`, or the robot that your own `module:function` returns."""
    module, _, function = name.partition(":")
    if name in ROBOTS:
        module, function = f"selftune.robots.{name}", "make"
    elif not function:
        raise InputError(f"robots: expected some of {', '.join(ROBOTS)}, or module:function, got {name!r}")
    try:
        made = getattr(importlib.import_module(module), function)()
        made.make_plant(made.conditions[0], 0, 2)
    except ModuleNotFoundError as error:
        if error.name == "mujoco":
            raise InputError("MuJoCo is not installed: pip install 'selftune[robots]'") from None
        raise InputError(f"robots: {name}: cannot be imported ({error})") from None
    except AttributeError as error:
        raise InputError(f"robots: {name}: {error}") from None
    return made


def cases(robots: Sequence[str]) -> tuple[str, ...]:
    """The cases of the comparison for these robots."""
    return tuple(f"{name} {condition}" for name in robots for condition in CONDITIONS.get(name, load(name).conditions))


def compute(
    settings: Settings,
    folder: Path,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> "Manifest":
    """Compute the tasks that `folder` does not have yet, in float64 in `workers` processes, and return the manifest."""
    from ...foundation.executors import Meter, Processes
    from ...storage.store import RunStore
    from ...storage.tasks import run_tasks

    if not settings.cases:
        settings = dataclasses.replace(settings, cases=cases(ROBOTS))
    made = {name: load(name) for name in {case.split()[0]: None for case in settings.cases}}
    for case in settings.cases:
        name, _, condition = case.partition(" ")
        if condition not in made[name].conditions:
            raise InputError(f"cases: expected a condition of {name}, {made[name].conditions}, got {condition!r}")
    about = {"robots": {name: describe(robot) for name, robot in made.items()}}
    shapes = layout(settings, made)
    with (
        jax.enable_x64(True),
        RunStore.begin(folder, kind="robots", settings=dataclasses.asdict(settings) | about, layout=shapes) as store,
    ):
        work = [_work(settings, made, task) for task in store.tasks]
        run_tasks(store, partial(one_task, settings), work, Processes(workers), Meter(progress))
        return store.manifest


def describe(robot: Robot) -> dict[str, Any]:
    """The robot's own settings, which determine the numbers. The report shows them."""
    return {
        "dt": robot.dt,
        "lap": robot.lap,
        "gains": list(robot.gains),
        "theta": np.asarray(robot.theta, float).tolist(),
        "a_scale": np.asarray(robot.a_scale, float).tolist(),
        "parameters": list(robot.parameters),
        "learning_rate": robot.learning_rate,
        "estimator_rate": robot.estimator_rate,
        "guard": {name: np.asarray(value).tolist() for name, value in robot.guard.items()},
    }


def steps(settings: Settings, robot: Robot) -> int:
    """The number of steps of a run."""
    return max(settings.rows, round(settings.seconds / robot.dt))


def _work(settings: Settings, robots: dict[str, Robot], task: "Task") -> int:
    """The amount of work of a task in control steps, for the progress bar."""
    return steps(settings, robots[settings.cases[task[0]].split()[0]])


def layout(settings: Settings, robots: dict[str, Robot]) -> "Layout":
    from ...storage.store import Layout, Variable

    task = ("case", "seed")
    each = (*task, "start", "algorithm")
    state = max(robot.make_plant(robot.conditions[0], 0, 2).reset().size for robot in robots.values())
    error = max(jax.eval_shape(robot.error, _state(robot), 0).size for robot in robots.values())
    return Layout(
        task_dims=task,
        coords={
            "case": settings.cases,
            "seed": settings.first_seed + np.arange(settings.seeds),
            "start": np.asarray(settings.starts, float),
            "algorithm": settings.algorithms,
            "half": HALVES,
            "time": settings.seconds / settings.rows * np.arange(settings.rows),
            "gain": np.arange(max(len(robot.gains) for robot in robots.values())),
            "parameter": np.arange(max(len(robot.parameters) for robot in robots.values())),
            "lap": LAPS,
            "point": np.arange(POINTS),
            "state": np.arange(state),
            "component": np.arange(error),
        },
        variables={
            "cost": Variable((*each, "time"), "float64", "mean cost of a step, in each stretch of time"),
            "theta": Variable((*each, "time", "gain"), "float32", "gains θ at the start of each stretch"),
            "a_hat": Variable((*each, "time", "parameter"), "float32", "estimated parameters â"),
            "mean_cost": Variable(each, "float64", "mean cost of a step"),
            "half_cost": Variable((*each, "half"), "float64", "mean cost of a step, in each half"),
            "rmse": Variable(each, "float64", "root mean square of the tracking error, m or rad"),
            "half_rmse": Variable((*each, "half"), "float64", "the same, in each half"),
            "convergence_time": Variable((*each, "half"), "float64", "seconds of a half until it has converged"),
            "driven": Variable(each, "float64", "seconds until it ended or crashed"),
            "result_code": Variable(each, "int32", "how the run ended; 0 is ok, -1 was not to be run"),
            "static_tried": Variable(task, "int32", "how many static gains were tried"),
            "lap_state": Variable((*task, "lap", "point", "state"), "float32", "states of M-GAPS + EST, first start"),
            "lap_error": Variable((*task, "lap", "point", "component"), "float32", "their tracking errors"),
        },
    )


POINTS = 200
"""The number of points of a stored lap."""


def _state(robot: Robot) -> jax.Array:
    return jax.numpy.asarray(robot.make_plant(robot.conditions[0], 0, 2).reset())


def one_task(settings: Settings, task: "Task") -> dict[str, np.ndarray]:
    """All arrays of one case and seed. A pure function that runs in a separate process."""
    from .drives import fill_arrays

    case, seed = task
    names = list({one.split()[0]: None for one in settings.cases})
    robots = {name: load(name) for name in names}
    arrays = layout(settings, robots).empty_task()
    name, _, condition = settings.cases[case].partition(" ")
    fill_arrays(settings, name, robots[name], condition, settings.first_seed + seed, arrays)
    return arrays
