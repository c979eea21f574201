"""Rollback: the guard's account of costs, and its decision to restore the last good θ and â."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .guard import Guard
from .trees import choose

PROBATION = 2
"""After a rollback, θ does not move for this many windows, while the cost of the restored θ is measured."""
STEADY, PROVED = 0.0125, 4
"""A θ that moves by at most `STEADY` widths of Θ in each of `PROVED` good windows in a row has proved itself."""
FALL = 0.85
"""The factor by which a level may fall in a window."""
BACKOFF, TRUST, LEAST = 0.5, 1.01, 1 / 1024
"""Factors on the length of the tuner's steps: a rollback multiplies the length by `BACKOFF`, a good window by `TRUST`.
The product stays between `LEAST` and 1; `LEAST` is above zero so that the steps can grow again."""


class Snapshot(eqx.Module):
    theta: PyTree
    a_hat: PyTree


class Window(eqx.Module):
    """The state of rollback: sums of costs, the level, and the θ and â to go back to."""

    total: Float[Array, ""]
    """The discounted sum of costs; `weight` is the discounted number of steps; total / weight is the mean."""
    weight: Float[Array, ""]
    level: Float[Array, ""]
    """The mean cost of good windows; infinite before the first."""
    step_scale: Float[Array, ""]
    """The factor, at most 1, on the tuner's steps."""
    count: Int[Array, ""]
    """Steps since the window began."""
    probation: Int[Array, ""]
    """Steps that are left of the probation after a rollback."""
    used_trusted: Bool[Array, ""]
    """Whether this probation is a trial of the trusted θ and â: there is nothing better to go back to."""
    rollbacks: Int[Array, ""]
    begun: Snapshot
    """The θ and â at the beginning of the window."""
    good: Snapshot
    trusted: Snapshot
    """The first θ and â, or those of the last good window in which θ did not move, or hardly moved for `PROVED` windows
    while it cost no more than the trusted θ."""
    trusted_level: Float[Array, ""]
    """The mean cost of the window that began with the trusted θ and â; 0 before it is known. It rises by at most 15 %
    and falls by at most 1 % in a window, except when the trusted θ and â were restored and are measured anew."""
    rival_level: Float[Array, ""]
    """In a trial: the mean cost of the rival θ and â, which `trusted` then holds; otherwise 0. The trusted ones are
    tried after an explosion, and then the rival is the θ that was left; and if the last good ones cost too much, and
    then the rival is the last good θ."""
    lowest: Float[Array, ""]
    """The lowest cost so far, at most 0. It is subtracted from all costs."""
    steady: Int[Array, ""]
    """Good windows in a row in which θ hardly moved, up to `PROVED`."""
    away: Float[Array, ""]
    """The largest distance of θ from the trusted θ in this window, in widths of Θ."""


def start(guard: Guard, theta: PyTree, a_hat: PyTree, dtype: Any) -> Window | None:
    if guard.rollback is None:
        return None
    zero, none, now = jnp.zeros((), dtype), jnp.zeros((), jnp.int32), Snapshot(theta, a_hat)
    level, step_scale, used_trusted = jnp.full((), jnp.inf, dtype), jnp.ones((), dtype), jnp.asarray(False)
    return Window(
        zero, zero, level, step_scale, none, none, used_trusted, none, now, now, now, zero, zero, zero, none, zero
    )


def repaired(guard: Guard, window: Window) -> Window:
    """Return the window with numbers that a window can have. A bit that flips in memory can make a number of the
    window impossible; without a repair, rollback would then be off without notice."""
    total, weight, level = window.total, window.weight, window.level
    # The weight is below `guard.window`, unless the sums were loaded from an agent with another window.
    are_sums = _is_cost(total) & (weight >= 0) & (weight <= 1000.0 * guard.window)
    return Window(
        total=jnp.where(are_sums, total, 0),
        weight=jnp.where(are_sums, weight, 0),
        level=jnp.where(level >= 0, level, jnp.inf),
        step_scale=jnp.where(window.step_scale >= LEAST, jnp.minimum(window.step_scale, 1), LEAST),
        count=jnp.clip(window.count, 0, guard.window),
        probation=jnp.clip(window.probation, 0, PROBATION * guard.window),
        used_trusted=window.used_trusted,
        rollbacks=window.rollbacks,
        begun=window.begun,
        good=window.good,
        trusted=window.trusted,
        trusted_level=jnp.where(
            (window.trusted_level >= 0) & jnp.isfinite(window.trusted_level), window.trusted_level, 0
        ),
        rival_level=jnp.where(_is_cost(window.rival_level), window.rival_level, 0),
        lowest=jnp.where(_is_cost(-window.lowest), window.lowest, 0),
        steady=jnp.clip(window.steady, 0, PROVED),
        away=jnp.where(_is_cost(window.away), window.away, 0),
    )


