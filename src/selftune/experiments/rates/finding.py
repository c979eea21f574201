"""The common form of the experiments' findings: data, a table, checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from ...reporting.statistics import Check, Interval, interval

DEVELOPMENT_SEEDS = range(100)
"""The experiments were designed on these seeds. Start values are computed with the first of them."""
FIRST_SEED = 1_000
"""The first seed of the reported results. No reported seed was used in the design."""


class Finding(BaseModel):
    """The result of one experiment."""

    model_config = ConfigDict(frozen=True)

    name: str
    """The name; also of the figure's files."""
    title: str
    claim: str
    """The statement of the paper that the experiment tests, in words."""
    columns: list[str]
    rows: list[list[str]]
    """The cells of a table of the main numbers, as text."""
    checks: list[Check]
    data: dict[str, Any]
    """All numbers that the figure draws."""

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.holds is False]


def slopes(horizons: Sequence[float], values: np.ndarray) -> np.ndarray:
    """The slope of log value against log T by least squares, for each row of `values`, (seeds, horizons)."""
    logs = np.log(np.asarray(horizons, float))
    centred = logs - logs.mean()
    return np.log(values) @ (centred / np.sum(centred**2))


def at_most(name: str, limit: float, values: Any, *, said: str | None = None) -> Check:
    """A check that the upper end of the interval of a mean over seeds is at most the limit."""
    return judged(name, limit, interval(values), said=said)


def judged(name: str, limit: float, measured: Interval, *, said: str | None = None) -> Check:
    return Check(
        name=name,
        expected=f"≤ {limit:.4g}" if said is None else f"≤ {said}",
        measured=measured,
        holds=bool(measured.highest <= limit),
    )


def about(name: str, value: float, values: Any, margin: float) -> Check:
    """A check that both ends of the interval of a mean over seeds are within the margin of a predicted value."""
    measured = interval(values)
    holds = bool(measured.lowest >= value - margin and measured.highest <= value + margin)
    return Check(name=name, expected=f"{value:.4g} ± {margin:g}", measured=measured, holds=holds)


def by_horizon(horizons: Sequence[int], columns: Mapping[str, np.ndarray]) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of a table of means over seeds, one row for each T."""
    rows = [
        [f"{steps:,}", *(f"{float(np.mean(values[:, j])):.4g}" for values in columns.values() if j < values.shape[1])]
        for j, steps in enumerate(horizons)
    ]
    return ["T", *columns], rows
