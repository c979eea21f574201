"""The summary of a run in numbers and as text; `print(run)` shows it."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..control.guard import Decision
from ..control.run_fields import FIELDS
from ..tuners.gauss_newton import TIME_CONSTANTS, time_constant

if TYPE_CHECKING:
    from .run import Run

WORSE = 1000.0
"""A warning is given if the mean cost of the last tenth is more than this many times that of the first tenth. The
factor is large because the cost of a run that starts at rest may rise a hundredfold."""
AT_BOUND = 0.5
"""A warning is given if a constraint held a number of θ back in at least this share of the steps."""
MANY = 10
"""With fewer steps, a derivative of zero says nothing: the first derivatives of a run are often zero."""
SHOWN = 8
"""At most this many numbers of θ are shown."""
ROWS = 2000
"""At most this many rows, spread evenly over the run, are used to compute how often θ is at a bound."""


@dataclass(frozen=True)
class Diagnosis:
    """The summary of one run. A number is None if the run did not record the fields that it needs.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.System(
        ...     dynamics=lambda x, u, f, t: 1.2 * x + 0.1 * (u + f),
        ...     residual=lambda x, a, t: a,
        ...     policy=lambda x, theta, f, t: -theta * x - f,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> controller = st.Controller(system, st.Fixed(), st.Frozen())  # θ = 1 is too low a gain
        >>> scenario = st.Scenario(jnp.ones(1), jnp.zeros((100, 1)), jnp.zeros((100, 1)))
        >>> run = st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1))
        >>> print(run.diagnosis.warnings()[0])
        The mean cost rose from 2.727 in the first tenth to 7.699e+07 in the last.
    """

    steps: int
    """The number of steps up to the first failure."""
    engine: str
    result: str
    first_cost: float | None
    """The mean cost of the first tenth of the run."""
    last_cost: float | None
    """The mean cost of the last tenth of the run."""
    theta: tuple[np.ndarray, np.ndarray] | None
    """The first and the last θ, flat."""
    names: tuple[str, ...] | None
    """The names of the numbers of θ; None if θ is a vector."""
    held: np.ndarray | None
    """For each number of θ, the share of steps at which its constraint kept it from following the gradient, (d,)."""
    contraction: float | None
    """ρ̂ at the last step, if the tuner has a `contraction_memory`."""
    memory: float | None
    """The `memory` of the tuner `GaussNewton`, in steps."""
    largest_y: float | None
    """The largest sensitivity |y| of the run."""
    decisions: dict[str, int]
    """At how many steps the guard made each decision."""
    first_bad: str | None
    """The number that went bad first at the failed step, and its value."""
    unused: tuple[str, ...] = ()
    """The numbers of θ on which nothing depends."""

    def warnings(self) -> list[str]:
        """Return sentences about results that need attention; an empty list if there are none."""
        warnings = []
        if self.first_bad is not None:
            warnings.append(f"The first number that went bad at that step: {self.first_bad}.")
        if self.first_cost is not None and self.last_cost is not None and is_worse(self.first_cost, self.last_cost):
            warnings.append(
                f"The mean cost rose from {self.first_cost:.4g} in the first tenth to {self.last_cost:.4g} in the last."
            )
        if self.held is not None and (at := np.flatnonzero(self.held >= AT_BOUND)).size:
            names = ", ".join(f"θ[{i}]" if self.names is None else self.names[i] for i in at)
            warnings.append(
                f"The constraint held {names} back in at least half of the steps: the bound, not the tuner, sets θ."
            )
        if self.unused:
            warnings.append(f"No step depends on {', '.join(self.unused)}: the policy and the cost do not use it.")
        rollbacks = sum(self.decisions.get(str(decision), 0) for decision in (Decision.EXPLODED, Decision.UNSTABLE))
        if rollbacks:
            times = "once" if rollbacks == 1 else f"{rollbacks:,} times"
            warnings.append(
                f"The guard restored earlier θ and â {times}. The cause may be a load that the gains cannot reject."
            )
        if safe := self.decisions.get(str(Decision.FAILSAFE), 0):
            warnings.append(
                f"The guard used the safe control at {safe:,} steps, because too many steps in a row were refused."
            )
        if self.contraction is not None and self.contraction >= 1:
            warnings.append(
                f"The closed loop does not contract (ρ̂ = {self.contraction:.4g}): do not trust the gradients."
            )
        elif self.contraction is not None and self.memory is not None:
            time = time_constant(self.contraction)
            if self.memory < TIME_CONSTANTS * time:
                warnings.append(
                    f"The tuner's memory of {self.memory:,.0f} steps is short for this closed loop, whose time "
                    f"constant is {time:,.0f} steps (ρ̂ = {self.contraction:.6g}): set memory to at least "
                    f"{math.ceil(TIME_CONSTANTS * time):,}, see `suggest_memory`."
                )
        return warnings

    def __str__(self) -> str:
        lines = [f"Run of {self.steps:,} steps, {self.engine} engine: {self.result}"]
        if self.first_cost is not None:
            lines.append(f"  mean cost    {self.first_cost:.4g} in the first tenth, {self.last_cost:.4g} in the last")
        if self.theta is not None:
            lines.append(f"  θ            {self._moved(*self.theta)}")
        if self.held is not None:
            lines.append(f"  at a bound   {self._shares(self.held)}")
        if self.contraction is not None:
            lines.append(f"  contraction  ρ̂ = {self.contraction:.4g} at the end")
        elif self.largest_y is not None:
            lines.append(f"  sensitivity  |∂x/∂θ| up to {self.largest_y:.3g}; the tuner's contraction_memory=… gives ρ̂")
        if self.decisions:
            lines.append("  guard        " + ", ".join(f"{name}: {n:,} steps" for name, n in self.decisions.items()))
        return "\n".join(lines + [f"  ! {text}" for text in self.warnings()])

    def _moved(self, first: np.ndarray, last: np.ndarray) -> str:
        if self.names is None:
            return f"from {_numbers(first)} to {_numbers(last)}"
        rows = zip(self.names[:SHOWN], first, last, strict=False)
        moves = ", ".join(f"{name} from {start:.4g} to {end:.4g}" for name, start, end in rows)
        return moves + (", …" if len(self.names) > SHOWN else "")

    def _shares(self, held: np.ndarray) -> str:
        if (percent := np.round(100 * held)).any():
            return f"{_numbers(percent)} % of the steps, for each number of θ"
        return "below 1 % of the steps" if held.any() else "never"


def diagnose(run: "Run") -> Diagnosis:
    """Return the diagnosis of one run. For run i of a batch, call it on `jax.tree.map(lambda leaf: leaf[i], run)`."""
    rows = {name: _flat(value) for name, value in run.recorded.items() if value is not None}
    steps, good = _good_steps(run)
    costs = tenths(rows["cost"][:good, 0]) if "cost" in rows else None
    first, last = (None, None) if costs is None else map(float, costs)
    return Diagnosis(
        steps=steps,
        engine=run.engine,
        result=run.result.message,
        first_cost=first,
        last_cost=last,
        theta=(rows["theta"][0], rows["theta"][good - 1]) if "theta" in rows and good else None,
        names=_names(run.recorded.get("theta")),
        held=_held(run, rows, good),
        contraction=_contraction(rows, good),
        memory=None if run.tuner_memory is None else float(run.tuner_memory),
        largest_y=float(np.abs(rows["y"][:good]).max()) if "y" in rows and good else None,
        decisions=_decisions(rows["guard"][:good, 0]) if "guard" in rows else {},
        first_bad=_first_bad(run, rows),
        unused=_unused(run, rows, good),
    )


def find_signs(run: "Run") -> dict[str, Any]:
    """Return the signs that a single run went wrong, by the names of `Result`'s fields."""
    rows = {
        name: _flat(value)
        for name, value in run.recorded.items()
        if value is not None and (name in ("theta", "gradient", "y", "contraction") or int(run.outcome.code))
    }
    _, good = _good_steps(run)
    # The bounds are checked by a program that JAX compiles, so only if a number of θ stood still for most of the run.
    theta = rows["theta"][:good] if "theta" in rows else np.zeros((0, 1))
    stood = np.any(np.mean(theta == theta[-1:], axis=0) >= AT_BOUND) if good and len(theta) else False
    return {
        "held": _held(run, rows, good) if stood else None,
        "unused": _unused(run, rows, good),
        "contraction": _contraction(rows, good),
        "first_bad": _first_bad(run, rows),
    }


