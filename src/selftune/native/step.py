"""A controller's step as a scalar program, unrolled where it is small and with loops where it is not."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..controller import Controller
from ..system import System
from .lower import Program, lower

UNROLLED = 8_000
"""The size, in numbers, up to which a step is written out whole."""
LOOPED = 64
"""In a larger one, matrix products of more terms than this are loops."""


def lower_step(
    make: Callable[[Callable[[Controller], Controller]], Callable[..., dict[str, PyTree]]],
    inputs: dict[str, PyTree],
    *,
    unrolled: int = UNROLLED,
) -> Program:
    """The program of a function that calls a controller: of `make(prepare)`, which applies `prepare` to it first.

    Written out whole, d tangents are pushed through the closed loop one by one, and its zeros cost nothing. Past
    `unrolled` numbers the two Jacobians are written out instead, and their products with y are loops: less code, and
    as many multiplications as there are.
    """
    program = lower(make(lambda controller: controller), inputs)
    if len(program.live()) <= unrolled:
        return program
    compact = lower(make(_with_jacobians), inputs, loop_products=LOOPED)
    return min(program, compact, key=lambda program: len(program.live()))


def _with_jacobians(controller: Controller) -> Controller:
    system = controller.system
    same = _JacobianSystem(system.dynamics, system.residual, system.policy, system.cost)
    return eqx.tree_at(lambda controller: controller.system, controller, same)


class _JacobianSystem(System):
    """A system that pushes tangents by products with its two Jacobians."""

    def linearize(self, x: Any, theta: PyTree, a: PyTree, t: Any):
        n, d = x.shape[0], ravel_pytree(theta)[0].size
        out, push = System.linearize(self, x, theta, a, t)
        g, h = push(jnp.eye(n, n + d, dtype=x.dtype), jnp.eye(d, n + d, k=n, dtype=x.dtype))

        def product(dx, dtheta):
            return g[:, :n] @ dx + g[:, n:] @ dtheta, h[:n] @ dx + h[n:] @ dtheta

        return out, product
