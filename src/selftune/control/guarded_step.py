"""A controller's step with a guard around it; `Agent`, `simulate` with a guard, and the firmware run this code."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..estimators.base import EstimatorInfo
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.system import infer_residual
from . import guard as guards
from . import result_codes
from .controller import Controller, ControllerState, Info
from .guard import Decision, Guard, GuardInfo, GuardState, Mode, choose


class GuardedState(eqx.Module):
    """The whole state between two calls: that of the controller and that of the guard."""

    controller: ControllerState
    guard: GuardState
    x: Float[Array, " n"]
    """The measured state at the last `act` that was not refused; `t` is the context of that `act`."""
    t: PyTree
    u: Float[Array, " m"]
    """The last control that `act` returned."""
    predicted: Float[Array, " n"]
    """The model's prediction of the next x."""
    code: Int[Array, ""]
    """The result code of the last `act`. Before the first `act` it is not OK, so that no observation is used."""
    refused: Int[Array, ""]
    """How many calls were refused so far. After a refused `act`, its observation is not counted again."""

    @property
    def theta(self) -> PyTree:
        return self.controller.theta

    @property
    def a_hat(self) -> PyTree:
        return self.controller.a_hat


def start(controller: Controller, guard: Guard, x: Any, theta: Any, a_hat: Any, t: Any) -> GuardedState:
    """Check all arguments, and return the state before the first step; the estimator must not be `Known`."""
    arguments.instance("controller", controller, Controller)
    if controller.estimator.is_oracle:
        raise ArgumentError("controller", "an estimator that learns from observations", "Known")
    return begin(controller, guard, x, theta, a_hat, t)


def begin(controller: Controller, guard: Guard, x: Any, theta: Any, a_hat: Any, t: Any) -> GuardedState:
    """Check the arguments, and return the state before the first step; with any estimator."""
    arguments.instance("guard", guard, Guard)
    x, theta, a_hat = controller.check_values(x, theta, a_hat)
    sizes = controller.system.check(x, theta, a_hat, t)
    guard.check(sizes.n, sizes.m, sizes.k, sizes.d)
    state = controller.init(x, theta=theta, a_hat=a_hat, t=t)
    # In a simulation only the shape of the first context is known; its values are never read.
    t = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if _is_shape(leaf) else leaf, t)
    u = guards.clip(guard, jnp.zeros(sizes.m, x.dtype))[0]
    code, refused = jnp.asarray(_NON_FINITE), jnp.zeros((), jnp.int32)
    return GuardedState(state, guards.start(guard, theta, a_hat, x.dtype), x, t, u, x, code, refused)


def act(
    controller: Controller, guard: Guard, state: GuardedState, x: Array, t: Any
) -> tuple[GuardedState, Float[Array, " m"], Info, Int[Array, ""]]:
    r"""Run `Controller.act`, with its effects limited by the guard.

    1. Check the measurement: if x is not finite or outside its limits, the model's prediction replaces x for at most
       `bridge` steps.
    2. Call `Controller.act`, which gives u and the tuner's next θ; clip u.
    3. Limit the step of θ. θ does not move if a number is not finite, y is too large, or the tuner must not learn.
    4. Add the cost to its window; a rollback restores the last good θ and â.
    """
    before, watch, system = state.controller, state.guard, controller.system
    seen, small = _are_finite(x), guards.within(guard.x_limit, x)
    measured = seen & small
    bridged = ~measured & (watch.missed < guard.bridge)
    x_used = jnp.where(bridged, state.predicted, x) if guard.bridge else x
    wanted, after, info = controller.act(before, x_used, t)
    with jax.named_scope("selftune.guard"):
        clipped, saturated = guards.clip(guard, wanted)
        # If x is too large and no prediction replaces it, the control for this x is better than none.
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
        # The tuner's steps were ignored during probation: reset the tuner before they are used again.
        restarts = forget | (_on_probation(watch) & (_probation(watch) == 1))
        tuner = choose(restarts, controller.tuner.reset(system, x_used, theta, tuner), tuner)
        # Check only the numbers that are used: if y is reset, its gradient may have overflowed. Checking that gradient
        # would refuse every later step.
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

        # If x is too large for more than `bridge` steps, x is not an outlier: the gains have led there, so roll back.
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
        # Use `clipped` instead of `u`: if nothing is clipped, the tuner has computed this value already.
        predicted: Array = system.dynamics(x_used, clipped, info.f_hat, t)
        predicted = jnp.where(given & _are_finite(predicted), predicted, state.predicted)
        refused = state.refused + (1 - ok.astype(jnp.int32))
        state = GuardedState(*kept, u=u, predicted=predicted, code=code, refused=refused)
        now = state.guard.window
        guard_info = GuardInfo(
            decisions,
            state.guard.saturated,
            *((None,) * 3 if now is None else (now.total / jnp.maximum(now.weight, 1), now.level, now.caution)),
        )
        return state, u, Info(u, info.cost, info.f_hat, guard_info, info.tuner), code


