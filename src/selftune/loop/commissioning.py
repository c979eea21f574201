"""`commission`: the checks, the dry run and the choices that come before a loop learns on its plant."""

import dataclasses
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..control.controller import Controller
from ..control.guard import Guard
from ..control.guard_limits import GuardRule, suggest_guard
from ..control.run_fields import RunFields
from ..estimators.auto import AutoEstimator
from ..foundation import arguments, extras, settings_text
from ..foundation.errors import ArgumentError
from ..logs.plant_log import PlantLog
from ..models.base import AbstractModel
from ..problem.affine import is_affine
from ..problem.constraints import AbstractConstraint, Box
from ..realtime.agent import Agent
from ..simulation.checks import check_gradient, contraction_of
from ..tuners.fixed import Fixed
from ..tuners.gauss_newton import TIME_CONSTANTS, GaussNewton, suggest_memory, time_constant
from ..tuners.mgaps import MGAPS
from ._replay import Forecast, Replay, forecast, replay
from .control_loop import Loop, _check_alike
from .dry_run import DryRun, Plant, SimulatedPlant, Watch, check_log, cost_of_scale, drive, first_measurement
from .references import as_reference
from .stability import growth_time, margins_of

Verdict = Literal["ok", "warning", "no-go"]

LEAST_STEPS = 100
"""A dry run or a log with fewer steps says too little."""
POINTS = 8
"""The gradients are checked at this many states of the simulation."""
GAIN_MARGIN, PHASE_MARGIN = 2.0, 30.0
"""Margins below these numbers cause a warning; the phase is in degrees."""
POOR_TRACKING = 1.0
"""A warning is given if the error in the simulation exceeds this share of the spread of the reference."""
SATURATION = 0.2
"""A warning is given if more than this share of the steps saturates; beyond it, the guard lets no gain grow."""
UNEXPLAINED, REST = 0.5, 0.1
"""A warning is given if the model does not predict this share of the measurement's motion. A motion of less than 0.1
scales counts as 0.1 scales, because a plant at rest has nothing to predict."""
UNUSABLE = 3.0
"""No-go if the error of the learned model exceeds this multiple of the measurement's motion: a model that predicts
motions that are not there gives wrong gradients."""
NOISE = "_over_noise"
HORIZON = (10, 50)
"""The shortest and the longest prediction, in steps; between them, it is one time constant of the closed loop. If the
plant is unstable without control, a prediction is at most as long as a small deviation takes to grow by a factor e.
Longer predictions with the recorded controls diverge, however good the model is."""
GAIN_RATIO = (0.5, 2.0)
"""A warning is given if the control's effect, relative to the model's, is outside this range."""
SURE = 0.5
"""The sign of the control's effect counts only if the correlation is at least this large."""
PERIOD, JITTER, WRONG_PERIOD = 0.02, 0.1, 2.0
"""Warnings: the mean period is off by 2 %, or 1 % of the periods are off by 10 %. No-go: it is off by a factor of 2."""


_STAY = optax.set_to_zero()
"""One object for all commissionings, so that the program of a loop is compiled once."""

_LOGGER = logging.getLogger("selftune")

LOOP_RULES = {
    "x_limit": "1000 × the scale of the signal",
    "f_limit": "10,000 × the scale of the control",
    "y_limit": "the default of the guard",
    "cost_floor": "the default of the guard",
    "cost_ceiling": "the default of the guard",
    "x_low": "the lowest value that the sensor can give: none, unless you give one",
    "x_high": "the highest value that the sensor can give: none, unless you give one",
    "stuck": "off, unless you give one",
    "safe_u": "the control after safe_after refused steps in a row: the default of the guard",
    "safe_after": "the default of the guard",
    "window": "two periods of the reference, at least 500 steps and 10 time constants",
    "u_low": "the limit of the policy",
    "u_high": "the limit of the policy",
    "rate": "θ moves on average by at most a tenth of Θ in a period of the reference, or in a tenth of a path's period",
    "burst": "the largest reserve of steps of θ: a tenth of Θ",
}
"""The rules of `Loop.guard` for settings that do not come from the dry run."""
GIVEN_RULE = "your own setting, from guard="
"""The rule of a setting that differs from that of `Loop.guard`."""


@dataclass(frozen=True)
class CommissioningStep:
    """One row of a commissioning: a check and its verdict.

    !!! Example

        >>> import selftune as st
        >>> row = st.CommissioningStep("sampling", "warning", "The mean period is 3 % too long.", {"mean": 0.0103})
        >>> row.verdict, row.numbers["mean"]
        ('warning', 0.0103)
    """

    name: str
    verdict: Verdict
    sentence: str
    """The finding, and what to do about it."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The numbers behind the verdict: floats, or lists with one for each signal."""


