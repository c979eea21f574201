"""The paper's simulation, small: every number in the store against a direct computation; killed, and the same."""

import itertools
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import selftune as st
from selftune.cli import tables
from selftune.cli.app import app
from selftune.cli.reproduce_command import _paper_settings
from selftune.experiments import paper
from selftune.experiments.paper import figures, page, theory
from selftune.experiments.paper import run as paper_run
from selftune.experiments.paper.summary import summarize
from selftune.reporting.statistics import Interval, interval
from selftune.storage.manifest import StoreError
from selftune.storage.store import RunStore, open_run
from tests.test_store import contents

SMALL = _paper_settings(seeds=2, periods=2, period=300)
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper") / "run"
    seen = []
    paper.compute(SMALL, out, progress=lambda done, total: seen.append((done, total)))
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(seen))
    return out


@pytest.fixture(scope="module")
def dataset(folder):
    return open_run(folder)[0]


@pytest.mark.bits
def test_every_run_is_what_simulate_gives(dataset):
    nature = paper.scenario(SMALL, jax.random.key(1), "inside")
    for name, controller in paper.controllers(SMALL).items():
        record = ("x", "theta", "a_hat", "cost", "f", "f_hat")  # as there, so that nothing is compiled again
        run = st.simulate(controller, nature, theta=jnp.full(1, 3.0), a_hat=jnp.zeros(3), record=record)
        kept = dataset.sel(noise="inside", gain=3.0, algorithm=name, seed=1)
        np.testing.assert_array_equal(kept.theta, np.float32(run.theta[:, 0]))
        np.testing.assert_array_equal(kept.a_hat, np.float32(run.a_hat))
        np.testing.assert_array_equal(kept.model_error, np.float32((run.f_hat - run.f)[:, 0]))
        # The same sum in another order.
        np.testing.assert_allclose(kept.total_cost, jnp.sum(run.cost), rtol=1e-12)
        np.testing.assert_allclose(kept.cumulative_cost[-1], kept.total_cost, rtol=1e-12)
        np.testing.assert_allclose(kept.period_cost.sum(), kept.total_cost, rtol=1e-12)
        assert kept.result_code == 0
    np.testing.assert_array_equal(dataset.a_star.sel(seed=1), np.float32(nature.a_star))


def test_the_two_noises_are_one_draw():
    outside, inside = (paper.scenario(SMALL, jax.random.key(0), noise) for noise in paper.NOISES)
    np.testing.assert_allclose(inside.w, paper.DELTA * outside.w, rtol=1e-15)
    np.testing.assert_array_equal(inside.a_star, outside.a_star)
    with pytest.raises(ValueError, match="noise: expected one of"):
        paper.scenario(SMALL, jax.random.key(0), "both")


def test_no_gain_on_a_grid_beats_the_static_one(dataset):
    """And the cost falls to it and rises after it, so that it is the only minimum."""
    controller = st.Controller(paper.example_system(), st.Fixed(), st.Known())
    grid = np.geomspace(0.1, 50.0, 25)
    for noise in paper.NOISES:
        nature = paper.scenario(SMALL, jax.random.key(0), noise)
        costs = np.array(
            [float(jnp.sum(paper_run._simulate(SMALL, controller, nature, float(gain)).cost)) for gain in grid]
        )
        best = dataset.sel(noise=noise, seed=0)
        assert best.static_cost <= costs.min()
        rises = np.diff(costs) > 0
        assert not np.any(rises[:-1] & ~rises[1:])
        assert grid[max(0, costs.argmin() - 1)] <= best.static_gain <= grid[min(24, costs.argmin() + 1)]
        np.testing.assert_allclose(best.static_period_cost.sum(), best.static_cost, rtol=1e-12)


def test_the_local_regret_is_within_its_error_of_the_exact_one(dataset):
    nature = paper.scenario(SMALL, jax.random.key(0))
    run = paper_run._simulate(SMALL, paper.controllers(SMALL)["M-GAPS"], nature, 1.0)
    exact = st.local_regret(
        paper.example_system(), nature, run.theta, learning_rate=SMALL.learning_rate, constraint=SMALL.constraint
    )
    kept = dataset.sel(noise="outside", gain=1.0, seed=0, horizon=600)
    # Rounding apart, where the rollouts began at step 0.
    assert abs(kept.local_regret - exact.cumulative[-1]) <= kept.local_regret_error + 1e-9 * kept.local_regret


def test_the_summary(dataset):
    summary = summarize(dataset, {"learning_rate": 1e-4, "decay": 0.95, "sigma": 0.1, "period": 300, "periods": 2})
    row = summary.rows[0]
    assert (row.noise, row.gain) == ("outside", 0.5)
    each = dataset.total_cost.sel(noise="outside", gain=0.5)
    ratios = each.sel(algorithm="M-GAPS") / each.sel(algorithm="fixed gain")
    np.testing.assert_allclose(row.ratio.mean, ratios.mean(), rtol=1e-12)
    assert row.ratio.low is not None
    assert row.ratio.low <= row.ratio.mean <= row.ratio.highest
    # Six hundred steps are no reproduction: nothing is judged, and so nothing fails.
    assert {check.holds for check in summary.checks} == {None}
    assert summary.ok
    judged = summarize(dataset, {"learning_rate": 1e-4, "decay": 0.95, "sigma": 0.1, "period": 40_000, "periods": 2})
    assert not judged.ok
    assert interval([2.0]).low is None


