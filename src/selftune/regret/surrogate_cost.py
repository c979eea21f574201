from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..foundation.executors import Meter, Progress, Threads
from ..native.choice import Engine, run_with
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem
from . import _text, run_inputs
from ._lockstep import Lanes, exact_block, lanes_for, lanes_for_window, recorded_by_xla
from ._nodes import interpolated
from ._plan import RolloutPlan, fixed, measured, repaired
from ._window import Errors, Windowed, estimate, windowed_block
from .companion_trajectory import companion

if TYPE_CHECKING:
    from ._native_rollouts import NativeRollouts


@dataclass(frozen=True)
class AutoWindow:
    """A fast computation whose estimated errors are at most `tolerance`.

    If θ is one number, `surrogate` interpolates between rollouts with constant θ. If that is not possible, it takes for
    each part of a run the smallest window whose estimated errors are at most `tolerance`; the rollouts are exact where
    no window is long enough. The choice needs known numbers, so it does not work under `jit` and `vmap`.

    !!! Example

        >>> import selftune as st
        >>> st.AutoWindow(1e-6)
        AutoWindow(tolerance=1e-06)
    """

    tolerance: float = 1e-9
    """The largest error of F and of ‖∇F‖, in their own units, without rounding errors."""

    def __post_init__(self) -> None:
        # Without JAX: a default of `certify` is made when the package is imported.
        value = self.tolerance
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < np.inf:
            raise ArgumentError("tolerance", "a finite number > 0", arguments.describe(value))


class Surrogate(eqx.Module):
    """F_t(θ_t) and ∇F_t(θ_t); row t belongs to step t.

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
        >>> found = st.surrogate(system, scenario, run.theta)
        >>> print(found.value[0], found.gradient.shape)  # F_0 = x_0²
        1.0 (50, 1)
    """

    __repr__ = settings_text.show

    value: Float[Array, " T"]
    gradient: Float[Array, "T d"]
    """Flat in θ."""
    value_error: Float[Array, " T"]
    """The estimated error of `value`; 0 if it is the value of a rollout from step 0, inf if no estimate is possible."""
    gradient_error: Float[Array, " T"]
    """The estimated error of `gradient`, in the Euclidean norm."""
    window: Int[Array, " T"]
    """How many steps before step t its rollouts began; t if they began at step 0."""

    @_text.printed
    def __str__(self) -> str:
        norm = np.linalg.norm(np.asarray(self.gradient), axis=-1)
        errors = [np.max(error, axis=-1) for error in (self.value_error, self.gradient_error)]
        exact = not any(np.any(error > 0) for error in errors)
        value, gradient = (_text.number(error) for error in errors)
        return (
            f"surrogate cost over {_text.over(self.value)}\n"
            f"  F: {_text.in_halves(self.value)}\n"
            f"  ‖∇F‖: {_text.in_halves(norm)}\n"
            f"  {'exact' if exact else f'estimated error: at most {value} in F, {gradient} in ‖∇F‖'}"
        )


