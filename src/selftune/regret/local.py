import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..foundation.executors import Progress
from ..native.choice import Engine, run_with
from ..problem import projected_step
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from . import _text, run_inputs
from .surrogate_cost import AutoWindow, Surrogate
from .surrogate_cost import surrogate as compute_surrogate


class LocalRegret(eqx.Module):
    r"""The local regret: how well θ follows the stationary points of the surrogate cost; row t belongs to step t.

    `print` shows the regret with numbers for comparison: the regret per step in each half of the run, the exponent of
    its growth, and the same numbers for $\theta_0$ held fixed.

    !!! Example

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
        >>> found = st.local_regret(system, scenario, run.theta, learning_rate=0.01)
        >>> found.cumulative.shape, bool(found.cumulative[-1] <= found.untuned[-1])  # less than with θ_0 held fixed
        ((50,), True)
    """

    __repr__ = settings_text.show

    cumulative: Float[Array, " T"]
    r"""$R^L_\eta(t+1) = \sum_{\tau \le t} \|\nabla_{\Theta,\eta} F_\tau(\theta_\tau)\|^2$."""
    cumulative_error: Float[Array, " T"]
    """A bound on the error of `cumulative`, from the surrogate's `gradient_error`."""
    projected_gradient: Float[Array, "T d"]
    r"""$\nabla_{\Theta,\eta} F_t(\theta_t)$, flat in θ."""
    untuned: Float[Array, " T"]
    r"""The exact regret of $\theta_0$ held fixed: $\sum_{\tau \le t} \|\nabla_{\Theta,\eta} F_\tau(\theta_0)\|^2$."""
    surrogate: Surrogate

    @_text.printed
    def __str__(self) -> str:
        # Each number is followed by that of θ_0 held fixed, with the same disturbances.
        both = np.stack([self.cumulative, self.untuned])
        steps, total = both.shape[-1], both[..., -1]
        say, middle = _text.number, steps // 2
        error = np.asarray(self.cumulative_error)[..., -1]
        lines = [
            f"local regret {say(total[0])} over {_text.over(both[0])}: {say(total[0] / steps)} per step",
            f"  θ_0 held fixed: {say(total[1])}; the tuner's regret is {say(total[0] / total[1])} of it",
        ]
        if np.any(error > 0):
            lines.append(f"  estimated error of the tuner's regret: {say(error)}")
        if not middle:
            return "\n".join(lines)
        early, late = both[..., middle - 1], total - both[..., middle - 1]
        first, second = early / middle, late / (steps - middle)
        growth = np.log(total / early) / np.log(steps / middle)
        mean = np.linalg.norm(np.mean(np.asarray(self.projected_gradient)[..., middle:, :], axis=-2), axis=-1)
        size = np.sqrt(second)
        return "\n".join(
            [
                *lines,
                f"  per step: first half {say(first[0])} (θ_0: {say(first[1])}), "
                f"second half {say(second[0])} (θ_0: {say(second[1])})",
                f"  growth: T^{say(growth[0])} (θ_0: T^{say(growth[1])}); at T^1 the regret per step does not fall",
                f"  projected gradient in the second half: root mean square {say(size[0])} (θ_0: {say(size[1])}), "
                f"size of the mean {say(mean)}",
            ]
        )


