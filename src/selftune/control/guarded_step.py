"""A controller's step with a guard around it; `Agent`, `simulate` with a guard, and the firmware run this code."""

import dataclasses
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
from ..foundation.small_programs import small_program
from ..problem.loop_context import LoopContext
from ..problem.projected_step import constraint_of
from ..problem.system import AbstractSystem, Sizes, infer_residual
from ..tuners.base import TunerInfo
from . import (
    failsafe,
    guard_state,
    innovation_gate,
    result_codes,
    rollback,
    self_oscillation,
    step_limits,
    stuck_sensor,
)
from .controller import Controller, ControllerState, Info
from .guard import Decision, Guard, Mode
from .guard_state import GuardState
from .rollback import Snapshot, Window
from .self_oscillation import Swings
from .trees import are_finite, choose, has_nan


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
    """The result code of the last `act`, or REPEATED after its observation was used. Before the first `act` it is not
    OK, so that no observation is used."""
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
    guard.check(sizes.q, sizes.m, sizes.k, sizes.d, x.dtype)
    step_limits.check_range(guard, x.dtype)
    return _first(controller, guard, x, theta, a_hat, t, sizes)


@small_program
def _first(
    controller: Controller, guard: Guard, x: Array, theta: PyTree, a_hat: PyTree, t: Any, sizes: Sizes
) -> GuardedState:
    state = controller.init(x, theta=theta, a_hat=a_hat, t=t)
    # In a simulation only the shape of the first context is known; its values are never read.
    t = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if _is_shape(leaf) else leaf, t)
    u = step_limits.clip(guard, jnp.zeros(sizes.m, x.dtype))[0]
    jax.eval_shape(lambda x: failsafe.safe_control(guard, x, sizes.m), x)
    code, refused = jnp.asarray(_NON_FINITE), jnp.zeros((), jnp.int32)
    guarding = guard_state.start(guard, theta, a_hat, sizes.q, sizes.k, u, t)
    return GuardedState(state, guarding, x, t, u, x, code, refused)


