"""`selftune export`: a user's module to a folder of C."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import selftune as st
from selftune.cli import targets
from selftune.export.fmu_folder import this_platform
from selftune.native.c import compilation, webassembly
from tests.test_cli import ROOT, invoke

TREES = """
import jax.numpy as jnp
import selftune as st

from gains import THETA

system = st.MatchedSystem(
    dynamics=lambda x, v, t: x + 0.1 * v,
    residual=lambda x, a, t: a * jnp.cos(x),
    actuation=lambda x, theta, t: -theta["gain"] * (x - t["reference"]),
    cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
)
controller = st.Controller(system, st.Fixed(), st.Frozen())
theta, t = THETA, {"reference": [0.5]}


def broken():
    return 1 / 0


number = 3
"""

PX4_INPUTS = "vehicle_angular_velocity.xyz[0], vehicle_rates_setpoint.roll"
PX4 = ("--inputs", PX4_INPUTS, "--outputs", "vehicle_torque_setpoint.xyz[0]")
CRAZYFLIE = ("--inputs", "sensors->gyro.x,setpoint->attitudeRate.roll", "--outputs", "control->torque[0]")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """What the page says, to the letter, but for the place it is run from."""
    page = (ROOT / "docs" / "cli.md").read_text()
    command = re.search(r"^selftune (export .*)$", page, re.MULTILINE)
    assert command
    assert command[1] == "export examples/cart.py:controller --out results/cart-c"
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(ROOT / "examples", folder / "examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = invoke(*command[1].split())
    assert result.exit_code == 0, result.output
    return folder, result


def test_the_example(done):
    folder, result = done
    lines = result.stdout.splitlines()
    assert lines[0].strip() == "cost of one call, float32"
    assert "cart_c_act" in result.stdout
    assert lines[-1] == "C       results/cart-c"
    assert lines[-2].startswith("RAM 196 bytes")
    assert {"cart_c.c", "cart_c.h", "main.c", "README.md"} < {one.name for one in (folder / "results/cart-c").iterdir()}


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_the_example_replays(done, tmp_path):
    folder = done[0] / "results" / "cart-c"
    command = ["cc", "-std=c99", folder / "cart_c.c", folder / "main.c", "-o", tmp_path / "replay", "-lm"]
    subprocess.run(command, check=True, timeout=60)
    assert subprocess.run([tmp_path / "replay"], capture_output=True, timeout=60).returncode == 0


def test_the_example_is_the_configurations():
    """`cart.py`'s controller is that of `cart.toml`."""
    from selftune.experiments.user.config import Loaded

    loaded = Loaded(ROOT / "examples" / "cart.toml")
    with targets.importable(str(ROOT / "examples" / "cart.py")) as load:
        module = load()
    controller = module.controller()
    assert isinstance(controller, st.Controller)
    for made, read in ((controller.tuner, loaded.tuner), (controller.estimator, loaded.estimator)):
        assert repr(made) == repr(read)
        assert made.learning_rate == read.learning_rate
    run = loaded.config.run
    assert (module.x, module.theta, module.a_hat) == (loaded.config.scenario.x0, run.theta, run.a_hat)


def test_what_was_changed_is_exit_code_2(done):
    folder = done[0] / "results" / "cart-c"
    cart = f"{ROOT / 'examples' / 'cart.py'}:controller"
    (folder / "cart_c.c").write_text("/* mine */\n")
    result = invoke("export", cart, "-o", folder, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: {folder / 'cart_c.c'}: changed since it was written; choose another folder, or --overwrite\n"
    )
    result = invoke("export", cart, "-o", folder, "--overwrite", "--json")
    given = json.loads(result.stdout)
    assert (given["folder"], given["name"]) == (str(folder), "cart_c")
    assert given["files"] == ["CMakeLists.txt", "README.md", "cart_c.c", "cart_c.h", "main.c", "proof.c", "replay.h"]
    assert given["costs"]["state"] == 196
    assert given["costs"]["functions"]["act"]["products"] > 0
    assert "cart_c_init" in (folder / "cart_c.c").read_text()


