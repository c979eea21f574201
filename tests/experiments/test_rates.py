"""The theory's experiments in little; `tests/regret/test_growth.py` has the one on the growth of the regret."""

import jax
import numpy as np

from selftune.experiments.rates import gradient_errors
from selftune.experiments.rates.finding import DEVELOPMENT_SEEDS

FIRST = DEVELOPMENT_SEEDS[0]


class TestGradientErrors:
    def test_theorem_2_says_something_and_holds(self):
        found = gradient_errors.find(horizons=(20_000, 40_000), seeds={20_000: 8, 40_000: 4}, first_seed=FIRST)
        assert not found.failed
        assert len(found.checks) == 12

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