def act(
    controller: Controller, guard: Guard, state: GuardedState, x: Array, t: Any
) -> tuple[Float[Array, " m"], GuardedState, Info]:
    r"""Run `Controller.act`, and let the guard limit u and θ. Return (u, state, info), like `Controller.act`.

    1. Admit the measurement: if x is not finite or outside its limits, the model's prediction replaces x for at most
       `bridge` steps.
    2. Call `Controller.act`, which gives u and the tuner's next θ; clip u. If the step is blind, hold the last u; after
       too many blind steps, use the safe control.
    3. Limit the step of θ, or lower gains if the loop oscillates by itself. θ does not move if a number is not finite,
       y is too large, or the tuner must not learn.
    4. Judge the cost: add it to its window; a rollback restores the last good θ and â.
    5. If a number is not finite although the measurement is good, repair what the controller remembers.

    If the step is refused, steps 3 and 4 have no effect, except for the rollback after an x that stays too large. The
    result code is in the returned state.
    """
    system = controller.system
    with jax.named_scope("selftune.guard"):
        state = _repaired(guard, state)
    x, is_outside = step_limits.in_range(guard, x)
    measurement = _admit_measurement(system, guard, state, x, t)
    wanted, proposed, info = controller.act(state.controller, measurement.value, t)
    x_hat = measurement.value if info.x_hat is None else info.x_hat
    with jax.named_scope("selftune.guard"):
        clipped, saturated = step_limits.clip(guard, wanted)
        # If x is too large and no prediction replaces it, the control for this x is better than none.
        usable = are_finite((measurement.value, wanted)) & _is_usable(t)
        sees = usable & measurement.is_admitted
        watch, is_safe, returns = failsafe.advance(guard, state.guard.failsafe, sees=sees)
        held = step_limits.clip(guard, jnp.where(jnp.isfinite(state.u), state.u, 0))[0]
        u = jnp.where(usable, clipped, held)
        if guard.safe_u is not None:
            last_good = jnp.where(sees, x_hat, state.x)
            u = jnp.where(is_safe, failsafe.safe_control(guard, last_good, u.shape[0]), u)
        with jax.named_scope("selftune.clamp"):
            u = step_limits.clamp_control(guard, u)
        step = _limit_step(controller, guard, state, x_hat, proposed, info.tuner, restarts=returns)
        if state.guard.swings is not None:
            step = _damp(controller, guard, state, x_hat, step, info.tuner, u, t)
        # Check only the numbers that are used: if y is reset, its gradient may have overflowed. Checking that gradient
        # would refuse every later step.
        gradient = jnp.where(step.resets_y, 0, info.tuner.gradient)
        learned = are_finite((u, info.cost, gradient, step.theta, step.tuner, proposed.memory))
        code = _code(usable & learned | ~measurement.is_small, measurement.is_small)
        code = jnp.where(measurement.is_stuck & (code == _OK), _STUCK, code)
        code = jnp.where(measurement.is_finite, code, jnp.where(is_outside, _OUT_OF_RANGE, _NON_FINITE))
        is_fresh = code == _OK
        is_broken = measurement.is_admitted & ~is_fresh & are_finite(t)
        code = jnp.where(is_safe, _SAFE, code)
        ok = code == _OK
        accepted = _judge_cost(controller, guard, state, measurement, step, proposed.memory, info, saturated)
        refused = _refuse(controller, guard, state, measurement, proposed.memory, u, is_broken=is_broken)
        # A rollback comes after the choice, so that the C has its code once. All comparisons of floats come before the
        # choice: if they came after it, every number that `ok` depends on would have to be exact to the last digit.
        decisions, inside, guarding, rolls_back, is_suspect, good = choose(ok, accepted, refused)
        if guarding.window is not None:
            restored = _restored(controller, choose(ok, x_hat, state.x), good, inside)
            inside = choose(rolls_back, restored, inside)
            window = choose(rolls_back, rollback.go_back(guard, guarding.window, is_suspect), guarding.window)
            guarding = _replace(guarding, window=window)
        starts_again = is_broken & (state.code == _NON_FINITE)
        inside = choose(starts_again, _started_again(controller, state), inside)
        gate = choose(rolls_back | starts_again, innovation_gate.restart(guarding.gate), guarding.gate)
        guarding = _replace(guarding, gate=gate)
        with jax.named_scope("selftune.clamp"):
            inside = eqx.tree_at(lambda c: c.theta, inside, step_limits.clamp_theta(controller, inside.theta))
        decisions = decisions + _sum({Decision.SATURATED: usable & saturated & ~is_safe, Decision.FAILSAFE: is_safe})
        guarding = _replace(guarding, failsafe=watch)
        used = x if info.x_hat is None else x_hat
        last_x, last_t = choose(is_fresh, (used, t), (state.x, state.t))
        # Use `clipped` instead of `u`: if nothing is clipped, the tuner has computed this value already.
        predicted: Array = system.dynamics(x_hat, clipped, info.f_hat, t)
        predicted = choose(usable & are_finite(predicted), predicted, state.predicted)
        if guard.safe_u is not None:  # the prediction is that of another control
            predicted = choose(is_safe, choose(is_fresh, x_hat, state.predicted), predicted)
        refusals = _count(state.refused, ~ok)
        state = GuardedState(inside, guarding, last_x, last_t, u=u, predicted=predicted, code=code, refused=refusals)
        report = guard_state.report(decisions, state.guard)
        return u, state, Info(u, info.cost, info.f_hat, report, info.tuner, info.x_hat)


def _repaired(guard: Guard, state: GuardedState) -> GuardedState:
    """Return the state with counts and sums that a guard can have; see `rollback.repaired`."""
    watch = state.guard
    missed = jnp.clip(watch.missed, 0, guard.bridge + 1)
    window = None if watch.window is None else rollback.repaired(guard, watch.window)
    u = jnp.where(jnp.isfinite(state.u), state.u, 0)
    swings = None if watch.swings is None else self_oscillation.repaired(guard, watch.swings, u)
    reserve = watch.reserve
    if reserve is not None:
        assert guard.burst is not None
        reserve = jnp.where(reserve <= guard.burst, jnp.maximum(reserve, 0), 0)
    repaired = _replace(watch, missed=missed, reserve=reserve, window=window, swings=swings)
    return eqx.tree_at(lambda s: s.guard, state, repaired)


