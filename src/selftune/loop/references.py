"""Reference signals: the wanted values of the outputs over time.

A reference is an object with `rows(key, steps, dt, q)`, which returns one row (q,) for each step. Random references
need the key; the others ignore it.
"""

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError


class AbstractReference(eqx.Module):
    """The wanted values of the outputs, from time 0 on."""

    __repr__ = settings_text.show

    transients: ClassVar[int] = 1
    """How many transients a period shows. A level that is held shows one; a path moves all the time."""

    @abc.abstractmethod
    def rows(self, key: PRNGKeyArray, steps: int, dt: float, q: int) -> Float[Array, "T q"]:
        """Return the reference of each step; step t is at the time t · dt."""

    @abc.abstractmethod
    def period(self, dt: float) -> float:
        """Return after how many steps the signal repeats, or how long it holds a level; infinity if neither."""


def _finite(name: str) -> Callable[[Any], Array]:
    return lambda value: arguments.real_array(name, value)


def _seconds(name: str) -> Callable[[Any], float]:
    return lambda value: float(arguments.positive(name, value))


def _times(steps: int, dt: float) -> np.ndarray:
    # NumPy computes the times in double precision, so that a long run in float32 has the right phase.
    return np.arange(steps) * float(dt)


def _spread(name: str, rows: Any, q: int) -> Array:
    """Return rows (T,) or (T, q) as (T, q)."""
    rows = jnp.asarray(rows)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.shape[1] not in (1, q):
        wanted = "one number for each step, for one output" if q == 1 else f"one number or {q} for each step"
        raise ArgumentError(name, wanted, arguments.describe(rows))
    return jnp.array(jnp.broadcast_to(rows, (rows.shape[0], q)))


class Hold(AbstractReference):
    """A constant reference.

    !!! Example

        >>> import jax
        >>> from selftune import references
        >>> print(references.Hold(2.0).rows(jax.random.key(0), steps=3, dt=0.1, q=1)[:, 0])
        [2. 2. 2.]
    """

    value: Any = eqx.field(converter=_finite("value"))

    def rows(self, key: PRNGKeyArray, steps: int, dt: float, q: int) -> Float[Array, "T q"]:
        return _spread("value", jnp.broadcast_to(self.value, (steps, *self.value.shape)), q)

    def period(self, dt: float) -> float:
        return math.inf


