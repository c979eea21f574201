"""A controller in real time: NumPy in and out, one call a step, nothing compiled in the loop."""

import ctypes
import hashlib
import io
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree

from . import _check, _files, guard
from ._errors import StoreError
from ._packing import Packing
from .controller import Controller, Info
from .guard import AgentState
from .native import build
from .native.firmware import Field, Firmware, struct_type
from .native.lower import leaf_names
from .run import Result

FORMAT = "selftune agent"
VERSION = 1


class Agent:
    r"""A controller at work: it holds its state, takes what is measured and gives the control.

    Everything is compiled when the agent is made. A measurement that is not finite, or that leads to a number that is
    not, is refused: the state stays as it was, `act` gives the control of the step before, and `result` says so.

    **Arguments:**

    - `controller`: what to run; not with the estimator `Known`, which needs to be told what nobody knows.
    - `x`, `theta`, `a_hat`: the first state, as an example of its shape and dtype, $\theta_0$ and $\hat a_0$.
    - `t`: an example of the steps' context; by default they are numbered.
    - `engine`: `"native"`, the controller's step as C (microseconds a call), or `"xla"`. Where there is no C compiler,
      a warning says so and XLA is used.
    - `limit`: a step with $\max |x_i|$ above it is refused.

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
        >>> agent.act(np.array([np.nan]), 30) == u, agent.result.message
        (array([ True]), 'a number stopped being finite at step 30')
    """

    def __init__(
        self,
        controller: Controller,
        *,
        x: Any,
        theta: Any,
        a_hat: Any,
        t: Any = 0,
        engine: Literal["native", "xla"] = "native",
        limit: ArrayLike = 1e8,
    ):
        if not isinstance(controller, Controller):
            raise ValueError(f"controller: expected a Controller, got {_check.describe(controller)}")
        if controller.estimator.is_oracle:
            raise ValueError("controller: expected an estimator that learns from observations, got Known")
        if engine not in ("native", "xla"):
            raise ValueError(f"engine: expected 'native' or 'xla', got {engine!r}")
        limit_ = _check.number("limit", limit, lambda v: v > 0, "a number > 0")
        state = guard.start(controller, x, theta, a_hat, context(t))
        self.controller = controller
        self.engine = engine if engine == "xla" or build.has_compiler() else "xla"
        self._limit = limit_.astype(state.x.dtype)
        self._machine = {"native": _Native, "xla": _XLA}[self.engine](controller, state, self._limit)
        self._context = _Context(state.t)
        self._n, self._k = state.x.size, self._machine.k
        self._dtype = np.dtype(state.x.dtype)
        self._acted = False
        self._code, self._step, self._counter = 0, -1, 0

    def act(self, x: ArrayLike, t: Any = None) -> np.ndarray:
        r"""$u_t$ from $\theta_t$ and $\hat a_t$, (m,); then the tuner's step to $\theta_{t+1}$.

        `t` is the step's context; where steps are numbered it may be left out, and counts on from the last.
        """
        measured = self._vector("x", x, self._n)
        if t is None:
            t = self._counter
        now = self._context.read(t)
        u, code = self._machine.act(measured, now)
        self._note(code, t)
        self._acted = True
        return u

    def observe(self, f_obs: ArrayLike) -> None:
        r"""The estimator's step to $\hat a_{t+1}$, from the residual $\tilde f_t$, (k,), seen after the last `act`."""
        measured = self._vector("f_obs", f_obs, self._k)
        self._after_act("observe")
        self._note(self._machine.observe(measured), None)

    def observe_state(self, x_next: ArrayLike) -> None:
        r"""The same, where no residual is measured: from the state that followed, by `infer_residual`."""
        measured = self._vector("x_next", x_next, self._n)
        self._after_act("observe_state")
        self._note(self._machine.observe_state(measured), None)

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
        """What the last `act` used and found, in NumPy arrays; of a refused one, what the arithmetic gave."""
        self._after_act("info")
        return self._machine.info()

    @property
    def result(self) -> Result:
        """How the last call went, and the number of its step."""
        return Result(np.int32(self._code), np.int32(self._step))

    @property
    def refused(self) -> int:
        """How many calls were refused so far."""
        return int(self._machine.state().refused)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that the agent remembers to a file, whole or not at all: arrays, and JSON that describes them."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self._machine.state())]
        about = {
            "format": FORMAT,
            "version": VERSION,
            "leaves": _description(self._machine.state()),
            "acted": self._acted,
            "counter": self._counter,
            "checksum": _checksum(leaves),
        }
        buffer = io.BytesIO()
        np.savez(buffer, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **_numbered(leaves))
        _files.write(Path(path), buffer.getvalue())

    def load(self, path: str | os.PathLike[str]) -> "Agent":
        """Take over what a saved agent remembered, and return this one: it goes on where that one stood, bit for bit.

        Settings, such as the learning rate, are this agent's own. A file that is damaged, or of an agent whose state
        has other parts, is refused, and nothing changes.
        """
        about, leaves = _read(Path(path))
        mine = _description(self._machine.state())
        if about["leaves"] != mine:
            differ = [name for name, *_ in about["leaves"] if name not in {name for name, *_ in mine}]
            what = f"its {differ[0]} is not in this one's" if differ else "their shapes or dtypes differ"
            raise StoreError(f"{path}: the state of another agent: {what}")
        structure = jax.tree.structure(self._machine.state())
        self._machine.set_state(jax.tree.unflatten(structure, leaves))
        self._acted, self._counter = bool(about["acted"]), int(about["counter"])
        return self

    def _note(self, code: int, t: Any) -> None:
        self._code = code
        if t is not None:
            if self._context.is_counted:
                self._counter = int(t) + 1
                self._step = int(t)
            else:
                self._step += 1

    def _after_act(self, what: str) -> None:
        if not self._acted:
            raise RuntimeError(f"{what}: expected to come after act, which has not been called")

    def _vector(self, name: str, value: ArrayLike, size: int) -> np.ndarray:
        array = np.asarray(value)
        if array.shape != (size,) or array.dtype.kind not in "fiu":
            raise ValueError(f"{name}: expected {size} real numbers, got {_check.describe(array)}")
        return array


