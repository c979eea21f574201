"""The settings of a guard from a dry run, each with the rule that gives it."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.constraints import Unconstrained
from .guard import Guard
from .run_fields import RunFields

MARGIN = 10.0
"""A measurement or residual is refused if it is this many times larger than in the dry run."""
SENSITIVITY_MARGIN = 20.0
"""y is reset if it is this many times larger than in the dry run."""
TIME_CONSTANTS = 10
"""A window of the guard has at least this many time constants of the closed loop."""
GIVEN = ("u_low", "u_high", "x_low", "x_high", "stuck", "safe_u", "safe_after", "rate", "burst")
"""The settings that a suggestion takes from the guard that it starts from, and lists."""
SPIKE = 5
"""Peaks are those of the median over this many steps, so that a fault of the sensor of two steps is no peak."""


class GuardRule(NamedTuple):
    """One setting of a suggested guard: its name, its value, and the rule that gives the value.

    !!! Example

        >>> import selftune as st
        >>> rule = st.GuardRule(setting="x_limit", value=(20.0,), rule="10 × the scale 2")
        >>> print(f"{rule.setting} = {rule.value}: {rule.rule}")
        x_limit = (20.0,): 10 × the scale 2
    """

    setting: str
    value: Any
    rule: str


@dataclass(frozen=True)
class GuardSuggestion:
    """The result of `suggest_guard`; `print` it for a table of settings, values and rules.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.1))
        >>> scenario = st.Scenario(jnp.ones(1), a_star=jnp.ones((50, 1)), w=jnp.zeros((50, 1)))
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> suggestion = st.suggest_guard(run)
        >>> print(suggestion.rules[0].setting)
        x_limit
        >>> suggestion.guard.x_limit == suggestion.rules[0].value
        True
    """

    guard: Guard
    rules: tuple[GuardRule, ...]

    def __str__(self) -> str:
        cells = [(one.setting, _text(one.value), one.rule) for one in self.rules]
        widths = [max(len(row[i]) for row in cells) for i in range(2)]
        return "\n".join(f"{name:{widths[0]}}  {value:>{widths[1]}}  {rule}" for name, value, rule in cells)


def suggest_guard(
    run: RunFields,
    *,
    base: Guard | None = None,
    x_scale: Any = None,
    f_scale: Any = None,
    time_constant: float = 0.0,
) -> GuardSuggestion:
    r"""Return a guard whose limits come from a dry run, and the rule of each limit.

    A *peak* is the largest value of the median over 5 steps, so that a fault of a sensor that lasts one or two steps
    does not raise a limit. Rows with NaN or infinity do not count.

    - `x_limit`: 10 times the peak of each measured signal, or 10 times its scale if that is more.
    - `f_limit`: the same for the observed residual.
    - `y_limit`: 20 times the peak of the sensitivity, in widths of Θ.
    - `window`: that of `base`, but at least 10 time constants of the closed loop.
    - `cost_floor`: the mean cost of the dry run, divided by the guard's `rollback`. After a long rest, a task that
      costs as much as in the dry run then causes no rollback.
    - `cost_ceiling`: 100 times the mean cost of the dry run, as x may be 10 times as large; that of `base` if given.
    - All other settings, such as `u_low`, `u_high`, `rate` and `burst`, are those of `base`. So is a limit whose
      signal the run did not record, or whose signal did not move.

    **Arguments:**

    - `run`: the dry run, a `Run` or a `History`, in which the plant does its normal task.
    - `base`: the other settings; for a `Loop`, give `loop.guard()`.
    - `x_scale`, `f_scale`: the typical size of each measured signal and of each residual, a number or one for each.
    - `time_constant`: that of the closed loop, in steps, as `check_contraction` measures it.

    !!! Example

        >>> import selftune as st
        >>> from selftune import models, policies
        >>> loop = st.Loop(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), policies.PID(kp=1.0, ki=2.0))
        >>> run = loop.simulate(1_000, seed=0)
        >>> suggestion = st.suggest_guard(run, base=loop.guard(), x_scale=2.0)
        >>> print([rule.setting for rule in suggestion.rules][:6])
        ['x_limit', 'f_limit', 'y_limit', 'window', 'cost_floor', 'cost_ceiling']
        >>> print([rule.setting for rule in suggestion.rules][6:])
        ['u_low', 'u_high', 'x_low', 'x_high', 'stuck', 'safe_u', 'safe_after', 'rate', 'burst']
        >>> suggestion.guard.x_limit
        (20.0,)
    """
    arguments.instance("run", run, RunFields)
    arguments.instance("base", base, Guard, optional=True)
    base = Guard() if base is None else base
    tau = float(arguments.number("time_constant", time_constant, lambda v: 0 <= v < math.inf, "a number >= 0"))
    recorded = {name: _rows(rows) for name, rows in _recorded(run).items() if rows is not None and name in _USED}
    observed = None
    if "f_hat" in recorded and "innovation" in recorded:
        observed = recorded["f_hat"] + recorded["innovation"]
    rules = [
        _limit("x_limit", recorded.get("measured", recorded.get("x")), x_scale, base.x_limit),
        _limit("f_limit", observed, f_scale, base.f_limit),
    ]
    peak = _peaks(_in_widths(recorded["y"], run)).max() if {"y", "theta"} <= recorded.keys() else 0.0
    if peak > 0:
        rules.append(GuardRule("y_limit", SENSITIVITY_MARGIN * peak, f"{SENSITIVITY_MARGIN:g} × the peak {peak:.3g}"))
    else:
        rules.append(GuardRule("y_limit", base.y_limit, "given: the run has no sensitivity that moves"))
    least = math.ceil(TIME_CONSTANTS * tau)
    if least > base.window:
        rules.append(GuardRule("window", least, f"{TIME_CONSTANTS} time constants of {tau:.3g} steps"))
    else:
        rules.append(GuardRule("window", base.window, f"given, and at least {TIME_CONSTANTS} time constants"))
    rules += _cost_limits(recorded.get("cost"), base)
    rules += [GuardRule(name, getattr(base, name), "given") for name in GIVEN]
    settings = {one.setting: one.value for one in rules}
    return GuardSuggestion(Guard(**(_settings(base) | settings)), tuple(rules))


_USED = ("x", "measured", "f_hat", "innovation", "y", "theta", "cost")


def _settings(guard: Guard) -> dict[str, Any]:
    return {name: getattr(guard, name) for name in Guard.__dataclass_fields__}


def _recorded(run: RunFields) -> dict[str, Any]:
    recorded = getattr(run, "recorded", None)
    if not isinstance(recorded, dict):
        raise ArgumentError("run", "a Run or a History", arguments.describe(run))
    cost = recorded.get("cost")
    if cost is not None and (not arguments.is_known(cost) or np.ndim(cost) != 1 or len(cost) < SPIKE):
        expected = f"one run of at least {SPIKE} recorded steps, whose numbers are known"
        raise ArgumentError("run", expected, arguments.describe(cost))
    return recorded


def _rows(rows: Any) -> np.ndarray:
    """Return the rows as (T, components)."""
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(rows)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _in_widths(y: np.ndarray, run: RunFields) -> np.ndarray:
    """Return the sensitivities for θ in widths of the tuner's Θ, as the guard compares them."""
    theta = jax.tree.map(lambda rows: rows[0], run.theta)
    constraint = getattr(run, "constraint", None)
    widths = np.asarray((Unconstrained() if constraint is None else constraint).widths(theta), float)
    return (y.reshape(len(y), -1, widths.size) * widths).reshape(len(y), -1)


