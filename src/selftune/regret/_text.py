"""The text of the results: short lines for one run or for a batch."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import numpy as np

from ..foundation import arguments


def printed(text: Callable[[Any], str]) -> Callable[[Any], str]:
    """A `__str__` for all results: the `repr` while arrays are traced, and without NumPy warnings."""

    @wraps(text)
    def to_text(self: Any) -> str:
        leaves = jax.tree.leaves(self)
        if not all(isinstance(leaf, jax.Array | np.ndarray) and arguments.is_known(leaf) for leaf in leaves):
            return repr(self)
        with np.errstate(all="ignore"):
            return text(self)

    return to_text


def number(values: Any) -> str:
    """One number, or the mean and the range over a batch."""
    array = np.asarray(values)
    if array.size == 1:
        return f"{float(array.reshape(())):.4g}"
    return f"{np.mean(array):.4g} (mean; {np.min(array):.4g} to {np.max(array):.4g})"


def vector(tree: Any) -> str:
    """The first numbers of a flattened pytree."""
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    return ", ".join([f"{value:.4g}" for value in flat[:8]] + ["…"] * (flat.size > 8))


def over(rows: Any) -> str:
    """The number of steps of a result, and the number of runs in a batch."""
    *runs, steps = np.asarray(rows).shape
    batch = f", {math.prod(runs):,} runs" if runs else ""
    return f"{steps:,} step{'' if steps == 1 else 's'}{batch}"


def in_halves(rows: Any) -> str:
    """The mean of the first and of the second half of the steps."""
    array = np.asarray(rows)
    middle = array.shape[-1] // 2
    if not middle:
        return f"mean {number(np.mean(array, axis=-1))}"
    first, second = (number(np.mean(part, axis=-1)) for part in (array[..., :middle], array[..., middle:]))
    return f"mean {first} in the first half, {second} in the second"


def largest(rows: Any) -> str:
    """The largest value and, for one run, its step."""
    array = np.asarray(rows)
    at = f" at step {int(np.argmax(array)):,}" if array.ndim == 1 else ""
    return f"largest {number(np.max(array, axis=-1))}{at}"
