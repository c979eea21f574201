"""The PID controller, with everything that a PID on a real plant has."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.constraints import AbstractConstraint, Box
from ..problem.memory import Memory
from . import base
from .anti_windup import AbstractAntiWindup, BackCalculation
from .base import AbstractPolicy, Inputs, Parameter

GAINS = ("kp", "ki", "kd", "feedforward")
"""The names of the gains, in the usual order."""
FILTER_RATIO = 10.0
"""The derivative's time constant divided by that of its filter, unless the user gives one."""


def _after_refusal(before: PyTree, after: PyTree, u: Array) -> PyTree:
    """The integral stays, the derivative follows the predicted output, and the last control is the one sent."""
    kept = {"integral": before["integral"]} if "integral" in before else {}
    sent = {"u": u} if "u" in before else {}
    return {**after, **kept, **sent}


class PID(AbstractPolicy):
    r"""A PID controller for one variable, or one for each axis.

    With the error $e = r - y$, the sampling period h and the limits of the actuator:

    $$v_t = k_p (b\, r_t - y_t) + I_t + D_t + k_r r_t - M \hat f_t, \qquad u_t = \mathrm{limit}(v_t)$$
    $$D_t = \frac{T_f D_{t-1} + k_d (\delta_t - \delta_{t-1})}{T_f + h}, \quad \delta_t = c\, r_t - y_t, \qquad
    I_{t+1} = I_t + k_i h\, e_t + \frac{h}{T_t} (u_t - v_t)$$

    (Åström and Murray, *Feedback Systems*, section "Implementation" of the chapter on PID control.) The memory holds
    the integral *term* I, which already contains $k_i$, so a change of $k_i$ does not make u jump.

    If the sampling period varies, h in D and in the rate limit is the time since the last step, and h in I is the
    period up to the next step.

    θ has the logarithms of the gains: `log_kp`, `log_ki`, `log_kd`. A gain that is 0 is not in θ: a PI controller has
    no `log_kd`. Gains may be negative, all together, for a plant that reacts in the other direction. Then θ has the
    logarithms of their sizes. A PID can be made inside a function that JAX traces (`jit`, `vmap`, `grad`). There, a
    gain without a known value counts as other than 0.

    **Arguments:**

    - `kp`, `ki`, `kd`: the start gains: numbers for one variable, vectors (m,) for one PID on each axis.
    - `derivative_filter`: the time constant $T_f$ in seconds. By default $T_f = T_d / 10$ with $T_d = k_d / k_p$ of the
      current gains, so that the derivative amplifies noise at most ten times as much as $k_p$. A
      `Loop` also bounds this default; see `with_filter_within`.
    - `tune_filter`: if True, the logarithm of $T_f$ is a part of θ, as `log_tf`.
    - `tune_times`: if True, θ has the logarithms of the times $T_i = k_p / k_i$ and $T_d = k_d / k_p$ of the standard
      form, as `log_ti` and `log_td`, in place of $k_i$ and $k_d$; see `standard`.
    - `b`, `c`: the set-point weights. With c = 0, the default, the derivative acts on the measurement alone, so a step
      of the reference causes no peak. With b = c = 1, P and D act on the error.
    - `u_min`, `u_max`: the limits of u. `rate_limit`: the largest change of u in one second.
    - `anti_windup`: `BackCalculation()`, `Clamping()` or `Windup()`.
    - `feedforward`: $k_r$, a gain on the reference, in θ as `log_feedforward`.
    - `compensation`: M, a number, a vector (m,) or a matrix (m, k). $M \hat f$ is the control with the effect of the
      residual: for a residual in the units of u, M = 1. None ignores the residual.
    - `u_start`: u before the first step. The integral term starts there, and so does the rate limit. For a plant that
      already runs, `Loop.agent(u=…)` sets the start more exactly.
    - `constraint`: Θ; by default all gains between 1/100 and 100 times the start gains. For a PID with kp and ki, give
      `st.Box(low, high)` of dictionaries like θ: `{"log_kp": math.log(0.5), "log_ki": math.log(0.1)}`.
    - `units`: the units of u and of the output, for tables.

    !!! Example

        >>> from selftune import policies
        >>> pid = policies.PID(kp=2.0, ki=1.0, kd=0.1, u_min=-10.0, u_max=10.0, units=("V", "rad"))
        >>> [f"{p.name} ({p.unit})" for p in pid.parameters]
        ['log kd (V·s/rad)', 'log ki (V/(rad·s))', 'log kp (V/rad)']
        >>> memory = pid.memory.initial
        >>> for _ in range(3):
        ...     inputs = policies.Inputs.of(output=[0.0], reference=[1.0], dt=0.5)
        ...     u, memory = pid(inputs, memory, pid.theta)
        ...     print(u)
        [2.]
        [2.5]
        [3.]
    """

    theta: dict[str, Array]
    constraint: AbstractConstraint
    signs: dict[str, Array]
    derivative_filter: Array | None
    longest_filter: Array | None
    b: Array
    c: Array
    u_min: Array | None
    u_max: Array | None
    rate_limit: Array | None
    anti_windup: AbstractAntiWindup
    compensation: Array | None
    u_start: Float[Array, " m"]
    units: tuple[str, str] = eqx.field(static=True)
    has_default_constraint: bool = eqx.field(static=True)

    def __init__(
        self,
        kp: Any,
        ki: Any = 0.0,
        kd: Any = 0.0,
        *,
        derivative_filter: Any = None,
        tune_filter: bool = False,
        tune_times: bool = False,
        b: Any = 1.0,
        c: Any = 0.0,
        u_min: Any = None,
        u_max: Any = None,
        rate_limit: Any = None,
        anti_windup: AbstractAntiWindup | None = None,
        feedforward: Any = 0.0,
        compensation: Any = None,
        u_start: Any = 0.0,
        constraint: AbstractConstraint | None = None,
        units: tuple[str, str] = ("u", "y"),
    ):
        gains = _gains(kp=kp, ki=ki, kd=kd, feedforward=feedforward)
        m = next(iter(gains.values())).size
        self.signs = {name: jnp.sign(gain) for name, gain in gains.items()}
        sizes = {name: jnp.abs(gain) for name, gain in gains.items()}
        if tune_times:
            sizes = _as_times(sizes)
        self.derivative_filter = self.longest_filter = None
        if derivative_filter is not None:
            self.derivative_filter = arguments.variances("derivative_filter", derivative_filter)
        elif "kd" in gains and "kp" not in gains:
            raise ArgumentError("derivative_filter", "a time constant in seconds, because kp is 0", "None")
        self.b, self.c = (_weight(name, weight, m) for name, weight in (("b", b), ("c", c)))
        self.u_min, self.u_max = base.bound("u_min", u_min, m), base.bound("u_max", u_max, m)
        base.ordered(self.u_min, self.u_max)
        self.rate_limit = None if rate_limit is None else base.bound("rate_limit", _positive(rate_limit), m)
        self.anti_windup = BackCalculation() if anti_windup is None else anti_windup
        arguments.instance("anti_windup", self.anti_windup, AbstractAntiWindup)
        self.compensation = None if compensation is None else arguments.real_array("compensation", compensation)
        self.u_start = jnp.array(arguments.fit_shape("u_start", arguments.real_array("u_start", u_start), (m,)))
        if not (isinstance(units, tuple) and len(units) == 2 and all(isinstance(unit, str) for unit in units)):
            raise ArgumentError("units", 'the units of u and of the output, such as ("V", "rad")', f"{units!r}")
        self.units = units
        if tune_filter:
            sizes["tf"] = _like_gains(self._filter_time(gains), gains)
        if isinstance(self.anti_windup, BackCalculation) and self.anti_windup.tunable:
            sizes["tt"] = _like_gains(self._tracking_time(gains), gains)
        self.theta = {f"log_{name}": jnp.log(size) for name, size in sizes.items()}
        self.has_default_constraint = constraint is None
        self.constraint = base.checked_constraint(constraint, self.theta, base.log_box(self.theta))

    def __repr__(self) -> str:
        has_times = "log_ti" in self.theta or "log_td" in self.theta
        return base.described(self, self.gains, tune_filter="log_tf" in self.theta, tune_times=has_times)

    @classmethod
    def standard(cls, kp: Any, ti: Any = None, td: Any = None, **options: Any) -> "PID":
        r"""Return a PID in the standard form, $k_p (e + \frac{1}{T_i} \int e + T_d \dot e)$.

        θ has `log_kp`, `log_ti` and `log_td`. None for `ti` or `td` leaves out the term. `options`: the other arguments
        of `PID`.

        !!! Example

            >>> from selftune import policies
            >>> pid = policies.PID.standard(kp=2.0, ti=4.0, td=0.5)
            >>> print({name: round(float(gain), 3) for name, gain in pid.gains(pid.theta).items()})
            {'kp': 2.0, 'ki': 0.5, 'kd': 1.0, 'tf': 0.05, 'tt': 1.414}
            >>> pid.growth  # log kp, log td, log ti: a longer integral time is a lower gain
            (1, 1, -1)
        """
        kp = arguments.real_array("kp", kp)
        ki = 0.0 if ti is None else kp / arguments.variances("ti", ti)
        kd = 0.0 if td is None else kp * arguments.variances("td", td)
        return cls(kp, ki, kd, tune_times=True, **options)

    def constraint_within(self, integral_time: float) -> AbstractConstraint:
        r"""Return Θ without the integral gains that are too low to be tuned: $T_i = k_p / k_i$ at most `integral_time`.

        The derivative of the cost by $\log k_i$ is proportional to $k_i$. While the plant has no load, a tuner lowers
        $k_i$; at a gain that is a thousand times too low, the derivative is almost zero, and $k_i$ cannot rise again
        when a load appears. The bound holds for the start value of $k_p$, and never excludes the start gains. A
        constraint that the user gave stays as it is.

        !!! Example

            >>> import math
            >>> from selftune import policies
            >>> pid = policies.PID(kp=2.0, ki=1.0)
            >>> low = pid.constraint_within(integral_time=20.0).low["log_ki"]
            >>> print(round(math.exp(pid.constraint.low["log_ki"]), 3), round(math.exp(low), 3))
            0.01 0.1
        """
        constraint, theta = self.constraint, self.theta
        if not self.has_default_constraint or not isinstance(constraint, Box) or "log_kp" not in theta:
            return constraint
        low, high = dict(constraint.low), dict(constraint.high)
        longest = math.log(integral_time)
        if "log_ki" in theta:
            least = jnp.maximum(low["log_ki"], theta["log_kp"] - longest)
            low["log_ki"] = jnp.minimum(theta["log_ki"], least)
        if "log_ti" in theta:
            high["log_ti"] = jnp.maximum(theta["log_ti"], jnp.minimum(high["log_ti"], longest))
        return Box(low, high)

    def with_filter_within(self, time: float) -> "PID":
        r"""Return this PID with a default derivative filter of at most `time` seconds: $T_f = \min(T_d / 10,$ `time`).

        If $k_d / k_p$ is much too large, $T_d / 10$ is so long that $k_d$ hardly matters: the filtered derivative then
        acts like a proportional gain of $10 k_p$, and a tuner cannot find the way back. A filter that the user gave, or
        that is tuned, stays as it is.

        !!! Example

            >>> from selftune import policies
            >>> pid = policies.PID(kp=0.1, kd=2.0)
            >>> [round(float(one.gains(one.theta)["tf"]), 2) for one in (pid, pid.with_filter_within(0.5))]
            [2.0, 0.5]
        """
        longest = arguments.positive("time", time)
        return eqx.tree_at(lambda pid: pid.longest_filter, self, longest, is_leaf=lambda leaf: leaf is None)

    @property
    def memory(self) -> Memory | None:
        zero, first = jnp.zeros_like(self.u_start), {}
        if self._integrates:
            first["integral"] = self.u_start
        if self._differentiates:
            # Before the first measurement there is no difference: `started` is 0 then, and 1 later.
            first |= {"derivative": zero, "point": zero, "started": zero[0]}
        if self.rate_limit is not None:
            first["u"] = self.u_start
        return Memory(first, refused=_after_refusal) if first else None

    @property
    def limits(self) -> tuple[Array, Array]:
        return base.as_limits(self.u_min, self.u_max, self.u_start)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        u, y = self.units
        units = {"kp": f"{u}/{y}", "ki": f"{u}/({y}·s)", "kd": f"{u}·s/{y}", "feedforward": f"{u}/{y}"}
        units |= dict.fromkeys(("ti", "td", "tf", "tt"), "s")
        return base.logarithms(self.theta, units, growth={"ti": -1, "tf": -1, "tt": 0}, damps=("kd", "td"))

    def gains(self, theta: PyTree) -> dict[str, Array]:
        """Return kp, ki, kd and feedforward, as far as the controller has them, and the times of filter and tracking
        ("tf" and "tt") in seconds."""
        sizes = {name.removeprefix("log_"): jnp.exp(value) for name, value in theta.items()}
        if "ti" in sizes:
            sizes["ki"] = sizes["kp"] / sizes["ti"]
        if "td" in sizes:
            sizes["kd"] = sizes["kp"] * sizes["td"]
        # JAX sorts the names of a dictionary when it copies a PID; people expect the usual order.
        names = [name for name in GAINS if name in self.signs]
        gains = {name: self.signs[name].astype(sizes[name].dtype) * sizes[name] for name in names}
        if self._differentiates:
            gains["tf"] = sizes["tf"] if "tf" in sizes else self._filter_time(gains)
        if self._integrates and isinstance(self.anti_windup, BackCalculation):
            gains["tt"] = sizes["tt"] if "tt" in sizes else self._tracking_time(gains)
        return gains

    def __call__(self, inputs: Inputs, memory: PyTree, theta: PyTree) -> tuple[Float[Array, " m"], PyTree]:
        y, r, h, elapsed = inputs.output, inputs.reference, inputs.dt, inputs.elapsed
        base.fits_output(y, self.u_start.size)
        gains, after = self.gains(theta), {}

        v = jnp.zeros_like(y)
        if "kp" in gains:
            v = v + gains["kp"] * (self.b.astype(y.dtype) * r - y)
        if "feedforward" in gains:
            v = v + gains["feedforward"] * r
        v = base.compensated(v, self.compensation, inputs.f)
        if self._differentiates:
            point = self.c.astype(y.dtype) * r - y
            change = jnp.where(memory["started"] > 0, point - memory["point"], jnp.zeros_like(point))
            derivative = (gains["tf"] * memory["derivative"] + gains["kd"] * change) / (gains["tf"] + elapsed)
            v = v + derivative
            after |= {"derivative": derivative, "point": point, "started": jnp.ones_like(memory["started"])}
        if self._integrates:
            v = v + memory["integral"]

        u = base.saturate(v, self.u_min, self.u_max)
        if self.rate_limit is not None:
            reach = self.rate_limit.astype(y.dtype) * elapsed
            u = jnp.clip(u, memory["u"] - reach, memory["u"] + reach)
            after["u"] = u
        if self._integrates:
            step = gains["ki"] * h * (r - y)
            step = self.anti_windup.step(step, v, u, h, gains.get("tt", h))
            after["integral"] = memory["integral"] + step
        return u, after or None

    def memory_at(self, u: Any, inputs: Inputs, theta: PyTree) -> PyTree:
        r"""Return the memory with which the first control for these inputs is u: the start on a plant that runs.

        $I = u - k_p (b\, r - y) - k_r r + M \hat f$, so that the integral carries the rest of the control. The rate
        limit counts from u.

        !!! Example

            >>> from selftune import policies
            >>> pid = policies.PID(kp=2.0, ki=1.0, u_min=0.0, u_max=100.0)
            >>> inputs = policies.Inputs.of(output=[55.0], reference=[60.0], dt=0.5)
            >>> memory = pid.memory_at([56.5], inputs, pid.theta)
            >>> print(memory["integral"], pid(inputs, memory, pid.theta)[0])
            [46.5] [56.5]
        """
        if not self._integrates:
            expected = "None, because the PID has no integral (ki), which would start at the present control"
            raise ArgumentError("u", expected, arguments.describe(u))
        assert self.memory is not None
        u = jnp.array(arguments.fit_shape("u", arguments.real_array("u", u), self.u_start.shape))
        first = {**self.memory.start(inputs.output.dtype), "integral": jnp.zeros_like(inputs.output)}
        limits = ("u_min", "u_max", "rate_limit")
        free = eqx.tree_at(
            lambda pid: [getattr(pid, name) for name in limits], self, [None] * 3, is_leaf=lambda leaf: leaf is None
        )
        memory = {**first, "integral": u - free(inputs, first, theta)[0]}
        return {**memory, "u": u} if "u" in memory else memory

    @property
    def _integrates(self) -> bool:
        return "ki" in self.signs

    @property
    def _differentiates(self) -> bool:
        return "kd" in self.signs

    def _filter_time(self, gains: dict[str, Array]) -> Array:
        if self.derivative_filter is not None:
            return self.derivative_filter.astype(gains["kd"].dtype)
        time = gains["kd"] / (FILTER_RATIO * gains["kp"])
        return time if self.longest_filter is None else jnp.minimum(time, self.longest_filter.astype(time.dtype))

    def _tracking_time(self, gains: dict[str, Array]) -> Array:
        """The given time, or sqrt(Ti Td) = sqrt(kd / ki), or Ti = kp / ki; zero, which counts as one period, for an
        integral alone."""
        given = getattr(self.anti_windup, "tracking_time", None)
        if given is not None:
            return given.astype(gains["ki"].dtype)
        if "kd" in gains:
            return jnp.sqrt(gains["kd"] / gains["ki"])
        return gains["kp"] / gains["ki"] if "kp" in gains else jnp.zeros_like(gains["ki"])


