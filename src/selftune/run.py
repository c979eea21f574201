"""What a simulation gives back: rows, where it stands, and how it ended."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

FIELDS = ("x", "u", "theta", "a_hat", "cost", "y", "gradient", "f", "f_hat", "innovation", "contraction", "guard")

DIMS = {
    "x": ("state",),
    "u": ("control",),
    "theta": ("parameter",),
    "a_hat": ("model_parameter",),
    "cost": (),
    "y": ("state", "parameter"),
    "gradient": ("parameter",),
    "f": ("residual",),
    "f_hat": ("residual",),
    "innovation": ("residual",),
    "contraction": (),
    "guard": (),
}
"""The names of a field's axes after that of time, where θ and â are vectors."""


class Result(eqx.Module):
    """How a run ended: a code, and the step at which it went wrong (-1 where it did not)."""

    OK = 0
    DIVERGED = 1
    NON_FINITE = 2

    code: Int[Array, ""]
    step: Int[Array, ""]

    @property
    def ok(self) -> Array:
        return self.code == Result.OK

    @property
    def message(self) -> str:
        """In words; for a batch of runs, how many failed and how the first of them did."""
        code, step = np.atleast_1d(self.code), np.atleast_1d(self.step)
        failed = np.flatnonzero(code != Result.OK)
        if failed.size == 0:
            return "ok"
        first = failed[0]
        text = in_words(int(code.flat[first]), int(step.flat[first]))
        return text if code.size == 1 else f"{failed.size} of {code.size} runs failed; run {first}: {text}"


def in_words(code: int, step: int) -> str:
    """How a run that failed did."""
    what = {Result.DIVERGED: "the state diverged", Result.NON_FINITE: "a number stopped being finite"}
    return f"{what[code]} at step {step}"


class Final(eqx.Module):
    """Where a run stands after its last step: what `simulate(..., resume=...)` continues from."""

    x: Float[Array, " n"]
    state: PyTree
    """Of the controller; with a guard, that of both."""
    t: Int[Array, ""]
    """The number of the next step."""
    streams: PyTree


class Run(eqx.Module):
    """What happened. Row t of an array is the value *used at* step t.

    A field that was not recorded raises `AttributeError` when asked for. After a failure, rows past `result.step` and
    `final` are what the arithmetic gave: do not use them.
    """

    recorded: dict[str, PyTree]
    final: Final
    result: Result
    engine: str = eqx.field(static=True)
    """Which engine ran: `"native"` or `"xla"`."""

    @property
    def x(self) -> Array:
        """The state, (T, n)."""
        return self._row("x")

    @property
    def u(self) -> Array:
        """The control, (T, m)."""
        return self._row("u")

    @property
    def theta(self) -> PyTree:
        """The policy parameters, each leaf with a leading axis T."""
        return self._row("theta")

    @property
    def a_hat(self) -> PyTree:
        """The estimated model parameters, each leaf with a leading axis T."""
        return self._row("a_hat")

    @property
    def cost(self) -> Array:
        """The stage cost, (T,)."""
        return self._row("cost")

    @property
    def y(self) -> Array:
        """The sensitivity of the state to θ, (T, n, d), flat in θ; for tuners that keep one."""
        return self._row("y")

    @property
    def gradient(self) -> Array:
        """The tuner's gradient, (T, d), flat in θ."""
        return self._row("gradient")

    @property
    def f(self) -> Array:
        """The true residual at x_t, (T, k)."""
        return self._row("f")

    @property
    def f_hat(self) -> Array:
        """The residual as the estimate had it, (T, k)."""
        return self._row("f_hat")

    @property
    def innovation(self) -> Array:
        """What the observation said that the estimate did not, (T, k)."""
        return self._row("innovation")

    @property
    def contraction(self) -> Array:
        """The running estimate of the closed loop's contraction ρ, (T,); for tuners with a `contraction_memory`."""
        return self._row("contraction")

    @property
    def guard(self) -> Array:
        """What the guard decided, (T,): sums of `Decision`s; for runs with a guard."""
        return self._row("guard")

    def _row(self, name: str) -> Any:
        value = self.recorded.get(name)
        if value is None:
            absent = "there was no guard" if name == "guard" else "this tuner keeps none"
            why = absent if name in self.recorded else f"simulate(..., record={tuple(self.recorded)})"
            raise AttributeError(f"{name} was not recorded: {why}")
        return value

    def raise_if_failed(self) -> "Run":
        """This run, or a `SimulationError` that carries it."""
        if not bool(jnp.all(self.result.ok)):
            raise SimulationError(self)
        return self


class SimulationError(RuntimeError):
    """A run that went wrong. The run itself, up to there, is in `run`."""

    def __init__(self, run: Run):
        super().__init__(f"simulate: {run.result.message}")
        self.run = run
