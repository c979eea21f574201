r"""Switches of $a^*$: the time to recover and the cost of a switch, against ι, the size and the number of switches.

The system is that of `growth`, with noise of fixed size. $a^*$ switches between $(s/2, 0)$ and $(-s/2, 0)$, where s is
the size of the switch. Near the optimum $x \approx 1$. There, the error $\varepsilon$ after a switch falls by the
factor $1 - 2 \iota \|(\sin 2x, \cos x)\|^2$ at each step. So the time to recover is proportional to $1/\iota$ and does
not depend on s, and $\sum \varepsilon^2$ is proportional to $s^2 / \iota$. The cost of a switch is the excess over the
cost of the same loop with $a^*$ known.

With N switches in T steps the path length is $P_T = N s$. The lemma on the gradient estimator gives $E \sum
\varepsilon_t^2 = O(\sqrt{(1 + P_T) T})$ for $\iota \sim \sqrt{(1 + P_T) / T}$. For $N \sim T^\alpha$ the power is $(1 +
\alpha) / 2$, which is 1 when switches come at a constant rate.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

from ... import theory
from ...foundation.executors import Meter, Threads
from .finding import FIRST_SEED, Finding, about, at_most, slopes
from .growth import CONSTRAINT, SYSTEM

RATES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
SIZES = (0.05, 0.1, 0.2, 0.4)
RATE, SIZE = 0.02, 0.2
"""The value of ι when the size varies, and the size of a switch when ι varies."""
SPACING, SWITCHES = 2_000, 16
SEEDS = 16
HORIZONS = (4_000, 16_000, 64_000, 256_000)
POWERS = (Fraction(0), Fraction(1, 2), Fraction(1))
"""α: the number of switches grows as T^α."""
FEWEST = 4
"""The number of switches at the first T."""
THETA = (1.3, 0.25)
NOISE, OBSERVATION = 0.1, 0.05


def controller(rate: float, *, known: bool = False) -> st.Controller:
    estimator = st.Known() if known else st.GradientEstimator(rate, constraint=st.Ball(0.3))
    return st.Controller(SYSTEM, st.MGAPS(0.01, constraint=CONSTRAINT), estimator)


def scenario(steps: int, switches: int, size: float, key: jax.Array) -> st.Scenario:
    """Equally spaced switches; the first switch comes after one spacing."""
    part = (np.arange(steps) * (switches + 1)) // steps
    first = np.where(part % 2 == 0, size / 2, -size / 2)
    key_w, key_v = jax.random.split(key)
    return st.Scenario(
        jnp.zeros(1),
        a_star=jnp.asarray(np.stack([first, np.zeros(steps)], axis=1)),
        w=st.Uniform(NOISE)(key_w, steps, 1),
        v=st.Uniform(OBSERVATION)(key_v, steps, 1),
    )


class Trace(NamedTuple):
    squared_error: np.ndarray
    """ε_t²."""
    excess: np.ndarray
    """The cost of step t minus the cost of the loop with a* known."""


def trace(steps: int, switches: int, size: float, rate: float, key: jax.Array) -> Trace:
    nature, theta = scenario(steps, switches, size, key), jnp.array(THETA)
    first = jnp.array([size / 2, 0.0])
    record = ("x", "a_hat", "cost")
    run = st.simulate(controller(rate), nature, theta=theta, a_hat=first, record=record)
    ideal = st.simulate(controller(rate, known=True), nature, theta=theta, record=("cost",))
    error = st.model_mismatch(SYSTEM, nature, run).mismatch
    return Trace(np.asarray(error**2), np.asarray(run.cost - ideal.cost))


class Recovery(NamedTuple):
    """The recovery after a switch, as the mean over the switches of a run."""

    time: float
    """Steps until ε² has fallen to a tenth."""
    squared_error: float
    """Σε² until the next switch, minus its level without a switch."""
    cost: float
    """The excess cost until the next switch. One part comes from the switch and falls with ι; the other part comes from
    the noise of the observations and rises with ι."""


def recovery(made: Trace) -> Recovery:
    """The recovery in a run with a switch every `SPACING` steps. The last quarter of each gives the base level."""
    squares, excess = (values.reshape(-1, SPACING) for values in made)
    error = squares[1:].mean(axis=0) - squares[:, -SPACING // 4 :].mean()
    tenth = 0.1 * error[0]
    k = int(np.argmax(error <= tenth))
    time = k - (tenth - error[k]) / (error[k - 1] - error[k])
    return Recovery(float(time), float(error.sum()), float(excess[1:].sum(axis=1).mean()))


def loss_bound(steps: int, switches: int, rate: float) -> float:
    """The lemma's bound: 𝒜 is the ball of radius 0.3, and ‖(sin 2x, cos x)‖ is at most 5/4, where cos² x = 5/8."""
    return theory.estimator_loss_bound(
        learning_rate=rate,
        diameter=0.6,
        path_length=switches * SIZE,
        residual_range=0.6 * 1.25,
        noise=OBSERVATION,
        slope=1.25,
        steps=steps,
    )


