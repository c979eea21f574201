"""Configurations: what is wrong is said with its place in the file and the nearest name."""

import re
from pathlib import Path

import jax.numpy as jnp
import pytest

import selftune as st
from selftune.experiments.user.config import ConfigError, Loaded, line_of

EXAMPLE = Path(__file__).parent.parent / "examples" / "cart.toml"
ESTIMATOR = """[estimator]
name = "GradientEstimator"
learning_rate = 0.05
constraint = { name = "Box", low = -2.0, high = 2.0 }
"""


def test_the_example_is_what_it_says():
    loaded = Loaded(EXAMPLE)
    assert isinstance(loaded.system, st.MatchedSystem)
    assert isinstance(loaded.tuner, st.MGAPS)
    assert isinstance(loaded.estimator, st.GradientEstimator)
    assert {name: type(process) for name, process in loaded.processes.items()} == {
        "a_star": st.PiecewiseConstant,
        "w": st.OrnsteinUhlenbeck,
        "v": st.Gaussian,
    }
    assert float(loaded.tuner.learning_rate) == 0.02
    assert loaded.tuner.constraint.low.dtype == jnp.float64
    assert loaded.config.run.seed_list == list(range(8))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "stride = 20",
            "strid = 20",
            ":30: run.strid: unknown key (did you mean stride?); expected one of seeds, theta",
        ),
        ("[estimator]", "[estimater]", ":14: estimater: unknown key (did you mean estimator?); expected one of system"),
        (ESTIMATOR, "", ": estimator: this table is missing"),
        ("theta = [1.0, 1.5]\n", "", ":26: run: theta is missing"),
        ("x0 = [1.0, 0.0]\n", "", ":19: scenario: x0 is missing"),
        (
            '"MGAPS"',
            '"MGASP"',
            ":10: tuner.name: expected one of GaussNewton, MGAPS, GAPS, DiffTune, OPRF, Fixed, got 'MGASP' (did you",
        ),
        ('name = "MGAPS"\n', "", ":9: tuner: name is missing"),
        ("learning_rate = 0.02\n", "", ":9: tuner: learning_rate is missing"),
        ("= 0.02\nc", "= -1.0\nc", ":11: tuner.learning_rate: expected a finite number > 0"),
        ("= 0.02\nc", '= "fast"\nc', ":11: tuner.learning_rate: input should be a valid number, got 'fast'"),
        (
            "low = [0.5, 0.5]",
            "lo = 0.5",
            ":12: tuner.constraint.lo: unknown key (did you mean low?); expected one of name",
        ),
        ("low = [0.5, 0.5]", "low = 30", ":12: tuner.constraint.low: expected low <= high everywhere"),
        ("decay = 0.9", "decay = nan", ":23: scenario.w.decay: expected a number, got nan"),
        ("decay = 0.9", "decay = 1.5", ":23: scenario.w.decay: expected a number in [0, 1), got 1.5"),
        (
            "OrnsteinUhlenbeck",
            "OrnsteinUlenbeck",
            ":23: scenario.w.process: expected one of OrnsteinUhlenbeck, Uniform",
        ),
        ("steps = 20_000", "steps = 0", ":21: scenario.steps: input should be greater than 0, got 0"),
        ("seeds = 8", "seeds = []", ":27: run.seeds: expected at least one whole number >= 0, each once, got []"),
        ('"cost"]', '"costs"]', ":31: run.record: expected one of x, measured, reference, memory, theta, a_hat"),
        ("cart:make", "cart.make", ":6: system.make: expected module:function, got 'cart.make'"),
        ("cart:make", "kart:make", ":6: system.make: there is no module 'kart' beside this file; if you trust the"),
        ("cart:make", "cart:mkae", ":6: system.make: module 'cart' has no function 'mkae' (did you mean make?)"),
        ("dt = 0.02", "step = 1", ":6: system.make: make failed (TypeError: make() got an unexpected keyword argument"),
        ("cart:make", "cart:system", ":6: system.make: module 'cart' has no function 'system'"),
        ("cart:make", "cart.x:make", ":6: system.make: module 'cart.x' cannot be imported (ModuleNotFoundError"),
        ("x0 = [1.0", "x0 = [1.0 1", ": not TOML: "),
    ],
)
def test_refused(tmp_path, old, new, message):
    text = EXAMPLE.read_text()
    assert text.count(old) == 1
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new))
    (tmp_path / "cart.py").write_text((EXAMPLE.parent / "cart.py").read_text())
    with pytest.raises(ConfigError) as caught:
        Loaded(path)
    assert any(line.startswith(f"{path}{message}") for line in str(caught.value).splitlines()), str(caught.value)


RUNS_CODE = """[system]
make = "{make}"
arguments = {{ {argument} = "touch {victim}" }}
[scenario]
steps = 10
[run]
seeds = 1
"""


