"""A controller's step with a guard around it; `Agent`, `simulate` with a guard, and the firmware run this code."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from ..estimators.base import EstimatorInfo
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.constraints import Unconstrained
from ..problem.loop_context import LoopContext
from ..problem.projected_step import constraint_of
from ..problem.system import AbstractSystem, infer_residual
from ..tuners.base import TunerInfo
from . import guard as guards
from . import result_codes, self_oscillation
from .controller import Controller, ControllerState, Info
from .guard import Decision, Guard, GuardInfo, GuardState, Mode, choose
from .self_oscillation import Swings


class GuardedState(eqx.Module):
    """The whole state between two calls: that of the controller and that of the guard."""

    controller: ControllerState
    guard: GuardState
    x: Float[Array, " n"]
    """The state, measured or estimated, at the last `act` that was not refused; `t` is the context of that `act`."""
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

    @property
    def memory(self) -> PyTree:
        return self.controller.memory


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
    guard.check(sizes.q, sizes.m, sizes.k, sizes.d)
    state = controller.init(x, theta=theta, a_hat=a_hat, t=t)
    # In a simulation only the shape of the first context is known; its values are never read.
    t = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if _is_shape(leaf) else leaf, t)
    u = guards.clip(guard, jnp.zeros(sizes.m, x.dtype))[0]
    code, refused = jnp.asarray(_NON_FINITE), jnp.zeros((), jnp.int32)
    watch = guards.start(guard, theta, a_hat, x.dtype, self_oscillation.start(guard, u, t))
    return GuardedState(state, watch, x, t, u, x, code, refused)


def act(
    controller: Controller, guard: Guard, state: GuardedState, x: Array, t: Any
) -> tuple[Float[Array, " m"], GuardedState, Info]:
    r"""Run `Controller.act`, and let the guard limit u and θ. Return (u, state, info), like `Controller.act`.

    1. Admit the measurement: if x is not finite or outside its limits, the model's prediction replaces x for at most
       `bridge` steps.
    2. Call `Controller.act`, which gives u and the tuner's next θ; clip u.
    3. Limit the step of θ, or lower gains if the loop oscillates by itself. θ does not move if a number is not finite,
       y is too large, or the tuner must not learn.
    4. Judge the cost: add it to its window; a rollback restores the last good θ and â.

    If the reference of a `LoopContext` is not finite, the last u is held, and the step is refused. If a number is not
    finite or too large, steps 3 and 4 have no effect, except for the rollback after an x that stays
    too large. The result code is in the returned state.
    """
    system = controller.system
    measurement = _admit_measurement(system, guard, state, x, t)
    wanted, proposed, info = controller.act(state.controller, measurement.value, t)
    x_hat = measurement.value if info.x_hat is None else info.x_hat
    with jax.named_scope("selftune.guard"):
        clipped, saturated = guards.clip(guard, wanted)
        # If x is too large and no prediction replaces it, the control for this x is better than none.
        usable = _are_finite((measurement.value, wanted))
        if isinstance(t, LoopContext):  # the limits of a policy turn an infinite reference into a finite control
            usable = usable & _are_finite(t.reference)
        u = jnp.where(usable, clipped, guards.clip(guard, state.u)[0])
        step = _limit_step(controller, guard, state, x_hat, proposed, info.tuner)
        if state.guard.swings is not None:
            step = _damp(controller, guard, state, x_hat, step, info.tuner, u, t)
        # Check only the numbers that are used: if y is reset, its gradient may have overflowed. Checking that gradient
        # would refuse every later step.
        gradient = jnp.where(step.resets_y, 0, info.tuner.gradient)
        learned = _are_finite((u, info.cost, gradient, step.theta, step.tuner, proposed.memory))
        code = _code(usable & learned | ~measurement.is_small, measurement.is_small)
        code = jnp.where(measurement.is_finite, code, _NON_FINITE)
        ok = code == _OK
        accepted = _judge_cost(controller, guard, state, measurement, step, proposed.memory, x_hat, info, saturated)
        refused = _refuse(controller, guard, state, measurement, proposed.memory, u)
        used = x if info.x_hat is None else x_hat
        decisions, *parts = choose(ok, (*accepted, used, t), (*refused, state.x, state.t))
        decisions = decisions + _sum({Decision.SATURATED: usable & saturated})
        # Use `clipped` instead of `u`: if nothing is clipped, the tuner has computed this value already.
        predicted: Array = system.dynamics(x_hat, clipped, info.f_hat, t)
        predicted = jnp.where(usable & _are_finite(predicted), predicted, state.predicted)
        refusals = state.refused + (1 - ok.astype(jnp.int32))
        state = GuardedState(*parts, u=u, predicted=predicted, code=code, refused=refusals)
        report = _report(decisions, state.guard)
        return u, state, Info(u, info.cost, info.f_hat, report, info.tuner, info.x_hat)


class _Measurement(NamedTuple):
    """A measurement, as the guard admits it."""

    value: Array
    """The measurement that the step uses: the given one, or the model's prediction."""
    is_finite: Array
    is_small: Array
    missed: Array
    """How many measurements in a row were refused, this one included."""


