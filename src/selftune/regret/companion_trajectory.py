"""The companion trajectory: the run's own θ, with the exact model."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from .run_inputs import width


@eqx.filter_jit
def companion(
    system: AbstractSystem, scenario: Scenario, thetas: PyTree
) -> tuple[Float[Array, "T n"], Float[Array, "T n d"]]:
    r"""$\tilde x_t$ and $\tilde y_t$ of the partial joint dynamics with $\theta_{0:T-1}$ and $a^*_{0:T-1}$, by XLA."""
    n, d = scenario.x0.shape[0], width(thetas)

    # The loop carries and emits one vector, because on a CPU every array of a scan costs a kernel.
    def step(packed, inputs):
        tau, theta = inputs
        now = scenario.row(tau)
        x, y, _, _ = system.sensitivity(packed[:n], packed[n:].reshape(n, d), theta, now.a_star, now.t)
        return jnp.concatenate([x + now.w, y.reshape(-1)]), packed

    start = jnp.concatenate([scenario.x0, jnp.zeros(n * d, scenario.x0.dtype)])
    _, rows = jax.lax.scan(step, start, (jnp.arange(len(scenario)), thetas))
    return rows[:, :n], rows[:, n:].reshape(-1, n, d)
