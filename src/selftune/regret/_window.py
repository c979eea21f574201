"""Rollouts that begin H steps back instead of at step 0, and estimates of the resulting error."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from ._lockstep import Lockstep, rows_at, rows_from

SAFETY = 4.0
"""The safety factor on the error estimate: the error is linear in the measured quantities only to first order, and the
largest discrepancy that was measured may not be the largest one."""

NO_CONTRACTION = 0.9
"""If this share of a push, or more, is left after the first half of a window, the error estimate is infinite."""

NEIGHBOURS = 8
"""With several states a twin is pushed in only one direction; the previous lanes are pushed in other directions."""


class Windowed(NamedTuple):
    """The values of a block of lanes, and the quantities from which their errors are estimated."""

    value: Float[Array, " lanes"]
    gradient: Float[Array, "lanes d"]
    gain_value: Float[Array, " lanes"]
    """The change of the value for a unit push of the lane's initial state."""
    gain_gradient: Float[Array, " lanes"]
    """The change of the gradient for a unit push of the lane's initial state."""
    gain_sensitivity: Float[Array, " lanes"]
    """The change of the gradient for a unit error of the lane's initial sensitivity."""
    contraction: Float[Array, " lanes"]
    """The share of a unit push of the state that is left after the first half of the window."""
    rate: Float[Array, " lanes"]
    """The share that is left after one step: the geometric mean over the window or its first half, the larger one."""
    apart_x: Float[Array, " lanes"]
    """The largest distance of the rollout's x from the companion's x, in the second half of the window."""
    apart_y: Float[Array, " lanes"]
    """The largest distance of the rollout's y from the companion's y, in the second half of the window."""


