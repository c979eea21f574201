"""What keeps a controller safe while it learns: settings, what is remembered for them, and the decisions.

The functions are pure: `Agent`, `simulate` and the firmware run the same ones, with either engine. `_guarded.py` puts
them around a controller's step.
"""

import enum
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..foundation import arguments
from .controller import Controller

PROBATION = 2
"""Windows after a rollback in which θ stays where it was put, and its cost is measured anew."""
BACKOFF, TRUST, LEAST = 0.5, 1.01, 1 / 1024
"""What a rollback, and a window that went well, multiply the length of the tuner's steps by, up to 1; and down to the
last, from which there is a way back."""


class Decision(enum.IntFlag):
    """What a guard decided at a step; several may hold at once."""

    REFUSED = 1
    """The measurement, or a number that it leads to, was not used: nothing was learned."""
    SATURATED = 2
    """The control was at the actuator's limits or beyond, and is clipped to them."""
    LIMITED = 4
    """θ's step was shortened to `rate`."""
    HELD = 8
    """Gains that would have grown were kept: too many steps saturate."""
    RESET = 16
    """The sensitivity y was larger than `y_limit`, and forgotten."""
    EXPLODED = 32
    """The cost exploded: the last good θ and â were restored."""
    UNSTABLE = 64
    """The closed loop stopped contracting: the last good θ and â were restored."""
    STILL = 128
    """θ was not to move: paused, frozen, or on probation after a rollback."""
    SAVED = 256
    """A window went well: the θ and â that it began with are the last good ones now."""

    def __str__(self) -> str:
        return ", ".join(decision.name.lower() for decision in Decision if decision in self and decision.name) or "none"


class Mode(enum.IntEnum):
    """Who learns."""

    LEARNING = 0
    FROZEN = 1
    """The estimator alone."""
    PAUSED = 2
    """Nobody."""


def _limits(name: str, value: Any, ok: Any, expected: str) -> Any:
    """A number, or a vector as a tuple of numbers: hashable, so that it is part of a program."""
    try:
        array = np.asarray(value, float if not isinstance(value, bool) else object)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if array.dtype == object or array.ndim > 1 or not array.size or not np.all(ok(array)):
        raise ValueError(f"{name}: expected {expected}, got {arguments.describe(value)}")
    return float(array) if array.ndim == 0 else tuple(array.tolist())


def _limit(name: str) -> Any:
    expected = "a number > 0, or one for each component, or None"
    return eqx.field(
        static=True,
        converter=lambda v: None if v is None else _limits(name, v, lambda a: a > 0, expected),
        default=1e8,
    )


def _above(name: str, default: float, least: float) -> Any:
    expected = f"a number > {least:g}, or None"
    return eqx.field(
        static=True,
        converter=lambda v: None if v is None else _limits(name, v, lambda a: (a > least) & (a.ndim == 0), expected),
        default=default,
    )


