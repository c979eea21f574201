"""`export_arduino`: a controller as a library for Arduino and PlatformIO, with a sketch that checks the board."""

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Unpack

import numpy as np

from ..control.controller import Controller
from ..foundation.errors import ArgumentError
from ..native.c.emit import literal
from ..native.c.templates import fill, wrap
from ..native.firmware import struct_type
from . import sampled_unit
from .c_folder import TOLERANCE
from .exported_folder import Content, export
from .recorded_firmware import Exported, Options
from .sampled_unit import Variable

TEMPLATES = Path(__file__).with_name("templates")
REPLAYED = 400
"""The largest number of floats in the sketch that replays a run: little flash of an Arduino Uno is left."""


def export_arduino(controller: Controller, folder: str | os.PathLike[str], **options: Unpack[Options]) -> Path:
    """Write a controller as a library for Arduino and PlatformIO, and return the folder.

    The folder contains:

    - `library.properties` and `library.json`, which tell Arduino and PlatformIO about the library;
    - `src`: the C of `export_c`, and a sampled unit around it with one function for each sample;
    - `examples/Loop`: a sketch that calls the controller once in each sampling period;
    - `examples/Replay`: a sketch that replays a recorded run on the board, and prints the largest difference;
    - a `README.md` with the table of the inputs and outputs.

    **Arguments:** as in `export_c`. `dt` is required; `Loop` gives it. `dtype` must be `"float32"`: a double has only 4
    bytes on AVR boards.

    !!! Example

        >>> import tempfile, selftune as st
        >>> from selftune import models, policies
        >>> plant = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
        >>> loop = st.Loop(plant, policies.PID(kp=1.0, ki=0.5, u_min=-10.0, u_max=10.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = loop.export_arduino(f"{folder}/tank")
        ...     sorted(path.name for path in made.iterdir())
        ['README.md', 'examples', 'library.json', 'library.properties', 'selftune.json', 'src']
    """
    if options.get("dtype", "float32") != "float32":
        given = f"{options.get('dtype')!r}"
        raise ArgumentError("dtype", "'float32', because a double has only 4 bytes on AVR boards", given)
    return export(_content, controller, folder, options)


def _content(exported: Exported) -> Content:
    name, firmware, variables = exported.name, exported.firmware, sampled_unit.variables(exported)
    rows = sampled_unit.recorded_rows(exported)
    steps = min(exported.recording.steps, max(REPLAYED // (len(rows.inputs) + len(rows.outputs)), 1))
    values = {
        "name": name,
        "upper": name.upper(),
        "version": metadata.version("selftune"),
        "dt": f"{exported.period:g}",
        "period_us": round(1e6 * exported.period),
        "steps": steps,
        "tolerance": f"{TOLERANCE['float32']:g}",
    }
    about = {
        "name": name,
        "version": values["version"],
        "description": "A controller that tunes itself while it runs, written by selftune.",
        "frameworks": "*",
        "platforms": "*",
        "headers": f"{name}_unit.h",
        "build": {"flags": ["-ffp-contract=off"]},
    }
    unit_bytes = sum(struct_type(part).itemsize for part in (firmware.state_fields, firmware.info_fields))
    unit_bytes += 4 * (firmware.sizes.q + 2 * firmware.sizes.m + 7) + struct_type(firmware.context_fields).itemsize
    table = [f"| `{v.name}` | `{v.place}` | {v.role} | {v.unit} | {v.text} |" for v in variables]
    inputs = [v for v in variables if v.role == "input"]
    controls = [v for v in variables if v.role == "output" and v.place.startswith("u[")]
    loop = {"inputs": _measured(inputs), "outputs": _actuated(controls)}
    files: dict[str, str | bytes] = {f"src/{path}": text for path, text in sampled_unit.sources(exported).items()}
    files |= {
        "library.properties": fill(TEMPLATES / "arduino_library.properties.in", values),
        "library.json": json.dumps(about, indent=2) + "\n",
        "examples/Loop/Loop.ino": fill(TEMPLATES / "arduino_loop.ino.in", values | loop),
        "examples/Replay/Replay.ino": fill(TEMPLATES / "arduino_replay.ino.in", values | _replayed(variables, rows)),
        "examples/Replay/replay.h": _tables(values, rows, steps),
        "README.md": fill(
            TEMPLATES / "README.arduino.md.in", values | {"rows": "\n".join(table), "unit_bytes": f"{unit_bytes:,}"}
        ),
    }
    return Content(files, {"ram": unit_bytes})


def _measured(inputs: list[Variable]) -> str:
    return "\n".join(
        f"  controller.{v.place} = measure({i});  // {v.name}{f' in {v.unit}' if v.unit else ''}"
        for i, v in enumerate(inputs)
    )


def _actuated(controls: list[Variable]) -> str:
    return "\n".join(
        f"  actuate({i}, controller.{v.place});  // {v.name}{f' in {v.unit}' if v.unit else ''}"
        for i, v in enumerate(controls)
    )


def _replayed(variables: list[Variable], rows: sampled_unit.Rows) -> dict[str, str]:
    """Return the lines of the sketch that fill the inputs and compare the outputs of a sample."""
    places = {v.name: v for v in variables}
    types = {"real": "", "integer": "(int32_t)", "boolean": "(int)"}
    filled = [
        f"    controller.{places[name].place} = {types[places[name].kind]}pgm_read_float(&replay_inputs[i][{column}]);"
        for column, name in enumerate(rows.inputs)
    ]
    compared = []
    for column, name in enumerate(rows.outputs):
        kind = ("u", "theta", "a_hat").index(name.split(".")[0].split("[")[0])
        compared.append(f"    compare({kind}, controller.{places[name].place}, &replay_outputs[i][{column}]);")
    return {"inputs": "\n".join(filled), "outputs": "\n".join(compared)}


def _tables(values: dict[str, str | int], rows: sampled_unit.Rows, steps: int) -> str:
    tables: dict[str, str | int] = {"columns_in": len(rows.inputs), "columns_out": len(rows.outputs)}
    for key, part in (("rows_in", rows.inputs), ("rows_out", rows.outputs)):
        numbers = np.stack(list(part.values()), axis=1)[:steps].astype(np.float32)
        lines = [f"{{{', '.join(literal(number, np.float32) for number in row)}}}," for row in numbers]
        tables[key] = "\n".join(wrap(lines, 2))
    return fill(TEMPLATES / "arduino_replay.h.in", values | tables)
