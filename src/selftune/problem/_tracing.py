"""Trace the user's functions with shapes only; report which one fails, why, and what to write instead.

A function is traced once, with placeholders for its arrays, and the resulting program runs at every step. So everything
that the function computes in pure Python or NumPy is fixed when the function is traced.
"""

import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..foundation import arguments, jax_settings, jaxprs
from ..foundation.errors import ArgumentError


def traced(
    name: str,
    function: Callable[..., Any],
    inputs: dict[str, Any],
    *,
    rank: int,
    dtype: Any,
    expected: str,
    thorough: bool,
    beside: Any = None,
) -> Any:
    """Return the shape and dtype of the function's result; raise `ValueError` if these are not as `expected`.

    If `beside` is given, the function must return a pair: the result, and a pytree with the shapes of `beside`.

    With `thorough`, also raise it if the function reads an array at a fixed index out of range, or if two traces give
    different programs.
    """
    name = getattr(function, "given_as", name)
    _check_order(name, function, list(inputs))
    key = _key(function, inputs, (name, rank, dtype, *jax_settings.current().values()))
    if key is not None and (checked := _CHECKED.get(key)) is not None:
        return checked
    try:
        out, programs = _programs(function, *inputs.values(), thorough=thorough)
    except Exception as error:
        given = ", ".join(f"{key} {arguments.describe_tree(value)}" for key, value in inputs.items())
        failed = f"failed when traced with ({given}){_place(error)}: {_first_line(error)}"
        advice = _advice(error, inputs)
        raise ValueError(f"{name}: {f'{advice}. The function ' if advice else ''}{failed}") from error
    if len(set(map(jaxprs.digest, programs))) > 1:
        raise ImpureError(f"{name}: {_IMPURE}")
    if programs and (shape := jaxprs.out_of_range(programs[0])) is not None:
        got = f"one out of range of an array of shape {shape}"
        raise ArgumentError(name, "indices within its arrays", got) from IndexError(got)
    if beside is not None:
        out = _first_of_pair(name, out, beside)
    if not hasattr(out, "shape"):
        advice = "write jnp.stack([...]) for a list of numbers" if isinstance(out, (list, tuple)) else ""
        raise ArgumentError(name, f"one array of shape {expected}", arguments.describe_tree(out), advice)
    if len(out.shape) != rank or 0 in out.shape:
        advice = "write jnp.stack([...]) for a vector of numbers" if rank == 1 and out.shape == () else ""
        raise ArgumentError(name, f"shape {expected}", arguments.describe(out), advice)
    if out.dtype != dtype:
        raise ArgumentError(name, f"dtype {jnp.dtype(dtype).name}, that of x", arguments.describe(out))
    if thorough and key is not None:
        _CHECKED[key] = out
        with suppress(KeyError):  # another thread was faster
            while len(_CHECKED) > MOST_CHECKED:
                _CHECKED.popitem(last=False)
    return out


def _check_order(name: str, function: Any, names: list[str]) -> None:
    """Raise `ArgumentError` if a function's own names of its arguments are those of `names` in another order.

    Arrays of the same shape would otherwise be exchanged without an error.
    """
    if not isinstance(function, FunctionType):
        return
    own = function.__code__.co_varnames[: function.__code__.co_argcount]
    if len(own) == len(names) and any(a in names and a != b for a, b in zip(own, names, strict=True)):
        raise ArgumentError(
            name,
            f"the arguments ({', '.join(names)}) in this order",
            f"({', '.join(own)})",
            "check the order of the arguments",
        )


def _first_of_pair(name: str, out: Any, beside: Any) -> Any:
    """Return the first of a function's two results, after checking that the second has the shapes of `beside`."""
    if not isinstance(out, tuple) or len(out) != 2:
        raise ArgumentError(name, "a pair (u, memory), because the system has a memory", arguments.describe_tree(out))
    if jax.tree.structure(out[1]) != jax.tree.structure(beside):
        raise ArgumentError(
            name, f"a memory like the first one, {jax.tree.structure(beside)}", f"{jax.tree.structure(out[1])}"
        )
    for first, now in zip(jax.tree.leaves(beside), jax.tree.leaves(out[1]), strict=True):
        if (first.shape, first.dtype) != (now.shape, now.dtype):
            raise ArgumentError(name, f"a memory with {arguments.describe(first)}", arguments.describe(now))
    return out[0]


_CHECKED: OrderedDict[Any, Any] = OrderedDict()
"""The results of thorough checks that functions passed: a compilation asks five times, and a commissioning 30 times."""
MOST_CHECKED = 500
"""The number of results that are kept."""


class _Same:
    """A key that equals another one if both refer to the same object, which is still there. The object is not kept."""

    __slots__ = ("number", "reference")

    def __init__(self, value: Any):
        self.number, self.reference = id(value), weakref.ref(value)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        value = self.reference()  # another object may get the id of one that is gone
        return isinstance(other, _Same) and value is not None and value is other.reference()


def _key(function: Any, inputs: dict[str, Any], conditions: tuple[Any, ...]) -> Any:
    """Return the key of a check of this function with these inputs and conditions; None if the function might change: a
    module that contains other things than functions and JAX's arrays is always checked."""
    parts, structure = jax.tree.flatten(function)
    arrays = (jax.Array, FunctionType)
    if not all(isinstance(leaf, arrays) and arguments.is_known(leaf) for leaf in parts):
        return None
    leaves, shape = jax.tree.flatten(inputs)
    shapes = tuple((np.shape(leaf), _dtype(leaf)) for leaf in leaves)
    key = (structure, tuple(map(_Same, parts)), shape, shapes, conditions)
    try:
        hash(key)
    except TypeError:  # a static part without a hash
        return None
    return key


