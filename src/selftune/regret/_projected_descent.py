"""Minimization over a convex set that is given by its projection.

The spectral projected gradient method (Birgin, Martínez and Raydan 2000): steps of the Barzilai–Borwein length, which
is a quasi-Newton step with a scalar Hessian, with a nonmonotone line search. Implemented here because no library at
hand has a projected quasi-Newton method that runs under `vmap`: optax has projections but no such method, and SciPy's
L-BFGS-B supports only boxes and cannot be traced. optax's L-BFGS on F(Π(z)), with a term that pulls z back to the set,
was tried: it stalls where bounds are active.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_MEMORY = 10
_SUFFICIENT = 1e-4


class Minimum(NamedTuple):
    """The best point of a descent."""

    point: Float[Array, " d"]
    value: Float[Array, ""]
    converged: Bool[Array, ""]


class _State(NamedTuple):
    point: Array
    value: Array
    gradient: Array
    direction: Array
    scale: Array
    """The Barzilai–Borwein length of `direction`."""
    fraction: Array
    """The fraction of `direction` that the next trial step takes."""
    recent: Array
    """The last accepted values."""
    best: Array
    best_value: Array
    converged: Array
    stuck: Array
    evaluations: Array


def minimize(
    objective: Callable[[Array], tuple[Array, Array]],
    project: Callable[[Array], Array],
    start: Float[Array, " d"],
    *,
    iterations: int,
    tolerance: Array,
) -> Minimum:
    """Minimize `objective`, which returns value and gradient, from `start`, with one evaluation in each iteration."""
    dtype = start.dtype
    small, large = jnp.asarray(1e-10, dtype), jnp.asarray(1e10, dtype)

    def settle(state: _State) -> _State:
        """The state at a newly accepted point: its next direction, and whether it has converged."""
        direction = project(state.point - state.scale * state.gradient) - state.point
        size = jnp.linalg.norm(direction)
        better = state.value < state.best_value
        return state._replace(
            direction=direction,
            fraction=jnp.ones((), dtype),
            best=jnp.where(better, state.point, state.best),
            best_value=jnp.where(better, state.value, state.best_value),
            converged=size <= tolerance * (1 + jnp.linalg.norm(state.point)),
        )

    def step(state: _State) -> _State:
        point = state.point + state.fraction * state.direction
        value, gradient = objective(point)
        slope = state.gradient @ state.direction
        # NaN satisfies no comparison, so a rollout that diverges counts as a step that is too long.
        accept = value <= jnp.max(state.recent) + _SUFFICIENT * state.fraction * slope
        moved, bent = point - state.point, gradient - state.gradient
        curvature = moved @ bent
        scale = jnp.where(curvature > 0, jnp.clip(moved @ moved / curvature, small, large), large)
        # If concave or flat, take a long step, but at most about the size of the point.
        scale = jnp.where(curvature > 0, scale, (1 + jnp.linalg.norm(point)) / (jnp.linalg.norm(gradient) + small))
        accepted = settle(
            state._replace(
                point=point,
                value=value,
                gradient=gradient,
                scale=scale,
                recent=jnp.roll(state.recent, 1).at[0].set(value),
            )
        )
        fraction = state.fraction / 4
        rejected = state._replace(fraction=fraction, stuck=fraction < jnp.finfo(dtype).eps)
        chosen = jax.tree.map(lambda new, old: jnp.where(accept, new, old), accepted, rejected)
        return chosen._replace(evaluations=state.evaluations + 1)

    point = project(start)
    value, gradient = objective(point)
    value = jnp.where(jnp.isfinite(value), value, jnp.inf)
    first = settle(
        _State(
            point,
            value,
            gradient,
            jnp.zeros_like(point),
            0.1 * (1 + jnp.linalg.norm(point)) / (jnp.linalg.norm(gradient) + small),
            jnp.ones((), dtype),
            jnp.full(_MEMORY, value),
            point,
            value,
            jnp.zeros((), bool),
            ~(jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))),
            jnp.zeros((), int),
        )
    )
    last = jax.lax.while_loop(
        lambda state: (state.evaluations < iterations) & ~state.converged & ~state.stuck, step, first
    )
    return Minimum(last.best, last.best_value, last.converged)
