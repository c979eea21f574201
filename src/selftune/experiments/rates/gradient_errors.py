r"""Theorem 2, from the errors of f to the errors of its gradient, on a problem where its bound is informative.

$$x_{t+1} = \tfrac12 v_t + w_t, \qquad f = a x, \qquad |a| \le 0.45, \qquad \psi = 0$$

With w uniform of size $\bar\epsilon$, $|x| \le \bar\epsilon / 0.55$. The error of f is linear in x ($\gamma_e = 0$),
its slope is at most $\beta_e = 0.9$. So the theorem's bound is $6 \bar\epsilon T$ and the trivial bound $\beta_e^2 T$.
The gradient estimator starts at the other end of 𝒜. Its ι minimizes its own bound $R_0$, so that the hypothesis $R_0
\le \bar\epsilon^3 T$ can be computed and need not be measured. Observations are exact, or have noise that is uniform in
[-0.02, 0.02].

At T = 20,000 and $\bar\epsilon = 0.05$: $R_0 = 1.89 \le 2.5$, and the bound 6,000 is below the trivial 16,200. Over T,
$\bar\epsilon = 0.05 (T / 20000)^{-1/6}$ as in the corollary, which then gives $O(T^{5/6})$.

The gradient estimator has smaller errors than this. An estimator with a constant error $\delta^2 = 2.7 \bar\epsilon$,
nearly the largest error that the hypothesis allows, has $\sum \varepsilon'^2 = 2.7 \bar\epsilon T$. So the power 5/6
cannot be improved, and the constant of the bound cannot be improved by a factor of 2.3.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

from ... import theory
from ...foundation.executors import Meter, Threads
from ...reporting.statistics import Check, interval
from .finding import FIRST_SEED, Finding, at_most, judged, slopes

HORIZONS = (20_000, 40_000, 80_000, 160_000, 320_000)
SEEDS = {20_000: 50}
"""Runs for each T; a T that is not listed has `FEWER`."""
FEWER = 16
LARGEST = 0.45
HELD = 2.7
"""δ²/ε̄ of the estimator with a constant error."""


class Case(NamedTuple):
    """An estimator, and the noise of its observations."""

    name: str
    noise: float
    held: bool = False
    """Whether the error stays constant; otherwise the gradient estimator runs."""


CASES = (
    Case("gradient estimator, exact", 0.0),
    Case("gradient estimator, noisy", 0.02),
    Case("error held", 0.0, held=True),
)

SYSTEM = st.MatchedSystem(
    dynamics=lambda x, v, t: v / 2,
    residual=lambda x, a, t: a * x,
    actuation=lambda x, theta, t: 0.0 * theta,
    cost=lambda x, u, theta, t: jnp.sum(x**2),
)


def size(steps: int) -> float:
    """ε̄ for T = `steps`."""
    return 0.05 * (steps / 20_000) ** (-1 / 6)


def constants(steps: int, noise: float) -> dict[str, Any]:
    """The arguments of the estimator's bound: |x| ≤ ε̄ / 0.55, as |a* − â| / 2 ≤ 0.45."""
    radius = size(steps) / (1 - LARGEST)
    return dict(
        diameter=2 * LARGEST,
        path_length=0.0,
        residual_range=2 * LARGEST * radius,
        noise=noise,
        slope=radius,
        steps=steps,
    )


def learning_rate(steps: int, noise: float) -> float:
    """The ι that minimizes the estimator's bound."""
    return theory.estimator_learning_rate(**constants(steps, noise))


def loss_bound(steps: int, noise: float) -> float:
    """R₀."""
    return theory.estimator_loss_bound(learning_rate=learning_rate(steps, noise), **constants(steps, noise))


def gradient_bound(steps: int) -> float:
    """The theorem's bound on E Σε′²."""
    eps = size(steps)
    return theory.gradient_error_bound(
        noise_bound=eps, noise_covariance=eps**2 / 3, slope=2 * LARGEST, curvature=0.0, dimension=1, steps=steps
    )


def trivial(steps: int) -> float:
    """The bound on Σε′² that follows from 𝒜 alone."""
    return (2 * LARGEST) ** 2 * steps


def one_run(steps: int, case: Case, key: jax.Array) -> tuple[float, float]:
    """Σε² and Σε′², both from t = 1 on, as in the theorem, because x₀ is not random."""
    key_w, key_v = jax.random.split(key)
    nature = st.Scenario(
        jnp.zeros(1),
        a_star=jnp.full((steps, 1), LARGEST),
        w=st.Uniform(size(steps))(key_w, steps, 1),
        v=case.noise * st.Uniform(1.0)(key_v, steps, 1),
    )
    if case.held:
        estimator, first = st.Frozen(), LARGEST - math.sqrt(HELD * size(steps))
    else:
        estimator = st.GradientEstimator(learning_rate(steps, case.noise), constraint=st.Box(-LARGEST, LARGEST))
        first = -LARGEST
    run = st.simulate(
        st.Controller(SYSTEM, st.Fixed(), estimator),
        nature,
        theta=jnp.zeros(1),
        a_hat=jnp.full(1, first),
        record=("x", "a_hat"),
    )
    found = st.model_mismatch(SYSTEM, nature, run)
    return float(jnp.sum(found.mismatch[1:] ** 2)), float(jnp.sum(found.mismatch_gradient[1:] ** 2))


