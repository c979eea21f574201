"""Least squares with a square root of the covariance, P = S Sᵀ, which is positive by construction and needs half the
digits.

In recursive estimation a covariance often shrinks by 1e8 in one direction and not in another. float32 cannot represent
such a P, so a filter that stores P fails. It can represent S.
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..problem.constraints import AbstractConstraint


def add_information(S: Float[Array, "p p"], rows: Float[Array, "r p"]) -> Float[Array, "p p"]:
    r"""Return $S_+$ with $(S_+ S_+^\top)^{-1} = (S S^\top)^{-1} + \text{rows}^\top \text{rows}$, by Potter's update.

    Row by row: $v = S^\top \varphi$, $\beta = 1/(1 + v^\top v)$, $S_+ = S - \frac{\beta}{1 + \sqrt\beta}\, S v v^\top$.
    """

    def potter(S, row):
        v = S.T @ row
        beta = 1 / (1 + v @ v)
        return S - (beta / (1 + jnp.sqrt(beta))) * jnp.outer(S @ v, v), None

    return jax.lax.scan(potter, S, rows)[0]


def correct(
    a_hat: PyTree,
    S: Float[Array, "p p"],
    rows: Float[Array, "r p"],
    error: Float[Array, " r"],
    constraint: AbstractConstraint,
) -> PyTree:
    r"""Return $\Pi^{P^{-1}}(\hat a + P\, \text{rows}^\top \text{error})$ with $P = S S^\top$."""
    flat, unravel = ravel_pytree(a_hat)
    return constraint.project_in_metric(unravel(flat + S @ (S.T @ (rows.T @ error))), S @ S.T, exact=False)


def widen(S: Float[Array, "p p"], variance: Float[Array, " p"]) -> Float[Array, "p p"]:
    r"""Return $S_+$ with $S_+ S_+^\top = S S^\top + \mathrm{diag}(\text{variance})$, by a QR factorization."""
    return jnp.linalg.qr(jnp.concatenate([S.T, jnp.diag(jnp.sqrt(variance))]), mode="r").T
