"""A controller's step with a guard around it: what `Agent`, a guarded `simulate` and the firmware run."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..estimators.base import EstimatorInfo
from ..foundation import arguments
from ..problem.system import infer_residual
from . import guard as guards
from . import result_codes
from .controller import Controller, ControllerState, Info
from .guard import Decision, Guard, GuardInfo, GuardState, Mode, choose


class AgentState(eqx.Module):
    """All that is remembered between two calls."""

    controller: ControllerState
    guard: GuardState
    x: Float[Array, " n"]
    """Where the last `act` that was not refused was, and its context."""
    t: PyTree
    u: Float[Array, " m"]
    """The last control that was given."""
    predicted: Float[Array, " n"]
    """The x that the model expects next."""
    code: Int[Array, ""]
    """Of the last `act`: a `Result`'s code. Before the first it is not OK, so that nothing can be observed."""
    refused: Int[Array, ""]
    """How many calls were refused so far; the observation of a step that was refused is not counted again."""

    @property
    def theta(self) -> PyTree:
        return self.controller.theta

    @property
    def a_hat(self) -> PyTree:
        return self.controller.a_hat


def start(controller: Controller, guard: Guard, x: Any, theta: Any, a_hat: Any, t: Any) -> AgentState:
    """The state before the first step; everything is checked."""
    if not isinstance(controller, Controller):
        raise ValueError(f"controller: expected a Controller, got {arguments.describe(controller)}")
    if controller.estimator.is_oracle:
        raise ValueError("controller: expected an estimator that learns from observations, got Known")
    return begin(controller, guard, x, theta, a_hat, t)


def begin(controller: Controller, guard: Guard, x: Any, theta: Any, a_hat: Any, t: Any) -> AgentState:
    """The same for any estimator."""
    if not isinstance(guard, Guard):
        raise ValueError(f"guard: expected a Guard, got {arguments.describe(guard)}")
    x, theta, a_hat = controller.check_values(x, theta, a_hat)
    sizes = controller.system.check(x, theta, a_hat, t)
    guard.check(sizes.n, sizes.m, sizes.k, sizes.d)
    state = controller.init(x, theta=theta, a_hat=a_hat, t=t)
    # In a simulation the first context is known by its shape alone, and not read.
    t = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if _is_shape(leaf) else leaf, t)
    u = guards.clip(guard, jnp.zeros(sizes.m, x.dtype))[0]
    code, refused = jnp.asarray(_NON_FINITE), jnp.zeros((), jnp.int32)
    return AgentState(state, guards.start(guard, theta, a_hat, x.dtype), x, t, u, x, code, refused)


