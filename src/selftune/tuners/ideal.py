from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem


class IdealDescent(eqx.Module):
    """The result of `ideal_ogd`; row t is the value at step t."""

    theta: PyTree
    """θ_t, each leaf with a leading axis T."""
    surrogate: Float[Array, " T"]
    """F_t(θ_t)."""
    gradient: Float[Array, "T d"]
    """∇F_t(θ_t), flat in θ."""
    final: PyTree
    """θ after the last step."""


def ideal_ogd(
    system: AbstractSystem,
    scenario: Scenario,
    *,
    theta: Any,
    learning_rate: Any,
    constraint: AbstractConstraint | None = None,
) -> IdealDescent:
    r"""Run projected gradient descent on the true surrogate cost: the expensive ideal that M-GAPS approximates.

    $$\theta_{t+1} = \Pi_\Theta(\theta_t - \eta \nabla F_t(\theta_t))$$

    $F_t(\theta)$ (Definition "Surrogate Cost") is the cost at step t if θ had been used from step 0 on, with $a^*$
    known; its residual is evaluated at the state of this hypothetical run. Each step simulates all steps before it
    again, so the total work is O(T²). It is a benchmark, not a controller, because it also needs the disturbances.

    **Arguments:** `learning_rate` and `constraint` as in `MGAPS`; `theta`: θ₀.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.5 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(jnp.zeros(1), a_star=jnp.ones((200, 1)), w=jnp.ones((200, 1)))
        >>> ideal = st.ideal_ogd(system, scenario, theta=jnp.zeros(1), learning_rate=0.05, constraint=st.Box(0.0, 1.0))
        >>> round(float(ideal.final[0]), 2)  # the larger the gain, the smaller the state
        1.0
    """
    arguments.instance("system", system, AbstractSystem)
    arguments.instance("scenario", scenario, Scenario)
    learning_rate = projected_step.learning_rate(learning_rate)
    constraint = projected_step.constraint(Unconstrained() if constraint is None else constraint)
    theta = arguments.real_tree("theta", theta, dtype=scenario.x0.dtype)
    projected_step.check_inside("theta", theta, constraint)
    scenario = scenario.materialize()
    shapes = scenario.row_shapes()
    system.check(scenario.x0, theta, shapes.a_star, shapes.t)
    if len(scenario) == 0:
        empty = jnp.zeros((0, *ravel_pytree(theta)[0].shape), scenario.x0.dtype)
        rows = jax.tree.map(lambda leaf: jnp.zeros((0, *leaf.shape), leaf.dtype), theta)
        return IdealDescent(rows, empty[:, 0], empty, theta)
    return _ideal_ogd(system, scenario.of_loop_state(system), theta, learning_rate, constraint)


@eqx.filter_jit
def _ideal_ogd(
    system: AbstractSystem, scenario: Scenario, theta: PyTree, learning_rate: Any, constraint: AbstractConstraint
) -> IdealDescent:
    x0 = scenario.x0
    y0 = jnp.zeros((x0.shape[0], ravel_pytree(theta)[0].size), x0.dtype)

    def surrogate(theta: PyTree, t: Array) -> tuple[Array, Array]:
        def imagine(tau, carry):
            x, y = carry
            now = scenario.row(tau)
            x, y, _, _ = system.sensitivity(x, y, theta, now.a_star, now.t)
            return x + now.w, y

        now = scenario.row(t)
        x, y = jax.lax.fori_loop(0, t, imagine, (x0, y0))
        _, _, cost, gradient = system.sensitivity(x, y, theta, now.a_star, now.t)
        return cost, gradient

    def step(carry, t):
        theta, optimizer = carry
        value, gradient = surrogate(theta, t)
        theta_next, optimizer = projected_step.update(learning_rate, constraint, theta, gradient, optimizer)
        return (theta_next, optimizer), (theta, value, gradient)

    start = (theta, projected_step.init(learning_rate, theta))
    (final, _), (thetas, values, gradients) = jax.lax.scan(step, start, jnp.arange(len(scenario)))
    return IdealDescent(thetas, values, gradients, final)
