"""Functions as the native engine compiles them, from NumPy arrays to NumPy arrays."""

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from selftune.native.c.compilation import build
from selftune.native.c.emit import TYPES, Writer
from selftune.native.c.templates import wrap
from selftune.native.lowering.from_jaxpr import Leaf, Program, lower

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")


class Written(NamedTuple):
    """A function as a scalar program; `tree` is the structure of what it returns."""

    program: Program
    tree: Any


def write(
    function: Callable[..., Any],
    *args: Any,
    sparse: bool = True,
    loops_above: int | None = None,
    in_memory: bool = False,
) -> Written:
    trees = []

    def named(**inputs: Any) -> dict[str, Any]:
        out = function(*(inputs[f"x{i}"] for i in range(len(args))))
        trees.append(jax.tree.structure(out))
        return {"y": out}

    inputs = {f"x{i}": arg for i, arg in enumerate(args)}
    program = lower(named, inputs, sparse=sparse, loops_above=loops_above, in_memory=lambda group, size: in_memory)
    return Written(program, trees[-1])


def source(functions: Mapping[str, Program]) -> str:
    """One C file of several functions, each `void f_name(const void *const *in, void *const *out)`."""
    helpers: dict[str, str] = {}
    texts = []
    for name, program in functions.items():
        writer = Writer(program, _place(program.inputs, "in", "const "), _place(program.outputs, "out", ""))
        body = writer.body()
        helpers |= body.helpers
        head = f"void f_{name}(const void *const *in, void *const *out)"
        unused = [] if body.loads else ["(void)in;"]
        lines = [*unused, *body.loads, *body.statements, *itertools.chain(*body.stores.values())]
        texts += [f"{head};", f"{head} {{", *wrap(lines, 4), "}"]
    return "\n".join(["#include <math.h>", "#include <stdint.h>", *helpers.values(), *texts, ""])


def _place(leaves: Sequence[Leaf], array: str, const: str) -> Callable[[Leaf, int], str]:
    index = {leaf.name: i for i, leaf in enumerate(leaves)}
    return lambda leaf, i: f"(({const}{TYPES[leaf.dtype.name]} *){array}[{index[leaf.name]}])[{i}]"


def stored(array: Any) -> np.ndarray:
    """An array as C holds it: a boolean is an int."""
    array = np.asarray(array)
    return np.ascontiguousarray(array, np.int32 if array.dtype == bool else array.dtype)


def compiled_all(functions: Mapping[str, Written], flags: Sequence[str] = ("-O1",)) -> dict[str, Callable[..., Any]]:
    """The functions, compiled from one C file without a warning."""
    text = source({name: written.program for name, written in functions.items()})
    if "double" not in text:
        flags = (*flags, "-Wdouble-promotion")
    library = build(text, flags=(*STRICT, *flags, "-fPIC", "-shared"))
    return {name: _callable(getattr(library, f"f_{name}"), written) for name, written in functions.items()}


def compiled(
    function: Callable[..., Any],
    *args: Any,
    sparse: bool = True,
    loops_above: int | None = None,
    in_memory: bool = False,
    flags: Sequence[str] = ("-O1",),
) -> Callable[..., Any]:
    """`function`, whose arguments are like `args`, through the native engine."""
    written = write(function, *args, sparse=sparse, loops_above=loops_above, in_memory=in_memory)
    return compiled_all({"function": written}, flags)["function"]


def _callable(entry: Any, written: Written) -> Callable[..., Any]:
    outputs = written.program.outputs

    def call(*args: Any) -> Any:
        given = [stored(leaf) for leaf in jax.tree.leaves(list(args))]
        made = [np.zeros(leaf.shape, np.int32 if leaf.dtype == bool else leaf.dtype) for leaf in outputs]
        entry(pointers(given), pointers(made))
        return jax.tree.unflatten(written.tree, [x.astype(leaf.dtype) for x, leaf in zip(made, outputs, strict=True)])

    return call


def pointers(arrays: list[np.ndarray]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
