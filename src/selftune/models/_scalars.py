"""Sums and products of numbers and arrays () that leave out what is known to be 0 or 1.

A plain float is a constant that is known when the program is traced. An array () is a number of the running program.
The traced program then has no product with 0 or 1, and the C that is made of it is small.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

Vector = tuple[Any, Any, Any]
Matrix = tuple[Vector, Vector, Vector]

ZERO: Vector = (0.0, 0.0, 0.0)


def _is(value: Any, number: float) -> bool:
    return isinstance(value, float) and value == number


# The operations are those of `lax`: JAX traces them ten times faster than the operators of arrays.


def _alike(a: Any, b: Any) -> tuple[Any, Any]:
    """Return both numbers in the dtype of the one that is an array."""
    if isinstance(a, float):
        return np.asarray(a, b.dtype), b
    return (a, np.asarray(b, a.dtype)) if isinstance(b, float) else (a, b)


def times(a: Any, b: Any) -> Any:
    if isinstance(a, float) and isinstance(b, float):
        return a * b
    for one, other in ((a, b), (b, a)):
        if _is(one, 0.0):
            return 0.0
        if _is(one, 1.0):
            return other
        if _is(one, -1.0):
            return lax.neg(other)
    return lax.mul(*_alike(a, b))


def plus(a: Any, b: Any) -> Any:
    if isinstance(a, float) and isinstance(b, float):
        return a + b
    if _is(a, 0.0):
        return b
    return a if _is(b, 0.0) else lax.add(*_alike(a, b))


def minus(a: Any, b: Any) -> Any:
    if isinstance(a, float) and isinstance(b, float):
        return a - b
    if _is(b, 0.0):
        return a
    return lax.neg(b) if _is(a, 0.0) else lax.sub(*_alike(a, b))


def inverse(a: Any) -> Any:
    return 1.0 / a if isinstance(a, float) else lax.div(*_alike(1.0, a))


def total(values: Sequence[Any]) -> Any:
    result = 0.0
    for value in values:
        result = plus(result, value)
    return result


def add(*vectors: Sequence[Any]) -> Vector:
    x, y, z = (total(parts) for parts in zip(*vectors, strict=True))
    return x, y, z


def scale(a: Any, v: Sequence[Any]) -> Vector:
    return times(a, v[0]), times(a, v[1]), times(a, v[2])


def dot(a: Sequence[Any], b: Sequence[Any]) -> Any:
    return total([times(x, y) for x, y in zip(a, b, strict=True)])


def cross(a: Sequence[Any], b: Sequence[Any]) -> Vector:
    return (
        minus(times(a[1], b[2]), times(a[2], b[1])),
        minus(times(a[2], b[0]), times(a[0], b[2])),
        minus(times(a[0], b[1]), times(a[1], b[0])),
    )


def apply(A: Sequence[Sequence[Any]], v: Sequence[Any]) -> Vector:
    return dot(A[0], v), dot(A[1], v), dot(A[2], v)


def transpose(A: Sequence[Sequence[Any]]) -> Matrix:
    x, y, z = ((A[0][i], A[1][i], A[2][i]) for i in range(3))
    return x, y, z


def product(A: Sequence[Sequence[Any]], B: Sequence[Sequence[Any]]) -> Matrix:
    return transpose(tuple(apply(A, column) for column in transpose(B)))
