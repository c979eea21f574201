"""The two engines of an `Agent`, which are the firmware's C in this process and XLA; and the context of its steps."""

import ctypes
import operator
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..control import guarded_step
from ..control.controller import Controller, Info
from ..control.guard import Guard, Mode
from ..control.guarded_step import GuardedState
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..native.c import compilation
from ..native.firmware import Field, Firmware, struct_type
from ..native.lowering.from_jaxpr import leaf_names
from ..simulation.packing import Packing

Change = Literal["pause", "freeze", "resume", "restore", "clear"]
"""A change of the state between two steps."""


class Context:
    """The structure, shapes and dtypes of a step's context, taken from an example."""

    def __init__(self, example: PyTree):
        self.leaves, self.structure = jax.tree.flatten(example)
        plain = self.structure == jax.tree.structure(0)
        self.is_counted = plain and self.leaves[0].shape == () and self.leaves[0].dtype == jnp.int32
        """Whether the context is the number of the step."""
        self._kinds = [(leaf.shape, np.dtype(leaf.dtype)) for leaf in self.leaves]

    def number(self, t: Any) -> int:
        try:
            number = operator.index(t)
        except TypeError:
            number = None
        if number is None or isinstance(t, (bool, np.bool_)) or not -(2**31) <= number < 2**31:
            raise ArgumentError("t", "the number of the step, a 32-bit integer", arguments.describe(t))
        return number

    def read(self, t: Any) -> list[np.ndarray]:
        """Return the leaves of a context that is not the number of a step."""
        leaves, structure = jax.tree.flatten(t)
        if structure != self.structure:  # looking for lists that stand for arrays takes longer
            leaves, structure = jax.tree.flatten(t, is_leaf=arguments.is_plain)
        if structure != self.structure:
            example = arguments.describe_tree(jax.tree.unflatten(self.structure, self.leaves))
            raise ArgumentError("t", f"a context like the agent's first, {example}", arguments.describe_tree(t))
        return [_like(*kind, leaf) for kind, leaf in zip(self._kinds, leaves, strict=True)]

    def rows(self, contexts: list[Any]) -> PyTree:
        """Return the contexts of several steps, as `number` or `read` gave them, as one pytree with a leading axis."""
        if self.is_counted:
            return np.asarray(contexts)
        return jax.tree.unflatten(self.structure, [np.stack(leaves) for leaves in zip(*contexts, strict=True)])


def _like(shape: tuple[int, ...], dtype: np.dtype, leaf: Any) -> np.ndarray:
    """Return a leaf of a context as a new array like the example's; a fraction is not rounded to an integer."""
    array = np.asarray(leaf)
    if array.shape == shape and array.dtype == dtype:
        return array.copy()
    kinds = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}[dtype.kind]
    if array.shape == shape and array.dtype.kind in kinds:
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        if converted.dtype.kind == "f" or np.array_equal(converted, array):
            return converted
    expected = arguments.describe(jax.ShapeDtypeStruct(shape, dtype))
    raise ArgumentError("t", f"{expected} in the context", arguments.describe(array))


