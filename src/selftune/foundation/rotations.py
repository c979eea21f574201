"""Rotations as vectors (axis times angle): three numbers that need no projection, smooth at zero."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def _sinc(square: Float[Array, ""]) -> Float[Array, ""]:
    """sin(r)/r of r² = `square`, smooth at zero. A series is used near zero, where the root is not differentiable."""
    small = square < 1e-2
    r = jnp.sqrt(jnp.where(small, 1.0, square))
    series = 1 - square / 6 * (1 - square / 20 * (1 - square / 42 * (1 - square / 72)))
    return jnp.where(small, series, jnp.sin(r) / r)


def rotation_matrix(r: Float[Array, " 3"]) -> Float[Array, "3 3"]:
    """Rodrigues' formula: the matrix of the rotation vector `r`, body to world."""
    square = jnp.sum(r * r)
    sine, half = _sinc(square), _sinc(square / 4)
    versine = half * half / 2  # (1 - cos)/r², without a difference of numbers near one
    x, y, z = sine * r
    skew = jnp.stack([jnp.zeros_like(x), -z, y, z, jnp.zeros_like(x), -x, -y, x, jnp.zeros_like(x)]).reshape(3, 3)
    return (1 - square * versine) * jnp.eye(3, dtype=r.dtype) + skew + versine * r[:, None] * r


def rotation_rate(r: Float[Array, " 3"], body_rate: Float[Array, " 3"]) -> Float[Array, " 3"]:
    """The derivative of the rotation vector; valid up to a full turn."""
    square = jnp.sum(r * r)
    small = square < 0.5
    half = jnp.sqrt(jnp.where(small, 1.0, square)) / 2
    # (1 - h cot h)/(2h)²: near zero a difference of numbers near one, so a series is used in a wide range.
    series = jnp.full_like(square, 691 / 1307674368000)
    for coefficient in (1 / 47900160, 1 / 1209600, 1 / 30240, 1 / 720, 1 / 12):
        series = coefficient + square * series
    factor = jnp.where(small, series, (1 - half / jnp.tan(half)) / (4 * half * half))
    turn = jnp.cross(r, body_rate)
    return body_rate + turn / 2 + factor * jnp.cross(r, turn)
