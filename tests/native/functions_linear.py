"""Small functions of matrices; rounding errors are of the size of the largest number of a result."""

import itertools

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax import lax

from .cases import Case


def _positive(A):
    return A @ A.T + jnp.eye(A.shape[-2], dtype=A.dtype)


def _regular(A):
    return A + 4 * jnp.eye(A.shape[-1], dtype=A.dtype)


def _singular(x):
    return jnp.isfinite(jnp.linalg.solve(jnp.stack([x, 0 * x]), x))


def _triangular(left, lower, transposed, unit):
    def solve(A, B):
        return lax.linalg.triangular_solve(
            _regular(A), B, left_side=left, lower=lower, transpose_a=transposed, unit_diagonal=unit
        )

    return solve


PRODUCTS = [
    Case("matmul", lambda A, B: A @ B, "f2x3 f3x2"),
    Case("matvec", lambda A, x: (A @ x, x @ A.T, x @ A.T @ A @ x), "f2x3 f3", nasty=False),
    Case("dot", lambda x, y: (jnp.dot(x, y), jnp.vdot(x, y), jnp.inner(x, y)), "f3 f3"),
    Case("outer", jnp.outer, "f3 f2"),
    Case("cross", lambda x, y: jnp.cross(x, y), "f3 f3"),
    Case("kron", jnp.kron, "f2x2 f2x1"),
    Case("einsum", lambda A, B: (jnp.einsum("ij,jk->ik", A, B), jnp.einsum("ij,kj->", A, B)), "f2x3 f3x3", nasty=False),
    Case("einsum_batch", lambda A, x: jnp.einsum("bij,bj->bi", A, x), "f2x2x2 f2x2"),
    Case("tensordot", lambda A, B: jnp.tensordot(A, B, axes=([0, 1], [1, 0])), "f2x3 f3x2"),
    Case("quadratic", lambda x, A: x @ A @ x, "f3 f3x3", nasty=False),
    Case("matrix_power", lambda A: jnp.linalg.matrix_power(A, 5), "f2x2", 64, nasty=False),
    Case("multi_dot", lambda A, B, x: jnp.linalg.multi_dot([A, B, x]), "f2x3 f3x3 f3", nasty=False),
    Case("gram", lambda A: A.T @ A, "f3x2"),
    Case("vander", lambda x: jnp.vander(x, 3), "f2"),
    Case("known_matrix", lambda x: jnp.array([[0.0, 1.0, 0.0], [2.0, 0.0, -1.0]], x.dtype) @ x, "f3", nasty=False),
]

# Pivots with NaN are LAPACK's own affair, so all below is tried on finite numbers.
SOLVES = [
    Case("solve", jnp.linalg.solve, "f3x3 f3", 512, nasty=False),
    Case("solve_columns", lambda A, B: jnp.linalg.solve(_regular(A), B), "f2x2 f2x2", 64, nasty=False),
    Case("solve_batch", lambda A, b: jnp.linalg.solve(_regular(A), b[..., None]), "f2x2x2 f2x2", 64, nasty=False),
    Case("solve_vmap", lambda A, b: jax.vmap(jnp.linalg.solve)(_regular(A), b), "f2x2x2 f2x2", 64, nasty=False),
    Case("solve_known", lambda b: jnp.linalg.solve(jnp.array([[2.0, 1], [0, 3]], b.dtype), b), "f2", nasty=False),
    Case("solve_positive", lambda A, b: jsl.solve(_positive(A), b, assume_a="pos"), "f3x3 f3", 512, nasty=False),
    Case("solve_transposed", lambda A, b: jsl.solve(_regular(A).T, b), "f2x2 f2", 64, nasty=False),
    Case("inv", lambda A: jnp.linalg.inv(_regular(A)), "f3x3", 64, nasty=False),
    Case("cho_solve", lambda A, b: jsl.cho_solve(jsl.cho_factor(_positive(A)), b), "f2x2 f2", 512, nasty=False),
    Case("lu_solve", lambda A, b: jsl.lu_solve(jsl.lu_factor(_regular(A)), b), "f2x2 f2", 64, nasty=False),
    Case("lstsq_normal", lambda A, b: jnp.linalg.solve(_positive(A.T), A.T @ b), "f3x2 f3", 512, nasty=False),
    Case("woodbury", lambda P, x: P - jnp.outer(P @ x, x @ P) / (1 + x @ P @ x), "f2x2 f2", 512, nasty=False),
    *(
        Case(
            "triangular_" + "".join("LR"[not left] + "lu"[not lower] + "nt"[transposed] + "du"[unit]),
            _triangular(left, lower, transposed, unit),
            "f3x3 f3x2" if left else "f3x3 f2x3",
            64,
            derive=unit is False and left is True,
            nasty=False,
        )
        for left, lower, transposed, unit in itertools.product((True, False), repeat=4)
    ),
]

