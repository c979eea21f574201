"""ULog files, which PX4 writes."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyulog

from ..foundation import suggestions
from ..foundation.errors import InputError
from .samples import Columns, in_nanoseconds


class ULogFile:
    """A ULog file."""

    def __init__(self, path: Path):
        self.path = path
        said = io.StringIO()  # pyulog prints its warnings
        try:
            with path.open("rb") as file, contextlib.redirect_stdout(said):
                self._log = pyulog.ULog(file)  # given a name, pyulog leaves the file of a damaged log open
        except Exception as error:  # pyulog raises errors of many types for damaged files
            raise InputError(f"{path}: not a ULog file, or a damaged one ({error})") from None
        is_damaged = self._log.file_corruption or said.getvalue()
        self.notes = [f"{path.name} is damaged: parts of it cannot be read, and are left out."] if is_damaged else []

    def topics(self) -> list[str]:
        """Return the names of the messages; further instances with their number."""
        return sorted(f"{one.name}[{one.multi_id}]" if one.multi_id else one.name for one in self._log.data_list)

    def read(
        self, topic: str, instance: int, fields: Sequence[str], time: str | None, seconds: float | None
    ) -> Columns:
        """Return fields of a message."""
        found = [one for one in self._log.data_list if (one.name, one.multi_id) == (topic, instance)]
        if not found:
            name = f"{topic}[{instance}]" if instance else topic
            raise no_topic(self.path, name, self.topics())
        data, stamps = found[0].data, "timestamp" if time is None else time
        for name in (*fields, stamps):
            if name not in data:
                hint = suggestions.nearest(name, data)
                raise InputError(f"{self.path}: {topic} has no {name}{hint}; the fields are {', '.join(data)}")
        when = in_nanoseconds(f"{self.path}: {topic}", np.asarray(data[stamps]), 1e-6 if seconds is None else seconds)
        return Columns(when, {name: np.asarray(data[name], float) for name in fields})


def no_topic(path: Path, topic: str, there: Sequence[str]) -> InputError:
    """Return the error for a topic that is missing; it lists the topics that are there."""
    listed = ", ".join(there) if there else "none"
    hint = suggestions.nearest(topic, there)
    return InputError(f"{path}: there is no topic {topic or '(empty)'}{hint}; the topics are {listed}")
