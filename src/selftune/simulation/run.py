"""The results of a simulation: the recorded rows, the final state, and how the run ended."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..control import result_codes
from ..control.run_fields import RunFields
from ..foundation import arguments, extras
from ..foundation.errors import ArgumentError
from .diagnosis import AT_BOUND, Diagnosis, diagnose, find_signs, is_worse, tenths

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from .run_dataset import Names


class Result(eqx.Module):
    """How a run ended: a code, the step of the failure (-1 if there was none), and signs of a run that went wrong.

    A field beyond `code` and `step` is None if it cannot be computed: for a batch of runs (except `costs`), while JAX
    traces, or if the run did not record the numbers that it needs.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.1))
        >>> scenario = st.Scenario(jnp.ones(1), a_star=jnp.ones((50, 1)), w=jnp.zeros((50, 1)))
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> print(run.result.ok, run.result.message)
        True ok
        >>> first, last = run.result.costs  # the mean costs of the first and of the last tenth of the run
        >>> bool(last < first)
        True
    """

    OK = result_codes.OK
    DIVERGED = result_codes.DIVERGED
    NON_FINITE = result_codes.NON_FINITE

    code: Int[Array, "*batch"]
    step: Int[Array, "*batch"]
    costs: Float[np.ndarray, "*batch 2"] | None = None
    """The mean cost of the first and of the last tenth of the run."""
    held: Float[np.ndarray, " d"] | None = None
    """For each number of θ, the share of steps at which its constraint kept it from following the gradient; None also
    if every number of θ moved in more than half of the steps."""
    contraction: float | None = eqx.field(static=True, default=None)
    """ρ̂ at the last step, if the tuner has a `contraction_memory`."""
    first_bad: str | None = eqx.field(static=True, default=None)
    """After a failure, the number that went bad first, and its value."""

    @property
    def ok(self) -> Array:
        return self.code == Result.OK

    @property
    def message(self) -> str:
        """The result as text; for a batch of runs, how many failed and the first failure."""
        code, step = np.atleast_1d(self.code), np.atleast_1d(self.step)
        failed = np.flatnonzero(code != Result.OK)
        if failed.size == 0:
            return "ok" + self._rise() + self._at_bound()
        first = failed[0]
        text = result_codes.describe_failure(int(code.flat[first]), int(step.flat[first]))
        text += f" ({self.first_bad})" if self.first_bad else ""
        return text if code.size == 1 else f"{failed.size} of {code.size} runs failed; run {first}: {text}"

    def _rise(self) -> str:
        """Return a warning if the cost rose more than a thousandfold: the numbers are finite, but the run may be
        useless."""
        if self.costs is None:
            return ""
        costs = np.reshape(self.costs, (-1, 2))
        risen = costs[is_worse(costs[:, 0], costs[:, 1])]
        if not len(risen):
            return ""
        first, last = risen[np.argmax(risen[:, 1] / risen[:, 0])]
        where = f", in {len(risen)} of {len(costs)} runs; the most" if len(costs) > 1 else ""
        return f", but the cost rose{where}: {first:.4g} in the first tenth, {last:.4g} in the last"

    def _at_bound(self) -> str:
        """Return a note if a constraint, not the tuner, set θ in most of the run."""
        if self.held is None or not len(at := np.flatnonzero(self.held >= AT_BOUND)):
            return ""
        names = ", ".join(f"θ[{i}]" for i in at)
        return f"; the constraint held {names} back in {100 * self.held[at].min():.0f} % of the steps"


class Final(eqx.Module):
    """The state after the last step of a run; `simulate(..., resume=...)` continues from it.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.1))
        >>> scenario = st.Scenario(jnp.ones(1), a_star=jnp.ones((50, 1)), w=jnp.zeros((50, 1)))
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> more = st.Scenario(run.final.x, a_star=jnp.ones((50, 1)), w=jnp.zeros((50, 1)))
        >>> longer = st.simulate(controller, more, resume=run.final)
        >>> int(run.final.t), int(longer.final.t)
        (50, 100)
    """

    x: Float[Array, " n"]
    state: PyTree
    """The controller's state; with a guard, the state of controller and guard."""
    t: Int[Array, ""]
    """The number of the next step."""
    streams: PyTree


