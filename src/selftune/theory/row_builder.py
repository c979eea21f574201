"""The builder of rows: left side, right side, the constants that they use and the hypotheses that they need."""

import math
from typing import Any

import numpy as np

from .certificate import Row
from .constants import NAMES, Constants, Contraction

# In units of the run's rounding error. A value this close to a bound, relative to it, does not violate the bound: both
# sides are sums of many rounded terms.
ROUNDING = 2.0**12
# The same for a left side that is a difference of numbers of a given scale, which the loop computed.
DIFFERENCE = 2.0**12


class Ledger:
    """The rows in order: each hypothesis comes before the inequalities that need it."""

    def __init__(self, constants: Constants | None, contraction: Contraction | None, precision: float):
        self.k, self.c, self.precision = constants, contraction, precision
        self.rows: list[Row] = []

    def hypothesis(self, name: str, statement: str, reference: str, measured: Any, bound: float, **more: Any) -> None:
        self.rows.append(
            Row(
                name=name,
                kind="hypothesis",
                statement=statement,
                reference=reference,
                measured=float(measured),
                bound=float(bound),
                **more,
            )
        )

    def inequality(
        self,
        name: str,
        statement: str,
        reference: str,
        measured: Any,
        bound: Any,
        *,
        uses: tuple[str, ...],
        needs: tuple[str, ...],
        trivial: float = math.inf,
        says: str = "",
        scale: float = 0.0,
        error: Any = 0.0,
        more_sampled: tuple[str, ...] = (),
        **more: Any,
    ) -> None:
        left, right = np.atleast_1d(np.asarray(measured, float)), np.atleast_1d(np.asarray(bound, float))
        right = np.broadcast_to(right, left.shape)
        # A rounding error does not refute the theory.
        size = np.abs(np.where(np.isfinite(right), right, 0))
        unknown = np.broadcast_to(np.asarray(error, float), left.shape)
        tolerance = self.precision * (ROUNDING * size + DIFFERENCE * scale) + unknown
        with np.errstate(divide="ignore", invalid="ignore"):
            tightness = np.where(left <= 0, -np.inf, left / (right + tolerance))
        step = int(np.argmax(np.where(np.isnan(tightness), np.inf, tightness)))
        worst = float(right[step])
        vacuous = ""
        if not math.isfinite(worst):
            vacuous = "the bound is infinite"
        elif not np.all(np.isfinite(unknown)):
            vacuous = "the error of the surrogate is unknown with this window"
        elif left[step] > 0 and worst < self.precision * DIFFERENCE * scale:
            vacuous = "the bound is below the rounding error of the run's numbers"
        elif worst >= trivial:
            vacuous = says
        self.rows.append(
            Row(
                name=name,
                kind="inequality",
                statement=statement,
                reference=reference,
                measured=float(left[step]),
                bound=worst,
                tolerance=float(tolerance[step]),
                step=step if left.size > 1 else None,
                vacuous=vacuous,
                failed_hypotheses=tuple(n for n in needs if not self.row(n).holds),
                given=self._by_source(uses, "given"),
                sampled=(*self._by_source(uses, "sampled"), *more_sampled),
                **more,
            )
        )

    def not_applicable(self, name: str, statement: str, reference: str, reason: str) -> None:
        self.rows.append(
            Row(
                name=name,
                kind="inequality",
                statement=statement,
                reference=reference,
                measured=math.nan,
                bound=math.nan,
                not_applicable=reason,
            )
        )

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def _by_source(self, uses: tuple[str, ...], source: str) -> tuple[str, ...]:
        """The constants with this source. "all": every constant; "contraction": C̄, ρ, R_S; "joint": a `Joint`."""
        names_used = ["joint"] if "joint" in uses and source == "given" else []
        if self.k is not None:
            names = [name for name in NAMES if name in uses or "all" in uses]
            names_used += [name for name in names if self.k.source[name] == source]
        if self.c is not None and "contraction" in uses and self.c.source == source:
            names_used += ["C_bar", "rho", "R_S"]
        return tuple(names_used)


def times(factor: float, values: np.ndarray) -> np.ndarray:
    """The product, with 0 · ∞ = 0."""
    return np.where(values == 0, 0.0, factor * np.where(values == 0, 1.0, values))
