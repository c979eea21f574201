"""`export_c`: a folder of C that a firmware project can take in as it is, with a recorded run to check it against."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..control import guarded_step
from ..control.contexts import context
from ..control.controller import Controller
from ..control.guard import Decision, Guard
from ..foundation import arguments
from ..foundation.errors import StoreError
from ..native.c.emit import literal, wrap
from ..native.firmware import Firmware, check_name
from ..problem.noise import Gaussian
from ..problem.scenario import Scenario
from ..simulation.simulator import simulate
from ..storage import files
from . import readme

MANIFEST = "selftune.json"
STEPS = 200
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
"""What the replay allows between this C and XLA, relative to the largest number of its kind."""


def export_c(
    controller: Controller,
    folder: str | os.PathLike[str],
    *,
    x: Any,
    theta: Any,
    a_hat: Any,
    t: Any = 0,
    dtype: str = "float32",
    name: str | None = None,
    guard: Guard | None = None,
    scenario: Scenario | None = None,
    overwrite: bool = False,
) -> Path:
    r"""Write a controller as C99 for a microcontroller: no heap, no globals, nothing of libc but math.h.

    The folder gets `NAME.h` and `NAME.c`, with a plain struct of state and `NAME_init`, `NAME_act`, `NAME_observe` and
    `NAME_observe_state` (the two ways to observe of `Agent`, which runs the same C); `main.c` and `replay.h`, which
    replay a recorded run and print the largest difference; a `CMakeLists.txt`; and a `README.md` with what a step
    costs. Returns the folder.

    **Arguments:**

    - `x`, `theta`, `a_hat`, `t`, `guard`: as in `Agent`; they are what `NAME_init` starts from.
    - `dtype`: `"float32"` or `"float64"` (for which JAX needs `jax_enable_x64`). The C computes in it throughout.
    - `name`: the prefix of everything in C; the folder's name by default.
    - `scenario`: its first 200 steps are recorded for the replay; by default the model by itself, with a little noise.
    - `overwrite`: also write over files that were not written here, or were changed since.

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
        ['CMakeLists.txt', 'README.md', 'cart.c', 'cart.h', 'main.c', 'replay.h', 'selftune.json']
    """
    folder = Path(folder)
    dtype = _dtype_name(dtype)
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise ValueError("dtype: expected 'float32' where JAX's jax_enable_x64 is off, got 'float64'")
    name = check_name(name if name is not None else re.sub(r"\W", "_", folder.resolve().name).lower())
    before = _check_folder(folder, overwrite)
    x, theta, a_hat = (_cast(value, dtype, kinds="fiu") for value in (x, theta, a_hat))
    t = _cast(context(t), dtype)
    guard = Guard() if guard is None else guard
    state = guarded_step.start(controller, guard, x, theta, a_hat, t)
    firmware = Firmware(controller, guard, state, name=name)
    scenario = _model_alone(firmware) if scenario is None else _checked(scenario, firmware)
    texts = {
        f"{name}.h": firmware.header(),
        f"{name}.c": firmware.source(),
        "replay.h": _replay(firmware, scenario),
        "main.c": _main(firmware),
        "CMakeLists.txt": _cmake(name),
    }
    costs = readme.costs(firmware, texts)
    texts["README.md"] = readme.text(firmware, costs, len(scenario), TOLERANCE[dtype])
    sums = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()}
    about = {"format": "selftune export", "version": 1, "name": name, "files": sums, "costs": costs}
    # The list first, with what was there: a folder that was left half-written is known as ours.
    files.write(folder / MANIFEST, files.as_json(about | {"before": before}))
    for path, text in texts.items():
        files.write(folder / path, text.encode())
    for path in before.keys() - sums.keys():  # of an export under another name
        if _checksum(folder / path) in before[path]:
            (folder / path).unlink()
    files.write(folder / MANIFEST, files.as_json(about))
    return folder


def _dtype_name(dtype: Any) -> str:
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in TOLERANCE:
        raise ValueError(f"dtype: expected 'float32' or 'float64', got {dtype!r}")
    return name


def _check_folder(folder: Path, overwrite: bool) -> dict[str, list[str]]:
    """The checksums of what an export left there; what is someone else's, or was changed since, is refused."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder}: expected a folder, and it is a file")
    if not folder.is_dir() or not any(folder.iterdir()):
        return {}
    hint = "choose another folder, or give overwrite=True"
    try:
        about = json.loads((folder / MANIFEST).read_bytes())
        written = {path: list(sums) for path, sums in about.get("before", {}).items()}
        for path, checksum in about["files"].items():
            written[path] = [*written.get(path, []), checksum]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        if overwrite:
            return {}
        raise StoreError(f"{folder}: not empty, and not written by export_c; {hint}") from None
    for path, sums in written.items():
        if not overwrite and (folder / path).exists() and _checksum(folder / path) not in sums:
            raise StoreError(f"{folder / path}: changed since it was written; {hint}")
    return written


