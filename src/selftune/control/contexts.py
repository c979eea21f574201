"""The context t of a step, as arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..foundation import arguments
from ..foundation.errors import ArgumentError


def context(t: Any) -> PyTree:
    """Return a step's context as arrays; an integer becomes int32, as the number of a step."""

    def leaf(value: Any) -> Any:
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return jnp.asarray(value, jnp.int32)
        return jnp.asarray(value)

    arrays = jax.tree.map(leaf, t, is_leaf=arguments.is_plain)
    if not any(array.size for array in jax.tree.leaves(arrays)):
        raise ArgumentError("t", "at least one number", arguments.describe(t))
    return arrays