class _Step(NamedTuple):
    """The next θ and state of the tuner, and what the guard changed in them."""

    theta: PyTree
    tuner: PyTree
    limited: Array
    held: Array
    resets_y: Array
    still: Array
    damped: Array
    swings: Swings | None


_Outcome = tuple[Array, ControllerState, GuardState]
"""The guard's decisions, and the next state of controller and guard."""


def _admit_measurement(system: AbstractSystem, guard: Guard, state: GuardedState, x: Array, t: Any) -> _Measurement:
    missed = state.guard.missed
    is_finite, is_small = _are_finite(x), guards.within(guard.x_limit, x)
    admitted = is_finite & is_small
    bridged = ~admitted & (missed < guard.bridge)
    x = jnp.where(bridged, system.measurement(state.predicted, t), x) if guard.bridge else x
    return _Measurement(x, is_finite, is_small, jnp.where(admitted, 0, missed + 1).astype(jnp.int32))


def _limit_step(
    controller: Controller, guard: Guard, state: GuardedState, x: Array, proposed: ControllerState, info: TunerInfo
) -> _Step:
    before, watch = state.controller, state.guard
    probation = jnp.zeros((), jnp.int32) if watch.window is None else watch.window.probation
    still = (watch.mode != Mode.LEARNING) | (probation > 0)
    resets_y = jnp.asarray(False)
    if guard.y_limit is not None and info.y is not None:
        resets_y = jnp.max(jnp.abs(info.y)) > guard.y_limit
    theta, limited, held = guards.limit_step(
        guard, controller, watch, before.theta, proposed.theta, still=still, forget=resets_y
    )
    # The tuner's steps were ignored during probation: reset the tuner before they are used again.
    restarts = resets_y | (probation == 1)
    fresh = controller.tuner.reset(controller.system, controller.system.join(x, before.memory), theta, proposed.tuner)
    tuner = choose(restarts, fresh, proposed.tuner)
    return _Step(theta, tuner, limited, held, resets_y, still, jnp.asarray(False), watch.swings)


def _damp(
    controller: Controller,
    guard: Guard,
    state: GuardedState,
    x: Array,
    step: _Step,
    info: TunerInfo,
    u: Array,
    t: Any,
) -> _Step:
    """Return the step with lower gains in place of the tuner's, if the loop oscillates by itself.

    The tuner continues meanwhile, because its gradient says which gains fall. At the end it starts anew, because the
    means of an oscillation, whose sensitivities are many times larger, would hold θ for a long time.
    """
    before, swings = state.controller, state.guard.swings
    assert swings is not None
    after = self_oscillation.count(guard, swings, u, state.u, t, state.t)
    damped = swings.is_oscillating & ~step.still
    flat, unravel = ravel_pytree(before.theta)
    constraint = constraint_of(controller.tuner) or Unconstrained()
    lower = self_oscillation.lowered(guard, flat, constraint.widths(before.theta), info.gradient)
    theta = choose(damped, constraint.project(unravel(lower)), step.theta)
    loop_state = controller.system.join(x, before.memory)
    fresh = controller.tuner.init(controller.system, loop_state, theta)
    tuner = choose(swings.is_oscillating & ~after.is_oscillating, fresh, step.tuner)
    return step._replace(theta=theta, tuner=tuner, damped=damped, swings=after)


