"""A controller as portable C: a struct for the state, and `init`, `act`, `observe`."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..control import guarded_step, result_codes
from ..control.controller import Controller, Info
from ..control.guard import Decision, Guard, Mode
from ..control.guarded_step import GuardedState
from ..foundation import safe_text
from ..foundation.errors import ArgumentError
from ..problem.system import AbstractSystem
from . import reserved_names
from .c.emit import TYPES, Writer, literal
from .c.templates import fill, wrap
from .lowering.from_jaxpr import Leaf, Program, leaf_names
from .lowering.graph import Graph
from .step import lower_step

TEMPLATES = Path(__file__).with_name("templates")


@dataclasses.dataclass(frozen=True)
class Field:
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
        members = jax.tree.unflatten(jax.tree.structure(state), self.state_fields)
        self.theta_fields: list[Field] = jax.tree.leaves(members.theta)
        self.a_hat_fields: list[Field] = jax.tree.leaves(members.a_hat)
        measured = jax.ShapeDtypeStruct((self.sizes.q,), self.dtype)
        plain = jax.tree.structure(state.t) == jax.tree.structure(0)
        self.is_counted = plain and jnp.ndim(state.t) == 0 and jnp.result_type(state.t) == jnp.int32
        """Whether the context is the number of the step."""
        self.context_fields = [] if self.is_counted else fields(state.t, root="value")
        residual = jax.ShapeDtypeStruct((self.sizes.k,), self.dtype)
        self._prepared: dict[Callable[[AbstractSystem], AbstractSystem], AbstractSystem] = {}
        self.programs: dict[str, Program] = {
            "act": self._lower(self._act, x=measured, t=state.t),
            "observe": self._lower(_observe, f_obs=residual),
            "observe_state": self._lower(_observe_state, x_next=measured),
            "resume": self._lower(_resume),
            "restore": self._lower(_restore),
            "clear": self._lower(_clear),
        }

        # Without u, which `act` returns separately.
        self.info_fields = fields(self.programs["act"].results["info"])

    def _act(self, controller: Controller, guard: Guard, state: GuardedState, x: Array, t: Any) -> dict[str, PyTree]:
        u, state, info = guarded_step.act(controller, guard, state, x, t)
        self.info_structure = jax.tree.structure(info)
        return {"state": state, "u": u, "info": _told(info), "code": state.code}

    def _lower(self, function: Callable[..., dict[str, PyTree]], **inputs: Any) -> Program:
        def make(prepare: Callable[[AbstractSystem], AbstractSystem]):
            # The programs share the system, so that JAX traces its functions once.
            if prepare not in self._prepared:
                self._prepared[prepare] = prepare(self.controller.system)
            system = self._prepared[prepare]
            return partial(function, eqx.tree_at(lambda c: c.system, self.controller, system), self.guard)

        program = lower_step(
            make, {"state": self.state, **inputs}, in_memory=lambda group, size: group in ("state", "info")
        )
        if self.dtype == np.float32:
            _narrow(program.graph)
        return program._replace(
            inputs=[self._renamed(leaf) for leaf in program.inputs],
            outputs=[self._renamed(leaf, "next_") for leaf in program.outputs],
        )

    def _renamed(self, leaf: Leaf, prefix: str = "") -> Leaf:
        """Return a leaf of the state with the name of its member of the struct; other leaves are unchanged."""
        return leaf._replace(name=prefix + self.state_fields[leaf.position].name) if leaf.group == "state" else leaf

    def header(self, about: Mapping[str, Sequence[str]] | None = None) -> str:
        """Return the text of `NAME.h`. `about`: lists of the names of numbers, by the array that contains them."""
        name, upper = self.name, self.name.upper()
        about_context = "/* The context of a step: the data that vary with time. */"
        context = [about_context, *_struct(f"{name}_context", self.context_fields), ""]
        functions = ("init", "observe", "observe_state", "pause", "freeze", "resume", "restore", "clear")
        values = {
            "name": name,
            "upper": upper,
            "sizes": _defines(upper, {letter.upper(): size for letter, size in self.sizes._asdict().items()}),
            "about": "\n".join(_listed(about or {})),
            "settings": "\n".join(f"   {line}" for line in _settings(self.guard)),
            "decisions": _defines(upper, {str(decision.name): decision.value for decision in Decision}),
            "modes": _defines(upper, {mode.name: mode.value for mode in Mode}),
            "ok": result_codes.OK,
            "diverged": result_codes.DIVERGED,
            "non_finite": result_codes.NON_FINITE,
            "safe": result_codes.SAFE,
            "outlier": result_codes.OUTLIER,
            "repeated": result_codes.REPEATED,
            "stuck": result_codes.STUCK,
            "out_of_range": result_codes.OUT_OF_RANGE,
            "context": "" if self.is_counted else "\n".join(context),
            "state": "\n".join(_struct(f"{name}_state", self.state_fields)),
            "info": "\n".join(_struct(f"{name}_info", self.info_fields)),
            "act": [f"{self.signature('act')};"],
            **{function: self.signature(function) for function in functions},
        }
        return fill(TEMPLATES / "firmware.h.in", values)

    def signature(self, function: str) -> str:
        name, upper, real = self.name, self.name.upper(), self.real
        context = "int32_t t" if self.is_counted else f"const {name}_context *t"
        arguments = {
            "act": f", const {real} x[{upper}_Q], {context}, {real} u[{upper}_M], {name}_info *info",
            "observe": f", const {real} f_obs[{upper}_K]",
            "observe_state": f", const {real} x_next[{upper}_Q]",
        }
        kind = "int" if function in ("act", "observe", "observe_state") else "void"
        return f"{kind} {name}_{function}({name}_state *s{arguments.get(function, '')})"

    def source(self) -> str:
        """Return the text of `NAME.c`."""
        helpers: dict[str, str] = {}
        functions: list[str] = []
        for function, program in self.programs.items():
            before = [leaf for leaf in program.inputs if leaf.group == "state"]
            writer = Writer(
                program, self._load, partial(self._store, before), share_divisors=True, name=f"{self.name}_{function}"
            )
            body = writer.body()
            helpers |= body.helpers
            info_stores, code = body.stores.pop("info", []), body.stores.pop("code", [])
            functions += [
                *wrap([self.signature(function)], 0),
                "{",
                *wrap(body.loads + body.statements, 4),
                *wrap([line for lines in body.stores.values() for line in lines], 4),
                *(["    if (info) {", *wrap(info_stores, 8), "    }"] if info_stores else []),
                *(f"    return {line.removeprefix('code = ')}" for line in code),
                "}",
                "",
            ]
        for function, mode in {"pause": Mode.PAUSED, "freeze": Mode.FROZEN}.items():
            line = f"    s->guard_mode = {self.name.upper()}_{mode.name};"
            functions += [self.signature(function), "{", line, "}", ""]
        values = {
            "name": self.name,
            "helpers": "\n".join(helpers.values()),
            "signature": self.signature("init"),
            "initial": self._initial(),
            "functions": "\n".join(functions),
        }
        return fill(TEMPLATES / "firmware.c.in", values)

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

    def _load(self, leaf: Leaf, i: int) -> str:
        at = f"[{i}]" if leaf.shape else ""
        if leaf.group == "state":
            return f"s->{leaf.name}{at}"
        if leaf.group == "t":
            # In C any number except zero is true.
            truth = " != 0" if leaf.dtype == np.bool_ else ""
            return "t" if self.is_counted else f"t->{self.context_fields[leaf.position].name}{at}{truth}"
        return f"{leaf.name}{at}"

    def _store(self, before: list[Leaf], leaf: Leaf, i: int) -> str | None:
        """Return the place of a result; `before` is the state before the call, and unchanged numbers are not stored."""
        at = f"[{i}]" if leaf.shape else ""
        if leaf.group == "state":
            same = before[leaf.position].ids.flat[i] == leaf.ids.flat[i]
            return None if same else f"s->{before[leaf.position].name}{at}"
        return f"info->{self.info_fields[leaf.position].name}{at}" if leaf.group == "info" else f"{leaf.name}{at}"


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


def _told(info: Info) -> dict[str, PyTree]:
    told = {"cost": info.cost, "f_hat": info.f_hat, "guard": info.guard, "tuner": info.tuner}
    return told if info.x_hat is None else told | {"x_hat": info.x_hat}


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


def _clear(controller: Controller, guard: Guard, state: GuardedState) -> dict[str, PyTree]:
    return {"state": guarded_step.clear(state)}


def _settings(guard: Guard) -> list[str]:
    """Return the settings of a guard as text, one per line."""
    settings = {field.name: getattr(guard, field.name) for field in dataclasses.fields(guard)}
    return [f"{name}: {_setting(value)}" for name, value in settings.items()]


def _listed(about: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a comment in C with the names of the numbers of arrays."""
    if not about:
        return []
    lines = ["", "/* The numbers of the arrays, in their order:"]
    for array, names in about.items():
        lines += wrap([f"{array}: {', '.join(f'[{i}] {_in_comment(name)}' for i, name in enumerate(names))}"], 3)
    return [*lines[:-1], f"{lines[-1]} */"]