def _is_cost(number: Array) -> Array:
    return (number >= 0) & jnp.isfinite(number)


def judge(
    guard: Guard,
    window: Window,
    cost: Array,
    rho: Any,
    theta: PyTree,
    a_hat: PyTree,
    *,
    learning: Any,
    widths: Any = 1.0,
) -> tuple[Window, Any, Any, Any]:
    """Add one step's cost to the window, and decide whether to roll back: then `go_back` is called with the window.

    `theta` and `a_hat` are those of the next step, `widths` the widths of Θ. There is no rollback unless `learning`.
    Returns the window, and whether the cost exploded, whether the loop is unstable, and whether a good window was
    saved.
    """
    assert guard.rollback is not None
    window = _shift_costs(window, cost)
    cost = cost - window.lowest
    phase = _find_phase(guard, window)
    costs = _add_cost(guard, window, phase, cost)
    faults = _find_faults(guard, window, phase, costs, rho, learning)
    rolls_back = faults.exploded | faults.unstable | faults.exploded_again | faults.trusted_is_worse
    ends = (window.count + 1 >= guard.window) & ~rolls_back
    is_good = (~phase.level_known | (costs.mean <= math.sqrt(guard.rollback) * phase.level)) & ~faults.expands
    if guard.cost_ceiling is not None:
        is_good = is_good & (costs.mean + window.lowest <= guard.cost_ceiling)
    saved = ends & ~phase.on_probation & is_good
    theta_stayed = jnp.all(ravel_pytree(window.begun.theta)[0] == ravel_pytree(theta)[0])
    is_trial = window.rival_level > 0
    steady = jnp.where(saved & (_way(window.begun.theta, theta, widths) <= STEADY), window.steady + 1, 0)
    steady = jnp.where(ends, jnp.minimum(steady, PROVED), window.steady).astype(jnp.int32)
    proved = ends & (steady >= PROVED) & (costs.mean <= window.trusted_level)
    trusts = (ends & is_good & theta_stayed | proved) & ~is_trial
    # Start the sums again after a window that measured a new level: outliers and the transient must not stay in them.
    restarts = ends & ~phase.is_watched
    swaps = faults.exploded_again | faults.trusted_is_worse
    # If the trusted θ is restored, a place is free for the θ that is left. If the trusted θ turns out to cost more than
    # that θ did, the tuner did not cause the explosion.
    leaves = faults.exploded & ~_differ(window.good, window.trusted) & _differ(window.begun, window.good)
    trial_ends = phase.ends_probation & is_trial
    # In a probation θ stood still: if it is the trusted θ, its cost is measured anew.
    measures = trial_ends | (phase.ends_probation & ends & ~_differ(window.good, window.trusted))
    away = jnp.maximum(window.away, _way(window.trusted.theta, theta, widths))
    # The trusted θ itself can cost this much: an explosion at or near it is a part of the task, such as a manoeuvre
    # that is rarer than the windows. Without this rule, each manoeuvre would cause a rollback, for ever.
    innocent = (faults.exploded | faults.exploded_again) & (away <= PROVED * STEADY)
    are_near = _way(window.trusted.theta, window.good.theta, widths) <= PROVED * STEADY
    trusted_level = _next_trusted_level(
        window, costs.mean, trusts=trusts, ends=ends, measures=measures, are_near=are_near
    )
    trusted_level = jnp.where(innocent, jnp.maximum(trusted_level, costs.padded_mean), trusted_level)
    level = _next_level(
        guard, window, phase, costs.mean, trusted_level, ends=ends, is_good=is_good, expands=faults.expands
    )
    after = Window(
        total=jnp.where(restarts, 0, costs.total),
        weight=jnp.where(restarts, 0, costs.weight),
        level=jnp.where(
            faults.trusted_is_worse,
            window.rival_level,
            jnp.where(innocent, jnp.maximum(window.level, costs.padded_mean), level),
        ),
        step_scale=jnp.where(saved, jnp.minimum(TRUST * window.step_scale, 1), window.step_scale),
        count=jnp.where(ends, 0, window.count + 1).astype(jnp.int32),
        probation=jnp.maximum(window.probation - 1, 0),
        used_trusted=(window.used_trusted & phase.on_probation & ~swaps) | faults.exploded_again | leaves,
        rollbacks=window.rollbacks,
        begun=choose(ends, Snapshot(theta, a_hat), window.begun),
        good=choose(swaps, window.trusted, choose(saved, window.begun, window.good)),
        trusted=choose(swaps | trial_ends, window.good, choose(trusts | leaves, window.begun, window.trusted)),
        trusted_level=trusted_level,
        rival_level=jnp.where(faults.exploded_again | leaves, costs.mean, jnp.where(trial_ends, 0, window.rival_level)),
        lowest=window.lowest,
        steady=steady,
        away=jnp.where(ends | faults.trusted_is_worse, 0, away),
    )
    exploded = faults.exploded | swaps
    return after, exploded, faults.unstable, saved