def _replace(watch: GuardState, **parts: Any) -> GuardState:
    """Return the guard's state with other parts."""
    return dataclasses.replace(watch, **parts)


def _is_usable(t: Any) -> Array:
    """Return whether a control can be computed for this context."""
    usable = ~has_nan(t)
    if isinstance(t, LoopContext):  # the limits of a policy turn an infinite reference into a finite control
        usable = usable & are_finite(t.reference)
    return usable


def _count(number: Array, one_more: Any) -> Array:
    """Return the number, plus 1 if `one_more`; it stops before it overflows."""
    return jnp.where(one_more, jnp.minimum(number, 2**31 - 2) + 1, number).astype(jnp.int32)


class _Measurement(NamedTuple):
    """A measurement, as the guard admits it."""

    value: Array
    """The measurement that the step uses: the given one, or the model's prediction."""
    is_finite: Array
    is_small: Array
    is_stuck: Array
    is_admitted: Array
    repeats: stuck_sensor.Repeats | None
    is_lost: Array
    """Whether x is finite, but too large, and was not refused for the first time: `bridge` refusals came before."""
    missed: Array
    """The guard's count of refused measurements in a row, this one included."""


class _Step(NamedTuple):
    """The next θ and state of the tuner, and what the guard changed in them."""

    theta: PyTree
    tuner: PyTree
    reserve: Array | None
    limited: Array
    held: Array
    resets_y: Array
    still: Array
    damped: Array
    swings: Swings | None


class _Outcome(NamedTuple):
    """What an accepted or a refused step leads to."""

    decisions: Array
    inside: ControllerState
    guarding: GuardState
    rolls_back: Array
    """Whether the last good θ and â return; the two states are those without this rollback."""
    is_suspect: Array
    """Whether the tuner can have caused the rollback."""
    good: Snapshot
    """The θ and â that a rollback restores."""


def _admit_measurement(system: AbstractSystem, guard: Guard, state: GuardedState, x: Array, t: Any) -> _Measurement:
    missed = state.guard.missed
    is_finite, is_small = are_finite(x), step_limits.within(guard.x_limit, x)
    expected = system.measurement(state.predicted, t)
    repeats, is_stuck = stuck_sensor.watch(guard, state.guard.repeats, x, expected)
    admitted = is_finite & is_small & ~is_stuck
    bridged = ~admitted & (missed < guard.bridge)
    x = jnp.where(bridged, expected, x) if guard.bridge else x
    lost = is_finite & ~is_small & (missed == guard.bridge) & _is_learning(state.guard)
    # At the end of the bridge the count waits until a finite x shows whether x is too large.
    missed = jnp.where(lost, guard.bridge + 1, jnp.where(bridged, missed + 1, missed))
    missed = jnp.where(admitted, 0, missed).astype(jnp.int32)
    return _Measurement(x, is_finite, is_small, is_stuck, admitted, repeats, lost, missed)


def _is_learning(watch: GuardState) -> Array:
    """Return whether the estimator, or everything, learns. A mode that does not exist counts as PAUSED."""
    return (watch.mode == Mode.LEARNING) | (watch.mode == Mode.FROZEN)


