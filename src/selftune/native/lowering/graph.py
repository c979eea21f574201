"""A scalar program: a graph with one node for each number that a function computes, without duplicates."""

import math
from collections.abc import Callable, Sequence
from typing import Any, no_type_check

import numpy as np

from ...foundation.small_programs import EXACT

BOOL = np.dtype(bool)

# Operations of nodes, with their NumPy functions for constants. C, NumPy and JAX all follow IEEE 754 for them, except
# that transcendental functions may differ in the last digit.
EVALUATE: dict[str, Callable[..., Any]] = {
    **EXACT,
    "pow": np.power,
    "atan2": np.arctan2,
    "nextafter": np.nextafter,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "rint": np.rint,
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}
_COMMUTE = {"add", "mul", "eq", "ne", "and", "or", "xor"}
COMPARE = {"eq", "ne", "lt", "le", "gt", "ge"}
_OF_BOOLS = {"max": "or", "min": "and", "add": "or", "mul": "and"}
_TO_BOOL = COMPARE | {"is_finite"}


class Loop:
    """A loop of a program: its body is computed once in each turn.

    A node belongs to the innermost loop whose turns change its number. All other nodes are computed outside the loop,
    so a body holds only what differs from turn to turn.
    """

    def __init__(self, shape: tuple[int, ...], depth: int):
        self.shape = shape
        """The number of turns of each counter: a loop over an array has a counter for each axis."""
        self.length = math.prod(shape)
        self.depth = depth
        """The number of loops around the body, this one included."""
        self.carries: list[int] = []
        """The numbers that one turn hands to the next, as the body reads them."""
        self.carried: list[int] = []
        """The same numbers at the end of a turn."""
        self.rows: list[int] = []
        """The numbers that the body computes for every turn."""
        self.arrays: list[int] = []
        """The arrays that one turn hands to the next, as the body reads them."""
        self.next_arrays: list[int] = []
        """The same arrays at the end of a turn."""
        self.around: set[int] = set()
        """The loops that change a number which this loop uses, without this loop."""


