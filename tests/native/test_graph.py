"""The scalar program itself: each number once, what is known is folded, and the text of it in C."""

import jax.numpy as jnp
import numpy as np
import pytest

from selftune.native.c.compilation import build
from selftune.native.c.emit import literal
from selftune.native.lowering.from_jaxpr import lower
from selftune.native.lowering.graph import BOOL, Graph

from .compiled import STRICT, compiled, pointers, source, write

DOUBLE = np.dtype(np.float64)
INT = np.dtype(np.int32)


@pytest.fixture
def graph():
    return Graph()


@pytest.fixture
def x(graph):
    return graph.input("x", 0, DOUBLE)


def test_the_same_expression_is_the_same_node(graph, x):
    y = graph.input("y", 0, DOUBLE)
    assert graph.apply("add", x, y) == graph.apply("add", y, x)
    assert graph.apply("sub", x, y) != graph.apply("sub", y, x)
    assert graph.apply("sin", x) == graph.apply("sin", graph.input("x", 0, DOUBLE))
    assert graph.constant(0.5, DOUBLE) == graph.constant(0.5, DOUBLE) != graph.constant(0.5, np.float32)
    assert graph.constant(0.0, DOUBLE) != graph.constant(-0.0, DOUBLE)
    assert graph.constant(np.nan, DOUBLE) == graph.constant(np.nan, DOUBLE)


def test_ones_zeros_and_signs_are_folded(graph, x):
    y, one = graph.input("y", 0, DOUBLE), graph.constant(1, DOUBLE)
    minus = graph.constant(-1, DOUBLE)
    assert graph.apply("mul", x, one) == graph.apply("div", x, one) == x
    assert graph.apply("add", x, graph.constant(0, DOUBLE)) == graph.apply("sub", x, graph.constant(0, DOUBLE)) == x
    assert graph.apply("mul", x, minus) == graph.apply("neg", x)
    assert graph.apply("neg", graph.apply("mul", minus, x)) == x
    assert graph.apply("add", x, graph.apply("neg", y)) == graph.apply("sub", x, y)
    assert graph.apply("max", x, x) == x
    assert graph.apply("div", x, graph.constant(4, DOUBLE)) == graph.apply("mul", x, graph.constant(0.25, DOUBLE))
    assert graph.ops[graph.apply("div", x, graph.constant(3, DOUBLE))] == "div"
    assert graph.values[graph.apply("mul", graph.constant(3, DOUBLE), graph.constant(0.5, DOUBLE))] == 1.5


def test_a_known_zero_times_anything_is_zero_only_if_sparse():
    for sparse in (True, False):
        graph = Graph(sparse=sparse)
        x, zero = graph.input("x", 0, DOUBLE), graph.constant(0, DOUBLE)
        assert (graph.apply("mul", x, zero) == zero) == sparse
        assert (graph.apply("div", zero, x) == zero) == sparse
        k = graph.input("k", 0, INT)
        assert graph.apply("mul", k, graph.constant(0, INT)) == graph.constant(0, INT)


def test_a_choice_among_truths_is_logic(graph):
    a, b = graph.input("a", 0, BOOL), graph.input("b", 0, BOOL)
    yes, no = graph.constant(True, BOOL), graph.constant(False, BOOL)
    assert graph.select(a, no, yes) == a
    assert graph.select(a, yes, no) == graph.apply("not", a)
    assert graph.select(a, b, yes) == graph.apply("or", a, b)
    assert graph.select(a, no, b) == graph.apply("and", a, b)
    assert graph.select(graph.apply("not", a), b, no) == graph.select(a, no, b)
    assert graph.select(yes, a, b) == b
    assert graph.select(a, b, b) == b
    assert graph.apply("eq", a, yes) == graph.apply("ne", a, no) == a
    assert graph.apply("eq", a, a) == yes
    assert graph.apply("not", graph.apply("not", a)) == a


def test_a_choice_among_constants_is_compared_when_it_is_compiled(graph):
    a, b = graph.input("a", 0, BOOL), graph.input("b", 0, BOOL)
    one, two, three = (graph.constant(i, INT) for i in (1, 2, 3))
    which = graph.select(a, graph.select(b, one, two), three)
    assert graph.apply("eq", which, three) == a
    assert graph.apply("eq", graph.constant(7, INT), which) == graph.constant(False, BOOL)
    assert graph.apply("le", which, three) == graph.constant(True, BOOL)
    assert graph.apply("gt", one, graph.convert(a, INT)) == graph.apply("not", a)


def test_a_number_that_is_not_a_number_is_not_folded_away(graph, x):
    assert graph.ops[graph.apply("ne", x, x)] == "ne"
    assert graph.ops[graph.apply("sub", x, x)] == "sub"
    unsigned = graph.input("u", 0, np.uint32)
    assert graph.apply("lt", unsigned, graph.constant(0, np.uint32)) == graph.constant(False, BOOL)


def test_a_mask_leaves_out_even_what_is_not_a_number(graph, x):
    mask = graph.input("b", 0, BOOL)
    product = graph.apply("mul", graph.convert(mask, DOUBLE), x)
    assert product == graph.select(mask, graph.constant(0, DOUBLE), x)


