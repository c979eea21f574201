"""`export_c`: the C compiles anywhere, replays its recorded run, keeps to itself, and is never written over others'."""

import hashlib
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks._problems import PROBLEMS

import selftune as st
from selftune.foundation.errors import StoreError
from selftune.native.c import footprint
from selftune.native.firmware import fields
from tests.problems import golden, golden_controller

ROOT = Path(__file__).parents[2]
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wdouble-promotion", "-Werror")
SANE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
ARM = pytest.param("arm-float32", marks=pytest.mark.slow)
CASES = ("scalar-float32", "scalar-float64", "planar-float32", "planar-float64", "trees-float32", ARM)

pytestmark = pytest.mark.skipif(not COMPILERS, reason="no C compiler")


@cache
def sanitizers(compiler):
    """The flags of the sanitizers, if the compiler has their libraries: Debian's clang comes without them."""
    probe = [compiler, *SANE, "-x", "c", "-", "-o", "/dev/null"]
    found = subprocess.run(probe, input="int main(void) { return 0; }", capture_output=True, text=True, check=False)
    return () if found.returncode else SANE


def run(*command, cwd=None, fails=False):
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert fails or done.returncode == 0, done.stdout + done.stderr
    return done


def start_of(name):
    if name == "trees":
        return trees()
    if name == "arm":
        problem = PROBLEMS["arm"](dtype=jnp.float32)
        scenario = problem.scenario(200)
        return problem.controller, dict(x=scenario.x0, theta=problem.theta, a_hat=problem.a_hat, scenario=scenario)
    g = golden(name)
    return golden_controller(name), dict(x=g["x0"], theta=g["theta0"], a_hat=g["a0"])


def trees():
    """θ, a and the context in parts, with names that C and C++ keep for themselves."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: x + 0.1 * v,
        residual=lambda x, a, t: a["for"] * jnp.cos(x),
        actuation=lambda x, theta, t: -theta["gain"] * (x - t["class"]) + theta["bias"] * t["mode"].astype(x.dtype),
        cost=lambda x, u, theta, t: t["double"] * jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )
    controller = st.Controller(system, st.MGAPS(0.1), st.GradientEstimator(0.2))
    context = {"class": np.array([0.3, -0.3]), "double": 2.0, "mode": 1}
    return controller, dict(x=[1, 2], theta={"bias": 0.1, "gain": [0.5, 0.6]}, a_hat={"for": [0.0, 0.0]}, t=context)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Made once each, when they are asked for."""
    made: dict[str, Path] = {}
    parent = tmp_path_factory.mktemp("exports")

    def export(case):
        if case not in made:
            name, dtype = case.split("-")
            controller, start = start_of(name)
            made[case] = st.export_c(controller, parent / case / name, **start, dtype=dtype)
        return made[case]

    return export


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=pytest.mark.slow) if c in ("scalar-float64", "planar-float32", "planar-float64") else c
        for c in CASES
    ],
)
def test_it_compiles_without_a_warning_and_replays(exports, tmp_path, case):
    folder = exports(case)
    sources = (folder / f"{folder.name}.c", folder / "main.c")
    for compiler in COMPILERS:
        run(compiler, "-std=c99", *STRICT, *sanitizers(compiler), *sources, "-o", tmp_path / "replay", "-lm")
        printed = run(tmp_path / "replay").stdout
        found = re.fullmatch(r"largest difference: (\S+)\n", printed)
        assert found, printed
        # Two hundred steps of a loop that contracts: a few of the dtype's roundings.
        assert float(found[1]) < {"float32": 2e-5, "float64": 1e-12}[case.split("-")[1]]


def test_the_replay_notices_a_difference(exports, tmp_path):
    folder = shutil.copytree(exports("scalar-float32"), tmp_path / "changed")
    text = (folder / "replay.h").read_text()
    head, _, rest = text.partition("replay_u[REPLAY_STEPS][SCALAR_M] = {\n    {")
    assert rest
    (folder / "replay.h").write_text(f"{head}replay_u[REPLAY_STEPS][SCALAR_M] = {{\n    {{1.0f + {rest}")
    run(COMPILERS[0], "-std=c99", folder / "scalar.c", folder / "main.c", "-o", tmp_path / "replay", "-lm")
    done = run(tmp_path / "replay", fails=True)
    assert done.returncode == 1
    assert float(done.stdout.removeprefix("largest difference: ")) > 0.1


