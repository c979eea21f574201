"""What nature decides: the first state, the true parameters, the disturbance and the observation noise."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from . import _check


class AbstractProcess(eqx.Module):
    r"""A maker of sequences: noise, or the schedule of a parameter.

    `process(key, steps, shape)` makes an array (steps, \*shape); `process.stream(key, shape)` stands for the same
    numbers without storing them. Randomness is counter-based: the draw of step t depends on `key` and t alone.
    """

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, t: Int[Array, ""], shape: tuple[int, ...], dtype: Any) -> Array:
        """The random numbers of step t."""

    @abc.abstractmethod
    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> PyTree:
        """The state before step 0; None for a process without memory."""

    @abc.abstractmethod
    def advance(self, state: PyTree, draw: Array) -> tuple[Array, PyTree]:
        """The value of step t and the state for step t + 1."""

    def stream(self, key: PRNGKeyArray, shape: int | tuple[int, ...]) -> "Stream":
        """The same numbers, made one step at a time as `simulate` needs them: memory does not grow with T."""
        return Stream(self, _check.key("key", key), _shape(shape))

    def __call__(self, key: PRNGKeyArray, steps: int, shape: int | tuple[int, ...]) -> Float[Array, "steps ..."]:
        """An array of `steps` rows, row t being the value at step t."""
        return _sample(self.stream(key, shape), _check.whole("steps", steps), jnp.result_type(float))


@eqx.filter_jit
def _sample(stream: "Stream", steps: int, dtype: Any) -> Array:
    process, key, shape = stream.process, stream.key, stream.shape
    draws = jax.vmap(lambda t: process.draw(key, t, shape, dtype))(jnp.arange(steps))
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
    """A process with its key and shape, to be drawn from as the simulation goes: `AbstractProcess.stream` makes it."""

    process: AbstractProcess
    key: PRNGKeyArray
    shape: tuple[int, ...] = eqx.field(static=True)

    def start(self, dtype: Any) -> PyTree:
        return self.process.start(self.key, self.shape, dtype)

    def next(self, state: PyTree, t: Int[Array, ""], dtype: Any) -> tuple[Array, PyTree]:
        return self.process.advance(state, self.process.draw(self.key, t, self.shape, dtype))


class OrnsteinUhlenbeck(AbstractProcess):
    r"""$w_0 = 0$, $w_{t+1} = \gamma w_t + \delta_t$ with $\delta_t \sim \mathcal N(0, \sigma^2)$ (simulation appendix).

    **Arguments:** `decay`, γ in [0, 1); `sigma`, σ ≥ 0, a number or one for each component.

    !!! Example

        >>> import jax, selftune as st
        >>> w = st.OrnsteinUhlenbeck(decay=0.95, sigma=0.1)(jax.random.key(0), 1000, 1)
        >>> w.shape
        (1000, 1)
    """

    decay: Array = eqx.field(converter=lambda v: _check.number("decay", v, lambda v: 0 <= v < 1, "a number in [0, 1)"))
    sigma: Array = eqx.field(converter=lambda v: _check.non_negatives("sigma", v))

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

    bound: Array = eqx.field(converter=lambda v: _check.non_negatives("bound", v))

    def draw(self, key, t, shape, dtype):
        return _fit("bound", self.bound, shape, dtype) * jax.random.uniform(
            jax.random.fold_in(key, t), shape, dtype, -1, 1
        )


class Gaussian(_Memoryless):
    r"""Independent draws from $\mathcal N(0, \sigma^2)$, elementwise.

    With `truncate` = c they are conditioned on $|w| \le c\,\sigma$. The theory wants bounded
    disturbances (the assumption on the environment): truncate at 3, say.

    !!! Example

        >>> import jax, selftune as st
        >>> w = st.Gaussian(sigma=0.1, truncate=2.0)(jax.random.key(0), 1000, 2)
        >>> bool(abs(w).max() <= 0.2)
        True
    """

    sigma: Array = eqx.field(converter=lambda v: _check.non_negatives("sigma", v))
    truncate: Array | None = eqx.field(
        default=None, converter=lambda v: None if v is None else _check.positive("truncate", v)
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
    r"""Constant for `period` steps, then drawn anew, uniform on [low, high] (the simulation appendix's $a^*$).

    !!! Example

        >>> import jax, selftune as st
        >>> a_star = st.PiecewiseConstant(period=400, low=-0.25, high=0.25)(jax.random.key(0), 1000, 3)
        >>> bool((a_star[0] == a_star[399]).all()), bool((a_star[399] == a_star[400]).any())
        (True, False)
    """

    period: int = eqx.field(static=True, converter=lambda v: _check.count("period", v))
    low: Array = eqx.field(converter=lambda v: _check.real_array("low", v))
    high: Array = eqx.field(converter=lambda v: _check.real_array("high", v))

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

    sigma: Array = eqx.field(converter=lambda v: _check.non_negatives("sigma", v))
    low: Array = eqx.field(converter=lambda v: _check.real_array("low", v))
    high: Array = eqx.field(converter=lambda v: _check.real_array("high", v))

    def __check_init__(self) -> None:
        _check_interval(self.low, self.high)

    def draw(self, key, t, shape, dtype):
        # Step t's increment is draw t + 1; draw 0 is where the walk starts.
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

    amplitude: Array = eqx.field(converter=lambda v: _check.real_array("amplitude", v))
    period: Array = eqx.field(converter=lambda v: _check.positive("period", v))
    phase: Array = eqx.field(default=0.0, converter=lambda v: _check.real_array("phase", v))
    offset: Array = eqx.field(default=0.0, converter=lambda v: _check.real_array("offset", v))

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

    value: Array = eqx.field(converter=lambda v: _check.real_array("value", v))

    def draw(self, key, t, shape, dtype):
        return _fit("value", self.value, shape, dtype)


class Scenario(eqx.Module):
    r"""What nature decides, fixed before the run: the agent sees none of it but through x and $\tilde f$.

    **Arguments:**

    - `x0`: the first state, (n,).
    - `a_star`: the true parameters, a pytree with leading axis T; row t is $a^*_t$.
    - `w`: the disturbance, (T, n); row t acts between step t and t + 1.
    - `v`: the observation noise, (T, k): EST is given $f_t(x_t, a^*_t) + v_t$. None is no noise.
    - `t`: the steps' contexts, a pytree with leading axis T; None is the integer step.
    - `steps`: T, needed only where no array tells it.

    Each of `a_star`, `w`, `v` may be a `Stream` (`AbstractProcess.stream`) in place of an array.

    `len(scenario)` is T; `scenario[a:b]` is the part of steps a to b, which keep their numbers.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> ka, kw = jax.random.split(jax.random.key(0))
        >>> scenario = st.Scenario(
        ...     x0=jnp.zeros(1),
        ...     a_star=st.PiecewiseConstant(period=40_000, low=-0.25, high=0.25)(ka, 100_000, 3),
        ...     w=st.OrnsteinUhlenbeck(decay=0.95, sigma=0.1)(kw, 100_000, 1),
        ... )
        >>> len(scenario), len(scenario[:1000])
        (100000, 1000)
    """

    x0: Float[Array, " n"]
    a_star: PyTree
    w: PyTree
    v: PyTree
    t: PyTree
    steps: int = eqx.field(static=True)

    def __init__(self, x0: Any, a_star: Any, w: Any, v: Any = None, t: Any = None, *, steps: int | None = None):
        self.x0 = _check.real_array("x0", x0)
        if self.x0.ndim != 1 or self.x0.size == 0:
            raise ValueError(f"x0: expected a vector of at least one number, got {_check.describe(self.x0)}")
        dtype = self.x0.dtype
        self.a_star = _rows("a_star", a_star, dtype)
        self.w = _rows("w", w, dtype)
        self.v = None if v is None else _rows("v", v, dtype)
        self.t = None if t is None else jax.tree.map(jnp.asarray, t, is_leaf=_check.is_plain)
        self.steps = _common_length({"a_star": self.a_star, "w": self.w, "v": self.v, "t": self.t}, steps)
        if not jax.tree.leaves(self.a_star):
            raise ValueError(f"a_star: expected an array, a pytree of arrays or a stream, got {a_star!r}")
        if not isinstance(self.w, (Stream, jax.Array)):
            raise ValueError(f"w: expected an array (T, {self.x0.size}) or a stream, got {w!r}")
        w_shape = self.w.shape if isinstance(self.w, Stream) else self.w.shape[1:]
        if w_shape != self.x0.shape:
            raise ValueError(f"w: expected rows of shape {self.x0.shape}, that of x0, got {w_shape}")

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, part: slice) -> "Scenario":
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise ValueError(f"scenario[...]: expected a slice of consecutive steps, got {part!r}")
        start, stop, _ = part.indices(self.steps)
        stop = max(start, stop)
        t = jnp.arange(self.steps) if self.t is None else self.t
        if any(isinstance(leaf, Stream) for leaf in jax.tree.leaves((self.a_star, self.w, self.v), is_leaf=is_stream)):
            raise ValueError("scenario[...]: a stream cannot be cut; give `steps` and continue with `resume` instead")
        a_star, w, v, t = jax.tree.map(lambda leaf: leaf[start:stop], (self.a_star, self.w, self.v, t))
        return Scenario(self.x0, a_star, w, v, t, steps=stop - start)

    def row(self, t: Any) -> "Row":
        """What nature decides at row t, an index that may be traced; the scenario must hold arrays."""
        context = jnp.asarray(t) if self.t is None else self.t
        a_star, w, v = jax.tree.map(lambda leaf: leaf[t], (self.a_star, self.w, self.v))
        return Row(a_star, w, v, context if self.t is None else jax.tree.map(lambda leaf: leaf[t], context))

    def row_shapes(self) -> tuple[PyTree, PyTree, PyTree]:
        """Shapes and dtypes of one row of `a_star`, of `v` and of the context."""

        def row(leaf):
            if is_stream(leaf):
                return jax.ShapeDtypeStruct(leaf.shape, self.x0.dtype)
            return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

        t = jax.ShapeDtypeStruct((), jnp.int32) if self.t is None else jax.tree.map(row, self.t)
        return (*jax.tree.map(row, (self.a_star, self.v), is_leaf=is_stream), t)

    def materialize(self) -> "Scenario":
        """The same scenario with every stream written out as an array."""

        def write(leaf):
            return _sample(leaf, self.steps, self.x0.dtype) if is_stream(leaf) else leaf

        a_star, w, v = jax.tree.map(write, (self.a_star, self.w, self.v), is_leaf=is_stream)
        return Scenario(self.x0, a_star, w, v, self.t, steps=self.steps)


class Row(NamedTuple):
    """One row of a scenario."""

    a_star: PyTree
    w: Array
    v: Array | None
    t: Any


def is_stream(node: Any) -> bool:
    return isinstance(node, Stream)


def _rows(name: str, value: Any, dtype: Any) -> PyTree:
    def leaf(value):
        if is_stream(value):
            return value
        if isinstance(value, AbstractProcess):
            raise ValueError(f"{name}: expected an array or a stream, got the process itself: call it, or its stream()")
        array = _check.real_array(name, value)
        if array.ndim == 0:
            raise ValueError(f"{name}: expected an array with a leading axis of steps, got {_check.describe(array)}")
        if hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating) and array.dtype != dtype:
            raise ValueError(f"{name}: expected dtype {dtype}, that of x0, got {_check.describe(array)}")
        return array.astype(dtype)

    return jax.tree.map(leaf, value, is_leaf=_is_source)


def _is_source(node: Any) -> bool:
    return isinstance(node, (Stream, AbstractProcess)) or _check.is_plain(node)


def _common_length(parts: dict[str, PyTree], steps: int | None) -> int:
    steps = None if steps is None else _check.whole("steps", steps)
    source = "steps"
    for name, tree in parts.items():
        for leaf in jax.tree.leaves(tree, is_leaf=is_stream):
            if is_stream(leaf):
                continue
            if jnp.ndim(leaf) == 0:
                raise ValueError(f"{name}: expected an array with a leading axis of steps, got {_check.describe(leaf)}")
            if steps is None:
                steps, source = leaf.shape[0], name
            elif leaf.shape[0] != steps:
                raise ValueError(f"{name}: expected {steps} rows, as {source} has, got {leaf.shape[0]}")
    if steps is None:
        raise ValueError("steps: expected a whole number, as neither a_star nor w, v, t is an array, got None")
    return steps


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(_check.count("shape", size) for size in sizes)


def _uniform(key: PRNGKeyArray, low: Array, high: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    low, high = _fit("low", low, shape, dtype), _fit("high", high, shape, dtype)
    return low + (high - low) * jax.random.uniform(key, shape, dtype)


def _fit(name: str, value: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    return _check.fit_shape(name, value, shape).astype(dtype)


def _check_interval(low: Array, high: Array) -> None:
    try:
        jnp.broadcast_shapes(low.shape, high.shape)
    except ValueError:
        raise ValueError(f"high: expected a shape that fits low's {low.shape}, got {high.shape}") from None
    if (raw := _check.known(low, high)) and not np.all(raw[0] <= raw[1]):
        raise ValueError(f"low: expected low <= high everywhere, got low={low}, high={high}")
