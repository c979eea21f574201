"""The limits of a guard on one step: those of measurements and residuals, of the control, and of the step of θ."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation.errors import ArgumentError
from ..problem.constraints import Box, Unconstrained
from ..problem.projected_step import constraint_of
from .controller import Controller
from .guard import Guard
from .trees import choose


def within(limit: float | tuple[float, ...] | None, value: Array) -> Any:
    """Return whether every component is finite and at most its limit in absolute value."""
    bound = np.minimum(inward(np.inf if limit is None else limit, value.dtype, -np.inf), np.finfo(value.dtype).max)
    return jnp.all(jnp.abs(value) <= jnp.asarray(bound, value.dtype))


def in_range(guard: Guard, x: Array) -> tuple[Array, Any]:
    """Return a measurement, which becomes NaN if a value is outside the range of its sensor; and whether it did."""
    if not guard.has_range:
        return x, jnp.asarray(False)
    low, high = inward(guard.x_low, x.dtype, np.inf), inward(guard.x_high, x.dtype, -np.inf)
    outside = jnp.any((x < jnp.asarray(low)) | (x > jnp.asarray(high)))
    return jnp.where(outside, jnp.nan, x), outside


def inward(limit: float | tuple[float, ...], dtype: Any, towards: float) -> np.ndarray:
    """Return a limit in a dtype. A limit that the dtype cannot represent is rounded in the direction `towards`, so that
    a number inside the rounded limit is inside the given one. A finite limit never becomes infinite."""
    exact = np.asarray(limit, np.float64)
    with np.errstate(over="ignore"):
        near = exact.astype(dtype)
        is_outside = near > exact if towards < 0 else near < exact
        return np.where(is_outside, np.nextafter(near, near.dtype.type(towards)), near)


def control_range(guard: Guard, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the actuator's range in a dtype, rounded inwards."""
    return inward(guard.u_low, dtype, np.inf), inward(guard.u_high, dtype, -np.inf)


def check_range(guard: Guard, dtype: Any) -> None:
    """Raise `ValueError` if the dtype has no number inside the actuator's range."""
    low, high = control_range(guard, dtype)
    if not np.all(low <= high):
        raise ArgumentError(
            "u_low, u_high", f"a {np.dtype(dtype).name} between them", f"{guard.u_low} and {guard.u_high}"
        )


def clip(guard: Guard, u: Float[Array, " m"]) -> tuple[Float[Array, " m"], Any]:
    """Return the control clipped to the actuator's range, and whether u was at or beyond the limits."""
    if not guard.is_clipping:
        return u, jnp.asarray(False)
    low, high = (jnp.asarray(limit) for limit in control_range(guard, u.dtype))
    return jnp.minimum(jnp.maximum(u, low), high), jnp.any((u <= low) | (u >= high))


def widths_of(controller: Controller, theta: PyTree) -> Float[Array, " d"]:
    """Return the widths of the tuner's Θ, the unit of its steps."""
    constraint = constraint_of(controller.tuner)
    return (Unconstrained() if constraint is None else constraint).widths(theta)


def clamp_control(guard: Guard, u: Float[Array, " m"]) -> Float[Array, " m"]:
    """Return u itself if it is inside the actuator's range. These comparisons are the last step before the control is
    returned. So a program that proves properties of C sees, for all bit patterns of all numbers, that u is inside."""
    largest = np.finfo(u.dtype).max
    low, high = control_range(guard, u.dtype)
    return _clamp(u, np.maximum(low, -largest), np.minimum(high, largest))


def clamp_theta(controller: Controller, theta: PyTree) -> PyTree:
    """Return θ itself if it is inside the tuner's Θ, for a box; see `clamp_control`."""
    constraint = constraint_of(controller.tuner)
    if not isinstance(constraint, Box):
        return theta
    flat, unravel = ravel_pytree(theta)
    return unravel(_clamp(flat, *constraint.bounds(theta)))


def _clamp(value: Array, low: Any, high: Any) -> Array:
    """Return a value between its bounds; NaN becomes the lower bound, or the upper one, or 0, whichever is finite."""
    low, high = jnp.asarray(low, value.dtype), jnp.asarray(high, value.dtype)
    instead = choose(jnp.isfinite(low), low, choose(jnp.isfinite(high), high, jnp.zeros_like(high)))
    number = choose(jnp.isnan(value), instead, value)  # first, because Frama-C then knows that it is no NaN
    # One bound after the other: Frama-C does not relate numbers to each other, and then need not.
    raised = choose(number >= low, number, low)
    return choose(raised <= high, raised, high)


def limit_step(
    guard: Guard,
    controller: Controller,
    theta: PyTree,
    wanted: PyTree,
    *,
    saturated: Any,
    step_scale: Any,
    reserve: Any,
    still: Any,
    forget: Any,
) -> tuple[PyTree, Any, Any, Any]:
    """Return the θ that the guard allows on the way from `theta` to `wanted`; whether `rate`, and whether `authority`,
    changed the step; and the next reserve.

    `saturated` is the share of saturated steps, `step_scale` the factor that rollbacks left, and `reserve` the way that
    short steps have left over; None if they are off.
    """
    flat, unravel = ravel_pytree(theta)
    step = ravel_pytree(wanted)[0] - flat
    held = limited = jnp.asarray(False)
    changed = jnp.asarray(False)
    if saturated is not None and guard.authority is not None:
        growth = jnp.asarray(guard.growth, flat.dtype)
        grows = step * growth > 0
        held = (saturated > guard.authority) & jnp.any(grows)
        step, changed = jnp.where(held & grows, 0, step), held
    constraint = constraint_of(controller.tuner)
    if guard.rate is not None:
        widths = widths_of(controller, theta)
        share = jnp.where(widths > 0, step / jnp.where(widths > 0, widths, 1), 0)
        square = jnp.sum(share * share)
        longest = guard.rate if reserve is None else guard.rate + reserve
        limited = square > longest * longest
        step = jnp.where(limited, longest * jax.lax.rsqrt(jnp.where(limited, square, 1)) * step, step)
        changed = changed | limited
        if reserve is not None:
            used = jnp.where(limited, longest, jnp.sqrt(jnp.where(limited, 0, square)))
            reserve = jnp.clip(longest - used, 0, guard.burst)
    if step_scale is not None:
        changed = changed | (step_scale < 1)
        step = step_scale * step
    moved = unravel(flat + step)
    if constraint is not None:
        moved = constraint.project(moved)
    moved = choose(changed, moved, wanted)  # an unchanged step is the tuner's, bit for bit
    stays = still | forget
    return choose(stays, theta, moved), limited & ~stays, held & ~stays, reserve