def act(
    controller: Controller, guard: Guard, state: AgentState, x: Array, t: Any
) -> tuple[AgentState, Float[Array, " m"], Info, Int[Array, ""]]:
    r"""`Controller.act`, as far as the guard lets it.

    1. Is x finite and inside its limits? If not, the model's prediction stands in for it, for so many steps.
    2. `Controller.act`: u and what the tuner wants; u is clipped.
    3. θ moves as far as it may: not at all where anything is not finite, y is too large, or nobody is to learn.
    4. The cost goes into its window; a rollback puts the last good θ and â in place.
    """
    before, watch, system = state.controller, state.guard, controller.system
    seen, small = _are_finite(x), guards.within(guard.x_limit, x)
    measured = seen & small
    bridged = ~measured & (watch.missed < guard.bridge)
    x_used = jnp.where(bridged, state.predicted, x) if guard.bridge else x
    wanted, after, info = controller.act(before, x_used, t)
    with jax.named_scope("selftune.guard"):
        clipped, saturated = guards.clip(guard, wanted)
        # Where nothing stands in for an x that is too large, its own control is better than none.
        given = _are_finite((x_used, wanted))
        u = jnp.where(given, clipped, guards.clip(guard, state.u)[0])

        still = (watch.mode != Mode.LEARNING) | _on_probation(watch)
        forget = jnp.asarray(False)
        if guard.y_limit is not None and info.tuner.y is not None:
            forget = jnp.max(jnp.abs(info.tuner.y)) > guard.y_limit
        theta, limited, held = guards.limit_step(
            guard, controller, watch, before.theta, after.theta, still=still, forget=forget
        )
        tuner = after.tuner
        # A tuner that was not listened to starts anew when it is again.
        restarts = forget | (_on_probation(watch) & (_probation(watch) == 1))
        tuner = choose(restarts, controller.tuner.reset(system, x_used, theta, tuner), tuner)
        # Of what is used: a y that has grown until its gradient overflows is forgotten, and not refused for ever.
        learned = _are_finite((u, info.cost, jnp.where(forget, 0, info.tuner.gradient), theta, tuner))
        code = jnp.where(seen, _code(given & learned | ~small, small), _NON_FINITE)
        ok = code == _OK
        a_hat, estimator = before.a_hat, before.estimator

        share, window = watch.saturated, watch.window
        if share is not None:
            share = share + (saturated.astype(share.dtype) - share) / guard.window
        exploded = unstable = saved = jnp.asarray(False)
        if window is not None:
            window, exploded, unstable, saved = guards.judge(
                guard,
                window,
                info.cost,
                info.tuner.contraction,
                theta,
                a_hat,
                learning=watch.mode != Mode.PAUSED,
            )
            back = _restored(controller, x_used, before.theta, tuner, window, watch.mode)
            theta, a_hat, tuner, estimator = choose(exploded | unstable, back, (theta, a_hat, tuner, estimator))

        # Too large for longer than can be bridged is no outlier: it is where the gains have led.
        lost = seen & ~small & (watch.missed == guard.bridge) & (watch.mode != Mode.PAUSED)
        stayed, window_stayed = before, watch.window
        if watch.window is not None:
            back = _restored(controller, state.x, before.theta, before.tuner, watch.window, watch.mode)
            stayed = choose(lost, ControllerState(*back), before)
            window_stayed = choose(lost, guards.go_back(guard, watch.window), watch.window)

        flags = {
            Decision.LIMITED: limited,
            Decision.HELD: held,
            Decision.RESET: forget,
            Decision.EXPLODED: exploded,
            Decision.UNSTABLE: unstable,
            Decision.STILL: still,
            Decision.SAVED: saved,
        }
        decisions = jnp.where(
            ok, _sum(flags), np.int32(Decision.REFUSED) + _sum({Decision.EXPLODED: lost & (guard.rollback is not None)})
        )
        decisions = decisions + _sum({Decision.SATURATED: given & saturated})
        missed = jnp.where(measured, 0, watch.missed + 1).astype(jnp.int32)
        kept = choose(
            ok,
            (ControllerState(theta, a_hat, tuner, estimator), GuardState(watch.mode, missed, share, window), x, t),
            (stayed, GuardState(watch.mode, missed, watch.saturated, window_stayed), state.x, state.t),
        )
        # Not of u, so that where nothing is clipped this is what the tuner has computed already.
        predicted: Array = system.dynamics(x_used, clipped, info.f_hat, t)
        predicted = jnp.where(given & _are_finite(predicted), predicted, state.predicted)
        refused = state.refused + (1 - ok.astype(jnp.int32))
        state = AgentState(*kept, u=u, predicted=predicted, code=code, refused=refused)
        now = state.guard.window
        told = GuardInfo(
            decisions,
            state.guard.saturated,
            *((None,) * 3 if now is None else (now.total / jnp.maximum(now.weight, 1), now.level, now.caution)),
        )
        return state, u, Info(u, info.cost, info.f_hat, told, info.tuner), code


def observe(controller: Controller, guard: Guard, state: AgentState, f_obs: Array) -> tuple[AgentState, Int[Array, ""]]:
    """`Controller.observe` for the last `act`, unless that was refused, or something here is not finite or too large.

    The code that is returned is this call's; the state keeps that of `act`.
    """
    state, code, _ = observe_and_tell(controller, guard, state, f_obs)
    return state, code


def observe_and_tell(
    controller: Controller, guard: Guard, state: AgentState, f_obs: Array, *, small: Any = True
) -> tuple[AgentState, Int[Array, ""], EstimatorInfo]:
    """`small`: whether what it was inferred from is inside its limits."""
    after, told = controller._observe(state.controller, state.x, f_obs, state.t)
    with jax.named_scope("selftune.guard"):
        # An observation belongs to its `act`: where that was refused, so is this.
        finite = _are_finite((f_obs, after.a_hat, after.estimator))
        code = jnp.where(state.code == _OK, _code(finite, small & guards.within(guard.f_limit, f_obs)), state.code)
        ok = code == _OK
        refused = state.refused + ((state.code == _OK) & ~ok).astype(jnp.int32)
        kept = choose(ok & (state.guard.mode != Mode.PAUSED), after, state.controller)
        return eqx.tree_at(lambda s: (s.controller, s.refused), state, (kept, refused)), code, told


