"""`selftune tune`: a robot from its file; and `selftune bench arms`."""

import json
from argparse import Namespace

import pytest
from typer.testing import CliRunner

from selftune.cli import tune_command
from selftune.cli.app import app
from selftune.robots import file_tuning, installed

from .models import robot_texts

runner = CliRunner()


def invoke(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


def test_files_that_cannot_be_tuned(tmp_path):
    missing = invoke("tune", tmp_path / "missing.xml")
    assert missing.exit_code == 2
    assert "no such file" in missing.stderr
    path = tmp_path / "arm.xml"
    path.write_text(robot_texts.TWO_LINKS.partition("<actuator>")[0] + "</mujoco>")
    limits = invoke("tune", path)
    assert limits.exit_code == 2
    assert "the file gives no limit for shoulder, elbow" in limits.stderr
    assert "give --torque-limit … in N·m" in " ".join(limits.stderr.split())
    assert invoke("tune", path, "--fix", "wrist").exit_code == 2


def test_torque_limits(tmp_path):
    assert tune_command._limits([]) is None
    assert tune_command._limits(["30"]) == 30
    assert tune_command._limits(["30", "15"]) == [30, 15]
    assert tune_command._limits(["shoulder=30", "a=b=15"]) == {"shoulder": 30, "a=b": 15}
    path = tmp_path / "arm.xml"
    path.write_text(robot_texts.TWO_LINKS)
    for given, expected in (
        (("x",), "expected numbers, or JOINT=NUMBER for each joint that you name, got x"),
        (("30", "elbow=15"), "got 30, elbow=15"),
        (("elbow=15", "elbow=16"), "got elbow=15, elbow=16"),
        (("elbw=15",), "--torque-limit: expected names among shoulder, elbow, got 'elbw' (did you mean elbow?)"),
    ):
        result = invoke("tune", path, *(part for one in given for part in ("--torque-limit", one)))
        assert result.exit_code == 2
        assert expected in " ".join(result.stderr.split())


def test_messages_name_the_options_of_the_command(tmp_path):
    path = tmp_path / "arm.xml"
    ball = '<mujoco><worldbody><body><joint name="b" type="ball"/><geom size="0.1"/></body></worldbody></mujoco>'
    closed = robot_texts.TWO_LINKS.replace(
        "<keyframe>", '<equality><connect body1="fore" anchor="0 0 0"/></equality><keyframe>'
    )
    for text, options, expected in (
        (ball, (), "fix it with --fix b, or replace it"),
        (closed, (), "fix the joints of the loop: --fix NAME"),
        (robot_texts.TWO_LINKS, ("--fix", "wrist"), "--fix: expected some of shoulder, elbow"),
        (robot_texts.TWO_LINKS, ("--joint", "elbw"), "did you mean elbow"),
        (robot_texts.TWO_LINKS, ("--home", 9, "--home", 0), "--home: expected a position of shoulder between -2.5"),
    ):
        path.write_text(text)
        result = invoke("tune", path, *options)
        assert result.exit_code == 2
        assert expected in " ".join(result.stderr.split())


def test_ctrl_c_writes_nothing(monkeypatch, tmp_path):
    """Ctrl-C in the commissioning stops the command too, though a dry run takes it as a fault of the plant."""
    path = tmp_path / "arm.xml"
    path.write_text(robot_texts.TWO_LINKS)
    stopped = Namespace(ok=False, reasons=("the dry run stopped: interrupted from the keyboard",))
    monkeypatch.setattr(file_tuning, "commission", lambda *arguments, **options: stopped)
    result = invoke("tune", path, "-o", tmp_path / "out")
    assert result.exit_code == 130
    assert "interrupted; the same command starts from the beginning" in result.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["arm.xml"]


def test_robots_that_are_installed(monkeypatch, tmp_path):
    """A folder in place of the packages: one robot, and one file that is none."""
    (tmp_path / "arm.xml").write_text(robot_texts.TWO_LINKS)
    (tmp_path / "none.xml").write_text("<mujoco/>")
    monkeypatch.setattr(installed, "files", lambda: (("mine", path) for path in sorted(tmp_path.iterdir())))
    listed = invoke("tune", "--json")
    assert listed.exit_code == 0
    assert [(row["robot"], row["joints"]) for row in json.loads(listed.stdout)["robots"]] == [("two links", 2)]
    assert "mine/arm" in invoke("tune").stdout
    assert installed.find("mine/arm") == tmp_path / "arm.xml"
    wrong = invoke("tune", "mine/amr")
    assert wrong.exit_code == 2
    assert "mine/arm" in wrong.stderr
    monkeypatch.setattr(installed, "files", lambda: iter(()))
    assert "no robots found" in invoke("tune").stdout


def test_bench_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(installed, "folders", lambda package: iter(()))
    result = invoke("bench", "arms", "--robots", "panda", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "pip install --no-deps robosuite" in result.stderr


@pytest.mark.slow
def test_tune_and_export(tmp_path):
    path = tmp_path / "arm.urdf"
    path.write_text(robot_texts.ARM_URDF)
    out = tmp_path / "out"
    result = invoke("tune", path, "--seconds", 12, "--tool", "tool0", "--export", "-o", out, "--json")
    assert result.exit_code == 0, result.stderr
    numbers = json.loads(result.stdout)
    assert numbers["commissioning"]["ok"]
    assert numbers["cost"]["tuned gains"] < numbers["cost"]["start gains"]
    assert {"report.html", "tuned.toml", "tuned.json", "c"} <= {one.name for one in out.iterdir()}
    assert (out / "c" / "robot.c").is_file()
    assert "[0] shoulder (rad), [1] elbow (rad), [2] rate of shoulder (rad/s)" in (out / "c" / "robot.h").read_text()
    assert set(numbers["margins"]) >= {"start gains", "tuned gains", "warning"}
    assert (numbers["c starts with"] == "gains with margins") == bool(numbers["margins"]["warning"])


@pytest.mark.slow
def test_bench_arms(tmp_path):
    path = tmp_path / "arm.xml"
    path.write_text(robot_texts.TWO_LINKS)
    options = ("--robots", path, "--seeds", 1, "--seconds", 12, "--tries", 4, "--workers", 1, "--json")
    result = invoke("bench", "arms", *options, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["summary"]["rows"]
    assert [row["failed"] for row in rows] == [0, 0, 0]
    assert rows[0]["last"]["mean"] < rows[0]["fixed"]