def _judge_cost(
    controller: Controller,
    guard: Guard,
    state: GuardedState,
    measurement: _Measurement,
    step: _Step,
    memory: PyTree,
    x: Array,
    info: Info,
    saturated: Any,
) -> _Outcome:
    """Return the outcome of a step that is accepted: the cost is in its window, and may cause a rollback."""
    before, watch = state.controller, state.guard
    after = ControllerState(step.theta, before.a_hat, step.tuner, before.estimator, memory)
    share, window = watch.saturated, watch.window
    if share is not None:
        share = share + (saturated.astype(share.dtype) - share) / guard.window
    exploded = unstable = saved = jnp.asarray(False)
    if window is not None:
        rho, learning = info.tuner.contraction, watch.mode != Mode.PAUSED
        window, exploded, unstable, saved = guards.judge(
            guard, window, info.cost, rho, step.theta, before.a_hat, learning=learning
        )
        inside = ControllerState(before.theta, before.a_hat, step.tuner, before.estimator, memory)
        restored = _restored(controller, x, inside, window, watch.mode)
        after = choose(exploded | unstable, restored, after)
    flags = {
        Decision.LIMITED: step.limited,
        Decision.HELD: step.held,
        Decision.RESET: step.resets_y,
        Decision.EXPLODED: exploded,
        Decision.UNSTABLE: unstable,
        Decision.STILL: step.still,
        Decision.SAVED: saved,
        Decision.DAMPED: step.damped,
    }
    return _sum(flags), after, GuardState(watch.mode, measurement.missed, share, window, step.swings)


def _refuse(
    controller: Controller, guard: Guard, state: GuardedState, measurement: _Measurement, memory: PyTree, u: Array
) -> _Outcome:
    """Return the outcome of a step that is refused: nothing is learned.

    If x is too large for more than `bridge` steps, x is not an outlier: the gains caused it, so roll back.
    """
    before, watch, window = state.controller, state.guard, state.guard.window
    memory = _memory_after_refusal(controller.system, before.memory, memory, u)
    after = ControllerState(before.theta, before.a_hat, before.tuner, before.estimator, memory)
    lost = measurement.is_finite & ~measurement.is_small & (watch.missed == guard.bridge) & (watch.mode != Mode.PAUSED)
    decisions = jnp.asarray(np.int32(Decision.REFUSED))
    if window is not None:
        restored = _restored(controller, state.x, after, window, watch.mode)
        after = choose(lost, restored, after)
        window = choose(lost, guards.go_back(guard, window), window)
        decisions = decisions + _sum({Decision.EXPLODED: lost})
    return decisions, after, GuardState(watch.mode, measurement.missed, watch.saturated, window, watch.swings)


def _memory_after_refusal(system: AbstractSystem, before: PyTree, after: PyTree, u: Array) -> PyTree:
    """Return the memory by the policy's own rule; numbers that are not finite never enter the memory."""
    if system.memory is None:
        return None
    after = choose(_are_finite(after), after, before)
    changed = system.memory.refused(before, after, u)
    return choose(_are_finite(changed), changed, before)


def _report(decisions: Array, watch: GuardState) -> GuardInfo:
    window = watch.window
    if window is None:
        return GuardInfo(decisions, watch.saturated, None, None, None)
    mean = window.total / jnp.maximum(window.weight, 1)
    return GuardInfo(decisions, watch.saturated, mean, window.level, window.step_scale)


