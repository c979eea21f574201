"""The fields of a run, each declared once, with its value at a step, its axes and its description."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, overload

from jaxtyping import Array, PyTree

from ..estimators.base import EstimatorInfo
from ..problem.loop_context import LoopContext
from .controller import Info

T = TypeVar("T")


class Step(NamedTuple):
    """The values of one step of the closed loop."""

    x: Array
    state: PyTree
    """The state of the controller (and guard) that the step started from."""
    info: Info
    f: Array
    estimator: EstimatorInfo
    decisions: Array | None
    """The guard's decisions; None without a guard."""
    measured: Array | None
    """The measurement; None if the controller gets x itself."""
    t: PyTree
    """The context of the step."""


class Field(Generic[T]):
    """A field of `Run`, which reads its rows from `run.recorded`.

    **Arguments:** `value`, from a step to the field's value; `axes`, the names of the axes after the time axis, if θ
    and â are vectors; `description`; `checked`, whether the run fails if the value is not finite; `dtype`, that of
    stored rows, if it is not that of x; `absent`, why the value may be None.
    """

    def __init__(
        self,
        value: Callable[[Step], Any],
        axes: tuple[str, ...],
        description: str,
        *,
        checked: bool = False,
        dtype: str | None = None,
        absent: str = "this tuner does not compute it",
    ):
        self.value, self.axes, self.checked, self.dtype, self.absent = value, axes, checked, dtype, absent
        self.__doc__ = description

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, run: None, owner: type) -> "Field[T]": ...
    @overload
    def __get__(self, run: Any, owner: type) -> T: ...
    def __get__(self, run: Any, owner: type) -> Any:
        if run is None:
            return self
        if (rows := run.recorded.get(self.name)) is None:
            why = self.absent if self.name in run.recorded else f"simulate(..., record={tuple(run.recorded)})"
            raise AttributeError(f"{self.name} was not recorded: {why}")
        return rows


class RunFields:
    """The fields of a run, in the order in which a step computes them. A new field needs one more line here."""

    x = Field[Array](lambda step: step.x, ("state",), "The state, (T, n).")
    measured = Field[Array](
        lambda step: step.measured,
        ("measurement",),
        "The measurement that the controller gets, (T, q); for runs with sensors or measurement noise.",
        absent="the controller got the state itself",
    )
    reference = Field[Array](
        lambda step: step.t.reference if isinstance(step.t, LoopContext) else None,
        ("output",),
        "The reference: the wanted values of the outputs, (T, q); for steps whose context is a `LoopContext`.",
        absent="the context is not a LoopContext",
    )
    memory = Field[PyTree](
        lambda step: step.state.memory,
        ("memory_number",),
        "The policy's memory, each leaf with a leading axis T; for policies with a memory.",
        absent="the policy has no memory",
    )
    theta = Field[PyTree](
        lambda step: step.state.theta, ("parameter",), "The policy parameters, each leaf with a leading axis T."
    )
    a_hat = Field[PyTree](
        lambda step: step.state.a_hat,
        ("model_parameter",),
        "The estimated model parameters, each leaf with a leading axis T.",
    )
    f_hat = Field[Array](
        lambda step: step.info.f_hat, ("residual",), "The residual at x_t with the estimated parameters, (T, k)."
    )
    u = Field[Array](lambda step: step.info.u, ("control",), "The control, (T, m).", checked=True)
    cost = Field[Array](lambda step: step.info.cost, (), "The stage cost at the true state, (T,).", checked=True)
    y = Field[Array](
        lambda step: step.info.tuner.y,
        ("loop_state", "parameter"),
        "The sensitivity of the loop state (x, then the memory) to θ, (T, n + s, d), flat in θ; for tuners that "
        "compute it.",
    )
    gradient = Field[Array](
        lambda step: step.info.tuner.gradient, ("parameter",), "The tuner's gradient, (T, d), flat in θ.", checked=True
    )
    contraction = Field[Array](
        lambda step: step.info.tuner.contraction,
        (),
        "The running estimate of the closed loop's contraction ρ, (T,); for tuners with a `contraction_memory`.",
    )
    f = Field[Array](lambda step: step.f, ("residual",), "The true residual at x_t, (T, k).")
    innovation = Field[Array](
        lambda step: step.estimator.innovation,
        ("residual",),
        "The innovation: the observed residual minus the estimated one, (T, k).",
        checked=True,
    )
    guard = Field[Array](
        lambda step: step.decisions,
        (),
        "The guard's decisions, (T,), each a sum of `Decision`s; for runs with a guard.",
        dtype="int32",
        absent="there was no guard",
    )


FIELDS: dict[str, Field] = {name: field for name, field in vars(RunFields).items() if isinstance(field, Field)}
CHECKED = tuple(name for name, field in FIELDS.items() if field.checked)
"""Values of a step that must be finite, in addition to the next x, θ and â."""