def surrogate(
    system: AbstractSystem,
    scenario: Scenario,
    thetas: PyTree,
    *,
    window: int | AutoWindow | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    engine: Engine = "auto",
) -> Surrogate:
    r"""The surrogate cost and its gradient at each θ of a run (Definition "Surrogate Cost").

    $$F_t(\theta) = h_t(\tilde x^*_t(\theta), \tilde u^*_t(\theta), \theta)$$

    where $\tilde x^*_\tau(\theta)$, $\tilde u^*_\tau(\theta)$ are the state and control if θ had been used from step 0
    on with $a^*$ known. The policy uses the residual at this hypothetical state, $f_\tau(\tilde x^*_\tau(\theta),
    a^*_\tau)$, as in Definition "Multi-Step Dynamics and Cost" (the paper's text writes $f_\tau(x_\tau, a^*_\tau)$
    here).

    The exact computation takes T rollouts with T²/2 steps in total. They run in parallel on all cores; memory does not
    grow with T². With a window, the rollout of step t begins at step t − H from the state and sensitivity of the
    companion trajectory (`exact_model_gap`). A contractive loop forgets the difference; `value_error` and
    `gradient_error` estimate how much of it may be left. The estimates come from measurements, not from a proof: how
    much each rollout forgets of a push, and how far it is from the companion. Steps before 2H are exact.

    With an `AutoWindow` and a θ of one number, values at $\theta_t$ are interpolated between rollouts that begin at
    step 0 and have a constant θ. Chebyshev points in the range of $\theta_{0:T-1}$ are their θ. The estimates of the
    error come from the coefficients of the polynomials, and from a rollout whose θ is between the points.

    Works under `jit` and `vmap`, on one core and without `AutoWindow`.

    **Arguments:**

    - `thetas`: $\theta_{0:T-1}$, a pytree with a leading axis T, such as `run.theta`.
    - `window`: None: exact; H: a whole number of steps from 1 to T; or an `AutoWindow`, which chooses H, or to
      interpolate.
    - `workers`: the number of threads; None: one for each core.
    - `progress`: called with (done, total), in steps of rollouts, from any thread.
    - `engine`: as in `simulate`. Under `jit` and `vmap` XLA runs.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> scenario = st.Scenario(
        ...     jnp.zeros(1), a_star=jnp.ones((500, 1)), w=st.Gaussian(1.0)(jax.random.key(0), 500, 1)
        ... )
        >>> thetas = jnp.linspace(0.0, 0.5, 500)[:, None]
        >>> exact = st.surrogate(system, scenario, thetas)
        >>> near = st.surrogate(system, scenario, thetas, window=st.AutoWindow(1e-6))
        >>> bool(jnp.all(jnp.abs(near.value - exact.value) <= near.value_error)), bool(near.value_error.max() < 2e-6)
        (True, True)
    """
    scenario = run_inputs.problem(system, scenario)
    thetas = run_inputs.rows("thetas", thetas, scenario)
    threads, meter = Threads(workers), Meter(progress)
    steps, d = len(scenario), run_inputs.width(thetas)
    traced = run_inputs.is_traced(scenario, thetas, system)
    if isinstance(window, AutoWindow):
        if traced:
            raise ArgumentError(
                "window", "a whole number under jit and vmap", "an AutoWindow, which needs known numbers"
            )
    elif window is not None:
        if not isinstance(window, int | np.integer):
            raise ArgumentError("window", "None, a whole number of steps or an AutoWindow", arguments.describe(window))
        window = arguments.count("window", window)
        if window > steps:
            raise ArgumentError("window", f"at most the scenario's {steps} steps", f"{window}")
    engine = run_inputs.engine_for(engine, scenario, thetas, system)
    run_inputs.check_shapes(system, scenario, thetas)
    scenario = scenario.of_loop_state(system)
    n = scenario.x0.shape[0]

    def run(native: "NativeRollouts | None") -> Surrogate:
        work = _Work(
            system,
            scenario,
            thetas,
            lanes_for(n, d, steps),
            threads=None if traced else threads,
            meter=meter,
            native=native,
        )
        if window is None:
            return work.exact_only()
        if isinstance(window, AutoWindow):
            return _auto(work, float(window.tolerance))
        return work.windowed(fixed(window, steps, lanes_for_window(n, d, steps, window)))[0]

    def natively() -> Surrogate:
        from ._native_rollouts import NativeRollouts

        return run(NativeRollouts(system, scenario, thetas, threads.workers))

    return run_with(engine, natively=natively, by_xla=lambda: run(None))[1]


def _auto(work: "_Work", tolerance: float) -> Surrogate:
    found = work.interpolated(tolerance)
    if found is not None:
        return found
    plan = measured(work.steps, work.size, tolerance, work.trial)
    while True:
        result, errors = work.windowed(plan)
        better = None if errors is None else repaired(plan, np.asarray(errors), tolerance)
        if better is None:
            return result
        plan = better


