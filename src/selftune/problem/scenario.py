"""The scenario of a simulation: first state, true parameters, disturbance and observation noise."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from .noise import AbstractProcess, Stream, is_stream, sample
from .system import AbstractSystem

SOURCES = ("a_star", "w", "v", "measurement_noise")
"""The parts of a scenario that are arrays or streams, by the names of the arguments."""


MOST_STEPS = 2**31 - 1
"""The largest number of a step, and of steps."""


class Scenario(eqx.Module):
    r"""The true environment of a run, fixed before the run. The agent observes it only through x and $\tilde f$.

    **Arguments:**

    - `x0`: the first state, (n,).
    - `a_star`: the true parameters, a pytree with leading axis T; row t is $a^*_t$.
    - `w`: the disturbance, (T, n); row t acts between step t and t + 1.
    - `v`: the observation noise, (T, k): the estimator gets $f_t(x_t, a^*_t) + v_t$. None means no noise.
    - `t`: the contexts of the steps, a pytree with leading axis T. None means that t is the number of the step.
    - `steps`: T, at most 2³¹ − 1; needed only if no argument is an array.
    - `measurement_noise`: the noise of the sensors, (T, q): the controller gets the measurement of $x_t$ plus row t.
      None means no noise.

    Each of `a_star`, `w`, `v`, `measurement_noise` may be a `Stream` (`AbstractProcess.stream`) in place of an array.

    `len(scenario)` is T. `scenario[a:b]` contains the steps from a to b (exclusive); the steps keep their numbers.

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

    __repr__ = settings_text.show

    x0: Float[Array, " n"]
    a_star: PyTree
    w: PyTree
    v: PyTree
    t: PyTree
    measurement_noise: PyTree
    steps: int = eqx.field(static=True)

    def __init__(
        self,
        x0: Any,
        a_star: Any,
        w: Any,
        v: Any = None,
        t: Any = None,
        *,
        steps: int | None = None,
        measurement_noise: Any = None,
    ):
        self.x0 = arguments.real_array("x0", x0)
        if self.x0.ndim != 1 or self.x0.size == 0:
            raise ArgumentError("x0", "a vector of at least one number", arguments.describe(self.x0))
        dtype = self.x0.dtype
        self.a_star = _rows("a_star", a_star, dtype)
        self.w = _rows("w", w, dtype)
        self.v = None if v is None else _rows("v", v, dtype)
        self.t = None if t is None else jax.tree.map(jnp.asarray, t, is_leaf=arguments.is_plain)
        self.measurement_noise = (
            None if measurement_noise is None else _rows("measurement_noise", measurement_noise, dtype)
        )
        parts = dict(zip(SOURCES, self.sources, strict=True)) | {"t": self.t}
        self.steps = _common_length(parts, steps)
        if not jax.tree.leaves(self.a_star):
            raise ArgumentError("a_star", "an array, a pytree of arrays or a stream", f"{a_star!r}")
        if not isinstance(self.w, (Stream, jax.Array)):
            raise ArgumentError("w", f"an array (T, {self.x0.size}) or a stream", f"{w!r}")
        w_shape = self.w.shape if isinstance(self.w, Stream) else self.w.shape[1:]
        if w_shape != self.x0.shape:
            raise ArgumentError("w", f"rows of shape {self.x0.shape}, that of x0", f"{w_shape}")

    @property
    def sources(self) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        """The parts that may contain streams, in the order of `SOURCES`."""
        return self.a_star, self.w, self.v, self.measurement_noise

    def _has_streams(self) -> bool:
        return any(map(is_stream, jax.tree.leaves(self.sources, is_leaf=is_stream)))

    def _with(self, sources: tuple[PyTree, PyTree, PyTree, PyTree], t: PyTree, steps: int) -> "Scenario":
        a_star, w, v, noise = sources
        return Scenario(self.x0, a_star, w, v, t, steps=steps, measurement_noise=noise)

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, part: slice) -> "Scenario":
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise ArgumentError("scenario[...]", "a slice of consecutive steps", f"{part!r}")
        start, stop, _ = part.indices(self.steps)
        stop = max(start, stop)
        if self._has_streams():
            raise ValueError("scenario[...]: a stream cannot be sliced; set `steps` and continue with `resume` instead")
        if (start, stop) == (0, self.steps):
            return self
        t = jnp.arange(self.steps) if self.t is None else self.t
        sources, t = jax.tree.map(lambda leaf: leaf[start:stop], (self.sources, t))
        return self._with(sources, t, stop - start)

    def of_loop_state(self, system: AbstractSystem) -> "Scenario":
        """Return the scenario of the system's loop state, for rollouts by `System.step`: the first memory follows x0,
        and the disturbance of the memory is zero. The scenario must not contain streams."""
        if self.measurement_noise is not None:
            raise ArgumentError("scenario", "no measurement_noise, because the exact loop has none", "some")
        if system.memory is None:
            return self
        w = jnp.pad(self.w, ((0, 0), (0, system.memory.size)))
        return Scenario(system.first(self.x0), self.a_star, w, self.v, self.t, steps=self.steps)

    def row(self, t: Any) -> "ScenarioRow":
        """Return row t of the scenario; t may be traced. The scenario must not contain streams."""
        context = jnp.asarray(t) if self.t is None else self.t
        a_star, w, v, noise = jax.tree.map(lambda leaf: leaf[t], self.sources)
        context = context if self.t is None else jax.tree.map(lambda leaf: leaf[t], context)
        return ScenarioRow(a_star, w, v, context, noise)

    def row_shapes(self) -> "ScenarioRow":
        """Return the shapes and dtypes of one row."""

        def row(leaf):
            if is_stream(leaf):
                return jax.ShapeDtypeStruct(leaf.shape, self.x0.dtype)
            return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

        t = jax.ShapeDtypeStruct((), jnp.int32) if self.t is None else jax.tree.map(row, self.t)
        a_star, w, v, noise = jax.tree.map(row, self.sources, is_leaf=is_stream)
        return ScenarioRow(a_star, w, v, t, noise)

    def materialize(self) -> "Scenario":
        """Return the same scenario with every stream replaced by an array."""
        if not self._has_streams():
            return self

        def write(leaf):
            return sample(leaf, self.steps, self.x0.dtype) if is_stream(leaf) else leaf

        return self._with(jax.tree.map(write, self.sources, is_leaf=is_stream), self.t, self.steps)


