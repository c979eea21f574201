"""Constraints on parameters: closed convex sets, with projections in the Euclidean norm and in a metric's norm."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from . import _metric_projection


class AbstractConstraint(eqx.Module):
    r"""A closed convex set, $\Theta$ of a tuner or $\mathcal{A}$ of an estimator.

    A number that is not finite never projects to a bound: it becomes NaN, so that later checks find it.

    A set of your own needs the methods `project` and `contains`; `project_in_metric` is computed from them. For the
    functions of the theory, such as `certify`, it also needs `diameter` and `sample`.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> class Nonnegative(st.AbstractConstraint):
        ...     def project(self, v):
        ...         return jnp.maximum(v, 0.0)
        ...     def contains(self, v):
        ...         return jnp.all(v >= 0.0)
        >>> P = jnp.array([[1.0, 0.5], [0.5, 1.0]])
        >>> print(Nonnegative().project_in_metric(jnp.array([-1.0, 2.0]), P))  # v + P λ, with λ = (1, 0)
        [0.  2.5]
    """

    __repr__ = settings_text.show

    @abc.abstractmethod
    def project(self, v: PyTree) -> PyTree:
        r"""Return the Euclidean projection $\Pi(v)$: same structure, shapes and dtype as `v`."""

    @abc.abstractmethod
    def contains(self, v: PyTree) -> Bool[Array, ""]:
        """Return whether `v` is in the set, up to the rounding error of a projection."""

    def project_in_metric(self, v: PyTree, inverse_metric: Any, *, exact: bool = True) -> PyTree:
        r"""Return the projection in the norm of the metric $M = P^{-1}$, which is given by its inverse P.

        $$\Pi^{M}(v) = \arg\min_{z \in \mathcal{A}}\ (z - v)^\top P^{-1} (z - v)$$

        Use this projection after a step that was multiplied by P: it brings the estimate nearer to every point of the
        set in the norm in which the step does so. P is the preconditioner of gradient descent, or the covariance of
        least squares and of the Kalman filter.

        **Arguments:**

        - `v`: as in `project`.
        - `inverse_metric`: P, symmetric positive definite (p, p), for the p numbers of `v` in the order of
          `jax.flatten_util.ravel_pytree`; or its (p,) diagonal; or one number, for which the result is `project(v)`.
        - `exact`: if False, a `Box`, a `Simplex` or a product of them with p > 4 and a matrix P is projected by a few
          iterations of Hildreth's method, as estimators do. The work then grows with p² instead of p³. The resulting
          point is in the set; apart from the last Euclidean projection, it is nearer than v to every point of the set.

        The result is in the set, like that of `project`. For `Box`, `Ball`, `Simplex` and products of boxes, simplexes
        and whole spaces, it is as near to the projection as rounding allows: about p · 1e-15 times the condition number
        of P (in float32 p · 1e-6 times). A set of your own, and a product that contains a `Ball`, with a matrix P, are
        projected by 20 iterations of a semismooth Newton method, which uses `project` and its derivative. These were
        enough for each of 1,000 random problems with a condition number of 1e3, and for 19 in 20 problems with a
        condition number of 1e6 and p = 8. In the other problems the point is in the set too, but farther from v than
        necessary.
        """
        flat = ravel_pytree(v)[0]
        P = arguments.real_array("inverse_metric", inverse_metric, finite=False).astype(flat.dtype)
        arguments.fits("inverse_metric", P, flat.size)
        if P.ndim > 2 or (P.ndim == 2 and P.shape[1] != flat.size):
            raise ArgumentError(
                "inverse_metric",
                f"a number, a diagonal of shape ({flat.size},) or a matrix of shape ({flat.size}, {flat.size})",
                arguments.describe(P),
            )
        if P.ndim == 0 or flat.size == 1:
            return self.project(v)  # a multiple of the identity
        return self._project_in_metric(v, _metric_projection.regularized(P) if P.ndim == 2 else P, exact)

    def _project_in_metric(self, v: PyTree, P: Float[Array, " p"] | Float[Array, "p p"], exact: bool) -> PyTree:
        """Return `project_in_metric` for p > 1 and a P that is a diagonal or a matrix."""
        flat, unravel = ravel_pytree(v)
        P = jnp.diag(P) if P.ndim == 1 else P
        polyhedron = self._polyhedron(v)
        if polyhedron is not None:
            nearest = _metric_projection.onto_polyhedron(flat, P, polyhedron, exact=exact)
        else:
            nearest = _metric_projection.onto_any(lambda u: ravel_pytree(self.project(unravel(u)))[0], flat, P)
        # Rounding, or a search that has not converged, may leave the point outside.
        return self.project(unravel(jnp.where(jnp.all(jnp.isfinite(flat)), nearest, jnp.nan)))

    def _polyhedron(self, like: PyTree) -> _metric_projection.Polyhedron | None:
        """Return the set as bounds on the flat numbers and on sums of them; None if the set is of another kind."""
        return None

    def diameter(self, like: PyTree) -> Float[Array, ""]:
        """Return the largest Euclidean distance of two points of the set; infinity if it may be unbounded.

        `like`: a parameter, for its structure and shapes.
        """
        return jnp.asarray(jnp.inf, _dtype(like))

    def bounds(self, like: PyTree) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
        """Return the smallest and the largest value of each number in the set, flat; infinite if there may be none.

        `like`: a parameter, for its structure and shapes.
        """
        flat = ravel_pytree(like)[0]
        return jnp.full_like(flat, -jnp.inf), jnp.full_like(flat, jnp.inf)

    def widths(self, like: PyTree) -> Float[Array, " p"]:
        """Return the distance of the two bounds of each number, flat: the natural unit of a step inside the set.

        Where the set has no bounds, the width is $2 \\max(1, |v|)$ for the number v in `like`.
        """
        low, high = self.bounds(like)
        return jnp.where(jnp.isfinite(high - low), high - low, 2 * jnp.maximum(1, jnp.abs(ravel_pytree(like)[0])))

    def sample(self, key: PRNGKeyArray, like: PyTree) -> PyTree:
        """Return a random point from the whole set, with the structure, shapes and dtype of `like`.

        An unbounded set raises `ValueError`, because it has no uniform distribution.
        """
        raise ArgumentError(
            "sample",
            "a bounded set that can be drawn from",
            f"{self!r}",
            "a set of your own needs the methods diameter and sample",
        )


class Unconstrained(AbstractConstraint):
    """No constraint: the set is the whole space, and `project` is the identity.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> print(st.Unconstrained().project(jnp.array([-3.0, 7.0])))
        [-3.  7.]
    """

    def project(self, v: PyTree) -> PyTree:
        return v

    def contains(self, v: PyTree) -> Bool[Array, ""]:
        return _all(jax.tree.map(lambda leaf: ~jnp.isnan(leaf), v))

    def _project_in_metric(self, v: PyTree, P: Array, exact: bool) -> PyTree:
        return v

    def _polyhedron(self, like: PyTree) -> _metric_projection.Polyhedron:
        flat = ravel_pytree(like)[0]
        return _metric_projection.Polyhedron(jnp.full_like(flat, -jnp.inf), jnp.full_like(flat, jnp.inf), ())


class Box(AbstractConstraint):
    r"""The box $\{v : \text{low} \le v \le \text{high}\}$, elementwise.

    `low` and `high` are numbers, arrays that broadcast to every leaf, or pytrees with the structure of the parameter.
    An infinite bound means no bound.

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
            raise ArgumentError(
                "high", f"the structure of low, {jax.tree.structure(self.low)}", f"{jax.tree.structure(self.high)}"
            )
        for low_leaf, high_leaf in pairs:
            try:
                jnp.broadcast_shapes(low_leaf.shape, high_leaf.shape)
            except ValueError:
                raise ArgumentError("high", f"a shape that fits low's {low_leaf.shape}", f"{high_leaf.shape}") from None
            if (raw := arguments.known(low_leaf, high_leaf)) and not np.all(raw[0] <= raw[1]):
                raise ArgumentError("low", "low <= high everywhere", f"low={low_leaf}, high={high_leaf}")

    def project(self, v: PyTree) -> PyTree:
        projected = optax.projections.projection_box(
            v, self._like("low", self.low, v), self._like("high", self.high, v)
        )
        # Without this, an infinite step would end at a bound and look like a valid gain.
        return jax.tree.map(lambda leaf, box: jnp.where(jnp.isfinite(leaf), box, jnp.nan), v, projected)

    def contains(self, v: PyTree) -> Bool[Array, ""]:
        low, high = self._like("low", self.low, v), self._like("high", self.high, v)
        return _all(jax.tree.map(lambda leaf, low, high: (low <= leaf) & (leaf <= high), v, low, high))

    def _project_in_metric(self, v: PyTree, P: Array, exact: bool) -> PyTree:
        return self.project(v) if P.ndim == 1 else super()._project_in_metric(v, P, exact)

    def _polyhedron(self, like: PyTree) -> _metric_projection.Polyhedron:
        return _metric_projection.Polyhedron(*self.bounds(like), ())

    def diameter(self, like: PyTree) -> Float[Array, ""]:
        low, high = self.bounds(like)
        return jnp.linalg.norm(high - low)

    def bounds(self, like: PyTree) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
        low, high = self._like("low", self.low, like), self._like("high", self.high, like)
        return ravel_pytree(low)[0], ravel_pytree(high)[0]

    def sample(self, key: PRNGKeyArray, like: PyTree) -> PyTree:
        flat, unravel = ravel_pytree(like)
        low, high = self.bounds(like)
        if (raw := arguments.known(high - low)) and not np.all(np.isfinite(raw[0])):
            raise ArgumentError("sample", "a bounded set", f"{self!r}")
        return unravel(low + (high - low) * jax.random.uniform(key, flat.shape, flat.dtype))

    @staticmethod
    def _like(name: str, bound: PyTree, v: PyTree) -> PyTree:
        if isinstance(bound, jax.Array):
            bound = jax.tree.map(lambda _: bound, v)
        elif jax.tree.structure(bound) != jax.tree.structure(v):
            raise ArgumentError(
                name, f"the structure of the parameter, {jax.tree.structure(v)}", f"{jax.tree.structure(bound)}"
            )

        return jax.tree.map(lambda b, leaf: arguments.fit_shape(name, b, leaf.shape).astype(leaf.dtype), bound, v)


