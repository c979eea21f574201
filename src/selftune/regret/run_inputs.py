"""Checks and conversions of the arguments of the metrics."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..native.choice import Engine, check_engine
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from ..simulation.run import Run


def problem(system: Any, scenario: Any) -> Scenario:
    """The scenario with all rows of a*, w and t in memory."""
    arguments.instance("system", system, AbstractSystem)
    arguments.instance("scenario", scenario, Scenario)
    if not jax.tree.leaves(scenario.a_star):
        raise ArgumentError("scenario", "a scenario with a_star, the true parameters", "None")
    return scenario.materialize()


def rows(name: str, tree: Any, scenario: Scenario) -> PyTree:
    """A pytree whose leaves have one row for each step of the scenario."""
    if isinstance(tree, Run):
        expected = f"{len(scenario)} rows, one for each step of the scenario"
        raise ArgumentError(name, expected, "a Run", "did you mean run.theta?")
    tree = arguments.real_tree(name, tree, dtype=scenario.x0.dtype)
    for leaf in jax.tree.leaves(tree):
        if leaf.ndim == 0 or leaf.shape[0] != len(scenario):
            raise ArgumentError(
                name, f"{len(scenario)} rows, one for each step of the scenario", arguments.describe(leaf)
            )
    return tree


def recorded(run: Any, *names: str, scenario: Scenario) -> tuple[Any, ...]:
    """Fields of a run, after checking that they were recorded and have one row for each step."""
    return tuple(rows(f"run.{name}", field("run", run, name), scenario) for name in names)


def field(owner: str, run: Any, name: str) -> Any:
    """A field of a run, after checking that it was recorded."""
    if not isinstance(run, Run):
        raise ArgumentError(owner, "a Run, the result of simulate", arguments.describe(run))
    value = run.recorded.get(name)
    if not jax.tree.leaves(value):
        raise ArgumentError(owner, f"a run that recorded {name}", f"one that recorded {sorted(run.recorded)}")
    return value


def check_shapes(system: AbstractSystem, scenario: Scenario, thetas: PyTree) -> None:
    """Check the shapes of the system's four functions, by tracing them with the first row of all inputs."""
    row = jax.eval_shape(lambda: scenario.row(0))
    theta = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), thetas)
    system.check(scenario.x0, theta, row.a_star, row.t)


def flat_rows(tree: PyTree) -> jax.Array:
    """(T, d): row t is the flattened row t of the pytree, in the order of `ravel_pytree`."""
    leaves = jax.tree.leaves(tree)
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)


def width(tree: PyTree) -> int:
    """d: the number of numbers in one row."""
    return sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(tree))


def is_traced(*trees: PyTree) -> bool:
    """Whether JAX traces any number, or traces at all: under `jit` even computations with known numbers are staged."""
    return not all(arguments.is_known(leaf) for leaf in (*jax.tree.leaves(trees), jnp.zeros(()) + 1))


def engine_for(engine: Any, *trees: PyTree) -> Engine:
    """The engine after a check: XLA under `jit` and `vmap`."""
    engine = check_engine(engine)
    if not is_traced(*trees):
        return engine
    if engine == "native":
        raise ArgumentError("engine", "'auto' or 'xla' under jit and vmap, where XLA runs", "'native'")
    return "xla"
