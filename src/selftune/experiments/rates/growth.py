r"""How the regret and the errors grow with T, on a family of problems that has the scales of the main theorem.

$$x_{t+1} = \tfrac14 x_t + \tfrac12 v_t + w_t, \quad f = a_0 \sin 2x + a_1 \cos x, \quad \psi = \theta_0 - \theta_1 x,
\quad h = \tfrac12 (x - 1)^2 + 0.1 u^2$$

on $\Theta = [0, 1.5] \times [0, 0.4]$, where the closed loop contracts with $\rho \le 1/4$. $a^*$ makes one circle of
radius 0.15 in T steps, so its path length does not depend on T, and $V_{sys} = 0$. With $q = T / 1000$ the noise w is
uniform of size $\bar\epsilon = 0.25 q^{-1/6}$. The learning rates are $\eta = 0.05 q^{-1/12}$, which minimizes the
theorem's bound for this noise, and $\iota = 0.3 q^{-1/2}$. Observations of f have noise, uniform in [-0.05, 0.05],
for every T.

`noise_limits` computes the two limits on $\bar\epsilon$ from the constants of the family: the assumption on the
environment bounds $\bar\epsilon$ from below, and Theorem 2 bounds it from above. The finding checks that both hold at
every T. The small-mismatch conditions of Theorem 1, which have worst-case constants, are not among the checks:
`selftune verify adversary` tests how much they matter.

The optimum keeps x near 1, where $\nabla_\theta F$ does not vanish with the noise. A problem of regulation to 0 would
not be a test: its gradients vanish with $\bar\epsilon^2$, so every θ would have a small regret.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

from ... import theory
from ...foundation.executors import Meter, Threads
from ...reporting.statistics import Check, interval
from .finding import DEVELOPMENT_SEEDS, FIRST_SEED, Finding, at_most, by_horizon, judged, slopes

HORIZONS = (1_000, 4_000, 16_000, 64_000, 256_000, 1_024_000)
SEEDS = 16
LAST = 3
"""The slope is also fitted to the last horizons alone, so that a transient at the first horizons cannot improve it."""
FAR_LIMIT = 64_000
"""The longest horizon of the far start. Longer runs add nothing: the optimum is some hundred steps away."""
RADIUS = 0.15
OBSERVATION = 0.05
"""The size of the noise in the observations of f."""
CONSTRAINT = st.Box(np.array([0.0, 0.0]), np.array([1.5, 0.4]))
UNTUNED_LIMIT = 64_000
"""The longest horizon of the comparison without tuning: enough to show that its regret grows linearly with T."""
LINEAR = 0.95
"""The least slope without tuning. It shows that the experiment can tell linear growth from the theorem's growth."""
FAR = (0.0, 0.4)
"""θ₀ of the far start: the corner of Θ at the largest distance from the optimum."""
WINDOW = 10
"""The surrogate's rollouts begin this many steps back: ρ¹⁰ is below 10⁻⁶."""

SYSTEM = st.MatchedSystem(
    dynamics=lambda x, v, t: x / 4 + v / 2,
    residual=lambda x, a, t: a[:1] * jnp.sin(2 * x) + a[1:] * jnp.cos(x),
    actuation=lambda x, theta, t: theta[:1] - theta[1:] * x,
    cost=lambda x, u, theta, t: 0.5 * jnp.sum((x - 1) ** 2) + 0.1 * jnp.sum(u**2),
)


class Quantity(NamedTuple):
    """A sum over t, and the growth that a theorem gives as its bound."""

    name: str
    power: Fraction
    """The theory's exponent of T."""
    source: str


QUANTITIES = (
    Quantity("Σε²", Fraction(1, 2), "Lemma on the gradient estimator"),
    Quantity("Σε′²", Fraction(5, 6), "Corollary of Theorem 2"),
    Quantity("Σ‖ξ−ξ̃‖", Fraction(11, 12), "main theorem"),
    Quantity("Σ‖ζ‖/η", Fraction(11, 12), "Theorem 1"),
    Quantity("R_L", Fraction(11, 12), "main theorem"),
)
REGRET = len(QUANTITIES) - 1


def noise_size(steps: int) -> float:
    return 0.25 * (steps / 1000) ** (-1 / 6)


