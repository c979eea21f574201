"""The report: its numbers by an independent way, its safety, and its looks in a real browser."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
from markupsafe import Markup

import selftune as st
from selftune import experiments
from selftune.experiments import report
from selftune.experiments.comparison import compare
from selftune.experiments.paper import certificate_file
from selftune.experiments.paper import figures as paper_figures
from selftune.experiments.paper import page as paper_page
from selftune.experiments.registry import StoredRun
from selftune.experiments.user import figures as user_figures
from selftune.experiments.user import summary as user_summary
from selftune.reporting import pages
from selftune.storage.manifest import StoreError
from tests import browser, paper_run

HOSTILE = """'"><script>notThere("&")<script>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a third certificate, in which every text is hostile; its key is part of a plot's id."""
    made = paper_run.folder(tmp_path_factory.mktemp("run") / "paper", name=HOSTILE)
    certificates = paper_run.certificates()
    rows = paper_run.certificate()["rows"]
    rows.append(rows[0] | dict(name=HOSTILE, reference="", statement=HOSTILE, given=[HOSTILE]))
    certificates["certificates"][HOSTILE] = {"rows": rows, "constants": {HOSTILE: HOSTILE}}
    (made / "certificate.json").write_text(json.dumps(certificates))
    return made


@pytest.fixture(scope="module")
def page(folder):
    return write(folder)


def write(folder):
    return report.write(StoredRun.open(folder))


class Reader(HTMLParser):
    """The tables as rows of cells of text, and every address in the page."""

    def __init__(self, page: str):
        super().__init__()
        self.rows: list[list[str]] = []
        self.addresses: list[str] = []
        self.cell = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.cell = True

    def handle_endtag(self, tag):
        self.cell = self.cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self.cell:
            self.rows[-1][-1] += data


def numbers(cell: str) -> list[float]:
    return [float(part.replace(",", "")) for part in re.findall(r"[\d,]*\d(?:\.\d+)?", cell)]


def test_the_table_is_what_numpy_makes_of_the_data(page):
    data = paper_run.dataset()
    rows = [row for row in Reader(page.read_text()).rows if {*paper_run.ALGORITHMS, "M-GAPS, η/Δ²"} & set(row)]
    total, periods = data.total_cost.values, data.period_cost.values  # (noise, gain, algorithm, seed, period)
    static, later = data.static_cost.values, data.static_period_cost.values[..., 1:].sum(-1)
    faster = data.rescaled_period_cost.values
    shown = iter(rows)
    for i in range(2):
        for j in range(2):
            costs = [(total[i, j, k], periods[i, j, k, :, 1:].sum(-1)) for k in range(4)]
            if i == 1:
                costs.append((faster[j].sum(-1), faster[j, :, 1:].sum(-1)))
            for cost, after in costs:
                columns = (
                    cost,
                    cost / total[i, j, 1],
                    cost / total[i, j, 2],
                    cost / static[i],
                    after / later[i],
                )
                for cell, values in zip(next(shown)[-5:], columns, strict=True):
                    band = st.bands(values, key=jax.random.key(0))
                    expected = [np.mean(values), band.low, band.high]
                    # Half of the last digit that is shown: four decimals of a ratio, four digits of a cost.
                    np.testing.assert_allclose(numbers(cell), expected, rtol=5e-4 if values is cost else 0, atol=5.1e-5)
    assert next(shown, None) is None


def test_the_answer_comes_from_the_data(page):
    data = paper_run.dataset().total_cost
    ratio = data.sel(algorithm="M-GAPS") / data.sel(algorithm="fixed gain")
    lead = " ".join(re.findall(r'<p class="lead">(.*?)</p>', page.read_text()))
    for value in ratio.mean("seed").values.flat:
        assert f"<b>{value:.4g}</b>" in lead


def test_everything_from_outside_is_escaped_and_nothing_is_fetched(page):
    text = page.read_text()
    assert "<b>x</b>" not in text
    assert "&lt;b&gt;x&lt;/b&gt; &amp; &lt;/script&gt;" in text
    assert "w is bounded &lt;by W&gt;" in text
    assert {address for address in Reader(text).addresses if not address.startswith("#")} == {"data:,"}
    assert pages.POLICY in attributes(text)
    assert len(text) < 8e6


def attributes(page: str) -> list[str]:
    values = []

    class Attributes(HTMLParser):
        def handle_starttag(self, tag, attrs):
            values.extend(str(value) for _, value in attrs)

    Attributes().feed(page)
    return values


def test_a_hostile_certificate_and_a_hostile_setting_are_text(page):
    """In a browser, below, the plot is drawn and no script runs."""
    text = page.read_text()
    assert HOSTILE not in text
    ids = re.findall(r' id="([^"]*)"', text)
    assert "bounds-_script_notThere_script_-0" in ids
    assert all(re.fullmatch(r"[\w-]+", one) for one in ids)
    rows = Reader(text).rows
    assert ["name", f"{HOSTILE}chosen here"] in rows
    assert [HOSTILE, HOSTILE] in rows  # a constant
    (inequality,) = [cells for cells in rows if cells[0] == HOSTILE and len(cells) > 2]
    assert inequality[5:] == [HOSTILE, f"given {HOSTILE}; sampled ρ"]


def test_a_key_of_a_certificate_names_no_file_elsewhere(tmp_path):
    for key in ("../../x", "/x", "a/../../../x"):
        for path in paper_figures.files(tmp_path / "figures", {key: {}})[-2:]:
            assert path.parent == tmp_path / "figures"


def test_a_hostile_name_of_a_folder_and_of_a_variable_are_text(tmp_path):
    data = a_run(2).rename(x=HOSTILE)
    text = write(paper_run.folder(tmp_path / HOSTILE, data=data, kind="run")).read_text()
    assert HOSTILE not in text
    assert f"<h1>{Markup.escape(HOSTILE)}</h1>" in text
    assert f"{HOSTILE} over time" in attributes(text)


def test_an_experiment_is_added_by_its_folder_alone(tmp_path, monkeypatch):
    made = tmp_path / "experiments" / "pendulum"
    made.mkdir(parents=True)
    (made / "__init__.py").write_text('KIND = "pendulum"')
    (made / "page.py").write_text(
        "from selftune.experiments.registry import Experiment\n"
        "EXPERIMENT = Experiment(summarize=lambda run: run.dataset.sizes['seed'], render=lambda run: 'a pendulum')"
    )
    folder = paper_run.folder(tmp_path / "run", data=a_run(3), kind="pendulum")
    with pytest.raises(StoreError, match="expected one of arms, loops, paper, robots, sweep, run, got 'pendulum'"):
        StoredRun.open(folder)
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(made.parent)])
    run = StoredRun.open(folder)
    assert run.summary == 3
    assert report.write(run).read_text() == "a pendulum"
    other = paper_run.folder(tmp_path / "other", data=a_run(3), kind="pendulum", length="2 m")
    reasons = [row.reason for row in compare([folder, other])]
    assert reasons == ["the reference", "different length"]


def test_figures_and_page_are_made_if_a_file_is_missing(tmp_path, monkeypatch):
    def draw_all(dataset, figures, *, certificates, progress):
        drawn.append(figures)
        figures.mkdir(exist_ok=True)
        for path in paper_figures.files(figures, certificates):
            path.touch()

    drawn: list[Path] = []
    monkeypatch.setattr(paper_figures, "draw_all", draw_all)
    monkeypatch.setattr(paper_page, "EXPERIMENT", replace(paper_page.EXPERIMENT, render=lambda run: ""))
    run = StoredRun.open(paper_run.folder(tmp_path))
    (tmp_path / "certificate.json").write_text(json.dumps(paper_run.certificates()))
    for count, missing in enumerate((None, "figures/bounds-outside.pdf", "report.html"), start=1):
        if missing:
            (tmp_path / missing).unlink()
        for _ in range(2):
            assert report.present(run, print, anew=False).is_file()
            assert drawn == count * [tmp_path / "figures"]
    report.present(run, print)
    assert len(drawn) == 4


def test_the_same_run_gives_the_same_page_and_leaves_nothing_beside_it(folder, page):
    before = page.read_bytes()
    assert write(folder).read_bytes() == before
    assert sorted(path.name for path in folder.iterdir() if "report" in path.name) == ["report.html"]


def test_certificate(page):
    text = page.read_text()
    rows = {row[0].split("Theorem")[0]: row for row in Reader(text).rows if row and "Theorem" in row[0]}
    verdicts = {name: row[1] for name, row in rows.items()}
    assert verdicts == {
        "contraction": "holds",
        "local regret": "vacuous",
        "gradient bias": "fails",
        "unbounded": "vacuous",
        "lost cause": "not promised",
        "slow θ": "fails",
        "not measured": "not checked",
    }
    assert rows["contraction"][2:5] == ["3.2", "41", "12.8"]
    assert "A separate run of M-GAPS: 400 steps of seed 3, from θ<sub>0</sub> = 1, with Θ = [0.5, 20]" in text
    assert "<h3>Noise outside Δ(…)</h3>" in text
    assert rows["contraction"][6] == "given L_f; sampled ρ"


def test_settings_that_the_paper_leaves_open_are_marked_and_the_command_is_there(page):
    rows = {row[0]: row[1] for row in Reader(page.read_text()).rows if len(row) == 2}
    assert rows["learning_rate"] == "0.0001"
    assert rows["seeds"] == "4chosen here"
    assert ["period", "2000chosen here"] in Reader(page.read_text()).rows  # the paper gives another
    assert "selftune reproduce --seeds 4 --periods 3 --period 2000" in page.read_text()


def a_run(seeds: int) -> xr.Dataset:
    draw = np.random.default_rng(0).normal
    return xr.Dataset(
        {
            "x": (("seed", "time", "state"), draw(size=(seeds, 30, 2)), {"long_name": "state <x>"}),
            "total_cost": (("seed",), draw(size=seeds) ** 2),
            "result_code": (("seed",), np.zeros(seeds, np.int32)),
        },
        coords={"seed": np.arange(seeds), "time": np.arange(0, 300, 10), "state": np.arange(2)},
    )


def totals(page: str) -> list[list[str]]:
    return [row for row in Reader(page).rows if row[0] == "total_cost" and len(row) == 4]


def test_a_run_of_anything(tmp_path):
    data = a_run(3)
    data["result_code"][1] = 2
    data["x"][1, 5:] = np.nan
    text = write(paper_run.folder(tmp_path / "mine", data=data, kind="run")).read_text()
    kept = data.total_cost.values[[0, 2]]
    (row,) = totals(text)
    np.testing.assert_allclose(numbers(row[1])[0], kept.mean(), rtol=5e-4)  # four digits are shown
    assert "<h1>mine</h1>" in text
    assert "These seeds are left out because one of their runs failed: 1." in text
    assert text.count('class="plot"') == 1
    assert "chosen here" not in text


TABLES = """{% import "reporting/templates/parts.html" as parts %}
{% set contents = namespace(links=[]) %}
{% call(row) parts.table("costs", ["name"], ["cost"], rows) %}<th>{{ row[0] }}</th><td>{{ row[1] }}</td>{% endcall %}
{{ parts.figures(contents, "Plots", plots) }}{{ contents.links }}"""


def test_pages_share_the_macros_of_tables_and_figures():
    """The macros make all cells, escape them, and leave out a section without plots. Both pages use them."""
    template = pages.environment().from_string(TABLES)
    text = template.render(rows=[("a", 1), (HOSTILE, 2)], plots=[])
    assert Reader(text).rows == [["name", "cost"], ["a", "1"], [HOSTILE, "2"]]
    assert "<script>" not in text
    assert "Plots" not in text
    text = template.render(rows=[], plots=[{"title": "x", "caption": "", "plots": []}])
    assert "[('figures', 'Plots')]" in Markup(text).unescape()
    for name in ("experiments/user/page.html", "loop/commissioning_page.html"):
        source, _, _ = pages.environment().loader.get_source(pages.environment(), name)
        assert "parts.table(" in source
        assert "parts.figures(" in source
        assert "<table" not in source


def test_the_numbers_of_a_user_s_run():
    """Against NumPy; the band's own numbers are tested elsewhere."""
    generator = np.random.default_rng(0)
    cost, theta = generator.normal(size=(3, 40)), generator.normal(size=(3, 40, 2))
    data = xr.Dataset(
        {
            "cost": (("seed", "time"), cost),
            "theta": (("seed", "time", "parameter"), theta),
            "total_cost": ("seed", cost.sum(axis=1)),
            "result_code": ("seed", np.zeros(3, np.int32)),
        }
    )
    rows = {row.name: row for row in user_summary.rows(data)}
    expected = {
        "total_cost": cost.sum(axis=1),
        "mean cost, first tenth": cost[:, :4].mean(axis=1),
        "mean cost, last tenth": cost[:, -4:].mean(axis=1),
        "θ[0] at the end": theta[:, -1, 0],
        "θ[1] at the end": theta[:, -1, 1],
    }
    assert list(rows) == list(expected)
    for name, values in expected.items():
        row = rows[name]
        np.testing.assert_allclose([row.band.mean, row.low, row.high], [values.mean(), values.min(), values.max()])
    assert user_summary.rows(data.isel(seed=[])) == []
    assert [row.name for row in user_summary.rows(data[["total_cost"]])] == ["total_cost"]  # nothing over time


