from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..native.choice import Engine, run_with
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from ..simulation.run import Run
from . import _text, run_inputs
from ._projected_descent import Descent, Method, minimize

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
    engine: Engine = "auto",
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
    - `engine`: as in `surrogate`.

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
    space = _Space(points, constraint, tolerance_.astype(cost.dtype))
    _, (descents, surrogates) = run_with(
        run_inputs.engine_for(engine, system, scenario, space, cost),
        natively=lambda: _search_natively(system, scenario, space, iterations),
        by_xla=lambda: _search_by_xla(system, scenario, space, iterations),
    )
    return _static_regret(cost, space, descents, surrogates)


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


class _Space(NamedTuple):
    """Where to search for the best fixed θ; points are flat."""

    starts: PyTree
    constraint: AbstractConstraint
    tolerance: Array

    def unravel(self, point: Array) -> PyTree:
        return ravel_pytree(jax.tree.map(lambda leaf: leaf[0], self.starts))[1](point)

    def method(self) -> Method:
        def project(point: Array) -> Array:
            return ravel_pytree(self.constraint.project(self.unravel(point)))[0]

        return Method(project, self.tolerance)

    def best(self, descents: Descent) -> PyTree:
        return self.unravel(descents.best[jnp.argmin(descents.best_value)])


@eqx.filter_jit
def _search_by_xla(
    system: AbstractSystem, scenario: Scenario, space: _Space, iterations: int
) -> tuple[Descent, Float[Array, " T"]]:
    """The descents from all starts, and the costs of a rollout with the best θ."""
    steps, n, x0 = len(scenario), scenario.x0.shape[0], scenario.x0

    def mean_cost(flat: Array) -> tuple[Array, Array]:
        theta, d = space.unravel(flat), flat.size

        # The loop carries one vector: x, y, and the sums of gradient and cost.
        def step(tau: Array, packed: Array) -> Array:
            now = scenario.row(tau)
            x, y, sums = packed[:n], packed[n : n + n * d].reshape(n, d), packed[n + n * d :]
            x, y, cost, gradient = system.sensitivity(x, y, theta, now.a_star, now.t)
            return jnp.concatenate([x + now.w, y.reshape(-1), sums + jnp.append(gradient, cost)])

        start = jnp.concatenate([x0, jnp.zeros(n * d + d + 1, x0.dtype)])
        sums = jax.lax.fori_loop(0, steps, step, start)[n + n * d :]
        return sums[d] / steps, sums[:d] / steps

    def descend(start: PyTree) -> Descent:
        return minimize(mean_cost, space.method(), ravel_pytree(start)[0], iterations=iterations)

    descents = jax.vmap(descend)(space.starts)
    theta = space.best(descents)

    def costs(x: Array, tau: Array) -> tuple[Array, Array]:
        now = scenario.row(tau)
        x, cost = system.step(x, theta, now.a_star, now.t)
        return x + now.w, cost

    return descents, jax.lax.scan(costs, x0, jnp.arange(steps))[1]


def _search_natively(
    system: AbstractSystem, scenario: Scenario, space: _Space, iterations: int
) -> tuple[Descent, Float[Array, " T"]]:
    """The same, with the rollouts of all starts at once as a native program. JAX makes the steps of the method."""
    from ._native_rollouts import NativeRollouts, one_rollout

    def mean_costs(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        thetas = _thetas(space, points)
        cost, gradient = NativeRollouts(system, scenario, thetas, workers=None).sums()
        return cost / len(scenario), gradient / len(scenario)

    points = np.asarray(_projected(space))
    descents = _begin(space, points, *mean_costs(points))
    while (active := np.asarray(descents.is_active(iterations))).any():
        value, gradient = np.array(descents.value), np.array(descents.gradient)
        value[active], gradient[active] = mean_costs(np.asarray(_trials(descents))[active])
        descents = _advance(space, descents, value, gradient, iterations)
    return descents, one_rollout(system, scenario, space.best(descents))[0]


@eqx.filter_jit
def _projected(space: _Space) -> Float[Array, "starts d"]:
    return jax.vmap(lambda start: space.method().project(ravel_pytree(start)[0]))(space.starts)


@eqx.filter_jit
def _thetas(space: _Space, points: Any) -> PyTree:
    return jax.vmap(space.unravel)(points)


@eqx.filter_jit
def _begin(space: _Space, points: Any, value: Any, gradient: Any) -> Descent:
    return jax.vmap(space.method().begin)(points, value, gradient)


@eqx.filter_jit
def _trials(descents: Descent) -> Float[Array, "starts d"]:
    return jax.vmap(lambda descent: descent.trial)(descents)


@eqx.filter_jit
def _advance(space: _Space, descents: Descent, value: Any, gradient: Any, iterations: int) -> Descent:
    def one(descent: Descent, value: Array, gradient: Array) -> Descent:
        following, active = space.method().advance(descent, value, gradient), descent.is_active(iterations)
        return jax.tree.map(lambda new, old: jnp.where(active, new, old), following, descent)

    return jax.vmap(one)(descents, value, gradient)


@eqx.filter_jit
def _static_regret(cost: Array, space: _Space, descents: Descent, surrogates: Array) -> StaticRegret:
    steps, dtype = cost.shape[0], cost.dtype
    minima = descents.best_value * steps
    best = jnp.argmin(minima)
    finite = jnp.isfinite(minima)
    least = jnp.sum(surrogates)
    return StaticRegret(
        regret=jnp.sum(cost) - least,
        cumulative=jnp.cumsum(cost - surrogates),
        theta=space.best(descents),
        minimum=least,
        minima=minima,
        converged=descents.converged,
        spread=jnp.max(jnp.where(finite, minima, -jnp.inf)) - jnp.min(minima),
        agreement=jnp.mean((minima - minima[best] <= _AGREE * jnp.abs(minima[best])).astype(dtype)),
    )
