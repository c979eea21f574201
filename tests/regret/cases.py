"""Runs that the tests of the metrics share, with their exact surrogates."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st
from tests.problems import golden, golden_controller, golden_scenario, planar_system, random_system, scalar_system


class Case(NamedTuple):
    system: st.System
    scenario: st.Scenario
    thetas: jax.Array


def tuned(system: st.System, scenario: st.Scenario, theta, rate: float, box: st.Box, p: int) -> jax.Array:
    controller = st.Controller(system, st.MGAPS(rate, constraint=box), st.GradientEstimator(0.005))
    return st.simulate(controller, scenario, theta=theta, a_hat=jnp.zeros(p), record=("theta",)).theta


def paper_scenario(seed: int, steps: int, period: int = 1000) -> st.Scenario:
    ka, kw = jax.random.split(jax.random.key(seed))
    return st.Scenario(
        jnp.zeros(1),
        a_star=st.PiecewiseConstant(period=period, low=-0.25, high=0.25)(ka, steps, 3),
        w=st.OrnsteinUhlenbeck(decay=0.95, sigma=0.1)(kw, steps, 1),
    )


def golden_run(name: str) -> st.Run:
    g = golden(name)
    return st.simulate(golden_controller(name), golden_scenario(name), theta=g["theta0"], a_hat=g["a0"])


@cache
def windowed_case(name: str) -> Case:
    """Problems on which windows are tried: slow and fast tuning, jumps, noise in θ, several states."""
    scalar, box = scalar_system(), st.Box(0.5, 50.0)
    if name in ("paper", "fast", "slow"):
        scenario = paper_scenario(0, 3000)
        rate = {"paper": 1e-4, "fast": 1e-2, "slow": 1e-6}[name]
        return Case(scalar, scenario, tuned(scalar, scenario, jnp.full(1, 3.0), rate, box, 3))
    if name == "jumps":
        return Case(scalar, paper_scenario(1, 3000), jnp.where(jnp.arange(3000)[:, None] // 700 % 2 == 0, 2.0, 9.0))
    if name == "noise":
        thetas = jax.random.uniform(jax.random.key(3), (3000, 1), minval=2.0, maxval=9.0)
        return Case(scalar, paper_scenario(2, 3000), thetas)
    if name == "constant":
        return Case(scalar, paper_scenario(3, 3000), jnp.full((3000, 1), 4.0))
    if name == "planar":
        g, system = golden("planar"), planar_system()
        scenario = st.Scenario(
            g["x0"],
            a_star=st.PiecewiseConstant(period=400, low=-0.25, high=0.25)(jax.random.key(2), 1200, 3),
            w=st.Gaussian(0.02)(jax.random.key(4), 1200, 2),
        )
        return Case(system, scenario, tuned(system, scenario, g["theta0"], 0.02, st.Box(-1.0, 4.0), 3))
    seed = int(name.removeprefix("random"))
    system = random_system(jax.random.key(seed), n=4, m=2, k=2, p=3, d=5)
    kx, ka, kw = jax.random.split(jax.random.key(seed + 10), 3)
    scenario = st.Scenario(
        jax.random.normal(kx, (4,)),
        a_star=st.RandomWalk(sigma=0.05, low=-1.0, high=1.0)(ka, 1000, 3),
        w=st.Gaussian(0.1)(kw, 1000, 4),
    )
    return Case(system, scenario, tuned(system, scenario, jnp.zeros(5), 0.05, st.Box(-1.0, 1.0), 3))


@cache
def exact(name: str) -> st.Surrogate:
    return st.surrogate(*windowed_case(name))


def brute_force(system: st.System, scenario: st.Scenario, thetas: np.ndarray) -> np.ndarray:
    """F_t(θ_t), one rollout after another, from the four functions alone."""

    @jax.jit
    def closed_loop(x, theta, row):
        f = system.residual(x, row.a_star, row.t)
        u = system.policy(x, theta, f, row.t)
        return system.dynamics(x, u, f, row.t) + row.w, system.cost(x, u, theta, row.t)

    rows = [scenario.row(t) for t in range(len(scenario))]
    values = []
    for t in range(len(scenario)):
        x, cost = scenario.x0, jnp.zeros(())
        for tau in range(t + 1):
            x, cost = closed_loop(x, thetas[t], rows[tau])
        values.append(float(cost))
    return np.array(values)
