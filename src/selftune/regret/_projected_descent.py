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
from jaxtyping import Array, Float

_MEMORY = 10
_SUFFICIENT = 1e-4
_SMALL = 1e-10


class Descent(NamedTuple):
    """A descent between two evaluations of the objective."""

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

    @property
    def trial(self) -> Array:
        """The next point to evaluate."""
        return self.point + self.fraction * self.direction

    def is_active(self, iterations: int) -> Array:
        return (self.evaluations < iterations) & ~self.converged & ~self.stuck


class Method(NamedTuple):
    """The steps of the method between evaluations."""

    project: Callable[[Array], Array]
    tolerance: Array

    def begin(self, point: Float[Array, " d"], value: Array, gradient: Array) -> Descent:
        """The descent from a point of the set, with the objective's value and gradient there."""
        dtype = point.dtype
        value = jnp.where(jnp.isfinite(value), value, jnp.inf)
        return self._settle(
            Descent(
                point,
                value,
                gradient,
                jnp.zeros_like(point),
                0.1 * (1 + jnp.linalg.norm(point)) / (jnp.linalg.norm(gradient) + jnp.asarray(_SMALL, dtype)),
                jnp.ones((), dtype),
                jnp.full(_MEMORY, value),
                point,
                value,
                jnp.zeros((), bool),
                ~(jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))),
                jnp.zeros((), int),
            )
        )

    def advance(self, before: Descent, value: Array, gradient: Array) -> Descent:
        """The descent after the evaluation of its trial point."""
        dtype = before.point.dtype
        small, large = jnp.asarray(_SMALL, dtype), jnp.asarray(1 / _SMALL, dtype)
        point = before.trial
        slope = before.gradient @ before.direction
        # NaN satisfies no comparison, so a rollout that diverges counts as a step that is too long.
        accept = value <= jnp.max(before.recent) + _SUFFICIENT * before.fraction * slope
        moved, bent = point - before.point, gradient - before.gradient
        curvature = moved @ bent
        scale = jnp.where(curvature > 0, jnp.clip(moved @ moved / curvature, small, large), large)
        # If concave or flat, take a long step, but at most about the size of the point.
        scale = jnp.where(curvature > 0, scale, (1 + jnp.linalg.norm(point)) / (jnp.linalg.norm(gradient) + small))
        accepted = self._settle(
            before._replace(
                point=point,
                value=value,
                gradient=gradient,
                scale=scale,
                recent=jnp.roll(before.recent, 1).at[0].set(value),
            )
        )
        fraction = before.fraction / 4
        rejected = before._replace(fraction=fraction, stuck=fraction < jnp.finfo(dtype).eps)
        chosen = jax.tree.map(lambda new, old: jnp.where(accept, new, old), accepted, rejected)
        return chosen._replace(evaluations=before.evaluations + 1)

    def _settle(self, state: Descent) -> Descent:
        """The descent at a newly accepted point: its next direction, and whether it has converged."""
        direction = self.project(state.point - state.scale * state.gradient) - state.point
        size = jnp.linalg.norm(direction)
        better = state.value < state.best_value
        return state._replace(
            direction=direction,
            fraction=jnp.ones((), state.point.dtype),
            best=jnp.where(better, state.point, state.best),
            best_value=jnp.where(better, state.value, state.best_value),
            converged=size <= self.tolerance * (1 + jnp.linalg.norm(state.point)),
        )


def minimize(
    objective: Callable[[Array], tuple[Array, Array]], method: Method, start: Float[Array, " d"], *, iterations: int
) -> Descent:
    """Minimize `objective`, which returns value and gradient, from `start`, with one evaluation in each iteration."""
    point = method.project(start)
    return jax.lax.while_loop(
        lambda descent: descent.is_active(iterations),
        lambda descent: method.advance(descent, *objective(descent.trial)),
        method.begin(point, *objective(point)),
    )
