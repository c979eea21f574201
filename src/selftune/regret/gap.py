import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import settings_text
from ..native.choice import Engine, run_with
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from ..simulation.run import Run
from . import _text, run_inputs
from .companion_trajectory import companion


class ExactModelGap(eqx.Module):
    """The companion trajectory of a run, and the run's distance to it; row t belongs to step t.

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
        >>> found = st.exact_model_gap(system, scenario, run)
        >>> found.x.shape, found.gap.shape, bool(found.gap[-1] < found.gap.max())
        ((50, 1), (50,), True)
    """

    __repr__ = settings_text.show

    x: Float[Array, "T n"]
    r"""$\tilde x_t$."""
    y: Float[Array, "T n d"]
    r"""$\tilde y_t$."""
    gap: Float[Array, " T"] | None
    r"""$\|(x_t, y_t) - (\tilde x_t, \tilde y_t)\|$, over all entries; None if the tuner has no y."""
    gap_x: Float[Array, " T"]
    r"""$\|x_t - \tilde x_t\|$."""

    @_text.printed
    def __str__(self) -> str:
        named = {"of x": self.gap_x} | ({} if self.gap is None else {"of x and y together": self.gap})
        lines = [f"  {name}: {_text.in_halves(rows)}; {_text.largest(rows)}" for name, rows in named.items()]
        return "\n".join([f"distance to the run with the exact model over {_text.over(self.gap_x)}", *lines])


def exact_model_gap(system: AbstractSystem, scenario: Scenario, run: Run, *, engine: Engine = "auto") -> ExactModelGap:
    r"""The trajectory with the run's θ and the exact model (the companion), and the run's distance to it.

    The companion $\tilde\xi = \{\tilde x_t, \tilde y_t, \theta_t\}$ of the theorem on the meta-framework (Section
    "Online Policy Optimization") uses the run's own $\theta_{0:T-1}$ with $a^*_{0:T-1}$:

    $$\tilde x_{t+1} = g^*_{t+1|t}(\tilde x_t, \theta_t), \qquad \tilde y_{t+1} =
    \frac{\partial g^*}{\partial x} \tilde y_t + \frac{\partial g^*}{\partial \theta}, \qquad
    \tilde x_0 = x_0, \ \tilde y_0 = 0,$$

    with derivatives at $(\tilde x_t, \theta_t)$. y is the y of M-GAPS.

    **Arguments:** `run`: a run that recorded `x` and `theta`, and `y` if `gap` is needed. `engine`: as in `surrogate`.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(jnp.zeros(1), a_star=jnp.ones((200, 1)), w=jnp.zeros((200, 1)))
        >>> controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.1))
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> gap = st.exact_model_gap(system, scenario, run).gap
        >>> bool(gap[5] > 0.1), bool(gap[-1] < 1e-6)  # the gap closes as the model is learnt
        (True, True)
    """
    scenario = run_inputs.problem(system, scenario)
    x, theta = run_inputs.recorded(run, "x", "theta", scenario=scenario)
    run_inputs.check_shapes(system, scenario, theta)
    loop = scenario.of_loop_state(system)

    def natively() -> tuple[Array, Array]:
        from ._native_rollouts import companion_natively

        return companion_natively(system, loop, theta)

    engine = run_inputs.engine_for(engine, system, scenario, theta)
    _, (x_exact, y_exact) = run_with(engine, natively=natively, by_xla=lambda: companion(system, loop, theta))
    if system.memory is not None:
        (memory,) = run_inputs.recorded(run, "memory", scenario=scenario)
        x = jnp.concatenate([x, run_inputs.flat_rows(memory)], axis=1)
    gap_x = jnp.linalg.norm(x - x_exact, axis=1)
    y = run.recorded.get("y")
    if y is None:
        return ExactModelGap(x_exact, y_exact, None, gap_x)
    gap_y = jnp.sqrt(jnp.sum((y - y_exact) ** 2, axis=(1, 2)))
    return ExactModelGap(x_exact, y_exact, jnp.hypot(gap_x, gap_y), gap_x)
