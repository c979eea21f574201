"""The `README.md` of an export: how to use the C, how to check it, and its cost in memory and operations."""

from pathlib import Path
from typing import Any

from ..native.c import footprint
from ..native.c.templates import fill
from ..native.firmware import Firmware, struct_type
from . import proof


def costs(firmware: Firmware, files: dict[str, str]) -> dict[str, Any]:
    """Return the bytes, and the operations of each function; values that need a compiler are None without one."""
    measured = footprint.measure(firmware.name, files)
    functions = {}
    for function in footprint.FUNCTIONS:
        counts = footprint.operations(firmware.programs[function])
        functions[function] = {kind: counts[kind] for kind in footprint.KINDS} | {
            "stack": measured and measured.stack.get(function),
        }
    return {
        "dtype": firmware.dtype.name,
        "state": struct_type(firmware.state_fields).itemsize,
        "info": struct_type(firmware.info_fields).itemsize,
        "flash": measured and measured.flash,
        "compiler": measured and measured.compiler,
        "functions": functions,
    }


def text(firmware: Firmware, costs: dict[str, Any], steps: int, tolerance: float) -> str:
    """Return the text of `README.md`."""
    name, sizes = firmware.name, firmware.sizes
    columns = (*footprint.KINDS, "stack")
    rows = [
        f"| `{name}_{function}` | {' | '.join(number(counts[kind]) for kind in columns)} |"
        for function, counts in costs["functions"].items()
    ]
    about_costs = (
        "No compiler was available to measure flash and stack."
        if costs["compiler"] is None
        else f"Flash: {costs['flash']:,} bytes of code and constants. Flash and stack (bytes) were measured with\n"
        f"{costs['compiler']}, and the flags\n"
        f"`{' '.join(footprint.FLAGS)}`.\n"
        "The stack is that of each function itself, without the functions that it calls."
    )
    about_context = (
        "`t` is the number of the step."
        if firmware.is_counted
        else f"`t` points to the context of the step, `{name}_context`. Fill its members before each call:\n\n"
        + "\n".join(f"- `{member.declared()}`" for member in firmware.context_fields)
        + "\n"
    )
    values = {
        "name": name,
        "upper": name.upper(),
        "real": firmware.real,
        **{letter: getattr(sizes, letter) for letter in ("n", "q", "m", "d", "p")},
        "context_argument": "int32_t t" if firmware.is_counted else f"const {name}_context *t",
        "about_context": about_context,
        "steps": steps,
        "tolerance": f"{tolerance:g}",
        "columns": " | ".join(columns),
        "rules": "---|" * len(columns),
        "rows": "\n".join(rows),
        "state_bytes": number(costs["state"]),
        "info_bytes": number(costs["info"]),
        "about_costs": about_costs,
        "about_theta": "θ inside its box, " if proof.proves_theta(firmware) else "",
    }
    return fill(Path(__file__).with_name("templates") / "README.md.in", values)


def number(count: int | None) -> str:
    """Return the text of a table cell."""
    return "–" if count is None else f"{count:,}"
