"""The running estimate of the closed loop's contraction: one tangent, renormalized at every step."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _check


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
    return _check.number("contraction_memory", value, lambda v: v >= 1, "None or a number of steps >= 1")


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
    size = jnp.max(jnp.abs(pushed))
    alive = (size > precision.tiny) & jnp.isfinite(size)
    scaled = pushed / jnp.where(alive, size, 1)
    length = jnp.where(alive, jnp.linalg.norm(jnp.where(alive, scaled, 1)), 1)
    # One step that forgets everything, or explodes, must not outweigh all the others, so it counts as no more than a
    # machine's precision; what it sent to zero or to infinity starts anew.
    growth = jnp.where(alive, size * length, jnp.where(size > 1, jnp.inf, 0))
    growth = jnp.clip(jnp.where(jnp.isnan(size), jnp.inf, growth), precision.eps, 1 / precision.eps)
    total, weight = keep * state.total + jnp.log(growth), keep * state.weight + 1
    direction = jnp.where(alive, scaled / length, _start(pushed))
    return ContractionState(direction, total, weight), jnp.exp(total / weight)


def _start(x: Float[Array, " n"]) -> Float[Array, " n"]:
    # Of no particular direction: orthogonal to no eigenvector that a person would write down.
    direction = jnp.cos(1 + jnp.arange(x.shape[0])).astype(x.dtype)
    return direction / jnp.linalg.norm(direction)