class Growth(NamedTuple):
    """T, with its number of switches and its ι."""

    steps: int
    switches: int
    rate: float


def growth(power: Fraction, horizons: Sequence[int]) -> list[Growth]:
    made = []
    for steps in horizons:
        ratio = steps / horizons[0]
        switches = round(FEWEST * ratio ** float(power))
        made.append(Growth(steps, switches, 0.04 * ((switches / FEWEST) / ratio) ** 0.5))
    return made


def find(
    *,
    rates: Sequence[float] = RATES,
    sizes: Sequence[float] = SIZES,
    horizons: Sequence[int] = HORIZONS,
    switches: int = SWITCHES,
    seeds: int = SEEDS,
    first_seed: int = FIRST_SEED,
    workers: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Finding:
    """The finding: recovery against ι and the size of a switch; growth with T for N ~ T^α switches."""
    steps = SPACING * (switches + 1)
    single = [(steps, switches, SIZE, rate) for rate in rates]
    single += [(steps, switches, size, RATE) for size in sizes]
    many = {power: [(one.steps, one.switches, SIZE, one.rate) for one in growth(power, horizons)] for power in POWERS}
    kinds = list(dict.fromkeys([*single, *(kind for kinds in many.values() for kind in kinds)]))
    items = [(kind, i) for i in range(seeds) for kind in kinds]

    def task(item: tuple[tuple[int, int, float, float], int]) -> Any:
        kind, i = item
        made = trace(*kind, jax.random.fold_in(jax.random.key(first_seed + i), kind[0]))
        return recovery(made) if kind in single else (float(made.squared_error.sum()), float(made.excess.sum()))

    done = Threads(workers).map(task, items, Meter(progress, len(items)))
    by_kind = dict(zip(items, done, strict=True))

    def over_seeds(kinds: list[Any]) -> np.ndarray:
        return np.array([[by_kind[kind, i] for kind in kinds] for i in range(seeds)])

    by_rate, by_size = over_seeds(single[: len(rates)]), over_seeds(single[len(rates) :])
    checks = [
        about("time to recover: power of ι", -1.0, slopes(rates, by_rate[:, :, 0]), 0.05),
        about("time to recover: power of the size", 0.0, slopes(sizes, by_size[:, :, 0]), 0.05),
        about("Σε² of a switch: power of ι", -1.0, slopes(rates, by_rate[:, :, 1]), 0.1),
        about("Σε² of a switch: power of the size", 2.0, slopes(sizes, by_size[:, :, 1]), 0.1),
    ]
    totals, fits = {}, {}
    for power, kinds in many.items():
        sums = over_seeds(kinds)
        name, slope = str(power), slopes(horizons, sums[:, :, 0])
        bounds = np.array([loss_bound(steps, switches, rate) for steps, switches, _, rate in kinds])
        ratio = (sums[:, :, 0] / bounds).max(axis=1)
        checks.append(at_most(f"Σε² over the lemma's bound, N ~ T^{name}", 1.0, ratio))
        checks.append(about(f"slope of Σε², N ~ T^{name}", float(1 + power) / 2, slope, 0.05))
        fits[name] = checks[-1].measured.model_dump()
        totals[name] = {"squared_error": sums[:, :, 0].tolist(), "cost": sums[:, :, 1].tolist()}
    rows = [
        ["one", f"{SPACING:,}", f"{rate:g}", f"{size:g}", *(f"{one:.3g}" for one in values.mean(axis=0))]
        for (_, _, size, rate), values in zip(
            single, [*by_rate.transpose(1, 0, 2), *by_size.transpose(1, 0, 2)], strict=True
        )
    ]
    for kinds in many.values():
        for (steps, switches, size, rate), values in zip(kinds, over_seeds(kinds).transpose(1, 0, 2), strict=True):
            sums = (f"{one:.3g}" for one in values.mean(axis=0))
            rows.append([str(switches), f"{steps:,}", f"{rate:.2g}", f"{size:g}", "–", *sums])
    return Finding(
        name="switches",
        title="Switches of a*",
        claim="After a switch of a* the gradient estimator recovers in a time that is proportional to 1/ι and does not "
        "depend on the size of the switch. If the number of switches grows as T^α and ι ~ T^((α−1)/2), then Σε² "
        "is O(T^((1+α)/2)). This is sublinear if α < 1.",
        columns=["switches", "steps", "ι", "size", "steps to recover", "Σε²", "excess cost"],
        rows=rows,
        checks=checks,
        data={
            "rates": list(rates),
            "sizes": list(sizes),
            "by_rate": by_rate.tolist(),
            "by_size": by_size.tolist(),
            "horizons": list(horizons),
            "totals": totals,
            "slopes": fits,
        },
    )
