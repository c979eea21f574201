"""Rules for elementwise operations and for reductions."""

import math
from typing import Any

import numpy as np

from .graph import BOOL, Graph
from .values import LoweringError, Nodes, elementwise, lanes, reduce, rule

_ARITHMETIC = ["add", "sub", "mul", "div", "rem", "max", "min", "neg", "abs", "sign", "and", "or", "xor", "not"]
_POWERS = [
    "sqrt",
    "cbrt",
    "exp",
    "exp2",
    "expm1",
    "logistic",
    "log",
    "log1p",
    "erf",
    "erfc",
    "floor",
    "ceil",
    "nextafter",
]
_CIRCULAR = ["sin", "cos", "tan", "asin", "acos", "atan", "atan2"]
_HYPERBOLIC = ["sinh", "cosh", "tanh", "asinh", "acosh", "atanh"]


@rule(*_ARITHMETIC, *_POWERS, *_CIRCULAR, *_HYPERBOLIC, "add_any")
def _same(lowering, params, *inputs):
    graph = lowering.graph
    op = "add" if lowering.primitive == "add_any" else lowering.primitive
    return [elementwise(graph, lambda *args: graph.apply(op, *args), _dtype(inputs), *inputs)]


@rule("eq", "ne", "lt", "le", "gt", "ge", "is_finite")
def _compare(lowering, params, *inputs):
    graph = lowering.graph
    return [elementwise(graph, lambda *args: graph.apply(lowering.primitive, *args), BOOL, *inputs)]


@rule("square")
def _square(lowering, params, x):
    graph = lowering.graph
    return [elementwise(graph, lambda a: graph.apply("mul", a, a), x.dtype, x)]


@rule("one_minus_square")
def _one_minus_square(lowering, params, x):
    """Compute 1 - x² as (1 + x)(1 - x), which is exact up to rounding if |x| is close to 1."""
    graph, one = lowering.graph, lowering.graph.constant(1, x.dtype)

    def one_minus_square(a: int) -> int:
        return graph.apply("mul", graph.apply("add", one, a), graph.apply("sub", one, a))

    return [elementwise(graph, one_minus_square, x.dtype, x)]


@rule("log2")
def _log2(lowering, params, x):
    graph, scale = lowering.graph, lowering.graph.constant(1 / math.log(2), x.dtype)
    return [elementwise(graph, lambda a: graph.apply("mul", graph.apply("log", a), scale), x.dtype, x)]


@rule("polynomial")
def _polynomial(lowering, params, x, *coefficients):
    """Evaluate a polynomial by Horner's rule; the constant term comes first."""
    graph = lowering.graph

    def polynomial(a: int, *coefficients: int) -> int:
        return reduce(lambda value, c: graph.apply("add", graph.apply("mul", value, a), c), reversed(coefficients))

    return [elementwise(graph, polynomial, x.dtype, x, *coefficients)]


@rule("rsqrt")
def _rsqrt(lowering, params, x):
    graph, one = lowering.graph, lowering.graph.constant(1, x.dtype)
    return [elementwise(graph, lambda a: graph.apply("div", one, graph.apply("sqrt", a)), x.dtype, x)]


@rule("round")
def _round(lowering, params, x):
    graph = lowering.graph
    to_even = int(params["rounding_method"]) == 1
    return [elementwise(graph, lambda a: graph.apply("rint" if to_even else "round", a), x.dtype, x)]


@rule("pow")
def _pow(lowering, params, x, y):
    graph, dtype = lowering.graph, np.dtype(x.dtype)
    if dtype.kind != "f":
        raise LoweringError("a power of whole numbers with an exponent that is not constant")
    return [elementwise(graph, lambda a, b: graph.apply("pow", a, graph.convert(b, dtype)), dtype, x, y)]


@rule("integer_pow")
def _integer_pow(lowering, params, x):
    graph, exponent = lowering.graph, params["y"]

    def power(a: int) -> int:
        result, base, left = None, a, abs(exponent)
        while left:
            if left & 1:
                result = base if result is None else graph.apply("mul", result, base)
            left >>= 1
            base = graph.apply("mul", base, base) if left else base
        one = graph.constant(1, x.dtype)
        result = one if result is None else result
        return graph.apply("div", one, result) if exponent < 0 else result

    return [elementwise(graph, power, x.dtype, x)]


@rule("clamp")
def _clamp(lowering, params, low, x, high):
    graph = lowering.graph

    def clamp(low: int, x: int, high: int) -> int:
        return graph.apply("min", graph.apply("max", x, low), high)

    return [elementwise(graph, clamp, x.dtype, low, x, high)]


