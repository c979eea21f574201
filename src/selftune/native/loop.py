"""A step that is repeated, as one C function: the engine of `simulate(..., engine="native")`, whose step is that of the
whole closed loop, plant included, and of the metrics, whose steps are those of rollouts."""

import copy
import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..control import result_codes
from ..control.closed_loop import closed_loop_step
from ..control.run_fields import CHECKED
from ..foundation import arguments, executors, jax_settings
from ..problem.system import AbstractSystem
from . import result_memory
from ._float64_bits import as_words, from_words, to_numbers, to_words
from .c.compilation import FLAGS, build, processor_flags, vector_flags
from .c.emit import TYPES, Writer
from .c.templates import fill
from .interruption import Interruption
from .lanes import LANES, Mode, has_lanes, lanes_source
from .lowering.from_jaxpr import Leaf, LoweringError, Program
from .roles import ROLES, Role, is_large, size_of_checked, stays_in_array, storage, variable
from .step import lower_step

MIN_LANES = 4
"""Smaller batches run one by one: two cores are then faster than lanes."""
WORTH_LANES = 5_000_000
"""After so many steps of all lanes of a program, its function for lanes is compiled. Before that, compiling takes more
time than lanes can save, whatever the size of the program."""


SHORT = 16e6
"""Runs that take about so many nanoseconds together, at most, are made by one call into C."""

Prepare = Callable[[AbstractSystem], AbstractSystem]
"""A function that gives a system another way to propagate tangents."""


class Step(Protocol):
    """A step that C repeats. Two steps that are equal give the same program."""

    def __call__(self, *arguments: Any, **inputs: Any) -> dict[str, PyTree]:
        """Return `x`, `state`, `row` and `checked` of the next step. The arguments are `prepare`, a `Prepare`, which
        the step applies to each system that it differentiates, and the settings. `ROLES` has the names of the inputs.
        """
        ...

    def checked_inputs(self, inputs: dict[str, PyTree]) -> PyTree:
        """Return the inputs that must be finite before the first step, in the order of the outputs in `checked`."""
        ...


class ClosedLoop(NamedTuple):
    """The step of controller and plant; the settings are the controller, the guard and the plant."""

    fields: tuple[str, ...]
    """The fields of `Run` to record."""
    infer: bool

    def __call__(self, prepare, settings, /, *, x, state, a_star, w, v, noise, t, step, limit):
        controller, guard, plant = settings
        controller = eqx.tree_at(lambda c: c.system, controller, prepare(controller.system))
        x, state, values = closed_loop_step(
            controller, guard, plant, x, state, a_star, w, v, step if t is None else t, noise, self.infer
        )
        checked = [x, state.theta, state.a_hat, *(values[name] for name in CHECKED)]
        return {"x": x, "state": state, "row": {name: values[name] for name in self.fields}, "checked": checked}

    def checked_inputs(self, inputs: dict[str, PyTree]) -> PyTree:
        return inputs["x"], inputs["state"].theta, inputs["state"].a_hat


def run_loop(step: Step, settings: PyTree, arrays: dict[str, PyTree], steps: int, stride: int = 1) -> dict[str, PyTree]:
    """Repeat a step `steps` times.

    `arrays` contains the inputs of the step: the start (`x`, `state` and `step`), the inputs with a row for each step
    (such as `a_star`, `w` and `t`; they may be None), and `limit`. The result contains `row`, with the recorded values,
    and `x`, `state`, `code` and `failed_at`.

    Settings that are single numbers, such as a learning rate, are arguments of the compiled program. Settings that are
    arrays are constants in the program, so that their zeros cost nothing. Under `jit` and `vmap` every traced value is
    an argument. A batch runs on all cores.
    """
    loop, leaves = compiled(step, settings, arrays)
    outputs = _run_any(loop, steps, stride, leaves)
    return jax.tree.unflatten(loop.result_structure, outputs)


