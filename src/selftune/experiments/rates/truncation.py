r"""GAPS against M-GAPS with the exact model, as the appendix "Useful Lemmas" compares them.

$$x_{t+1} = 0.8 x_t + 0.2 v_t + w_t, \qquad \psi = \theta_0 - \theta_1 x, \qquad f = a x, \qquad
h = \tfrac12 (x - 1)^2 + 0.1 u^2$$

Both tuners replace $\nabla F_t(\theta_t)$ by a derivative along the actual trajectory. GAPS also drops the terms that
are older than B steps. The first replacement costs $O(\eta)$, the second $O(\rho^B)$, where $\rho = 0.8 - 0.2
\theta_1$ here. With $\eta = \tfrac12 T^{-1/2}$, GAPS is as near to $\nabla F_t$ as M-GAPS only if B exceeds $\ln T /
(2 \ln \rho^{-1})$ plus a constant. So its time and memory grow with $\ln T$.

The errors depend on T through η alone, so all runs have the same length.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

from .finding import DEVELOPMENT_SEEDS, FIRST_SEED, Finding, about, at_most, slopes

HORIZONS = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
BUFFERS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40)
SEEDS = 4
STEPS = 3_000
WINDOW = 80
"""ρ⁸⁰ is below 10⁻⁷."""
KEPT = 8
"""A constant buffer, one of `BUFFERS`: its error must not fall with η."""
NEAR = 1.05
"""GAPS counts as good as M-GAPS if its error is at most this many times the error of M-GAPS."""
TIMED = (8, 16, 32, 64, 128)
"""The buffers whose time for a step is measured."""
CONSTRAINT = st.Box(np.array([0.0, 0.0]), np.array([2.0, 0.5]))

SYSTEM = st.MatchedSystem(
    dynamics=lambda x, v, t: 0.8 * x + 0.2 * v,
    residual=lambda x, a, t: a * x,
    actuation=lambda x, theta, t: theta[:1] - theta[1:] * x,
    cost=lambda x, u, theta, t: 0.5 * jnp.sum((x - 1) ** 2) + 0.1 * jnp.sum(u**2),
)


def learning_rate(steps: float) -> float:
    return 0.5 * steps**-0.5


class Errors(NamedTuple):
    gradient: np.ndarray
    """(seeds, horizons): the mean over t of ‖G − ∇F‖."""
    rho: np.ndarray
    """(seeds, horizons): the mean over t of the closed loop's factor, 0.8 − 0.2 θ₁."""


def scenario(key: jax.Array, steps: int = STEPS) -> st.Scenario:
    return st.Scenario(jnp.ones(1), a_star=jnp.full((steps, 1), 0.2), w=st.Uniform(0.1)(key, steps, 1))


def start() -> jax.Array:
    """The θ at which M-GAPS settles, so that the runs have no transient."""
    controller = st.Controller(SYSTEM, st.MGAPS(0.02, constraint=CONSTRAINT), st.Known())
    run = st.simulate(
        controller,
        scenario(jax.random.key(DEVELOPMENT_SEEDS[0]), 40_000),
        theta=jnp.array([1.2, 0.1]),
        record=("theta",),
    )
    return jnp.mean(run.theta[20_000:], axis=0)


def errors(
    tuner: Callable[[Any], st.AbstractTuner], theta: jax.Array, horizons: Sequence[int], seeds: int, first_seed: int
) -> Errors:
    """The errors of the tuner that `tuner` makes from a learning rate, in one batch of runs over seeds and T."""
    keys = jnp.stack([jax.random.key(first_seed + i) for i in range(seeds)])
    rates = jnp.array([learning_rate(steps) for steps in horizons])

    def one(key: jax.Array, rate: jax.Array) -> tuple[jax.Array, jax.Array]:
        controller = st.Controller(SYSTEM, tuner(rate), st.Known())
        run = st.simulate(controller, scenario(key), theta=theta, record=("theta", "gradient"))
        return run.theta, run.gradient

    thetas, gradients = jax.vmap(lambda key: jax.vmap(lambda rate: one(key, rate))(rates))(keys)
    exact = _exact_gradients(jax.vmap(scenario)(keys), thetas)
    # GAPS equals M-GAPS until the buffers are full.
    apart = jnp.linalg.norm(gradients - exact, axis=-1)[:, :, max(BUFFERS) :]
    return Errors(np.asarray(apart.mean(axis=-1)), np.asarray(0.8 - 0.2 * thetas[..., 1].mean(axis=-1)))


@eqx.filter_jit
def _exact_gradients(natures: st.Scenario, thetas: jax.Array) -> jax.Array:
    def one(nature: st.Scenario, thetas: jax.Array) -> jax.Array:
        return st.surrogate(SYSTEM, nature, thetas, window=WINDOW).gradient

    return jax.vmap(lambda nature, many: jax.vmap(lambda thetas: one(nature, thetas))(many))(natures, thetas)


