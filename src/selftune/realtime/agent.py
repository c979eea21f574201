"""A controller in real time: NumPy arrays in and out, one call per step, no compilation inside the loop."""

import functools
import hashlib
import io
import itertools
import json
import logging
import math
import os
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from ..control import guarded_step, result_codes
from ..control.contexts import context
from ..control.controller import Controller, Info
from ..control.guard import Decision, Guard, Mode
from ..control.guarded_step import GuardedState
from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError, StoreError
from ..native.choice import Engine, check_engine, run_with
from ..native.lowering.from_jaxpr import leaf_names
from ..problem.projected_step import constraint_of
from ..simulation.run import Result
from ..storage import files
from .agent_constants import constants_of, first_difference
from .engines import XLA, Context, Native
from .history import History
from .telemetry import Telemetry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..simulation.run_dataset import Names

P = ParamSpec("P")
T = TypeVar("T")
FORMAT = "selftune agent"
VERSION = 5


def _locked(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Let a method of an agent wait until the calls of other threads are finished."""

    @functools.wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            return method(self, *args, **kwargs)

    return call


class Agent:
    r"""A controller that runs in real time: it keeps its state, takes measurements and returns controls.

    Everything is compiled when the agent is constructed. A `Guard` checks every step:

    - A measurement that is not finite or out of range is refused. Nothing is learned from it, the control is computed
      from the state that the model predicted, and `result` reports the refusal.
    - The steps of θ are limited.
    - If the cost explodes, the last good θ and â are restored.
    - After too many refused steps in a row, the safe control replaces the control, and stays until `clear`.
    - An observation counts once: a second `observe` after one `act` is refused. An observation that is an outlier is
      refused too.

    The guard's decisions are in `info.guard`; unusual decisions are also written to the log "selftune". An argument of
    the wrong shape or dtype raises `ValueError` and changes nothing.

    Several threads may use one agent: a lock lets one call finish before the next begins. So `freeze`, `save` and
    `theta` may be called at any time while another thread runs the loop.

    **Arguments:**

    - `controller`: the controller to run. Its estimator must not be `Known`, which needs the true parameters.
    - `x`, `theta`, `a_hat`: an example of the state, for its shape and dtype; $\theta_0$; and $\hat a_0$.
    - `t`: the context of the first step, as an example for all steps. By default, t is the number of the step, from 0.
    - `engine`: `"native"` writes the controller's step as C; a call then takes microseconds. `"xla"` runs on any
      device. `"auto"`, the default, uses the native engine on a CPU if possible. Otherwise it uses XLA, and a warning
      gives the reason. `agent.engine` is the engine that runs.
    - `guard`: the settings of the guard. The defaults are far from the values of a normal run, and do not limit u.
    - `infer`: whether `act` calls `observe_state` with its measurement first, so that the estimator learns from every
      transition and the loop needs no other call.
    - `make_context`: a function `(step, **signals) -> t` that makes the context from the number of the step and the
      keyword arguments of `act`, such as `reference=…`. By default you give the context itself.
    - `history`: how many of the last steps the agent keeps for `history` and `plot`; 0 keeps none.
    - `telemetry`: a `Telemetry`, to which the agent streams what it does.

    !!! Example

        >>> import jax.numpy as jnp, numpy as np, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.1 * v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
        ... )
        >>> controller = st.Controller(system, tuner=st.MGAPS(0.05), estimator=st.GradientEstimator(0.1))
        >>> x = np.ones(1)
        >>> agent = st.Agent(controller, x=x, theta=np.ones(1), a_hat=np.zeros(1))
        >>> for t in range(30):
        ...     u = agent.act(x, t)
        ...     x = x + 0.1 * (u + 0.5 * np.cos(x))  # the plant
        ...     agent.observe_state(x)
        >>> bool(agent.theta[0] > 1.0), bool(abs(agent.a_hat[0] - 0.5) < 0.1), agent.result.message
        (True, True, 'ok')
        >>> u = agent.act(np.array([np.nan]), 30)
        >>> bool(np.isfinite(u)), agent.result.message, str(agent.decisions)
        (True, 'a number stopped being finite at step 30', 'refused')
    """

    def __init__(
        self,
        controller: Controller,
        *,
        x: Any,
        theta: Any,
        a_hat: Any,
        t: Any = 0,
        engine: Engine = "auto",
        guard: Guard | None = None,
        infer: bool = False,
        make_context: Callable[..., Any] | None = None,
        history: int = 0,
        telemetry: Telemetry | None = None,
    ):
        check_engine(engine)
        arguments.instance("infer", infer, bool)
        arguments.instance("telemetry", telemetry, Telemetry, optional=True)
        self._lock = threading.RLock()  # a signal handler may call the agent inside a call of the same thread
        self._infers, self._make_context = infer, make_context
        self._past: deque[Any] = deque(maxlen=arguments.whole("history", history))
        guard = Guard() if guard is None else guard
        state = guarded_step.start(controller, guard, x, theta, a_hat, context(t))
        self.controller, self.guard, self._first_context = controller, guard, t
        self._engine: Any
        self.engine, self._engine = run_with(
            engine, natively=lambda: Native(controller, guard, state), by_xla=lambda: XLA(controller, guard, state)
        )
        self._context = Context(state.t)
        self._q, self._k = self._engine.q, self._engine.k
        self._dtype = np.dtype(state.x.dtype)
        self._constants = constants_of(controller, state.x.dtype)
        """What the state of another agent must agree with; see `load`."""
        self._begins_unlimited = [not np.isfinite(leaf).all() for leaf in jax.tree.leaves(_parts(state))]
        """For each part of the state, whether an agent begins with NaN or infinity there."""
        self._begin(state)
        self._telemetry: Telemetry | None = None
        if telemetry is not None:
            self.stream(telemetry)
        self._result = jax.tree.structure(Result(state.code, state.code))  # filled with NumPy's numbers

    def act(self, x: Any, t: Any = None, **signals: Any) -> np.ndarray:
        r"""Return $u_t$, (m,), from $\theta_t$ and $\hat a_t$; then make the tuner's step to $\theta_{t+1}$.

        `t` is the step's context. If t is the number of the step, you may leave it out: the agent then adds 1 to the
        number of the last step, even if that step was refused (up to 2³¹ − 1, where the number stays). An agent with
        `make_context` makes the context from `signals`.
        """
        with self._lock:
            return self._step_once(x, t, signals)

    def _step_once(self, x: Any, t: Any, signals: dict[str, Any]) -> np.ndarray:
        measured = self._vector("measurement", x, self._q)
        if self._make_context is not None and t is None:
            t = self._make_context(self._next, **signals)
        elif signals:
            why = "t is given" if self._make_context is not None else "the agent has no make_context"
            raise TypeError(f"act: expected no keyword argument, because {why}, got {', '.join(signals)}")
        if self._context.is_counted:
            self._step = now = self._next if t is None else self._context.number(t)
            self._next = min(now + 1, 2**31 - 1)
        else:
            now = self._context.read(t)
            self._step, self._next = self._next, self._next + 1
        if self._infers and self._acted:
            self._engine.observe_state(measured)
        used = self._engine.kept_state() if self._past.maxlen else None
        u, self._code = self._engine.act(measured, now)
        if used is not None:
            self._past.append((self._step, measured.tobytes(), now, used, self._engine.kept_info()))
        if self._telemetry is not None:
            self._telemetry.put(self._step)
        self._acted = self._told = True
        if self._engine.decisions & _NOTABLE != self._seen:
            self._log()
        return u

    @_locked
    def observe(self, f_obs: Any) -> None:
        r"""Make the estimator's step to $\hat a_{t+1}$, from the residual $\tilde f_t$, (k,), of the last `act`.

        An observation belongs to its `act`: if the `act` was refused, the observation is refused too.
        """
        measured = self._vector("f_obs", f_obs, self._k)
        self._after_act("observe")
        self._code = self._engine.observe(measured)
        self._log_observation()

    @_locked
    def observe_state(self, x_next: Any) -> None:
        r"""Make the estimator's step if no residual is measured: `infer_residual` computes it from the next state.

        The disturbance $w_t$ then ends up in $\tilde f_t$, and the estimator has seen $w_t$ before it meets $x_{t+1}$.
        The paper's Property "perturb the input" (excitation given the past) does not hold in this case, so Theorem 2
        and the main theorem promise nothing about such a run.
        """
        measured = self._vector("x_next", x_next, self._q)
        self._after_act("observe_state")
        self._code = self._engine.observe_state(measured)
        self._log_observation()

    @_locked
    def pause(self) -> None:
        """Stop learning until `resume`: θ and â stay. The tuner's y, gradient and ρ̂ are still computed for `info`."""
        self._engine.change("pause")

    @_locked
    def freeze(self) -> None:
        """Keep θ constant until `resume`; the estimator continues to learn."""
        self._engine.change("freeze")

    @_locked
    def resume(self) -> None:
        """Learn again after `pause` or `freeze`."""
        self._engine.change("resume")

    @_locked
    def restore(self) -> None:
        """Restore the last good θ and â together: those at the beginning of the last good window."""
        if self.guard.rollback is None:
            raise RuntimeError("restore: expected a guard with rollback, got one whose rollback is off")
        self._engine.change("restore")
        _LOGGER.warning("restored the last good θ and â, as requested")

    @_locked
    def clear(self) -> None:
        """End the latch of the safe control. If the next `act` is blind again, for example because the sensor still
        returns NaN, the safe control returns at once.

        !!! Example

            >>> import jax.numpy as jnp, numpy as np, selftune as st
            >>> system = st.MatchedSystem(
            ...     dynamics=lambda x, v, t: x + 0.1 * v,
            ...     residual=lambda x, a, t: a,
            ...     actuation=lambda x, theta, t: -theta * x,
            ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
            ... )
            >>> controller = st.Controller(system, st.MGAPS(0.1), st.GradientEstimator(0.1))
            >>> guard = st.Guard(bridge=2, safe_u=0.0, safe_after=3)
            >>> agent = st.Agent(controller, x=np.ones(1), theta=np.ones(1), a_hat=np.zeros(1), guard=guard)
            >>> for measured in (1.0, np.nan, np.nan, np.nan, np.nan, 1.0):
            ...     u = agent.act([measured])
            >>> float(u[0]), agent.is_latched, agent.result.message
            (0.0, True, 'the safe control is in use at step 5')
            >>> agent.clear()
            >>> float(agent.act([1.0])[0]), agent.is_latched
            (-1.0, False)
        """
        self._engine.change("clear")
        _LOGGER.warning("the latch of the safe control was cleared, as requested")

    def stream(self, telemetry: Telemetry | None) -> None:
        """Stream the next steps to a `Telemetry`, or to none. This call waits until the telemetry's writer has started:
        call it before the loop runs, or from another thread."""
        arguments.instance("telemetry", telemetry, Telemetry, optional=True)
        if telemetry is not None:
            telemetry.begin(self._engine)
        with self._lock:
            self._telemetry = telemetry

    @property
    @_locked
    def is_latched(self) -> bool:
        """Whether the safe control is in use until `clear`; see `Guard`."""
        failsafe = self._engine.state().guard.failsafe
        return failsafe is not None and bool(failsafe.latched)

    @_locked
    def reset(self, *, x: Any, theta: Any, a_hat: Any, t: Any = None) -> None:
        """Start again as a new agent with these values would; nothing is compiled again.

        The arguments are those of the constructor, with the same shapes and dtypes as there. By default, t is the
        context that the constructor got.
        """
        t = self._first_context if t is None else t
        self.state = guarded_step.start(self.controller, self.guard, x, theta, a_hat, context(t))
        self._begin(self.state)

    def _begin(self, state: GuardedState) -> None:
        self._next = int(state.t) if self._context.is_counted else 0
        self._step, self._code = self._next, 0
        self._acted = self._told = False
        self._past.clear()
        self._forget_log()

    @property
    @_locked
    def state(self) -> GuardedState:
        """All numbers that the agent remembers between two calls, as NumPy arrays. You may assign a state of the same
        shapes and dtypes, such as one that `equinox.tree_at` has changed."""
        return self._engine.state()

    @state.setter
    @_locked
    def state(self, state: Any) -> None:
        expected = self._engine.state()
        if jax.tree.structure(state) != jax.tree.structure(expected):
            raise ArgumentError("state", "the state of this agent", arguments.describe(state))
        for (name, shape, dtype), given in zip(_description(expected), _description(state), strict=True):
            if given != [name, shape, dtype]:
                raise ArgumentError("state", f"{name} to be {dtype}{shape}", f"{given[2]}{given[1]}")
        self._engine.set_state(state)

    @property
    def decisions(self) -> Decision:
        """The guard's decisions at the last `act`."""
        return Decision(self._engine.decisions)

    @property
    @_locked
    def theta(self) -> PyTree:
        """The θ that the next `act` will use."""
        return self._engine.state().controller.theta

    @property
    @_locked
    def a_hat(self) -> PyTree:
        """The â that the next `act` will use."""
        return self._engine.state().controller.a_hat

    @property
    @_locked
    def info(self) -> Info:
        """The values of the last `act`, as NumPy arrays. If that `act` was refused, u is still the control that it
        returned; do not rely on the other values."""
        if not self._told:
            raise RuntimeError("info: expected to come after an act of this agent")
        return self._engine.info()

    @property
    @_locked
    def result(self) -> Result:
        """The result of the last call; if the call was refused, with the step."""
        step = min(self._step, 2**31 - 1) if self._code else -1
        return jax.tree.unflatten(self._result, [np.int32(self._code), np.int32(step)])

    @property
    @_locked
    def refused(self) -> int:
        """How many calls were refused so far: `act` and observations count, so `refused` may grow although `act` is ok.

        A bad measurement of an agent with `infer=True` counts as a bad observation of the last step and as a bad
        measurement of this one. After a refused `act`, its observation is not counted again."""
        return int(self._engine.state().refused)

    @_locked
    def history(self, n: int | None = None) -> History:
        """Return the last n steps as arrays; by default all steps that the agent keeps.

        The agent must have been made with `history=…`. `reset` and `load` forget the kept steps, and `save` does not
        write them.

        !!! Example

            >>> import jax.numpy as jnp, numpy as np, selftune as st
            >>> system = st.MatchedSystem(
            ...     dynamics=lambda x, v, t: x + 0.1 * v,
            ...     residual=lambda x, a, t: a,
            ...     actuation=lambda x, theta, t: -theta * x,
            ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
            ... )
            >>> controller = st.Controller(system, st.MGAPS(0.1), st.GradientEstimator(0.1))
            >>> agent = st.Agent(controller, x=np.ones(1), theta=np.ones(1), a_hat=np.zeros(1), history=100)
            >>> for t in range(5):
            ...     u = agent.act(np.ones(1))
            >>> history = agent.history(3)
            >>> history.step.tolist(), history.theta.shape, bool((history.u[-1] == u).all())
            ([2, 3, 4], (3, 1), True)
        """
        if not self._past.maxlen:
            raise RuntimeError("history: expected an agent that keeps steps, such as Agent(..., history=1000)")
        if not self._past:
            raise RuntimeError("history: expected to come after an act of this agent")
        kept = list(self._past)[-len(self._past) if n is None else -arguments.count("n", n) :]
        steps, measured, contexts, states, infos = map(list, zip(*kept, strict=True))
        x = np.frombuffer(b"".join(measured), self._dtype).reshape(-1, self._q).copy()
        state, info = self._engine.rows(states, infos)
        context, constraint = self._context.rows(contexts), constraint_of(self.controller.tuner)
        return History(np.asarray(steps), x, context, state, info, self.engine, constraint)

    def plot(
        self,
        fields: Sequence[str] | None = None,
        *,
        names: "Names | None" = None,
        dt: float | None = None,
        every: int | None = None,
    ) -> "Figure":
        """Return a matplotlib figure of the kept steps. The arguments are those of `Run.plot`."""
        return self.history().plot(fields, names=names, dt=dt, every=every)

    def __repr__(self) -> str:
        parts = f"{self.controller.tuner!r} and {self.controller.estimator!r}, {self.engine} engine"
        theta, a_hat = (settings_text.value(value) for value in (self.theta, self.a_hat))
        refused = f", {self.refused:,} refused" if self.refused else ""
        refused += ", latched" if self.is_latched else ""
        return f"<Agent of {parts}; next step {self._next}, θ = {theta}, â = {a_hat}{refused}; {self.result.message}>"

    @_locked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the agent's whole state to a file: arrays, and JSON that describes them. `path` is replaced only after
        everything is written.

        The file also lists the constants that belong to the state: the model, the settings of the policy, the observer,
        the cost, and the limits of the control. `load` compares them."""
        state = self._engine.state()
        leaves = [np.array(leaf, order="C") for leaf in jax.tree.leaves(state)]
        about = {
            "format": FORMAT,
            "version": VERSION,
            "leaves": _description(state),
            "constants": self._constants,
            **{name: getattr(self, f"_{name}") for name in _REMEMBERED},
        }
        about["checksum"] = _checksum(about, leaves)
        arrays: dict[str, Any] = {f"leaf_{i}": leaf for i, leaf in enumerate(leaves)}
        buffer = io.BytesIO()
        np.savez(buffer, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
        files.write(Path(path), buffer.getvalue())

    @_locked
    def load(self, path: str | os.PathLike[str]) -> "Agent":
        """Load the state of a saved agent, and return this agent, which then continues bit for bit as the saved one.

        `StoreError` is raised, and nothing changes, if

        - the file is damaged, or contains NaN or a number out of range;
        - the saved state has other parts, or is outside this agent's constraints;
        - the file belongs to another loop: the model, its sampling period, the limits of u, the signs of the gains, or
          another constant of model, policy, observer or cost differs. The message names it.

        Settings of the tuner, the estimator and the guard may differ, and so may the start gains and the reference:
        those of this agent count. But the guard must have the same parts: with `stuck`, if the saved agent had `stuck`.
        To continue with another model or another cost, start a new agent from the gains: `loop.agent(theta=old.theta)`.
        The constants of a `Loop` are known; those inside your own functions are not.
        """
        mine = self._engine.state()
        about, leaves = _read(Path(path), _description(mine), self._constants)
        state = jax.tree.unflatten(jax.tree.structure(mine), leaves)
        try:
            self._check_loaded(about, state)
        except ValueError as error:
            raise StoreError(f"{path}: {error}") from None
        self._engine.set_state(state)
        for name in _REMEMBERED:
            setattr(self, f"_{name}", about[name])
        self._told = False
        self._past.clear()
        self._forget_log()
        return self

    def _check_loaded(self, about: dict[str, Any], state: GuardedState) -> None:
        """Raise `ValueError` if a loaded state contains a number that no agent has."""
        window = state.guard.window
        for snapshot in (state, *(() if window is None else (window.begun, window.good, window.trusted))):
            self.controller.check_values(state.x, snapshot.theta, snapshot.a_hat)
        for (name, leaf), begins_so in zip(leaf_names(_parts(state)), self._begins_unlimited, strict=True):
            may_be_infinite = name.startswith("guard_")  # a cost that the guard compares with
            wrong = np.isnan(leaf) if may_be_infinite else ~np.isfinite(leaf)
            if wrong.any() and not begins_so:
                raise ArgumentError(name, "no NaN" if may_be_infinite else "finite numbers", f"{leaf}")
        modes, codes = [*Mode], [*result_codes.OF_STEPS]
        for name, value, valid in (
            ("guard_mode", int(state.guard.mode), modes),
            ("code", int(state.code), codes),
            ("the code of the last call", about["code"], codes),
        ):
            if value not in valid:
                raise ArgumentError(name, f"one of {', '.join(str(int(number)) for number in valid)}", f"{value}")
        for name in ("next", "step"):
            if self._context.is_counted and not -(2**31) <= about[name] < 2**31:
                raise ArgumentError(name, "the number of a step, a 32-bit integer", f"{about[name]}")
        for name, value in (("guard_missed", state.guard.missed), ("refused", state.refused)):
            if value < 0:
                raise ArgumentError(name, "a number >= 0", f"{value}")

    def _forget_log(self) -> None:
        self._seen, self._logged, self._deaf = Decision(0), {}, False

    def _log(self) -> None:
        """Log the unusual decisions that begin at this step; each at most once in `_WHILE` steps."""
        now = Decision(self._engine.decisions & _NOTABLE)
        new = [decision for decision in Decision if decision in now & ~self._seen]
        self._seen = now
        if due := [decision for decision in new if self._step - self._logged.get(decision, -_WHILE) >= _WHILE]:
            self._logged |= dict.fromkeys(due, self._step)
            _LOGGER.warning("step %d: %s", self._step, ", ".join(map(str, due)))

    def _log_observation(self) -> None:
        """Log a refused observation if its `act` was accepted: the estimator learns nothing from it."""
        deaf = bool(self._code) and not self._engine.decisions & Decision.REFUSED
        if deaf and not self._deaf and self._step - self._logged.get("observation", -_WHILE) >= _WHILE:
            self._logged["observation"] = self._step
            _LOGGER.warning("step %d: the observation is refused", self._step)
        self._deaf = deaf

    def _after_act(self, what: str) -> None:
        if not self._acted:
            raise RuntimeError(f"{what}: expected to come after act, which has not been called")

    def _vector(self, name: str, value: Any, size: int) -> np.ndarray:
        try:
            array = np.asarray(value)
        except ValueError:  # lists of different lengths
            raise ArgumentError(name, arguments.real_numbers(size), arguments.describe(value)) from None
        if array.shape == () and size == 1:
            array = array[None]
        if array.shape != (size,) or array.dtype.kind not in "fiu":
            got = (
                f"{array.size} ({arguments.describe(array)})" if array.dtype.kind in "fiu" and array.ndim == 1 else None
            )
            raise ArgumentError(name, arguments.real_numbers(size), got or arguments.describe(value))
        if array.dtype == self._dtype:
            return array
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite, and is refused
            return array.astype(self._dtype)


_LOGGER = logging.getLogger("selftune")
_PASSING = Decision.RESET | Decision.EXPLODED | Decision.UNSTABLE
_NOTABLE = _PASSING | Decision.REFUSED | Decision.HELD | Decision.DAMPED | Decision.FAILSAFE | Decision.REPAIRED
"""The decisions that are logged when they begin."""
_WHILE = 500
"""For this many steps, the same decision is not logged again."""

_REMEMBERED = ("acted", "next", "step", "code")
"""Attributes of an agent that `save` stores beside its state."""


def _description(state: GuardedState) -> list[list[Any]]:
    return [[name, list(np.shape(leaf)), np.asarray(leaf).dtype.name] for name, leaf in leaf_names(state)]


def _compare(path: Any, theirs: list[list[Any]], mine: list[list[Any]]) -> None:
    for there, here in itertools.zip_longest(theirs, mine):
        if there != here:
            got, expected = (f"{leaf[0]}, {leaf[2]}{leaf[1]}" if leaf else "no more" for leaf in (there, here))
            other = _other_guard(theirs, mine)
            raise StoreError(f"{path}: the state of another agent: expected {expected}, got {got}{other}")


_GUARD_PARTS = {
    "saturated": "`authority` with `u_low` or `u_high`",
    "reserve": "`burst`",
    "window": "`rollback`",
    "failsafe": "`safe_u`",
    "gate": "`gate`",
    "repeats": "`stuck`",
    "swings": "`swing`",
}
"""The parts of a guard's state, and the settings that switch each of them on."""