def _gains(**given: Any) -> dict[str, Array]:
    """Return the gains that are not 0, all with the same shape, after checking them."""
    arrays = {name: arguments.real_array(name, value) for name, value in given.items()}
    for name, array in arrays.items():
        if array.ndim > 1 or array.size == 0:
            raise ArgumentError(name, "a number, or a vector with one number for each axis", arguments.describe(array))
    try:
        shape = jnp.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items() if array.ndim)
        raise ArgumentError(
            "kp", "gains with one number for each axis, the same number of axes in all", shapes
        ) from None
    # A gain that JAX traces has no value yet: it counts as other than 0, and its sign is not checked.
    values = {name: np.asarray(v).astype(arrays[name].dtype) for name, v in given.items() if arguments.is_known(v)}
    gains = {
        name: jnp.broadcast_to(array, shape)
        for name, array in arrays.items()
        if name not in values or np.any(values[name] != 0)
    }
    values = {name: np.broadcast_to(value, shape) for name, value in values.items() if name in gains}
    for name, value in values.items():
        if np.any(value == 0):
            raise ArgumentError(name, "a gain other than 0 on every axis, or 0 on every axis", f"{value}")
    if not {"kp", "ki", "kd"} & set(gains):
        raise ArgumentError("kp", "at least one gain of kp, ki and kd other than 0", f"{given['kp']!r}")
    signs = [np.sign(value) for name, value in values.items() if name != "feedforward"]
    if not all(np.array_equal(sign, signs[0]) for sign in signs):
        raise ArgumentError("kp", "the same sign as ki and kd", ", ".join(f"{n}={v}" for n, v in values.items()))
    return gains


def _as_times(sizes: dict[str, Array]) -> dict[str, Array]:
    """Return kp, ti and td in place of kp, ki and kd."""
    if "kp" not in sizes:
        raise ArgumentError("kp", "a number other than 0, because the standard form multiplies by kp", "0")
    times = {name: size for name, size in sizes.items() if name not in ("ki", "kd")}
    if "ki" in sizes:
        times["ti"] = sizes["kp"] / sizes["ki"]
    if "kd" in sizes:
        times["td"] = sizes["kd"] / sizes["kp"]
    return times


def _like_gains(time: Array, gains: dict[str, Array]) -> Array:
    return jnp.broadcast_to(time, next(iter(gains.values())).shape)


def _weight(name: str, weight: Any, m: int) -> Array:
    array = arguments.real_array(name, weight)
    if array.shape not in ((), (m,)):
        raise ArgumentError(name, "a number, or one for each axis", arguments.describe(array))
    return array


def _positive(rate: Any) -> Array:
    return arguments.variances("rate_limit", rate)
