"""A sweep divided into tasks: which points share a program, and how many runs of it form a batch.

Nothing here depends on the machine: the same sweep has the same tasks everywhere, and so the same numbers.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..foundation import jaxprs
from ..foundation.errors import ArgumentError
from ..problem.noise import is_stream
from ..problem.scenario import Scenario
from .design import Design, Setting
from .problem import AXIS, Problem, arrays_to_store, is_traced, takes

MEMORY = 256 << 20
"""The memory limit of a task's largest arrays, in bytes."""
WORK = 20_000_000
"""The limit on the steps of all runs of a task: about a second."""
RAISED = 3
"""The result code of a run whose task or setting raised an error."""


@dataclass(frozen=True)
class Group:
    """Points that share one program: they differ only in the `traced` settings, which are the program's arguments."""

    points: tuple[int, ...]
    traced: tuple[str, ...]
    digest: str = ""
    """The hash of the program."""
    shape: tuple[int, int] = (1, 1)
    """The number of points and the number of seeds of a task."""


@dataclass(frozen=True)
class Block:
    """A task: some points of a group, each with some seeds."""

    group: int
    points: tuple[int, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    problem: Problem
    design: Design
    seeds: tuple[int, ...]
    options: dict[str, Any]
    """JAX's settings when the plan was made."""
    groups: tuple[Group, ...] = ()
    refused: dict[int, str] = field(default_factory=dict)
    """The points that cannot be run, with the reason."""
    steps: int = 0
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of the stored arrays of one run."""

    @property
    def deciding(self) -> dict[str, Any]:
        """The settings of JAX that influence the numbers. Type promotion does not: it only decides what is an error."""
        return {name: value for name, value in self.options.items() if name != "jax_numpy_dtype_promotion"}

    @property
    def x64(self) -> bool:
        return self.options["jax_enable_x64"]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(
            Block(g, points, seeds)
            for g, group in enumerate(self.groups)
            for points in _cut(group.points, group.shape[0])
            for seeds in _cut(self.seeds, group.shape[1])
        )

    @property
    def lanes(self) -> int:
        """The number of runs of the largest task."""
        return max((math.prod(group.shape) for group in self.groups), default=1)

    def identity(self, block: Block) -> str:
        """A hash of the task's content: the program, and its arguments."""
        settings = [self.design.points[i] for i in block.points]
        shape = self.groups[block.group].shape
        content = [self.groups[block.group].digest, settings, block.seeds, shape, self.problem.engine, self.deciding]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def arguments(self, block: Block) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The program's arguments, padded to the group's shape by repeating the last ones."""
        group = self.groups[block.group]
        points = _filled(block.points, group.shape[0])
        traced = {name: np.asarray([self.design.points[i][name] for i in points], float) for name in group.traced}
        return traced, np.asarray(_filled(block.seeds, group.shape[1]))

    def program(self, group: Group) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
        """A function from the arguments to the arrays to store; each array has the leading axes (point, seed)."""
        used = self.problem
        fixed = {name: v for name, v in self.design.points[group.points[0]].items() if name not in group.traced}

        def run(traced: dict[str, Any], seed: Any, scenario: Scenario) -> dict[str, Any]:
            return arrays_to_store(used, used.run({**fixed, **traced}, seed, scenario))

        def of_seed(traced: dict[str, Any], seed: Any) -> dict[str, Any]:
            if used.draws_by(group.traced):
                return jax.vmap(lambda traced: run(traced, seed, used.scenario({**fixed, **traced}, seed)))(traced)
            scenario = used.scenario(fixed, seed)
            return jax.vmap(lambda traced: run(traced, seed, scenario))(traced)

        def runs(traced: dict[str, Any], seeds: Any) -> dict[str, Any]:
            # If no setting is traced, vmap needs another argument with an axis.
            padded = {**traced, AXIS: jnp.zeros(group.shape[0])}
            arrays = jax.vmap(lambda seed: of_seed(padded, seed))(seeds)
            return {name: jnp.swapaxes(value, 0, 1) for name, value in arrays.items()}

        return runs


_OPTIONS: dict[str, Any] = {
    "jax_enable_x64": jax.enable_x64,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_threefry_partitionable": jax.threefry_partitionable,
    "jax_default_matmul_precision": jax.default_matmul_precision,
}


@contextmanager
def configured(options: dict[str, Any]) -> Iterator[None]:
    """Set JAX as it was when the sweep was planned. JAX's settings are local to each thread and process."""
    with ExitStack() as stack:
        for name, value in options.items():
            stack.enter_context(_OPTIONS[name](value))
        yield


def make_plan(problem: Problem, design: Design, seeds: Sequence[int], *, lanes: int | None = None) -> Plan:
    """Return the plan. Invalid points are refused individually; if all are invalid, raise the first error."""
    problem.check_names(design.names)
    plan = Plan(problem, design, tuple(seeds), {name: getattr(jax.config, name) for name in _OPTIONS})
    refused, first = _faults(plan)
    groups: list[Group] = []
    runs: dict[int, tuple[int, dict[str, tuple[int, ...]]]] = {}
    traced = tuple(name for name in design.names if is_traced(design.column(name)))
    for group in _grouped(design, [i for i in range(len(design.points)) if i not in refused], traced):
        parts = [group]
        while parts:
            part = parts.pop(0)
            try:
                sized, steps, shapes = _sized(plan, part, lanes)
                groups.append(sized)
                runs[part.points[0]] = steps, shapes
            except Exception as error:  # the user's functions may raise anything
                first = first or error
                if part.traced:
                    parts = [*_without_one(plan, part, lanes), *parts]
                else:
                    refused |= dict.fromkeys(part.points, error_in_words(error))
    if first is not None and not groups:
        raise first
    (point, sizes), *others = runs.items()
    for other, other_sizes in others:
        if other_sizes != sizes:
            raise ArgumentError(
                "make_scenario, theta",
                "runs of the same steps and sizes at every point",
                f"{sizes[0]} steps, {sizes[1]} at {design.points[point]}, "
                f"and {other_sizes[0]} steps, {other_sizes[1]} at {design.points[other]}",
            )
    assert sorted([*refused, *(i for group in groups for i in group.points)]) == list(range(len(design.points)))
    return replace(plan, groups=tuple(groups), refused=refused, steps=sizes[0], shapes=sizes[1])


def _faults(plan: Plan) -> tuple[dict[int, str], BaseException | None]:
    """The refused points with the reason, and the first error. Each maker is called once for each of its settings."""
    problem, refused, first = plan.problem, {}, None
    checks: dict[str, tuple[Callable[..., Any], Callable[[Setting], Any]]] = {
        "controller": (problem.make_controller, lambda s: problem.controller(s, 0)),
        "scenario": (
            problem.make_scenario,
            lambda s: eqx.filter_eval_shape(lambda seed: problem.scenario(s, seed), jnp.zeros((), jnp.int32)),
        ),
    }
    known: dict[str, BaseException | None] = {}
    for i, point in enumerate(plan.design.points):
        for name, (maker, check) in checks.items():
            seen = f"{name} {json.dumps({key: value for key, value in point.items() if takes(maker, key)})}"
            if seen not in known:
                try:
                    check(point)
                    known[seen] = None
                except Exception as error:
                    known[seen] = error
            if (error := known[seen]) is not None and i not in refused:
                refused[i], first = error_in_words(error), first or error
    return refused, first


def _without_one(plan: Plan, group: Group, lanes: int | None) -> list[Group]:
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
    """The group with its program's hash and its tasks' shape; the steps of a run; the shapes of the stored arrays."""
    problem = plan.problem
    trial = replace(plan, groups=(group,))
    block = Block(0, group.points[:1], plan.seeds[:1])
    arguments = trial.arguments(block)
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
    """(points, seeds) of a task: as many runs as the limits of memory and work allow, in tasks of equal size."""
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


def error_in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n", 1)[0][:500]


def _cut(items: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


def _filled(items: tuple[int, ...], size: int) -> list[int]:
    return [*items, *[items[-1]] * (size - len(items))]
