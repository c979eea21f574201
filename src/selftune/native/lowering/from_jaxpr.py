"""Lowering of the jaxpr of a function on small arrays to a scalar program.

A value is either a known array, with which NumPy or JAX computes, or an array of nodes. So index arithmetic, constant
matrices and unit tangents cost nothing, and their zeros make the program sparse.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Literal
from jax.extend.source_info_util import summarize
from jaxtyping import PyTree

from ...foundation import arguments, small_programs
from .. import reserved_names
from . import _arrays as _arrays  # each fills RULES
from . import _elementwise as _elementwise
from . import _indexing as _indexing
from . import _linear as _linear
from . import _random, _whole, jax_versions
from .graph import BOOL, Graph
from .values import (
    RULES,
    CapturedError,
    LoweringError,
    Nodes,
    TooLargeError,
    Whole,
    elementwise,
    nodes,
    row_major,
    rule,
)

MAX_NODES = 200_000
"""A larger program is an error: a loop was unrolled that should not be, or the system is not small."""
MIN_TURNS = 4
"""Shorter scans are always unrolled."""
DTYPES = {np.dtype(name) for name in ("bool", "int32", "int64", "uint32", "uint64", "float32", "float64")}
PHASE = "selftune."
"""The prefix of a `jax.named_scope` that names the part of a step to which an operation belongs."""


class Leaf(NamedTuple):
    """An input or output array of a program."""

    name: str
    """The name in C."""
    group: str
    """The name of the function's argument or result that contains the array; it decides the array's role."""
    position: int
    """The position of the array in its group."""
    shape: tuple[int, ...]
    dtype: np.dtype
    ids: np.ndarray
    """The nodes of the array; if it stays in memory, they are all the node of the memory."""
    is_whole: bool = False
    """Whether the array stays in memory: loops read and write it, and its numbers have no variables."""


class Program(NamedTuple):
    """A scalar program: inputs, outputs, and the graph between them."""

    graph: Graph
    inputs: list[Leaf]
    outputs: list[Leaf]
    results: dict[str, PyTree]
    """The shapes and dtypes of the outputs, as the function returns them."""

    def live(self) -> list[int]:
        return self.graph.live(node for leaf in self.outputs for node in leaf.ids.flat)


def lower(
    function: Callable[..., dict[str, PyTree]],
    inputs: dict[str, PyTree],
    *,
    sparse: bool = True,
    loops_above: int | None = None,
    in_memory: Callable[[str, int], bool] = lambda group, size: False,
) -> Program:
    """Return the scalar program of `function(**inputs)`, where the function returns a dictionary of pytrees.

    **Arguments:**

    - `inputs`: pytrees of arrays, or of shapes and dtypes, by name. Only shapes and dtypes are used.
    - `sparse`: whether a constant zero times any number is zero, see `Graph`.
    - `loops_above`: matrix products and factorizations with more terms than this, and `scan`, become loops. None
      unrolls all of them, so that the program can use every number that is known.
    - `in_memory`: says of the group and the size of an input or output array whether C has it as an array. With loops,
      such an array of real numbers stays in memory if it is large.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), inputs)
    closed, out = jax.make_jaxpr(lambda inputs: function(**inputs), return_shape=True)(shapes)
    graph = Graph(sparse=sparse)
    lowering = Lowering(graph, loops_above)

    def is_whole(group: str, leaf: Any) -> bool:
        size = math.prod(leaf.shape)
        is_real = np.dtype(leaf.dtype).kind == "f"
        return loops_above is not None and is_real and size >= _whole.SMALLEST and in_memory(group, size)

    given = []
    for (name, leaf), (group, position) in zip(leaf_names(shapes), _groups(shapes), strict=True):
        stays = is_whole(group, leaf)
        ids = _new_array(graph, name, leaf) if stays else _new_inputs(graph, name, leaf)
        given.append(Leaf(name, group, position, leaf.shape, np.dtype(leaf.dtype), ids, stays))
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        try:
            results = lowering.inline(closed, [_input(leaf) for leaf in given])
        except LoweringError as error:
            message = f"the native engine does not support {error}" + (f", at {error.line}" if error.line else "")
            raise type(error)(message, primitive=error.primitive, line=error.line) from error.__cause__
    outputs = []
    own = {leaf.ids.flat[0]: (leaf.group, leaf.position) for leaf in given if leaf.is_whole}
    for (name, shape), (group, position), value in zip(leaf_names(out), _groups(out), results, strict=True):
        if isinstance(value, Whole) and is_whole(group, shape):
            held = _whole.plain(graph, value)
            if held.array in own and own[held.array] != (group, position):
                held = _whole.copied(graph, held)  # the memory of another array may have changed when this is stored
            ids = np.full(value.shape, held.array, np.int64)
            outputs.append(Leaf(name, group, position, value.shape, value.dtype, ids, True))
            continue
        array = nodes(graph, value)
        outputs.append(Leaf(name, group, position, array.shape, array.dtype, array.ids))
    return Program(graph, given, outputs, out)


