"""Derivatives by finite differences, with an estimate of their error."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


class Probe(NamedTuple):
    """A function's value and derivative at one point z, which holds all inputs as one vector, and values around z."""

    z: Array
    value: Array
    """(outputs,)"""
    derivative: Array
    """(outputs, inputs)"""
    h: Array
    """The step sizes, (inputs, 2 scales, levels)."""
    moved: Array
    """The values at z + h and at z − h, (2, inputs, 2 scales, levels, outputs)."""


def probe(function: Callable[[Array], Array], z: Array, derivative: Array) -> Probe:
    """Return the function's values at z and around z, together with the derivative that is to be checked."""
    h = _steps(z)
    moves = jnp.eye(z.size, dtype=z.dtype)[:, None, None] * jnp.stack([h, -h])[..., None]
    moved = jax.vmap(function)((z + moves).reshape(-1, z.size)).reshape(*moves.shape[:-1], -1)
    return Probe(z, function(z), derivative, h, moved)


def _steps(z: Array) -> Array:
    """Return a sequence of step sizes for each number, in two scales: relative to 1, and relative to the number itself,
    because the units of the user are not known."""
    eps = float(jnp.finfo(z.dtype).eps)
    ladder = jnp.asarray(eps**0.2 * 4.0 ** -np.arange(6 if eps < 1e-12 else 4), z.dtype)
    scales = jnp.stack([jnp.ones_like(z), jnp.where(z == 0, 1, jnp.abs(z))], axis=-1)
    return scales[..., None] * ladder


class Block(NamedTuple):
    """A function's Jacobians and their finite differences, (points, outputs, inputs)."""

    value: np.ndarray
    derivative: np.ndarray
    difference: np.ndarray
    unsure: np.ndarray
    """The estimated error of the difference."""
    right: np.ndarray
    left: np.ndarray
    kink: np.ndarray
    jump: np.ndarray


def compare(probe: Probe) -> Block:
    """Return the finite differences from the values; for all points at once, with their axis first."""
    z, value, derivative = (np.asarray(array, float) for array in (probe.z, probe.value, probe.derivative))
    h, moved = np.asarray(probe.h, float)[..., None], np.asarray(probe.moved, float)
    plus, minus, here = moved[:, 0], moved[:, 1], value[:, None, None, None]
    central, right, left = (plus - minus) / (2 * h), (plus - here) / h, (here - minus) / h
    precision = np.finfo(probe.value.dtype)
    size = np.abs(here) + np.abs(central * z[:, :, None, None, None])
    rounding = 8 * float(precision.eps) * size / h + float(precision.tiny)
    coarse, fine = central[..., :-1, :], central[..., 1:, :]
    better = (16 * fine - coarse) / 15
    unsure = np.abs(fine - better) + rounding[..., 1:, :]
    unsure = np.where(np.isfinite(unsure), unsure, np.inf)
    unsure = _contradicted(better, unsure)

    def merged(array: np.ndarray) -> np.ndarray:  # scales and levels as one axis
        return array.reshape(*array.shape[:2], -1, array.shape[-1])

    best = np.argmin(merged(unsure), axis=2)[:, :, None]

    def pick(array: np.ndarray) -> np.ndarray:
        return np.swapaxes(np.take_along_axis(merged(array), best, axis=2)[:, :, 0], 1, 2)

    scale = best // unsure.shape[3]

    def level(array: np.ndarray, i: int) -> np.ndarray:
        return np.swapaxes(np.take_along_axis(array[:, :, :, i], scale, axis=2)[:, :, 0], 1, 2)

    # Compare the two smallest steps, in the best scale: for a smooth function the one-sided differences approach each
    # other.
    (gap0, gap1), (slope0, slope1) = ([np.abs(level(array, i)) for i in (-2, -1)] for array in (right - left, central))
    # A number that is small because large numbers cancel has the rounding error of the large numbers.
    size = np.max(slope1, axis=2, keepdims=True) * np.maximum(np.abs(z), 1)[:, None]
    reach = level(np.broadcast_to(h, central.shape), -1)
    cancelled = 8 * float(precision.eps) * np.where(np.isfinite(size), size, 0)
    noise = level(rounding, -1) + cancelled / reach
    right, left = level(right, -1), level(left, -1)
    steep = np.maximum(np.abs(right), np.abs(left))
    jump = (slope1 > 2 * slope0) & (slope1 > 1e3 * noise)
    kink = (gap1 > 0.6 * gap0) & (gap1 > 4 * noise + 1e-3 * steep) & ~jump
    unsure_here = pick(unsure) + cancelled / pick(np.broadcast_to(h, central.shape)[..., 1:, :])
    return Block(value, derivative, pick(better), unsure_here, right, left, kink, jump)


def _contradicted(better: np.ndarray, unsure: np.ndarray) -> np.ndarray:
    """Return the uncertainties of all pairs of steps, larger where a finer pair contradicts a coarser one. This
    happens if a kink lies inside the larger steps, but not inside the smaller ones."""
    raised = unsure.copy()
    for i in range(better.shape[3]):
        for j in range(i + 1, better.shape[3]):
            gap = np.abs(better[..., i, :] - better[..., j, :])
            more = gap > unsure[..., i, :] + unsure[..., j, :]
            raised[..., i, :] = np.where(more, np.maximum(raised[..., i, :], gap), raised[..., i, :])
    return raised


def relative_errors(block: Block, tolerance: float) -> np.ndarray:
    """Return the relative errors; an error that the uncertainty of the difference explains is at most `tolerance`."""
    derivative, difference = block.derivative, block.difference
    off = np.abs(derivative - difference)
    low, high = np.minimum(block.left, block.right), np.maximum(block.left, block.right)
    off = np.where(block.kink, np.maximum(np.maximum(low - derivative, derivative - high), 0), off)
    error = off / (np.maximum(np.abs(derivative), np.abs(difference)) + 2 * block.unsure / tolerance)
    judged = ~block.jump & np.isfinite(difference) & np.isfinite(block.unsure)
    return np.where(np.isfinite(derivative), np.where(judged, error, 0.0), np.inf)
