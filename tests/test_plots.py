"""The figures of the paper's simulation: their descriptions, and that both renderers draw all of a description."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Text

from selftune.experiments.paper import figures, quantities
from selftune.reporting import matplotlib_figures, plotly_figures, style
from selftune.reporting.figure import Axes, Axis, Cells, Figure, Rule, Scale, Series, literal
from selftune.reporting.figure import Text as Note
from tests import drawings, paper_run

LABELS = {
    "overview": ["total cost / total cost of the best static gain", "M-GAPS", "GAPS", "exact model", "M-GAPS, η/Δ²"],
    "parameters": [r"$a^*$, $\hat a$", r"$‖\hat a - a^*‖$", r"$\hat a_1$", "$a^*_3$", "step $t$ / 1000"],
    "gain": ["$θ$", "M-GAPS", "fixed gain", "best static gain", "noise inside Δ(…)"],
    "model-error": [r"$|φ(x)\hat a - φ(x)a^*|$", "from $θ_0 = θ_a = 0.5$"],
    "tracking-error": ["$x$", "seed 0, from $θ_0 = θ_a = 0.5$"],
    "regret-difference": ["difference of costs", "noise inside Δ(…),\nfrom $θ_0 = 3$"],
    "local-regret": ["$R^L_η(T)$", "$T$", "slope 1"],
}


@pytest.fixture(scope="module")
def data():
    return paper_run.dataset()


@pytest.fixture(scope="module")
def made(data):
    return figures.make_figures(data)


@pytest.mark.parametrize("name", LABELS)
def test_both_renderers_draw_every_series_in_colours_that_all_readers_distinguish(made, name):
    figure = made[name]
    printed = drawings.check(figure)
    texts = [text for text in printed.findobj(Text) if text.get_text() and text.get_visible()]
    assert set(LABELS[name]) <= {text.get_text() for text in texts}
    assert min(float(text.get_fontsize()) for text in texts) >= 8
    assert printed.get_size_inches()[0] == 3.4
    for axes in figure.axes:
        assert {series.color for series in axes.series} <= set(style.PALETTE)


def test_an_algorithm_has_the_same_colour_in_every_figure(made):
    for name in ("overview", "gain", "model-error", "tracking-error"):
        for axes in made[name].axes:
            for series in axes.series:
                algorithm = series.label.partition(" (")[0]
                assert quantities.COLORS.get(algorithm, series.color) == series.color


def test_bounds_place_every_kind_of_row():
    rows = paper_run.certificate()["rows"]
    figure = figures.bounds({"rows": rows}, "outside")
    drawings.check(figure)
    (axes,) = figure.axes
    assert axes.y.ticks is not None
    assert axes.y.ticks[1] == [row["name"] for row in rows if row["name"] != "slow θ"]
    assert {series.label for series in axes.series} == {
        *("", "measured", "measured, 0", "bound, holds", "bound, vacuous", "bound, fails", "bound, not promised"),
        *("bound, not checked", "bound, none or infinite"),
    }
    assert [series.label for series in axes.series if series.is_hollow] == ["bound, vacuous"]
    assert all(np.isfinite(series.x).all() for series in axes.series)


def test_bounds_beyond_single_precision_and_without_end_have_a_place():
    row = dict(name="huge", reference="", statement="", holds=True, measured=1e-50, bound=1e40)
    figure = figures.bounds({"rows": [row, row | dict(measured=2.0, bound=None)]}, "outside")
    drawings.check(figure)
    lines = [series for series in figure.axes[0].series if series.line]
    assert [list(series.x) for series in lines] == [[1e-50, 1e40], [2.0, pytest.approx(1e41)]]
    assert [series.line for series in lines] == ["-", ":"]
    (endless,) = [series for series in figure.axes[0].series if series.label == "bound, none or infinite"]
    assert list(endless.y) == [1]


def test_lines_are_the_data(data, made):
    axes = iter(made["regret-difference"].axes)
    for gain in paper_run.GAINS:
        for noise in paper_run.NOISES:
            cost = data.cumulative_cost.sel(noise=noise, gain=gain)
            expected = (cost.sel(algorithm="M-GAPS") - cost.sel(algorithm="fixed gain")).values.mean(axis=0)
            (series,) = next(axes).series
            # Both are sums of the same numbers, in another order.
            np.testing.assert_allclose(series.y, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_the_tracking_error_is_x_of_one_seed_and_the_size_of_all(data, made):
    for axes, noise in zip(made["tracking-error"].axes, paper_run.NOISES, strict=True):
        for series, name in zip(axes.series, paper_run.ALGORITHMS, strict=True):
            x = data.x.sel(noise=noise, gain=0.5, algorithm=name)
            np.testing.assert_array_equal(series.y, x.sel(seed=0))
            assert series.label == f"{name} ({np.sqrt(np.mean(x.values**2)):.3g})"
            assert series.on_request == (name not in ("M-GAPS", "fixed gain"))


def test_the_slope_of_a_power_law_is_its_power(data):
    powers = np.array([0.5, 0.7, 0.9, 0.7])[:, None] * np.ones((2, 2, 1, 1))
    regret = data.local_regret.copy(data=3.0 * data.horizon.values**powers)
    regret[..., 3, :] = np.nan  # a seed of which it was not computed
    slopes = quantities.slopes(data.assign(local_regret=regret))
    # Exact but for the rounding of logarithms.
    np.testing.assert_allclose(slopes.sel(band="mean"), 0.7, rtol=1e-12)
    assert (slopes.sel(band="low") >= 0.5 - 1e-12).all()


@pytest.mark.slow
def test_draw_all_gives_the_same_bytes_and_changes_no_setting(data, made, tmp_path):
    before = dict(mpl.rcParams)
    certificates = paper_run.certificates()["certificates"]
    files = figures.draw_all(data, tmp_path / "figures", certificates=certificates)
    assert files == figures.files(tmp_path / "figures", certificates)
    assert sorted(files) == sorted((tmp_path / "figures").iterdir())
    for path in matplotlib_figures.save({"gain": made["gain"]}, tmp_path):
        assert path.read_bytes() == (tmp_path / "figures" / path.name).read_bytes(), path.name
    assert not [path for path in files if b"CreationDate" in path.read_bytes()]
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == []


def test_saving_does_not_follow_a_link(made, tmp_path):
    """The folder of a run may come from elsewhere."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "figures").mkdir()
    for path in matplotlib_figures.files_of(tmp_path / "figures" / "gain"):
        path.symlink_to(tmp_path / "victim")
    matplotlib_figures.save({"gain": made["gain"]}, tmp_path / "figures")
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_seed_that_failed_is_left_out_and_one_seed_has_no_band(data):
    code = data.result_code.copy()
    code[0, 0, 0, 1:] = 1
    figure = figures.make_figures(data.assign(result_code=code))["gain"]
    expected = data.theta.sel(noise="outside", gain=0.5, algorithm="M-GAPS", seed=0)
    np.testing.assert_array_equal(figure.axes[0].series[0].y, expected)
    assert np.isnan(figure.axes[0].series[0].low).all()
    drawings.check(figure)
    code[0, 0, 0, 0] = 2
    with pytest.raises(ValueError, match="dataset: expected a seed without failed runs, got none of 4"):
        figures.make_figures(data.assign(result_code=code))


