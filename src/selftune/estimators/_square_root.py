"""Least squares on a square root of the covariance, P = S Sᵀ: positive by construction, at half the digits.

What float32 cannot hold of P it can of S: a covariance that has shrunk by 1e8 in one direction and not in another is
ordinary in recursive estimation, and ends a filter that carries P itself.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..constraint import AbstractConstraint
from ..system import System


def add_information(S: Float[Array, "p p"], rows: Float[Array, "r p"]) -> Float[Array, "p p"]:
    r"""$S_+$ with $(S_+ S_+^\top)^{-1} = (S S^\top)^{-1} + \text{rows}^\top \text{rows}$, by Potter's update.

    Row by row: $v = S^\top \varphi$, $\beta = 1/(1 + v^\top v)$, $S_+ = S - \frac{\beta}{1 + \sqrt\beta}\, S v v^\top$.
    """

    def potter(S, row):
        v = S.T @ row
        beta = 1 / (1 + v @ v)
        return S - (beta / (1 + jnp.sqrt(beta))) * jnp.outer(S @ v, v), None

    return jax.lax.scan(potter, S, rows)[0]


def predict(
    system: System, x: Array, f_obs: Array, a_hat: PyTree, estimate: Array, t: Any
) -> tuple[Array, Array, Array]:
    r"""The Jacobian $J$ at $\hat a$, the innovation of $\hat a$, and that of `estimate`.

    `estimate` is what least squares has found and $\hat a$ its projection, at which the residual is evaluated: for a
    residual affine in a, $f(\text{estimate}) = f(\hat a) + J (\text{estimate} - \hat a)$.
    """
    f_hat, J = system.residual_and_jacobian(x, a_hat, t)
    innovation = f_obs - f_hat
    return J, innovation, innovation - J @ (estimate - ravel_pytree(a_hat)[0])


def deploy(estimate: Array, like: PyTree, constraint: AbstractConstraint) -> PyTree:
    """What is used of an estimate: its projection, with the structure of the parameter."""
    return constraint.project(ravel_pytree(like)[1](estimate))
