"""The command: what it says, where, and with which exit code."""

import json
import shlex
import shutil
import signal
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import selftune as st
from selftune.cli.app import app
from selftune.cli.screen import Screen, refusing, stoppable
from selftune.foundation.errors import InputError
from selftune.storage.store import open_run
from tests import snapshots

ROOT = Path(__file__).parent.parent
# As the command sets it itself, so that it does not change the environment of the tests after it.
ENVIRONMENT = {
    "COLUMNS": "100",
    "TERMINAL_WIDTH": "100",
    "XLA_FLAGS": "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=65536",
}


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=ENVIRONMENT)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The example, shorter."""
    folder = tmp_path_factory.mktemp("config")
    text = (ROOT / "examples" / "cart.toml").read_text()
    text = text.replace("steps = 20_000", "steps = 300").replace("seeds = 8", "seeds = 3")
    (folder / "cart.py").write_text((ROOT / "examples" / "cart.py").read_text())
    (folder / "cart.toml").write_text(text)
    return folder / "cart.toml"


@pytest.fixture(scope="module")
def done(config):
    """A run of it."""
    out = config.parent / "done"
    assert invoke("run", config, "-o", out, "--quiet").exit_code == 0
    return out


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("reproduce",),
        ("new",),
        ("run",),
        ("commission",),
        ("tune",),
        ("export",),
        ("play",),
        ("report",),
        ("compare",),
        ("info",),
        ("verify",),
        ("sweep",),
        ("replay",),
        ("monitor",),
    ],
)
def test_help(command):
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    snapshots.check(f"help-{'-'.join(command) or 'selftune'}.txt", result.stdout)


def test_new_does_not_follow_a_link(tmp_path):
    (tmp_path / "cart.toml").symlink_to(tmp_path / "victim")
    assert invoke("new", tmp_path).exit_code == 2
    assert not (tmp_path / "victim").exists()


def test_new_writes_an_example_that_runs(tmp_path, monkeypatch):
    folder = tmp_path / "my robots" / "cart"
    result = invoke("new", folder)
    assert result.exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["cart-sweep.toml", "cart.py", "cart.toml"]
    for path in folder.iterdir():
        assert path.read_bytes() == (ROOT / "examples" / path.name).read_bytes()
    command = shlex.split(result.stdout.splitlines()[-1].removeprefix("next    "))
    assert command == ["selftune", "run", str(folder / "cart.toml")]
    path = folder / "cart.toml"
    path.write_text(path.read_text().replace("steps = 20_000", "steps = 300").replace("seeds = 8", "seeds = 1"))
    monkeypatch.chdir(tmp_path)
    assert invoke(*command[1:], "--quiet").exit_code == 0
    assert (tmp_path / "results" / "cart" / "manifest.json").is_file()


def test_new_overwrites_nothing(tmp_path):
    (tmp_path / "cart.toml").write_text("mine")
    result = invoke("new", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path / 'cart.toml'}: the file exists already; name another folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["cart.toml"]
    assert (tmp_path / "cart.toml").read_text() == "mine"
    given = json.loads(invoke("new", tmp_path / "other", "--json").stdout)
    assert given["files"][0] == str(tmp_path / "other" / "cart.py")


def test_run(config, done):
    again = invoke("run", config, "-o", done)
    assert again.exit_code == 0
    assert again.stdout.startswith("total cost over 300 steps, 3 seeds: ")
    assert "complete already; verified" in again.stderr
    given = invoke("run", config, "-o", done, "--json")
    result = json.loads(given.stdout)
    assert result["failed_seeds"] == {}
    assert result["manifest"]["state"] == "complete"
    assert result["report"] == str(done / "report.html")
    assert result["total_cost"]["low"] <= result["total_cost"]["mean"] <= result["total_cost"]["high"]
    assert invoke("run", config, "-o", done, "--quiet").output == ""


def test_run_draws_and_writes_a_report_and_report_does_so_again(config, done):
    files = [done / "report.html", done / "figures" / "run.png", done / "figures" / "run.pdf"]
    before = [path.read_bytes() for path in files]
    assert 'class="plot"' in files[0].read_text()
    for path in files:
        path.unlink()
    result = invoke("report", done)
    assert (result.exit_code, result.stdout) == (0, f"report  {files[0]}\n")
    assert [path.read_bytes() for path in files] == before
    files[1].unlink()
    assert f"report  {files[0]}" in invoke("run", config, "-o", done).stdout  # the run is complete, but not its figures
    assert files[1].read_bytes() == before[1]


def test_compare_divides_seed_by_seed(config, done):
    other = config.with_name("fixed.toml")
    tuner = 'name = "Fixed"\n\n[estimator]'
    text = config.read_text()
    begin, end = text.index('name = "MGAPS"'), text.index("[estimator]")
    other.write_text(text[:begin] + tuner + text[end + len("[estimator]") :])
    out = config.parent / "fixed"
    assert invoke("run", other, "-o", out).exit_code == 0
    rows = json.loads(invoke("compare", out, done, "--json").stdout)
    assert [row["seeds"] for row in rows] == [3, 3]
    assert (rows[0]["ratio"], rows[0]["reason"]) == (None, "the reference")
    first, second = (open_run(folder)[0].total_cost.values for folder in (out, done))
    assert rows[1]["ratio"]["mean"] == pytest.approx(np.mean(second / first), rel=1e-12)
    assert abs(np.mean(second / first) / (second.mean() / first.mean()) - 1) > 1e-6  # else it could be either
    assert "ratio to the first" in invoke("compare", out, done).stdout
    path = shutil.copytree(done, config.parent / "heavier") / "manifest.json"
    path.write_text(path.read_text().replace('"dt": 0.02', '"dt": 0.03'))
    rows = json.loads(invoke("compare", done, path.parent, "--json").stdout)
    assert (rows[1]["ratio"], rows[1]["reason"]) == (None, "different system")


def test_a_run_that_diverges_is_exit_code_1(config):
    other = config.with_name("wild.toml")
    other.write_text(config.read_text().replace("dt = 0.02", "dt = 5.0"))
    result = invoke("run", other, "-o", config.parent / "wild", "--json")
    assert result.exit_code == 1
    assert set(json.loads(result.stdout)["failed_seeds"]) == {"0", "1", "2"}
    assert "failed: seed 0: the state diverged at step" in result.stderr
    again = invoke("run", other, "-o", config.parent / "wild", "--quiet")
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.count("diverged at step") == 3


def test_a_bad_configuration_is_exit_code_2(config, tmp_path):
    other = tmp_path / "bad.toml"
    other.write_text(config.read_text().replace("stride", "strid"))
    result = invoke("run", other, "-o", tmp_path / "out", "--json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"error: {other}:30: run.strid: unknown key (did you mean stride?); "
        "expected one of seeds, theta, a_hat, stride, record\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [("reproduce", "-o"), ("report",), ("compare",), ("info",), ("run", ROOT / "examples" / "cart.toml", "-o")],
)
def test_a_foreign_folder_is_exit_code_2(tmp_path, arguments):
    (tmp_path / "thesis.tex").write_text("mine")
    result = invoke(*arguments, tmp_path)
    assert result.exit_code == 2
    assert "not a selftune run" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "arguments", [("fly",), ("reproduce", "--seeds", "none"), ("reproduce", "--seeds", "0"), ("run",)]
)
def test_bad_usage_is_exit_code_2(arguments):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_info(done):
    facts = json.loads(invoke("info", done, "--json").stdout)
    assert facts["manifest"]["kind"] == "run"
    assert facts["versions"].keys() >= {"python", "selftune", "jax", "numpy", "zarr"}
    assert facts["devices"]
    assert "versions jax: " in invoke("info").stdout
    shown = invoke("info", done).stdout
    assert "manifest settings system arguments dt: 0.02\n" in shown
    assert "tasks: 3 of 3 done\narrays: verified" in shown
    assert invoke("info", done, "--quiet").output == ""
    harmed = shutil.copytree(done, done.parent / "harmed")
    shutil.rmtree(harmed / "data.zarr" / "x" / "c" / "0")
    result = invoke("info", harmed)
    assert result.exit_code == 2
    assert "arrays: damaged" in result.stdout
    assert "checksum differs" in result.stderr


def test_version():
    assert invoke("--version").stdout == f"selftune {metadata.version('selftune')}\n"


def test_what_the_system_refuses_is_exit_code_2(config):
    result = invoke("run", config, "-o", config / "inside-a-file")
    assert result.exit_code == 2
    assert result.stderr == f"error: {config / 'inside-a-file'}: Not a directory\n"


def test_an_interruption_is_acknowledged_at_once(capsys):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(typer.Exit) as caught, refusing(), stoppable(Screen(False, False)):
        signal.raise_signal(signal.SIGINT)
    assert caught.value.exit_code == 130
    assert "finishing the seeds in flight" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_certificates_are_kept_while_they_are_of_the_same_run(tmp_path, monkeypatch):
    from selftune.experiments.paper import theory

    class Made:
        def to_dict(self):
            return {"ok": True, "rows": []}

    monkeypatch.setattr(theory.examples, "certify_example", lambda **options: Made())
    assert theory.certify(tmp_path, silent, steps=9)[1]
    kept = json.loads((tmp_path / "certificate.json").read_text())
    assert kept["settings"] == {"steps": 9, "seed": 0, "gain": 1.0, "theta": [0.5, 20.0]}
    assert kept["versions"].keys() >= {"selftune", "source"}
    assert not theory.certify(tmp_path, silent, steps=9)[1]
    assert theory.certify(tmp_path, silent, steps=10)[1]
    (tmp_path / "certificate.json").write_text("{")
    with pytest.raises(InputError, match="not readable as JSON"):
        theory.certify(tmp_path, silent, steps=10)


def silent(done, total):
    pass


def test_the_growth_of_the_regret_is_kept_while_the_code_is_the_same(tmp_path, monkeypatch):
    from selftune.experiments.paper import theory
    from selftune.experiments.rates import run

    calls = []
    monkeypatch.setitem(run.EXPERIMENTS, "rates", lambda **options: calls.append(0) or growth_finding(slope=0.4))
    made, anew = theory.measure_rates(tmp_path, silent)
    assert anew
    assert (tmp_path / "figures" / "rates.png").is_file()
    assert theory.measure_rates(tmp_path, silent) == (made, False)
    monkeypatch.setattr(run.manifest, "versions", lambda: {"source": "another"})
    assert theory.measure_rates(tmp_path, silent)[1]
    assert len(calls) == 2
    (tmp_path / "findings.json").write_text("[]")
    with pytest.raises(InputError, match="not a file of findings"):
        theory.measure_rates(tmp_path, silent)


def growth_finding(slope):
    """As the experiment makes it, of sums that are powers of T."""
    from selftune.experiments.rates import growth

    horizons = (1_000, 10_000, 100_000)
    sums = np.ones((3, 1, 1)) * np.array(horizons)[:, None] ** np.full(6, slope)
    linear = np.ones((3, 1, 1)) * np.array(horizons)[:, None]
    return growth.judge({"near": sums, "far": 2 * sums, "untuned": linear}, horizons)


class TestVerify:
    @pytest.mark.slow
    def test_the_theory_holds(self):
        result = invoke("verify", "certificates", "--steps", 100, "--json")
        assert result.exit_code == 0
        made = json.loads(result.stdout)["certificates"]
        assert len(made) == 5
        inferred = {row["name"]: row for row in made.pop("observations inferred from the next state")["rows"]}
        assert "observation hides w" in inferred["gradient error"]["failed_hypotheses"]
        special = {row["name"]: row for row in made.pop("nothing unknown, no noise, no constraint")["rows"]}
        assert special["regret of M-GAPS"]["must_hold"]
        for name, certificate in made.items():
            rows = {row["name"]: row for row in certificate["rows"]}
            assert certificate["ok"]
            assert sum(row["must_hold"] for row in certificate["rows"]) >= 10
            # ρ tells which problem a certificate is of: ours, or the paper's, where it is 1 − Δ/2 with Δ = 0.01.
            rho = 0.25 if name == "a problem made for the theory" else 0.995
            assert rows["contraction"]["measured"] == pytest.approx(rho, rel=1e-12)
        outside, inside, _ = made.values()
        # Inside Δ(…) the same noise is Δ times weaker.
        sizes = [{row["name"]: row["measured"] for row in one["rows"]}["stability of x"] for one in (outside, inside)]
        assert sizes[1] < sizes[0]

    @pytest.mark.slow
    def test_a_lie_is_exit_code_1(self, monkeypatch):
        """A constant that is too small: the slope of the dynamics in the control, which is Δ."""
        from selftune.experiments.certificates import examples as certificate_examples

        honest = certificate_examples.example_constants
        monkeypatch.setattr(
            certificate_examples, "example_constants", lambda radius: honest(radius).replace(L_phi_u=0.001)
        )
        result = invoke("verify", "certificates", "--steps", 400)
        assert result.exit_code == 1
        assert "VIOLATED" in result.stdout
        assert "Lipschitzness of x" in result.stdout
        assert "failed: the paper's example, noise outside Δ(…): Lipschitzness of x is violated" in result.stderr

    def test_a_promised_bound_that_is_vacuous_is_exit_code_1(self, monkeypatch):
        """With too few steps the bound is above T L_F², which holds without the theorem."""
        from selftune.experiments.certificates import examples as certificate_examples
        from selftune.experiments.certificates import informative

        (name, (_, row)), *_ = certificate_examples.INFORMATIVE.items()
        few = {name: (lambda seed: informative.informative_regret(steps=50, seed=seed), row)}
        monkeypatch.setattr(certificate_examples, "INFORMATIVE", few)
        result = invoke("verify", "bounds")
        assert result.exit_code == 1
        assert f"failed: {name}: expected an informative bound that holds for {row}, got vacuous" in result.stderr

    def test_without_a_compiler_xla_runs(self, monkeypatch, tmp_path):
        from selftune.experiments.rates import gradient_errors, run

        monkeypatch.setenv("CC", "no-such-compiler")
        few = {
            "gradient-errors": lambda workers, progress: gradient_errors.find(
                horizons=(400, 800), seeds={400: 2, 800: 2}
            )
        }
        monkeypatch.setattr(run, "EXPERIMENTS", few)
        with pytest.warns(
            RuntimeWarning, match="XLA runs this"
        ):  # the filter "error" of the tests is off in this block
            result = invoke("verify", "gradient-errors", "-o", tmp_path, "--data-only")
        assert result.exit_code in (0, 1)  # few steps prove nothing
        assert "E Σε′²" in result.stdout

    def test_a_violation_is_exit_code_1(self, monkeypatch):
        from selftune.experiments.certificates import examples as certificate_examples
        from selftune.theory import Certificate, Row

        row = Row(name="false", kind="inequality", statement="2 ≤ 1", reference="", measured=2.0, bound=1.0)
        constants = certificate_examples.example_constants(1.0)
        contraction = st.Contraction(C_bar=1.0, rho=0.5, R_S=1.0)
        made = Certificate((row,), constants, contraction, {})
        monkeypatch.setattr(certificate_examples, "certify_example", lambda **size: made)
        monkeypatch.setattr(certificate_examples, "made_for_it", lambda **size: made)
        result = invoke("verify", "certificates")
        assert result.exit_code == 1
        assert "VIOLATED" in result.stdout
        assert "false" in result.stdout

    def test_a_slope_that_is_too_large_is_exit_code_1(self, monkeypatch, tmp_path):
        """The figure and the page are made all the same, and the fault is named on stderr."""
        from selftune.experiments.rates import run

        monkeypatch.setitem(run.EXPERIMENTS, "rates", lambda workers, progress: growth_finding(slope=1.0))
        result = invoke("verify", "rates", "-o", tmp_path)
        assert result.exit_code == 1
        assert "failed: rates: slope of R_L, near, all T: expected ≤ 11/12, got 1" in result.stderr
        assert (tmp_path / "figures" / "rates.png").is_file()
        assert "FAILS" in result.stdout
        assert "checks fail" in (tmp_path / "report.html").read_text()

    def test_slopes_as_promised_are_exit_code_0(self, monkeypatch, tmp_path):
        from selftune.experiments.rates import run

        monkeypatch.setitem(run.EXPERIMENTS, "rates", lambda workers, progress: growth_finding(slope=0.4))
        result = invoke("verify", "rates", "-o", tmp_path, "--data-only", "--json")
        assert result.exit_code == 0
        made = json.loads(result.stdout)["experiments"]["rates"]
        assert made == json.loads((tmp_path / "findings.json").read_text())["findings"]["rates"]

    def test_an_unknown_part_is_exit_code_2(self):
        result = invoke("verify", "rate")
        assert result.exit_code == 2
        assert "rate: expected any of certificates, bounds, rates" in result.stderr
