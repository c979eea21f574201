"""`selftune export`: write a controller of the user's module for another program. Initial values come from options or
the module; a `Loop` has its own."""

import json
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.table import Table

import selftune as st

from ..export.exported_folder import MANIFEST
from ..export.readme import number
from ..foundation.errors import InputError, OverwriteError
from . import targets
from .options import Target
from .screen import new_table


def export(target: str, folder: Path, given: dict[str, str | None], kind: Target, **options: Any) -> dict[str, Any]:
    """Write the files of an export and return the manifest of the folder."""
    function = f"export_{kind.value}"
    if Path(target).suffix in (".urdf", ".xml", ".mjcf"):
        raise InputError(
            f"{target}: a robot file is not a controller. Tune and export it in one call: selftune tune {target} "
            f"--export -o {folder}"
        )
    place, name = targets.split(target, "NAME", "cart/cart.py:controller")
    values: dict[str, Any] = {key: _read(key, text) for key, text in given.items() if text is not None}
    with targets.importable(place) as load:
        module = targets.blaming(target, "cannot be imported", load)
        found = targets.find(target, module, name, st.Controller | st.Loop, "a selftune.Controller or Loop")
        if isinstance(found, st.Loop):
            if wrong := values.keys() - {"theta", "a_hat"}:
                raise InputError(f"{target}: --{min(wrong)} is not allowed for a Loop, which knows the value")
            write = partial(getattr(found, function), folder)
        else:
            values = _start(target, place, module, values)
            write = partial(getattr(st, function), found, folder)
        try:
            targets.blaming(target, "cannot be exported", lambda: write(**values, **options))
        except OverwriteError as error:
            raise OverwriteError(error.problem, permission="--overwrite") from None
    return json.loads((folder / MANIFEST).read_bytes())


def own_options(kind: Target, fields: dict[str, str | None], platforms: list[str]) -> dict[str, list[str]]:
    """Return the options that only this target has: the platforms of an FMU's binaries, and for PX4 and Crazyflie the
    fields of a robot's messages that the controller reads and writes."""
    if platforms and kind is not Target.FMU:
        raise InputError("--platform: only for the target fmu")
    if kind in (Target.PX4, Target.CRAZYFLIE):
        if missing := [name for name, text in fields.items() if text is None]:
            raise InputError(f"--{missing[0]}: the target {kind.value} needs the fields of the {missing[0]}")
        return {name: [field.strip() for field in (text or "").split(",")] for name, text in fields.items()}
    if wrong := [name for name, text in fields.items() if text is not None]:
        raise InputError(f"--{wrong[0]}: only for the targets px4 and crazyflie")
    return {"platforms": platforms} if platforms else {}


def _start(target: str, place: str, module: ModuleType, values: dict[str, Any]) -> dict[str, Any]:
    """Return the start values of a controller: those of options first, then those of the module."""
    found = {key: getattr(module, key) for key in ("x", "theta", "a_hat", "t", "guard", "dt") if hasattr(module, key)}
    for key in ("x", "theta", "a_hat"):
        if key not in found | values:
            option = key.replace("_", "-")
            raise InputError(f"{target}: {key} is missing: give --{option}, or define {key} in {place}")
    return found | values


def table(about: dict[str, Any]) -> Table:
    costs = about["costs"]
    functions = costs["functions"]
    rows = new_table(
        f"cost of one call, {costs['dtype']}", "", *(f"{about['name']}_{function}" for function in functions)
    )
    for kind in functions["act"]:
        rows.add_row(kind, *(number(counts[kind]) for counts in functions.values()))
    return rows


def summary(kind: Target, about: dict[str, Any], folder: Path) -> str:
    """Return the line about the written files: their size, or how to check them."""
    if kind is Target.C:
        return sizes(about)
    if kind is Target.WEB:
        return f"{about['size']:,} bytes of WebAssembly, check it with: node {folder / 'check.mjs'}"
    if kind is Target.ARDUINO:
        return f"at most {about['ram']:,} bytes of RAM, check it on the board with: {folder / 'examples/Replay'}"
    if kind is not Target.FMU:
        return f"compiled in selftune's tests, not run: read {folder / 'README.md'} first"
    return f"binaries for {', '.join(about['platforms'])}, check them with: python {folder / 'check.py'}"


def sizes(about: dict[str, Any]) -> str:
    costs = about["costs"]
    measured = "" if costs["flash"] is None else f", flash {costs['flash']:,} bytes; compiled by {costs['compiler']}"
    return f"RAM {costs['state']:,} bytes{measured}"


def _read(name: str, text: str) -> Any:
    """Parse JSON or comma-separated numbers. A single number becomes a vector, except for t."""
    for form in (text, f"[{text}]"):
        try:
            value = json.loads(form)
        except ValueError:
            continue
        return [value] if name not in ("t", "dt") and isinstance(value, (int, float)) else value
    raise InputError(f"--{name.replace('_', '-')}: expected numbers, such as 0,0, or JSON, got {text!r}")
