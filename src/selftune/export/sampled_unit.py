"""A controller as a sampled unit in C: its inputs, switches and outputs by name, and one function for each sample.

The targets with a clock and with signals of their own share this unit: FMU, Arduino, ROS 2, PX4 and Crazyflie.
"""

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from ..control import failsafe, step_limits
from ..native.c.emit import TYPES, literal
from ..native.c.templates import fill
from ..native.firmware import Field, Firmware
from ..problem.loop_context import LoopContext
from .recorded_firmware import Exported, copies_of, replay

TEMPLATES = Path(__file__).with_name("templates")
Kind = Literal["real", "integer", "boolean"]
KINDS: dict[str, Kind] = {"f": "real", "i": "integer", "u": "integer", "b": "boolean"}


class Variable(NamedTuple):
    """One number of a unit, for people and for other programs."""

    name: str
    """Such as `u.voltage`, or `u[1]` if the number has no name."""
    place: str
    """The member of the unit in C, such as `u[0]`."""
    kind: Kind
    role: Literal["input", "parameter", "output"]
    unit: str
    text: str
    start: float
    is_start: bool = False
    """Whether the value before the first sample may be set: that of θ and of â."""


def sources(exported: Exported) -> dict[str, str]:
    """Return the C of the controller and of the unit around it, by file name."""
    firmware, name = exported.firmware, exported.name
    clock, passed = _clock(exported)
    values: dict[str, Any] = {
        "name": name,
        "upper": name.upper(),
        "real": firmware.real,
        "context": "int32_t" if firmware.is_counted else f"{name}_context",
        "period": ""
        if exported.dt is None
        else f"/* The sampling period in seconds. */\n#define {name.upper()}_DT {exported.dt!r}",
        "about_measured": f"the measurement: {_listed(exported, 'measured', firmware.sizes.q)}",
        "about_control": f"the control: {_listed(exported, 'u', firmware.sizes.m)}",
        "about_context": "filled by the unit" if not _context_inputs(exported) else "the context of the step",
        "initial": _initial(exported),
        "started": [
            f"c->s.{copy}{at} = c->s.{field.name}{at};"
            for field in start_fields(firmware)
            for copy in copies_of(firmware, field)
            for at in _indices(field)
        ]
        or ["(void)c;"],
        "clock": clock,
        "passed": passed,
        "by_guard": f" || c->code == {name.upper()}_SAFE" if _has_constant_safe_control(firmware) else "",
        "replaced": _replaced(firmware),
    }
    return {
        f"{name}.h": exported.header(),
        f"{name}.c": firmware.source(),
        f"{name}_unit.h": fill(TEMPLATES / "unit.h.in", values),
        f"{name}_unit.c": fill(TEMPLATES / "unit.c.in", values),
    }


def variables(exported: Exported) -> list[Variable]:
    """Return the inputs, then the parameters, then the outputs of a unit."""
    firmware = exported.firmware
    sizes = firmware.sizes
    found = [
        *_group(exported, "measured", [f"x[{i}]" for i in range(sizes.q)], "input", "measured", _first_measurement),
        *_context_inputs(exported),
        Variable("learning", "learning", "boolean", "parameter", "", "whether the controller learns at all", True),
        Variable("tuning", "tuning", "boolean", "parameter", "", "whether the gains θ are tuned", True),
        Variable("safe", "safe", "boolean", "parameter", "", "whether the control is the safe control", False),
        *_group(exported, "u", [f"safe_u[{i}]" for i in range(sizes.m)], "parameter", "safe_control", safe_control),
        *_group(exported, "u", [f"u[{i}]" for i in range(sizes.m)], "output", "u", _first_control),
        *_group(exported, "theta", _places(firmware.theta_fields), "output", "theta", _start_of("theta")),
        *_group(exported, "a_hat", _places(firmware.a_hat_fields), "output", "a_hat", _start_of("a_hat")),
        Variable("cost", "info.cost", "real", "output", "", "the cost of the last sample", 0.0),
        Variable("code", "code", "integer", "output", "", "how the last sample ended; 0 is OK", 0),
        Variable("decisions", "info.guard_decisions", "integer", "output", "", "the guard's decisions, a sum", 0),
    ]
    return _unique(found)