def _groups(trees: dict[str, PyTree]) -> list[tuple[str, int]]:
    """Return the group and the position of each leaf, in the order in which JAX flattens a dictionary."""
    return [(group, i) for group in sorted(trees) for i in range(len(jax.tree.leaves(trees[group])))]


def leaf_names(tree: PyTree) -> list[tuple[str, Any]]:
    """Return the leaves of a pytree, each with a unique name that is valid in C and made from its path."""
    named = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        text = jax.tree_util.keystr(path, simple=True, separator="_")
        name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "leaf"
        named.append((f"leaf_{name}" if name[0].isdigit() else name, leaf))
    taken = set(reserved_names.C_AND_CPP)
    unique = []
    for name, leaf in named:
        while name in taken:
            name += "_"
        taken.add(name)
        unique.append((name, leaf))
    return unique


def _new_inputs(graph: Graph, name: str, leaf: Any) -> np.ndarray:
    _check_dtype(leaf.dtype, f"{name}: ")
    size = int(np.prod(leaf.shape))
    ids = [graph.input(name, i, leaf.dtype) for i in range(size)]
    return np.array(ids, np.int64).reshape(leaf.shape)


def _new_array(graph: Graph, name: str, leaf: Any) -> np.ndarray:
    return np.full(leaf.shape, graph.array_input(name, math.prod(leaf.shape), leaf.dtype), np.int64)


def _input(leaf: Leaf) -> Nodes | Whole:
    if leaf.is_whole:
        return Whole(int(leaf.ids.flat[0]), leaf.dtype, leaf.shape, row_major(leaf.shape))
    return Nodes(leaf.ids, leaf.dtype)


def _check_dtype(dtype: Any, what: str = "") -> None:
    if dtype not in DTYPES:
        raise LoweringError(f"{what}numbers of dtype {dtype}; supported are {', '.join(sorted(map(str, DTYPES)))}")


