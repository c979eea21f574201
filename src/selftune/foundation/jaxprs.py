"""Checks of programs that JAX has traced: are two programs the same, and is an index out of range?"""

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from . import arguments


def digest(closed: Any) -> str:
    """Return the SHA-256 of a closed jaxpr: of its text without memory addresses, and of the values of its constants.

    A constant that is being traced itself has no value; its shape and dtype are in the text.
    """
    sha = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", str(closed.jaxpr)).encode())
    for constant in filter(arguments.is_known, _constants(closed)):
        value = np.asarray(jax.random.key_data(constant) if arguments.is_key(constant) else constant)
        sha.update(f"{value.dtype.str}{value.shape}".encode() + value.tobytes())
    return sha.hexdigest()


def _constants(part: Any) -> Iterator[Any]:
    """Yield every array inside a program; the text of a jaxpr contains only their shapes."""
    if hasattr(part, "consts"):
        yield from part.consts
        part = part.jaxpr
    for equation in part.eqns:
        yield from (atom.val for atom in equation.invars if hasattr(atom, "val") and np.ndim(atom.val))
        inside = list(equation.params.values())
        for param in jax.tree.leaves(inside, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(param, "eqns"):
                yield from _constants(param)
            elif isinstance(param, (np.ndarray, jax.Array)):
                yield param


_ON_INDICES = {
    "lt": np.less,
    "add": np.add,
    "select_n": lambda which, no, yes: np.where(which, yes, no),
    "convert_element_type": lambda value: value,
}


def out_of_range(part: Any) -> tuple[int, ...] | None:
    """Return the shape of an array that is read at a fixed index out of its range; None if there is no such array.

    JAX would read the last number, without an error.
    """
    jaxpr = getattr(part, "jaxpr", part)
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, getattr(part, "consts", ()), strict=False))
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        shape: Any = getattr(equation.invars[0].aval, "shape", ()) if equation.invars else ()
        known = [atom.val if hasattr(atom, "val") else values.get(atom) for atom in equation.invars]
        if all(value is not None and arguments.is_known(value) for value in known):
            if name in _ON_INDICES:
                values[equation.outvars[0]] = _ON_INDICES[name](*map(np.asarray, known))
            elif name == "concatenate":
                values[equation.outvars[0]] = np.concatenate(list(map(np.asarray, known)), equation.params["dimension"])
            elif name == "broadcast_in_dim":
                values[equation.outvars[0]] = _broadcast(np.asarray(known[0]), equation.params)
        elif name == "dynamic_slice":
            sizes = equation.params["slice_sizes"]
            if any(_is_outside(*axis) for axis in zip(known[1:], shape, sizes, strict=True)):
                return shape
        elif name == "gather" and known[1] is not None and "FILL" not in str(equation.params["mode"]):
            axes, sizes = equation.params["dimension_numbers"].start_index_map, equation.params["slice_sizes"]
            columns = np.moveaxis(np.asarray(known[1]), -1, 0)
            if any(_is_outside(column, shape[i], sizes[i]) for i, column in zip(axes, columns, strict=True)):
                return shape
        for param in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(param, "eqns") and (outside := out_of_range(param)) is not None:
                return outside
    return None


def _is_outside(begin: Any, length: int, size: int) -> bool:
    if begin is None or not arguments.is_known(begin):
        return False
    return bool(np.any((np.asarray(begin) < 0) | (np.asarray(begin) > length - size)))


def _broadcast(value: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    own = dict(zip(params["broadcast_dimensions"], value.shape, strict=True))
    return np.broadcast_to(value.reshape([own.get(i, 1) for i in range(len(params["shape"]))]), params["shape"])