@rule("select_n")
def _select_n(lowering, params, which, *cases):
    graph = lowering.graph

    def select(which: int, *cases: int) -> int:
        if graph.dtypes[which] == BOOL:
            return graph.select(which, *cases) if len(cases) == 2 else cases[0]
        chosen = cases[-1]
        for i in range(len(cases) - 2, -1, -1):
            here = graph.apply("le", which, graph.constant(i, graph.dtypes[which]))
            chosen = graph.select(here, chosen, cases[i])
        return chosen

    return [elementwise(graph, select, _dtype(cases), which, *cases)]


@rule("convert_element_type")
def _convert(lowering, params, x):
    dtype = np.dtype(params["new_dtype"])
    return [elementwise(lowering.graph, lambda a: to_dtype(lowering.graph, a, dtype), dtype, x)]


def to_dtype(graph: Graph, node: int, dtype: np.dtype) -> int:
    if dtype == BOOL and graph.dtypes[node] != BOOL:
        return graph.apply("ne", node, graph.constant(0, graph.dtypes[node]))
    return graph.convert(node, dtype)


@rule("bitcast_convert_type")
def _bitcast(lowering, params, x):
    dtype = np.dtype(params["new_dtype"])
    if dtype.itemsize != np.dtype(x.dtype).itemsize:
        raise LoweringError(f"a bitcast between sizes, {np.dtype(x.dtype).name} to {dtype.name}")
    return [elementwise(lowering.graph, lambda a: lowering.graph.convert(a, dtype, op="bitcast"), dtype, x)]


@rule("reduce_precision")
def _reduce_precision(lowering, params, x):
    info = np.finfo(x.dtype)
    if (params["exponent_bits"], params["mantissa_bits"]) != (info.nexp, info.nmant):
        raise LoweringError("a precision that no C type has")
    return [x]


@rule("shift_left", "shift_right_logical", "shift_right_arithmetic")
def _shift(lowering, params, x, by):
    return [elementwise(lowering.graph, lambda a, b: lowering.graph.shift(lowering.primitive, a, b), x.dtype, x, by)]


_REDUCTIONS = {
    "reduce_sum": ("add", 0),
    "reduce_prod": ("mul", 1),
    "reduce_max": ("max", None),
    "reduce_min": ("min", None),
    "reduce_and": ("and", True),
    "reduce_or": ("or", False),
    "reduce_xor": ("xor", 0),
}


@rule(*_REDUCTIONS)
def _reduce(lowering, params, x):
    graph = lowering.graph
    op, empty = _REDUCTIONS[lowering.primitive]
    empty = _identity(op, x.dtype) if empty is None else empty
    rows = lanes(x.ids, params["axes"])
    out = np.empty(rows.shape[:-1], np.int64)
    for index in np.ndindex(*out.shape):
        row = rows[index]
        out[index] = reduce(lambda a, b: graph.apply(op, a, b), row) if row.size else graph.constant(empty, x.dtype)
    return [Nodes(out, x.dtype)]


def _identity(op: str, dtype: np.dtype) -> Any:
    """Return the result of a maximum or minimum over no numbers."""
    if dtype.kind == "f" or dtype == BOOL:
        return (op == "min") if dtype == BOOL else np.inf if op == "min" else -np.inf
    return np.iinfo(dtype).max if op == "min" else np.iinfo(dtype).min


@rule("argmax", "argmin")
def _arg(lowering, params, x):
    graph, dtype = lowering.graph, np.dtype(params["index_dtype"])
    better = "gt" if lowering.primitive == "argmax" else "lt"
    rows = lanes(x.ids, params["axes"])
    out = np.empty(rows.shape[:-1], np.int64)
    for index in np.ndindex(*out.shape):
        best, *rest = (int(node) for node in rows[index])
        at = graph.constant(0, dtype)
        for i, node in enumerate(rest, start=1):
            # The first NaN wins, as in JAX.
            wins = graph.apply("or", graph.apply(better, node, best), graph.apply("ne", node, node))
            wins = graph.apply("and", wins, graph.apply("eq", best, best))
            best, at = graph.select(wins, best, node), graph.select(wins, at, graph.constant(i, dtype))
        out[index] = at
    return [Nodes(out, dtype)]


_CUMULATIVE = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}


@rule(*_CUMULATIVE)
def _cumulative(lowering, params, x):
    graph, op = lowering.graph, _CUMULATIVE[lowering.primitive]
    rows = np.moveaxis(x.ids, params["axis"], -1).copy()
    rows = rows[..., ::-1].copy() if params["reverse"] else rows
    for i in range(1, rows.shape[-1]):
        for index in np.ndindex(*rows.shape[:-1]):
            rows[(*index, i)] = graph.apply(op, int(rows[(*index, i - 1)]), int(rows[(*index, i)]))
    rows = rows[..., ::-1] if params["reverse"] else rows
    return [Nodes(np.moveaxis(rows, -1, params["axis"]), x.dtype)]