@dataclass(frozen=True, eq=False)
class Commissioned:
    """The result of `commission`; `print` it for a table.

    `controller`, `guard`, `theta` and `a_hat` are the choices. They are those of the loop if the commissioning ended
    before it could choose.

    !!! Example

        These start gains are too high, so nothing is sent to the plant:

        >>> import selftune as st
        >>> from selftune import models, policies
        >>> plant = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
        >>> commissioned = st.commission(st.Loop(plant, policies.PID(kp=1000.0)))
        >>> commissioned
        <Commissioned: no-go, 2 checks>
        >>> commissioned["stability"].verdict, commissioned.log is None
        ('no-go', True)
        >>> print(commissioned.reasons[0])
        stability: UNSTABLE: spectral radius 38.62. theta=loop.back_off(gain_margin=2) gives lower gains: kp = 25.
    """

    loop: Loop
    rows: tuple[CommissioningStep, ...]
    """The checks, in their order. The last rows are missing if an earlier check stopped the commissioning."""
    controller: Controller
    guard: Guard
    guard_rules: tuple[GuardRule, ...]
    """The settings of the guard with the rule that gave each of them; empty without a dry run."""
    theta: PyTree
    a_hat: PyTree
    """The parameters that the estimator learned."""
    log: PlantLog | None
    """The dry run with learning paused; None if the plant was not touched."""
    learning_log: PlantLog | None
    """The dry run in which the estimator learned; for a log as input, that log."""
    replay: Replay | None
    """The model along `log`, with the first parameters."""
    learning_replay: Replay | None
    """The model along `learning_log`, with the estimator."""
    level: float | None
    """The cost of the plant with the start gains: the largest mean over a window of the guard, if there is a whole
    window."""

    @property
    def ok(self) -> bool:
        """Whether the loop may learn on this plant: all checks were made, and none says no-go."""
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

    def agent(self, *, force: bool = False, **options: Any) -> Agent:
        """Return an agent that is ready to learn, with the chosen controller and guard, and with the learned â.

        The agent starts at rest, with an empty memory. The guard knows the normal cost from the dry run. After a no-go,
        this is an error, unless `force` is True. `options` are further arguments of `Loop.agent`.
        """
        if not self.ok and not force:
            reasons = "; ".join(self.reasons)
            advice = "Mend this first. agent(force=True) returns an agent in spite of it"
            raise ValueError(f"The commissioning ended with NO-GO: {reasons} {advice}.")
        agent = self.loop.agent(
            controller=self.controller, guard=self.guard, theta=self.theta, a_hat=self.a_hat, **options
        )
        state = agent.state
        if self.level is not None and state.guard.window is not None:
            level = np.asarray(self.level, state.guard.window.level.dtype)
            agent.state = eqx.tree_at(
                lambda s: (s.guard.window.level, s.guard.window.trusted_level), state, (level, level)
            )
        return agent

    def to_json(self) -> dict[str, Any]:
        """Return the decision, the checks and the settings of the guard as plain values, for `json`."""
        return {
            "ok": self.ok,
            "reasons": list(self.reasons),
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "guard": {rule.setting: rule.value for rule in self.guard_rules},
            "theta": {name: np.asarray(gain, float).tolist() for name, gain in self.loop.gains(self.theta).items()},
            "a_hat": np.asarray(self.a_hat, float).tolist(),
        }

    def report(self, folder: str | os.PathLike[str]) -> Path:
        """Write one page with all rows, the limits and plots to `folder`, and return the path of the page.

        It needs the extra `experiments`. The logs are written beside the page, as CSV files.
        """
        page = extras.load("loop.commissioning_page", asked_for="commissioned.report()")
        return page.write(self, Path(folder))

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [f"{row.verdict:7}  {row.name:{width}}  {row.sentence}" for row in self.rows]
        if self.guard_rules:
            lines.append("guard:")
            names = max(len(one.setting) for one in self.guard_rules)
            lines += [f"  {one.setting:{names}}  {text_of(one.value)}: {one.rule}" for one in self.guard_rules]
        decision = "GO" if self.ok else f"NO-GO: {'; '.join(row.name for row in self.rows if row.verdict == 'no-go')}"
        return "\n".join([*lines, decision])

    def __repr__(self) -> str:
        return f"<Commissioned: {'go' if self.ok else 'no-go'}, {len(self.rows)} checks>"


