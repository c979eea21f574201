"""What the lowering computes with: arrays that are known, arrays of nodes, and the rules that take them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .graph import Graph


class Nodes:
    """An array of scalar nodes; whatever is not one is an array whose numbers are known."""

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
        """The name of JAX's operation; empty where no operation is at fault."""
        self.line = line
        """Where the user's code has it: file, line and function."""


class CapturedError(LoweringError):
    """A function that has captured an array while JAX traces it: the array's numbers are not known yet."""


class TooLargeError(LoweringError):
    """A program of too many numbers to be written out."""


Rule = Callable[..., list[Any]]
RULES: dict[str, Rule] = {}
"""From a primitive's name to `rule(lowering, params, *inputs) -> outputs`; at least one input has unknown numbers."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return add


def nodes(graph: Graph, value: Any) -> Nodes:
    """An array of nodes, made of constants where the numbers are known."""
    if isinstance(value, Nodes):
        return value
    array = np.asarray(value)
    ids = [graph.constant(number, array.dtype) for number in array.ravel()]
    return Nodes(np.array(ids, np.int64).reshape(array.shape), array.dtype)


def elementwise(graph: Graph, function: Callable[..., int], dtype: Any, *inputs: Any) -> Nodes:
    """`function` of nodes, applied to every element; shapes are equal or ()."""
    arrays = np.broadcast_arrays(*(nodes(graph, value).ids for value in inputs))
    ids = [function(*(int(node) for node in row)) for row in zip(*(array.ravel() for array in arrays), strict=True)]
    return Nodes(np.array(ids, np.int64).reshape(arrays[0].shape), dtype)


def matrices(array: np.ndarray) -> Iterator[np.ndarray]:
    """The matrices of a stack of them: its last two axes, for every index of the others."""
    for index in np.ndindex(*array.shape[:-2]):
        yield array[index]


def reduce(function: Callable[[int, int], int], ids: Any) -> int:
    """`function` from left to right."""
    result, *rest = (int(node) for node in ids)
    for node in rest:
        result = function(result, node)
    return result


def lanes(ids: np.ndarray, axes: Any) -> np.ndarray:
    """`ids` with the named axes last, as one."""
    kept = [axis for axis in range(ids.ndim) if axis not in axes]
    moved = ids.transpose(*kept, *axes)
    return moved.reshape(*(ids.shape[axis] for axis in kept), math.prod(ids.shape[axis] for axis in axes))
