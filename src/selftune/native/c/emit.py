"""Translation of a scalar program to C99.

The same program always gives the same text. The C uses no heap, no globals, and of libc only what is exact: the square
root and the absolute value, which are instructions of the processor, the remainder, and the next number. All loads come
before all stores, so that outputs may use the same memory as inputs. The arithmetic follows IEEE 754 in the written
order: compile with -std=c99 or -ffp-contract=off, and without -ffast-math. Then every compiler and processor gives the
same bits.
"""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..lowering.from_jaxpr import Leaf, Program
from ..lowering.graph import BOOL, COMPARE, EVALUATE, Graph
from . import elementary
from .parts import ATTRIBUTES, LONGEST, in_parts
from .templates import fill, wrap

TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "int",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
}
MAX_STATEMENTS = 12_000
"""A longer body is divided into functions; a body with loops is divided earlier."""

# For each phase of a step, the comment in the C above its statements.
PHASES = {
    "residual": "f_hat_t = f_t(x_t, a_hat_t): the residual with the estimated parameters",
    "control": "u_t = pi_t(x_t, theta_t, f_hat_t): the control",
    "cost": "h_t(x_t, u_t, theta_t): the stage cost",
    "tuner": "ALG: the tuner",
    "sensitivity": "y_{t+1} and G_t: the closed loop by the model, and its derivative in theta",
    "descent": "one projected gradient step",
    "plant": "x_{t+1} = g_t(x_t, u_t, f_t(x_t, a*_t)) + w_t: the true plant",
    "estimator": "EST: a_hat_{t+1} from the observation",
    "infer": "f_obs: the residual that explains the transition to x_{t+1}",
    "gate": "the innovation gate: an observation that is much larger than usual is refused",
    "clamp": "the guard: controls and gains are inside their limits, whatever the numbers above are",
    "guard": "the guard: numbers that are not finite or out of range are refused",
}

