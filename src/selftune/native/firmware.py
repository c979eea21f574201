"""A controller as portable C: a struct for the state, and `init`, `act`, `observe`; it needs only math.h."""

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..control import guarded_step
from ..control.controller import Controller, Info
from ..control.guard import Decision, Guard, Mode
from ..control.guarded_step import GuardedState
from .c.emit import TYPES, Writer, literal, wrap
from .lowering.from_jaxpr import Leaf, Program, leaf_names
from .lowering.graph import Graph
from .step import lower_step


class Field(NamedTuple):
    """A member of a struct: an array, or a number if the shape is ()."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def declared(self) -> str:
        return f"{TYPES[self.dtype.name]} {self.name}" + (f"[{self.size}]" if self.shape else "")


class Firmware:
    """The C code of one controller, and the data for calling it from Python.

    **Arguments:** `name`, the prefix of all names in C; `state`, the agent's state before the first step, in the dtype
    that the C uses.
    """

    def __init__(self, controller: Controller, guard: Guard, state: GuardedState, *, name: str):
        self.controller, self.guard, self.name, self.state = controller, guard, name, state
        self.dtype = np.dtype(state.x.dtype)
        self.real = TYPES[self.dtype.name]
        self.sizes = controller.system.check(state.x, state.controller.theta, state.controller.a_hat, state.t)
        self.state_fields = fields(state)
        self._members = {field.name for field in self.state_fields}
        info = jax.eval_shape(partial(guarded_step.act, controller, guard), state, state.x, state.t)[2]
        self.info_structure = jax.tree.structure(info)
        self.info_fields = fields(_told(info))  # without u, which `act` returns separately
        plain = jax.tree.structure(state.t) == jax.tree.structure(0)
        self.is_counted = plain and jnp.ndim(state.t) == 0 and jnp.result_type(state.t) == jnp.int32
        """Whether the context is the number of the step."""
        self.context_fields = [] if self.is_counted else fields(state.t, root="value")
        k, n = self.sizes.k, self.sizes.n
        self.programs: dict[str, Program] = {
            "act": self._lower(_act, x=state.x, t=state.t),
            "observe": self._lower(_observe, f_obs=jax.ShapeDtypeStruct((k,), self.dtype)),
            "observe_state": self._lower(_observe_state, x_next=jax.ShapeDtypeStruct((n,), self.dtype)),
            "resume": self._lower(_resume),
            "restore": self._lower(_restore),
        }

    def _lower(self, function: Callable[..., dict[str, PyTree]], **inputs: Any) -> Program:
        def make(prepare: Callable[[Controller], Controller]):
            return partial(function, prepare(self.controller), self.guard)

        program = lower_step(make, {"state": self.state, **inputs})
        if self.dtype == np.float32:
            _narrow(program.graph)
        return program._replace(
            inputs=[leaf._replace(name=_short(leaf.name)) for leaf in program.inputs],
            outputs=[
                leaf._replace(name=f"next_{_short(leaf.name)}" if leaf.name.startswith("state_") else leaf.name)
                for leaf in program.outputs
            ],
        )

    def header(self) -> str:
        """Return the text of `NAME.h`."""
        name, upper, s = self.name, self.name.upper(), self.sizes
        context = (
            []
            if self.is_counted
            else [
                "/* The context of a step: the data that vary with time. */",
                *_struct(f"{name}_context", self.context_fields),
                "",
            ]
        )
        return _lines(
            f"/* {name}: a controller that tunes itself while it runs. Written by selftune; do not edit. */",
            f"#ifndef {upper}_H",
            f"#define {upper}_H",
            "",
            "#include <stdint.h>",
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            "/* Sizes: state x, control u, residual f, policy parameters theta, model parameters a. */",
            *(f"#define {upper}_{letter.upper()} {size}" for letter, size in s._asdict().items()),
            "",
            "/* The settings of the guard, which keeps the controller safe. They are fixed in this code:",
            *(f"   {line}" for line in _settings(self.guard)),
            "   Its decisions at a step are a sum of the following numbers, in guard_decisions of the info. */",
            *(f"#define {upper}_{decision.name} {decision.value}" for decision in Decision),
            "",
            "/* Values of guard_mode in the state: all learning is on, only the estimator learns, nothing learns. */",
            *(f"#define {upper}_{mode.name} {mode.value}" for mode in Mode),
            "",
            "/* The codes that the functions return. */",
            f"#define {upper}_OK 0",
            f"#define {upper}_DIVERGED 1",
            f"#define {upper}_NON_FINITE 2",
            "",
            *context,
            "/* The whole state between two calls. */",
            *_struct(f"{name}_state", self.state_fields),
            "",
            "/* A report of one step for people: the values that the step used. */",
            *_struct(f"{name}_info", self.info_fields),
            "",
            "/* Set the state before the first step. */",
            f"{self.signature('init')};",
            "",
            "/* Compute u_t from theta_t and a_hat_t, then theta_{t+1}. If x is refused, u is computed from the",
            "   model's prediction of x, and nothing is learned; the returned code gives the reason. After too many",
            "   refused x in a row, x itself is used if it is finite; otherwise u is the previous control. info may",
            "   be a null pointer. */",
            *wrap([f"{self.signature('act')};"], 0),
            "",
            "/* Compute a_hat_{t+1} from the residual that was observed after the last act. The observation is refused",
            "   if that act was refused, and before the first act. */",
            f"{self.signature('observe')};",
            "",
            "/* The same, from the next measured state: the residual is computed from the transition. */",
            f"{self.signature('observe_state')};",
            "",
            "/* Stop all learning (pause), stop only theta (freeze), learn again (resume); between any two calls. */",
            *(f"{self.signature(name)};" for name in ("pause", "freeze", "resume")),
            "",
            "/* Restore the last good theta and a_hat together. */",
            f"{self.signature('restore')};",
            "",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "",
            "#endif",
        )

    def signature(self, function: str) -> str:
        name, upper, real = self.name, self.name.upper(), self.real
        context = "int32_t t" if self.is_counted else f"const {name}_context *t"
        arguments = {
            "act": f", const {real} x[{upper}_N], {context}, {real} u[{upper}_M], {name}_info *info",
            "observe": f", const {real} f_obs[{upper}_K]",
            "observe_state": f", const {real} x_next[{upper}_N]",
        }
        kind = "int" if function in ("act", "observe", "observe_state") else "void"
        return f"{kind} {name}_{function}({name}_state *s{arguments.get(function, '')})"

    def source(self) -> str:
        """Return the text of `NAME.c`."""
        helpers: dict[str, str] = {}
        bodies: list[str] = []
        for function, program in self.programs.items():
            writer = Writer(program, partial(self._load, function), partial(self._store, program), share_divisors=True)
            loads, statements, stores = writer.lines()
            helpers |= writer.helpers
            info_stores = [line for line in stores if line.startswith("info->")]
            code = [line.removeprefix("code = ") for line in stores if line.startswith("code = ")]
            state_stores = [line for line in stores if not line.startswith(("info->", "code = "))]
            bodies += [
                *wrap([self.signature(function)], 0),
                "{",
                *wrap(loads + statements, 4),
                *wrap(state_stores, 4),
                *(["    if (info) {", *wrap(info_stores, 8), "    }"] if info_stores else []),
                *(f"    return {line}" for line in code),
                "}",
                "",
            ]
        for function, mode in {"pause": Mode.PAUSED, "freeze": Mode.FROZEN}.items():
            line = f"    s->guard_mode = {self.name.upper()}_{mode.name};"
            bodies += [self.signature(function), "{", line, "}", ""]
        return _lines(
            f"/* {self.name}: written by selftune; do not edit. C99, no heap, no globals, only math.h of libc.",
            "   Do not compile with -ffast-math: the code must be able to detect NaN and infinity. */",
            f'#include "{self.name}.h"',
            "",
            "#include <math.h>",
            "",
            *helpers.values(),
            "",
            self.signature("init"),
            "{",
            *wrap(self._initial(), 4),
            "}",
            "",
            *bodies,
        )

    def whole(self) -> str:
        """Return header and source as one text, for `Agent`, with functions that return the sizes of the structs."""
        name = self.name
        sizes = [
            line
            for struct in ("state", "info")
            for line in (
                f"unsigned long {name}_{struct}_size(void);",
                f"unsigned long {name}_{struct}_size(void) {{ return sizeof({name}_{struct}); }}",
            )
        ]
        return self.header() + self.source().replace(f'#include "{name}.h"\n', "") + _lines(*sizes)

    def _initial(self) -> list[str]:
        lines = []
        for field, leaf in zip(self.state_fields, jax.tree.leaves(self.state), strict=True):
            for i, number in enumerate(np.asarray(leaf).ravel()):
                lines.append(f"s->{field.name}{f'[{i}]' if field.shape else ''} = {literal(number, field.dtype)};")
        return lines

    def _load(self, function: str, leaf: Leaf, i: int) -> str:
        at = f"[{i}]" if leaf.shape else ""
        if leaf.name in self._members:
            return f"s->{leaf.name}{at}"
        if function == "act" and leaf.name != "x":
            # In C any number except zero is true.
            truth = " != 0" if leaf.dtype == np.bool_ else ""
            return "t" if self.is_counted else f"t->{_context_name(leaf.name)}{at}{truth}"
        return f"{leaf.name}{at}"

    def _store(self, program: Program, leaf: Leaf, i: int) -> str | None:
        at = f"[{i}]" if leaf.shape else ""
        member = leaf.name.removeprefix("next_")
        if member in self._members and leaf.name.startswith("next_"):
            before = next(given for given in program.inputs if given.name == member)
            return None if before.ids.flat[i] == leaf.ids.flat[i] else f"s->{member}{at}"
        return f"info->{leaf.name.removeprefix('info_')}{at}" if leaf.name.startswith("info_") else f"{leaf.name}{at}"


def _narrow(graph: Graph) -> None:
    """Turn double intermediate results into float. With 64 bits enabled JAX computes some of them in double, such as
    those of the step's number."""
    double = np.dtype(np.float64)
    wide = [node for node, dtype in enumerate(graph.dtypes) if dtype == double]
    bits = [node for node, op in enumerate(graph.ops) if op == "bitcast"]
    if any(graph.ops[node] == "input" for node in wide) or any(
        double in (graph.dtypes[node], graph.dtypes[graph.args[node][0]]) for node in bits
    ):
        return
    for node in wide:
        graph.dtypes[node] = np.dtype(np.float32)
        if graph.is_constant(node):
            graph.values[node] = np.float32(graph.values[node])


