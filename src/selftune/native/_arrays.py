"""Rules that move numbers about: shapes, indices, sorting."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._values import LoweringError, Nodes, elementwise, nodes, rule
from .graph import BOOL, Graph

MAX_PLACES = 4096
"""An index that is not constant is compared with every place it may name: there are no more than these."""


@rule("copy", "copy_p", "stop_gradient", "optimization_barrier", "real", "random_wrap", "random_unwrap")
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
    return [Nodes(x.ids.reshape(params["new_sizes"]), x.dtype)]


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
    return [Nodes(np.stack([a.ids for a in arrays], axis=params.get("axis", 0)), arrays[0].dtype)]


@rule("unstack")
def _unstack(lowering, params, x):
    return [Nodes(part, x.dtype) for part in np.moveaxis(x.ids, params.get("axis", 0), 0)]


@rule("split")
def _split(lowering, params, x):
    ends = np.cumsum(params["sizes"])[:-1]
    return [Nodes(part, x.dtype) for part in np.split(x.ids, ends, axis=params["axis"])]


@rule("pad")
def _pad(lowering, params, x, value):
    x, value = nodes(lowering.graph, x), nodes(lowering.graph, value)
    labels = _labels(x.shape, 1)
    out = np.asarray(lax.pad(labels, jnp.zeros((), labels.dtype), params["padding_config"]))
    return [_pick(out, x, value)]


@rule("gather")
def _gather(lowering, params, x, indices):
    graph = lowering.graph
    x = nodes(graph, x)
    labels = _labels(x.shape, 1)
    numbers, mode = params["dimension_numbers"], params["mode"]
    fill = params["fill_value"]
    if fill is None:
        fill = _fill_value(x.dtype)
    outside = nodes(graph, np.asarray(fill, x.dtype))
    rest = {k: v for k, v in params.items() if k != "fill_value"}

    def run(known: Any) -> np.ndarray:
        return np.asarray(lax.gather_p.bind(labels, jnp.asarray(known), fill_value=0, **rest))

    if not isinstance(indices, Nodes):
        return [_pick(run(indices), x, outside)]
    largest = [x.shape[axis] - params["slice_sizes"][axis] for axis in numbers.start_index_map]
    # Every index takes every value; which of the results counts is then a matter of comparing.
    index_rows, tests = _index_tests(graph, indices, largest, clip="FILL" not in str(mode).upper())
    rank = np.ndim(run(np.zeros(indices.shape, indices.dtype)))
    batch_axes = [axis for axis in range(rank) if axis not in numbers.offset_dims]
    result = None
    if np.prod([size + 1.0 for size in largest]) > MAX_PLACES:
        raise LoweringError(f"an index that is not constant into more than {MAX_PLACES} places")
    for candidate in itertools.product(*(range(size + 1) for size in largest)):
        picked = _pick(run(np.broadcast_to(np.asarray(candidate, indices.dtype), indices.shape)), x, outside)
        if result is None:
            start = outside if "FILL" in str(mode).upper() else picked
            result = np.broadcast_to(start.ids, picked.shape).copy()
        for position in np.ndindex(*picked.shape):
            row = index_rows[tuple(position[axis] for axis in batch_axes)]
            test = tests(row, candidate)
            result[position] = graph.select(test, int(result[position]), int(picked.ids[position]))
    return [Nodes(result, x.dtype)]


def _fill_value(dtype: np.dtype) -> Any:
    """What JAX gives for an index that is out of range."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
    return np.nan if dtype.kind == "f" else True


@rule("dynamic_slice")
def _dynamic_slice(lowering, params, x, *starts):
    graph = lowering.graph
    x = nodes(graph, x)
    sizes = params["slice_sizes"]
    options = [_starts(start, x.shape[axis] - sizes[axis]) for axis, start in enumerate(starts)]
    result: np.ndarray | None = None
    for chosen in itertools.product(*options):
        part = x.ids[tuple(slice(at, at + size) for at, size in zip(chosen, sizes, strict=True))]
        test = _chosen(graph, starts, chosen, options)
        result = part.copy() if result is None else _select_all(graph, test, result, part)
    return [Nodes(result, x.dtype)]


@rule("dynamic_update_slice")
def _dynamic_update_slice(lowering, params, x, update, *starts):
    graph = lowering.graph
    x, update = nodes(graph, x), nodes(graph, update)
    options = [_starts(start, x.shape[axis] - update.shape[axis]) for axis, start in enumerate(starts)]
    result: np.ndarray | None = None
    for chosen in itertools.product(*options):
        part = x.ids.copy()
        part[tuple(slice(at, at + size) for at, size in zip(chosen, update.shape, strict=True))] = update.ids
        test = _chosen(graph, starts, chosen, options)
        result = part if result is None else _select_all(graph, test, result, part)
    return [Nodes(result, x.dtype)]


_SCATTERS = {
    "scatter": None,
    "scatter-add": "add",
    "scatter_add": "add",
    "scatter-mul": "mul",
    "scatter_mul": "mul",
    "scatter-min": "min",
    "scatter_min": "min",
    "scatter-max": "max",
    "scatter_max": "max",
    "scatter-sub": "sub",
    "scatter_sub": "sub",
}


