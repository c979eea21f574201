"""What an agent saves: another goes on from it bit for bit, and what is not such a file is refused."""

import os

import jax
import numpy as np
import pytest

import selftune as st
from selftune.foundation.errors import StoreError
from tests.problems import golden, golden_controller
from tests.test_agent import both, fresh, measured, play, state_of

pytestmark = pytest.mark.versions


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """By each engine, after seven steps, the last of them without an observation."""
    folder = tmp_path_factory.mktemp("saved")
    for engine in ("native", "xla"):
        agent = fresh(engine=engine)
        play(agent, steps=range(6))
        agent.act([np.nan, 0.0], 5)
        agent.act(measured()[0][6], 6)
        agent.save(folder / engine)
    return folder


def go_on(agent):
    """From the observation of step 6, without numbers."""
    x, f_obs = measured()
    agent.observe(f_obs[6])
    controls = []
    for t in range(7, 20):
        controls.append(agent.act(x[t]))
        agent.observe(f_obs[t])
    return np.array(controls)


@pytest.mark.bits
@both
def test_another_agent_goes_on_bit_for_bit(saved, engine):
    agent = fresh(engine=engine)
    play(agent, steps=range(6))
    agent.act(measured()[0][6], 6)
    expected = go_on(agent)
    after = state_of(agent)
    other = fresh(engine=engine)
    assert other.load(saved / engine) is other
    assert (other.refused, other.result.message) == (1, "ok")
    with pytest.raises(RuntimeError, match=r"^info: expected to come after an act of this agent"):
        _ = other.info
    np.testing.assert_array_equal(go_on(other), expected)
    assert state_of(other) == after


@both
def test_the_other_engine_goes_on_to_rounding(saved, engine):
    expected = go_on(fresh(engine=engine).load(saved / engine))
    other = "xla" if engine == "native" else "native"
    np.testing.assert_allclose(go_on(fresh(engine=other).load(saved / engine)), expected, rtol=1e-11, atol=1e-12)


def refused(agent, path, match):
    before = state_of(agent), agent._acted, agent._next
    with pytest.raises(StoreError, match=match) as error:
        agent.load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert (state_of(agent), agent._acted, agent._next) == before


def test_what_is_not_such_a_file_is_refused(saved, tmp_path):
    agent, data = fresh(), (saved / "native").read_bytes()
    play(agent)
    refused(agent, tmp_path / "none", "no such file")
    refused(agent, tmp_path, "not the file of a saved agent")
    path = tmp_path / "agent"
    damaged = "not the file of a saved agent, or damaged"
    for content in (b"", b"text", data[:-1], data[:100], data[: len(data) // 2], data[1:]):
        path.write_bytes(content)
        refused(agent, path, damaged)
    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, x=np.zeros(3))
    refused(agent, foreign, damaged)
    for about in (b"[]", b"{", b'{"leaves": []}', b'{"leaves": 3, "checksum": ""}'):
        np.savez(foreign, about=np.frombuffer(about, np.uint8))
        refused(agent, foreign, damaged)
    np.savez(foreign, about=np.frombuffer(b'{"leaves": [], "checksum": ""}', np.uint8))
    refused(agent, foreign, "expected a file of selftune agent, version 3, got None, version None")


@pytest.mark.slow
def test_a_changed_byte_is_noticed_or_has_no_meaning(saved, tmp_path):
    data, path = (saved / "native").read_bytes(), tmp_path / "agent"
    agent = fresh()
    expected = state_of(agent.load(saved / "native"))
    noticed = 0
    for i in range(0, len(data), 13):
        path.write_bytes(data[:i] + bytes([data[i] ^ 0x41]) + data[i + 1 :])
        play(fresh(), steps=range(2))
        before = state_of(agent)
        try:
            agent.load(path)
        except StoreError:
            noticed += 1
            assert state_of(agent) == before
        else:  # a date in the archive, say
            assert state_of(agent) == expected
    assert noticed > 0.5 * len(range(0, len(data), 13))


def test_the_file_of_another_controller_is_refused(saved, tmp_path):
    scalar = fresh("scalar")
    refused(
        scalar, saved / "native", r"the state of another agent: expected controller_theta, float64\[1\], got .*\[4\]"
    )
    g = golden("planar")
    start = dict(x=g["x0"], theta=g["theta0"], a_hat=g["a0"])
    narrow = st.Box(g["theta0"] - 1e-9, g["theta0"] + 1e-9)
    tuner = st.MGAPS(1e-3, constraint=narrow)
    controller = golden_controller("planar")
    agent = st.Agent(st.Controller(controller.system, tuner, controller.estimator), **start)
    refused(agent, saved / "native", "theta: expected a point of its constraint")


def test_saving_is_whole_or_not_at_all(saved, tmp_path, monkeypatch):
    agent, path = fresh(), tmp_path / "deep" / "agent"
    agent.save(path)
    before = path.read_bytes()
    agent.save(path)
    assert path.read_bytes() == before
    play(agent)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            agent.save(path)
    assert path.read_bytes() == before
    agent.save(path)
    assert path.read_bytes() != before
    assert jax.tree.structure(agent.load(path).theta) == jax.tree.structure(0)