def compiled(step: Step, settings: PyTree, arrays: dict[str, PyTree]) -> tuple["Loop", list[Any]]:
    """Return the compiled program of a step, and the arrays of its inputs in their order there."""
    parts, structure = jax.tree.flatten(settings)
    free = [leaf for leaf in parts if _is_free(leaf)]
    fixed = tuple(arguments.is_key(leaf) if _is_free(leaf) else _Setting(leaf) for leaf in parts)
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
    loop = _compiled(step, structure, fixed, input_structure, shapes, modes)
    if isinstance(loop, LoweringError):
        raise copy.copy(loop)
    _ = loop.function  # compile now, so that a compiler error appears here, not inside a jitted program
    return loop, jax.tree.leaves(inputs)


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


@lru_cache(maxsize=256)
def _compiled(
    step: Step, structure: Any, fixed: Any, input_structure: Any, shapes: Any, modes: Any
) -> "Loop | LoweringError":
    """Return the program of a step, or the error. Errors are cached too, because finding an error takes as long."""
    inputs = jax.tree.unflatten(input_structure, [jax.ShapeDtypeStruct(*shape) for shape in shapes])

    def make(prepare: Prepare):
        def one_step(p, **inputs):
            free = iter(p)
            settings = jax.tree.unflatten(structure, [_restored(setting, free) for setting in fixed])
            return step(prepare, settings, **inputs)

        return one_step

    try:
        program = lower_step(make, inputs, in_memory=lambda group, size: ROLES[group] is Role.STATE and is_large(size))
        return Loop(program, inputs, step.checked_inputs)
    except LoweringError as error:
        return error


