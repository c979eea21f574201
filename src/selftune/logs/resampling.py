"""From samples with their own times to one row for each period of the loop; gaps are found, and bridged or left out."""

from typing import NamedTuple

import numpy as np

from ..foundation.errors import InputError

UNEVEN = 0.5
"""Recorded rows are kept as they are if no period differs from the loop's by more than this share."""
MOST = 20_000_000
"""A log becomes at most this many rows: 55 hours at 100 Hz."""
SLOW = 1.5
"""Samples that are further apart than this many periods of the loop are bridged by interpolation."""


class Samples(NamedTuple):
    """One signal with its times."""

    name: str
    time: np.ndarray
    """Seconds, increasing, (N,)."""
    value: np.ndarray
    is_held: bool
    """Whether the value holds until the next sample, as a control does; otherwise it is interpolated."""
    may_rest: bool
    """Whether long times without a sample are no gap: a reference may be sent only when it changes."""


class Cleaned(NamedTuple):
    time: np.ndarray
    value: np.ndarray
    not_finite: int
    repeated: int


def clean(name: str, time: np.ndarray, value: np.ndarray) -> Cleaned:
    """Return the samples that are finite and newer than the sample before. A clock that goes back is an error."""
    if not len(time):
        raise InputError(f"{name}: the log has no samples of this signal")
    steps = np.diff(time)
    if np.any(steps < 0):
        at = int(np.argmax(steps < 0))
        raise InputError(
            f"{name}: the clock goes back by {-steps[at] / 1e9:g} s after sample {at}, which is "
            f"{(time[at] - time[0]) / 1e9:g} s after the first; cut the log there, or choose another clock."
        )
    finite = np.isfinite(value)
    if not finite.any():
        raise InputError(f"{name}: all {len(value)} samples are NaN or infinite")
    kept = finite.copy()
    kept[1:] &= steps > 0
    return Cleaned(time[kept], value[kept], int(np.sum(~finite)), int(np.sum(steps == 0)))


def filtered(time: np.ndarray, value: np.ndarray, lag: float) -> np.ndarray:
    """Return the output of a first-order filter, at rest at the first sample, for an input that is held."""
    made = np.empty_like(value)
    made[0] = value[0]
    shares = -np.expm1(-np.diff(time) / lag)
    for i, share in enumerate(shares):
        made[i + 1] = made[i] + share * (value[i] - made[i])
    return made


class Rows(NamedTuple):
    """The signals, one row for each step."""

    time: np.ndarray
    values: list[np.ndarray]
    """The values of each signal, in the order of the given samples."""
    notes: list[str]


def rows_of(signals: list[Samples], dt: float, max_gap: float, *, jitter: bool = False) -> Rows:
    """Return one row for each period of the loop, from the longest part of the log without a gap.

    Rows of a log whose signals have the same times, about one period apart, are kept as they are. Otherwise the rows
    are `dt` apart: measurements are interpolated linearly, and a control is the mean of the held values in its period.
    With `jitter`, the rows are at the times of the first measurement.
    """
    notes: list[str] = []
    first = signals[0]
    start = max(one.time[0] for one in signals)
    end = min([one.time[-1] for one in signals if not one.may_rest])
    if not end > start:
        late, early = max(signals, key=lambda s: s.time[0]), min(signals, key=lambda s: s.time[-1])
        raise InputError(
            f"the signals do not overlap in time: {late.name} begins {late.time[0] - early.time[-1]:g} s after "
            f"{early.name} has ended"
        )
    for one in signals:
        usual = float(np.median(np.diff(one.time))) if len(one.time) > 1 else 0.0
        if not one.may_rest and usual > max_gap * dt:
            raise InputError(
                f"{one.name}: the samples are {usual:g} s apart, which is {usual / dt:.3g} periods of the loop (dt = "
                f"{dt:g} s); expected at most max_gap = {max_gap:g} periods"
            )
        if usual and usual < 0.5 * dt and not one.is_held:
            notes.append(
                f"{one.name} has {dt / usual:.3g} samples in a period of the loop; a row uses those next to its time."
            )
    same = all(one.may_rest or (len(one.time) == len(first.time) and np.all(one.time == first.time)) for one in signals)
    periods = np.diff(first.time)
    if jitter or (same and np.all(np.abs(periods / dt - 1) < UNEVEN)):
        time = first.time[(first.time >= start) & (first.time <= end)]
    else:
        if (end - start) / dt > MOST:
            raise InputError(
                f"{first.name}: its times cover {end - start:.4g} s, which is {(end - start) / dt:.3g} periods of the "
                f"loop, with {len(first.time)} samples; expected at most {MOST:,} periods: cut the log, or check "
                "time_unit and the times"
            )
        time = start + dt * np.arange(int((end - start) / dt + 1e-6) + 1)
        usual = float(np.median(periods))
        notes.append(f"Resampled to dt = {dt:g} s; {first.name} was recorded every {usual:.4g} s (median).")
    lasting = np.append(np.diff(time), dt)
    in_gap, bridged = np.zeros(len(time), bool), np.zeros(len(time), bool)
    values = []
    for one in signals:
        values.append(_held(one, time, lasting) if one.is_held else np.interp(time, one.time, one.value))
        if not one.may_rest:
            apart = _apart(one, time)
            in_gap |= apart > max_gap * dt
            bridged |= apart > SLOW * dt
    return _longest(Rows(time, values, notes), in_gap, bridged & ~in_gap, dt)


