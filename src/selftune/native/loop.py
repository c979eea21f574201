"""The engine of `simulate(..., engine="native")`: the whole closed loop, plant included, as one C function."""

import copy
import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..control import result_codes
from ..control.closed_loop import closed_loop_step
from ..control.controller import Controller
from ..control.guard import Guard
from ..control.run_fields import CHECKED
from ..foundation import arguments, jax_settings
from ..problem.system import AbstractSystem
from ._float64_bits import as_words, from_words, to_numbers, to_words
from .c.compilation import build, vector_flags
from .c.emit import TYPES, Writer
from .c.templates import fill
from .interruption import Interruption
from .lanes import LANES, has_lanes, lanes_source
from .lowering.from_jaxpr import Leaf, LoweringError, Program
from .roles import ROLES, Role, stays_in_array, storage, variable
from .step import lower_step

MIN_LANES = 4
"""Smaller batches run one by one: two cores are then faster than lanes."""
WORTH_LANES = 5_000_000
"""After so many steps of all lanes of a program, its function for lanes is compiled. Before that, compiling takes more
time than lanes can save, whatever the size of the program."""


def run_loop(
    controller: Controller,
    guard: Guard | None,
    plant: AbstractSystem,
    arrays: dict[str, PyTree],
    steps: int,
    fields: tuple[str, ...],
    stride: int,
    *,
    infer: bool,
) -> dict[str, PyTree]:
    """Run `steps` steps of the closed loop.

    `arrays` contains the start (`x`, `state` and `step`), the inputs with a row for each step (`a_star`, `w`, `v`,
    `noise` and `t`; the last three may be None), and `limit`. The result contains `row`, with the recorded `fields`,
    and `x`, `state`, `code` and `failed_at`.

    Settings that are single numbers, such as a learning rate, are arguments of the compiled program. Settings that are
    arrays are constants in the program, so that their zeros cost nothing. Under `jit` and `vmap` every traced value is
    an argument. A batch runs on all cores.
    """
    settings, structure = jax.tree.flatten((controller, guard, plant))
    free = [leaf for leaf in settings if _is_free(leaf)]
    fixed = tuple(arguments.is_key(leaf) if _is_free(leaf) else _Setting(leaf) for leaf in settings)
    inputs = {**arrays, "p": [jax.random.key_data(leaf) if arguments.is_key(leaf) else leaf for leaf in free]}
    if any(map(arguments.is_key, jax.tree.leaves(inputs))):
        raise LoweringError(
            "engine: expected a state of plain numbers, got a state with a random key, such as that of optax.add_noise"
        )
    # The program is compiled for one step, so it does not depend on the number of steps.
    step_inputs = {
        name: jax.tree.map(_row, tree) if ROLES[name] is Role.SERIES else tree for name, tree in inputs.items()
    }
    step_leaves, input_structure = jax.tree.flatten(step_inputs)
    shapes = tuple((leaf.shape, np.dtype(leaf.dtype).name) for leaf in step_leaves)
    # The traced program depends on these settings of JAX, too.
    modes = tuple(jax_settings.read(name) for name in ("jax_enable_x64", "jax_numpy_dtype_promotion"))
    loop = _compiled(structure, fixed, input_structure, shapes, fields, infer, modes)
    if isinstance(loop, LoweringError):
        raise copy.copy(loop)
    _ = loop.function  # compile now, so that a compiler error appears here, not inside a jitted program
    leaves = jax.tree.leaves(inputs)
    outputs = _run_any(loop, steps, stride, leaves)
    return jax.tree.unflatten(loop.result_structure, outputs)


