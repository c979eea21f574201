from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError

_COLUMNS = 1024


class Bands(eqx.Module):
    """The mean over seeds and its interval, with the shape of one seed's values.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> costs = jnp.array([[1.0, 4.0], [3.0, 4.0]])  # two seeds, two steps
        >>> band = st.bands(costs, key=jax.random.key(0))
        >>> print(band.mean, band.low[1], band.high[1])  # both seeds agree at the second step
        [2. 4.] 4.0 4.0
    """

    __repr__ = settings_text.show

    mean: Float[Array, "..."]
    low: Float[Array, "..."]
    high: Float[Array, "..."]


def bands(values: Any, *, key: PRNGKeyArray, level: float = 0.95, resamples: int = 1000) -> Bands:
    r"""The mean over seeds, with a bootstrap confidence interval (Efron's percentile interval).

    Whole seeds are drawn with replacement, `resamples` times; low and high are the quantiles (1 ± level)/2 of the
    means. With few seeds the interval is somewhat narrow: for 16 normal values and level 0.95 it covers the true mean
    in about 92 % of cases.

    **Arguments:** `values`: (seeds, …), with at least two seeds, such as the result of `vmap` over seeds for any
    metric. `key`: for the draws. Memory does not grow with `resamples` × size.

    !!! Example

        >>> import jax, selftune as st
        >>> values = 3.0 + jax.random.normal(jax.random.key(0), (64, 100))
        >>> band = st.bands(values, key=jax.random.key(1))
        >>> band.mean.shape, bool((band.low < band.mean).all())
        ((100,), True)
    """
    array = arguments.real_array("values", values)
    if array.ndim == 0 or array.shape[0] < 2:
        raise ArgumentError("values", "a leading axis of at least two seeds", arguments.describe(array))
    key = arguments.key("key", key)
    level_ = arguments.number("level", level, lambda v: (v > 0) & (v < 1), "a number between 0 and 1")
    return _bands(array, key, level_, arguments.count("resamples", resamples))


@eqx.filter_jit
def _bands(values: Array, key: PRNGKeyArray, level: Array, resamples: int) -> Bands:
    seeds, shape = values.shape[0], values.shape[1:]
    columns = values.reshape(seeds, -1)
    drawn = jax.random.randint(key, (resamples, seeds), 0, seeds)
    share = jax.vmap(lambda row: jnp.zeros(seeds, values.dtype).at[row].add(1 / seeds))(drawn)
    quantiles = (jnp.stack([1 - level, 1 + level]) / 2).astype(values.dtype)
    mean = jnp.mean(columns, axis=0)
    # Deviations from the mean, so that a large common value costs no digits.
    deviations = columns - mean

    def interval(column: Array) -> Array:
        return jnp.quantile(share @ column, quantiles)

    low, high = jax.lax.map(interval, deviations.T, batch_size=_COLUMNS).T
    return Bands(mean.reshape(shape), (mean + low).reshape(shape), (mean + high).reshape(shape))
