"""The last steps of an `Agent`: the values that each step used, as arrays."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..control.run_fields import FIELDS, RunFields, Step
from ..foundation import extras

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from ..simulation.run_dataset import Names


class History(RunFields):
    """Steps of an agent, the oldest first. Row i of an array is the value used at the step `step[i]`.

    The fields are those of `Run`, without `f` and `innovation`. `x` is the measurement as `act` received it;
    if only a part of the state is measured, `x` is the estimated state and `measured` the measurement. `guard`
    has the decisions at `act`. If a measurement was refused, only `x`, `u`, `theta`, `a_hat` and `guard` of its row are
    meaningful.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.1))
        >>> agent = st.Agent(controller, x=jnp.ones(1), theta=jnp.zeros(1), a_hat=jnp.zeros(1), history=100)
        >>> for t in range(10):
        ...     u = agent.act(jnp.ones(1), t)
        >>> last = agent.history(5)
        >>> print(last.step, last.x.shape)
        [5 6 7 8 9] (5, 1)
    """

    recorded: dict[str, Any]
    engine: str
    step: np.ndarray
    """The number of each step, (n,)."""
    constraint: Any
    """The tuner's Θ; None if the tuner has none."""

    def __init__(self, step: np.ndarray, x: np.ndarray, t: Any, state: Any, info: Any, engine: str, constraint: Any):
        state_x: Any = x if info.x_hat is None else info.x_hat
        measured: Any = None if info.x_hat is None else x
        unknown: Any = _Unknown()
        used = Step(state_x, state, info, unknown.f, unknown, info.guard.decisions, measured, t)
        values = {name: field.value(used) for name, field in FIELDS.items()}
        self.recorded = {name: value for name, value in values.items() if value is not None}
        self.engine, self.step, self.constraint = engine, step, constraint

    def to_dataset(self, *, names: "Names | None" = None) -> "xr.Dataset":
        """Return the steps as an `xarray.Dataset`, as `Run.to_dataset` does; `time` is the number of the step."""
        about = {"title": f"The last {len(self):,} steps of an agent, {self.engine} engine", "engine": self.engine}
        made = extras.load("simulation.run_dataset", asked_for="history.to_dataset()")
        return made.make(self.recorded, self.step, names=names, attrs=about)

    def plot(
        self,
        fields: Sequence[str] | None = None,
        *,
        names: "Names | None" = None,
        dt: float | None = None,
        every: int | None = None,
    ) -> "Figure":
        """Return a matplotlib figure of the steps. The arguments are those of `Run.plot`."""
        drawing = extras.load("reporting.run_figures", asked_for="history.plot()")
        return drawing.plot(self.to_dataset(names=names), fields, dt=dt, every=every)

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        steps = f"{self.step[0]} to {self.step[-1]}"
        return f"<History of {len(self)} steps, {steps}; recorded: {', '.join(self.recorded)}>"

    def __getattr__(self, name: str) -> Any:
        # A field that is missing raises an AttributeError, after which Python calls this method.
        why = "an agent does not keep it" if name in FIELDS else f"expected one of step, {', '.join(FIELDS)}"
        raise AttributeError(f"{name}: {why}")


class _Unknown:
    """Values that an agent does not have when it acts: each of them is None."""

    def __getattr__(self, name: str) -> None:
        return None
