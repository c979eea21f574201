"""The running estimate of the closed loop's contraction: one tangent, renormalized at every step."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..foundation import arguments


class ContractionState(eqx.Module):
    direction: Float[Array, " n"]
    """A unit tangent of the state, carried along the trajectory: it turns towards what decays slowest."""
    total: Float[Array, ""]
    """The discounted sum of its logarithmic growth, and of ones."""
    weight: Float[Array, ""]


def memory(value: Any) -> Any:
    """Converter of a tuner's `contraction_memory`."""
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
    """From `pushed`, the closed loop's Jacobian times the direction, to the next state and the estimate of ρ."""
    precision = jnp.finfo(pushed.dtype)
    keep = (1 - 1 / memory).astype(pushed.dtype)
    # In squares, as a root and a logarithm cost more than all else here. One step that forgets everything, or explodes,
    # must not outweigh all the others: it counts as no more than a machine's precision, and the direction starts anew.
    square = jnp.sum(pushed * pushed)
    alive = (square > precision.tiny) & (square < precision.max)
    direction = jnp.where(alive, pushed * jax.lax.rsqrt(square), _start(pushed))
    bounded = jnp.where(square < 1 / precision.eps**2, jnp.maximum(square, precision.eps**2), 1 / precision.eps**2)
    total, weight = keep * state.total + 0.5 * jnp.log(bounded), keep * state.weight + 1
    return ContractionState(direction, total, weight), jnp.exp(total / weight)


def _start(x: Float[Array, " n"]) -> Float[Array, " n"]:
    # Of no particular direction: orthogonal to no eigenvector that a person would write down. In NumPy, so that the
    # loop has a constant in it and no cosine.
    direction = np.cos(1.0 + np.arange(x.shape[0]))
    return jnp.asarray(direction / np.linalg.norm(direction), x.dtype)
