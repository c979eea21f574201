"""Lowering of a step to a scalar program, in the form that needs the fewest operations."""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..foundation import arguments
from ..problem.system import AbstractSystem, ControlLinearization, Linearization, System, linearize_step
from .lowering.from_jaxpr import Program, lower
from .lowering.values import LoweringError, TooLargeError

SMALL = 200
"""Up to this size of a loop with its sensitivities, in numbers, only the first way to propagate tangents is tried."""
UNROLLED = 12_000
"""Up to this size, the program is fully unrolled."""
LOOPED = 64
"""In a larger program, matrix products and factorizations with more terms than this become loops."""
FEW_INPUTS = 50
"""A program that reads at most so many numbers is probably small."""
MANY_INPUTS = 800
"""A program that reads more numbers than this is never unrolled."""
MANY_SENSITIVITIES = 100
"""With fewer sensitivities than this, (n + s) d, it is not worth looking at the size of a step first."""
MANY_TANGENTS = 20_000
"""If the numbers of a step of the model, times the tangents, are more than this, tangents are never unrolled."""


def lower_step(
    make: Callable[[Callable[[AbstractSystem], AbstractSystem]], Callable[..., dict[str, PyTree]]],
    inputs: dict[str, PyTree],
    *,
    unrolled: int = UNROLLED,
    in_memory: Callable[[str, int], bool] = lambda group, size: False,
) -> Program:
    """Return the program of `make(prepare)`, a function that uses `prepare(system)` in place of the system.

    There are three ways to propagate tangents through the closed loop: one by one through every operation, as XLA does;
    by products with the two Jacobians of the loop; or by products with the Jacobians of its functions. Zeros cost
    nothing in any of them. Which way gives the smallest program depends on the system, so all are tried, with the loop
    alone. A way that fails is left out; for example, `while` has no derivative in reverse mode.

    In a program of more than `unrolled` numbers, tangents are propagated by a loop, and so are `scan`, large products
    and factorizations: much less code, which compiles faster, and a few more operations. Large arrays of which C has
    the memory stay there: `in_memory` is that of `lower`.
    """
    numbers = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(inputs))
    if numbers > MANY_INPUTS:
        return _with_loops(make, inputs, in_memory)
    program = None
    try:
        if numbers <= FEW_INPUTS:
            program = _one_by_one(make, inputs)
        if program is None:
            program = lower(make(_with(_by_smallest_program)), inputs)
    except (TooLargeError, _LargeError):
        return _with_loops(make, inputs, in_memory)
    return program if _size(program) <= unrolled else _with_loops(make, inputs, in_memory)


def _one_by_one(make: Callable[..., Any], inputs: dict[str, PyTree]) -> Program | None:
    """Return the program in which tangents are propagated one by one; None if another way gives a smaller program."""
    choices = []

    def way(*given: Any) -> Linearization:
        choices.append(_choice(*given))
        return linearize_step(*given)

    program = lower(make(_with.__wrapped__(way)), inputs)
    # If the program is small, so is the loop alone.
    is_smallest = _size(program) <= SMALL or all(choice() is linearize_step for choice in choices)
    return program if is_smallest else None


def _with_loops(make: Callable[..., Any], inputs: dict[str, PyTree], in_memory: Callable[[str, int], bool]) -> Program:
    try:
        return lower(make(_with(_by_columns, traced_once=True)), inputs, loops_above=LOOPED, in_memory=in_memory)
    except LoweringError:
        raise
    except Exception:  # JAX cannot do it, for example because a tuner differentiates the control in reverse mode
        return lower(make(lambda system: system), inputs, loops_above=LOOPED, in_memory=in_memory)


class _LargeError(Exception):
    """The tangents of a step must not be unrolled."""


def _size(program: Program) -> int:
    return len(program.live())


class _Relinearized(AbstractSystem):
    """A system with another way to propagate tangents through the closed loop."""

    dynamics: Callable[..., Any]
    residual: Callable[..., Any]
    policy: Callable[..., Any]
    cost: Callable[..., Any]
    way: Callable[..., Linearization] = eqx.field(static=True)

    def linearize(self, x: Any, theta: PyTree, a: PyTree, t: Any) -> Linearization:
        return self.way(self, x, theta, a, t)

    def linearize_with_control(self, x: Any, theta: PyTree, a: PyTree, t: Any) -> ControlLinearization:
        """Return the same; with `_by_columns`, one loop propagates the tangents of step and control, because both begin
        with the policy."""
        if self.way is not _by_columns:
            return super().linearize_with_control(x, theta, a, t)
        flat, unravel = ravel_pytree(theta)

        def both(x: Any, flat: Any) -> Any:
            theta = unravel(flat)
            return self.step(x, theta, a, t), self.control(x, theta, a, t)

        (out, _), push = jax.linearize(both, x, flat)

        def push_all(dx: Any, dtheta: Any) -> Any:
            (pushed, dh), du = jax.lax.map(lambda tangent: push(*tangent), (dx.T, dtheta.T))
            return pushed.T, dh, du.T

        return out, push_all


@functools.cache
def _with(
    way: Callable[..., Linearization], *, traced_once: bool = False
) -> Callable[[AbstractSystem], AbstractSystem]:
    """Return a function that gives a system another way to propagate tangents; always the same one for the same way.

    `traced_once`: whether JAX keeps what it traced of the system's functions. This takes less time if they are long.
    """

    def prepare(system: AbstractSystem) -> AbstractSystem:
        kind = type(system)
        if kind.linearize is not System.linearize or kind.step is not AbstractSystem.step:
            return system  # the user's own derivative
        functions = (system.dynamics, system.residual, system.policy, system.cost)
        dynamics, residual, policy, cost = map(_traced_once, functions) if traced_once else functions
        return _Relinearized(
            dynamics,
            residual,
            policy,
            cost,
            way,
            memory=system.memory,
            measure=system.measure,
            estimate=system.estimate,
        )

    return prepare