class TestCode:
    """A file alone runs no code, because files are sent around, and nobody expects settings to be a program."""

    @pytest.fixture
    def write(self, tmp_path):
        def write(make, argument="command"):
            text = RUNS_CODE.format(make=make, argument=argument, victim=tmp_path / "victim")
            (tmp_path / "mine.toml").write_text(text)
            return tmp_path / "mine.toml"

        return write

    @pytest.mark.parametrize("make", ["os:system", "subprocess:getoutput", "selftune.cli.app:app", "builtins:exec"])
    def test_an_installed_module_needs_permission(self, write, tmp_path, make):
        module = make.partition(":")[0]
        with pytest.raises(ConfigError, match=rf"beside this file; .* name it: --module {re.escape(module)}$"):
            Loaded(write(make))
        assert not (tmp_path / "victim").exists()

    @pytest.mark.parametrize("home", ["os.py", "os/x.py"])
    def test_also_if_something_beside_the_file_has_its_name(self, write, tmp_path, home):
        (tmp_path / home).parent.mkdir(exist_ok=True)
        (tmp_path / home).write_text("")
        with pytest.raises(ConfigError, match="not beside this file"):
            Loaded(write("os:system"))
        assert not (tmp_path / "victim").exists()

    @pytest.mark.parametrize(
        "line",
        [
            "from os import system as make",
            "import functools, os; make = functools.partial(os.system)",
            "from subprocess import Popen as make",
        ],
    )
    def test_a_function_that_a_module_imports_needs_permission(self, write, tmp_path, line):
        (tmp_path / "borrowing.py").write_text(f"{line}\n")
        with pytest.raises(ConfigError, match=r"make is defined in '\w+', not beside this file"):
            Loaded(write("borrowing:make"))
        assert not (tmp_path / "victim").exists()

    def test_an_environment_beside_the_file_is_not_beside_it(self, write, tmp_path, monkeypatch):
        """A module beside the file imports a function, which is installed in a virtual environment in the folder."""
        packages = tmp_path / ".venv" / "site-packages"
        packages.mkdir(parents=True)
        (packages / "shell_tools.py").write_text("import os\ndef run(command):\n    os.system(command)\n")
        monkeypatch.syspath_prepend(packages)
        (tmp_path / "using_shell.py").write_text("from shell_tools import run\n")
        with pytest.raises(ConfigError, match="run is defined in 'shell_tools', not beside this file"):
            Loaded(write("using_shell:run"))
        assert not (tmp_path / "victim").exists()

    def test_a_module_may_be_a_link(self, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "linked.py").write_text((EXAMPLE.parent / "cart.py").read_text())
        (tmp_path / "linked.py").symlink_to(tmp_path / "elsewhere" / "linked.py")
        (tmp_path / "mine.toml").write_text(EXAMPLE.read_text().replace("cart:make", "linked:make"))
        assert set(Loaded(tmp_path / "mine.toml").sources) == {"linked.py"}

    def test_a_named_module_is_run(self, write, tmp_path, monkeypatch):
        (tmp_path / "installed").mkdir()
        (tmp_path / "installed" / "my_robots.py").write_text("def make(command):\n    return command.upper()\n")
        monkeypatch.syspath_prepend(tmp_path / "installed")
        path = write("my_robots:make")
        with pytest.raises(ConfigError, match="--module my_robots"):
            Loaded(path)
        for modules in (("my_robot",), ("my_robots.x",)):
            with pytest.raises(ConfigError, match="--module my_robots"):
                Loaded(path, modules=modules)
        with pytest.raises(
            ConfigError, match=r"expected make to return a selftune\.System or a selftune\.Loop, got str"
        ):
            Loaded(path, modules=("my_robots",))

    def test_modules_of_two_folders_with_the_same_name(self, tmp_path):
        text = EXAMPLE.read_text()
        for name, scale in (("one", 1.0), ("two", 2.0)):
            (tmp_path / name).mkdir()
            source = (EXAMPLE.parent / "cart.py").read_text()
            (tmp_path / name / "cart.py").write_text(f"{source}\nSCALE = {scale}\n")
            (tmp_path / name / "cart.toml").write_text(text)
            loaded = Loaded(tmp_path / name / "cart.toml")
            assert loaded.make_system.__globals__["SCALE"] == scale


GUARD = "[guard]\nrate = false\nwindow = 100\nx_limit = [5.0, 5.0]\n\n[scenario]"


def test_a_guard(tmp_path):
    path = tmp_path / "cart.toml"
    (tmp_path / "cart.py").write_text((EXAMPLE.parent / "cart.py").read_text())
    text = EXAMPLE.read_text().replace("[scenario]", GUARD)
    path.write_text(text)
    assert Loaded(path).guard == st.Guard(rate=None, window=100, x_limit=[5.0, 5.0])
    for old, new, message in (
        ("window = 100", "windw = 100", ":21: guard.windw: unknown key (did you mean window?)"),
        ("window = 100", "window = 0", ":21: guard.window: expected a whole number >= 1, got 0"),
        ("rate = false", "rate = -1.0", ":20: guard.rate: expected a number > 0, or None, got -1.0"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(ConfigError, match=re.escape(message)):
            Loaded(path)


def test_the_safe_control_of_a_guard(tmp_path):
    """`false` switches a limit off, but is the value of `latch`."""
    text = "[guard]\nsafe_u = [0.5]\nsafe_after = 3\nlatch = false\nstuck = 4\ngate = false\n\n[scenario]"
    path = tmp_path / "cart.toml"
    path.write_text(EXAMPLE.read_text().replace("[scenario]", text, 1))
    (tmp_path / "cart.py").write_text(EXAMPLE.with_name("cart.py").read_text())
    assert Loaded(path).guard == st.Guard(safe_u=[0.5], safe_after=3, latch=False, stuck=4, gate=None)


def test_every_fault_is_said_at_once(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(EXAMPLE.read_text().replace("stride", "strid").replace("steps = 20_000", "steps = 1.5"))
    with pytest.raises(ConfigError) as caught:
        Loaded(path)
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == ["scenario.steps", "run.strid"]


def test_no_file(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read \(No such file or directory\)"):
        Loaded(tmp_path / "none.toml")


def test_places():
    text = '# a.b = 1\n[a]\nb = 1\n"c" = { d = 2 }\n[a.e]\nf.g = 3\n'
    assert line_of(text, ("a",)) == 2
    assert line_of(text, ("a", "b")) == 3
    assert line_of(text, ("a", "c", "d")) == 4
    assert line_of(text, ("a", "e", "f", "g")) == 6
    assert line_of(text, ("a", "e", "none")) == 5
    assert line_of(text, ("z",)) is None
