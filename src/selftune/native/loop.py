"""The engine of `simulate(..., engine="native")`: the whole closed loop, plant included, as one C function."""

import copy
import ctypes
import math
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..control.closed_loop import CHECKED, closed_loop_step
from ..control.controller import Controller
from ..control.guard import Guard
from ..foundation import arguments, executors
from ..problem.system import System
from ._float64_bits import as_words, from_words, to_numbers, to_words
from .c.compilation import build
from .c.emit import TYPES, Writer, wrap
from .lowering.from_jaxpr import Leaf, LoweringError, Program, leaf_names
from .step import lower_step

CHUNK = 1 << 22
"""The number of steps per call into C; Python can be interrupted between two calls."""
AT_HAND = 256
"""An array of the state that is larger than this is not copied into local variables."""
ROWS = ("a_star", "w", "v", "t")
"""The inputs that have a row for each step."""


def run_loop(
    controller: Controller,
    guard: Guard | None,
    nature: System,
    arrays: dict[str, PyTree],
    steps: int,
    fields: tuple[str, ...],
    stride: int,
) -> dict[str, PyTree]:
    """Run `steps` steps of the closed loop.

    `arrays` contains the start (`x`, `state` and `step`), the inputs with a row for each step (`a_star`, `w`, `v` and
    `t`; v and t may be None), and `limit`. The result contains `row`, with the recorded `fields`, and `x`, `state`,
    `code` and `failed_at`.

    Settings that are single numbers, such as a learning rate, are arguments of the compiled program. Settings that are
    arrays are constants in the program, so that their zeros cost nothing. Under `jit` and `vmap` every traced value is
    an argument. A batch runs on all cores.
    """
    settings, structure = jax.tree.flatten((controller, guard, nature))
    free = [leaf for leaf in settings if _is_free(leaf)]
    fixed = tuple(arguments.is_key(leaf) if _is_free(leaf) else _Setting(leaf) for leaf in settings)
    inputs = {**arrays, "p": [jax.random.key_data(leaf) if arguments.is_key(leaf) else leaf for leaf in free]}
    if any(map(arguments.is_key, jax.tree.leaves(inputs))):
        raise LoweringError(
            "engine: expected a state of plain numbers, got a state with a random key, such as that of optax.add_noise"
        )
    # The program is compiled for one step, so it does not depend on the number of steps.
    step_inputs = {name: jax.tree.map(_row, tree) if name in ROWS else tree for name, tree in inputs.items()}
    step_leaves, input_structure = jax.tree.flatten(step_inputs)
    shapes = tuple((leaf.shape, np.dtype(leaf.dtype).name) for leaf in step_leaves)
    # The traced program depends on these settings of JAX, too.
    modes = tuple(getattr(jax.config, name) for name in ("jax_enable_x64", "jax_numpy_dtype_promotion"))
    loop = _compiled(structure, fixed, input_structure, shapes, fields, modes)
    if isinstance(loop, LoweringError):
        raise copy.copy(loop)
    _ = loop.function  # compile now, so that a compiler error appears here, not inside a jitted program
    leaves = jax.tree.leaves(inputs)
    outputs = _run_any(loop, steps, stride, leaves)
    return jax.tree.unflatten(loop.result_structure, outputs)


def _run_any(loop: "Loop", steps: int, stride: int, leaves: Sequence[Any]) -> Sequence[Any]:
    """Run the loop now if all numbers are known; otherwise define it for `vmap` and `jit`."""
    if all(map(arguments.is_known, leaves)):
        return [_taken_over(output) for output in loop.call(steps, stride, leaves)]

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


def _restored(one: "_Setting | bool", free: Iterator[Any]) -> Any:
    """Return the value of a setting inside the program; `one` is a constant, or says whether an argument is a key."""
    if isinstance(one, _Setting):
        return one.value
    return jax.random.wrap_key_data(next(free)) if one else next(free)


