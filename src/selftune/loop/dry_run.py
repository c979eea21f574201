"""The dry run: an agent that does not learn drives a plant, and stops at the first sign of a fault."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..logs.plant_log import PlantLog
from ..models.base import AbstractModel
from ..models.robot_arm import RobotArm
from ..problem.scenario import Scenario
from ..realtime.agent import Agent
from .control_loop import Loop
from .tracking import AbstractStateCost

FAR = 5.0
"""The dry run stops if a measurement is this many times larger than in the simulation of the model."""
EXPLODED = 30.0
"""The dry run stops if the mean cost of some steps is this many times larger than in the simulation of the model."""
SPAN = 20
"""The number of steps of this mean."""


@runtime_checkable
class Plant(Protocol):
    """A plant that `commission` drives. If it has an attribute `time`, that is the time of the last measurement."""

    def measure(self) -> Any:
        """Return the present measurement, (q,)."""
        ...

    def step(self, u: np.ndarray, /) -> Any:
        """Send the control u, (m,), wait for the next sample, and return its measurement, (q,)."""
        ...


class SimulatedPlant:
    """A model as a plant, with the disturbances and the sensor noise of a scenario."""

    def __init__(self, loop: Loop, plant: AbstractModel, scenario: Scenario):
        self._x, self._row = np.asarray(scenario.x0), 0
        rows = (scenario.a_star, scenario.w, scenario.t, scenario.measurement_noise)
        self._rows = jax.tree.map(np.asarray, rows)
        self._last = len(scenario) - 1
        observed = loop.observer is not None
        self._measure = jax.jit(lambda x, t: plant.measure(x, t) if observed else x)
        self._move = jax.jit(lambda x, u, a, w, t: plant.dynamics(x, u, plant.residual(x, a, t), t) + w)

    def _now(self) -> Any:
        return jax.tree.map(lambda leaf: leaf[self._row], self._rows)

    def measure(self) -> np.ndarray:
        _, _, t, noise = self._now()
        return np.asarray(self._measure(self._x, t)) + noise

    def step(self, u: np.ndarray) -> np.ndarray:
        a, w, t, _ = self._now()
        self._x = np.asarray(self._move(self._x, u.astype(self._x.dtype), a, w, t))
        self._row = min(self._row + 1, self._last)
        return self.measure()


class Watch:
    """The conditions that stop a dry run, one step at a time."""

    def __init__(self, far: np.ndarray, cost: float):
        self._far, self._cost, self._costs = far, cost, deque(maxlen=SPAN)

    @classmethod
    def of(cls, measured: np.ndarray, costs: np.ndarray, scales: np.ndarray, cost_of_scale: float) -> "Watch":
        """Return the conditions from a simulation of the model."""
        far = FAR * np.maximum(np.max(np.abs(measured), axis=0), scales)
        means = np.convolve(costs, np.ones(SPAN) / SPAN, "valid") if len(costs) >= SPAN else costs
        return cls(far, EXPLODED * max(float(np.max(means)), cost_of_scale))

    def again(self) -> "Watch":
        """Return the same conditions for another run."""
        return Watch(self._far, self._cost)

    def check_measurement(self, measured: np.ndarray) -> str:
        """Return what is wrong with a measurement; an empty text if nothing is."""
        if not np.all(np.isfinite(measured)):
            return f"the measurement is not finite: {_list(measured)}"
        if np.any(np.abs(measured) > self._far):
            return (
                f"the measurement {_list(measured)} is far outside the simulated range; the limit is {_list(self._far)}"
            )
        return ""

    def check_cost(self, cost: float) -> str:
        """Return what is wrong with the costs up to this step; an empty text if nothing is."""
        self._costs.append(cost)
        if not math.isfinite(cost):
            return f"the cost is {cost}"
        mean = sum(self._costs) / SPAN
        if mean > self._cost:
            return f"the mean cost of {SPAN} steps is {mean:.3g}; the limit is {self._cost:.3g}"
        return ""


class DryRun(NamedTuple):
    log: PlantLog | None
    """The steps before the fault; None if there is not even one."""
    fault: str
    """Why the run stopped early; empty if it did not."""
    step: int
    """The number of steps that were completed."""
    measured: np.ndarray
    """The last measurement."""


def drive(loop: Loop, agent: Agent, plant: Plant, measured: np.ndarray, references: np.ndarray, watch: Watch) -> DryRun:
    """Drive the plant with one reference after the other. At a fault, nothing more is sent to the plant.

    An error that the plant raises is a fault, and so is Ctrl-C.
    """
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray, float]] = []
    dt = float(loop.plant.dt)
    has_time, fault = _ask(lambda: getattr(plant, "time", None) is not None, False)
    if fault:
        return DryRun(None, fault, 0, measured)
    before = math.nan
    for reference in references:
        now, fault = _ask(lambda: float(plant.time), math.nan) if has_time else (math.nan, "")  # type: ignore[attr-defined]
        fault = fault or watch.check_measurement(measured)
        if not fault and has_time and rows and not now > before:
            fault = f"the time of the measurement did not increase: {before:g} s, then {now:g} s"
        if fault:
            break
        period: dict[str, Any] = {}
        if loop.jitter:
            period = {"dt": now - before if has_time and rows else dt}
        u = agent.act(measured, reference=reference, **period)
        fault = watch.check_cost(float(agent.info.cost))
        if fault:
            break
        rows.append((measured, u, reference, now))
        before = now
        measured, fault = _ask(lambda u=u: as_measurement(plant.step(u.copy()), loop), measured)
        if fault:
            break
    else:
        fault = watch.check_measurement(measured)
    log = None
    if rows:
        parts = [np.array(part) for part in zip(*rows, strict=True)]
        log = PlantLog(parts[0], parts[1], parts[2], parts[3] if has_time else None)
    return DryRun(log, fault, len(rows), measured)


def check_log(log: PlantLog, costs: Iterable[float], watch: Watch) -> DryRun:
    """Return the part of a log before the first fault, as if the log were a dry run."""
    for step, cost in enumerate(costs):
        if fault := watch.check_measurement(log.measurement[step]) or watch.check_cost(float(cost)):
            return DryRun(log[:step] if step else None, fault, step, log.measurement[step])
    return DryRun(log, "", len(log), log.measurement[-1])


INTERRUPTED = "interrupted from the keyboard"
"""The fault of a dry run that Ctrl-C stopped."""
_T = TypeVar("_T")


def _ask(call: Callable[[], _T], otherwise: _T) -> tuple[_T, str]:
    """Return a value from the plant and no fault, or `otherwise` and the fault.

    Everything that the plant can do wrong must stop the dry run in the same way, so all errors are faults.
    """
    try:
        return call(), ""
    except KeyboardInterrupt:
        return otherwise, INTERRUPTED
    except ArgumentError as error:
        return otherwise, str(error)
    except Exception as error:
        return otherwise, f"the plant raised {type(error).__name__}: {error}"


def first_measurement(loop: Loop, plant: Plant) -> tuple[np.ndarray, str]:
    """Return the present measurement and no fault, or NaN and the fault."""
    return _ask(lambda: as_measurement(plant.measure(), loop), np.full(loop.noise.size, np.nan))


def as_measurement(value: Any, loop: Loop) -> np.ndarray:
    """Return a plant's measurement as floats, after checking that there are as many as the loop measures."""
    try:
        array = np.atleast_1d(np.asarray(value))
    except ValueError:  # lists of different lengths
        array = np.asarray(value, object)
    if array.shape != (loop.noise.size,) or array.dtype.kind not in "fiu":
        raise ArgumentError("plant", f"measurements of {loop.noise.size} real numbers", arguments.describe(value))
    return array.astype(float)


def cost_of_scale(loop: Loop) -> float:
    """Return the cost of an error of one scale in every output."""
    dtype = loop.x.dtype
    error: Array = jnp.asarray([s.scale for s in loop.plant.outputs], dtype)
    zero = jnp.zeros(len(loop.plant.controls), dtype)
    if not isinstance(loop.cost, AbstractStateCost):
        return float(eqx.filter_jit(loop.cost)(error, zero, zero))
    wanted = loop._first_context().reference.at[: error.size].set(loop.plant.output(loop.x) + error)
    u = loop.x[-zero.size :] if isinstance(loop.plant, RobotArm) else zero  # at rest, a robot needs torques
    return float(eqx.filter_jit(loop.cost)(loop.x, u, wanted))


def _list(values: np.ndarray) -> str:
    return ", ".join(f"{value:.4g}" for value in np.atleast_1d(values))