def _step(A, x):
    y = jnp.linalg.solve(A + 3 * jnp.eye(3), jnp.sin(x))
    return A - 0.1 * jnp.outer(y, x), x + 0.5 * y, jnp.argmax(jnp.abs(y))


def test_the_text_is_the_same_for_the_same_function():
    A, x = np.ones((3, 3)), np.ones(3)
    assert source({"f": write(_step, A, x).program}) == source({"f": write(_step, A, x).program})
    assert "nan" not in source({"f": write(_step, A, x).program}).lower()


def test_only_what_is_used_is_written():
    program = write(lambda x: x[0] + jnp.eye(3)[0] @ x, np.ones(3)).program
    assert [program.graph.ops[node] for node in program.live()] == ["input", "add"]


def test_known_results_need_no_inputs():
    constant = compiled(lambda x: (jnp.linalg.inv(2 * jnp.eye(2)), 0 * x), np.ones(2))
    np.testing.assert_array_equal(constant(np.ones(2))[0], np.eye(2) / 2)
    np.testing.assert_array_equal(constant(np.ones(2))[1], np.zeros(2))


def test_what_goes_out_may_stand_where_what_came_in_stood():
    rng = np.random.default_rng(0)
    A, x = rng.standard_normal((3, 3)), rng.standard_normal(3)
    written = write(_step, A, x)
    expected = compiled(_step, A, x)(A, x)
    library = build(source({"f": written.program}), flags=(*STRICT, "-O2", "-fPIC", "-shared"))
    arrays = [A.copy(), x.copy(), np.zeros((), np.int32 if written.program.outputs[2].dtype == INT else np.int64)]
    both = pointers(arrays)
    library.f_f(both, both)
    for got, want in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_as_loops_are_the_same_numbers(dtype):
    rng = np.random.default_rng(0)
    A, B, x = (rng.standard_normal(shape).astype(dtype) for shape in ((4, 4), (4, 3), (3,)))

    def function(A, B, x):
        return jnp.tanh(A @ B) @ x, A @ A @ B, jnp.array([[0, 1.0, 0], [2, 0, 0]], x.dtype) @ x

    known = write(lambda x: x[0] * (jnp.ones((3, 3), x.dtype) @ jnp.ones((3, 3), x.dtype)), x, loops_above=0).program
    assert "matrix_product" not in known.graph.ops
    loops = write(function, A, B, x, loops_above=8).program
    assert "matrix_product" in loops.graph.ops
    unrolled, looped = compiled(function, A, B, x), compiled(function, A, B, x, loops_above=8)
    for one, other in zip(unrolled(A, B, x), looped(A, B, x), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("names", [("exp", "double", "in", "v3"), ("x_0", "x", "sum", "p1"), ("0", "θ", "x_", "fabs")])
def test_any_names_make_a_program(names):
    inputs = {name if name.isidentifier() else f"a{name}": np.full(2, i + 0.5) for i, name in enumerate(names)}

    def function(**inputs):
        total = jnp.sum(jnp.stack([jnp.exp(x) for x in inputs.values()]), axis=0)
        return {name: jnp.abs(total * i) for i, name in enumerate(names)} | {"x_1": total[0], "v7": [total], "out": 1.0}

    program = lower(function, inputs)
    named = [leaf.name for leaf in (*program.inputs, *program.outputs)]
    assert all(name.isidentifier() and name.isascii() for name in named)
    build(source({"f": program}), flags=(*STRICT, "-fPIC", "-shared"))


def _read_back(values: np.ndarray) -> np.ndarray:
    """The numbers that C reads from their literals."""
    return compiled(lambda: jnp.asarray(values))()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_literal_is_read_back_bit_for_bit(dtype):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**63, 3000, np.uint64)
    bits = (bits >> 31).astype(np.uint32) if dtype == "float32" else bits * 2 + rng.integers(0, 2, 3000, np.uint64)
    info = np.finfo(dtype)
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        info.max,
        -info.max,
        info.tiny,
        info.smallest_subnormal,
        info.eps,
        0.1,
        1 / 3,
    ]
    values = np.concatenate([bits.view(dtype), np.array(special, dtype), np.arange(-20, 20).astype(dtype)])
    values = values[~np.isnan(values)]
    np.testing.assert_array_equal(_read_back(values).view(np.uint8), values.view(np.uint8))
    assert np.isnan(_read_back(np.array([np.nan], dtype)))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64", "bool"])
def test_whole_literals_are_read_back(dtype):
    if dtype == "bool":
        values = np.array([True, False])
    else:
        limits = np.iinfo(dtype)
        values = np.array([limits.min, limits.min + 1, 0, 1, limits.max // 2, limits.max - 1, limits.max], dtype)
    np.testing.assert_array_equal(_read_back(values), values)


def test_literals_are_plain():
    assert literal(0.5, np.float32) == "0.5f"
    assert literal(-2, np.float64) == "(-2.0)"
    assert literal(1e-9, np.float64) == "1.0e-9"
    assert literal(np.inf, np.float64) == "HUGE_VAL"
    assert literal(-3, np.int64) == "(-INT64_C(3))"
    assert literal(True, bool) == "1"