class Loop:
    """The C function of a repeated step, and how to call it."""

    def __init__(self, program: Program, inputs: dict[str, PyTree], checked_inputs: Callable[..., PyTree]):
        self.program = program
        self.array_index = {(leaf.group, leaf.position): i for i, leaf in enumerate(program.inputs)}
        positions = jax.tree.unflatten(jax.tree.structure(inputs), range(len(program.inputs)))
        self.checked_inputs = [program.inputs[i] for i in jax.tree.leaves(checked_inputs(positions))]
        """The inputs that must be finite before the first step, in the order of the outputs that are checked."""
        number = jax.ShapeDtypeStruct((), jnp.int32)
        own = {name: program.results[name] for name in ("row", "x", "state")}
        self._results = own | {"code": number, "failed_at": number}
        self.result_structure = jax.tree.structure(self._results)
        self._lane_steps = 0
        self._lanes_functions: dict[tuple[Mode, ...], Any] = {}
        self._size = len(program.live())

    def results(self, rows: int) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes and dtypes of the results."""
        row = jax.tree.map(lambda field: jax.ShapeDtypeStruct((rows, *field.shape), field.dtype), self._results["row"])
        return jax.tree.leaves(self._results | {"row": row})

    @cached_property
    def source(self) -> str:
        return _source(self)

    @cached_property
    def function(self) -> Any:
        """The function of single runs."""
        # No flag of the processor for programs with loops: with AVX2, gcc 12 computes wrong choices between two arrays.
        own = processor_flags() if len(self.program.graph.loops) == 1 else ()
        function = build(self.source, flags=(*FLAGS, *own)).closed_loops
        function.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
        function.restype = None
        return function

    def lanes_function(self, modes: tuple[Mode, ...]) -> Any:
        """Return the function for lanes, with the modes of the series; None if the program cannot run in lanes."""
        if modes not in self._lanes_functions and not has_lanes(self.program):
            self._lanes_functions[modes] = None
        if modes not in self._lanes_functions:
            function = build(lanes_source(self, modes), flags=vector_flags()).closed_loop_lanes
            function.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
            function.restype = None
            self._lanes_functions[modes] = function
        return self._lanes_functions[modes]

    def _lanes_if_worth(self, modes: tuple[Mode, ...], steps: np.ndarray) -> Any:
        """Return the function for lanes, or None if the runs are few or short."""
        if steps.size < MIN_LANES:
            return None
        self._lane_steps += int(steps.sum())
        return self.lanes_function(modes) if self._lane_steps >= WORTH_LANES else None

    def batch(self, leaves: Any) -> tuple[int, ...]:
        """Return the lengths of the batch axes, which come before the arrays' own axes."""
        own_axes = (len(leaf.shape) + (ROLES[leaf.group] is Role.SERIES) for leaf in self.program.inputs)
        return np.broadcast_shapes(*(array.shape[: array.ndim - n] for array, n in zip(leaves, own_axes, strict=True)))

    def call(self, steps: int, stride: int, leaves: Any, workers: int | None = None) -> list[np.ndarray]:
        """Run the loop for each entry of the batch, and return the results with the batch axes in front.

        Each array has the batch axes in front; an axis along which it does not vary has length one.
        """
        arrays = [np.asarray(leaf, order="C") for leaf in leaves]
        batch = self.batch(arrays)
        spread = [
            np.broadcast_to(array, (*batch, *((steps,) if ROLES[leaf.group] is Role.SERIES else ()), *leaf.shape))
            for array, leaf in zip(arrays, self.program.inputs, strict=True)
        ]
        outputs = [
            result_memory.empty(batch + result.shape, result.dtype) for result in self.results(-(-steps // stride))
        ]
        results = jax.tree.unflatten(self.result_structure, outputs)
        final = {group: jax.tree.leaves(results[group]) for group in ("x", "state")}
        for i, leaf in enumerate(self.program.inputs):
            if ROLES[leaf.group] is Role.STATE:  # C updates the state in place, in the array of the final state
                final[leaf.group][leaf.position][...] = spread[i]
                spread[i] = final[leaf.group][leaf.position]
        addresses = np.stack([_addresses(array, batch) for array in (*spread, *jax.tree.leaves(results["row"]))])
        every = np.full(math.prod(batch), steps)
        codes = self.run(addresses, every, stride, memory=(spread, outputs), workers=workers)
        for result, found in zip((results["code"], results["failed_at"]), codes, strict=True):
            result[...] = found.reshape(batch)
        return outputs

    def run(
        self,
        addresses: np.ndarray,
        steps: np.ndarray,
        stride: int = 1,
        *,
        memory: Any,
        groups: np.ndarray | None = None,
        rows: np.ndarray | None = None,
        workers: int | None = None,
        done: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Make all runs, in lanes if this is worth it; return the code of each run, and its `failed_at`.

        **Arguments:**

        - `addresses`: for each run (second axis), the addresses of its inputs, and of the rows to record.
        - `steps`: the number of steps of each run.
        - `memory`: all arrays that the addresses point into. A second Ctrl-C can end this method before its threads;
          the arrays stay alive until the threads end.
        - `groups`: the first run of each group. The runs of a group, `LANES` at most, have the same number of steps;
          they may run in lanes. By default all runs have the same number of steps.
        - `rows`: if runs begin at different rows of the same series, the number of rows from the first one of each run
          to the end of the series.
        - `workers`: the number of threads; None: one for each core.
        - `done`: is called with the number of steps of all runs that have ended, from any thread.
        """
        lanes = steps.size
        found = np.empty((2, lanes), np.int64)
        if groups is None:
            groups = np.arange(0, lanes, LANES)
        counts = np.diff(groups, append=lanes)
        modes = self._modes(addresses, groups)
        in_lanes = self._lanes_if_worth(modes, steps)
        one_run = ctypes.cast(self.function, ctypes.c_void_p)
        interruption = Interruption()

        def run(memory: Any, bundle: tuple[int, np.ndarray, np.ndarray]) -> None:
            """Make the runs of a bundle of groups; if lanes are missing in a group, its last run is repeated."""
            width, firsts, counts = bundle
            index = firsts[:, None] + np.minimum(np.arange(width), counts[:, None] - 1)
            pointers = np.ascontiguousarray(addresses[:, index].transpose(1, 0, 2))
            head = 3 if width == 1 else 4
            numbers = np.full((len(firsts), head + 2 * width), -1, np.int64)
            numbers[:, 2] = stride
            if width > 1:
                numbers[:, 3] = counts
            numbers[:, head : head + width] = result_codes.OK
            own = steps[firsts]
            longest = int(own.max())
            for begin, end in [(0, longest)] if len(firsts) > 1 else interruption.calls(longest):
                numbers[:, 0], numbers[:, 1] = np.minimum(begin, own), np.minimum(end, own)
                if interruption.is_set():
                    return
                if width == 1:
                    self.function(len(firsts), pointers.ctypes.data, numbers.ctypes.data)
                else:
                    in_lanes(len(firsts), pointers.ctypes.data, numbers.ctypes.data, one_run)
            wanted = np.arange(width) < counts[:, None]
            found[:, index[wanted]] = numbers[:, head:].reshape(-1, 2, width).transpose(1, 0, 2)[:, wanted]
            if done is not None:
                done(int((own * counts).sum()))

        bundles = self._bundles(in_lanes is not None, steps, groups, counts, modes, rows)
        interruption.run_all(partial(run, memory), bundles, workers)
        return found

    def _modes(self, addresses: np.ndarray, groups: np.ndarray) -> tuple[Mode, ...]:
        """Return how the lanes of all groups read each series."""
        modes = []
        within = np.ones(addresses.shape[1], bool)
        within[groups] = False  # the others follow a run of their own group
        for i, leaf in enumerate(self.program.inputs):
            if ROLES[leaf.group] is not Role.SERIES:
                continue
            apart = np.diff(addresses[i], prepend=addresses[i, :1])[within]
            row = leaf.ids.size * leaf.dtype.itemsize
            shared, sliding = not apart.any(), row > 0 and bool((apart == row).all())
            modes.append(Mode.SHARED if shared else Mode.SLIDING if sliding else Mode.OWN)
        return tuple(modes)

    def _bundles(
        self,
        in_lanes: bool,
        steps: np.ndarray,
        groups: np.ndarray,
        counts: np.ndarray,
        modes: tuple[Mode, ...],
        rows: np.ndarray | None,
    ) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Return bundles of groups: the number of lanes, and the first run of each group and the number of its runs.

        Short runs are bundled, because each call of Python takes as long as hundreds of steps. The longest come first,
        so that all threads end at about the same time.
        """
        alone = np.full(len(groups), not in_lanes)
        if in_lanes and Mode.SLIDING in modes:  # the lanes that are missing must not read behind the last row
            last = groups + counts - 1
            alone = (counts < LANES) & (steps[last] + LANES - counts > (0 if rows is None else rows[last]))
        bundles = []
        for width, chosen in ((LANES, ~alone), (1, alone)):
            firsts, sizes = groups[chosen], counts[chosen]
            if width == 1 and firsts.size:
                firsts = np.concatenate([np.arange(a, a + n) for a, n in zip(firsts, sizes, strict=True)])
                sizes = np.ones_like(firsts)
            order = np.argsort(-steps[firsts], kind="stable")
            firsts, sizes = firsts[order], sizes[order]
            costs = np.maximum(steps[firsts], 1) * (self._size * width)
            begin = 0
            while begin < len(firsts):
                room = max(1, min(int(SHORT / costs[begin]), -(-len(firsts) // (2 * executors.cores()))))
                bundles.append((width, firsts[begin : begin + room], sizes[begin : begin + room]))
                begin += room
        return bundles


def _addresses(array: np.ndarray, batch: tuple[int, ...]) -> np.ndarray:
    """Return the addresses of the arrays of all lanes, which have the batch axes in front."""
    offsets = np.zeros(batch, np.int64)
    for axis, (length, stride) in enumerate(zip(batch, array.strides, strict=False)):
        offsets += (stride * np.arange(length)).reshape([-1 if i == axis else 1 for i in range(len(batch))])
    return array.ctypes.data + offsets.ravel()


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
    values = {
        "arrays": len(program.inputs) + len(outputs[Role.RECORDED]),
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
        "size": size_of_checked(real, [f"checked[{i}]" for i in range(count)], x.ids.size),
        "write_back": write_back,
    }
    return fill(Path(__file__).with_name("templates") / "closed_loop.c.in", values)
