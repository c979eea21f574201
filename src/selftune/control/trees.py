"""Choices and checks of whole pytrees, which the guard's functions share."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree


def choose(condition: Any, value: PyTree, other: PyTree) -> PyTree:
    """Return `value` if `condition` is true, else `other`."""
    return jax.tree.map(lambda value, other: jnp.where(condition, value, other), value, other)


def are_finite(tree: PyTree) -> Array:
    """Return whether all floats are finite. The sum of absolute values decides, since it is cheap: one addition per
    number. A sum that overflows counts as not finite."""
    sums = [jnp.sum(jnp.abs(leaf)) for leaf in _floats(tree)]
    return jnp.isfinite(sum(sums[1:], start=sums[0])) if sums else jnp.asarray(True)


def has_nan(tree: PyTree) -> Array:
    """Return whether a float is NaN."""
    found = [jnp.any(jnp.isnan(leaf)) for leaf in _floats(tree)]
    return sum(found[1:], start=found[0]) if found else jnp.asarray(False)


def _floats(tree: PyTree) -> list[Array]:
    leaves = (jnp.asarray(leaf) for leaf in jax.tree.leaves(tree))
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