FAST = [("-ffast-math",), ("-Ofast",), ("-O2", "-ffinite-math-only")]


@pytest.mark.parametrize("flags", FAST, ids=" ".join)
def test_it_does_not_compile_without_nan(exports, tmp_path, flags):
    """Such a compiler removes the guard: numbers that are not finite would reach the controls."""
    source = exports("scalar-float32") / "scalar.c"
    for compiler in COMPILERS:
        done = run(compiler, "-std=c99", *flags, "-c", source, "-o", tmp_path / "scalar.o", fails=True)
        assert done.returncode != 0
        assert "selftune: compile without -ffast-math" in done.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="clang has no macro for this option")
@pytest.mark.parametrize("flag", ["-funsafe-math-optimizations", "-ffast-math -fno-finite-math-only"])
def test_it_does_not_compile_with_sums_in_another_order(exports, tmp_path, flag):
    """Such a compiler cancels the corrections of the elementary functions, whose results are then wrong by percents."""
    source = exports("scalar-float32") / "scalar.c"
    done = run("gcc", "-std=c99", "-O2", *flag.split(), "-c", source, "-o", tmp_path / "scalar.o", fails=True)
    assert done.returncode != 0
    assert "-funsafe-math-optimizations" in done.stderr


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("code = SCALAR_OK;", "a measurement that is NaN was not refused"),
        ("u[0] = NAN;", "after a measurement that is NaN, the control is not finite"),
    ],
)
def test_the_replay_notices_that_the_guard_is_missing(exports, tmp_path, fault, message):
    folder = shutil.copytree(exports("scalar-float32"), tmp_path / "changed")
    without_guard = (
        "static int without_guard(scalar_state *s, const float *x, int32_t t, float *u, scalar_info *info)\n"
        f"{{ int code = scalar_act(s, x, t, u, info); if (x[0] != x[0]) {fault} return code; }}\n"
        "#define scalar_act without_guard\n"
    )
    text = (folder / "main.c").read_text()
    assert text.count("/* By its bits") == 1
    (folder / "main.c").write_text(text.replace("/* By its bits", f"{without_guard}/* By its bits"))
    run(COMPILERS[0], "-std=c99", folder / "scalar.c", folder / "main.c", "-o", tmp_path / "replay", "-lm")
    done = run(tmp_path / "replay", fails=True)
    assert done.returncode == 3
    assert message in done.stdout


def test_products_are_not_fused_with_sums(exports):
    folder = exports("scalar-float32")
    for name in ("CMakeLists.txt", "README.md"):
        assert "-ffp-contract=off" in (folder / name).read_text()


@pytest.mark.skipif(not shutil.which("cmake"), reason="no CMake")
def test_cmake(exports, tmp_path):
    folder = exports("scalar-float32")
    run("cmake", "-S", folder, "-B", tmp_path / "build")
    run("cmake", "--build", tmp_path / "build")
    assert "100% tests passed" in run("ctest", "--test-dir", tmp_path / "build").stdout


@pytest.mark.parametrize("case", ["planar-float32", "trees-float32"])
def test_the_header_serves_c_and_cpp(exports, tmp_path, case):
    folder = exports(case)
    header = folder / f"{folder.name}.h"
    run(COMPILERS[0], "-std=c99", *STRICT, "-fsyntax-only", "-x", "c", header)
    if shutil.which("g++"):
        source = tmp_path / "main.cpp"
        lines = (
            f'#include "{header.name}"',
            f"int main() {{ {folder.name}_state s; {folder.name}_init(&s); return 0; }}",
        )
        source.write_text("\n".join(lines))
        run(COMPILERS[0], "-std=c99", "-c", folder / f"{folder.name}.c", "-o", tmp_path / "c.o")
        run("g++", *STRICT, f"-I{folder}", source, tmp_path / "c.o", "-o", tmp_path / "main", "-lm")