def noise_limits(steps: int) -> tuple[float, float]:
    r"""The smallest and the largest $\bar\epsilon$ that the theory allows for T = `steps`.

    - Smallest: $(C_f + e_f) (2 D_f' \sqrt{3 C_p / T})^{1/3}$ (Assumption "estimator and environment"). The features
      $(\sin 2x, \cos x)$ have a norm of at most 5/4, so $D_f' = 5/4$ and $C_f = 2 r D_f'$ with the radius r of 𝒜. The
      path length is $C_p = 2 \pi r$.
    - Largest: `theory.excitation_limit`, with the norms of the first and of the second derivative of the features,
      times the diameter 2r of 𝒜.
    """
    norm = 1.25
    smallest = (2 * RADIUS * norm + OBSERVATION) * (2 * norm * math.sqrt(3 * 2 * math.pi * RADIUS / steps)) ** (1 / 3)
    x = np.linspace(-np.pi, np.pi, 100_001)
    first = np.hypot(2 * np.cos(2 * x), np.sin(x)).max()
    second = np.hypot(4 * np.sin(2 * x), np.cos(x)).max()
    return smallest, theory.excitation_limit(slope=2 * RADIUS * first, curvature=2 * RADIUS * second)


def learning_rate(steps: int) -> float:
    return 0.05 * (steps / 1000) ** (-1 / 12)


def controller(steps: int) -> st.Controller:
    """M-GAPS and the gradient estimator with the learning rates for T = `steps`."""
    estimator = st.GradientEstimator(0.3 * (steps / 1000) ** -0.5, constraint=st.Ball(RADIUS))
    return st.Controller(SYSTEM, st.MGAPS(learning_rate(steps), constraint=CONSTRAINT), estimator)


def scenario(steps: int, key: jax.Array) -> st.Scenario:
    """One circle of a*, with noise."""
    angle = jnp.linspace(0.0, 2 * jnp.pi, steps, endpoint=False)
    key_w, key_v = jax.random.split(key)
    return st.Scenario(
        jnp.zeros(1),
        a_star=RADIUS * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1),
        w=st.Uniform(noise_size(steps))(key_w, steps, 1),
        v=st.Uniform(OBSERVATION)(key_v, steps, 1),
    )


def optimum(steps: int) -> jax.Array:
    """The start near the optimum: the best fixed θ for a constant a* (its first value) and the noise of T = `steps`."""
    trial = 2_000
    drawn = st.Uniform(noise_size(steps))(jax.random.key(DEVELOPMENT_SEEDS[0]), trial, 1)
    held = st.Scenario(jnp.zeros(1), a_star=jnp.tile(jnp.array([RADIUS, 0.0]), (trial, 1)), w=drawn)
    fixed = st.Controller(SYSTEM, st.Fixed(), st.Known())
    guess = jnp.array([1.2, 0.2])
    run = st.simulate(fixed, held, theta=guess, record=("cost", "theta"))
    return st.static_regret(SYSTEM, held, run, constraint=CONSTRAINT, starts=guess[None]).theta


class Start(NamedTuple):
    name: str
    theta: jax.Array
    a_hat: jax.Array


def starts(steps: int) -> list[Start]:
    """Near: the optimum, with a* known. Far: a corner of Θ, and the point of 𝒜 that is farthest from a*₀."""
    first = jnp.array([RADIUS, 0.0])
    made = [Start("near", optimum(steps), first)]
    if steps <= FAR_LIMIT:
        made.append(Start("far", jnp.array(FAR), -first))
    return made


def one_run(steps: int, nature: st.Scenario, start: Start) -> np.ndarray:
    """The five sums of one run, in the order of `QUANTITIES`, and the largest error of R_L due to its window."""
    control, rate = controller(steps), learning_rate(steps)
    run = st.simulate(
        control,
        nature,
        theta=start.theta,
        a_hat=start.a_hat,
        record=("x", "theta", "a_hat", "y"),
    )
    mismatch = st.model_mismatch(SYSTEM, nature, run)
    gap = st.exact_model_gap(SYSTEM, nature, run).gap
    zeta = st.perturbations(SYSTEM, nature, run, tuner=control.tuner)
    regret = local_regret(steps, nature, run.theta)
    assert gap is not None  # M-GAPS keeps y
    return np.array(
        [
            float(jnp.sum(mismatch.mismatch**2)),
            float(jnp.sum(mismatch.mismatch_gradient**2)),
            float(jnp.sum(gap)),
            float(zeta.total) / rate,
            float(regret.cumulative[-1]),
            float(regret.cumulative_error[-1]),
        ]
    )


def untuned(steps: int, nature: st.Scenario) -> float:
    """R_L of the far start's θ, held fixed for the whole run."""
    return float(local_regret(steps, nature, jnp.tile(jnp.array(FAR), (steps, 1))).cumulative[-1])


def local_regret(steps: int, nature: st.Scenario, thetas: jax.Array) -> st.LocalRegret:
    """R_L, on one thread because the seeds run in parallel."""
    return st.local_regret(
        SYSTEM, nature, thetas, learning_rate=learning_rate(steps), constraint=CONSTRAINT, window=WINDOW, workers=1
    )


