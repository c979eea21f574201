"""`replay`: what a loop would have learned and saved, from a recorded run and without the plant."""

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..control.controller import Controller
from ..estimators.frozen import Frozen
from ..foundation import arguments, extras
from ..foundation.errors import ArgumentError
from ..foundation.quick_compilation import quickly_compiled
from ..logs.plant_log import PlantLog
from ..logs.reading import read_log
from ..problem.loop_context import LoopContext
from ..problem.scenario import Scenario
from ..simulation.run import Run
from ..tuners.fixed import Fixed
from . import _replay
from .commissioning import Commissioned, CommissioningStep, Verdict, _fit, commission, text_of
from .control_loop import Loop

PASSES = 8
"""The start gains come from at most this many passes over the log."""
STILL = 0.02
"""The passes end when no number of θ moves by more than this share of the widths of Θ."""
BLOCKS = 8
"""An interval needs at least this many blocks of time."""
SHORTEST_BLOCK = 20
"""The shortest block, in steps."""
RESAMPLES = 2_000
"""The number of samples of a bootstrap."""
LARGEST_DELAY = 10
"""Delays of the control of up to this many steps are tried."""
BETTER = 0.85
"""A delay is reported if it lowers the prediction error to this share."""
REPRODUCED = 0.1
"""A warning is given if the re-simulation with the logged gains differs from the log by more than this share."""
GAIN_MARGIN = 2.0
"""The suggested gains are lowered until the loop has this gain margin, and a phase margin of 30°."""


class Saving(NamedTuple):
    """A predicted saving of cost, with its 95 % interval.

    !!! Example

        >>> import selftune as st
        >>> print(st.Saving(0.25, 0.2, 0.3, cost_before=4.0, cost_after=3.0, blocks=20))
        25 % [20 %, 30 %]
    """

    share: float
    """1 − the mean cost afterwards / the mean cost of the logged gains, both re-simulated."""
    low: float
    high: float
    """The ends of the interval; NaN if the log has fewer than 8 blocks of time."""
    cost_before: float
    cost_after: float
    blocks: int
    """The number of blocks of time that the bootstrap drew from."""

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{100 * self.share:.0f} % (the log is too short for an interval)"
        return f"{100 * self.share:.0f} % [{100 * self.low:.0f} %, {100 * self.high:.0f} %]"