_INFIX = {"add": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITS = {"and": "&", "or": "|", "xor": "^"}
_JUMPS = COMPARE | {"floor", "ceil", "rint", "round", "sign", "rem"}
_TOLERANT = ("gate", "clamp")
"""Phases whose comparisons may see another last digit: the gate compares numbers with a multiple of their size, and a
clamp gives the same number on both sides of its limit."""
_ON_CIRCLE = ("sin", "cos")
_MATH = {"abs": "fabs", "rem": "fmod"}  # operations with another name in C

# Small functions that a program may need. F is the floating type; I and U are an integer type and its unsigned type.
_HELPERS = {
    "max": "static inline F max_F(F a, F b) { return ((a > b) | (a != a)) ? a : b; }",
    "min": "static inline F min_F(F a, F b) { return ((a < b) | (a != a)) ? a : b; }",
    # For a bound that is not NaN this is a single instruction. A comparison with NaN is false, so a NaN is returned.
    "at_least": "static inline F at_least_F(F bound, F a) { return bound > a ? bound : a; }",
    "at_most": "static inline F at_most_F(F bound, F a) { return bound < a ? bound : a; }",
    "sign": "static inline F sign_F(F a) { return a > 0 ? 1 : a < 0 ? -1 : a; }",
    "imax": "static inline I max_I(I a, I b) { return a > b ? a : b; }",
    "imin": "static inline I min_I(I a, I b) { return a < b ? a : b; }",
    "isign": "static inline I sign_I(I a) { return a > 0 ? 1 : a < 0 ? -1 : 0; }",
    "usign": "static inline I sign_I(I a) { return a > 0; }",
    "iabs": "static inline I abs_I(I a) { return a < 0 ? (I)(0 - (U)a) : a; }",
    # Same as XLA: x / 0 is -1 (all bits set), x % 0 is x, and the only quotient that overflows wraps around.
    "idiv": "static inline I div_I(I a, I b) { return b == 0 ? (I)-1 : b == (I)-1 ? (I)(0 - (U)a) : (I)(a / b); }",
    "irem": "static inline I rem_I(I a, I b) { return b == 0 ? a : b == (I)-1 ? 0 : (I)(a % b); }",
    "udiv": "static inline I div_I(I a, I b) { return b == 0 ? (I)-1 : a / b; }",
    "urem": "static inline I rem_I(I a, I b) { return b == 0 ? a : a % b; }",
    "to": "static inline I F_to_I(F a) { return a != a ? 0 : a <= LOW ? MIN : a >= HIGH ? MAX : (I)a; }",
    "bits": "static inline TO F_as_I(FROM a) { union { FROM from; TO to; } both; both.from = a; return both.to; }",
    "shift_left": "static inline I shift_left_I(I a, I b) { return (U)b >= BITS ? 0 : (I)((U)a << (U)b); }",
    "shift_right_logical": (
        "static inline I shift_right_logical_I(I a, I b) { return (U)b >= BITS ? 0 : (I)((U)a >> (U)b); }"
    ),
    "shift_right_arithmetic": (
        "static inline I shift_right_arithmetic_I(I a, I b) "
        "{ const U n = (U)b >= BITS ? BITS - 1 : (U)b; return (U)a >> (BITS - 1) ? (I)~(~(U)a >> n) : (I)((U)a >> n); }"
    ),
}


def literal(value: Any, dtype: Any) -> str:
    """Return a number as a C literal that is read back bit for bit."""
    dtype = np.dtype(dtype)
    if dtype == BOOL:
        return "1" if value else "0"
    if dtype.kind in "iu":
        number = int(value)
        if dtype.itemsize == 8:
            if number == -(2**63):
                return "(-INT64_C(9223372036854775807) - 1)"
            text = f"{'UINT64_C' if dtype.kind == 'u' else 'INT64_C'}({abs(number)})"
        else:
            if number == -(2**31):
                return "(-2147483647 - 1)"
            text = f"{abs(number)}{'u' if dtype.kind == 'u' else ''}"
        return f"(-{text})" if number < 0 else text
    single = dtype.itemsize == 4
    if np.isnan(value):
        return "NAN" if single else "(double)NAN"
    if np.isinf(value):
        text = "INFINITY" if single else "HUGE_VAL"
    else:
        text = np.format_float_scientific(abs(value), unique=True, trim="0", exp_digits=1)
        if 1e-4 <= abs(value) < 1e7 or value == 0:
            text = np.format_float_positional(abs(value), unique=True, trim="0")
        text += "f" if single else ""
    return f"(-{text})" if np.signbit(value) else text


_CALLED = {*EVALUATE, "round", "erf", "erfc", "fabs", "fmod"} - COMPARE - {"and", "or", "xor"}
_TAKEN = re.compile(
    r"[ceinoprtvwx]\d+|[ox]\d+_\d+|i|j|k|sum|kept|all_kept|\w+_(float|double|int|u?int32|u?int64|t)|NAN|INFINITY|HUGE_VAL"
)
"""Names that the writer uses itself, or that a header may define."""


class Body(NamedTuple):
    """A program as the statements of a C function's body, in three parts, and the helpers that they call."""

    loads: list[str]
    statements: list[str]
    stores: dict[str, list[str]]
    """For each group of outputs, the statements that store it."""
    helpers: dict[str, str]
    """The C text of each helper, by its name."""


class _Number(NamedTuple):
    """A number of an input or output array, as C reads or writes it."""

    place: str
    """The C expression to read from or to write to."""
    node: int
    name: str
    """A name for a variable that holds the number; it may be in use."""
    leaf: Leaf


class Writer:
    """Writer of a program as the statements of a C function's body.

    **Arguments:**

    - `load`: returns the C expression that reads an input leaf at a position.
    - `store`: returns the C expression that an output leaf is written to at a position; None if it is not stored.
    - `share_divisors`: whether to compute the inverse of a repeated divisor once and multiply by it. Tangents are
      divided by the same numbers many times, and a division costs ten times as much as a product. The result may differ
      in the last digit, and overflows if the divisor is so small that its inverse overflows. Numbers that lead to a
      comparison or to an integer are still divided, because a last digit can change these by a whole step.
    - `mask`: an integer type, if the statements stand in a loop over lanes. Such a loop must have no branches: a truth
      value is a mask of this type, 0 or -1, and a choice is made by bits. sin, cos and tan are then right only for
      small angles, and `angles` has all angles with their C types.
    - `name`: the prefix of the functions into which a long body is divided.
    """

    def __init__(
        self,
        program: Program,
        load: Callable[[Leaf, int], str],
        store: Callable[[Leaf, int], str | None],
        *,
        share_divisors: bool = False,
        mask: str | None = None,
        name: str = "step",
    ):
        self.mask = mask
        self.name = name
        self.angles: list[tuple[str, str]] = []
        self.program, self.load, self.store = program, load, store
        self.share_divisors = share_divisors
        self.inverses: dict[int, str] = {}
        """The name of a shared divisor's inverse, or the inverse itself if the divisor is constant."""
        self.graph: Graph = program.graph
        self.helpers: dict[str, str] = {}
        self.text: dict[int, str] = {}
        """The C text of each node so far: a variable name, or an expression that is inserted where it is used."""

    def body(self) -> Body:
        """Return the statements and the helpers."""
        graph = self.graph
        written = _numbers(self.program.outputs, self.store)
        arrays = _arrays(self.program.outputs, self.store)
        live = graph.live(number.node for number in (*written, *arrays))
        self._find_shared_divisors(live)
        self._exact = self._exact_nodes(live) if self._shared else set()
        self._used_rows = [[False] * len(loop.rows) for loop in graph.loops]
        self._circles = self._angles_of_both(live)
        self._early: set[int] = set()
        if len(graph.loops) > 1:
            for node in live:
                if graph.is_loop_result(node) and graph.values[node][0] == "row":
                    self._used_rows[graph.values[graph.args[node][0]]][graph.values[node][1]] = True
                if graph.ops[node] == "div" and node not in self._exact and graph.args[node][1] in self._shared:
                    self._early.add(graph.args[node][1])
        needed = {node for node in live if graph.ops[node] == "input"}
        read = [number for number in _numbers(self.program.inputs, self.load) if number.node in needed]
        read_arrays = [
            array for array in _arrays(self.program.inputs, self.load) if graph.ops[array.node] == "array_input"
        ]
        read_arrays = [array for array in read_arrays if array.node in set(live)]
        taken = {word for number in (*written, *read) for word in re.findall(r"(?<![\w.>])[A-Za-z_]\w*", number.place)}
        names: dict[int, str] = {}
        for number in written:
            if graph.ops[number.node] not in ("constant", "input") and number.node not in names:
                names[number.node] = _free_name(number.name, taken)
        loads = []
        for number in read:
            name = self.text[number.node] = _free_name(f"{number.name}_", taken)
            truth = self.mask and number.leaf.dtype == BOOL
            value = self._truth(f"{number.place} != 0") if truth else number.place
            loads.append(f"const {self._type(number.leaf.dtype)} {name} = {value};")
        for array in read_arrays:
            name = self.text[array.node] = _free_name(f"{array.name}_", taken)
            loads.append(f"const {TYPES[array.leaf.dtype.name]} *{name} = &{array.place};")
        blocks = self._blocks(live, names, self._uses(live, written))
        stores: dict[str, list[str]] = {}
        for number in written:
            text = self._text_of(number.node)
            value = f"(int)({text} & 1)" if self.mask and number.leaf.dtype == BOOL else text
            stores.setdefault(number.leaf.group, []).append(f"{number.place} = {value};")
        for array in arrays:
            copy = f"for (int i = 0; i < {array.leaf.ids.size}; i++) (&{array.place})[i] = {self.text[array.node]}[i];"
            stores.setdefault(array.leaf.group, []).append(copy)
        if self.mask or len(blocks) <= (MAX_STATEMENTS if len(graph.loops) == 1 else LONGEST):
            return Body(loads, [line for block in blocks for line in block], stores, self.helpers)
        loads, statements, stores, functions = in_parts(self.name, loads, blocks, stores)
        return Body(loads, statements, stores, self.helpers | functions)

    def _uses(self, live: list[int], written: list[_Number]) -> np.ndarray:
        """Return how often the text of each node is inserted. Twice or more means that it needs a variable."""
        graph = self.graph
        uses = np.zeros(len(graph), int)
        for node in live:
            op, scope = graph.ops[node], graph.scopes[node]
            # What a loop uses must not be computed in each of its turns.
            outside = op not in ("turn_input", "carry", "carry_array")
            for arg in graph.args[node]:
                uses[arg] += 2 if outside and graph.scopes[arg] != scope else 1
        for loop in graph.loops[1:]:
            uses[[*loop.carried, *loop.rows]] += 2
        for number in written:
            uses[number.node] += 1
        return uses

    def _blocks(self, live: list[int], names: dict[int, str], uses: np.ndarray) -> list[list[str]]:
        """Return the statements that compute the live nodes; `names` has the variables of the outputs. The statements
        of a block belong together."""
        bodies: dict[int, list[int]] = {}
        for node in live:
            bodies.setdefault(self.graph.scopes[node], []).append(node)
        early = [self._early_inverse(node) for node in list(self.text)]
        return [*early, *self._scope(0, bodies, names, uses)]

    def _scope(
        self, scope: int, bodies: dict[int, list[int]], names: dict[int, str], uses: np.ndarray
    ) -> list[list[str]]:
        """Return the statements of the whole program, or those of a loop's body."""
        graph = self.graph
        blocks: list[list[str]] = []
        phase = ""
        for node in bodies.get(scope, ()):
            op = graph.ops[node]
            if op in ("input", "constant", "turn_input", "carry", "array_input", "carry_array"):
                continue
            if op in ("element", "moving_element", "rows", "last_array"):
                self.text[node] = self._element(node)
                # The memory of an input may have changed when an output is stored.
                if node in names and graph.ops[graph.args[node][0]] == "array_input":
                    blocks.append([f"const {self._type(graph.dtypes[node])} {names[node]} = {self.text[node]};"])
                    self.text[node] = names[node]
                continue
            if graph.phases[node] != phase:
                phase = graph.phases[node]
                if phase in PHASES:
                    blocks.append([f"/* {PHASES[phase]} */"])
            if op == "loop":
                blocks.append(self._loop(graph.values[node], bodies, names, uses))
                continue
            if op in _ROUTINES:
                blocks.append(_ROUTINES[op](self, node))
                continue
            if op in _ON_CIRCLE and (scope, graph.args[node][0]) in self._circles:
                blocks.append(self._sin_and_cos(node))
                continue
            if inverse := self._inverse(node):
                blocks.append(inverse)
            expression = self._expression(node)
            # A short expression that is used only once is inserted there, as a person would write it.
            in_place = uses[node] == 1 and node not in names and len(expression) < 48
            if in_place:
                self.text[node] = f"({expression})" if _needs_brackets(expression) else expression
            else:
                name = names.get(node, f"v{node}")
                blocks.append([f"const {self._type(graph.dtypes[node])} {name} = {expression};"])
                self.text[node] = name
            if inverse := self._early_inverse(node):
                blocks.append(inverse)
        return blocks

    def _element(self, node: int) -> str:
        """Return the text of an array that a loop has computed, or of a number of an array."""
        graph = self.graph
        whole, value = graph.args[node][0], graph.values[node]
        if graph.ops[node] == "moving_element":
            offset, steps = value
            places = [self._moved(*step) for step in steps]
            if offset:
                places.append(str(offset))
            return f"{self.text[whole]}[{' + '.join(places)}]"
        if graph.ops[whole] != "loop":
            return f"{self.text[whole]}[{value}]"
        kind, place, turn = value
        loop = graph.values[whole]
        if kind == "array":
            return f"a{graph.loops[loop].arrays[place]}"
        if kind == "carry":
            return f"c{graph.loops[loop].carries[place]}"
        return f"o{loop}_{place}" + (f"[{turn}]" if graph.ops[node] == "element" else "")

    def _moved(self, loop: int, axis: int, stride: int) -> str:
        counter = self._counter(loop, axis)
        return counter if stride == 1 else f"{stride} * {counter}"

    def _counter(self, loop: int, axis: int) -> str:
        return f"i{loop}" if len(self.graph.loops[loop].shape) == 1 else f"i{loop}_{axis}"

    def _loop(self, number: int, bodies: dict[int, list[int]], names: dict[int, str], uses: np.ndarray) -> list[str]:
        """Return the statements of a loop: the arrays that it reads and writes, and its body."""
        graph, loop = self.graph, self.graph.loops[number]
        before, loads = [], []
        carries, arrays = [], []
        for node in bodies.get(number, ()):
            kind = self._type(graph.dtypes[node])
            if graph.ops[node] == "turn_input":
                args = graph.args[node]
                known = "static const" if all(map(graph.is_constant, args)) else "const"
                before.append(f"{known} {kind} x{node}[{loop.length}] = {{{', '.join(map(self._text_of, args))}}};")
                loads.append(f"const {kind} v{node} = x{node}[i{number}];")
                self.text[node] = f"v{node}"
            elif graph.ops[node] == "carry":
                before.append(f"{kind} c{node} = {self._text_of(graph.args[node][0])};")
                self.text[node] = f"c{node}"
                carries.append(node)
            elif graph.ops[node] == "carry_array":
                before += [
                    f"{kind} a{node}[{graph.lengths[node]}];",
                    _copy(node, graph, self.text[graph.args[node][0]]),
                ]
                self.text[node] = f"a{node}"
                arrays.append(node)
        rows = [place for place, is_used in enumerate(self._used_rows[number]) if is_used]
        for place in rows:
            kind = self._type(graph.dtypes[loop.rows[place]])
            before.append(f"{kind} o{number}_{place}[{loop.length}];")
        early = [line for node in bodies.get(number, ()) if node in self.text for line in self._early_inverse(node)]
        body = [line for block in self._scope(number, bodies, names, uses) for line in block]
        counters = [self._counter(number, axis) for axis in range(len(loop.shape))]
        here = counters[0]
        for counter, length in zip(counters[1:], loop.shape[1:], strict=True):
            here = f"{length} * ({here}) + {counter}" if "+" in here else f"{length} * {here} + {counter}"
        stores = [f"o{number}_{place}[{here}] = {self._text_of(loop.rows[place])};" for place in rows]
        for node in carries:
            source = loop.carried[graph.values[node][1]]
            stores.append(f"const {self._type(graph.dtypes[node])} n{node} = {self._text_of(source)};")
        stores += [f"c{node} = n{node};" for node in carries]
        for node in arrays:
            following = self.text[loop.next_arrays[graph.values[node][1]]]
            stores += [_copy(node, graph, following)] if following != self.text[node] else []
        heads = [
            f"for (int {counter} = 0; {counter} < {length}; {counter}++)"
            for counter, length in zip(counters, loop.shape, strict=True)
        ]
        head = " ".join(heads) + " {"
        return [*before, head, *(f"    {line}" for line in (*loads, *early, *body, *stores)), "}"]

    def _angles_of_both(self, live: list[int]) -> dict[tuple[int, int], str]:
        """Return the angles, with their scopes, of which both the sine and the cosine are needed: one call gives both.
        The values are the names of the results, empty until the call is written."""
        graph = self.graph
        wanted: dict[tuple[int, int], set[str]] = {}
        for node in live:
            if graph.ops[node] in _ON_CIRCLE:
                wanted.setdefault((graph.scopes[node], graph.args[node][0]), set()).add(graph.ops[node])
        return {angle: "" for angle, functions in wanted.items() if len(functions) == len(_ON_CIRCLE)}

    def _sin_and_cos(self, node: int) -> list[str]:
        """Return the statement that computes the sine and the cosine of an angle, or none if it is written already."""
        graph = self.graph
        angle = (graph.scopes[node], graph.args[node][0])
        call = []
        if not self._circles[angle]:
            ctype = TYPES[graph.dtypes[node].name]
            name = self._circles[angle] = f"c{node}"
            expression = self._elementary("sin_cos", graph.dtypes[node], [self._text_of(angle[1])])
            call = [f"const circle_{ctype} {name} = {expression};"]
        self.text[node] = f"{self._circles[angle]}.{graph.ops[node]}"
        return call

    def _find_shared_divisors(self, live: list[int]) -> None:
        graph = self.graph
        divisors: Counter[int] = Counter()
        for node in live:
            if graph.ops[node] == "div" and graph.dtypes[node].kind == "f":
                divisor = graph.args[node][1]
                # A loop divides by a number from outside in each of its turns.
                divisors[divisor] += 1 if graph.scopes[node] == graph.scopes[divisor] else 2
        self._shared = {node for node, count in divisors.items() if count > 1} if self.share_divisors else set()
        for node in divisors:
            if self.share_divisors and graph.is_constant(node):
                with np.errstate(all="ignore"):
                    inverse = np.asarray(1, graph.dtypes[node])[()] / graph.values[node]
                if np.finfo(inverse.dtype).tiny <= abs(inverse) < np.inf:
                    self.inverses[node] = literal(inverse, graph.dtypes[node])

    def _exact_nodes(self, live: list[int]) -> set[int]:
        """Return the nodes whose last digit may change a comparison or an integer that depends on them."""
        graph = self.graph
        exact: set[int] = set()
        before = -1
        while len(exact) > before:  # a loop hands numbers to its next turn, so one pass may not find all
            before = len(exact)
            for node in reversed(live):  # arguments come before the nodes that use them
                op, args = graph.ops[node], graph.args[node]
                if graph.phases[node] in _TOLERANT and node not in exact:
                    continue
                jumps = (
                    bool(args)
                    and graph.dtypes[args[0]].kind == "f"
                    and (op in _JUMPS or graph.dtypes[node].kind in "iu")
                )
                if jumps or node in exact:
                    exact.update(args)
                    if (source := graph.source_of(node)) is not None:
                        exact.add(source)
            if len(graph.loops) == 1:
                break
        return exact

    def _inverse(self, node: int) -> list[str]:
        """Return the statement that computes a shared inverse, before the first division that uses it."""
        graph = self.graph
        divisor = graph.args[node][1] if graph.ops[node] == "div" else -1
        if divisor not in self._shared or divisor in self.inverses or node in self._exact:
            return []
        return self._inverse_of(divisor)

    def _early_inverse(self, node: int) -> list[str]:
        """Return the statement that computes the inverse of a node behind the node itself, if the program has loops: a
        loop that uses the inverse must not hide it from the statements after the loop."""
        return self._inverse_of(node) if node in self._early and node not in self.inverses else []

    def _inverse_of(self, divisor: int) -> list[str]:
        graph = self.graph
        kind = graph.dtypes[divisor]
        self.inverses[divisor] = f"r{divisor}"
        return [f"const {TYPES[kind.name]} r{divisor} = {literal(1, kind)} / {self._text_of(divisor)};"]

    def _text_of(self, node: int) -> str:
        graph = self.graph
        if self.mask and graph.is_constant(node) and graph.dtypes[node] == BOOL:
            return f"({self.mask}){-int(graph.values[node])}"
        return literal(graph.values[node], graph.dtypes[node]) if graph.is_constant(node) else self.text[node]

    def _type(self, dtype: np.dtype) -> str:
        return self.mask if self.mask and dtype == BOOL else TYPES[dtype.name]

    def _truth(self, condition: str) -> str:
        """Return a condition as a number: a mask in a loop over lanes."""
        return f"-({self.mask})({condition})" if self.mask else condition

    def _expression(self, node: int) -> str:
        if self.mask and (text := self._of_masks(node)):
            return text
        return self._plain_expression(node)

    def _of_masks(self, node: int) -> str | None:
        """Return the expression of an operation that takes or makes truth values, for lanes."""
        graph = self.graph
        op, dtype, args = graph.ops[node], graph.dtypes[node], graph.args[node]
        texts = [self._text_of(arg) for arg in args]
        if op == "select":
            if dtype == BOOL:
                return f"({texts[0]} & {texts[2]}) | (~{texts[0]} & {texts[1]})"
            return self._choice(dtype, texts)
        if graph.dtypes[args[0]] == BOOL:
            if op == "not":
                return f"~{texts[0]}"
            if op in COMPARE:
                return self._truth(f"({texts[0]} & 1) {_INFIX[op]} ({texts[1]} & 1)")
            if op == "convert" and dtype.kind == "f":
                return self._choice(dtype, [texts[0], literal(0, dtype), literal(1, dtype)])
            if op == "convert":
                return f"({TYPES[dtype.name]})({texts[0]} & 1)"
            return None
        return self._truth(self._plain_expression(node)) if dtype == BOOL else None

    def _choice(self, dtype: np.dtype, texts: list[str]) -> str:
        """Return a choice of two numbers by the bits of a mask."""
        ctype = TYPES[dtype.name]
        bits = f"uint{8 * dtype.itemsize}_t" if dtype.kind == "f" else ctype
        name = f"choose_{ctype.removesuffix('_t')}"
        both = "(yes & where) | (no & ~where)"
        if dtype.kind == "f":
            self.helpers |= elementary.needed([f"bits_of_{ctype}", f"with_bits_{ctype}"])
            both = f"with_bits_{ctype}((bits_of_{ctype}(yes) & where) | (bits_of_{ctype}(no) & ~where))"
        head = f"static inline {ctype} {name}({self.mask} mask, {ctype} no, {ctype} yes)"
        self.helpers[name] = f"{head} {{ const {bits} where = ({bits})mask; return {both}; }}"
        return f"{name}({', '.join(texts)})"

    def _plain_expression(self, node: int) -> str:
        graph = self.graph
        op, dtype = graph.ops[node], graph.dtypes[node]
        args = graph.args[node]
        texts = [self._text_of(arg) for arg in args]
        kind = graph.dtypes[args[0]]
        if op == "select":
            return f"{texts[0]} ? {texts[2]} : {texts[1]}"
        if op == "not":
            return f"(!{texts[0]})" if dtype == BOOL else f"({TYPES[dtype.name]})~{texts[0]}"
        if op == "convert":
            return self._conversion(kind, dtype, texts[0])
        if op == "bitcast":
            source, target = TYPES[kind.name], TYPES[dtype.name]
            name = f"{source}_as_{target}"
            self.helpers[name] = _HELPERS["bits"].replace("F_as_I", name).replace("FROM", source).replace("TO", target)
            return f"{name}({texts[0]})"
        if op.startswith("shift"):
            return self._shift(op, dtype, args[1], texts)
        if op in _BITS:
            return f"{texts[0]} {_BITS[op]} {texts[1]}"
        if kind.kind in "iu":
            return self._integer(op, kind, texts)
        if kind == BOOL:
            return f"{texts[0]} {_INFIX[op]} {texts[1]}"
        if op == "div" and args[1] in self.inverses and (node not in self._exact or graph.is_constant(args[1])):
            return f"{texts[0]} * {self.inverses[args[1]]}"
        if op in _INFIX or op == "div":
            return f"{texts[0]} {_INFIX.get(op, '/')} {texts[1]}"
        if op == "neg":
            return f"-{texts[0]}"
        if op == "is_finite":
            return self._is_finite(TYPES[kind.name], texts[0])
        if op in ("max", "min") and (bounds := [i for i in (0, 1) if self.graph.is_constant(args[i])]):
            bound = bounds[0]
            if not np.isnan(self.graph.values[args[bound]]):
                return self._helper(
                    f"at_{'least' if op == 'max' else 'most'}", TYPES[kind.name], [texts[bound], texts[1 - bound]]
                )
        if op in ("max", "min", "sign"):
            return self._helper(op, TYPES[kind.name], texts)
        if op in elementary.FUNCTIONS:
            return self._elementary(op, kind, texts)
        return f"{_MATH.get(op, op)}{'f' if kind.itemsize == 4 else ''}({', '.join(texts)})"

    def _is_finite(self, ctype: str, text: str) -> str:
        """Return a test by the bits of a number: no option of a compiler can remove it."""
        self.helpers |= elementary.needed([f"bits_of_{ctype}"])
        exponent = "0x7f800000u" if ctype == "float" else "UINT64_C(0x7ff0000000000000)"
        return f"(bits_of_{ctype}({text}) & {exponent}) != {exponent}"

    def _elementary(self, name: str, dtype: np.dtype, texts: list[str]) -> str:
        ctype = TYPES[dtype.name]
        if self.mask and name in (*elementary.WITH_LARGE_ANGLES, "sin_cos"):
            self.angles.append((texts[0], ctype))
        name = elementary.BRANCH_FREE.get(name, name) if self.mask else name
        function = f"{name}_{ctype}"
        self.helpers |= elementary.needed([function])
        return f"{function}({', '.join(texts)})"

    def _helper(self, op: str, ctype: str, texts: list[str], key: str | None = None) -> str:
        short = ctype.removesuffix("_t")
        name = f"{op}_{short}"
        unsigned = ctype if ctype.startswith("u") else f"u{ctype}"
        body = _HELPERS[key or op].replace(f"{op}_F", name).replace(f"{op}_I", name)
        body = body.replace("BITS", "64" if "64" in ctype else "32")
        for letter, meaning in (("F", ctype), ("I", ctype), ("U", unsigned)):
            body = _replace_word(body, letter, meaning)
        self.helpers[name] = body
        return f"{name}({', '.join(texts)})"

    def _integer(self, op: str, dtype: np.dtype, texts: list[str]) -> str:
        ctype = TYPES[dtype.name]
        signed = dtype.kind == "i"
        if op in ("add", "sub", "mul"):
            # Signed numbers wrap around in JAX; in C this needs unsigned arithmetic.
            if not signed:
                return f"{texts[0]} {_INFIX[op]} {texts[1]}"
            return f"({ctype})((u{ctype}){texts[0]} {_INFIX[op]} (u{ctype}){texts[1]})"
        if op == "neg":
            return f"({ctype})(0 - (u{ctype}){texts[0]})" if signed else f"0 - {texts[0]}"
        if op in _INFIX:
            return f"{texts[0]} {_INFIX[op]} {texts[1]}"
        if op == "abs" and not signed:
            return texts[0]
        key = f"u{op}" if op in ("div", "rem", "sign") and not signed else f"i{op}"
        return self._helper(op, ctype, texts, key)

    def _conversion(self, source: np.dtype, target: np.dtype, text: str) -> str:
        if not (source.kind == "f" and target.kind in "iu"):
            return f"({TYPES[target.name]}){text}"
        F, integer = TYPES[source.name], TYPES[target.name]
        limits = np.iinfo(target)
        name = f"{F}_to_{integer.removesuffix('_t')}"
        # The largest integer may not be exact as a float; the power of two above it is.
        body = _HELPERS["to"].replace("F_to_I", name)
        words = {
            "F": F,
            "I": integer,
            "LOW": literal(source.type(limits.min), source),
            "HIGH": literal(source.type(2.0 ** (target.itemsize * 8 - (target.kind == "i"))), source),
            "MIN": literal(limits.min, target),
            "MAX": literal(limits.max, target),
        }
        for word, meaning in words.items():
            body = _replace_word(body, word, meaning)
        self.helpers[name] = body
        return f"{name}({text})"

    def _shift(self, op: str, dtype: np.dtype, by: int, texts: list[str]) -> str:
        ctype = TYPES[dtype.name]
        if self.graph.is_constant(by) and dtype.kind == "u" and int(self.graph.values[by]) < dtype.itemsize * 8:
            return f"{texts[0]} {'<<' if op == 'shift_left' else '>>'} {texts[1]}"
        return self._helper(op, ctype, texts)

    def _table(self, node: int) -> list[str]:
        graph, args = self.graph, self.graph.args[node]
        ctype = TYPES[graph.dtypes[node].name]
        texts = [self._text_of(arg) for arg in args]
        if all(map(graph.is_constant, args)):
            name = self.text[node] = f"{self.name}_t{node}"
            self.helpers[name] = "\n".join(
                wrap([f"static const {ctype} {name}[{len(args)}] = {{{', '.join(texts)}}};"], 0)
            )
            return []
        self.text[node] = f"t{node}"
        copied = _run_of(texts)
        if copied is not None:
            return [
                f"{ctype} t{node}[{len(args)}];",
                f"for (int i = 0; i < {len(args)}; i++) t{node}[i] = {copied};",
            ]
        return [f"{ctype} t{node}[{len(args)}];", *(f"t{node}[{i}] = {text};" for i, text in enumerate(texts))]

    def _product(self, node: int) -> list[str]:
        rows, inner, columns = self.graph.values[node]
        ctype = TYPES[self.graph.dtypes[node].name]
        left, right = (self.text[arg] for arg in self.graph.args[node])
        self.text[node] = f"p{node}"
        self.helpers |= _routine("matrix_product", ctype)
        return [
            f"{ctype} p{node}[{rows * columns}];",
            f"matrix_product_{ctype}({rows}, {inner}, {columns}, {left}, {right}, p{node});",
        ]

    def _qr(self, node: int) -> list[str]:
        m, n, ends = self.graph.values[node]
        self.text[node] = f"p{node}"
        ctype = TYPES[self.graph.dtypes[node].name]
        self.helpers |= _routine("qr", ctype)
        return [
            f"static const int e{node}[{n}] = {{{', '.join(map(str, ends))}}};",
            f"{ctype} p{node}[{m * n + n}];",
            f"{ctype} w{node}[{n}];",
            f"for (int i = 0; i < {m * n}; i++) p{node}[i] = {self.text[self.graph.args[node][0]]}[i];",
            f"qr_{ctype}({m}, {n}, e{node}, p{node}, p{node} + {m * n}, w{node});",
        ]

    def _qr_q(self, node: int) -> list[str]:
        m, n, ends = self.graph.values[node]
        (factors,) = self.graph.args[node]
        self.text[node] = f"p{node}"
        ctype = TYPES[self.graph.dtypes[node].name]
        self.helpers |= _routine("qr", ctype)
        return [
            f"static const int e{node}[{n}] = {{{', '.join(map(str, ends))}}};",
            f"{ctype} p{node}[{m * n}];",
            f"{ctype} w{node}[{n}];",
            f"qr_q_{ctype}({m}, {n}, e{node}, p{factors}, p{factors} + {m * n}, p{node}, w{node});",
        ]


_ROUTINES: dict[str, Callable[[Writer, int], list[str]]] = {
    "table": Writer._table,
    "matrix_product": Writer._product,
    "qr": Writer._qr,
    "qr_q": Writer._qr_q,
}
"""Operations on whole arrays, most of which are written as loops."""


def _routine(name: str, ctype: str) -> dict[str, str]:
    """Return the C functions of a routine, and what they need."""
    template = Path(__file__).parents[1] / "templates" / f"{name}.c.in"
    text = fill(template, {"real": ctype, "root": _ROOTS[ctype]})
    return {"attributes": ATTRIBUTES, f"{name}_{ctype}": text}


_ROOTS = {"float": "sqrtf", "double": "sqrt"}


def _numbers(leaves: list[Leaf], place_of: Callable[[Leaf, int], str | None]) -> list[_Number]:
    """Return the numbers of the arrays; those without a place are left out."""
    return [
        _Number(place, int(node), f"{leaf.name}_{i}" if leaf.shape else leaf.name, leaf)
        for leaf in leaves
        for i, node in enumerate(leaf.ids.flat)
        if not leaf.is_whole and (place := place_of(leaf, i)) is not None
    ]


def _arrays(leaves: list[Leaf], place_of: Callable[[Leaf, int], str | None]) -> list[_Number]:
    """Return the first number of each array that stays in memory; those without a place are left out."""
    return [
        _Number(place, int(leaf.ids.flat[0]), leaf.name, leaf)
        for leaf in leaves
        if leaf.is_whole and (place := place_of(leaf, 0)) is not None
    ]


def _copy(node: int, graph: Graph, source: str) -> str:
    return f"for (int i = 0; i < {graph.lengths[node]}; i++) a{node}[i] = {source}[i];"


def _free_name(name: str, taken: set[str]) -> str:
    """Return an unused name for a variable, and add it to `taken`."""
    while name in taken or name.removesuffix("f") in _CALLED or _TAKEN.fullmatch(name):
        name += "_"
    taken.add(name)
    return name


_ELEMENT = re.compile(r"(\w+)\[(\d+)\]")


def _run_of(texts: list[str]) -> str | None:
    """Return the text of the numbers at i, if all are numbers of one array at regular places; otherwise None."""
    if len(texts) < 4:
        return None
    found = [_ELEMENT.fullmatch(text) for text in texts]
    if not all(found):
        return None
    names = {match[1] for match in found if match}
    places = [int(match[2]) for match in found if match]
    step = places[1] - places[0]
    if len(names) > 1 or any(places[i] != places[0] + i * step for i in range(len(places))) or step < 0:
        return None
    return f"{names.pop()}[{places[0]} + {step} * i]"


def _replace_word(text: str, word: str, by: str) -> str:
    return re.sub(rf"\b{word}\b", lambda _: by, text)


def _needs_brackets(expression: str) -> bool:
    """Return whether an expression needs brackets inside another expression."""
    if expression.startswith("-"):
        return True
    depth = 0
    for character in expression:
        depth += (character == "(") - (character == ")")
        if depth == 0 and character == " ":
            return True
    return expression.startswith("(") and not expression.endswith(")")
