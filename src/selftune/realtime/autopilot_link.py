"""The MAVLink connection of `Autopilot`: messages of one autopilot in, parameters out. It needs the extra `mavlink`."""

import os
import re
from time import monotonic, sleep
from typing import Any

import numpy as np

os.environ.setdefault("MAVLINK20", "1")  # pymavlink reads this at its import: begin with version 2 of MAVLink
from pymavlink import mavutil

from ..foundation.errors import ArgumentError

BEAT = 1.0
"""This component sends a heartbeat every so many seconds, as MAVLink requires."""
PERIODS = 20
"""So many periods of a message are measured before an agent follows the message."""


def definitions() -> Any:
    """Return MAVLink's messages and constants; pymavlink replaces them when an autopilot speaks another version."""
    return mavutil.mavlink


class Link:
    """A connection to the first autopilot that sends a heartbeat, or to the one with the number `system`.

    Messages of other components, such as a ground station, are ignored.
    """

    def __init__(self, device: str, *, baud: int, system: int | None, timeout: float):
        if not re.match(r"udpin:|udpout:|/dev/", device):
            # pymavlink would open other texts as log files, and spins on a TCP connection that has ended.
            raise ArgumentError("device", "udpin:HOST:PORT, udpout:HOST:PORT, or a serial port in /dev", repr(device))
        try:
            self._connection: Any = mavutil.mavlink_connection(
                device, baud=baud, source_component=definitions().MAV_COMP_ID_ONBOARD_COMPUTER
            )
        except (OSError, ValueError) as error:
            raise ConnectionError(f"{device}: cannot be opened ({error})") from error
        self._next_beat = 0.0
        self.emptied = 0.0
        """When all messages that had come were read, as a time of `monotonic`: an answer that is not known by then has
        not come."""
        self._system, self._component, self.is_armed = system, -1, False
        until = monotonic() + 5 * timeout
        while self._component < 0:
            if self.receive(until) is None:
                self.close()
                raise ConnectionError(f"{device}: no heartbeat of an autopilot within {5 * timeout:g} s")

    @property
    def system(self) -> int:
        """The number of the autopilot's system."""
        return self._system or 0

    def receive(self, until: float) -> Any:
        """Return the next message of the autopilot, or None if none has come until this time of `monotonic`."""
        while True:
            self._beat()
            message = self._read()
            now = monotonic()
            if message is not None and self._is_ours(message):
                return message
            if message is None:
                self.emptied = now
            if now >= until:
                return None
            if message is None:
                self._connection.select(min(until - now, BEAT))

    def _read(self) -> Any:
        try:
            return self._connection.recv_msg()
        except OSError:  # a serial port that was unplugged: the link is lost, as without messages
            sleep(0.05)
            return None

    def _is_ours(self, message: Any) -> bool:
        kind = message.get_type()
        if kind == "BAD_DATA" or kind.startswith("UNKNOWN"):
            return False
        system, component = message.get_srcSystem(), message.get_srcComponent()
        is_beat = kind == "HEARTBEAT" and self._connection.probably_vehicle_heartbeat(message)
        if is_beat and self._component < 0 and self._system in (None, system):
            self._system, self._component = system, component
            self._connection.mav.srcSystem = self._connection.source_system = system  # a part of the same vehicle
        if (system, component) != (self._system, self._component):
            return False
        if is_beat:
            self.is_armed = bool(message.base_mode & definitions().MAV_MODE_FLAG_SAFETY_ARMED)
        return True

    def _beat(self) -> None:
        if monotonic() >= self._next_beat:
            self._next_beat = monotonic() + BEAT
            kinds = definitions()
            self._connection.mav.heartbeat_send(
                kinds.MAV_TYPE_ONBOARD_CONTROLLER, kinds.MAV_AUTOPILOT_INVALID, 0, 0, kinds.MAV_STATE_ACTIVE
            )

    def ask_parameter(self, name: str) -> None:
        """Ask for the value of a parameter; the answer is a message PARAM_VALUE."""
        self._connection.mav.param_request_read_send(self._system, self._component, name.encode(), -1)

    def set_parameter(self, name: str, value: float) -> None:
        """Ask the autopilot to set a parameter. `autopilot_parameters` is the only caller."""
        kind = definitions().MAV_PARAM_TYPE_REAL32
        self._connection.mav.param_set_send(self._system, self._component, name.encode(), value, kind)

    def close(self) -> None:
        self._connection.close()


