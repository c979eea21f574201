import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..simulation.run import Run
from . import _text, run_inputs


class QuasiRegret(eqx.Module):
    """The cost minus the cost of a reference run; row t belongs to step t.

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
        >>> fixed = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.zeros(1))
        >>> found = st.quasi_regret(run, fixed)
        >>> bool(jnp.allclose(found.cumulative[-1], found.difference.sum()))
        True
    """

    __repr__ = settings_text.show

    difference: Float[Array, " T"]
    """$c_t - c^{ref}_t$."""
    cumulative: Float[Array, " T"]

    @_text.printed
    def __str__(self) -> str:
        difference = np.asarray(self.difference)
        return (
            f"cost minus the reference's cost over {_text.over(difference)}: "
            f"{_text.number(np.asarray(self.cumulative)[..., -1])}\n"
            f"  per step: {_text.in_halves(difference)}; lower than the reference in "
            f"{_text.number(100 * np.mean(difference < 0, axis=-1))} % of the steps"
        )


def quasi_regret(run: Run, reference_run: Run) -> QuasiRegret:
    r"""The cumulative cost of a run minus the cumulative cost of a reference run on the same scenario.

    $$\sum_{\tau \le t} c_\tau - \sum_{\tau \le t} c^{ref}_\tau$$

    Unlike for a regret, the reference need not be optimal: it may be a fixed gain, an oracle or another tuner.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(
        ...     jnp.zeros(1), a_star=jnp.ones((500, 1)), w=st.Gaussian(1.0)(jax.random.key(0), 500, 1)
        ... )
        >>> tuned = st.Controller(system, st.MGAPS(0.01, constraint=st.Box(0.0, 0.8)), st.Known())
        >>> fixed = st.Controller(system, st.Fixed(), st.Known())
        >>> runs = [st.simulate(controller, scenario, theta=jnp.zeros(1)) for controller in (tuned, fixed)]
        >>> bool(st.quasi_regret(*runs).cumulative[-1] < 0)  # tuning is better than not
        True
    """
    costs = [run_inputs.field(name, value, "cost") for name, value in (("run", run), ("reference_run", reference_run))]
    if costs[0].shape != costs[1].shape:
        raise ArgumentError(
            "reference_run", f"as many costs as in run, {arguments.describe(costs[0])}", arguments.describe(costs[1])
        )
    difference = costs[0] - costs[1]
    return QuasiRegret(difference, jnp.cumsum(difference))
