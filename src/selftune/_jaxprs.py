"""What JAX has traced: whether two programs are the same, and whether an index is out of range."""

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from . import _check


def digest(closed: Any) -> str:
    """SHA-256 of a closed jaxpr: its text without memory addresses, and the values of its constants.

    A constant that is being traced itself has no value; the text has its shape and dtype.
    """
    found = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", str(closed.jaxpr)).encode())
    for constant in filter(_check.is_known, _constants(closed)):
        value = np.asarray(jax.random.key_data(constant) if _check.is_key(constant) else constant)
        found.update(f"{value.dtype.str}{value.shape}".encode() + value.tobytes())
    return found.hexdigest()


def _constants(part: Any) -> Iterator[Any]:
    """Every array inside a program: the text of a jaxpr has their shapes alone."""
    if hasattr(part, "consts"):
        yield from part.consts
        part = part.jaxpr
    for equation in part.eqns:
        yield from (one.val for one in equation.invars if hasattr(one, "val") and np.ndim(one.val))
        inside = list(equation.params.values())
        for one in jax.tree.leaves(inside, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(one, "eqns"):
                yield from _constants(one)
            elif isinstance(one, (np.ndarray, jax.Array)):
                yield one


_ON_INDICES = {"lt": np.less, "add": np.add, "select_n": lambda which, no, yes: yes if which else no}


def out_of_range(part: Any) -> tuple[int, ...] | None:
    """The shape of an array that is read at a fixed index that it does not have; None where there is none.

    JAX reads the last number there is, and says nothing.
    """
    values: dict[Any, Any] = {}
    for equation in getattr(part, "jaxpr", part).eqns:
        name = equation.primitive.name
        known = [one.val if hasattr(one, "val") else values.get(one) for one in equation.invars]
        if name in _ON_INDICES and all(one is not None and np.ndim(one) == 0 for one in known):
            values[equation.outvars[0]] = _ON_INDICES[name](*known)
        elif name == "dynamic_slice":
            shape, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
            for begin, size, length in zip(known[1:], sizes, shape, strict=True):
                if begin is not None and not 0 <= int(begin) <= length - size:
                    return shape
        inside = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns"))
        for one in inside:
            if hasattr(one, "eqns") and (found := out_of_range(one)) is not None:
                return found
    return None
