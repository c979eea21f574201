"""Programs with loops: the same numbers as unrolled, less code, and large functions in parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import _seven_joints
from benchmarks._problems import PROBLEMS

import selftune as st
from selftune.native import step
from selftune.native.c import emit, footprint, parts

from .compiled import compiled, source, write
from .test_loop import assert_same

RNG = np.random.default_rng(0)


def numbers(*shape, dtype="float64"):
    return RNG.standard_normal(shape).astype(dtype)


def carried(x, rows):
    """A carry, rows of results, a number that is the same in every turn, and one that is not used."""

    def turn(state, row):
        total, _ = state
        held = jnp.sin(x[0])
        return (total + held * row[0], row[1] / (1 + x[1] ** 2)), (total * row, jnp.tanh(row), held)

    (total, last), (products, _, helds) = jax.lax.scan(turn, (x[1], x[0]), rows)
    return total, last, products, helds


def backwards(x, rows):
    return jax.lax.scan(lambda total, row: (total * 0.5 + row @ x, total), x[0], rows, reverse=True)


def swapped(x, rows):
    """Two carries that change places, a truth value and a whole number."""

    def turn(state, row):
        a, b, flag, count = state
        return (b, a + row[0], ~flag, count + flag.astype(jnp.int32)), jnp.where(flag, a, b)

    return jax.lax.scan(turn, (x[0], x[1], x[0] > 0, (x[0] > 1).astype(jnp.int32)), rows)


def nested(x, rows):
    """A loop in a loop; the inner one uses numbers of the outer one, and one part of it needs neither."""

    def outer(total, row):
        def inner(sum, other):
            return sum + row[0] * other[1] + jnp.cos(x[0]), sum * row[1]

        sum, made = jax.lax.scan(inner, total, jnp.tanh(rows))
        free, _ = jax.lax.scan(lambda s, other: (s + other[0] ** 2, None), x[1], rows)
        return sum / (1 + free**2), (made, free / row[0], 1 / (1 + free**2))

    return jax.lax.scan(outer, x[0], rows)


def potter(S, rows):
    def turn(S, row):
        v = S.T @ row
        beta = 1 / (1 + v @ v)
        return S - (beta / (1 + jnp.sqrt(beta))) * jnp.outer(S @ v, v), beta

    return jax.lax.scan(turn, S, rows)


CASES = {
    "carried": (carried, numbers(2), numbers(5, 2)),
    "backwards": (backwards, numbers(2), numbers(6, 2)),
    "swapped": (swapped, numbers(2), numbers(5, 2)),
    "nested": (nested, numbers(2), numbers(4, 2)),
    "potter": (potter, numbers(5, 5), numbers(4, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_scan_as_a_loop_gives_the_same_bits(name):
    function, *args = CASES[name]
    looped = write(function, *args, loops_above=8).program
    assert "loop" in {looped.graph.ops[node] for node in looped.live()}
    if name == "potter":
        assert len(looped.live()) < len(write(function, *args).program.live()) / 2
    one, other = compiled(function, *args), compiled(function, *args, loops_above=8)
    for a, b in zip(jax.tree.leaves(one(*args)), jax.tree.leaves(other(*args)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_numbers_that_do_not_change_are_computed_before_the_loop():
    function, *args = CASES["carried"]
    graph = (program := write(function, *args, loops_above=8).program).graph
    sines = [node for node in program.live() if graph.ops[node] == "sin"]
    assert [graph.scopes[node] for node in sines] == [0]
    assert "tanh" not in {graph.ops[node] for node in program.live()}  # its rows are not used
    counts = footprint.operations(program)
    assert counts["elementary functions"] == 1
    assert counts["products"] >= 5 * 3  # each turn counts


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_qr_as_loops(dtype):
    A = np.concatenate([numbers(6, 6, dtype=dtype), np.diag(numbers(6, dtype=dtype))])

    def function(top, diagonal):
        return jnp.linalg.qr(jnp.concatenate([top, jnp.diag(diagonal)]))

    args = A[:6], np.diagonal(A[6:]).copy()
    q, r = compiled(function, *args, loops_above=8)(*args)
    tolerance = 50 * np.finfo(dtype).eps
    np.testing.assert_allclose(q @ r, A, atol=tolerance)
    np.testing.assert_allclose(q.T @ q, np.eye(6), atol=tolerance)
    np.testing.assert_array_equal(r, np.triu(r))
    expected = np.linalg.qr(A.astype(np.float64))
    np.testing.assert_allclose(q, expected[0], atol=tolerance)
    np.testing.assert_allclose(r, expected[1], atol=tolerance)


@pytest.mark.parametrize("name", ["nested", "potter"])
def test_parts_give_the_same_bits(name, monkeypatch):
    function, *args = CASES[name]

    def both(*args):
        return function(*args), jnp.linalg.solve(args[1][:2, :2] + 3 * jnp.eye(2), args[1][0, :2])

    whole = jax.tree.leaves(compiled(both, *args, loops_above=8)(*args))
    monkeypatch.setattr(parts, "LONGEST", 7)
    monkeypatch.setattr(emit, "LONGEST", 7)
    text = source({"f": write(both, *args, loops_above=8).program})
    assert text.count("void step_part_") >= 3
    for a, b in zip(whole, jax.tree.leaves(compiled(both, *args, loops_above=8)(*args)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("tuner", ["GaussNewton", "GAPS"])
def test_a_step_with_loops_agrees_with_an_unrolled_step(tuner, monkeypatch):
    problem = PROBLEMS["pendulum"]()
    box = problem.controller.tuner.constraint
    tuner = st.GaussNewton(constraint=box) if tuner == "GaussNewton" else st.GAPS(4, 1e-3, constraint=box)
    controller = st.Controller(problem.controller.system, tuner, problem.controller.estimator)
    settings = {"theta": problem.theta, "a_hat": problem.a_hat, "engine": "native"}
    runs = []
    for inputs, fields in ((step.MANY_INPUTS, ("x", "theta", "a_hat")), (0, ("x", "theta"))):
        monkeypatch.setattr(step, "MANY_INPUTS", inputs)  # other fields make another program
        runs.append(st.simulate(controller, problem.scenario(300), **settings, record=fields))
    for name in ("x", "theta"):
        one, other = (getattr(run, name) for run in runs)
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11 * float(np.max(np.abs(one))))
    assert float(np.max(np.abs(runs[0].theta[-1] - problem.theta))) > 1e-3


def seven_joints():
    box = st.Box(np.log(5.0), np.log(2000.0))
    return st.Controller(
        _seven_joints.system(), st.GaussNewton(constraint=box), st.AutoEstimator(constraint=st.Box(-5.0, 5.0))
    )


@pytest.mark.slow
def test_seven_joints_agree_with_xla():
    agents = [st.Agent(seven_joints(), **_seven_joints.start(), engine=engine) for engine in ("native", "xla")]
    x = np.asarray(_seven_joints.start()["x"])
    for t in range(20):
        measured = x + 0.01 * numbers(21)
        following = x + 0.01 * numbers(21)
        u, expected = (agent.act(measured, t) for agent in agents)
        np.testing.assert_allclose(u, expected, rtol=1e-10)
        for agent in agents:
            agent.observe_state(following)
        assert_same([agents[0].theta, agents[0].a_hat], [agents[1].theta, agents[1].a_hat], 1e-10)