class _Phase(NamedTuple):
    """What the guard knows before it adds the cost of a step."""

    level: Array
    """The level that costs are compared with, at least `cost_floor`."""
    level_known: Array
    on_probation: Array
    ends_probation: Array
    """Whether this is the last step of a probation."""

    @property
    def is_watched(self) -> Array:
        """Whether the cost can cause a rollback to the last good θ."""
        return self.level_known & ~self.on_probation


class _Costs(NamedTuple):
    """The sums of costs of a window, with the cost of this step."""

    total: Array
    weight: Array
    mean: Array
    padded_mean: Array
    """The mean as if the costs before the window were zero: a few bad steps in a new window cause no rollback."""


class _Faults(NamedTuple):
    """The reasons for a rollback, and whether the closed loop expands."""

    exploded: Array
    exploded_again: Array
    """The restored θ is no better, because θ moved during its window, and the trusted θ is expected to be better. Then
    the trusted θ and â are tried."""
    trusted_is_worse: Array
    """The trial has ended, and the trusted θ costs more than the last good θ did before it. Then the last good θ and â
    are restored again."""
    unstable: Array
    expands: Array


def _find_phase(guard: Guard, window: Window) -> _Phase:
    level = jnp.maximum(window.level, guard.cost_floor)
    return _Phase(level, jnp.isfinite(window.level) & (level > 0), window.probation > 0, window.probation == 1)


def _shift_costs(window: Window, cost: Array) -> Window:
    """Return the window with the lowest cost so far as the zero of all costs; costs that are not negative change
    nothing."""
    lowest = jnp.minimum(window.lowest, cost)
    shift = window.lowest - lowest
    return eqx.tree_at(
        lambda w: (w.total, w.level, w.trusted_level, w.rival_level, w.lowest),
        window,
        (
            window.total + shift * window.weight,
            window.level + shift,
            jnp.where(window.trusted_level > 0, window.trusted_level + shift, 0),
            jnp.where(window.rival_level > 0, window.rival_level + shift, 0),
            lowest,
        ),
    )


def _add_cost(guard: Guard, window: Window, phase: _Phase, cost: Array) -> _Costs:
    assert guard.rollback is not None
    size = guard.window
    # Limit the cost of one step, so that a single outlier cannot cause a rollback.
    cost = jnp.where(phase.level_known, jnp.minimum(cost, guard.rollback * max(size, 4) / 2 * phase.level), cost)
    total, weight = (1 - 1 / size) * window.total + cost, (1 - 1 / size) * window.weight + 1
    # The weight is below `size`, unless the sums were loaded from an agent with another window.
    return _Costs(total, weight, total / weight, total / jnp.maximum(weight, size))


def _find_faults(guard: Guard, window: Window, phase: _Phase, costs: _Costs, rho: Any, learning: Any) -> _Faults:
    assert guard.rollback is not None
    exploded = phase.is_watched & learning & (costs.padded_mean > guard.rollback * phase.level)
    may_repeat = phase.level_known & phase.on_probation & learning & ~window.used_trusted
    trusted_is_better = costs.padded_mean > guard.rollback * window.trusted_level
    far_above = costs.padded_mean > guard.rollback * guard.rollback * phase.level
    too_high = (
        phase.ends_probation
        & (costs.mean > _highest_level(guard, window.trusted_level))
        & _differ(window.good, window.trusted)
    )
    exploded_again = may_repeat & (trusted_is_better & far_above | too_high)
    trusted_is_worse = phase.ends_probation & (window.rival_level > 0) & (costs.mean > window.rival_level) & learning
    if guard.cost_ceiling is not None:
        above = learning & (costs.padded_mean + window.lowest > guard.cost_ceiling)
        exploded = exploded | (above & ~phase.on_probation)
        exploded_again = exploded_again | (above & phase.on_probation & ~window.used_trusted)
    expands = unstable = jnp.asarray(False)
    if rho is not None and guard.contraction is not None:
        expands = rho > guard.contraction
        # A new window has too few steps to judge stability.
        unstable = phase.is_watched & learning & ~exploded & expands & (window.weight > guard.window / 2)
    return _Faults(exploded, exploded_again, trusted_is_worse, unstable, expands)


