"""`read_log`: a log file becomes a `PlantLog`, with one row for each period of a loop."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..foundation import arguments, extras
from ..foundation.errors import ArgumentError, InputError
from .mapping import PARTS, TIME_UNITS, LogMapping, LogSignal, as_mapping, by_topic, conversion
from .plant_log import PlantLog
from .resampling import Samples, clean, filtered, rows_of
from .samples import Columns
from .table_files import columns_of, read_csv, read_parquet


def read_log(
    path: str | os.PathLike[str],
    mapping: Any = None,
    *,
    dt: float,
    jitter: bool = False,
    units: Mapping[str, Sequence[str | None]] | None = None,
) -> PlantLog:
    """Read a log file, and return one row for each period of a loop.

    The format follows from the name: `.csv`, `.parquet`, `.ulg` (ULog), `.mcap`, or a folder (ROS 2 bag). ULog, MCAP
    and bags need the extra `logs`, Parquet needs `pyarrow`. `log.notes` says how the recorded samples became rows:
    resampling, gaps, and samples that were left out.

    A log whose signals have the same times, about `dt` apart, keeps its rows. Otherwise the rows are `dt` apart.
    Measurements are interpolated linearly between their samples. A control holds until its next sample, and its row has
    the mean over the period, and so has the reference. Gaps of up to `max_gap` periods (of the mapping) are bridged. If
    there are longer gaps, the longest part between them is used.

    **Arguments:**

    - `mapping`: a `LogMapping`, a dictionary, or the path of a TOML file. A table needs none if its columns have the
      names that `PlantLog.write_csv` writes: `measurement`, `u` and `reference`, or `measurement_0`, `measurement_1`, …
    - `dt`: the period of the loop, in seconds.
    - `jitter`: True for a loop with `jitter`. The rows are at the times of the first measurement.
    - `units`: the units of the loop's signals by part, for signals that have a `unit` in the mapping.

    !!! Example

        >>> import pathlib, tempfile, selftune as st
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "motor.csv")
        ...     _ = path.write_text("ms,rpm,volt\\n0,0,1.0\\n10,60,1.5\\n20,120,1.5\\n40,240,2.0\\n50,300,2.0\\n")
        ...     speed, volt = {"field": "rpm", "unit": "rpm"}, {"field": "volt"}
        ...     mapping = {"measurement": [speed], "u": [volt], "reference": [{"value": 30.0}]}
        ...     mapping |= {"time": "ms", "time_unit": "ms"}
        ...     log = st.read_log(path, mapping, dt=0.01, units={"measurement": ["rad/s"]})
        >>> print(log.measurement[:, 0].round(2), log.u[:, 0])
        [ 0.    6.28 12.57 18.85 25.13 31.42] [1.  1.5 1.5 1.5 2.  2. ]
        >>> print(log.notes[-1])
        1 row between samples that are more than 1.5 periods apart: interpolated.
    """
    path = Path(path)
    dt = float(arguments.positive("dt", dt))
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    found = None if mapping is None else as_mapping(mapping)
    read, found, has_time, notes = _opened(path, found, dt)
    signals = [(part, i, one) for part in PARTS for i, one in enumerate(getattr(found, part))]
    wanted = {part: list((units or {}).get(part, ())) for part in PARTS}
    for part, known in wanted.items():
        if known and len(known) != (given := len(getattr(found, part))):
            raise ArgumentError(part, f"{len(known)} signals of the log, as the loop has", f"{given}")
    columns = {key: read(key, fields) for key, fields in by_topic([one for *_, one in signals]).items()}
    origin = min((int(one.time[0]) for one in columns.values() if len(one.time)), default=0)
    samples = []
    for part, i, one in signals:
        unit = wanted[part][i] if wanted[part] else None
        if one.value is not None:
            factor, shift = conversion(one, unit)
            held = np.full(1, factor * one.value + shift)
            samples.append(Samples(f"{part} {i} ({one})", np.full(1, -np.inf), held, True, True))
        else:
            samples.append(_samples(part, i, one, columns[one.topic, one.instance], origin, unit, notes))
    rows = rows_of([_from_the_start(one, samples) for one in samples], dt, found.max_gap, jitter=jitter)
    parts = {part: [value for (p, *_), value in zip(signals, rows.values, strict=True) if p == part] for part in PARTS}
    arrays = {part: np.stack(values, axis=1) for part, values in parts.items()}
    return PlantLog(**arrays, time=rows.time if has_time else None, notes=(*notes, *rows.notes))


def _samples(
    part: str, i: int, one: LogSignal, columns: Columns, origin: int, unit: str | None, notes: list[str]
) -> Samples:
    name = f"{part} {i} ({one})"
    made = clean(name, columns.time, columns.values[str(one.field)])
    if made.not_finite:
        notes.append(f"{name}: {made.not_finite} of {len(columns.time)} samples are NaN or infinite: left out.")
    if made.repeated:
        notes.append(f"{name}: {made.repeated} samples have the time of the sample before: left out.")
    factor, shift = conversion(one, unit)
    time, value = (made.time - origin) / 1e9 - one.delay, factor * made.value + shift
    if one.delay:
        notes.append(f"{name}: a delay of {one.delay:g} s is removed.")
    if one.lag:
        value = filtered(time, value, one.lag)
    return Samples(name, time, value, is_held=part != "measurement", may_rest=part == "reference")


def _from_the_start(one: Samples, all_of_them: list[Samples]) -> Samples:
    """Return a constant as a signal that begins with the first sample of the log."""
    if np.isfinite(one.time[0]):
        return one
    return one._replace(time=np.full(1, min(other.time[0] for other in all_of_them if np.isfinite(other.time[0]))))


def _opened(path: Path, mapping: LogMapping | None, dt: float) -> tuple[Any, LogMapping, bool, list[str]]:
    """Return a function that reads fields of a topic, the mapping (a table may lack it), whether it has times, and the
    list of the reader's notes, to which the function adds."""
    suffix = path.suffix.lower()
    if suffix in (".csv", ".parquet"):
        table = (read_csv if suffix == ".csv" else read_parquet)(path)
        chosen = _own_columns(path, table) if mapping is None else mapping
        for one in (one for part in PARTS for one in getattr(chosen, part)):
            if one.topic:
                raise InputError(f"{path}: a table has no topics; expected no topic in the mapping, got {one.topic}")
        seconds = TIME_UNITS[chosen.time_unit or "s"]
        has_time = chosen.time is not None or "time" in table
        return lambda key, fields: columns_of(path, table, fields, chosen.time, seconds, dt), chosen, has_time, []
    if suffix in (".bag", ".db3"):
        hint = "give the folder with metadata.yaml" if suffix == ".db3" else "convert it with rosbags-convert"
        raise InputError(f"{path}: expected a ROS 2 bag, which is a folder; {hint}")
    kinds = {".ulg": ("ulog_files", "ULogFile"), ".mcap": ("message_files", "McapFile")}
    if not path.is_dir() and suffix not in kinds:
        expected = "a file .csv, .parquet, .ulg or .mcap, or the folder of a ROS 2 bag"
        raise InputError(f"{path}: expected {expected}")
    module, kind = ("message_files", "BagFolder") if path.is_dir() else kinds[suffix]
    file = getattr(extras.load(f"logs.{module}", asked_for=f"reading {path.name}", extra="logs"), kind)(path)
    if mapping is None:
        listed = ", ".join(file.topics()) or "none"
        raise InputError(f"{path}: expected a mapping from topics to signals; the topics are {listed}")
    seconds = None if mapping.time_unit is None else TIME_UNITS[mapping.time_unit]
    return lambda key, fields: file.read(*key, fields, mapping.time, seconds), mapping, True, file.notes


def _own_columns(path: Path, table: dict[str, np.ndarray]) -> LogMapping:
    """Return the mapping of a table whose columns have the names of a `PlantLog`."""
    found = {}
    for part in PARTS:
        names = [part] if part in table else []
        while not names or names[-1] == f"{part}_{len(names) - 1}":
            if f"{part}_{len(names)}" not in table:
                break
            names.append(f"{part}_{len(names)}")
        if not names:
            expected = f"a column {part}, or columns {part}_0, {part}_1, …, or a mapping"
            raise InputError(f"{path}: expected {expected}; got {', '.join(table)}")
        found[part] = tuple(LogSignal(name) for name in names)
    return LogMapping(**found)
