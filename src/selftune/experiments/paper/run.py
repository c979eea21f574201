r"""The paper's simulation (Example "nonlinear control" and appendix "Simulation Results").

`selftune reproduce` runs both forms of the noise, several gains, seeds and algorithms, the best static gain in
hindsight and the local regret, and stores all of them as one run.

Given by the paper: φ(x) = [1, sin x, sin 2x], Δ = 0.01, Ornstein–Uhlenbeck noise with γ = 0.95 and σ = 0.1, a new a* in
[−0.25, 0.25]³ every 40,000 steps, h = x² + 0.1u², η = 1e-4. `Settings` chooses all values that the paper does not give.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

from ...foundation import arguments
from ...foundation.errors import ArgumentError

if TYPE_CHECKING:
    from ...storage.store import Layout, Manifest, Task

DELTA = 0.01
NOISES = ("outside", "inside")
"""x + Δ(u + f) + w, as in the appendix, and x + Δ(u + f + w), as in the example."""
GIVEN = ("learning_rate", "decay", "sigma", "period")
"""The settings that the paper gives."""
ALGORITHMS = ("M-GAPS", "fixed gain", "exact model", "GAPS")
CELL = ("noise", "gain", "algorithm")
_RUN_DIMS = (*CELL, "seed")
VARIABLES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "a_star": (("seed", "time", "feature"), "float32", "true parameters a*"),
    "a_hat": ((*_RUN_DIMS, "time", "feature"), "float32", "estimated parameters â"),
    "theta": ((*_RUN_DIMS, "time"), "float32", "gain θ"),
    "model_error": ((*_RUN_DIMS, "time"), "float32", "model error φ(x)â − φ(x)a*"),
    "x": ((*_RUN_DIMS, "time"), "float32", "tracking error x"),
    "cumulative_cost": ((*_RUN_DIMS, "time"), "float64", "cost up to and with this step"),
    "total_cost": (_RUN_DIMS, "float64", "cost of the whole run"),
    "period_cost": ((*_RUN_DIMS, "period"), "float64", "cost of each period of a*"),
    "result_code": (_RUN_DIMS, "int32", "how the run ended; 0 is ok"),
    "static_gain": (("noise", "seed"), "float64", "best static gain in hindsight, model known"),
    "static_cost": (("noise", "seed"), "float64", "cost of the best static gain"),
    "static_period_cost": (("noise", "seed", "period"), "float64", "its cost in each period"),
    "local_regret": (("noise", "gain", "seed", "horizon"), "float64", "local regret of M-GAPS"),
    "local_regret_error": (("noise", "gain", "seed", "horizon"), "float64", "its error, as estimated"),
    "rescaled_period_cost": (
        ("gain", "seed", "period"),
        "float64",
        "M-GAPS with learning rate η/Δ², noise inside: cost of each period",
    ),
}
"""The variables of the dataset: dimensions, dtype and description."""


@dataclass(frozen=True)
class Settings:
    """The numbers of the appendix. A comment marks the numbers that the paper leaves open."""

    learning_rate: float = 1e-4
    decay: float = 0.95
    sigma: float = 0.1
    period: int = 40_000
    periods: int = 5  # open
    seeds: int = 32  # open: 0, 1, …
    gains: tuple[float, ...] = (0.5, 1.0, 3.0, 6.0)  # open: θ_a and θ_0; 6 is near the best static gain of either noise
    preconditioner: float = 1.0  # open: P, as a multiple of the identity
    highest_gain: float = 50.0  # open: Θ = [0, 50]
    x0: float = 0.0  # open
    a_hat: float = 0.0  # open: every entry of â_0
    buffer: int = 100  # open: B of GAPS
    rows: int = 1_000  # open: how many steps of each run are stored
    regret_seeds: int = 32  # open: the local regret is computed for the first seeds, this many
    # open: T of the local regret
    horizons: tuple[int, ...] = (1_250, 2_500, 5_000, 10_000, 20_000, 40_000, 80_000, 200_000)
    regret_tolerance: float = 0.001  # open: error of the local regret's gradients / root mean square of the tuner's

    def __post_init__(self) -> None:
        for name in ("period", "periods", "seeds", "buffer", "rows"):
            arguments.count(name, getattr(self, name))
        arguments.whole("regret_seeds", self.regret_seeds)
        if not self.gains or not all(0 <= gain <= self.highest_gain for gain in self.gains):
            raise ArgumentError("gains", f"numbers from 0 to {self.highest_gain}", f"{self.gains}")
        if len(set(self.gains)) != len(self.gains):
            raise ArgumentError("gains", "each once", f"{self.gains}")
        if not self.horizons or not all(1 < steps <= self.steps for steps in self.horizons):
            raise ArgumentError("horizons", f"whole numbers from 2 to {self.steps}", f"{self.horizons}")

    @property
    def steps(self) -> int:
        return self.period * self.periods

    @property
    def stride(self) -> int:
        return max(1, self.steps // self.rows)

    @property
    def constraint(self) -> st.Box:
        return st.Box(0.0, self.highest_gain)


def example_system() -> st.MatchedSystem:
    r"""$x_{t+1} = x_t + \Delta(u_t + \phi(x_t) a^*_t) + w_t$, $u_t = -\theta_t x_t - \phi(x_t) \hat a_t$."""
    return _SYSTEM


def _residual(x, a, t):
    return jnp.stack([a[0] + a[1] * jnp.sin(x[0]) + a[2] * jnp.sin(2 * x[0])])


# One system for all callers, so that its compiled programs are reused.
_SYSTEM = st.MatchedSystem(
    dynamics=lambda x, v, t: x + DELTA * v,
    residual=_residual,
    actuation=lambda x, theta, t: -theta * x,
    cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
)


def scenario(settings: Settings, key: jax.Array, noise: str = "outside") -> st.Scenario:
    """One draw of a* and of the noise."""
    if noise not in NOISES:
        raise ArgumentError("noise", f"one of {NOISES}", f"{noise!r}")
    ka, kw = jax.random.split(key)
    w = st.OrnsteinUhlenbeck(settings.decay, settings.sigma)(kw, settings.steps, 1)
    return st.Scenario(
        x0=jnp.full(1, settings.x0),
        a_star=st.PiecewiseConstant(settings.period, -0.25, 0.25)(ka, settings.steps, 3),
        w=DELTA * w if noise == "inside" else w,
    )


def given(settings: Mapping[str, Any]) -> list[str]:
    """The names of the settings that have the paper's values. All other settings were chosen here."""
    return [name for name in GIVEN if settings[name] == getattr(Settings, name)]