def observe_state(
    controller: Controller, guard: Guard, state: AgentState, x_next: Array
) -> tuple[AgentState, Int[Array, ""]]:
    """`observe` of the residual that explains the transition from the last `act` to `x_next`, if that may be used."""
    with jax.named_scope("selftune.infer"):
        f_hat = controller.system.residual(state.x, state.controller.a_hat, state.t)
        f_obs = infer_residual(controller.system, state.x, state.u, x_next, state.t, f=f_hat)
    state, code, _ = observe_and_tell(controller, guard, state, f_obs, small=guards.within(guard.x_limit, x_next))
    return state, code


def resume(controller: Controller, state: AgentState) -> AgentState:
    """Learn, from now on; the tuner without what it remembers of the time in which it was not listened to."""
    inside = state.controller
    stood = state.guard.mode != Mode.LEARNING
    fresh = controller.tuner.reset(controller.system, state.x, inside.theta, inside.tuner)
    tuner = choose(stood, fresh, inside.tuner)
    mode = jnp.full_like(state.guard.mode, Mode.LEARNING)
    window = state.guard.window
    if window is not None:  # what it cost in the meantime was not the tuner's doing: no more than is usual
        usual = jnp.where(stood & jnp.isfinite(window.level), window.level * window.weight, jnp.inf)
        window = eqx.tree_at(lambda w: w.total, window, jnp.minimum(window.total, usual))
    return eqx.tree_at(
        lambda s: (s.controller, s.guard.mode, s.guard.window),
        state,
        (ControllerState(inside.theta, inside.a_hat, tuner, inside.estimator), mode, window),
        is_leaf=lambda node: node is None,
    )


def restore(controller: Controller, state: AgentState) -> AgentState:
    """The last good θ and â, both at once; tuner and estimator start anew there."""
    window = state.guard.window
    if window is None:
        return state
    inside = state.controller
    theta, a_hat, tuner, estimator = _restored(controller, state.x, inside.theta, inside.tuner, window, Mode.LEARNING)
    zero = jnp.zeros_like(window.total)
    fresh = eqx.tree_at(
        lambda w: (w.total, w.weight, w.count, w.begun), window, (zero, zero, jnp.zeros_like(window.count), window.good)
    )
    return eqx.tree_at(
        lambda s: (s.controller, s.guard.window), state, (ControllerState(theta, a_hat, tuner, estimator), fresh)
    )


def _restored(
    controller: Controller, x: Array, theta: PyTree, tuner: PyTree, window: guards.Window, mode: Any
) -> tuple[PyTree, PyTree, PyTree, PyTree]:
    """The last good θ (if it may move) and â, and a tuner and an estimator that go on from there."""
    theta, a_hat = choose(mode == Mode.LEARNING, window.good.theta, theta), window.good.a_hat
    return (
        theta,
        a_hat,
        controller.tuner.reset(controller.system, x, theta, tuner),
        controller.estimator.init(controller.system, x, a_hat),
    )


def _probation(watch: GuardState) -> Any:
    return jnp.zeros((), jnp.int32) if watch.window is None else watch.window.probation


def _on_probation(watch: GuardState) -> Any:
    return _probation(watch) > 0


def _sum(flags: dict[Decision, Any]) -> Array:
    return sum((jnp.where(on, np.int32(bit), np.int32(0)) for bit, on in flags.items()), start=jnp.zeros((), jnp.int32))


_OK, _DIVERGED, _NON_FINITE = (
    np.int32(code) for code in (result_codes.OK, result_codes.DIVERGED, result_codes.NON_FINITE)
)


def _code(finite: Any, small: Any) -> Array:
    return jnp.where(finite, jnp.where(small, _OK, _DIVERGED), _NON_FINITE)


def _are_finite(tree: PyTree) -> Array:
    """By the sum of sizes: one addition a number. A sum that overflows is refused with the rest."""
    sums = [jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.isfinite(sum(sums[1:], start=sums[0]))


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)
