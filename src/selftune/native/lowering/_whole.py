"""Rules for arrays in memory (`Whole`): most of them only choose other numbers of the same memory, or begin a loop."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .graph import Graph
from .values import RULES, Nodes, Whole, nodes, row_major

SMALLEST = 48
"""Smaller arrays are never kept in memory: their numbers are variables."""

WholeRule = Callable[..., "list[Any] | None"]
WHOLE_RULES: dict[str, WholeRule] = {}
"""Rules for operations of which at least one input is a `Whole`. None means that the operation needs single numbers."""
ELEMENTWISE = {
    *("add", "sub", "mul", "div", "rem", "max", "min", "neg", "abs", "sign", "and", "or", "xor", "not", "add_any"),
    *("sqrt", "cbrt", "exp", "exp2", "expm1", "logistic", "log", "log1p", "erf", "erfc", "floor", "ceil", "square"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("eq", "ne", "lt", "le", "gt", "ge", "is_finite", "select_n", "clamp", "convert_element_type", "integer_pow"),
    *("pow", "rsqrt", "round", "one_minus_square", "log2", "nextafter"),
}


def whole(graph: Graph, value: Any) -> Whole:
    """Return a value as an array in memory."""
    if isinstance(value, Whole):
        return value
    held = nodes(graph, value)
    return Whole(graph.table(held.ids), held.dtype, held.shape, row_major(held.shape))


def plain(graph: Graph, value: Any) -> Whole:
    """Return a value as an array in memory that begins at its first number and has its numbers in their order."""
    held = whole(graph, value)
    if held.strides == row_major(held.shape) and not held.offset and graph.lengths[held.array] == held.size:
        return held
    return copied(graph, held)


def copied(graph: Graph, value: Whole) -> Whole:
    """Return a copy of an array, with its numbers in their order."""
    loop = graph.begin_loop(*value.shape)
    array = graph.end_map(loop, _number(graph, value, loop))
    return Whole(array, value.dtype, value.shape, row_major(value.shape))


def _number(graph: Graph, value: Whole, loop: int, first_axis: int = 0) -> int:
    """Return the number of an array at the counters of a loop."""
    steps = tuple((loop, first_axis + axis, stride) for axis, stride in enumerate(value.strides))
    return graph.number(value.array, value.offset, steps)


def apply(lowering: Any, name: str, params: Any, inputs: Any) -> list[Any] | None:
    """Return the results of an operation, or None if it needs single numbers."""
    if name in ELEMENTWISE:
        if max(math.prod(value.shape) for value in inputs) < SMALLEST:
            return None
        return elementwise(lowering, name, params, inputs)
    return WHOLE_RULES[name](lowering, params, *inputs) if name in WHOLE_RULES else None


def elementwise(lowering: Any, name: str, params: Any, inputs: Any) -> list[Any]:
    graph = lowering.graph
    shape = np.broadcast_shapes(*(value.shape for value in inputs))
    operands: list[Any] = []
    for value in inputs:
        if not isinstance(value, Whole) or value.size == 1:
            value = nodes(graph, value)
            value = Nodes(value.ids.flat[0], value.dtype) if len(set(value.ids.flat)) == 1 else whole(graph, value)
        operands.append(_spread(value, shape) if isinstance(value, Whole) else value)
    wholes = [value for value in operands if isinstance(value, Whole)]
    merged = _merged([value.strides for value in wholes], shape)
    loop = graph.begin_loop(*merged[0])
    strides = iter(merged[1])
    flat = [Whole(value.array, value.dtype, merged[0], next(strides), value.offset) for value in wholes]
    parts = iter(flat)
    numbers = [
        Nodes(_number(graph, next(parts), loop), value.dtype) if isinstance(value, Whole) else value
        for value in operands
    ]
    lowering.primitive = name
    (out,) = RULES[name](lowering, params, *numbers)
    source = int(out.ids)
    for value, number in zip(operands, numbers, strict=True):
        if isinstance(value, Whole) and source == int(number.ids):
            graph.leave_loop()
            return [value]
    if graph.scopes[source] != loop:  # the same for all numbers
        graph.leave_loop()
        return [Nodes(np.full(shape, source, np.int64), out.dtype)]
    key = (merged[0], graph.body_key(loop, source))
    array = lowering.maps.get(key)
    if array is None:
        array = lowering.maps[key] = graph.end_map(loop, source)
    else:
        graph.leave_loop()
    return [Whole(array, out.dtype, shape, row_major(shape))]


def _spread(x: Whole, shape: tuple[int, ...]) -> Whole:
    """Return an array as one of a larger shape: an axis of length one is repeated."""
    strides = (0 if own == 1 else stride for own, stride in zip(x.shape, x.strides, strict=True))
    return Whole(x.array, x.dtype, shape, tuple(strides), x.offset)


def _merged(strides: list[tuple[int, ...]], shape: tuple[int, ...]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return a shape and strides of arrays with as few axes as possible, for loops with as few counters."""
    lengths: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        if lengths and all(mine[-1] == own[axis] * length for mine, own in zip(kept, strides, strict=True)):
            lengths[-1] *= length
            for mine, own in zip(kept, strides, strict=True):
                mine[-1] = own[axis]
            continue
        lengths.append(length)
        for mine, own in zip(kept, strides, strict=True):
            mine.append(own[axis])
    if not lengths:
        return (1,), [(0,) for _ in strides]
    return tuple(lengths), [tuple(mine) for mine in kept]


