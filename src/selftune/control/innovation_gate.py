r"""The innovation gate of a guard: one wild observation must not move the model.

The gate compares each innovation with the size of its own past, as extended Kalman filters do with their predicted
variance. The scale of a component is the mean absolute value of its accepted innovations. The *test ratio* is
|innovation| / (`gate` · scale); above 1, the innovation is an outlier, and nothing is learned from it. Only ratios of
innovations are compared, so the gate has no units.

There are two ways back when the world has really changed:

- After `PATIENCE` outliers in a row, the next one is accepted, and its size becomes the scale.
- After `QUIET` innovations in a row below scale / `gate`, the scale is divided by `gate`.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .guard import Guard

FIRST = 50
"""This many innovations are accepted before the gate acts, because their scale must be known."""

PATIENCE = 5
"""This many outliers in a row are ignored. The gate is for single wild observations: when the world changes, the
estimator must learn again soon, because the control of the old model is wrong."""

QUIET = 100
"""After this many small innovations in a row, the scale of the old ones is forgotten."""


class Gate(eqx.Module):
    """The scale of the innovations, and how they compare with it."""

    count: Int[Array, ""]
    """The number of innovations in the mean: at most the guard's `window`, but at least `FIRST`."""
    scale: Float[Array, " k"]
    """The mean absolute value of the accepted innovations of each component."""
    streak: Int[Array, ""]
    """How many innovations in a row were outliers; negative: how many in a row were far below the scale."""
    gated: Int[Array, ""]
    """How many observations were outliers so far."""


def start(guard: Guard, k: int, dtype: Any) -> Gate | None:
    none = jnp.zeros((), jnp.int32)
    return None if guard.gate is None else Gate(none, jnp.zeros(k, dtype), none, none)


def restart(gate: Gate | None) -> Gate | None:
    """Return the gate for an estimator that starts again: the scale of its innovations is not known."""
    if gate is None:
        return None
    return Gate(jnp.zeros_like(gate.count), jnp.zeros_like(gate.scale), jnp.zeros_like(gate.streak), gate.gated)


def test(guard: Guard, gate: Gate, innovation: Float[Array, " k"], f_obs: Float[Array, " k"]) -> tuple[Gate, Array]:
    """Return the gate after an innovation, and whether the innovation is an outlier."""
    assert guard.gate is not None
    size, dtype = jnp.abs(innovation), innovation.dtype
    scale = jnp.where((gate.scale >= 0) & jnp.isfinite(gate.scale), gate.scale, 0)
    streak = jnp.clip(gate.streak, -QUIET, PATIENCE)
    is_known = gate.count >= FIRST
    # On data without noise the scale becomes a rounding error: compare with the digits of the observation too.
    is_visible = size > jnp.sqrt(jnp.finfo(dtype).eps) * jnp.maximum(jnp.abs(f_obs), jnp.abs(f_obs - innovation))
    is_far = is_known & jnp.any((scale > 0) & (size > guard.gate * scale) & is_visible)
    is_outlier = is_far & (streak < PATIENCE)
    is_change = is_far & ~is_outlier
    is_near = is_known & jnp.all(size * guard.gate < scale)
    shrinks = is_near & (streak <= -QUIET)

    count = jnp.clip(gate.count + 1, 1, max(guard.window, FIRST)).astype(jnp.int32)
    mean = scale + (size - scale) / count.astype(dtype)
    mean = jnp.where(shrinks, jnp.maximum(scale / guard.gate, size), mean)
    mean = jnp.where(is_change, jnp.maximum(scale, size), mean)
    row = jnp.where(is_outlier, jnp.maximum(streak, 0) + 1, jnp.where(is_near, jnp.minimum(streak, 0) - 1, 0))
    after = Gate(
        count=jnp.where(is_outlier, gate.count, count),
        scale=jnp.where(is_outlier, scale, mean),
        streak=jnp.where(shrinks, 0, row).astype(jnp.int32),
        gated=jnp.where(is_outlier, jnp.minimum(gate.gated, 2**31 - 2) + 1, gate.gated),
    )
    return after, is_outlier