class Lowering:
    """An interpreter of jaxprs whose values are known arrays, arrays of nodes, or arrays in memory."""

    def __init__(self, graph: Graph, loops_above: int | None = None):
        self.graph = graph
        self.loops_above = loops_above
        self.primitive = ""
        """The name of the primitive whose rule is running."""
        self.maps: dict[Any, int] = {}
        """The arrays that loops have computed, by what the loops compute."""

    def inline(self, closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of a closed jaxpr, with each operation replaced by its nodes."""
        jaxpr = closed.jaxpr
        values: dict[Any, Any] = {}
        for const in closed.consts:
            if isinstance(const, Tracer):
                raise CapturedError(
                    "a function that has captured an array under jit or vmap, such as an optax transformation of a "
                    "traced learning rate: pass the array as a parameter (theta, a, t or a learning rate)"
                )
        values.update(zip(jaxpr.constvars, map(_known, closed.consts), strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))
        phase = self.graph.phase
        for eqn in jaxpr.eqns:
            self.graph.phase = _phase(eqn) or phase
            values.update(zip(eqn.outvars, self._evaluate(eqn, values), strict=True))
        self.graph.phase = phase
        return [_value(v, values) for v in jaxpr.outvars]

    def expand(self, function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
        """Trace a JAX function, and return its outputs for the inputs."""
        shapes = [jax.ShapeDtypeStruct(np.shape(value), value.dtype) for value in inputs]
        try:
            return self.inline(jax.make_jaxpr(function)(*shapes), inputs)
        except LoweringError as error:
            error.line = ""  # a line in JAX; the caller sets the user's line
            raise

    def _evaluate(self, eqn: Any, values: dict[Any, Any]) -> list[Any]:
        name = jax_versions.name_of(eqn)
        try:
            return self._apply(name, eqn, [_value(v, values) for v in eqn.invars])
        except CapturedError:
            raise
        except LoweringError as error:
            error.primitive = error.primitive or name
            error.line = error.line or summarize(eqn.source_info)  # the innermost line of the user's code
            raise
        except (AttributeError, LookupError, NotImplementedError, TypeError, ValueError) as error:
            # Operands or parameters do not have the form that a rule, or JAX's own evaluation, expects.
            message = f"the operation {name!r} in the form of JAX {jax.__version__} ({type(error).__name__}: {error})"
            raise LoweringError(message, primitive=name, line=summarize(eqn.source_info)) from error

    def _apply(self, name: str, eqn: Any, inputs: list[Any]) -> list[Any]:
        params = jax_versions.parameters_of(eqn)
        if not any(isinstance(value, Nodes | Whole) for value in inputs) and name not in _CALLS and name not in _KEYS:
            if (compute := _by_numpy(name, inputs)) is not None:
                known = compute(params, *inputs)
                params.finish()
                return [known]
            if name not in _FOLDED or max(np.size(value) for value in inputs) > 256:
                out = eqn.primitive.bind(*map(jnp.asarray, inputs), **eqn.params)
                return [_known(value) for value in (out if eqn.primitive.multiple_results else [out])]
        elif name not in RULES:
            raise LoweringError(f"the operation {name!r}")
        self.primitive = name
        if name not in _CALLS and any(isinstance(value, Whole) for value in inputs):
            outputs = _whole.apply(self, name, params, inputs)
            if outputs is not None:
                params.finish()
                return [self._settle(value) for value in outputs]
            inputs = [nodes(self.graph, value) if isinstance(value, Whole) else value for value in inputs]
        if name not in _CALLS and name not in _KEYS and name not in _INDEXED:
            inputs = [nodes(self.graph, inputs[0]), *inputs[1:]]  # rules rely on this; indices stay known
        outputs = RULES[name](self, params, *inputs)
        params.finish()
        if len(self.graph) > MAX_NODES:
            raise TooLargeError(f"{name!r}: a program of more than {MAX_NODES:,} numbers")
        return [self._settle(value) for value in outputs]

    def select(self, condition: int, no: Nodes | Whole, yes: Nodes | Whole) -> Any:
        """Return `yes` if the condition holds, otherwise `no`."""
        if isinstance(no, Whole) or isinstance(yes, Whole):
            (chosen,) = _whole.apply(self, "select_n", None, [Nodes(condition, BOOL), no, yes]) or []
            return chosen
        graph = self.graph
        return elementwise(graph, lambda no, yes: graph.select(condition, no, yes), no.dtype, no, yes)

    def _settle(self, value: Any) -> Any:
        """Return an array of constant nodes as a known array; other values unchanged."""
        if not isinstance(value, Nodes):
            return value
        _check_dtype(value.dtype, f"{self.primitive!r} with ")
        graph = self.graph
        if all(graph.is_constant(int(node)) for node in value.ids.flat):
            return np.array([graph.values[node] for node in value.ids.flat], value.dtype).reshape(value.shape)
        return value


_INDEXED = {"gather", "dynamic_slice", "dynamic_update_slice", "scatter", "select_n", "concatenate", "stack", "pad"}
_FOLDED = {
    "pad",
    "gather",
    "scatter",
    "scatter_add",
    "dynamic_slice",
    "dynamic_update_slice",
    "rev",
    "stack",
    "unstack",
    "split",
    "tile",
    "reduce_sum",
    "reduce_max",
    "reduce_or",
    "reduce_and",
    "cumsum",
    "dot_general",
    "clamp",
    "copy",
}
"""Operations that are faster by their rule than compiled by JAX, if all inputs are known and small."""


def _platform_index(params: Any) -> Any:
    """Return the position of the CPU, on which C runs, in a list of platforms."""
    platforms = params["platforms"]
    own = [i for i, names in enumerate(platforms) if names is not None and "cpu" in names]
    return np.asarray(own[-1] if own else platforms.index(None), np.int32)


KNOWN = {**small_programs.RULES, "platform_index": _platform_index}


def _by_numpy(name: str, inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """Return the function with which NumPy computes an operation of known arrays; None if JAX must compute it."""
    if name in small_programs.OF_REALS and all(value.dtype.kind == "f" for value in inputs):
        return small_programs.OF_REALS[name]
    return KNOWN.get(name)


_KEYS = {"random_fold_in", "random_bits", "random_split", "random_wrap", "random_unwrap"}
_CALLS: set[str] = set()


def _call(*names: str) -> Callable[[Any], Any]:
    """Register the rule of a primitive that contains a jaxpr; it is always inlined, even if its inputs are known."""
    _CALLS.update(names)
    return rule(*names)


@_call("jit", "call", "remat", "custom_jvp_call", "custom_vjp_call")
def _inline_call(lowering, params, *inputs):
    return lowering.inline(params["jaxpr"], inputs)


@_call("call_hi_primitive")
def _expand(lowering, params, *inputs):
    return lowering.expand(params["function"], inputs)


@_call("custom_linear_solve")
def _linear_solve(lowering, params, *inputs):
    lengths, solve = params["const_lengths"], params["jaxprs"].solve
    before = lengths.matvec + lengths.vecmat
    consts = inputs[before : before + lengths.solve]
    return lowering.inline(solve, [*consts, *inputs[sum(lengths) :]])


@_call("cond")
def _cond(lowering, params, index, *inputs):
    graph, branches = lowering.graph, params["branches"]
    if not isinstance(index, Nodes):
        return lowering.inline(branches[min(max(int(index), 0), len(branches) - 1)], inputs)
    which = int(index.ids)
    outputs = [[_unknown(graph, value) for value in lowering.inline(branch, inputs)] for branch in branches]
    chosen = outputs[-1]
    for i in range(len(branches) - 2, -1, -1):
        here = (
            graph.apply("not", which)
            if index.dtype == BOOL
            else graph.apply("le", which, graph.constant(i, index.dtype))
        )
        chosen = [lowering.select(here, no, yes) for no, yes in zip(chosen, outputs[i], strict=True)]
    return chosen


def _unknown(graph: Graph, value: Any) -> Nodes | Whole:
    return value if isinstance(value, Whole) else nodes(graph, value)


@_call("scan")
def _scan(lowering, params, *inputs):
    """Unroll the whole scan, which `MAX_NODES` limits, or write it as a loop."""
    fixed, carried = params["num_consts"], params["num_carry"]
    consts, carry = list(inputs[:fixed]), list(inputs[fixed : fixed + carried])
    sequences, length = inputs[fixed + carried :], params["length"]
    # A known whole number, such as a counter, is an index in the body: it must stay known.
    known = [np.asarray(value) for value in (*carry, *sequences) if not isinstance(value, Nodes | Whole)]
    counts = any(value.dtype.kind in "iu" for value in known)
    # In the body of a loop, numbers that are known in each turn are worth more than a second loop.
    sparse = lowering.graph.in_loop and any(not isinstance(sequence, Nodes | Whole) for sequence in sequences)
    if lowering.loops_above is not None and length >= MIN_TURNS and not counts and not sparse:
        return _scan_loop(lowering, params, consts, carry, sequences)
    turns = range(length - 1, -1, -1) if params["reverse"] else range(length)
    rows: dict[int, list[Any]] = {}
    for turn in turns:
        now = [_row(sequence, turn) for sequence in sequences]
        out = lowering.inline(params["jaxpr"], [*consts, *carry, *now])
        carry, rows[turn] = out[:carried], out[carried:]
    shapes = params["jaxpr"].out_avals[carried:]
    stacked = []
    for i, aval in enumerate(shapes):
        if length == 0:
            stacked.append(np.zeros((0, *aval.shape), aval.dtype))
            continue
        ids = [nodes(lowering.graph, rows[turn][i]).ids for turn in range(length)]
        stacked.append(Nodes(np.stack(ids), aval.dtype))
    return [*carry, *stacked]


def _scan_loop(lowering, params, consts, carry, sequences):
    graph, length, backwards = lowering.graph, params["length"], params["reverse"]
    loop = graph.begin_loop(length)
    now = [_turn_of(graph, loop, sequence, backwards=backwards) for sequence in sequences]
    held = []
    for value in carry:
        if isinstance(value, Whole) or (value.dtype.kind == "f" and math.prod(value.shape) >= _whole.SMALLEST):
            array = graph.carry_array(loop, _whole.plain(graph, value).array)
            held.append(Whole(array, value.dtype, value.shape, row_major(value.shape)))
            continue
        ids = [graph.carry(loop, int(node)) for node in nodes(graph, value).ids.flat]
        held.append(Nodes(np.array(ids, np.int64).reshape(value.shape), value.dtype))
    out = lowering.inline(params["jaxpr"], [*consts, *held, *now])
    after, rows = out[: len(carry)], [nodes(graph, value) for value in out[len(carry) :]]
    arrays, numbers = [], []
    for begun, value in zip(held, after, strict=True):
        if isinstance(begun, Whole):
            following = _whole.plain(graph, value)
            if graph.ops[following.array] == "carry_array" and following.array != begun.array:
                following = _whole.copied(graph, following)  # arrays may change places
            arrays.append(following.array)
        else:
            numbers.append(nodes(graph, value))
    last, columns, last_arrays = graph.end_loop(
        loop,
        [int(node) for value in numbers for node in value.ids.flat],
        [int(node) for value in rows for node in value.ids.flat],
        arrays,
    )
    results, at, ended = [], 0, iter(last_arrays)
    for begun in held:
        if isinstance(begun, Whole):
            results.append(Whole(next(ended), begun.dtype, begun.shape, row_major(begun.shape)))
            continue
        size = begun.ids.size
        results.append(Nodes(np.array(last[at : at + size], np.int64).reshape(begun.shape), begun.dtype))
        at += size
    at = 0
    for value in rows:
        ids = np.array(columns[at : at + value.ids.size], np.int64).reshape(value.ids.size, length)
        ids = ids.T[:: -1 if backwards else 1].reshape(length, *value.shape)
        results.append(Nodes(ids, value.dtype))
        at += value.ids.size
    return results


def _turn_of(graph: Graph, loop: int, sequence: Any, *, backwards: bool) -> Nodes:
    """Return what one turn of a loop reads of a sequence."""
    if isinstance(sequence, Whole):
        first = _row(sequence, sequence.shape[0] - 1 if backwards else 0)
        step = (loop, 0, -sequence.strides[0] if backwards else sequence.strides[0])
        ids = [graph.number(first.array, int(place), (step,)) for place in first.places().flat]
        return Nodes(np.array(ids, np.int64).reshape(first.shape), first.dtype)
    held = nodes(graph, sequence)
    turns = held.ids.reshape(graph.loops[loop].length, -1)[:: -1 if backwards else 1]
    ids = [graph.turn_input(loop, column) for column in turns.T]
    return Nodes(np.array(ids, np.int64).reshape(held.shape[1:]), held.dtype)


@_call("while")
def _while(lowering, params, *inputs):
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    condition_inputs, body_inputs = inputs[:cond_consts], inputs[cond_consts : cond_consts + body_consts]
    carry = list(inputs[cond_consts + body_consts :])
    while True:
        (goes_on,) = lowering.inline(condition, [*condition_inputs, *carry])
        if isinstance(goes_on, Nodes):
            raise LoweringError("a while loop whose number of iterations is not known when it is compiled")
        if not np.all(goes_on):
            return carry
        carry = lowering.inline(body, [*body_inputs, *carry])


def _row(value: Any, turn: int) -> Any:
    if isinstance(value, Whole):
        return Whole(
            value.array, value.dtype, value.shape[1:], value.strides[1:], value.offset + turn * value.strides[0]
        )
    return Nodes(value.ids[turn], value.dtype) if isinstance(value, Nodes) else value[turn]


def _known(value: Any) -> Any:
    return _random.key_data(value) if arguments.is_key(value) else np.asarray(value)


def _value(variable: Any, values: dict[Any, Any]) -> Any:
    """Return the value of a variable; a Python number in a jaxpr gets the dtype that JAX gave it."""
    if not isinstance(variable, Literal):
        return values[variable]
    value, aval = variable.val, cast(Any, variable.aval)
    return np.asarray(value, aval.dtype) if isinstance(value, (bool, int, float)) else _known(value)


def _phase(eqn: Any) -> str:
    phases = re.findall(re.escape(PHASE) + r"(\w+)", str(eqn.source_info.name_stack))
    return phases[-1] if phases else ""
