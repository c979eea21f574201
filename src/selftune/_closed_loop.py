"""One step of the closed loop, plant included: what both engines run."""

from typing import Any

import jax
from jaxtyping import Array, PyTree

from .controller import Controller, ControllerState
from .system import System

CHECKED = ("u", "cost", "gradient", "innovation")
"""Values of a step that must be finite besides the next x, θ and â."""


def closed_loop_step(
    controller: Controller, nature: System, x: Array, state: ControllerState, a_star: PyTree, w: Array, v: Any, t: Any
) -> tuple[Array, ControllerState, dict[str, PyTree]]:
    """The next x and state, and the values of `Run`'s fields that were used at this step."""
    state = controller.reveal(state, a_star)
    u, after_act, info = controller.act(state, x, t)
    with jax.named_scope("selftune.plant"):
        f = nature.residual(x, a_star, t)
        x_next = nature.dynamics(x, u, f, t) + w
        f_obs = f if v is None else f + v
    after, seen = controller._observe(after_act, x, f_obs, t)
    values = {
        "x": x,
        "u": u,
        "theta": state.theta,
        "a_hat": state.a_hat,
        "cost": info.cost,
        "y": info.tuner.y,
        "gradient": info.tuner.gradient,
        "f": f,
        "f_hat": info.f_hat,
        "innovation": seen.innovation,
        "contraction": info.tuner.contraction,
    }
    return x_next, after, values