@eqx.filter_jit
def windowed_block(
    system: AbstractSystem,
    scenario: Scenario,
    thetas: PyTree,
    x: Float[Array, "T n"],
    y: Float[Array, "T n d"],
    push: Float[Array, " n"],
    first: Array,
    window: Array,
    size: int,
) -> Windowed:
    """The lanes t in [first, first + size), each begun at t − window from the companion's (x, y), with a twin of each.

    The twin's initial state is off by a vector of size `push`. Requires `first >= window` and `first + size <= T`, so
    that the rows of all lanes are slices of the scenario.
    """

    def part(leaf: Array, begin: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(leaf, begin, size)

    t = first + jnp.arange(size)
    n, d = y.shape[1:]
    lockstep = Lockstep(system, n, d, jax.tree.map(lambda leaf: part(leaf, first), thetas))
    x_start, y_start = part(x, first - window), part(y, first - window)
    pushes = pushes_of(t, push)

    def advance(s: Array, lanes: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        now = rows_from(scenario, first - window + s, size)
        return lockstep.step(lanes[0], now, 0), lockstep.step(lanes[1], now, 0)

    def distance(packed: PyTree, s: Array) -> Array:
        x_lane, y_lane = lockstep.unpack(packed)
        begin = first - window + s
        return jnp.stack([_norm(x_lane - part(x, begin)), _norm(y_lane - part(y, begin))])

    def advance_and_compare(s: Array, carry: tuple[tuple[PyTree, PyTree], Array]) -> tuple:
        lanes, apart = carry
        return advance(s, lanes), jnp.maximum(apart, distance(lanes[0], s))

    half = window - window // 2
    lanes = jax.lax.fori_loop(
        0, half, advance, (lockstep.start(x_start, y_start), lockstep.start(x_start + pushes, y_start))
    )
    left_half = lockstep.unpack(lanes[1])[0] - lockstep.unpack(lanes[0])[0]
    (lane, twin), apart = jax.lax.fori_loop(
        half, window, advance_and_compare, (lanes, jnp.zeros((2, size), push.dtype))
    )
    apart = jnp.maximum(apart, distance(lane, window))

    now = rows_at(scenario, t)
    x_lane, x_twin = lockstep.unpack(lane)[0], lockstep.unpack(twin)[0]
    found, other = (
        {**lockstep.finish(packed, now)._asdict(), "slope": lockstep.cost_slope(x, now)}
        for packed, x in ((lane, x_lane), (twin, x_twin))
    )
    return gains(found, other, pushes, left_half, x_twin - x_lane, half, window, apart)


@jax.jit
def pushes_of(t: Array, push: Float[Array, " n"]) -> Float[Array, "lanes n"]:
    """The pushes of the twins of lanes `t`."""
    return push * _directions(t, push.shape[0], push.dtype)


@jax.jit
def gains(
    lane: dict[str, Array],
    twin: dict[str, Array],
    pushes: Float[Array, "lanes n"],
    left_half: Float[Array, "lanes n"],
    left: Float[Array, "lanes n"],
    half: Array,
    window: Array,
    apart: Float[Array, "2 lanes"],
) -> Windowed:
    """The values of lanes with their gains, from the `value`, the `gradient` and the `slope` of lanes and twins.

    `left_half` and `left` are the differences of the states of twins and lanes after `half` and after `window` steps.
    """
    value, gradient = lane["value"], lane["gradient"]
    pushed = _norm(pushes)
    slope = _norm(lane["slope"]) + _norm(twin["slope"])
    contraction, remaining = _norm(left_half) / pushed, _norm(left) / pushed
    return Windowed(
        value,
        gradient,
        gain_value=jnp.abs(twin["value"] - value) / pushed + slope * remaining,
        gain_gradient=_norm(twin["gradient"] - gradient) / pushed,
        gain_sensitivity=slope * remaining,
        contraction=contraction,
        rate=jnp.maximum(contraction ** _inverse(half, pushes), remaining ** _inverse(window, pushes)),
        apart_x=apart[0],
        apart_y=apart[1],
    )


class Errors(NamedTuple):
    """Estimates of the distance to the exact values, due to the window and due to rounding."""

    value: Float[Array, " lanes"]
    gradient: Float[Array, " lanes"]
    rounding_value: Float[Array, " lanes"]
    rounding_gradient: Float[Array, " lanes"]


@eqx.filter_jit
def estimate(lanes: Windowed, window: Array, n: int) -> Errors:
    r"""The errors of all lanes, each begun at most `window` steps back.

    Lane t began from the companion's $(\tilde x, \tilde y)$ at $t - H$, where the exact rollout with $\theta_t$ would
    have been at $(x^*, y^*)$. The effect of this distance on its value is estimated from the effect of the push on its
    twin: gain × distance. The distance at $t - H$ is unknown. The same distance was measured later, in the second half
    of the window, for this θ and for those of the previous lanes. `_memory` combines these measurements.
    """
    neighbours = jnp.asarray(NEIGHBOURS if n > 1 else 0)
    near = jnp.stack([lanes.contraction, lanes.rate, lanes.gain_value, lanes.gain_gradient, lanes.gain_sensitivity])
    contraction, rate, gain_value, gain_gradient, gain_sensitivity = _largest(near, neighbours)
    # While a rollout still resembles the companion that it began from, a part of their distance is hidden.
    hidden = 1 / (1 - jnp.minimum(contraction, NO_CONTRACTION)) ** 2
    seen = jnp.stack([hidden * lanes.apart_x, hidden * lanes.apart_y, jnp.abs(lanes.value), _norm(lanes.gradient)])
    *apart, size_value, size_gradient = _largest(seen, window)
    apart_x, apart_y = _memory(jnp.stack(apart), jnp.minimum(rate, 1))
    # In n dimensions, one direction shows one n-th of the squared distance on average.
    width: float = n**0.5
    safety = jnp.where(contraction < NO_CONTRACTION, SAFETY * width, jnp.inf)

    def truncation(error: Array) -> Array:
        # The error is unknown if a number is not finite, and zero if nothing of the push is left.
        return jnp.where(error == 0, 0, jnp.where(jnp.isnan(error), jnp.inf, safety * error))

    # A rounding error lives for a small part of a window, so `window` of them is a generous estimate.
    rounding = jnp.finfo(rate.dtype).eps * window.astype(rate.dtype)
    return Errors(
        truncation(gain_value * apart_x),
        # The factor 2: the error of a sensitivity decays like k·ρᵏ, the error of a state like ρᵏ.
        truncation(2 * (gain_gradient * apart_x + gain_sensitivity * apart_y)),
        rounding * size_value,
        rounding * size_gradient,
    )


def _memory(recent: Float[Array, "kinds lanes"], rate: Float[Array, " lanes"]) -> Float[Array, "kinds lanes"]:
    """The distance to assume for lane t: the largest of the recent lanes, or the decayed distance of an older lane.

    The lanes of the last window together saw all changes of θ in the last one and a half windows. Older changes are
    visible in none of them, because the companion and the lanes forget them together: they decay at the lanes' own
    rate.
    """

    def step(before, inputs):
        now, rate = inputs
        left = jnp.maximum(now, rate * before)
        return left, left

    return jax.lax.scan(step, jnp.zeros_like(recent[:, 0]), (recent.T, rate))[1].T


def _norm(values: Array) -> Array:
    """The Euclidean norm over all axes except the first, which is that of the lanes."""
    return jnp.sqrt(jnp.sum(values.reshape(values.shape[0], -1) ** 2, axis=1))


def _inverse(count: Array, like: Array) -> Array:
    return 1 / count.astype(like.dtype)


def _directions(t: Array, n: int, dtype: jnp.dtype) -> Array:
    """Ones for one state; for several states, directions that rotate from lane to lane and soon cover all."""
    if n == 1:
        return jnp.ones((t.shape[0], 1), dtype)
    # Equidistribution: fractional parts of t·√(i+1.7) fill the unit cube evenly, as for roots of distinct squarefree i.
    rates = jnp.sqrt(jnp.arange(n, dtype=dtype) + 1.7)
    return jnp.cos(2 * jnp.pi * t.astype(dtype)[:, None] * rates + jnp.arange(n, dtype=dtype))


def _largest(values: Float[Array, "kinds lanes"], back: Array) -> Float[Array, "kinds lanes"]:
    """At lane i, the maximum of the values at i − back … i, as far as they exist."""
    length, lanes = back + 1, values.shape[1]

    def shift(values: Array, by: Array) -> Array:
        """The values shifted by `by` lanes; the first value repeats in front."""
        return values[:, jnp.clip(jnp.arange(lanes) - by, 0, None)]

    # Windows of 1, 2, 4, … by doubling; a window of any length is the union of two of the largest power within it.
    def double(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        covered, best = carry
        width = 2**k
        best = jnp.where(width <= length, jnp.maximum(covered, shift(covered, length - width)), best)
        return jnp.maximum(covered, shift(covered, width)), best

    doublings = jnp.sum(2 ** jnp.arange(lanes.bit_length() + 1) <= length)
    return jax.lax.fori_loop(0, doublings, double, (values, values))[1]