@pytest.mark.skipif(not webassembly.is_available(), reason="no C compiler for WebAssembly")
def test_for_browsers(tmp_path):
    cart = f"{ROOT / 'examples' / 'cart.py'}:controller"
    result = invoke("export", cart, "-o", tmp_path / "cart", "--target", "web")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f"node {tmp_path}/cart/check.mjs\nweb     {tmp_path}/cart\n")
    given = json.loads(invoke("export", cart, "-o", tmp_path / "cart", "--target", "web", "--json").stdout)
    assert given["size"] == (tmp_path / "cart" / "cart.wasm").stat().st_size
    assert "cart.mjs" in given["files"]


def test_a_robot_file_is_exit_code_2(tmp_path):
    result = invoke("export", "arm3.urdf", "-o", tmp_path / "arm")
    assert result.exit_code == 2
    assert f"selftune tune arm3.urdf --export -o {tmp_path / 'arm'}" in result.stderr


def test_an_unknown_target_is_exit_code_2(tmp_path):
    result = invoke("export", "cart.py:controller", "-o", tmp_path / "cart", "--target", "pdf")
    assert result.exit_code == 2
    assert "'pdf' is not one of 'c', 'web'" in result.stderr


class TestModule:
    @pytest.fixture
    def user(self, tmp_path, monkeypatch):
        (tmp_path / "trees.py").write_text(TREES)
        (tmp_path / "gains.py").write_text('THETA = {"gain": [2.0]}\n')
        monkeypatch.chdir(tmp_path)
        yield tmp_path
        sys.modules.pop("gains", None)
        sys.modules.pop("trees", None)

    def test_options_come_first_and_the_module_after(self, user, monkeypatch):
        exported = {}

        def export_c(controller, folder, **options):
            exported.update(options, folder=folder)
            folder.mkdir()
            functions = {"act": {"products": 1}}
            costs = {"dtype": "float64", "state": 8, "flash": None, "compiler": None, "functions": functions}
            (folder / "selftune.json").write_text(json.dumps({"name": "trees", "files": {}, "costs": costs}))

        monkeypatch.setattr(st, "export_c", export_c)
        arguments = ("--x", "1.5", "--a-hat", "[0]", "--dtype", "float64", "--name", "trees", "--quiet")
        result = invoke("export", "trees:controller", "--out", "made", *arguments)
        assert (result.exit_code, result.output) == (0, "")
        assert exported == {
            **dict(folder=Path("made"), x=[1.5], theta={"gain": [2.0]}, a_hat=[0], t={"reference": [0.5]}),
            **dict(dtype="float64", name="trees", overwrite=False),
        }
        arguments = ("--x", "1,2", "--a-hat", "0,-1e-3", "--theta", '{"gain": 1}', "--t", "5")
        result = invoke("export", "trees.py:controller", "--out", "more", *arguments)
        assert (exported["x"], exported["a_hat"], exported["theta"]) == ([1, 2], [0, -0.001], {"gain": 1})
        assert exported["t"] == 5
        assert result.stdout.endswith("RAM 8 bytes\nC       more\n")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("trees.py",), "trees.py: expected MODULE:NAME, such as cart/cart.py:controller"),
            (("none.py:controller",), "none.py: no such file"),
            (("none:controller",), "none:controller: cannot be imported (ModuleNotFoundError: No module named 'none')"),
            (("trees.py:controler",), "trees.py:controler: there is no 'controler' (did you mean controller?)"),
            (("trees.py:broken",), "trees.py:broken: failed (trees.py:18: ZeroDivisionError: division by zero)"),
            (
                ("trees.py:number",),
                "trees.py:number: expected a selftune.Controller or Loop or a function that makes one, got int",
            ),
            (
                ("trees.py:controller", "--x", "1"),
                "trees.py:controller: a_hat is missing: give --a-hat, or define a_hat in trees.py",
            ),
            (("trees.py:controller", "--x", "one"), "--x: expected numbers, such as 0,0, or JSON, got 'one'"),
            (
                ("trees.py:controller", "--x", "1", "--a-hat", "0", "--dtype", "float16"),
                "trees.py:controller: cannot be exported (dtype: expected 'float32' or 'float64', got 'float16')",
            ),
        ],
    )
    def test_what_is_wrong_is_exit_code_2(self, user, arguments, message):
        result = invoke("export", *arguments, "-o", "out")
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"error: {message}\n")
        assert not (user / "out").exists()

    @pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
    @pytest.mark.parametrize(
        ("kind", "fields", "label", "line", "file"),
        [
            pytest.param(
                *("fmu", (), "FMU", "check them with: python made/check.py", "made.fmu"), marks=pytest.mark.slow
            ),
            ("arduino", (), "Arduino", "check it on the board with: made/examples/Replay", "library.properties"),
            ("ros2", (), "ROS 2", "compiled in selftune's tests, not run: read made/README.md first", "package.xml"),
            ("px4", PX4, "PX4", "compiled in selftune's tests, not run: read made/README.md first", "made_module.cpp"),
            (
                "crazyflie",
                CRAZYFLIE,
                "app",
                "compiled in selftune's tests, not run: read made/README.md first",
                "Kbuild",
            ),
        ],
    )
    def test_other_programs(self, user, kind, fields, label, line, file):
        start = ("--x", "1", "--a-hat", "0", "--dt", "0.01")
        result = invoke("export", "trees.py:controller", "-o", "made", "--target", kind, *start, *fields)
        assert result.exit_code == 0, result.output
        *_, summary, last = result.stdout.splitlines()
        assert summary.endswith(line)
        assert last == f"{label:8}made"
        assert file in {path.name for path in (user / "made").rglob("*")}
        assert (user / "made" / "README.md").is_file()

    def test_fields_belong_to_their_targets(self, user):
        start = ("trees.py:controller", "-o", "made", "--x", "1", "--a-hat", "0", "--dt", "0.01")
        result = invoke("export", *start, "--target", "px4", "--inputs", "vehicle_angular_velocity.xyz[0]")
        assert (result.exit_code, result.stderr) == (
            2,
            "error: --outputs: the target px4 needs the fields of the outputs\n",
        )
        result = invoke("export", *start, "--target", "ros2", *PX4)
        assert (result.exit_code, result.stderr) == (2, "error: --inputs: only for the targets px4 and crazyflie\n")
        assert not (user / "made").exists()

    def test_platforms_of_an_fmu(self, user, monkeypatch):
        """The compilers do not run here: tests/export/test_fmu.py looks at the binaries."""
        built = []

        def shared_library(sources, zig_target=None):
            built.append(zig_target)
            return b"a library"

        monkeypatch.setattr(compilation, "shared_library", shared_library)
        start = ("trees.py:controller", "-o", "made", "--x", "1", "--a-hat", "0", "--dt", "0.01")
        platforms = ("--platform", "x86_64-windows", "--platform", "aarch64-darwin")
        result = invoke("export", *start, "--target", "fmu", *platforms)
        assert result.exit_code == 0, result.output
        assert built == [None, "x86_64-windows-gnu", "aarch64-macos"]
        assert f"binaries for {this_platform()}, x86_64-windows, aarch64-darwin, check" in result.stdout
        with zipfile.ZipFile(user / "made" / "made.fmu") as archive:
            assert archive.read("binaries/x86_64-windows/made.dll") == b"a library"

    def test_wrong_platforms(self, user):
        start = ("trees.py:controller", "-o", "made", "--x", "1", "--a-hat", "0", "--dt", "0.01")
        result = invoke("export", *start, "--platform", "x86_64-windows")
        assert (result.exit_code, result.stderr) == (2, "error: --platform: only for the target fmu\n")
        result = invoke("export", *start, "--target", "fmu", "--platform", "x86-windows")
        assert result.exit_code == 2
        assert "got 'x86-windows' (did you mean x86_64-windows?)" in result.stderr
        assert not (user / "made").exists()

    def test_a_foreign_folder_is_exit_code_2(self, user):
        result = invoke("export", "trees.py:controller", "--x", "1", "--a-hat", "0", "-o", user, "--name", "trees")
        assert result.exit_code == 2
        assert (
            "not empty, and not written by an export of selftune; choose another folder, or --overwrite"
            in result.stderr
        )
        assert {path.name for path in user.iterdir()} <= {"trees.py", "gains.py", "__pycache__"}