def _in_comment(text: str) -> str:
    """Return a text, such as the name of a joint in a file, that can neither end a comment nor break its line."""
    return (
        " ".join(safe_text.printable(text).split())
        .replace("*/", "* /")
        .replace("/*", "/ *")
        .replace("\\", "/")
        .replace("??/", "? ?/")
    )


def _setting(value: Any) -> str:
    if callable(value):
        return f"the function {getattr(value, '__qualname__', type(value).__qualname__)}"
    return "off" if value is None else f"{value}"


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
    part = name.removeprefix("value").removeprefix("_") or "value"
    return part if part.isidentifier() and part not in reserved_names.C_AND_CPP else f"t_{part}"


def _check_names(names: list[str]) -> None:
    if len(set(names)) != len(names):
        raise ArgumentError("theta, a_hat, t", "keys that make different names in C", f"{sorted(names)}")


def _struct(name: str, members: list[Field]) -> list[str]:
    return ["typedef struct {", *(f"    {member.declared()};" for member in members), f"}} {name};"]


def _defines(prefix: str, numbers: dict[str, int]) -> str:
    return "\n".join(f"#define {prefix}_{name} {number}" for name, number in numbers.items())


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def check_name(name: str) -> str:
    """Return `name` if it is a valid prefix in C; otherwise raise `ValueError`."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ArgumentError("name", "lower-case letters, digits and _, starting with a letter", f"{name!r}")
    if name in reserved_names.FILES:
        raise ArgumentError("name", "one that C, CMake and the other files of the export do not use", f"{name!r}")
    return name