@dataclass(frozen=True, eq=False)
class Replayed:
    """The result of `replay`; `print` it for a table.

    !!! Example

        >>> import selftune as st
        >>> from selftune import models, policies
        >>> loop = st.Loop(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), policies.PID(kp=1.0, ki=0.5))
        >>> run = loop.simulate(2_000, seed=0, controller=loop.controller(st.Fixed(), st.Frozen()))
        >>> replayed = st.replay(loop, st.PlantLog(run.measured, run.u, run.reference))
        >>> replayed["delay"].verdict, replayed.delay
        ('ok', 0)
    """

    loop: Loop
    log: PlantLog
    commissioned: Commissioned
    """The checks of `commission`, made with the log in place of a plant."""
    rows: tuple[CommissioningStep, ...]
    """All checks and findings: those of the log and of the commissioning, then those of the replay."""
    time: np.ndarray
    """The time of each step in seconds, (T,)."""
    fixed: _replay.Replay
    """The model along the log, with the first parameters."""
    learned: _replay.Replay
    """The model along the log, with the parameters that the estimator would have had at each step."""
    theta: PyTree
    """The θ of the log."""
    delay: int
    """By how many steps the control acts later than the model says, as far as the log shows."""
    scenario: Scenario | None
    """The disturbances and the sensor noise that the log implies. None if the log could not be re-simulated, and then
    the following values are None too."""
    before: Run | None
    """The re-simulation with the logged gains, without learning."""
    agent: Run | None
    """The re-simulation of the agent, which learns from the first step on. Its `theta` is the tuner's path."""
    reproduction: float | None
    """The difference between the measurements of the log and of `before`, relative to the motion in the log."""
    saving: Saving | None
    """The saving of the agent, during the log."""
    start_theta: PyTree | None
    """The suggested start gains: those of the log, unless others are better on data that they were not chosen on."""
    start_saving: Saving | None
    """The saving of constant gains that were chosen on the other half of the log."""

    @property
    def a_hat(self) -> np.ndarray:
        """The parameters that the estimator would have had at each step, (T, p)."""
        return self.learned.a_hat

    @property
    def mismatch(self) -> np.ndarray:
        """The measurement minus its prediction one step ahead, with the first parameters, (T − 1, q)."""
        return self.log.measurement[1:] - self.fixed.predicted

    @property
    def mismatch_learned(self) -> np.ndarray:
        """The same with the parameters that the estimator would have had, (T − 1, q)."""
        return self.log.measurement[1:] - self.learned.predicted

    @property
    def gains(self) -> dict[str, np.ndarray] | None:
        """The gains that the agent would have used at each step, by name; the first axis is time."""
        if self.agent is None:
            return None
        return {name: np.asarray(path) for name, path in jax.vmap(self.loop.gains)(self.agent.theta).items()}

    @property
    def ok(self) -> bool:
        """Whether no check says no-go."""
        return not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for a no-go; empty for a go."""
        return tuple(f"{row.name}: {row.sentence}" for row in self.rows if row.verdict == "no-go")

    def __getitem__(self, name: str) -> CommissioningStep:
        """Return the row with this name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name}; the rows are {', '.join(row.name for row in self.rows)}")

    def to_json(self) -> dict[str, Any]:
        """Return the findings as plain values, for `json`."""

        def gains(theta: PyTree | None) -> Any:
            if theta is None:
                return None
            return {name: np.asarray(gain, float).tolist() for name, gain in self.loop.gains(theta).items()}

        return {
            "ok": self.ok,
            "reasons": list(self.reasons),
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "steps": len(self.log),
            "a_hat": self.a_hat[-1].tolist(),
            "theta": gains(self.theta),
            "start_theta": gains(self.start_theta),
            "saving": None if self.saving is None else self.saving._asdict(),
            "start_saving": None if self.start_saving is None else self.start_saving._asdict(),
            "delay": self.delay,
            "reproduction": self.reproduction,
        }

    def report(self, folder: str | os.PathLike[str]) -> Path:
        """Write a page with all findings and plots to `folder`, with the rows of the log as CSV and the findings as
        JSON, and return the path of the page. It needs the extra `experiments`."""
        page = extras.load("loop.log_replay_page", asked_for="replayed.report()")
        return page.write(self, Path(folder))

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        return "\n".join(f"{row.verdict:7}  {row.name:{width}}  {row.sentence}" for row in self.rows)

    def __repr__(self) -> str:
        return f"<Replayed: {len(self.log)} steps, {'go' if self.ok else 'no-go'}>"