class Run(RunFields, eqx.Module):
    """The record of a simulation. Row t of an array is the value *used at* step t.

    The fields are those of `RunFields`. Reading a field that was not recorded raises `AttributeError`. After a failure,
    do not use `final` and the rows past `result.step`: their numbers are meaningless.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.1))
        >>> scenario = st.Scenario(jnp.ones(1), a_star=jnp.ones((50, 1)), w=jnp.zeros((50, 1)))
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> run.x.shape, run.theta.shape, run.cost.shape  # row t belongs to step t
        ((50, 1), (50, 1), (50,))
        >>> bool(run.cost[-10:].mean() < run.cost[:10].mean())
        True
    """

    recorded: dict[str, PyTree]
    final: Final
    outcome: Result
    engine: str = eqx.field(static=True)
    """The engine that ran: `"native"` or `"xla"`."""
    steps: int = eqx.field(static=True)
    """T, the number of steps of this call."""
    stride: int = eqx.field(static=True)
    """The recorded rows are those of steps 0, stride, 2·stride, … of this call."""
    constraint: PyTree
    """The tuner's Θ; None if the tuner has none, or if Θ holds anything other than arrays."""
    tuner_memory: Float[Array, "*batch"] | None = None
    """The `memory` of the tuner `GaussNewton`, in steps; None for other tuners."""

    @property
    def result(self) -> Result:
        """How the run ended: a code, the step of a failure, and signs of a run that went wrong."""
        cost = self.recorded.get("cost")
        costs = None if cost is None or not arguments.is_known(cost) else tenths(np.asarray(cost))
        signs = find_signs(self) if self._is_known() and np.ndim(self.outcome.code) == 0 else {}
        return Result(self.outcome.code, self.outcome.step, costs, **signs)

    @property
    def diagnosis(self) -> Diagnosis:
        """A summary in numbers: costs, share of steps at a bound, contraction, the first number that went bad.

        `print(run)` shows it as text. It needs a single run, not a batch, and does not work while JAX traces.
        """
        return diagnose(self)

    def to_dataset(self, *, names: "Names | None" = None) -> "xr.Dataset":
        r"""Return the recorded fields as an `xarray.Dataset`, with named axes; needs the extra `experiments`.

        The coordinate `time` is the number of the step. θ and $\hat a$ are flat along `parameter` and
        `model_parameter`; if they are pytrees, these coordinates have the names of the leaves. A batch of runs has the
        dimension `run` (two batch axes: `run_0` and `run_1`). `result_code` and `failed_at` say how each run ended; do
        not use rows past `failed_at`. The attributes have the engine, the result, the number of steps and the stride.

        **Arguments:** `names`, names for the components of a field, such as `{"x": ["angle", "speed"]}`.

        !!! Example

            >>> import jax.numpy as jnp, selftune as st
            >>> system = st.System(
            ...     dynamics=lambda x, u, f, t: x + 0.1 * (u + f),
            ...     residual=lambda x, a, t: a,
            ...     policy=lambda x, theta, f, t: -theta["gain"] * x - f,
            ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
            ... )
            >>> controller = st.Controller(system, st.MGAPS(0.1), st.GradientEstimator(0.1))
            >>> scenario = st.Scenario(jnp.ones(1), jnp.ones((50, 1)), jnp.zeros((50, 1)))
            >>> run = st.simulate(controller, scenario, theta={"gain": jnp.ones(1)}, a_hat=jnp.zeros(1))
            >>> dataset = run.to_dataset(names={"x": ["position"]})
            >>> dict(dataset.theta.sizes), dataset.parameter.values.tolist(), dataset.state.values.tolist()
            ({'time': 50, 'parameter': 1}, ['gain[0]'], ['position'])
        """
        if not self._is_known():
            raise ArgumentError("run", "a run whose numbers are known", "a run that JAX is tracing")
        batch, start = np.shape(self.outcome.code), np.unique(np.asarray(self.final.t)) - self.steps
        rows = -(-self.steps // self.stride)
        return extras.load("simulation.run_dataset", asked_for="run.to_dataset()").make(
            self.recorded,
            (start[0] if start.size == 1 else 0) + self.stride * np.arange(rows),
            batch,
            names=names,
            others={
                "result_code": (self.outcome.code, "How the run ended; 0 is ok."),
                "failed_at": (self.outcome.step, "The step of the failure; -1 if there was none."),
            },
            attrs={
                "title": f"{self._about()}: {self.result.message}",
                "engine": self.engine,
                "result": self.result.message,
                "steps": self.steps,
                "stride": self.stride,
            },
        )

    def plot(
        self,
        fields: Sequence[str] | None = None,
        *,
        names: "Names | None" = None,
        dt: float | None = None,
        every: int | None = None,
    ) -> "Figure":
        r"""Return a matplotlib figure of the run over time; needs the extra `experiments`. It is not shown or saved.

        Components of very different size have their own plots. If there are more rows than a screen can show, a line is
        the mean over an interval of rows, and a shade goes from the smallest to the largest value, so that no peak is
        lost. For a batch of runs, lines are medians over the runs, and shades cover all runs. Rows after a failure are
        left out.

        **Arguments:**

        - `fields`: the fields to draw; by default states, controls, θ, â, the cost and the guard's decisions.
        - `names`: as in `to_dataset`.
        - `dt`: the length of a step in seconds. The axis then has seconds in place of steps.
        - `every`: the number of rows in an interval. The default is the smallest number that fits on a screen.

        !!! Example

            >>> import jax.numpy as jnp, selftune as st
            >>> system = st.System(
            ...     dynamics=lambda x, u, f, t: x + 0.1 * (u + f),
            ...     residual=lambda x, a, t: a,
            ...     policy=lambda x, theta, f, t: -theta * x - f,
            ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
            ... )
            >>> controller = st.Controller(system, st.MGAPS(0.1), st.GradientEstimator(0.1))
            >>> scenario = st.Scenario(jnp.ones(1), jnp.ones((50, 1)), jnp.zeros((50, 1)))
            >>> run = st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1))
            >>> figure = run.plot(names={"x": ["position"]}, dt=0.1)  # figure.savefig("run.png") saves it
            >>> [axes.get_ylabel() for axes in figure.axes]
            ['$x$', '$u$', '$θ$', '$\\hat a$', 'cost']
        """
        drawing = extras.load("reporting.run_figures", asked_for="run.plot()")
        return drawing.plot(self.to_dataset(names=names), fields, dt=dt, every=every)

    def __repr__(self) -> str:
        names = ", ".join(name for name, value in self.recorded.items() if value is not None)
        batch = "".join(f"{size} × " for size in np.shape(self.outcome.code))
        about = f"{batch}{self.steps} steps, engine={self.engine!r}, recorded: {names or 'nothing'}"
        return f"<Run of {about}; {self.result.message}>" if self._is_known() else f"<Run of {about}; traced>"

    def __str__(self) -> str:
        if not self._is_known():
            return repr(self)
        if np.ndim(self.outcome.code) == 0:
            return str(self.diagnosis)
        text = f"{self._about()}: {self.result.message}"
        if self.result.costs is not None:
            first, last = np.median(np.reshape(self.result.costs, (-1, 2)), axis=0)
            text += f"\n  mean cost    {first:.4g} in the first tenth, {last:.4g} in the last (medians over the runs)"
        return text

    def _about(self) -> str:
        runs = f"{np.size(self.outcome.code)} runs" if np.ndim(self.outcome.code) else "Run"
        return f"{runs} of {self.steps:,} steps, {self.engine} engine"

    def _is_known(self) -> bool:
        return all(map(arguments.is_known, jax.tree.leaves(self)))

    def raise_if_failed(self) -> "Run":
        """Return this run; if it failed, raise a `SimulationError` that contains it."""
        if np.any(np.asarray(self.outcome.code) != Result.OK):
            raise SimulationError(self)
        return self


class SimulationError(RuntimeError):
    """The error of a run that failed. `run` is the run up to the failure.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(jnp.ones(1), a_star=jnp.zeros((400, 1)), w=jnp.zeros((400, 1)))
        >>> controller = st.Controller(system, st.Fixed(), st.Known())
        >>> try:
        ...     st.simulate(controller, scenario, theta=jnp.full(1, -3.0))  # an unstable gain
        ... except st.SimulationError as error:
        ...     print(error.run.result.ok, int(error.run.result.step))
        False 13
    """

    def __init__(self, run: Run):
        super().__init__(f"simulate: {run.result.message}")
        self.run = run