def test_a_user_s_run_that_failed_everywhere_is_shown_up_to_its_failures(tmp_path):
    data = a_run(2)
    data["result_code"][:] = 1
    data["failed_at"] = ("seed", np.array([150, 200]))
    text = write(paper_run.folder(tmp_path / "lost", data=data, kind="run")).read_text()
    assert totals(text) == []
    assert "These seeds are left out because one of their runs failed: 0, 1." in text
    assert text.count('class="plot"') == 1
    (figure,) = user_figures.on_page(data).values()
    assert figure.axes[0].x.range == (0, 210)  # a row is recorded at every tenth step


def test_the_paper_s_simulation_with_one_seed_and_one_period_has_fewer_numbers(tmp_path):
    data = paper_run.dataset().isel(seed=[0], period=[0])
    text = write(paper_run.folder(tmp_path / "one", data=data)).read_text()
    (row, *_) = [row for row in Reader(text).rows if "fixed gain" in row]
    assert numbers(row[-3]) == [1.0]
    assert "after the first period" not in text
    assert not re.search(r"\bnan\b", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("failed", [0, 1])
def test_a_single_seed_has_no_band_and_a_failed_one_no_results(tmp_path, failed):
    data = a_run(1)
    data["result_code"][0] = failed
    text = write(paper_run.folder(tmp_path / "one", data=data, kind="run")).read_text()
    assert len(totals(text)) == (not failed)
    assert ('class="plot"' in text) == (not failed)


def test_what_is_no_complete_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match="not a selftune run"):
        write(tmp_path)
    begun = paper_run.folder(tmp_path / "begun", data=a_run(2), kind="run", finish=False)
    with pytest.raises(StoreError, match="not complete"):
        write(begun)
    broken = paper_run.folder(tmp_path / "broken", data=paper_run.dataset().drop_vars("theta"))
    with pytest.raises(StoreError, match="no report can be made: dataset: expected a variable 'theta'"):
        write(broken)
    assert not [path for path in tmp_path.rglob("*report*") if path.suffix == ".html"]


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": 3}', '{"certificates": {"outside": 3}}'])
def test_a_broken_certificate_is_refused(tmp_path, text):
    (tmp_path / "certificate.json").write_text(text)
    with pytest.raises(StoreError, match=r"certificate\.json: not"):
        certificate_file.read(tmp_path)