FACTORS = [
    Case("lu", lambda A: lax.linalg.lu(A), "f3x3", 512, derive=False, nasty=False),
    Case("lu_tall", lambda A: jsl.lu(A), "f3x2", 512, derive=False, nasty=False),
    Case("lu_wide", lambda A: lax.linalg.lu(A), "f2x3", 512, derive=False, nasty=False),
    Case("lu_factor", lambda A: jsl.lu_factor(_regular(A))[0], "f3x3", 64, nasty=False),
    Case("det", lambda A: (jnp.linalg.det(A), jnp.linalg.det(A[:2, :2])), "f3x3", 512, nasty=False),
    Case("det_of_four", lambda A: jnp.linalg.det(_regular(A)), "f4x4", 512, nasty=False, derive=False),
    Case("slogdet", lambda A: jnp.linalg.slogdet(A)[1], "f3x3", 512, nasty=False),
    Case("slogdet_sign", lambda A: jnp.linalg.slogdet(A)[0], "f3x3", derive=False, nasty=False),
    Case("cholesky", lambda A: jnp.linalg.cholesky(_positive(A)), "f3x3", 512, nasty=False),
    Case("cholesky_upper", lambda A: jnp.linalg.cholesky(_positive(A), upper=True), "f2x2", 512, nasty=False),
    Case(
        "cholesky_batch", lambda A: jax.vmap(lambda A: jnp.linalg.cholesky(_positive(A)))(A), "f2x2x2", 512, nasty=False
    ),
    Case(
        "cholesky_none",
        lambda A: jnp.linalg.cholesky(A - 3 * jnp.eye(2, dtype=A.dtype)),
        "f2x2",
        derive=False,
        nasty=False,
    ),
    Case("cholesky_half", lambda x: jnp.linalg.cholesky(jnp.diag(x)), "f3", derive=False, nasty=False),
    Case("solve_singular", _singular, "f2", derive=False, nasty=False),
    Case("solve_zero", lambda x: jnp.isfinite(jnp.linalg.solve(jnp.diag(0 * x), x)), "f2", derive=False, nasty=False),
    Case("lu_singular", lambda x: lax.linalg.lu(jnp.stack([x, 2 * x, 0 * x]))[0], "f3", derive=False, nasty=False),
    Case("qr", lambda A: jnp.linalg.qr(A), "f3x3", 512, nasty=False),
    Case("qr_tall", lambda A: jnp.linalg.qr(A), "f3x2", 512, nasty=False, derive=False),
    Case("qr_wide", lambda A: jnp.linalg.qr(A), "f2x3", 512, nasty=False, derive=False),
    Case("qr_complete", lambda A: jnp.linalg.qr(A, mode="complete"), "f3x2", 512, nasty=False, derive=False),
    Case("qr_r", lambda A: jnp.linalg.qr(A, mode="r"), "f3x2", 512, nasty=False, derive=False),
    Case("expm", lambda A: jsl.expm(0.3 * A), "f2x2", 512, nasty=False, derive=False),
    Case(
        "expm_taylor",
        lambda A: jnp.eye(2, dtype=A.dtype) + A @ (jnp.eye(2, dtype=A.dtype) + A / 2),
        "f2x2",
        nasty=False,
    ),
]