def _limit_step(
    controller: Controller,
    guard: Guard,
    state: GuardedState,
    x: Array,
    proposed: ControllerState,
    info: TunerInfo,
    *,
    restarts: Any,
) -> _Step:
    before, watch = state.controller, state.guard
    probation = jnp.zeros((), jnp.int32) if watch.window is None else watch.window.probation
    still = (watch.mode != Mode.LEARNING) | (probation > 0)
    resets_y = jnp.asarray(False)
    if guard.y_limit is not None and info.y is not None:
        reach = info.y * step_limits.widths_of(controller, before.theta)
        resets_y = jnp.max(jnp.abs(reach)) > step_limits.inward(guard.y_limit, reach.dtype, -np.inf)
    theta, limited, held, reserve = step_limits.limit_step(
        guard,
        controller,
        before.theta,
        proposed.theta,
        saturated=watch.saturated,
        step_scale=None if watch.window is None else watch.window.step_scale,
        reserve=watch.reserve,
        still=still,
        forget=resets_y,
    )
    # The tuner's steps were ignored during probation, and the safe control was not the policy's: reset the tuner before
    # its steps are used again.
    restarts = restarts | resets_y | (probation == 1)
    fresh = controller.tuner.reset(controller.system, controller.system.join(x, before.memory), theta, proposed.tuner)
    tuner = choose(restarts, fresh, proposed.tuner)
    return _Step(theta, tuner, reserve, limited, held, resets_y, still, jnp.asarray(False), watch.swings)


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
    lower = unravel(
        self_oscillation.lowered(guard, flat, step_limits.widths_of(controller, before.theta), info.gradient)
    )
    constraint = constraint_of(controller.tuner)
    theta = choose(damped, lower if constraint is None else constraint.project(lower), step.theta)
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
        rho, learning = info.tuner.contraction, _is_learning(watch)
        widths = step_limits.widths_of(controller, before.theta)
        window, exploded, unstable, saved = rollback.judge(
            guard, window, info.cost, rho, step.theta, before.a_hat, learning=learning, widths=widths
        )
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
    parts = {
        "missed": measurement.missed,
        "saturated": share,
        "reserve": step.reserve,
        "window": window,
        "repeats": measurement.repeats,
        "swings": step.swings,
    }
    return _Outcome(
        _sum(flags), after, _replace(watch, **parts), exploded | unstable, *_way_back(controller, state, window)
    )


def _refuse(
    controller: Controller,
    guard: Guard,
    state: GuardedState,
    measurement: _Measurement,
    memory: PyTree,
    u: Array,
    *,
    is_broken: Any,
) -> _Outcome:
    """Return the outcome of a step that is refused: nothing is learned.

    If x is too large for more than `bridge` steps, x is not an outlier: the gains caused it, so roll back.

    If `is_broken`, a number is not finite although x and t are good, so a number that the controller remembers is bad.
    Then reset the tuner. The second time in a row, `act` starts again from the last good θ and â.
    """
    before, watch = state.controller, state.guard
    kept = _memory_after_refusal(controller.system, before.memory, memory, u)
    loop_state = controller.system.join(state.x, kept)
    tuner = controller.tuner.reset(controller.system, loop_state, before.theta, before.tuner)
    tuner = choose(is_broken, tuner, before.tuner)
    after = ControllerState(before.theta, before.a_hat, tuner, before.estimator, kept)
    decisions = jnp.asarray(np.int32(Decision.REFUSED)) + _sum({Decision.REPAIRED: is_broken})
    if watch.window is not None:
        decisions = decisions + _sum({Decision.EXPLODED: measurement.is_lost})
    parts = {"missed": measurement.missed, "repeats": measurement.repeats}
    guarding = _replace(watch, **parts)
    return _Outcome(decisions, after, guarding, measurement.is_lost, *_way_back(controller, state, watch.window))


def _way_back(controller: Controller, state: GuardedState, window: Window | None) -> tuple[Array, Snapshot]:
    """Return whether the tuner is suspect, and the θ and â that a rollback restores."""
    if window is None:
        return jnp.asarray(False), Snapshot(state.theta, state.a_hat)
    return rollback.is_suspect(window), _last_good(controller, state.controller, window, state.guard.mode)


def _started_again(controller: Controller, state: GuardedState) -> ControllerState:
    """Return a new start from the last good θ and â, or from the present ones if they cannot be restored. If the last
    good ones are in use, they are not good: then start from the trusted ones. Numbers that are not finite or outside
    their constraints are never used."""
    system, before, window = controller.system, state.controller, state.guard.window
    memory = None if system.memory is None else system.memory.start(state.x.dtype)
    theta, a_hat = before.theta, before.a_hat
    if window is not None:
        first = choose(_is_in_use(window.good, before), window.trusted, window.good)
        theta, a_hat = (
            _first_sound(owner, *(getattr(snapshot, name) for snapshot in (first, window.trusted)))
            for owner, name in ((controller.tuner, "theta"), (controller.estimator, "a_hat"))
        )
    theta, a_hat = _inside(controller.tuner, theta), _inside(controller.estimator, a_hat)
    x = jnp.where(jnp.isfinite(state.x), state.x, 0)
    # `init` and not `reset`, which may keep numbers: one of them can be the bad one.
    tuner = controller.tuner.init(system, system.join(x, memory), theta)
    estimator = controller.estimator.init(system, x, a_hat)
    return ControllerState(theta, a_hat, tuner, estimator, memory)


