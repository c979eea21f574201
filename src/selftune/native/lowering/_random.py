"""Rules for JAX's random numbers: the Threefry generator, as JAX defines it."""

import jax
import numpy as np
from jax.extend.random import threefry_prng_impl as threefry

from .graph import Graph
from .values import LoweringError, Nodes, nodes, rule

WORD = np.dtype(np.uint32)
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@rule("random_fold_in")
def _fold_in(lowering, params, key, data):
    return _inline(lowering, threefry.fold_in, key, data)


@rule("random_bits")
def _bits(lowering, params, key):
    return _inline(lowering, lambda key: threefry.random_bits(key, params["bit_width"], params["shape"]), key)


@rule("random_split")
def _split(lowering, params, key):
    return _inline(lowering, lambda key: threefry.split(key, params["shape"]), key)


def _inline(lowering, function, *values):
    if values[0].shape != (2,):
        raise LoweringError(f"random numbers from keys of shape {values[0].shape[:-1]}: one Threefry key at a time")
    return lowering.expand(function, values)


@rule("threefry2x32")
def _threefry2x32(lowering, params, *inputs):
    graph = lowering.graph
    arrays = np.broadcast_arrays(*(nodes(graph, value).ids for value in inputs))
    out = np.empty((2, *arrays[0].shape), np.int64)
    for index in np.ndindex(*arrays[0].shape):
        out[(slice(None), *index)] = _block(graph, *(int(array[index]) for array in arrays))
    return [Nodes(half, WORD) for half in out]


def _block(graph: Graph, k0: int, k1: int, x0: int, x1: int) -> tuple[int, int]:
    """Return one block of Threefry, 20 rounds on two words.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    parity = graph.constant(0x1BD11BDA, WORD)
    keys = (k0, k1, graph.apply("xor", graph.apply("xor", k0, k1), parity))
    x0, x1 = graph.apply("add", x0, keys[0]), graph.apply("add", x1, keys[1])
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x0 = graph.apply("add", x0, x1)
            left = graph.shift("shift_left", x1, graph.constant(by, WORD))
            right = graph.shift("shift_right_logical", x1, graph.constant(32 - by, WORD))
            x1 = graph.apply("xor", graph.apply("or", left, right), x0)
        x0 = graph.apply("add", x0, keys[(group + 1) % 3])
        x1 = graph.apply("add", graph.apply("add", x1, keys[(group + 2) % 3]), graph.constant(group + 1, WORD))
    return x0, x1


def key_data(value: jax.Array) -> np.ndarray:
    """Return the two words of a key; a generator other than Threefry raises `LoweringError`."""
    if (name := str(jax.random.key_impl(value))) != "fry" and "threefry" not in name:
        raise LoweringError(f"random numbers of the generator {name}; only those of Threefry are supported")
    return np.asarray(jax.random.key_data(value))