def cost_ratios(buffers: Sequence[int], theta: jax.Array, *, steps: int = 200_000, repeats: int = 3) -> list[float]:
    """The time of a step of GAPS divided by that of M-GAPS. Each is the minimum of a few runs, which take turns.

    With the native engine, the time is the CPU time of this thread, where that engine runs, because other experiments
    may run at the same time. XLA has threads of its own, so its time is measured by the clock.
    """
    nature = scenario(jax.random.key(DEVELOPMENT_SEEDS[0]), steps)
    tuners = [st.MGAPS(1e-3, constraint=CONSTRAINT)]
    tuners += [st.GAPS(buffer, 1e-3, constraint=CONSTRAINT) for buffer in buffers]
    controllers = [st.Controller(SYSTEM, tuner, st.Known()) for tuner in tuners]
    least = [math.inf] * len(controllers)
    for turn in range(repeats + 1):  # the first turn compiles
        for i, controller in enumerate(controllers):
            begin = time.thread_time(), time.perf_counter()
            run = st.simulate(controller, nature, theta=theta, record=())
            jax.block_until_ready(run.final.x)
            used = time.thread_time() - begin[0] if run.engine == "native" else time.perf_counter() - begin[1]
            if turn:
                least[i] = min(least[i], used)
    return [one / least[0] for one in least[1:]]


def needed(buffers: Sequence[int], truncated: np.ndarray, whole: float) -> float:
    """The smallest B whose error is at most `NEAR` times that of M-GAPS, interpolated exponentially between buffers."""
    excess = np.maximum(truncated / whole - 1, 1e-12)
    after = int(np.argmax(excess <= NEAR - 1))
    if excess[after] > NEAR - 1:
        return math.nan
    if after == 0:
        return float(buffers[0])
    low, high = np.log(excess[after - 1]), np.log(excess[after])
    share = (low - math.log(NEAR - 1)) / (low - high)
    return buffers[after - 1] + share * (buffers[after] - buffers[after - 1])


def find(
    *,
    horizons: Sequence[int] = HORIZONS,
    buffers: Sequence[int] = BUFFERS,
    seeds: int = SEEDS,
    first_seed: int = FIRST_SEED,
    timed: Sequence[int] = TIMED,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Finding:
    """The finding: errors against B and T, the B that GAPS needs, and its cost. `workers` is ignored."""
    theta, total = start(), len(buffers) + 2

    def tell(done: int) -> None:
        if progress is not None:
            progress(done, total)

    whole = errors(lambda rate: st.MGAPS(rate, constraint=CONSTRAINT), theta, horizons, seeds, first_seed)
    truncated = []
    for i, buffer in enumerate(buffers):
        tell(i + 1)

        def tuner(rate: Any, buffer: int = buffer) -> st.AbstractTuner:
            return st.GAPS(buffer, rate, constraint=CONSTRAINT)

        truncated.append(errors(tuner, theta, horizons, seeds, first_seed).gradient)
    tell(len(buffers) + 1)
    ratios = cost_ratios(timed, theta) if timed else []
    gaps = np.stack(truncated, axis=-1)  # (seeds, horizons, buffers)
    enough = np.array(
        [[needed(buffers, gaps[i, j], whole.gradient[i, j]) for j in range(len(horizons))] for i in range(seeds)]
    )
    predicted = 1 / (2 * np.log(1 / whole.rho.mean(axis=1)))
    closest = (gaps.min(axis=-1) / whole.gradient).min(axis=1)
    stays = slopes(horizons[-2:], gaps[:, -2:, buffers.index(KEPT)])
    checks = [
        about("slope of ‖G − ∇F‖ of M-GAPS in T", -0.5, slopes(horizons, whole.gradient), 0.02),
        about(f"slope of ‖G′ − ∇F‖ of GAPS, B = {KEPT}, last two T", 0.0, stays, 0.02),
        # The oldest terms of the sum belong to the oldest θ, so dropping them may even reduce the error a little.
        at_most("‖G − ∇F‖ over the least ‖G′ − ∇F‖ of all B", 1.1, 1 / closest),
        about(
            "B that GAPS needs: growth over ln T / (2 ln 1/ρ)",
            1.0,
            slopes(horizons, np.exp(enough)) / predicted,
            0.1,
        ),
    ]
    rows = [
        [f"{steps:,}", f"{learning_rate(steps):.2g}", f"{whole.gradient[:, j].mean():.3g}"]
        + [f"{gaps[:, j, buffers.index(b)].mean():.3g}" for b in _shown(buffers)]
        + [f"{enough[:, j].mean():.1f}"]
        for j, steps in enumerate(horizons)
    ]
    return Finding(
        name="gaps",
        title="GAPS against M-GAPS",
        claim="With the exact model, the gradient of M-GAPS is about as near to ∇F as that of GAPS with the best "
        "buffer, and the time of a step does not depend on T. To be as accurate as M-GAPS, GAPS needs a buffer B that "
        "grows with ln T, and the time of its step grows with B.",
        columns=["T", "η", "‖G − ∇F‖", *(f"‖G′ − ∇F‖, B = {b}" for b in _shown(buffers)), "B needed"],
        rows=rows,
        checks=checks,
        data={
            "horizons": list(horizons),
            "buffers": list(buffers),
            "whole": whole.gradient.tolist(),
            "truncated": gaps.tolist(),
            "needed": enough.tolist(),
            "rho": float(whole.rho.mean()),
            "timed": list(timed),
            "cost_ratios": ratios,
        },
    )


def _shown(buffers: Sequence[int]) -> list[int]:
    return [KEPT, buffers[len(buffers) // 2]]
