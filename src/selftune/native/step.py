"""Lowering of a controller's step to a scalar program, in the form that needs the fewest operations."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..control.controller import Controller
from ..problem.system import AbstractSystem, Linearization, System, linearize_step
from .lowering.from_jaxpr import Program, lower
from .lowering.values import TooLargeError

SMALL = 200
"""Up to this size, in numbers, only the first form of a step is tried."""
UNROLLED = 12_000
"""Up to this size, the program is fully unrolled."""
LOOPED = 64
"""In a larger program, matrix products with more terms than this become loops."""


def lower_step(
    make: Callable[[Callable[[Controller], Controller]], Callable[..., dict[str, PyTree]]],
    inputs: dict[str, PyTree],
    *,
    unrolled: int = UNROLLED,
) -> Program:
    """Return the program of `make(prepare)`, a function that applies `prepare` to a controller and then calls it.

    There are three ways to propagate tangents through the closed loop: one by one through every operation, as XLA does;
    by products with the two Jacobians of the loop; or by products with the Jacobians of its functions. Zeros cost
    nothing in any of them. Which way gives the smallest program depends on the system, so all are tried. In programs
    of more than `unrolled` numbers the products become loops, which means less code and more operations. A way that
    fails is left out; for example, `while` has no derivative in reverse mode.
    """
    is_used: list[bool] = []
    every = (linearize_step, _by_loop_jacobians, _by_function_jacobians)
    first, *ways = [make(_with(_noted(way, is_used))) for way in every]
    try:
        program = lower(first, inputs)
    except TooLargeError:
        return _smallest(lower(ways[0], inputs, loop_products=LOOPED), ways[1:], inputs, loop_products=LOOPED)
    if _size(program) <= SMALL:
        return program
    if not is_used:  # nothing is propagated, as in `observe` or with `Fixed`: all ways give the same program
        ways = []
    program = _smallest(program, ways, inputs)
    if _size(program) > unrolled:
        program = _smallest(program, ways, inputs, loop_products=LOOPED)
    return program


def _smallest(program: Program, ways: list[Callable[..., Any]], inputs: dict[str, PyTree], **options: Any) -> Program:
    for way in ways:
        try:
            program = min(program, lower(way, inputs, **options), key=_size)
        except Exception:  # JAX cannot do it for these functions; the first way has worked
            continue
    return program


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


def _with(way: Callable[..., Linearization]) -> Callable[[Controller], Controller]:
    def prepare(controller: Controller) -> Controller:
        system = controller.system
        kind = type(system)
        if kind.linearize is not System.linearize or kind.step is not AbstractSystem.step:
            return controller  # the user's own derivative
        same = _Relinearized(
            system.dynamics,
            system.residual,
            system.policy,
            system.cost,
            way,
            memory=system.memory,
            measure=system.measure,
            estimate=system.estimate,
        )
        return eqx.tree_at(lambda controller: controller.system, controller, same)

    return prepare


def _noted(way: Callable[..., Linearization], is_used: list[bool]) -> Callable[..., Linearization]:
    """Return the same way, which also appends to `is_used` whenever a program uses it."""

    def noted(*arguments: Any) -> Linearization:
        is_used.append(True)
        return way(*arguments)

    return noted


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