class Rows(NamedTuple):
    """The numbers of a recorded run, one row for each sample: what goes into a unit, and what comes out."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def recorded_rows(exported: Exported) -> Rows:
    """Return the recorded inputs of a unit, and the outputs u, θ and â of the same C on this machine, by name."""
    firmware, recording = exported.firmware, exported.recording
    columns = {f"x[{i}]": recording.x[:, i] for i in range(firmware.sizes.q)}
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(recording.t)]
    for field, leaf in zip(firmware.context_fields, leaves, strict=True):
        columns |= zip(_places([field], "t."), leaf.reshape(len(leaf), -1).T, strict=True)
    replayed = replay(exported, infer=True)
    columns |= {f"u[{i}]": column for i, column in enumerate(replayed.u.T)}
    columns |= zip(_places(firmware.theta_fields), replayed.theta[1:].T, strict=True)
    columns |= zip(_places(firmware.a_hat_fields), replayed.a_hat.T, strict=True)
    known = [variable for variable in variables(exported) if variable.place in columns]
    rows = [{v.name: columns[v.place] for v in known if v.role == role} for role in ("input", "output")]
    return Rows(*rows)


def start_fields(firmware: Firmware) -> list[Field]:
    return [*firmware.theta_fields, *firmware.a_hat_fields]


def safe_control(exported: Exported) -> np.ndarray:
    """Return the control that a unit gives out while its switch `safe` is on, before a program sets another one."""
    firmware = exported.firmware
    return np.asarray(failsafe.safe_control(firmware.guard, firmware.state.x, firmware.sizes.m))


def identifier(text: str) -> str:
    """Return a name as an identifier of ASCII letters, digits and underscores."""
    plain = re.sub(r"[^0-9a-zA-Z]+", "_", text).strip("_")
    return plain if re.match("[a-zA-Z]", plain) else f"n{plain}"


def _has_constant_safe_control(firmware: Firmware) -> bool:
    return firmware.guard.safe_u is not None and not callable(firmware.guard.safe_u)


def _first_measurement(exported: Exported) -> np.ndarray:
    firmware = exported.firmware
    x = np.asarray(firmware.state.x)
    return x if x.size == firmware.sizes.q else np.zeros(firmware.sizes.q, firmware.dtype)


def _first_control(exported: Exported) -> np.ndarray:
    return np.asarray(exported.firmware.state.u)


def _start_of(part: str) -> Any:
    def numbers(exported: Exported) -> np.ndarray:
        return np.concatenate(
            [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(getattr(exported.firmware.state, part))]
        )

    return numbers


TEXTS = {
    "measured": "measurement",
    "reference": "reference",
    "u": "control",
    "theta": "tuned parameter θ",
    "a_hat": "estimated parameter â",
    "safe_control": "safe control",
}


def _group(
    exported: Exported, kind: str, places: list[str], role: Any, prefix: str, numbers: Any, number_kind: Kind = "real"
) -> list[Variable]:
    """Return the variables of one kind, with the names and units that the user knows."""
    signals = exported.signals.get(kind)
    values = [number.item() for number in numbers(exported)]
    found = []
    for i, place in enumerate(places):
        name, unit, text = f"{prefix}[{i + 1}]", "", f"{TEXTS.get(prefix, prefix)} {i + 1}"
        if signals is not None:
            name, unit = f"{prefix}.{identifier(signals[i].name)}", signals[i].unit
            text = f"{TEXTS.get(prefix, prefix)}: {signals[i].name}"
        elif place.startswith("s.theta_") and "[" not in place:  # θ is a dictionary with names
            name, text = f"{prefix}.{place.removeprefix('s.theta_')}", f"{TEXTS[prefix]}: {place[8:]}"
        is_start = kind in ("theta", "a_hat")
        unit = "" if unit == "1" else unit
        found.append(Variable(name, place, number_kind, role, unit, text, values[i], is_start))
    return found


def _context_inputs(exported: Exported) -> list[Variable]:
    """Return the parts of a context that are inputs: not the number of the step, and not the sampling period."""
    firmware = exported.firmware
    if firmware.is_counted:
        return []
    found = []
    for field, leaf in zip(firmware.context_fields, jax.tree.leaves(firmware.state.t), strict=True):
        if isinstance(firmware.state.t, LoopContext) and field.name != "reference":
            continue
        numbers = np.asarray(leaf).ravel()
        kind = KINDS[field.dtype.kind]
        places = _places([field], "t.")
        found += _group(exported, field.name, places, "input", field.name, lambda _, n=numbers: n, kind)
    return found


def _clock(exported: Exported) -> tuple[list[str], str]:
    """Return the lines that fill the parts of a context that a unit knows itself, and the argument of `act`."""
    firmware = exported.firmware
    if firmware.is_counted:
        return ["c->t = c->step;"], "c->t"
    lines = []
    if isinstance(firmware.state.t, LoopContext):
        lines.append("c->t.step = c->step;")
        for field in firmware.context_fields:
            if field.name in ("dt", "last_dt"):
                period = literal(field.dtype.type(exported.period), field.dtype)
                lines.append(f"c->t.{field.name} = {period};")
    return lines, "&c->t"


def _initial(exported: Exported) -> list[str]:
    firmware = exported.firmware
    lines = []
    numbers = {"x": _first_measurement(exported), "u": _first_control(exported), "safe_u": safe_control(exported)}
    for member, values in numbers.items():
        lines += [f"c->{member}[{i}] = {literal(value, firmware.dtype)};" for i, value in enumerate(values)]
    if firmware.is_counted:
        return [*lines, "c->t = 0;"]
    for field, leaf in zip(firmware.context_fields, jax.tree.leaves(firmware.state.t), strict=True):
        values = np.asarray(leaf).ravel()
        places = _places([field], "t.")
        lines += [f"c->{place} = {literal(v, field.dtype)};" for place, v in zip(places, values, strict=True)]
    return lines


def _replaced(firmware: Firmware) -> list[str]:
    """Return the lines that give out the safe control. The state must know which control the plant gets."""
    low, high = (
        np.broadcast_to(limit, (firmware.sizes.m,))
        for limit in step_limits.control_range(firmware.guard, firmware.dtype)
    )
    largest = np.finfo(firmware.dtype).max
    keepers = [f.name for f in firmware.state_fields if f.name in ("last_u", "memory_u") and f.size == firmware.sizes.m]
    lines = []
    for i in range(firmware.sizes.m):
        limits = (np.clip(limit[i], -largest, largest) for limit in (low, high))
        ends = ", ".join(literal(firmware.dtype.type(limit), firmware.dtype) for limit in limits)
        lines.append(f"c->u[{i}] = limited(c->safe_u[{i}], {ends});")
        lines += [f"c->s.{keeper}[{i}] = c->u[{i}];" for keeper in keepers]
    return lines


def _places(fields: list[Field], prefix: str = "s.") -> list[str]:
    return [f"{prefix}{field.name}{at}" for field in fields for at in _indices(field)]


def _indices(field: Field) -> list[str]:
    return [f"[{i}]" for i in range(field.size)] if field.shape else [""]


def _listed(exported: Exported, kind: str, count: int) -> str:
    signals = exported.signals.get(kind)
    if signals is None:
        return f"{count} number" + ("s" if count > 1 else "")
    return ", ".join(f"{s.name} ({s.unit})" if s.unit not in ("", "1") else s.name for s in signals)


def _unique(found: list[Variable]) -> list[Variable]:
    """Return the variables with different names: a second one of the same name gets a number."""
    names: set[str] = set()
    out = []
    for variable in found:
        name, i = variable.name, 1
        while name in names:
            i += 1
            name = f"{variable.name}_{i}"
        names.add(name)
        out.append(variable._replace(name=name))
    return out


def c_type(kind: Kind, firmware: Firmware) -> str:
    """Return the type in C of a kind of number."""
    return {"real": firmware.real, "integer": TYPES["int32"], "boolean": "int"}[kind]
