"""Rules for linear algebra: products, factorizations and triangular solves, unrolled to single numbers."""

import math

import numpy as np

from . import _whole
from ._elementwise import to_dtype
from .graph import BOOL, Graph
from .values import LoweringError, Nodes, Whole, elementwise, matrices, nodes, reduce, rule

INDEX = np.dtype(np.int32)


@rule("dot_general")
def _dot_general(lowering, params, left, right):
    graph = lowering.graph
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    left, right = nodes(graph, left), nodes(graph, right)
    dtype = np.dtype(params.get("preferred_element_type") or np.promote_types(left.dtype, right.dtype))
    left, right = (elementwise(graph, lambda a: to_dtype(graph, a, dtype), dtype, side) for side in (left, right))
    left_free = [axis for axis in range(left.ids.ndim) if axis not in (*left_sum, *left_batch)]
    right_free = [axis for axis in range(right.ids.ndim) if axis not in (*right_sum, *right_batch)]
    batch = [left.shape[axis] for axis in left_batch]
    inner = int(np.prod([left.shape[axis] for axis in left_sum]))
    rows = math.prod(left.shape[axis] for axis in left_free)
    columns = math.prod(right.shape[axis] for axis in right_free)
    a = left.ids.transpose(*left_batch, *left_free, *left_sum).reshape(*batch, rows, inner)
    b = right.ids.transpose(*right_batch, *right_sum, *right_free).reshape(*batch, inner, columns)
    out = np.empty((*batch, a.shape[-2], b.shape[-1]), np.int64)
    for index in np.ndindex(*batch):
        out[index] = _product(lowering, a[index], b[index], dtype)
    shape = (*batch, *(left.shape[axis] for axis in left_free), *(right.shape[axis] for axis in right_free))
    return [Nodes(out.reshape(shape), dtype)]


