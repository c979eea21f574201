"""An agent whose θ, a and context are pytrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.test_agent import ENGINES, state_of

pytestmark = pytest.mark.versions

THETA, A_HAT = {"bias": 0.1, "gain": [0.5, 0.6]}, {"drift": [0.0, 0.0]}
CONTEXT = {"reference": np.array([0.3, -0.3]), "weight": 2.0, "mode": 1, "contact": True}


def make_controller():
    def error(x, t):
        return jnp.where(t["contact"], x - t["reference"], x) * t["mode"].astype(x.dtype)

    system = st.MatchedSystem(
        dynamics=lambda x, v, t: x + 0.1 * v,
        residual=lambda x, a, t: a["drift"] * jnp.cos(x),
        actuation=lambda x, theta, t: -theta["gain"] * error(x, t) + theta["bias"],
        cost=lambda x, u, theta, t: t["weight"] * jnp.sum(error(x, t) ** 2) + 0.1 * jnp.sum(u**2),
    )
    return st.Controller(system, st.MGAPS(0.1), st.GradientEstimator(0.2))


@pytest.fixture(scope="module")
def agents():
    start = dict(x=[1.0, 2.0], theta=THETA, a_hat=A_HAT, t=CONTEXT)
    guard = st.Guard(rate=None)  # so that they are as by hand
    return [st.Agent(make_controller(), **start, engine=engine, guard=guard) for engine in ENGINES]


def test_they_are_as_by_hand(agents):
    controller = make_controller()
    x, f_obs = jnp.array([1.0, 2.0]), jnp.array([0.2, -0.1])
    act, observe = jax.jit(controller.act), jax.jit(controller.observe)
    contexts = [CONTEXT | {"reference": np.array([0.1 * i, 0.3]), "contact": i % 2 == 0} for i in range(4)]
    state = controller.init(x, theta=THETA, a_hat=A_HAT, t=jax.tree.map(jnp.asarray, CONTEXT))
    controls = []
    for t in contexts:
        now = jax.tree.map(jnp.asarray, t)
        u, state, _ = act(state, x, now)
        state = observe(state, x, f_obs, now)
        controls.append(u)
    for agent in agents:
        for t, expected in zip(contexts, controls, strict=True):
            np.testing.assert_allclose(agent.act(x, t), expected, rtol=1e-12)
            agent.observe(f_obs)
        for got, expected in ((agent.theta, state.theta), (agent.a_hat, state.a_hat)):
            assert jax.tree.structure(got) == jax.tree.structure(expected)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), got, expected)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (None, "t: expected a context like the agent's first"),
        (3, "t: expected a context like the agent's first"),
        ({"reference": [0.0, 0.0]}, "t: expected a context like the agent's first"),
        (CONTEXT | {"reference": [0.0]}, r"t: expected float64\[2\] in the context, got float64\[1\]"),
        (CONTEXT | {"mode": 0.5}, r"t: expected int32\[\] in the context, got float64"),
        (CONTEXT | {"mode": 2**40}, r"t: expected int32\[\] in the context"),
        (CONTEXT | {"contact": 1.0}, r"t: expected bool\[\] in the context"),
        (CONTEXT | {"weight": "heavy"}, "t: expected float64"),
    ],
)
def test_another_context_is_refused(agents, wrong, expected):
    for agent in agents:
        before = state_of(agent)
        with pytest.raises(ValueError, match=expected):
            agent.act([1.0, 2.0], wrong)
        assert state_of(agent) == before


def test_it_runs_longer_than_a_number_of_32_bits_counts(agents):
    for agent in agents:
        agent._next = 2**31 + 5  # after 25 days at 1 kHz
        agent.act([np.nan, 0.0], CONTEXT)
        assert agent.result.message == f"a number stopped being finite at step {2**31 - 1}"
