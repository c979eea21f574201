"""The values of the lowering, which are known arrays and arrays of nodes, and the registry of rules for them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .graph import Graph


class Nodes:
    """An array of scalar nodes. Every other value of the lowering is an array of known numbers."""

    __slots__ = ("dtype", "ids")

    def __init__(self, ids: Any, dtype: Any):
        self.ids = np.asarray(ids, np.int64)
        self.dtype = np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.ids.shape


class LoweringError(NotImplementedError):
    """A function that cannot be written as a scalar program; the message names the operation and the user's line."""

    def __init__(self, message: str, *, primitive: str = "", line: str = ""):
        super().__init__(message)
        self.primitive = primitive
        """The name of JAX's operation; empty if no operation is the cause."""
        self.line = line
        """The place of the operation in the user's code: file, line and function."""


class CapturedError(LoweringError):
    """A function has captured an array that JAX is tracing: its numbers are not known yet."""


class TooLargeError(LoweringError):
    """A program with too many numbers."""


Rule = Callable[..., list[Any]]
RULES: dict[str, Rule] = {}
"""The rule of each primitive, `rule(lowering, params, *inputs) -> outputs`; at least one input has unknown numbers."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return add


def nodes(graph: Graph, value: Any) -> Nodes:
    """Return `value` as an array of nodes; known numbers become constants."""
    if isinstance(value, Nodes):
        return value
    array = np.asarray(value)
    ids = [graph.constant(number, array.dtype) for number in array.ravel()]
    return Nodes(np.array(ids, np.int64).reshape(array.shape), array.dtype)


def elementwise(graph: Graph, function: Callable[..., int], dtype: Any, *inputs: Any) -> Nodes:
    """Apply a `function` of nodes to every element; shapes are equal or ()."""
    arrays = np.broadcast_arrays(*(nodes(graph, value).ids for value in inputs))
    ids = [function(*(int(node) for node in row)) for row in zip(*(array.ravel() for array in arrays), strict=True)]
    return Nodes(np.array(ids, np.int64).reshape(arrays[0].shape), dtype)


def matrices(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the matrices of a stack: the last two axes, for every index of the other axes."""
    for index in np.ndindex(*array.shape[:-2]):
        yield array[index]


def reduce(function: Callable[[int, int], int], ids: Any) -> int:
    """Return the nodes combined by `function`, from left to right."""
    result, *rest = (int(node) for node in ids)
    for node in rest:
        result = function(result, node)
    return result


def lanes(ids: np.ndarray, axes: Any) -> np.ndarray:
    """Return `ids` with the given axes moved to the end and merged into one."""
    kept = [axis for axis in range(ids.ndim) if axis not in axes]
    moved = ids.transpose(*kept, *axes)
    return moved.reshape(*(ids.shape[axis] for axis in kept), math.prod(ids.shape[axis] for axis in axes))
