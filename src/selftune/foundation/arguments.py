"""Checks of arguments, with their error messages.

Every message names the argument, the expected value and the actual value. Values are checked only if they are known:
under ``jit`` or ``vmap`` an argument has a shape and a dtype but no value yet.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .errors import ArgumentError


def is_known(value: Any) -> bool:
    """Return whether `value` has a concrete value, which means that JAX is not tracing it."""
    return not isinstance(value, Tracer)


def known(*values: Any) -> list[np.ndarray] | None:
    """Return the values as NumPy arrays, or None if one of them is being traced.

    The arrays are NumPy's, because inside a traced function the results of `jax.numpy` are traced even for known
    arrays.
    """
    return [np.asarray(value) for value in values] if all(map(is_known, values)) else None


def describe(value: Any) -> str:
    """Return a short text for messages: the dtype and shape of an array, or else the value itself."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{np.dtype(value.dtype).name}{list(value.shape)}" if not is_key(value) else f"key{list(value.shape)}"
    return f"{value!r} ({type(value).__name__})"


def real_numbers(count: int) -> str:
    """Return the text of what was expected: "1 real number", "2 real numbers"."""
    return f"{count} real number{'' if count == 1 else 's'}"


def describe_tree(tree: Any) -> str:
    leaves, structure = jax.tree.flatten(tree)
    if len(leaves) == 1 and leaves[0] is tree:
        return describe(tree)
    return str(jax.tree.unflatten(structure, [describe(leaf) for leaf in leaves]))


def instance(name: str, value: Any, kind: type, *, optional: bool = False) -> None:
    """Raise `ArgumentError` unless `value` is of this class; with `optional`, None is accepted as well.

    The message leaves out the prefix "Abstract" of a base class: users know its subclasses.
    """
    if not isinstance(value, kind) and not (optional and value is None):
        text = _with_article(kind.__name__.removeprefix("Abstract")) + (" or None" if optional else "")
        is_ours = isinstance(value, eqx.Module)  # its repr has many lines
        raise ArgumentError(name, text, _with_article(type(value).__name__) if is_ours else describe(value))


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOU' else 'a'} {noun}"


def is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def real_array(name: str, value: Any, *, finite: bool = True) -> jax.Array:
    """Return `value` as a JAX array of floating dtype; integers become floats, other types raise `ValueError`."""
    if not is_known(value):
        return value.astype(_floating(name, value.dtype, value))
    # Check with NumPy in the dtype that JAX will use: 1e300 is not finite in float32.
    raw = _raw(name, value)
    if finite and not np.all(np.isfinite(raw)):
        raise ArgumentError(name, "finite numbers", _first_bad(raw))
    return jnp.asarray(raw)


def _raw(name: str, value: Any) -> np.ndarray:
    try:
        raw = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(name, "real numbers", describe(value)) from error
    with np.errstate(over="ignore", under="ignore"):
        return raw.astype(_floating(name, raw.dtype, raw if raw.shape else value))


