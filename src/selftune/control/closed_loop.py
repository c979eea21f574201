"""One step of the closed loop, plant included; both engines run this code."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..problem.system import AbstractSystem
from . import guarded_step, result_codes
from .controller import Controller
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
) -> tuple[Array, Any, dict[str, PyTree]]:
    """Return the next x, the next state, and the values that this step used, by the names of `Run`'s fields.

    `state` is a `ControllerState`; with a guard, it is a `GuardedState`.
    """
    after_act: Any
    if guard is None:
        state = controller.reveal(state, a_star)
        u, after_act, info = controller.act(state, x, t)
    else:
        state = eqx.tree_at(lambda s: s.controller, state, controller.reveal(state.controller, a_star))
        u, after_act, info = guarded_step.act(controller, guard, state, x, t)
    with jax.named_scope("selftune.plant"):
        f = plant.residual(x, a_star, t)
        x_next = plant.dynamics(x, u, f, t) + w
        f_obs = f if v is None else f + v
    decisions, after = None, after_act
    if guard is None:
        after, estimator_info = controller._observe(after, x, f_obs, t)
    else:
        after, code, estimator_info = guarded_step.observe(controller, guard, after, f_obs)
        decisions = info.guard.decisions | jnp.where(code == result_codes.OK, 0, np.int32(Decision.REFUSED))
    step = Step(x, state, info, f, estimator_info, decisions)
    return x_next, after, {name: field.value(step) for name, field in FIELDS.items()}
