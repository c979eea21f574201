r"""The paper's simulation (Example "nonlinear control" and appendix "Simulation Results"), at a modest size.

`python -m selftune.experiments.paper` runs M-GAPS with the gradient estimator against the adaptive controller with a
fixed gain, prints a table and draws the appendix's five figures as one.

What the paper gives: φ(x) = [1, sin x, sin 2x], Δ = 0.01, Ornstein–Uhlenbeck noise with γ = 0.95 and σ = 0.1, a* drawn
anew in [−0.25, 0.25]³ every 40,000 steps, h = x² + 0.1u², η = 1e-4. What it does not give is chosen here: `Settings`.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st

DELTA = 0.01


@dataclass(frozen=True)
class Settings:
    """The appendix's numbers and, marked, the ones it leaves open."""

    learning_rate: float = 1e-4
    decay: float = 0.95
    sigma: float = 0.1
    period: int = 40_000
    periods: int = 3  # open
    seeds: int = 4  # open
    gains: tuple[float, ...] = (0.5, 1.0, 3.0)  # open: θ_a of the adaptive controller, and θ_0 of M-GAPS
    preconditioner: float = 1.0  # open: P, as a multiple of the identity
    highest_gain: float = 50.0  # open: Θ = [0, 50]
    x0: float = 0.0  # open
    a_hat: float = 0.0  # open: every entry of â_0
    noise_inside: bool = False  # the example writes the noise inside Δ(…), the appendix outside

    @property
    def steps(self) -> int:
        return self.period * self.periods


def example_system() -> st.MatchedSystem:
    r"""$x_{t+1} = x_t + \Delta(u_t + \phi(x_t) a^*_t) + w_t$, $u_t = -\theta_t x_t - \phi(x_t) \hat a_t$."""
    return _SYSTEM


def _residual(x, a, t):
    return jnp.stack([a[0] + a[1] * jnp.sin(x[0]) + a[2] * jnp.sin(2 * x[0])])


# One system for all callers: what was compiled for one is there for the next.
_SYSTEM = st.MatchedSystem(
    dynamics=lambda x, v, t: x + DELTA * v,
    residual=_residual,
    actuation=lambda x, theta, t: -theta * x,
    cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
)


def scenario(settings: Settings, key: jax.Array) -> st.Scenario:
    """One draw of what nature decides."""
    ka, kw = jax.random.split(key)
    w = st.OrnsteinUhlenbeck(settings.decay, settings.sigma)(kw, settings.steps, 1)
    return st.Scenario(
        x0=jnp.full(1, settings.x0),
        a_star=st.PiecewiseConstant(settings.period, -0.25, 0.25)(ka, settings.steps, 3),
        w=DELTA * w if settings.noise_inside else w,
    )


def controllers(settings: Settings) -> dict[str, st.Controller]:
    """Ours and the benchmark's: the same estimator, with and without tuning of the gain."""
    # The appendix's â − Δ P φ (φâ − φa*) is a gradient step of rate Δ/2: the loss's square has the other factor 2.
    estimator = st.GradientEstimator(
        learning_rate=DELTA / 2, preconditioner=settings.preconditioner, constraint=st.Box(-0.25, 0.25)
    )
    tuner = st.MGAPS(settings.learning_rate, constraint=st.Box(0.0, settings.highest_gain))
    return {
        "M-GAPS": st.Controller(_SYSTEM, tuner, estimator),
        "fixed gain": st.Controller(_SYSTEM, st.Fixed(), estimator),
    }


def run(settings: Settings, seed: int, gain: float) -> dict[str, st.Run]:
    made = scenario(settings, jax.random.key(seed))
    start: dict[str, Any] = dict(theta=jnp.full(1, gain), a_hat=jnp.full(3, settings.a_hat))
    record = ("x", "theta", "a_hat", "cost", "f", "f_hat")
    return {
        name: st.simulate(controller, made, **start, record=record)
        for name, controller in controllers(settings).items()
    }