def _product(lowering, a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> np.ndarray:
    graph = lowering.graph
    if not a.shape[1]:
        return np.full((a.shape[0], b.shape[1]), graph.constant(0, dtype), np.int64)
    if lowering.loops_above is not None and dtype.kind == "f":
        zero = graph.constant(0, dtype)
        count = int(((a != zero).astype(int) @ (b != zero).astype(int)).sum())
        known = all(graph.is_constant(int(node)) for node in (*a.flat, *b.flat))
        if count > lowering.loops_above and not known:
            return graph.matrix_product(a, b)
    out = np.empty((a.shape[0], b.shape[1]), np.int64)
    for i, j in np.ndindex(*out.shape):
        terms = [graph.apply("mul", int(left), int(right)) for left, right in zip(a[i], b[:, j], strict=True)]
        out[i, j] = reduce(lambda x, y: graph.apply("add", x, y), terms)
    return out


@rule("lu")
def _lu(lowering, params, x):
    """Gaussian elimination with partial pivoting; comparisons and selections find the pivot and swap the rows."""
    graph = lowering.graph
    rows, columns = x.shape[-2:]
    factors, pivots, orders = [], [], []
    for matrix in matrices(x.ids):
        A = matrix.copy()
        order = np.array([graph.constant(i, INDEX) for i in range(rows)], np.int64)
        chosen = []
        for j in range(min(rows, columns)):
            best, at = graph.apply("abs", int(A[j, j])), graph.constant(j, INDEX)
            for i in range(j + 1, rows):
                size = graph.apply("abs", int(A[i, j]))
                larger = graph.apply("gt", size, best)
                best, at = graph.select(larger, best, size), graph.select(larger, at, graph.constant(i, INDEX))
            chosen.append(at)
            for i in range(j + 1, rows):
                _swap(graph, graph.apply("eq", at, graph.constant(i, INDEX)), A, i, j)
                _swap(graph, graph.apply("eq", at, graph.constant(i, INDEX)), order, i, j)
            is_zero = graph.apply("eq", int(A[j, j]), graph.constant(0, x.dtype))
            for i in range(j + 1, rows):
                factor = graph.select(is_zero, graph.apply("div", int(A[i, j]), int(A[j, j])), int(A[i, j]))
                A[i, j] = factor
                for k in range(j + 1, columns):
                    A[i, k] = _minus(graph, int(A[i, k]), factor, int(A[j, k]))
        factors.append(A)
        pivots.append(chosen)
        orders.append(order)
    batch = x.shape[:-2]
    return [
        Nodes(np.array(factors, np.int64).reshape(x.shape), x.dtype),
        Nodes(np.array(pivots, np.int64).reshape(*batch, min(rows, columns)), INDEX),
        Nodes(np.array(orders, np.int64).reshape(*batch, rows), INDEX),
    ]


@rule("lu_pivots_to_permutation")
def _pivots_to_permutation(lowering, params, pivots):
    graph, size = lowering.graph, params["permutation_size"]
    flat = pivots.ids.reshape(-1, pivots.shape[-1])
    orders = np.empty((flat.shape[0], size), np.int64)
    for order, row in zip(orders, flat, strict=True):
        order[:] = [graph.constant(i, INDEX) for i in range(size)]
        for j, at in enumerate(row):
            for i in range(j + 1, size):
                _swap(graph, graph.apply("eq", int(at), graph.constant(i, INDEX)), order, i, j)
    return [Nodes(orders.reshape(*pivots.shape[:-1], size), INDEX)]


@rule("cholesky")
def _cholesky(lowering, params, x):
    graph = lowering.graph
    n = x.shape[-1]
    zero, nan = graph.constant(0, x.dtype), graph.constant(np.nan, x.dtype)
    out = np.full(x.shape, zero, np.int64)
    for A, L in zip(matrices(x.ids), matrices(out), strict=True):
        positive = graph.constant(True, BOOL)
        for j in range(n):
            square = int(A[j, j])
            for k in range(j):
                square = _minus(graph, square, int(L[j, k]), int(L[j, k]))
            positive = graph.apply("and", positive, graph.apply("gt", square, zero))
            L[j, j] = graph.apply("sqrt", square)
            for i in range(j + 1, n):
                rest = int(A[i, j])
                for k in range(j):
                    rest = _minus(graph, rest, int(L[i, k]), int(L[j, k]))
                L[i, j] = graph.apply("div", rest, int(L[j, j]))
        # For a matrix that is not positive definite, JAX returns only NaN.
        for i, j in np.ndindex(n, n):
            L[i, j] = graph.select(positive, nan, int(L[i, j]))
    return [Nodes(out, x.dtype)]


@rule("triangular_solve")
def _triangular_solve(lowering, params, a, b):
    graph = lowering.graph
    a, b = nodes(graph, a), nodes(graph, b)
    out = b.ids.copy()
    for A, B in zip(matrices(a.ids), matrices(out), strict=True):
        A, lower = (A.T, not params["lower"]) if params["transpose_a"] else (A, params["lower"])
        # X A = B is Aᵀ Xᵀ = Bᵀ.
        X, A, lower = (B, A, lower) if params["left_side"] else (B.T, A.T, not lower)
        order = range(len(A)) if lower else range(len(A) - 1, -1, -1)
        for column in range(X.shape[1]):
            for i in order:
                rest = int(X[i, column])
                for j in range(i) if lower else range(i + 1, len(A)):
                    rest = _minus(graph, rest, int(A[i, j]), int(X[j, column]))
                X[i, column] = rest if params["unit_diagonal"] else graph.apply("div", rest, int(A[i, i]))
    return [Nodes(out, b.dtype)]


@rule("qr")
def _qr(lowering, params, x):
    """QR factorization by Householder reflections, with the signs of LAPACK."""
    if params.get("pivoting"):
        raise LoweringError("qr with pivoting")
    graph, dtype = lowering.graph, x.dtype
    m, n = x.shape[-2:]
    k = min(m, n)
    columns = m if params["full_matrices"] else k
    if lowering.loops_above is not None and m * n > lowering.loops_above and m >= n and not params["full_matrices"]:
        if x.ids.ndim == 2:
            return list(_whole_factors(lowering, x))
        parts = [
            [nodes(graph, part) for part in _whole_factors(lowering, Nodes(each, dtype))] for each in matrices(x.ids)
        ]
        q, r = (
            np.array([part.ids for part in same]).reshape(*x.shape[:-2], -1, n) for same in zip(*parts, strict=True)
        )
        return [Nodes(q, dtype), Nodes(r, dtype)]
    zero, one = graph.constant(0, dtype), graph.constant(1, dtype)
    q_stack, r_stack = [], []
    for matrix in matrices(x.ids):
        A = matrix.copy()
        reflections = []
        for j in range(min(m - 1, n)):
            below = _sum(graph, [graph.apply("mul", int(A[i, j]), int(A[i, j])) for i in range(j + 1, m)])
            alpha = int(A[j, j])
            length = graph.apply("sqrt", graph.apply("add", graph.apply("mul", alpha, alpha), below))
            beta = graph.select(graph.apply("ge", alpha, zero), length, graph.apply("neg", length))
            nothing = graph.apply("eq", below, zero)
            tau = graph.select(nothing, graph.apply("div", graph.apply("sub", beta, alpha), beta), zero)
            scale = graph.apply("sub", alpha, beta)
            v = [one] + [graph.select(nothing, graph.apply("div", int(A[i, j]), scale), zero) for i in range(j + 1, m)]
            reflections.append((j, tau, v))
            A[j, j] = graph.select(nothing, beta, alpha)
            for c in range(j + 1, n):
                _reflect(graph, A, j, c, tau, v)
            A[j + 1 :, j] = zero
        r_stack.append(A[:columns])
        Q = np.full((m, columns), zero, np.int64)
        for i in range(columns):
            Q[i, i] = one
        for j, tau, v in reversed(reflections):
            for c in range(columns):
                _reflect(graph, Q, j, c, tau, v)
        q_stack.append(Q)
    batch = x.shape[:-2]
    return [
        Nodes(np.array(q_stack, np.int64).reshape(*batch, m, columns), dtype),
        Nodes(np.array(r_stack, np.int64).reshape(*batch, columns, n), dtype),
    ]


def _whole_factors(lowering, x: Nodes) -> tuple[Whole, Whole]:
    """Return Q and R of one matrix, computed by loops."""
    graph, dtype, (m, n) = lowering.graph, x.dtype, x.shape
    q, factors = graph.qr(x.ids)
    (r,) = _whole.elementwise(
        lowering,
        "select_n",
        None,
        [np.triu(np.ones((n, n), bool)), np.zeros((n, n), dtype), Whole(factors, dtype, (n, n), (n, 1))],
    )
    return Whole(q, dtype, (m, n), (n, 1)), r


def _reflect(graph: Graph, A: np.ndarray, j: int, column: int, tau: int, v: list[int]) -> None:
    """Replace a column by (I - τ v vᵀ) times the column, where v starts at row j."""
    dot = _sum(graph, [graph.apply("mul", a, int(A[j + i, column])) for i, a in enumerate(v)])
    factor = graph.apply("mul", tau, dot)
    for i, a in enumerate(v):
        A[j + i, column] = _minus(graph, int(A[j + i, column]), a, factor)


def _sum(graph: Graph, terms: list[int]) -> int:
    return reduce(lambda a, b: graph.apply("add", a, b), terms)


def _minus(graph: Graph, a: int, b: int, c: int) -> int:
    return graph.apply("sub", a, graph.apply("mul", b, c))


def _swap(graph: Graph, condition: int, rows: np.ndarray, i: int, j: int) -> None:
    """Exchange rows (or entries) i and j if the condition holds."""
    for index in np.ndindex(*rows.shape[1:]):
        a, b = int(rows[(i, *index)]), int(rows[(j, *index)])
        rows[(i, *index)], rows[(j, *index)] = graph.select(condition, a, b), graph.select(condition, b, a)
