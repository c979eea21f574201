"""The failsafe of a guard: the safe control after too many refused steps, and the latch that keeps it."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from . import step_limits
from .guard import Guard


class Failsafe(eqx.Module):
    """How long the controller has been blind, and whether the safe control is latched.

    A step is *blind* if its control does not come from a measurement of this step: the measurement was refused, the
    context contains NaN, the reference is not finite, or the control is not finite.
    """

    blind: Int[Array, ""]
    """How many steps in a row were blind; the count stops at `safe_after` + 1."""
    latched: Bool[Array, ""]
    """Whether the safe control stays until `clear`."""


def start(guard: Guard) -> Failsafe | None:
    return None if guard.safe_u is None else Failsafe(jnp.zeros((), jnp.int32), jnp.asarray(False))


def advance(guard: Guard, failsafe: Failsafe | None, *, sees: Any) -> tuple[Failsafe | None, Array, Array]:
    """Count a step; `sees` is False if it was blind. Return the next state, whether the safe control replaces the
    control of this step, and whether this step is the first after a time with the safe control."""
    if failsafe is None:
        return None, jnp.asarray(False), jnp.asarray(False)
    limit = guard.safe_after + 1
    before = jnp.clip(failsafe.blind, 0, limit)
    blind = jnp.where(sees & ~failsafe.latched, 0, jnp.where(sees, before, jnp.minimum(before + 1, limit)))
    is_safe = failsafe.latched | (blind >= limit)
    after = Failsafe(blind.astype(jnp.int32), is_safe & guard.latch)
    return after, is_safe, ~is_safe & (before >= limit)


def clear(failsafe: Failsafe | None) -> Failsafe | None:
    """Return the state without the latch. The count stays: the next step must not be blind, or the latch returns."""
    return None if failsafe is None else Failsafe(failsafe.blind, jnp.zeros_like(failsafe.latched))


def safe_control(guard: Guard, x: Float[Array, " n"], m: int) -> Float[Array, " m"]:
    """Return the safe control, clipped to the actuator's range. `x` is the last good state."""
    if guard.safe_u is None:
        return step_limits.clip(guard, jnp.zeros(m, x.dtype))[0]
    u = jnp.asarray(guard.safe_u(x) if callable(guard.safe_u) else guard.safe_u)
    if callable(guard.safe_u) and (u.shape not in ((), (m,)) or u.dtype.kind not in "fiu"):
        raise ArgumentError("safe_u", f"a function from x to one number or {m}", f"one to {arguments.describe(u)}")
    u = jnp.broadcast_to(u.astype(x.dtype), (m,))
    return step_limits.clip(guard, jnp.where(jnp.isfinite(u), u, 0))[0]
