"""The values of the lowering, which are known arrays, arrays of nodes and arrays in memory; the registry of rules."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .graph import Graph


class Nodes:
    """An array of scalar nodes. Every value of the lowering that is neither this nor `Whole` is an array of known
    numbers."""

    __slots__ = ("dtype", "ids")

    def __init__(self, ids: Any, dtype: Any):
        self.ids = np.asarray(ids, np.int64)
        self.dtype = np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.ids.shape


class Whole:
    """An array in memory, or a part of one in another order: a large array, which has one node instead of one for each
    number. Loops compute it."""

    __slots__ = ("array", "dtype", "offset", "shape", "strides")

    def __init__(self, array: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0):
        self.array, self.dtype = array, np.dtype(dtype)
        self.shape = tuple(int(length) for length in shape)
        self.strides, self.offset = tuple(int(stride) for stride in strides), int(offset)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def places(self) -> np.ndarray:
        """Return the place in memory of each number."""
        places = np.full(self.shape, self.offset, np.int64)
        for axis, (length, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            places += (stride * np.arange(length)).reshape([-1 if i == axis else 1 for i in range(len(self.shape))])
        return places


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of an array whose last axis runs fastest."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


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
    if isinstance(value, Whole):
        places = value.places()
        ids = [graph.number(value.array, int(place)) for place in places.flat]
        return Nodes(np.array(ids, np.int64).reshape(value.shape), value.dtype)
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
