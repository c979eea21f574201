from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from ..simulation.run import Run
from . import _text, run_inputs
from ._projected_descent import minimize

_AGREE = 1e-6


class StaticRegret(eqx.Module):
    """The cost of a run minus the cost of the best fixed θ in hindsight.

    !!! Example

        >>> import jax
        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.1))
        >>> scenario = st.Scenario(jnp.ones(1), a_star=jnp.ones((50, 1)), w=jnp.zeros((50, 1)))
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> box = st.Box(0.0, 1.0)
        >>> found = st.static_regret(system, scenario, run, constraint=box, key=jax.random.key(0), starts=2)
        >>> bool(found.regret > 0), bool(found.converged.all())
        (True, True)
    """

    __repr__ = settings_text.show

    regret: Float[Array, ""]
    r"""$R^S(T)$."""
    cumulative: Float[Array, " T"]
    r"""$\sum_{\tau \le t} c_\tau - F_\tau(\theta^*)$, with the $\theta^*$ that is best over all T steps."""
    theta: PyTree
    r"""$\theta^*$, the best that was found."""
    minimum: Float[Array, ""]
    r"""$\sum_t F_t(\theta^*)$."""
    minima: Float[Array, " starts"]
    r"""The smallest $\sum_t F_t$ found from each start; inf if the rollout of the start itself diverges."""
    converged: Bool[Array, " starts"]
    spread: Float[Array, ""]
    """The largest finite one of `minima` minus the smallest."""
    agreement: Float[Array, ""]
    """The share of starts whose minimum is within 1e-6 (relative) of the smallest: near 1, it is likely global."""

    @_text.printed
    def __str__(self) -> str:
        say, best, starts = _text.number, np.asarray(self.minimum), np.shape(self.minima)[-1]
        lines = [
            f"static regret {say(self.regret)} over {_text.over(self.cumulative)}: "
            f"the run cost {say(best + np.asarray(self.regret))}, the best fixed θ {say(best)}",
            f"  search: {starts} starts; {say(np.sum(self.converged, axis=-1))} converged, "
            f"{say(np.asarray(self.agreement) * starts)} agree on the minimum",
        ]
        if np.ndim(self.regret) == 0:
            lines.insert(1, f"  best fixed θ found: {_text.vector(self.theta)}")
        return "\n".join(lines)


def static_regret(
    system: AbstractSystem,
    scenario: Scenario,
    run: Run,
    *,
    constraint: AbstractConstraint | None = None,
    starts: Any = 8,
    key: PRNGKeyArray | None = None,
    iterations: int = 200,
    tolerance: float = 1e-8,
) -> StaticRegret:
    r"""The static regret (Section "Performance Metrics").

    $$R^S(T) = \sum_{t=0}^{T-1} c_t - \min_{\theta^* \in \Theta} \sum_{t=0}^{T-1} F_t(\theta^*)$$

    For a constant θ the sum of surrogates is the cost of one rollout with the exact model, and its gradient is that
    rollout's forward sensitivity: O(T). The spectral projected gradient method minimizes it from several starts in
    parallel. The sum is not convex in general, so the result is the best minimum found: `spread` and `agreement` show
    how reliable it is.

    **Arguments:**

    - `run`: a run that recorded `cost` and `theta`.
    - `constraint`: Θ; None is all of $\mathbb R^d$.
    - `starts`: the number of starts: the run's mean θ, its last θ, and random ones, uniform if Θ has bounds, otherwise
      normal around the run's mean. Or the starts themselves, a pytree like θ with a leading axis.
    - `key`: for the random starts; required if there are any.
    - `iterations`: of the descent; each takes one rollout for every start.
    - `tolerance`: a start has converged if its next step would be this short, relative to 1 + ‖θ‖.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(
        ...     jnp.zeros(1), a_star=jnp.ones((2000, 1)), w=st.Gaussian(1.0)(jax.random.key(0), 2000, 1)
        ... )
        >>> box = st.Box(0.0, 1.5)
        >>> controller = st.Controller(system, st.MGAPS(0.01, constraint=box), st.Known())
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1))
        >>> static = st.static_regret(system, scenario, run, constraint=box, key=jax.random.key(1))
        >>> round(float(static.theta[0]), 1), float(static.agreement)  # white noise: forget the state at once
        (0.8, 1.0)
    """
    scenario = run_inputs.problem(system, scenario)
    constraint = projected_step.constraint(Unconstrained() if constraint is None else constraint)
    cost, thetas = run_inputs.recorded(run, "cost", "theta", scenario=scenario)
    iterations = arguments.count("iterations", iterations)
    tolerance_ = arguments.positive("tolerance", tolerance)
    run_inputs.check_shapes(system, scenario, thetas)
    scenario = scenario.of_loop_state(system)
    if isinstance(starts, bool) or not jax.tree.leaves(starts):
        raise ArgumentError("starts", "a whole number or a pytree like theta", arguments.describe(starts))
    if isinstance(starts, int):
        count = arguments.count("starts", starts)
        if count > 2 and key is None:
            raise ArgumentError("key", "a PRNG key such as jax.random.key(0), because starts are drawn", "None")
        key = None if key is None else arguments.key("key", key)
        points = _draw(constraint, thetas, key, count)
    else:
        points = _given(starts, thetas, scenario)
    return _static_regret(system, scenario, cost, points, constraint, iterations, tolerance_)