def whole_rule(*names: str) -> Callable[[WholeRule], WholeRule]:
    def add(function: WholeRule) -> WholeRule:
        WHOLE_RULES.update(dict.fromkeys(names, function))
        return function

    return add


@whole_rule("copy", "stop_gradient", "optimization_barrier", "name", "real")
def _same(lowering, params, *inputs):
    return list(inputs)


@whole_rule("broadcast_in_dim")
def _broadcast_in_dim(lowering, params, x, *dynamic_shape):
    shape, strides = params["shape"], [0] * len(params["shape"])
    for axis, target in enumerate(params["broadcast_dimensions"]):
        strides[target] = x.strides[axis] if x.shape[axis] == shape[target] else 0
    return [Whole(x.array, x.dtype, shape, tuple(strides), x.offset)]


@whole_rule("reshape")
def _reshape(lowering, params, x, *dynamic_shape):
    if params.get("dimensions") is not None:
        return None
    kept = [(length, stride) for length, stride in zip(x.shape, x.strides, strict=True) if length > 1]
    lengths = tuple(length for length, _ in kept)
    if tuple(stride for _, stride in kept) != row_major(lengths):
        x = copied(lowering.graph, x)
    return [Whole(x.array, x.dtype, params["new_sizes"], row_major(params["new_sizes"]), x.offset)]


@whole_rule("squeeze")
def _squeeze(lowering, params, x):
    gone = {axis % len(x.shape) for axis in params["dimensions"]}
    kept = [axis for axis in range(len(x.shape)) if axis not in gone]
    return [_with_axes(x, kept)]


@whole_rule("expand_dims")
def _expand_dims(lowering, params, x):
    shape = np.expand_dims(np.empty(x.shape, bool), tuple(params["dimensions"])).shape
    strides = iter(x.strides)
    new = {axis % len(shape) for axis in params["dimensions"]}
    return [
        Whole(x.array, x.dtype, shape, tuple(0 if i in new else next(strides) for i in range(len(shape))), x.offset)
    ]


@whole_rule("transpose")
def _transpose(lowering, params, x):
    return [_with_axes(x, params["permutation"])]


def _with_axes(x: Whole, axes: Any) -> Whole:
    shape, strides = ([given[axis] for axis in axes] for given in (x.shape, x.strides))
    return Whole(x.array, x.dtype, tuple(shape), tuple(strides), x.offset)


@whole_rule("rev")
def _rev(lowering, params, x):
    offset, strides = x.offset, list(x.strides)
    for axis in params["dimensions"]:
        offset += (x.shape[axis] - 1) * strides[axis]
        strides[axis] = -strides[axis]
    return [Whole(x.array, x.dtype, x.shape, tuple(strides), offset)]