def local_regret(
    system: AbstractSystem,
    scenario: Scenario,
    thetas: PyTree,
    *,
    learning_rate: float,
    constraint: AbstractConstraint | None = None,
    window: int | AutoWindow | None = None,
    surrogate: Surrogate | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    engine: Engine = "auto",
) -> LocalRegret:
    r"""The local regret of a sequence θ (Section "Performance Metrics").

    $$R^L_\eta(T) = \sum_{t=0}^{T-1} \|\nabla_{\Theta,\eta} F_t(\theta_t)\|^2, \qquad
    \nabla_{\Theta,\eta} F(\theta) = \frac1\eta \left(\theta - \Pi_\Theta(\theta - \eta \nabla F(\theta))\right)$$

    (Definition "Projected gradient".) Without a constraint the projected gradient is the gradient. A projection never
    increases distances, so the error of the gradient bounds the error of the projected gradient.

    **Arguments:**

    - `thetas`, `window`, `workers`, `progress`, `engine`: as in `surrogate`.
    - `learning_rate`: η > 0, a number; usually the tuner's.
    - `constraint`: Θ; None is all of $\mathbb R^d$.
    - `surrogate`: the result of `surrogate` for the same system, scenario and thetas, to avoid computing it again.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(jnp.zeros(1), a_star=jnp.ones((200, 1)), w=jnp.ones((200, 1)))
        >>> ideal = st.ideal_ogd(system, scenario, theta=jnp.zeros(1), learning_rate=0.1, constraint=st.Box(0.0, 0.5))
        >>> regret = st.local_regret(
        ...     system, scenario, ideal.theta, learning_rate=0.1, constraint=st.Box(0.0, 0.5)
        ... )
        >>> bool(regret.cumulative[-1] == regret.cumulative[100])  # θ is at the edge of the box, and stays there
        True
        >>> print(str(regret).splitlines()[0])
        local regret 14.92 over 200 steps: 0.0746 per step
    """
    rate = arguments.positive("learning_rate", learning_rate)
    constraint = projected_step.constraint(Unconstrained() if constraint is None else constraint)
    scenario = run_inputs.problem(system, scenario)
    thetas = run_inputs.rows("thetas", thetas, scenario)
    engine = run_inputs.engine_for(engine, system, scenario, thetas)
    if surrogate is None:
        surrogate = compute_surrogate(
            system, scenario, thetas, window=window, workers=workers, progress=progress, engine=engine
        )
    elif not isinstance(surrogate, Surrogate):
        raise ArgumentError("surrogate", "a result of `surrogate`", arguments.describe(surrogate))
    elif surrogate.gradient.shape != (len(scenario), run_inputs.width(thetas)):
        raise ArgumentError(
            "surrogate",
            f"a gradient of shape ({len(scenario)}, {run_inputs.width(thetas)})",
            arguments.describe(surrogate.gradient),
        )
    loop = scenario.of_loop_state(system)
    first = jax.tree.map(lambda rows: rows[0], thetas)

    def natively() -> Array:
        from ._native_rollouts import one_rollout

        return one_rollout(system, loop, first)[1]

    _, at_first = run_with(engine, natively=natively, by_xla=lambda: _gradients(system, loop, first))
    return _local_regret(thetas, surrogate, at_first, rate, constraint)


@eqx.filter_jit
def _local_regret(
    thetas: PyTree, surrogate: Surrogate, at_first: Array, rate: Array, constraint: AbstractConstraint
) -> LocalRegret:
    eta = rate.astype(surrogate.gradient.dtype)

    def projected(theta: PyTree, gradient: Array) -> Array:
        flat, unravel = ravel_pytree(theta)
        # An unconstrained step gives the gradient itself, without the rounding error of a division by η.
        step = constraint.project(unravel(flat - eta * gradient))
        moved = ravel_pytree(step)[0]
        return jnp.where(moved == flat - eta * gradient, gradient, (flat - moved) / eta)

    gradients = jax.vmap(projected)(thetas, surrogate.gradient)
    norm, error = jnp.linalg.norm(gradients, axis=1), surrogate.gradient_error
    first = jax.tree.map(lambda rows: rows[0], thetas)
    untuned = jax.vmap(lambda gradient: projected(first, gradient))(at_first)
    return LocalRegret(
        jnp.cumsum(norm**2),
        jnp.cumsum((2 * norm + error) * error),
        gradients,
        jnp.cumsum(jnp.sum(untuned**2, axis=1)),
        surrogate,
    )


@eqx.filter_jit
def _gradients(system: AbstractSystem, scenario: Scenario, theta: PyTree) -> Float[Array, "T d"]:
    """∇F_t(θ) of one θ at every step, from one rollout."""
    n, d = scenario.x0.shape[0], ravel_pytree(theta)[0].size

    def step(packed: Array, tau: Array) -> tuple[Array, Array]:
        now = scenario.row(tau)
        x, y, _, gradient = system.sensitivity(packed[:n], packed[n:].reshape(n, d), theta, now.a_star, now.t)
        return jnp.concatenate([x + now.w, y.reshape(-1)]), gradient

    start = jnp.concatenate([scenario.x0, jnp.zeros(n * d, scenario.x0.dtype)])
    return jax.lax.scan(step, start, jnp.arange(len(scenario)))[1]
