"""`selftune export`: write a controller of the user's module as C or for browsers. Initial values come from options or
the module."""

import json
from pathlib import Path
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
    write = st.export_c if kind is Target.C else st.export_web
    place, name = targets.split(target, "CONTROLLER", "cart/cart.py:controller")
    values: dict[str, Any] = {key: _read(key, text) for key, text in given.items() if text is not None}
    with targets.importable(place) as load:
        module = targets.blaming(target, "cannot be imported", load)
        controller = targets.find(target, module, name, st.Controller, "a selftune.Controller")
        for key in given.keys() - values.keys():
            if hasattr(module, key):
                values[key] = getattr(module, key)
            elif key != "t":
                option = key.replace("_", "-")
                raise InputError(f"{target}: {key} is missing: give --{option}, or define {key} in {place}")
        if hasattr(module, "guard"):
            values["guard"] = module.guard
        try:
            targets.blaming(target, "cannot be exported", lambda: write(controller, folder, **values, **options))
        except OverwriteError as error:
            raise OverwriteError(error.problem, permission="--overwrite") from None
    return json.loads((folder / MANIFEST).read_bytes())


def table(about: dict[str, Any]) -> Table:
    costs = about["costs"]
    functions = costs["functions"]
    rows = new_table(
        f"cost of one call, {costs['dtype']}", "", *(f"{about['name']}_{function}" for function in functions)
    )
    for kind in functions["act"]:
        rows.add_row(kind, *(number(counts[kind]) for counts in functions.values()))
    return rows


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
        return [value] if name != "t" and isinstance(value, (int, float)) else value
    raise InputError(f"--{name.replace('_', '-')}: expected numbers, such as 0,0, or JSON, got {text!r}")