class Ball(AbstractConstraint):
    r"""The ball $\{v : \|v - \text{center}\|_2 \le \text{radius}\}$, with the norm over all leaves together.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> print(st.Ball(1.0).project(jnp.array([3.0, 4.0])))
        [0.6 0.8]
    """

    radius: Array
    center: PyTree

    def __init__(self, radius: Any, center: Any = None):
        self.radius = arguments.positive("radius", radius)
        self.center = None if center is None else arguments.real_tree("center", center)

    def _offset(self, v: PyTree) -> PyTree:
        if self.center is None:
            return v
        if jax.tree.structure(self.center) != jax.tree.structure(v):
            raise ArgumentError(
                "center",
                f"the structure of the parameter, {jax.tree.structure(v)}",
                f"{jax.tree.structure(self.center)}",
            )
        return jax.tree.map(
            lambda leaf, c: leaf - arguments.fit_shape("center", c, leaf.shape).astype(leaf.dtype), v, self.center
        )

    def project(self, v: PyTree) -> PyTree:
        offset = self._offset(v)
        dtype = jnp.result_type(*jax.tree.leaves(offset))
        radius = self.radius.astype(dtype)
        # First move a far point nearer along its ray, which does not change its projection. Otherwise the square of its
        # norm could overflow, and the point would project to the centre.
        largest = _largest(jax.tree.map(jnp.abs, offset))
        near = jax.tree.map(lambda leaf: leaf / jnp.maximum(largest / (2 * radius), 1), offset)  # <= 2 radius
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

    def _project_in_metric(self, v: PyTree, P: Array, exact: bool) -> PyTree:
        flat, unravel = ravel_pytree(v)
        offset = ravel_pytree(self._offset(v))[0]
        nearest = _metric_projection.onto_ball(offset, P, self.radius.astype(flat.dtype))
        return self.project(unravel(flat - offset + nearest))

    def diameter(self, like: PyTree) -> Float[Array, ""]:
        return 2 * self.radius.astype(_dtype(like))

    def bounds(self, like: PyTree) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
        center = -ravel_pytree(self._offset(jax.tree.map(jnp.zeros_like, like)))[0]
        radius = self.radius.astype(center.dtype)
        return center - radius, center + radius

    def sample(self, key: PRNGKeyArray, like: PyTree) -> PyTree:
        flat, unravel = ravel_pytree(like)
        kd, kr = jax.random.split(key)
        direction = jax.random.normal(kd, flat.shape, flat.dtype)
        direction = direction / jnp.linalg.norm(direction)
        reach = self.radius.astype(flat.dtype) * jax.random.uniform(kr, (), flat.dtype) ** (1 / flat.size)
        center = flat - ravel_pytree(self._offset(like))[0]
        return unravel(center + reach * direction)


