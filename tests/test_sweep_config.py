"""`selftune sweep`: each point is what `selftune run` gives for it, and what is wrong is said with its place."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import selftune as st
from selftune.cli.app import app
from selftune.experiments.sweep.config import SweepConfig
from selftune.experiments.user.config import ConfigError
from selftune.storage.store import open_run

EXAMPLES = Path(__file__).parent.parent / "examples"
# As the command sets it itself, so that it does not change the environment of the tests after it.
ENVIRONMENT = {
    "COLUMNS": "100",
    "XLA_FLAGS": "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=65536",
}
OVER = """
"tuner.learning_rate" = [0.01, 0.1]
tuner = [{ name = "MGAPS", learning_rate = 1.0 }, { name = "GAPS", learning_rate = 1.0, buffer = 4 }]
"scenario.v.sigma" = [0.0, 0.1]
"run.theta" = [[1.0, 1.5], [2.0, 2.0]]
"system.arguments.dt" = [0.02, 0.01]
"""


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=ENVIRONMENT)


@pytest.fixture
def write(tmp_path):
    def write(over, *changes):
        text = (EXAMPLES / "cart-sweep.toml").read_text()
        text = text[: text.index("[sweep.over]")] + "[sweep.over]\n" + over
        for old, new in (("steps = 20_000", "steps = 200"), ("seeds = 16", "seeds = 2"), *changes):
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "cart.py").write_text((EXAMPLES / "cart.py").read_text())
        (tmp_path / "cart.toml").write_text(text)
        return tmp_path / "cart.toml"

    return write


@pytest.mark.slow
def test_each_point_is_the_run_of_its_configuration(write, tmp_path):
    path = write(OVER)
    result = invoke("sweep", path, "-o", tmp_path / "s", "--json", "--data-only")
    assert result.exit_code == 0, result.output
    given = json.loads(result.stdout)
    assert given["failed"] == []
    data = st.Sweep(tmp_path / "s").to_dataset()
    names = ["tuner.learning_rate", "tuner", "scenario.v.sigma", "run.theta", "system.arguments.dt", "seed"]
    assert dict(data.mean_cost.sizes) == dict.fromkeys(names, 2)
    # Only the tuner is not an argument of a program. The system's functions keep dt, so XLA runs these programs.
    assert len(st.Sweep(tmp_path / "s").manifest.settings["functions"]) == 2
    assert list(data.tuner.values) == ["MGAPS", "GAPS"]
    text = path.read_text()
    for old, new in (
        ("dt = 0.02", "dt = 0.01"),
        ('name = "MGAPS"\nlearning_rate = 0.02', 'name = "GAPS"\nlearning_rate = 0.1\nbuffer = 4'),
        ('constraint = { name = "Box", low = [0.5, 0.5], high = [20.0, 20.0] }\n', ""),
        ("sigma = 0.05", "sigma = 0.1"),
        ("theta = [1.0, 1.5]", "theta = [2.0, 2.0]"),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "one.toml").write_text(text)
    assert invoke("run", tmp_path / "one.toml", "-o", tmp_path / "one", "-q").exit_code == 0
    one = open_run(tmp_path / "one")[0]
    at = {"tuner.learning_rate": 0.1, "tuner": "GAPS", "scenario.v.sigma": 0.1, "run.theta": "[2.0, 2.0]"}
    here = data.sel(at).sel({"system.arguments.dt": 0.01})
    np.testing.assert_allclose(here.mean_cost * 200, one.total_cost, rtol=1e-9)


def test_a_drawn_design_and_a_second_call(write, tmp_path):
    path = write(
        '"tuner.learning_rate" = { low = 0.001, high = 0.1, log = true }\n',
        ('design = "grid"', 'design = "latin hypercube"\npoints = 5\nseed = 3'),
    )
    assert invoke("sweep", path, "-o", tmp_path / "s", "-q", "--data-only").exit_code == 0
    data = st.Sweep(tmp_path / "s").to_dataset()
    assert dict(data.mean_cost.sizes) == {"point": 5, "seed": 2}
    again = invoke("sweep", path, "-o", tmp_path / "s", "--data-only")
    assert again.exit_code == 0
    assert "complete already" in again.stderr


def test_a_bad_cell_is_said_in_the_table_and_at_the_end(write, tmp_path):
    path = write('"tuner.learning_rate" = [0.01, -1.0, nan, 1e12]\n', ('constraint = { name = "Box", low = [0.5', "# "))
    result = invoke("sweep", path, "-o", tmp_path / "s")
    assert result.exit_code == 1
    assert "tuner.learning_rate = 0.01" in result.stdout
    said = re.sub(r"\s+", " ", result.stderr)
    assert "tuner.learning_rate = -1: 2 of 2 runs" in said
    assert "expected a finite number > 0" in said
    assert (tmp_path / "s" / "report.html").is_file()


@pytest.mark.parametrize(
    ("over", "changes", "message"),
    [
        ('"guard.rate" = [0.1]\n', (), r"cart.toml:\d+: sweep.over: expected keys of tuner, .*, got 'guard.rate'"),
        ('"tuner.lerning_rate" = [0.1]\n', (), r"tuner.lerning_rate: unknown key \(did you mean learning_rate\?\)"),
        ('"tuner.learning_rate" = []\n', (), "sweep.over.tuner.learning_rate: expected at least one value"),
        ('"tuner.learning_rate" = 0.1\n', (), "sweep.over.tuner.learning_rate: input should be a valid list, got 0.1"),
        ('"tuner.learning_rate" = { low = 1, high = 0 }\n', (), "low < high"),
        ('"tuner.learning_rate" = { low = 0.1, high = 1 }\n', (), "got a Range; use random_design to draw from it"),
        ('"tuner.learning_rate" = [0.1]\n', (('design = "grid"', 'design = "random"'),), "sweep: points is missing"),
        ('"tuner.learning_rate" = [0.1]\n', (('design = "grid"', "points = 3"),), "sweep.points: expected none"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(write, tmp_path, over, changes, message):
    path = write(over, *changes)
    result = invoke("sweep", path, "-o", tmp_path / "s", "--data-only")
    assert result.exit_code == 2, result.output
    assert re.search(message, re.sub(r"\s+", " ", result.stderr))
    assert not (tmp_path / "s").exists()


def test_without_the_table_it_says_so():
    with pytest.raises(ConfigError, match="sweep: this table is missing"):
        SweepConfig(EXAMPLES / "cart.toml")