def test_an_empty_column_has_its_reason(dataset):
    """With one period there is no ratio to the best static gain, and nothing is judged."""
    settings = {"learning_rate": 1e-4, "decay": 0.95, "sigma": 0.1, "period": 600, "periods": 1}
    *_, note = tables.paper(summarize(dataset.isel(period=[0]), settings))
    assert isinstance(note, str)
    assert "–: the ratio leaves out the first period, and this run has only one period; give --periods 2" in note
    assert "not judged: the checks are for the paper's settings and at least two periods" in note
    assert "intervals over fewer than 8 seeds mean little; this run has 2" in note
    _, ratios, *_, note = tables.paper(summarize(dataset, settings | {"periods": 2}))
    assert isinstance(note, str)
    assert not isinstance(ratios, str)
    assert "only one period" not in note
    cells = [cell for column in ratios.columns[2:] for cell in column.cells]
    assert sum(cell == "" for cell in cells) == 4  # η/Δ² is for the noise inside
    assert "–" not in cells


def test_a_tight_interval_has_at_most_four_decimals():
    assert tables._ratio(Interval(mean=0.99999857, low=0.99999814, high=0.99999899)) == "1.0000 [1.0000, 1.0000]"
    assert tables._ratio(Interval(mean=0.192, low=0.189, high=0.195)) == "0.192 [0.189, 0.195]"
    assert tables._ratio(Interval(mean=0.99999857, low=None, high=None)) == "1"


def test_a_run_of_few_seeds_has_no_more_regrets_than_seeds():
    assert _paper_settings(seeds=2, periods=1, period=None).regret_seeds == 2
    assert _paper_settings(seeds=None, periods=None, period=None) == paper.Settings()


def test_a_complete_run_is_reused_and_another_is_refused(folder):
    before = contents(folder)
    paper.compute(SMALL, folder)
    assert contents(folder) == before
    with pytest.raises(StoreError, match="seeds 2 there, 3 now"):
        paper.compute(_paper_settings(seeds=3, periods=2, period=300), folder)


def test_a_reproduction_reads_and_summarizes_its_run_once(folder, monkeypatch):
    calls = []

    def counted(owner, name):
        call = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: calls.append(name) or call(*given))

    monkeypatch.setattr(theory, "certify", lambda *given, **options: ({}, True))
    monkeypatch.setattr(figures, "draw_all", lambda *given, **options: None)
    counted(RunStore, "dataset")
    counted(page, "summarize")
    arguments = ["reproduce", "--seeds", "2", "--periods", "2", "--period", "300", "-o", str(folder), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["report"] == str(folder / "report.html")
    assert sorted(calls) == ["dataset", "summarize"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(seeds=0), "seeds: expected a whole number >= 1, got 0"),
        (dict(gains=(1.0, 60.0)), "gains: expected numbers from 0 to 50"),
        (dict(gains=(1.0, 1.0)), "gains: expected each once"),
        (dict(horizons=(300_000,)), "horizons: expected whole numbers from 2 to 200000"),
    ],
)
def test_settings_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        paper.Settings(**changes)


def command(out):
    arguments = ["reproduce", "--data-only", "--quiet", "--seeds", "3", "--periods", "2", "--period", "300", "-o", out]
    return [sys.executable, "-m", "selftune", *map(str, arguments)]


@pytest.mark.bits
@pytest.mark.slow
def test_killed_ten_times(tmp_path):
    begin = time.monotonic()
    subprocess.run(command(tmp_path / "clean"), check=True, cwd=ROOT)
    took, chance = time.monotonic() - begin, random.Random(1)
    killed = 0
    for _ in range(10):
        with subprocess.Popen(command(tmp_path / "killed"), cwd=ROOT) as process:
            time.sleep(chance.uniform(0.2, 0.9) * took)
            process.kill()
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 5  # the others had come to their end
    subprocess.run(command(tmp_path / "killed"), check=True, cwd=ROOT)
    assert contents(tmp_path / "killed") == contents(tmp_path / "clean")


@pytest.mark.slow
def test_the_paper_holds(tmp_path):
    """Four seeds of the real thing, without the local regret, which takes most of the time."""
    settings = paper.Settings(seeds=4, regret_seeds=0)
    paper.compute(settings, tmp_path / "run")
    dataset, manifest = open_run(tmp_path / "run")
    assert manifest.results == {"0": 4 * 2 * 4 * 4}
    summary = summarize(dataset, manifest.settings)
    assert len(summary.checks) == 14
    assert [check for check in summary.checks if not check.holds] == []
