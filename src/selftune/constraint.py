"""Where parameters may be: closed convex sets with their Euclidean projections (from optax)."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, PyTree

from . import _check


class AbstractConstraint(eqx.Module):
    r"""A closed convex set, $\Theta$ of a tuner or $\mathcal{A}$ of an estimator.

    A number that is not finite never projects to a bound: it becomes NaN, so that what checks the numbers sees it.
    """

    @abc.abstractmethod
    def project(self, v: PyTree) -> PyTree:
        r"""The Euclidean projection $\Pi(v)$: same structure, shapes and dtype as `v`."""

    @abc.abstractmethod
    def contains(self, v: PyTree) -> Bool[Array, ""]:
        """Whether `v` is in the set, up to the rounding of a projection."""


class Unconstrained(AbstractConstraint):
    """The whole space: `project` is the identity.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> print(st.Unconstrained().project(jnp.array([-3.0, 7.0])))
        [-3.  7.]
    """

    def project(self, v: PyTree) -> PyTree:
        return v

    def contains(self, v: PyTree) -> Bool[Array, ""]:
        return _all(jax.tree.map(lambda leaf: ~jnp.isnan(leaf), v))


class Box(AbstractConstraint):
    r"""$\{v : \text{low} \le v \le \text{high}\}$, elementwise.

    `low` and `high` are numbers, arrays that broadcast to every leaf, or pytrees like the parameter's own.
    An infinite bound is no bound.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> print(st.Box(0.0, [1.0, 5.0]).project(jnp.array([2.0, 2.0])))
        [1. 2.]
    """

    low: PyTree
    high: PyTree

    def __init__(self, low: Any, high: Any):
        self.low = _bound("low", low)
        self.high = _bound("high", high)
        if jax.tree.structure(self.low) == jax.tree.structure(self.high):
            pairs = zip(jax.tree.leaves(self.low), jax.tree.leaves(self.high), strict=True)
        elif isinstance(self.low, jax.Array):
            pairs = ((self.low, high) for high in jax.tree.leaves(self.high))
        elif isinstance(self.high, jax.Array):
            pairs = ((low, self.high) for low in jax.tree.leaves(self.low))
        else:
            raise ValueError(
                f"high: expected the structure of low, {jax.tree.structure(self.low)}, "
                f"got {jax.tree.structure(self.high)}"
            )
        for low_leaf, high_leaf in pairs:
            try:
                jnp.broadcast_shapes(low_leaf.shape, high_leaf.shape)
            except ValueError:
                raise ValueError(
                    f"high: expected a shape that fits low's {low_leaf.shape}, got {high_leaf.shape}"
                ) from None
            if (raw := _check.known(low_leaf, high_leaf)) and not np.all(raw[0] <= raw[1]):
                raise ValueError(f"low: expected low <= high everywhere, got low={low_leaf}, high={high_leaf}")

    def project(self, v: PyTree) -> PyTree:
        projected = optax.projections.projection_box(
            v, self._like("low", self.low, v), self._like("high", self.high, v)
        )
        # An overflow is no gain: without this, an infinite step would end at a bound and look like one.
        return jax.tree.map(lambda leaf, box: jnp.where(jnp.isfinite(leaf), box, jnp.nan), v, projected)

    def contains(self, v: PyTree) -> Bool[Array, ""]:
        low, high = self._like("low", self.low, v), self._like("high", self.high, v)
        return _all(jax.tree.map(lambda leaf, low, high: (low <= leaf) & (leaf <= high), v, low, high))

    @staticmethod
    def _like(name: str, bound: PyTree, v: PyTree) -> PyTree:
        if isinstance(bound, jax.Array):
            bound = jax.tree.map(lambda _: bound, v)
        elif jax.tree.structure(bound) != jax.tree.structure(v):
            raise ValueError(
                f"{name}: expected the structure of the parameter, {jax.tree.structure(v)}, "
                f"got {jax.tree.structure(bound)}"
            )

        return jax.tree.map(lambda b, leaf: _check.fit_shape(name, b, leaf.shape).astype(leaf.dtype), bound, v)


class Ball(AbstractConstraint):
    r"""$\{v : \|v - \text{center}\|_2 \le \text{radius}\}$, the norm taken over all leaves together.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> print(st.Ball(1.0).project(jnp.array([3.0, 4.0])))
        [0.6 0.8]
    """

    radius: Array
    center: PyTree

    def __init__(self, radius: Any, center: Any = None):
        self.radius = _check.positive("radius", radius)
        self.center = None if center is None else _check.real_tree("center", center)

    def _offset(self, v: PyTree) -> PyTree:
        if self.center is None:
            return v
        if jax.tree.structure(self.center) != jax.tree.structure(v):
            raise ValueError(
                f"center: expected the structure of the parameter, {jax.tree.structure(v)}, "
                f"got {jax.tree.structure(self.center)}"
            )
        return jax.tree.map(
            lambda leaf, c: leaf - _check.fit_shape("center", c, leaf.shape).astype(leaf.dtype), v, self.center
        )

    def project(self, v: PyTree) -> PyTree:
        offset = self._offset(v)
        dtype = jnp.result_type(*jax.tree.leaves(offset))
        radius = self.radius.astype(dtype)
        # A far point is first brought near along its ray, which leaves its projection where it was: the square of
        # its norm would overflow, and an overflow would project to the centre.
        largest = _largest(jax.tree.map(jnp.abs, offset))
        near = jax.tree.map(lambda leaf: leaf / jnp.maximum(largest / radius, 1), offset)
        projected = optax.projections.projection_l2_ball(near, radius)
        if self.center is None:
            return projected
        return jax.tree.map(lambda leaf, c: leaf + c.astype(leaf.dtype), projected, self.center)

    def contains(self, v: PyTree) -> Bool[Array, ""]:
        offset = self._offset(v)
        norm = optax.tree.norm(offset)
        # The projection is exact to rounding of numbers of the size of radius and center.
        scale = self.radius.astype(norm.dtype) + optax.tree.norm(jax.tree.map(jnp.subtract, v, offset))
        return norm <= self.radius.astype(norm.dtype) + 8 * jnp.finfo(norm.dtype).eps * scale


class Simplex(AbstractConstraint):
    r"""$\{v : v \ge 0, \sum_i v_i = \text{total}\}$, over all leaves together: mixtures and shares.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> print(st.Simplex().project(jnp.array([1.0, 1.0])))
        [0.5 0.5]
    """

    total: Array

    def __init__(self, total: Any = 1.0):
        self.total = _check.positive("total", total)

    def project(self, v: PyTree) -> PyTree:
        dtypes = jax.tree.map(lambda leaf: leaf.dtype, v)
        bad = ~_all(jax.tree.map(jnp.isfinite, v))
        total = self.total.astype(jnp.result_type(*jax.tree.leaves(v)))
        # A shift of all entries moves nothing, and an entry `total` below the largest ends at zero however far below:
        # so numbers of the size of `total` are enough, and no digits are lost to large ones.
        largest = _largest(v)
        near = jax.tree.map(lambda leaf: jnp.maximum(leaf - largest, -total), v)
        with jax.numpy_dtype_promotion("standard"):  # optax divides by an integer range
            projected = optax.projections.projection_simplex(near, total)
        return jax.tree.map(lambda leaf, dtype: jnp.where(bad, jnp.nan, leaf.astype(dtype)), projected, dtypes)

    def contains(self, v: PyTree) -> Bool[Array, ""]:
        leaves = jax.tree.leaves(v)
        total = self.total.astype(jnp.result_type(*leaves))
        mass = sum(jnp.sum(leaf) for leaf in leaves)
        size = sum(leaf.size for leaf in leaves)
        tolerance = 8 * size * jnp.finfo(total.dtype).eps * total
        return _all(jax.tree.map(lambda leaf: leaf >= 0, v)) & (jnp.abs(mass - total) <= tolerance)


class Product(AbstractConstraint):
    """One constraint for each part of a pytree: `parts` has the parameter's structure at its top.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> gains = st.Product({"kp": st.Box(0.0, 9.0), "mix": st.Simplex()})
        >>> projected = gains.project({"kp": jnp.array([-1.0, 4.0]), "mix": jnp.array([3.0, 3.0])})
        >>> print(projected["kp"], projected["mix"])
        [0. 4.] [0.5 0.5]
    """

    parts: PyTree

    def __check_init__(self) -> None:
        leaves = jax.tree.leaves(self.parts, is_leaf=_is_constraint)
        if not leaves or not all(_is_constraint(leaf) for leaf in leaves):
            raise ValueError(f"parts: expected a pytree of constraints, got {self.parts!r}")

    def _map(self, function: Any, v: PyTree) -> PyTree:
        try:
            return jax.tree.map(function, self.parts, v, is_leaf=_is_constraint)
        except ValueError as error:
            raise ValueError(f"parts: expected the structure of the parameter: {error}") from error

    def project(self, v: PyTree) -> PyTree:
        return self._map(lambda part, leaf: part.project(leaf), v)

    def contains(self, v: PyTree) -> Bool[Array, ""]:
        return _all(self._map(lambda part, leaf: part.contains(leaf), v))


def _is_constraint(node: Any) -> bool:
    return isinstance(node, AbstractConstraint)


def _largest(tree: PyTree) -> Array:
    return jnp.max(jnp.stack([jnp.max(leaf) for leaf in jax.tree.leaves(tree)]))


def _all(tree: PyTree) -> Array:
    return jnp.stack([jnp.all(leaf) for leaf in jax.tree.leaves(tree)]).all()


def _bound(name: str, bound: Any) -> PyTree:
    bound = jax.tree.map(lambda leaf: _check.real_array(name, leaf, finite=False), bound, is_leaf=_check.is_plain)
    for leaf in jax.tree.leaves(bound):
        if (raw := _check.known(leaf)) and np.any(np.isnan(raw[0])):
            raise ValueError(f"{name}: expected no NaN, got {leaf}")
    return bound
