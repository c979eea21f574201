"""`export_arduino`: a library that compiles for AVR and ARM boards, and that a simulated board replays bit for bit."""

import json
import os
import re
import shutil

import jax.numpy as jnp
import pytest

import selftune as st
from tests.export import avr
from tests.export.exports import STRICT_C, motor, run

NEEDED = os.environ.get("SELFTUNE_NEEDS_AVR") == "1"
STUBS = "tests/export/stubs/arduino"
ARM_BOARDS = {
    "Zero": ("-mcpu=cortex-m0plus",),
    "Due": ("-mcpu=cortex-m3",),
    "Uno R4": ("-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
    "Portenta": ("-mcpu=cortex-m7", "-mfloat-abi=hard", "-mfpu=fpv5-d16"),
}


def cart(folder, **options):
    """One state, one gain and one unknown number: small enough for an Arduino Uno."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: x + 0.1 * v,
        residual=lambda x, a, t: a * jnp.cos(x),
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )
    controller = st.Controller(system, tuner=st.MGAPS(0.05), estimator=st.GradientEstimator(0.1))
    return st.export_arduino(controller, folder, x=[1.0], theta=[1.0], a_hat=[0.0], dt=0.1, **options)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return cart(tmp_path_factory.mktemp("arduino") / "cart")


def on_this_machine(library, sketch, tmp_path, compiler="g++", flags=(), main="setup(); loop();"):
    """Compile a sketch with a stub of Arduino."""
    (tmp_path / "main.cpp").write_text(
        f'#include <Arduino.h>\n#include "{library}/examples/{sketch}/{sketch}.ino"\n'
        f"int main() {{ {main} return 0; }}\n"
    )
    objects = []
    for source in (library / "src").glob("*.c"):
        objects.append(tmp_path / f"{source.stem}.o")
        c = compiler.replace("g++", "gcc")
        run(c, *STRICT_C, *flags, "-ffp-contract=off", "-c", source, "-o", objects[-1])
    includes = (f"-I{STUBS}", f"-I{library / 'src'}")
    strict = ("-std=c++11", "-Wall", "-Wextra", "-Werror")
    run(compiler, *strict, *flags, *includes, "-c", tmp_path / "main.cpp", "-o", tmp_path / "main.o")
    return [*objects, tmp_path / "main.o"]


def test_the_library_is_described(library):
    lines = dict(line.split("=", 1) for line in (library / "library.properties").read_text().splitlines())
    assert {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url"} < lines.keys()
    assert (lines["name"], lines["includes"], lines["architectures"]) == ("cart", "cart_unit.h", "*")
    assert json.loads((library / "library.json").read_text())["headers"] == "cart_unit.h"
    assert "| `u[1]` | `u[0]` | output |" in (library / "README.md").read_text()


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_the_sketches_run_on_this_machine(library, tmp_path):
    objects = on_this_machine(library, "Replay", tmp_path)
    run("g++", *objects, "-o", tmp_path / "replay", "-lm")
    assert run(tmp_path / "replay").stdout.splitlines()[-2:] == ["largest difference in 1e-9: 0", "OK"]
    table = library / "examples" / "Replay" / "replay.h"
    wrong = shutil.copytree(library, tmp_path / "wrong") / table.relative_to(library)
    text = table.read_text()
    head, rows = text.split("replay_outputs[REPLAY_STEPS]")
    first = re.search(r"-?\d+\.\d+f", rows)
    wrong.write_text(f"{head}replay_outputs[REPLAY_STEPS]{rows[: first.start()]}9.0f{rows[first.end() :]}")
    objects = on_this_machine(tmp_path / "wrong", "Replay", tmp_path)
    run("g++", *objects, "-o", tmp_path / "replay", "-lm")
    assert run(tmp_path / "replay").stdout.splitlines()[-1] == "WRONG"
    on_this_machine(library, "Loop", tmp_path)


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_samples_that_a_delay_has_lost_are_not_made_up_for(library, tmp_path):
    """Many samples at once would have the same measurement, and not the period of the model."""
    main = """
      setup();
      for (int i = 0; i < 3; i++) { loop(); loop(); clock_us += 100000; }
      clock_us += 5030000;  // the board was busy for five seconds
      for (int i = 0; i < 9; i++) loop();
      clock_us += 99999;
      loop();
      Serial.println(controller.step);
      clock_us += 1;
      loop();
      Serial.println(controller.step);
    """
    objects = on_this_machine(library, "Loop", tmp_path, main=main)
    run("g++", *objects, "-o", tmp_path / "loop", "-lm")
    assert run(tmp_path / "loop").stdout.splitlines() == ["4", "5"]


def test_a_double_is_refused(tmp_path):
    with pytest.raises(ValueError, match="dtype: expected 'float32', because a double has only 4 bytes on AVR boards"):
        cart(tmp_path / "cart", dtype="float64")


@pytest.fixture(scope="module")
def _avr_tools():
    if missing := avr.missing():
        advice = f"Debian packages are missing: {' '.join(missing)}"
        pytest.fail(advice) if NEEDED else pytest.skip(advice)


@pytest.mark.slow
@pytest.mark.usefixtures("_avr_tools")
class TestBoards:
    def check(self, board, library, tmp_path, replays_on=None):
        """The board gives the bits of this machine. Print what the sketch for the plant takes."""
        loop = avr.build(board, library, "Loop", tmp_path)
        replay = avr.build(replays_on or board, library, "Replay", tmp_path)
        printed = avr.run(replay)
        slowest = re.search(r"slowest sample in us: (\d+)", printed)
        assert slowest, printed
        print(f"\n{library.name} on {board.chip}: flash {loop.flash}, RAM {loop.ram}, {slowest[1]} µs for a sample")
        assert "largest difference in 1e-9: 0" in printed, printed
        assert "OK" in printed
        assert loop.flash <= board.flash
        assert loop.ram < board.ram / 2  # the rest is for the stack

    def test_a_small_controller_with_the_whole_guard_on_an_uno(self, library, tmp_path):
        """The controller leaves no flash of an Uno for the recorded run, so a Mega replays it."""
        self.check(avr.UNO, library, tmp_path, replays_on=avr.MEGA)

    def test_a_small_controller_with_few_rules_of_the_guard_on_an_uno(self, tmp_path):
        off = ("x_limit", "f_limit", "gate", "rate", "authority", "swing", "y_limit", "rollback")
        self.check(avr.UNO, cart(tmp_path / "bare", guard=st.Guard(**dict.fromkeys(off))), tmp_path)

    def test_a_loop_on_a_mega(self, tmp_path):
        self.check(avr.MEGA, motor().export_arduino(tmp_path / "motor"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("board", ARM_BOARDS)
def test_it_compiles_for_arm_boards(library, tmp_path, board):
    if not shutil.which("arm-none-eabi-g++"):
        pytest.fail("no arm-none-eabi-g++") if NEEDED else pytest.skip("no arm-none-eabi-g++")
    for sketch in ("Loop", "Replay"):
        on_this_machine(library, sketch, tmp_path, "arm-none-eabi-g++", ("-mthumb", *ARM_BOARDS[board], "-O2"))
