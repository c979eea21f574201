"""`agent.history`: the values that each step used, with both engines; and the figure of a live agent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st

KEPT = 8


def controller():
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: x + 0.1 * v,
        residual=lambda x, a, t: a["bias"] * jnp.cos(x),
        actuation=lambda x, theta, t: -theta["kp"] * x - theta["kd"] * x**3,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )
    return st.Controller(system, st.MGAPS(0.05, contraction_memory=10), st.GradientEstimator(0.1))


START = dict(x=np.ones(2), theta={"kp": np.array([1.0, 2.0]), "kd": np.array(0.1)}, a_hat={"bias": np.zeros(2)})


@pytest.fixture(scope="module", params=["native", "xla"])
def made(request):
    return st.Agent(controller(), **START, engine=request.param, history=KEPT)


@pytest.fixture
def agent(made):
    made.reset(**START)
    return made


def drive(agent, steps, bad=()):
    """Drive a plant; return the values of each step, read from the agent itself before and after `act`."""
    x, rows = np.array([1.0, -0.5]), []
    for t in range(steps):
        row = {"step": t, "theta": agent.theta, "a_hat": agent.a_hat}
        measured = np.full(2, np.nan) if t in bad else x.copy()
        row["x"] = measured.copy()
        u = agent.act(measured)
        row |= {"u": u.copy(), "cost": agent.info.cost, "y": agent.info.tuner.y, "gradient": agent.info.tuner.gradient}
        row |= {"f_hat": agent.info.f_hat, "contraction": agent.info.tuner.contraction, "guard": int(agent.decisions)}
        rows.append(row)
        x = x + 0.1 * (u + 0.5 * np.cos(x))
        measured[:], u[:] = 7.0, 7.0  # the caller may reuse its arrays
        agent.observe_state(x)
    return rows


def test_it_has_the_values_that_each_step_used(agent):
    rows = drive(agent, 20, bad=(15,))
    history = agent.history(6)
    assert len(history) == 6
    expected = jax.tree.map(lambda *values: np.stack(values), *rows[-6:])
    np.testing.assert_array_equal(history.step, np.arange(14, 20))
    assert set(history.recorded) == set(expected) - {"step"}
    for name, values in history.recorded.items():
        for leaf, other in zip(jax.tree.leaves(values), jax.tree.leaves(expected[name]), strict=True):
            assert leaf.dtype == other.dtype or name == "guard"
            np.testing.assert_array_equal(leaf, other, err_msg=name)
    assert history.guard[1] & st.Decision.REFUSED
    assert history.theta["kp"].shape == (6, 2)


def test_it_keeps_the_last_steps(agent):
    drive(agent, 5)
    assert agent.history().step.tolist() == [0, 1, 2, 3, 4]
    assert agent.history(100).step.tolist() == [0, 1, 2, 3, 4]
    drive(agent, 10)
    assert agent.history().step.tolist() == list(range(15 - KEPT, 15))
    assert agent.history(2).step.tolist() == [13, 14]
    before = agent.history()
    copy = before.x.copy()
    drive(agent, 3)
    np.testing.assert_array_equal(before.x, copy)  # it is a copy


def test_reset_and_load_forget_the_kept_steps(agent, tmp_path):
    drive(agent, 3)
    agent.save(tmp_path / "agent")
    agent.load(tmp_path / "agent")
    with pytest.raises(RuntimeError, match="history: expected to come after an act"):
        agent.history()
    drive(agent, 2)
    assert agent.history().step.tolist() == [3, 4]
    agent.reset(**START)
    with pytest.raises(RuntimeError, match="history: expected to come after an act"):
        agent.history()


def test_a_context_that_is_no_number_of_a_step():
    system = st.System(
        dynamics=lambda x, u, f, t: x + 0.1 * (u + f),
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: -theta * (x - t["reference"]),
        cost=lambda x, u, theta, t: jnp.sum((x - t["reference"]) ** 2),
    )
    chosen = st.Controller(system, st.MGAPS(0.1), st.Frozen())
    start = dict(x=np.ones(1), theta=np.ones(1), a_hat=np.zeros(1), t={"reference": 0.0})
    agent = st.Agent(chosen, **start, engine="native", history=5)
    costs = []
    for reference in (0.5, 0.0, -0.5):
        agent.act(np.ones(1), {"reference": reference})
        costs.append((1 - reference) ** 2)
    assert agent.history().step.tolist() == [0, 1, 2]
    np.testing.assert_allclose(agent.history().cost, costs, rtol=1e-15)


def test_dataset_and_figure(agent):
    drive(agent, 8, bad=(4,))
    dataset = agent.history().to_dataset(names={"x": ["left", "right"]})
    assert dataset.x.dims == ("time", "state")
    assert dataset.parameter.values.tolist() == ["kd", "kp[0]", "kp[1]"]
    assert dataset.time.values.tolist() == list(range(8))
    np.testing.assert_array_equal(dataset.theta.sel(parameter="kp[1]"), agent.history().theta["kp"][:, 1])
    figure = agent.plot(names={"x": ["left", "right"]}, dt=0.1)
    assert figure.axes[-1].get_xlabel() == "time $t$ / s"
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["left", "right"]
    assert "refused" in "".join(text.get_text() for text in figure.axes[-1].get_yticklabels())
    assert f"{agent.engine} engine" in figure._suptitle.get_text()
    assert [axes.get_ylabel() for axes in agent.plot(["u"]).axes] == ["$u$"]


def test_what_is_not_there_is_named(agent):
    drive(agent, 2)
    history = agent.history()
    with pytest.raises(AttributeError, match="innovation: an agent does not keep it"):
        _ = history.innovation
    with pytest.raises(AttributeError, match="speed: expected one of step, x, measured, reference, memory, theta"):
        _ = history.speed
    assert repr(history).startswith("<History of 2 steps, 0 to 1; recorded: x, theta, a_hat,")


@pytest.mark.usefixtures("as_a_user")
def test_wrong_arguments_are_refused(agent):
    drive(agent, 1)
    for n in (0, -1, 2.5):
        with pytest.raises(st.ArgumentError, match="n: expected a whole number >= 1"):
            agent.history(n)
    for history in (-1, 1.5, True):
        with pytest.raises(st.ArgumentError, match="history: expected a whole number >= 0"):
            st.Agent(controller(), **START, history=history)


def test_an_agent_keeps_no_steps_unless_asked_to():
    agent = st.Agent(controller(), **START, engine="native")
    drive(agent, 3)
    for call in (agent.history, agent.plot):
        with pytest.raises(
            RuntimeError, match=r"history: expected an agent that keeps steps, such as Agent\(\.\.\., hi"
        ):
            call()


def test_an_agent_as_text(agent):
    drive(agent, 3, bad=(1,))
    text = repr(agent)
    assert text.startswith("<Agent of MGAPS(learning_rate=0.05, contraction_memory=10.0) and GradientEstimator(")
    assert f"{agent.engine} engine; next step 3, θ = {{'kd': " in text
    assert text.endswith("1 refused; ok>")