def commission(
    loop: Loop,
    plant: Any = None,
    *,
    steps: int | None = None,
    theta: Any = None,
    reference: Any = None,
    u: Any = None,
    guard: Guard | None = None,
    seed: int = 0,
) -> Commissioned:
    """Check a loop, make a dry run on its plant, choose the settings, and decide: go or no-go.

    These are the steps, in their order. A no-go before the dry run means that nothing is sent to the plant.

    1. **shapes**: the functions fit together.
    2. **stability**: margins of the linearized loop at the start gains.
    3. **simulation**: the loop runs on its own model with the start gains.
    4. **gradients**: every derivative is compared with finite differences, at several states of the simulation.
    5. **contraction**: how fast the loop forgets; the `memory` of the tuner is at least 20 time constants.
    6. **dry run**: the loop runs on the plant with learning paused. The dry run stops by itself if a measurement is not
       finite or far outside the simulated range, if the cost explodes, if the plant raises an error, or if you press
       Ctrl-C. Then nothing more is sent.
    7. **saturation**, **sampling**: the share of steps at the limits of u; the periods, if there are time stamps.
    8. **control effect**: the effect of the control, relative to the model's. A wrong sign is a no-go.
    9. **model**: prediction errors of the model one step and many steps ahead. If the plant is unstable without
        control, predictions with the recorded controls diverge by themselves; they then end when a small deviation has
        grown by a factor e.
    10. **estimator**: a second dry run, in which the estimator learns and θ stays, with prediction errors before and
        after.
    11. **choices**: estimator, box, memory, rate and guard.

    The plant only gets controls within the limits of the policy. After the last step, the plant gets nothing more: a
    plant that needs control all the time must have a controller to fall back on.

    **Arguments:**

    - `plant`: one of
        - None: the loop's own model, with random disturbances and parameters; or another model, as the true plant.
        - An object with two methods: `measure()` returns the present measurement, and `step(u)` sends u, waits for the
          next sample and returns its measurement. If the object has an attribute `time`, that is the time of the last
          measurement in seconds.
        - A `PlantLog`: a recorded run with the start gains. Nothing is sent to any plant.
    - `steps`: the number of steps of each dry run; by default two windows of the guard, but at least 1000. A window is
      two periods of the reference, so a dry run takes at least four periods, and there are two dry runs. For a plant
      with `measure` and `step`, the log "selftune" tells the duration and the reference before the first step.
    - `theta`: the start gains; by default those of the loop. To start with lower gains, give `loop.back_off()`.
    - `reference`: the reference of the dry runs; by default that of the loop.
    - `u`: the present control of a plant that already runs. The dry run then begins with this control; see
      `Loop.agent`.
    - `guard`: by default `loop.guard()`. Give `loop.guard(x_low=…, stuck=…)` to keep your own settings.
    - `seed`: for the random numbers of the simulation, and for a random reference.

    !!! Example

        >>> import selftune as st
        >>> from selftune import models, policies
        >>> loop = st.Loop(
        ...     plant=models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01),
        ...     policy=policies.PID(kp=1.0, ki=2.0, u_min=-10.0, u_max=10.0),
        ... )
        >>> heavier = models.FirstOrder(gain=1.6, time_constant=0.7, dt=0.01)  # stands for the real plant
        >>> commissioned = st.commission(loop, heavier)
        >>> commissioned.ok
        True
        >>> agent = commissioned.agent()
        >>> u = agent.act([0.0], reference=[1.0])
    """
    arguments.instance("loop", loop, Loop)
    if not (plant is None or isinstance(plant, AbstractModel | PlantLog | Plant)):
        expected = "None, a model, a PlantLog, or an object with the methods measure() and step(u)"
        raise ArgumentError("plant", expected, arguments.describe(plant))
    if isinstance(plant, PlantLog):
        _fit("plant", plant, loop)
    if isinstance(plant, AbstractModel):
        _check_alike(plant, loop.plant)
    guard = loop.guard() if guard is None else guard
    arguments.instance("guard", guard, Guard)
    steps = max(1000, 2 * guard.window) if steps is None else arguments.whole("steps", steps, least=LEAST_STEPS)
    seed = arguments.whole("seed", seed)
    theta = arguments.real_tree("theta", loop._checked(theta), dtype=loop.x.dtype)
    reference = None if reference is None else as_reference(reference)
    work = _Work(loop, theta, steps, seed, reference, u, guard)
    for step in (work.shapes, work.stability, work.simulation, work.gradients, work.contraction):
        step()
        if work.is_stopped:
            return work.result()
    if isinstance(plant, PlantLog):
        work.read(plant)
    else:
        work.run(plant)
    return work.result()


def _fit(name: str, log: PlantLog, loop: Loop) -> None:
    sizes = (log.measurement.shape[1], log.u.shape[1], log.reference.shape[1])
    wanted = (loop.noise.size, len(loop.plant.controls), len(loop.plant.references))
    if sizes != wanted:
        expected = "a log with {} measurements, {} controls and {} references".format(*wanted)
        raise ArgumentError(name, expected, "{}, {} and {}".format(*sizes))
    if len(log) < LEAST_STEPS:
        raise ArgumentError(name, f"a log of at least {LEAST_STEPS} steps", f"{len(log)}")