# Giles, "Approximating the erfinv function" (GPU Computing Gems, 2011): coefficients of polynomials in
# w = -log(1 - x²), highest power first. Each entry is (bound, shift, coefficients), for w below the bound, in
# w - shift; from the second entry on, in √w - shift.
_ERF_INV = {
    np.dtype(np.float32): [
        (
            5.0,
            2.5,
            "2.81022636e-08 3.43273939e-07 -3.5233877e-06 -4.39150654e-06 0.00021858087 -0.00125372503 "
            "-0.00417768164 0.246640727 1.50140941",
        ),
        (
            np.inf,
            3.0,
            "-0.000200214257 0.000100950558 0.00134934322 -0.00367342844 0.00573950773 -0.0076224613 "
            "0.00943887047 1.00167406 2.83297682",
        ),
    ],
    np.dtype(np.float64): [
        (
            6.25,
            3.125,
            "-3.6444120640178196996e-21 -1.685059138182016589e-19 1.2858480715256400167e-18 "
            "1.115787767802518096e-17 -1.333171662854620906e-16 2.0972767875968561637e-17 "
            "6.6376381343583238325e-15 -4.0545662729752068639e-14 -8.1519341976054721522e-14 "
            "2.6335093153082322977e-12 -1.2975133253453532498e-11 -5.4154120542946279317e-11 "
            "1.051212273321532285e-09 -4.1126339803469836976e-09 -2.9070369957882005086e-08 "
            "4.2347877827932403518e-07 -1.3654692000834678645e-06 -1.3882523362786468719e-05 "
            "0.0001867342080340571352 -0.00074070253416626697512 -0.0060336708714301490533 "
            "0.24015818242558961693 1.6536545626831027356",
        ),
        (
            16.0,
            3.25,
            "2.2137376921775787049e-09 9.0756561938885390979e-08 -2.7517406297064545428e-07 "
            "1.8239629214389227755e-08 1.5027403968909827627e-06 -4.013867526981545969e-06 "
            "2.9234449089955446044e-06 1.2475304481671778723e-05 -4.7318229009055733981e-05 "
            "6.8284851459573175448e-05 2.4031110387097893999e-05 -0.0003550375203628474796 "
            "0.00095328937973738049703 -0.0016882755560235047313 0.0024914420961078508066 "
            "-0.0037512085075692412107 0.005370914553590063617 1.0052589676941592334 3.0838856104922207635",
        ),
        (
            np.inf,
            5.0,
            "-2.7109920616438573243e-11 -2.5556418169965252055e-10 1.5076572693500548083e-09 "
            "-3.7894654401267369937e-09 7.6157012080783393804e-09 -1.4960026627149240478e-08 "
            "2.9147953450901080826e-08 -6.7711997758452339498e-08 2.2900482228026654717e-07 "
            "-9.9298272942317002539e-07 4.5260625972231537039e-06 -1.9681778105531670567e-05 "
            "7.5995277030017761139e-05 -0.00021503011930044477347 -0.00013871931833623122026 "
            "1.0103004648645343977 4.8499064014085844221",
        ),
    ],
}


@rule("erf_inv")
def _erf_inv(lowering, params, x):
    graph, dtype = lowering.graph, np.dtype(x.dtype)

    def number(value: float) -> int:
        return graph.constant(value, dtype)

    def erf_inv(a: int) -> int:
        w = graph.apply("neg", graph.apply("log1p", graph.apply("neg", graph.apply("mul", a, a))))
        root = graph.apply("sqrt", w)
        result = None
        for i, (bound, shift, coefficients) in reversed(list(enumerate(_ERF_INV[dtype]))):
            argument = graph.apply("sub", root if i else w, number(shift))
            first, *rest = (number(float(c)) for c in coefficients.split())
            value = first
            for c in rest:
                value = graph.apply("add", c, graph.apply("mul", value, argument))
            below = graph.apply("lt", w, number(bound))
            result = value if result is None else graph.select(below, result, value)
        product = graph.apply("mul", result, a)
        at_end = graph.apply("eq", graph.apply("abs", a), number(1))
        return graph.select(at_end, product, graph.apply("mul", number(np.inf), a))

    return [elementwise(graph, erf_inv, dtype, x)]


def _dtype(inputs: Any) -> Any:
    return next(value.dtype for value in inputs)