class Fields:
    """Numbers of messages, by names such as `ATTITUDE.roll` or `ATTITUDE_TARGET.q[0]`, and their latest values.

    The message of the first field is the clock: the agent makes a step when this message comes.
    """

    def __init__(self, *groups: tuple[str, tuple[str, ...]], timeout: float):
        self._groups = [[_field(argument, text) for text in texts] for argument, texts in groups]
        if not self._groups[0]:
            raise ArgumentError(groups[0][0], "at least one field, such as ATTITUDE.roll", "none")
        self.clock: str = self._groups[0][0][0]
        self._timeout = timeout
        self._latest: dict[str, tuple[Any, float]] = {}

    def hear(self, message: Any) -> bool:
        """Remember a message; return whether it is the clock."""
        self._latest[message.get_type()] = message, monotonic()
        return message.get_type() == self.clock

    def values(self) -> list[np.ndarray]:
        """Return the numbers of each group. NaN stands for numbers that have not come within the timeout."""
        return [np.array([self._value(*field) for field in group], float) for group in self._groups]

    def _value(self, kind: str, name: str, index: int | None) -> float:
        message, since = self._latest.get(kind, (None, 0.0))
        if message is None or monotonic() - since > self._timeout:
            return np.nan
        value = getattr(message, name)
        return value if index is None else value[index]


def _field(argument: str, text: str) -> tuple[str, str, int | None]:
    found = re.fullmatch(r"(\w+)\.(\w+)(?:\[(\d+)\])?", text)
    kinds = {kind.msgname: kind for kind in definitions().mavlink_map.values()}
    if found is None or found[1] not in kinds:
        raise ArgumentError(argument, "fields of MAVLink messages, such as ATTITUDE.roll", repr(text))
    kind, name, index = kinds[found[1]], found[2], None if found[3] is None else int(found[3])
    if name not in kind.fieldnames:
        raise ArgumentError(argument, f"a field of {found[1]}: {', '.join(kind.fieldnames)}", repr(text))
    length = dict(zip(kind.ordered_fieldnames, kind.array_lengths, strict=True))[name]
    if (index is None) != (length == 0) or (index is not None and index >= length):
        expected = f"{found[1]}.{name}" + (f"[0] … [{length - 1}]" if length else "")
        raise ArgumentError(argument, expected, repr(text))
    return found[1], name, index


def seconds(message: Any) -> float:
    """Return the time of a message: the autopilot's own if the message has it, otherwise the time of arrival."""
    if hasattr(message, "time_boot_ms"):
        return message.time_boot_ms / 1e3
    return message.time_usec / 1e6 if hasattr(message, "time_usec") else monotonic()


def check_period(link: Link, fields: Fields, dt: float, timeout: float) -> None:
    """Raise `ArgumentError` unless the message that is the clock comes every `dt` seconds."""
    times: list[float] = []
    until = monotonic() + timeout + 2 * PERIODS * dt
    while len(times) <= PERIODS:
        message = link.receive(until)
        if message is None:
            got = f"{len(times)} within {timeout + 2 * PERIODS * dt:.3g} s"
            raise ArgumentError("measurement", f"messages {fields.clock} every {dt:g} s", got)
        if fields.hear(message):
            times.append(seconds(message))
    period = float(np.median(np.diff(times)))
    if not 0.8 * dt < period < 1.25 * dt:
        hint = f"let the autopilot send {fields.clock} at the rate of the loop, or make a loop with this dt"
        raise ArgumentError("dt", f"the period of {fields.clock}, {period:.4g} s", f"{dt:g}", hint)