def observe(
    controller: Controller, guard: Guard, state: GuardedState, f_obs: Array
) -> tuple[GuardedState, Int[Array, ""]]:
    """Run `Controller.observe` for the last `act`, and return the state and this call's result code.

    Nothing is learned if the last `act` was refused, or if the observation or the new estimate is not finite or too
    large. `state.code` stays the code of the last `act`.
    """
    state, code, _ = observe_and_tell(controller, guard, state, f_obs)
    return state, code


def observe_and_tell(
    controller: Controller, guard: Guard, state: GuardedState, f_obs: Array, *, small: Any = True
) -> tuple[GuardedState, Int[Array, ""], EstimatorInfo]:
    """Run `observe`, and return the estimator's info as well.

    If `f_obs` was inferred from a measurement, `small` says whether that measurement is inside its limits.
    """
    after, info = controller._observe(state.controller, state.x, f_obs, state.t)
    with jax.named_scope("selftune.guard"):
        # An observation belongs to its `act`: if the `act` was refused, the observation is refused too.
        finite = _are_finite((f_obs, after.a_hat, after.estimator))
        code = jnp.where(state.code == _OK, _code(finite, small & guards.within(guard.f_limit, f_obs)), state.code)
        ok = code == _OK
        refused = state.refused + ((state.code == _OK) & ~ok).astype(jnp.int32)
        kept = choose(ok & (state.guard.mode != Mode.PAUSED), after, state.controller)
        return eqx.tree_at(lambda s: (s.controller, s.refused), state, (kept, refused)), code, info


def observe_state(
    controller: Controller, guard: Guard, state: GuardedState, x_next: Array
) -> tuple[GuardedState, Int[Array, ""]]:
    """Run `observe` with the residual that explains the transition from the last `act` to `x_next`."""
    with jax.named_scope("selftune.infer"):
        f_hat = controller.system.residual(state.x, state.controller.a_hat, state.t)
        f_obs = infer_residual(controller.system, state.x, state.u, x_next, state.t, f=f_hat)
    state, code, _ = observe_and_tell(controller, guard, state, f_obs, small=guards.within(guard.x_limit, x_next))
    return state, code


def resume(controller: Controller, state: GuardedState) -> GuardedState:
    """Return the state with learning on; the tuner forgets the steps during which it was off."""
    inside = state.controller
    stood = state.guard.mode != Mode.LEARNING
    fresh = controller.tuner.reset(controller.system, state.x, inside.theta, inside.tuner)
    tuner = choose(stood, fresh, inside.tuner)
    mode = jnp.full_like(state.guard.mode, Mode.LEARNING)
    window = state.guard.window
    if window is not None:  # the tuner did not cause the cost of the pause: count at most the level
        usual = jnp.where(stood & jnp.isfinite(window.level), window.level * window.weight, jnp.inf)
        window = eqx.tree_at(lambda w: w.total, window, jnp.minimum(window.total, usual))
    return eqx.tree_at(
        lambda s: (s.controller, s.guard.mode, s.guard.window),
        state,
        (ControllerState(inside.theta, inside.a_hat, tuner, inside.estimator), mode, window),
        is_leaf=lambda node: node is None,
    )


def restore(controller: Controller, state: GuardedState) -> GuardedState:
    """Return the state with the last good θ and â; tuner and estimator forget the trajectory."""
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
    """Return the last good θ and â, and new states of tuner and estimator for them. θ stays if the tuner is off."""
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
    """Return whether all floats are finite. The sum of absolute values decides, since it is cheap: one addition per
    number. A sum that overflows counts as not finite."""
    sums = [jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.isfinite(sum(sums[1:], start=sums[0]))


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)
