"""The start of an agent on a plant that already runs: the first control is the present one."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..control import self_oscillation
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..models.base import AbstractModel
from ..policies.base import Inputs
from ..policies.pid import PID
from ..problem.loop_context import LoopContext
from ..realtime.agent import Agent

MOST_STEPS = 20
"""The largest number of steps of Newton's method."""


def rest_of(model: AbstractModel, u: Array, measured: Array, a_hat: Array, t: Any, *, full_state: bool) -> Any:
    """Return the state and the parameters with which the model rests at this control and this measurement.

    If several states and parameters do, those nearest to the start values are returned, in units of their scales. If
    none does, as for a plant that moves, those that come closest.
    """
    n, dtype = model.x0.size, model.x0.dtype
    signals = (*model.states, *model.parameters)
    scale = np.array([one.scale if one.scale > 0 else 1.0 for one in signals])
    sizes = np.concatenate([scale[:n], [one.scale for one in (model.states if full_state else model.outputs)]])

    @jax.jit
    def linearized(z: Array) -> tuple[Array, Array]:
        def missing(z: Array) -> Array:
            x, a = z[:n], z[n:]
            change = model.dynamics(x, u, model.residual(x, a, t), t) - x
            return jnp.concatenate([change, (x if full_state else model.measure(x, t)) - measured])

        return missing(z), jax.jacfwd(missing)(z)

    z = np.concatenate([np.asarray(model.x0, float), np.asarray(a_hat, float)])
    for _ in range(MOST_STEPS):
        error, slope = (np.asarray(part, float) for part in linearized(jnp.asarray(z, dtype)))
        step = scale * np.linalg.lstsq(slope * scale / sizes[:, None], -error / sizes, rcond=1e-6)[0]
        if not np.all(np.isfinite(step)):
            break
        z = z + step
        if np.max(np.abs(step) / scale) < 1e-6:
            break
    return jnp.asarray(z[:n], dtype), model.a_constraint.project(jnp.asarray(z[n:], dtype))


def checked(policy: Any, model: AbstractModel, size: int, u: Any, measurement: Any, reference: Any) -> list[Array]:
    """Return the control, the measurement and the reference of the first step as arrays."""
    if not isinstance(policy, PID):
        expected = "None, because only a PID can take over a plant: its integral starts at the present control"
        raise ArgumentError("u", expected, f"a control for the policy {type(policy).__name__}")
    wanted = {
        "u": (u, len(model.controls)),
        "measurement": (measurement, size),
        "reference": (reference, len(model.references)),
    }
    arrays = []
    for name, (value, length) in wanted.items():
        if value is None:
            raise ArgumentError(name, "the present value, because u, measurement and reference belong together", "None")
        array = arguments.real_array(name, value)
        if array.ndim > 1 or array.size != length:
            raise ArgumentError(name, arguments.real_numbers(length), arguments.describe(array))
        arrays.append(array.reshape(length))
    low, high = policy.limits
    if not np.all((np.asarray(low) <= np.asarray(arrays[0])) & (np.asarray(arrays[0]) <= np.asarray(high))):
        raise ArgumentError("u", f"a control within the limits {low} and {high}", f"{arrays[0]}")
    return arrays


def started(agent: Agent, policy: PID, u: Array, output: Array, theta: PyTree, dt: float, t: LoopContext) -> Agent:
    """Return a new agent after its memory was set: the first control is u. Its state x and its context are set."""
    state = agent.state
    x = jnp.asarray(state.x)
    f = agent.controller.system.residual(x, jnp.asarray(state.a_hat), t)
    inputs = Inputs(output, t.reference, x, f, jnp.asarray(dt, x.dtype), t)
    memory = {**state.memory, "u": u, "policy": policy.memory_at(u, inputs, theta)}
    if "predicted" in memory.get("observer", {}):
        memory["observer"] = {**memory["observer"], "predicted": x}
    swings = self_oscillation.start(agent.guard, u, t)
    parts = (memory, u, swings)
    agent.state = eqx.tree_at(
        lambda s: (s.controller.memory, s.u, s.guard.swings), state, parts, is_leaf=lambda node: node is None
    )
    return agent