class Guard(eqx.Module):
    r"""What keeps a controller safe while it learns; each part is off where it is None.

    In the order in which they act on a step:

    - `x_limit`, `f_limit`: a measured x or observed residual with a component above it, or not finite, is **refused**:
      nothing is learned from it. One number, or one for each component.
    - `bridge`: for this many refused steps in a row the model's prediction from the step before stands in for x;
      after that the control is of x as it is, if that is finite, or else the last one. What it gives is always finite.
    - `u_low`, `u_high`: the actuator's range, (m,) or one number; u is clipped to it.
    - `rate`: $\|\theta_{t+1} - \theta_t\|_2$ is at most this, in the units of θ, a step; a longer one is shortened.
    - `authority`: when more than this share of the last `window` steps or so saturated, no gain may grow: a component
      of θ does not move in the direction of `growth`, (d,) or one number: 1 where a larger one is a higher gain, −1
      where a smaller one is, 0 where it is no gain.
    - `y_limit`: where $\max |y_t|$ is above it the closed loop has stopped to contract: the step is not made, and the
      tuner forgets y.
    - `rollback`: c > 1. The mean cost of the last `window` steps is held against the level of good ones. A window that
      is within √c of it makes the (θ, â) that it began with the last good ones. At c times the level, or where the
      tuner's running ρ̂ (its `contraction_memory`) is above `contraction`, the last good ones come back, both at
      once, however far that is; tuner and estimator forget the trajectory; θ stays for two windows, in which the level
      is measured anew; and from then on the tuner's steps are half as long (each good window makes them 1 % longer
      again). If the cost goes on to explode even so, the trusted ones take their place: the first, or the last with
      which a window went well while θ stood still, as in a dry run. Costs below `cost_floor` are as good as each other:
      give it where the robot rests between its tasks. The cost must not be negative.

    θ is projected in the end: whatever is decided, it is in Θ. What was decided is in `Info.guard`, in `Run.guard` and,
    for an `Agent`, in the log. `Agent` has all of it by default; `simulate` none.

    !!! Example

        >>> import selftune as st
        >>> guard = st.Guard(x_limit=[0.5, 4.0], u_low=-2.0, u_high=2.0, rate=0.004, window=1000)
        >>> careless = st.Guard(rate=None, y_limit=None, authority=None, rollback=None)
        >>> str(st.Decision(5))
        'refused, limited'
    """

    x_limit: float | tuple[float, ...] | None = _limit("x_limit")
    f_limit: float | tuple[float, ...] | None = _limit("f_limit")
    bridge: int = eqx.field(static=True, converter=lambda v: arguments.whole("bridge", v), default=100)
    u_low: float | tuple[float, ...] = eqx.field(
        static=True,
        converter=lambda v: _limits("u_low", v, lambda a: a == a, "a number, or one a control"),
        default=-math.inf,
    )
    u_high: float | tuple[float, ...] = eqx.field(
        static=True,
        converter=lambda v: _limits("u_high", v, lambda a: a == a, "a number, or one a control"),
        default=math.inf,
    )
    rate: float | None = _above("rate", 0.1, 0)
    authority: float | None = _above("authority", 0.2, 0)
    growth: float | tuple[float, ...] = eqx.field(
        static=True,
        converter=lambda v: _limits("growth", v, lambda a: np.isin(a, (-1, 0, 1)), "−1, 0 or 1 for each θ"),
        default=1.0,
    )
    y_limit: float | None = _above("y_limit", 1e6, 0)
    rollback: float | None = _above("rollback", 4.0, 1)
    window: int = eqx.field(static=True, converter=lambda v: arguments.count("window", v), default=500)
    contraction: float | None = _above("contraction", 1.0, 0)
    cost_floor: float = eqx.field(
        static=True,
        converter=lambda v: _limits("cost_floor", v, lambda a: (a >= 0) & (a.ndim == 0), "a number ≥ 0"),
        default=0.0,
    )

    def __check_init__(self) -> None:
        low, high = np.asarray(self.u_low), np.asarray(self.u_high)
        sizes_differ = low.ndim and high.ndim and low.shape != high.shape
        if sizes_differ or not np.all(low < high):
            raise ValueError(f"u_low, u_high: expected u_low < u_high, got {self.u_low} and {self.u_high}")

    @property
    def is_clipping(self) -> bool:
        return bool(np.any(np.isfinite([*np.atleast_1d(self.u_low), *np.atleast_1d(self.u_high)])))

    def check(self, n: int, m: int, k: int, d: int) -> None:
        """That every limit fits the sizes of a controller."""
        sizes = {"x_limit": n, "f_limit": k, "u_low": m, "u_high": m, "growth": d}
        for name, size in sizes.items():
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != size:
                raise ValueError(f"{name}: expected one number or {size}, got {len(value)}")


class Snapshot(eqx.Module):
    theta: PyTree
    a_hat: PyTree


class Window(eqx.Module):
    """What rollback remembers."""

    total: Float[Array, ""]
    """The discounted sum of costs, and of ones."""
    weight: Float[Array, ""]
    level: Float[Array, ""]
    """The mean cost of good windows; infinite before the first."""
    caution: Float[Array, ""]
    """By how much the tuner's steps are shortened."""
    count: Int[Array, ""]
    """Steps since the window began."""
    probation: Int[Array, ""]
    """Steps that are left of it."""
    fallen: Bool[Array, ""]
    """Whether the trusted ones were put in place in it."""
    rollbacks: Int[Array, ""]
    begun: Snapshot
    """What the window began with."""
    good: Snapshot
    trusted: Snapshot
    """The first, or the last ones with which a whole window went well while θ stood still."""