@pytest.mark.skipif(not (shutil.which("nm") and shutil.which("size")), reason="no binutils")
@pytest.mark.parametrize("case", ["planar-float32", pytest.param("planar-float64", marks=pytest.mark.slow), ARM])
def test_it_needs_nothing_but_math_and_has_no_globals(exports, tmp_path, case):
    folder = exports(case)
    for flags in (("-O0",), ("-O2",), ("-O3",)):
        run(COMPILERS[0], "-std=c99", *flags, "-c", folder / f"{folder.name}.c", "-o", tmp_path / "c.o")
        needed = set(re.findall(r" U (\w+)", run("nm", "-u", tmp_path / "c.o").stdout))
        suffix = "f" if case.endswith("32") else ""
        assert needed <= {f"{name}{suffix}" for name in ("sin", "cos", "sincos", "tanh", "exp", "sqrt", "fabs")}
        sizes = dict(
            re.findall(r"^(\.data|\.bss)\S*\s+(\d+)", run("size", "-A", tmp_path / "c.o").stdout, re.MULTILINE)
        )
        assert set(sizes.values()) == {"0"}


REFUSES = """
#include "scalar.h"
#include <math.h>
#include <string.h>

static int same(const scalar_state *a, scalar_state b)
{
    b.last_code = a->last_code;
    b.refused = a->refused;
    b.guard_missed = a->guard_missed;
    b.guard_failsafe_blind = a->guard_failsafe_blind;
    memcpy(b.last_u, a->last_u, sizeof b.last_u);
    memcpy(b.predicted, a->predicted, sizeof b.predicted);
    return memcmp(a, &b, sizeof b) == 0;
}

int main(void)
{
    const float bad[] = {NAN, INFINITY, -INFINITY, 2e8f, 1e30f}, good[] = {0.5f}, seen[] = {0.1f};
    const int codes[] = {SCALAR_NON_FINITE, SCALAR_NON_FINITE, SCALAR_NON_FINITE, SCALAR_DIVERGED, SCALAR_DIVERGED};
    scalar_state s;
    scalar_info info;
    float u[1];
    memset(&s, 1, sizeof s); /* init sets everything */
    scalar_init(&s);
    const scalar_state first = s;
    if (!scalar_observe(&s, seen) || !scalar_observe_state(&s, good) || memcmp(&s, &first, sizeof s)) return 10;
    if (scalar_act(&s, good, 0, u, &info) || scalar_observe(&s, seen)) return 1;
    for (int i = 0; i < 5; i++) {
        const scalar_state before = s;
        u[0] = 9;
        if (scalar_act(&s, &bad[i], i + 1, u, i % 2 ? &info : 0) != codes[i]) return 2;
        if (!isfinite(u[0]) || u[0] == 9 || u[0] != s.last_u[0]) return 11;
        if (s.refused != i + 1 || s.last_code != codes[i] || !same(&before, s)) return 3;
        if (scalar_observe(&s, seen) != codes[i] || scalar_observe_state(&s, good) != codes[i]) return 4;
        if (s.refused != i + 1 || !same(&before, s)) return 5;
    }
    if (scalar_act(&s, good, 6, u, &info)) return 6;
    for (int i = 0; i < 3; i++) {
        const scalar_state before = s;
        if (scalar_observe(&s, &bad[i]) != SCALAR_NON_FINITE || !same(&before, s)) return 7;
        if (scalar_observe_state(&s, &bad[i]) != SCALAR_NON_FINITE || !same(&before, s)) return 8;
    }
    return s.refused == 11 ? 0 : 9;
}
"""


def test_a_refused_step_leaves_the_state(exports, tmp_path):
    folder = exports("scalar-float32")
    (tmp_path / "main.c").write_text(REFUSES)
    sources = (folder / "scalar.c", tmp_path / "main.c")
    run(COMPILERS[0], "-std=c99", f"-I{folder}", *SANE, *sources, "-o", tmp_path / "main", "-lm")
    assert run(tmp_path / "main", fails=True).returncode == 0