DRAWN = """{
    plots: document.querySelectorAll(".plot").length,
    drawn: [...document.querySelectorAll(".plot")].filter((plot) => plot.querySelector(".main-svg .trace")).length,
    beyond: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    wide: [...document.querySelectorAll(".plot")].filter((plot) =>
        plot.querySelector(".main-svg").getBoundingClientRect().width > plot.clientWidth + 1).length,
}"""


@pytest.mark.parametrize("width", [pytest.param(500, marks=pytest.mark.slow), 1280])
def test_in_a_browser_every_plot_is_drawn_in_its_place_without_a_complaint(page, tmp_path, width):
    answer, console = browser.look(page, tmp_path, DRAWN, width=width)
    assert console == []
    assert answer == {"plots": 19, "drawn": 19, "beyond": 0, "wide": 0}


def test_in_a_browser_the_plots_of_a_user_s_run_are_drawn_too(tmp_path):
    data = a_run(3)
    data["cost"] = (("seed", "time"), np.geomspace(1.0, 1e-3, 90).reshape(30, 3).T)
    data["guard"] = (("seed", "time"), np.full((3, 30), float(st.Decision.LIMITED)))
    page = write(paper_run.folder(tmp_path / "mine", data=data, kind="run"))
    answer, console = browser.look(page, tmp_path, DRAWN)
    assert console == []
    assert answer == {"plots": 3, "drawn": 3, "beyond": 0, "wide": 0}