def _dtype(leaf: Any) -> Any:
    return getattr(leaf, "dtype", type(leaf))


class ImpureError(ValueError):
    """A function gives different programs when it is traced twice."""


_IMPURE = (
    "expected the same program whenever the function is traced, got two programs from two traces. The function is "
    "traced once, so a number from np.random, random, a clock, a counter or an earlier call would have the same value "
    "at every step. Draw random numbers in the scenario (w, v and a_star), and pass everything that varies with time "
    "through t"
)


def _programs(function: Callable[..., Any], *inputs: Any, thorough: bool) -> tuple[Any, list[Any]]:
    """Return the shape and dtype of the function's result, and the programs of two traces if `thorough`."""
    if not thorough:
        return jax.eval_shape(function, *inputs), []
    # JAX caches the trace of a function: trace a new lambda each time, and remove the user's own `jit`.
    plain = jax.tree.map(_without_jit, function)
    traces = [jax.make_jaxpr(lambda *values: plain(*values), return_shape=True)(*inputs) for _ in range(2)]
    return traces[0][1], [program for program, _ in traces]


_JITTED: tuple[type, ...] = (type(jax.jit(lambda: None)), type(eqx.filter_jit(lambda: None)))


def _without_jit(function: Any) -> Any:
    return getattr(function, "__wrapped__", function) if isinstance(function, _JITTED) else function


def other_shapes(tree: Any, sizes: tuple[int, ...], fits: Callable[[Any], bool]) -> list[tuple[int, ...]]:
    """Return up to two shapes of one leaf of `tree` for which `fits` is true, the most likely first; the other leaves
    stay as they are.

    `sizes`: likely lengths of an axis for a problem of these dimensions.
    """
    leaves, structure = jax.tree.flatten(tree)
    fitting = []
    for i, leaf in enumerate(leaves):
        shape = np.shape(leaf)
        for other in _candidates(shape, sizes):
            changed = jax.ShapeDtypeStruct(other, jnp.result_type(leaf))
            if other != shape and fits(jax.tree.unflatten(structure, [*leaves[:i], changed, *leaves[i + 1 :]])):
                fitting.append(other)
    return fitting[:2]


def _candidates(shape: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the transposed shape; then vectors, the nearest size first; then matrices with as many numbers or with axes
    of these sizes."""
    count = int(np.prod(shape))
    shapes = [shape[::-1], *((i,) for i in sorted({count, *range(1, 9), *sizes}, key=lambda i: abs(i - count))), ()]
    shapes += [(i, count // i) for i in range(1, count + 1) if count <= 64 and count % i == 0]
    shapes += [(i, j) for i in sizes for j in sizes]
    yield from dict.fromkeys(shapes)


_IF = "write jnp.where(condition, a, b) or jax.lax.cond for Python's `if`, and jnp.minimum, jnp.maximum, & and | for "
_IF += "min, max, `and` and `or`"
_MATH = "write jnp.sin for math.sin, and x for float(x), int(x) or x.item()"
_LIST = "write jnp.asarray(values)[i] for an index into a Python list, and jax.lax.fori_loop for range(i)"
_ADVICE: tuple[tuple[type[Exception], str, str], ...] = (
    (jax.errors.TracerBoolConversionError, "", _IF),
    (ValueError, "truth value", _IF),
    (jax.errors.TracerArrayConversionError, "", "write jnp.sin for np.sin, and jnp for np wherever an array is traced"),
    (jax.errors.TracerIntegerConversionError, "", _LIST),
    (jax.errors.NonConcreteBooleanIndexError, "", "write jnp.where(mask, x, 0.0) for x[mask]"),
    (jax.errors.ConcretizationTypeError, "", _MATH),
    (TypeError, "Only scalar arrays can be converted", _MATH),
    (TypeError, "in-place item assignment", "write x = x.at[0].set(value) for x[0] = value"),
    (ValueError, "setting an array element", "write jnp.stack([a, b]) for an np.zeros that is filled one by one"),
    (AttributeError, "no attribute append", "write jnp.append(x, value) for x.append(value)"),
)
"""The type of an error, a part of its text, and what to write instead."""


def _advice(error: Exception, inputs: dict[str, Any]) -> str:
    """Return what to write instead, for the typical errors of a function written for Python or NumPy."""
    if isinstance(error, TypeError) and "positional argument" in str(error):
        return f"expected a function of {len(inputs)} arguments, ({', '.join(inputs)})"
    if isinstance(error, KeyError) and error.args:
        lacking = {k: v for k, v in inputs.items() if isinstance(v, dict) and error.args[0] not in v}
        if len(lacking) == 1:  # otherwise it could be the key of any of them
            ((name, value),) = lacking.items()
            return f"KeyError: {name} has no key {error}; its keys are {', '.join(map(repr, value))}"
    for kind, text, advice in _ADVICE:
        if isinstance(error, kind) and text in str(error):
            return advice
    return ""


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


_LIBRARIES = (*(str(Path(str(module.__file__)).parent) for module in (jax, np, eqx)), str(Path(__file__).parents[1]))


def _place(error: Exception) -> str:
    """Return the user's line that failed, which is the last line outside of libraries; empty if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    user = [f for f in frames if not f.filename.startswith(_LIBRARIES) and "site-packages" not in f.filename]
    return f" at {Path(user[-1].filename).name}, line {user[-1].lineno}" if user else ""