class _Context:
    """What an example of a step's context tells of all others."""

    def __init__(self, example: PyTree):
        self.leaves, self.structure = jax.tree.flatten(example)
        plain = self.structure == jax.tree.structure(0)
        self.is_counted = plain and self.leaves[0].shape == () and self.leaves[0].dtype == jnp.int32

    def read(self, t: Any) -> Any:
        if self.is_counted:
            if isinstance(t, bool) or not isinstance(t, (int, np.integer)):
                raise ValueError(f"t: expected the number of the step, got {_check.describe(t)}")
            return int(t)
        leaves, structure = jax.tree.flatten(t, is_leaf=_check.is_plain)
        if structure != self.structure:
            raise ValueError(f"t: expected a context like the agent's first, {self.structure}, got {structure}")
        arrays = [np.asarray(leaf) for leaf in leaves]
        for array, expected in zip(arrays, self.leaves, strict=True):
            if array.shape != expected.shape:
                raise ValueError(f"t: expected shape {expected.shape}, got {_check.describe(array)}")
        return [array.astype(expected.dtype) for array, expected in zip(arrays, self.leaves, strict=True)]


class _Native:
    """The firmware's C, in this process."""

    def __init__(self, controller: Controller, state: AgentState, limit: Any):
        firmware = Firmware(controller, state, name="agent", limit=limit)
        self.k = firmware.sizes.k
        self._structure = jax.tree.structure(state)
        self._info_structure = jax.tree.structure(firmware.info)
        library = build.build(firmware.whole())
        self._record, self._parts = _struct(firmware.state_fields)
        self._info, self._info_parts = _struct(firmware.info_fields)
        self._t, self._t_parts = _struct(firmware.context_fields)
        for name, record in {"state": self._record, "info": self._info}.items():
            if (size := getattr(library, f"agent_{name}_size")()) != record.nbytes:
                raise RuntimeError(f"the C compiler lays out {name} in {size} bytes, NumPy in {record.nbytes}")
        self._x, self._u = np.zeros(firmware.sizes.n, firmware.dtype), np.zeros(firmware.sizes.m, firmware.dtype)
        self._f = np.zeros(firmware.sizes.k, firmware.dtype)
        pointer = ctypes.c_void_p
        self._at = {name: pointer(buffer.ctypes.data) for name, buffer in vars(self).items() if _is_buffer(buffer)}
        self._act, self._observe, self._observe_state = (
            getattr(library, f"agent_{name}") for name in ("act", "observe", "observe_state")
        )
        context = ctypes.c_int32 if firmware.is_counted else pointer
        self._act.argtypes = [pointer, pointer, context, pointer, pointer]
        self._observe.argtypes = self._observe_state.argtypes = [pointer, pointer]
        self._is_counted = firmware.is_counted
        self.set_state(state)

    def act(self, x: np.ndarray, t: Any) -> tuple[np.ndarray, int]:
        at = self._at
        self._x[:] = x
        if not self._is_counted:
            for part, value in zip(self._t_parts, t, strict=True):
                part[...] = value
            t = at["_t"]
        code = self._act(at["_record"], at["_x"], t, at["_u"], at["_info"])
        return self._u.copy(), code

    def observe(self, f_obs: np.ndarray) -> int:
        self._f[:] = f_obs
        return self._observe(self._at["_record"], self._at["_f"])

    def observe_state(self, x_next: np.ndarray) -> int:
        self._x[:] = x_next
        return self._observe_state(self._at["_record"], self._at["_x"])

    def state(self) -> AgentState:
        return jax.tree.unflatten(self._structure, [part.copy() for part in self._parts])

    def set_state(self, state: AgentState) -> None:
        for part, leaf in zip(self._parts, jax.tree.leaves(state), strict=True):
            part[...] = leaf

    def info(self) -> Info:
        told = jax.tree.unflatten(self._info_structure, [part.copy() for part in self._info_parts])
        return Info(self._u.copy(), told["cost"], told["f_hat"], told["tuner"])