def _given(starts: Any, thetas: PyTree, scenario: Scenario) -> PyTree:
    starts = arguments.real_tree("starts", starts, dtype=scenario.x0.dtype)
    expected = jax.tree.map(lambda leaf: leaf.shape[1:], thetas)
    if jax.tree.structure(starts) != jax.tree.structure(thetas) or expected != jax.tree.map(
        lambda leaf: leaf.shape[1:], starts
    ):
        raise ArgumentError("starts", f"rows like theta's, {expected}", arguments.describe_tree(starts))
    return starts


@eqx.filter_jit
def _draw(constraint: AbstractConstraint, thetas: PyTree, key: Array | None, count: int) -> PyTree:
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), thetas)
    last = jax.tree.map(lambda leaf: leaf[-1], thetas)
    center, unravel = ravel_pytree(constraint.project(mean))
    points = [center, ravel_pytree(last)[0]][:count]
    if count > 2:
        assert key is not None
        # If Θ has bounds, far points project onto them.
        far = 1e6 * (1 + jnp.abs(center))
        low, high = (ravel_pytree(constraint.project(unravel(center + side * far)))[0] for side in (-1, 1))
        bounded = (high > low) & (jnp.maximum(jnp.abs(low), jnp.abs(high)) < 0.1 * far)
        flat, normal = jax.random.split(key)
        shape = (count - 2, center.size)
        drawn = jnp.where(
            bounded,
            low + (high - low) * jax.random.uniform(flat, shape, center.dtype),
            center + (1 + jnp.abs(center)) * jax.random.normal(normal, shape, center.dtype),
        )
        points.extend(drawn)
    return jax.vmap(unravel)(jnp.stack(points))


@eqx.filter_jit
def _static_regret(
    system: AbstractSystem,
    scenario: Scenario,
    cost: Array,
    starts: PyTree,
    constraint: AbstractConstraint,
    iterations: int,
    tolerance: Array,
) -> StaticRegret:
    steps, dtype = len(scenario), cost.dtype
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], starts))
    n, x0 = scenario.x0.shape[0], scenario.x0

    def mean_cost(flat: Array) -> tuple[Array, Array]:
        theta, d = unravel(flat), flat.size

        # The loop carries one vector: x, y, and the sums of gradient and cost.
        def step(tau: Array, packed: Array) -> Array:
            now = scenario.row(tau)
            x, y, sums = packed[:n], packed[n : n + n * d].reshape(n, d), packed[n + n * d :]
            x, y, cost, gradient = system.sensitivity(x, y, theta, now.a_star, now.t)
            return jnp.concatenate([x + now.w, y.reshape(-1), sums + jnp.append(gradient, cost)])

        start = jnp.concatenate([x0, jnp.zeros(n * d + d + 1, dtype)])
        sums = jax.lax.fori_loop(0, steps, step, start)[n + n * d :]
        return sums[d] / steps, sums[:d] / steps

    def project(flat: Array) -> Array:
        return ravel_pytree(constraint.project(unravel(flat)))[0]

    def descend(start: PyTree):
        return minimize(
            mean_cost, project, ravel_pytree(start)[0], iterations=iterations, tolerance=tolerance.astype(dtype)
        )

    descents = jax.vmap(descend)(starts)
    best = jnp.argmin(descents.value)
    theta = unravel(descents.point[best])

    def costs(x: Array, tau: Array) -> tuple[Array, Array]:
        now = scenario.row(tau)
        x, cost = system.step(x, theta, now.a_star, now.t)
        return x + now.w, cost

    _, surrogates = jax.lax.scan(costs, x0, jnp.arange(steps))
    minima = descents.value * steps
    finite = jnp.isfinite(minima)
    least = jnp.sum(surrogates)
    return StaticRegret(
        regret=jnp.sum(cost) - least,
        cumulative=jnp.cumsum(cost - surrogates),
        theta=theta,
        minimum=least,
        minima=minima,
        converged=descents.converged,
        spread=jnp.max(jnp.where(finite, minima, -jnp.inf)) - jnp.min(minima),
        agreement=jnp.mean((minima - minima[best] <= _AGREE * jnp.abs(minima[best])).astype(dtype)),
    )
