import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .. import _check, _descent
from ..constraint import AbstractConstraint, Unconstrained
from ..scenario import Scenario
from ..system import System
from . import _inputs, _parallel
from .surrogate import Surrogate
from .surrogate import surrogate as compute_surrogate


class LocalRegret(eqx.Module):
    """How well θ follows the stationary points of the surrogate; row t is step t's."""

    cumulative: Float[Array, " T"]
    r"""$R^L_\eta(t+1) = \sum_{\tau \le t} \|\nabla_{\Theta,\eta} F_\tau(\theta_\tau)\|^2$."""
    cumulative_error: Float[Array, " T"]
    """How far `cumulative` may be from the exact one, by the surrogate's `gradient_error`."""
    projected_gradient: Float[Array, "T d"]
    r"""$\nabla_{\Theta,\eta} F_t(\theta_t)$, flat in θ."""
    surrogate: Surrogate


def local_regret(
    system: System,
    scenario: Scenario,
    thetas: PyTree,
    *,
    learning_rate: float,
    constraint: AbstractConstraint | None = None,
    window: int | str | None = None,
    tolerance: float = 1e-9,
    surrogate: Surrogate | None = None,
    workers: int | None = None,
    progress: _parallel.Progress | None = None,
) -> LocalRegret:
    r"""The local regret of a sequence θ (Section "Performance Metrics").

    $$R^L_\eta(T) = \sum_{t=0}^{T-1} \|\nabla_{\Theta,\eta} F_t(\theta_t)\|^2, \qquad
    \nabla_{\Theta,\eta} F(\theta) = \frac1\eta \left(\theta - \Pi_\Theta(\theta - \eta \nabla F(\theta))\right)$$

    (Definition "Projected gradient".) Without a constraint the projected gradient is the gradient. As a projection
    brings no two points further apart, the error of the gradient bounds that of the projected one.

    **Arguments:**

    - `thetas`, `window`, `tolerance`, `workers`, `progress`: as in `surrogate`.
    - `learning_rate`: η > 0, a number; that of the tuner, usually.
    - `constraint`: Θ; None is all of $\mathbb R^d$.
    - `surrogate`: what `surrogate` gave for the same system, scenario and thetas, to save computing it again.

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
    """
    rate = _check.positive("learning_rate", learning_rate)
    constraint = _descent.constraint(Unconstrained() if constraint is None else constraint)
    scenario = _inputs.problem(system, scenario)
    thetas = _inputs.rows("thetas", thetas, scenario)
    if surrogate is None:
        surrogate = compute_surrogate(
            system, scenario, thetas, window=window, tolerance=tolerance, workers=workers, progress=progress
        )
    elif not isinstance(surrogate, Surrogate):
        raise ValueError(f"surrogate: expected what `surrogate` returns, got {_check.describe(surrogate)}")
    elif surrogate.gradient.shape != (len(scenario), _inputs.width(thetas)):
        raise ValueError(
            f"surrogate: expected a gradient of shape ({len(scenario)}, {_inputs.width(thetas)}), "
            f"got {_check.describe(surrogate.gradient)}"
        )
    return _local_regret(thetas, surrogate, rate, constraint)


@eqx.filter_jit
def _local_regret(thetas: PyTree, surrogate: Surrogate, rate: Array, constraint: AbstractConstraint) -> LocalRegret:
    eta = rate.astype(surrogate.gradient.dtype)

    def projected(theta: PyTree, gradient: Array) -> Array:
        flat, unravel = ravel_pytree(theta)
        # Taken from the step itself, so that an unconstrained one is the gradient and not the gradient within rounding.
        step = constraint.project(unravel(flat - eta * gradient))
        moved = ravel_pytree(step)[0]
        return jnp.where(moved == flat - eta * gradient, gradient, (flat - moved) / eta)

    gradients = jax.vmap(projected)(thetas, surrogate.gradient)
    norm, error = jnp.linalg.norm(gradients, axis=1), surrogate.gradient_error
    return LocalRegret(jnp.cumsum(norm**2), jnp.cumsum((2 * norm + error) * error), gradients, surrogate)
