r"""The scales that an estimator without numbers takes from its set and from its data.

- The noise level $\hat V$ of each component of f is the mean square of its innovation over the last `WINDOW` steps
  (over all steps, as long as there are fewer).
- The prior variance $P_0$ of a parameter with bounds is that of the uniform distribution between them, $w^2/12$ for
  the width w.
- Without bounds, $P_{0,i} = 1 / \sum_c (M_{ci} / F_c)$: this parameter alone would explain the innovations. $M_{ci}$ is
  the largest mean square of $J_{ci}$, and $F_c$ is the largest mean square of innovation c, both over a window. In the
  first window, $F_c$ is multiplied by the square of the share of the window that is over. So the first samples count
  little: a robot often starts at rest, where a small J would make a parameter seem large.
  $P_{0,i} = 0$ as long as the parameter had no effect, or all components that it affects had no innovation.

If a parameter, x or f gets another unit, all scales change with the unit, and the predictions stay the same.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..problem.constraints import AbstractConstraint, Ball, Box, Product, Simplex

WINDOW = 300
"""The number of steps in a mean."""


class Scales(eqx.Module):
    """Running statistics of innovations, and of the Jacobian if a parameter has no bounds."""

    count: Float[Array, ""]
    """The number of steps in the means: at most `WINDOW`."""
    noise: Float[Array, " k"]
    r"""$\hat V$, the mean square of each innovation."""
    innovation: Float[Array, " k"] | None
    """F, the largest mean square of each innovation; None if all parameters have bounds."""
    regressor: Float[Array, "k p"] | None
    """The mean square of J; None if all parameters have bounds."""
    largest_regressor: Float[Array, "k p"] | None
    """M, the largest mean square of J; None if all parameters have bounds."""


def are_bounds_known(constraint: AbstractConstraint) -> bool:
    """Return whether each parameter has two different finite bounds. False if this is not certain, as for bounds that
    are being traced.

    Estimators ask this when they are made, because the structure of their state must not depend on traced values.
    """
    if isinstance(constraint, Product):
        parts = jax.tree.leaves(constraint.parts, is_leaf=lambda node: isinstance(node, AbstractConstraint))
        return all(map(are_bounds_known, parts))
    if isinstance(constraint, Box):
        low, high = jax.tree.leaves(constraint.low), jax.tree.leaves(constraint.high)
        if len(low) != len(high):  # one of them is a single array for all leaves
            low, high = (one * (len(other) if len(one) == 1 else 1) for one, other in ((low, high), (high, low)))
        raw = arguments.known(*low, *high)
        return raw is not None and all(
            np.all(np.isfinite(b - a) & (b > a)) for a, b in zip(raw[: len(low)], raw[len(low) :], strict=True)
        )
    return isinstance(constraint, Ball | Simplex)


def begin(a_hat: PyTree, k: int, *, bounded: bool) -> Scales:
    """Return the statistics before the first step, for k components of f; `bounded`: P₀ is not to be learned."""
    flat = ravel_pytree(a_hat)[0]
    zeros = jnp.zeros((k, flat.size), flat.dtype)
    return Scales(
        count=jnp.zeros((), flat.dtype),
        noise=zeros[:, 0],
        innovation=None if bounded else zeros[:, 0],
        regressor=None if bounded else zeros,
        largest_regressor=None if bounded else zeros,
    )


def restart(scales: Scales) -> Scales:
    """Return the statistics before the first step, in the structure of `scales`."""
    return jax.tree.map(jnp.zeros_like, scales)


def observe(scales: Scales, innovation: Float[Array, " k"], J: Float[Array, "k p"]) -> Scales:
    """Return the statistics with the innovation and the Jacobian of one more step."""
    count = jnp.minimum(scales.count + 1, WINDOW)
    noise = scales.noise + (innovation**2 - scales.noise) / count
    if scales.innovation is None or scales.regressor is None or scales.largest_regressor is None:
        return Scales(count, noise, None, None, None)
    regressor = scales.regressor + (J**2 - scales.regressor) / count
    return Scales(
        count,
        noise,
        innovation=jnp.maximum(scales.innovation, noise * (count / WINDOW) ** 2),
        regressor=regressor,
        largest_regressor=jnp.maximum(scales.largest_regressor, regressor),
    )


def prior(scales: Scales, constraint: AbstractConstraint, a_hat: PyTree) -> Float[Array, " p"]:
    """Return P₀, the prior variance of each parameter; 0 as long as it is unknown."""
    variance = _bounded_variance(constraint, a_hat)
    F, M = scales.innovation, scales.largest_regressor
    if F is None or M is None:
        return variance
    ratio = jnp.where(F[:, None] > 0, M / _positive(F)[:, None], 0)
    precision = jnp.sum(ratio, axis=0)
    return jnp.where(variance > 0, variance, jnp.where(precision > 0, 1 / _positive(precision), 0))


def above_rounding(noise: Float[Array, " k"], J: Float[Array, "k p"], prior: Array) -> Float[Array, " k"]:
    """Return a noise level, but at least the rounding error of a prediction under the prior: on data without noise, the
    level would become 0."""
    least = jnp.finfo(J.dtype).eps * jnp.sum(J**2 * prior, axis=1)
    return jnp.maximum(jnp.maximum(noise, least), jnp.finfo(J.dtype).tiny)


def _bounded_variance(constraint: AbstractConstraint, a_hat: PyTree) -> Float[Array, " p"]:
    """Return w²/12 for each parameter with two different finite bounds, and 0 for all others."""
    low, high = constraint.bounds(a_hat)
    width = high - low
    return jnp.where(jnp.isfinite(width), width, 0) ** 2 / 12


def _positive(v: Array) -> Array:
    return jnp.where(v > 0, v, 1)
