"""The state of a guard between two steps, and its report of a step."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from . import failsafe, innovation_gate, rollback, self_oscillation, stuck_sensor
from .failsafe import Failsafe
from .guard import Guard
from .innovation_gate import Gate
from .rollback import Window
from .self_oscillation import Swings
from .stuck_sensor import Repeats


class GuardState(eqx.Module):
    """The guard's state between two steps; None for a part that is off."""

    mode: Int[Array, ""]
    missed: Int[Array, ""]
    """How many measurements in a row were refused: at most `bridge`, or `bridge` + 1 after the rollback at its end."""
    saturated: Float[Array, ""] | None
    """The share of the last steps that saturated."""
    reserve: Float[Array, ""] | None
    """The way of θ that short steps have left over for longer ones."""
    window: Window | None
    failsafe: Failsafe | None
    gate: Gate | None
    repeats: Repeats | None
    swings: Swings | None


class GuardInfo(eqx.Module):
    """The guard's report of one step, for people and metrics.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.1))
        >>> guard = st.Guard(u_low=-1.0, u_high=1.0)
        >>> agent = st.Agent(controller, x=jnp.ones(1), theta=jnp.zeros(1), a_hat=jnp.zeros(1), guard=guard)
        >>> u = agent.act(jnp.array([jnp.nan]), 0)
        >>> print(st.Decision(int(agent.info.guard.decisions)))
        refused
    """

    decisions: Int[Array, ""]
    """The sum of `Decision`s."""
    saturated: Float[Array, ""] | None
    """The share of the last steps that saturated."""
    cost: Float[Array, ""] | None
    """The mean cost of the window; `level` is the cost of good windows that it is compared with."""
    level: Float[Array, ""] | None
    step_scale: Float[Array, ""] | None
    """The factor, at most 1, on the tuner's steps; rollbacks make it smaller."""
    gated: Int[Array, ""] | None
    """How many observations the innovation gate has refused so far."""


def start(guard: Guard, theta: PyTree, a_hat: PyTree, q: int, k: int, u: Float[Array, " m"], t: Any) -> GuardState:
    """Return the state before the first step, for q measured numbers and k of the residual; `u` is the control before
    it, and `t` an example of a context."""
    dtype = u.dtype
    watched = guard.authority is not None and guard.is_clipping
    return GuardState(
        mode=jnp.zeros((), jnp.int32),
        missed=jnp.zeros((), jnp.int32),
        saturated=jnp.zeros((), dtype) if watched else None,
        reserve=None if guard.rate is None or guard.burst is None else jnp.zeros((), dtype),
        window=rollback.start(guard, theta, a_hat, dtype),
        failsafe=failsafe.start(guard),
        gate=innovation_gate.start(guard, k, dtype),
        repeats=stuck_sensor.start(guard, q, dtype),
        swings=self_oscillation.start(guard, u, t),
    )


def report(decisions: Array, state: GuardState) -> GuardInfo:
    """Return the report of a step that ended in this state."""
    gated = None if state.gate is None else state.gate.gated
    window = state.window
    if window is None:
        return GuardInfo(decisions, state.saturated, None, None, None, gated)
    mean = window.total / jnp.maximum(window.weight, 1) + window.lowest
    return GuardInfo(decisions, state.saturated, mean, window.level + window.lowest, window.step_scale, gated)