def _act(controller: Controller, guard: Guard, state: GuardedState, x: Array, t: Any) -> dict[str, PyTree]:
    u, state, info = guarded_step.act(controller, guard, state, x, t)
    return {"state": state, "u": u, "info": _told(info), "code": state.code}


def _told(info: Info) -> dict[str, PyTree]:
    return {"cost": info.cost, "f_hat": info.f_hat, "guard": info.guard, "tuner": info.tuner}


def _observe(controller: Controller, guard: Guard, state: GuardedState, f_obs: Array) -> dict[str, PyTree]:
    state, code, _ = guarded_step.observe(controller, guard, state, f_obs)
    return {"state": state, "code": code}


def _observe_state(controller: Controller, guard: Guard, state: GuardedState, x_next: Array) -> dict[str, PyTree]:
    state, code, _ = guarded_step.observe_state(controller, guard, state, x_next)
    return {"state": state, "code": code}


def _resume(controller: Controller, guard: Guard, state: GuardedState) -> dict[str, PyTree]:
    return {"state": guarded_step.resume(controller, state)}


def _restore(controller: Controller, guard: Guard, state: GuardedState) -> dict[str, PyTree]:
    return {"state": guarded_step.restore(controller, state)}


def _settings(guard: Guard) -> list[str]:
    """Return the settings of a guard as text, one per line."""
    settings = {field.name: getattr(guard, field.name) for field in dataclasses.fields(guard)}
    return [f"{name}: {'off' if value is None else value}" for name, value in settings.items()]


