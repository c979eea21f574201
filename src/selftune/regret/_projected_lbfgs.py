"""Minimization over a convex set that is known by its projection alone: optax's L-BFGS on a function of all space.

min F over Θ is min over all z of F(Π(z)) + ρ/2 ‖z − Π(z)‖²: the first term sees only points of Θ, and the second brings
z back to it, so that a bound that was overstepped can be left again. Both minima are the same, at the same points of Θ.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float


class Minimum(NamedTuple):
    """The best point a descent found."""

    point: Float[Array, " d"]
    value: Float[Array, ""]
    converged: Bool[Array, ""]


def minimize(
    objective: Callable[[Array], tuple[Array, Array]],
    project: Callable[[Array], Array],
    start: Float[Array, " d"],
    *,
    iterations: int,
    tolerance: Array,
) -> Minimum:
    """Minimize `objective`, which returns value and gradient, from `start`, over the set that `project` projects to."""
    _, first_gradient = objective(project(start))
    pull_back = jnp.linalg.norm(first_gradient) / (1 + jnp.linalg.norm(start))  # ρ: of F's own steepness

    @jax.custom_vjp
    def lifted(z: Array) -> Array:
        return forward(z)[0]

    def forward(z: Array) -> tuple[Array, Array]:
        return evaluate(z)[:2]

    def evaluate(z: Array) -> tuple[Array, Array, Array]:
        """The lifted value, its gradient, and F's own gradient at Π(z)."""
        point, pull = jax.vjp(project, z)
        value, gradient = objective(point)
        out = z - point
        (through,) = pull(gradient - pull_back * out)
        # A rollout that blows up is a step too long: infinitely bad, and not to be differentiated.
        value = value + pull_back / 2 * jnp.sum(out**2)
        value = jnp.where(jnp.isfinite(value), value, jnp.inf)
        return value, jnp.nan_to_num(through + pull_back * out), gradient

    lifted.defvjp(forward, lambda gradient, cotangent: (cotangent * gradient,))
    optimizer = optax.lbfgs()

    class State(NamedTuple):
        z: Array
        value: Array
        gradient: Array
        optimizer: optax.OptState
        best: Minimum
        turns: Array

    def step(state: State) -> State:
        with jax.numpy_dtype_promotion("standard"):  # optax mixes counts of two widths
            updates, optimizer_state = optimizer.update(
                state.gradient, state.optimizer, state.z, value=state.value, grad=state.gradient, value_fn=lifted
            )
        # Each turn begins inside: from outside, z could creep to a bound without ever seeing the slope behind it.
        z = project(jnp.asarray(optax.apply_updates(state.z, updates)))
        value, slope, gradient = evaluate(z)
        return State(z, value, slope, optimizer_state, judge(z, value, gradient, state.best), state.turns + 1)

    def judge(z: Array, value: Array, gradient: Array, best: Minimum) -> Minimum:
        length = jnp.linalg.norm(project(z - gradient / (1 + jnp.linalg.norm(gradient))) - z)
        better = value < best.value
        return Minimum(
            jnp.where(better, z, best.point),
            jnp.where(better, value, best.value),
            length <= tolerance * (1 + jnp.linalg.norm(z)),
        )

    z = project(start)
    value, slope, gradient = evaluate(z)
    best = judge(z, value, gradient, Minimum(z, value, jnp.zeros((), bool)))
    first = State(z, value, slope, optimizer.init(z), best, jnp.zeros((), int))
    last = jax.lax.while_loop(
        lambda s: (s.turns < iterations) & ~s.best.converged & jnp.isfinite(s.best.value), step, first
    )
    return last.best