def _is_in_use(snapshot: rollback.Snapshot, before: ControllerState) -> Array:
    theta, a_hat = (
        jnp.all(ravel_pytree(one)[0] == ravel_pytree(other)[0])
        for one, other in ((snapshot.theta, before.theta), (snapshot.a_hat, before.a_hat))
    )
    return theta & a_hat


def _first_sound(owner: Any, first: PyTree, second: PyTree) -> PyTree:
    """Return the first of two values that is finite and inside the constraint of its owner."""
    constraint = constraint_of(owner)
    is_sound = are_finite(first)
    if constraint is not None:
        is_sound = is_sound & constraint.contains(first)
    return choose(is_sound, first, second)


def _inside(owner: Any, value: PyTree) -> PyTree:
    """Return a value without NaN and infinity, inside the constraint of its owner."""
    value = jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0), value)
    constraint = constraint_of(owner)
    return value if constraint is None else constraint.project(value)


def _memory_after_refusal(system: AbstractSystem, before: PyTree, after: PyTree, u: Array) -> PyTree:
    """Return the memory by the policy's own rule; numbers that are not finite never enter the memory."""
    if system.memory is None:
        return None
    after = choose(are_finite(after), after, before)
    changed = system.memory.refused(before, after, u)
    return choose(are_finite(changed), changed, before)


def observe(
    controller: Controller, guard: Guard, state: GuardedState, f_obs: Array, *, small: Any = True
) -> tuple[GuardedState, Int[Array, ""], EstimatorInfo]:
    """Run `Controller.observe` for the last `act`; return the state, this call's result code and the estimator's info.

    Nothing is learned if the last `act` was refused, if its observation was used already, if the observation or the new
    estimate is not finite or too large, or if the innovation is an outlier. If `f_obs` was inferred from a measurement,
    `small` says whether that measurement is inside its limits.

    If a good observation gives an estimate that is not finite, a number that the estimator remembers is bad: then the
    estimator forgets its data.
    """
    after, info = controller._observe(state.controller, state.x, f_obs, state.t)
    with jax.named_scope("selftune.guard"):
        before, watch = state.controller, state.guard
        # An observation belongs to its `act`: if the `act` was refused, the observation is refused too.
        is_expected = state.code == _OK
        is_good = are_finite(f_obs) & small & step_limits.within(guard.f_limit, f_obs)
        is_learned = are_finite((after.a_hat, after.estimator))
        gate, is_outlier = watch.gate, jnp.asarray(False)
        if gate is not None:
            with jax.named_scope("selftune.gate"):
                tested, is_outlier = innovation_gate.test(guard, gate, info.innovation, f_obs)
            counts = is_expected & is_good & jnp.all(jnp.isfinite(info.innovation))
            gate, is_outlier = choose(counts, tested, gate), is_outlier & counts
        code = _code(are_finite(f_obs) & is_learned, is_good)
        code = jnp.where(is_outlier, _OUTLIER, code)
        code = jnp.where(is_expected, code, state.code)
        ok = code == _OK
        fresh = controller.estimator.reset(controller.system, state.x, before.a_hat, before.estimator)
        is_broken = is_expected & is_good & ~is_outlier & ~is_learned
        estimator = choose(is_broken, fresh, before.estimator)
        kept = ControllerState(before.theta, before.a_hat, before.tuner, estimator, before.memory)
        after = choose(ok & _is_learning(watch), after, kept)
        watch = _replace(watch, gate=gate)
        told = jnp.where(ok | (is_outlier & is_expected), _REPEATED, state.code)
        refused = _count(state.refused, is_expected & ~ok)
        state = eqx.tree_at(
            lambda s: (s.controller, s.guard, s.code, s.refused),
            state,
            (after, watch, told, refused),
            is_leaf=lambda node: node is None,
        )
        return state, code, info


