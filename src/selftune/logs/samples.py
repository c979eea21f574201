"""Samples with their times, as the readers of all formats give them; and paths into messages."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..foundation.errors import InputError

LONGEST = 9e9
"""The largest time in seconds, 285 years: nanoseconds are counted in 64 bits."""


class Columns(NamedTuple):
    """Fields of one topic, all with the same times."""

    time: np.ndarray
    """Nanoseconds, int64, (N,)."""
    values: Mapping[str, np.ndarray]
    """The values by field, float64, (N,) each."""


def in_nanoseconds(place: str, time: np.ndarray, seconds: float) -> np.ndarray:
    """Return times as whole nanoseconds; `seconds` is the unit of the given times."""
    if not np.all(np.isfinite(time)):
        at = int(np.argmin(np.isfinite(time)))
        raise InputError(f"{place}: expected a time in each row, got {time[at]} in row {at}")
    if np.any(far := np.abs(time.astype(float) * seconds) > LONGEST):
        at = int(np.argmax(far))
        raise InputError(
            f"{place}: row {at} has an impossible time, {float(time[at]) * seconds:g} s; is the unit right?"
        )
    if np.issubdtype(time.dtype, np.integer):
        return (time.astype(np.int64)) * round(seconds * 1e9)
    return np.round(time * (seconds * 1e9)).astype(np.int64)


_STEP = re.compile(r"\.?([A-Za-z_]\w*)|\[(\d+)\]")


def path_of(field: str) -> list[str | int]:
    """Return the steps of a path: `pose.position.x` or `position[0]`."""
    steps: list[str | int] = []
    end = 0
    while end < len(field):
        match = _STEP.match(field, end)
        if match is None:
            raise InputError(f"{field!r}: expected a path such as position[0] or pose.position.x")
        steps.append(match[1] if match[1] is not None else int(match[2]))
        end = match.end()
    return steps


def follow(message: Any, steps: list[str | int], field: str, topic: str) -> Any:
    """Return the part of a message to which a path leads."""
    part = message
    for step in steps:
        try:
            is_key = isinstance(step, int) or isinstance(part, Mapping)
            part = part[step] if is_key else getattr(part, str(step))
        except (AttributeError, KeyError, IndexError, TypeError):
            raise InputError(f"{topic}: there is no {field}; {_inside(part)}") from None
    return part


def number(value: Any, field: str, topic: str) -> float:
    """Return a number of a message. A missing number of a JSON message (null) is NaN."""
    if value is None:
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{topic}: {field} is not a number; {_inside(value)}") from None


def stamp(value: Any, seconds: float, field: str, topic: str) -> int:
    """Return a time in nanoseconds: a number, or a ROS time with seconds and nanoseconds."""
    parts = value if isinstance(value, Mapping) else getattr(value, "__dict__", {}) or _slots(value)
    if "sec" in parts:
        return int(parts["sec"]) * 10**9 + int(parts.get("nanosec", parts.get("nsec", 0)))
    if isinstance(value, int):
        return value * round(seconds * 1e9)
    return round(number(value, field, topic) * seconds * 1e9)


def _slots(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in ("sec", "nanosec") if hasattr(value, name)}


def _inside(part: Any) -> str:
    if isinstance(part, Mapping):
        return f"the fields there are {', '.join(map(str, part))}"
    if isinstance(part, np.ndarray | list | tuple):
        return f"there are {len(part)} numbers, from [0] to [{len(part) - 1}]" if len(part) else "the list is empty"
    names = [name for name in getattr(part, "__dataclass_fields__", {}) if not name.startswith("_")]
    return f"the fields there are {', '.join(names)}" if names else f"it is {type(part).__name__}"
