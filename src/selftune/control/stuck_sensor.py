"""Detection of a stuck sensor: a measurement that repeats bit for bit although the model says that it moves."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .guard import Guard


class Repeats(eqx.Module):
    """The last measurement, and how often it was repeated."""

    last: Float[Array, " q"]
    streak: Int[Array, ""]
    """How many steps in a row a component was exactly the same; the count stops at `stuck`."""


def start(guard: Guard, q: int, dtype: Any) -> Repeats | None:
    return None if guard.stuck is None else Repeats(jnp.zeros(q, dtype), jnp.zeros((), jnp.int32))


def watch(
    guard: Guard, repeats: Repeats | None, x: Float[Array, " q"], predicted: Float[Array, " q"]
) -> tuple[Repeats | None, Array]:
    """Return the count after a measurement, and whether a sensor is stuck.

    A component counts only if the model predicted another value, up to rounding: a plant at rest may repeat its
    measurement for ever.
    """
    if repeats is None or guard.stuck is None:
        return None, jnp.asarray(False)
    rounding = jnp.sqrt(jnp.finfo(x.dtype).eps) * jnp.maximum(jnp.abs(x), jnp.abs(predicted))
    is_same = jnp.any((x == repeats.last) & (jnp.abs(predicted - x) > rounding))
    streak = jnp.where(is_same, jnp.minimum(jnp.maximum(repeats.streak, 0) + 1, guard.stuck), 0).astype(jnp.int32)
    return Repeats(x, streak), streak >= guard.stuck
