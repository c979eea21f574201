"""`Loop`: a plant, a policy, a cost and a reference become a system, its start values, its scales and its guard."""

import copy
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..control.controller import Controller
from ..control.guard import Guard
from ..control.run_fields import FIELDS
from ..estimators.auto import AutoEstimator
from ..estimators.base import AbstractEstimator
from ..export.arduino_folder import export_arduino
from ..export.c_folder import export_c
from ..export.fmu_folder import export_fmu
from ..export.glue_folders import export_crazyflie, export_px4, export_ros2
from ..export.web_folder import export_web
from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..models.base import AbstractModel, Signal
from ..models.delayed import Delayed
from ..models.quadrotor import Quadrotor
from ..models.robot_arm import RobotArm
from ..native.choice import Engine
from ..policies.base import AbstractPolicy, Inputs
from ..policies.cascade import Cascade
from ..policies.filters import Filtered
from ..policies.observers import AbstractObserver, Luenberger
from ..policies.pid import PID
from ..policies.robot import AbstractRobotPolicy
from ..problem.constraints import AbstractConstraint, Product
from ..problem.loop_context import LoopContext, coming_period, elapsed_period
from ..problem.memory import Memory
from ..problem.noise import PiecewiseConstant
from ..problem.scenario import Scenario
from ..problem.system import System
from ..realtime.agent import Agent
from ..realtime.history import History
from ..simulation.run import Run
from ..simulation.simulator import simulate
from ..tuners.base import AbstractTuner
from ..tuners.gauss_newton import GaussNewton
from . import quadrotor_rules, robot_rules, takeover
from .references import AbstractReference, Steps, as_reference
from .stability import Linear, Margins, backed_off, linear_loop, margins_of
from .tracking import AbstractStateCost, Tracking

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE = 1e-3
"""The size of the sensor noise, as a share of the output's scale, unless the user gives one."""
DISTURBANCE = 0.05
"""The size of the disturbances that an observer expects at the plant's input, as a share of the control's scale."""
LONGEST_FILTER = 0.02
"""The longest default filter of a PID's derivative, as a share of the time between two changes of the reference."""
LONGEST = 20
"""The longest integral time of a PID, in periods of the reference: twice the memory of the tuner."""
REFUSED = 1e3
"""A measurement is refused if it is this many times larger than the output's scale."""
RATE = 0.1
"""The longest way of θ in a period of the reference, as a share of the widths of Θ."""
SWING = 0.25
"""The way of the control that counts as a swing, as a share of the range that it uses."""
REPLAYED = 200
"""The steps of the recorded run that an export contains."""