def _checksum(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _cast(value: Any, dtype: str, kinds: str = "f") -> Any:
    """Numbers of these kinds in the dtype of the firmware; all else as it is."""

    def leaf(value: Any) -> Any:
        array = np.asarray(value)
        with np.errstate(over="ignore"):  # what is then not finite is refused by name
            return jnp.asarray(array.astype(dtype)) if array.dtype.kind in kinds else value

    return jax.tree.map(leaf, value, is_leaf=arguments.is_plain)


def _model_alone(firmware: Firmware) -> Scenario:
    """The model in place of the plant, with a little noise so that everything moves."""
    state, sizes, dtype = firmware.state, firmware.sizes, firmware.dtype
    w, v = (
        Gaussian(1e-3)(jax.random.key(seed), STEPS, size).astype(dtype) for seed, size in ((0, sizes.n), (1, sizes.k))
    )
    still = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (STEPS, *leaf.shape)), state.controller.a_hat)
    contexts = None
    if not firmware.is_counted:
        contexts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (STEPS, *leaf.shape)), state.t)
    return Scenario(state.x, still, w, v, contexts, steps=STEPS)


def _checked(scenario: Scenario, firmware: Firmware) -> Scenario:
    if not isinstance(scenario, Scenario):
        raise ValueError(f"scenario: expected a Scenario, got {arguments.describe(scenario)}")
    scenario = scenario.materialize()
    scenario = scenario[: min(STEPS, len(scenario))]
    t = None if firmware.is_counted else scenario.t
    a_star, w, v = (_cast(part, str(firmware.dtype)) for part in (scenario.a_star, scenario.w, scenario.v))
    return Scenario(_cast(scenario.x0, str(firmware.dtype)), a_star, w, v, t, steps=len(scenario))


def _replay(firmware: Firmware, scenario: Scenario) -> str:
    """What was measured at each step of a run of XLA, and what the controller made of it."""
    upper, state = firmware.name.upper(), firmware.state.controller
    start = {"theta": state.theta, "a_hat": state.a_hat}
    # By XLA: a replay made by the native engine would compare the exported C with itself.
    run = simulate(firmware.controller, scenario, **start, guard=firmware.guard, throw=False, engine="xla")
    refused = np.flatnonzero(np.asarray(run.guard) & Decision.REFUSED)
    why = f"the guard refused step {refused[0]}" if refused.size else run.result.message
    if refused.size or not run.result.ok:
        raise ValueError(f"scenario: expected a run that ends well, for the replay; {why}")
    observed = run.f if scenario.v is None else run.f + scenario.v
    tables = {
        ("x", "N"): run.x,
        ("f_obs", "K"): observed,
        ("u", "M"): run.u,
        ("theta", "D"): _flat(run.theta),
        ("a_hat", "P"): _flat(run.a_hat),
    }
    steps = len(scenario)
    lines = [
        f"/* A recorded run of {firmware.name}, by XLA in {firmware.dtype.name}: row i is what was used at step i. */",
        "#ifndef REPLAY_H",
        "#define REPLAY_H",
        "",
        f'#include "{firmware.name}.h"',
        "",
        f"#define REPLAY_STEPS {steps}",
        f"#define REPLAY_TOLERANCE {literal(firmware.dtype.type(TOLERANCE[firmware.dtype.name]), firmware.dtype)}",
        f"#define REPLAY_T(i) {'((int32_t)(i))' if firmware.is_counted else '(&replay_t[i])'}",
        "",
    ]
    for (table, size), rows in tables.items():
        lines.append(f"static const {firmware.real} replay_{table}[REPLAY_STEPS][{upper}_{size}] = {{")
        lines += wrap([f"{{{', '.join(literal(v, firmware.dtype) for v in np.asarray(row))}}}," for row in rows], 4)
        lines += ["};", ""]
    if not firmware.is_counted:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(scenario.t)]
        lines.append(f"static const {firmware.name}_context replay_t[REPLAY_STEPS] = {{")
        for i in range(steps):
            parts = []
            for field, leaf in zip(firmware.context_fields, leaves, strict=True):
                numbers = ", ".join(literal(v, field.dtype) for v in leaf[i].ravel())
                parts.append(f"{{{numbers}}}" if field.shape else numbers)
            lines += wrap([f"{{{', '.join(parts)}}},"], 4)
        lines += ["};", ""]
    return "\n".join([*lines, "#endif"]) + "\n"


