"""The guard, which keeps a controller safe while it learns: its settings, its state and its decisions.

All functions are pure. `Agent`, `simulate` and the firmware run the same functions, with either engine.
`guarded_step.py` calls them around each step of a controller.
"""

import enum
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..problem.constraints import Unconstrained
from ..problem.projected_step import constraint_of
from .controller import Controller
from .self_oscillation import Swings

PROBATION = 2
"""After a rollback, θ does not move for this many windows, while the cost of the restored θ is measured."""
BACKOFF, TRUST, LEAST = 0.5, 1.01, 1 / 1024
"""Factors on the length of the tuner's steps: a rollback multiplies the length by `BACKOFF`, a good window by `TRUST`.
The product stays between `LEAST` and 1; `LEAST` is above zero so that the steps can grow again."""


class Decision(enum.IntFlag):
    """The decisions of a guard at one step; several can apply at the same step."""

    REFUSED = 1
    """The measurement, or the observation of the residual, was not used, because it or a number computed from it is not
    finite or too large: nothing was learned."""
    SATURATED = 2
    """The control was at or beyond the actuator's limits, and was clipped to them."""
    LIMITED = 4
    """The step of θ was shortened to the length `rate`."""
    HELD = 8
    """Gains were not allowed to grow, because too many steps saturate."""
    RESET = 16
    """The sensitivity y was larger than `y_limit`, and was reset."""
    EXPLODED = 32
    """Rollback because the cost exploded, or because x stayed above `x_limit`: the last good θ and â were restored."""
    UNSTABLE = 64
    """Rollback because the closed loop stopped contracting: the last good θ and â were restored."""
    STILL = 128
    """θ did not move: the controller is paused, frozen, or on probation after a rollback."""
    SAVED = 256
    """A window ended with a normal cost: its first θ and â are now the last good θ and â."""
    DAMPED = 4096
    """The loop oscillated by itself, and gains were lowered."""

    def __str__(self) -> str:
        return ", ".join(decision.name.lower() for decision in Decision if decision in self and decision.name) or "none"


class Mode(enum.IntEnum):
    """Which parts of the controller learn; with `LEARNING`, tuner and estimator do."""

    LEARNING = 0
    FROZEN = 1
    """Only the estimator learns."""
    PAUSED = 2
    """Nothing learns."""


def _limits(name: str, value: Any, ok: Any, expected: str) -> Any:
    """Return `value` as a float or a tuple of floats: both are hashable, so JAX can treat them as static."""
    try:
        array = np.asarray(value, float if not isinstance(value, bool) else object)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if array.dtype == object or array.ndim > 1 or not array.size or not np.all(ok(array)):
        raise ArgumentError(name, expected, arguments.describe(value))
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


def _share(value: Any) -> float | None:
    expected = "a number > 0 and < 1, or None"
    return None if value is None else _limits("swing", value, lambda a: (a > 0) & (a < 1) & (a.ndim == 0), expected)


