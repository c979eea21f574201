"""A sweep divided into tasks: which points share a program, and how many runs of it form a batch.

Nothing here depends on the machine: the same sweep has the same tasks everywhere, and so the same numbers.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..foundation import jax_settings, jaxprs
from ..foundation.errors import ArgumentError, in_one_line
from ..problem.noise import is_stream
from ..problem.scenario import Scenario
from .design import Design, Setting
from .problem import AXIS, Problem, arrays_to_store, is_traced, takes

MEMORY = 256 << 20
"""The memory limit of a batch's largest arrays, in bytes."""
WORK = 20_000_000
"""The limit on the steps of all runs of a batch: about a second."""


@dataclass(frozen=True)
class Group:
    """Points that share one program: they differ only in the `traced` settings, which are the program's arguments."""

    points: tuple[int, ...]
    traced: tuple[str, ...]
    digest: str = ""
    """The hash of the program."""
    shape: tuple[int, int] = (1, 1)
    """The number of points and the number of seeds of a batch."""


@dataclass(frozen=True)
class Batch:
    """Some points of a group, each with some seeds, which are computed together. One task of the sweep is one batch."""

    group: int
    points: tuple[int, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    problem: Problem
    design: Design
    seeds: tuple[int, ...]
    jax_settings: dict[str, Any]
    """JAX's settings when the plan was made."""
    groups: tuple[Group, ...] = ()
    refused: dict[int, str] = field(default_factory=dict)
    """The points that cannot be run, with the reason."""
    steps: int = 0
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of the stored arrays of one run."""

    @property
    def numerical_settings(self) -> dict[str, Any]:
        """The settings of JAX that influence the numbers. Type promotion does not: it only decides what is an error."""
        return {name: value for name, value in self.jax_settings.items() if name != "jax_numpy_dtype_promotion"}

    @property
    def x64(self) -> bool:
        return self.jax_settings["jax_enable_x64"]

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        return tuple(
            Batch(g, points, seeds)
            for g, group in enumerate(self.groups)
            for points in _divided(group.points, group.shape[0])
            for seeds in _divided(self.seeds, group.shape[1])
        )

    @property
    def lanes(self) -> int:
        """The number of runs of the largest batch."""
        return max((math.prod(group.shape) for group in self.groups), default=1)

    def identity(self, batch: Batch) -> str:
        """A hash of the batch's content: the program, and its arguments."""
        group, points = self.groups[batch.group], [self.design.points[i] for i in batch.points]
        settings = self.problem.engine, self.numerical_settings
        content = [group.digest, points, batch.seeds, group.shape, *settings]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def arguments(self, batch: Batch) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The program's arguments, padded to the group's shape by repeating the last ones."""
        group = self.groups[batch.group]
        points = _padded(batch.points, group.shape[0])
        traced = {name: np.asarray([self.design.points[i][name] for i in points], float) for name in group.traced}
        return traced, np.asarray(_padded(batch.seeds, group.shape[1]))

    def program(self, group: Group) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
        """A function from the arguments to the arrays to store; each array has the leading axes (point, seed)."""
        problem = self.problem
        fixed = {name: v for name, v in self.design.points[group.points[0]].items() if name not in group.traced}

        def run(traced: dict[str, Any], seed: Any, scenario: Scenario) -> dict[str, Any]:
            return arrays_to_store(problem, problem.run({**fixed, **traced}, seed, scenario))

        def runs_of_seed(traced: dict[str, Any], seed: Any) -> dict[str, Any]:
            if problem.draws_by(group.traced):
                return jax.vmap(lambda traced: run(traced, seed, problem.scenario({**fixed, **traced}, seed)))(traced)
            scenario = problem.scenario(fixed, seed)
            return jax.vmap(lambda traced: run(traced, seed, scenario))(traced)

        def runs(traced: dict[str, Any], seeds: Any) -> dict[str, Any]:
            # If no setting is traced, vmap needs another argument with an axis.
            padded = {**traced, AXIS: jnp.zeros(group.shape[0])}
            arrays = jax.vmap(lambda seed: runs_of_seed(padded, seed))(seeds)
            return {name: jnp.swapaxes(value, 0, 1) for name, value in arrays.items()}

        return runs


def make_plan(problem: Problem, design: Design, seeds: Sequence[int], *, lanes: int | None = None) -> Plan:
    """Return the plan. Invalid points are refused individually; if all are invalid, raise the first error."""
    problem.check_names(design.names)
    plan = Plan(problem, design, tuple(seeds), jax_settings.current())
    refused, first_error = _refused_points(plan)
    groups: list[Group] = []
    run_sizes: dict[int, tuple[int, dict[str, tuple[int, ...]]]] = {}
    traced = tuple(name for name in design.names if is_traced(design.column(name)))
    for group in _grouped(design, [i for i in range(len(design.points)) if i not in refused], traced):
        parts = [group]
        while parts:
            part = parts.pop(0)
            try:
                sized, steps, shapes = _sized(plan, part, lanes)
                groups.append(sized)
                run_sizes[part.points[0]] = steps, shapes
            except Exception as error:  # the user's functions may raise anything
                first_error = first_error or error
                if part.traced:
                    parts = [*_divided_group(plan, part, lanes), *parts]
                else:
                    refused |= dict.fromkeys(part.points, in_one_line(error))
    if first_error is not None and not groups:
        raise first_error
    (first, (steps, shapes)), *others = run_sizes.items()
    for other, (other_steps, other_shapes) in others:
        if (other_steps, other_shapes) != (steps, shapes):
            raise ArgumentError(
                "make_scenario, theta",
                "runs of the same steps and sizes at every point",
                f"{steps} steps, {shapes} at {design.points[first]}, "
                f"and {other_steps} steps, {other_shapes} at {design.points[other]}",
            )
    assert sorted([*refused, *(i for group in groups for i in group.points)]) == list(range(len(design.points)))
    return replace(plan, groups=tuple(groups), refused=refused, steps=steps, shapes=shapes)


def _refused_points(plan: Plan) -> tuple[dict[int, str], BaseException | None]:
    """The refused points with the reason, and the first error. Each maker is called once for each of its settings."""
    problem, refused, first_error = plan.problem, {}, None
    checks: dict[str, tuple[Callable[..., Any], Callable[[Setting], Any]]] = {
        "controller": (problem.make_controller, lambda s: problem.controller(s, 0)),
        "scenario": (
            problem.make_scenario,
            lambda s: eqx.filter_eval_shape(lambda seed: problem.scenario(s, seed), jnp.zeros((), jnp.int32)),
        ),
    }
    errors: dict[str, BaseException | None] = {}
    for i, point in enumerate(plan.design.points):
        for name, (maker, check) in checks.items():
            call = f"{name} {json.dumps({key: value for key, value in point.items() if takes(maker, key)})}"
            if call not in errors:
                try:
                    check(point)
                    errors[call] = None
                except Exception as error:
                    errors[call] = error
            if (error := errors[call]) is not None and i not in refused:
                refused[i], first_error = in_one_line(error), first_error or error
    return refused, first_error


def _divided_group(plan: Plan, group: Group, lanes: int | None) -> list[Group]:
    """Divide a group that cannot be one program, because a function uses a value while JAX traces it.

    Divide the group by one setting, if the rest can then be traced; otherwise into single points.
    """
    for name in group.traced:
        rest = tuple(other for other in group.traced if other != name)
        try:
            _sized(plan, Group(group.points[:1], rest), lanes)
        except Exception:
            continue
        return _grouped(plan.design, group.points, rest)
    return [Group((i,), ()) for i in group.points]


def _grouped(design: Design, points: Sequence[int], traced: tuple[str, ...]) -> list[Group]:
    groups: dict[str, list[int]] = {}
    for i in points:
        fixed = {name: value for name, value in design.points[i].items() if name not in traced}
        groups.setdefault(json.dumps(fixed), []).append(i)
    return [Group(tuple(members), traced) for members in groups.values()]


def _sized(plan: Plan, group: Group, lanes: int | None) -> tuple[Group, int, dict[str, tuple[int, ...]]]:
    """The group with its program's hash and its batches' shape; the steps of a run; the shapes of the stored arrays."""
    problem = plan.problem
    trial = replace(plan, groups=(group,))
    arguments = trial.arguments(Batch(0, group.points[:1], plan.seeds[:1]))
    setting = plan.design.points[group.points[0]]
    scenario = eqx.filter_eval_shape(lambda seed: problem.scenario(setting, seed), arguments[1][0])
    if not len(scenario):
        raise ArgumentError("make_scenario", "at least one step", "none")
    shapes = jax.eval_shape(trial.program(group), *arguments)  # the whole program, to check all shapes and lowerings
    steps, number = len(scenario), np.dtype(scenario.x0.dtype).itemsize
    drawn = number * sum(_numbers(leaf, steps) for leaf in jax.tree.leaves(scenario, is_leaf=is_stream))
    widths = [1, *(math.prod(shapes[name].shape[3:]) for name in problem.record)]
    rows = number * steps * sum(widths)
    most = max(1, WORK // max(steps, 1)) if lanes is None else lanes
    shared = not problem.draws_by(group.traced)
    shape = _shape(len(group.points), len(plan.seeds), most, drawn, rows, shared=shared)
    sized = replace(group, shape=shape)
    stored = {name: value.shape[2:] for name, value in shapes.items()}
    return replace(sized, digest=_digest(plan, sized, arguments)), steps, stored


def _shape(points: int, seeds: int, lanes: int, drawn: int, rows: int, *, shared: bool) -> tuple[int, int]:
    """(points, seeds) of a batch: as many runs as the limits of memory and work allow, in batches of equal size."""
    if shared:  # all points share the random draws of a seed
        across = min(points, lanes, 8)
        down = max(1, min(seeds, lanes // across, MEMORY // (drawn + across * rows)))
        across = max(1, min(points, lanes // down, (MEMORY // down - drawn) // rows))
    else:
        lanes = max(1, min(lanes, MEMORY // (drawn + rows)))
        down = min(seeds, lanes)
        across = min(points, lanes // down)
    return tuple(-(-total // -(-total // size)) for total, size in ((points, across), (seeds, down)))  # pyright: ignore[reportReturnType]


def _numbers(leaf: Any, steps: int) -> int:
    """The size of a leaf. A stream counts with all its rows, because the native engine draws them in advance."""
    return steps * math.prod(leaf.shape) if is_stream(leaf) else math.prod(leaf.shape)


def _digest(plan: Plan, group: Group, arguments: Any) -> str:
    """SHA-256 of the program, as JAX traces it for XLA. The native engine computes the same numbers."""
    traced = replace(plan, problem=replace(plan.problem, engine="xla"), groups=(group,))
    closed = jax.make_jaxpr(traced.program(replace(group, shape=(1, 1))))(*arguments)
    return jaxprs.digest(closed)


def _divided(items: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


def _padded(items: tuple[int, ...], size: int) -> list[int]:
    return [*items, *[items[-1]] * (size - len(items))]