def fields(tree: PyTree, root: str = "") -> list[Field]:
    """Return the members of a struct that holds a pytree."""
    named = leaf_names({root: tree} if root else {"state": tree})
    members = []
    for name, leaf in named:
        shape, dtype = jnp.shape(leaf), np.dtype(jnp.result_type(leaf))
        members.append(Field(_short(name) if not root else _context_name(name), shape, dtype))
    _check_names([field.name for field in members])
    return members


def struct_type(members: list[Field]) -> np.dtype:
    """Return the NumPy dtype of a C struct, with the same memory layout."""
    kinds = [(m.name, np.dtype(np.int32) if m.dtype == np.bool_ else m.dtype, m.shape) for m in members]
    return np.dtype(kinds, align=True)


def _short(name: str) -> str:
    """Return the name in C of a part of an agent's state: theta, tuner_y, last_u; other names are unchanged."""
    if name.startswith("state_controller_"):
        return name.removeprefix("state_controller_")
    name = re.sub(r"^state_(x|t|u|code)(?=_|$)", r"last_\1", name)
    return name.removeprefix("state_")


def _context_name(name: str) -> str:
    """Return the name in C of a part of a context: its own name, if C and C++ allow it."""
    part = re.sub(r"^(t|value)(_|$)", "", name) or "value"
    return part if part.isidentifier() and part not in _KEYWORDS else f"t_{part}"


_KEYWORDS = set(
    re.findall(
        r"\w+",
        "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const "
        "const_cast consteval constexpr constinit continue decltype default delete do double dynamic_cast else enum "
        "explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not "
        "not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires restrict return "
        "short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try "
        "typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq "
        "NAN INFINITY HUGE_VAL errno linux unix ",
    )
)
# Files of an export, headers of C, libraries, and targets that CMake reserves.
_TAKEN = set(
    re.findall(
        r"\w+",
        "main replay assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdarg "
        "stdbool stddef stdint stdio stdlib string tgmath time wchar wctype c m all clean help install package test ",
    )
)


def _check_names(names: list[str]) -> None:
    if len(set(names)) != len(names):
        raise ValueError(f"theta, a_hat, t: expected keys that make different names in C, got {sorted(names)}")


def _struct(name: str, members: list[Field]) -> list[str]:
    return ["typedef struct {", *(f"    {member.declared()};" for member in members), f"}} {name};"]


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def check_name(name: str) -> str:
    """Return `name` if it is a valid prefix in C; otherwise raise `ValueError`."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"name: expected lower-case letters, digits and _, starting with a letter, got {name!r}")
    if name in _TAKEN:
        raise ValueError(f"name: expected one that C, CMake and the other files of the export do not use, got {name!r}")
    return name