@lru_cache(maxsize=128)
def _compiled(
    structure: Any, fixed: Any, input_structure: Any, shapes: Any, fields: tuple[str, ...], modes: Any
) -> "Loop | LoweringError":
    """Return the program of a loop, or the error. Errors are cached too, because finding an error takes as long."""
    inputs = jax.tree.unflatten(input_structure, [jax.ShapeDtypeStruct(*shape) for shape in shapes])

    def make(prepare: Callable[[Controller], Controller]):
        def step(p, x, state, a_star, w, v, t, step, limit):
            free = iter(p)
            settings = [_restored(setting, free) for setting in fixed]
            controller, guard, nature = jax.tree.unflatten(structure, settings)
            x, state, values = closed_loop_step(
                prepare(controller), guard, nature, x, state, a_star, w, v, step if t is None else t
            )
            checked = [x, state.theta, state.a_hat, *(values[name] for name in CHECKED)]
            return {"x": x, "state": state, "row": {name: values[name] for name in fields}, "checked": checked}

        return step

    outputs = jax.eval_shape(lambda inputs: make(lambda controller: controller)(**inputs), inputs)
    try:
        return Loop(lower_step(make, inputs), inputs, outputs)
    except LoweringError as error:
        return error


class Loop:
    """The C function of a closed loop, and how to call it."""

    def __init__(self, program: Program, inputs: dict[str, PyTree], outputs: dict[str, PyTree]):
        self.program = program
        self.inputs = [(name, leaf.shape) for name, leaf in leaf_names(inputs)]
        self.at = {name: i for i, (name, _) in enumerate(self.inputs)}
        number = jax.ShapeDtypeStruct((), jnp.int32)
        results = {name: outputs[name] for name in ("row", "x", "state")} | {"code": number, "failed_at": number}
        self.result_leaves = leaf_names(results)
        self.result_structure = jax.tree.structure(results)

    def results(self, rows: int) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes and dtypes of the results."""
        return [
            jax.ShapeDtypeStruct((rows, *leaf.shape) if name.startswith("row_") else leaf.shape, leaf.dtype)
            for name, leaf in self.result_leaves
        ]

    @cached_property
    def source(self) -> str:
        return _source(self)

    @cached_property
    def function(self) -> Any:
        function = build(self.source).closed_loop
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        function.restype = None
        return function

    def batch(self, leaves: Any) -> tuple[int, ...]:
        """Return the lengths of the batch axes, which come before the arrays' own axes."""
        own = (len(shape) + _has_rows(name) for name, shape in self.inputs)
        return np.broadcast_shapes(*(leaf.shape[: leaf.ndim - n] for leaf, n in zip(leaves, own, strict=True)))

    def call(self, steps: int, stride: int, leaves: Any) -> list[np.ndarray]:
        """Run the loop for each entry of the batch, and return the results with the batch axes in front.

        Each array has the batch axes in front; an axis along which it does not vary has length one.
        """
        arrays = [np.asarray(leaf, order="C") for leaf in leaves]
        batch = self.batch(arrays)
        spread = [
            np.broadcast_to(array, (*batch, steps, *shape) if _has_rows(name) else batch + shape)
            for array, (name, shape) in zip(arrays, self.inputs, strict=True)
        ]
        rows = -(-steps // stride)
        outputs = [_aligned(batch + shape.shape, shape.dtype) for shape in self.results(rows)]
        function = self.function

        def run(lane: tuple[int, ...]) -> None:
            here = {name: output[(*lane, ...)] for (name, _), output in zip(self.result_leaves, outputs, strict=True)}
            for name, array in here.items():
                if name in self.at:  # C updates the state in place, in the array of the final state
                    array[...] = spread[self.at[name]][(*lane, ...)]
            read = [here[name] if name in here else spread[i][(*lane, ...)] for i, (name, _) in enumerate(self.inputs)]
            written = [array for name, array in here.items() if name.startswith("row_")]
            pointers = (ctypes.c_void_p * (len(read) + len(written)))(*(a.ctypes.data for a in (*read, *written)))
            numbers = np.array([0, 0, stride, 0, -1], np.int64)
            for begin in range(0, max(steps, 1), CHUNK):
                numbers[:2] = begin, min(begin + CHUNK, steps)
                function(ctypes.addressof(pointers), numbers.ctypes.data)
            here["code"][...], here["failed_at"][...] = numbers[3:]

        lanes = list(np.ndindex(*batch))
        if len(lanes) == 1:
            run(lanes[0])
        elif lanes:
            pool = ThreadPoolExecutor(executors.cores())
            try:
                list(pool.map(run, lanes))
            finally:
                pool.shutdown(cancel_futures=True)  # after an interrupt, start no more runs
        return outputs


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialized array, aligned so that JAX can use it without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _taken_over(array: np.ndarray) -> jax.Array:
    """Return a JAX array in the same memory, which nothing else uses."""
    return jnp.from_dlpack(array) if array.size else jnp.asarray(array)


def _source(loop: Loop) -> str:
    """Return the C source of the function. Its `arrays` are the inputs, then the rows to record; its `numbers` are
    begin, end, stride, code and failed_at."""
    program, at = loop.program, loop.at
    rows = [leaf for leaf in program.outputs if leaf.name.startswith("row_")]
    carried = [leaf for leaf in program.outputs if leaf.name in at]
    # Small parts of the state become local variables of the loop; large ones, such as a buffer, stay in their arrays.
    in_place = {leaf.name for leaf in carried if leaf.ids.size > AT_HAND}
    at_hand = {leaf.name for leaf in carried} - in_place
    checked = [leaf for leaf in program.outputs if leaf.name.startswith("checked")]
    count = sum(leaf.ids.size for leaf in checked)
    first = {leaf.name: sum(other.ids.size for other in checked[:i]) for i, leaf in enumerate(checked)}
    real = TYPES[next(leaf.dtype.name for leaf in program.outputs if leaf.name == "x")]
    single = real == "float"
    absolute = "fabsf" if single else "fabs"

    def load(leaf: Leaf, i: int) -> str:
        if leaf.name in in_place:
            return f"{leaf.name}[{i}]"
        if leaf.name == "step" or leaf.name in at_hand or leaf.name.startswith("p_"):
            return _scalar(leaf, i)
        return f"{leaf.name}[{leaf.ids.size} * s + {i}]"

    def store(leaf: Leaf, i: int) -> str | None:
        if leaf.name.startswith("row_"):
            return f"{leaf.name}[{leaf.ids.size} * row + {i}]"
        if leaf.name.startswith("checked"):
            return f"checked[{first[leaf.name] + i}]"
        return f"{leaf.name}[{i}]" if leaf.name in in_place else _scalar(leaf, i)

    writer = Writer(program, load, store, share_divisors=True)
    loads, statements, stores = writer.lines()
    recorded = [line for line in stores if line.startswith("row_")]
    others = [line for line in stores if not line.startswith("row_")]

    def pointer(leaf: Leaf, index: int, constant: str) -> str:
        kind = _storage(leaf.dtype)
        return f"{constant}{kind} *const {leaf.name} = ({constant}{kind} *)arrays[{index}];"

    heads = [
        pointer(leaf, at[leaf.name], "const ") for leaf in program.inputs if _has_rows(leaf.name) and leaf.ids.size
    ]
    heads += [pointer(leaf, len(loop.inputs) + i, "") for i, leaf in enumerate(rows)]
    heads += [pointer(leaf, at[leaf.name], "") for leaf in carried if leaf.name in in_place]
    begin = [
        f"{'const ' if leaf.name.startswith('p_') else ''}{TYPES[leaf.dtype.name]} {_scalar(leaf, i)} = "
        f"((const {_storage(leaf.dtype)} *)arrays[{at[leaf.name]}])[{i}];"
        for leaf in program.inputs
        if leaf.name.startswith("p_") or leaf.name in at_hand
        for i in range(leaf.ids.size)
    ]
    end = [
        f"(({_storage(leaf.dtype)} *)arrays[{at[leaf.name]}])[{i}] = ({_storage(leaf.dtype)}){_scalar(leaf, i)};"
        for leaf in carried
        if leaf.name in at_hand
        for i in range(leaf.ids.size)
    ]
    n = next(leaf.ids.size for leaf in carried if leaf.name == "x")
    watched = [leaf for leaf in carried if re.match(r"x$|state_(controller_)?(theta|a_hat)", leaf.name)]
    watched.sort(key=lambda leaf: leaf.name != "x")  # x first, as in the values that a step checks
    start = [
        f"{leaf.name}[{i}]" if leaf.name in in_place else _scalar(leaf, i)
        for leaf in watched
        for i in range(leaf.ids.size)
    ]
    start += ["0"] * (count - len(start))
    sizes = [f"{absolute}(checked[{i}])" for i in range(count)]
    text = [
        "#include <float.h>",
        "#include <math.h>",
        "#include <stdint.h>",
        "",
        *writer.helpers.values(),
        f"static int health(const {real} *checked, {real} limit)",
        "{",
        f"    for (int i = 0; i < {count}; i++)",
        "        if (!(checked[i] - checked[i] == 0)) return 2;",
        f"    for (int i = 0; i < {n}; i++)",
        f"        if (!({absolute}(checked[i]) <= limit)) return 1;",
        "    return 0;",
        "}",
        "",
        "void closed_loop(void *const *arrays, int64_t *numbers);",
        "void closed_loop(void *const *arrays, int64_t *numbers)",
        "{",
        "    const int64_t begin = numbers[0], end = numbers[1], stride = numbers[2];",
        "    int64_t code = numbers[3], failed_at = numbers[4];",
        f"    const {real} limit = *(const {real} *)arrays[{at['limit']}];",
        f"    const {real} bound = limit < {'FLT_MAX' if single else 'DBL_MAX'} ? limit : "
        f"{'FLT_MAX' if single else 'DBL_MAX'};",
        f"    const int64_t first = *(const int32_t *)arrays[{at['step']}];",
        *wrap(heads + begin, 4),
        "    int64_t row = (begin + stride - 1) / stride, next = row * stride;",
        "    if (begin == 0) {",
        *wrap([f"const {real} checked[{count}] = {{{', '.join(start)}}};"], 8),
        "        code = health(checked, limit);",
        "        failed_at = code == 0 ? -1 : first > 0 ? first - 1 : 0;",
        "    }",
        "    for (int64_t s = begin; s < end; s++) {",
        "        const int32_t step = (int32_t)(first + s);" if any(x.name == "step" for x in program.inputs) else "",
        f"        {real} checked[{count}];",
        *wrap(loads + statements, 8),
        "        if (s == next) {",
        *wrap(recorded, 12),
        "            row++;",
        "            next += stride;",
        "        }",
        *wrap(others, 8),
        "        /* if the sum is small, all terms are small; otherwise check them one by one */",
        *wrap([f"const {real} size = {' + '.join(sizes)};"], 8),
        "        if (!(size <= bound) && code == 0) {",
        "            code = health(checked, limit);",
        "            failed_at = code == 0 ? -1 : first + s;",
        "        }",
        "    }",
        *wrap(end, 4),
        "    numbers[3] = code;",
        "    numbers[4] = failed_at;",
        "}",
    ]
    return "\n".join(text) + "\n"


def _has_rows(name: str) -> bool:
    """Return whether an input has a row for each step, by its name in C."""
    return name.startswith(ROWS)


def _scalar(leaf: Leaf, i: int) -> str:
    return f"{leaf.name}_at_{i}" if leaf.name != "step" else "step"


def _storage(dtype: np.dtype) -> str:
    """Return the C type of an array's elements; NumPy's booleans are bytes."""
    return "uint8_t" if dtype == np.bool_ else TYPES[dtype.name]
