"""Rules that only move numbers: shapes and sorting."""

import numpy as np

from .graph import BOOL, Graph
from .values import Nodes, elementwise, nodes, rule


@rule("copy", "stop_gradient", "optimization_barrier", "name", "real", "random_wrap", "random_unwrap")
def _same(lowering, params, *inputs):
    return list(inputs)


@rule("broadcast_in_dim")
def _broadcast_in_dim(lowering, params, x, *dynamic_shape):
    shape, where = params["shape"], params["broadcast_dimensions"]
    spread = [1] * len(shape)
    for axis, target in enumerate(where):
        spread[target] = x.shape[axis]
    return [Nodes(np.broadcast_to(x.ids.reshape(spread), shape), x.dtype)]


@rule("reshape")
def _reshape(lowering, params, x, *dynamic_shape):
    order = params.get("dimensions")
    ids = x.ids if order is None else x.ids.transpose(order)
    return [Nodes(ids.reshape(params["new_sizes"]), x.dtype)]


@rule("squeeze")
def _squeeze(lowering, params, x):
    return [Nodes(np.squeeze(x.ids, axis=tuple(params["dimensions"])), x.dtype)]


@rule("expand_dims")
def _expand_dims(lowering, params, x):
    return [Nodes(np.expand_dims(x.ids, axis=tuple(params["dimensions"])), x.dtype)]


@rule("transpose")
def _transpose(lowering, params, x):
    return [Nodes(x.ids.transpose(params["permutation"]), x.dtype)]


@rule("rev")
def _rev(lowering, params, x):
    return [Nodes(np.flip(x.ids, axis=tuple(params["dimensions"])), x.dtype)]


@rule("slice")
def _slice(lowering, params, x):
    strides = params["strides"] or (1,) * x.ids.ndim
    parts = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return [Nodes(x.ids[tuple(slice(*part) for part in parts)], x.dtype)]


@rule("concatenate")
def _concatenate(lowering, params, *parts):
    arrays = [nodes(lowering.graph, part) for part in parts]
    return [Nodes(np.concatenate([a.ids for a in arrays], axis=params["dimension"]), arrays[0].dtype)]


@rule("stack")
def _stack(lowering, params, *parts):
    arrays = [nodes(lowering.graph, part) for part in parts]
    return [Nodes(np.stack([a.ids for a in arrays], axis=params["axis"]), arrays[0].dtype)]


@rule("unstack")
def _unstack(lowering, params, x):
    return [Nodes(part, x.dtype) for part in np.moveaxis(x.ids, params["axis"], 0)]


@rule("split")
def _split(lowering, params, x):
    ends = np.cumsum(params["sizes"])[:-1]
    return [Nodes(part, x.dtype) for part in np.split(x.ids, ends, axis=params["axis"])]


@rule("tile")
def _tile(lowering, params, x):
    return [Nodes(np.tile(x.ids, params["reps"]), x.dtype)]


@rule("pad")
def _pad(lowering, params, x, value):
    x, value = nodes(lowering.graph, x), nodes(lowering.graph, value)
    config = params["padding_config"]
    full = [
        low + high + max(0, size + (size - 1) * gap) for size, (low, high, gap) in zip(x.shape, config, strict=True)
    ]
    out = np.full(full, int(value.ids), np.int64)
    for index in np.ndindex(*x.shape):
        place = [low + i * (gap + 1) for i, (low, _, gap) in zip(index, config, strict=True)]
        if all(0 <= at < size for at, size in zip(place, full, strict=True)):  # padding may be negative
            out[tuple(place)] = x.ids[index]
    return [Nodes(out, x.dtype)]


@rule("sort")
def _sort(lowering, params, *operands):
    """Stable sorting network that compares neighbours: without branches, but suitable only for small arrays."""
    graph, keys = lowering.graph, params["num_keys"]
    arrays = [np.moveaxis(nodes(graph, x).ids, params["dimension"], -1).copy() for x in operands]
    size = arrays[0].shape[-1]
    for index in np.ndindex(*arrays[0].shape[:-1]):
        rows = [array[index] for array in arrays]
        for end in range(size - 1, 0, -1):
            for i in range(end):
                swap = _before(graph, [int(row[i + 1]) for row in rows[:keys]], [int(row[i]) for row in rows[:keys]])
                for row in rows:
                    a, b = int(row[i]), int(row[i + 1])
                    row[i], row[i + 1] = graph.select(swap, a, b), graph.select(swap, b, a)
    return [Nodes(np.moveaxis(a, -1, params["dimension"]), x.dtype) for a, x in zip(arrays, operands, strict=True)]


@rule("top_k")
def _top_k(lowering, params, x):
    """Return the k largest numbers in falling order, and their indices; NaN is the largest, and -0 is below 0."""
    graph, axis = lowering.graph, params["axis"]
    places = np.broadcast_to(np.arange(x.shape[axis]), np.moveaxis(x.ids, axis, -1).shape)
    rows, at = np.moveaxis(x.ids, axis, -1).copy(), nodes(graph, places.astype(np.int32)).ids.copy()
    for i in range(params["k"]):
        for j in range(rows.shape[-1] - 1, i, -1):
            for index in np.ndindex(*rows.shape[:-1]):
                swap = _below(graph, int(rows[(*index, j - 1)]), int(rows[(*index, j)]))
                for array in (rows, at):
                    a, b = int(array[(*index, j - 1)]), int(array[(*index, j)])
                    array[(*index, j - 1)], array[(*index, j)] = graph.select(swap, a, b), graph.select(swap, b, a)
    first = [np.moveaxis(array[..., : params["k"]], -1, axis) for array in (rows, at)]
    return [Nodes(first[0], x.dtype), Nodes(first[1], np.int32)]


def _below(graph: Graph, one: int, other: int) -> int:
    less, dtype = _before(graph, [one], [other]), graph.dtypes[one]
    if dtype.kind != "f":
        return less
    whole = np.dtype(f"int{8 * dtype.itemsize}")
    signs = (graph.apply("lt", graph.convert(x, whole, op="bitcast"), graph.constant(0, whole)) for x in (one, other))
    negative, other_negative = signs
    apart = graph.apply("and", negative, graph.apply("not", other_negative))
    return graph.apply("or", less, graph.apply("and", graph.apply("eq", one, other), apart))


@rule("lt_to", "le_to")
def _total_order(lowering, params, a, b):
    graph = lowering.graph
    if lowering.primitive == "lt_to":
        return [elementwise(graph, lambda a, b: _before(graph, [a], [b]), BOOL, a, b)]
    return [elementwise(graph, lambda a, b: graph.apply("not", _before(graph, [b], [a])), BOOL, a, b)]


def _before(graph: Graph, a: list[int], b: list[int]) -> int:
    """Return the node that says whether the keys `a` come strictly before `b`; NaN is last."""
    result = graph.constant(False, BOOL)
    for one, other in reversed(list(zip(a, b, strict=True))):
        less = graph.apply("lt", one, other)
        same = graph.apply("eq", one, other)
        if graph.dtypes[one].kind == "f":
            one_nan, other_nan = graph.apply("ne", one, one), graph.apply("ne", other, other)
            less = graph.apply("or", less, graph.apply("and", other_nan, graph.apply("not", one_nan)))
            same = graph.apply("or", same, graph.apply("and", one_nan, other_nan))
        result = graph.apply("or", less, graph.apply("and", same, result))
    return result
