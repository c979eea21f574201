"""The settings of a guard, which keeps a controller safe while it learns, and the names of its decisions.

Each concept of a guard has its own file: `step_limits.py`, `stuck_sensor.py`, `failsafe.py`, `innovation_gate.py`,
`self_oscillation.py` and `rollback.py`. `guard_state.py` joins their states, and `guarded_step.py` calls them around
each step of a controller. All functions are pure. `Agent`, `simulate` and the firmware run the same functions, with
either engine.
"""

import enum
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError


class Decision(enum.IntFlag):
    """The decisions of a guard at one step; several can apply at the same step.

    !!! Example

        >>> import selftune as st
        >>> decisions = st.Decision(5)  # a number from `run.guard`
        >>> print(decisions, st.Decision.LIMITED in decisions)
        refused, limited True
    """

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
    FAILSAFE = 512
    """The safe control replaced the control, because too many steps in a row were refused; with `latch`, until
    `clear`."""
    GATED = 1024
    """The observation was an outlier: its innovation was much larger than usual, and nothing was learned from it."""
    REPAIRED = 2048
    """Numbers that the controller remembers gave NaN or infinity, although the measurement was good: the tuner was
    reset. The second time in a row, the last good θ and â were restored, and everything else started again."""
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


def _bound(name: str, default: float, each: str) -> Any:
    expected = f"a number, or one for each {each}"
    return eqx.field(static=True, converter=lambda v: _limits(name, v, lambda a: a == a, expected), default=default)


def _above(name: str, default: float | None, least: float) -> Any:
    expected = f"a number > {least:g}, or None"
    return eqx.field(
        static=True,
        converter=lambda v: None if v is None else _limits(name, v, lambda a: (a > least) & (a.ndim == 0), expected),
        default=default,
    )


def _safe_control(value: Any) -> Any:
    expected = "a finite number, one for each control, a function of x, or None"
    return value if value is None or callable(value) else _limits("safe_u", value, np.isfinite, expected)


def _directions(name: str, value: Any) -> Any:
    return _limits(name, value, lambda a: np.isin(a, (-1, 0, 1)), "−1, 0 or 1 for each θ")


def _share(value: Any) -> float | None:
    expected = "a number > 0 and < 1, or None"
    return None if value is None else _limits("swing", value, lambda a: (a > 0) & (a < 1) & (a.ndim == 0), expected)


