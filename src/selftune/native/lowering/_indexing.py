"""Rules for indexing: a known index picks its element, an unknown index is compared with every possible position."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from .graph import BOOL, Graph
from .values import LoweringError, Nodes, elementwise, nodes, rule

MAX_PLACES = 4096
"""The largest number of positions that an unknown index may refer to."""


@rule("gather")
def _gather(lowering, params, x, indices):
    graph = lowering.graph
    x, indices = nodes(graph, x), nodes(graph, indices)
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    fills = "FILL" in str(params["mode"]).upper()
    fill = _fill_value(x.dtype) if params["fill_value"] is None else params["fill_value"]
    outside = graph.constant(fill, x.dtype)
    batching = tuple(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [axis for axis in range(x.ids.ndim) if axis not in dropped]
    rank = indices.ids.ndim - 1 + len(kept)
    batch_axes = [axis for axis in range(rank) if axis not in numbers.offset_dims]
    lengths = dict(zip(batch_axes, indices.shape[:-1], strict=True))
    lengths |= {at: sizes[axis] for at, axis in zip(numbers.offset_dims, kept, strict=True)}
    out = np.empty([lengths[axis] for axis in range(rank)], np.int64)
    largest = [x.shape[axis] - sizes[axis] for axis in numbers.start_index_map]
    for position in np.ndindex(*out.shape):
        batch = tuple(position[axis] for axis in batch_axes)
        inside = dict(zip(kept, (position[axis] for axis in numbers.offset_dims), strict=True))
        inside |= {axis: batch[at] for axis, at in batching}
        row, result = indices.ids[batch], outside if fills else -1
        for candidate in _candidates(graph, row, largest, clip=not fills):
            node = int(x.ids[_place(x.ids.ndim, inside, numbers.start_index_map, candidate)])
            test = _asks(graph, row, candidate, largest, clip=not fills)
            result = node if result < 0 else graph.select(test, result, node)
        out[position] = result
    return [Nodes(out, x.dtype)]


def _fill_value(dtype: np.dtype) -> Any:
    """Return the value that JAX gives for an index out of range."""
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
    for chosen in _places(options):
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
    for chosen in _places(options):
        part = x.ids.copy()
        part[tuple(slice(at, at + size) for at, size in zip(chosen, update.shape, strict=True))] = update.ids
        test = _chosen(graph, starts, chosen, options)
        result = part if result is None else _select_all(graph, test, result, part)
    return [Nodes(result, x.dtype)]


_SCATTERS = {
    "scatter": None,
    "scatter_add": "add",
    "scatter_mul": "mul",
    "scatter_min": "min",
    "scatter_max": "max",
    "scatter_sub": "sub",
}


@rule(*_SCATTERS)
def _scatter(lowering, params, x, indices, updates):
    graph, combine = lowering.graph, _SCATTERS[lowering.primitive]
    x, indices, updates = nodes(graph, x), nodes(graph, indices), nodes(graph, updates)
    numbers = params["dimension_numbers"]
    clip = "CLIP" in str(params["mode"]).upper()
    batching = tuple(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    kept = [axis for axis in range(x.ids.ndim) if axis not in dropped]
    window = {axis: updates.shape[at] for axis, at in zip(kept, numbers.update_window_dims, strict=True)}
    largest = [x.shape[axis] - window.get(axis, 1) for axis in numbers.scatter_dims_to_operand_dims]
    batch_axes = [axis for axis in range(updates.ids.ndim) if axis not in numbers.update_window_dims]
    moved = updates.ids.transpose(*batch_axes, *numbers.update_window_dims)
    result = x.ids.copy()
    for batch in np.ndindex(*moved.shape[: len(batch_axes)]):
        row = indices.ids[batch]
        fixed = {axis: batch[at] for axis, at in batching}
        for candidate in _candidates(graph, row, largest, clip=clip):
            test = _asks(graph, row, candidate, largest, clip=clip)
            for offset in np.ndindex(*moved.shape[len(batch_axes) :]):
                inside = fixed | dict(zip(kept, offset, strict=True))
                place = _place(x.ids.ndim, inside, numbers.scatter_dims_to_operand_dims, candidate)
                old, new = int(result[place]), int(moved[batch + offset])
                new = new if combine is None else graph.apply(combine, old, new)
                result[place] = graph.select(test, old, new)
    return [Nodes(result, x.dtype)]


def _place(rank: int, inside: dict[Any, Any], axes: Any, start: Any) -> tuple[int, ...]:
    """Return a position: the start of a window plus the position inside the window."""
    starts = dict(zip(axes, start, strict=True))
    return tuple(inside.get(axis, 0) + starts.get(axis, 0) for axis in range(rank))


def _candidates(graph: Graph, row: np.ndarray, largest: list[int], *, clip: bool) -> Iterator[tuple[int, ...]]:
    """Yield the positions that a row of indices may refer to."""
    options = []
    for node, size in zip(row, largest, strict=True):
        if graph.is_constant(int(node)):
            asked = int(graph.values[node])
            asked = min(max(asked, 0), size) if clip else asked
            options.append([asked] if 0 <= asked <= size else [])
        else:
            options.append(list(range(size + 1)))
    return _places(options)


def _places(options: list[list[int]]) -> Iterator[tuple[int, ...]]:
    if np.prod([float(len(values)) for values in options]) > MAX_PLACES:
        raise LoweringError(f"an index that is not constant into more than {MAX_PLACES} places")
    return itertools.product(*options)


def _asks(graph: Graph, row: np.ndarray, candidate: tuple[int, ...], largest: list[int], *, clip: bool) -> int:
    """Return the node that says whether a row of indices refers to a candidate."""
    test = graph.constant(True, BOOL)
    for node, value, size in zip(row, candidate, largest, strict=True):
        op = "eq"
        if clip and size == 0:
            continue
        if clip and value in (0, size):
            op = "le" if value == 0 else "ge"
        test = graph.apply("and", test, graph.apply(op, int(node), graph.constant(value, graph.dtypes[int(node)])))
    return test


def _starts(start: Any, largest: int) -> list[int]:
    """Return the possible starts of a slice: all of them, unless the start is known. A start beyond the end is moved
    back, as in JAX."""
    if isinstance(start, Nodes):
        return list(range(largest + 1))
    return [min(max(int(start), 0), largest)]


def _chosen(graph: Graph, starts: Any, chosen: tuple[int, ...], options: list[list[int]]) -> int:
    test = graph.constant(True, BOOL)
    for start, value, values in zip(starts, chosen, options, strict=True):
        if isinstance(start, Nodes) and len(values) > 1:
            node = int(start.ids)
            # Starts come in rising order and each test overrides the tests before it, so an index beyond the last start
            # selects the last one.
            at_least = graph.apply("ge", node, graph.constant(value, graph.dtypes[node]))
            test = graph.apply("and", test, at_least) if value > values[0] else test
    return test


def _select_all(graph: Graph, test: int, no: np.ndarray, yes: np.ndarray) -> np.ndarray:
    return elementwise(graph, lambda no, yes: graph.select(test, no, yes), np.int64, _raw(no), _raw(yes)).ids


def _raw(ids: np.ndarray) -> Nodes:
    return Nodes(ids, np.int64)
