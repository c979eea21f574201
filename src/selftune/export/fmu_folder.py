"""`export_fmu`: a controller as co-simulation units of FMI 3.0 and 2.0, with a recorded run to check them."""

import hashlib
import io
import os
import platform
import sys
import uuid
import zipfile
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Unpack
from xml.sax.saxutils import quoteattr

from ..control.controller import Controller
from ..foundation.errors import ArgumentError
from ..foundation.suggestions import nearest
from ..native.c import compilation
from ..native.c.templates import fill
from . import sampled_unit, si_units
from .exported_folder import Content, export
from .recorded_firmware import Exported, Options
from .sampled_unit import Variable

TEMPLATES = Path(__file__).with_name("templates")
TYPES = {
    2: {"real": "Real", "integer": "Integer", "boolean": "Boolean"},
    3: {"real": "Float64", "integer": "Int32", "boolean": "Boolean"},
}
"""The type of FMI 2.0 and 3.0 for each kind of number."""
PLATFORMS = {
    "x86_64-linux": ("linux64", "so", "x86_64-linux-gnu"),
    "aarch64-linux": ("aarch64-linux", "so", "aarch64-linux-gnu"),
    "x86_64-windows": ("win64", "dll", "x86_64-windows-gnu"),
    "x86_64-darwin": ("darwin64", "dylib", "x86_64-macos"),
    "aarch64-darwin": ("aarch64-darwin", "dylib", "aarch64-macos"),
}
"""For each platform of FMI 3.0: its name in FMI 2.0, how names of libraries end, and its name for zig's compiler."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every file in a unit, so that equal controllers give equal files."""


def export_fmu(
    controller: Controller,
    folder: str | os.PathLike[str],
    *,
    platforms: Sequence[str] = (),
    **options: Unpack[Options],
) -> Path:
    r"""Write a controller as units of the Functional Mock-up Interface (FMI) for co-simulation, and return the folder.

    Simulink, dSPACE, OpenModelica, Dymola and other tools import such units. The folder contains:

    - `NAME.fmu`, a unit of FMI 3.0, and `NAME_fmi2.fmu`, one of FMI 2.0. Both have the C of `export_c` and the same
      binary inside.
    - `replay.csv` and `check.py`: a recorded run, and a program that simulates both units with FMPy and compares every
      bit;
    - a `README.md` with the table of the variables.

    Inputs are the measurement and the context, such as the reference. Outputs are the control, θ, â, the cost, the code
    of the last sample and the guard's decisions. The switches `learning`, `tuning` and `safe`, and the safe control are
    parameters that may change while the unit runs. Start values of θ and â may be set before the initialization.

    The unit takes one sample in each sampling period `dt`, and holds its outputs in between. In a communication step
    from time t to t + h, the samples at the times k·dt in [t, t + h) use the inputs of time t.

    **Arguments:**

    - `dt`: the sampling period in seconds. It is required; `Loop` gives it.
    - `platforms`: platforms beside this machine's, as FMI 3.0 names them: `"x86_64-windows"`, `"aarch64-linux"`,
      `"x86_64-linux"`, `"aarch64-darwin"`, `"x86_64-darwin"`. Their binaries need the compiler of
      `pip install 'selftune[compiler]'`.
    - The other options are those of `export_c`.

    !!! Example

        >>> import tempfile, selftune as st
        >>> from selftune import models, policies
        >>> plant = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
        >>> loop = st.Loop(plant, policies.PID(kp=1.0, ki=0.5, u_min=-10.0, u_max=10.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = loop.export_fmu(f"{folder}/tank")
        ...     sorted(path.name for path in made.iterdir())
        ['README.md', 'check.py', 'replay.csv', 'selftune.json', 'tank.fmu', 'tank_fmi2.fmu']
    """
    for name in platforms:
        if name not in PLATFORMS:
            raise ArgumentError("platforms", ", ".join(PLATFORMS), f"{name!r}{nearest(name, PLATFORMS)}")
    return export(partial(_content, list(platforms)), controller, folder, options)


