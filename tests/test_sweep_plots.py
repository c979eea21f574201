"""A sweep's figures, page and tables: what is in them, that every shape of sweep has them, and what is escaped."""

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import selftune as st
from selftune.cli import tables
from selftune.experiments.registry import StoredRun
from selftune.experiments.report import present
from selftune.experiments.sweep import figures
from selftune.experiments.sweep import page as sweep_page
from selftune.storage import files
from selftune.storage.manifest import Manifest
from selftune.sweeps.point_table import points
from selftune.sweeps.summary import compare_settings, standings
from tests import browser, drawings, sweeps
from tests.test_cli import invoke

RNG = np.random.default_rng(0)
MANIFEST = Manifest(
    kind="sweep",
    state="complete",
    settings={"seeds": 16},
    task_dims=("task",),
    versions={},
    platform={},
    git=None,
    results={"0": 223, "1": 32, "3": 1},
    checksums={},
)


def lost():
    data = sweeps.tuners(4)
    return data.assign(result_code=data.result_code * 0 + 1, mean_cost=data.mean_cost * np.nan)


def many(count: int):
    cost = RNG.normal(size=(count, count, 4)) + 5
    failed = {(0, i, 0): (1, "diverged at step 10") for i in range(count)}
    axis = np.geomspace(0.1, 10, count)
    return sweeps.dataset({"a": axis, "b": axis}, cost, failed=failed)


def listed(count: int = 30):
    columns = {
        "rate": 10 ** RNG.uniform(-4, 0, count),
        "noise": RNG.uniform(size=count),
        "tuner": RNG.choice(["M-GAPS", "GAPS"], count),
    }
    failed = {(i, 0): (1, "diverged at step 10") for i in np.flatnonzero(columns["rate"] > 0.1)}
    return sweeps.dataset(columns, RNG.normal(size=(count, 4)) + 5, failed=failed, design="random")


