"""Frequent operations on known arrays, computed by NumPy, because JAX would compile each of them first.

It contains only operations for which NumPy and JAX agree in every bit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from .graph import EVALUATE


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


_EXACT = ["add", "sub", "mul", "neg", "abs", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor"]

KNOWN: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "iota": _iota,
    "reshape": _reshape,
    "slice": _slice,
    "convert_element_type": _convert,
    "squeeze": lambda params, x: np.squeeze(x, axis=tuple(params["dimensions"])),
    "transpose": lambda params, x: x.transpose(params["permutation"]),
    "concatenate": lambda params, *parts: np.concatenate(parts, axis=params["dimension"]),
    "select_n": lambda params, which, *cases: (
        np.where(which, cases[1], cases[0]) if which.dtype == bool else np.choose(which, cases)
    ),
    "add_any": _same_dtype(np.add),
    "not": _same_dtype(np.bitwise_not),
    **{name: _same_dtype(EVALUATE[name]) for name in _EXACT},
}
