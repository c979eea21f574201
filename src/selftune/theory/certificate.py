"""The certificate of a run: the theorems, checked on the run."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from ..foundation import json_values
from ..foundation.errors import ArgumentError
from .constants import NAMES, Constants, Contraction


@dataclass(frozen=True, kw_only=True)
class Row:
    """One hypothesis or theorem, checked on one run."""

    name: str
    kind: str
    """`hypothesis`: a condition of a theorem. `inequality`: its conclusion."""
    statement: str
    reference: str
    """The place in the paper."""
    measured: float
    """The left side, on the run. For an inequality at every step: at the step where it is tightest."""
    bound: float
    """The right side."""
    tolerance: float = 0.0
    """The largest rounding error of the left side, in the run's dtype."""
    step: int | None = None
    """The step where an inequality at every step is tightest."""
    in_expectation: bool = False
    """Whether the theorem is about the mean over runs; then a single run neither proves nor refutes it."""
    vacuous: str = ""
    """Why the bound is vacuous: larger than a bound that holds without the theorem. Empty if it is not."""
    given: tuple[str, ...] = ()
    sampled: tuple[str, ...] = ()
    """The constants in the bound, by source."""
    failed_hypotheses: tuple[str, ...] = ()
    """The names of hypotheses that the inequality needs and that do not hold on this run."""
    not_applicable: str = ""
    """Why the theorem does not apply to this controller or system; both sides are then NaN. Empty if it applies."""

    @property
    def holds(self) -> bool:
        return self.measured <= self.bound + self.tolerance

    @property
    def slack(self) -> float:
        """The right side, plus the tolerance for rounding, minus the left side."""
        return self.bound + self.tolerance - self.measured if math.isfinite(self.bound) else self.bound

    @property
    def must_hold(self) -> bool:
        """Whether it must hold: the hypotheses hold, the constants are given, and it is not about a mean."""
        unsure = self.failed_hypotheses or self.sampled or self.in_expectation or self.not_applicable
        return self.kind == "inequality" and not unsure

    @property
    def notes(self) -> list[str]:
        """Reasons why the bound is not informative or not proved on this run."""
        if self.not_applicable:
            return [self.not_applicable]
        notes = [self.vacuous] if self.vacuous else []
        if self.in_expectation:
            notes.append("about the mean over runs")
        if self.failed_hypotheses:
            notes.append(f"needs {', '.join(self.failed_hypotheses)}")
        if self.sampled:
            notes.append(f"{len(self.sampled)} of its constants sampled")
        return notes

    @property
    def verdict(self) -> str:
        """The verdict, in a few words."""
        if self.not_applicable:
            return "not applicable"
        if self.kind == "hypothesis":
            return "holds" if self.holds else "fails"
        if not self.holds:
            return "VIOLATED" if self.must_hold else "does not hold"
        return "vacuous" if self.vacuous else "holds"


@dataclass(frozen=True)
class Certificate:
    """The theory's statements about a run as rows, with the constants that they use; `certify` makes it.

    !!! Example

        >>> import selftune as st
        >>> row = st.theory.Row(
        ...     name="gap", kind="inequality", statement="gap <= bound", reference="Theorem", measured=0.2, bound=1.5
        ... )
        >>> certificate = st.Certificate(rows=(row,), constants=None, contraction=None, derived={})
        >>> print(certificate.ok, certificate.row("gap").verdict, round(certificate.row("gap").slack, 2))
        True holds 1.3
    """

    rows: tuple[Row, ...]
    constants: Constants | None
    """None if the properties of the joint dynamics were given instead (`Joint`)."""
    contraction: Contraction | None
    derived: dict[str, float]
    """The intermediate numbers, by the paper's symbol."""

    @property
    def ok(self) -> bool:
        """Whether no inequality that must hold is violated. It does not mean that the theorems apply to this run."""
        return not self.violated

    @property
    def binding(self) -> tuple[Row, ...]:
        """The inequalities that must hold."""
        return tuple(row for row in self.rows if row.must_hold)

    @property
    def violated(self) -> tuple[Row, ...]:
        return tuple(row for row in self.binding if not row.holds)

    @property
    def conclusion(self) -> str:
        """The conclusion, in one sentence."""
        if self.violated:
            return f"VIOLATED: {', '.join(row.name for row in self.violated)}"
        if not self.binding:
            return "no inequality must hold: constants are sampled, or hypotheses fail"
        return f"all {len(self.binding)} inequalities that must hold do hold"

    @property
    def advice(self) -> list[str]:
        """What to do about failed hypotheses on which many rows depend; an empty list if there is nothing to do."""
        failed = {row.name: row for row in self.rows if row.kind == "hypothesis" and not row.holds}
        advice = []
        if (row := failed.get("contraction")) is not None:
            known = "contraction=Contraction(...)" if self.constants is not None else "rho < 1 in joint=Joint(...)"
            advice.append(
                f"The loop does not contract with every θ in Θ: ρ = {row.measured:.4g}. Almost every other bound "
                "depends on ρ < 1. Make Θ smaller (Sets.theta), without the gains with which the loop does not forget "
                f"its past, or give {known} yourself."
            )
        if rooms := [name for name in _ROOMS if name in failed and "contraction" not in failed]:
            radius = {"room for every trajectory": "Sets.x_radius", "room for every control": "Sets.u_radius"}
            larger = " and ".join(f"{radius[name]} to at least {failed[name].measured:.4g}" for name in rooms)
            advice.append(f"Trajectories of the proofs leave the sets. Increase {larger}, or make Θ smaller.")
        return advice

    def row(self, name: str) -> Row:
        """The row with this name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ArgumentError("name", f"one of {', '.join(row.name for row in self.rows)}", f"{name!r}")

    def to_dict(self) -> dict[str, Any]:
        """The certificate as JSON values: numbers that are not finite become the strings "inf", "-inf" and "nan"."""
        rows = [
            asdict(row)
            | {"holds": None if row.not_applicable else row.holds, "slack": row.slack}
            | {"must_hold": row.must_hold, "verdict": row.verdict}
            for row in self.rows
        ]
        k = self.constants
        constants = {} if k is None else {n: {"value": getattr(k, n), "source": k.source[n]} for n in NAMES}
        return json_values.plain(
            {
                "ok": self.ok,
                "rows": rows,
                "constants": constants,
                "contraction": None if self.contraction is None else asdict(self.contraction),
                "derived": self.derived,
            }
        )

    def to_json(self, *, indent: int | None = 2) -> str:
        """`to_dict` as JSON text."""
        return json_values.text(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        """A table: verdict, name, left side, right side, and notes."""
        head = ("verdict", "property or theorem", "measured", "bound", "notes")
        body = [
            (row.verdict, row.name, _show(row.measured), _show(row.bound), "; ".join(row.notes)) for row in self.rows
        ]
        widths = [max(len(cells[i]) for cells in [head, *body]) for i in range(4)]
        lines = []
        for cells in (head, *body):
            left = "  ".join(
                cell.rjust(width) if i in (2, 3) else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(cells[:4], widths, strict=True))
            )
            lines.append(f"{left}  {cells[4]}".rstrip())
        return "\n".join([*lines, "", self.conclusion, *self.advice])


_ROOMS = ("room for every trajectory", "room for every control")


def _show(number: float) -> str:
    """The number; "none" if there is none, because a constant in it is infinite or the row does not apply."""
    return f"{number:.4g}" if math.isfinite(number) else "none"