ODD = {"rate": [0.0, 1e-3, 1e-2], "b": [np.nan, 1.0], "tuner": ["$", "<b>x"], "g": [True, False]}
SHAPES = {
    "three settings": lambda: sweeps.tuners(4),
    "one setting": lambda: sweeps.dataset({"rate": [0.1, 1.0]}, RNG.normal(size=(2, 4))),
    "words": lambda: sweeps.dataset({"tuner": ["M-GAPS", "GAPS"]}, RNG.normal(size=(2, 4))),
    "one point": lambda: sweeps.dataset({"rate": [0.1]}, np.ones((1, 4))),
    "one seed": lambda: sweeps.tuners(1),
    "odd values": lambda: sweeps.dataset(ODD, RNG.normal(size=(3, 2, 2, 2, 4))),
    "all failed": lost,
    "20 × 20": lambda: many(20),
    "random": listed,
    "random, all failed": lambda: listed().pipe(lambda data: data.assign(result_code=data.result_code * 0 + 3)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_its_figures_and_its_page(shape):
    data = SHAPES[shape]()
    found = points(data)
    made = figures.make_figures(data)
    for figure in made.values():
        drawings.check(figure)
    if found.varying:
        assert len(made["costs"].axes) == len(found.varying)
    if len(found.varying) > 1:
        assert len(made["pairs"].axes) == min(len(found.varying) * (len(found.varying) - 1) // 2, 15)
    assert ("time" in made) == found.ok.any()
    page = sweep_page.render(StoredRun(Path("a sweep"), MANIFEST, data))
    assert ("there is no best" in page) == (not found.ok.any())
    assert "<b>x" not in page
    plots = len(found.varying) * (len(found.varying) + 1) // 2 + bool(found.ok.any())
    assert page.count('class="plot"') == plots


def test_lines_are_the_means_at_the_best_of_the_rest():
    data = sweeps.tuners()
    axes = figures.costs(data).axes[0]
    ours, other, crosses = axes.series
    mean = data.mean_cost.mean("seed", skipna=False)
    np.testing.assert_allclose(ours.y, mean.sel(tuner="M-GAPS", noise=0.1), rtol=1e-12)
    np.testing.assert_allclose(other.y, mean.sel(tuner="GAPS", noise=0.1), rtol=1e-12)
    assert np.isnan(other.y).tolist() == [False, False, False, True]
    assert axes.x.is_log
    assert axes.title == "noise at its best"
    assert crosses.x == [1.0]
    assert crosses.y[0] > max(np.nanmax(ours.high), np.nanmax(other.high))
    assert crosses.words == ["33"]
    assert crosses.hover == ["learning_rate 1, failed runs: M-GAPS 1, GAPS 32"]


def test_cells_are_the_means_and_those_that_failed_are_marked():
    data = sweeps.tuners()
    cells = figures.pairs(data).axes[0].cells  # tuner against learning rate
    assert cells is not None
    expected = data.mean_cost.mean("seed", skipna=False).min("noise").transpose("tuner", "learning_rate")
    np.testing.assert_allclose(cells.costs, expected, rtol=1e-12)
    assert np.argwhere(cells.failed).tolist() == [[1, 3]]
    assert cells.best == (0, 1)
    assert {"× 32", "4.15", "8.16\n× 1"} <= set(cells.words.flat)
    assert cells.hover[1, 3] == "32 runs failed"


def test_there_are_no_words_in_small_cells():
    cells = figures.pairs(many(50)).axes[0].cells
    assert cells is not None
    assert set(cells.words.flat) == {""}
    assert cells.failed.sum() == 50


def test_time_is_the_parts_of_the_best_and_the_worst():
    data = sweeps.tuners()
    series = figures.time(data).axes[0].series
    best = data.part_cost.sel(learning_rate=0.01, tuner="M-GAPS", noise=0.1).mean("seed")
    worst = data.part_cost.sel(learning_rate=0.001, tuner="GAPS", noise=0.2).mean("seed")
    for one, expected in ((series[0], best), (series[3], worst)):
        np.testing.assert_allclose(one.y, expected, rtol=1e-9)
        np.testing.assert_array_equal(one.x, np.arange(25, 1000, 50))
    assert [one.label.partition(":")[0] for one in series] == ["best", "second", "third", "worst"]


def test_files_depend_on_the_data_alone(tmp_path):
    data = SHAPES["one point"]()
    made = figures.draw_all(data, tmp_path / "one")
    assert [path.name for path in made] == ["time.png", "time.pdf"]
    for path in figures.draw_all(data, tmp_path / "other"):
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()


def test_the_page_answers_first_and_says_what_failed():
    page = sweep_page.render(StoredRun(Path("tuners"), MANIFEST, sweeps.tuners()))
    leads = re.findall(r'<p class="lead[^>]*>(.*?)</p>', page)
    found = st.best(sweeps.tuners())
    assert leads[0].startswith("<b>learning_rate = 0.01, tuner = M-GAPS, noise = 0.1</b> has the lowest mean cost")
    assert f"{found.cost.mean:.4g} [{found.cost.low:.4g}, {found.cost.high:.4g}] over 16 seeds" in leads[0]
    assert leads[1] == "The lowest of 13 in 100 % of resamples; the seeds distinguish it from every other setting."
    assert leads[2].startswith("33 runs failed, at 3 of 16 settings; first failure: learning_rate = 1, tuner = M-GAPS")
    rows = re.findall(r"<tr[^>]*><td class=\"left\">(.*?)</td>", page)
    assert len(rows) == 13 + 3  # what did not fail, and what did


@pytest.mark.slow
def test_a_browser_draws_it(tmp_path):
    page = tmp_path / "report.html"
    page.write_text(sweep_page.render(StoredRun(Path("settings"), MANIFEST, SHAPES["odd values"]())))
    drawn, console = browser.look(page, tmp_path, "document.querySelectorAll('.plot .main-svg').length")
    assert console == []
    assert drawn >= 4 + 6 + 1


def test_tables_say_who_is_near_and_what_failed():
    data = sweeps.dataset({"rate": [0.1, 0.2, 0.3]}, np.array([[1.0], [1.0], [2.0]]) + RNG.normal(size=16))
    console = Console(width=120, record=True, file=io.StringIO())
    for part in tables.sweep(st.best(data), standings(points(data), 2)):
        console.print(part)
    said = console.export_text()
    assert re.search(r"0 \[0, 0\] +– \*", said)  # costs below zero have no ratio
    assert "* cannot be distinguished from the best" in said
    assert "no run failed" in said
    console.print(tables.comparison(compare_settings(sweeps.tuners(), "tuner", ["learning_rate", "noise"])))
    assert "– (diverged at step 10)" in console.export_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """As a sweep leaves it, but that its data are in memory."""

    class Sweep:
        def __init__(self, folder):
            self.folder, self.manifest = folder, MANIFEST

        def to_dataset(self):
            return sweeps.tuners(4)

    monkeypatch.setitem(sys.modules, "selftune.sweeps.sweeper", SimpleNamespace(Sweep=Sweep))
    made = tmp_path / "tuners"
    made.mkdir()
    (made / "manifest.json").write_bytes(files.as_json(MANIFEST))
    return made


def test_report(folder, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "draw_all", lambda data, folder, **options: drawn.append(folder))
    result = invoke("report", folder, "--json")
    assert result.exit_code == 0, result.output
    page = folder / "report.html"
    assert json.loads(result.stdout) == {"report": str(page)}
    assert drawn == [folder / "figures"]
    assert "<h1>tuners</h1>" in page.read_text()
    assert '<th scope="row">the task raised an error</th><td><code>1</code>' in page.read_text()
    present(StoredRun(folder, MANIFEST, sweeps.tuners(4)), print, anew=False)
    assert len(drawn) == 1


def test_compare(folder):
    result = invoke("compare", folder, "--over", "tuner", "--by", "noise", "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert [(side["by"]["noise"], side["value"], side["failed"]) for side in made["sides"]] == [
        (0.1, "M-GAPS", 0),
        (0.1, "GAPS", 4),
        (0.2, "M-GAPS", 1),
        (0.2, "GAPS", 4),
    ]
    assert "difference to GAPS" in invoke("compare", folder, "--over", "tuner", "--to", "GAPS", "--last", 0.25).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--over: expected a setting of the sweep, one of learning_rate, tuner, noise, got none"),
        (("--over", "tunr"), "--over: expected a setting of the sweep"),
        (("--over", "tuner", "--by", "x"), "--by: expected a setting of the sweep"),
        (("--over", "tuner", "--to", "x"), "--to: expected a value of tuner"),
        (("--over", "tuner", "--last", "2"), "--last: expected a share of the run"),
    ],
)
def test_compare_refuses(folder, arguments, message):
    result = invoke("compare", folder, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "expected either one sweep or several runs" in invoke("compare", folder, folder, "--over", "tuner").stderr
    text = (folder / "manifest.json").read_text().replace('"sweep"', '"run"')
    (folder / "manifest.json").write_text(text)
    assert "expected a sweep" in invoke("compare", folder, "--over", "tuner").stderr
