"""Doubles as pairs of words and back, in JAX and in NumPy: the same bits, which no setting of JAX makes shorter."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def to_words(array: Any) -> Any:
    """Numbers of 8 bytes as two of 4 each, on a last axis; others as they are."""
    return jax.lax.bitcast_convert_type(array, jnp.uint32) if array.dtype.itemsize == 8 else array


def to_numbers(words: Any, dtype: Any) -> Any:
    return jax.lax.bitcast_convert_type(words, dtype) if np.dtype(dtype).itemsize == 8 else words


def as_words(array: np.ndarray) -> np.ndarray:
    return array.reshape(*array.shape, 1).view(np.uint32) if array.dtype.itemsize == 8 else array


def from_words(words: Any, like: Any) -> np.ndarray:
    array = np.asarray(words, order="C")  # np.ascontiguousarray would give a single number an axis
    return array.view(like.dtype)[..., 0] if np.dtype(like.dtype).itemsize == 8 else array
