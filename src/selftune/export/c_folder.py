"""`export_c`: a folder of C that a firmware project can use unchanged, with a recorded run to check it."""

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
from ..foundation import arguments, jax_settings
from ..foundation.errors import ArgumentError, OverwriteError, StoreError
from ..native.c.emit import literal
from ..native.c.templates import fill, wrap
from ..native.firmware import Firmware, check_name
from ..problem.noise import Gaussian
from ..problem.scenario import Scenario
from ..simulation.simulator import simulate
from ..storage import files
from . import readme

TEMPLATES = Path(__file__).with_name("templates")
MANIFEST = "selftune.json"
STEPS = 200
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
"""The largest difference between the C and XLA that the replay allows, relative to the largest number of its kind."""


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
    r"""Write a controller as C99 for a microcontroller, and return the folder.

    The C uses no heap, no globals, and of libc only exact functions of math.h, such as sqrt. `Agent` runs the same C.
    The folder contains:

    - `NAME.h` and `NAME.c`: a plain struct for the state, and the functions `NAME_init`, `NAME_act`, `NAME_observe` and
      `NAME_observe_state`, which correspond to the methods of `Agent`;
    - `main.c` and `replay.h`: a program that replays a recorded run and prints the largest difference;
    - `CMakeLists.txt`, and a `README.md` with the cost of a step in memory and operations.

    **Arguments:**

    - `x`, `theta`, `a_hat`, `t`, `guard`: as in `Agent`; `NAME_init` starts from these values.
    - `dtype`: `"float32"` or `"float64"`, the type of all floating-point numbers in the C. `"float64"` needs JAX's
      `jax_enable_x64`.
    - `name`: the prefix of all names in C; by default the folder's name.
    - `scenario`: its first 200 steps are recorded for the replay. By default, the model replaces the plant, with a
      little noise.
    - `overwrite`: also overwrite files that `export_c` did not write, or that were changed since.

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
    if dtype == "float64" and not jax_settings.read("jax_enable_x64"):
        raise ArgumentError("dtype", "'float32' because JAX's jax_enable_x64 is off", "'float64'")
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
        "CMakeLists.txt": fill(TEMPLATES / "CMakeLists.txt.in", {"name": name, "upper": name.upper()}),
    }
    costs = readme.costs(firmware, texts)
    texts["README.md"] = readme.text(firmware, costs, len(scenario), TOLERANCE[dtype])
    sums = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()}
    about = {"format": "selftune export", "version": 1, "name": name, "files": sums, "costs": costs}
    # Write the list of files first, with the old ones, so that a half-written folder is still known as an export.
    files.write(folder / MANIFEST, files.as_json(about | {"before": before}))
    for path, text in texts.items():
        files.write(folder / path, text.encode())
    for path in before.keys() - sums.keys():  # files of an earlier export under another name
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
        raise ArgumentError("dtype", "'float32' or 'float64'", f"{dtype!r}")
    return name


def _check_folder(folder: Path, overwrite: bool) -> dict[str, list[str]]:
    """Return the checksums of the files of an earlier export; raise `StoreError` for other or changed files."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder}: expected a folder, got a file")
    if not folder.is_dir() or not any(folder.iterdir()):
        return {}
    try:
        about = json.loads((folder / MANIFEST).read_bytes())
        written = {path: list(sums) for path, sums in about.get("before", {}).items()}
        for path, checksum in about["files"].items():
            written[path] = [*written.get(path, []), checksum]
        # Such a file may come from anywhere: only names of files in this folder are believed.
        if strange := [path for path in written if not re.fullmatch(r"\w+\.(c|h|md|txt)", path, re.ASCII)]:
            raise ValueError(strange)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        if overwrite:
            return {}
        raise OverwriteError(f"{folder}: not empty, and not written by export_c") from None
    for path, sums in written.items():
        if not overwrite and (folder / path).exists() and _checksum(folder / path) not in sums:
            raise OverwriteError(f"{folder / path}: changed since it was written")
    return written