@no_type_check  # no type checks at run time in the tests: these methods are called for every number
class Graph:
    """A growing scalar program. A node is a number; the same operation on the same nodes is the same node.

    `sparse`: whether a constant zero times any number is zero. This makes constant tangents sparse. It differs from
    IEEE 754 only if the other factor is infinite or NaN.
    """

    def __init__(self, *, sparse: bool = True):
        self.sparse = sparse
        self.ops: list[str] = []
        self.args: list[tuple[int, ...]] = []
        self.dtypes: list[np.dtype] = []
        self.values: list[Any] = []
        """The number of a constant; the name and position of an input; other data of an operation."""
        self.phases: list[str] = []
        self.phase = ""
        """The part of the step that is being lowered; new nodes belong to this part."""
        self.loops: list[Loop] = [Loop((1,), 0)]
        """The whole program, which counts as a loop of one turn, and then the loops in it."""
        self.scopes: list[int] = []
        """For each node, the position of its loop in `loops`."""
        self._nesting: list[int] = [0]
        self._index: dict[Any, int] = {}
        self._choices: dict[int, bool] = {}
        self._compared: dict[tuple[str, int, int], int | None] = {}
        self.lengths: dict[int, int] = {}
        """For each node that is an array in memory, how many numbers it has."""

    def __len__(self) -> int:
        return len(self.ops)

    def _node(self, op: str, args: tuple[int, ...], dtype: np.dtype, value: Any = None, key: Any = None) -> int:
        full = (op, args, dtype.char, value if key is None else key)
        node = self._index.get(full)
        if node is None:
            node = self._index[full] = len(self.ops)
            self.ops.append(op)
            self.args.append(args)
            self.dtypes.append(dtype)
            self.values.append(value)
            self.phases.append(self.phase)
            self.scopes.append(self._scope(args) if len(self.loops) > 1 else 0)
        return node

    def _scope(self, args: tuple[int, ...]) -> int:
        """Return the innermost loop that changes one of the arguments."""
        return max((self.scopes[arg] for arg in args), key=lambda scope: self.loops[scope].depth, default=0)

    def constant(self, value: Any, dtype: Any) -> int:
        number = np.asarray(value, dtype)[()]
        return self._node("constant", (), number.dtype, number, key=number.tobytes())

    def input(self, name: str, position: int, dtype: Any) -> int:
        return self._node("input", (), np.dtype(dtype), (name, position))

    def is_constant(self, node: int) -> bool:
        return self.ops[node] == "constant"

    def is_number(self, node: int, number: float) -> bool:
        return self.ops[node] == "constant" and bool(self.values[node] == number)

    def apply(self, op: str, *args: int) -> int:
        """Return the node of an operation whose arguments have the same dtype; the result has this dtype, or bool."""
        dtype = BOOL if op in _TO_BOOL else self.dtypes[args[0]]
        if dtype == BOOL and op in _OF_BOOLS and self.dtypes[args[0]] == BOOL:
            op = _OF_BOOLS[op]
        if op in EVALUATE and all(map(self.is_constant, args)):
            with np.errstate(all="ignore"):
                return self.constant(EVALUATE[op](*(self.values[arg] for arg in args)), dtype)
        if op in _COMMUTE and args[0] > args[1]:
            args = (args[1], args[0])
        simpler = self._compare(op, *args) if op in COMPARE else None
        if simpler is None and op in _SIMPLIFY:
            simpler = _SIMPLIFY[op](self, *args)
        return self._node(op, args, dtype) if simpler is None else simpler

    def _compare(self, op: str, a: int, b: int) -> int | None:
        """Return the simplified node of a comparison, if its result is known or a simpler comparison exists."""
        kind = self.dtypes[a].kind
        if kind == "f":
            return None
        if a == b:
            return self.constant(op in ("eq", "le", "ge"), BOOL)
        if kind == "b" and op in ("eq", "ne"):
            differ = self.apply("xor", a, b)
            return self.apply("not", differ) if op == "eq" else differ
        # An unsigned number is never below zero.
        if kind == "u" and (
            (op in ("lt", "ge") and self.is_number(b, 0)) or (op in ("gt", "le") and self.is_number(a, 0))
        ):
            return self.constant(op in ("ge", "le"), BOOL)
        if kind not in "iu":
            return None
        key = (op, a, b)
        if key not in self._compared:
            self._compared[key] = self._compare_choices(op, a, b)
        return self._compared[key]

    def _compare_choices(self, op: str, a: int, b: int) -> int | None:
        """Simplify the comparison of a selected integer, such as a pivot's row, with a constant: the result depends
        only on the conditions of the selection."""
        for one, other in ((a, b), (b, a)):
            if not self.is_constant(other):
                continue
            swap = one == b
            if self._is_choice(one):
                condition, no, yes = self.args[one]
                arms = [self.apply(op, *((other, arm) if swap else (arm, other))) for arm in (no, yes)]
                return self.select(condition, *arms)
            if self.ops[one] == "convert" and self.dtypes[self.args[one][0]] == BOOL:
                truth = [self.constant(value, self.dtypes[one]) for value in (0, 1)]
                arms = [self.apply(op, *((other, arm) if swap else (arm, other))) for arm in truth]
                return self.select(self.args[one][0], *arms)
        return None

    def _is_choice(self, node: int) -> bool:
        is_choice = self._choices.get(node)
        if is_choice is None:
            arms = self.args[node][1:] if self.ops[node] == "select" else ()
            is_choice = bool(arms) and all(self.is_constant(arm) or self._is_choice(arm) for arm in arms)
            self._choices[node] = is_choice
        return is_choice

    def shift(self, op: str, value: int, by: int) -> int:
        return self._node(op, (value, by), self.dtypes[value])

    def convert(self, node: int, dtype: Any, op: str = "convert") -> int:
        """Return a number in another dtype, as JAX does it: floats to integers towards zero, saturating, NaN to 0."""
        dtype = np.dtype(dtype)
        if self.dtypes[node] == dtype:
            return node
        if self.is_constant(node) and op == "convert" and not (dtype.kind in "iu" and self.dtypes[node].kind == "f"):
            with np.errstate(all="ignore"):
                return self.constant(self.values[node].astype(dtype), dtype)
        return self._node(op, (node,), dtype)

    def select(self, condition: int, no: int, yes: int) -> int:
        if self.is_constant(condition):
            return yes if self.values[condition] else no
        if no == yes:
            return no
        if self.ops[condition] == "is_finite" and self.is_constant(no) and np.isnan(self.values[no]):
            # a - a is zero if a is finite, otherwise NaN: two operations without a selection.
            (a,) = self.args[condition]
            if self.dtypes[a] == self.dtypes[yes]:
                return self.apply("add", yes, self.apply("sub", a, a))
        if self.ops[condition] == "not":
            return self.select(self.args[condition][0], yes, no)
        if self.dtypes[no] == BOOL:
            if self.is_constant(yes):
                if self.values[yes]:
                    return self.apply("or", condition, no)
                return self.apply("and", self.apply("not", condition), no)
            if self.is_constant(no):
                if not self.values[no]:
                    return self.apply("and", condition, yes)
                return self.apply("or", self.apply("not", condition), yes)
        return self._node("select", (condition, no, yes), self.dtypes[no])

    def table(self, numbers: np.ndarray) -> int:
        """Return the node of an array of numbers, which loops can read."""
        node = self._node("table", tuple(int(node) for node in numbers.flat), self.dtypes[numbers.flat[0]])
        self.lengths[node] = numbers.size
        return node

    def array_input(self, name: str, size: int, dtype: Any) -> int:
        """Return the node of an input that stays an array in memory."""
        node = self._node("array_input", (), np.dtype(dtype), name)
        self.lengths[node] = size
        return node

    def number(self, array: int, offset: int, steps: tuple[tuple[int, int, int], ...] = ()) -> int:
        """Return the node of one number of an array: at a fixed place, or at one that moves with the counters of loops.

        `steps`: a loop, the axis of its counter, and the places by which one turn moves.
        """
        steps = tuple(step for step in steps if step[2] and self.loops[step[0]].shape[step[1]] > 1)
        if not steps:
            return self._node("element", (array,), self.dtypes[array], offset)
        node = self._node("moving_element", (array,), self.dtypes[array], (offset, steps))
        scopes = (self.scopes[array], *(loop for loop, _, _ in steps))
        self.scopes[node] = max(scopes, key=lambda scope: self.loops[scope].depth)
        return node

    def product(self, left: int, right: int, rows: int, inner: int, columns: int) -> int:
        """Return the array left (r, s) @ right (s, c) of two arrays, written as a loop."""
        node = self._node("matrix_product", (left, right), self.dtypes[left], (rows, inner, columns))
        self.lengths[node] = rows * columns
        return node

    def matrix_product(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the r·c element nodes of left (r, s) @ right (s, c), whose product is one node, written as a loop."""
        rows, inner = left.shape
        columns = right.shape[1]
        product = self.product(self.table(left), self.table(right), rows, inner, columns)
        elements = [self.number(product, i) for i in range(rows * columns)]
        return np.array(elements, dtype=np.int64).reshape(rows, columns)

    def qr(self, matrix: np.ndarray) -> tuple[int, int]:
        """Return the arrays of Q (m, n) and R of a matrix with m >= n, computed by loops. R is in the upper triangle of
        the first n rows; the other numbers of its array have no meaning.

        `ends`: for each column, the row after the last one that its reflection can change. Below it, the matrix has
        known zeros.
        """
        m, n = matrix.shape
        dtype = self.dtypes[matrix.flat[0]]
        zero = self.constant(0, dtype)
        filled = matrix != zero
        ends = [int(max(j + 1, *(np.flatnonzero(filled[:, : j + 1].any(axis=1)) + 1))) for j in range(n)]
        factors = self._node("qr", (self.table(matrix),), dtype, (m, n, tuple(ends)))
        self.lengths[factors] = m * n + n
        Q = self._node("qr_q", (factors,), dtype, (m, n, tuple(ends)))
        self.lengths[Q] = m * n
        return Q, factors

    @property
    def in_loop(self) -> bool:
        """Whether the body of a loop has begun and not ended."""
        return len(self._nesting) > 1

    def begin_loop(self, *shape: int) -> int:
        """Begin the body of a loop, and return its position in `loops`."""
        self.loops.append(Loop(shape, len(self._nesting)))
        self._nesting.append(len(self.loops) - 1)
        return len(self.loops) - 1

    def turn_input(self, loop: int, numbers: np.ndarray) -> int:
        """Return the node that is `numbers[i]` in turn i of a loop."""
        args = tuple(int(node) for node in numbers)
        if len(set(args)) == 1:
            return args[0]
        node = self._node("turn_input", args, self.dtypes[args[0]], loop)
        self.scopes[node] = loop
        return node

    def carry(self, loop: int, start: int) -> int:
        """Return the node of a number that one turn hands to the next; it is `start` in the first turn."""
        place = len(self.loops[loop].carries)
        node = self._node("carry", (start,), self.dtypes[start], (loop, place))
        self.scopes[node] = loop
        self.loops[loop].carries.append(node)
        return node

    def carry_array(self, loop: int, start: int) -> int:
        """Return the node of an array that one turn hands to the next; it is `start` in the first turn."""
        place = len(self.loops[loop].arrays)
        node = self._node("carry_array", (start,), self.dtypes[start], (loop, place))
        self.scopes[node] = loop
        self.lengths[node] = self.lengths[start]
        self.loops[loop].arrays.append(node)
        return node

    def body_key(self, loop: int, source: int) -> Any:
        """Return a key of what the body of a loop computes; equal bodies of two loops have the same key."""
        if self.scopes[source] != loop:
            return source
        args = tuple(self.body_key(loop, arg) for arg in self.args[source])
        value = self.values[source]
        if self.ops[source] == "moving_element":
            value = (value[0], tuple((0 if step[0] == loop else step[0], *step[1:]) for step in value[1]))
        return self.ops[source], self.dtypes[source].char, args, value

    def leave_loop(self) -> None:
        """End the body of a loop that has no results."""
        self._nesting.pop()

    def end_map(self, loop: int, source: int) -> int:
        """End the body of a loop over an array. Return the array of its results; `source` is the body's number."""
        _, rows = self._end(loop, [], [source])
        array = self._result(rows, "rows", self.dtypes[source], ("row", 0, 0))
        self.lengths[array] = self.loops[loop].length
        return array

    def _end(self, loop: int, carried: list[int], rows: list[int]) -> tuple[int, int]:
        """Return the loop around the loop that ends, and the node of the loop."""
        about = self.loops[loop]
        self._nesting.pop()
        about.carried, about.rows = list(carried), list(rows)
        about.around = self._loops_around(loop)
        scope = max(about.around, key=lambda around: self.loops[around].depth, default=0)
        node = self._node("loop", (), BOOL, loop)
        self.scopes[node] = scope
        return scope, node

    def _result(self, node: int, op: str, dtype: np.dtype, key: tuple[str, int, int]) -> int:
        """Return a result of a loop, given the loop's node."""
        result = self._node(op, (node,), dtype, key)
        self.scopes[result] = self.scopes[node]
        return result

    def end_loop(
        self, loop: int, carried: list[int], rows: list[int], arrays: Sequence[int] = ()
    ) -> tuple[list[int], list[list[int]], list[int]]:
        """End the body of a loop. Return the nodes of the last carried numbers; those of each row's numbers, one for
        each turn; and those of the last carried arrays."""
        about = self.loops[loop]
        about.next_arrays = list(arrays)
        _, node = self._end(loop, carried, rows)

        def result(source: int, key: tuple[str, int, int]) -> int:
            if self.scopes[source] != loop:
                return source  # the same in every turn
            return self._result(node, "element", self.dtypes[source], key)

        last = [result(source, ("carry", i, 0)) for i, source in enumerate(carried)]
        turns = range(about.length)
        last_arrays = [
            self._result(node, "last_array", self.dtypes[source], ("array", i, 0)) for i, source in enumerate(arrays)
        ]
        for array, source in zip(last_arrays, arrays, strict=True):
            self.lengths[array] = self.lengths[source]
        return (
            last,
            [[result(source, ("row", k, turn)) for turn in turns] for k, source in enumerate(rows)],
            last_arrays,
        )

    def _depends(self, node: int) -> set[int]:
        """Return the loops around the loop whose result a node is."""
        return self.loops[self.values[self.args[node][0]]].around if self.is_loop_result(node) else set()

    def is_loop_result(self, node: int) -> bool:
        return self.ops[node] in ("element", "rows", "last_array") and self.ops[self.args[node][0]] == "loop"

    def _loops_around(self, loop: int) -> set[int]:
        found: set[int] = set()
        seen: set[int] = set()
        about = self.loops[loop]
        stack = [*about.carried, *about.rows, *about.carries, *about.next_arrays, *about.arrays]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            found |= self._depends(node)
            if self.ops[node] == "moving_element":
                found |= {step[0] for step in self.values[node][1]}
            if self.scopes[node] == loop:
                stack.extend(self.args[node])
            elif self.scopes[node]:
                found.add(self.scopes[node])
        return found - {loop}

    def source_of(self, node: int) -> int | None:
        """Return the node in a loop's body that computes a result of the loop, or a number for the loop's next turn."""
        if self.ops[node] == "carry":
            loop, place = self.values[node]
            return self.loops[loop].carried[place]
        if self.ops[node] == "carry_array":
            loop, place = self.values[node]
            return self.loops[loop].next_arrays[place]
        if not self.is_loop_result(node):
            return None
        loop = self.loops[self.values[self.args[node][0]]]
        kind, place, _ = self.values[node]
        return {"carry": loop.carried, "row": loop.rows, "array": loop.next_arrays}[kind][place]

    def live(self, outputs: Any) -> list[int]:
        """Return the nodes that `outputs` need, in an order in which they can be computed."""
        needed = np.zeros(len(self.ops), bool)
        has_loops = len(self.loops) > 1
        stack = [int(node) for node in outputs]
        while stack:
            node = stack.pop()
            if not needed[node]:
                needed[node] = True
                stack.extend(self.args[node])
                if has_loops and (source := self.source_of(node)) is not None:
                    stack.append(source)
                    if self.is_loop_result(node) and (kind := self.values[node][0]) != "row":
                        loop = self.loops[self.values[self.args[node][0]]]
                        stack.append((loop.carries if kind == "carry" else loop.arrays)[self.values[node][1]])
        return [int(node) for node in np.flatnonzero(needed)]

    def turns(self, node: int) -> int:
        """Return how often a node is computed in one call."""
        scope, count = self.scopes[node], 1
        while scope:
            count *= self.loops[scope].length
            scope = max(self.loops[scope].around, key=lambda around: self.loops[around].depth, default=0)
        return count


def _negated(graph: Graph, node: int) -> int | None:
    return graph.args[node][0] if graph.ops[node] == "neg" else None


def _add(graph: Graph, a: int, b: int) -> int | None:
    for one, other in ((a, b), (b, a)):
        if graph.is_number(one, 0):
            return other
        if (positive := _negated(graph, one)) is not None:
            return graph.apply("sub", other, positive)
    return None


def _sub(graph: Graph, a: int, b: int) -> int | None:
    if graph.is_number(b, 0):
        return a
    if (positive := _negated(graph, b)) is not None:
        return graph.apply("add", a, positive)
    return None


def _mul(graph: Graph, a: int, b: int) -> int | None:
    for one, other in ((a, b), (b, a)):
        if graph.is_number(one, 1):
            return other
        if graph.is_number(one, 0) and (graph.sparse or graph.dtypes[one].kind != "f"):
            return one
        if graph.ops[one] == "convert" and graph.dtypes[mask := graph.args[one][0]] == BOOL:
            # Same as XLA: a masked number is zero, even if it is NaN or infinite.
            return graph.select(mask, graph.constant(0, graph.dtypes[one]), other)
        if graph.dtypes[one].kind == "f":
            if graph.is_number(one, -1):
                return graph.apply("neg", other)
            if (positive := _negated(graph, one)) is not None:
                return graph.apply("neg", graph.apply("mul", positive, other))
    return None


def _div(graph: Graph, a: int, b: int) -> int | None:
    if graph.is_number(b, 1):
        return a
    if graph.dtypes[a].kind != "f":
        return None
    if graph.is_constant(a) and graph.is_constant(b):
        with np.errstate(all="ignore"):
            return graph.constant(graph.values[a] / graph.values[b], graph.dtypes[a])
    if graph.is_number(a, 0) and graph.sparse:
        return a
    for one, other, flip in ((a, b, False), (b, a, True)):
        if (positive := _negated(graph, one)) is not None:
            return graph.apply("neg", graph.apply("div", *((other, positive) if flip else (positive, other))))
    if graph.is_constant(b):
        # Division by a power of two: the product with its inverse is the same number, and cheaper.
        divisor = float(graph.values[b])
        if (
            math.isfinite(divisor)
            and divisor != 0
            and abs(math.frexp(divisor)[0]) == 0.5
            and 1e-30 < abs(divisor) < 1e30
        ):
            return graph.apply("mul", a, graph.constant(1 / divisor, graph.dtypes[b]))
    return None


def _and(graph: Graph, a: int, b: int) -> int | None:
    if a == b:
        return a
    if graph.dtypes[a] == BOOL:
        for one, other in ((a, b), (b, a)):
            if graph.is_constant(one):
                return other if graph.values[one] else one
    return None


def _or(graph: Graph, a: int, b: int) -> int | None:
    if a == b:
        return a
    if graph.dtypes[a] == BOOL:
        for one, other in ((a, b), (b, a)):
            if graph.is_constant(one):
                return one if graph.values[one] else other
    return None


def _xor(graph: Graph, a: int, b: int) -> int | None:
    if a == b:
        return graph.constant(0, graph.dtypes[a])
    if graph.dtypes[a] == BOOL:
        for one, other in ((a, b), (b, a)):
            if graph.is_constant(one):
                return graph.apply("not", other) if graph.values[one] else other
    return None


def _not(graph: Graph, a: int) -> int | None:
    if graph.is_constant(a):
        return graph.constant(np.bitwise_not(graph.values[a]), graph.dtypes[a])
    return graph.args[a][0] if graph.ops[a] == "not" else None


_SIMPLIFY: dict[str, Callable[..., int | None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "not": _not,
    "neg": _negated,
    "max": lambda graph, a, b: a if a == b else None,
    "min": lambda graph, a, b: a if a == b else None,
}