def _content(platforms: list[str], exported: Exported) -> Content:
    name, variables = exported.name, sampled_unit.variables(exported)
    sources = sampled_unit.sources(exported)
    token = f"{{{uuid.UUID(bytes=hashlib.sha256(''.join(sources.values()).encode()).digest()[:16])}}}"
    access = {"name": name, "upper": name.upper(), "token": token, "dt": repr(exported.period)}
    shared = sources | {f"{name}_fmu.h": fill(TEMPLATES / "fmu.h.in", access | _access(exported, variables))}
    front = {version: fill(TEMPLATES / f"fmi{version}.c.in", {"name": name}) for version in (2, 3)}
    compiled = shared | {f"fmi{version}.c": text for version, text in front.items()}
    here = this_platform()
    libraries = {here: compilation.shared_library(compiled)}
    for other in platforms:
        if other != here:
            libraries[other] = compilation.shared_library(compiled, zig_target=PLATFORMS[other][2])
    units = {}
    for version in (2, 3):
        files: dict[str, str | bytes] = {"modelDescription.xml": _description(exported, variables, version, token)}
        files |= {f"sources/{path}": text for path, text in {**shared, f"fmi{version}.c": front[version]}.items()}
        if version == 3:
            files["sources/buildDescription.xml"] = fill(TEMPLATES / "fmi3_build.xml.in", {"name": name})
        for place, library in libraries.items():
            directory = place if version == 3 else PLATFORMS[place][0]
            files[f"binaries/{directory}/{name}.{PLATFORMS[place][1]}"] = library
        units[version] = _zipped(files)
    files = {
        f"{name}.fmu": units[3],
        f"{name}_fmi2.fmu": units[2],
        "replay.csv": _replay(exported),
        "check.py": fill(TEMPLATES / "fmu_check.py.in", {"name": name, "dt": repr(exported.period)}),
        "README.md": _readme(exported, variables, list(libraries)),
    }
    return Content(files, {"platforms": list(libraries), "variables": [v.name for v in variables]})


def this_platform() -> str:
    """Return the name of this machine's platform in FMI 3.0."""
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    system = {"win32": "windows"}.get(sys.platform, sys.platform)
    name = f"{machine}-{system}"
    if name not in PLATFORMS:
        raise ArgumentError("platform", f"this machine among {', '.join(PLATFORMS)}", name)
    return name


def _access(exported: Exported, variables: list[Variable]) -> dict[str, list[str] | str]:
    """Return the cases of the functions that get and set a variable by its value reference."""
    cases: dict[str, list[str]] = {f"{how}_{kind}": [] for how in ("get", "set") for kind in TYPES[3]}
    for reference, variable in enumerate(variables, start=1):
        place, kind = f"c->{variable.place}", variable.kind
        cast = {"real": "(double)", "integer": "(int32_t)", "boolean": ""}[kind]
        truth = " != 0" if kind == "boolean" else ""
        cases[f"get_{kind}"].append(f"case {reference}: *value = {cast}{place}{truth}; return 1;")
        number = f"({exported.firmware.real})value" if kind == "real" else f"value{truth}"
        if variable.is_start:
            cases[f"set_{kind}"].append(f"case {reference}: if (is_start) {place} = {number}; return is_start;")
        elif variable.role != "output":
            cases[f"set_{kind}"].append(f"case {reference}: {place} = {number}; return 1;")
    # As text: lines of C that stand alone need no breaks.
    return {name: "\n".join(f"    {line}" for line in lines) for name, lines in cases.items()}


