"""The theorems, held against a run."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from .constants import NAMES, Constants, Contraction


@dataclass(frozen=True, kw_only=True)
class Row:
    """One property or theorem, as it stands on one run."""

    name: str
    kind: str
    """`hypothesis`: what a theorem asks for. `inequality`: what it then promises."""
    statement: str
    reference: str
    """Where it is in the paper."""
    measured: float
    """The left side, on the run. Of an inequality for every step, at the step where it comes closest to failing."""
    bound: float
    """The right side."""
    tolerance: float = 0.0
    """What rounding may have added to the left side, in the run's dtype."""
    step: int | None = None
    """That step, where there is one."""
    in_expectation: bool = False
    """Whether the theorem speaks of the mean over runs: then one run proves and refutes nothing."""
    vacuous: str = ""
    """Why the bound says nothing here; empty where it says something."""
    given: tuple[str, ...] = ()
    sampled: tuple[str, ...] = ()
    """The constants that the bound is made of, by source."""
    failed_hypotheses: tuple[str, ...] = ()
    """Names of hypotheses that the inequality needs and that do not hold on this run."""
    not_applicable: str = ""
    """Why the theorem says nothing about this controller or system; both sides are then NaN. Empty where it applies."""

    @property
    def holds(self) -> bool:
        return self.measured <= self.bound + self.tolerance

    @property
    def slack(self) -> float:
        """How much room is left: right side, with what rounding is allowed, minus left side."""
        return self.bound + self.tolerance - self.measured if math.isfinite(self.bound) else self.bound

    @property
    def must_hold(self) -> bool:
        """Whether the mathematics leaves no other choice: hypotheses hold, constants are given, and it is not about a
        mean."""
        unsure = self.failed_hypotheses or self.sampled or self.in_expectation or self.not_applicable
        return self.kind == "inequality" and not unsure

    @property
    def notes(self) -> list[str]:
        """What stands in the way of the bound, or of reading much into it."""
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
        """In a few words."""
        if self.not_applicable:
            return "not applicable"
        if self.kind == "hypothesis":
            return "holds" if self.holds else "fails"
        if not self.holds:
            return "VIOLATED" if self.must_hold else "does not hold"
        return "vacuous" if self.vacuous else "holds"


@dataclass(frozen=True)
class Certificate:
    """What the theory says about a run: rows to read, and the constants they rest on."""

    rows: tuple[Row, ...]
    constants: Constants | None
    """None where the properties of the joint dynamics were given instead (`Joint`)."""
    contraction: Contraction | None
    derived: dict[str, float]
    """The numbers on the way, by the paper's symbol."""

    @property
    def ok(self) -> bool:
        """Whether every inequality that must hold does."""
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
        """In one sentence."""
        if self.violated:
            return f"VIOLATED: {', '.join(row.name for row in self.violated)}"
        if not self.binding:
            return "nothing must hold: constants are sampled, or hypotheses fail"
        return f"every inequality that must hold does ({len(self.binding)} of them)"

    def row(self, name: str) -> Row:
        """The row of this name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(f"name: expected one of {', '.join(row.name for row in self.rows)}; got {name!r}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: numbers that are not finite become the words "inf", "-inf" and "nan"."""
        rows = [
            asdict(row)
            | {"holds": None if row.not_applicable else row.holds, "slack": row.slack}
            | {"must_hold": row.must_hold, "verdict": row.verdict}
            for row in self.rows
        ]
        k = self.constants
        constants = {} if k is None else {n: {"value": getattr(k, n), "source": k.source[n]} for n in NAMES}
        return _plain(
            {
                "ok": self.ok,
                "rows": rows,
                "constants": constants,
                "contraction": None if self.contraction is None else asdict(self.contraction),
                "derived": self.derived,
            }
        )

    def to_json(self, *, indent: int | None = 2) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def __str__(self) -> str:
        """A table: verdict, name, left side, right side, and what stands in the way."""
        head = ("verdict", "property or theorem", "measured", "bound", "notes")
        body = [
            (row.verdict, row.name, f"{row.measured:.4g}", f"{row.bound:.4g}", "; ".join(row.notes))
            for row in self.rows
        ]
        widths = [max(len(cells[i]) for cells in [head, *body]) for i in range(4)]
        lines = []
        for cells in (head, *body):
            left = "  ".join(
                cell.rjust(width) if i in (2, 3) else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(cells[:4], widths, strict=True))
            )
            lines.append(f"{left}  {cells[4]}".rstrip())
        return "\n".join([*lines, "", self.conclusion])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