@whole_rule("slice")
def _slice(lowering, params, x):
    steps = params["strides"] or (1,) * len(x.shape)
    starts, ends = params["start_indices"], params["limit_indices"]
    shape = tuple(len(range(*part)) for part in zip(starts, ends, steps, strict=True))
    offset = x.offset + sum(start * stride for start, stride in zip(starts, x.strides, strict=True))
    strides = tuple(step * stride for step, stride in zip(steps, x.strides, strict=True))
    return [Whole(x.array, x.dtype, shape, strides, offset)]


@whole_rule("dot_general")
def _dot_general(lowering, params, left, right):
    """Return the product of two matrices, without batch axes; a factor that is transposed in memory is not copied, if
    the other factor is as well."""
    graph = lowering.graph
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    dtype = np.dtype(params.get("preferred_element_type") or left.dtype)
    if left_batch or right_batch or left.dtype != right.dtype or dtype != left.dtype or dtype.kind != "f":
        return None
    sides = []
    for side, summed in ((left, left_sum), (right, right_sum)):
        free = [axis for axis in range(len(side.shape)) if axis not in summed]
        sides.append((side, free, list(summed)))
    lengths = [[side.shape[axis] for axis in free] for side, free, _ in sides]
    rows, columns = map(math.prod, lengths)
    inner = math.prod(left.shape[axis] for axis in left_sum)
    if rows * inner * columns <= lowering.loops_above:
        return None
    shape = (*lengths[0], *lengths[1])

    def arranged(side: Any, axes: list[int]) -> tuple[Whole, bool]:
        held = _with_axes(whole(graph, side), axes)
        return held, _is_plain(graph, held)

    (a, a_free, a_sum), (b, b_free, b_sum) = sides
    straight = [arranged(a, [*a_free, *a_sum]), arranged(b, [*b_sum, *b_free])]
    turned = [arranged(b, [*b_free, *b_sum]), arranged(a, [*a_sum, *a_free])]
    if sum(is_plain for _, is_plain in turned) > sum(is_plain for _, is_plain in straight):
        first, second = (plain(graph, held).array for held, _ in turned)
        array = graph.product(first, second, columns, inner, rows)
        made = (*lengths[1], *lengths[0])
        back = [*range(len(lengths[1]), len(made)), *range(len(lengths[1]))]
        return [_with_axes(Whole(array, dtype, made, row_major(made)), back)]
    first, second = (plain(graph, held).array for held, _ in straight)
    return [Whole(graph.product(first, second, rows, inner, columns), dtype, shape, row_major(shape))]


def _is_plain(graph: Graph, held: Whole) -> bool:
    kept = [(length, stride) for length, stride in zip(held.shape, held.strides, strict=True) if length > 1]
    in_order = tuple(stride for _, stride in kept) == row_major(tuple(length for length, _ in kept))
    return in_order and not held.offset and graph.lengths[held.array] == held.size


_REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
}


@whole_rule(*_REDUCTIONS)
def _reduce(lowering, params, x):
    """Combine numbers from the first to the last, as single numbers are."""
    graph = lowering.graph
    op = _REDUCTIONS[lowering.primitive]
    axes = tuple(params["axes"])
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    if x.size < SMALLEST:
        return None
    reduced = _with_axes(x, axes)
    lengths, (strides,) = _merged([reduced.strides], reduced.shape)
    around = graph.begin_loop(*(x.shape[axis] for axis in kept)) if kept else None
    outer = () if around is None else tuple((around, i, x.strides[axis]) for i, axis in enumerate(kept))
    empty = graph.constant(
        {"add": 0, "mul": 1, "and": True, "or": False}.get(op)
        if op not in ("max", "min")
        else (np.inf if op == "min" else -np.inf),
        x.dtype,
    )
    loop = graph.begin_loop(*lengths)
    carry = graph.carry(loop, empty)
    number = graph.number(x.array, x.offset, (*outer, *((loop, i, stride) for i, stride in enumerate(strides))))
    (last,), _, _ = graph.end_loop(loop, [graph.apply(op, carry, number)], [])
    if around is None:
        return [Nodes(last, x.dtype)]
    shape = tuple(x.shape[axis] for axis in kept)
    return [Whole(graph.end_map(around, last), x.dtype, shape, row_major(shape))]