def observe(
    controller: Controller, guard: Guard, state: GuardedState, f_obs: Array, *, small: Any = True
) -> tuple[GuardedState, Int[Array, ""], EstimatorInfo]:
    """Run `Controller.observe` for the last `act`; return the state, this call's result code and the estimator's info.

    Nothing is learned if the last `act` was refused, or if the observation or the new estimate is not finite or too
    large. If `f_obs` was inferred from a measurement, `small` says whether that measurement is inside its limits.
    `state.code` stays the code of the last `act`.
    """
    after, info = controller._observe(state.controller, state.x, f_obs, state.t)
    with jax.named_scope("selftune.guard"):
        # An observation belongs to its `act`: if the `act` was refused, the observation is refused too.
        finite = _are_finite((f_obs, after.a_hat, after.estimator))
        code = jnp.where(state.code == _OK, _code(finite, small & guards.within(guard.f_limit, f_obs)), state.code)
        ok = code == _OK
        refused = state.refused + ((state.code == _OK) & ~ok).astype(jnp.int32)
        after = choose(ok & (state.guard.mode != Mode.PAUSED), after, state.controller)
        return eqx.tree_at(lambda s: (s.controller, s.refused), state, (after, refused)), code, info


def observe_state(
    controller: Controller, guard: Guard, state: GuardedState, x_next: Array
) -> tuple[GuardedState, Int[Array, ""], EstimatorInfo]:
    """Run `observe` with the residual that explains the transition from the last `act` to `x_next`.

    `x_next` is a measurement. If only a part of the state is measured, the next state is estimated from it first.
    """
    system, inside = controller.system, state.controller
    with jax.named_scope("selftune.infer"):
        f_hat = system.residual(state.x, inside.a_hat, state.t)
        following = system.state_estimate(x_next, inside.memory, inside.theta, state.t)
        f_obs = infer_residual(system, state.x, state.u, following, state.t, f=f_hat)
    return observe(controller, guard, state, f_obs, small=guards.within(guard.x_limit, x_next))


def resume(controller: Controller, state: GuardedState) -> GuardedState:
    """Return the state with learning on; the tuner forgets the steps during which it was off."""
    inside = state.controller
    stood = state.guard.mode != Mode.LEARNING
    loop_state = controller.system.join(state.x, inside.memory)
    fresh = controller.tuner.reset(controller.system, loop_state, inside.theta, inside.tuner)
    tuner = choose(stood, fresh, inside.tuner)
    mode = jnp.full_like(state.guard.mode, Mode.LEARNING)
    window = state.guard.window
    if window is not None:  # the tuner did not cause the cost of the pause: count at most the level
        usual = jnp.where(stood & jnp.isfinite(window.level), window.level * window.weight, jnp.inf)
        window = eqx.tree_at(lambda w: w.total, window, jnp.minimum(window.total, usual))
    return eqx.tree_at(
        lambda s: (s.controller, s.guard.mode, s.guard.window),
        state,
        (ControllerState(inside.theta, inside.a_hat, tuner, inside.estimator, inside.memory), mode, window),
        is_leaf=lambda node: node is None,
    )


def restore(controller: Controller, state: GuardedState) -> GuardedState:
    """Return the state with the last good θ and â; tuner and estimator forget the trajectory."""
    window = state.guard.window
    if window is None:
        return state
    inside = state.controller
    restored = _restored(controller, state.x, inside, window, Mode.LEARNING)
    zero = jnp.zeros_like(window.total)
    fresh = eqx.tree_at(
        lambda w: (w.total, w.weight, w.count, w.begun), window, (zero, zero, jnp.zeros_like(window.count), window.good)
    )
    return eqx.tree_at(lambda s: (s.controller, s.guard.window), state, (restored, fresh))


def _restored(
    controller: Controller, x: Array, inside: ControllerState, window: guards.Window, mode: Any
) -> ControllerState:
    """Return the last good θ and â, and new states of tuner and estimator for them. θ stays if the tuner is off. The
    policy's own rule decides what happens to its memory."""
    system = controller.system
    theta, a_hat = choose(mode == Mode.LEARNING, window.good.theta, inside.theta), window.good.a_hat
    memory = inside.memory
    if system.memory is not None:
        memory = system.memory.restored(memory, system.memory.start(x.dtype))
    tuner = controller.tuner.reset(system, system.join(x, memory), theta, inside.tuner)
    estimator = controller.estimator.reset(system, x, a_hat, inside.estimator)
    return ControllerState(theta, a_hat, tuner, estimator, memory)


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