class _Work:
    """The blocks of one call, run natively, by threads with XLA or, when traced, one after another inside XLA."""

    def __init__(
        self,
        system: AbstractSystem,
        scenario: Scenario,
        thetas: PyTree,
        size: int,
        *,
        threads: Threads | None,
        meter: Meter,
        native: "NativeRollouts | None",
    ):
        self.system, self.scenario, self.thetas = system, scenario, thetas
        self.steps, self.size, self.n = len(scenario), size, scenario.x0.shape[0]
        self.threads, self.meter, self.native = threads, meter, native
        self.companion: tuple[Any, Any, Any] | None = None
        self.done: dict[tuple[Any, ...], Any] = {}

    def exact_only(self) -> Surrogate:
        lanes = self.exact([(0, self.steps)])
        none = jnp.zeros(self.steps, lanes.value.dtype)
        return Surrogate(jnp.asarray(lanes.value), jnp.asarray(lanes.gradient), none, none, jnp.arange(self.steps))

    def exact(self, ranges: list[tuple[int, int]]) -> Lanes:
        """The exact lanes of the ranges, in their rows among T."""
        blocks = [
            (first, min(self.size, stop - first)) for start, stop in ranges for first in range(start, stop, self.size)
        ]

        def task(first: Array, count: Array) -> Lanes:
            return exact_block(self.system, self.scenario, self.thetas, first, self.size)

        if self.native is None:
            parts = self._map(task, "exact", blocks, [self.size * (first + self.size) for first, _ in blocks])
        else:
            work = [self.native.exact_steps(*block) for block in blocks]
            parts = self._map_natively(self.native.exact, "exact", blocks, work)
        return _place(parts, [(0, count, first) for first, count in blocks], self.steps)

    def interpolated(self, tolerance: float) -> Surrogate | None:
        """The surrogate between rollouts with constant θ; None if that is not possible."""
        if run_inputs.width(self.thetas) != 1:
            return None

        def record(lanes: np.ndarray, size: int) -> Iterator[Lanes]:
            # One leaf has a number; others may be empty.
            thetas = jax.tree.map(lambda rows: np.resize(lanes, (len(lanes), *rows.shape[1:])), self.thetas)
            if self.native is None:
                return recorded_by_xla(self.system, self.scenario, thetas, size)
            return self.native.recorded(thetas, size)

        def report(made: int, left: int) -> None:
            self.meter.total = self.meter.done + made + left
            self.meter.add(made)

        theta = np.asarray(run_inputs.flat_rows(self.thetas))[:, 0]
        found = interpolated(theta, tolerance, record, report)
        if found is None:
            return None
        value, gradient, value_error, gradient_error = map(jnp.asarray, found)
        return Surrogate(value, gradient[:, None], value_error, gradient_error, jnp.arange(self.steps))

    def windowed(self, plan: RolloutPlan) -> tuple[Surrogate, Array | None]:
        """The surrogate by the plan, and the larger of the window's errors of value and gradient."""
        if not plan.blocks:
            return self.exact_only(), None
        parts = self._windowed_blocks(plan.blocks, plan.size)
        ranges = [(a, b, first + a) for (first, _), (a, b) in zip(plan.blocks, plan.counted(), strict=True)]
        # Before the first windowed lane all lanes are exact. Zeros stand for them, without errors.
        lanes: Windowed = _place(parts, ranges, self.steps)
        errors = estimate(lanes, jnp.asarray(plan.longest), self.n)
        result = _choose(
            jnp.asarray(plan.is_exact()), self.exact(plan.exact), lanes, errors, jnp.asarray(plan.windows())
        )
        return result, jnp.maximum(errors.value, errors.gradient)

    def trial(self, first: int, window: int, size: int) -> tuple[float, float]:
        """The largest error of a few lanes, and the factor by which one more step would reduce it."""
        x, y, push = self._companion()
        if self.native is None:
            lanes = windowed_block(
                self.system, self.scenario, self.thetas, x, y, push, jnp.asarray(first), jnp.asarray(window), size
            )
        else:
            (lanes,) = self.native.windowed([(first, window)], size, x, y, push)
        errors: Errors = estimate(lanes, jnp.asarray(window), self.n)
        error = jnp.maximum(jnp.max(errors.value), jnp.max(errors.gradient))
        return float(error), float(jnp.max(lanes.rate))

    def _windowed_blocks(self, blocks: list[tuple[int, int]], size: int) -> list[Windowed]:
        x, y, push = self._companion()
        work = [2 * size * window for _, window in blocks]

        def task(first: Array, window: Array) -> Windowed:
            return windowed_block(self.system, self.scenario, self.thetas, x, y, push, first, window, size)

        if self.native is None:
            return self._map(task, "windowed", blocks, work)
        return self._map_natively(
            partial(self.native.windowed, size=size, x=x, y=y, push=push), "windowed", blocks, work
        )

    def _companion(self) -> tuple[Any, Any, Any]:
        if self.companion is None:
            if self.native is None:
                x, y = companion(self.system, self.scenario, self.thetas)
            else:
                x, y = self.native.companion()
            # A twin is pushed by the state's standard deviation, or by 1 if the state does not move.
            push = jnp.std(x, axis=0)
            push = jnp.where(push > 0, push, 1)
            self.companion = (x, y, push) if self.native is None else (np.asarray(x), np.asarray(y), np.asarray(push))
        return self.companion

    def _map(self, task: Callable, name: str, blocks: list[tuple[int, int]], work: list[int]) -> list[Any]:
        """The results of all blocks by XLA."""
        if self.threads is None:
            columns = tuple(jnp.asarray(column) for column in zip(*blocks, strict=True))
            stacked = jax.lax.map(lambda row: task(*row), columns)
            return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(len(blocks))]
        threads = self.threads

        def run(new: list[tuple[int, int]], new_work: list[int]) -> list[Any]:
            return threads.map(lambda block: task(*(jnp.asarray(value) for value in block)), new, self.meter, new_work)

        return self._new_only(run, name, blocks, work)

    def _map_natively(self, task: Callable, name: str, blocks: list[tuple[int, int]], work: list[int]) -> list[Any]:
        """The results of all blocks by the native engine, which has its own threads."""
        return self._new_only(lambda new, _: task(new, done=self.meter.add) if new else [], name, blocks, work)

    def _new_only(self, run: Callable, name: str, blocks: list[tuple[int, int]], work: list[int]) -> list[Any]:
        """The results of all blocks. Results of earlier calls with the same arguments are reused."""
        new = [i for i, block in enumerate(blocks) if (name, *block) not in self.done]
        self.meter.total = self.meter.done + sum(work[i] for i in new)
        results = run([blocks[i] for i in new], [work[i] for i in new])
        for i, result in zip(new, results, strict=True):
            self.done[name, *blocks[i]] = jax.tree.map(np.asarray, result)
        return [self.done[name, *block] for block in blocks]


