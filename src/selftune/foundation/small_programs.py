"""Small programs without XLA, which takes some 30 ms to compile even one operation.

`RULES` has frequent operations on known arrays, computed by NumPy. It contains only operations for which NumPy and JAX
agree in every bit, apart from subnormal numbers, which XLA takes as zeros.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from . import arguments, jax_settings


def small_program(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Return a function that is compiled like `equinox.filter_jit(function)`, but only if this is necessary.

    It is traced once. If its arguments are known, and if it only moves and compares numbers and computes with whole
    numbers, NumPy computes the results.
    """

    def program(fixed: _Fixed, arrays: list[Any]) -> Any:
        parts = iter(arrays)
        leaves = [next(parts) if leaf is _ARRAY else leaf for leaf in fixed.leaves]
        results, rest = eqx.partition(function(*jax.tree.unflatten(fixed.structure, leaves)), eqx.is_array)
        return results, _Rest(rest)

    program.__name__ = program.__qualname__ = function.__name__
    jitted = jax.jit(program, static_argnums=0)

    @functools.lru_cache(maxsize=256)
    def moved(fixed: _Fixed, shapes: tuple[Any, ...], settings: Any) -> tuple[Any, Any] | None:
        """Return the program and the structure of its results if NumPy can compute them."""
        traced = jitted.trace(fixed, [jax.ShapeDtypeStruct(*shape, weak_type=weak) for *shape, weak in shapes])
        # A function that has captured an array that JAX is tracing has another input.
        is_closed = len(traced.jaxpr.in_avals) == len(shapes) and all(map(arguments.is_known, traced.jaxpr.consts))
        is_moved = is_closed and _only_moves(traced.jaxpr)
        return (traced.jaxpr, jax.tree.structure(traced.out_info)) if is_moved else None

    @functools.wraps(function)
    def call(*given: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(given)
        are_arrays = list(map(eqx.is_array, leaves))
        arrays = [leaf for leaf, is_array in zip(leaves, are_arrays, strict=True) if is_array]
        rest = (_ARRAY if is_array else leaf for leaf, is_array in zip(leaves, are_arrays, strict=True))
        fixed = _Fixed(structure, tuple(rest))
        if all(map(arguments.is_known, arrays)):
            with jax.ensure_compile_time_eval():  # inside another program, too, an array of NumPy is a known number
                arrays = [leaf if isinstance(leaf, jax.Array) else jnp.array(leaf) for leaf in arrays]
            shapes = tuple((leaf.shape, leaf.dtype, leaf.aval.weak_type) for leaf in arrays)
            if (found := moved(fixed, shapes, tuple(jax_settings.current().values()))) is not None:
                return _combined(jax.tree.unflatten(found[1], _computed(found[0], arrays)))
        return _combined(jitted(fixed, arrays))

    return call


class _Fixed:
    """The structure and the leaves of arguments that are not arrays; equal ones give the same program."""

    def __init__(self, structure: Any, leaves: tuple[Any, ...]):
        self.structure, self.leaves = structure, leaves
        self._key = (structure, leaves, tuple(map(type, leaves)))  # 1 is not 1.0, nor True

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and self._key == other._key


class _Rest(eqx.Module):
    """The results of a function that are not arrays."""

    tree: PyTree = eqx.field(static=True)


_ARRAY = object()


def _combined(results: tuple[PyTree, _Rest]) -> PyTree:
    return eqx.combine(results[0], results[1].tree)


def _only_moves(closed: Any) -> bool:
    """Return whether NumPy can compute a program: it only moves and compares numbers, or computes with whole ones."""
    jaxpr = getattr(closed, "jaxpr", closed)
    # NumPy's arrays cannot say that their dtype is weak.
    is_weak = any(getattr(atom.aval, "weak_type", False) for atom in jaxpr.outvars)
    return not is_weak and not jaxpr.effects and all(map(_moves, _needed(jaxpr)))


def _moves(equation: Any) -> bool:
    name, params = equation.primitive.name, equation.params
    if name in CALLS:
        return _only_moves(params["jaxpr"])
    (out, *others), unknown = equation.outvars, params.keys() - PARAMETERS
    if name not in RULES or others or any(params[key] is not None for key in unknown):
        return False
    # XLA may compute a product and a sum of real numbers as one operation.
    if name in ROUNDING and out.aval.dtype.kind not in "iu":
        return False
    return all(atom.aval.dtype in DTYPES for atom in (*equation.invars, out))


def _computed(closed: Any, inputs: Sequence[Any]) -> list[jax.Array]:
    """Return the results of a program that NumPy can compute."""
    results = _evaluated(closed, inputs)
    made = [i for i, value in enumerate(results) if not isinstance(value, jax.Array)]
    for i, value in zip(made, jax.device_put([np.array(results[i]) for i in made]), strict=True):
        results[i] = value
    return results


def _evaluated(closed: Any, inputs: Sequence[Any]) -> list[Any]:
    jaxpr = getattr(closed, "jaxpr", closed)
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def value(atom: Any) -> Any:
        return np.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else values[atom]

    for equation in _needed(jaxpr):
        held = [value(atom) for atom in equation.invars]
        if equation.primitive.name in CALLS:
            results = _evaluated(equation.params["jaxpr"], held)
        else:
            results = [RULES[equation.primitive.name](equation.params, *map(np.asarray, held))]
        values.update(zip(equation.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _needed(jaxpr: Any) -> list[Any]:
    """Return the equations on which the results depend."""
    wanted = {atom for atom in jaxpr.outvars if not hasattr(atom, "val")}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if not wanted.isdisjoint(equation.outvars):
            kept.append(equation)
            wanted.update(atom for atom in equation.invars if not hasattr(atom, "val"))
    return kept[::-1]


def _broadcast_in_dim(params, x, *dynamic_shape):
    spread = [1] * len(params["shape"])
    for axis, target in enumerate(params["broadcast_dimensions"]):
        spread[target] = x.shape[axis]
    return np.broadcast_to(x.reshape(spread), params["shape"])


def _iota(params, *dynamic_shape):
    shape, axis = params["shape"], params["dimension"]
    along = np.arange(shape[axis], dtype=params["dtype"])
    return np.broadcast_to(along.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


def _reshape(params, x, *dynamic_shape):
    order = params.get("dimensions")
    return (x if order is None else x.transpose(order)).reshape(params["new_sizes"])


def _slice(params, x):
    strides = params["strides"] or (1,) * x.ndim
    return x[
        tuple(slice(*part) for part in zip(params["start_indices"], params["limit_indices"], strides, strict=True))
    ]


def _reduced(function: np.ufunc) -> Callable[..., Any]:
    return lambda params, x: np.asarray(function.reduce(x, axis=tuple(params["axes"])))


def _maximum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the maximum. As in XLA, 0 is larger than -0, and NumPy does not say which of them is."""
    return np.where(x == y, np.where(np.signbit(x), y, x), np.maximum(x, y))


def _minimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(x == y, np.where(np.signbit(x), x, y), np.minimum(x, y))


def _same_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(params, *inputs):
        with np.errstate(all="ignore"):
            return np.asarray(function(*inputs))

    return apply


def _convert(params, x):
    dtype = np.dtype(params["new_dtype"])
    if x.dtype.kind == "f" and dtype.kind in "iu":
        with np.errstate(all="ignore"):
            limits = np.iinfo(dtype)
            inside = (x > limits.min) & (x < 2.0 ** (8 * dtype.itemsize - (dtype.kind == "i")))
            ends = np.where(x > 0, limits.max, np.where(np.isnan(x), 0, limits.min)).astype(dtype)
            return np.where(inside, np.where(inside, x, 0).astype(dtype), ends)
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def _power(x: np.ndarray, exponent: int) -> np.ndarray:
    """Return a power, with the products of JAX in their order."""
    result, left = None, abs(exponent)
    while left:
        if left & 1:
            result = x if result is None else result * x
        left >>= 1
        x = x * x if left else x
    result = np.ones_like(x) if result is None else result
    return 1 / result if exponent < 0 else result


EXACT: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "is_finite": np.isfinite,
}
"""Operations of numbers."""

RULES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "iota": _iota,
    "reshape": _reshape,
    "slice": _slice,
    "convert_element_type": _convert,
    "squeeze": lambda params, x: np.squeeze(x, axis=tuple(params["dimensions"])),
    "transpose": lambda params, x: x.transpose(params["permutation"]),
    "concatenate": lambda params, *parts: np.concatenate(parts, axis=params["dimension"]),
    "stack": lambda params, *parts: np.stack(parts, axis=params["axis"]),
    "select_n": lambda params, which, *cases: (
        np.where(which, cases[1], cases[0]) if which.dtype == bool else np.choose(which, cases)
    ),
    "add_any": _same_dtype(np.add),
    "not": _same_dtype(np.bitwise_not),
    "reduce_and": _reduced(np.bitwise_and),
    "reduce_or": _reduced(np.bitwise_or),
    **{name: _same_dtype(function) for name, function in EXACT.items()},
    "max": _same_dtype(_maximum),
    "min": _same_dtype(_minimum),
}
"""The operations, `rule(parameters, *inputs) -> output`."""
OF_REALS: dict[str, Callable[..., Any]] = {
    "div": _same_dtype(np.divide),
    "sqrt": _same_dtype(np.sqrt),
    "integer_pow": lambda params, x: _same_dtype(_power)(params, x, params["y"]),
}
"""Operations of real numbers. For whole numbers, they are others, or there are none."""
CALLS = {"jit", "pjit"}
"""Operations that contain a program."""
ROUNDING = {"add", "sub", "mul", "add_any"}
DTYPES = {np.dtype(name) for name in ("bool", "float32", "float64")} | {
    np.dtype(f"{kind}int{bits}") for kind in ("", "u") for bits in (8, 16, 32, 64)
}
"""The dtypes that NumPy and XLA convert in the same way. XLA rounds twice to a float of 16 bits, for example."""
PARAMETERS = {
    *("shape", "broadcast_dimensions", "dimension", "dtype", "dimensions", "new_sizes", "permutation", "axes", "axis"),
    *("start_indices", "limit_indices", "strides", "new_dtype", "weak_type", "sharding", "out_sharding"),
}
"""The parameters that the rules read, and those that change no number."""
