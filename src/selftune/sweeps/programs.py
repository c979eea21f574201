"""The compiled programs of a sweep's plan, and the arrays that they give for each task."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..control.result_codes import RAISED
from .plan import Batch, Plan


class Programs:
    """A function from a task, the number of a batch, to its arrays. Each program is compiled once, for all threads."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self._jitted = [jax.jit(plan.program(group)) for group in plan.groups]

    def __reduce__(self) -> Any:  # compiled programs are not sent to a cluster
        return Programs, (self.plan,)

    def __call__(self, task: tuple[int, ...]) -> dict[str, np.ndarray]:
        batch = self.plan.batches[task[0]]
        arrays = jax.device_get(self._jitted[batch.group](*self.plan.arguments(batch)))
        return _in_lanes(self.plan, batch, arrays)

    def failed(self, task: tuple[int, ...]) -> dict[str, np.ndarray]:
        """The arrays of a task that raised an error."""
        plan, batch = self.plan, self.plan.batches[task[0]]
        runs = len(batch.points), len(batch.seeds)
        number = np.float64 if plan.x64 else np.float32
        integers = ("result_code", "failed_at", "guard")
        arrays = {
            name: np.full(runs + shape, -1 if name in integers else np.nan, np.int32 if name in integers else number)
            for name, shape in plan.shapes.items()
        }
        arrays["result_code"] = np.full(runs, RAISED, np.int32)
        return _in_lanes(plan, batch, arrays)


def _in_lanes(plan: Plan, batch: Batch, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The runs of a batch along one axis (lanes), point by point. Lanes without a run have NaN and −1."""
    points, seeds = len(batch.points), len(batch.seeds)
    runs = {name: value[:points, :seeds] for name, value in arrays.items()}
    runs["point"] = np.repeat(np.asarray(batch.points, np.int32), seeds).reshape(points, seeds)
    runs["seed"] = np.tile(np.asarray(batch.seeds, np.int32), points).reshape(points, seeds)
    lanes = {}
    for name, value in runs.items():
        fill = np.nan if value.dtype.kind == "f" else -1
        lanes[name] = np.full((plan.lanes, *value.shape[2:]), fill, value.dtype)
        lanes[name][: points * seeds] = value.reshape(points * seeds, *value.shape[2:])
    return lanes