def observe_state(
    controller: Controller, guard: Guard, state: GuardedState, x_next: Array
) -> tuple[GuardedState, Int[Array, ""], EstimatorInfo]:
    """Run `observe` with the residual that explains the transition from the last `act` to `x_next`.

    `x_next` is a measurement. If only a part of the state is measured, the next state is estimated from it first.
    """
    system, inside = controller.system, state.controller
    x_next = step_limits.in_range(guard, x_next)[0]
    with jax.named_scope("selftune.infer"):
        f_hat = system.residual(state.x, inside.a_hat, state.t)
        following = system.state_estimate(x_next, inside.memory, inside.theta, state.t)
        f_obs = infer_residual(system, state.x, state.u, following, state.t, f=f_hat)
    return observe(controller, guard, state, f_obs, small=step_limits.within(guard.x_limit, x_next))


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


def clear(state: GuardedState) -> GuardedState:
    """Return the state without the latch of the safe control. If the next step is blind again, the latch returns."""
    return eqx.tree_at(
        lambda s: s.guard.failsafe, state, failsafe.clear(state.guard.failsafe), is_leaf=lambda node: node is None
    )


def restore(controller: Controller, state: GuardedState) -> GuardedState:
    """Return the state with the last good θ and â; tuner and estimator forget the trajectory."""
    window = state.guard.window
    if window is None:
        return state
    inside = state.controller
    good = _last_good(controller, inside, window, Mode.LEARNING)
    restored = _restored(controller, state.x, good, inside)
    zero = jnp.zeros_like(window.total)
    fresh = eqx.tree_at(
        lambda w: (w.total, w.weight, w.count, w.begun), window, (zero, zero, jnp.zeros_like(window.count), window.good)
    )
    guarding = _replace(state.guard, window=fresh, gate=innovation_gate.restart(state.guard.gate))
    return eqx.tree_at(lambda s: (s.controller, s.guard), state, (restored, guarding))


def _last_good(controller: Controller, before: ControllerState, window: Window, mode: Any) -> Snapshot:
    """Return the θ and â that a rollback restores. θ stays if the tuner is off. The present â stays if a flipped bit
    has spoilt the last good one."""
    theta = choose(mode == Mode.LEARNING, window.good.theta, before.theta)
    return Snapshot(theta, _first_sound(controller.estimator, window.good.a_hat, before.a_hat))


def _restored(controller: Controller, x: Array, good: Snapshot, inside: ControllerState) -> ControllerState:
    """Return the last good θ and â, and new states of tuner and estimator for them. The policy's own rule decides what
    happens to its memory."""
    system, memory = controller.system, inside.memory
    if system.memory is not None:
        memory = system.memory.restored(memory, system.memory.start(x.dtype))
    tuner = controller.tuner.reset(system, system.join(x, memory), good.theta, inside.tuner)
    estimator = controller.estimator.reset(system, x, good.a_hat, inside.estimator)
    return ControllerState(good.theta, good.a_hat, tuner, estimator, memory)


def _sum(flags: dict[Decision, Any]) -> Array:
    return sum((jnp.where(on, np.int32(bit), np.int32(0)) for bit, on in flags.items()), start=jnp.zeros((), jnp.int32))


_OK, _DIVERGED, _NON_FINITE, _SAFE, _OUTLIER, _REPEATED, _STUCK, _OUT_OF_RANGE = (
    np.int32(code)
    for code in (
        result_codes.OK,
        result_codes.DIVERGED,
        result_codes.NON_FINITE,
        result_codes.SAFE,
        result_codes.OUTLIER,
        result_codes.REPEATED,
        result_codes.STUCK,
        result_codes.OUT_OF_RANGE,
    )
)


def _code(finite: Any, small: Any) -> Array:
    return jnp.where(finite, jnp.where(small, _OK, _DIVERGED), _NON_FINITE)


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)