class Simplex(AbstractConstraint):
    r"""The simplex $\{v : v \ge 0, \sum_i v_i = \text{total}\}$, over all leaves together; for mixtures and shares.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> print(st.Simplex().project(jnp.array([1.0, 1.0])))
        [0.5 0.5]
    """

    total: Array

    def __init__(self, total: Any = 1.0):
        self.total = arguments.positive("total", total)

    def project(self, v: PyTree) -> PyTree:
        dtypes = jax.tree.map(lambda leaf: leaf.dtype, v)
        bad = ~_all(jax.tree.map(jnp.isfinite, v))
        total = self.total.astype(jnp.result_type(*jax.tree.leaves(v)))
        # Shifting all entries does not change the projection, and an entry that is `total` or more below the largest
        # becomes zero. So shift and clip the entries to the size of `total`, to lose no digits to large numbers.
        largest = _largest(v)
        near = jax.tree.map(lambda leaf: jnp.maximum(leaf - largest, -total), v)
        # Optax divides integers, which gives the default dtype; differentiation needs this dtype everywhere.
        wide = jnp.result_type(float)
        with jax.numpy_dtype_promotion("standard"):
            near = jax.tree.map(lambda leaf: leaf.astype(wide), near)
            projected = optax.projections.projection_simplex(near, total.astype(wide))
        return jax.tree.map(lambda leaf, dtype: jnp.where(bad, jnp.nan, leaf.astype(dtype)), projected, dtypes)

    def contains(self, v: PyTree) -> Bool[Array, ""]:
        leaves = jax.tree.leaves(v)
        total = self.total.astype(jnp.result_type(*leaves))
        mass = sum(jnp.sum(leaf) for leaf in leaves)
        size = sum(leaf.size for leaf in leaves)
        tolerance = 8 * size * jnp.finfo(total.dtype).eps * total
        return _all(jax.tree.map(lambda leaf: leaf >= 0, v)) & (jnp.abs(mass - total) <= tolerance)

    def _polyhedron(self, like: PyTree) -> _metric_projection.Polyhedron:
        flat = ravel_pytree(like)[0]
        return _metric_projection.Polyhedron(
            jnp.zeros_like(flat),
            jnp.full_like(flat, jnp.inf),
            [(jnp.ones_like(flat), self.total.astype(flat.dtype))],
        )

    def diameter(self, like: PyTree) -> Float[Array, ""]:
        flat = ravel_pytree(like)[0]
        return (2**0.5 if flat.size > 1 else 0.0) * self.total.astype(flat.dtype)

    def bounds(self, like: PyTree) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
        flat = ravel_pytree(like)[0]
        return jnp.zeros_like(flat), jnp.broadcast_to(self.total.astype(flat.dtype), flat.shape)

    def sample(self, key: PRNGKeyArray, like: PyTree) -> PyTree:
        flat, unravel = ravel_pytree(like)
        shares = jax.random.exponential(key, flat.shape, flat.dtype)
        return unravel(self.total.astype(flat.dtype) * shares / jnp.sum(shares))