class GuardState(eqx.Module):
    """What the guard remembers between two steps; of a part that is off, nothing."""

    mode: Int[Array, ""]
    missed: Int[Array, ""]
    """How many steps were refused in a row."""
    saturated: Float[Array, ""] | None
    """The share of the last steps that saturated."""
    window: Window | None


class GuardInfo(eqx.Module):
    """What a person reads of the guard at a step."""

    decisions: Int[Array, ""]
    """The sum of `Decision`s."""
    saturated: Float[Array, ""] | None
    """The share of the last steps that saturated."""
    cost: Float[Array, ""] | None
    """The mean of the window, and the level that it is held against."""
    level: Float[Array, ""] | None
    caution: Float[Array, ""] | None
    """By how much the tuner's steps are shortened after rollbacks."""


def start(guard: Guard, theta: PyTree, a_hat: PyTree, dtype: Any) -> GuardState:
    zero, none = jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
    window = None
    if guard.rollback is not None:
        now = Snapshot(theta, a_hat)
        level, caution, fallen = jnp.full((), jnp.inf, dtype), jnp.ones((), dtype), jnp.asarray(False)
        window = Window(zero, zero, level, caution, none, none, fallen, none, now, now, now)
    watched = guard.authority is not None and guard.is_clipping
    return GuardState(none, none, zero if watched else None, window)


def within(limit: float | tuple[float, ...] | None, value: Array) -> Any:
    """Whether no component is beyond its limit; of what is not finite, false."""
    bound = np.minimum(np.inf if limit is None else limit, np.finfo(value.dtype).max)
    return jnp.all(jnp.abs(value) <= jnp.asarray(bound, value.dtype))


def clip(guard: Guard, u: Float[Array, " m"]) -> tuple[Float[Array, " m"], Any]:
    """The control inside the actuator's range, and whether it was at its limits or beyond."""
    if not guard.is_clipping:
        return u, jnp.asarray(False)
    low, high = jnp.asarray(guard.u_low, u.dtype), jnp.asarray(guard.u_high, u.dtype)
    return jnp.minimum(jnp.maximum(u, low), high), jnp.any((u <= low) | (u >= high))


def limit_step(
    guard: Guard, controller: Controller, state: GuardState, theta: PyTree, wanted: PyTree, *, still: Any, forget: Any
) -> tuple[PyTree, Any, Any]:
    """From θ towards what the tuner wants, as far as the guard lets it: θ, and whether `rate`, `authority` did."""
    flat, unravel = ravel_pytree(theta)
    step = ravel_pytree(wanted)[0] - flat
    held = limited = jnp.asarray(False)
    changed = jnp.asarray(False)
    if state.saturated is not None and guard.authority is not None:
        growth = jnp.asarray(guard.growth, flat.dtype)
        grows = step * growth > 0
        held = (state.saturated > guard.authority) & jnp.any(grows)
        step, changed = jnp.where(held & grows, 0, step), held
    if guard.rate is not None:
        square = jnp.sum(step * step)
        limited = square > guard.rate * guard.rate
        step = jnp.where(limited, guard.rate * jax.lax.rsqrt(jnp.where(limited, square, 1)) * step, step)
        changed = changed | limited
    if state.window is not None:
        changed = changed | (state.window.caution < 1)
        step = state.window.caution * step
    moved = unravel(flat + step)
    constraint = getattr(controller.tuner, "constraint", None)
    if constraint is not None:
        moved = constraint.project(moved)
    moved = choose(changed, moved, wanted)  # bit for bit what the tuner wants, where nothing is the matter
    stays = still | forget
    return choose(stays, theta, moved), limited & ~stays, held & ~stays


