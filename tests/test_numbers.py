"""Numbers for people: significant digits, the same decimal for what is read together."""

import math

import numpy as np
import pytest

from selftune.foundation.numbers import together
from selftune.reporting import pages
from selftune.reporting.statistics import Interval


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((0.0021341, 0.002101, 0.0021659), ["0.002134", "0.002101", "0.002166"]),
        ((4.268, 4.073, 4.45), ["4.268", "4.073", "4.450"]),
        ((4.151, 4.1508, 4.1512), ["4.1510", "4.1508", "4.1512"]),  # else all three would be 4.151
        ((1.0,), ["1"]),
        ((0.25, 0.5), ["0.25", "0.50"]),
        ((0.0, 0.0, 0.0), ["0", "0", "0"]),
        ((-0.0213, -0.03, -0.01), ["-0.0213", "-0.0300", "-0.0100"]),
        ((6000.0, 2.1, 18000.0), ["6,000", "2", "18,000"]),
        ((1.23456e-5, 1.1e-5, 1.4e-5), ["1.235e-05", "1.100e-05", "1.400e-05"]),
        ((3.25e12,), ["3.25e+12"]),
        ((math.inf, 1.0, math.nan), ["inf", "1", "nan"]),
        ((5e-324,), ["4.941e-324"]),
        ((4.3e12, 0.0123, 1.29e21), ["4.3e+12", "0.0123", "1.29e+21"]),  # no common decimal place fits
        ((1e308, -1e308), ["1e+308", "-1e+308"]),
    ],
)
def test_significant_digits(values, texts):
    assert together(*values) == texts


def test_what_is_shown_is_near_and_tells_what_differs():
    rng = np.random.default_rng(0)
    for _ in range(300):
        mean = 10.0 ** rng.uniform(-12, 12)
        low, high = mean - mean * 10.0 ** rng.uniform(-8, 0), mean + mean * 10.0 ** rng.uniform(-8, 0)
        shown = [float(text.replace(",", "")) for text in together(mean, low, high)]
        assert len(set(shown)) == 3
        np.testing.assert_allclose(shown, [mean, low, high], atol=0.06 * (high - low), rtol=0)


def test_texts_and_pages_have_the_same_digits():
    made = Interval(mean=0.0021341, low=0.002101, high=0.0021659)
    assert str(made) == pages.interval(made) == "0.002134 [0.002101, 0.002166]"
    cell = pages.environment().get_template("reporting/templates/parts.html").module.cell
    assert cell(made).strip() == "<td>0.002134<small>[0.002101, 0.002166]</small></td>"
    alone = Interval(mean=12.3456, low=None, high=None)
    assert str(alone) == pages.interval(alone) == pages.number(alone.mean) == "12.35"
    assert pages.number(-1.5e-7) == "−1.5 × 10<sup>-7</sup>".replace("-", "−")
    assert [pages.number(one) for one in (math.inf, -math.inf, None)] == ["∞", "−∞", '<span class="none">–</span>']
