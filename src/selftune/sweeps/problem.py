"""The problem of a sweep: the user's functions, each called with the settings that are its parameters."""

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..control.controller import Controller
from ..control.guard import Guard
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..native.choice import Engine
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from ..simulation.run import Run
from ..simulation.simulator import simulate
from .design import Setting

PARTS = 20
AXIS = " "
"""The name of a dummy setting. It gives a batch its size if no real setting varies along it."""


@dataclass(frozen=True)
class Problem:
    """All that determines the numbers of a run, except the point and the seed."""

    make_controller: Callable[..., Controller]
    make_scenario: Callable[..., Scenario]
    theta: Any
    a_hat: Any
    plant: AbstractSystem | None
    guard: Guard | None
    limit: float
    engine: Engine
    record: tuple[str, ...]
    stride: int
    infer: bool = False

    def __post_init__(self) -> None:
        for name in ("make_controller", "make_scenario"):
            if not callable(getattr(self, name)):
                raise ArgumentError(name, "a function", arguments.describe(getattr(self, name)))
        if not takes(self.make_scenario, "key"):
            expected = "a function with a parameter `key` for its random draws"
            raise ArgumentError("make_scenario", expected, f"one of {inspect.signature(self.make_scenario)}")

    def check_names(self, names: Sequence[str]) -> None:
        """Raise `ValueError` unless every setting is a parameter, and every required parameter is a setting."""
        functions = {name: maker for name in _MAKERS if _is_function(maker := getattr(self, name))}
        for name in names:
            if not any(takes(maker, name) for maker in functions.values()):
                raise ArgumentError("grid", f"parameters of {' or '.join(functions)}", f"{name!r}")
        for maker, function in functions.items():
            if hasattr(function, "takes"):
                continue
            for parameter in inspect.signature(function).parameters.values():
                variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
                optional = variadic or parameter.default is not parameter.empty
                if not optional and parameter.name not in (*names, *(("key",) if maker in _MAKERS[:2] else ())):
                    raise ArgumentError("grid", f"{maker}'s parameter {parameter.name!r} in it", f"{', '.join(names)}")

    def controller(self, setting: Setting, seed: Any) -> Controller:
        # Not the scenario's key: the tuner's draws must be independent of the scenario's.
        controller = _call(self.make_controller, setting, lambda: jax.random.fold_in(jax.random.key(seed), _OWN))
        if not isinstance(controller, Controller):
            raise ArgumentError("make_controller", "it to return a Controller", arguments.describe(controller))
        return controller

    def scenario(self, setting: Setting, seed: Any) -> Scenario:
        scenario = _call(self.make_scenario, setting, lambda: jax.random.key(seed))
        if not isinstance(scenario, Scenario):
            raise ArgumentError("make_scenario", "it to return a Scenario", arguments.describe(scenario))
        return scenario

    def start(self, setting: Setting) -> dict[str, Any]:
        parts = {"theta": self.theta, "a_hat": self.a_hat}
        return {name: _call(part, setting) if _is_function(part) else part for name, part in parts.items()}

    def draws_by(self, names: Sequence[str]) -> bool:
        """Whether the scenario depends on these settings."""
        return any(takes(self.make_scenario, name) for name in names)

    def run(self, setting: Setting, seed: Any, scenario: Scenario) -> Run:
        return simulate(
            self.controller(setting, seed),
            scenario,
            **self.start(setting),
            plant=self.plant,
            guard=self.guard,
            infer=self.infer,
            record=tuple(dict.fromkeys(("cost", *self.record))),
            limit=self.limit,
            throw=False,
            engine=self.engine,
        )


_MAKERS = ("make_controller", "make_scenario", "theta", "a_hat")
_OWN = 0x5E1F
_TREES = ("theta", "a_hat", "memory")
"""The fields that are pytrees; they are stored as vectors."""


def arrays_to_store(problem: Problem, run: Run) -> dict[str, Any]:
    """The arrays to store of one run."""
    ok, cost = run.outcome.ok, run.cost
    edges = [*parts_of(len(cost)).tolist(), len(cost)]
    parts = jnp.stack([jnp.mean(cost[a:b]) for a, b in itertools.pairwise(edges)])
    sizes = jnp.asarray(np.diff(edges) / max(len(cost), 1), cost.dtype)
    arrays = {
        "mean_cost": jnp.where(ok, jnp.sum(sizes * parts), jnp.nan),
        "part_cost": jnp.where(ok, parts, jnp.nan),
        "theta_end": ravel_pytree(run.final.state.theta)[0],
        "result_code": run.outcome.code.astype(jnp.int32),
        "failed_at": run.outcome.step.astype(jnp.int32),
    }
    for name in problem.record:
        rows = jax.tree.map(lambda rows: rows[:: problem.stride], getattr(run, name))
        arrays[name] = jax.vmap(lambda row: ravel_pytree(row)[0])(rows) if name in _TREES else rows
    return arrays


def parts_of(steps: int) -> np.ndarray:
    """The first step of each part of a run. Costs are averaged over each part."""
    return np.linspace(0, steps, min(PARTS, steps) + 1).astype(int)[:-1]


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has this parameter. A function may list other names, such as `tuner.name`, in `takes`."""
    if isinstance(names := getattr(function, "takes", None), frozenset):
        return name in names
    kinds = inspect.Parameter
    parameters = inspect.signature(function).parameters
    return (name in parameters and parameters[name].kind is not kinds.POSITIONAL_ONLY) or any(
        parameter.kind is kinds.VAR_KEYWORD for parameter in parameters.values()
    )


def _call(function: Callable[..., Any], setting: Setting, key: Callable[[], Any] | None = None) -> Any:
    """Call a function with the settings that are its parameters."""
    given = {name: value for name, value in setting.items() if name != AXIS and takes(function, name)}
    if not hasattr(function, "takes"):  # a list of numbers becomes an array, as it would if traced
        given = {name: np.asarray(v, float) if _is_vector(v) else v for name, v in given.items()}
    if key is not None and takes(function, "key"):
        given["key"] = key()
    return function(**given)


def _is_function(value: Any) -> bool:
    """Whether a value is a plain function. A pytree with numbers may be callable too."""
    return callable(value) and not any(map(eqx.is_array_like, jax.tree.leaves(value)))


def _is_vector(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and is_traced([value])


def is_traced(column: list[Any]) -> bool:
    """Whether a setting's values can be arguments of a program: floats, or lists of numbers with the same shape."""
    if all(isinstance(value, list) for value in column):
        shapes = {np.shape(value) for value in column} if _are_numbers(column) else set()
        return len(shapes) == 1
    return _are_numbers(column) and any(isinstance(value, float) for value in column)


def _are_numbers(values: Any) -> bool:
    if isinstance(values, list):
        return all(map(_are_numbers, values))
    return isinstance(values, (int, float)) and not isinstance(values, bool)
