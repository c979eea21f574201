"""Tables: CSV files, and Parquet files if pyarrow is installed."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..foundation import suggestions
from ..foundation.errors import InputError
from .samples import Columns, in_nanoseconds


def read_csv(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of a CSV file by name; an empty cell is NaN."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel begins a file with a byte order mark
            rows = [row for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file, or a damaged one ({error})") from None
    if len(rows) < 2:
        raise InputError(f"{path}: expected a line with the names of the columns, and a line for each step")
    header = [name.strip() for name in rows[0]]
    numbers = np.empty((len(rows) - 1, len(header)))
    for i, row in enumerate(rows[1:]):
        if len(row) != len(header):
            raise InputError(f"{path}: row {i}: expected {len(header)} numbers, one for each column, got {len(row)}")
        try:
            numbers[i] = [float(cell) if cell.strip() else np.nan for cell in row]
        except ValueError as error:
            raise InputError(f"{path}: row {i}: expected numbers ({error})") from None
    return dict(zip(header, numbers.T, strict=True))


def read_parquet(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of a Parquet file that have numbers; a missing number is NaN."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise InputError(f"{path}: reading Parquet needs pyarrow; install it with: pip install pyarrow") from None
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file, or a damaged one ({str(error).splitlines()[0]})") from None
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if pa.types.is_timestamp(kind):  # seconds
            columns[name] = column.cast(pa.timestamp("ns")).cast(pa.int64()).to_numpy() / 1e9
        elif pa.types.is_floating(kind) or pa.types.is_integer(kind):
            columns[name] = column.cast(pa.float64()).to_numpy().astype(float)
    if table.num_rows == 0:
        raise InputError(f"{path}: the table has no rows")
    return columns


def columns_of(
    path: Path, table: dict[str, np.ndarray], fields: Sequence[str], time: str | None, seconds: float, dt: float
) -> Columns:
    """Return fields of a table; without a column for the time, the rows are `dt` seconds apart."""
    for name in (*fields, *(() if time is None else (time,))):
        if name not in table:
            there = ", ".join(table)
            raise InputError(f"{path}: there is no column {name!r}{suggestions.nearest(name, table)}; got {there}")
    rows = len(next(iter(table.values())))
    if time is None and "time" in table:
        time = "time"
    if time is None:
        stamps = np.round(np.arange(rows) * dt * 1e9).astype(np.int64)
    else:
        stamps = in_nanoseconds(f"{path}: {time}", table[time], seconds)
    return Columns(stamps, {name: table[name] for name in fields})