class Guard(eqx.Module):
    r"""Settings that keep a controller safe while it learns.

    `x_limit`, `f_limit`, `rate`, `authority`, `swing`, `y_limit`, `rollback` and `contraction` are off if they are
    None.

    - `x_limit`, `f_limit`: limits on the absolute value of the measured x and of the observed residual: one number, or
      one for each component. A measurement above its limit, or one that contains NaN or infinity, is **refused**:
      nothing is learned from it.
    - `bridge`: if a measurement is refused, the prediction that the model made one step earlier replaces x, at most
      `bridge` times in a row. After that, the raw measurement is used if it is finite; otherwise the previous control
      is repeated. The control is always finite.
    - `u_low`, `u_high`: the actuator's range, (m,) or one number; u is clipped to this range.
    - `rate`: the longest step of θ, as a share of the tuner's Θ: $\|W^{-1} (\theta_{t+1} - \theta_t)\|_2$, where W is
      the diagonal matrix of the widths of Θ (`constraint.widths`). A longer step is shortened.
    - `authority`: if the share of saturated steps, over about the last `window` steps, exceeds `authority`, no gain may
      grow: no component of θ moves in its direction of `growth`. `growth` is (d,) or one number: 1 where a larger
      component is a higher gain, −1 where a smaller component is a higher gain, 0 where the component is not a gain.
    - `swing`: a share, below 1, of the range that u has used in about the last `window` steps; by default the rule is
      off. A swing is a way of u by at least this share, and by more than the noise of u, against the direction of the
      last swing. One change of the reference explains 3 swings. After 4 more swings, over one or more changes, the loop
      oscillates by itself. Then θ does not follow the tuner: the gains that `growth` names fall by a step of length
      `rate`, each in proportion to the size of its gradient. This ends when a change of the reference causes at most 3
      swings, or when u makes no swing for half a `window`. The tuner then starts anew. The reference is
      that of a `LoopContext`; a system without one counts as a system whose reference rests. `swing` needs `rate` and
      both limits of u. `Loop` uses 0.25.
    - `y_limit`: the largest allowed $\max |y_t|$. A larger y shows that the closed loop no longer contracts, so θ does
      not move, and the tuner resets y.
    - `rollback`: a factor c > 1 on the cost. The mean cost of about the last `window` steps is compared with the level,
      which is the mean cost of good windows. The cost must not be negative.
        - A window with a mean cost of at most √c times the level is good: the θ and â at its beginning become the last
          good θ and â.
        - A rollback happens if the mean cost exceeds c times the level, if the tuner's running estimate ρ̂ (see its
          `contraction_memory`) exceeds `contraction`, or if x is finite but above `x_limit` for more than `bridge`
          steps. The last good θ and â are restored together, at any
          distance; `rate` does not apply. Tuner and estimator forget the trajectory. θ then stays for two windows
          (probation), in which the level is measured again. From then on the tuner's steps are half as long; each good
          window makes them 1 % longer.
        - During probation, the trusted θ and â are restored if the mean cost exceeds both c² times the level and c
          times the mean cost of the trusted window. The trusted θ and â are those of the first window, or of the last
          good window in which θ did not move, for example while learning was paused. The second condition matters
          after learning: a disturbance that θ did not cause can cost much more than the level, but the first θ would
          cost more still. Then the last good θ stays.
    - `cost_floor`: levels below this cost count as this cost. Set it if the robot rests between its tasks.

    If the guard changes a step of θ, it projects the new θ onto the tuner's Θ. The decisions are in `Info.guard`, in
    `Run.guard` and, for an `Agent`, in the log. By default, `Agent` uses a guard with default settings, which do not
    limit u; `simulate` uses no guard.

    !!! Example

        >>> import selftune as st
        >>> guard = st.Guard(x_limit=[0.5, 4.0], u_low=-2.0, u_high=2.0, rate=0.002, window=1000)
        >>> careless = st.Guard(rate=None, y_limit=None, authority=None, rollback=None)
        >>> str(st.Decision(5))
        'refused, limited'
    """

    __repr__ = settings_text.show

    x_limit: float | tuple[float, ...] | None = _limit("x_limit")
    f_limit: float | tuple[float, ...] | None = _limit("f_limit")
    bridge: int = eqx.field(static=True, converter=lambda v: arguments.whole("bridge", v), default=100)
    u_low: float | tuple[float, ...] = eqx.field(
        static=True,
        converter=lambda v: _limits("u_low", v, lambda a: a == a, "a number, or one for each control"),
        default=-math.inf,
    )
    u_high: float | tuple[float, ...] = eqx.field(
        static=True,
        converter=lambda v: _limits("u_high", v, lambda a: a == a, "a number, or one for each control"),
        default=math.inf,
    )
    rate: float | None = _above("rate", 0.1, 0)
    authority: float | None = _above("authority", 0.2, 0)
    growth: float | tuple[float, ...] = eqx.field(
        static=True,
        converter=lambda v: _limits("growth", v, lambda a: np.isin(a, (-1, 0, 1)), "−1, 0 or 1 for each θ"),
        default=1.0,
    )
    swing: float | None = eqx.field(static=True, converter=_share, default=None)
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
            raise ArgumentError("u_low, u_high", "u_low < u_high", f"{self.u_low} and {self.u_high}")

    @property
    def is_clipping(self) -> bool:
        return bool(np.any(np.isfinite([*np.atleast_1d(self.u_low), *np.atleast_1d(self.u_high)])))

    def check(self, n: int, m: int, k: int, d: int) -> None:
        """Raise `ValueError` if a limit does not fit the sizes of the controller."""
        sizes = {"x_limit": n, "f_limit": k, "u_low": m, "u_high": m, "growth": d}
        for name, size in sizes.items():
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != size:
                raise ArgumentError(name, f"one number or {size}", f"{len(value)}")


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
    """Whether the trusted θ and â were restored in this probation."""
    rollbacks: Int[Array, ""]
    begun: Snapshot
    """The θ and â at the beginning of the window."""
    good: Snapshot
    trusted: Snapshot
    """The first θ and â, or those of the last good window in which θ did not move."""
    trusted_level: Float[Array, ""]
    """The mean cost of the window that began with the trusted θ and â; 0 before it is known."""


