import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st

KEY = jax.random.key(0)


def test_mean_and_shape():
    values = jax.random.normal(KEY, (8, 5, 3))
    band = st.bands(values, key=KEY)
    np.testing.assert_allclose(band.mean, np.mean(values, axis=0), rtol=1e-13)
    assert band.low.shape == band.high.shape == (5, 3)
    assert (band.low < band.mean).all()
    assert (band.mean < band.high).all()


def test_agrees_with_numpy_on_the_same_draws():
    values = jax.random.exponential(KEY, (12, 2))
    band = st.bands(values, key=KEY, level=0.9, resamples=500)
    drawn = np.asarray(jax.random.randint(KEY, (500, 12), 0, 12))
    means = np.asarray(values)[drawn].mean(axis=1)
    np.testing.assert_allclose(band.low, np.quantile(means, 0.05, axis=0), rtol=1e-12)
    np.testing.assert_allclose(band.high, np.quantile(means, 0.95, axis=0), rtol=1e-12)


def test_covers_the_true_mean_as_often_as_it_says():
    values = jax.random.normal(KEY, (16, 4000))  # 4000 experiments of 16 seeds; the true mean is 0
    band = st.bands(values, key=jax.random.key(1))
    coverage = float(jnp.mean((band.low <= 0) & (band.high >= 0)))
    # 92 %, as the docstring says. All experiments share their draws, so the spread is somewhat above the binomial's
    # 0.004; 0.02 leaves room for it.
    assert abs(coverage - 0.92) < 0.02


def test_a_large_common_value_costs_no_digits():
    values = jax.random.normal(KEY, (8,))
    near, far = st.bands(values, key=KEY), st.bands(values + 1e8, key=KEY)
    np.testing.assert_allclose(far.high - far.low, near.high - near.low, rtol=1e-6)  # 1e8 · eps = 1e-8 of a unit


def test_more_columns_than_a_batch():
    values = jax.random.normal(KEY, (4, 2500))
    band = st.bands(values, key=KEY, resamples=50)
    part = st.bands(values[:, 2400:], key=KEY, resamples=50)
    np.testing.assert_allclose(band.low[2400:], part.low, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": jnp.ones((1, 4))}, "values: expected a leading axis of at least two seeds"),
        ({"values": jnp.array([1.0, jnp.nan])}, "values: expected finite numbers"),
        ({"level": 1.0}, "level: expected a number between 0 and 1"),
        ({"resamples": 0}, "resamples: expected a whole number >= 1"),
    ],
)
def test_bad_input_is_refused_by_name(change, message):
    options = {"values": jnp.ones((4, 4)), "key": KEY} | change
    with pytest.raises(ValueError, match=message):
        st.bands(options.pop("values"), **options)
