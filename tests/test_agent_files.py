"""What an agent saves: another goes on from it bit for bit, and what is not such a file is refused."""

import io
import json
import os
import secrets
import tracemalloc
import zipfile

import jax
import numpy as np
import pytest

import selftune as st
from selftune.foundation.errors import StoreError
from selftune.realtime.agent import _checksum
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
    kind = b'"format": "selftune agent", "version": 5, "checksum": ""'
    for about in (b"[]", b"{", b'{"leaves": []}', b'{"leaves": 3, %b}' % kind, b'{"leaves": [[3]], %b}' % kind):
        np.savez(foreign, about=np.frombuffer(about, np.uint8))
        refused(agent, foreign, damaged)
    np.savez(foreign, about=np.frombuffer(b'{"leaves": [], "checksum": ""}', np.uint8))
    refused(agent, foreign, "expected a file of selftune agent, version 5, got None, version None")


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


def contents_of(path):
    with np.load(path) as stored:
        about = json.loads(stored["about"].tobytes())
        return about, {name: stored[name] for name in stored.files if name != "about"}


def forge(path, about, arrays, save=np.savez):
    """A file with any content and the right checksum: a checksum finds damage, not bad will."""
    about.pop("checksum", None)
    about["checksum"] = _checksum(about, [arrays[f"leaf_{i}"] for i in range(len(arrays))])
    save(path, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
    return path if path.exists() else path.with_name(f"{path.name}.npz")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("u", np.nan, "u: expected finite numbers"),
        ("predicted", np.nan, "predicted: expected finite numbers"),
        ("predicted", np.inf, "predicted: expected finite numbers"),
        ("controller_tuner_y", np.nan, "controller_tuner_y: expected finite numbers"),
        ("x", np.nan, "x: expected "),
        ("guard_window_total", np.nan, "guard_window_total: expected no NaN"),
        ("guard_window_good_theta", np.nan, "theta: expected "),
        ("guard_mode", 7, "guard_mode: expected one of 0, 1, 2, got 7"),
        ("guard_missed", -1, "guard_missed: expected a number >= 0, got -1"),
        ("code", 9, "code: expected one of 0, 1, 2, 4, 5, 6, 7, 8, got 9"),
        ("refused", -5, "refused: expected a number >= 0, got -5"),
    ],
)
def test_a_number_that_no_agent_has_is_refused(saved, tmp_path, name, value, message):
    about, arrays = contents_of(saved / "native")
    (number,) = (i for i, leaf in enumerate(about["leaves"]) if leaf[0].removeprefix("state_") == name)
    arrays[f"leaf_{number}"] = np.full_like(arrays[f"leaf_{number}"], value)
    agent = fresh()
    refused(agent, forge(tmp_path / "agent", about, arrays), message)
    assert np.isfinite(agent.act([np.nan, 0.0])).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acted", 1),
        ("next", True),
        ("next", 2**70),
        ("next", 2**40),
        ("step", -(2**31) - 1),
        ("step", "3"),
        ("code", None),
        ("code", 3),
    ],
)
def test_wrong_counters_are_refused(saved, tmp_path, name, value):
    about, arrays = contents_of(saved / "native")
    about[name] = value
    refused(fresh(), forge(tmp_path / "agent", about, arrays), "expected (whole numbers|one of|the number of a step)")


def measure_memory(agent, path, match):
    tracemalloc.start()
    try:
        refused(agent, path, match)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_file_does_not_take_much_memory(saved, tmp_path):
    """Neither by compression, nor by a header that promises more than there is."""
    agent, (about, arrays) = fresh(), contents_of(saved / "native")
    leaves = [*about["leaves"]]
    huge = {**arrays, "leaf_0": np.zeros(2_000_000)}
    compressed = forge(tmp_path / "compressed", {**about}, huge, np.savez_compressed)
    assert compressed.stat().st_size < 100_000
    assert measure_memory(agent, compressed, "not compressed") < 2_000_000
    about["leaves"] = [[leaves[0][0], [2_000_000], leaves[0][2]], *leaves[1:]]
    other = forge(tmp_path / "other", {**about}, huge)
    assert measure_memory(agent, other, "the state of another agent") < 2_000_000
    about["leaves"] = leaves
    stored = forge(tmp_path / "stored", {**about}, huge)
    assert measure_memory(agent, stored, "leaf_0: expected at most 32 bytes") < 2_000_000
    promise = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(promise, header)
    with zipfile.ZipFile(saved / "native") as source, zipfile.ZipFile(tmp_path / "promise", "w") as archive:
        for name in source.namelist():
            archive.writestr(name, promise.getvalue() + bytes(32) if name == "leaf_0.npy" else source.read(name))
    assert measure_memory(agent, tmp_path / "promise", r"leaf_0: expected float64\[4\], got") < 2_000_000


def test_saving_does_not_follow_a_link(tmp_path, monkeypatch):
    """In a folder where others can write, such as /tmp, a link must not lead to another file of the user."""
    agent, victim = fresh(), tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".agent.{os.getpid()}.tmp").symlink_to(victim)
    (tmp_path / "agent").symlink_to(victim)
    agent.save(tmp_path / "agent")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "agent").is_symlink()
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    (tmp_path / ".agent.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        agent.save(tmp_path / "agent")
    assert victim.read_text() == "mine"
    assert (tmp_path / ".agent.guessed.tmp").is_symlink()


def tank(dt=1.0, low=0.0, high=100.0, sign=1.0, effort=0.01, **options):
    model = st.models.FirstOrder(gain=0.8 * sign, time_constant=300.0, dt=dt, rated_input=100.0)
    policy = st.policies.PID(kp=2.0 * sign, ki=0.02 * sign, u_min=low, u_max=high)
    return st.Loop(model, policy, st.Tracking(effort=effort), **options)


def test_the_file_of_another_loop_is_refused_and_the_message_names_the_constant(tmp_path):
    first = tank().agent(engine="xla")
    first.act(20.0, reference=30.0)
    first.save(tmp_path / "tank")
    for other, message in (
        (tank(dt=0.1), r"another agent: plant.dt: expected 0.1, got 1.0"),
        (tank(low=-5.0, high=5.0), r"policy.u_min: expected \[-5.0\], got \[0.0\]"),
        (tank(sign=-1.0), r"plant.gain: expected -0.8, got 0.8"),
        (tank(effort=0.1), r"cost.effort: expected 0.1, got 0.01"),
    ):
        refused(other.agent(engine="xla"), tmp_path / "tank", message)
    same = tank(reference=3.0).agent(engine="xla", theta={"log_kp": np.log(3.0), "log_ki": np.log(0.01)})
    assert same.load(tmp_path / "tank").act(21.0, reference=30.0) == first.act(21.0, reference=30.0)


def test_a_guard_with_other_parts_is_refused_by_the_name_of_its_setting(tmp_path):
    g = golden("planar")

    def make(**options):
        return st.Agent(
            golden_controller("planar"), x=g["x0"], theta=g["theta0"], a_hat=g["a0"], guard=st.Guard(**options)
        )

    make(stuck=3).save(tmp_path / "stuck.npz")
    make().save(tmp_path / "plain.npz")
    refused(make(), tmp_path / "stuck.npz", r"saved with a guard that has `stuck`: give this agent such a guard, too$")
    refused(make(stuck=3), tmp_path / "plain.npz", "saved with a guard without `stuck`: give")
    refused(make(stuck=3, gate=None), tmp_path / "plain.npz", "guard that has `gate`; .* a guard without `stuck`: give")
    assert make(stuck=9).load(tmp_path / "stuck.npz").guard.stuck == 9
