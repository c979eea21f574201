"""The parameters of an autopilot that are gains: read, changed by limited steps, confirmed, and written back."""

import enum
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from ..foundation.errors import ArgumentError
from .autopilot_link import Link, definitions

_LOGGER = logging.getLogger("selftune")
TRIES = 5
"""A request is sent so many times before it counts as not answered."""


class Ending(enum.StrEnum):
    """Why an autopilot's gains are no longer tuned."""

    FINISHED = "the time is over"
    LINK_LOST = "the link was lost"
    RESTARTED = "the autopilot restarted"
    REFUSED = "the autopilot did not accept a parameter"
    CHANGED = "somebody else changed a parameter"
    BLIND = "too many measurements in a row were missing or refused"


class StopError(Exception):
    """The tuning ends; `ending` says why."""

    def __init__(self, ending: Ending, detail: str = ""):
        super().__init__(f"{ending}{detail and f': {detail}'}")
        self.ending = ending


@dataclass
class _Write:
    value: float
    old: list[float]
    """Values that the autopilot may still report, because it had them before or was asked for them before."""
    sent: float
    tries: int = 1


class Parameters:
    """The parameters that are gains.

    - `first`: their values at the start. `confirmed`: the values that the autopilot has confirmed.
    - `writes`: how many values were confirmed. `pending`: requests without an answer.

    Without `may_write`, no request leaves this object.
    """

    def __init__(self, link: Link, first: Mapping[str, float], *, may_write: bool, span: float, retry: float):
        self._link, self._may_write, self._span, self._retry = link, may_write, span, retry
        self.first, self.confirmed = dict(first), dict(first)
        self.pending: dict[str, _Write] = {}
        self.writes = 0
        self.foreign: set[str] = set()

    def limited(self, wanted: Mapping[str, float], change: float) -> tuple[dict[str, float], bool]:
        """Return the next values on the way to the wanted ones, and whether a wanted value is out of reach.

        A value changes by at most the factor 1 + `change`, and stays between first / `span` and first · `span`. Changes
        below a tenth of `change` are not worth a write to the autopilot's memory.
        """
        values, is_out_of_reach = {}, False
        for name, value in wanted.items():
            now = self.confirmed[name]
            ratio = value / now
            near = min(max(ratio, 1 / (1 + change)), 1 + change)
            is_out_of_reach |= near != ratio
            if abs(near - 1) > change / 10:
                values[name] = self.inside({name: near * now})[name]
        return values, is_out_of_reach

    def inside(self, wanted: Mapping[str, float]) -> dict[str, float]:
        """Return the values, moved into the range between first / `span` and first · `span`."""
        values = {}
        for name, value in wanted.items():
            low, high = sorted((self.first[name] / self._span, self.first[name] * self._span))
            values[name] = min(max(value, low), high)
        return values

    def write(self, values: Mapping[str, float]) -> None:
        """Send the values that differ from those in the autopilot; `hear` and `repeat` finish the requests."""
        if not self._may_write:
            return
        for name, value in values.items():
            before = self.pending.get(name)
            if before is None and _same(value, self.confirmed[name]):
                continue
            old = [self.confirmed[name]] if before is None else [*before.old, before.value]
            self.pending[name] = _Write(value, old, monotonic())
            self._link.set_parameter(name, value)

    def hear(self, message: Any) -> None:
        """Take an answer of the autopilot. Raise `StopError` if it refused a value, or if somebody else has set one."""
        kind = message.get_type()
        if kind not in ("PARAM_VALUE", "PARAM_ERROR") or message.param_id not in self.first:
            return
        name = message.param_id
        request = self.pending.get(name)
        if kind == "PARAM_ERROR":
            if request is not None:
                raise StopError(Ending.REFUSED, f"{name} = {request.value:g}, {_error_text(message.error)}")
            return
        value = float(message.param_value)
        if request is not None and _same(value, request.value):
            del self.pending[name]
            self.confirmed[name] = value
            self.writes += 1
            _LOGGER.info("%s = %g is confirmed", name, value)
        elif not any(_same(value, known) for known in (request.old if request else [self.confirmed[name]])):
            self.confirmed[name] = value
            self.foreign.add(name)
            raise StopError(Ending.CHANGED, f"{name} is {value:g}")

    def repeat(self, *, for_ever: bool = False) -> None:
        """Send requests again that were not answered; raise `StopError` after the last try, unless `for_ever`."""
        for name, request in self.pending.items():
            if self._link.emptied - request.sent < self._retry:
                continue
            if request.tries >= TRIES and not for_ever:
                raise StopError(Ending.REFUSED, f"{name} = {request.value:g} was not confirmed after {TRIES} requests")
            request.sent, request.tries = monotonic(), request.tries + 1
            self._link.set_parameter(name, request.value)

    def write_back(self, patience: float) -> bool:
        """Write the first values back, at most for `patience` seconds, and return whether all were confirmed.

        A value that somebody else has set stays. If a request for this parameter is still under way, it would replace
        that value; so the value is sent again after the request.
        """
        if not self._may_write:
            return True
        until = monotonic() + patience
        self.write(self.first | {name: self.confirmed[name] for name in self.foreign})
        try:
            while self.pending and monotonic() < until:
                message = self._link.receive(min(until, monotonic() + self._retry))
                try:
                    if message is not None:
                        self.hear(message)
                except StopError as problem:  # the other parameters are still to be written
                    _LOGGER.error("while the first gains are written back: %s", problem)
                    if problem.ending is Ending.CHANGED and message is not None:
                        self.pending.pop(message.param_id, None)
                self.repeat(for_ever=True)
        finally:  # also if Ctrl-C comes again
            if self.pending:
                missing = ", ".join(f"{name} = {request.value:.9g}" for name, request in self.pending.items())
                _LOGGER.error("NOT written back: %s. Set the parameters by hand before the next flight", missing)
        return not self.pending


def read(link: Link, names: Iterable[str], retry: float) -> dict[str, float]:
    """Return the values of parameters by their names. `ArgumentError` names parameters that the autopilot does not
    have, or that are not real numbers."""
    values: dict[str, float] = {}
    for name in names:
        if not 1 <= len(name.encode()) <= 16 or not name.isascii():
            raise ArgumentError("names", "names of parameters, 1 to 16 characters", repr(name))
        for _ in range(TRIES):
            link.ask_parameter(name)
            if (answer := _answer(link, name, monotonic() + retry)) is not None:
                break
        else:
            raise ArgumentError("names", "parameters of the autopilot", f"{name!r}, to which nothing was answered")
        if answer.get_type() == "PARAM_ERROR":
            raise ArgumentError("names", "parameters of the autopilot", f"{name!r}, {_error_text(answer.error)}")
        if answer.param_type != definitions().MAV_PARAM_TYPE_REAL32 or not math.isfinite(answer.param_value):
            raise ArgumentError("names", "parameters that are real numbers (REAL32)", repr(name))
        values[name] = float(answer.param_value)
    return values


def _answer(link: Link, name: str, until: float) -> Any:
    while (message := link.receive(until)) is not None:
        if message.get_type() in ("PARAM_VALUE", "PARAM_ERROR") and message.param_id == name:
            return message
    return None


def _same(one: float, other: float) -> bool:
    """Return whether two numbers are equal as float32, up to the last bits, which some autopilots change."""
    return math.isclose(np.float32(one), np.float32(other), rel_tol=1e-6)


def _error_text(number: int) -> str:
    known = definitions().enums.get("MAV_PARAM_ERROR", {})
    return f"error {known[number].name if number in known else number}"
