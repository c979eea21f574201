"""Rollouts of the closed loop with exact parameters as native programs, many at once, each with its own θ."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..native.lanes import LANES
from ..native.loop import compiled, run_loop
from ..native.roles import ROLES, Role
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from ..tuners.base import AbstractTuner
from ._lockstep import Lanes
from ._window import Windowed, gains, pushes_of
from .run_inputs import width

SHORT = 1_000_000
"""Up to so many steps of all rollouts together, one program makes all steps, although it computes more than most steps
need: compiling a second program would take longer."""

NEVER = 2**31 - 1
"""The end of a rollout that the number of its steps alone ends."""

Done = Callable[[int], None]
"""A function that is called with the number of steps that have been made, from any thread."""


class RolloutStep(NamedTuple):
    """A step of the closed loop with exact parameters and of its sensitivity y; the settings are the system.

    Every kind advances (x, y) until the step `end`, which it leaves unchanged. The kinds differ in what they compute
    besides: `"advance"`: nothing. `"record"`: rows of the cost and its gradient. `"slope"`: also rows of the derivative
    of the cost with respect to x. `"compare"`: the largest squared distances of x and y from another trajectory, whose
    rows are `series`. `"sum"`: the sums of the costs and of the gradients.
    """

    kind: Literal["advance", "record", "slope", "compare", "sum"]

    def __call__(self, prepare, settings, /, *, x, state, a_star, w, t, step, limit, theta, end, series: Any = None):
        kind, (system,), y = self.kind, settings, state["y"]
        t = step if t is None else t
        x_next, y_next, cost, gradient = prepare(system).sensitivity(x, y, theta, a_star, t)
        row, kept = {}, {}
        if kind in ("record", "slope"):
            row = {"value": cost, "gradient": gradient}
        if kind == "slope":
            row["slope"] = jax.grad(lambda x: system.step(x, theta, a_star, t)[1])(x)
        if kind == "compare":
            x_other, y_other = series
            apart = jnp.stack([jnp.sum((x - x_other) ** 2), jnp.sum((y - y_other) ** 2)])
            kept = {"apart": jnp.maximum(state["apart"], apart)}
        if kind == "sum":
            kept = {"cost": state["cost"] + cost, "gradient": state["gradient"] + gradient}
        running = step < end
        x_next, y_next = jnp.where(running, x_next + w, x), jnp.where(running, y_next, y)
        return {"x": x_next, "state": {"y": y_next, **kept}, "row": row, "checked": [x_next]}

    def checked_inputs(self, inputs: dict[str, PyTree]) -> PyTree:
        return [inputs["x"]]


class PerturbationStep(NamedTuple):
    """A step of a tuner with the exact model, along the run's θ; records the distance to the run's next θ. The settings
    are the system and the tuner."""

    def __call__(self, prepare, settings, /, *, x, state, a_star, w, t, step, limit, series):
        (system, tuner), (theta, after) = settings, series
        t = step if t is None else t
        update, state, _ = tuner.update(prepare(system), x, theta, a_star, t, state)
        x_next, _ = system.step(x, theta, a_star, t)
        zeta = ravel_pytree(after)[0] - ravel_pytree(update)[0]
        return {"x": x_next + w, "state": state, "row": {"zeta": zeta}, "checked": [x_next]}

    def checked_inputs(self, inputs: dict[str, PyTree]) -> PyTree:
        return [inputs["x"]]


class CompanionStep(NamedTuple):
    """A step of the companion trajectory, whose θ changes from step to step; records x and y."""

    def __call__(self, prepare, settings, /, *, x, state, a_star, w, t, step, limit, series):
        (system,), y = settings, state["y"]
        x_next, y_next, _, _ = prepare(system).sensitivity(x, y, series, a_star, step if t is None else t)
        return {"x": x_next + w, "state": {"y": y_next}, "row": {"x": x, "y": y}, "checked": [x_next]}

    def checked_inputs(self, inputs: dict[str, PyTree]) -> PyTree:
        return [inputs["x"]]


def start_of(scenario: Scenario, d: int) -> dict[str, Any]:
    """Return the inputs of a rollout that begins at step 0, without θ."""
    n, dtype = scenario.x0.shape[0], scenario.x0.dtype
    return {
        "x": scenario.x0,
        "state": {"y": jnp.zeros((n, d), dtype)},
        "a_star": scenario.a_star,
        "w": scenario.w,
        "t": scenario.t,
        "step": jnp.zeros((), jnp.int32),
        "limit": jnp.asarray(jnp.inf, dtype),  # a rollout may diverge, and then its numbers are what XLA computes
    }


def companion_natively(
    system: AbstractSystem, scenario: Scenario, thetas: PyTree
) -> tuple[Float[Array, "T n"], Float[Array, "T n d"]]:
    """Return what `companion` returns."""
    inputs = start_of(scenario, width(thetas)) | {"series": thetas}
    rows = run_loop(CompanionStep(), (system,), inputs, len(scenario))["row"]
    return rows["x"], rows["y"]


def perturbations_natively(
    system: AbstractSystem, scenario: Scenario, tuner: AbstractTuner, state: PyTree, thetas: PyTree, following: PyTree
) -> Float[Array, "T d"]:
    """Return ζ of all steps, from the tuner's first state."""
    inputs = start_of(scenario, 0) | {"state": state, "series": (thetas, following)}
    return run_loop(PerturbationStep(), (system, tuner), inputs, len(scenario))["row"]["zeta"]