class Native:
    """The native engine: the firmware's C, loaded into this process."""

    def __init__(self, controller: Controller, guard: Guard, state: GuardedState):
        firmware = Firmware(controller, guard, state, name="agent")
        self.q, self.k = firmware.sizes.q, firmware.sizes.k
        leaves, self._structure = jax.tree.flatten(state)
        self._dtypes = [leaf.dtype for leaf in leaves]  # a bool is an int in C
        self._info_structure = firmware.info_structure
        library = compilation.build(firmware.whole())
        self._record, self._parts = _struct(firmware.state_fields)
        self._info, self._info_parts = _struct(firmware.info_fields)
        self._decisions = self._info["guard_decisions"]
        self._t, self._t_parts = _struct(firmware.context_fields)
        for name, record in {"state": self._record, "info": self._info}.items():
            if (size := getattr(library, f"agent_{name}_size")()) != record.nbytes:
                raise RuntimeError(f"the C compiler lays out {name} in {size} bytes, NumPy in {record.nbytes}")
        self._x, self._u = np.zeros(firmware.sizes.q, firmware.dtype), np.zeros(firmware.sizes.m, firmware.dtype)
        self._f = np.zeros(firmware.sizes.k, firmware.dtype)
        pointer = ctypes.c_void_p
        self._at = {name: pointer(buffer.ctypes.data) for name, buffer in vars(self).items() if _is_buffer(buffer)}
        self._act, self._observe, self._observe_state = (
            getattr(library, f"agent_{name}") for name in ("act", "observe", "observe_state")
        )
        self._changes = {name: getattr(library, f"agent_{name}") for name in get_args(Change)}
        context = ctypes.c_int32 if firmware.is_counted else pointer
        self._act.argtypes = [pointer, pointer, context, pointer, pointer]
        self._observe.argtypes = self._observe_state.argtypes = [pointer, pointer]
        for change in self._changes.values():
            change.argtypes, change.restype = [pointer], None
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

    def state(self) -> GuardedState:
        parts = [part.astype(dtype) for part, dtype in zip(self._parts, self._dtypes, strict=True)]
        return jax.tree.unflatten(self._structure, parts)

    def set_state(self, state: GuardedState) -> None:
        for part, leaf in zip(self._parts, jax.tree.leaves(state), strict=True):
            part[...] = leaf

    def change(self, how: Change) -> None:
        self._changes[how](self._at["_record"])

    @property
    def decisions(self) -> int:
        """The guard's decisions at the last `act`."""
        return int(self._decisions)

    def info(self) -> Info:
        return jax.tree.unflatten(self._info_structure, [part.copy() for part in (self._u, *self._info_parts)])

    def stream_fields(self) -> np.dtype:
        """Return the layout of the bytes that `stream_parts` gives."""
        places: Any = self._record.dtype.fields
        learned = [name for name in places if name.split("_")[0] == "theta" or name == "a_hat" or name[:6] == "a_hat_"]
        begin = min(places[name][1] for name in learned)
        end = max(places[name][1] + places[name][0].itemsize for name in learned)
        members: list[tuple[str, Any, int]] = []
        at = 0
        for name, array in (("x", self._x), ("u", self._u)):
            members.append((name, np.dtype((array.dtype, array.shape)), at))
            at += array.nbytes
        records: list[Any] = [self._info] if self._is_counted else [self._info, self._t]
        for record, prefix in zip(records, ("", "t."), strict=False):
            members += [(prefix + name, kind, at + place) for name, (kind, place) in record.dtype.fields.items()]
            at += record.nbytes
        members += [(_dotted(name), places[name][0], at + places[name][1] - begin) for name in learned]
        buffers = [*(_bytes_of(array) for array in (self._x, self._u, *records)), _bytes_of(self._record)[begin:end]]
        self._stream = tuple(buffers)
        names, formats, offsets = (list(part) for part in zip(*members, strict=True))
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": at + end - begin})

    def stream_parts(self) -> tuple[Any, ...]:
        """Return the values of the last `act` as bytes, without a copy."""
        return self._stream

    def kept_state(self) -> bytes:
        """Return the state in the form in which a history keeps it; `rows` reads it."""
        return self._record.tobytes()

    def kept_info(self) -> tuple[bytes, bytes]:
        return self._u.tobytes(), self._info.tobytes()

    def rows(self, states: list[bytes], infos: list[tuple[bytes, bytes]]) -> tuple[GuardedState, Info]:
        """Return kept states and infos as pytrees whose leaves have a leading axis."""
        records = np.frombuffer(b"".join(states), self._record.dtype)
        names = records.dtype.names or ()
        leaves = [records[name].astype(dtype) for name, dtype in zip(names, self._dtypes, strict=True)]
        us, reports = zip(*infos, strict=True)
        u = np.frombuffer(b"".join(us), self._u.dtype).reshape(-1, self._u.size)
        report = np.frombuffer(b"".join(reports), self._info.dtype)
        info = [u.copy(), *(report[name].copy() for name in report.dtype.names or ())]
        return jax.tree.unflatten(self._structure, leaves), jax.tree.unflatten(self._info_structure, info)


def _dotted(name: str) -> str:
    """Return the name of a number of θ or â for telemetry: `theta.log_kp`, `a_hat`."""
    for group in ("theta", "a_hat"):
        if name.startswith(f"{group}_"):
            return f"{group}.{name.removeprefix(f'{group}_')}"
    return name