def _filtered(rows: np.ndarray) -> np.ndarray:
    """Return the median over `SPIKE` steps of each component, without the rows that are not finite."""
    rows = rows[np.all(np.isfinite(rows), axis=1)]
    if len(rows) < SPIKE:
        return np.zeros((1, rows.shape[1]))
    return np.median(np.lib.stride_tricks.sliding_window_view(rows, SPIKE, axis=0), axis=-1)


def _peaks(rows: np.ndarray) -> np.ndarray:
    return np.max(_filtered(np.abs(rows)), axis=0)


def _limit(name: str, rows: np.ndarray | None, scale: Any, given: Any) -> GuardRule:
    if rows is None:
        return GuardRule(name, given, "given: the run has not recorded it")
    peaks = _peaks(rows)
    wide = np.zeros(len(peaks))
    if scale is not None:
        array = arguments.non_negatives(name.replace("limit", "scale"), scale)
        wide = np.asarray(arguments.fit_shape(name.replace("limit", "scale"), array, peaks.shape), float)
    sizes = np.maximum(peaks, wide)
    if not np.all(sizes > 0):
        return GuardRule(name, given, "given: a signal did not move")
    rule = f"{MARGIN:g} × the peak {_text(peaks)}" + ("" if scale is None else f" or the scale {_text(wide)}")
    return GuardRule(name, tuple((MARGIN * sizes).tolist()), rule)


def _cost_limits(rows: np.ndarray | None, base: Guard) -> list[GuardRule]:
    """Return the rules of the lowest and of the highest cost that the guard compares with."""
    mean = 0.0 if rows is None else float(np.mean(_filtered(rows)))
    if base.rollback is None or not mean > 0:
        why = "given: there is no rollback, or no cost above 0"
        return [GuardRule(name, getattr(base, name), why) for name in ("cost_floor", "cost_ceiling")]
    floor = GuardRule("cost_floor", mean / base.rollback, f"the mean cost {mean:.3g} / the rollback {base.rollback:g}")
    ceiling = GuardRule("cost_ceiling", MARGIN**2 * mean, f"{MARGIN**2:g} × the mean cost {mean:.3g}")
    if base.cost_ceiling is not None:
        ceiling = GuardRule("cost_ceiling", base.cost_ceiling, "given")
    return [floor, ceiling]


def _text(value: Any) -> str:
    if isinstance(value, tuple | np.ndarray):
        texts = [f"{number:.3g}" for number in value]
        return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
    if callable(value):
        return "a function of x"
    return "off" if value is None else f"{value:.4g}"
