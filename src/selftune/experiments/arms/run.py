"""The arms' comparison: robots from files of other people, the same code and rules for all of them.

`selftune bench arms` stores the comparison as one run. A task is a robot and a seed: all starts with learning and with
fixed gains, and the best static gains, found offline.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ...foundation import arguments
from ...foundation.errors import ArgumentError, InputError

if TYPE_CHECKING:
    from ...models.robot_arm import RobotArm
    from ...storage.store import Layout, Manifest, Task

TUNED, FIXED, STATIC = "self-tuning", "fixed", "best static"
ALGORITHMS = (TUNED, FIXED, STATIC)

_URDF = "share/example-robot-data/robots"
ROBOTS = {
    "panda": ("robosuite", "models/assets/robots/panda/robot.xml"),
    "iiwa": ("robosuite", "models/assets/robots/iiwa/robot.xml"),
    "kinova3": ("robosuite", "models/assets/robots/kinova3/robot.xml"),
    "sawyer": ("robosuite", "models/assets/robots/sawyer/robot.xml"),
    "jaco": ("robosuite", "models/assets/robots/jaco/robot.xml"),
    "ur5e": ("robosuite", "models/assets/robots/ur5e/robot.xml"),
    "spot arm": ("robosuite", "models/assets/robots/spot_arm/robot.xml"),
    "xarm7": ("example-robot-data", f"{_URDF}/xarm_description/urdf/xarm7.urdf"),
    "ur10": ("example-robot-data", f"{_URDF}/ur_description/urdf/ur10_robot.urdf"),
    "z1": ("example-robot-data", f"{_URDF}/z1_description/urdf/z1.urdf"),
    "so100": ("example-robot-data", f"{_URDF}/so_arm_description/urdf/so100.urdf"),
    "manipulator": ("dm_control", "suite/manipulator.xml"),
}
"""Robots by name: the package on PyPI, and the file in it."""


@dataclass(frozen=True)
class Settings:
    """All numbers that determine the results, except the rules of `robot_rules` and of the plant."""

    robots: tuple[str, ...] = tuple(ROBOTS)
    """Names of `ROBOTS`, or paths of files."""
    seeds: int = 5
    first_seed: int = 100
    """The first seed. The rules were tried on lower seeds."""
    starts: tuple[float, ...] = (0.25, 0.5, 2.0)
    """The factors on the feedback gains of the rules."""
    seconds: float = 60.0
    rows: int = 120
    """The number of time intervals whose mean cost is stored."""
    tries: int = 40
    """How many static gains the search tries at most, each in a short run."""
    limit: float = 1.2
    """The largest allowed cost in the last quarter of a run, as a multiple of that of the best static gains."""

    def __post_init__(self) -> None:
        for name in ("seeds", "rows", "tries"):
            arguments.count(name, getattr(self, name))
        for name in ("seconds", "limit"):
            arguments.positive(name, getattr(self, name))
        if not self.robots or not self.starts:
            raise InputError("robots, starts: expected at least one of each")

    @property
    def is_full(self) -> bool:
        """Whether the checks apply: the settings are at least those of the full comparison. Any robots count."""
        least = Settings()
        shared: dict[str, Any] = {name: getattr(least, name) for name in ("robots", "seeds", "seconds")}
        return (
            self.seeds >= least.seeds and self.seconds >= least.seconds and dataclasses.replace(self, **shared) == least
        )


def load(name: str, **options: Any) -> "RobotArm":
    """Return the robot with this name, or from this file; `options` are those of `RobotArm.from_file`."""
    from ...foundation import extras

    arm = extras.load("models.robot_arm", asked_for="selftune bench arms", extra="robots").RobotArm
    try:
        return arm.from_file(_path(name), **options)
    except ArgumentError as error:
        raise InputError(f"robots: {error}") from None
    except ModuleNotFoundError as error:
        raise InputError(str(error)) from None


def _path(name: str) -> Path:
    if name not in ROBOTS:
        return Path(name)
    from ...robots import installed

    package, file = ROBOTS[name]
    for place in installed.folders(package):
        if (place / file).is_file():
            return place / file
    raise InputError(f"robots: {name} needs the package {package}; install it with: pip install --no-deps {package}")


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

    with jax.enable_x64(True):
        about = {name: describe(load(name)) for name in settings.robots}
        kept = dataclasses.asdict(settings) | {"about": about}
        with RunStore.begin(folder, kind="arms", settings=kept, layout=layout(settings)) as store:
            work = [1 for _ in store.tasks]
            run_tasks(store, partial(one_task, settings), work, Processes(workers), Meter(progress))
            return store.manifest


def describe(robot: "RobotArm") -> dict[str, Any]:
    """Return the numbers of a robot that the report shows."""
    return {
        "joints": [link.name for link in robot.body.links],
        "torque_limits": list(robot.torque_limits),
        "rated_torques": list(robot.rated_torques),
        "home": list(robot.home),
        "payload_limit": robot.payload_limit,
        "notes": list(robot.notes),
    }


def layout(settings: Settings) -> "Layout":
    from ...storage.store import Layout, Variable

    task = ("robot", "seed")
    each = (*task, "start", "algorithm")
    return Layout(
        task_dims=task,
        coords={
            "robot": settings.robots,
            "seed": settings.first_seed + np.arange(settings.seeds),
            "start": np.asarray(settings.starts, float),
            "algorithm": ALGORITHMS,
            "time": settings.seconds / settings.rows * np.arange(settings.rows),
            "half": ("first", "second"),
        },
        variables={
            "cost": Variable((*each, "time"), "float64", "mean cost of a step, in each interval"),
            "last_cost": Variable(each, "float64", "mean cost of a step in the last quarter"),
            "mean_cost": Variable(each, "float64", "mean cost of a step"),
            "error": Variable(each, "float64", "root mean square of the joints' errors in the last quarter, in scales"),
            "result_code": Variable(each, "int32", "how the run ended; 0 is ok, 1 is a crash"),
            "payload": Variable((*task, "half"), "float64", "the true payload in kg"),
            "estimate": Variable((*each, "half"), "float64", "the estimated payload at the end of each half, in kg"),
            "tried": Variable(task, "int32", "how many static gains were tried"),
        },
    )


def one_task(settings: Settings, task: "Task") -> dict[str, np.ndarray]:
    """Return all arrays of one robot and seed. A pure function that runs in a separate process."""
    from .drives import fill_arrays

    robot, seed = task
    arrays = layout(settings).empty_task()
    fill_arrays(settings, settings.robots[robot], settings.first_seed + seed, arrays)
    return arrays