def controllers(settings: Settings) -> dict[str, st.Controller]:
    """M-GAPS, a fixed gain, M-GAPS with the exact model (ALG*), and GAPS."""
    # The appendix's â − Δ P φ (φâ − φa*) is a gradient step of rate Δ/2: the square in the loss gives the factor 2.
    estimator = st.GradientEstimator(
        learning_rate=DELTA / 2, preconditioner=settings.preconditioner, constraint=st.Box(-0.25, 0.25)
    )
    tuner = st.MGAPS(settings.learning_rate, constraint=settings.constraint)
    truncated = st.GAPS(settings.buffer, settings.learning_rate, constraint=settings.constraint)
    made = (
        st.Controller(_SYSTEM, tuner, estimator),
        st.Controller(_SYSTEM, st.Fixed(), estimator),
        st.Controller(_SYSTEM, tuner, st.Known()),
        st.Controller(_SYSTEM, truncated, estimator),
    )
    return dict(zip(ALGORITHMS, made, strict=True))


def compute(
    settings: Settings,
    folder: Path,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> "Manifest":
    """Compute the tasks that `folder` does not have yet, in float64, and return the manifest.

    A task is a seed. `progress` is called with (done, total). Its unit is the time of one run of the closed loop.
    """
    from ...foundation.executors import Meter, Threads
    from ...storage.store import RunStore
    from ...storage.tasks import run_tasks

    with (
        jax.enable_x64(True),
        RunStore.begin(folder, kind="paper", settings=dataclasses.asdict(settings), layout=layout(settings)) as store,
    ):
        work = [_work(settings, seed) for (seed,) in store.tasks]

        def compute_task(task: "Task", tell: Callable[[int], Any]) -> dict[str, np.ndarray]:
            return one_seed(settings, task[0], tell)

        run_tasks(store, compute_task, work, Threads(workers), Meter(progress), reports_progress=True)
        return store.manifest


_RUN, _GAPS, _STATIC, _REGRET = 1, 2, 8, 7


def _work(settings: Settings, seed: int) -> int:
    """A rough estimate of the time of a seed, in runs of the closed loop, for the progress bar."""
    gains = len(settings.gains)
    regret = _REGRET if seed < settings.regret_seeds else 0
    return len(NOISES) * (gains * (3 * _RUN + _GAPS + regret) + _STATIC) + gains * _RUN


def layout(settings: Settings) -> "Layout":
    from ...storage.store import Layout, Variable

    return Layout(
        task_dims=("seed",),
        coords={
            "noise": NOISES,
            "gain": np.asarray(settings.gains, float),
            "algorithm": ALGORITHMS,
            "seed": np.arange(settings.seeds),
            "time": np.arange(0, settings.steps, settings.stride),
            "period": np.arange(settings.periods),
            "feature": np.arange(3),
            "horizon": np.asarray(settings.horizons),
        },
        variables={name: Variable(*declaration) for name, declaration in VARIABLES.items()},
    )


def one_seed(settings: Settings, seed: int, tell: Callable[[int], Any] = lambda work: None) -> dict[str, np.ndarray]:
    """All arrays of one seed. `tell` is called after each part, with its amount of work."""
    arrays = layout(settings).empty_task()
    rescaled = st.MGAPS(settings.learning_rate / DELTA**2, constraint=settings.constraint)
    for i, noise in enumerate(NOISES):
        nature = scenario(settings, jax.random.key(seed), noise)
        arrays["a_star"][:] = np.asarray(nature.a_star)[:: settings.stride]
        ours: list[st.Run] = []
        for j, gain in enumerate(settings.gains):
            for k, (name, controller) in enumerate(controllers(settings).items()):
                done = _simulate(settings, controller, nature, gain)
                _keep(settings, arrays, (i, j, k), done)
                if name == "M-GAPS":
                    ours.append(done)
                tell(_GAPS if name == "GAPS" else _RUN)
        best = _best_static_gain(settings, nature, min(ours, key=lambda run: float(jnp.sum(run.cost))))
        cost = np.asarray(_simulate(settings, st.Controller(_SYSTEM, st.Fixed(), st.Known()), nature, best).cost)
        arrays["static_gain"][i], arrays["static_cost"][i] = best, np.sum(cost)
        arrays["static_period_cost"][i] = _by_period(settings, cost)
        tell(_STATIC)
        for j, gain in enumerate(settings.gains):
            if noise == "inside":
                controller = st.Controller(_SYSTEM, rescaled, controllers(settings)["M-GAPS"].estimator)
                cost = np.asarray(_simulate(settings, controller, nature, gain).cost)
                arrays["rescaled_period_cost"][j] = _by_period(settings, cost)
                tell(_RUN)
            if seed < settings.regret_seeds:
                found = _local_regret(settings, nature, ours[j])
                at = np.asarray(settings.horizons) - 1
                arrays["local_regret"][i, j] = np.asarray(found.cumulative)[at]
                arrays["local_regret_error"][i, j] = np.asarray(found.cumulative_error)[at]
                tell(_REGRET)
    return arrays


def _simulate(settings: Settings, controller: st.Controller, nature: st.Scenario, gain: float) -> st.Run:
    return st.simulate(
        controller,
        nature,
        theta=jnp.full(1, gain),
        a_hat=jnp.full(3, settings.a_hat),
        record=("x", "theta", "a_hat", "cost", "f", "f_hat"),
        throw=False,
    )


def _keep(settings: Settings, arrays: dict[str, np.ndarray], at: tuple[int, int, int], done: st.Run) -> None:
    every = slice(None, None, settings.stride)
    cost = np.asarray(done.cost)
    arrays["a_hat"][at] = np.asarray(done.a_hat)[every]
    arrays["theta"][at] = np.asarray(done.theta)[every, 0]
    arrays["x"][at] = np.asarray(done.x)[every, 0]
    arrays["model_error"][at] = np.asarray(done.f_hat - done.f)[every, 0]
    arrays["cumulative_cost"][at] = np.cumsum(cost)[every]
    arrays["total_cost"][at] = np.sum(cost)
    arrays["period_cost"][at] = _by_period(settings, cost)
    arrays["result_code"][at] = int(done.outcome.code)


def _by_period(settings: Settings, cost: np.ndarray) -> np.ndarray:
    return cost.reshape(settings.periods, settings.period).sum(axis=1)


def _best_static_gain(settings: Settings, nature: st.Scenario, ours: st.Run) -> float:
    # One start suffices, the mean gain of the cheapest run: the cost has one minimum in the gain (tested on a grid).
    found = st.static_regret(_SYSTEM, nature, ours, constraint=settings.constraint, starts=1)
    return float(found.theta[0])


def _local_regret(settings: Settings, nature: st.Scenario, ours: st.Run) -> st.LocalRegret:
    longest = max(settings.horizons)
    theta = ours.theta[:longest]
    # Inside Θ, a step is η times the gradient. So the steps give the tuner's gradients, which scale the tolerance.
    gradients = np.diff(np.asarray(theta)[:, 0]) / settings.learning_rate
    tolerance = settings.regret_tolerance * float(np.sqrt(np.mean(gradients**2))) or settings.regret_tolerance
    return st.local_regret(
        _SYSTEM,
        nature[:longest],
        theta,
        learning_rate=settings.learning_rate,
        constraint=settings.constraint,
        window=st.AutoWindow(tolerance),
        workers=1,  # seeds run in parallel already
    )
