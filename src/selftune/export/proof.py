"""`proof.c` of an export: what Frama-C proves about the C, for all bit patterns of all numbers."""

from pathlib import Path

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from ..control import step_limits
from ..native.c.emit import TYPES
from ..native.c.templates import fill
from ..native.firmware import Field, Firmware
from ..problem.constraints import Box
from ..problem.projected_step import constraint_of

_ANY = {
    "float": "any_real",
    "double": "any_real",
    "int": "any_int",
    "int32_t": "any_int",
    "uint32_t": "any_word",
    "int64_t": "any_long",
    "uint64_t": "any_long_word",
}


def source(firmware: Firmware) -> str:
    """Return the text of `proof.c`."""
    lines = [line for field in firmware.state_fields for line in _filled(f"s.{field.name}", field)]
    for name, size in (("x", firmware.sizes.q), ("f_obs", firmware.sizes.k)):
        lines += _filled(name, Field(name, (size,), firmware.dtype))
    if not firmware.is_counted:
        lines.append(f"{firmware.name}_context t;")
        lines += [line for field in firmware.context_fields for line in _filled(f"t.{field.name}", field)]
    values = {
        "name": firmware.name,
        "upper": firmware.name.upper(),
        "real": firmware.real,
        "at": "@",
        "fill": lines,
        "context": "any_int" if firmware.is_counted else "&t",
        "control": _control(firmware),
        "theta": _theta(firmware),
    }
    return fill(Path(__file__).with_name("templates") / "proof.c.in", values)


def proves_theta(firmware: Firmware) -> bool:
    """Return whether Θ is a box: only then is θ ∈ Θ a property of each number."""
    return isinstance(constraint_of(firmware.controller.tuner), Box)


def _filled(place: str, field: Field) -> list[str]:
    value = _ANY[TYPES[field.dtype.name]]
    return [f"{place}[{i}] = {value};" for i in range(field.size)] if field.shape else [f"{place} = {value};"]


def _control(firmware: Firmware) -> list[str]:
    largest = np.finfo(firmware.dtype).max
    low, high = step_limits.control_range(firmware.guard, firmware.dtype)
    low, high = np.maximum(low, -largest), np.minimum(high, largest)
    low, high = (np.broadcast_to(limit, (firmware.sizes.m,)) for limit in (low, high))
    return [_between(f"control_{i}", f"u[{i}]", *pair) for i, pair in enumerate(zip(low, high, strict=True))]


def _theta(firmware: Firmware) -> list[str]:
    if not proves_theta(firmware):
        return []
    constraint = constraint_of(firmware.controller.tuner)
    assert isinstance(constraint, Box)
    theta = firmware.state.controller.theta
    bounds = [np.asarray(bound, firmware.dtype) for bound in constraint.bounds(theta)]
    places = [
        f"s.{field.name}[{i}]" if field.shape else f"s.{field.name}"
        for field in firmware.theta_fields
        for i in range(field.size)
    ]
    assert len(places) == ravel_pytree(jax.tree.map(np.asarray, theta))[0].size
    rows = zip(places, *bounds, strict=True)
    return [_between(f"theta_{i}", place, low, high) for i, (place, low, high) in enumerate(rows)]


def _between(name: str, place: str, low: np.generic, high: np.generic) -> str:
    limits = []
    if np.isfinite(low):
        limits.append(f"{_exact(low)} <= {place}")
    if np.isfinite(high):
        limits.append(f"{place} <= {_exact(high)}")
    claims = [f"\\is_finite({place})"] if len(limits) == 2 else [f"!\\is_NaN({place})"]
    return f"/*@ assert {name}: {' && '.join(claims + limits)}; */"


def _exact(number: np.generic) -> str:
    """Return a number as a constant of its own type. Decimal constants are real numbers for Frama-C, which rounds some
    of them to an interval."""
    return f"{float(number).hex()}{'f' if number.dtype == np.float32 else 'd'}"
