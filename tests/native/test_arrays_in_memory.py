"""Arrays that stay in memory: the same bits as single numbers, with one loop instead of a statement for each number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.native.lowering import _whole

from .compiled import compiled, write
from .test_loop import assert_same
from .test_loops import numbers, potter

A, B, ROW = numbers(5, 6), numbers(5, 6), numbers(6)


def views(a, b):
    """Parts of arrays, in other orders."""
    return (a.T * b.T)[1:, ::2], a[::-1, 1:4] - b[:, 3:], jnp.concatenate([a, b], axis=1), a.reshape(3, 10)[1] + 1


def spread(a, row):
    column = jnp.sum(a, axis=1, keepdims=True)
    return a * row[None, :] / column, a - jnp.max(a, axis=0), jnp.where(column > 0, a, row), row[0] * a


def reduced(a, b):
    return (
        jnp.sum(a),
        jnp.min(a * b, axis=1),
        jnp.all(jnp.isfinite(a)),
        jnp.any(a > b, axis=0),
        jnp.prod(a, axis=(0, 1)),
    )


def products(a, b):
    return a @ b.T, a.T @ b, b.T @ a, a[0] @ b.T, a.T @ b[:, 0], jnp.outer(a[:, 1], b[0]), a[1] @ b[2]


def chosen(a, b):
    """The same numbers again, a choice between two arrays that are equal, and numbers that are all known."""
    same = jnp.where(a[0, 0] > 0, a, a)
    return same, jnp.where(b[0, 0] > 0, a, b), jax.lax.cond(a[0, 0] > b[0, 0], lambda: a + b, lambda: b), 0 * a


def exchanged(a, b):
    return b, a, b[::-1]


def two_carries(a, b):
    """Arrays that change places from turn to turn; rows of an array, from the last to the first."""

    def turn(state, row):
        one, other = state
        return (other, one + row[:, None] * jnp.tanh(other)), row * 2

    return jax.lax.scan(turn, (a, b), a.T, reverse=True)


CASES = {
    "views": (views, A, B),
    "spread": (spread, A, ROW),
    "reduced": (reduced, A, B),
    "products": (products, A, B),
    "chosen": (chosen, A, B),
    "exchanged": (exchanged, A, B),
    "potter": (potter, numbers(5, 5), numbers(4, 5)),
    "two carries": (two_carries, A, B),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_as_single_numbers(name, dtype, monkeypatch):
    monkeypatch.setattr(_whole, "SMALLEST", 2)
    function, *args = CASES[name]
    args = [arg.astype(dtype) for arg in args]
    loops = {"loops_above": 3, "in_memory": True}
    program = write(function, *args, **loops).program
    assert all(leaf.is_whole for leaf in program.inputs)
    one, other = compiled(function, *args)(*args), compiled(function, *args, **loops)(*args)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_program_does_not_grow_with_the_array():
    def function(a, b):
        return jnp.where(b[0, 0] > 0, a.T + b.T, 0).T, jnp.sum(a * b)

    sizes = []
    for n in (20, 200):
        args = numbers(n, 6), numbers(n, 6)
        sizes.append(len(write(function, *args, loops_above=8, in_memory=True).program.live()))
    assert sizes[0] == sizes[1] < 40


@pytest.mark.slow
def test_an_agent_with_a_long_buffer_agrees_with_xla():
    """Array outputs share the memory of the inputs: a number that is stored late must not read a changed one."""
    system = st.System(
        dynamics=lambda x, u, f, t: (
            jnp.stack([0.9 * x[0] + 0.1 * x[1], 0.8 * x[1] + 0.2 * jnp.sin(x[2]), 0.7 * x[2]])
            + 0.1 * jnp.array([0.0, 1.0, 0.5]) * u
            + f
        ),
        residual=lambda x, a, t: jnp.array([0.1, 0.2, 0.3]) * a * jnp.cos(x),
        policy=lambda x, theta, f, t: jnp.stack([-theta @ x[:2]]),
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )
    controller = st.Controller(
        system, st.GAPS(150, 0.01, constraint=st.Box(0.0, 5.0)), st.AutoEstimator(constraint=st.Box(-1.0, 1.0))
    )
    start = {"x": np.ones(3), "theta": np.ones(2), "a_hat": np.zeros(1)}
    agents = [st.Agent(controller, **start, engine=engine) for engine in ("native", "xla")]
    for t in range(30):
        x, following = numbers(3), numbers(3)
        if t == 12:
            x = x * np.nan  # refused: nothing is stored
        us = [agent.act(x, t) for agent in agents]
        np.testing.assert_allclose(us[0], us[1], rtol=1e-11)
        if t == 20:
            for agent in agents:
                agent.pause()
        if t == 24:
            for agent in agents:
                agent.resume()
        for agent in agents:
            agent.observe_state(following)
        assert_same(agents[0]._engine.state(), agents[1]._engine.state(), 1e-11)
