"""The properties that only policies have: limits, finite numbers, derivatives, and the description of θ."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from .cases import BATCH, STEPS, PolicyCase
from .properties import fail

_LARGE = (1.0, 30.0, 1000.0)
"""The factors by which outputs, references and states are multiplied, so that the policy also meets its limits."""


def check_stays_in_limits(case: PolicyCase) -> None:
    """Check that u is within `limits`, also for inputs that are a thousand times as large, and after they came."""
    name = "stays in the limits"
    low, high = (np.asarray(limit) for limit in case.part.limits)
    for factor in _LARGE:
        for u in _controls(case, factor):
            # A limit in another dtype, and a rate limit, round once each.
            slack = 8 * np.finfo(u.dtype).eps * np.maximum(np.abs(u), 1)
            if u.shape != low.shape or np.any(u < low - slack) or np.any(u > high + slack):
                advice = "Clip u in `__call__`, and return limits (m,) that hold for every input."
                fail(case, name, f"u = {u} is outside of limits = ({low}, {high})", advice)


def check_finite(case: PolicyCase) -> None:
    """Check that finite inputs give a finite control and memory: also zeros, and inputs a thousand times as large."""
    name = "finite"
    for factor in (0.0, *_LARGE):
        values = case.begin(case.part, case.row(0, 0))
        for t in range(STEPS):
            values, info = case.compiled(case.part, values, case.enlarged(case.row(0, t), factor))
            if not np.all(np.isfinite(_flat((values, info)))):
                advice = "Guard divisions, roots and logarithms: `jnp.where(small, 1.0, value)` before the division."
                fail(case, name, f"a number is not finite at step {t}, for inputs times {factor}", advice)


def check_derivative(case: PolicyCase) -> None:
    """Check that JAX's derivative of the control and the memory is that of finite differences, in every input and in θ.

    The inputs of the case must be away from kinks, such as the point where a limit begins.
    """
    name = "derivative equals differences"
    advice = "Use functions that JAX can differentiate; no rounding, no stop_gradient and no values from NumPy."
    with jax.enable_x64(True):
        part, row = (_doubles(tree) for tree in (case.part, case.row(0, STEPS - 1)))
        values = _doubles(case.eager[-2][0])
        moving = {"values": values, "theta": row["theta"], "inputs": row["inputs"]._replace(t=None, dt=None)}
        flat, unravel = ravel_pytree(moving)
        still = row["inputs"]

        def step(flat):
            moved = unravel(flat)
            inputs = moved["inputs"]._replace(t=still.t, dt=still.dt)
            return ravel_pytree(case.step(part, moved["values"], {"inputs": inputs, "theta": moved["theta"]}))[0]

        jacobian = np.asarray(jax.jacfwd(step)(flat))
        # Central differences err by about h² and ε/h; with h = 1e-5 both are below 1e-9 for smooth functions of size 1.
        h = 1e-5 * np.maximum(1.0, np.abs(np.asarray(flat)))
        many = jax.jit(jax.vmap(step))
        ahead, back = (np.asarray(many(flat + sign * jnp.diag(jnp.asarray(h)))) for sign in (1, -1))
        difference = ((ahead - back) / (2 * h[:, None])).T
        scale = np.max(np.abs(difference), initial=1.0)
        error = np.abs(jacobian - difference)
        if not np.max(error) <= 1e-6 * scale:
            row_, column = np.unravel_index(np.nanargmax(np.where(np.isfinite(error), error, np.inf)), error.shape)
            text = f"result {row_}, input {column}: {jacobian[row_, column]} and {difference[row_, column]}"
            fail(case, name, f"derivative and difference are {text}", advice)


def check_description(case: PolicyCase) -> None:
    """Check that `parameters` and `growth` have an entry for each number of θ, and that `gains` has finite gains."""
    name, part = "description", case.part
    d = _flat(part.theta).size
    for what in ("parameters", "growth"):
        if len(getattr(part, what)) != d:
            advice = "Describe the numbers in the order of jax.flatten_util.ravel_pytree(theta)."
            fail(case, name, f"{what} has {len(getattr(part, what))} entries for {d} numbers of θ", advice)
    if not set(part.growth) <= {-1, 0, 1}:
        fail(case, name, f"growth is {part.growth}", "Use −1, 0 or 1 for each number.")
    gains = part.gains(part.theta)
    if not gains or not np.all(np.isfinite(_flat(gains))):
        fail(case, name, f"gains(theta) is {gains}", "Return the physical gains of θ, by name.")


def _controls(case: PolicyCase, factor: float) -> list[np.ndarray]:
    found = []
    for item in range(BATCH):
        values = case.begin(case.part, case.row(item, 0))
        for scale in (factor, 1.0):
            for t in range(STEPS):
                values, info = case.compiled(case.part, values, case.enlarged(case.row(item, t), scale))
                found.append(np.asarray(info["u"]))
    return found


def _flat(tree: PyTree) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0])


def _doubles(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: (
            jnp.asarray(leaf, jnp.float64)
            if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
            else leaf
        ),
        tree,
    )