class Steps(AbstractReference):
    """Steps to random levels: every `hold` seconds, a new level is drawn from the range for each output.

    **Arguments:** `hold`: seconds between two steps; `low`, `high`: the range, each a number or one for each output.

    !!! Example

        >>> import jax
        >>> from selftune import references
        >>> rows = references.Steps(hold=0.2, low=-1.0, high=1.0).rows(jax.random.key(0), steps=6, dt=0.1, q=1)[:, 0]
        >>> bool(rows[0] == rows[1]), bool(rows[1] == rows[2]), bool(rows[2] == rows[3])
        (True, False, True)
    """

    hold: float = eqx.field(static=True, converter=_seconds("hold"))
    low: Any = eqx.field(converter=_finite("low"))
    high: Any = eqx.field(converter=_finite("high"))

    def __check_init__(self) -> None:
        if (raw := arguments.known(self.low, self.high)) and not np.all(raw[0] <= raw[1]):
            raise ArgumentError("low", "at most high", f"low={raw[0]}, high={raw[1]}")

    def rows(self, key: PRNGKeyArray, steps: int, dt: float, q: int) -> Float[Array, "T q"]:
        length = max(1, round(self.period(dt)))
        low, high = (_spread(name, value[None], q) for name, value in (("low", self.low), ("high", self.high)))
        drawn = jax.random.uniform(key, (-(-steps // length), q), low.dtype)
        return jnp.repeat(low + (high - low) * drawn, length, axis=0)[:steps]

    def period(self, dt: float) -> float:
        return self.hold / dt


class Square(AbstractReference):
    """A square wave: `high` in the first half of each period, `low` in the second.

    !!! Example

        >>> import jax
        >>> from selftune import references
        >>> print(references.Square(0.4, low=0.0, high=1.0).rows(jax.random.key(0), steps=6, dt=0.1, q=1)[:, 0])
        [1. 1. 0. 0. 1. 1.]
    """

    seconds: float = eqx.field(static=True, converter=_seconds("seconds"))
    low: Any = eqx.field(converter=_finite("low"))
    high: Any = eqx.field(converter=_finite("high"))

    def rows(self, key: PRNGKeyArray, steps: int, dt: float, q: int) -> Float[Array, "T q"]:
        # Half a sample earlier, so that rounding does not decide on which side of an edge a sample is.
        first = np.mod((_times(steps, dt) + 0.5 * dt) / self.seconds, 1.0) < 0.5
        low, high = (_spread(name, value[None], q) for name, value in (("low", self.low), ("high", self.high)))
        return jnp.where(first[:, None], high, low)

    def period(self, dt: float) -> float:
        return self.seconds / dt


class Ramp(AbstractReference):
    """A ramp from `start` with `slope` per second, which stays at `end` if that is given.

    !!! Example

        >>> import jax
        >>> from selftune import references
        >>> print(references.Ramp(slope=10.0, end=2.0).rows(jax.random.key(0), steps=4, dt=0.1, q=1)[:, 0])
        [0. 1. 2. 2.]
    """

    slope: Any = eqx.field(converter=_finite("slope"))
    start: Any = eqx.field(default=0.0, converter=_finite("start"))
    end: Any = eqx.field(default=None, converter=lambda v: None if v is None else _finite("end")(v))

    def rows(self, key: PRNGKeyArray, steps: int, dt: float, q: int) -> Float[Array, "T q"]:
        rows = jnp.atleast_1d(self.start) + jnp.asarray(_times(steps, dt), self.slope.dtype)[:, None] * self.slope
        if self.end is not None:
            rows = jnp.where(self.slope >= 0, jnp.minimum(rows, self.end), jnp.maximum(rows, self.end))
        return _spread("slope", rows, q)

    def period(self, dt: float) -> float:
        return math.inf


class Sine(AbstractReference):
    """A sine: `offset + amplitude · sin(2π · time / seconds + phase)`.

    !!! Example

        >>> import jax
        >>> from selftune import references
        >>> print(references.Sine(2.0, seconds=0.4).rows(jax.random.key(0), steps=4, dt=0.1, q=1)[:, 0].round(3))
        [ 0.  2.  0. -2.]
    """

    amplitude: Any = eqx.field(converter=_finite("amplitude"))
    seconds: float = eqx.field(static=True, converter=_seconds("seconds"))
    offset: Any = eqx.field(default=0.0, converter=_finite("offset"))
    phase: Any = eqx.field(default=0.0, converter=_finite("phase"))

    def rows(self, key: PRNGKeyArray, steps: int, dt: float, q: int) -> Float[Array, "T q"]:
        # The turns are reduced in double precision, before the sine: the phase stays exact in long runs.
        turns = np.mod(_times(steps, dt) / self.seconds, 1.0)
        angle = jnp.asarray(2 * np.pi * turns, self.amplitude.dtype)[:, None] + jnp.atleast_1d(self.phase)
        return _spread("amplitude", jnp.atleast_1d(self.offset) + self.amplitude * jnp.sin(angle), q)

    def period(self, dt: float) -> float:
        return self.seconds / dt


class Swing(AbstractReference):
    r"""A smooth periodic path of joints that starts at rest at its center, with its rates and accelerations.

    $$r_i = c_i + \frac{s_i}{1.299} \sin(k_i \varphi)(1 - \cos(k_i \varphi)), \qquad
    \varphi = 2\pi \cdot \text{time} / \text{seconds}$$

    A row has the j positions, then the j rates, then the j accelerations. If the plant asks for 4j numbers, as a
    quadrotor does, the jerks follow.

    **Arguments:** `center`: c, (j,); `size`: s, (j,), the largest distances; `turns`: k, j whole numbers;
    `seconds`: the length of a lap.

    !!! Example

        >>> import jax
        >>> from selftune import references
        >>> swing = references.Swing(center=[0.5], size=[0.2], turns=(1,), seconds=4.0)
        >>> rows = swing.rows(jax.random.key(0), steps=400, dt=0.01, q=3)
        >>> print(rows[0], f"{rows[:, 0].max():.3f}")
        [0.5 0.  0. ] 0.700
    """

    transients: ClassVar[int] = 10

    center: Any = eqx.field(converter=_finite("center"))
    size: Any = eqx.field(converter=_finite("size"))
    turns: tuple[int, ...] = eqx.field(
        static=True, converter=lambda turns: tuple(arguments.count("turns", turn) for turn in turns)
    )
    seconds: float = eqx.field(static=True, converter=_seconds("seconds"))

    def __check_init__(self) -> None:
        for name in ("center", "size"):
            if getattr(self, name).shape != (len(self.turns),):
                raise ArgumentError(name, f"{len(self.turns)} numbers, one for each joint", f"{getattr(self, name)}")

    def rows(self, key: PRNGKeyArray, steps: int, dt: float, q: int) -> Float[Array, "T q"]:
        if q not in (3 * len(self.turns), 4 * len(self.turns)):
            raise ArgumentError("reference", f"{q} numbers for each step", f"{3 * len(self.turns)}")
        turns = np.array(self.turns, float)
        phase = 2 * np.pi * np.mod(_times(steps, dt) / self.seconds, 1.0)[:, None] * turns
        pace = 2 * np.pi * turns / self.seconds
        size, center = (np.asarray(v, float) for v in (self.size, self.center))
        size = size / (0.75 * math.sqrt(3.0))
        position = center + size * (np.sin(phase) - 0.5 * np.sin(2 * phase))
        rate = size * pace * (np.cos(phase) - np.cos(2 * phase))
        acceleration = size * pace**2 * (2 * np.sin(2 * phase) - np.sin(phase))
        jerk = size * pace**3 * (4 * np.cos(2 * phase) - np.cos(phase))
        return jnp.asarray(np.concatenate([position, rate, acceleration, jerk], axis=1)[:, :q], self.center.dtype)

    def period(self, dt: float) -> float:
        return self.seconds / dt


class Recorded(AbstractReference):
    """A recorded signal, one row for each step, (T,) or (T, q). After its end, it starts again.

    !!! Example

        >>> import jax
        >>> from selftune import references
        >>> print(references.Recorded([0.0, 1.0, 3.0]).rows(jax.random.key(0), steps=5, dt=0.1, q=1)[:, 0])
        [0. 1. 3. 0. 1.]
    """

    values: Any = eqx.field(converter=_finite("values"))

    def __check_init__(self) -> None:
        if self.values.ndim not in (1, 2) or self.values.size == 0:
            raise ArgumentError("values", "an array (T,) or (T, q)", arguments.describe(self.values))

    def rows(self, key: PRNGKeyArray, steps: int, dt: float, q: int) -> Float[Array, "T q"]:
        return _spread("values", self.values[np.arange(steps) % self.values.shape[0]], q)

    def period(self, dt: float) -> float:
        return float(self.values.shape[0])


class Function(AbstractReference):
    """A function from the time in seconds to the wanted output: a number, or (q,).

    If JAX can trace the function, all times are computed at once. Otherwise, as for functions with `if`, of `math` or
    of NumPy, the function is called for each step.

    !!! Example

        >>> import jax, jax.numpy as jnp
        >>> from selftune import references
        >>> soft = references.Function(lambda seconds: 1.0 - jnp.exp(-seconds))
        >>> print(soft.rows(jax.random.key(0), steps=3, dt=1.0, q=1)[:, 0].round(2))
        [0.   0.63 0.86]
    """

    function: Callable[[Any], Any]

    def __check_init__(self) -> None:
        if not callable(self.function):
            raise ArgumentError("function", "a function from the time in seconds to a number", f"{self.function!r}")

    def rows(self, key: PRNGKeyArray, steps: int, dt: float, q: int) -> Float[Array, "T q"]:
        dtype = jnp.result_type(float)
        # In double precision, so that a long run in float32 has the right times.
        times = _times(steps, dt)
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            try:
                rows = np.asarray(jax.vmap(self._at)(times))
            except jax.errors.JAXTypeError:  # the function cannot be traced
                rows = np.stack([np.asarray(self._at(float(time))) for time in times])
        finite = np.all(np.isfinite(rows), axis=tuple(range(1, rows.ndim)))
        if not np.all(finite):
            at = int(np.argmin(finite))
            raise ArgumentError("function", "finite numbers", f"{rows[at]} at {times[at]:g} s")
        return _spread("function", rows.astype(dtype), q)

    def _at(self, time: Any) -> Array:
        wanted = self.function(time)
        if wanted is None:
            raise ArgumentError("function", "a function that returns a number, or one for each output", "None")
        return jnp.atleast_1d(wanted)

    def period(self, dt: float) -> float:
        return math.inf


def as_reference(value: Any) -> AbstractReference:
    """Return a reference from a number, an array with one row for each step, a function of time, or a reference."""
    if isinstance(value, AbstractReference):
        return value
    expected = "a reference of selftune.references, a number, an array, or a function of the time"
    if isinstance(value, type):
        raise ArgumentError("reference", expected, f"the class {value.__name__}, not an object of it")
    if callable(value):
        return Function(value)
    if isinstance(value, str):
        raise ArgumentError("reference", expected, arguments.describe(value))
    array = arguments.real_array("reference", value)
    if array.ndim > 2 or array.size == 0:
        raise ArgumentError("reference", "an array (T,) or (T, q)", arguments.describe(array))
    return Hold(array) if array.ndim == 0 else Recorded(array)
