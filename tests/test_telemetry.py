"""Telemetry: what reaches the file and the websocket, a writer that is too slow or dead, and mistakes."""

import json
import os
import signal
import socket
import time

import numpy as np
import pytest
from mcap.reader import make_reader
from websockets.sync.client import connect

import selftune as st
from selftune import models, policies

LOOP = st.Loop(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), policies.PID(kp=1.0, ki=0.5))


@pytest.fixture(scope="module")
def agents():
    return {engine: LOOP.agent(engine=engine, history=40) for engine in ("native", "xla")}


@pytest.fixture
def agent(agents):
    return renew(agents["native"])


def renew(agent):
    agent.stream(None)
    agent.reset(x=LOOP.x, theta=LOOP.theta, a_hat=LOOP.a_hat)
    return agent


def drive(agent, steps, since=0):
    us = []
    for t in range(since, since + steps):
        us.append(float(agent.act([0.1 * np.sin(t)], reference=[1.0])[0]))
    return us


def read(path):
    with path.open("rb") as file:
        found = [(channel.topic, json.loads(m.data)) for _, channel, m in make_reader(file).iter_messages()]
    return [m for topic, m in found if topic == "/selftune/step"], [
        m for topic, m in found if topic != "/selftune/step"
    ]


@pytest.mark.parametrize("engine", ["native", "xla"])
def test_every_step_is_in_the_file(agents, engine, tmp_path):
    with st.Telemetry(tmp_path / "run.mcap") as telemetry:
        agent = renew(agents[engine])
        agent.stream(telemetry)
        us = drive(agent, 40)
        agent.act([np.nan], reference=[1.0])
    assert (telemetry.written, telemetry.dropped, telemetry.is_alive) == (41, 0, False)
    steps, status = read(tmp_path / "run.mcap")
    assert [m["step"] for m in steps] == list(range(41))
    np.testing.assert_array_equal([m["u"][0] for m in steps[:40]], us)
    np.testing.assert_array_equal([m["x"][0] for m in steps[1:40]], agent.history().x[:-1, 0].astype(float))
    np.testing.assert_array_equal([m["cost"] for m in steps[1:40]], agent.history().cost[:-1].astype(float))
    assert steps[-2]["theta"].keys() == {"log_ki", "log_kp"}
    assert steps[-1]["x"] == [None]
    assert "refused" in steps[-1]["guard"]
    assert status[-1] == {"written": 41, "dropped": 0}
    assert drive(agent, 3)  # the agent outlives its telemetry


def test_every_nth_step(agent, tmp_path):
    with st.Telemetry(tmp_path / "run.mcap", every=10) as telemetry:
        agent.stream(telemetry)
        drive(agent, 95)
    assert [m["step"] for m in read(tmp_path / "run.mcap")[0]] == list(range(0, 95, 10))


def test_a_writer_that_is_too_slow_drops_the_oldest_steps_and_counts_them(agent, tmp_path):
    with st.Telemetry(tmp_path / "run.mcap", steps=64) as telemetry:
        agent.stream(telemetry)
        os.kill(telemetry._process.pid, signal.SIGSTOP)
        drive(agent, 1000)
        assert telemetry.dropped >= 1000 - 64
        os.kill(telemetry._process.pid, signal.SIGCONT)
    steps, status = read(tmp_path / "run.mcap")
    numbers = [m["step"] for m in steps]
    assert len(numbers) + telemetry.dropped == 1000
    assert numbers[-1] == 999
    assert numbers == sorted(numbers)
    assert status[-1]["dropped"] == telemetry.dropped


def test_the_agent_survives_a_dead_writer(agent, tmp_path):
    telemetry = st.Telemetry(tmp_path / "run.mcap", steps=64)
    alone = drive(agent, 510)
    renew(agent).stream(telemetry)
    before = drive(agent, 10)
    os.kill(telemetry._process.pid, signal.SIGKILL)
    telemetry._process.wait()
    assert before + drive(agent, 500, since=10) == alone
    assert not telemetry.is_alive
    assert telemetry.dropped > 400
    before = time.monotonic()
    telemetry.close()
    assert time.monotonic() - before < 1
    assert not os.path.exists(telemetry._path)