def _traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that JAX traces once for each shape of its arguments."""
    # JAX writes out an object that is not a plain function, for its messages; for a large model that takes seconds.
    jitted = jax.jit(lambda *arguments: function(*arguments))

    def call(*arguments: Any) -> Any:  # Equinox warns of modules with a jitted function as a field
        return jitted(*arguments)

    return call


def _by_smallest_program(system: AbstractSystem, x: Any, theta: PyTree, a: PyTree, t: Any) -> Linearization:
    """Propagate tangents in the way that gives the smallest program of the loop with its d sensitivities."""
    return _choice(system, x, theta, a, t)()(system, x, theta, a, t)


def _choice(
    system: AbstractSystem, x: Any, theta: PyTree, a: PyTree, t: Any
) -> Callable[[], Callable[..., Linearization]]:
    """Return a function that finds the way that gives the smallest program. It needs no array that JAX is tracing now.

    It raises `_LargeError` if tangents must not be unrolled.
    """
    n, d, dtype = x.shape[0], ravel_pytree(theta)[0].size, x.dtype
    # Known numbers are constants, because zeros cost nothing.
    traced, rest = eqx.partition(system, lambda leaf: not arguments.is_known(leaf))
    given = {"traced": traced, "x": x, "theta": theta, "a": a, "t": t, "y": jnp.zeros((n, d), dtype)}
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), given)

    def size(way: Callable[..., Linearization]) -> int:
        def propagate(traced, x, theta, a, t, y):
            out, push = way(eqx.combine(traced, rest), x, theta, a, t)
            return {"out": out, "pushed": push(y, jnp.eye(d, dtype=dtype))}

        return _size(lower(propagate, shapes))

    def step(traced, x, theta, a, t, y):
        return {"step": eqx.combine(traced, rest).step(x, theta, a, t)}

    def choose() -> Callable[..., Linearization]:
        if n * d >= MANY_SENSITIVITIES and _size(lower(step, shapes)) * d > MANY_TANGENTS:
            raise _LargeError
        sizes = {linearize_step: size(linearize_step)}
        if sizes[linearize_step] > SMALL:
            for way in (_by_loop_jacobians, _by_function_jacobians):
                with contextlib.suppress(Exception):  # JAX cannot do it for these functions; the first way has worked
                    sizes[way] = size(way)
        return min(sizes, key=lambda way: sizes[way])

    return choose


def _by_columns(system: AbstractSystem, x: Any, theta: PyTree, a: PyTree, t: Any) -> Linearization:
    """Propagate tangents by a loop, one in each turn."""
    flat, unravel = ravel_pytree(theta)
    out, push = jax.linearize(lambda x, flat: system.step(x, unravel(flat), a, t), x, flat)

    def push_all(dx, dtheta):
        pushed, dh = jax.lax.map(lambda tangent: push(*tangent), (dx.T, dtheta.T))
        return pushed.T, dh

    return out, push_all


def _by_loop_jacobians(system: AbstractSystem, x: Any, theta: PyTree, a: PyTree, t: Any) -> Linearization:
    """Propagate tangents by products with the Jacobians of the closed loop."""
    n, d = x.shape[0], ravel_pytree(theta)[0].size
    out, push = linearize_step(system, x, theta, a, t)
    g, h = push(jnp.eye(n, n + d, dtype=x.dtype), jnp.eye(d, n + d, k=n, dtype=x.dtype))

    def by_product(dx, dtheta):
        return g[:, :n] @ dx + g[:, n:] @ dtheta, h[:n] @ dx + h[n:] @ dtheta

    return out, by_product


def _by_function_jacobians(system: AbstractSystem, x: Any, theta: PyTree, a: PyTree, t: Any) -> Linearization:
    """Propagate tangents through policy, dynamics and cost, by products with the Jacobians of each.

    x is the loop state. The policy's results are the control and the next memory, as one vector.
    """
    flat, unravel = ravel_pytree(theta)

    def policy(x, theta):
        u, memory, _ = system._act(*system.split(x), unravel(theta), a, t)
        return system.join(u, memory)

    def dynamics(x, decision):
        x, _ = system.split(x)
        u, memory = system.split(decision)
        return system.join(system.dynamics(x, u, system.residual(x, a, t), t), memory)

    def cost(x, decision, theta):
        return system.loop_cost(x, system.split(decision)[0], unravel(theta), t)

    decision, (p_x, p_theta) = _with_jacobians(policy, x, flat)
    x_next, (g_x, g_p) = _with_jacobians(dynamics, x, decision)
    h, (h_x, h_p, h_theta) = _with_jacobians(cost, x, decision, flat)

    def push(dx, dtheta):
        dp = p_x @ dx + p_theta @ dtheta
        return g_x @ dx + g_p @ dp, h_x @ dx + h_p @ dp + h_theta @ dtheta

    return (x_next, h), push


def _with_jacobians(function: Callable[..., Any], *arguments: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the value and the Jacobian in each argument, in forward or reverse mode, whichever needs less work."""
    value = function(*arguments)
    every = tuple(range(len(arguments)))
    jacobian = jax.jacrev if jnp.size(value) < sum(map(jnp.size, arguments)) else jax.jacfwd
    return value, jacobian(function, argnums=every)(*arguments)
