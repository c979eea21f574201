"""The mapping: where the signals of a loop are in a log file, and in which units."""

import dataclasses
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..foundation import arguments, suggestions
from ..foundation.errors import ArgumentError, InputError

PARTS = ("measurement", "u", "reference")
"""The parts of a log, each with one or more signals."""

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

UNITS: dict[str, tuple[str, float, float]] = {
    "deg": ("rad", math.pi / 180, 0.0),
    "deg/s": ("rad/s", math.pi / 180, 0.0),
    "rpm": ("rad/s", 2 * math.pi / 60, 0.0),
    "mm": ("m", 1e-3, 0.0),
    "cm": ("m", 1e-2, 0.0),
    "mm/s": ("m/s", 1e-3, 0.0),
    "cm/s": ("m/s", 1e-2, 0.0),
    "km/h": ("m/s", 1 / 3.6, 0.0),
    "g": ("m/s²", 9.80665, 0.0),
    "mV": ("V", 1e-3, 0.0),
    "mA": ("A", 1e-3, 0.0),
    "N·mm": ("N·m", 1e-3, 0.0),
    "kW": ("W", 1e3, 0.0),
    "%": ("1", 1e-2, 0.0),
    "°C": ("K", 1.0, 273.15),
}
"""Units that are converted: the other unit, the factor and the offset."""
SPELLINGS = {"Nm": "N·m", "N m": "N·m", "N*m": "N·m", "Nmm": "N·mm", "m/s^2": "m/s²", "degC": "°C", "": "1"}


@dataclass(frozen=True)
class LogSignal:
    """Where one signal is in a log file.

    The value is `scale` · recorded + `offset`, in `unit`. If the unit differs from the loop's, it is converted.

    **Arguments:**

    - `field`: the name of the column or of the field, such as `"position[0]"` or `"pose.position.x"`.
    - `topic`: the topic of a bag or of an MCAP file, or the message of a ULog; empty for tables. `instance`: the number
      of the message in a ULog, for example that of the second IMU.
    - `value`: a constant, in place of `field`.
    - `delay`: by how many seconds the signal was recorded too late; a negative number if it was recorded too early.
    - `lag`: the time constant, in seconds, of a first-order filter for the signal. With it, a commanded torque becomes
      the torque of a motor that follows its command with this lag.

    !!! Example

        >>> import selftune as st
        >>> st.LogSignal("position[0]", topic="/joint_states", unit="deg").scale
        1.0
    """

    field: str | None = None
    topic: str = ""
    instance: int = 0
    unit: str | None = None
    scale: float = 1.0
    offset: float = 0.0
    delay: float = 0.0
    lag: float = 0.0
    value: float | None = None

    def __post_init__(self) -> None:
        if (self.field is None) == (self.value is None):
            both = "both" if self.value is not None else "neither"
            raise ArgumentError("field", "the name of a field, or a constant as value", both)
        for name in ("field", "topic", "unit"):
            if not (getattr(self, name) is None or isinstance(getattr(self, name), str)):
                raise ArgumentError(name, "a text", arguments.describe(getattr(self, name)))
        arguments.whole("instance", self.instance)
        for name in ("scale", "offset", "delay", "lag", "value"):
            number = getattr(self, name)
            if name == "value" and number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
                raise ArgumentError(name, "a finite number", arguments.describe(number))
        if self.scale == 0:
            raise ArgumentError("scale", "a number that is not 0", "0")
        if self.lag < 0:
            raise ArgumentError("lag", "a number of seconds >= 0", f"{self.lag:g}")

    def __str__(self) -> str:
        if self.value is not None:
            return f"the constant {self.value:g}"
        place = f"{self.topic}[{self.instance}]" if self.instance else self.topic
        return f"{place} {self.field}" if place else f"{self.field}"