class Loop(eqx.Module):
    r"""A control loop that is made of ready pieces.

    The loop's attributes are plain objects, which you can also write by hand: `system` has the four functions, the
    memory and the sensors; `theta`, `a_hat` and `x` are the start values; `controller()`, `guard()`, `agent()` and
    `simulate()` use them. The context of each step is a `LoopContext`, which has the reference.

    The memory of the system is a dictionary: `"u"`, the last control, which starts at `u_start` of a PID; `"policy"`,
    the memory of the policy, such as the integral of a PID; `"observer"`, the memory of the observer.

    **Arguments:**

    - `plant`: the model of the plant, such as `models.DCMotor(…)`.
    - `policy`: such as `policies.PID(…)`. Its gains are the start of the tuning. A policy for robots, such as
      `policies.ComputedTorque()`, takes the numbers that are left out from the robot. The default derivative filter of
      a PID is at most 1/50 of the time between two changes of the reference; see `PID.with_filter_within`.
    - `cost`: a `Tracking`, a function `(error (q,), u (m,), rate of u (m,)) -> ()`, or a cost of the state, such as
      `JointTracking`, which is the default for a robot, and `FlightTracking` for a quadrotor.
    - `reference`: the wanted output in simulations: a reference of `selftune.references`, a number, an array with a row
      for each step, or a function of the time in seconds. By default the reference makes steps to random levels
      between the output at rest and half a scale above it. If the plant has m controls, the first m outputs move, and
      the others stay at rest. The joints of a robot swing around their home position (`robot_rules.joint_path`), and a
      quadrotor flies a figure eight (`quadrotor_rules.flight_path`). An agent gets its reference at each call:
      `agent.act(measurement, reference=r)`.
    - `noise`: the standard deviation of the sensor noise, a number or one for each output, in the output's units. By
      default 1/1000 of the output's scale, and for a robot or a quadrotor the `measurement_noise` of its rules.
      Simulations and the default observer use it.
    - `observer`: an observer of `selftune.policies`, which estimates the state from the outputs. It is needed if the
      state has other components than the outputs. By default it is a stationary Kalman filter for this noise and for
      disturbances at the plant's input of 5 % of the control's scale.
    - `full_state`: True if sensors measure the whole state. The measurement is then x, and no observer is needed. This
      is the default for a robot or a quadrotor without an observer.
    - `jitter`: True if each step has its own sampling period. Then `act` takes the measured time since the last call
      as `dt=…`, which also counts as the period up to the next call. If your program knows the coming period, give
      that as `dt=…` and the measured one as `last_dt=…`.

    !!! Example

        >>> import selftune as st
        >>> from selftune import models, policies
        >>> loop = st.Loop(
        ...     plant=models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01),
        ...     policy=policies.PID(kp=1.0, ki=0.5, u_min=-10.0, u_max=10.0),
        ...     cost=st.Tracking(error=1.0, effort=0.01),
        ... )
        >>> run = loop.simulate(steps=5_000, seed=0)
        >>> bool(run.cost[-1000:].mean() < run.cost[:1000].mean())
        True
        >>> agent = loop.agent()
        >>> u = agent.act([0.0], reference=[1.0])
        >>> print({name: round(float(gain), 1) for name, gain in loop.gains(agent.theta).items()})
        {'kp': 1.0, 'ki': 0.5, 'tt': 2.0}
    """

    __repr__ = settings_text.show

    plant: AbstractModel
    policy: AbstractPolicy
    cost: Any
    reference: AbstractReference
    noise: Float[Array, " q"]
    observer: AbstractObserver | None
    full_state: bool = eqx.field(static=True)
    jitter: bool = eqx.field(static=True)

    def __init__(
        self,
        plant: AbstractModel,
        policy: AbstractPolicy,
        cost: Any = None,
        reference: Any = None,
        *,
        noise: Any = None,
        observer: AbstractObserver | None = None,
        full_state: bool | None = None,
        jitter: bool = False,
    ):
        arguments.instance("plant", plant, AbstractModel)
        arguments.instance("policy", policy, AbstractPolicy)
        arguments.instance("observer", observer, AbstractObserver, optional=True)
        arguments.instance("full_state", full_state, bool, optional=True)
        arguments.instance("jitter", jitter, bool)
        if full_state is None:
            full_state = isinstance(plant, RobotArm | Quadrotor) and observer is None
        if isinstance(plant, RobotArm):
            policy = robot_rules.fitted_policy(policy, plant) if isinstance(policy, AbstractRobotPolicy) else policy
            cost = robot_rules.joint_cost(plant) if cost is None else cost
            reference = robot_rules.joint_path(plant) if reference is None else reference
        if isinstance(plant, Quadrotor):
            cost = quadrotor_rules.flight_cost(plant) if cost is None else cost
            reference = quadrotor_rules.flight_path(plant) if reference is None else reference
        self.plant, self.full_state, self.jitter = plant, full_state, jitter
        states, outputs, controls = _scales(plant)
        cost = Tracking() if cost is None else cost
        if not callable(cost):
            raise ArgumentError("cost", "a Tracking or a function of error, u and rate", arguments.describe(cost))
        self.cost = cost.scaled_to(outputs, controls) if isinstance(cost, Tracking) else cost
        self.reference = _default_reference(plant) if reference is None else as_reference(reference)
        longest = LONGEST_FILTER * self._transient() * plant.dt
        self.policy = jax.tree.map(
            lambda node: node.with_filter_within(longest) if isinstance(node, PID) else node,
            policy,
            is_leaf=lambda node: isinstance(node, PID),
        )
        scales = states if full_state else outputs
        if noise is None and isinstance(plant, RobotArm):
            noise = robot_rules.measurement_noise(plant)[: len(scales)]
        if noise is None and isinstance(plant, Quadrotor):
            noise = quadrotor_rules.measurement_noise(plant)[: len(scales)]
        given = [NOISE * scale for scale in scales] if noise is None else noise
        self.noise = jnp.array(arguments.fit_shape("noise", arguments.real_array("noise", given), (len(scales),)))
        if (raw := arguments.known(self.noise)) and np.any(raw[0] < 0):
            raise ArgumentError("noise", "numbers >= 0", f"{noise}")
        self.observer = observer
        if observer is None and not full_state and not _measures_state(plant):
            self.observer = _default_observer(plant, self.noise)

    def __check_init__(self) -> None:
        if self.observer is not None and self.full_state:
            raise ArgumentError("observer", "None, because full_state=True: the state is measured", "an observer")
        n, m, q = (len(part) for part in (self.plant.states, self.plant.controls, self.plant.outputs))
        if (given := self.policy.limits[0].size) != m:
            raise ArgumentError("policy", f"a policy with {m} controls, as the plant has", f"one with {given}")
        with jax.ensure_compile_time_eval():
            self.reference.rows(
                jax.random.key(0), 1, self.plant.dt, len(self.plant.references)
            )  # raises an error if the sizes do not fit
        try:
            self.system.check(self.x, self.theta, self.a_hat, self._first_context())
        except ValueError as error:
            if str(error).startswith("cost:") and error.__cause__ is not None:
                expected = f"a function of error ({q},), u ({m},) and rate of u ({m},)"
                raise ArgumentError("cost", expected, f"one that failed ({error.__cause__})") from error
            if not str(error).startswith("policy:"):
                raise
            fitting = f"a policy for the plant's {q} outputs, {n} states and {m} controls"
            raise ArgumentError("policy", fitting, f"one that failed ({error.__cause__ or error})") from error

    @property
    def system(self) -> System:
        """The four functions, the memory and the sensors, as a plain `System`."""
        return self._system(self.plant)

    def _system(self, plant: AbstractModel) -> System:
        """Return the system with another plant in place of the model."""
        observer = self.observer
        return System(
            dynamics=_Dynamics(plant),
            residual=_Residual(plant),
            policy=_LoopPolicy(self.plant, self.policy, self.observer),
            cost=_LoopCost(plant, self.cost),
            memory=_memory(self.policy, self.observer),
            measure=None if observer is None else _Measure(plant),
            estimate=None if observer is None else _Estimate(observer),
        )

    @property
    def theta(self) -> PyTree:
        """The start θ: that of the policy, and that of the observer if it has numbers to tune."""
        return _theta(self.policy, self.observer)

    @property
    def constraint(self) -> AbstractConstraint:
        """Θ, from the policy and the observer. For a PID with the default Θ, the integral time is at most 20 periods of
        the reference, because a tuner does not see the effect of a slower integral; see `PID.constraint_within`."""
        of_policy = _constraint_of(self.policy, LONGEST * self._period() * self.plant.dt)
        if not _tunes_observer(self.observer):
            return of_policy
        assert self.observer is not None
        return Product({"observer": self.observer.constraint, "policy": of_policy})

    @property
    def x(self) -> Float[Array, " n"]:
        """The state at rest."""
        return self.plant.x0

    @property
    def a_hat(self) -> PyTree:
        """The start of the estimate of the unknown parameters: the nominal plant."""
        return self.plant.a_hat

    def gains(self, theta: PyTree) -> dict[str, Any]:
        """Return the physical gains of θ by name, for people: a number, or an array with one for each axis.

        For a PID: `kp`, `ki`, `kd`, `feedforward`; `tf`, the time constant of the derivative filter; and `tt`, the
        tracking time of the anti-windup, both in seconds. `tf` and `tt` usually follow from the gains.
        """
        gains = self.policy.gains(_split_theta(self._checked(theta), self.observer)[0])
        return {name: _for_people(gain) for name, gain in gains.items()}

    def _checked(self, theta: Any) -> PyTree:
        """Return θ as arrays, or the start θ for None. Raise `ArgumentError` if θ does not fit this loop."""
        if theta is None:
            return self.theta
        arrays = arguments.real_tree("theta", theta)
        found, expected = (
            [(path, leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
            for tree in (arrays, self.theta)
        )
        if found != expected:
            like = arguments.describe_tree(self.theta)
            raise ArgumentError("theta", f"a θ like loop.theta, {like}", arguments.describe_tree(theta))
        return arrays

    def controller(self, tuner: AbstractTuner | None = None, estimator: AbstractEstimator | None = None) -> Controller:
        """Return the controller: by default with `GaussNewton` and `AutoEstimator`, which need no numbers.

        `GaussNewton` remembers 10 periods of the reference, but at least 2,000 steps and 200 for each number of θ, so
        that its means contain several transients. For a path of joints, which moves all the time, it is one period.
        """
        if tuner is None:
            d = ravel_pytree(self.theta)[0].size
            memory = max(2000, math.ceil(10 * self._transient() - 1e-6), 200 * d)
            tuner = self._tuner(memory)
        estimator = AutoEstimator(constraint=self.plant.a_constraint) if estimator is None else estimator
        return Controller(self.system, tuner, estimator)

    def _tuner(self, memory: float) -> GaussNewton:
        """Return the default tuner with this memory."""
        keep_signs = not all(parameter.is_logarithm for parameter in self.policy.parameters)
        return GaussNewton(constraint=self.constraint, memory=memory, keep_signs=keep_signs)

    def guard(self, **changes: Any) -> Guard:
        """Return the guard for this loop; `changes` are settings of `Guard` that replace the automatic ones.

        - `u_low`, `u_high`: the limits of the policy.
        - `x_limit`: 1000 times the scale of each measured signal. `f_limit`: 10,000 times the scale of the control.
        - `growth`, `calming`: the policy knows which numbers of θ are gains, and which of them do not damp.
        - `rate`, `burst`: on average, θ moves by at most 10 % of the widths of Θ in a period of the reference. After a
          rest, a single step may move θ by these 10 %. For the gains of a PID, 10 % are a factor of 2.5. Before the
          gains move further, the plant shows the effect. A path of joints moves all the time, so a tenth of its period
          counts as the period.
        - `swing`: a quarter of the range that u uses. A loop whose control swings to and fro by this much, more often
          than the reference explains, gets lower gains; see `Guard`.
        - `window`: two periods of the reference, but at least five transients and 500 steps. So each window has a
          similar mixture of large and small transients and of rest: with two random steps of the reference in a
          window, the cost of a window could be four times that of another for no other reason.
        """
        with jax.ensure_compile_time_eval():
            low, high = (np.asarray(limit, float) for limit in self.policy.limits)
        states, outputs, controls = _scales(self.plant)
        settings: dict[str, Any] = {
            "u_low": low.tolist(),
            "u_high": high.tolist(),
            "x_limit": [REFUSED * scale for scale in (states if self.observer is None else outputs)],
            "f_limit": 10 * REFUSED * max(controls),
            "growth": list(self._growth),
            "calming": [*self._observed, *self.policy.calming],
            "rate": RATE / self._transient(),
            "burst": RATE,
            "window": max(500, math.ceil(max(2 * self._period(), 5 * self._transient()))),
            "swing": SWING,
        }
        if isinstance(self.plant, Quadrotor):
            settings |= quadrotor_rules.guard_settings(self.plant)
        return Guard(**(settings | changes))

    def agent(
        self,
        *,
        controller: Controller | None = None,
        guard: Guard | None = None,
        theta: Any = None,
        a_hat: Any = None,
        u: Any = None,
        measurement: Any = None,
        reference: Any = None,
        engine: Engine = "auto",
        **options: Any,
    ) -> Agent:
        """Return an agent for the real plant: `u = agent.act(measurement, reference=r)` at each step.

        The agent keeps the memory of the policy, and its estimator learns from every transition. `options` are further
        arguments of `Agent`.

        By default the agent starts at the rest of the model, with `u_start` of the PID. To take over a plant that
        already runs, give its present control `u`, `measurement` and `reference`. Then the first control for these
        numbers is `u`, and no jump occurs: the integral of the PID starts with the missing part. State and â start
        where the model rests at these numbers. This needs a PID with an integral.

        !!! Example

            >>> import selftune as st
            >>> from selftune import models, policies
            >>> tank = models.FirstOrder(gain=0.8, time_constant=300.0, dt=1.0, rated_input=100.0)
            >>> loop = st.Loop(tank, policies.PID(kp=2.0, ki=0.02, u_min=0.0, u_max=100.0))
            >>> agent = loop.agent(u=56.5, measurement=55.0, reference=60.0)
            >>> print(agent.act(55.0, reference=60.0))
            [56.5]
        """
        first, x = self._first_context(), self.x
        a_hat = self.a_hat if a_hat is None else a_hat
        start: tuple[Array, Array] | None = None
        if not u is measurement is reference is None:
            u, measured, wanted = takeover.checked(self.policy, self.plant, self.noise.size, u, measurement, reference)
            first = first._replace(reference=wanted)
            sees_state = self.observer is None
            x, a_hat = takeover.rest_of(self.plant, u, measured, a_hat, first, full_state=sees_state)
            start = u, self.plant.output(measured) if sees_state else measured
        agent = Agent(
            self.controller() if controller is None else controller,
            x=x,
            theta=self.theta if theta is None else theta,
            a_hat=a_hat,
            t=first,
            engine=engine,
            guard=self.guard() if guard is None else guard,
            infer=True,
            make_context=_ContextMaker(len(self.plant.references), self.jitter),
            **options,
        )
        if start is not None:
            assert isinstance(self.policy, PID)
            of_policy = _split_theta(agent.theta, self.observer)[0]
            takeover.started(agent, self.policy, *start, of_policy, self.plant.dt, first)
        return agent

    def scenario(
        self,
        steps: int,
        seed: Any,
        *,
        plant: AbstractModel | None = None,
        reference: Any = None,
        periods: Any = None,
    ) -> Scenario:
        """Return a scenario for this loop: reference, true parameters and sensor noise.

        The true parameters are drawn from the inner quarter of their bounds, once for each half of the run; so the
        control has reserves even if all of them act in the same direction. The noise of the sensors is the loop's
        `noise`. `plant`, if given, is the true plant. A loop with `jitter` takes the sampling period of each step,
        (T,), as `periods`; by default all periods are the nominal one. `seed` is a whole number or a PRNG key.
        """
        plant = self.plant if plant is None else plant
        steps = arguments.count("steps", steps)
        key = seed if arguments.is_key(seed) else jax.random.key(arguments.whole("seed", seed))
        kr, ka, kn = jax.random.split(key, 3)
        signal = self.reference if reference is None else as_reference(reference)
        dtype = plant.x0.dtype
        rows = signal.rows(kr, steps, plant.dt, len(plant.references)).astype(dtype)
        low, high = (jnp.broadcast_to(bound / 4, plant.a_hat.shape) for bound in _bounds(plant))
        draw = PiecewiseConstant(period=-(-steps // 2), low=0.0, high=1.0)(ka, steps, plant.a_hat.size)
        a_star = (low + (high - low) * draw).astype(dtype)
        noise = self.noise * jax.random.normal(kn, (steps, self.noise.size), dtype)
        last = None
        if self.jitter:
            given = plant.dt if periods is None else arguments.variances("periods", periods)
            periods = arguments.fit_shape("periods", jnp.asarray(given, dtype), (steps,))
            last = jnp.concatenate([jnp.full(1, plant.dt, dtype), periods[:-1]])
        elif periods is not None:
            raise ArgumentError("periods", "None, because the loop has no jitter", arguments.describe(periods))
        context = LoopContext(jnp.arange(steps, dtype=jnp.int32), rows, periods, last)
        w = jnp.zeros((steps, plant.x0.size), dtype)
        return Scenario(plant.x0, a_star, w, t=context, measurement_noise=noise)

    def simulate(
        self,
        steps: int | None = None,
        seed: int | None = None,
        *,
        plant: AbstractModel | None = None,
        reference: Any = None,
        scenario: Scenario | None = None,
        controller: Controller | None = None,
        guard: Guard | None = None,
        theta: Any = None,
        record: Sequence[str] = tuple(FIELDS),
        stride: int = 1,
        throw: bool = True,
        engine: Engine = "auto",
    ) -> Run:
        """Simulate the loop as `agent()` would run it: the controller sees measurements and the reference alone.

        `plant` is the true plant, by default the model itself; it may have another state than the model, such as an
        actuator or a delay that the model does not know. `steps`, `seed` and `reference` make the scenario, as in the
        method `scenario`; or give a `scenario` in place of these three. The other arguments are those of `st.simulate`.
        """
        arguments.instance("plant", plant, AbstractModel, optional=True)
        true = self.plant if plant is None else plant
        _check_alike(true, self.plant)
        if self.observer is None and true.x0.shape != self.x.shape:
            raise ArgumentError(
                "plant", f"{self.x.size} states like the model, because the whole state is measured", f"{true.x0.size}"
            )
        if scenario is None:
            steps = arguments.count("steps", steps)
            if seed is None:
                expected = "a number that starts the random numbers (reference, load, noise)"
                raise ArgumentError("seed", expected, "None", f"write simulate(steps={steps}, seed=0)")
            scenario = self.scenario(steps, seed, plant=true, reference=reference)
        elif not steps is seed is reference is None:
            raise ArgumentError("scenario", "None together with steps, seed or reference, which make one", "a Scenario")
        return simulate(
            self.controller() if controller is None else controller,
            scenario,
            theta=self.theta if theta is None else theta,
            a_hat=self.a_hat,
            x_hat=None if self.observer is None else self.x,
            plant=None if plant is None else self._system(plant),
            guard=self.guard() if guard is None else guard,
            infer=True,
            record=record,
            stride=stride,
            throw=throw,
            engine=engine,
        )

    @property
    def names(self) -> dict[str, list[str]]:
        """The names of the signals, with their units, and those of θ, for `run.plot(names=…)` and
        `run.to_dataset(names=…)`.

        !!! Example

            >>> import selftune as st
            >>> from selftune import models, policies
            >>> loop = st.Loop(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), policies.PID(kp=1.0, ki=0.5))
            >>> loop.names["theta"]
            ['log ki', 'log kp']
            >>> loop.simulate(100, seed=0).to_dataset(names=loop.names).theta.sel(parameter="log kp").shape
            (100,)
        """
        names = {kind: _with_units(given) for kind, given in self._signals().items()}
        return {"x": _with_units(self.plant.states), **names}

    def plot(self, run: Any, **options: Any) -> "Figure":
        """Return a figure of a run, of an agent or of its history, with the names and units of the signals, the time in
        seconds, and the reference beside the measured outputs.

        `options` are those of `Run.plot`.

        !!! Example

            >>> import selftune as st
            >>> from selftune import models, policies
            >>> plant = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
            >>> loop = st.Loop(plant, policies.PID(kp=1.0, ki=0.5))
            >>> figure = loop.plot(loop.simulate(100, seed=0))  # figure.savefig("run.png") saves it
            >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
            ['output', 'reference']
        """
        run = run.history() if isinstance(run, Agent) else run
        if not isinstance(run, Run | History):
            raise ArgumentError("run", "a Run, an Agent or its history", arguments.describe(run))
        names, x = self.names, run.recorded.get("x")
        if x is not None and x.shape[-1] != len(self.plant.states):  # the true plant has other states than the model
            del names["x"]
        elif x is not None and isinstance(self.plant, Delayed) and "fields" not in options:
            # The queue of a delay has the control, once for each sample: the figure of u shows it.
            n = len(self.plant.model.states)
            names["x"] = names["x"][:n]
            run = _with_states(run, x[:, :n])
        settings: dict[str, Any] = {"names": names, "dt": self.plant.dt}
        has_measured = run.recorded.get("measured") is not None
        if has_measured and self.observer is None and not self.full_state:  # the states are the outputs without noise
            shown = ("measured", "u", "theta", "a_hat", "cost", "guard")
            settings["fields"] = [name for name in shown if run.recorded.get(name) is not None]
        return run.plot(**(settings | options))

    def export_c(self, folder: str | os.PathLike[str], **options: Any) -> Path:
        """Write the loop's controller as C99, and return the folder; see `st.export_c`.

        The C starts as `agent()` starts. At each step, fill a context with the reference, then call `NAME_act`; before
        the next step, call `NAME_observe_state` with the new measurement. The recorded run of the folder has the loop's
        reference and noise. `options` are those of `st.export_c`, and these, which the other exports have too:

        - `controller`, `guard`, `theta`, `a_hat`: by default those of `agent()`.
        - `seed`: for the recorded run, by default 0.

        !!! Example

            >>> import tempfile, selftune as st
            >>> from selftune import models, policies
            >>> plant = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
            >>> loop = st.Loop(plant, policies.PID(kp=1.0, ki=0.5, u_min=-10.0, u_max=10.0))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     made = loop.export_c(f"{folder}/loop", theta=loop.theta)
            ...     sorted(path.name for path in made.iterdir())
            ['CMakeLists.txt', 'README.md', 'loop.c', 'loop.h', 'main.c', 'proof.c', 'replay.h', 'selftune.json']
        """
        return self._export(export_c, folder, **options)

    def export_web(self, folder: str | os.PathLike[str], **options: Any) -> Path:
        """Write the loop's controller for browsers and Node.js, and return the folder; see `st.export_web`, and
        `export_c` for the options."""
        return self._export(export_web, folder, **options)

    def export_fmu(self, folder: str | os.PathLike[str], **options: Any) -> Path:
        """Write the loop's controller as co-simulation units of FMI 3.0 and 2.0, and return the folder; see
        `st.export_fmu`, and `export_c` for the options."""
        return self._export(export_fmu, folder, **options)

    def export_arduino(self, folder: str | os.PathLike[str], **options: Any) -> Path:
        """Write the loop's controller as a library for Arduino and PlatformIO, and return the folder; see
        `st.export_arduino`, and `export_c` for the options."""
        return self._export(export_arduino, folder, **options)

    def export_ros2(self, folder: str | os.PathLike[str], **options: Any) -> Path:
        """Write the loop's controller as a ROS 2 package, and return the folder; see `st.export_ros2`, and `export_c`
        for the options."""
        return self._export(export_ros2, folder, **options)

    def export_px4(self, folder: str | os.PathLike[str], **options: Any) -> Path:
        """Write the loop's controller as a module of PX4, and return the folder; see `st.export_px4`, and `export_c`
        for the options."""
        return self._export(export_px4, folder, **options)

    def export_crazyflie(self, folder: str | os.PathLike[str], **options: Any) -> Path:
        """Write the loop's controller as an app for the Crazyflie, and return the folder; see `st.export_crazyflie`,
        and `export_c` for the options."""
        return self._export(export_crazyflie, folder, **options)

    def _export(
        self,
        export: Callable[..., Path],
        folder: str | os.PathLike[str],
        *,
        controller: Controller | None = None,
        guard: Guard | None = None,
        theta: Any = None,
        a_hat: Any = None,
        seed: int = 0,
        **options: Any,
    ) -> Path:
        return export(
            self.controller() if controller is None else controller,
            folder,
            x=self.x,
            theta=self.theta if theta is None else theta,
            a_hat=self.a_hat if a_hat is None else a_hat,
            t=self._first_context(),
            guard=self.guard() if guard is None else guard,
            scenario=self.scenario(REPLAYED, seed),
            dt=float(f"{float(self.plant.dt):.6g}"),  # without the rounding errors of float32
            signals=self._signals(),
            **options,
        )

    def _signals(self) -> dict[str, tuple[Signal, ...]]:
        """Return the names and units of all numbers that a program exchanges with an exported controller."""
        plant = self.plant
        parameters = self.policy.parameters
        if self.observer is not None and _tunes_observer(self.observer):
            parameters = (*self.observer.parameters, *parameters)
        return {
            "measured": plant.states if self.full_state else plant.outputs,
            "reference": plant.references,
            "u": plant.controls,
            # Many are logarithms, so θ has no units.
            "theta": tuple(Signal(parameter.name, "", 1.0) for parameter in parameters),
            "a_hat": plant.parameters,
        }

    def linearized(self, theta: Any = None) -> Linear:
        """Return the open loop at rest, linear in state and memory, with the loop cut at the plant's input."""
        return self._linearizer()(self._checked(theta))

    def _linearizer(self) -> Callable[[PyTree], Linear]:
        """Return the function from θ to the open loop at rest."""
        if _is_multi_rate(self.policy):
            raise ArgumentError("policy", "a policy with one sampling rate, for margins", "a Cascade with every > 1")
        # A little above the rest: there, a control that cannot be negative is not at its limit.
        level = self.plant.output(self.x) + 1e-3 * jnp.asarray(_moving(self.plant), self.x.dtype)
        t = self._first_context()
        t = t._replace(reference=t.reference.at[: level.size].set(level))
        system = self.system
        return lambda theta: linear_loop(system, self.x, theta, self.a_hat, t, self.plant.dt)

    def margins(self, theta: Any = None) -> Margins:
        """Return the gain, phase and delay margins at θ, from the linearization at rest; see `Margins`."""
        return margins_of(self.linearized(theta))

    def back_off(
        self, theta: Any = None, *, gain_margin: float = 2.0, phase_margin: float = 30.0, delay_margin: float = 0.0
    ) -> PyTree:
        r"""Return a θ near this one with which the loop has the wanted margins; θ itself if it has them already.

        Gains fall step by step. Each step lowers one gain, all gains but one, or all gains, whichever makes the loop
        most robust: it brings down the largest eigenvalue of an unstable loop, or the peak of the sensitivity of a
        stable one. So the gains that are too high for the others fall, and the others stay: a PD controller of a mass
        with too little damping gets a lower $k_p$.

        If the start gains of the loop, or the gains of a robot's rules, have the margins, θ also tries to go toward
        these, as far as the margins need; a damping ratio may then rise. The nearer of both results is returned.

        `gain_margin` is the smallest allowed upper gain margin, `phase_margin` is in degrees, and `delay_margin` is in
        seconds. If neither way within Θ leads to the margins, an error says which margins can be reached.

        !!! Example

            >>> import selftune as st
            >>> from selftune import models, policies
            >>> plant = models.Delayed(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), samples=10)
            >>> loop = st.Loop(plant, policies.PID(kp=3.0, ki=3.0))
            >>> print(round(loop.margins().gain_margin, 2))
            1.31
            >>> theta = loop.back_off(gain_margin=2.0)
            >>> print(round(loop.margins(theta).gain_margin, 2))
            2.0
        """
        gain = float(arguments.number("gain_margin", gain_margin, lambda v: v >= 1, "a number >= 1"))
        phase = float(arguments.number("phase_margin", phase_margin, lambda v: 0 <= v < 180, "degrees from 0 to 180"))
        delay = float(arguments.number("delay_margin", delay_margin, lambda v: v >= 0, "a number of seconds >= 0"))
        wanted = Margins(gain, 1.0, phase, delay, 1.0)
        theta = self._checked(theta)
        known = [self.theta]
        if isinstance(self.plant, RobotArm) and isinstance(self.policy, AbstractRobotPolicy):
            with suppress(TypeError):  # a policy of the user's own, which needs arguments
                known.append(_theta(robot_rules.default_policy(self.policy, self.plant), self.observer))
        return backed_off(self._linearizer(), self.constraint, theta, self._growth, wanted, known=known)

    @property
    def _growth(self) -> tuple[int, ...]:
        """For each number of θ, whether a larger number is a higher gain of the policy; 0 for an observer's numbers."""
        return (*self._observed, *self.policy.growth)

    @property
    def _observed(self) -> tuple[int, ...]:
        """A 0 for each number of θ that belongs to the observer."""
        return () if self.observer is None else (0,) * len(self.observer.growth)

    def _period(self) -> float:
        """Return the period of the reference in steps, or that of the default reference if it has none."""
        period = self.reference.period(self.plant.dt)
        if not math.isfinite(period):
            period = _default_reference(self.plant).period(self.plant.dt)
        return max(period, 10.0)

    def _transient(self) -> float:
        """Return the steps that one transient of the reference lasts."""
        return max(self._period() / self.reference.transients, 10.0)

    def _first_context(self) -> LoopContext:
        r, dtype = len(self.plant.references), self.plant.x0.dtype
        period = jnp.asarray(self.plant.dt, dtype) if self.jitter else None
        return LoopContext(jnp.zeros((), jnp.int32), jnp.zeros(r, dtype), period, period)


class _ContextMaker:
    """The context of a step, from the arguments of `act`. It knows the sizes, so that a call takes microseconds."""

    def __init__(self, q: int, jitter: bool):
        self.q, self.jitter = q, jitter

    def __call__(
        self, step: int, *, reference: Any = None, dt: Any = None, last_dt: Any = None, **others: Any
    ) -> LoopContext:
        q = self.q
        if others:
            signals = "reference, dt and last_dt" if self.jitter else "reference"
            raise TypeError(f"act: expected no other signals than {signals}, got {', '.join(others)}")
        if reference is None:
            raise ArgumentError(
                "reference", f"the {q} wanted numbers of this step: act(measurement, reference=…)", "None"
            )
        if (dt is None) == self.jitter:
            expected = "the period of this step in seconds" if self.jitter else "None, because the loop has no jitter"
            raise ArgumentError("dt", expected, f"{dt}")
        if last_dt is not None and not self.jitter:
            raise ArgumentError("last_dt", "None, because the loop has no jitter", f"{last_dt}")
        wanted: Any = _numbers(reference)
        if wanted is not None and wanted.shape == () and q == 1:
            wanted = wanted[None]
        if wanted is None or wanted.shape != (q,):
            raise ArgumentError(
                "reference", f"{q} real numbers, one for each wanted signal", arguments.describe(reference)
            )
        now: Any = np.int32(step)
        if dt is None:
            return LoopContext(now, wanted)
        period = _seconds("dt", dt)
        return LoopContext(now, wanted, period, period if last_dt is None else _seconds("last_dt", last_dt))


def _for_people(gain: Any) -> Any:
    """Return a known number as a float with the digits of its dtype (2.56, not 2.559999942779541)."""
    if not (raw := arguments.known(gain)):
        return gain
    return float(str(raw[0])) if raw[0].ndim == 0 else raw[0]


def _seconds(name: str, value: Any) -> Any:
    period = _numbers(value)
    if period is None or period.shape != () or not 0 < period < np.inf:
        raise ArgumentError(name, "the period of this step, a number of seconds > 0", arguments.describe(value))
    return period


def _numbers(value: Any) -> Any:
    """Return the value as a NumPy array of floats; None if it has no real numbers."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    return array.astype(float, copy=False) if array.dtype.kind in "fiu" else None


class _Dynamics(eqx.Module):
    plant: AbstractModel

    def __call__(self, x, u, f, t):
        return self.plant.dynamics(x, u, f, t)


class _Residual(eqx.Module):
    plant: AbstractModel

    def __call__(self, x, a, t):
        return self.plant.residual(x, a, t)


class _Measure(eqx.Module):
    plant: AbstractModel

    def __call__(self, x, t):
        return self.plant.measure(x, t)


class _Estimate(eqx.Module):
    observer: AbstractObserver

    def __call__(self, measured, memory, theta, t):
        return self.observer.estimate(measured, memory["observer"], _split_theta(theta, self.observer)[1], t)


class _LoopCost(eqx.Module):
    plant: AbstractModel
    cost: Any

    def __call__(self, x, memory, u, theta, t):
        if isinstance(self.cost, AbstractStateCost):
            return self.cost(x, u, t.reference)
        rate = (u - memory["u"]) / _in_seconds(elapsed_period(t), self.plant, u.dtype)
        output = self.plant.output(x)
        return self.cost(t.reference[: output.size] - output, u, rate)


class _LoopPolicy(eqx.Module):
    plant: AbstractModel
    policy: AbstractPolicy
    observer: AbstractObserver | None

    def __call__(self, measured, memory, theta, f, t):
        theta, theta_observer = _split_theta(theta, self.observer)
        if self.observer is None:
            x, output = measured, self.plant.output(measured)
        else:
            x, output = self.observer.estimate(measured, memory["observer"], theta_observer, t), measured
        dt, last_dt = (_in_seconds(one(t), self.plant, x.dtype) for one in (coming_period, elapsed_period))
        inputs = Inputs(output, t.reference, x, f, dt, t, last_dt)
        u, inner = self.policy(inputs, memory.get("policy"), theta)
        after = {"u": u}
        if inner is not None:
            after["policy"] = inner
        if self.observer is not None:
            after["observer"] = self.observer.update(memory["observer"], x, u, f, self.plant.dynamics, t)
        return u, after


def _is_multi_rate(policy: AbstractPolicy) -> bool:
    levels = jax.tree.leaves(policy, is_leaf=lambda node: node is not policy and isinstance(node, AbstractPolicy))
    inner = any(_is_multi_rate(level) for level in levels if isinstance(level, AbstractPolicy))
    return inner or (isinstance(policy, Cascade) and max(policy.every) > 1)


def _in_seconds(period: Array | None, plant: AbstractModel, dtype: Any) -> Array:
    """Return the given period, or the nominal one."""
    return jnp.asarray(plant.dt, dtype) if period is None else period.astype(dtype)


def _start_control(policy: AbstractPolicy) -> Array:
    """Return the control before the first step, (m,): `u_start` of the PID that computes u, otherwise zeros."""
    if isinstance(policy, PID):
        return policy.u_start
    if isinstance(policy, Cascade):
        return _start_control(policy.levels[-1])
    if isinstance(policy, Filtered):
        return _start_control(policy.policy)
    return jnp.zeros_like(policy.limits[0])


def _memory(policy: AbstractPolicy, observer: AbstractObserver | None) -> Memory:
    """Return the memory of the loop; each part keeps its own rules for refused measurements and rollbacks."""
    parts: dict[str, Memory] = {}
    if policy.memory is not None:
        parts["policy"] = policy.memory
    if observer is not None:
        parts["observer"] = observer.memory
    return Memory(
        {"u": _start_control(policy)} | {name: part.initial for name, part in parts.items()},
        refused=_Refused(parts),
        restored=_Restored(parts),
    )


class _Refused(eqx.Module):
    parts: dict[str, Memory]

    def __call__(self, before, after, u):
        return {"u": u} | {name: part.refused(before[name], after[name], u) for name, part in self.parts.items()}


class _Restored(eqx.Module):
    parts: dict[str, Memory]

    def __call__(self, memory, initial):
        kept = {name: part.restored(memory[name], initial[name]) for name, part in self.parts.items()}
        return {"u": memory["u"]} | kept


def _constraint_of(policy: AbstractPolicy, integral_time: float) -> AbstractConstraint:
    """Return Θ of a policy, in which the integral times of its PIDs have this bound."""
    if isinstance(policy, PID):
        return policy.constraint_within(integral_time)
    if isinstance(policy, Cascade):
        levels = enumerate(policy.levels, start=1)
        return Product({f"level_{i}": _constraint_of(level, integral_time) for i, level in levels})
    return policy.constraint


def _tunes_observer(observer: AbstractObserver | None) -> bool:
    return observer is not None and bool(jax.tree.leaves(observer.theta))


def _theta(policy: AbstractPolicy, observer: AbstractObserver | None) -> PyTree:
    if not _tunes_observer(observer):
        return policy.theta
    assert observer is not None
    return {"observer": observer.theta, "policy": policy.theta}


def _split_theta(theta: PyTree, observer: AbstractObserver | None) -> tuple[PyTree, PyTree]:
    """Return θ of the policy and θ of the observer."""
    return (theta["policy"], theta["observer"]) if _tunes_observer(observer) else (theta, {})


def _check_alike(plant: AbstractModel, model: AbstractModel) -> None:
    """Raise `ArgumentError` unless a plant has the sampling period, the controls and the outputs of the model."""
    if plant.dt != model.dt:
        raise ArgumentError("plant", f"the sampling period of the model, dt={model.dt:g}", f"dt={plant.dt:g}")
    for part in ("controls", "outputs"):
        expected, found = (len(getattr(one, part)) for one in (model, plant))
        if found != expected:
            raise ArgumentError("plant", f"{expected} {part}, as the model has", f"{found}")


def _with_states(run: Any, x: Any) -> Any:
    """Return a run or a history with other states."""
    if isinstance(run, Run):
        return eqx.tree_at(lambda run: run.recorded["x"], run, x)
    shown = copy.copy(run)
    shown.recorded = run.recorded | {"x": x}
    return shown


def _with_units(signals: Sequence[Signal]) -> list[str]:
    return [f"{signal.name} / {signal.unit}" if signal.unit not in ("", "1") else signal.name for signal in signals]


def _scales(plant: AbstractModel) -> tuple[tuple[float, ...], ...]:
    """Return the sizes that count as 1, of the states, the outputs and the controls."""
    with jax.ensure_compile_time_eval():  # a loop may be made inside a function that JAX traces
        return tuple(tuple(s.scale for s in part) for part in (plant.states, plant.outputs, plant.controls))


def _bounds(plant: AbstractModel) -> tuple[Any, Any]:
    return jnp.asarray(plant.a_constraint.low), jnp.asarray(plant.a_constraint.high)


def _jacobians(plant: AbstractModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the derivatives at rest of the next state in the state and in the residual, and of the measurement."""
    with jax.ensure_compile_time_eval():
        x, t = plant.x0, LoopContext(jnp.zeros((), jnp.int32), jnp.zeros(len(plant.references), plant.x0.dtype))
        u = jnp.zeros(len(plant.controls), x.dtype)
        f = plant.residual(x, plant.a_hat, t)
        A, F = jax.jacfwd(plant.dynamics, argnums=(0, 2))(x, u, f, t)
        C = jax.jacfwd(plant.measure)(x, t)
        return np.asarray(A), np.asarray(F), np.asarray(C)


def _measures_state(plant: AbstractModel) -> bool:
    """Return whether the measurement is the state itself."""
    C = _jacobians(plant)[2]
    return C.shape[0] == C.shape[1] and bool(np.array_equal(C, np.eye(len(C))))


def _default_observer(plant: AbstractModel, noise: Array) -> AbstractObserver:
    A, F, C = _jacobians(plant)
    if not np.all(np.any(C != 0, axis=1)):
        expected = "a model whose sensors have a derivative; give a Quantized plant to simulate(plant=…)"
        raise ArgumentError("plant", expected, "a model whose sensors have the derivative 0")
    m = len(plant.controls)
    scales, outputs, controls = (np.array(part) for part in _scales(plant))
    sizes = DISTURBANCE * controls
    # A little noise on every state keeps the filter awake in directions that the input does not reach.
    Q = (F[:, :m] * sizes) @ (F[:, :m] * sizes).T + np.diag((1e-6 * scales) ** 2)
    try:
        with jax.ensure_compile_time_eval():
            spread = np.maximum(np.asarray(noise, float), 1e-6 * outputs)
            observer = Luenberger.kalman(A, C, Q, np.diag(spread**2), x=plant.x0, tunable=False)
            return Luenberger(observer.gain({}), plant.measure, x=plant.x0, tunable=False)
    except np.linalg.LinAlgError as error:
        expected = "an observer, because no stationary Kalman filter can see the whole state through these outputs"
        raise ArgumentError("observer", expected, "None") from error


def _default_reference(plant: AbstractModel) -> AbstractReference:
    """Return steps to random levels, from the output at rest up to half a scale above it. Each level lasts five time
    constants of the plant, but between 100 and 2,000 steps.

    m controls can bring m outputs to a level. So the first m outputs move, and the others stay at rest: a cart moves to
    a position while its pole stays upright.

    The control has reserves at these levels, also against a load. A heater cannot cool: no level is below the rest.
    """
    eigenvalues = np.abs(np.linalg.eigvals(_jacobians(plant)[0]))
    slowest = max(eigenvalues[eigenvalues < 1 - 1e-9], default=0.0)
    steps = 5 / -math.log(slowest) if slowest > 0 else 0.0
    hold = float(f"{min(max(steps, 100.0), 2000.0) * plant.dt:.6g}")  # without the rounding errors of float32
    scale = _moving(plant)
    with jax.ensure_compile_time_eval():
        rest: Any = np.asarray(plant.output(plant.x0), float)
    return Steps(hold, low=rest, high=rest + 0.5 * scale)


def _moving(plant: AbstractModel) -> np.ndarray:
    """Return the scales of the outputs, with 0 for outputs that stay at rest: m controls can move m outputs."""
    scale = np.array(_scales(plant)[1])
    scale[len(plant.controls) :] = 0.0
    return scale
