"""`selftune commission`: a user's loop and plant, the exit code, JSON, and the report."""

import json

import pytest

from tests.test_cli import invoke

MODULE = """
import selftune as st
from selftune import models, policies

loads = open("loads.txt", "a")
loads.write("x")
loads.close()


def make(kp=1.0):
    return st.Loop(
        models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), policies.PID(kp=kp, ki=2.0, u_min=-10.0, u_max=10.0)
    )


loop = make()


class Motor:
    gain = 2.3

    def __init__(self):
        self.x = 0.0

    def measure(self):
        return [self.x]

    def step(self, u):
        self.x += 0.02 * (self.gain * u[0] - self.x)
        return [self.x]


class Reversed(Motor):
    gain = -2.0


number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "motor.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_go_with_a_plant_and_then_with_its_log(folder):
    result = invoke("commission", "motor.py:loop", "--plant", "motor.py:Motor", "--steps", 600, "-o", "report")
    assert result.exit_code == 0, result.output
    assert "dry run" in result.stdout
    assert "x_limit" in result.stdout
    assert (folder / "report" / "commissioning.html").is_file()
    assert (folder / "loads.txt").read_text() == "x"  # one import, though two objects of the module are used
    logged = invoke("replay", "report/dry-run.csv", "--loop", "motor.py:make", "-o", "replay", "--json")
    assert logged.exit_code == 0, logged.output
    phases = [line.split("s  ", 1)[1] for line in logged.stderr.splitlines() if "s  " in line]
    assert phases[0].startswith("checking the loop on ")
    assert "choosing start gains on the first half: pass 1 of at most 8" in phases
    found = json.loads(logged.stdout)
    live = json.loads((folder / "report" / "commissioning.json").read_text())
    assert found["ok"] is live["ok"] is True
    assert found["report"] == "replay/replay.html"
    assert (folder / "replay" / "replay.html").is_file()
    assert found["steps"] == 600
    assert found["reproduction"] < 1e-6
    rows = [{row["name"]: row["numbers"] for row in one["rows"]} for one in (live, found)]
    assert rows[0]["model"] == rows[1]["model"]


def test_a_no_go_says_why_and_exits_with_1(folder):
    result = invoke("commission", "motor.py:loop", "--plant", "motor.py:Reversed", "--steps", 600, "--quiet")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "the plant reacts in the other direction" in result.stderr


def test_mistakes_end_with_2(folder):
    for arguments, message in [
        (("motor.py",), "expected MODULE:LOOP"),
        (("motor.py:number",), "expected a selftune.Loop"),
        (("motor.py:lop",), "there is no 'lop'"),
        (("motor.py:loop", "--plant", "motor.py:number"), "expected a plant or a model"),
        (("motor.py:loop", "--steps", "3"), "steps"),
    ]:
        result = invoke("commission", *arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert message in result.output
    (folder / "empty.csv").write_text("a,b\n")
    (folder / "other.csv").write_text("a,b\n1,2\n")
    for arguments, message in [
        (("a.csv", "--loop", "motor.py:loop"), "no such file"),
        (("empty.csv", "--loop", "motor.py:loop"), "a line for each step"),
        (("other.csv", "--loop", "motor.py:loop"), "expected a column measurement"),
        (("other.csv", "--loop", "motor.py:number"), "expected a selftune.Loop"),
        (("other.csv", "--loop", "motor.py:loop", "--map", "no.toml"), "no.toml"),
    ]:
        result = invoke("replay", *arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert message in " ".join(result.output.split())