def replay(
    loop: Loop,
    log: Any,
    mapping: Any = None,
    *,
    theta: Any = None,
    progress: Callable[[str], Any] | None = None,
) -> Replayed:
    r"""Replay a recorded run: does the model fit, what would the agent have learned, and how much would it have saved?

    Nothing is sent to any plant. These are the steps:

    1. The log is read, and resampled to the loop's period (`read_log`). `log.notes` says how.
    2. `commission` makes its checks with the log in place of a plant: derivatives, contraction, sampling, saturation,
       the control's effect, and the model's error one step and many steps ahead.
    3. The estimator follows the log: $\hat a_t$, and the errors of the model with it.
    4. Later controls are tried: does the model predict better if the control acts some steps later?
    5. The disturbances are inferred: $w_t = x_{t+1} - g(x_t, u_t, f(x_t, \hat a_{t+1}))$. $x_t$ is the measured state,
       or the observer's estimate, and then $v_t$ is the measurement minus that of $x_t$. With the logged controls, the
       model with these $\hat a$, w and v gives the log exactly.
    6. With the same $\hat a$, w and v, the loop is simulated three times: with the logged gains and without learning
       (*before*), as the agent that learns, and with constant suggested gains. If the loop's policy is the one that
       made the log, the first simulation gives the log again; `reproduction` is the difference.
    7. The **saving** is 1 − (mean cost of the simulation) / (mean cost of *before*). Its 95 % interval comes from a
       bootstrap over blocks of time. It covers the variation over time within the log, and not the errors of the model.
    8. The **start gains** are those of the tuner after up to 8 passes over the log, with lower gains if the gain
       margin is below 2. Their saving is measured on data that they were not chosen on: gains of the first half of the
       log on the second half, and the other way round. If that interval contains 0, the logged gains are suggested.

    The predictions hold as far as the model with the inferred disturbances holds. In particular, disturbances that
    depend on the motion in a way that the model does not have, stay as they were in the log.

    **Arguments:**

    - `log`: a `PlantLog`, or the path of a log file; see `read_log` for the formats.
    - `mapping`: the places of the signals in the log file: a `LogMapping`, a dictionary, or the path of a TOML file.
    - `theta`: the θ that made the log; by default that of the loop.
    - `progress`: a function that gets the name of each phase when it begins, such as `print`.

    !!! Example

        >>> import numpy as np, selftune as st
        >>> from selftune import models, policies
        >>> loop = st.Loop(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), policies.PID(kp=0.3, ki=0.3))
        >>> run = loop.simulate(2_000, seed=0, controller=loop.controller(st.Fixed(), st.Frozen()))
        >>> replayed = st.replay(loop, st.PlantLog(run.measured, run.u, run.reference))
        >>> gains = loop.gains(replayed.start_theta)
        >>> bool(gains["kp"] > 1.0)
        True
    """
    arguments.instance("loop", loop, Loop)
    log = _read(loop, log, mapping)
    _fit("log", log, loop)
    theta = arguments.real_tree("theta", loop._checked(theta), dtype=loop.x.dtype)
    return _Work(loop, log, theta, progress).done()


def _read(loop: Loop, log: Any, mapping: Any) -> PlantLog:
    if isinstance(log, PlantLog):
        if mapping is not None:
            raise ArgumentError("mapping", "None, because the log is a PlantLog", arguments.describe(mapping))
        return log
    if not isinstance(log, str | os.PathLike):
        raise ArgumentError("log", "a PlantLog, or the path of a log file", arguments.describe(log))
    plant = loop.plant
    measured = plant.outputs if loop.observer is not None else plant.states
    signals = {"measurement": measured, "u": plant.controls, "reference": plant.references}
    units = {part: [signal.unit for signal in row] for part, row in signals.items()}
    return read_log(log, mapping, dt=float(plant.dt), jitter=loop.jitter, units=units)


