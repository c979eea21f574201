import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments, settings_text
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from ..simulation.run import Run
from . import _text, run_inputs


class ModelMismatch(eqx.Module):
    """The errors of the model along a run; row t belongs to step t.

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
        >>> found = st.model_mismatch(system, scenario, run)
        >>> print(found.mismatch[0], bool(found.mismatch[-1] < 0.1))  # at first a is off by 1
        1.0 True
    """

    __repr__ = settings_text.show

    mismatch: Float[Array, " T"]
    r"""$\varepsilon_t$."""
    mismatch_gradient: Float[Array, " T"]
    r"""$\varepsilon'_t$."""
    total: Float[Array, ""]
    r"""$\sum_t \varepsilon_t$."""
    total_gradient: Float[Array, ""]
    r"""$\sum_t \varepsilon'_t$."""

    @_text.printed
    def __str__(self) -> str:
        return (
            f"model mismatch over {_text.over(self.mismatch)}\n"
            f"  of f, ε: sum {_text.number(self.total)}; {_text.in_halves(self.mismatch)}\n"
            f"  of ∇f, ε': sum {_text.number(self.total_gradient)}; {_text.in_halves(self.mismatch_gradient)}"
        )


def model_mismatch(
    system: AbstractSystem, scenario: Scenario, run: Run, *, plant: AbstractSystem | None = None
) -> ModelMismatch:
    r"""The zeroth- and first-order model mismatches along a run (Section "Main Results").

    $$\varepsilon_t = \|f_t(x_t, \hat a_t) - f_t(x_t, a^*_t)\|, \qquad
    \varepsilon'_t = \|\nabla_x f_t(x_t, \hat a_t) - \nabla_x f_t(x_t, a^*_t)\|_F$$

    **Arguments:** `run`: a run that recorded `x` and `a_hat`. `plant`: the true system, if the run had a plant other
    than the model; its `residual`, with the scenario's $a^*$, is the true one.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(jnp.zeros(1), a_star=jnp.ones((200, 1)), w=jnp.zeros((200, 1)))
        >>> controller = st.Controller(system, st.Fixed(), st.GradientEstimator(0.1))
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> mismatch = st.model_mismatch(system, scenario, run).mismatch
        >>> float(mismatch[0]), bool(mismatch[-1] < 1e-6)
        (1.0, True)
    """
    scenario = run_inputs.problem(system, scenario)
    arguments.instance("plant", plant, AbstractSystem, optional=True)
    x, a_hat = run_inputs.recorded(run, "x", "a_hat", scenario=scenario)
    return _model_mismatch(system, plant or system, scenario, x, a_hat)


@eqx.filter_jit
def _model_mismatch(
    model: AbstractSystem, plant: AbstractSystem, scenario: Scenario, x: Array, a_hat: PyTree
) -> ModelMismatch:
    def at(tau: Array, x: Array, a_hat: PyTree) -> tuple[Array, Array]:
        now = scenario.row(tau)

        def error(x: Array) -> Array:
            return model.residual(x, a_hat, now.t) - plant.residual(x, now.a_star, now.t)

        return jnp.linalg.norm(error(x)), jnp.linalg.norm(jax.jacfwd(error)(x))

    mismatch, gradient = jax.vmap(at)(jnp.arange(len(scenario)), x, a_hat)
    return ModelMismatch(mismatch, gradient, jnp.sum(mismatch), jnp.sum(gradient))