def _description(exported: Exported, variables: list[Variable], version: int, token: str) -> str:
    """Return `modelDescription.xml`."""
    lines, structure = [], []
    for reference, variable in enumerate(variables, start=1):
        lines.append(_declared(variable, reference, version))
        if variable.role == "output":
            structure.append(reference)
    unknown = [reference for reference in structure if not variables[reference - 1].is_start]
    if version == 3:
        parts = [f'    <Output valueReference="{reference}"/>' for reference in structure]
        parts += [f'    <InitialUnknown valueReference="{reference}" dependencies=""/>' for reference in unknown]
    else:
        parts = ["    <Outputs>", *(f'      <Unknown index="{index}"/>' for index in structure), "    </Outputs>"]
        entries = (f'      <Unknown index="{index}" dependencies=""/>' for index in unknown)
        parts += ["    <InitialUnknowns>", *entries, "    </InitialUnknowns>"]
    values = {
        "name": exported.name,
        "token": token,
        "version": metadata.version("selftune"),
        "description": "A controller that tunes itself while it runs",
        "dt": repr(exported.period),
        "stop": f"{exported.recording.steps * exported.period:.9g}",
        "units": _units(variables),
        "variables": "\n".join(lines),
        "structure": "\n".join(parts),
    }
    return fill(TEMPLATES / f"fmi{version}.xml.in", values)


def _declared(variable: Variable, reference: int, version: int) -> str:
    kind = TYPES[version][variable.kind]
    attributes = {
        "name": variable.name,
        "valueReference": f"{reference}",
        "causality": variable.role,
        "variability": "tunable" if variable.role == "parameter" else "discrete",
        "description": variable.text,
    }
    own: dict[str, str] = {}
    if variable.role == "output":
        attributes["initial"] = "exact" if variable.is_start else "calculated"
    if variable.role != "output" or variable.is_start:
        own["start"] = {"boolean": f"{variable.start!r}".lower()}.get(variable.kind, f"{variable.start!r}")
    if variable.unit:
        own["unit"] = si_units.plain(variable.unit)
    if version == 3:
        return f"    <{kind} {_attributes(attributes | own)}/>"
    return f"    <ScalarVariable {_attributes(attributes)}><{kind} {_attributes(own)}/></ScalarVariable>"


def _attributes(attributes: dict[str, str]) -> str:
    return " ".join(f"{name}={quoteattr(value)}" for name, value in attributes.items())


def _units(variables: list[Variable]) -> str:
    """Return the definitions of all units, with their powers of SI's base units where these are known."""
    units = sorted({variable.unit for variable in variables if variable.unit})
    if not units:
        return ""
    lines = ["  <UnitDefinitions>"]
    for unit in units:
        powers = si_units.exponents(unit)
        base = "" if powers is None else f"<BaseUnit {_attributes({k: str(v) for k, v in powers.items()})}/>"
        name = quoteattr(si_units.plain(unit))
        lines.append(f"    <Unit name={name}>{base}</Unit>" if base else f"    <Unit name={name}/>")
    return "\n".join([*lines, "  </UnitDefinitions>"])


def _replay(exported: Exported) -> str:
    """Return `replay.csv`: a row for each sample, with its time, its inputs, and the outputs after it. The text of a
    number has the digits of a double, so that every bit survives."""
    rows = sampled_unit.recorded_rows(exported)
    columns = {**{f"in:{name}": column for name, column in rows.inputs.items()}}
    columns |= {f"out:{name}": column for name, column in rows.outputs.items()}
    lines = [",".join(["time", *columns])]
    for i in range(exported.recording.steps):
        numbers = (repr(column[i].item()) for column in columns.values())
        lines.append(",".join([repr(i * exported.period), *numbers]))
    return "\n".join(lines) + "\n"


def _zipped(files: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def _readme(exported: Exported, variables: list[Variable], platforms: list[str]) -> str:
    rows = [f"| `{v.name}` | {v.role} | {v.kind} | {si_units.plain(v.unit)} | {v.text} |" for v in variables]
    values = {
        "name": exported.name,
        "dt": f"{exported.period:g}",
        "steps": exported.recording.steps,
        "platforms": ", ".join(platforms),
        "rows": "\n".join(rows),
    }
    return fill(TEMPLATES / "README.fmu.md.in", values)
