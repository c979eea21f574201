"""The theory's experiments in little; `tests/regret/test_growth.py` has the one on the growth of the regret."""

import jax
import numpy as np
import pytest

from selftune.experiments.rates import figures, gradient_errors, run, switches, truncation
from selftune.experiments.rates.finding import DEVELOPMENT_SEEDS
from tests import browser, drawings

FIRST = DEVELOPMENT_SEEDS[0]


class TestGradientErrors:
    def test_theorem_2_says_something_and_holds(self):
        found = gradient_errors.find(horizons=(20_000, 40_000), seeds={20_000: 8, 40_000: 4}, first_seed=FIRST)
        assert not found.failed
        assert len(found.checks) == 11
        drawings.check(figures.gradient_errors(found))

    def test_the_bounds_by_hand(self):
        """R₀ ≤ ε̄³T = 2.5, and 6 ε̄ T < β² T."""
        radius = 0.05 / 0.55
        np.testing.assert_allclose(
            gradient_errors.loss_bound(20_000, 0.0), 0.9 * 2 * radius * 0.9 * radius * np.sqrt(20_000), rtol=1e-12
        )
        assert 1.89 < gradient_errors.loss_bound(20_000, 0.0) < 1.90 < 0.05**3 * 20_000
        np.testing.assert_allclose(gradient_errors.gradient_bound(20_000), 6_000)
        np.testing.assert_allclose(gradient_errors.trivial(20_000), 16_200)

    def test_the_estimators_loss_by_hand(self):
        """Exact observations: (a − â)² falls by 4 ι ε² (1 − ι x²) at each step, and in all by 0.9²."""
        iota = gradient_errors.learning_rate(20_000, 0.0)
        loss, gradient = gradient_errors.one_run(20_000, gradient_errors.CASES[0], jax.random.key(FIRST))
        np.testing.assert_allclose(loss, 0.9**2 / (4 * iota), rtol=4e-3)
        assert 400 < gradient < 600  # 0.9² / (4 ι E x²), the first steps' larger x apart

    def test_the_held_error_is_half_the_bound(self):
        _, gradient = gradient_errors.one_run(20_000, gradient_errors.CASES[2], jax.random.key(FIRST))
        np.testing.assert_allclose(gradient, 2.7 * 0.05 * 19_999)


class TestGAPS:
    @pytest.mark.slow
    def test_the_buffer_that_it_needs_grows_with_the_logarithm_of_t(self):
        found = truncation.find(
            horizons=(1_000, 100_000, 1_000_000),
            buffers=(8, 14, 16, 20, 22, 24, 26),
            seeds=2,
            first_seed=FIRST,
            timed=(),
        )
        assert not found.failed
        assert len(found.checks) == 4

    def test_the_needed_buffer_by_hand(self):
        """An error of floor + 0.5^B: an excess of 5 % of the floor is reached at B = log2(20 / floor)."""
        buffers = (2, 4, 8, 16)
        errors = 1e-3 + 0.5 ** np.array(buffers)
        assert truncation.needed(buffers, errors, 1e-3) == pytest.approx(np.log2(20e3))
        assert np.isnan(truncation.needed(buffers[:2], errors[:2], 1e-3))
        assert truncation.needed(buffers, np.full(4, 1e-3), 1e-3) == 2


class TestSwitches:
    def test_recovery_and_growth(self):
        found = switches.find(
            rates=(0.01, 0.04), sizes=(0.1, 0.4), horizons=(4_000, 16_000), switches=32, seeds=8, first_seed=FIRST
        )
        assert not found.failed
        assert len(found.checks) == 10

    def test_recovery_by_hand(self):
        """ε² falls from 1 by 0.9 a step after each switch: to a tenth in ln 10 / ln(1/0.9) steps, and to 10 in all."""
        errors = np.tile(0.9 ** np.arange(switches.SPACING), 3)
        found = switches.recovery(switches.Trace(errors, 2 * errors))
        assert found.time == pytest.approx(np.log(10) / np.log(1 / 0.9), rel=1e-3)
        assert found.squared_error == pytest.approx(10.0)
        assert found.cost == pytest.approx(20.0)

    def test_a_star_switches_as_often_as_asked(self):
        a_star = np.asarray(switches.scenario(1_000, 7, 0.2, jax.random.key(0)).a_star)
        assert np.count_nonzero(np.diff(a_star[:, 0])) == 7
        assert abs(a_star).max() == 0.1


def test_findings_are_kept_and_read_back(tmp_path):
    """Of a second experiment beside the first, whose findings stay; the page has both figures."""
    small = dict(horizons=(20_000, 40_000), seeds={20_000: 2, 40_000: 2}, first_seed=FIRST)
    first = gradient_errors.find(**small)
    run.write(tmp_path, {"gradient-errors": first})
    second = first.model_copy(update={"name": "gradient-errors", "title": "another"})
    page = run.write(tmp_path, {"gaps": second})
    assert run.read(tmp_path) == {"gradient-errors": first, "gaps": second}
    text = page.read_text()
    assert [text.count(f'class="plot" id="{name}-0"') for name in ("gradient-errors", "gaps")] == [1, 1]
    assert "All 22 checks hold." in text
    lines = "[...document.querySelectorAll('.plot')].map((plot) => plot.querySelectorAll('.lines > .js-line').length)"
    drawn, console = browser.look(page, tmp_path, lines)
    assert (drawn, console) == ([8, 8], [])  # three estimators with their bands, the bound and the trivial bound