RESIZED = """new Promise((give) => {
    const plots = [...document.querySelectorAll(".plot")];
    const sizes = () => plots.map((plot) => plot.querySelector(".main-svg").getBoundingClientRect());
    const before = sizes();
    const resize = (width) => { document.body.style.width = width; window.dispatchEvent(new Event("resize")); };
    resize("900px");
    setTimeout(() => resize("700px"), 500);  // Plotly waits for a pause; only the second time it measures anew
    setTimeout(() => {
        const after = sizes();
        give({
            taller_or_lower: after.filter((size, i) => Math.abs(size.height - before[i].height) > 1).length,
            fitted: after.filter((size, i) => size.width !== before[i].width).length,
            least: Math.min(...after.map((size) => size.height)) >= 300,
        });
    }, 1500);
})"""


def test_in_a_window_of_another_size_every_plot_keeps_its_height(page, tmp_path):
    answer, console = browser.look(page, tmp_path, RESIZED)
    assert console == []
    assert answer == {"taller_or_lower": 0, "fitted": 19, "least": True}


def test_the_browser_would_have_complained(tmp_path):
    faulty = tmp_path / "faulty.html"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{pages.POLICY}">'
    fault = '<script>notThere()</script><img src="https://example.org/x.png" alt="">'
    faulty.write_text(f"<!doctype html><html><head>{policy}</head><body>{fault}</body></html>")
    answer, console = browser.look(faulty, tmp_path, "1")
    assert answer == 1
    assert any("notThere is not defined" in line for line in console)
    assert any("Content Security Policy" in line for line in console)
