"""The loops' comparison: a PID that tunes itself from gains that are ten times wrong, on plants that the model does
not describe exactly.

`selftune bench loops` stores the comparison as one run. A task is a loop and a true plant: all starts and seeds, the
gains of textbook rules, and for each seed the best static gains, found offline.
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
from ...foundation.errors import InputError
from .cases import LOOPS, PLANTS, load

if TYPE_CHECKING:
    from ...storage.store import Layout, Manifest, Task

STATIC = "best static"
RULES = ("Ziegler–Nichols", "SIMC", "AMIGO", "relay")
RIVALS = (STATIC, *RULES)
GAINS = ("kp", "ki", "kd")


@dataclass(frozen=True)
class Settings:
    """All numbers that determine the results, except those of the loops themselves (`cases.py`)."""

    loops: tuple[str, ...] = LOOPS
    plants: tuple[str, ...] = PLANTS
    seeds: int = 10
    first_seed: int = 100
    """The first seed. The loops and the defaults of the tuner were chosen on lower seeds."""
    periods: int = 60
    """The length of a run, in periods of the reference."""
    rows: int = 120
    """The number of time intervals. The mean cost of each interval and the gains at its start are stored."""
    margin: float = 2.0
    """`Loop.back_off` lowers start gains with a smaller gain margin, or a phase margin below 30°, on the model."""
    rounds: int = 10
    """The rounds of the search for the best static gains."""
    candidates: int = 16
    """The gains that are tried in each round of the search."""
    limit: float = 1.2
    """The largest allowed cost in the last quarter of a run, as a multiple of that of the best static gains."""
    moved: float = 0.05
    """A gain has moved if its logarithm has changed by more than this number."""

    def __post_init__(self) -> None:
        for name in ("seeds", "periods", "rows", "candidates"):
            arguments.count(name, getattr(self, name))
        for name in ("first_seed", "rounds"):
            arguments.whole(name, getattr(self, name))
        for name in ("margin", "limit", "moved"):
            arguments.positive(name, getattr(self, name))
        for name, known in (("loops", LOOPS), ("plants", PLANTS)):
            for one in getattr(self, name):
                if one not in known:
                    raise InputError(f"{name}: expected some of {', '.join(known)}, got {one!r}")

    @property
    def is_full(self) -> bool:
        """Whether the checks apply: the settings are at least those of the full comparison. Any loops count."""
        least = Settings()
        shared: dict[str, Any] = {name: getattr(least, name) for name in ("loops", "plants", "seeds", "periods")}
        return (
            self.seeds >= least.seeds and self.periods >= least.periods and dataclasses.replace(self, **shared) == least
        )


def steps(settings: Settings, name: str) -> int:
    """Return the number of steps of a run of this loop."""
    case = load(name)
    return max(settings.rows, round(settings.periods * case.reference.period(case.model.dt)))


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
        about = {name: describe(name) for name in settings.loops}
        kept = dataclasses.asdict(settings) | {"about": about}
        with RunStore.begin(folder, kind="loops", settings=kept, layout=layout(settings)) as store:
            work = [steps(settings, settings.loops[task[0]]) for task in store.tasks]
            run_tasks(store, partial(one_task, settings), work, Processes(workers), Meter(progress))
            return store.manifest


def describe(name: str) -> dict[str, Any]:
    """Return the numbers of a loop that the report shows."""
    case = load(name)
    output, control = case.model.outputs[0], case.model.controls[0]
    return {
        "dt": case.model.dt,
        "period": case.reference.period(case.model.dt) * case.model.dt,
        "gains": case.gains,
        "limits": list(case.limits),
        "noise": case.noise,
        "delay": case.delay,
        "hidden_delay": case.hidden,
        "output": f"{output.name} ({output.unit})",
        "control": f"{control.name} ({control.unit})",
        "effort": float(case.cost.effort),
        "effort_rate": float(case.cost.effort_rate),
    }


def all_starts() -> list[str]:
    """Return the names of the starts of all loops. A PI loop has fewer of them."""
    return list(dict.fromkeys(start for name in LOOPS for start in load(name).starts))


def layout(settings: Settings) -> "Layout":
    from ...storage.store import Layout, Variable

    task = ("loop", "plant")
    tuned, held = (*task, "seed", "start"), (*task, "seed", "rival")
    return Layout(
        task_dims=task,
        coords={
            "loop": settings.loops,
            "plant": settings.plants,
            "seed": settings.first_seed + np.arange(settings.seeds),
            "start": all_starts(),
            "rival": RIVALS,
            "row": np.arange(settings.rows),
            "gain": GAINS,
        },
        variables={
            "cost": Variable((*tuned, "row"), "float64", "mean cost of a step, in each interval"),
            "theta": Variable((*tuned, "row", "gain"), "float32", "logarithms of the gains at the start of each"),
            "start_theta": Variable((*task, "start", "gain"), "float64", "logarithms of the start gains, as given"),
            "final_theta": Variable((*tuned, "gain"), "float64", "logarithms of the gains at the end"),
            "mean_cost": Variable(tuned, "float64", "mean cost of a step"),
            "last_cost": Variable(tuned, "float64", "mean cost of a step in the last quarter"),
            "result_code": Variable(tuned, "int32", "how the run ended; 0 is ok, -1 is a start that the loop has not"),
            "backed_off": Variable((*task, "start"), "float64", "the largest factor by which a start gain was lowered"),
            "fixed_cost": Variable(tuned, "float64", "mean cost of the start gains, held fixed as given"),
            "fixed_last": Variable(tuned, "float64", "the same in the last quarter"),
            "rival_theta": Variable((*held, "gain"), "float64", "logarithms of the rivals' gains"),
            "rival_cost": Variable((*held, "row"), "float64", "mean cost of a step, in each interval"),
            "rival_mean": Variable(held, "float64", "mean cost of a step"),
            "rival_last": Variable(held, "float64", "mean cost of a step in the last quarter"),
            "rival_code": Variable(held, "int32", "how the run ended; 0 is ok, -1 is a rule that gives no gains"),
        },
    )


def one_task(settings: Settings, task: "Task") -> dict[str, np.ndarray]:
    """Return all arrays of one loop and plant. A pure function that runs in a separate process."""
    from .batches import fill_arrays

    loop, plant = task
    arrays = layout(settings).empty_task()
    fill_arrays(settings, settings.loops[loop], settings.plants[plant], arrays)
    return arrays