def reproduce(settings: Settings, out: Path) -> None:
    """Run, print the table, draw the figure into `out`."""
    print("settings: " + ", ".join(f"{name} = {value}" for name, value in vars(settings).items()))
    print(f"\ntotal cost over {settings.steps:,} steps, mean ± standard deviation of {settings.seeds} seeds")
    print(f"{'gain θ_0 = θ_a':>15} {'M-GAPS':>24} {'fixed gain':>24} {'ratio':>7}")
    shown: dict[str, st.Run] = {}
    for gain in settings.gains:
        totals: dict[str, list[float]] = {"M-GAPS": [], "fixed gain": []}
        for seed in range(settings.seeds):
            runs = run(settings, seed, gain)
            for name, one in runs.items():
                totals[name].append(float(jnp.sum(one.cost)))
            if not shown:
                shown = runs
        cells = [f"{np.mean(totals[name]):12.1f} ± {np.std(totals[name]):9.1f}" for name in totals]
        print(
            f"{gain:15g} {cells[0]:>24} {cells[1]:>24} {np.mean(totals['M-GAPS']) / np.mean(totals['fixed gain']):7.3f}"
        )
    draw(settings, shown, out)
    print(f"\nfigure: {out / 'paper.png'}")


def draw(settings: Settings, runs: dict[str, st.Run], out: Path) -> None:
    """The appendix's five figures, of seed 0 and the first gain."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ours, fixed = runs["M-GAPS"], runs["fixed gain"]
    every = max(1, settings.steps // 4_000)
    t = np.arange(settings.steps)[::every]

    def rows(array):
        return np.asarray(array)[::every]

    a_star = rows(scenario(settings, jax.random.key(0)).a_star)
    blue, orange = "#0072B2", "#D55E00"
    colors = ["#0072B2", "#009E73", "#CC79A7"]

    figure, axes = plt.subplot_mosaic([["a", "theta"], ["error", "x"], ["regret", "regret"]], figsize=(10, 9))
    for i, color in enumerate(colors):
        axes["a"].plot(t, rows(ours.a_hat)[:, i], color=color, linewidth=1, label=rf"$\hat a_{i}$")
        axes["a"].plot(t, a_star[:, i], color=color, linewidth=1.5, linestyle="--", label=rf"$a^*_{i}$")
    axes["a"].legend(ncols=3, fontsize=8)
    axes["a"].set_title(r"$a^*$ and $\hat a$")
    for name, one, color in (("M-GAPS", ours, blue), ("fixed gain", fixed, orange)):
        axes["theta"].plot(t, rows(one.theta)[:, 0], color=color, label=name)
        axes["error"].plot(t, rows(one.f_hat - one.f)[:, 0], color=color, linewidth=0.7, label=name)
        axes["x"].plot(t, rows(one.x)[:, 0], color=color, linewidth=0.5, label=name)
    axes["theta"].set_title(r"gain $\theta$")
    axes["error"].set_title(r"model error $\phi(x)\hat a - \phi(x)a^*$")
    axes["x"].set_title(r"tracking error $x$")
    axes["regret"].plot(t, rows(jnp.cumsum(ours.cost - fixed.cost)), color=blue)
    axes["regret"].axhline(0.0, color="0.5", linewidth=0.8)
    axes["regret"].set_title("regret difference, M-GAPS minus fixed gain (below zero: M-GAPS is better)")
    for name in ("theta", "error", "x"):
        axes[name].legend(fontsize=8)
    for axis in axes.values():
        axis.set_xlabel("step $t$")
        axis.grid(alpha=0.3)
    figure.tight_layout()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "paper.png", dpi=150)
    plt.close(figure)


def main() -> None:
    defaults = Settings()
    parser = argparse.ArgumentParser(description="The paper's simulation, at a modest size.")
    parser.add_argument("--seeds", type=int, default=defaults.seeds)
    parser.add_argument("--periods", type=int, default=defaults.periods)
    parser.add_argument("--noise-inside", action="store_true", help="the example's form: x + Δ(u + f + w)")
    parser.add_argument("--out", type=Path, default=Path("results/paper"))
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    settings = Settings(seeds=arguments.seeds, periods=arguments.periods, noise_inside=arguments.noise_inside)
    reproduce(settings, arguments.out)


if __name__ == "__main__":
    main()