@pytest.mark.parametrize("case", ["planar-float64", "trees-float32"])
def test_the_readme(exports, tmp_path, case):
    folder = exports(case)
    name, text = folder.name, (folder / "README.md").read_text()
    costs = json.loads((folder / "selftune.json").read_text())["costs"]
    for function, counts in costs["functions"].items():
        cells = " | ".join("–" if count is None else f"{count:,}" for count in counts.values())
        assert f"| `{name}_{function}` | {cells} |" in text
        assert counts["products"] > 0
    listing = text.partition("```c\n")[2].partition("```")[0]
    sizes = f"return (int)(sizeof(s) * 1000 + sizeof({name}_info)) != {costs['state'] * 1000 + costs['info']};"
    (tmp_path / "main.c").write_text(f"{listing}\nint main(void) {{ start(); (void)sample; {sizes} }}\n")
    run(COMPILERS[0], f"-I{folder}", tmp_path / "main.c", folder / f"{name}.c", "-o", tmp_path / "main", "-lm")
    run(tmp_path / "main")
    assert f"RAM: {costs['state']:,} bytes for the state; {costs['info']:,} more" in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_parts_of_trees_have_names(exports):
    header = (exports("trees-float32") / "trees.h").read_text()
    for member in ("float t_class[2];", "float t_double;", "int32_t mode;", "float theta_bias;", "float a_hat_for[2];"):
        assert f"    {member}\n" in header
    assert [field.name for field in fields((np.zeros(2), 1.0), root="value")] == ["t_0", "t_1"]