def _bytes_of(array: np.ndarray) -> memoryview:
    """Return the memory of an array, as bytes."""
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _struct(members: list[Field]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the memory of a C struct, and views of its members."""
    record = np.zeros((), struct_type(members))
    return record, [record[m.name] for m in members]


def _is_buffer(value: Any) -> bool:
    return isinstance(value, np.ndarray)


class XLA:
    """The XLA engine: the functions of `guarded_step`, compiled ahead of time for single calls."""

    def __init__(self, controller: Controller, guard: Guard, state: GuardedState):
        sizes = controller.system.check(state.x, state.controller.theta, state.controller.a_hat, state.t)
        self.q, self.k = sizes.q, sizes.k
        dtype, self._t_structure = state.x.dtype, jax.tree.structure(state.t)
        self._packing = packing = Packing(state, dtype)
        x, f = (jax.ShapeDtypeStruct((size,), dtype) for size in (self.q, self.k))
        t = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state.t)
        shapes = jax.eval_shape(lambda x, t: guarded_step.act(controller, guard, state, x, t), x, t)
        self._shapes = shapes
        self._report, self._m = Packing((shapes[0], shapes[2]), dtype), shapes[0].shape[0]

        def act(packed, x, t):
            u, state, info = guarded_step.act(controller, guard, packing.unpack(packed), x, t)
            return packing.pack(state), self._report.pack((u, info)), (state.code, info.guard.decisions)

        def observe(packed, f_obs):
            state, code, _ = guarded_step.observe(controller, guard, packing.unpack(packed), f_obs)
            return packing.pack(state), code

        def observe_state(packed, x_next):
            state, code, _ = guarded_step.observe_state(controller, guard, packing.unpack(packed), x_next)
            return packing.pack(state), code

        self._packed = start = packing.pack(state)
        self._act = _ahead(act, start, x, t)
        self._observe = _ahead(observe, start, f)
        self._observe_state = _ahead(observe_state, start, x)
        changes: dict[Change, Any] = {
            "pause": lambda _, state: _with_mode(state, Mode.PAUSED),
            "freeze": lambda _, state: _with_mode(state, Mode.FROZEN),
            "resume": guarded_step.resume,
            "restore": guarded_step.restore,
            "clear": lambda _, state: guarded_step.clear(state),
        }
        self._changes = {
            name: _ahead(lambda packed, change=change: packing.pack(change(controller, packing.unpack(packed))), start)
            for name, change in changes.items()
        }
        self.decisions = 0

    def act(self, x: np.ndarray, t: Any) -> tuple[np.ndarray, int]:
        context = jax.tree.unflatten(self._t_structure, t if isinstance(t, list) else [np.int32(t)])
        self._packed, (report, rest), (code, decisions) = self._act(self._packed, x, context)
        self._measured = x
        self.decisions = int(decisions)
        self._last: Any = np.asarray(report), rest
        return self._last[0][: self._m].copy(), int(code)  # u comes first

    def observe(self, f_obs: np.ndarray) -> int:
        self._packed, code = self._observe(self._packed, f_obs)
        return int(code)

    def observe_state(self, x_next: np.ndarray) -> int:
        self._packed, code = self._observe_state(self._packed, x_next)
        return int(code)

    def state(self) -> GuardedState:
        packed: Any = np.asarray(self._packed[0]), self._packed[1]
        return jax.tree.map(np.array, self._packing.unpack(packed))

    def set_state(self, state: GuardedState) -> None:
        self._packed = self._packing.pack(jax.tree.map(jnp.asarray, state))

    def change(self, how: Change) -> None:
        self._packed = self._changes[how](self._packed)

    def info(self) -> Info:
        return jax.tree.map(np.array, self._report.unpack(self._last)[1])

    def _streamed(self, u: Any, info: Any, state: Any) -> list[tuple[str, Any]]:
        learned = {"theta": state.controller.theta, "a_hat": state.controller.a_hat}
        named = [(_dotted(name), leaf) for name, leaf in leaf_names(learned)]
        return [("u", u), *((name, leaf) for name, leaf in leaf_names(info) if name != "u"), *named]

    def stream_fields(self) -> np.dtype:
        """Return the layout of the bytes that `stream_parts` gives."""
        u, state, info = self._shapes
        leaves = [("x", np.zeros(self.q, state.x.dtype)), *self._streamed(u, info, state)]
        return np.dtype([(name, np.dtype(leaf.dtype), tuple(leaf.shape)) for name, leaf in leaves])

    def stream_parts(self) -> tuple[Any, ...]:
        """Return the values of the last `act` as bytes."""
        u, info = self._report.unpack(self._last)
        leaves = [("x", self._measured), *self._streamed(u, info, self.state())]
        return tuple(np.asarray(leaf).tobytes() for _, leaf in leaves)

    def kept_state(self) -> Any:
        """Return the state in the form in which a history keeps it; `rows` reads it."""
        return self._packed  # JAX's arrays do not change

    def kept_info(self) -> Any:
        return self._last

    def rows(self, states: list[Any], infos: list[Any]) -> tuple[GuardedState, Info]:
        """Return kept states and infos as pytrees whose leaves have a leading axis."""
        state, info = (jax.tree.map(lambda *rows: np.stack(rows), *kept) for kept in (states, infos))
        return self._packing.unpack(state), self._report.unpack(info)[1]


def _with_mode(state: GuardedState, mode: Mode) -> GuardedState:
    return eqx.tree_at(lambda s: s.guard.mode, state, jnp.asarray(np.int32(mode)))


# This option makes a single call of a small program two to five times as fast; it applies to these programs only.
_ONE_CALL: dict[str, str | bool] = {"xla_cpu_enable_concurrency_optimized_scheduler": False}


def _ahead(function: Any, *values: Any) -> Any:
    lowered = jax.jit(function).lower(*values)
    return lowered.compile(compiler_options=_ONE_CALL if jax.default_backend() == "cpu" else None)