def judge(
    guard: Guard, window: Window, cost: Array, rho: Any, theta: PyTree, a_hat: PyTree, *, learning: Any
) -> tuple[Window, Any, Any, Any]:
    """One step's cost into the window. (θ, â) are what the next step would use; where nobody learns they stay.

    Returns the window, and whether the cost exploded, the loop is unstable, and a good window was saved.
    """
    assert guard.rollback is not None
    size, factor = guard.window, guard.rollback
    level = jnp.maximum(window.level, guard.cost_floor)
    known, on_probation = jnp.isfinite(window.level) & (level > 0), window.probation > 0
    watched = known & ~on_probation
    # One step is no explosion, whatever it cost.
    cost = jnp.where(known, jnp.minimum(cost, factor * max(size, 4) / 2 * level), cost)
    total, weight = (1 - 1 / size) * window.total + cost, (1 - 1 / size) * window.weight + 1
    mean = total / weight
    # As if the costs before the window were zero: a few bad steps in a new window are no explosion either.
    # (The weight is below `size`, but for sums that were made with another one and loaded.)
    sofar = total / jnp.maximum(weight, size)
    exploded = watched & learning & (sofar > factor * level)
    # What was restored may be no better: it comes from a window in which θ went on. Then the trusted ones are.
    again = known & on_probation & learning & ~window.fallen & (sofar > factor * factor * level)
    expands = unstable = jnp.asarray(False)
    if rho is not None and guard.contraction is not None:
        expands = rho > guard.contraction
        # Of a new window there are too few steps to tell.
        unstable = watched & learning & ~exploded & expands & (window.weight > size / 2)
    back = exploded | unstable | again
    ends = (window.count + 1 >= size) & ~back
    calm = (~known | (mean <= math.sqrt(factor) * level)) & ~expands
    saved = ends & ~on_probation & calm
    stood = jnp.all(ravel_pytree(window.begun.theta)[0] == ravel_pytree(theta)[0])
    # The level is the highest mean of late: it falls by no more than 15 % a window, so that a rest between two
    # manoeuvres does not make the next one an explosion. Where things got worse than they may it rises slowly, unless
    # that is what the restored gains cost now.
    measured = on_probation & (window.probation <= 1)
    risen = window.level + jnp.where(calm | measured, 1, 0.125) * (mean - window.level)
    moved = jnp.where(mean < window.level, jnp.maximum(mean, 0.85 * window.level), risen)
    # Where the loop expands even with what was restored, or from the beginning, there is nothing good to go back to: no
    # level, and the tuner is let to find its way out.
    level_next = jnp.where(known, moved, mean)
    level_next = jnp.where((measured | ~known) & expands, jnp.inf, level_next)
    new_level = jnp.where(ends & (~on_probation | measured | ~known), level_next, window.level)
    # What an outlier, or the way back, did to a level that is measured anew must not stay in the mean for long.
    fresh = ends & ~watched
    good = choose(again, window.trusted, choose(saved, window.begun, window.good))
    after = Window(
        total=jnp.where(fresh, 0, total),
        weight=jnp.where(fresh, 0, weight),
        level=new_level,
        caution=jnp.where(saved, jnp.minimum(TRUST * window.caution, 1), window.caution),
        count=jnp.where(ends, 0, window.count + 1).astype(jnp.int32),
        probation=jnp.maximum(window.probation - 1, 0),
        fallen=window.fallen & on_probation | again,
        rollbacks=window.rollbacks,
        begun=choose(ends, Snapshot(theta, a_hat), window.begun),
        good=good,
        trusted=choose(ends & calm & stood, window.begun, window.trusted),
    )
    return choose(back, go_back(guard, after), after), exploded | again, unstable, saved


def go_back(guard: Guard, window: Window) -> Window:
    """The window when the last good θ and â have just been put in place."""
    zero, none = jnp.zeros_like(window.total), jnp.zeros_like(window.count)
    return Window(
        total=zero,
        weight=zero,
        level=window.level,
        caution=jnp.maximum(BACKOFF * window.caution, LEAST),
        count=none,
        probation=jnp.full_like(window.probation, PROBATION * guard.window),
        fallen=window.fallen,
        rollbacks=window.rollbacks + 1,
        begun=window.good,
        good=window.good,
        trusted=window.trusted,
    )


def choose(first: Any, one: PyTree, other: PyTree) -> PyTree:
    """`one` where `first` holds, else `other`."""
    return jax.tree.map(lambda one, other: jnp.where(first, one, other), one, other)