def _held(one: Samples, time: np.ndarray, lasting: np.ndarray) -> np.ndarray:
    """Return the mean of a held signal from each row's time to the next; before its first sample, it has that value."""
    # A sample that belongs to a row may have a time that is earlier or later by a rounding error.
    time = time + 1e-6 * lasting
    knots = np.append(one.time, max(one.time[-1], time[-1] + lasting[-1]) + 1.0)
    area = np.append(0.0, np.cumsum(one.value * np.diff(knots)))
    begin, finish = (np.interp(at, knots, area) for at in (time, time + lasting))
    mean = (finish - begin) / lasting
    # If no sample lies within a row's period, the mean is the last value, without rounding errors.
    last, until = (np.searchsorted(one.time, at, side="right") - 1 for at in (time, time + lasting * (1 - 2e-6)))
    return np.where(last == until, one.value[np.maximum(last, 0)], mean)


def _apart(one: Samples, time: np.ndarray) -> np.ndarray:
    """Return how far apart the samples around each row are, in seconds; 0 if a sample is at the row's time."""
    after = np.searchsorted(one.time, time - 1e-9, side="left").clip(0, len(one.time) - 1)
    before = (np.searchsorted(one.time, time + 1e-9, side="right") - 1).clip(0, len(one.time) - 1)
    return np.where(after <= before, 0.0, one.time[after] - one.time[before])


def _longest(rows: Rows, in_gap: np.ndarray, bridged: np.ndarray, dt: float) -> Rows:
    edges = np.flatnonzero(np.diff(np.concatenate([[True], in_gap, [True]]).astype(int)))
    parts = edges.reshape(-1, 2)
    if not len(parts):
        raise InputError("the log has no part without a gap")
    begin, finish = max(parts, key=lambda part: part[1] - part[0])
    notes = list(rows.notes)
    if len(parts) > 1 or in_gap.any():
        gaps = [f"{rows.time[a - 1]:.4g} to {rows.time[min(b, len(rows.time) - 1)]:.4g} s" for a, b in _gaps(parts)]
        shown = ", ".join(gaps[:5]) + (", …" if len(gaps) > 5 else "")
        notes.append(
            f"{_count(len(gaps), 'gap')} in the log ({shown}). The longest part without a gap is used: "
            f"{finish - begin} of {len(rows.time)} rows, {rows.time[begin]:.4g} to {rows.time[finish - 1]:.4g} s."
        )
    if count := int(np.sum(bridged[begin:finish])):
        notes.append(f"{_count(count, 'row')} between samples that are more than {SLOW:g} periods apart: interpolated.")
    kept = slice(begin, finish)
    return Rows(rows.time[kept], [value[kept] for value in rows.values], notes)


def _gaps(parts: np.ndarray) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in zip(parts[:-1, 1], parts[1:, 0], strict=True)]


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
