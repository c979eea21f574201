"""Matrices of gains in coordinates without units: each number as a share of its start value."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.constraints import Box
from .base import Parameter

REACH = 10.0
"""How far a number of θ may move from its start by default, as a multiple of the start gain."""


def matrix(name: str, value: Any, shape: tuple[int | None, int | None]) -> Float[Array, "rows columns"]:
    """Return a matrix; None in `shape` stands for any size."""
    array = arguments.real_array(name, value)
    wanted = ", ".join("any" if size is None else str(size) for size in shape)
    if array.ndim != 2 or any(size not in (None, own) for size, own in zip(shape, array.shape, strict=True)):
        raise ArgumentError(name, f"a matrix of shape ({wanted})", arguments.describe(array))
    return array


def scale_of(gain: Array) -> Array:
    """Return the size of each gain. A gain that is 0 has the size of the largest gain of its row."""
    largest = jnp.max(jnp.abs(gain), axis=1, keepdims=True)
    return jnp.where(gain != 0, jnp.abs(gain), jnp.where(largest > 0, largest, jnp.ones_like(largest)))


def box(theta: dict[str, Array]) -> Box:
    return Box({n: leaf - REACH for n, leaf in theta.items()}, {n: leaf + REACH for n, leaf in theta.items()})


def describe(name: str, gain: Array) -> tuple[Parameter, ...]:
    """Describe each number of a matrix, row by row. A number that grows away from zero is a higher gain."""
    return tuple(
        Parameter(f"{name}[{i}, {j}]", "of its start", int(np.sign(value)))
        for (i, j), value in np.ndenumerate(np.asarray(gain))
    )