def find(
    *,
    horizons: Sequence[int] = HORIZONS,
    seeds: dict[int, int] | None = None,
    first_seed: int = FIRST_SEED,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Finding:
    """The finding: E Σε′² against the theorem's bound for each T, and its growth against the corollary's 5/6."""
    counts = [(SEEDS if seeds is None else seeds).get(steps, FEWER) for steps in horizons]
    # All T in turn for each seed, so that two threads rarely compile the same program at the same time.
    items = [
        (case, steps, i)
        for i in range(max(counts))
        for steps, count in zip(horizons, counts, strict=True)
        for case in CASES
        if i < count
    ]

    def task(item: tuple[Case, int, int]) -> tuple[float, float]:
        case, steps, i = item
        return one_run(steps, case, jax.random.fold_in(jax.random.key(first_seed + i), steps))

    done = dict(zip(items, Threads(workers).map(task, items, Meter(progress, len(items))), strict=True))
    checks, rows, measured, fits = [], [], {}, {}
    for case in CASES:
        sums = [
            np.array([done[case, steps, i] for i in range(count)])
            for steps, count in zip(horizons, counts, strict=True)
        ]
        each = slopes(horizons, np.stack([values[: min(counts), 1] for values in sums], axis=1))
        rows += [_row(case, steps, values) for steps, values in zip(horizons, sums, strict=True)]
        checks += _judge(case, horizons, sums)
        if not case.held:  # the growth of a constant error follows from the choice of ε̄: it is no finding
            checks.append(at_most(f"{case.name}: slope of E Σε′²", 5 / 6, each, said="5/6"))
        measured[case.name] = [interval(values[:, 1]).model_dump() for values in sums]
        fits[case.name] = interval(each).model_dump()
    ratios = [gradient_bound(steps) / trivial(steps) for steps in horizons]
    checks.append(judged("the bound / the trivial bound", 1.0, interval([max(ratios)]), said="1"))
    return Finding(
        name="gradient-errors",
        title="From the errors of f to the errors of its gradient",
        claim="Theorem 2: if the estimator's total squared error R₀ is at most ε̄³T and the noise that excites the "
        "state has the size ε̄, then the total squared error of the gradient ∇f is O(ε̄T) in expectation. Its "
        "corollary: with ε̄ ~ T^(−1/6) this is O(T^(5/6)).",
        columns=["estimator", "T", "ε̄", "E Σε²", "R₀", "ε̄³T", "E Σε′²", "bound", "trivial"],
        rows=rows,
        checks=checks,
        data={
            "horizons": list(horizons),
            "bound": [gradient_bound(steps) for steps in horizons],
            "trivial": [trivial(steps) for steps in horizons],
            "measured": measured,
            "slopes": fits,
        },
    )


def _judge(case: Case, horizons: Sequence[int], sums: list[np.ndarray]) -> list[Check]:
    """Checks of the hypothesis on E Σε² and of the theorem's inequality, each by the largest ratio over all T."""
    allowed = [size(steps) ** 3 * steps for steps in horizons]
    loss = [values[:, 0] for values in sums]
    gradient = [values[:, 1] for values in sums]
    found = [_ratio(f"{case.name}: E Σε² over ε̄³T", loss, allowed)]
    if not case.held:
        known = [loss_bound(steps, case.noise) for steps in horizons]
        found = [
            _ratio(f"{case.name}: E Σε² over R₀", loss, known),
            _ratio(f"{case.name}: R₀ over ε̄³T", [np.array([one]) for one in known], allowed),
        ]
    bounds = [gradient_bound(steps) for steps in horizons]
    return [*found, _ratio(f"{case.name}: E Σε′² over the bound", gradient, bounds)]


def _ratio(name: str, values: list[np.ndarray], limits: list[float]) -> Check:
    ratios = [interval(one / limit) for one, limit in zip(values, limits, strict=True)]
    return judged(name, 1.0, max(ratios, key=lambda one: one.highest), said="1")


def _row(case: Case, steps: int, values: np.ndarray) -> list[str]:
    loss, gradient = values.mean(axis=0)
    R0 = "–" if case.held else f"{loss_bound(steps, case.noise):.4g}"
    eps = size(steps)
    sums = (f"{loss:.4g}", R0, f"{eps**3 * steps:.4g}", *(f"{one:,.0f}" for one in (gradient, gradient_bound(steps))))
    return [case.name, f"{steps:,}", f"{eps:.3g}", *sums, f"{trivial(steps):,.0f}"]