def _flat(tree: Any) -> np.ndarray:
    rows = [np.asarray(leaf).reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(rows, axis=1)


def _main(firmware: Firmware) -> str:
    name, upper, real = firmware.name, firmware.name.upper(), firmware.real
    absolute = "fabsf" if real == "float" else "fabs"
    leaves = {
        "theta": [field for field in firmware.state_fields if re.match(r"theta(_|$)", field.name)],
        "a_hat": [field for field in firmware.state_fields if re.match(r"a_hat(_|$)", field.name)],
    }
    looks = []
    for table, members in leaves.items():
        begin = 0
        for field in members:
            member = f"s.{field.name}" if field.shape else f"&s.{field.name}"
            looks.append(f"look(&{table}, {member}, &replay_{table}[i][{begin}], {field.size});")
            begin += field.size
    return (
        "\n".join(
            [
                f"/* Replays a recorded run through {name} and prints the largest difference. */",
                f'#include "{name}.h"',
                '#include "replay.h"',
                "",
                "#include <math.h>",
                "#include <stdio.h>",
                "",
                "/* The largest difference of a kind of number, and the largest number. */",
                f"typedef struct {{ {real} difference, size; }} seen;",
                "",
                f"static void look(seen *kind, const {real} *got, const {real} *expected, int count)",
                "{",
                "    for (int i = 0; i < count; i++) {",
                f"        const {real} difference = {absolute}(got[i] - expected[i]), size = {absolute}(expected[i]);",
                "        /* written so that what is not a number counts as the largest */",
                "        if (!(difference <= kind->difference)) kind->difference = difference;",
                "        if (size > kind->size) kind->size = size;",
                "    }",
                "}",
                "",
                "int main(void)",
                "{",
                f"    static {name}_state s;",
                "    seen u_seen = {0, 0}, theta = {0, 0}, a_hat = {0, 0};",
                f"    {name}_init(&s);",
                "    for (int i = 0; i < REPLAY_STEPS; i++) {",
                f"        {real} u[{upper}_M];",
                *(f"        {line}" for line in looks),
                f"        const int acted = {name}_act(&s, replay_x[i], REPLAY_T(i), u, 0);",
                f"        look(&u_seen, u, replay_u[i], {upper}_M);",
                f"        const int observed = {name}_observe(&s, replay_f_obs[i]);",
                f"        if (acted != {upper}_OK || observed != {upper}_OK) {{",
                '            printf("step %d was refused: %d, %d\\n", i, acted, observed);',
                "            return 2;",
                "        }",
                "    }",
                f"    {real} largest = 0;",
                "    const seen kinds[3] = {u_seen, theta, a_hat};",
                "    for (int i = 0; i < 3; i++) {",
                f"        const {real} relative = kinds[i].difference / (kinds[i].size > 0 ? kinds[i].size : 1);",
                "        if (!(relative <= largest)) largest = relative;",
                "    }",
                '    printf("largest difference: %g\\n", (double)largest);',
                "    return largest <= REPLAY_TOLERANCE ? 0 : 1;",
                "}",
            ]
        )
        + "\n"
    )


def _cmake(name: str) -> str:
    return f"""# Written by selftune. `add_subdirectory` this folder and link {name}, or build the replay by itself:
#   cmake -B build && cmake --build build && ctest --test-dir build
cmake_minimum_required(VERSION 3.13)
project({name} C)

add_library({name} STATIC {name}.c)
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
set_target_properties({name} PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
find_library({name.upper()}_MATH m)
if({name.upper()}_MATH)
  target_link_libraries({name} PUBLIC m)
endif()

if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  enable_testing()
  add_executable(replay main.c)
  target_link_libraries(replay PRIVATE {name})
  set_target_properties(replay PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  add_test(NAME replay COMMAND replay)
endif()
"""
