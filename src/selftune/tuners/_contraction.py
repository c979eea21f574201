"""A running estimate of the closed loop's contraction, from one tangent that is renormalized at every step."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..foundation import arguments


class ContractionState(eqx.Module):
    direction: Float[Array, " n"]
    """A unit tangent of the state, propagated along the trajectory; it turns to the direction that decays slowest."""
    total: Float[Array, ""]
    """The discounted sum of the logarithm of its growth; `weight` is the same sum of ones."""
    weight: Float[Array, ""]


def memory(value: Any) -> Any:
    """Return a checked `contraction_memory` of a tuner."""
    if value is None:
        return None
    return arguments.number("contraction_memory", value, lambda v: v >= 1, "None or a number of steps >= 1")


def init(memory: Any, x: Float[Array, " n"]) -> ContractionState | None:
    if memory is None:
        return None
    zero = jnp.zeros((), x.dtype)
    return ContractionState(_start(x), zero, zero)


def update(
    memory: Any, state: ContractionState, pushed: Float[Array, " n"]
) -> tuple[ContractionState, Float[Array, ""]]:
    """Return the next state and the estimate of ρ; `pushed` is the closed loop's Jacobian times the direction."""
    precision = jnp.finfo(pushed.dtype)
    keep = (1 - 1 / memory).astype(pushed.dtype)
    # Use squares, because roots and logarithms cost more than everything else here. A single step with a Jacobian near
    # zero or infinity must not outweigh all others: its growth is limited by the machine precision, and the direction
    # is reset.
    square = jnp.sum(pushed * pushed)
    alive = (square > precision.tiny) & (square < precision.max)
    direction = jnp.where(alive, pushed * jax.lax.rsqrt(square), _start(pushed))
    bounded = jnp.where(square < 1 / precision.eps**2, jnp.maximum(square, precision.eps**2), 1 / precision.eps**2)
    total, weight = keep * state.total + 0.5 * jnp.log(bounded), keep * state.weight + 1
    return ContractionState(direction, total, weight), jnp.exp(total / weight)


def _start(x: Float[Array, " n"]) -> Float[Array, " n"]:
    # An irregular direction, which is not orthogonal to any simple eigenvector. NumPy computes it, so that the compiled
    # loop contains a constant instead of cosines.
    direction = np.cos(1.0 + np.arange(x.shape[0]))
    return jnp.asarray(direction / np.linalg.norm(direction), x.dtype)