def _floating(name: str, dtype: Any, value: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.result_type(float)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ArgumentError(name, "real numbers", describe(value))
    return jax.dtypes.canonicalize_dtype(dtype)


def is_plain(value: Any) -> bool:
    """Return whether `value` is a (nested) list or tuple of plain numbers, which stands for one array, not a pytree."""
    return type(value) in (list, tuple) and all(
        is_plain(item) or isinstance(item, (int, float, np.number)) for item in value
    )


def real_tree(name: str, tree: Any, *, dtype: Any = None) -> Any:
    """Return `tree` with every leaf as a finite floating array, all of the same dtype (`dtype`, if given).

    ``theta=[1.0, 2.0]`` has one leaf.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_plain)
    arrays = [real_array(name, leaf) for leaf in leaves]
    if not any(array.size for array in arrays):
        raise ArgumentError(name, "at least one number", f"{tree!r}")
    expected = jnp.dtype(dtype) if dtype is not None else arrays[0].dtype
    for leaf, array in zip(leaves, arrays, strict=True):
        if array.dtype != expected and hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ArgumentError(name, f"dtype {expected}", describe(array))
    return jax.tree.unflatten(structure, [array.astype(expected) for array in arrays])


def number(name: str, value: Any, accept: Callable[[Any], Any], expected: str) -> jax.Array:
    """Return a real scalar that satisfies `accept`; `expected` describes the condition in the error message."""
    if isinstance(value, bool):
        raise ArgumentError(name, expected, describe(value))
    array = real_array(name, value, finite=False)
    if array.ndim != 0:
        raise ArgumentError(name, expected, describe(array))
    # Check the number as it will be stored: 1e-50 is zero in float32. NaN satisfies no comparison, so it fails too.
    if (raw := known(value)) and not accept(_raw(name, raw[0])):
        raise ArgumentError(name, expected, f"{raw[0]}")
    return array


def positive(name: str, value: Any) -> jax.Array:
    return number(name, value, lambda v: 0 < v < np.inf, "a finite number > 0")


def non_negative(name: str, value: Any) -> jax.Array:
    return number(name, value, lambda v: 0 <= v < np.inf, "a finite number >= 0")


def count(name: str, value: Any) -> int:
    return whole(name, value, least=1)


_RAW_KEY = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))


def key(name: str, value: Any) -> jax.Array:
    """Return a single PRNG key, as ``jax.random.key`` makes it (the older uint32 form is accepted too)."""
    if is_key(value) and value.shape == ():
        return value
    if isinstance(value, jax.Array) and value.dtype == jnp.uint32 and value.shape == _RAW_KEY.shape:
        return jax.random.wrap_key_data(value)
    raise ArgumentError(name, "a PRNG key such as jax.random.key(0)", describe(value))


def _first_bad(array: np.ndarray) -> str:
    bad = np.argwhere(~np.isfinite(array))[0]
    return f"{array[tuple(bad)]} at index {tuple(int(i) for i in bad)} of {describe(array)}"


def non_negatives(name: str, value: Any) -> jax.Array:
    """Return an array, of any shape, of numbers that are at least zero."""
    array = real_array(name, value)
    if (raw := known(value)) and not np.all(raw[0] >= 0):
        raise ArgumentError(name, "finite numbers >= 0", f"{raw[0]}")
    return array


def fit_shape(name: str, value: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return `value` broadcast to `shape`; raise `ValueError` with its name if it does not fit."""
    try:
        return jnp.broadcast_to(value, shape)
    except ValueError:
        raise ArgumentError(name, f"a shape that fits {shape}", describe(value)) from None


def whole(name: str, value: Any, least: int = 0) -> int:
    """Return a whole number that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(name, f"a whole number >= {least}", describe(value))
    return int(value)


def variances(name: str, value: Any) -> jax.Array:
    """Return a positive number, or a vector of positive numbers."""
    array = real_array(name, value)
    if array.ndim > 1 or array.size == 0:
        raise ArgumentError(name, "a number or a vector", describe(array))
    if (raw := known(value)) and not np.all(_raw(name, raw[0]) > 0):
        raise ArgumentError(name, "numbers > 0", f"{raw[0]}")
    return array


def positive_definite(name: str, value: Any) -> jax.Array:
    """Return a positive number, a vector of positive numbers (a diagonal), or a symmetric positive definite matrix."""
    array = real_array(name, value)
    if array.ndim < 2:
        return variances(name, value)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise ArgumentError(name, "a number, a vector or a square matrix", describe(array))
    if raw := known(value):
        matrix = raw[0].astype(float)
        if not np.allclose(matrix, matrix.T) or not np.all(np.linalg.eigvalsh(matrix) > 0):
            raise ArgumentError(name, "a symmetric positive definite matrix", f"{matrix}")
    return array


def fits(name: str, value: jax.Array, size: int) -> None:
    """Raise `ValueError` if a vector or matrix does not have `size` entries along its first axis."""
    if value.ndim > 0 and value.shape[0] != size:
        raise ArgumentError(name, f"one entry for each of {size} numbers", describe(value))


def as_matrix(name: str, value: jax.Array, size: int) -> jax.Array:
    """Return a number, diagonal or matrix as a (size, size) matrix."""
    fits(name, value, size)
    return value if value.ndim == 2 else jnp.diag(jnp.broadcast_to(value, (size,)))
