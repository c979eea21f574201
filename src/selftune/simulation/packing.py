"""Pack many small arrays into one: on a CPU every input and output of a compiled program costs time."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree


class Packing:
    """The packing of a pytree of small arrays into one vector of `dtype`; leaves of other dtypes stay separate."""

    def __init__(self, like: PyTree, dtype: Any):
        leaves, self.structure = jax.tree.flatten(like)
        self.dtype = dtype
        self.shapes = [leaf.shape for leaf in leaves]
        self.floats = [jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype == dtype for leaf in leaves]

    def pack(self, tree: PyTree) -> tuple[Array, list[Array]]:
        leaves = jax.tree.leaves(tree)
        packed = [jnp.ravel(leaf) for leaf, is_float in zip(leaves, self.floats, strict=True) if is_float]
        rest = [leaf for leaf, is_float in zip(leaves, self.floats, strict=True) if not is_float]
        return jnp.concatenate(packed) if packed else jnp.zeros(0, self.dtype), rest

    def unpack(self, packed: tuple[Any, list[Any]]) -> PyTree:
        """Undo `pack`; leading axes, such as the one that a scan adds, are kept."""
        vector, rest = packed
        rest_iter, leaves, begin = iter(rest), [], 0
        for shape, is_float in zip(self.shapes, self.floats, strict=True):
            if is_float:
                end = begin + int(np.prod(shape))
                leaves.append(vector[..., begin:end].reshape((*vector.shape[:-1], *shape)))
                begin = end
            else:
                leaves.append(next(rest_iter))
        return jax.tree.unflatten(self.structure, leaves)