def test_what_is_not_the_paper_s_simulation_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match="dataset: expected a variable 'x' with dimensions"):
        figures.draw_all(data.drop_vars("x"), tmp_path)
    with pytest.raises(ValueError, match="dataset: expected 'x' with dimensions"):
        figures.make_figures(data.assign(x=data.x.isel(noise=0, drop=True)))
    with pytest.raises(ValueError, match="dataset: expected an algorithm 'exact model'"):
        figures.make_figures(data.sel(algorithm=["M-GAPS", "fixed gain"]))


def test_every_part_of_a_description_is_drawn():
    costs, failed = np.array([[1.0, np.nan], [2.0, 3.0]]), np.array([[False, True], [False, False]])
    words = np.array([["1", "× 2"], ["2", "3"]], object)
    scale = Scale(1.0, 3.0, True, "cost")
    points = Series([1, 2], [3, 1], style.BLUE, line="", marker="o", costs=[2.0, 1.0], hover=["a", "b"])
    crosses = Series([1, 2], [4, 4], style.GREY, "failed", line="", marker="x", words=["7", "8"])
    rules = [Rule(x=1), Rule(y=2, line=":"), Rule(x=1.2, end=1.5, color=style.SKY, label="allowed")]
    notes = [Note(2, "3 of 4 failed", style.GREEN)]
    categories = Axis("setting", ticks=([0, 1], ["<b>", literal("$")]))
    figure = Figure(
        "title",
        "caption",
        [
            Axes([points, crosses], Axis("x"), Axis("y", is_log=True), rules=rules, texts=notes, scale=scale),
            Axes([], categories, categories, cells=Cells(costs, words, words, failed, (0, 0)), scale=scale),
        ],
        columns=2,
        share_x=False,
    )
    printed = drawings.check(figure)
    first, second = printed.axes[:2]
    assert {"3 of 4 failed", "7", "8"} <= {text.get_text() for text in first.texts}
    assert len(first.lines) == 1 + 2  # the crosses and two rules
    assert len(first.patches) == 1  # the area
    assert {text.get_text() for text in second.texts} == {"1", "× 2", "2", "3"}
    assert [bool(patch.get_hatch()) for patch in second.patches] == [True, False]
    page, cells = (plotly_figures.draw(axes) for axes in figure.axes)
    assert page.layout.yaxis.type == "log"
    assert list(page.data[1].marker.color) == pytest.approx(np.log10([2.0, 1.0]))
    assert cells.layout.xaxis.ticktext == ("&lt;b&gt;", "$")
    np.testing.assert_allclose(cells.data[0].z, np.log10(costs))
    assert (list(cells.data[1].x), list(cells.data[1].y)) == ([1], [0])  # the cell that failed


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a < b & $c$", "a &lt; b &amp; c"),
        (r"$θ_0 = 0.5$, $R^L_η(T)$", "θ<sub>0</sub> = 0.5, R<sup>L</sup><sub>η</sub>(T)"),
        (r"$|φ(x)\hat a - φ(x)a^*|$", "|φ(x)â − φ(x)a*|"),
        (r"$T^{5/6}$, $ε_t'^{2}$", "T<sup>5/6</sup>, ε<sub>t</sub>′<sup>2</sup>"),
        (literal("$5 and $6_0"), "$5 and $6_0"),
    ],
)
def test_texts_of_a_page_have_formulas_and_are_escaped(text, html):
    assert plotly_figures.to_html(text) == html


