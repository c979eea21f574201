"""A controller's step as a scalar program: whichever way of writing it takes the fewest operations."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..control.controller import Controller
from ..problem.system import System
from .lowering.from_jaxpr import Program, lower
from .lowering.values import TooLargeError

SMALL = 200
"""The size, in numbers, up to which a step is written in the first way that comes."""
UNROLLED = 8_000
"""The size up to which it is written out whole."""
LOOPED = 64
"""In a larger one, matrix products of more terms than this are loops."""


def lower_step(
    make: Callable[[Callable[[Controller], Controller]], Callable[..., dict[str, PyTree]]],
    inputs: dict[str, PyTree],
    *,
    unrolled: int = UNROLLED,
) -> Program:
    """The program of a function that calls a controller: of `make(prepare)`, which applies `prepare` to it first.

    There are three ways to push tangents through the closed loop: one by one through every operation, as XLA does; by
    products with the loop's two Jacobians; or by products with those of the functions that it is made of. Zeros cost
    nothing in any of them, and which is the smallest depends on the system: all are tried. Past `unrolled` numbers the
    products are loops: less code, and more operations. A way that does not work is left out: `while` has no derivative
    in reverse.
    """
    ways = [make(_with(kind)) for kind in (_LoopJacobians, _FunctionJacobians)]
    try:
        program = lower(make(lambda controller: controller), inputs)
    except TooLargeError:
        return _smallest(lower(ways[0], inputs, loop_products=LOOPED), ways[1:], inputs, loop_products=LOOPED)
    if _size(program) <= SMALL:
        return program
    program = _smallest(program, ways, inputs)
    if _size(program) > unrolled:
        program = _smallest(program, ways, inputs, loop_products=LOOPED)
    return program


def _smallest(program: Program, ways: list[Callable[..., Any]], inputs: dict[str, PyTree], **options: Any) -> Program:
    for way in ways:
        try:
            program = min(program, lower(way, inputs, **options), key=_size)
        except Exception:  # of JAX, about the user's functions: the first way has worked with them
            continue
    return program


def _size(program: Program) -> int:
    return len(program.live())


def _with(kind: type[System]) -> Callable[[Controller], Controller]:
    def prepare(controller: Controller) -> Controller:
        system = controller.system
        if type(system).linearize is not System.linearize or type(system).step is not System.step:
            return controller  # the user's own derivative
        same = kind(system.dynamics, system.residual, system.policy, system.cost)
        return eqx.tree_at(lambda controller: controller.system, controller, same)

    return prepare


class _LoopJacobians(System):
    """Pushes tangents by products with the Jacobians of the closed loop."""

    def linearize(self, x: Any, theta: PyTree, a: PyTree, t: Any):
        n, d = x.shape[0], ravel_pytree(theta)[0].size
        out, push = System.linearize(self, x, theta, a, t)
        g, h = push(jnp.eye(n, n + d, dtype=x.dtype), jnp.eye(d, n + d, k=n, dtype=x.dtype))

        def by_product(dx, dtheta):
            return g[:, :n] @ dx + g[:, n:] @ dtheta, h[:n] @ dx + h[n:] @ dtheta

        return out, by_product


class _FunctionJacobians(System):
    """Pushes tangents through policy, then dynamics and cost, by products with the Jacobians of each."""

    def linearize(self, x: Any, theta: PyTree, a: PyTree, t: Any):
        flat, unravel = ravel_pytree(theta)

        def policy(x, theta):
            return self.policy(x, unravel(theta), self.residual(x, a, t), t)

        def dynamics(x, u):
            return self.dynamics(x, u, self.residual(x, a, t), t)

        u, (u_x, u_theta) = _with_jacobians(policy, x, flat)
        x_next, (g_x, g_u) = _with_jacobians(dynamics, x, u)
        cost, (h_x, h_u, h_theta) = _with_jacobians(lambda x, u, theta: self.cost(x, u, unravel(theta), t), x, u, flat)

        def push(dx, dtheta):
            du = u_x @ dx + u_theta @ dtheta
            return g_x @ dx + g_u @ du, h_x @ dx + h_u @ du + h_theta @ dtheta

        return (x_next, cost), push


def _with_jacobians(function: Callable[..., Any], *arguments: Any) -> tuple[Any, tuple[Any, ...]]:
    """The value, and the Jacobian in each argument, in the direction that has fewer tangents."""
    value = function(*arguments)
    every = tuple(range(len(arguments)))
    jacobian = jax.jacrev if jnp.size(value) < sum(map(jnp.size, arguments)) else jax.jacfwd
    return value, jacobian(function, argnums=every)(*arguments)