def _struct(members: list[Field]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The memory of a C struct, and its members as views of it."""
    record = np.zeros((), struct_type(members))
    return record, [record[m.name] for m in members]


def _is_buffer(value: Any) -> bool:
    return isinstance(value, np.ndarray)


class _XLA:
    """The same functions, compiled ahead of time for one call at a time."""

    def __init__(self, controller: Controller, state: AgentState, limit: Any):
        self.k = controller.system.check_plant(state.x, state.controller.a_hat, state.t)
        self._dtype, self._t_structure = state.x.dtype, jax.tree.structure(state.t)
        self._packing = packing = Packing(state, self._dtype)
        x, f = (jax.ShapeDtypeStruct((size,), self._dtype) for size in (state.x.size, self.k))
        t = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state.t)
        told = jax.eval_shape(lambda x, t: guard.act(controller, limit, state, x, t)[1:3], x, t)
        self._told, self._m = Packing(told, self._dtype), told[0].shape[0]

        def act(packed, x, t):
            state, u, info, code = guard.act(controller, limit, packing.unpack(packed), x, t)
            return packing.pack(state), self._told.pack((u, info)), code

        def observe(packed, f_obs):
            state, code = guard.observe(controller, packing.unpack(packed), f_obs)
            return packing.pack(state), code

        def observe_state(packed, x_next):
            state, code = guard.observe_state(controller, packing.unpack(packed), x_next)
            return packing.pack(state), code

        self._packed = packing.pack(state)
        self._act = _ahead(act, self._packed, x, t)
        self._observe = _ahead(observe, self._packed, f)
        self._observe_state = _ahead(observe_state, self._packed, x)

    def act(self, x: np.ndarray, t: Any) -> tuple[np.ndarray, int]:
        context = jax.tree.unflatten(self._t_structure, t if isinstance(t, list) else [np.int32(t)])
        self._packed, (told, rest), code = self._act(self._packed, x.astype(self._dtype), context)
        self._last = np.asarray(told), rest
        return self._last[0][: self._m].copy(), int(code)  # u comes first

    def observe(self, f_obs: np.ndarray) -> int:
        self._packed, code = self._observe(self._packed, f_obs.astype(self._dtype))
        return int(code)

    def observe_state(self, x_next: np.ndarray) -> int:
        self._packed, code = self._observe_state(self._packed, x_next.astype(self._dtype))
        return int(code)

    def state(self) -> AgentState:
        vector, rest = self._packed
        return jax.tree.map(np.array, self._packing.unpack((np.asarray(vector), rest)))

    def set_state(self, state: AgentState) -> None:
        self._packed = self._packing.pack(jax.tree.map(jnp.asarray, state))

    def info(self) -> Info:
        return jax.tree.map(np.array, self._told.unpack(self._last)[1])


# What makes a single call of a small program two to five times as fast; it holds for these programs alone.
_ONE_CALL = {"xla_cpu_enable_concurrency_optimized_scheduler": False}


def _ahead(function: Any, *arguments: Any) -> Any:
    lowered = jax.jit(function).lower(*arguments)
    return lowered.compile(compiler_options=_ONE_CALL if jax.default_backend() == "cpu" else None)


def context(t: Any) -> PyTree:
    """A step's context as arrays; a whole number is the number of a step."""

    def leaf(value: Any) -> Any:
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return jnp.asarray(value, jnp.int32)
        return jnp.asarray(value)

    return jax.tree.map(leaf, t, is_leaf=_check.is_plain)


def _description(state: AgentState) -> list[list[Any]]:
    return [[name, list(np.shape(leaf)), np.asarray(leaf).dtype.name] for name, leaf in leaf_names(state)]


def _numbered(leaves: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"leaf_{i}": leaf for i, leaf in enumerate(leaves)}


def _checksum(leaves: list[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for leaf in leaves:
        digest.update(f"{leaf.shape}{leaf.dtype.name}".encode() + np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], list[np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            about = json.loads(stored["about"].tobytes())
            leaves = [stored[f"leaf_{i}"] for i in range(len(about["leaves"]))]
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise StoreError(f"{path}: not the file of a saved agent, or damaged ({error})") from None
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        raise StoreError(f"{path}: expected a file of {FORMAT}, version {VERSION}, got {about.get('format')!r}")
    if about.get("checksum") != _checksum(leaves):
        raise StoreError(f"{path}: not what was written (its checksum differs)")
    return about, leaves
