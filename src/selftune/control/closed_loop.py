"""One step of the closed loop, plant included; both engines run this code."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..problem.system import AbstractSystem
from . import guarded_step, result_codes
from .controller import Controller, Info
from .guard import Decision, Guard
from .run_fields import FIELDS, Step


def closed_loop_step(
    controller: Controller,
    guard: Guard | None,
    plant: AbstractSystem,
    x: Array,
    state: Any,
    a_star: PyTree,
    w: Array,
    v: Any,
    t: Any,
    noise: Any = None,
    infer: bool = False,
) -> tuple[Array, Any, dict[str, PyTree]]:
    """Return the next x, the next state, and the values that this step used, by the names of `Run`'s fields.

    `state` is a `ControllerState`; with a guard, it is a `GuardedState`. With `infer`, which needs a guard, the
    estimator learns from the last transition first, as `Agent.observe_state` does: it sees the measurement, but not the
    residual.
    """
    after_act: Any
    estimator_info: Any = None
    x_measured = _measure(controller.system, plant, x, noise, t)
    measured = x if x_measured is None else x_measured
    is_deaf: Any = False
    is_gated: Any = False
    if infer:
        assert guard is not None
        before = state.refused
        state, code, estimator_info = guarded_step.observe_state(controller, guard, state, measured)
        is_deaf, is_gated = state.refused > before, code == result_codes.OUTLIER
    if guard is None:
        state = controller.reveal(state, a_star)
        u, after_act, info = controller.act(state, measured, t)
    else:
        state = eqx.tree_at(lambda s: s.controller, state, controller.reveal(state.controller, a_star))
        u, after_act, info = guarded_step.act(controller, guard, state, measured, t)
    with jax.named_scope("selftune.plant"):
        f = plant.residual(x, a_star, t)
        x_next = plant.dynamics(x, u, f, t) + w
        f_obs = f if v is None else f + v
    decisions, after = None, after_act
    if guard is None:
        after, estimator_info = controller._observe(after, x if info.x_hat is None else info.x_hat, f_obs, t)
    else:
        if not infer:
            after, code, estimator_info = guarded_step.observe(controller, guard, after, f_obs)
            is_deaf, is_gated = code != result_codes.OK, code == result_codes.OUTLIER
        decisions = info.guard.decisions | jnp.where(is_deaf, np.int32(Decision.REFUSED), 0)
        decisions = decisions | jnp.where(is_gated, np.int32(Decision.GATED), 0)
    if x_measured is not None:  # the controller computed the cost of its estimate; a run records the cost of the state
        cost = plant.stage_cost(x, state.memory, u, state.theta, t)
        info = Info(info.u, cost, info.f_hat, info.guard, info.tuner, info.x_hat)
    step = Step(x, state, info, f, estimator_info, decisions, x_measured, t)
    return x_next, after, {name: field.value(step) for name, field in FIELDS.items()}


def _measure(model: AbstractSystem, plant: AbstractSystem, x: Array, noise: Any, t: Any) -> Array | None:
    """Return the measurement by the plant's sensors, or by the model's if the plant has none; None if it is x."""
    sensors = model if plant.measure is None else plant
    if sensors.measure is None and noise is None:
        return None
    measured = sensors.measurement(x, t)
    return measured if noise is None else measured + noise