@rule(*_SCATTERS)
def _scatter(lowering, params, x, indices, updates):
    graph, combine = lowering.graph, _SCATTERS[lowering.primitive]
    x, updates = nodes(graph, x), nodes(graph, updates)
    numbers = params["dimension_numbers"]
    clip = "CLIP" in str(params["mode"]).upper()
    window = iter(updates.shape[axis] for axis in numbers.update_window_dims)
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    sizes = [1 if axis in dropped else next(window) for axis in range(x.ids.ndim)]
    largest = [x.shape[axis] - sizes[axis] for axis in numbers.scatter_dims_to_operand_dims]
    labels = _labels(updates.shape, 1)
    shape = np.shape(indices) if not isinstance(indices, Nodes) else indices.shape
    outside = np.full(shape, -1, np.int32)
    index_rows, tests = _index_tests(graph, nodes(graph, indices), largest, clip=clip)
    result = x.ids.copy()
    for row in np.ndindex(*index_rows.shape):
        for candidate in _candidates(graph, index_rows[row], largest, clip=clip):
            at = outside.copy()
            at[row] = candidate
            hit = np.asarray(
                lax.scatter(
                    jnp.zeros(x.shape, labels.dtype),
                    jnp.asarray(at),
                    labels,
                    numbers,
                    mode=lax.GatherScatterMode.FILL_OR_DROP,
                )
            )
            test = tests(index_rows[row], candidate)
            for position in zip(*np.nonzero(hit), strict=True):
                old, new = int(result[position]), int(updates.ids.flat[int(hit[position]) - 1])
                new = new if combine is None else graph.apply(combine, old, new)
                result[position] = graph.select(test, old, new)
    return [Nodes(result, x.dtype)]


@rule("sort")
def _sort(lowering, params, *operands):
    """A stable network of neighbours: small arrays only, but no branches."""
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


@rule("lt_to", "le_to")
def _total_order(lowering, params, a, b):
    graph = lowering.graph
    if lowering.primitive == "lt_to":
        return [elementwise(graph, lambda a, b: _before(graph, [a], [b]), BOOL, a, b)]
    return [elementwise(graph, lambda a, b: graph.apply("not", _before(graph, [b], [a])), BOOL, a, b)]


def _before(graph: Graph, a: list[int], b: list[int]) -> int:
    """Whether the keys `a` come strictly before `b`; NaN is last."""
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


def _labels(shape: tuple[int, ...], first: int) -> jax.Array:
    return jnp.arange(first, first + int(np.prod(shape)), dtype=jnp.int32).reshape(shape)


def _pick(labels: np.ndarray, x: Nodes, zero: Nodes) -> Nodes:
    """The nodes that the labels 1, 2, … name; `zero` for 0."""
    return Nodes(np.concatenate([zero.ids.reshape(1), x.ids.ravel()])[labels], x.dtype)


def _index_tests(graph: Graph, indices: Nodes, largest: list[int], *, clip: bool):
    """The rows of index numbers, and the test whether a row asks for a candidate."""

    def tests(row: np.ndarray, candidate: tuple[int, ...]) -> int:
        test = graph.constant(True, BOOL)
        for node, value, size in zip(row, candidate, largest, strict=True):
            dtype = graph.dtypes[int(node)]
            op = "eq"
            if clip and size == 0:
                continue
            if clip and value == 0:
                op = "le"
            elif clip and value == size:
                op = "ge"
            test = graph.apply("and", test, graph.apply(op, int(node), graph.constant(value, dtype)))
        return test

    rows = np.empty(indices.shape[:-1], object)
    for index in np.ndindex(*rows.shape):
        rows[index] = indices.ids[index]
    return rows, tests


def _candidates(graph: Graph, row: np.ndarray, largest: list[int], *, clip: bool) -> list[tuple[int, ...]]:
    """The places that a row of index numbers may name."""
    options = []
    for node, size in zip(row, largest, strict=True):
        if graph.is_constant(int(node)):
            asked = int(graph.values[node])
            asked = min(max(asked, 0), size) if clip else asked
            options.append([asked] if 0 <= asked <= size else [])
        else:
            options.append(list(range(size + 1)))
    if np.prod([float(len(values)) for values in options]) > MAX_PLACES:
        raise LoweringError(f"an index that is not constant into more than {MAX_PLACES} places")
    return list(itertools.product(*options))


def _starts(start: Any, largest: int) -> list[int]:
    """Where a slice may start: anywhere, unless it is known; beyond the end it is moved back, as in JAX."""
    if isinstance(start, Nodes):
        return list(range(largest + 1))
    return [min(max(int(start), 0), largest)]


def _chosen(graph: Graph, starts: Any, chosen: tuple[int, ...], options: list[list[int]]) -> int:
    test = graph.constant(True, BOOL)
    for start, value, values in zip(starts, chosen, options, strict=True):
        if isinstance(start, Nodes) and len(values) > 1:
            node = int(start.ids)
            # In rising order, each test overrules the ones before it: what is past the last start takes the last.
            at_least = graph.apply("ge", node, graph.constant(value, graph.dtypes[node]))
            test = graph.apply("and", test, at_least) if value > values[0] else test
    return test


def _select_all(graph: Graph, test: int, no: np.ndarray, yes: np.ndarray) -> np.ndarray:
    return elementwise(graph, lambda no, yes: graph.select(test, no, yes), np.int64, _raw(no), _raw(yes)).ids


def _raw(ids: np.ndarray) -> Nodes:
    return Nodes(ids, np.int64)
