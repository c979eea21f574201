"""The figures: what is in them, and that they depend on the data alone."""

import matplotlib as mpl
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Text

from selftune.experiments.paper import figures, quantities
from selftune.reporting import print_figures, style
from tests import paper_run

FIGURES = {
    "parameters": [r"$a^*$, $\hat a$", r"$\|\hat a - a^*\|$", r"$\hat a_1$", r"$a^*_3$", "step $t$ / 1000"],
    "gain_traces": [r"$\theta$", "M-GAPS", "fixed gain", "best static gain", "noise inside Δ(…)"],
    "model_error": [r"$|\phi(x)\hat a - \phi(x)a^*|$", r"from $\theta_0 = \theta_a = 0.5$"],
    "tracking_error": ["$x$", r"seed 0, from $\theta_0 = \theta_a = 0.5$"],
    "regret_difference": ["cumulative cost, M-GAPS minus fixed gain", r"$\theta_0 = 3$"],
    "local_regret": [r"$R^L_\eta(T)$", "$T$", "slope 1"],
    "overview": ["total cost / total cost of the best static gain", "GAPS", "exact model"],
}


@pytest.fixture(scope="module")
def data():
    return paper_run.dataset()


def texts(figure) -> list[Text]:
    figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


@pytest.mark.parametrize("name", FIGURES)
def test_labels_sizes_and_colours(data, name):
    figure = getattr(figures, name)(data)
    found = texts(figure)
    assert set(FIGURES[name]) <= {text.get_text() for text in found}
    assert min(float(text.get_fontsize()) for text in found) >= 8
    assert figure.get_size_inches()[0] == print_figures.WIDTH
    for axis in figure.axes:
        drawn = [line.get_color() for line in axis.lines]
        drawn += [color for band in axis.collections for color in (*band.get_facecolor(), *band.get_edgecolor())]
        assert drawn
        assert {matplotlib.colors.to_hex(color).upper() for color in drawn} <= set(style.PALETTE)


def test_bounds_place_every_kind_of_row():
    rows = paper_run.certificate()["rows"]
    figure = figures.bounds({"rows": rows})
    found = {text.get_text() for text in texts(figure)}
    assert {row["name"] for row in rows if row["name"] != "slow θ"} | {"bound, not promised"} | {
        "measured",
        "bound, vacuous",
        "bound, fails",
        "bound, not checked",
    } <= found
    lines = figure.axes[0].lines
    assert len(lines) >= len(rows) - 1
    assert all(np.isfinite(line.get_xdata()).all() for line in lines)


def test_lines_are_the_data(data):
    figure = figures.regret_difference(data)
    for row, gain in enumerate(paper_run.GAINS):
        for column, noise in enumerate(paper_run.NOISES):
            cost = data.cumulative_cost.sel(noise=noise, gain=gain)
            expected = (cost.sel(algorithm="M-GAPS") - cost.sel(algorithm="fixed gain")).values.mean(axis=0)
            drawn = figure.axes[2 * row + column].lines[0].get_ydata()
            # Both are sums of the same numbers, in another order.
            np.testing.assert_allclose(drawn, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_the_tracking_error_is_x_of_one_seed_and_the_size_of_all(data):
    figure = figures.tracking_error(data, seed=2, gain=3.0)
    for axis, noise in zip(figure.axes, paper_run.NOISES, strict=True):
        words = [str(quantities.NOISE[noise]), "\nRMS of all seeds: "]
        for line, name in zip(axis.lines, ("fixed gain", "M-GAPS"), strict=False):
            x = data.x.sel(noise=noise, gain=3.0, algorithm=name)
            np.testing.assert_array_equal(line.get_ydata(), x.sel(seed=2))
            words.append(f"{name} {np.sqrt(np.mean(x.values**2)):.3g}{', ' if name == 'fixed gain' else ''}")
        assert axis.get_title(loc="left") == "".join(words)


def test_the_slope_of_a_power_law_is_its_power(data):
    powers = np.array([0.5, 0.7, 0.9, 0.7])[:, None] * np.ones((2, 2, 1, 1))
    regret = data.local_regret.copy(data=3.0 * data.horizon.values**powers)
    regret[..., 3, :] = np.nan  # a seed of which it was not computed
    slopes = quantities.slopes(data.assign(local_regret=regret))
    # Exact but for the rounding of logarithms.
    np.testing.assert_allclose(slopes.sel(band="mean"), 0.7, rtol=1e-12)
    assert (slopes.sel(band="low") >= 0.5 - 1e-12).all()


@pytest.mark.slow
def test_draw_all_gives_the_same_bytes_and_changes_no_setting(data, tmp_path):
    before = dict(mpl.rcParams)
    made = figures.draw_all(data, tmp_path / "figures", certificates=paper_run.certificates()["certificates"])
    assert [path.suffix for path in made] == [".png", ".pdf"] * 9
    assert sorted(made) == sorted((tmp_path / "figures").iterdir())
    for path in print_figures.save(figures.gain_traces(data), tmp_path / "gain"):
        assert path.read_bytes() == (tmp_path / "figures" / path.name).read_bytes(), path.name
    assert not [path for path in made if b"CreationDate" in path.read_bytes()]
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == []


def test_a_seed_that_failed_is_left_out_and_one_seed_has_no_band(data):
    code = data.result_code.copy()
    code[0, 0, 0, 1:] = 1
    figure = figures.gain_traces(data.assign(result_code=code))
    expected = data.theta.sel(noise="outside", gain=0.5, algorithm="M-GAPS", seed=0)
    np.testing.assert_array_equal(figure.axes[0].lines[2].get_ydata(), expected)
    code[0, 0, 0, 0] = 2
    with pytest.raises(ValueError, match="dataset: expected a seed without failed runs, got none of 4"):
        figures.gain_traces(data.assign(result_code=code))


def test_what_is_not_the_paper_s_simulation_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match="dataset: expected a variable 'x' with dimensions"):
        figures.draw_all(data.drop_vars("x"), tmp_path)
    with pytest.raises(ValueError, match="dataset: expected 'x' with dimensions"):
        figures.overview(data.assign(x=data.x.isel(noise=0, drop=True)))
    with pytest.raises(ValueError, match="dataset: expected an algorithm 'exact model'"):
        figures.overview(data.sel(algorithm=["M-GAPS", "fixed gain"]))
    with pytest.raises(ValueError, match=r"gain: expected one of \[0.5, 3.0\], got 2.0"):
        figures.model_error(data, gain=2.0)
