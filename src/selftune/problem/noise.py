"""Random processes and parameter schedules, which generate sequences for a scenario."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError


class AbstractProcess(eqx.Module):
    r"""A process that generates a sequence: noise, or the schedule of a parameter.

    `process(key, steps, shape)` returns an array (steps, \*shape). `process.stream(key, shape)` represents the same
    numbers without storing them. Randomness is counter-based: the draw of step t depends only on `key` and t.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> class Coin(st.AbstractProcess):  # +1 or -1
        ...     def draw(self, key, t, shape, dtype):
        ...         return jax.random.rademacher(jax.random.fold_in(key, t), shape, dtype)
        ...     def start(self, key, shape, dtype):
        ...         return None  # no memory
        ...     def advance(self, state, draw):
        ...         return draw, None
        >>> w = Coin()(jax.random.key(0), 100, 2)
        >>> w.shape, bool((jnp.abs(w) == 1).all())
        ((100, 2), True)
    """

    __repr__ = settings_text.show

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, t: Int[Array, ""], shape: tuple[int, ...], dtype: Any) -> Array:
        """Return the random numbers of step t."""

    @abc.abstractmethod
    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> PyTree:
        """Return the state before step 0; None for a process without memory."""

    @abc.abstractmethod
    def advance(self, state: PyTree, draw: Array) -> tuple[Array, PyTree]:
        """Return the value of step t and the state for step t + 1."""

    def stream(self, key: PRNGKeyArray, shape: int | tuple[int, ...]) -> "Stream":
        """Return a stream of the same numbers. `simulate` draws them step by step, so memory does not grow with T."""
        return Stream(self, arguments.key("key", key), _shape(shape))

    def __call__(self, key: PRNGKeyArray, steps: int, shape: int | tuple[int, ...]) -> Float[Array, "steps ..."]:
        """Return an array of `steps` rows; row t is the value at step t."""
        return sample(self.stream(key, shape), arguments.whole("steps", steps), jnp.result_type(float))


@eqx.filter_jit
def sample(stream: "Stream", steps: int, dtype: Any) -> Array:
    process, key, shape = stream.process, stream.key, stream.shape
    # The steps of a period share one draw: to draw it at each step takes most of the time of a sweep's scenario.
    held = process.period if isinstance(process, PiecewiseConstant) else 1
    draws = jax.vmap(lambda t: process.draw(key, t, shape, dtype))(jnp.arange(0, steps, held))
    if held > 1:
        draws = draws[jnp.arange(steps) // held]
    state = process.start(key, shape, dtype)
    if state is None:
        return draws

    def step(state, draw):
        value, state = process.advance(state, draw)
        return state, value

    return jax.lax.scan(step, state, draws)[1]


class _Memoryless(AbstractProcess):
    """A process whose value at step t is its draw."""

    def start(self, key, shape, dtype):
        return None

    def advance(self, state, draw):
        return draw, None


class Stream(eqx.Module):
    """A process with its key and shape, from which a simulation draws step by step; see `AbstractProcess.stream`.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> w = st.Gaussian(0.1).stream(jax.random.key(0), 1)
        >>> scenario = st.Scenario(jnp.zeros(1), a_star=st.Constant(1.0).stream(jax.random.key(1), 1), w=w, steps=10**6)
        >>> len(scenario)  # a million steps, and no array of this length
        1000000
    """

    __repr__ = settings_text.show

    process: AbstractProcess
    key: PRNGKeyArray
    shape: tuple[int, ...] = eqx.field(static=True)

    def start(self, dtype: Any) -> PyTree:
        return self.process.start(self.key, self.shape, dtype)

    def next(self, state: PyTree, t: Int[Array, ""], dtype: Any) -> tuple[Array, PyTree]:
        return self.process.advance(state, self.process.draw(self.key, t, self.shape, dtype))


class OrnsteinUhlenbeck(AbstractProcess):
    r"""$w_0 = 0$, $w_{t+1} = \gamma w_t + \delta_t$ with $\delta_t \sim \mathcal N(0, \sigma^2)$ (simulation appendix).

    The paper simulates with this noise, but its main theorem does not cover it: Assumption "estimator and environment"
    requires $\|w_t\| \le \bar\epsilon$ and $E[w_t \mid \mathcal F_t'] = 0$, and this noise is unbounded and, for γ > 0,
    predictable. `Uniform` has both properties.

    **Arguments:** `decay`, γ in [0, 1); `sigma`, σ ≥ 0, a number or one for each component.

    !!! Example

        >>> import jax, selftune as st
        >>> w = st.OrnsteinUhlenbeck(decay=0.95, sigma=0.1)(jax.random.key(0), 1000, 1)
        >>> w.shape
        (1000, 1)
    """

    decay: Array = eqx.field(
        converter=lambda v: arguments.number("decay", v, lambda v: 0 <= v < 1, "a number in [0, 1)")
    )
    sigma: Array = eqx.field(converter=lambda v: arguments.non_negatives("sigma", v))

    def draw(self, key, t, shape, dtype):
        return _fit("sigma", self.sigma, shape, dtype) * jax.random.normal(jax.random.fold_in(key, t), shape, dtype)

    def start(self, key, shape, dtype):
        return jnp.zeros(shape, dtype)

    def advance(self, state, draw):
        return state, self.decay.astype(draw.dtype) * state + draw


class Uniform(_Memoryless):
    r"""Independent draws from $[-b, b]$, elementwise.

    !!! Example

        >>> import jax, selftune as st
        >>> v = st.Uniform(bound=0.1)(jax.random.key(0), 1000, 2)
        >>> bool(abs(v).max() <= 0.1)
        True
    """

    bound: Array = eqx.field(converter=lambda v: arguments.non_negatives("bound", v))

    def draw(self, key, t, shape, dtype):
        return _fit("bound", self.bound, shape, dtype) * jax.random.uniform(
            jax.random.fold_in(key, t), shape, dtype, -1, 1
        )


class Gaussian(_Memoryless):
    r"""Independent draws from $\mathcal N(0, \sigma^2)$, elementwise.

    With `truncate` = c, the draws are conditioned on $|w| \le c\,\sigma$. The theory needs bounded
    disturbances (the assumption on the environment): use `truncate=3`, for example.

    !!! Example

        >>> import jax, selftune as st
        >>> w = st.Gaussian(sigma=0.1, truncate=2.0)(jax.random.key(0), 1000, 2)
        >>> bool(abs(w).max() <= 0.2)
        True
    """

    sigma: Array = eqx.field(converter=lambda v: arguments.non_negatives("sigma", v))
    truncate: Array | None = eqx.field(
        default=None, converter=lambda v: None if v is None else arguments.positive("truncate", v)
    )

    def draw(self, key, t, shape, dtype):
        key = jax.random.fold_in(key, t)
        if self.truncate is None:
            unit = jax.random.normal(key, shape, dtype)
        else:
            c = self.truncate.astype(dtype)
            unit = jnp.clip(jax.random.truncated_normal(key, -c, c, shape, dtype), -c, c)
        return _fit("sigma", self.sigma, shape, dtype) * unit


class PiecewiseConstant(_Memoryless):
    r"""Constant for `period` steps, then a new draw, uniform on [low, high] (the simulation appendix's $a^*$).

    !!! Example

        >>> import jax, selftune as st
        >>> a_star = st.PiecewiseConstant(period=400, low=-0.25, high=0.25)(jax.random.key(0), 1000, 3)
        >>> bool((a_star[0] == a_star[399]).all()), bool((a_star[399] == a_star[400]).any())
        (True, False)
    """

    period: int = eqx.field(static=True, converter=lambda v: arguments.count("period", v))
    low: Array = eqx.field(converter=lambda v: arguments.real_array("low", v))
    high: Array = eqx.field(converter=lambda v: arguments.real_array("high", v))

    def __check_init__(self) -> None:
        _check_interval(self.low, self.high)

    def draw(self, key, t, shape, dtype):
        key = jax.random.fold_in(key, t // self.period)
        return _uniform(key, self.low, self.high, shape, dtype)


class RandomWalk(AbstractProcess):
    r"""$a_{t+1} = \mathrm{clip}(a_t + \delta_t, \text{low}, \text{high})$ with $\delta_t \sim \mathcal N(0, \sigma^2)$.

    $a_0$ is uniform on [low, high].

    !!! Example

        >>> import jax, selftune as st
        >>> a_star = st.RandomWalk(sigma=0.01, low=-1.0, high=1.0)(jax.random.key(0), 1000, 3)
        >>> bool(abs(a_star).max() <= 1.0)
        True
    """

    sigma: Array = eqx.field(converter=lambda v: arguments.non_negatives("sigma", v))
    low: Array = eqx.field(converter=lambda v: arguments.real_array("low", v))
    high: Array = eqx.field(converter=lambda v: arguments.real_array("high", v))

    def __check_init__(self) -> None:
        _check_interval(self.low, self.high)

    def draw(self, key, t, shape, dtype):
        # The increment of step t uses number t + 1 of the key; number 0 is for the start of the walk.
        kick = jax.random.normal(jax.random.fold_in(key, t + 1), shape, dtype)
        return _fit("sigma", self.sigma, shape, dtype) * kick

    def start(self, key, shape, dtype):
        return _uniform(jax.random.fold_in(key, 0), self.low, self.high, shape, dtype)

    def advance(self, state, draw):
        return state, jnp.clip(state + draw, self.low.astype(draw.dtype), self.high.astype(draw.dtype))


class Sinusoid(_Memoryless):
    r"""$a_t = \text{offset} + \text{amplitude} \cdot \sin(2\pi t / \text{period} + \text{phase})$; the key is not used.

    !!! Example

        >>> import jax, selftune as st
        >>> a_star = st.Sinusoid(amplitude=0.2, period=500.0)(jax.random.key(0), 1000, 3)
        >>> round(float(a_star[125, 0]), 6)
        0.2
    """

    amplitude: Array = eqx.field(converter=lambda v: arguments.real_array("amplitude", v))
    period: Array = eqx.field(converter=lambda v: arguments.positive("period", v))
    phase: Array = eqx.field(default=0.0, converter=lambda v: arguments.real_array("phase", v))
    offset: Array = eqx.field(default=0.0, converter=lambda v: arguments.real_array("offset", v))

    def draw(self, key, t, shape, dtype):
        turns = t.astype(dtype) / self.period.astype(dtype)
        wave = _fit("amplitude", self.amplitude, shape, dtype) * jnp.sin(
            2 * jnp.pi * turns + _fit("phase", self.phase, shape, dtype)
        )
        return _fit("offset", self.offset, shape, dtype) + wave


class Constant(_Memoryless):
    r"""The same `value` at every step; the key is not used.

    !!! Example

        >>> import jax, selftune as st
        >>> print(st.Constant([1.0, 2.0])(jax.random.key(0), 2, 2))
        [[1. 2.]
         [1. 2.]]
    """

    value: Array = eqx.field(converter=lambda v: arguments.real_array("value", v))

    def draw(self, key, t, shape, dtype):
        return _fit("value", self.value, shape, dtype)


def is_stream(node: Any) -> bool:
    return isinstance(node, Stream)


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(arguments.count("shape", size) for size in sizes)


def _uniform(key: PRNGKeyArray, low: Array, high: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    low, high = _fit("low", low, shape, dtype), _fit("high", high, shape, dtype)
    return low + (high - low) * jax.random.uniform(key, shape, dtype)


def _fit(name: str, value: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    return arguments.fit_shape(name, value, shape).astype(dtype)


def _check_interval(low: Array, high: Array) -> None:
    try:
        jnp.broadcast_shapes(low.shape, high.shape)
    except ValueError:
        raise ArgumentError("high", f"a shape that fits low's {low.shape}", f"{high.shape}") from None
    if (raw := arguments.known(low, high)) and not np.all(raw[0] <= raw[1]):
        raise ArgumentError("low", "low <= high everywhere", f"low={low}, high={high}")