def one_rollout(
    system: AbstractSystem, scenario: Scenario, theta: PyTree
) -> tuple[Float[Array, " T"], Float[Array, "T d"]]:
    """Return F_t(θ) and ∇F_t(θ) of one θ at every step."""
    inputs = start_of(scenario, ravel_pytree(theta)[0].size) | {"theta": theta, "end": jnp.asarray(NEVER, jnp.int32)}
    rows = run_loop(RolloutStep("record"), (system,), inputs, len(scenario))["row"]
    return rows["value"], rows["gradient"]


def recorded_natively(
    system: AbstractSystem, scenario: Scenario, thetas: PyTree, size: int, workers: int | None
) -> Iterator[Lanes]:
    """Yield what `recorded_by_xla` yields."""
    lanes, d = len(jax.tree.leaves(thetas)[0]), width(thetas)
    one = jax.tree.map(lambda rows: rows[0], thetas)
    inputs = start_of(scenario, d) | {"theta": one, "end": jnp.asarray(NEVER, jnp.int32)}
    loop, arrays = compiled(RolloutStep("record"), (system,), inputs)
    arrays = [np.asarray(array) for array in arrays]
    own = {"theta": jax.tree.leaves(thetas), "x": [np.tile(scenario.x0, (lanes, 1))]}
    own["state"] = [np.zeros((lanes, scenario.x0.shape[0], d), scenario.x0.dtype)]
    for first in range(0, len(scenario), size):
        count, leaves = min(size, len(scenario) - first), []
        own["step"] = [np.full(1, first, np.int32)]
        for leaf, array in zip(loop.program.inputs, arrays, strict=True):
            if leaf.group in own:
                leaves.append(own[leaf.group][leaf.position])
            else:
                leaves.append((array[first : first + count] if ROLES[leaf.group] is Role.SERIES else array)[None])
        results = jax.tree.unflatten(loop.result_structure, loop.call(count, 1, leaves, workers))
        own["x"], own["state"] = [results["x"]], [results["state"]["y"]]
        yield Lanes(results["row"]["value"], results["row"]["gradient"])


