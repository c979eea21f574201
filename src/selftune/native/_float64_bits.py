"""Conversion of 64-bit numbers to pairs of 32-bit words and back, with the same bits under every setting of JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def to_words(array: Any) -> Any:
    """Return numbers of 8 bytes as two words of 4 bytes, on a new last axis; other numbers are unchanged."""
    return jax.lax.bitcast_convert_type(array, jnp.uint32) if array.dtype.itemsize == 8 else array


def to_numbers(words: Any, dtype: Any) -> Any:
    return jax.lax.bitcast_convert_type(words, dtype) if np.dtype(dtype).itemsize == 8 else words


def as_words(array: np.ndarray) -> np.ndarray:
    return array.reshape(*array.shape, 1).view(np.uint32) if array.dtype.itemsize == 8 else array


def from_words(words: Any, like: Any) -> np.ndarray:
    array = np.asarray(words, order="C")  # np.ascontiguousarray would add an axis to a scalar
    return array.view(like.dtype)[..., 0] if np.dtype(like.dtype).itemsize == 8 else array