class _Work:
    """The state of a replay between its steps."""

    def __init__(self, loop: Loop, log: PlantLog, theta: PyTree, progress: Callable[[str], Any] | None = None):
        self.loop, self.theta = loop, theta
        self.tell = progress or (lambda phase: None)
        finite = np.all(np.isfinite(np.concatenate([log.measurement, log.u, log.reference], axis=1)), axis=1)
        rows = len(log) if finite.all() else int(np.argmin(finite))
        self.log = log[:rows] if rows else log
        self.rows: list[CommissioningStep] = []
        self.left_out = len(log) - rows
        _fit("log", self.log if rows else PlantLog(log.measurement[:1], log.u[:1], log.reference[:1]), loop)

    def add(self, name: str, verdict: Verdict, sentence: str, **numbers: Any) -> None:
        self.rows.append(CommissioningStep(name, verdict, sentence, numbers))

    def done(self) -> Replayed:
        loop, log = self.loop, self.log
        dt = float(loop.plant.dt)
        self._describe()
        self.tell(f"checking the loop on {len(log):,} rows (compiles the model)")
        made = commission(loop, log, theta=self.theta, steps=len(log), reference=log.reference)
        self.rows += made.rows
        self.tell("following the log with the estimator")
        fixed = _replay.replay(loop, log, theta=self.theta, a_hat=loop.a_hat)
        learned = _replay.replay(loop, log, theta=self.theta, a_hat=loop.a_hat, estimator=loop.controller().estimator)
        self.tell("searching for a delay of the control")
        delay = self._delay()
        found = self._simulate(made, learned)
        return Replayed(
            loop=loop,
            log=log,
            commissioned=made,
            rows=tuple(self.rows),
            time=np.arange(len(log)) * dt if log.time is None else log.time,
            fixed=fixed,
            learned=learned,
            theta=self.theta,
            delay=delay,
            **found,
        )

    def _describe(self) -> None:
        log = self.log
        seconds = (len(log) - 1) * float(self.loop.plant.dt) if log.time is None else log.time[-1] - log.time[0]
        text = f"{len(log)} steps, {seconds:.4g} s."
        if self.left_out:
            text += f" Row {len(log)} is not finite: {self.left_out} rows from there on are left out."
        text = " ".join([text, *log.notes])
        self.add("log", "warning" if self.left_out else "ok", text, steps=len(log), seconds=float(seconds))

    def _delay(self) -> int:
        """Find by how many steps the control acts later than the model says. The estimator learns along each trial, so
        that friction and loads do not look like a delay."""
        loop, log = self.loop, self.log
        horizon = max(min(10, len(log) // 10), 1)
        estimator = loop.controller().estimator
        noise = np.asarray(loop.noise, float)
        scales = np.maximum(np.std(log.measurement, axis=0), np.maximum(noise, 1e-12))
        errors = []
        for later in range(LARGEST_DELAY + 1):
            u = np.concatenate([np.repeat(log.u[:1], later, axis=0), log.u[: len(log) - later]])
            shifted = PlantLog(log.measurement, u, log.reference, log.time)
            made = _replay.replay(loop, shifted, theta=self.theta, a_hat=loop.a_hat, estimator=estimator)
            ahead = _replay.forecast(loop, shifted, made, horizon)
            error = (log.measurement[ahead.starts + horizon] - ahead.predicted) / scales
            errors.append(float(np.sqrt(np.mean(error[ahead.starts >= LARGEST_DELAY] ** 2))))
        best = int(np.argmin(errors))
        numbers = {"steps": best, "errors": errors, "horizon": horizon}
        if best and errors[best] < BETTER * errors[0]:
            text = (
                f"The model predicts best if the control acts {best} steps later: the error {horizon} steps ahead is "
                f"{100 * errors[best] / errors[0]:.0f} % of that without a delay. If the plant has this delay, give it "
                f"to the model: models.Delayed(…, samples={best}). If the log has it, give it to the mapping: delay = "
                f"{-best * float(loop.plant.dt):g} for u."
            )
            self.add("delay", "warning", text, **numbers)
            return best
        self.add("delay", "ok", "The model does not predict better if the control acts later.", **numbers)
        return 0

    def _simulate(self, made: Commissioned, learned: _replay.Replay) -> dict[str, Any]:
        """Re-simulate the log, and compare the costs."""
        loop, log = self.loop, self.log
        nothing: dict[str, Any] = dict.fromkeys(
            ("scenario", "before", "agent", "reproduction", "saving", "start_theta", "start_saving")
        )
        scenario = _disturbances(loop, log, learned)
        if scenario is None:
            text = "The model does not stay finite along the log: there is no re-simulation."
            self.add("re-simulation", "no-go", text)
            return nothing
        self.scenario, self.states = scenario, learned.x
        self.idle = loop.controller(tuner=Fixed(), estimator=Frozen())
        self.tell("simulating the logged gains (compiles the loop)")
        before = self._run(self.idle, self.theta)
        if not bool(before.outcome.ok):
            text = f"The loop with the logged gains fails in the re-simulation: {before.result.message}."
            self.add("re-simulation", "no-go", text)
            return nothing
        self.before = np.asarray(before.cost, float)
        difference = self._reproduction(before)
        controller, self.guard = made.controller, made.guard
        self.tell("simulating the agent (compiles the agent)")
        agent = self._run(controller, self.theta, guard=self.guard)
        if not bool(agent.outcome.ok):
            text = f"The agent fails in the re-simulation: {agent.result.message}."
            self.add("tuner", "no-go", text)
            return nothing | {"scenario": scenario, "before": before, "reproduction": difference}
        saving = self._saving(agent)
        start, start_saving = self._start_gains(controller)
        return {
            "scenario": scenario,
            "before": before,
            "agent": agent,
            "reproduction": difference,
            "saving": saving,
            "start_theta": start,
            "start_saving": start_saving,
        }

    def _run(self, controller: Controller, theta: PyTree, scenario: Scenario | None = None, guard: Any = None) -> Run:
        guard = self.loop.guard(rollback=None, swing=None) if guard is None else guard
        given = self.scenario if scenario is None else scenario
        return self.loop.simulate(scenario=given, controller=controller, theta=theta, guard=guard, throw=False)

    def _reproduction(self, before: Run) -> float:
        log = self.log
        measured = np.asarray(before.measured if before.measured is not None else before.x, float)
        noise = np.asarray(self.loop.noise, float)
        motion = np.maximum(np.std(log.measurement, axis=0), np.maximum(noise, 1e-12))
        difference = float(np.sqrt(np.mean(((measured - log.measurement) / motion) ** 2)))
        text = (
            f"With the logged gains, the re-simulation differs from the log by {100 * difference:.2g} % of the motion; "
            f"its mean cost is {np.mean(self.before):.3g}."
        )
        if difference > REPRODUCED:
            text += (
                " The loop's policy with this θ is not the controller that made the log: check the policy, its gains "
                "and its limits. The savings compare with the re-simulated policy, and not with the log."
            )
        self.add("re-simulation", "warning" if difference > REPRODUCED else "ok", text, difference=difference)
        return difference

    def _saving(self, agent: Run) -> Saving:
        loop = self.loop
        last = jax.tree.map(lambda leaf: leaf[-1], agent.theta)
        found = saving(self.before, np.asarray(agent.cost, float))
        gains = f"{_listed(loop, self.theta)} to {_listed(loop, last)}"
        text = f"The agent would have moved the gains from {gains}. Predicted saving during the log: {found}."
        self.add("tuner", "ok", text, **found._asdict())
        return found

    def _start_gains(self, controller: Controller) -> tuple[PyTree, Saving]:
        """Choose gains on each half of the log, measure them on the other half, and then choose them on the whole."""
        loop, half = self.loop, len(self.log) // 2
        parts = (self._part(0, half), self._part(half, 2 * half))
        halves = ("the first half", "the second half")
        chosen = [self._choose(controller, part, name) for part, name in zip(parts, halves, strict=True)]
        first, second = (np.asarray(self._run(self.idle, theta).cost, float) for theta in reversed(chosen))
        after = np.concatenate([first[:half], second[half:]])
        found = saving(self.before, after)
        theta = self._choose(controller, self.scenario, "the whole log")
        names = _listed(loop, theta)
        if not np.isfinite(after).all() or not found.low > 0:
            text = f"Keep the logged gains: the saving of other constant gains is not certain, {found}."
            self.add("start gains", "ok", text, **found._asdict())
            return self.theta, found
        try:
            margin = loop.margins(theta).gain_margin
        except ArgumentError as error:
            self.add(
                "start gains",
                "warning",
                f"{names}. Predicted saving of constant gains: {found}. The margins are not known ({error}).",
                **found._asdict(),
            )
            return theta, found
        text = f"{names}; gain margin {margin:.3g}. Predicted saving of constant gains, on data that they were not "
        text += f"chosen on: {found}."
        self.add("start gains", "ok", text, gain_margin=margin, **found._asdict())
        return theta, found

    def _part(self, begin: int, end: int) -> Scenario:
        """Return some steps of the log, from the state that the log has there."""
        x0 = jnp.asarray(self.states[begin], self.loop.x.dtype)
        return eqx.tree_at(lambda scenario: scenario.x0, self.scenario[begin:end], x0)

    def _choose(self, controller: Controller, scenario: Scenario, name: str) -> PyTree:
        """Return the gains after some passes over a part of the log, backed off to sufficient margins."""
        loop, theta = self.loop, self.theta
        widths = np.asarray(loop.constraint.widths(theta), float)
        for number in range(1, PASSES + 1):
            self.tell(f"choosing start gains on {name}: pass {number} of at most {PASSES}")
            run = self._run(controller, theta, scenario, self.guard)
            if not bool(run.outcome.ok):
                break
            now = jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), run.theta)
            moved = np.abs(ravel_pytree(now)[0] - ravel_pytree(theta)[0]) / widths
            theta = now
            if np.max(moved) < STILL:
                break
        try:
            return loop.back_off(theta, gain_margin=GAIN_MARGIN)
        except ArgumentError:  # no margins for this policy, or none that lower gains can give
            return theta


