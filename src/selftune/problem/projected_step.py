r"""The projected gradient step $\Pi(v - \eta G)$ with any learning rate: a number, an optax schedule or any
`optax.GradientTransformation`. All gradient-based tuners and the gradient estimator use this step.

A tuner or an estimator of your own uses the step in this way:

- The field `learning_rate` has the converter `learning_rate`, and the field `constraint` has the converter
  `constraint`. They check the values when the tuner is made.
- `init` calls `init` for the first state of the optimizer, and `update` calls `update`.

!!! Example

    >>> import jax.numpy as jnp, optax, selftune as st
    >>> rate = st.projected_step.learning_rate(0.5)
    >>> theta = jnp.array([1.0, 2.0])
    >>> state = st.projected_step.init(rate, theta)
    >>> theta, state = st.projected_step.update(rate, st.Box(0.0, 3.0), theta, jnp.array([4.0, -1.0]), state)
    >>> print(theta)  # 1 − 0.5 · 4 is below the box
    [0.  2.5]
    >>> adam = st.projected_step.learning_rate(optax.adam(0.1))
    >>> state = st.projected_step.init(adam, theta)
    >>> theta, state = st.projected_step.update(adam, st.Box(0.0, 3.0), theta, jnp.array([-1.0, 1.0]), state)
    >>> print(theta.round(3))
    [0.1 2.4]
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..foundation.small_programs import small_program
from .constraints import AbstractConstraint

LearningRate: TypeAlias = Array | Callable[..., Any] | optax.GradientTransformation
"""A checked learning rate: the result of `learning_rate`."""


def learning_rate(value: Any) -> LearningRate:
    """Return a checked learning rate: an optax schedule or transformation, or a positive number as an array, so that
    another number does not recompile."""
    if isinstance(value, optax.GradientTransformation):
        return value
    if callable(value):
        with jax.numpy_dtype_promotion("standard"):
            first: Any = value(0)
        if isinstance(first, optax.GradientTransformation) or jnp.ndim(first) != 0:
            raise ArgumentError("learning_rate", "a schedule from the step to a number", f"{value} with {first!r}")
        return value
    return arguments.number(
        "learning_rate",
        value,
        lambda v: 0 < v < np.inf,
        "a finite number > 0, an optax schedule or an optax.GradientTransformation",
    )


def constraint(value: Any, name: str = "constraint") -> AbstractConstraint:
    """Return `value` if it is a constraint; otherwise raise `ArgumentError`, which names the argument."""
    if not isinstance(value, AbstractConstraint):
        raise ArgumentError(name, "a constraint such as selftune.Box(0.0, 1.0)", f"{value!r}")
    return value


def constraint_of(part: Any) -> AbstractConstraint | None:
    """Return the set in which a tuner keeps θ, or an estimator keeps â: its field `constraint`. None if the tuner or
    estimator has no such field."""
    return getattr(part, "constraint", None)


def check_inside(name: str, value: PyTree, constraint: AbstractConstraint) -> None:
    """Raise `ArgumentError` if `value` is outside its constraint, or if the shapes do not fit.

    Only the constraint's own `ArgumentError` says that the shapes do not fit. Other exceptions, such as those of a
    constraint of the user's own or of JAX, keep their type and message.
    """
    try:
        inside = _contains(constraint, value)
    except ArgumentError as error:
        expected = f"a value that fits its constraint, {type(constraint).__name__}"
        raise ArgumentError(name, expected, arguments.describe_tree(value), str(error)) from None
    if arguments.is_known(inside) and not bool(inside):
        raise ArgumentError(name, f"a point of its constraint, {constraint!r}", f"{value}")


@small_program
def _contains(constraint: AbstractConstraint, value: PyTree) -> Array:
    return constraint.contains(value)


def _optimizer(rate: LearningRate, dtype: Any) -> optax.GradientTransformation:
    if isinstance(rate, optax.GradientTransformation):
        return rate
    return optax.sgd(rate if callable(rate) else rate.astype(dtype))


def init(rate: LearningRate, params: PyTree) -> PyTree:
    """Return the optimizer's first state for `params`."""
    return _optimizer(rate, jnp.result_type(*jax.tree.leaves(params))).init(params)


def update(
    rate: LearningRate,
    constraint: AbstractConstraint,
    params: PyTree,
    gradient: Float[Array, " d"],
    state: PyTree,
    *,
    preconditioner: Array | None = None,
) -> tuple[PyTree, PyTree]:
    r"""Return $\Pi(\text{params} - \eta \cdot \text{gradient})$ and the new state of the optimizer.

    If the learning rate is an optax transformation, its step replaces $-\eta \cdot \text{gradient}$. `gradient` is
    flat. The dtype of `params` is kept. `preconditioner`: the P by which the gradient has already been multiplied; the
    projection is then in the $P^{-1}$-norm.
    """
    _, unravel = ravel_pytree(params)
    # Optax and schedules mix integers and floats, which strict promotion forbids.
    with jax.named_scope("selftune.descent"), jax.numpy_dtype_promotion("standard"):
        updates, state = _optimizer(rate, gradient.dtype).update(unravel(gradient), state, params)
        params = optax.apply_updates(params, updates)
    with jax.named_scope("selftune.descent"):
        if preconditioner is None:
            return constraint.project(params), state
        return constraint.project_in_metric(params, preconditioner, exact=False), state