def measure(
    *,
    horizons: Sequence[int] = HORIZONS,
    seeds: int = SEEDS,
    first_seed: int = FIRST_SEED,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> dict[str, np.ndarray]:
    """The sums of all runs for each start: (seeds, horizons, 6), as `one_run` returns them.

    "untuned" has only R_L, of the far start's θ without tuning: (seeds, horizons, 1).
    """
    origins = {steps: starts(steps) for steps in horizons}
    # All horizons in turn for each seed, the longest first: two threads then rarely compile the same program at once.
    items = [(i, j) for i in range(seeds) for j in reversed(range(len(horizons)))]

    def task(item: tuple[int, int]) -> dict[str, np.ndarray]:
        i, steps = item[0], horizons[item[1]]
        nature = scenario(steps, jax.random.fold_in(jax.random.key(first_seed + i), steps))
        made = {start.name: one_run(steps, nature, start) for start in origins[steps]}
        if steps <= UNTUNED_LIMIT:
            made["untuned"] = np.array([untuned(steps, nature)])
        return made

    done = Threads(workers).map(task, items, Meter(progress, len(items)))
    sums = dict(zip(items, done, strict=True))
    return {
        name: np.array([[sums[i, j][name] for j in range(len(horizons)) if name in sums[i, j]] for i in range(seeds)])
        for name in ("near", "far", "untuned")
    }


def find(
    *,
    horizons: Sequence[int] = HORIZONS,
    seeds: int = SEEDS,
    first_seed: int = FIRST_SEED,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Finding:
    """The finding: slopes against the theory's. `horizons` ascend; at least two are within `UNTUNED_LIMIT`."""
    found = measure(horizons=horizons, seeds=seeds, first_seed=first_seed, workers=workers, progress=progress)
    return judge(found, horizons)


def judge(found: dict[str, np.ndarray], horizons: Sequence[int]) -> Finding:
    """Compare the sums of `measure` with the theory."""
    held, found = found["untuned"], {name: found[name] for name in ("near", "far")}
    limits = [(noise_size(steps), *noise_limits(steps)) for steps in horizons]
    ratios = {
        "the smallest ε̄ allowed / ε̄": [smallest / size for size, smallest, _ in limits],
        "ε̄ / the largest ε̄ allowed": [size / largest for size, _, largest in limits],
    }
    checks = [judged(name, 1.0, interval([max(values)]), said="1") for name, values in ratios.items()]
    sums, fits = {}, {}
    for k, quantity in enumerate(QUANTITIES):
        limit, fits[quantity.name], sums[quantity.name] = float(quantity.power), {}, {}
        for start, values in found.items():
            used = horizons[: values.shape[1]]
            parts = {"all T": used} if len(used) <= LAST else {"all T": used, f"last {LAST} T": used[-LAST:]}
            for part, which in parts.items():
                each = slopes(which, values[:, -len(which) :, k])
                name = f"slope of {quantity.name}, {start}, {part}"
                checks.append(at_most(name, limit, each, said=str(quantity.power)))
            fits[quantity.name][start] = interval(slopes(used, values[:, :, k])).model_dump()
            sums[quantity.name][start] = values[:, :, k].tolist()
    for start, values in found.items():
        mean = values[:, :, REGRET] / np.array(horizons[: values.shape[1]])
        falls = (mean[:, 1:] / mean[:, :-1]).max(axis=1)
        checks.append(at_most(f"R_L/T over that of the T before, {start}", 1.0, falls, said="1"))
    slope = interval(slopes(horizons[: held.shape[1]], held[:, :, 0]))
    enough = slope.lowest >= LINEAR
    checks.append(Check(name="slope of R_L without tuning", expected=f"≥ {LINEAR}", measured=slope, holds=enough))
    sums["R_L"]["untuned"], fits["R_L"]["untuned"] = held[:, :, 0].tolist(), slope.model_dump()
    near = found["near"]
    means = {quantity.name: near[:, :, k] for k, quantity in enumerate(QUANTITIES)}
    columns, rows = by_horizon(horizons, means | {"R_L/T": near[:, :, REGRET] / np.array(horizons)})
    columns.append("ε̄ (allowed)")
    for row, (size, smallest, largest) in zip(rows, limits, strict=True):
        row.append(f"{size:.3g} ({smallest:.3g} to {largest:.3g})")
    return Finding(
        name="rates",
        title="How regret and errors grow with T",
        claim="The main theorem: with noise of size T^(−1/6) and η ~ T^(−1/12) the expected local regret of M-GAPS "
        "with the gradient estimator is O(T^(11/12)), and so is the distance to the trajectory with the exact model. "
        "Along the way, Σε² is O(T^(1/2)) and Σε′² is O(T^(5/6)).",
        columns=columns,
        rows=rows,
        checks=checks,
        data={
            "horizons": list(horizons),
            "powers": {quantity.name: float(quantity.power) for quantity in QUANTITIES},
            "sums": sums,
            "slopes": fits,
            "window_error": max(float(np.max(one[:, :, REGRET + 1] / one[:, :, REGRET])) for one in found.values()),
        },
    )
