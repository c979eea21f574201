"""`export_web`: a controller as a WebAssembly module, with the JavaScript around it and a recorded run to check it."""

import json
import os
from pathlib import Path
from typing import Any, Unpack

import jax
import numpy as np

from ..control import result_codes
from ..control.controller import Controller
from ..control.guard import Decision, Mode
from ..foundation.errors import ArgumentError
from ..native.c import webassembly
from ..native.c.templates import fill
from ..native.firmware import Field, Firmware, struct_type
from .exported_folder import Content, export
from .recorded_firmware import Exported, Options, Recording, copies_of, replay

TEMPLATES = Path(__file__).with_name("templates")
ARRAYS = {
    "float32": "Float32Array",
    "float64": "Float64Array",
    "bool": "Int32Array",  # a bool is an int in C
    "int32": "Int32Array",
    "uint32": "Uint32Array",
    "int64": "BigInt64Array",
    "uint64": "BigUint64Array",
}
"""The typed array of JavaScript for each kind of number."""


def export_web(controller: Controller, folder: str | os.PathLike[str], **options: Unpack[Options]) -> Path:
    r"""Write a controller as a WebAssembly module for browsers and Node.js, and return the folder.

    The module is compiled from the C of `export_c`, needs nothing from its host, and computes the same bits as `Agent`.
    A C compiler for WebAssembly is needed: `pip install 'selftune[compiler]'` brings one, and clang with wasi-libc is
    another.
    The folder contains:

    - `NAME.wasm`, and the C it is compiled from: `NAME.c`, `NAME.h` and `web.c`;
    - `NAME.mjs` and `NAME.d.mts`: the JavaScript module and its types, with `load`, and a class `Controller` whose
      methods correspond to those of `Agent`;
    - `check.mjs` and `replay.json`: a program for Node.js that replays a recorded run and compares every bit;
    - a `README.md` with an example.

    **Arguments:** as in `export_c`.

    !!! Example

        >>> import tempfile, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.1 * v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
        ... )
        >>> controller = st.Controller(system, tuner=st.MGAPS(0.05), estimator=st.GradientEstimator(0.1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = st.export_web(controller, f"{folder}/cart", x=[1.0], theta=[1.0], a_hat=[0.0])
        ...     names = sorted(path.name for path in made.iterdir())
        >>> print(*names[:4])
        README.md cart.c cart.d.mts cart.h
        >>> print(*names[4:])
        cart.mjs cart.wasm check.mjs replay.json selftune.json web.c
    """
    return export(_content, controller, folder, options)


def _content(exported: Exported) -> Content:
    firmware, name = exported.firmware, exported.name
    if name in ("web", "check"):
        raise ArgumentError("name", "one that the other files of the export do not use", f"{name!r}")
    sources = {f"{name}.h": exported.header(), f"{name}.c": firmware.source(), "web.c": _web_source(firmware)}
    module = webassembly.build(sources)
    files: dict[str, str | bytes] = {
        **sources,
        f"{name}.wasm": module,
        f"{name}.mjs": _javascript(firmware),
        f"{name}.d.mts": _types(firmware),
        "check.mjs": fill(TEMPLATES / "web_check.mjs.in", {"name": name}),
        "replay.json": _replay(exported),
        "README.md": _readme(firmware, exported.recording, len(module)),
    }
    return Content(files, {"size": len(module)})


def _web_source(firmware: Firmware) -> str:
    """Return `web.c`: a static state and buffers, and functions without pointers."""
    name, counted = firmware.name, firmware.is_counted
    structs = {"state": firmware.state_fields, "info": firmware.info_fields, "context": firmware.context_fields}
    places = [
        f"PLACED({name}_{struct}, {member}, {place});"
        for struct, members in structs.items()
        for member, place in _places(members).items()
    ]
    argument, passed = ("int32_t t", "t") if counted else ("void", "&context")
    values = {
        "name": name,
        "upper": name.upper(),
        "real": firmware.real,
        "places": "\n".join(places),
        "context": "" if counted else f"static {name}_context context;",
        "context_address": "" if counted else "EXPORT(context) void *web_context(void) { return &context; }",
        "act": f"EXPORT(act) int web_act({argument}) {{ return {name}_act(&s, x, {passed}, u, &report); }}",
    }
    return fill(TEMPLATES / "web.c.in", values)


def _places(members: list[Field]) -> dict[str, int]:
    """Return the distance of each member from the beginning of its struct, in bytes."""
    layout = struct_type(members).fields or {}
    return {name: int(field[1]) for name, field in layout.items()}