class ScenarioRow(NamedTuple):
    """One row of a scenario."""

    a_star: PyTree
    w: Array
    v: Array | None
    t: Any
    measurement_noise: Array | None = None


def _rows(name: str, value: Any, dtype: Any) -> PyTree:
    def leaf(value):
        if is_stream(value):
            return value
        if isinstance(value, AbstractProcess):
            raise ArgumentError(name, "an array or a stream", "the process itself: call it, or its stream()")
        array = arguments.real_array(name, value)
        if array.ndim == 0:
            raise ArgumentError(name, "an array with a leading axis of steps", arguments.describe(array))
        if hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating) and array.dtype != dtype:
            raise ArgumentError(name, f"dtype {dtype}, that of x0", arguments.describe(array))
        return array.astype(dtype)

    return jax.tree.map(leaf, value, is_leaf=_is_source)


def _is_source(node: Any) -> bool:
    return isinstance(node, (Stream, AbstractProcess)) or arguments.is_plain(node)


def _common_length(parts: dict[str, PyTree], steps: int | None) -> int:
    steps = None if steps is None else arguments.whole("steps", steps)
    source = "steps"
    for name, tree in parts.items():
        for leaf in jax.tree.leaves(tree, is_leaf=is_stream):
            if is_stream(leaf):
                continue
            if jnp.ndim(leaf) == 0:
                raise ArgumentError(name, "an array with a leading axis of steps", arguments.describe(leaf))
            if steps is None:
                steps, source = leaf.shape[0], name
            elif leaf.shape[0] != steps:
                raise ArgumentError(name, f"{steps} rows, as {source} has", f"{leaf.shape[0]}")
    if steps is None:
        raise ArgumentError("steps", "a whole number, because no other argument is an array", "None")
    if steps > MOST_STEPS:
        raise ArgumentError("steps", f"at most {MOST_STEPS:,}, because steps are counted in 32 bits", f"{steps:,}")
    return steps