class Product(AbstractConstraint):
    """One constraint for each part of a pytree. `parts` has the same structure as the top level of the parameter.

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
            raise ArgumentError("parts", "a pytree of constraints", f"{self.parts!r}")

    def _map(self, function: Any, *trees: PyTree) -> PyTree:
        parts, structure = jax.tree.flatten(self.parts, is_leaf=_is_constraint)
        try:
            values = [structure.flatten_up_to(tree) for tree in trees]
        except ValueError as error:
            raise ArgumentError("parts", "the structure of the parameter", f"another one ({error})") from error
        return jax.tree.unflatten(structure, [function(*each) for each in zip(parts, *values, strict=True)])

    def project(self, v: PyTree) -> PyTree:
        return self._map(lambda part, leaf: part.project(leaf), v)

    def contains(self, v: PyTree) -> Bool[Array, ""]:
        return _all(self._map(lambda part, leaf: part.contains(leaf), v))

    def _project_in_metric(self, v: PyTree, P: Array, exact: bool) -> PyTree:
        if P.ndim == 2:  # the parts depend on each other
            return super()._project_in_metric(v, P, exact)
        diagonal = ravel_pytree(v)[1](P)
        return self._map(lambda part, leaf, p: part.project_in_metric(leaf, ravel_pytree(p)[0]), v, diagonal)

    def _polyhedron(self, like: PyTree) -> _metric_projection.Polyhedron | None:
        parts = []
        for part, value in self._pairs(like):
            if (polyhedron := part._polyhedron(value)) is None:
                return None
            parts.append((polyhedron, ravel_pytree(value)[0].size))
        size, first, sums = sum(size for _, size in parts), 0, []
        for polyhedron, own in parts:
            sums += [(jnp.pad(row, (first, size - first - own)), total) for row, total in polyhedron.sums]
            first += own
        low, high = (jnp.concatenate(bounds) for bounds in zip(*(p[:2] for p, _ in parts), strict=True))
        return _metric_projection.Polyhedron(low, high, sums)

    def diameter(self, like: PyTree) -> Float[Array, ""]:
        return jnp.linalg.norm(jnp.stack([part.diameter(value) for part, value in self._pairs(like)]))

    def bounds(self, like: PyTree) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
        low, high = zip(*(part.bounds(value) for part, value in self._pairs(like)), strict=True)
        return jnp.concatenate(low), jnp.concatenate(high)

    def sample(self, key: PRNGKeyArray, like: PyTree) -> PyTree:
        pairs, structure = self._pairs(like), jax.tree.structure(self.parts, is_leaf=_is_constraint)
        keys = jax.random.split(key, len(pairs))
        values = [part.sample(k, value) for (part, value), k in zip(pairs, keys, strict=True)]
        return jax.tree.unflatten(structure, values)

    def _pairs(self, like: PyTree) -> list[tuple[AbstractConstraint, PyTree]]:
        """Return each part with the value that it constrains."""
        pairs = []
        self._map(lambda part, value: pairs.append((part, value)), like)
        return pairs


def _is_constraint(node: Any) -> bool:
    return isinstance(node, AbstractConstraint)


def _dtype(tree: PyTree) -> Any:
    return jnp.result_type(*jax.tree.leaves(tree))


def _largest(tree: PyTree) -> Array:
    """Return the largest number, without a derivative; use it as a scale or shift that does not change a projection.

    The derivative of a maximum compares numbers for equality, and XLA may compute the two sides with different
    rounding.
    """
    return jax.lax.stop_gradient(jnp.max(jnp.stack([jnp.max(leaf) for leaf in jax.tree.leaves(tree)])))


def _all(tree: PyTree) -> Array:
    return jnp.stack([jnp.all(leaf) for leaf in jax.tree.leaves(tree)]).all()


def _bound(name: str, bound: Any) -> PyTree:
    bound = jax.tree.map(lambda leaf: arguments.real_array(name, leaf, finite=False), bound, is_leaf=arguments.is_plain)
    for leaf in jax.tree.leaves(bound):
        if (raw := arguments.known(leaf)) and np.any(np.isnan(raw[0])):
            raise ArgumentError(name, "no NaN", f"{leaf}")
    return bound