def test_a_full_disk_stops_the_file_but_not_the_agent_or_the_websocket(agent, caplog):
    alone = drive(agent, 400)
    for port in (None, 0):
        with st.Telemetry("/dev/full", port=port) as telemetry:
            renew(agent).stream(telemetry)
            found = drive(agent, 200)
            time.sleep(0.2)  # the writer looks every 20 ms
            found += drive(agent, 200, since=200)
            assert telemetry.is_alive == (port is not None)
        assert found == alone
        assert "telemetry is not complete: OSError: [Errno 28] No space left on device" in caplog.text
        caplog.clear()


def test_the_memory_of_the_ring_is_there_before_the_loop_runs(agent, tmp_path):
    """Linux ends a process that uses shared memory for which no space is left."""
    with st.Telemetry(tmp_path / "run.mcap") as telemetry:
        agent.stream(telemetry)
        about = os.stat(telemetry._path)
        assert about.st_blocks * 512 >= about.st_size > 100_000


def test_the_websocket_speaks_foxglove(agent):
    with st.Telemetry(port=0) as telemetry:
        agent.stream(telemetry)
        with connect(f"ws://127.0.0.1:{telemetry.port}", subprotocols=["foxglove.sdk.v1"]) as client:
            channels = {}
            while "/selftune/step" not in channels:
                text = client.recv(timeout=5)
                if isinstance(text, str) and (message := json.loads(text))["op"] == "advertise":
                    channels |= {one["topic"]: one for one in message["channels"]}
            channel = channels["/selftune/step"]
            assert "log_kp" in json.loads(channel["schema"])["properties"]["theta"]["properties"]
            client.send(json.dumps({"op": "subscribe", "subscriptions": [{"id": 7, "channelId": channel["id"]}]}))
            time.sleep(0.2)
            drive(agent, 20)
            data = client.recv(timeout=5)
            while not (isinstance(data, bytes) and data[0] == 1):
                data = client.recv(timeout=5)
            assert json.loads(data[13:])["step"] < 20
        drive(agent, 20)  # the client has gone
        assert telemetry.is_alive


def test_mistakes(agent, tmp_path):
    with pytest.raises(st.ArgumentError, match="file: expected a file, a port, or both, got neither"):
        st.Telemetry()
    with pytest.raises(st.ArgumentError, match="file: expected a file in a folder that exists"):
        st.Telemetry(tmp_path / "no" / "run.mcap")
    with pytest.raises(st.ArgumentError, match=r"file: expected a name with \.mcap"):
        st.Telemetry(tmp_path / "run.txt")
    with pytest.raises(st.ArgumentError, match="port: expected a number below 65536"):
        st.Telemetry(port=70_000)
    with st.Telemetry(tmp_path / "run.mcap") as telemetry:
        agent.stream(telemetry)
        with pytest.raises(st.ArgumentError, match="telemetry: expected one Telemetry for each agent"):
            agent.stream(telemetry)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RuntimeError, match=r"telemetry: the writer stopped: .*in use"):
            agent.stream(st.Telemetry(port=taken.getsockname()[1]))


def test_the_layout_for_foxglove(agent, tmp_path):
    with st.Telemetry(tmp_path / "run.mcap") as telemetry:
        with pytest.raises(RuntimeError, match="expected an agent that streams"):
            telemetry.write_layout(tmp_path / "layout.json")
        agent.stream(telemetry)
        telemetry.write_layout(tmp_path / "layout.json")
        drive(agent, 3)
    text = (tmp_path / "layout.json").read_text()
    json.loads(text)
    (last, *_), _ = read(tmp_path / "run.mcap")
    assert last["theta"]["log_kp"] is not None
    for path in ("theta.log_kp", "theta.log_ki", "cost", "x[0]", "u[0]", "a_hat[0]", "guard"):
        assert f'"/selftune/step.{path}"' in text
