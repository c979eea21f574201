"""`export_c`: a folder of C that a firmware project can use unchanged, with a recorded run to check it."""

import os
from pathlib import Path
from typing import Unpack

import jax
import numpy as np

from ..control.controller import Controller
from ..native.c.emit import literal
from ..native.c.templates import fill, wrap
from ..native.firmware import Firmware
from . import proof, readme
from .exported_folder import Content, export
from .recorded_firmware import Exported, Options, Recording

TEMPLATES = Path(__file__).with_name("templates")
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
"""The largest difference between the C and XLA that the replay allows, relative to the largest number of its kind."""


def export_c(controller: Controller, folder: str | os.PathLike[str], **options: Unpack[Options]) -> Path:
    r"""Write a controller as C99 for a microcontroller, and return the folder.

    The C uses no heap, no globals, and of libc only exact functions of math.h, such as sqrt. `Agent` runs the same C.
    The folder contains:

    - `NAME.h` and `NAME.c`: a plain struct for the state, and the functions `NAME_init`, `NAME_act`, `NAME_observe` and
      `NAME_observe_state`, which correspond to the methods of `Agent`;
    - `main.c` and `replay.h`: a program that replays a recorded run and prints the largest difference;
    - `proof.c`: what the analyser Frama-C proves about the C; the README has the command;
    - `CMakeLists.txt`, and a `README.md` with the cost of a step in memory and operations.

    **Arguments:**

    - `x`, `theta`, `a_hat`, `t`, `guard`: as in `Agent`; `NAME_init` starts from these values.
    - `dtype`: `"float32"` or `"float64"`, the type of all floating-point numbers in the C. `"float64"` needs JAX's
      `jax_enable_x64`.
    - `name`: the prefix of all names in C; by default the folder's name.
    - `scenario`: its first 200 steps are recorded for the replay. By default, the model replaces the plant, with a
      little noise.
    - `dt`: the sampling period in seconds. `export_fmu` and other targets with a clock of their own need it.
    - `signals`: the name and unit of each number, as `models.Signal`, in lists by kind: `"measured"`, `"reference"`,
      `"u"`, `"theta"` and `"a_hat"`. `Loop` gives them.
    - `overwrite`: also overwrite files that no export wrote, or that were changed since.

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
        ...     made = st.export_c(controller, f"{folder}/cart", x=[1.0], theta=[1.0], a_hat=[0.0])
        ...     sorted(path.name for path in made.iterdir())
        ['CMakeLists.txt', 'README.md', 'cart.c', 'cart.h', 'main.c', 'proof.c', 'replay.h', 'selftune.json']
    """
    return export(_content, controller, folder, options)


def _content(exported: Exported) -> Content:
    firmware, name = exported.firmware, exported.name
    texts = {
        f"{name}.h": exported.header(),
        f"{name}.c": firmware.source(),
        "replay.h": _replay(firmware, exported.recording),
        "main.c": _main(firmware),
        "proof.c": proof.source(firmware),
        "CMakeLists.txt": fill(TEMPLATES / "CMakeLists.txt.in", {"name": name, "upper": name.upper()}),
    }
    costs = readme.costs(firmware, texts)
    texts["README.md"] = readme.text(firmware, costs, exported.recording.steps, TOLERANCE[firmware.dtype.name])
    return Content({**texts}, {"costs": costs})


def _replay(firmware: Firmware, recording: Recording) -> str:
    """Return `replay.h`: the recorded run as tables."""
    upper = firmware.name.upper()
    tables = {
        ("x", "Q"): recording.x,
        ("f_obs", "K"): recording.f_obs,
        ("u", "M"): recording.u,
        ("theta", "D"): recording.theta,
        ("a_hat", "P"): recording.a_hat,
    }
    lines = []
    for (table, size), rows in tables.items():
        lines.append(f"static const {firmware.real} replay_{table}[REPLAY_STEPS][{upper}_{size}] = {{")
        lines += wrap([f"{{{', '.join(literal(v, firmware.dtype) for v in row)}}}," for row in rows], 4)
        lines += ["};", ""]
    if not firmware.is_counted:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(recording.t)]
        lines.append(f"static const {firmware.name}_context replay_t[REPLAY_STEPS] = {{")
        for i in range(recording.steps):
            parts = []
            for field, leaf in zip(firmware.context_fields, leaves, strict=True):
                numbers = ", ".join(literal(v, field.dtype) for v in leaf[i].ravel())
                parts.append(f"{{{numbers}}}" if field.shape else numbers)
            lines += wrap([f"{{{', '.join(parts)}}},"], 4)
        lines += ["};", ""]
    values = {
        "name": firmware.name,
        "dtype": firmware.dtype.name,
        "steps": recording.steps,
        "tolerance": literal(firmware.dtype.type(TOLERANCE[firmware.dtype.name]), firmware.dtype),
        "context": "((int32_t)(i))" if firmware.is_counted else "(&replay_t[i])",
        "tables": "\n".join(lines),
    }
    return fill(TEMPLATES / "replay.h.in", values)


def _main(firmware: Firmware) -> str:
    """Return `main.c`, the program that replays the run."""
    comparisons = []
    for table, fields in {"theta": firmware.theta_fields, "a_hat": firmware.a_hat_fields}.items():
        begin = 0
        for field in fields:
            member = f"s.{field.name}" if field.shape else f"&s.{field.name}"
            comparisons.append(f"compare(&{table}, {member}, &replay_{table}[i][{begin}], {field.size});")
            begin += field.size
    is_single = firmware.real == "float"
    values = {
        "name": firmware.name,
        "upper": firmware.name.upper(),
        "real": firmware.real,
        "bits": "uint32_t" if is_single else "uint64_t",
        "exponent": "UINT32_C(0x7f800000)" if is_single else "UINT64_C(0x7ff0000000000000)",
        "absolute": "fabsf" if is_single else "fabs",
        "comparisons": comparisons,
    }
    return fill(TEMPLATES / "main.c.in", values)