def _checksum(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _cast(value: Any, dtype: str, kinds: str = "f") -> Any:
    """Return numbers of these kinds in the dtype of the firmware; other values are unchanged."""

    def leaf(value: Any) -> Any:
        array = np.asarray(value)
        with np.errstate(over="ignore"):  # an overflow becomes infinite, which a later check reports
            return jnp.asarray(array.astype(dtype)) if array.dtype.kind in kinds else value

    return jax.tree.map(leaf, value, is_leaf=arguments.is_plain)


def _model_alone(firmware: Firmware) -> Scenario:
    """Return a scenario with the model as the plant, and a little noise so that all numbers change."""
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
    arguments.instance("scenario", scenario, Scenario)
    scenario = scenario.materialize()
    scenario = scenario[: min(STEPS, len(scenario))]
    t = None if firmware.is_counted else _cast(scenario.t, str(firmware.dtype))
    a_star, w, v, noise = (_cast(part, str(firmware.dtype)) for part in scenario.sources)
    x0 = _cast(scenario.x0, str(firmware.dtype))
    return Scenario(x0, a_star, w, v, t, steps=len(scenario), measurement_noise=noise)


def _replay(firmware: Firmware, scenario: Scenario) -> str:
    """Return `replay.h`: the measurements of each step of a run by XLA, and the controller's results."""
    upper, state = firmware.name.upper(), firmware.state.controller
    start = {"theta": state.theta, "a_hat": state.a_hat}
    # Use XLA: a replay by the native engine would compare the exported C with itself.
    run = simulate(firmware.controller, scenario, **start, guard=firmware.guard, throw=False, engine="xla")
    refused = np.flatnonzero(np.asarray(run.guard) & Decision.REFUSED)
    why = f"the guard refused step {refused[0]}" if refused.size else run.result.message
    if refused.size or not run.outcome.ok:
        raise ArgumentError("scenario", "a run without failures, for the replay", f"one in which {why}")
    observed = run.f if scenario.v is None else run.f + scenario.v
    tables = {
        ("x", "Q"): run.x if run.recorded["measured"] is None else run.measured,
        ("f_obs", "K"): observed,
        ("u", "M"): run.u,
        ("theta", "D"): _flat(run.theta),
        ("a_hat", "P"): _flat(run.a_hat),
    }
    lines = []
    for (table, size), rows in tables.items():
        lines.append(f"static const {firmware.real} replay_{table}[REPLAY_STEPS][{upper}_{size}] = {{")
        lines += wrap([f"{{{', '.join(literal(v, firmware.dtype) for v in np.asarray(row))}}}," for row in rows], 4)
        lines += ["};", ""]
    if not firmware.is_counted:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(scenario.t)]
        lines.append(f"static const {firmware.name}_context replay_t[REPLAY_STEPS] = {{")
        for i in range(len(scenario)):
            parts = []
            for field, leaf in zip(firmware.context_fields, leaves, strict=True):
                numbers = ", ".join(literal(v, field.dtype) for v in leaf[i].ravel())
                parts.append(f"{{{numbers}}}" if field.shape else numbers)
            lines += wrap([f"{{{', '.join(parts)}}},"], 4)
        lines += ["};", ""]
    values = {
        "name": firmware.name,
        "dtype": firmware.dtype.name,
        "steps": len(scenario),
        "tolerance": literal(firmware.dtype.type(TOLERANCE[firmware.dtype.name]), firmware.dtype),
        "context": "((int32_t)(i))" if firmware.is_counted else "(&replay_t[i])",
        "tables": "\n".join(lines),
    }
    return fill(TEMPLATES / "replay.h.in", values)


def _flat(tree: Any) -> np.ndarray:
    rows = [np.asarray(leaf).reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(rows, axis=1)


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