def test_a_series_draws_its_interval_as_a_band_or_as_whiskers():
    ends = dict(low=[0.0, 1.0], high=[2.0, 4.0])
    band = Series([1, 2], [1, 3], style.BLUE, "band", **ends)
    across = Series([1, 3], [1, 2], style.GREEN, "across", line="", marker="o", is_interval_of_x=True, **ends)
    up = Series([1, 2], [1, 3], style.SKY, "up", line="", marker="s", **ends)
    figure = Figure("", "", [Axes([band, across, up], Axis(), Axis())])
    area, flat, tall = drawings.check(figure).axes[0].collections
    assert area.get_paths()[0].vertices[:, 1].max() == 4.0
    assert [segment.tolist() for segment in flat.get_segments()] == [[[0, 1], [2, 1]], [[1, 2], [4, 2]]]
    assert [segment.tolist() for segment in tall.get_segments()] == [[[1, 0], [1, 2]], [[2, 1], [2, 4]]]
    page = {(trace.name, trace.fill): trace for trace in plotly_figures.draw(figure.axes[0]).data}
    assert list(page[None, "toself"].y) == [2, 4, 1, 0]
    assert (list(page["across", None].error_x.array), list(page["across", None].error_x.arrayminus)) == ([1, 1], [1, 2])
    assert (list(page["up", None].error_y.array), list(page["up", None].error_y.arrayminus)) == ([1, 1], [1, 2])


def test_a_band_with_a_gap_has_two_areas_on_the_page():
    series = Series(np.arange(4.0), [1, np.nan, 1, 1], style.BLUE, low=[0, np.nan, 0, 0], high=[2, np.nan, 2, 3])
    area, _ = plotly_figures.draw(Axes([series], Axis(), Axis())).data
    np.testing.assert_array_equal(area.x, [0, 0, np.nan, 2, 3, 3, 2])
    np.testing.assert_array_equal(area.y, [2, 0, np.nan, 2, 3, 0, 0])