class _Work:
    """The state of a commissioning between its steps."""

    def __init__(
        self,
        loop: Loop,
        theta: PyTree,
        steps: int,
        seed: int,
        reference: Any,
        u: Any = None,
        guard: Guard | None = None,
    ):
        self.loop, self.theta, self.steps = loop, theta, steps
        self.seed, self.reference, self.u = seed, reference, u
        self.rows: list[CommissioningStep] = []
        self.guard, self.rules = loop.guard() if guard is None else guard, ()
        self.memory: float | None = None
        self.tau, self.growth = 0.0, math.inf
        self.a_hat = loop.a_hat
        self.first: DryRun | None = None
        self.second_log: PlantLog | None = None
        self.first_replay: Replay | None = None
        self.second_replay: Replay | None = None

    @property
    def is_stopped(self) -> bool:
        return any(row.verdict == "no-go" for row in self.rows)

    def add(self, name: str, verdict: Verdict, sentence: str, **numbers: Any) -> None:
        self.rows.append(CommissioningStep(name, verdict, sentence, numbers))

    # The checks of the model, before the plant is touched.

    def shapes(self) -> None:
        first = self.loop._first_context()
        try:
            sizes = self.loop.system.check(self.loop.x, self.theta, self.loop.a_hat, first, thorough=True)
        except ValueError as error:
            self.add("shapes", "no-go", f"The functions do not fit together: {error}")
            return
        counts = {"states": sizes.n, "controls": sizes.m, "measurements": sizes.q, "gains": sizes.d}
        listed = ", ".join(f"{name}: {count}" for name, count in (counts | {"parameters": sizes.p}).items())
        text = f"The functions fit together. {listed[0].upper()}{listed[1:]}."
        self.add("shapes", "ok", text, **sizes._asdict())

    def stability(self) -> None:
        loop, dt = self.loop, float(self.loop.plant.dt)
        try:
            linear = loop.linearized(self.theta)
            found = margins_of(linear)
        except np.linalg.LinAlgError:
            self.add("stability", "no-go", "The derivatives of the loop at rest are not finite.")
            return
        numbers = found._asdict()
        if not found.is_stable:
            self.add("stability", "no-go", f"{found}. {self._advice()}", **numbers)
            return
        self.tau = time_constant(found.spectral_radius)
        n = loop.x.size
        self.growth = growth_time(linear.A[:n, :n])
        numbers["growth_time"] = self.growth
        faults = []
        if found.gain_margin < GAIN_MARGIN:
            faults.append(f"the gain margin is {found.gain_margin:.3g}")
        if found.phase_margin < PHASE_MARGIN:
            faults.append(f"the phase margin is {found.phase_margin:.3g}°")
        if found.delay_margin < dt:
            faults.append(f"a delay of {found.delay_margin:.3g} s, less than one period, makes the loop unstable")
        advice = f" {self._advice()}" if faults else ""
        if found.gain_reduction > 1 / GAIN_MARGIN:
            faults.append(
                f"the loop is unstable if the gain falls to {found.gain_reduction:.3g} of its value, so gains that are "
                "too low are dangerous"
            )
        if faults:
            self.add("stability", "warning", f"Small margins: {'; '.join(faults)}.{advice}", **numbers)
        else:
            self.add("stability", "ok", f"Margins of the start gains: {found}.", **numbers)

    def _advice(self) -> str:
        """Return what to do about small margins: lower gains, if lower gains help."""
        try:
            gains = self.loop.gains(self.loop.back_off(self.theta, gain_margin=GAIN_MARGIN))
        except ArgumentError:
            return "Lower gains do not give a gain margin of 2: choose other gains."
        listed = ", ".join(f"{name} = {text_of(np.asarray(gain))}" for name, gain in gains.items())
        return f"theta=loop.back_off(gain_margin={GAIN_MARGIN:g}) gives lower gains: {listed}."

    def simulation(self) -> None:
        """Simulate the loop on its model with the start gains; the other checks use the run."""
        loop = self.loop
        # The contraction is a mean over half of the run, which must be several time constants long.
        steps = max(2 * self.steps, int(min(20 * self.tau, 100_000)))
        self.scenario = loop.scenario(steps, self.seed, reference=self.reference)
        # One program for all checks, since compiling takes most of the time: the tuner computes y and the contraction,
        # and leaves θ where it is.
        tuner = MGAPS(_STAY, constraint=loop.constraint, contraction_memory=steps / 2)
        run = loop.simulate(
            scenario=self.scenario,
            controller=loop.controller(tuner=tuner),
            guard=loop.guard(rollback=None),
            theta=self.theta,
            throw=False,
        )
        self.found_contraction = contraction_of(run, steps / 2)
        if not bool(run.outcome.ok):
            self.add("simulation", "no-go", f"The loop fails on its own model: {run.result.message}.")
            return
        self.simulated = {name: jax.tree.map(np.asarray, rows) for name, rows in run.recorded.items()}
        output = np.asarray(jax.vmap(loop.plant.output)(run.x))
        scales = np.array([s.scale for s in loop.plant.outputs])
        wanted = np.asarray(self.scenario.t.reference)[:, : output.shape[1]]
        error = float(np.sqrt(np.mean(((wanted - output) / scales) ** 2)))
        spread = float(np.sqrt(np.mean((np.std(wanted, axis=0) / scales) ** 2)))
        saturated = _saturation(self.simulated["u"], self.guard)
        numbers = {"error": error, "reference": spread, "saturation": saturated}
        text = f"The error on the model is {error:.3g} of the output's scale (RMS)."
        if spread > 0 and error > POOR_TRACKING * spread:
            self.add(
                "simulation",
                "warning",
                f"{text} That is {100 * error / spread:.0f} % of the spread of the reference: the start gains follow "
                "it badly. "
                "Gains that are too low can be dangerous before anything is learned: loads may move the plant out of "
                "its range. Start with higher gains, or with a slower reference.",
                **numbers,
            )
        else:
            self.add("simulation", "ok", text, **numbers)

    def gradients(self) -> None:
        rows = np.linspace(0, len(self.simulated["cost"]) - 1, POINTS + 1).astype(int)[1:]
        memory = jax.tree.map(lambda leaf: leaf[rows[POINTS // 2]], self.simulated["memory"])
        t = jax.tree.map(lambda leaf: leaf[rows], self.scenario.t)
        found = check_gradient(
            self.loop.system, self.simulated["x"][rows], self.theta, self.loop.a_hat, t, memory=memory
        )
        numbers = {"error": found.error, "points": found.points}
        if found.ok:
            text = f"All derivatives agree with finite differences at {found.points} states; error {found.error:.1e}."
            self.add("gradients", "ok", text, **numbers)
        else:
            self.add("gradients", "no-go", f"A derivative is wrong: {found.wrong[0]}.", **numbers)

    def contraction(self) -> None:
        loop, found = self.loop, self.found_contraction
        d = ravel_pytree(self.theta)[0].size
        tuner = loop.controller().tuner
        assert isinstance(tuner, GaussNewton)
        self.memory = float(tuner.memory)
        numbers = {"rho": found.rho, "worst": found.worst, "time_constant": found.time_constant}
        if found.rho < 1 and bool(found.result.ok):
            self.tau = time_constant(found.rho)
            self.memory = max(self.memory, float(suggest_memory(found.rho, d)))
        numbers["memory"] = self.memory
        if found.ok:
            text = f"The loop forgets with a time constant of {self.tau:.3g} steps; the tuner's memory is "
            text += f"{self.memory:.0f} steps, at least {TIME_CONSTANTS} time constants."
            self.add("contraction", "ok", text, **numbers)
        else:
            verdict = "no-go" if found.rho > 1 or not bool(found.result.ok) else "warning"
            self.add("contraction", verdict, f"{found}.", **numbers)

    # The dry runs.

    def _watch(self) -> Watch:
        signals = self.loop.plant.states if self.loop.observer is None else self.loop.plant.outputs
        measured = self.simulated["measured"]
        scales = np.array([s.scale for s in signals])
        return Watch.of(measured, self.simulated["cost"], scales, cost_of_scale(self.loop))

    def run(self, given: Any) -> None:
        """Make both dry runs on a plant, and check them."""
        loop = self.loop
        plant = given
        if not isinstance(given, Plant):
            model = loop.plant if given is None else given
            scenario = loop.scenario(len(self.scenario), self.seed, plant=model, reference=self.reference)
            plant = SimulatedPlant(loop, model, scenario)
        # θ stays in both dry runs: the cheapest tuner does, and there is nothing to roll back.
        guard = dataclasses.replace(self.guard, rollback=None)
        references = np.asarray(self.scenario.t.reference, float)[: 2 * self.steps]
        watch = self._watch()
        measured, fault = first_measurement(loop, plant)
        if fault:
            self.add("dry run", "no-go", f"Not started: {fault}. Nothing was sent.", steps=0)
            return
        start = {} if self.u is None else {"u": self.u, "measurement": measured, "reference": references[0]}
        agent = loop.agent(controller=loop.controller(tuner=Fixed()), theta=self.theta, guard=guard, **start)
        agent.pause()
        if plant is given:  # a real plant, which will move
            _LOGGER.warning("%s", _announced(loop, self.steps, references))
        first = drive(loop, agent, plant, measured, references[: self.steps], watch)
        self._judge(first)
        if self.is_stopped or first.log is None:
            return
        agent.freeze()
        second = drive(loop, agent, plant, first.measured, references[self.steps :], watch.again())
        if second.fault or second.log is None:
            text = f"Stopped after {second.step} steps of the second dry run: {second.fault}. Nothing more was sent."
            self.add("estimator", "no-go", text, steps=second.step)
            return
        self._learn(second.log)
        if not self.is_stopped:
            self._choose()

    def read(self, log: PlantLog) -> None:
        """Check a log in place of the dry runs."""
        finite = np.all(np.isfinite(np.concatenate([log.measurement, log.u, log.reference], axis=1)), axis=1)
        count = len(log) if finite.all() else int(np.argmin(finite))
        costs = self._replay(log[:count]).cost if count > 1 else np.zeros(count)
        found = check_log(log[:count], costs, self._watch()) if count else None
        if count < len(log) and (found is None or not found.fault):
            fault = "the row is not finite"
            found = DryRun(log[:count] if count else None, fault, count, log.measurement[count])
        assert found is not None
        self._judge(found, source="log")
        if self.is_stopped or found.log is None:
            return
        self._learn(found.log)
        if not self.is_stopped:
            self._choose()

    def _replay(self, log: PlantLog, **options: Any) -> Replay:
        return replay(self.loop, log, theta=self.theta, a_hat=self.loop.a_hat, **options)

    def _judge(self, found: DryRun, source: str = "dry run") -> None:
        """Judge the dry run with learning paused. A run that was stopped still shows what is wrong."""
        self.first = found
        if found.fault:
            text = f"Stopped at step {found.step}: {found.fault}."
            self.add(
                "dry run", "no-go", text + (" Nothing more was sent." if source != "log" else ""), steps=found.step
            )
        if found.log is None or len(found.log) < 3:
            return
        log = found.log
        self.first_replay = made = self._replay(log)
        if not found.fault:
            mean = float(np.mean(made.cost))
            text = (
                f"{len(log)} steps {'of the log' if source == 'log' else 'with learning paused'}; mean cost {mean:.3g}."
            )
            self.add("dry run", "ok", text, steps=len(log), cost=mean)
        self._saturation(log)
        self._sampling(log)
        ahead = forecast(self.loop, log, made, self._horizon(len(log)), with_effects=True)
        self._control_effect(log, ahead)
        self._mismatch("model", log, made, ahead)

    def _horizon(self, rows: int) -> int:
        low, high = HORIZON
        longest = min(high, rows // 3, self.growth)
        return max(math.floor(min(max(round(self.tau), low), longest)), 1)

    def _saturation(self, log: PlantLog) -> None:
        share = _saturation(log.u, self.guard)
        low, high = (np.broadcast_to(limit, log.u.shape[1:]) for limit in (self.guard.u_low, self.guard.u_high))
        outside = float(np.mean(np.any((log.u < low) | (log.u > high), axis=1)))
        text = f"The control is at its limits in {100 * share:.1f} % of the steps."
        if outside:
            text += f" In {100 * outside:.1f} %, the recorded control is outside the limits of the policy."
        if share > SATURATION:
            text += (
                " The tuner learns little from these steps, and the guard lets no gain grow: use a slower reference."
            )
        verdict = "warning" if share > SATURATION or outside else "ok"
        self.add("saturation", verdict, text, share=share, outside=outside)

    def _sampling(self, log: PlantLog) -> None:
        if log.time is None:
            return
        dt, periods = float(self.loop.plant.dt), np.diff(log.time)
        mean, worst = float(np.mean(periods)) / dt, float(np.max(np.abs(periods / dt - 1)))
        usual = float(np.quantile(np.abs(periods / dt - 1), 0.99))
        numbers = {"mean": mean, "worst": worst, "jitter": usual}
        text = f"The mean period is {mean:.4g} of the model's dt; 99 % of the periods differ from dt by at most "
        text += f"{100 * usual:.1f} %."
        if not 1 / WRONG_PERIOD < mean < WRONG_PERIOD:
            self.add("sampling", "no-go", f"{text} The model has the wrong sampling period.", **numbers)
        elif abs(mean - 1) > PERIOD or (usual > JITTER and not self.loop.jitter):
            advice = " Correct dt, or use Loop(jitter=True)." if not self.loop.jitter else " Correct dt."
            self.add("sampling", "warning", text + advice, **numbers)
        else:
            self.add("sampling", "ok", text, **numbers)

    def _control_effect(self, log: PlantLog, ahead: Forecast) -> None:
        """Compare the effect of each control with the model's: a regression of the measured on the predicted effect."""
        scales = self._scales()
        error = (log.measurement[ahead.starts + ahead.horizon] - ahead.predicted) / scales
        assert ahead.effects is not None
        noise = np.asarray(self.loop.noise, float) / scales
        ratios, correlations = [], []
        for effect in ahead.effects / scales:
            effect = effect - effect.mean(axis=0)
            measured = effect + error - error.mean(axis=0)
            size = float(np.sum(effect**2))
            if not size > np.sum(noise**2) * len(effect):  # not larger than the noise
                ratios.append(math.nan)
                correlations.append(0.0)
                continue
            product = float(np.sum(effect * measured))
            ratios.append(product / size)
            spread = math.sqrt(size * float(np.sum(measured**2)))
            # A sensor that repeats one value has no spread.
            correlations.append(product / spread if spread > 0 else 0.0)
        names = [signal.name for signal in self.loop.plant.controls]
        numbers = {"ratio": ratios, "correlation": correlations, "horizon": ahead.horizon}
        listed = ", ".join(f"{ratio:.2g}" for ratio in ratios)
        text = f"The control's effect over {ahead.horizon} steps is {listed} of the model's."
        wrong = [name for name, r, c in zip(names, ratios, correlations, strict=True) if r < 0 and c < -SURE]
        silent = [name for name, r in zip(names, ratios, strict=True) if math.isnan(r)]
        low, high = GAIN_RATIO
        if wrong:
            text += (
                f" The sign is wrong for {', '.join(wrong)}: the plant reacts in the other direction than the model."
            )
            self.add("control effect", "no-go", text, **numbers)
        elif silent:
            text = f"The effect of {', '.join(silent)} is not visible above the noise: use a reference that moves more."
            self.add("control effect", "warning", text, **numbers)
        elif not all(low <= ratio <= high for ratio in ratios):
            text += " Disturbances can also cause this. If the model is wrong, correct its gain."
            self.add("control effect", "warning", text, **numbers)
        else:
            self.add("control effect", "ok", text, **numbers)

    def _scales(self) -> np.ndarray:
        signals = self.loop.plant.states if self.loop.observer is None else self.loop.plant.outputs
        return np.array([s.scale for s in signals], float)

    def _errors(self, log: PlantLog, made: Replay, ahead: Forecast, since: int = 0) -> dict[str, Any]:
        """Return the prediction errors, from row `since` on: RMS in the unit of each measured signal."""
        noise = np.asarray(self.loop.noise, float)
        one = _rms((log.measurement[1:] - made.predicted)[since:])
        counts, later = ahead.starts >= since, log.measurement[ahead.starts + ahead.horizon]
        many = _rms((later - ahead.predicted)[counts])
        motion = _rms((later - log.measurement[ahead.starts])[counts])
        scales = self._scales()
        share = float(np.linalg.norm(many / scales) / np.linalg.norm(np.maximum(motion / scales, REST)))
        over = [float(e / n) if n > 0 else math.inf for e, n in zip(one, noise, strict=True)]
        return {
            "one_step": one.tolist(),
            "one_step_over_noise": over,
            "many_steps": many.tolist(),
            "motion": motion.tolist(),
            "many_steps_over_noise": [float(e / n) if n > 0 else math.inf for e, n in zip(many, noise, strict=True)],
            "horizon": ahead.horizon,
            "unexplained": share,
        }

    def _mismatch(self, name: str, log: PlantLog, made: Replay, ahead: Forecast) -> None:
        numbers = self._errors(log, made, ahead)
        errors, over = (
            [text_of(numbers[f"{ahead}{end}"]) for ahead in ("one_step", "many_steps")] for end in ("", NOISE)
        )
        text = (
            f"The model's error (RMS) is {errors[0]} one step ahead and {errors[1]} {ahead.horizon} steps ahead: "
            f"{over[0]} × and {over[1]} × the sensor noise that the loop assumes (Loop(noise=…))."
        )
        if numbers["unexplained"] > UNEXPLAINED:
            text += (
                f" In {ahead.horizon} steps, the measurement moves by {text_of(numbers['motion'])} (RMS), so the model "
                "explains little: the estimator has much to learn. An offset of the output at rest also causes this."
            )
        self.add(name, "warning" if numbers["unexplained"] > UNEXPLAINED else "ok", text, **numbers)

    def _learn(self, log: PlantLog) -> None:
        """Compare predictions of the first and of the learned parameters, on the second half of the log."""
        self.second_log = log
        estimator = self.loop.controller().estimator
        fixed = self._replay(log)
        self.second_replay = learned = self._replay(log, estimator=estimator)
        horizon, half = self._horizon(len(log)), len(log) // 2
        before, after = (
            self._errors(log, made, forecast(self.loop, log, made, horizon), since=half) for made in (fixed, learned)
        )
        a = learned.a_hat[-1]
        self.a_hat = jnp.asarray(a, self.loop.x.dtype)
        names = [parameter.name for parameter in self.loop.plant.parameters]
        low, high = (np.asarray(bound, float) for bound in (self._a_box.low, self._a_box.high))
        held = [name for name, at in zip(names, (a <= low) | (a >= high), strict=True) if at]
        numbers = {"before": before, "after": after, "a_hat": dict(zip(names, map(float, a), strict=True))}
        found = ", ".join(
            f"{one.name} = {value:.3g}{'' if one.unit == '1' else f' {one.unit}'}"
            for one, value in zip(self.loop.plant.parameters, a, strict=True)
        )
        first, last = (text_of(np.array(part["many_steps_over_noise"])) for part in (before, after))
        text = (
            f"The estimator finds {found}. The error {horizon} steps ahead goes from {first} to {last} × the assumed "
        )
        text += "noise."
        faults = []
        worse = np.array(after["many_steps"]) > 1.2 * np.array(before["many_steps"])
        if np.any(worse & (np.array(after["many_steps"]) > 2 * np.asarray(self.loop.noise))):
            faults.append("the learned parameters predict worse than the first ones")
        if after["unexplained"] > UNEXPLAINED:
            many, motion = (text_of(after[name]) for name in ("many_steps", "motion"))
            faults.append(
                f"the learned model still errs by {many}, while the measurement moves by {motion}: the model lacks an "
                "effect"
            )
        if held:
            faults.append(f"{', '.join(held)} is at its bound: widen the bounds, or correct the model")
        if faults:
            text += f" But {'; '.join(faults)}."
        if after["unexplained"] > UNUSABLE:
            text += " The plant hardly moves as the model says: check the sensor, the actuator and the model."
            self.add("estimator", "no-go", text, **numbers)
            return
        self.add("estimator", "warning" if faults else "ok", text, **numbers)

    @property
    def _a_box(self) -> Box:
        box = self.loop.plant.a_constraint
        shape = self.loop.a_hat.shape
        return Box(jnp.broadcast_to(jnp.asarray(box.low), shape), jnp.broadcast_to(jnp.asarray(box.high), shape))

    def _choose(self) -> None:
        loop, log, made = self.loop, self.second_log, self.second_replay
        assert log is not None
        assert made is not None
        assert self.first is not None
        assert self.first.log is not None
        assert self.first_replay is not None
        record = _Record(
            {
                "measured": self.first.log.measurement[:-1],
                # The simulation has changes of the load, which a quiet dry run may lack.
                "cost": max(self.first_replay.cost, self.simulated["cost"], key=np.mean),
                "f_hat": self.first_replay.f_obs,
                "innovation": np.zeros_like(self.first_replay.f_obs),
                "y": self.simulated["y"],
                "theta": self.simulated["theta"],
            },
            loop.constraint,
        )
        m = len(loop.plant.controls)
        load = [s.scale for s in loop.plant.controls]
        f_scale = [*load, *[1.0] * (made.f_hat.shape[1] - m)]
        found = suggest_guard(record, base=self.guard, x_scale=self._scales(), f_scale=f_scale, time_constant=self.tau)
        self.guard, usual = found.guard, loop.guard()
        self.rules = tuple(
            rule._replace(rule=LOOP_RULES[rule.setting] if rule.value == getattr(usual, rule.setting) else GIVEN_RULE)
            if rule.rule.startswith("given")
            else rule
            for rule in found.rules
        )
        estimator = loop.controller().estimator
        kind = type(estimator).__name__
        if isinstance(estimator, AutoEstimator):
            affine = is_affine(loop.system, loop.x, loop.a_hat, loop._first_context())
            kind = "KalmanEstimator (the residual is affine in a)" if affine else "NormalizedGradient"
        box = settings_text.value(loop.constraint)
        text = f"Estimator {kind}; tuner GaussNewton with a memory of {self.memory:.0f} steps; "
        text += (
            f"θ moves on average by at most {self.guard.rate:.3g} of the widths of Θ in a step; guard as listed below."
        )
        self.add("choices", "ok", text, memory=self.memory, rate=self.guard.rate, estimator=kind, box=box)

    def result(self) -> Commissioned:
        loop = self.loop
        controller = loop.controller()
        if self.memory is not None:
            controller = loop.controller(tuner=loop._tuner(self.memory), estimator=controller.estimator)
        level = None
        if self.first_replay is not None and self.first is not None and not self.first.fault:
            costs, window = self.first_replay.cost, self.guard.window
            if len(costs) >= window:
                level = float(np.max(np.convolve(costs, np.ones(window) / window, "valid")))
        return Commissioned(
            loop=loop,
            rows=tuple(self.rows),
            controller=controller,
            guard=self.guard,
            guard_rules=tuple(self.rules),
            theta=self.theta,
            a_hat=self.a_hat,
            log=None if self.first is None else self.first.log,
            learning_log=self.second_log,
            replay=self.first_replay,
            learning_replay=self.second_replay,
            level=level,
        )


def _announced(loop: Loop, steps: int, references: np.ndarray) -> str:
    """Return what the dry runs will do to the plant: how long they take, and where the reference goes."""
    seconds = steps * float(loop.plant.dt)
    units = ((60, "s", 1), (7200, "min", 60), (math.inf, "h", 3600))
    long = next(f"{seconds / size:.3g} {unit}" for most, unit, size in units if seconds <= most)
    low, high = (text_of(edge) for edge in (references.min(axis=0), references.max(axis=0)))
    return (
        f"two dry runs of {steps:,} steps ({long}) each: the first does not learn, in the second only the estimator "
        f"learns. The reference goes from {low} to {high}. steps=… and reference=… change this; Ctrl-C stops it"
    )


class _Record(RunFields):
    """The signals of a dry run, as `suggest_guard` reads them."""

    recorded: Mapping[str, Any]
    constraint: AbstractConstraint

    def __init__(self, recorded: dict[str, Any], constraint: AbstractConstraint):
        self.recorded, self.constraint = recorded, constraint


def _saturation(u: np.ndarray, guard: Guard) -> float:
    """Return the share of steps at which a control is at or beyond a limit."""
    return float(np.mean(np.any((u <= np.asarray(guard.u_low)) | (u >= np.asarray(guard.u_high)), axis=1)))


def _rms(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(rows**2, axis=0))


def text_of(value: Any) -> str:
    """Return a number, or several, with three digits; None is a setting that is off."""
    if callable(value):
        return "a function of x"
    if value is None or isinstance(value, int):
        return "off" if value is None else str(value)
    texts = [f"{number:.3g}" for number in np.atleast_1d(np.asarray(value, float)).reshape(-1)]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