def saving(before: np.ndarray, after: np.ndarray) -> Saving:
    """Return the saving of paired costs, (T,) each, with the 95 % interval of a bootstrap over blocks of time.

    A block is at least twice as long as the differences of the costs are correlated.
    """
    share = 1 - float(np.mean(after)) / max(float(np.mean(before)), 1e-300)
    block = max(SHORTEST_BLOCK, math.ceil(2 * _correlation_time(before - after)))
    count = len(before) // block
    low = high = math.nan
    if count >= BLOCKS and np.isfinite(share):
        means = np.stack([rows[: count * block].reshape(count, block).mean(axis=1) for rows in (before, after)])
        drawn = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
        totals = means[:, drawn].sum(axis=2)
        low, high = map(float, np.quantile(1 - totals[1] / np.maximum(totals[0], 1e-300), [0.025, 0.975]))
    return Saving(share, low, high, float(np.mean(before)), float(np.mean(after)), count)


def _correlation_time(values: np.ndarray) -> float:
    """Return 1 + 2 · the sum of the autocorrelations up to the first that is not positive, in steps."""
    centered = values - np.mean(values)
    if not np.isfinite(centered).all() or not np.any(centered):
        return 1.0
    spectrum = np.abs(np.fft.rfft(centered, 2 * len(values))) ** 2
    correlation = np.fft.irfft(spectrum)[: len(values)]
    correlation = correlation / correlation[0]
    until = int(np.argmax(correlation <= 0)) or len(values)
    return 1 + 2 * float(np.sum(correlation[1:until]))


