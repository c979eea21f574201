import pytest
from benchmarks._slope import measure


@pytest.mark.slow
def test_local_regret_grows_slower_than_t():
    """With η ∝ T^(-1/2), over 16 seeds and T from 2,000 to 200,000, the interval of the exponent is below 1."""
    found = measure(seeds=16)
    assert found.high < 1
    assert (found.regret[:, 1:] > found.regret[:, :-1]).all()


def test_the_exponent_on_short_horizons():
    """The same in little: what the slow test relies on works."""
    found = measure(seeds=2, horizons=(400, 1200))
    assert found.regret.shape == (2, 2)
    assert (found.regret[:, 1] > found.regret[:, 0]).all()
    assert found.low <= found.slope <= found.high < 2
