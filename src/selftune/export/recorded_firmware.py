"""A controller as firmware, with a recorded run: what every export begins with."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Required, TypedDict

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
from ..models.base import Signal
from ..native.firmware import Field, Firmware, check_name
from ..problem.noise import Gaussian
from ..problem.scenario import Scenario
from ..realtime.engines import Native
from ..simulation.simulator import simulate
from . import si_units

STEPS = 200
"""The longest recorded run."""
DTYPES = ("float32", "float64")
SIGNALS = ("measured", "reference", "u", "theta", "a_hat")
"""The kinds of numbers that may have names and units."""


class Options(TypedDict, total=False):
    """The options of every export; `export_c` describes them."""

    x: Required[Any]
    theta: Required[Any]
    a_hat: Required[Any]
    t: Any
    dtype: str
    name: str | None
    guard: Guard | None
    scenario: Scenario | None
    dt: float | None
    signals: Mapping[str, Sequence[Signal]] | None
    overwrite: bool


@dataclasses.dataclass(frozen=True)
class Exported:
    """What every target writes: a controller as firmware, a recorded run of it, and what people know about its numbers.

    **Arguments:** `dt`, the sampling period in seconds, None if it was not given; `signals`, for some kinds of numbers
    of `SIGNALS`, the name and unit of each number.
    """

    firmware: Firmware
    recording: "Recording"
    dt: float | None
    signals: Mapping[str, Sequence[Signal]]

    @property
    def name(self) -> str:
        return self.firmware.name

    def header(self) -> str:
        """Return the text of `NAME.h`, with the names and units of the signals."""
        arrays = {"measured": "x of act", "reference": "reference of the context", "u": "u of act"}
        arrays |= {"theta": "theta, in the order of its members of the state", "a_hat": "a_hat"}
        named = {
            arrays[kind]: [
                one.name + (f" ({si_units.plain(one.unit)})" if one.unit else "") for one in self.signals[kind]
            ]
            for kind in SIGNALS
            if self.signals.get(kind)
        }
        return self.firmware.header(named)

    @property
    def period(self) -> float:
        """The sampling period in seconds; raise `ArgumentError` if it was not given."""
        if self.dt is None:
            raise ArgumentError("dt", "the sampling period in seconds, because this target needs it", "None")
        return self.dt


def prepare(
    controller: Controller,
    folder: Path,
    *,
    x: Any,
    theta: Any,
    a_hat: Any,
    t: Any = 0,
    dtype: str = "float32",
    name: str | None = None,
    guard: Guard | None = None,
    scenario: Scenario | None = None,
    dt: float | None = None,
    signals: Mapping[str, Sequence[Signal]] | None = None,
) -> Exported:
    """Check the arguments of an export, and return the firmware, which starts from the given values, with its run."""
    if dt is not None:
        dt = float(arguments.number("dt", dt, lambda v: 0 < v < np.inf, "a number of seconds > 0"))
    firmware = _firmware(controller, folder, x, theta, a_hat, t, dtype, name, guard)
    checked = _checked_signals({} if signals is None else signals, firmware)
    return Exported(firmware, record(firmware, scenario), dt, checked)


def _firmware(
    controller: Controller,
    folder: Path,
    x: Any,
    theta: Any,
    a_hat: Any,
    t: Any,
    dtype: str,
    name: str | None,
    guard: Guard | None,
) -> Firmware:
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


class Replayed(NamedTuple):
    """The results of the firmware's C on this machine, for the measurements of a recording; one row for each step."""

    u: np.ndarray
    theta: np.ndarray
    """θ before each step, and after the last one: one row more."""
    a_hat: np.ndarray
    """The estimate that each step used."""


def replay(exported: Exported, *, infer: bool) -> Replayed:
    """Run the firmware's C on a recording. It learns from the recorded residuals, or with `infer` from the measured
    states, which a program passes to `observe_state` before `act`."""
    firmware, recording = exported.firmware, exported.recording
    engine = Native(firmware.controller, firmware.guard, firmware.state)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(recording.t)]
    u, theta, a_hat = [], [_numbers(engine.state().theta)], []
    for i in range(recording.steps):
        if infer:
            engine.observe_state(recording.x[i])
        a_hat.append(_numbers(engine.state().a_hat))
        u.append(engine.act(recording.x[i], i if firmware.is_counted else [leaf[i] for leaf in leaves])[0])
        theta.append(_numbers(engine.state().theta))
        if not infer:
            engine.observe(recording.f_obs[i])
    return Replayed(np.array(u), np.array(theta), np.array(a_hat))


def _numbers(tree: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])


def copies_of(firmware: Firmware, field: Field) -> list[str]:
    """Return the members in which the guard keeps earlier values of a part of θ or â."""
    names = (member.name for member in firmware.state_fields)
    return [name for name in names if name.startswith("guard_") and name.endswith(f"_{field.name}")]


def _checked_signals(signals: Any, firmware: Firmware) -> dict[str, tuple[Signal, ...]]:
    """Return the signals as tuples; raise `ArgumentError` for other kinds than those of `SIGNALS`, or other numbers."""
    if not isinstance(signals, Mapping) or not signals.keys() <= set(SIGNALS):
        raise ArgumentError("signals", f"a dictionary with keys among {', '.join(SIGNALS)}", f"{signals!r}")
    sizes = firmware.sizes
    counts = {"measured": sizes.q, "u": sizes.m, "theta": sizes.d, "a_hat": sizes.p}
    counts["reference"] = sum(field.size for field in firmware.context_fields if field.name == "reference")
    for kind, given in signals.items():
        if len(given) != counts[kind] or not all(isinstance(one, Signal) for one in given):
            raise ArgumentError(f"signals[{kind!r}]", f"{counts[kind]} models.Signal", f"{given!r}")
    return {kind: tuple(given) for kind, given in signals.items()}


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
