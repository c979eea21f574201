from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem, MatchedSystem
from ..simulation.run import Run
from . import _text, run_inputs


class PathLengths(eqx.Module):
    """How much the environment varies over a scenario.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.System(
        ...     dynamics=lambda x, u, f, t: x + u + f,
        ...     residual=lambda x, a, t: a,
        ...     policy=lambda x, theta, f, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> steps = st.Scenario(jnp.zeros(1), a_star=jnp.array([[0.0], [0.0], [3.0], [2.0]]), w=jnp.zeros((4, 1)))
        >>> found = st.path_lengths(system, steps)
        >>> print(found.a_star, found.w)  # a* moves by 3, then by 1
        4.0 0.0
    """

    __repr__ = settings_text.show

    w: Float[Array, ""]
    r"""$V_w = \sum_{t \ge 1} \|w_t - w_{t-1}\|$."""
    a_star: Float[Array, ""]
    r"""$\sum_{t \ge 1} \|a^*_t - a^*_{t-1}\|$."""
    system: Float[Array, ""] | None
    r"""$V_{sys}$, a lower estimate, because each supremum is over samples. None if no run was given."""

    @_text.printed
    def __str__(self) -> str:
        system = "not computed: no run was given" if self.system is None else f"at least {_text.number(self.system)}"
        return (
            f"path length of w, V_w: {_text.number(self.w)}\n"
            f"path length of a*: {_text.number(self.a_star)}\n"
            f"variation of the system, V_sys: {system}"
        )


def path_lengths(
    system: AbstractSystem,
    scenario: Scenario,
    run: Run | None = None,
    *,
    key: PRNGKeyArray | None = None,
    samples: int = 64,
) -> PathLengths:
    r"""The variation intensities that the regret bounds depend on (the lemma on M-GAPS with the exact model).

    $$V_w = \sum_{t=1}^{T-1} \|w_t - w_{t-1}\|, \qquad
    V_{sys} = \sum_{t=1}^{T-1} \Big( \sup_{x,u} \|\phi_t - \phi_{t-1}\| + \sup_{x,\theta} \|\psi_t - \psi_{t-1}\| +
    \sup_{x,u,\theta} |h_t - h_{t-1}| \Big)$$

    Each supremum is taken over `samples` points of the product of the sets that the run visited: x, u, θ (and f) are
    drawn from its rows independently. So $V_{sys}$ is a *lower estimate*, which grows with `samples` towards the
    supremum over the visited sets. For a system that is not a `MatchedSystem`, $g_t(x, u, f)$ and $\pi_t(x, \theta,
    f)$ replace $\phi_t$ and $\psi_t$.

    **Arguments:** `run`: a run that recorded `x`, `u`, `f` and `theta`, at any stride; with None, $V_{sys}$ is left
    out. `key`: for the draws; required with a run.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum((x - jnp.sin(0.1 * t)) ** 2),
        ... )
        >>> scenario = st.Scenario(jnp.zeros(1), a_star=jnp.ones((200, 1)), w=jnp.zeros((200, 1)), t=jnp.arange(200.0))
        >>> run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.zeros(1))
        >>> lengths = st.path_lengths(system, scenario, run, key=jax.random.key(0))
        >>> float(lengths.w), float(lengths.a_star), bool(lengths.system > 0)  # only the cost's target moves
        (0.0, 0.0, True)
    """
    scenario = run_inputs.problem(system, scenario)
    samples = arguments.count("samples", samples)
    if system.memory is not None and run is not None:
        raise ArgumentError("system", "a system without memory, whose policy is a function of x, θ and f", "a memory")
    w, a_star = _variation(scenario.w), _variation(run_inputs.flat_rows(scenario.a_star))
    if run is None:
        return PathLengths(w, a_star, None)
    if key is None:
        raise ArgumentError("key", "a PRNG key such as jax.random.key(0), because points of the run are drawn", "None")
    key = arguments.key("key", key)
    rows = {name: run_inputs.field("run", run, name) for name in ("x", "u", "f", "theta")}
    if len(scenario) < 2:
        return PathLengths(w, a_star, jnp.zeros((), scenario.x0.dtype))
    return PathLengths(w, a_star, _system_variation(system, scenario, rows, key, samples))


@eqx.filter_jit
def _variation(rows: Float[Array, "T n"]) -> Float[Array, ""]:
    return jnp.sum(jnp.linalg.norm(jnp.diff(rows, axis=0), axis=1))


@eqx.filter_jit
def _system_variation(
    system: AbstractSystem, scenario: Scenario, rows: dict[str, PyTree], key: PRNGKeyArray, samples: int
) -> Float[Array, ""]:
    def draw(key: Array, tree: PyTree) -> PyTree:
        index = jax.random.randint(key, (samples,), 0, jax.tree.leaves(tree)[0].shape[0])
        return jax.tree.map(lambda leaf: leaf[index], tree)

    keys = jax.random.split(key, 4)
    x, u, f, theta = (draw(key, rows[name]) for key, name in zip(keys, ("x", "u", "f", "theta"), strict=True))

    def functions(t: Any) -> tuple[Array, Array, Array]:
        """Dynamics, policy and cost at all samples."""
        dynamics = jax.vmap(lambda x, u, f: system.dynamics(x, u, f, t))(x, u, f)
        if isinstance(system, MatchedSystem):
            psi = system.actuation
            policy = jax.vmap(lambda x, theta: psi(x, theta, t))(x, theta)
        else:
            policy = jax.vmap(lambda x, theta, f: system.policy(x, theta, f, t))(x, theta, f)
        cost = jax.vmap(lambda x, u, theta: system.cost(x, u, theta, t))(x, u, theta)
        return dynamics, policy, cost[:, None]

    def step(carry: Any, tau: Array) -> tuple[Any, None]:
        before, total = carry
        now = functions(scenario.row(tau).t)
        moved = [jnp.max(jnp.linalg.norm(a - b, axis=1)) for a, b in zip(now, before, strict=True)]
        return (now, total + sum(moved)), None

    start = (functions(scenario.row(0).t), jnp.zeros((), scenario.x0.dtype))
    (_, total), _ = jax.lax.scan(step, start, jnp.arange(1, len(scenario)))
    return total