class GuardState(eqx.Module):
    """The guard's state between two steps; None for a part that is off."""

    mode: Int[Array, ""]
    missed: Int[Array, ""]
    """How many measurements in a row were refused."""
    saturated: Float[Array, ""] | None
    """The share of the last steps that saturated."""
    window: Window | None
    swings: Swings | None = None


class GuardInfo(eqx.Module):
    """The guard's report of one step, for people and metrics."""

    decisions: Int[Array, ""]
    """The sum of `Decision`s."""
    saturated: Float[Array, ""] | None
    """The share of the last steps that saturated."""
    cost: Float[Array, ""] | None
    """The mean cost of the window; `level` is the cost of good windows that it is compared with."""
    level: Float[Array, ""] | None
    step_scale: Float[Array, ""] | None
    """The factor, at most 1, on the tuner's steps; rollbacks make it smaller."""


def start(guard: Guard, theta: PyTree, a_hat: PyTree, dtype: Any, swings: Swings | None = None) -> GuardState:
    zero, none = jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
    window = None
    if guard.rollback is not None:
        now = Snapshot(theta, a_hat)
        level, step_scale, used_trusted = jnp.full((), jnp.inf, dtype), jnp.ones((), dtype), jnp.asarray(False)
        window = Window(zero, zero, level, step_scale, none, none, used_trusted, none, now, now, now, zero)
    watched = guard.authority is not None and guard.is_clipping
    return GuardState(none, none, zero if watched else None, window, swings)


def within(limit: float | tuple[float, ...] | None, value: Array) -> Any:
    """Return whether every component is finite and at most its limit in absolute value."""
    bound = np.minimum(np.inf if limit is None else limit, np.finfo(value.dtype).max)
    return jnp.all(jnp.abs(value) <= jnp.asarray(bound, value.dtype))


def clip(guard: Guard, u: Float[Array, " m"]) -> tuple[Float[Array, " m"], Any]:
    """Return the control clipped to the actuator's range, and whether u was at or beyond the limits."""
    if not guard.is_clipping:
        return u, jnp.asarray(False)
    low, high = jnp.asarray(guard.u_low, u.dtype), jnp.asarray(guard.u_high, u.dtype)
    return jnp.minimum(jnp.maximum(u, low), high), jnp.any((u <= low) | (u >= high))


def limit_step(
    guard: Guard, controller: Controller, state: GuardState, theta: PyTree, wanted: PyTree, *, still: Any, forget: Any
) -> tuple[PyTree, Any, Any]:
    """Return the θ that the guard allows on the way from `theta` to `wanted`; and whether `rate`, and whether
    `authority`, changed the step."""
    flat, unravel = ravel_pytree(theta)
    step = ravel_pytree(wanted)[0] - flat
    held = limited = jnp.asarray(False)
    changed = jnp.asarray(False)
    if state.saturated is not None and guard.authority is not None:
        growth = jnp.asarray(guard.growth, flat.dtype)
        grows = step * growth > 0
        held = (state.saturated > guard.authority) & jnp.any(grows)
        step, changed = jnp.where(held & grows, 0, step), held
    constraint = constraint_of(controller.tuner)
    if guard.rate is not None:
        widths = (Unconstrained() if constraint is None else constraint).widths(theta)
        share = jnp.where(widths > 0, step / jnp.where(widths > 0, widths, 1), 0)
        square = jnp.sum(share * share)
        limited = square > guard.rate * guard.rate
        step = jnp.where(limited, guard.rate * jax.lax.rsqrt(jnp.where(limited, square, 1)) * step, step)
        changed = changed | limited
    if state.window is not None:
        changed = changed | (state.window.step_scale < 1)
        step = state.window.step_scale * step
    moved = unravel(flat + step)
    if constraint is not None:
        moved = constraint.project(moved)
    moved = choose(changed, moved, wanted)  # an unchanged step is the tuner's, bit for bit
    stays = still | forget
    return choose(stays, theta, moved), limited & ~stays, held & ~stays


