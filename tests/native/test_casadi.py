"""A second opinion on the graph: the same scalar program, evaluated by CasADi.

CasADi's own smallest and largest numbers swallow NaN, so this is for finite numbers only.
"""

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selftune.native.lowering.from_jaxpr import Program, lower
from tests.problems import golden, golden_controller

from .compiled import Written, compiled_all, write

UNARY = {
    "neg": lambda a: -a,
    "not": ca.logic_not,
    "abs": ca.fabs,
    "sign": ca.sign,
    "floor": ca.floor,
    "ceil": ca.ceil,
    "sqrt": ca.sqrt,
    "exp": ca.exp,
    "log": ca.log,
    "log1p": ca.log1p,
    "expm1": ca.expm1,
    "sin": ca.sin,
    "cos": ca.cos,
    "tan": ca.tan,
    "tanh": ca.tanh,
    "sinh": ca.sinh,
    "cosh": ca.cosh,
    "atan": ca.atan,
    "is_finite": lambda a: a - a == 0,
    "convert": lambda a: a,  # of truths and whole numbers to floats: all are doubles here
}
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "rem": ca.fmod,
    "max": ca.fmax,
    "min": ca.fmin,
    "pow": ca.power,
    "atan2": ca.atan2,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "and": ca.logic_and,
    "or": ca.logic_or,
    "xor": lambda a, b: a != b,
}


def translated(program: Program) -> ca.Function:
    """The program as a CasADi function of all inputs' numbers to all outputs'."""
    graph = program.graph
    arguments = [ca.SX.sym(leaf.name, max(leaf.ids.size, 1)) for leaf in program.inputs]
    by_name = {leaf.name: argument for leaf, argument in zip(program.inputs, arguments, strict=True)}
    made: dict[int, ca.SX] = {}
    for node in program.live():
        op, args = graph.ops[node], [made[arg] for arg in graph.args[node]]
        if op == "constant":
            made[node] = ca.SX(float(graph.values[node]))
        elif op == "input":
            name, position = graph.values[node]
            made[node] = by_name[name][position]
        elif op == "select":
            made[node] = ca.if_else(args[0], args[2], args[1])
        elif op == "convert":
            assert not (graph.dtypes[node].kind in "iu" and graph.dtypes[graph.args[node][0]].kind == "f")
            made[node] = args[0]
        else:
            made[node] = (UNARY if len(args) == 1 else BINARY)[op](*args)
    results = [ca.vertcat(*(made[int(node)] for node in leaf.ids.flat)) for leaf in program.outputs]
    return ca.Function("program", arguments, results)


def compare(function, *args):
    """The numbers of our C and of CasADi are the same, but for what a rounding of a sine may become."""
    written: Written = write(function, *args)
    ours = jax.tree.leaves(compiled_all({"function": written})["function"](*args))
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(list(args))]
    theirs = translated(written.program).call([leaf.ravel().astype(float) for leaf in leaves])
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(other).reshape(one.shape), one, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["scalar", "planar"])
def test_a_controller(name):
    g = golden(name)
    controller = golden_controller(name)
    x = jnp.asarray(g["x0"])
    state = controller.init(x, theta=g["theta0"], a_hat=g["a0"])

    def step(state, x, f_obs, t):
        u, acted, _ = controller.act(state, x, t)
        return u, jax.tree.leaves(controller.observe(acted, x, f_obs, t))

    rng = np.random.default_rng(0)
    for t in range(3):
        f_obs = rng.standard_normal(g["v"].shape[1:])
        compare(step, state, x, f_obs, jnp.asarray(t))
        x, state = x + 0.1 * rng.standard_normal(x.shape), controller.act(state, x, t)[1]


def test_a_linear_solve_with_pivots():
    rng = np.random.default_rng(0)
    for _ in range(4):
        A, b = rng.standard_normal((4, 4)), rng.standard_normal(4)
        compare(lambda A, b: (jnp.linalg.solve(A, b), jnp.linalg.det(A), jax.scipy.linalg.lu(A)), A, b)


def test_a_cholesky_factor_and_its_derivative():
    A, dA = np.random.default_rng(0).standard_normal((2, 3, 3))

    def factor(A):
        return jnp.linalg.cholesky(A @ A.T + jnp.eye(3))

    compare(lambda A, dA: jax.jvp(factor, (A,), (dA,)), A, dA)
    compare(lambda A: jax.jacrev(factor)(A), A)


def test_a_program_of_many_kinds():
    def function(x):
        y = jnp.where(x > 0, jnp.arctan2(x, 1 + x[::-1] ** 2), jnp.clip(jnp.sinh(x), -0.3, 0.3))
        return jnp.sort(y), jnp.argmax(y), jnp.linalg.norm(jnp.log1p(jnp.abs(y))), jnp.cumsum(y > 0.1)

    for x in np.random.default_rng(0).standard_normal((4, 5)):
        compare(function, x)


def test_what_is_written_is_what_is_lowered():
    """The translator reads the same program that the writer does."""
    program = lower(lambda x: {"y": x[0] * x[1]}, {"x": np.ones(2)})
    assert float(translated(program)(np.array([3.0, 4.0]))) == 12
