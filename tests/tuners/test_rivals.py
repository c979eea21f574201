"""The rivals of `GaussNewton` in `benchmarks.no_knobs`: they run as learning rates of `MGAPS`, and the two that optax
does not have are their rules."""

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks import no_knobs

import selftune as st

LOW, HIGH, BEST = np.array([0.0, -2.0]), np.array([1.0, 6.0]), np.array([0.3, 2.0])
WIDTHS = HIGH - LOW
STEPS = 200


def system():
    """A cost of θ alone, with the gradient (4, 0.1) · (θ − BEST)."""
    return st.System(
        dynamics=lambda x, u, f, t: jnp.zeros_like(x),
        residual=lambda x, a, t: 0 * x,
        policy=lambda x, theta, f, t: 0 * x,
        cost=lambda x, u, theta, t: 0.5 * jnp.sum(jnp.array([4.0, 0.1]) * (theta - jnp.asarray(BEST)) ** 2),
    )


def gradient(theta):
    return np.array([4.0, 0.1]) * (theta - BEST)


def paths(rules):
    """θ of every step with each rule, (STEPS, 2); one compilation for all rules."""
    loop, x, start = system(), jnp.zeros(1), jnp.array([0.9, 5.0])
    tuners = {name: st.MGAPS(rule, constraint=st.Box(LOW, HIGH)) for name, rule in rules.items()}

    @jax.jit
    def run():
        def one(tuner):
            def step(carry, t):
                theta, state = carry
                theta, state, _ = tuner.update(loop, x, theta, x, t, state)
                return (theta, state), theta

            return jax.lax.scan(step, (start, tuner.init(loop, x, start)), jnp.arange(STEPS))[1]

        return {name: one(tuner) for name, tuner in tuners.items()}

    return {name: np.concatenate([start[None], rows]) for name, rows in run().items()}


def test_every_rival_runs_and_stays_in_the_box():
    box = st.Box(LOW, HIGH)
    problem = no_knobs.Problem("θ alone", system(), st.Frozen(), box, {"": LOW}, np.zeros(1), lambda steps, seed: None)
    rules = no_knobs.rivals(problem)
    named = " ".join(rules)
    for name in ("dog", "dowg", "cocob", "prodigy", "dadapt", "mechanize", "schedule_free", "adam ", "rmsprop"):
        assert name in named
    for name, theta in paths(rules).items():
        assert np.all(np.isfinite(theta)), name
        assert np.all((theta >= LOW) & (theta <= HIGH)), name
        assert np.abs(theta[-1] - theta[0]).max() > 0, name


def test_adagrad_norm_and_the_ensemble_against_numpy():
    rates = np.array([0.01, 0.1])
    made = paths(
        {
            "adagrad": no_knobs.adagrad_norm(jnp.asarray(WIDTHS)),
            "ensemble": no_knobs.ensemble(jnp.asarray(WIDTHS), rates),
        }
    )
    theta, total = np.array([0.9, 5.0]), 0.0
    for row in made["adagrad"]:
        np.testing.assert_allclose(row, theta, rtol=1e-9)
        g = WIDTHS * gradient(theta)
        total += g @ g
        theta = np.clip(theta - 0.1 * np.sqrt(2) / np.sqrt(total) * WIDTHS * g, LOW, HIGH)

    # Here each expert keeps its own θ, in widths; in the program it keeps the difference from the common θ.
    theta, total = np.array([0.9, 5.0]), 0.0
    experts, losses = np.tile(theta / WIDTHS, (2, 1)), np.zeros(2)
    for row in made["ensemble"]:
        np.testing.assert_allclose(row, theta, rtol=1e-9)
        g = WIDTHS * gradient(theta)
        total += g @ g
        losses += (experts - theta / WIDTHS) @ g
        experts = experts - rates[:, None] * g / np.sqrt(total)
        weights = np.exp(-losses / np.sqrt(total))
        theta = WIDTHS * (weights @ experts) / weights.sum()
    assert np.all((theta > LOW) & (theta < HIGH))  # no bound was active, so NumPy needs no projection
