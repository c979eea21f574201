from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..native.choice import Engine, run_with
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from ..simulation.run import Run
from ..tuners.base import AbstractTuner
from . import _text, run_inputs


class Perturbations(eqx.Module):
    """The effect of the inexact model on the updates of θ; row t belongs to step t.

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
        >>> found = st.perturbations(system, scenario, run, tuner=controller.tuner)
        >>> found.norm.shape, bool(found.norm[-1] < found.norm.max())  # they fade as the model is learned
        ((50,), True)
    """

    __repr__ = settings_text.show

    perturbation: Float[Array, "T d"]
    r"""$\zeta_t$, flat in θ."""
    norm: Float[Array, " T"]
    r"""$\|\zeta_t\|$."""
    total: Float[Array, ""]
    r"""$\sum_t \|\zeta_t\|$."""

    @_text.printed
    def __str__(self) -> str:
        return (
            f"perturbations of θ over {_text.over(self.norm)}: sum of ‖ζ‖ {_text.number(self.total)}\n"
            f"  ‖ζ‖: {_text.in_halves(self.norm)}; {_text.largest(self.norm)}"
        )


def perturbations(
    system: AbstractSystem, scenario: Scenario, run: Run, *, tuner: AbstractTuner, engine: Engine = "auto"
) -> Perturbations:
    r"""The $\zeta_t$ with which ALG*, the tuner with the exact model, produces the same θ as the run.

    $$(\tilde x_{t+1}, \tilde y_{t+1}, \theta_{t+1}) = q_t(\tilde x_t, \tilde y_t, \theta_t, a^*_t) + (0, 0, \zeta_t)$$

    ("ALG* with perturbations", Section "Online Policy Optimization". The regret bound of the theorem there depends on
    the run only through $\sum_t \|\zeta_t\|$.) Here y is the whole state of the tuner, with the optimizer's state, so
    this works for every tuner.

    **Arguments:** `run`: a run that recorded `theta` from its first step on. `tuner`: the run's tuner,
    `controller.tuner`. `engine`: as in `surrogate`.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(jnp.zeros(1), a_star=jnp.ones((200, 1)), w=jnp.ones((200, 1)))
        >>> controller = st.Controller(system, st.MGAPS(0.001), st.GradientEstimator(0.1))
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> zeta = st.perturbations(system, scenario, run, tuner=controller.tuner)
        >>> bool(zeta.norm[5] > 1e-2), bool(zeta.norm[-1] < 1e-6)  # they fade as the model is learnt
        (True, True)
    """
    scenario = run_inputs.problem(system, scenario)
    if not isinstance(tuner, AbstractTuner):
        raise ArgumentError("tuner", "a selftune tuner", arguments.describe(tuner))
    (theta,) = run_inputs.recorded(run, "theta", scenario=scenario)
    run_inputs.check_shapes(system, scenario, theta)
    loop = scenario.of_loop_state(system)
    following = jax.tree.map(lambda rows, last: jnp.concatenate([rows[1:], last[None]]), theta, run.final.state.theta)
    first = jax.tree.map(lambda rows: rows[0], theta)
    state = eqx.filter_jit(tuner.init)(system, loop.x0, first)

    def natively() -> Array:
        from ._native_rollouts import perturbations_natively

        return perturbations_natively(system, loop, tuner, state, theta, following)

    _, zeta = run_with(
        run_inputs.engine_for(engine, system, scenario, tuner, theta),
        natively=natively,
        by_xla=lambda: _perturbations(system, loop, tuner, state, theta, following),
    )
    norm = jnp.linalg.norm(zeta, axis=1)
    return Perturbations(zeta, norm, jnp.sum(norm))


@eqx.filter_jit
def _perturbations(
    system: AbstractSystem, scenario: Scenario, tuner: AbstractTuner, state: PyTree, thetas: PyTree, following: PyTree
) -> Float[Array, "T d"]:
    def step(carry: Any, inputs: Any) -> tuple[Any, Array]:
        x, state = carry
        tau, theta, after = inputs
        now = scenario.row(tau)
        update, state, _ = tuner.update(system, x, theta, now.a_star, now.t, state)
        x_next, _ = system.step(x, theta, now.a_star, now.t)
        return (x_next + now.w, state), ravel_pytree(after)[0] - ravel_pytree(update)[0]

    return jax.lax.scan(step, (scenario.x0, state), (jnp.arange(len(scenario)), thetas, following))[1]