class Guard(eqx.Module):
    r"""Settings that keep a controller safe while it learns.

    `x_limit`, `f_limit`, `stuck`, `safe_u`, `gate`, `rate`, `burst`, `authority`, `swing`, `y_limit`, `rollback`,
    `cost_ceiling` and `contraction` are off if they are None.

    - `x_limit`, `f_limit`: limits on the absolute value of the measured x and of the observed residual: one number, or
      one for each component. A measurement above its limit, or one that contains NaN or infinity, is **refused**:
      nothing is learned from it.
    - `x_low`, `x_high`: the range of values that a working sensor can give, one number or one for each measured signal;
      by default there is none. A value outside the range counts as NaN: it is refused, and it is never used for a
      control. So a broken wire that reads 0 °C is refused with `x_low=5.0`. `x_limit` is for a plant that moves too
      far: after `bridge` steps, its measurement is used, because a control for it is better than none.
    - `stuck`: a sensor counts as stuck after this many steps in a row at which a component of the measurement is
      repeated bit for bit, although the model predicts that it moves. Then the measurement is refused. By default off.
      Set it above the longest repetition of a coarse encoder; 3 suits sensors with noise.
    - `bridge`: if a measurement is refused, the prediction that the model made one step earlier replaces x, at most
      `bridge` times in a row. After that, the raw measurement is used if it is finite; otherwise the previous control
      is repeated. The control is always finite.
    - `safe_u`, `safe_after`, `latch`: the failsafe. A step is *blind* if its control does not come from a good
      measurement of this step: the measurement is refused, the context contains NaN, the reference is not finite, or
      the policy's control is not finite. After `safe_after` blind steps in a row, the safe control `safe_u` replaces
      the control: a number, one for each control, or a JAX function of the last good x. It is clipped to the
      actuator's range. With `latch`, the safe control then stays, and every `act` returns the result code "the safe
      control is in use", until the caller calls `Agent.clear` (in C, `NAME_clear`). Without `latch`, the first good
      measurement ends it. The default, zero, suits motors and heaters; a quadrotor needs the thrust of hovering.
      `safe_u=None` switches the failsafe off: the last control is held as long as the steps are blind.
    - `gate`: the innovation gate. An observation is an outlier if a component of its innovation is more than `gate`
      times as large as the mean of its past; nothing is learned from it. After five outliers in a row the world has
      changed: the next one is accepted. The gate acts after 50 observations.
    - `u_low`, `u_high`: the actuator's range, (m,) or one number; u is clipped to this range.
    - `rate`: the longest step of θ, as a share of the tuner's Θ: $\|W^{-1} (\theta_{t+1} - \theta_t)\|_2$, where W is
      the diagonal matrix of the widths of Θ (`constraint.widths`). A longer step is shortened. With `burst`, steps that
      are shorter than `rate` leave a reserve of at most `burst`, which later steps may use: after a rest, one step may
      have the length `rate` + `burst`, but the mean of many steps is at most `rate`. Most gradients of a loop come in
      bursts, after changes of the reference. If only these steps were shortened, the small steps between them would
      decide where θ goes.
    - `authority`: if the share of saturated steps, over about the last `window` steps, exceeds `authority`, no gain may
      grow: no component of θ moves in its direction of `growth`. `growth` is (d,) or one number: 1 where a larger
      component is a higher gain, −1 where a smaller component is a higher gain, 0 where the component is not a gain.
    - `swing`: a share, below 1, of the range that u has used in about the last `window` steps; by default the rule is
      off. A swing is a movement of u by at least this share, and by more than the noise of u, against the direction of
      the last swing. One change of the reference explains 3 swings. After 4 more swings, over one or more changes, the
      loop oscillates by itself. Then θ does not follow the tuner: the gains that `calming` names fall by a step of
      length `rate`, each in proportion to the size of its gradient. `calming` has numbers like those of `growth`, and
      is `growth` by default. Give 0 for a gain that damps, such as the derivative gain of a PID. The rule ends when a
      change of the reference causes at most 3 swings, or when u makes no swing for half a `window`. The tuner then
      starts anew. The reference is that of a `LoopContext`; a system without one counts as a system whose reference
      rests. `swing` needs `rate` and both limits of u. `Loop` uses 0.25.
    - `y_limit`: the largest allowed $\max |y_t W|$, in units of x, with W as in `rate`: so far would x move, to first
      order, if θ moved through the whole of Θ. A larger y shows that the closed loop no longer contracts, so θ does not
      move, and the tuner resets y.
    - `rollback`: a factor c > 1 on the cost. The mean cost of about the last `window` steps is compared with the level,
      which is the mean cost of good windows. Negative costs are shifted: the lowest cost so far counts as zero.
        - A window with a mean cost of at most √c times the level is good: the θ and â at its beginning become the last
          good θ and â.
        - A rollback happens if the mean cost exceeds c times the level, if the tuner's running estimate ρ̂ (see its
          `contraction_memory`) exceeds `contraction`, or if x is finite but above `x_limit` for more than `bridge`
          steps. The last good θ and â are restored together, at any
          distance; `rate` does not apply. Tuner and estimator forget the trajectory. θ then stays for two windows
          (probation), in which the level is measured again. From then on the tuner's steps are half as long, unless θ
          was near the trusted θ; each good window makes them 1 % longer.
        - During probation, the trusted θ and â are tried if the mean cost exceeds both c² times the level and c
          times the mean cost of the trusted window. The trusted θ and â are those of the first window, or of the last
          good window in which θ did not move, for example while learning was paused, or those of a θ that has proved
          itself: it moved by at most 1.25 % of Θ in each of four good windows in a row, and cost no more than the
          trusted θ. The second condition matters
          after learning: a disturbance that θ did not cause can cost much more than the level, but the first θ would
          cost more still. Then the last good θ stays.
        - If the trusted θ is restored after an explosion, the θ and â of the beginning of the window are kept. If the
          trusted θ then costs more than they did, the explosion had another cause, such as a larger disturbance: they
          come back at the end of probation, for a second probation.
        - The level is at most c times the mean cost of the trusted window, so that it cannot follow a cost that grows
          slowly for ever. If the restored θ still costs more than that at the end of probation, the trusted θ and â are
          tried for two windows, and the cheaper of the two stays.
        - An explosion while θ is within 5 % of Θ of the trusted θ is not the tuner's: the task itself can cost this
          much. The last good θ and â are restored, but the level and the cost of the trusted θ rise to the mean cost
          of the explosion, and then fall by at most 15 % per window. So manoeuvres that are rarer than the windows
          cause a few rollbacks, and not one each.
    - `cost_ceiling`: an absolute limit on the mean cost of about the last `window` steps. Above it, no window is good,
      and the last good θ and â are restored, whatever the level is.
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
    x_low: float | tuple[float, ...] = _bound("x_low", -math.inf, "measured signal")
    x_high: float | tuple[float, ...] = _bound("x_high", math.inf, "measured signal")
    stuck: int | None = eqx.field(
        static=True, converter=lambda v: None if v is None else arguments.count("stuck", v), default=None
    )
    bridge: int = eqx.field(static=True, converter=lambda v: arguments.whole("bridge", v), default=100)
    safe_u: float | tuple[float, ...] | Callable[[Any], Any] | None = eqx.field(
        static=True, converter=_safe_control, default=0.0
    )
    safe_after: int = eqx.field(static=True, converter=lambda v: arguments.whole("safe_after", v), default=200)
    latch: bool = eqx.field(static=True, default=True)
    gate: float | None = _above("gate", 30.0, 1)
    u_low: float | tuple[float, ...] = _bound("u_low", -math.inf, "control")
    u_high: float | tuple[float, ...] = _bound("u_high", math.inf, "control")
    rate: float | None = _above("rate", 0.1, 0)
    burst: float | None = _above("burst", None, 0)
    authority: float | None = _above("authority", 0.2, 0)
    growth: float | tuple[float, ...] = eqx.field(
        static=True,
        converter=lambda v: _directions("growth", v),
        default=1.0,
    )
    swing: float | None = eqx.field(static=True, converter=_share, default=None)
    calming: float | tuple[float, ...] | None = eqx.field(
        static=True, converter=lambda v: None if v is None else _directions("calming", v), default=None
    )
    y_limit: float | None = _above("y_limit", 1e8, 0)
    rollback: float | None = _above("rollback", 4.0, 1)
    window: int = eqx.field(static=True, converter=lambda v: arguments.count("window", v), default=500)
    contraction: float | None = _above("contraction", 1.0, 0)
    cost_floor: float = eqx.field(
        static=True,
        converter=lambda v: _limits("cost_floor", v, lambda a: (a >= 0) & (a.ndim == 0), "a number ≥ 0"),
        default=0.0,
    )
    cost_ceiling: float | None = _above("cost_ceiling", None, 0)

    def __check_init__(self) -> None:
        arguments.instance("latch", self.latch, bool)
        for low, high in (("u_low", "u_high"), ("x_low", "x_high")):
            least, most = np.asarray(getattr(self, low)), np.asarray(getattr(self, high))
            sizes_differ = least.ndim and most.ndim and least.shape != most.shape
            if sizes_differ or not np.all(least < most):
                got = f"{getattr(self, low)} and {getattr(self, high)}"
                raise ArgumentError(f"{low}, {high}", f"{low} < {high}", got)

    @property
    def has_range(self) -> bool:
        """Whether the sensors have a range."""
        return bool(np.any(np.isfinite([*np.atleast_1d(self.x_low), *np.atleast_1d(self.x_high)])))

    @property
    def is_clipping(self) -> bool:
        return bool(np.any(np.isfinite([*np.atleast_1d(self.u_low), *np.atleast_1d(self.u_high)])))

    def check(self, n: int, m: int, k: int, d: int, dtype: Any) -> None:
        """Raise `ValueError` if a setting does not fit the sizes or the dtype of the controller."""
        sizes = {
            "x_limit": n,
            "x_low": n,
            "x_high": n,
            "f_limit": k,
            "u_low": m,
            "u_high": m,
            "safe_u": m,
            "growth": d,
            "calming": d,
        }
        for name, size in sizes.items():
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != size:
                raise ArgumentError(name, f"one number or {size}", f"{len(value)}")
        largest = float(np.finfo(dtype).max)
        for name in ("cost_floor", "cost_ceiling", "rollback", "gate"):
            if (value := getattr(self, name)) is not None and value > largest:
                raise ArgumentError(name, f"at most {largest:.4g}, the largest {np.dtype(dtype).name}", f"{value:g}")
