"""The factorization L D Lᵀ of a small symmetric matrix, as straight-line code: it has no data-dependent branches."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Factors(NamedTuple):
    """A = L D Lᵀ with a unit lower triangular L."""

    columns: tuple[Array, ...]
    """Column k of L below its diagonal, (d − 1 − k,)."""
    inverse_pivots: tuple[Array, ...]
    """1 / D, d scalars."""


def factorize(A: Float[Array, "d d"], least: Float[Array, ""], left_out: Bool[Array, " d"] | None = None) -> Factors:
    """Return the factors of A, in which each pivot below `least` > 0 is replaced by `least`.

    `left_out`: numbers whose rows and columns do not count. `solve` then solves the equations of the other numbers, and
    gives zeros for these. This takes fewer operations than zeros in A.

    Only the lower triangle of A is read. So the native engine, which removes unused numbers, computes only half of the
    products. If a pivot is replaced, the factors are those of a larger, positive definite matrix.
    """
    columns, inverse_pivots = [], []
    for k in range(A.shape[0]):
        below = A[1:, 0]
        inverse = 1 / jnp.maximum(A[0, 0], least)
        if left_out is not None:
            inverse = jnp.where(left_out[k], 0, inverse)
        column = below * inverse
        A = A[1:, 1:] - column[:, None] * below[None, :]
        columns.append(column)
        inverse_pivots.append(inverse)
    return Factors(tuple(columns), tuple(inverse_pivots))


def solve(factors: Factors, b: Float[Array, " d"]) -> Float[Array, " d"]:
    """Return A⁻¹ b."""
    scaled = []
    for column, inverse in zip(*factors, strict=True):
        scaled.append(b[:1] * inverse)
        b = b[1:] - column * b[0]
    solution = b  # empty
    for column, first in zip(reversed(factors.columns), reversed(scaled), strict=True):
        solution = jnp.concatenate([first - jnp.sum(column * solution), solution])
    return solution