def judge(
    guard: Guard, window: Window, cost: Array, rho: Any, theta: PyTree, a_hat: PyTree, *, learning: Any
) -> tuple[Window, Any, Any, Any]:
    """Add one step's cost to the window, and decide whether to roll back.

    `theta` and `a_hat` are those of the next step. There is no rollback unless `learning`. Returns the window, and
    whether the cost exploded, whether the loop is unstable, and whether a good window was saved.
    """
    assert guard.rollback is not None
    phase = _find_phase(guard, window)
    costs = _add_cost(guard, window, phase, cost)
    faults = _find_faults(guard, window, phase, costs, rho, learning)
    rolls_back = faults.exploded | faults.unstable | faults.exploded_again
    ends = (window.count + 1 >= guard.window) & ~rolls_back
    is_good = (~phase.level_known | (costs.mean <= math.sqrt(guard.rollback) * phase.level)) & ~faults.expands
    saved = ends & ~phase.on_probation & is_good
    theta_stayed = jnp.all(ravel_pytree(window.begun.theta)[0] == ravel_pytree(theta)[0])
    trusts = ends & is_good & theta_stayed
    # Start the sums again after a window that measured a new level: outliers and the transient must not stay in them.
    restarts = ends & ~phase.is_watched
    after = Window(
        total=jnp.where(restarts, 0, costs.total),
        weight=jnp.where(restarts, 0, costs.weight),
        level=_next_level(window, phase, costs.mean, ends=ends, is_good=is_good, expands=faults.expands),
        step_scale=jnp.where(saved, jnp.minimum(TRUST * window.step_scale, 1), window.step_scale),
        count=jnp.where(ends, 0, window.count + 1).astype(jnp.int32),
        probation=jnp.maximum(window.probation - 1, 0),
        used_trusted=window.used_trusted & phase.on_probation | faults.exploded_again,
        rollbacks=window.rollbacks,
        begun=choose(ends, Snapshot(theta, a_hat), window.begun),
        good=choose(faults.exploded_again, window.trusted, choose(saved, window.begun, window.good)),
        trusted=choose(trusts, window.begun, window.trusted),
        trusted_level=jnp.where(trusts | (ends & (window.trusted_level == 0)), costs.mean, window.trusted_level),
    )
    exploded = faults.exploded | faults.exploded_again
    return choose(rolls_back, go_back(guard, after), after), exploded, faults.unstable, saved


class _Phase(NamedTuple):
    """What the guard knows before it adds the cost of a step."""

    level: Array
    """The level that costs are compared with, at least `cost_floor`."""
    level_known: Array
    on_probation: Array

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
    the trusted θ and â are restored."""
    unstable: Array
    expands: Array


def _find_phase(guard: Guard, window: Window) -> _Phase:
    level = jnp.maximum(window.level, guard.cost_floor)
    return _Phase(level, jnp.isfinite(window.level) & (level > 0), window.probation > 0)


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
    exploded_again = (
        may_repeat & trusted_is_better & (costs.padded_mean > guard.rollback * guard.rollback * phase.level)
    )
    expands = unstable = jnp.asarray(False)
    if rho is not None and guard.contraction is not None:
        expands = rho > guard.contraction
        # A new window has too few steps to judge stability.
        unstable = phase.is_watched & learning & ~exploded & expands & (window.weight > guard.window / 2)
    return _Faults(exploded, exploded_again, unstable, expands)


def _next_level(window: Window, phase: _Phase, mean: Array, *, ends: Any, is_good: Any, expands: Any) -> Array:
    """Return the level after this step; the level changes only when a window ends.

    The level follows the highest recent mean: it falls by at most 15 % per window, so that the next manoeuvre after a
    rest does not look like an explosion. After a window that was not good the level rises slowly, unless the window
    measured the cost of the restored gains. If the loop expands even with the restored gains, or from the beginning,
    there is no good θ to go back to: the level is unknown, and the tuner may move θ freely.
    """
    probation_ends = phase.on_probation & (window.probation <= 1)
    risen = window.level + jnp.where(is_good | probation_ends, 1, 0.125) * (mean - window.level)
    moved = jnp.where(mean < window.level, jnp.maximum(mean, 0.85 * window.level), risen)
    level = jnp.where(phase.level_known, moved, mean)
    level = jnp.where((probation_ends | ~phase.level_known) & expands, jnp.inf, level)
    return jnp.where(ends & (~phase.on_probation | probation_ends | ~phase.level_known), level, window.level)


def go_back(guard: Guard, window: Window) -> Window:
    """Return the window right after the last good θ and â were restored."""
    zero, none = jnp.zeros_like(window.total), jnp.zeros_like(window.count)
    return Window(
        total=zero,
        weight=zero,
        level=window.level,
        step_scale=jnp.maximum(BACKOFF * window.step_scale, LEAST),
        count=none,
        probation=jnp.full_like(window.probation, PROBATION * guard.window),
        used_trusted=window.used_trusted,
        rollbacks=window.rollbacks + 1,
        begun=window.good,
        good=window.good,
        trusted=window.trusted,
        trusted_level=window.trusted_level,
    )


def choose(condition: Any, value: PyTree, other: PyTree) -> PyTree:
    """Return `value` if `condition` is true, else `other`."""
    return jax.tree.map(lambda value, other: jnp.where(condition, value, other), value, other)