def _good_steps(run: "Run") -> tuple[int, int]:
    """Return the number of steps and of recorded rows before the first failure; later numbers are meaningless."""
    failed_at, start = int(run.outcome.step), int(run.final.t) - run.steps
    # A run that continues from a bad state has failed before its first step.
    steps = run.steps if failed_at < 0 else max(0, failed_at - start)
    return steps, -(-steps // run.stride)


def _contraction(rows: dict[str, np.ndarray], good: int) -> float | None:
    return float(rows["contraction"][good - 1, 0]) if "contraction" in rows and good else None


def tenths(cost: np.ndarray) -> np.ndarray | None:
    """Return the mean cost of the first and of the last tenth of the rows, as a last axis of size 2; None for fewer
    than ten rows."""
    size = cost.shape[-1] // 10
    if not size:
        return None
    with np.errstate(all="ignore"):  # rows after a failure may hold any number
        return np.stack([cost[..., :size].mean(axis=-1), cost[..., -size:].mean(axis=-1)], axis=-1)


def is_worse(first: Any, last: Any) -> Any:
    return (last > WORSE * first) & (first > 0)


def _held(run: "Run", rows: dict[str, np.ndarray], good: int) -> np.ndarray | None:
    """Return the share of steps at which a small step along −gradient leaves Θ, so that the projection undoes it."""
    if run.constraint is None or not {"theta", "gradient"} <= rows.keys() or not good:
        return None
    which = np.unique(np.linspace(0, good - 1, ROWS).astype(int))
    theta = jax.tree.map(lambda leaf: jnp.asarray(leaf)[which], run.recorded["theta"])
    return np.asarray(_undone(run.constraint, theta, jnp.asarray(rows["gradient"][which]))).mean(axis=0)


def _unused(run: "Run", rows: dict[str, np.ndarray], good: int) -> tuple[str, ...]:
    """Return the names of the numbers of θ with a derivative of exactly zero at all steps, if others have one."""
    if not {"theta", "gradient"} <= rows.keys() or good < MANY:
        return ()
    moved = np.any(rows["gradient"][:good] != 0, axis=0)
    sensitivity = run.recorded.get("y")
    if sensitivity is not None:  # a number that only acts inside its policy moves x, even if the cost is flat
        moved |= np.any(np.asarray(sensitivity)[:good] != 0, axis=(0, 1))
    if moved.all() or not moved.any():
        return ()
    names = _names(run.recorded.get("theta"))
    return tuple(f"θ[{i}]" if names is None else names[i] for i in np.flatnonzero(~moved))


@eqx.filter_jit
def _undone(constraint: Any, theta: PyTree, gradient: Array) -> Array:
    """For each row and number of θ, whether the projection undoes a small step along −gradient."""

    def at(theta: PyTree, gradient: Array) -> Array:
        flat, unravel = ravel_pytree(theta)
        size = jnp.maximum(jnp.max(jnp.abs(gradient)), jnp.finfo(flat.dtype).tiny)
        step = -gradient / size * 1e3 * jnp.finfo(flat.dtype).eps * jnp.maximum(1, jnp.abs(flat))
        projected_step = ravel_pytree(constraint.project(unravel(flat + step)))[0] - flat
        return (jnp.abs(step) > 0) & (jnp.abs(projected_step) < 0.5 * jnp.abs(step))

    return jax.vmap(at)(theta, gradient)


def _decisions(guard: np.ndarray) -> dict[str, int]:
    counts = {str(decision): int(np.count_nonzero(guard & int(decision))) for decision in Decision}
    return {name: count for name, count in counts.items() if count}


def _first_bad(run: "Run", rows: dict[str, np.ndarray]) -> str | None:
    """Return the name and value of the number that went bad first; None if no number did, or if its row was not
    recorded."""
    failed_at, start = int(run.outcome.step), int(run.final.t) - run.steps
    if failed_at < 0:
        return None

    def row(name: str, step: int) -> np.ndarray:
        if name == "x" and step == start + run.steps:
            return np.asarray(run.final.x)
        at, between = divmod(step - start, run.stride)
        is_recorded = name in rows and not between and at < len(rows[name])
        return rows[name][at] if is_recorded else np.zeros(0)

    if int(run.outcome.code) == run.outcome.DIVERGED:
        x = row("x", failed_at + 1)
        return f"the next {_entry('x', x, int(np.argmax(np.abs(x))))}" if x.size else None
    for step, when in ((failed_at, ""), (failed_at + 1, "the next ")):
        for name in FIELDS:  # in the order in which a step computes them
            values = row(name, step)
            if (at := np.flatnonzero(~np.isfinite(values))).size:
                return when + _entry(name, values, int(at[0]))
    return None


def _entry(name: str, values: np.ndarray, i: int) -> str:
    return f"{name}[{i}] = {values[i]:.4g}" if len(values) > 1 else f"{name} = {values[i]:.4g}"


def _flat(value: Any) -> np.ndarray:
    """Return the rows of a field as a matrix."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(value)]
    return np.concatenate([leaf.reshape(len(leaf), math.prod(leaf.shape[1:])) for leaf in leaves], axis=1)


def _numbers(values: np.ndarray) -> str:
    text = ", ".join(f"{value:.4g}" for value in values[:SHOWN])
    return f"[{text}, …]" if len(values) > SHOWN else f"[{text}]"


def _names(rows: PyTree) -> tuple[str, ...] | None:
    """Return a name for each number of a pytree whose leaves have a leading axis; None for a vector."""
    leaves = jax.tree_util.tree_flatten_with_path(rows)[0]
    if not any(path for path, _ in leaves):
        return None
    return tuple(
        jax.tree_util.keystr(path, simple=True, separator=".") + (f"[{', '.join(map(str, index))}]" if index else "")
        for path, leaf in leaves
        for index in np.ndindex(np.shape(leaf)[1:])
    )
