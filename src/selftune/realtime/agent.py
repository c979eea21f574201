"""A controller in real time: NumPy in and out, one call a step, nothing compiled in the loop."""

import hashlib
import io
import itertools
import json
import logging
import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from ..control import guarded_step
from ..control.contexts import context
from ..control.controller import Controller, Info
from ..control.guard import Decision, Guard, Mode
from ..control.guarded_step import AgentState
from ..foundation import arguments
from ..foundation.errors import StoreError
from ..native.choice import Engine, check_engine, run_with
from ..native.lowering.from_jaxpr import leaf_names
from ..simulation.run import Result
from ..storage import files
from .engines import XLA, Context, Native

FORMAT = "selftune agent"
VERSION = 2


class Agent:
    r"""A controller at work: it holds its state, takes what is measured and gives the control.

    Everything is compiled when the agent is made. A `Guard` stands around every step: a measurement that is not finite
    or out of range is refused, nothing is learned from it, the control is that of the x that the model predicted, and
    `result` says so; steps of θ are bounded; and when the cost explodes the last good θ and â come back. What it
    decides is in `info.guard`, and in the log "selftune" where it is out of the ordinary. What has the wrong shape or
    dtype is a `ValueError`, and changes nothing.

    **Arguments:**

    - `controller`: what to run; not with the estimator `Known`, which needs to be told what nobody knows.
    - `x`, `theta`, `a_hat`: the first state, as an example of its shape and dtype, $\theta_0$ and $\hat a_0$.
    - `t`: the first step's context, as an example of all; by default the steps are numbered, from 0.
    - `engine`: `"native"` writes the controller's step as C, which takes microseconds a call; `"xla"` runs on any
      device. `"auto"`, the default, takes the native engine on a CPU wherever it can, and XLA elsewhere, with a warning
      that says why. `agent.engine` tells which engine runs.
    - `guard`: its settings; by default all of it is on, with limits that an orderly run does not come near.

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
    ):
        check_engine(engine)
        guard = Guard() if guard is None else guard
        state = guarded_step.start(controller, guard, x, theta, a_hat, context(t))
        self.controller, self.guard = controller, guard
        self._machine: Any
        self.engine, self._machine = run_with(
            engine, natively=lambda: Native(controller, guard, state), by_xla=lambda: XLA(controller, guard, state)
        )
        self._context = Context(state.t)
        self._n, self._k = state.x.size, self._machine.k
        self._dtype = np.dtype(state.x.dtype)
        self._next = int(state.t) if self._context.is_counted else 0
        self._step, self._code = self._next, 0
        self._acted = self._told = False
        self._forget_log()
        self._result = jax.tree.structure(Result(state.code, state.code))  # filled with NumPy's numbers

    def act(self, x: Any, t: Any = None) -> np.ndarray:
        r"""$u_t$ from $\theta_t$ and $\hat a_t$, (m,); then the tuner's step to $\theta_{t+1}$.

        `t` is the step's context; where steps are numbered it may be left out, and counts on from the last, also where
        that was refused (up to 2³¹ − 1, where it stays).
        """
        measured = self._vector("x", x, self._n)
        if self._context.is_counted:
            self._step = now = self._next if t is None else self._context.number(t)
            self._next = min(now + 1, 2**31 - 1)
        else:
            now = self._context.read(t)
            self._step, self._next = self._next, self._next + 1
        u, self._code = self._machine.act(measured, now)
        self._acted = self._told = True
        if self._machine.decisions & _NOTABLE != self._seen:
            self._log()
        return u

    def observe(self, f_obs: Any) -> None:
        r"""The estimator's step to $\hat a_{t+1}$, from the residual $\tilde f_t$, (k,), seen after the last `act`.

        An observation belongs to its `act`: where that was refused, this is too.
        """
        measured = self._vector("f_obs", f_obs, self._k)
        self._after_act("observe")
        self._code = self._machine.observe(measured)
        self._log_observation()

    def observe_state(self, x_next: Any) -> None:
        r"""The same, where no residual is measured: from the state that followed, by `infer_residual`.

        The disturbance $w_t$ then ends up in $\tilde f_t$, and the estimator has seen $w_t$ before it meets $x_{t+1}$.
        The paper's Property "perturb the input" (excitation given the past) does not hold in this case, so Theorem 2
        and the main theorem promise nothing about such a run.
        """
        measured = self._vector("x_next", x_next, self._n)
        self._after_act("observe_state")
        self._code = self._machine.observe_state(measured)
        self._log_observation()

    def pause(self) -> None:
        """Learn nothing, until `resume`: θ and â stay. The tuner's y, gradient and ρ̂ are still computed, for a look."""
        self._set_mode(Mode.PAUSED)

    def freeze(self) -> None:
        """Keep θ, for good or until `resume`; the estimator goes on."""
        self._set_mode(Mode.FROZEN)

    def resume(self) -> None:
        """Learn, after `pause` or `freeze`."""
        self._machine.resume()

    def restore(self) -> None:
        """Go back to the last good θ and â, both at once: those that the last window that went well began with."""
        if self.guard.rollback is None:
            raise RuntimeError("restore: expected a guard with rollback, and it is off: nothing was kept")
        self._machine.restore()
        _LOGGER.warning("restored the last good θ and â, as asked")

    @property
    def decisions(self) -> Decision:
        """What the guard decided at the last `act`."""
        return Decision(self._machine.decisions)

    @property
    def theta(self) -> PyTree:
        """θ, as the next `act` will use it."""
        return self._machine.state().controller.theta

    @property
    def a_hat(self) -> PyTree:
        """â, as the next `act` will use it."""
        return self._machine.state().controller.a_hat

    @property
    def info(self) -> Info:
        """What the last `act` used and found, in NumPy arrays; where it was refused, u is the one it gave all the same,
        and the rest is what the arithmetic made of the measurement."""
        if not self._told:
            raise RuntimeError("info: expected to come after an act of this agent")
        return self._machine.info()

    @property
    def result(self) -> Result:
        """How the last call went; and where it was refused, at which step."""
        return jax.tree.unflatten(self._result, [np.int32(self._code), np.int32(self._step if self._code else -1)])

    @property
    def refused(self) -> int:
        """How many calls were refused so far; the observation of a step that was refused is not counted again."""
        return int(self._machine.state().refused)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that the agent remembers to a file, whole or not at all: arrays, and JSON that describes them."""
        state = self._machine.state()
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
        about = {
            "format": FORMAT,
            "version": VERSION,
            "leaves": _description(state),
            **{name: getattr(self, f"_{name}") for name in _REMEMBERED},
        }
        about["checksum"] = _checksum(about, leaves)
        arrays: dict[str, Any] = {f"leaf_{i}": leaf for i, leaf in enumerate(leaves)}
        buffer = io.BytesIO()
        np.savez(buffer, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
        files.write(Path(path), buffer.getvalue())

    def load(self, path: str | os.PathLike[str]) -> "Agent":
        """Take over what a saved agent remembered, and return this one: it goes on where that one stood, bit for bit.

        Settings, such as the learning rate, are this agent's own. A file that is damaged, or of an agent whose state
        has other parts or is outside this one's constraints, is refused, and nothing changes.
        """
        about, leaves = _read(Path(path))
        mine = self._machine.state()
        _compare(path, about["leaves"], _description(mine))
        state = jax.tree.unflatten(jax.tree.structure(mine), leaves)
        try:
            window = state.guard.window
            for one in (state, *(() if window is None else (window.begun, window.good, window.trusted))):
                self.controller.check_values(state.x, one.theta, one.a_hat)
        except ValueError as error:
            raise StoreError(f"{path}: {error}") from None
        self._machine.set_state(state)
        for name in _REMEMBERED:
            setattr(self, f"_{name}", about[name])
        self._told = False
        self._forget_log()
        return self

    def _set_mode(self, mode: Mode) -> None:
        state = self._machine.state()
        self._machine.set_state(eqx.tree_at(lambda s: s.guard.mode, state, np.int32(mode)))

    def _forget_log(self) -> None:
        self._seen, self._logged, self._deaf = Decision(0), {}, False

    def _log(self) -> None:
        """Say which decisions that are out of the ordinary begin; of what comes and goes, once in a while."""
        now = Decision(self._machine.decisions & _NOTABLE)
        begins = [one for one in Decision if one in now & ~self._seen]
        self._seen = now
        if said := [one for one in begins if self._step - self._logged.get(one, -_WHILE) >= _WHILE]:
            self._logged |= dict.fromkeys(said, self._step)
            _LOGGER.warning("step %d: %s", self._step, ", ".join(map(str, said)))

    def _log_observation(self) -> None:
        """An act that went well whose observation is refused: the estimator hears nothing."""
        deaf = bool(self._code) and not self._machine.decisions & Decision.REFUSED
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
            raise ValueError(f"{name}: expected {size} real numbers, got {arguments.describe(value)}") from None
        if array.shape != (size,) or array.dtype.kind not in "fiu":
            raise ValueError(f"{name}: expected {size} real numbers, got {arguments.describe(array)}")
        if array.dtype == self._dtype:
            return array
        with np.errstate(over="ignore"):  # too large for float32 is not finite, and refused as that
            return array.astype(self._dtype)


_LOGGER = logging.getLogger("selftune")
_PASSING = Decision.RESET | Decision.EXPLODED | Decision.UNSTABLE
_NOTABLE = _PASSING | Decision.REFUSED | Decision.HELD
"""What is said in the log: these, when they begin."""
_WHILE = 500
"""Steps in which the same is not said again."""

_REMEMBERED = ("acted", "next", "step", "code")
"""What an agent remembers beside its state."""


def _description(state: AgentState) -> list[list[Any]]:
    return [[name, list(np.shape(leaf)), np.asarray(leaf).dtype.name] for name, leaf in leaf_names(state)]


def _compare(path: Any, theirs: list[list[Any]], mine: list[list[Any]]) -> None:
    for there, here in itertools.zip_longest(theirs, mine):
        if there != here:
            got, expected = (f"{one[0]}, {one[2]}{one[1]}" if one else "no more" for one in (there, here))
            raise StoreError(f"{path}: the state of another agent: expected {expected}, got {got}")


def _checksum(about: dict[str, Any], leaves: list[np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for leaf in leaves:
        digest.update(f"{leaf.shape}{leaf.dtype.name}".encode() + np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], list[np.ndarray]]:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            about = json.loads(stored["about"].tobytes())
            leaves = [stored[f"leaf_{i}"] for i in range(len(about["leaves"]))]
        kind, checksum = (about.get("format"), about.get("version")), about.pop("checksum")
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file") from None
    except Exception as error:  # a reader of a damaged file may raise anything
        raise StoreError(f"{path}: not the file of a saved agent, or damaged ({error})") from None
    if kind != (FORMAT, VERSION):
        raise StoreError(f"{path}: expected a file of {FORMAT}, version {VERSION}, got {kind[0]}, version {kind[1]}")
    if checksum != _checksum(about, leaves):
        raise StoreError(f"{path}: not what was written (its checksum differs)")
    return about, leaves