def _other_guard(theirs: list[list[Any]], mine: list[list[Any]]) -> str:
    """Say which settings of the guard one of the two agents has and the other has not; empty if there are none."""
    there, here = (
        {part for part in _GUARD_PARTS for leaf in one if f"{leaf[0]}_".startswith(f"guard_{part}_")}
        for one in (theirs, mine)
    )
    texts = [
        f"the file was saved with a guard {word} {_GUARD_PARTS[part]}"
        for word, parts in (("that has", there - here), ("without", here - there))
        for part in sorted(parts)
    ]
    return f". {'; '.join(texts)}: give this agent such a guard, too" if texts else ""


def _checksum(about: dict[str, Any], leaves: list[np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for leaf in leaves:
        digest.update(f"{leaf.shape}{leaf.dtype.name}".encode() + np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def _parts(state: GuardedState) -> dict[str, Any]:
    """Return the parts of a state that the agent computes: all but the context, which the user gives."""
    names = ("controller", "x", "u", "predicted", "guard")
    return {name: getattr(state, name) for name in names}


_LARGEST_ABOUT = 1_000_000
"""The largest number of bytes that describe a state."""
_LARGEST_HEADER = 1_000
"""The largest number of bytes of a file in the archive that are not an array's own."""


def _read(path: Path, expected: list[list[Any]], constants: dict[str, Any]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the description and the arrays of a saved agent, whose arrays are those of `expected`."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            about = json.loads(_member(archive, "about", _LARGEST_ABOUT)[1])
            checksum, kind = about.pop("checksum"), f"{about.get('format')}, version {about.get('version')}"
            if kind != f"{FORMAT}, version {VERSION}":
                raise StoreError(
                    f"{path}: expected a file of {FORMAT}, version {VERSION}, got {kind}. The state of an agent has "
                    "other parts in each version: start a new agent from the saved θ and â"
                )
            _compare(path, about["leaves"], expected)
            if different := first_difference(about["constants"], constants):
                name, here, there = different
                raise StoreError(f"{path}: the state of another agent: {name}: expected {here}, got {there}")
            _check_about(about)
            leaves = [_leaf(archive, i, *leaf[1:]) for i, leaf in enumerate(expected)]
    except StoreError:
        raise
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file") from None
    except Exception as error:  # a damaged file may raise any error
        raise StoreError(f"{path}: not the file of a saved agent, or damaged ({error})") from None
    if checksum != _checksum(about, leaves):
        raise StoreError(f"{path}: damaged: its checksum differs from the stored one")
    return about, leaves


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> tuple[tuple[Any, ...], bytes]:
    """Return the header (shape, whether the order is Fortran's, dtype) and the bytes of an array in the archive."""
    info = archive.getinfo(f"{name}.npy")
    # A compressed file may be small and its content huge; `save` does not compress.
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit + _LARGEST_HEADER:
        raise ValueError(f"{name}: expected at most {limit:,} bytes, not compressed")
    content = io.BytesIO(archive.read(info))
    if np.lib.format.read_magic(content) != (1, 0):
        raise ValueError(f"{name}: expected version 1.0 of NumPy's format")
    header = np.lib.format.read_array_header_1_0(content)
    return header, content.read()


def _leaf(archive: zipfile.ZipFile, number: int, shape: list[int], dtype: str) -> np.ndarray:
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    header, content = _member(archive, f"leaf_{number}", size)
    if header != (tuple(shape), False, kind) or len(content) != size:
        raise ValueError(f"leaf_{number}: expected {dtype}{shape}, got {header[2]}{list(header[0])}")
    return np.frombuffer(content, kind).reshape(shape).copy()


def _check_about(about: dict[str, Any]) -> None:
    numbers = [about[name] for name in ("next", "step", "code")]
    if not isinstance(about["acted"], bool) or any(
        isinstance(number, bool) or not isinstance(number, int) or not -(2**63) <= number < 2**63 for number in numbers
    ):
        raise ValueError("expected whole numbers for next, step and code, and a bool for acted")