class NativeRollouts:
    """Many rollouts, each in a lane with its own θ. In `exact` and `windowed`, lane t has the θ of step t."""

    def __init__(self, system: AbstractSystem, scenario: Scenario, thetas: PyTree, workers: int | None):
        self.system, self.scenario, self.workers = system, scenario, workers
        self.steps, self.n, self.d = len(scenario), scenario.x0.shape[0], width(thetas)
        # C reads these arrays in place.
        self.start = jax.tree.map(lambda leaf: np.asarray(leaf, order="C"), start_of(scenario, self.d))
        self.thetas = jax.tree.map(lambda leaf: np.asarray(leaf, order="C"), thetas)

    def exact(self, blocks: Sequence[tuple[int, int]], done: Done | None = None) -> list[Lanes]:
        """Return F_t and its gradient for t in [first, first + count) of each block, from step 0."""
        t = _lanes_of(blocks)
        groups = _groups([count for _, count in blocks])
        ends = np.repeat(np.append(t[groups[1:] - 1], t[-1]), np.diff(groups, append=len(t)))
        x = np.tile(self.start["x"], (len(t), 1))
        y = np.zeros((len(t), self.n, self.d), x.dtype)
        kind = "record" if ends.sum() < SHORT else "advance"
        # The lanes of a group advance together, until the last of their steps; each lane stops at its own.
        self._run(kind, t, groups, np.zeros_like(t), ends, {"x": x, "y": y}, end=t, done=done)
        rows = self._run("record", t, groups, t, np.ones_like(t), {"x": x, "y": y})
        return _split(Lanes, [rows["value"], rows["gradient"]], [count for _, count in blocks])

    def exact_steps(self, first: int, count: int) -> int:
        """Return the number of steps that `exact` makes for a block."""
        stop = first + count
        return sum(min(LANES, stop - a) * (min(a + LANES, stop) - 1) for a in range(first, stop, LANES))

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of the costs of all steps, and its gradient, for each θ."""
        lanes = np.arange(len(jax.tree.leaves(self.thetas)[0]))
        x = np.tile(self.start["x"], (len(lanes), 1))
        states = {"x": x, "y": np.zeros((len(lanes), self.n, self.d), x.dtype)}
        states |= {"cost": np.zeros(len(lanes), x.dtype), "gradient": np.zeros((len(lanes), self.d), x.dtype)}
        steps = np.full_like(lanes, self.steps)
        self._run("sum", lanes, _groups([len(lanes)]), np.zeros_like(lanes), steps, states)
        return states["cost"], states["gradient"]

    def recorded(self, thetas: PyTree, size: int) -> Iterator[Lanes]:
        return recorded_natively(self.system, self.scenario, thetas, size, self.workers)

    def companion(self) -> tuple[Array, Array]:
        return companion_natively(self.system, self.scenario, self.thetas)

    def windowed(
        self,
        blocks: Sequence[tuple[int, int]],
        size: int,
        x: np.ndarray,
        y: np.ndarray,
        push: np.ndarray,
        done: Done | None = None,
    ) -> list[Windowed]:
        """Return what `windowed_block` returns, for blocks (first lane, window) of `size` lanes each."""
        t = _lanes_of([(first, size) for first, _ in blocks])
        groups = _groups([size] * len(blocks))
        window = np.repeat(np.array([window for _, window in blocks]), size)
        half, begin, count = window - window // 2, t - window, len(t)
        pushes = np.asarray(pushes_of(t, push))
        # The lanes, and behind them their twins.
        both = {"x": np.concatenate([x[begin], x[begin] + pushes]), "y": np.concatenate([y[begin], y[begin]])}
        lane, twin = ({name: rows[part] for name, rows in both.items()} for part in (np.s_[:count], np.s_[count:]))
        lane["apart"] = np.zeros((count, 2), x.dtype)
        t_both, begin_both, half_both = (np.concatenate([rows, rows]) for rows in (t, begin, half))
        groups_both = np.concatenate([groups, groups + count])
        self._run("advance", t_both, groups_both, begin_both, half_both, both, done=done)
        left_half = twin["x"] - lane["x"]
        self._run("compare", t, groups, begin + half, window - half, lane, series=(x, y), done=done)
        self._run("advance", t, groups, begin + half, window - half, twin, done=done)
        apart = np.maximum(lane.pop("apart"), np.stack([_squares(lane["x"] - x[t]), _squares(lane["y"] - y[t])], 1))
        left = twin["x"] - lane["x"]
        found, other = (self._run("slope", t, groups, t, np.ones_like(t), states) for states in (lane, twin))
        lanes = gains(found, other, pushes, left_half, left, half, window, np.sqrt(apart).T)
        return _split(Windowed, [np.asarray(rows) for rows in lanes], [size] * len(blocks))

    def _run(
        self,
        kind: Any,
        t: np.ndarray,
        groups: np.ndarray,
        begin: np.ndarray,
        steps: np.ndarray,
        states: dict[str, np.ndarray],
        *,
        end: np.ndarray | None = None,
        series: PyTree = None,
        done: Done | None = None,
    ) -> dict[str, np.ndarray]:
        """Make steps `begin`, `begin` + 1, … of lanes `t`, in their `states`; return the row of the first step."""
        lanes = np.arange(len(t))
        own = {
            "x": states["x"],
            "state": {name: rows for name, rows in states.items() if name != "x"},
            "theta": self.thetas,
            "step": np.ascontiguousarray(begin, np.int32),
            "end": np.full(len(t), NEVER, np.int32) if end is None else end.astype(np.int32),
        }
        inputs = self.start | {name: jax.tree.map(lambda rows: rows[0], tree) for name, tree in own.items()}
        if series is not None:
            inputs["series"] = series
        loop, arrays = compiled(RolloutStep(kind), (self.system,), inputs)
        own = {name: jax.tree.leaves(tree) for name, tree in own.items()}
        addresses, kept = [], []
        for leaf, array in zip(loop.program.inputs, arrays, strict=True):
            index = np.zeros_like(lanes)
            if leaf.group in own:
                array, index = own[leaf.group][leaf.position], t if leaf.group == "theta" else lanes
            elif ROLES[leaf.group] is Role.SERIES:
                index = begin
            array = np.asarray(array, order="C")
            kept.append(array)  # C reads it, so it must stay in memory
            addresses.append(array.ctypes.data + leaf.ids.size * array.itemsize * index.astype(np.int64))
        shapes = jax.tree.unflatten(loop.result_structure, loop.results(1))["row"]
        rows = jax.tree.map(lambda shape: np.zeros((len(t), *shape.shape[1:]), shape.dtype), shapes)
        addresses += [array.ctypes.data + array.strides[0] * lanes for array in jax.tree.leaves(rows)]
        loop.run(
            np.stack(addresses),
            steps,
            max(1, int(steps.max())),  # only the first row is recorded
            memory=(kept, rows),
            groups=groups,
            rows=self.steps - begin,
            workers=self.workers,
            done=done,
        )
        return rows


def _lanes_of(blocks: Sequence[tuple[int, int]]) -> np.ndarray:
    return np.concatenate([np.arange(first, first + count) for first, count in blocks])


def _groups(counts: Sequence[int]) -> np.ndarray:
    """Return the first lane of each group, which are parts of blocks of so many lanes."""
    firsts = np.cumsum([0, *counts])[:-1]
    return np.concatenate([np.arange(first, first + count, LANES) for first, count in zip(firsts, counts, strict=True)])


def _split(kind: Any, fields: Sequence[np.ndarray], counts: Sequence[int]) -> list[Any]:
    """Return the blocks of so many lanes, each as a tuple of the kind."""
    return [kind(*(rows[a:b] for rows in fields)) for a, b in pairwise(np.cumsum([0, *counts]))]


def _squares(rows: np.ndarray) -> np.ndarray:
    return np.sum(rows.reshape(len(rows), -1) ** 2, axis=1)