def _run_any(loop: "Loop", steps: int, stride: int, leaves: Sequence[Any]) -> Sequence[Any]:
    """Run the loop now if all numbers are known; otherwise define it for `vmap` and `jit`."""
    if all(map(arguments.is_known, leaves)):
        return [_as_jax_array(output) for output in loop.call(steps, stride, leaves)]

    @jax.custom_batching.custom_vmap
    def run(*leaves):
        batch = loop.batch(leaves)
        results = loop.results(-(-steps // stride))
        shapes = [jax.ShapeDtypeStruct(batch + result.shape, result.dtype) for result in results]

        def call(*words):
            read = [from_words(array, leaf) for array, leaf in zip(words, leaves, strict=True)]
            return [as_words(array) for array in loop.call(steps, stride, read)]

        # JAX's thread for callbacks ignores a `with jax.enable_x64(True)` block of the caller and would turn doubles
        # into floats. So doubles are passed as pairs of words.
        words = jax.eval_shape(lambda: [to_words(jnp.zeros(shape.shape, shape.dtype)) for shape in shapes])
        outputs = jax.pure_callback(call, words, *map(to_words, leaves))
        return [to_numbers(array, shape.dtype) for array, shape in zip(outputs, shapes, strict=True)]

    @run.def_vmap
    def _(axis_size, in_batched, *leaves):
        # A batch adds an axis in front, of length one for an array that does not vary along it.
        lanes = [leaf if varies else leaf[None] for leaf, varies in zip(leaves, in_batched, strict=True)]
        outputs = _run_any(loop, steps, stride, lanes)
        return outputs, [True] * len(outputs)

    return run(*leaves)


class _Setting:
    """A setting that is a constant in a program; two settings are equal if they give the same program."""

    def __init__(self, value: Any):
        self.value = value
        if _is_array(value):
            raw = np.asarray(jax.random.key_data(value) if arguments.is_key(value) else value)
            self.key: Any = (raw.shape, raw.dtype.str, raw.tobytes())
        else:
            self.key = (type(value), value)  # 1 is not 1.0, nor True

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Setting) and (self.value is other.value or self.key == other.key)


def _row(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic))


def _is_free(leaf: Any) -> bool:
    """Return whether a setting is an argument of the program instead of a constant in it."""
    return not arguments.is_known(leaf) or (_is_array(leaf) and leaf.ndim == 0)


def _restored(setting: "_Setting | bool", free: Iterator[Any]) -> Any:
    """Return a setting's value inside the program: a constant, or the next argument. A bool says if that is a key."""
    if isinstance(setting, _Setting):
        return setting.value
    return jax.random.wrap_key_data(next(free)) if setting else next(free)


@lru_cache(maxsize=128)
def _compiled(
    structure: Any, fixed: Any, input_structure: Any, shapes: Any, fields: tuple[str, ...], infer: bool, modes: Any
) -> "Loop | LoweringError":
    """Return the program of a loop, or the error. Errors are cached too, because finding an error takes as long."""
    inputs = jax.tree.unflatten(input_structure, [jax.ShapeDtypeStruct(*shape) for shape in shapes])

    def make(prepare: Callable[[Controller], Controller]):
        def step(p, x, state, a_star, w, v, noise, t, step, limit):
            free = iter(p)
            settings = [_restored(setting, free) for setting in fixed]
            controller, guard, plant = jax.tree.unflatten(structure, settings)
            x, state, values = closed_loop_step(
                prepare(controller), guard, plant, x, state, a_star, w, v, step if t is None else t, noise, infer
            )
            checked = [x, state.theta, state.a_hat, *(values[name] for name in CHECKED)]
            return {"x": x, "state": state, "row": {name: values[name] for name in fields}, "checked": checked}

        return step

    try:
        return Loop(lower_step(make, inputs), inputs)
    except LoweringError as error:
        return error