def _differ(one: Snapshot, other: Snapshot) -> Array:
    return jnp.any(ravel_pytree(one.theta)[0] != ravel_pytree(other.theta)[0])


def _highest_level(guard: Guard, trusted_level: Array) -> Array:
    """Return the highest level: c times the cost of the trusted θ, or infinity if that cost is not known."""
    assert guard.rollback is not None
    known = trusted_level > 0
    return jnp.where(known, guard.rollback * jnp.maximum(trusted_level, guard.cost_floor), jnp.inf)


def _next_trusted_level(
    window: Window, mean: Array, *, trusts: Any, ends: Any, measures: Any, are_near: Array
) -> Array:
    before = window.trusted_level
    near = jnp.minimum(jnp.maximum(mean, 0.99 * before), 1.15 * before)
    measured = jnp.where(trusts, near, before)
    anew = jnp.where(are_near, jnp.maximum(mean, FALL * before), mean)
    return jnp.where(measures | (ends & (before == 0)), anew, measured)


def _next_level(
    guard: Guard,
    window: Window,
    phase: _Phase,
    mean: Array,
    trusted_level: Array,
    *,
    ends: Any,
    is_good: Any,
    expands: Any,
) -> Array:
    """Return the level after this step; the level changes only when a window ends.

    The level follows the highest recent mean: it falls by at most 15 % per window, so that the next manoeuvre after a
    rest does not look like an explosion. After a window that was not good the level rises slowly, unless the window
    measured the cost of the restored gains. The level stays below a multiple of the cost of the trusted gains. If the
    loop expands even with the restored gains, or from the beginning, there is no good θ to go back to: the level is
    unknown, and the tuner may move θ freely.
    """
    probation_ends = phase.ends_probation
    risen = window.level + jnp.where(is_good | probation_ends, 1, 0.125) * (mean - window.level)
    moved = jnp.where(mean < window.level, jnp.maximum(mean, FALL * window.level), risen)
    level = jnp.where(phase.level_known, moved, mean)
    level = jnp.minimum(level, _highest_level(guard, trusted_level))
    level = jnp.where((probation_ends | ~phase.level_known) & expands, jnp.inf, level)
    return jnp.where(ends & (~phase.on_probation | probation_ends | ~phase.level_known), level, window.level)


def _way(start: PyTree, end: PyTree, widths: Any) -> Array:
    """Return the distance of two θ, in widths of Θ."""
    flat = ravel_pytree(end)[0]
    widths = jnp.asarray(widths, flat.dtype)
    unit: Any = jnp.where(widths > 0, widths, jnp.ones_like(widths))
    share = (flat - ravel_pytree(start)[0]) / unit
    return jnp.sqrt(jnp.sum(share * share))


def is_suspect(window: Window) -> Array:
    """Return whether the tuner can have caused a rollback: not if θ stayed near the trusted θ."""
    return window.away > PROVED * STEADY


def go_back(guard: Guard, window: Window, is_suspect: Array) -> Window:
    """Return the window right after the last good θ and â were restored. `window` is that after `judge`.

    The tuner's steps become shorter if the tuner `is_suspect`.
    """
    shorter = jnp.maximum(BACKOFF * window.step_scale, LEAST)
    zero, none = jnp.zeros_like(window.total), jnp.zeros_like(window.count)
    return Window(
        total=zero,
        weight=zero,
        level=window.level,
        step_scale=jnp.where(is_suspect, shorter, window.step_scale),
        count=none,
        probation=jnp.full_like(window.probation, PROBATION * guard.window),
        used_trusted=window.used_trusted,
        rollbacks=window.rollbacks + 1,
        begun=window.good,
        good=window.good,
        trusted=window.trusted,
        trusted_level=window.trusted_level,
        rival_level=window.rival_level,
        lowest=window.lowest,
        steady=none,
        away=zero,
    )