@eqx.filter_jit
def _choose(is_exact: Array, exact: Lanes, lanes: Windowed, errors: Errors, windows: Array) -> Surrogate:
    return Surrogate(
        jnp.where(is_exact, exact.value, lanes.value),
        jnp.where(is_exact[:, None], exact.gradient, lanes.gradient),
        jnp.where(is_exact, 0, errors.value + errors.rounding_value),
        jnp.where(is_exact, 0, errors.gradient + errors.rounding_gradient),
        windows,
    )


def _place(parts: list[Any], pieces: list[tuple[int, int, int]], steps: int) -> Any:
    """Put lanes a to b of block i into rows `to` and following, with (a, b, to) = pieces[i]; zeros elsewhere."""

    def place(*blocks: Any) -> Any:
        shape, dtype = (steps, *blocks[0].shape[1:]), blocks[0].dtype
        if isinstance(blocks[0], np.ndarray):
            rows = np.zeros(shape, dtype)
            for block, (a, b, to) in zip(blocks, pieces, strict=True):
                rows[to : to + b - a] = block[a:b]
            return rows
        rows = jnp.zeros(shape, dtype)
        for block, (a, b, to) in zip(blocks, pieces, strict=True):
            rows = rows.at[to : to + b - a].set(block[a:b])
        return rows

    return jax.tree.map(place, *parts)