class Loop:
    """The C function of a closed loop, and how to call it."""

    def __init__(self, program: Program, inputs: dict[str, PyTree]):
        self.program = program
        self.array_index = {(leaf.group, leaf.position): i for i, leaf in enumerate(program.inputs)}
        positions = jax.tree.unflatten(jax.tree.structure(inputs), range(len(program.inputs)))
        state = positions["state"]
        self.checked_inputs = [program.inputs[i] for i in jax.tree.leaves((positions["x"], state.theta, state.a_hat))]
        """The inputs that must be finite before the first step, in the order of the outputs that are checked."""
        number = jax.ShapeDtypeStruct((), jnp.int32)
        own = {name: program.results[name] for name in ("row", "x", "state")}
        self._results = own | {"code": number, "failed_at": number}
        self.result_structure = jax.tree.structure(self._results)
        self._lane_steps = 0

    def results(self, rows: int) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes and dtypes of the results."""
        row = jax.tree.map(lambda field: jax.ShapeDtypeStruct((rows, *field.shape), field.dtype), self._results["row"])
        return jax.tree.leaves(self._results | {"row": row})

    @cached_property
    def source(self) -> str:
        return _source(self)

    @cached_property
    def function(self) -> Any:
        function = build(self.source).closed_loop
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        function.restype = None
        return function

    @cached_property
    def lanes_function(self) -> Any:
        """The function for lanes; None if the program cannot run in lanes."""
        if not has_lanes(self.program):
            return None
        function = build(lanes_source(self), flags=vector_flags()).closed_loop_lanes
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        function.restype = None
        return function

    def _uses_lanes(self, lanes: int, steps: int) -> bool:
        if lanes < MIN_LANES:
            return False
        self._lane_steps += lanes * steps
        return self._lane_steps >= WORTH_LANES and self.lanes_function is not None

    def batch(self, leaves: Any) -> tuple[int, ...]:
        """Return the lengths of the batch axes, which come before the arrays' own axes."""
        own_axes = (len(leaf.shape) + (ROLES[leaf.group] is Role.SERIES) for leaf in self.program.inputs)
        return np.broadcast_shapes(*(array.shape[: array.ndim - n] for array, n in zip(leaves, own_axes, strict=True)))

    def call(self, steps: int, stride: int, leaves: Any) -> list[np.ndarray]:
        """Run the loop for each entry of the batch, and return the results with the batch axes in front.

        Each array has the batch axes in front; an axis along which it does not vary has length one.
        """
        arrays = [np.asarray(leaf, order="C") for leaf in leaves]
        batch = self.batch(arrays)
        spread = [
            np.broadcast_to(array, (*batch, *((steps,) if ROLES[leaf.group] is Role.SERIES else ()), *leaf.shape))
            for array, leaf in zip(arrays, self.program.inputs, strict=True)
        ]
        outputs = [_aligned(batch + result.shape, result.dtype) for result in self.results(-(-steps // stride))]
        results = jax.tree.unflatten(self.result_structure, outputs)
        final = {group: jax.tree.leaves(results[group]) for group in ("x", "state")}
        for i, leaf in enumerate(self.program.inputs):
            if ROLES[leaf.group] is Role.STATE:  # C updates the state in place, in the array of the final state
                final[leaf.group][leaf.position][...] = spread[i]
                spread[i] = final[leaf.group][leaf.position]
        addresses = np.stack([_addresses(array, batch) for array in (*spread, *jax.tree.leaves(results["row"]))])
        codes = results["code"].reshape(-1), results["failed_at"].reshape(-1)
        lanes = math.prod(batch)
        width = LANES if self._uses_lanes(lanes, steps) else 1
        interruption = Interruption()
        one_run = ctypes.cast(self.function, ctypes.c_void_p)

        def run(first: int) -> None:
            """Run the lanes from the first one on; if lanes are missing at the end, the last one is repeated."""
            wanted = min(width, lanes - first)
            pointers = np.ascontiguousarray(addresses[:, np.minimum(np.arange(first, first + width), lanes - 1)])
            about = [0, 0, stride] if width == 1 else [0, 0, stride, wanted]
            numbers = np.array(about + [result_codes.OK] * width + [-1] * width, np.int64)
            for numbers[0], numbers[1] in interruption.calls(steps):
                if width == 1:
                    self.function(pointers.ctypes.data, numbers.ctypes.data)
                else:
                    self.lanes_function(pointers.ctypes.data, numbers.ctypes.data, one_run)
            for result, found in zip(codes, numbers[-2 * width :].reshape(2, width), strict=True):
                result[first : first + wanted] = found[:wanted]

        firsts = range(0, lanes, width)
        if len(firsts) == 1:
            run(0)
        elif firsts:
            interruption.run_all(run, firsts)
        return outputs


def _addresses(array: np.ndarray, batch: tuple[int, ...]) -> np.ndarray:
    """Return the addresses of the arrays of all lanes, which have the batch axes in front."""
    offsets = np.zeros(batch, np.int64)
    for axis, (length, stride) in enumerate(zip(batch, array.strides, strict=False)):
        offsets += (stride * np.arange(length)).reshape([-1 if i == axis else 1 for i in range(len(batch))])
    return array.ctypes.data + offsets.ravel()


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialized array, aligned so that JAX can use it without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _as_jax_array(array: np.ndarray) -> jax.Array:
    """Return a JAX array in the same memory, which nothing else uses."""
    return jnp.from_dlpack(array) if array.size else jnp.asarray(array)


def _source(loop: Loop) -> str:
    """Return the C source of the function."""
    program = loop.program
    inputs, outputs = (
        {role: [leaf for leaf in leaves if ROLES[leaf.group] is role] for role in Role}
        for leaves in (program.inputs, program.outputs)
    )
    checked = outputs[Role.CHECKED]
    count = sum(leaf.ids.size for leaf in checked)
    first = {leaf.name: sum(other.ids.size for other in checked[:i]) for i, leaf in enumerate(checked)}
    (x,) = (leaf for leaf in program.inputs if leaf.group == "x")
    real = TYPES[x.dtype.name]
    absolute, largest = ("fabsf", "FLT_MAX") if real == "float" else ("fabs", "DBL_MAX")

    def load(leaf: Leaf, i: int) -> str:
        if ROLES[leaf.group] is Role.SERIES:
            return f"{leaf.name}[{leaf.ids.size} * s + {i}]"
        return f"{leaf.name}[{i}]" if stays_in_array(leaf) else variable(leaf, i)

    def store(leaf: Leaf, i: int) -> str:
        if ROLES[leaf.group] is Role.RECORDED:
            return f"{leaf.name}[{leaf.ids.size} * row + {i}]"
        return f"checked[{first[leaf.name] + i}]" if ROLES[leaf.group] is Role.CHECKED else load(leaf, i)

    def pointer(leaf: Leaf, index: int, constant: str = "") -> str:
        kind = storage(leaf.dtype)
        return f"{constant}{kind} *const {leaf.name} = ({constant}{kind} *)arrays[{index}];"

    def array_index(leaf: Leaf) -> int:
        return loop.array_index[leaf.group, leaf.position]

    body = Writer(program, load, store, share_divisors=True).body()
    pointers = [pointer(leaf, array_index(leaf), "const ") for leaf in inputs[Role.SERIES] if leaf.ids.size]
    pointers += [pointer(leaf, len(program.inputs) + i) for i, leaf in enumerate(outputs[Role.RECORDED])]
    pointers += [pointer(leaf, array_index(leaf)) for leaf in inputs[Role.STATE] if stays_in_array(leaf)]
    variables = [
        f"{'const ' if ROLES[leaf.group] is Role.SETTING else ''}{TYPES[leaf.dtype.name]} {variable(leaf, i)} = "
        f"((const {storage(leaf.dtype)} *)arrays[{array_index(leaf)}])[{i}];"
        for leaf in program.inputs
        if ROLES[leaf.group] in (Role.SETTING, Role.STATE) and not stays_in_array(leaf)
        for i in range(leaf.ids.size)
    ]
    write_back = [
        f"(({storage(leaf.dtype)} *)arrays[{array_index(leaf)}])[{i}] = ({storage(leaf.dtype)}){variable(leaf, i)};"
        for leaf in inputs[Role.STATE]
        if not stays_in_array(leaf)
        for i in range(leaf.ids.size)
    ]
    start = [load(leaf, i) for leaf in loop.checked_inputs for i in range(leaf.ids.size)]
    start += ["0"] * (count - len(start))
    sizes = [f"{absolute}(checked[{i}])" for i in range(count)]
    values = {
        "helpers": "\n".join(body.helpers.values()),
        "real": real,
        "absolute": absolute,
        "largest": largest,
        "count": count,
        "n": x.ids.size,
        "ok": result_codes.OK,
        "diverged": result_codes.DIVERGED,
        "non_finite": result_codes.NON_FINITE,
        "limit": loop.array_index["limit", 0],
        "step": loop.array_index["step", 0],
        "pointers": pointers,
        "variables": variables,
        "start": [f"const {real} checked[{count}] = {{{', '.join(start)}}};"],
        "statements": body.loads + body.statements,
        "record": body.stores.get("row", []),
        "store": [line for group, lines in body.stores.items() if group != "row" for line in lines],
        "size": [f"const {real} size = {' + '.join(sizes)};"],
        "write_back": write_back,
    }
    return fill(Path(__file__).with_name("templates") / "closed_loop.c.in", values)
