"""A recorded run of a plant: measurements, controls and references, one row for each step."""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..foundation import arguments
from ..foundation.errors import ArgumentError, InputError
from ..storage import files


@dataclass(frozen=True, eq=False)
class PlantLog:
    """A recorded run of a plant, as `commission` writes and reads it.

    Row t has the measurement at step t, the control that was sent after it, and the reference at that time. Rows may
    contain NaN; `commission` uses the rows before the first of them.

    **Arguments:**

    - `measurement`: (T, q), or (T,) for one signal; `u`: (T, m) or (T,); `reference`: (T, r) or (T,).
    - `time`: the time of each measurement in seconds, (T,), increasing; None if the times are not known.

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
        return PlantLog(*(None if part is None else part[rows] for part in parts))  # type: ignore[arg-type]

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the log as a CSV file, which `read_csv` reads without any loss of digits."""
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

    @classmethod
    def read_csv(cls, path: str | os.PathLike[str]) -> "PlantLog":
        """Read a CSV file with the columns `measurement`, `u` and `reference`, and `time` if it is known.

        If there are several measurements, their columns are `measurement_0`, `measurement_1`, …; the same holds for
        `u` and `reference`. Other columns are ignored.
        """
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        if len(rows) < 2:
            raise InputError(f"{path}: expected a line with the names of the columns, and a line for each step")
        header = [name.strip() for name in rows[0]]
        try:
            numbers = np.array([[float(cell) if cell.strip() else np.nan for cell in row] for row in rows[1:]])
        except ValueError as error:
            raise InputError(
                f"{path}: expected numbers, and as many in each line as there are columns ({error})"
            ) from None
        if numbers.ndim != 2 or numbers.shape[1] != len(header):
            raise InputError(f"{path}: expected {len(header)} numbers in each line, one for each column")
        found = {part: _columns(path, part, header) for part in ("measurement", "u", "reference")}
        time = numbers[:, header.index("time")] if "time" in header else None
        return cls(**{part: numbers[:, places] for part, places in found.items()}, time=time)


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


def _columns(path: Any, part: str, header: Sequence[str]) -> list[int]:
    if part in header:
        return [header.index(part)]
    count = 0
    while f"{part}_{count}" in header:
        count += 1
    if not count:
        raise InputError(f"{path}: expected a column {part}, or columns {part}_0, {part}_1, …; got {', '.join(header)}")
    return [header.index(f"{part}_{i}") for i in range(count)]