@dataclass(frozen=True)
class LogMapping:
    """The places of the signals of a loop in a log file. A TOML file with the same keys can be read with `from_toml`.

    **Arguments:**

    - `measurement`, `u`, `reference`: one `LogSignal` for each signal, in the order of the loop's signals.
    - `time`: the field with the time of each sample. By default the column `time` of a table, the timestamp of a ULog,
      and the time at which a bag or an MCAP file recorded a message. `header.stamp` is the field of ROS messages.
    - `time_unit`: the unit of this field: `s`, `ms`, `us` or `ns`; by default seconds, and microseconds in a ULog.
    - `max_gap`: shorter gaps between samples are bridged; in periods of the loop.

    !!! Example

        >>> import selftune as st
        >>> angle = st.LogSignal("position[0]", topic="/joint_states", unit="deg")
        >>> torque = st.LogSignal("data[0]", topic="/effort_controller/commands")
        >>> mapping = st.LogMapping(measurement=(angle,), u=(torque,), reference=(st.LogSignal(value=0.0),))
        >>> mapping.max_gap
        5.0
    """

    measurement: tuple[LogSignal, ...]
    u: tuple[LogSignal, ...]
    reference: tuple[LogSignal, ...]
    time: str | None = None
    time_unit: str | None = None
    max_gap: float = 5.0

    def __post_init__(self) -> None:
        for part in PARTS:
            signals = getattr(self, part)
            signals = (signals,) if isinstance(signals, LogSignal) else tuple(signals)
            if not signals or not all(isinstance(signal, LogSignal) for signal in signals):
                raise ArgumentError(part, "one or more LogSignals", arguments.describe(getattr(self, part)))
            object.__setattr__(self, part, signals)
        for part in ("measurement", "u"):
            if all(signal.value is not None for signal in getattr(self, part)):
                raise ArgumentError(part, "a signal of the log", "constants only")
        if self.time_unit is not None and self.time_unit not in TIME_UNITS:
            raise ArgumentError("time_unit", f"one of {', '.join(TIME_UNITS)}", f"{self.time_unit}")
        if not self.max_gap >= 1:
            raise ArgumentError("max_gap", "a number of periods >= 1", f"{self.max_gap}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LogMapping":
        """Return the mapping of a dictionary as a TOML file gives it."""
        known = {one.name for one in dataclasses.fields(cls)}
        _check_keys("the mapping", values, known)
        made = dict(values)
        for part in PARTS:
            if part not in made:
                raise ArgumentError(part, f"a table [[{part}]] for each signal", "none")
            tables = made[part] if isinstance(made[part], list | tuple) else [made[part]]
            made[part] = tuple(_signal(f"{part} {i}", table) for i, table in enumerate(tables))
        return cls(**made)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> "LogMapping":
        """Read a mapping from a TOML file."""
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path}: {error}") from None
        try:
            return cls.from_dict(values)
        except (ArgumentError, TypeError) as error:
            raise InputError(f"{path}: {error}") from None


def as_mapping(value: Any) -> LogMapping:
    """Return a mapping from a `LogMapping`, a dictionary, or the path of a TOML file."""
    if isinstance(value, LogMapping):
        return value
    if isinstance(value, Mapping):
        return LogMapping.from_dict(value)
    if isinstance(value, str | os.PathLike):
        return LogMapping.from_toml(value)
    raise ArgumentError("mapping", "a LogMapping, a dictionary, or the path of a TOML file", arguments.describe(value))


def _signal(place: str, table: Any) -> LogSignal:
    if not isinstance(table, Mapping):
        raise ArgumentError(place, "a table with a field, or with a value", arguments.describe(table))
    _check_keys(place, table, {one.name for one in dataclasses.fields(LogSignal)})
    try:
        return LogSignal(**table)
    except ArgumentError as error:
        raise ArgumentError(f"{place}, {error.argument}", error.expected, error.got) from None


def _check_keys(place: str, table: Mapping[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            hint = suggestions.nearest(key, sorted(known))
            raise ArgumentError(place, f"the keys {', '.join(sorted(known))}", f"{key}{hint}")


def conversion(signal: LogSignal, wanted: str | None) -> tuple[float, float]:
    """Return the factor and the offset from the recorded numbers to the loop's unit."""
    if signal.unit is None or wanted is None:
        return signal.scale, signal.offset
    given, wanted = (SPELLINGS.get(unit, unit) for unit in (signal.unit, wanted))
    factor, shift = _between(given, wanted)
    if factor is None:
        fitting = [unit for unit, (base, *_) in UNITS.items() if base == wanted]
        known = f"; these are converted: {', '.join(fitting)}" if fitting else ""
        hint = "leave out the unit, and convert with scale and offset"
        raise ArgumentError(f"{signal}", f"the loop's unit {wanted}{known}", f"{signal.unit}", hint)
    return factor * signal.scale, factor * signal.offset + shift


def _between(given: str, wanted: str) -> tuple[float | None, float]:
    """Return factor and offset between two units; None if the units do not fit."""
    if given == wanted:
        return 1.0, 0.0
    one = UNITS.get(given, (given, 1.0, 0.0))
    other = UNITS.get(wanted, (wanted, 1.0, 0.0))
    if one[0] != other[0]:
        return None, 0.0
    return one[1] / other[1], (one[2] - other[2]) / other[1]


def by_topic(signals: Sequence[LogSignal]) -> dict[tuple[str, int], list[str]]:
    """Return the fields that are needed of each topic."""
    needed: dict[tuple[str, int], list[str]] = {}
    for signal in signals:
        if signal.field is not None:
            fields = needed.setdefault((signal.topic, signal.instance), [])
            if signal.field not in fields:
                fields.append(signal.field)
    return needed