def _javascript(firmware: Firmware) -> str:
    values = {
        "name": firmware.name,
        "sizes": json.dumps(firmware.sizes._asdict()),
        "codes": json.dumps(_codes()),
        "decisions": json.dumps({str(decision.name): decision.value for decision in Decision}),
        "modes": json.dumps({mode.name: mode.value for mode in Mode}),
        "state_members": _members(firmware.state_fields),
        "info_members": _members(firmware.info_fields),
        "context_members": "null" if firmware.is_counted else _members(firmware.context_fields),
        "real_array": ARRAYS[firmware.dtype.name],
        "start_members": json.dumps({field.name: copies_of(firmware, field) for field in _start_fields(firmware)}),
        "about_t": "the number of the step" if firmware.is_counted else "the context of the step, an object",
        "default_t": " = 0" if firmware.is_counted else "",
    }
    return fill(TEMPLATES / "web.mjs.in", values)


def _start_fields(firmware: Firmware) -> list[Field]:
    return [*firmware.theta_fields, *firmware.a_hat_fields]


def _codes() -> dict[str, int]:
    names = {value: name for name, value in vars(result_codes).items() if name.isupper() and isinstance(value, int)}
    return {names[code]: code for code in result_codes.OF_STEPS}


def _members(fields: list[Field]) -> str:
    places = _places(fields)
    lines = [
        f"  {field.name}: [{ARRAYS[field.dtype.name]}, {places[field.name]}, {field.size if field.shape else 'null'}],"
        for field in fields
    ]
    return "\n".join(["{", *lines, "}"])


def _types(firmware: Firmware) -> str:
    context = "export type Context = number;"
    if not firmware.is_counted:
        members = [f"  {field.name}: {_given_type(field)};" for field in firmware.context_fields]
        context = "\n".join(["export interface Context {", *members, "}"])
    values = {
        "name": firmware.name,
        "code_names": _union(_codes()),
        "decision_names": _union(str(decision.name) for decision in Decision),
        "mode_names": _union(mode.name for mode in Mode),
        "state_types": "\n  ".join(f"readonly {field.name}: {_type(field)};" for field in firmware.state_fields),
        "info_types": "\n  ".join(f"readonly {field.name}: {_type(field)};" for field in firmware.info_fields),
        "context_type": context,
        "start_types": "\n  ".join(f"{field.name}?: {_given_type(field)};" for field in _start_fields(firmware)),
        "optional": "?" if firmware.is_counted else "",
        "real_array": ARRAYS[firmware.dtype.name],
    }
    return fill(TEMPLATES / "web.d.mts.in", values)


def _union(names: Any) -> str:
    return " | ".join(f'"{name}"' for name in names)


def _single(field: Field) -> str:
    return "bigint" if field.dtype.itemsize == 8 and field.dtype.kind in "iu" else "number"


def _type(field: Field) -> str:
    return ARRAYS[field.dtype.name] if field.shape else _single(field)


def _given_type(field: Field) -> str:
    kinds = f"{_single(field)} | boolean" if field.dtype.kind == "b" else _single(field)
    return f"ArrayLike<{kinds}>" if field.shape else kinds


def _replay(exported: Exported) -> str:
    """Return `replay.json`: the recorded measurements, and the results of the same C on this machine. The text of a
    number has the digits of a double, so that every bit survives."""
    firmware, recording = exported.firmware, exported.recording
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(recording.t)]
    contexts = None
    if not firmware.is_counted:
        contexts = [
            {
                field.name: leaf[i].tolist() if field.shape else leaf[i].item()
                for field, leaf in _named(firmware, leaves)
            }
            for i in range(recording.steps)
        ]
    replayed = replay(exported, infer=False)
    values = {
        "x": recording.x.tolist(),
        "f_obs": recording.f_obs.tolist(),
        "t": contexts,
        "theta_names": [field.name for field in firmware.theta_fields],
        "a_hat_names": [field.name for field in firmware.a_hat_fields],
        "u": replayed.u.tolist(),
        "theta": replayed.theta[:-1].tolist(),
        "a_hat": replayed.a_hat.tolist(),
    }
    return json.dumps(values, allow_nan=False) + "\n"


def _named(firmware: Firmware, leaves: list[np.ndarray]) -> list[tuple[Field, np.ndarray]]:
    """Return the members of a context with their values for all steps, (T, size) or (T,)."""
    return [
        (field, leaf.reshape(len(leaf), -1) if field.shape else leaf)
        for field, leaf in zip(firmware.context_fields, leaves, strict=True)
    ]


def _readme(firmware: Firmware, recording: Recording, size: int) -> str:
    name, sizes = firmware.name, firmware.sizes
    contexts = {field.name: [0] * field.size if field.shape else 0 for field in firmware.context_fields}
    values = {
        "name": name,
        **{letter: getattr(sizes, letter) for letter in ("n", "m", "d", "p")},
        "wasm_bytes": f"{size:,}",
        "x": json.dumps([0] * sizes.q),
        "t": "step" if firmware.is_counted else json.dumps(contexts),
        "theta": firmware.theta_fields[0].name,
        "steps": recording.steps,
        "command": webassembly.command(f"{name}.c", "web.c", output=f"{name}.wasm"),
    }
    return fill(TEMPLATES / "README.web.md.in", values)
