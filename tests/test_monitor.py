"""`selftune monitor`: what it reads while a file grows, what it shows, and its page."""

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from websockets.sync.server import serve

from selftune.cli import monitor_view
from selftune.foundation.errors import InputError
from selftune.realtime.telemetry_reader import follow, listen
from selftune.realtime.telemetry_writer import STATUS, TOPIC, FoxgloveSink, McapSink
from tests.test_cli import invoke

SCHEMA = {"title": "selftune.Step", "type": "object", "properties": {}}


def step(t, guard="none", **others):
    values = {"step": t, "time": 100 + 0.01 * t, "cost": 1 / (1 + t), "guard": guard, "guard_level": None}
    return values | {"theta": {"log_kp": 0.1 * t, "level_1_log_ki": 0.0}, "a_hat": [0.5, None]} | others


def write(path, steps, complete=True):
    sink = McapSink(path, SCHEMA)
    for t in range(steps):
        sink.write(TOPIC, t, step(t, "limited, saved" if t % 2 else "none"))
    sink.write(STATUS, 0, {"written": steps, "dropped": 0})
    sink.flush()
    if complete:
        sink.close()
    return sink


def test_a_file_that_grows(tmp_path):
    path = tmp_path / "run.mcap"
    sink = write(path, 3, complete=False)
    whole = path.read_bytes()
    partial = tmp_path / "partial.mcap"
    partial.write_bytes(whole[:4])
    steps = follow(partial)
    assert next(steps) is None  # not even the first bytes are complete
    partial.write_bytes(whole[:-1])
    assert [(next(steps) or {})["step"] for _ in range(3)] == [0, 1, 2]
    assert next(steps) is None
    sink.close()
    partial.write_bytes(path.read_bytes())
    assert list(steps) == []
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match="not an MCAP file"):
        next(follow(path))


def test_a_damaged_file_gives_steps_or_a_message(tmp_path):
    path = tmp_path / "run.mcap"
    write(path, 30)
    whole, draw = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        content, at = bytearray(whole), int(draw.integers(len(whole)))
        content[at : at + 8] = draw.choice([b"\xff" * 8, bytes(8), draw.bytes(8), bytes([content[at] ^ 4])])
        path.write_bytes(content)
        try:
            for message in follow(path):
                if message is None:  # the last record seems to be longer than the file
                    break
                assert message["step"] >= 0
        except InputError:
            refused += 1
    assert refused > 50


def test_a_websocket_of_something_else():
    def talk(client):
        client.send('["no telemetry"]')

    with serve(talk, "127.0.0.1", 0, subprotocols=["foxglove.sdk.v1"]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        with pytest.raises(InputError, match="not the websocket of a selftune Telemetry"):
            next(listen(address))
        server.shutdown()
        thread.join()


def test_the_picture_and_the_terminal():
    watched = monitor_view.Watched("run.mcap")
    assert "waiting" in shown(watched)
    for t in range(200):
        watched.add(step(t, "limited" if t >= 190 else "none", tuner_contraction=0.9))
    picture = watched.picture()
    assert picture["step"] == 199
    assert picture["rate"] == pytest.approx(100)
    assert picture["guard"] == {"limited": 10}
    assert picture["values"]["kp"] == pytest.approx(monitor_view.math.exp(19.8), rel=0.2)  # a mean of three steps
    assert picture["values"]["level_1.ki"] == 1
    assert picture["values"]["ρ̂"] == pytest.approx(0.9)
    assert len(picture["lines"]["cost"]) == 60
    text = shown(watched)
    assert "step 199" in text
    assert "limited" in text
    assert "█" in text
    json.dumps(picture, allow_nan=False)


def shown(watched):
    console = Console(width=120, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    with console.file:
        console.print(monitor_view.terminal(watched.picture()))
        return console.export_text()


def test_the_page(tmp_path):
    watched = monitor_view.Watched("run.mcap</b>")
    watched.add(step(7))
    server = monitor_view.serve(watched, 0)
    address = f"http://127.0.0.1:{server.server_port}"
    with urllib.request.urlopen(f"{address}/", timeout=5) as page:
        text = page.read().decode()
    assert '"step": 7' in text
    assert "</b>" not in text  # a name of the stream cannot leave the script
    with urllib.request.urlopen(f"{address}/events", timeout=5) as events:
        assert json.loads(events.readline().removeprefix(b"data: "))["step"] == 7
    for request in (
        urllib.request.Request(f"{address}/other"),
        urllib.request.Request(f"{address}/", headers={"Host": "evil.example"}),
    ):
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=5)
    server.shutdown()
    server.server_close()


def test_the_websocket():
    sink = FoxgloveSink(0, SCHEMA)
    steps = listen(f"ws://127.0.0.1:{sink.port}")
    stop = threading.Event()

    def send():
        t = 0
        while not stop.wait(0.02):
            sink.write(TOPIC, t, step(t))
            t += 1

    sender = threading.Thread(target=send)
    sender.start()
    try:
        first = next(message for message in steps if message is not None)
        assert first["theta"]["log_kp"] == pytest.approx(0.1 * first["step"])
    finally:
        stop.set()
        sender.join()
        steps.close()
        sink.close()
    with pytest.raises(InputError, match="no telemetry there"):
        next(listen("ws://127.0.0.1:9"))


def test_the_command(tmp_path):
    write(tmp_path / "run.mcap", 50)
    result = invoke("monitor", tmp_path / "run.mcap")
    assert result.exit_code == 0, result.output
    assert "step 49" in result.output
    assert "ended" in result.output
    missing = invoke("monitor", tmp_path / "no.mcap")
    assert missing.exit_code == 2
    assert "no such file" in missing.output
