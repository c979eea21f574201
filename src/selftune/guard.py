"""What keeps a controller safe in real time: no number that is not finite gets in, or out.

The functions are pure, and what `Agent` and the firmware run, with either engine.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from . import _check
from .controller import Controller, ControllerState, Info
from .run import Result
from .system import infer_residual


class AgentState(eqx.Module):
    """All that an agent remembers between two calls."""

    controller: ControllerState
    x: Float[Array, " n"]
    """Where the last `act` was, and its context."""
    t: PyTree
    u: Float[Array, " m"]
    """The last control that was given."""
    code: Int[Array, ""]
    """Of the last `act`: a `Result`'s code. Before the first it is not OK, so that nothing can be observed."""
    refused: Int[Array, ""]
    """How many calls were refused so far; the observation of a step that was refused is not counted again."""


def start(controller: Controller, x: Any, theta: Any, a_hat: Any, t: Any) -> AgentState:
    """The state before the first step; everything is checked."""
    if not isinstance(controller, Controller):
        raise ValueError(f"controller: expected a Controller, got {_check.describe(controller)}")
    if controller.estimator.is_oracle:
        raise ValueError("controller: expected an estimator that learns from observations, got Known")
    x, theta, a_hat = controller.check_values(x, theta, a_hat)
    sizes = controller.system.check(x, theta, a_hat, t)
    state = controller.init(x, theta=theta, a_hat=a_hat, t=t)
    code, refused = jnp.asarray(_NON_FINITE), jnp.zeros((), jnp.int32)
    return AgentState(state, x, t, jnp.zeros(sizes.m, x.dtype), code, refused)


def act(
    controller: Controller, limit: Array, state: AgentState, x: Array, t: Any
) -> tuple[AgentState, Float[Array, " m"], Info, Int[Array, ""]]:
    r"""`Controller.act`, unless x or anything that it leads to is not finite, or $\max |x_i| >$ `limit`.

    Then the step is refused: nothing but `code` and `refused` changes in the state, the control is the one given
    before, and the code says why.
    """
    u, after, info = controller.act(state.controller, x, t)
    with jax.named_scope("selftune.guard"):
        finite = _are_finite((x, u, info.cost, info.tuner.gradient, after.theta, after.tuner))
        small = jnp.all(jnp.abs(x) <= limit)
        code = _code(finite, small)
        ok = code == _OK
        kept = _choose(ok, (after, x, t, u), (state.controller, state.x, state.t, state.u))
        state = AgentState(*kept, code=code, refused=state.refused + (1 - ok.astype(jnp.int32)))
        return state, state.u, Info(state.u, info.cost, info.f_hat, info.tuner), code


def observe(controller: Controller, state: AgentState, f_obs: Array) -> tuple[AgentState, Int[Array, ""]]:
    """`Controller.observe` for the last `act`, unless that was refused, or something here is not finite.

    The code that is returned is this call's; the state keeps that of `act`.
    """
    after = controller.observe(state.controller, state.x, f_obs, state.t)
    with jax.named_scope("selftune.guard"):
        # An observation belongs to its `act`: where that was refused, so is this.
        code = jnp.where(state.code == _OK, _code(_are_finite((f_obs, after.a_hat, after.estimator)), True), state.code)
        ok = code == _OK
        refused = state.refused + ((state.code == _OK) & ~ok).astype(jnp.int32)
        kept = _choose(ok, after, state.controller)
        return AgentState(kept, state.x, state.t, state.u, state.code, refused), code


def observe_state(controller: Controller, state: AgentState, x_next: Array) -> tuple[AgentState, Int[Array, ""]]:
    """`observe` of the residual that explains the transition from the last `act` to `x_next`."""
    with jax.named_scope("selftune.infer"):
        f_hat = controller.system.residual(state.x, state.controller.a_hat, state.t)
        f_obs = infer_residual(controller.system, state.x, state.u, x_next, state.t, f=f_hat)
    return observe(controller, state, f_obs)


_OK, _DIVERGED, _NON_FINITE = (np.int32(code) for code in (Result.OK, Result.DIVERGED, Result.NON_FINITE))


def _code(finite: Any, small: Any) -> Array:
    return jnp.where(finite, jnp.where(small, _OK, _DIVERGED), _NON_FINITE)


def _are_finite(tree: PyTree) -> Array:
    """By the sum of sizes: one addition a number. A sum that overflows is refused with the rest."""
    sums = [jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.isfinite(sum(sums[1:], start=sums[0]))


def _choose(ok: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda new, old: jnp.where(ok, new, old), new, old)
