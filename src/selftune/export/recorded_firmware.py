"""A controller as firmware, with a recorded run: what every export begins with."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..control import guarded_step
from ..control.contexts import context
from ..control.controller import Controller
from ..control.guard import Decision, Guard
from ..foundation import arguments, jax_settings
from ..foundation.errors import ArgumentError
from ..native.firmware import Firmware, check_name
from ..problem.noise import Gaussian
from ..problem.scenario import Scenario
from ..simulation.simulator import simulate

STEPS = 200
"""The longest recorded run."""
DTYPES = ("float32", "float64")


def prepare(
    controller: Controller,
    folder: Path,
    *,
    x: Any,
    theta: Any,
    a_hat: Any,
    t: Any,
    dtype: str,
    name: str | None,
    guard: Guard | None,
) -> Firmware:
    """Check the arguments of an export, and return the firmware, which starts from the given values."""
    dtype = _dtype_name(dtype)
    if dtype == "float64" and not jax_settings.read("jax_enable_x64"):
        raise ArgumentError("dtype", "'float32' because JAX's jax_enable_x64 is off", "'float64'")
    name = check_name(name if name is not None else re.sub(r"\W", "_", folder.resolve().name).lower())
    x, theta, a_hat = (_cast(value, dtype, kinds="fiu") for value in (x, theta, a_hat))
    t = _cast(context(t), dtype)
    guard = Guard() if guard is None else guard
    state = guarded_step.start(controller, guard, x, theta, a_hat, t)
    return Firmware(controller, guard, state, name=name)


class Recording(NamedTuple):
    """The measurements of each step of a run by XLA, and the controller's results; row i has the values of step i."""

    x: np.ndarray
    f_obs: np.ndarray
    u: np.ndarray
    theta: np.ndarray
    a_hat: np.ndarray
    t: PyTree
    """The contexts; None if the context is the number of the step."""

    @property
    def steps(self) -> int:
        return len(self.x)


def record(firmware: Firmware, scenario: Scenario | None) -> Recording:
    """Return a run of at most 200 steps. Without a scenario, the model replaces the plant, with a little noise."""
    scenario = _model_alone(firmware) if scenario is None else _checked(scenario, firmware)
    start = {"theta": firmware.state.theta, "a_hat": firmware.state.a_hat}
    # Use XLA: a recording by the native engine would compare the exported C with itself.
    run = simulate(firmware.controller, scenario, **start, guard=firmware.guard, throw=False, engine="xla")
    decisions = np.asarray(run.guard)
    # An outlier is no failure: the exported code refuses the same observation.
    refused = np.flatnonzero((decisions & Decision.REFUSED != 0) & (decisions & Decision.GATED == 0))
    why = f"the guard refused step {refused[0]}" if refused.size else run.result.message
    if refused.size or not run.outcome.ok:
        raise ArgumentError("scenario", "a run without failures, for the replay", f"one in which {why}")
    observed = run.f if scenario.v is None else run.f + scenario.v
    measured = run.x if run.recorded["measured"] is None else run.measured
    return Recording(
        x=np.asarray(measured),
        f_obs=np.asarray(observed),
        u=np.asarray(run.u),
        theta=_flat(run.theta),
        a_hat=_flat(run.a_hat),
        t=None if firmware.is_counted else scenario.t,
    )


def _dtype_name(dtype: Any) -> str:
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in DTYPES:
        raise ArgumentError("dtype", "'float32' or 'float64'", f"{dtype!r}")
    return name


def _cast(value: Any, dtype: str, kinds: str = "f") -> Any:
    """Return numbers of these kinds in the dtype of the firmware; other values are unchanged."""

    def leaf(value: Any) -> Any:
        array = np.asarray(value)
        with np.errstate(over="ignore"):  # an overflow becomes infinite, which a later check reports
            return jnp.asarray(array.astype(dtype)) if array.dtype.kind in kinds else value

    return jax.tree.map(leaf, value, is_leaf=arguments.is_plain)


def _model_alone(firmware: Firmware) -> Scenario:
    """Return a scenario with the model as the plant, and a little noise so that all numbers change."""
    state, sizes, dtype = firmware.state, firmware.sizes, firmware.dtype
    w, v = (
        Gaussian(1e-3)(jax.random.key(seed), STEPS, size).astype(dtype) for seed, size in ((0, sizes.n), (1, sizes.k))
    )
    still = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (STEPS, *leaf.shape)), state.controller.a_hat)
    contexts = None
    if not firmware.is_counted:
        contexts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (STEPS, *leaf.shape)), state.t)
    return Scenario(state.x, still, w, v, contexts, steps=STEPS)


def _checked(scenario: Scenario, firmware: Firmware) -> Scenario:
    arguments.instance("scenario", scenario, Scenario)
    scenario = scenario.materialize()
    scenario = scenario[: min(STEPS, len(scenario))]
    t = None if firmware.is_counted else _cast(scenario.t, str(firmware.dtype))
    a_star, w, v, noise = (_cast(part, str(firmware.dtype)) for part in scenario.sources)
    x0 = _cast(scenario.x0, str(firmware.dtype))
    return Scenario(x0, a_star, w, v, t, steps=len(scenario), measurement_noise=noise)


def _flat(tree: Any) -> np.ndarray:
    rows = [np.asarray(leaf).reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(rows, axis=1)
