"""A recorded run of a plant: measurements, controls and references, one row for each step."""

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..storage import files


@dataclass(frozen=True, eq=False)
class PlantLog:
    """A recorded run of a plant, as `read_log` reads it and `commission` writes it.

    Row t has the measurement at step t, the control that was sent after it, and the reference at that time. Rows may
    contain NaN; `commission` uses the rows before the first of them.

    **Arguments:**

    - `measurement`: (T, q), or (T,) for one signal; `u`: (T, m) or (T,); `reference`: (T, r) or (T,).
    - `time`: the time of each measurement in seconds, (T,), increasing; None if the times are not known.
    - `notes`: sentences about how the rows were made from recorded samples, for people.

    !!! Example

        >>> import selftune as st
        >>> log = st.PlantLog(measurement=[0.0, 0.1, 0.2], u=[1.0, 0.9, 0.8], reference=[1.0, 1.0, 1.0])
        >>> len(log), log.measurement.shape
        (3, (3, 1))
    """

    measurement: Any
    u: Any
    reference: Any
    time: Any = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows = None
        for name in ("measurement", "u", "reference"):
            array = _table(name, getattr(self, name))
            if rows is not None and len(array) != rows:
                raise ArgumentError(name, f"{rows} rows, those of measurement", f"{len(array)}")
            rows = len(array)
            object.__setattr__(self, name, array)
        if self.time is not None:
            time = _table("time", self.time)
            if time.shape != (rows, 1) or not np.all(np.diff(time[:, 0]) > 0):
                raise ArgumentError("time", f"{rows} increasing numbers of seconds", arguments.describe(time))
            object.__setattr__(self, "time", time[:, 0])

    def __len__(self) -> int:
        return len(self.measurement)

    def __getitem__(self, rows: slice) -> "PlantLog":
        parts = (self.measurement, self.u, self.reference, self.time)
        return PlantLog(*(None if part is None else part[rows] for part in parts), notes=self.notes)  # type: ignore[arg-type]

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the log as a CSV file, which `read_log` reads without any loss of digits."""
        parts = {name: getattr(self, name) for name in ("measurement", "u", "reference")}
        columns = [name for part, rows in parts.items() for name in _names(part, rows.shape[1])]
        table = np.concatenate(list(parts.values()), axis=1)
        if self.time is not None:
            columns, table = ["time", *columns], np.concatenate([self.time[:, None], table], axis=1)
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows([repr(float(number)) for number in row] for row in table)
        files.write(Path(path), text.getvalue().encode())


def _table(name: str, value: Any) -> np.ndarray:
    try:
        array = np.array(value, float)
    except (TypeError, ValueError):
        raise ArgumentError(name, "a table of numbers, one row for each step", arguments.describe(value)) from None
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or array.size == 0:
        raise ArgumentError(name, "one row for each step", arguments.describe(array))
    return array


def _names(part: str, count: int) -> list[str]:
    return [part] if count == 1 else [f"{part}_{i}" for i in range(count)]