def texts(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


class TestFolder:
    @pytest.fixture
    def scalar(self, exports, tmp_path):
        return shutil.copytree(exports("scalar-float32"), tmp_path / "scalar")

    @staticmethod
    def export(folder, **changed):
        controller, start = start_of("scalar")
        return st.export_c(controller, folder, **start | changed)

    def test_it_is_rewritten_with_the_same_text(self, scalar):
        before = texts(scalar)
        (scalar / "mine.txt").write_text("kept")
        (scalar / "main.c").unlink()
        self.export(scalar)
        assert texts(scalar) == before | {"mine.txt": "kept"}
        for text in before.values():
            assert not re.search(rf"{re.escape(str(scalar.parent))}|{re.escape(str(ROOT))}|/tmp|/home|/root", text)

    def test_under_another_name_what_was_there_goes(self, scalar, monkeypatch):
        monkeypatch.setattr(footprint, "measure", lambda name, sources: None)
        (scalar / "mine.txt").write_text("kept")
        self.export(scalar, name="other")
        made = {"main.c", "proof.c", "replay.h", "CMakeLists.txt", "README.md", "selftune.json"}
        expected = {"other.c", "other.h", *made}
        assert set(texts(scalar)) == expected | {"mine.txt"}
        assert "No compiler was available" in (scalar / "README.md").read_text()
        assert json.loads((scalar / "selftune.json").read_text())["costs"]["flash"] is None

    def test_what_was_changed_is_kept(self, scalar):
        (scalar / "scalar.c").write_text("/* mine now */\n")
        before = texts(scalar)
        with pytest.raises(
            StoreError, match=r"scalar\.c: changed since it was written; choose another folder, or give"
        ):
            self.export(scalar)
        assert texts(scalar) == before
        self.export(scalar, overwrite=True)
        assert "scalar_init" in (scalar / "scalar.c").read_text()

    def test_one_that_was_interrupted_is_finished_by_the_next(self, scalar, monkeypatch):
        from selftune.storage import files as storage_files

        write, left = storage_files.write, iter(range(3))

        def dies(path, data):
            if next(left, None) is None:
                raise OSError("no space left")
            write(path, data)

        monkeypatch.setattr(storage_files, "write", dies)
        with pytest.raises(OSError, match="no space left"):
            self.export(scalar, theta=np.array([2.0]))
        monkeypatch.undo()
        self.export(scalar, theta=np.array([2.0]))
        assert "before" not in json.loads((scalar / "selftune.json").read_text())
        assert "s->theta[0] = 2.0f;" in (scalar / "scalar.c").read_text()

    @pytest.mark.parametrize("name", ["thesis.tex", "selftune.json"])
    def test_what_is_someone_elses_is_kept(self, tmp_path, name):
        (tmp_path / name).write_text("[]")
        with pytest.raises(StoreError, match="not empty, and not written by an export of selftune"):
            self.export(tmp_path, name="scalar")
        assert texts(tmp_path) == {name: "[]"}

    @pytest.mark.parametrize("where", ["{folder}/../victim.c", "../victim.c", "{folder}/x/../../victim.c", "."])
    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_list_of_files_from_elsewhere_is_not_believed(self, tmp_path, where, overwrite):
        """Such a list may name any file with its checksum, and files of an earlier export are deleted."""
        folder, victim = tmp_path / "scalar", tmp_path / "victim.c"
        folder.mkdir()
        victim.write_text("mine")
        checksum = hashlib.sha256(b"mine").hexdigest()
        listed = {where.format(folder=folder): checksum}
        (folder / "selftune.json").write_text(json.dumps({"files": listed, "before": {"../victim.c": [checksum]}}))
        if overwrite:
            self.export(folder, overwrite=True)
        else:
            with pytest.raises(StoreError, match="not empty, and not written by an export of selftune"):
                self.export(folder)
        assert victim.read_text() == "mine"

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_link_inside_the_folder_is_not_followed(self, tmp_path, overwrite):
        """Neither to delete a file that a list of files names, nor to write one."""
        controller, start = start_of("scalar")
        victim, folder = tmp_path / "victim" / "README.md", tmp_path / "out"
        for path in (victim.parent, folder):
            path.mkdir()
        victim.write_text("mine")
        (folder / "examples").symlink_to(victim.parent)
        listed = {"examples/README.md": hashlib.sha256(b"mine").hexdigest()}
        for files in (listed, {}):
            (folder / "selftune.json").write_text(json.dumps({"files": files}))
            with pytest.raises(StoreError, match="examples: expected a folder, got a link to one"):
                st.export_arduino(controller, folder, **start, dt=0.1, overwrite=overwrite)
            assert texts(victim.parent) == {"README.md": "mine"}

    def test_a_file_is_not_a_folder(self, tmp_path):
        path = tmp_path / "scalar"
        path.write_text("")
        for overwrite in (False, True):
            with pytest.raises(StoreError, match="expected a folder, got a file"):
                self.export(path, overwrite=overwrite)


def test_refused_by_name(tmp_path, as_a_user):
    controller, start = start_of("scalar")
    for changed, message in (
        ({"name": "Scalar"}, "name: expected lower-case letters, digits and _, starting with a letter, got 'Scalar'"),
        ({"name": "2dof"}, "name: expected lower-case letters"),
        ({"name": "main"}, "name: expected one that C, CMake"),
        ({"name": "math"}, "name: expected one that C, CMake"),
        ({"dtype": "float16"}, "dtype: expected 'float32' or 'float64', got 'float16'"),
        ({"dtype": "single please"}, "dtype: expected 'float32' or 'float64'"),
        ({"x": [np.nan]}, "x: expected finite numbers"),
        ({"x": [1e300]}, "x: expected finite numbers"),
        ({"theta": [99.0]}, "theta: expected a point of its constraint"),
        ({"guard": 3}, "guard: expected a Guard, got 3"),
        ({"scenario": 3}, "scenario: expected a Scenario, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            st.export_c(controller, tmp_path / "out", **start | changed)
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match="dtype: expected 'float32' because JAX's jax_enable_x64"),
    ):
        st.export_c(controller, tmp_path / "out", **start, dtype="float64")
    with pytest.raises(ValueError, match="controller: expected a Controller"):
        st.export_c(controller.system, tmp_path / "out", **start)
    known = st.Controller(controller.system, controller.tuner, st.Known())
    with pytest.raises(ValueError, match="got Known"):
        st.export_c(known, tmp_path / "out", **start)
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_is_no_replay(tmp_path):
    controller, start = start_of("scalar")
    with pytest.raises(ValueError, match="without failures, for the replay, got one in which the guard refused step 0"):
        st.export_c(controller, tmp_path / "out", **start | {"x": [0.5]}, guard=st.Guard(x_limit=1e-6))
    assert not (tmp_path / "out").exists()


def test_no_doubles_where_jax_has_64_bits(tmp_path):
    """A step's number times a fraction is a double there; on a microcontroller that is thousands of instructions."""
    system = st.System(
        dynamics=lambda x, u, f, t: x + 0.1 * (u + f),
        residual=lambda x, a, t: a * jnp.cos(x),
        policy=lambda x, theta, f, t: -theta * (x - jnp.sin(0.05 * jnp.asarray(t).astype(float)).astype(x.dtype)) - f,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.1))
    folder = st.export_c(controller, tmp_path / "wave", x=[1.0], theta=[1.0], a_hat=[0.0])
    text = (folder / "wave.c").read_text()
    assert "sin_float(" in text
    assert "double" not in text
