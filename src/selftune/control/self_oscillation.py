r"""The guard's rule against a loop that oscillates by itself.

If the gains are too high for the true plant, the control swings to and fro although the reference rests. The gradient
does not end such an oscillation. The model believes that its own loop is well damped, so it takes the oscillation for
a disturbance from outside. If the plant is weaker than the model, this disturbance is slower than the resonance of the
model's loop, and there the model says: higher gains suppress it. Its gradient has the wrong sign.

So the guard counts swings. After more swings than the reference explains, it lowers the gains until the swings end. A
loop oscillates at the frequency where $L = -1$. There, a gain sustains the oscillation in proportion to its share of
the control, and this share is the size of its gradient. The sign is not needed. So each gain falls in proportion to
the size of its gradient, and the gain that dominates the control at this frequency falls most. A gain that damps, such
as the derivative gain of a PID, stays: its part of the control leads the oscillation, and a lower one sustains it.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..problem.loop_context import LoopContext
from .trees import are_finite, choose

if TYPE_CHECKING:
    from .guard import Guard

EXPLAINED = 3
"""The swings that one change of the reference explains: the control rises, brakes and settles. A response in which each
swing has half the size of the swing before has three swings above a quarter of the used range."""
EXCESS = 4
"""The loop oscillates after this many more swings, over one or more changes of the reference."""
NOISE = 7.0
"""A swing is longer than this many mean changes from one step to the next. For white noise these are 8 standard
deviations, which noise does not reach. A sine passes if it has at least 14 steps in a period. Faster oscillations arise
if the plant is stronger than the model, and the gradient ends them."""


class Swings(eqx.Module):
    """The swings of the control that the guard has counted.

    A swing is a way of the control by at least `Guard.swing` of the range that it uses, and by more than its noise,
    against the direction of the last swing.
    """

    since: Int[Array, ""]
    """Swings since the last change of the reference, or since the last rest."""
    excess: Int[Array, ""]
    """Swings that the reference does not explain, at most `EXCESS`."""
    quiet: Int[Array, ""]
    """Steps since the last swing."""
    sign: Float[Array, " m"]
    """The direction of the last swing of each control: 1 is up."""
    extreme: Float[Array, " m"]
    """The farthest control in this direction since the swing began."""
    lowest: Float[Array, " m"]
    """About the lowest control of the last `window` steps; `highest` is about the highest one."""
    highest: Float[Array, " m"]
    pace: Float[Array, " m"]
    """The mean size of a change of the control from one step to the next, over about the last `window` steps."""
    trend: Float[Array, " q"] | None
    """The direction in which the reference moved in the last step; None if the context has no reference."""

    @property
    def is_oscillating(self) -> Bool[Array, ""]:
        return self.excess >= EXCESS


def start(guard: "Guard", u: Float[Array, " m"], t: Any) -> Swings | None:
    """Return the counts before the first step; None if the rule is off."""
    ranges = np.subtract(guard.u_high, guard.u_low)
    if guard.swing is None or guard.rate is None or not np.any(np.isfinite(ranges)):
        return None
    none = jnp.zeros((), jnp.int32)
    trend = jnp.zeros(t.reference.shape, u.dtype) if isinstance(t, LoopContext) else None
    return Swings(none, none, none, jnp.ones_like(u), u, u, u, _first_pace(guard, u), trend)


def repaired(guard: "Guard", swings: Swings, u: Float[Array, " m"]) -> Swings:
    """Return counts that are possible. A bit that flips in memory can make them impossible, and then the rule would be
    off without notice. They start again from the control u."""
    numbers = (swings.sign, swings.extreme, swings.lowest, swings.highest, swings.pace)
    is_sound = are_finite(numbers) & jnp.all(jnp.abs(swings.sign) == 1) & jnp.all(swings.pace >= 0)
    none = jnp.zeros_like(swings.since)
    fresh = Swings(none, none, none, jnp.ones_like(u), u, u, u, _first_pace(guard, u), swings.trend)
    kept = Swings(
        since=jnp.clip(swings.since, 0, 2**30),
        excess=jnp.clip(swings.excess, 0, EXCESS),
        quiet=jnp.clip(swings.quiet, 0, guard.window),
        sign=swings.sign,
        extreme=swings.extreme,
        lowest=swings.lowest,
        highest=swings.highest,
        pace=swings.pace,
        trend=swings.trend,
    )
    return choose(is_sound, kept, fresh)


def _first_pace(guard: "Guard", u: Float[Array, " m"]) -> Array:
    """Return the pace before the noise is known: only a way through the whole range is a swing."""
    ranges = np.subtract(guard.u_high, guard.u_low)
    return jnp.asarray(np.broadcast_to(np.where(np.isfinite(ranges), ranges / NOISE, 0), u.shape), u.dtype)


def count(
    guard: "Guard", swings: Swings, u: Float[Array, " m"], last_u: Float[Array, " m"], t: Any, last_t: Any
) -> Swings:
    """Return the counts after a step with the control u; `last_u` and `last_t` belong to the step before.

    The reference changes when it begins to move, or turns round. A change explains `EXPLAINED` swings. If there were
    no more since the change before, or if the control has rested for half a window, the loop does not oscillate.
    """
    assert guard.swing is not None
    sign = swings.sign
    farthest = sign * jnp.maximum(sign * swings.extreme, sign * u)
    share = guard.swing * (swings.highest - swings.lowest)
    is_limited = np.isfinite(np.subtract(guard.u_high, guard.u_low))
    turns = (sign * (farthest - u) >= jnp.maximum(share, NOISE * swings.pace)) & is_limited
    swung = jnp.any(turns)
    trend, changes = swings.trend, jnp.asarray(False)
    if trend is not None:
        moves = jnp.sign(t.reference - last_t.reference).astype(u.dtype)
        trend, changes = moves, jnp.any((moves != 0) & (moves != trend))
    quiet = jnp.where(swung, 0, swings.quiet + 1)
    rests = quiet >= guard.window // 2
    ends = rests | (changes & (swings.since <= EXPLAINED))
    since = jnp.where(rests | changes, 0, swings.since) + swung.astype(jnp.int32)
    excess = jnp.where(ends, 0, swings.excess) + (swung & (since > EXPLAINED)).astype(jnp.int32)
    return Swings(
        since=since.astype(jnp.int32),
        excess=jnp.minimum(excess, EXCESS).astype(jnp.int32),
        quiet=jnp.minimum(quiet, guard.window).astype(jnp.int32),
        sign=jnp.where(turns, -sign, sign),
        extreme=jnp.where(turns, u, farthest),
        lowest=jnp.minimum(u, swings.lowest + (u - swings.lowest) / guard.window),
        highest=jnp.maximum(u, swings.highest + (u - swings.highest) / guard.window),
        pace=swings.pace + (jnp.abs(u - last_u) - swings.pace) / guard.window,
        trend=trend,
    )


def lowered(
    guard: "Guard", theta: Float[Array, " d"], widths: Float[Array, " d"], gradient: Float[Array, " d"]
) -> Float[Array, " d"]:
    r"""Return θ with lower gains: $\theta - \text{rate}\; W\, \text{calming}\; |W g| / \|W g\|_2$, over these gains.

    W has the widths of Θ. The step has the length `rate`. θ stays if the gradient is zero or not finite.
    """
    assert guard.rate is not None
    calming = jnp.asarray(guard.growth if guard.calming is None else guard.calming, theta.dtype)
    share = jnp.abs(calming * widths * gradient)
    largest = jnp.max(share)
    is_known = (largest > 0) & jnp.isfinite(largest)
    share = share / jnp.where(is_known, largest, 1)
    length = jnp.sqrt(jnp.sum(share * share))
    down = guard.rate * widths * calming * share / jnp.where(is_known, length, 1)
    return jnp.where(is_known, theta - down, theta)