def _disturbances(loop: Loop, log: PlantLog, learned: _replay.Replay) -> Scenario | None:
    """Return the scenario in which the logged controls give the log; None if its numbers are not finite."""
    dtype = loop.x.dtype
    t = _replay.contexts(loop, log)
    # Step t is explained by the parameters that the estimator had learned from it.
    a = jnp.asarray(np.concatenate([learned.a_hat[1:], learned.a_hat[-1:]]), dtype)
    x, u, measured = (jnp.asarray(rows, dtype) for rows in (learned.x, log.u, log.measurement))
    w, noise = _unexplained(loop, x, u, a, measured, t)
    if not all(bool(jnp.all(jnp.isfinite(rows))) for rows in (x, w, noise)):
        return None
    return Scenario(x[0], a, w, t=t, measurement_noise=noise)


@quickly_compiled
def _unexplained(loop: Loop, x: Array, u: Array, a: Array, measured: Array, t: LoopContext) -> tuple[Array, Array]:
    plant = loop.plant
    measure = (lambda x, t: x) if loop.observer is None else plant.measure
    moved = jax.vmap(lambda x, u, a, t: plant.dynamics(x, u, plant.residual(x, a, t), t))(x, u, a, t)
    w = jnp.concatenate([x[1:] - moved[:-1], jnp.zeros_like(x[:1])])
    return w, measured - jax.vmap(measure)(x, t)


def _listed(loop: Loop, theta: PyTree) -> str:
    return ", ".join(f"{name} = {text_of(np.asarray(gain))}" for name, gain in loop.gains(theta).items())
