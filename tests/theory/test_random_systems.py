"""Measured ≤ bound, on random contractive systems whose constants are known exactly."""

from collections import Counter, defaultdict
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import theory

from .families import planar_case, scalar_case

MAKERS = {"scalar": scalar_case, "planar": planar_case}
SYSTEMS = 100  # of each family


@cache
def cases(family):
    return [MAKERS[family](np.random.default_rng(seed)) for seed in range(SYSTEMS)]


@pytest.mark.parametrize("family", ["scalar", pytest.param("planar", marks=pytest.mark.slow)])
def test_every_inequality_that_must_hold_does(family):
    """And each is binding on many of the systems, with several bounds nearly attained: the check is a strict one."""
    binding, tightness, inequalities = Counter(), defaultdict(float), set()
    for seed, case in enumerate(cases(family)):
        certificate = case.certify()
        assert certificate.ok, f"{family} {seed}\n{certificate}"
        inequalities |= {row.name for row in certificate.rows if row.kind == "inequality"}
        for row in certificate.rows:
            if row.must_hold:
                binding[row.name] += 1
                tightness[row.name] = max(tightness[row.name], row.measured / max(row.bound, 1e-300))
    assert set(binding) == inequalities
    assert binding.pop("perturbation below ζ̄") >= 10  # it asks for a small mismatch and a small rate
    assert min(binding.values()) >= 40
    assert tightness["Lipschitzness of x"] > 0.99
    assert tightness["stability of x"] > 0.5
    assert tightness["distance, at every step"] > (0.9 if family == "scalar" else 0.3)


LAGS = 12


def multi_step_measurements(family):
    """For pairs of starts (x, θ), (x', θ') that share all later θ: first and second derivatives at every lag."""
    system = cases(family)[0].controller.system

    def rollout(x, theta, later, *rows):
        """States and costs at lags 0, 1, …; θ_τ = theta, and `later` after it."""

        def step(x, inputs):
            theta, (t, a, w) = inputs
            x_next, cost = system.step(x, theta, a, t)
            return x_next + w, (x, cost)

        return jax.lax.scan(step, x, (jnp.concatenate([theta[None], later]), rows))[1]

    def pair(x, x2, theta, theta2, *rest):
        derivatives = lambda x, theta: jax.jacfwd(rollout, argnums=(0, 1))(x, theta, *rest)
        starts = (jnp.stack([x, x2, x]), jnp.stack([theta, theta, theta2]))
        (gx, gt), (hx, ht) = jax.vmap(derivatives)(*starts)
        norm = lambda m: jnp.linalg.norm(m, ord=2, axis=(1, 2)) if m.ndim == 3 else jnp.linalg.norm(m, axis=1)
        dx, dt = jnp.linalg.norm(x - x2), jnp.linalg.norm(theta - theta2)
        rows = [
            (m[0], n[0], (m[0] - m[1]) / dx, (m[0] - m[2]) / dt, (n[0] - n[1]) / dx, (n[0] - n[2]) / dt)
            for m, n in ((gx, gt), (hx, ht))
        ]
        return [jnp.stack([norm(m) for m in six]) for six in rows]

    rng = np.random.default_rng(0)
    arguments = []
    for case in cases(family):
        R, high = (case.sets.x_radius - case.contraction.R_S) / case.contraction.C_bar, float(case.sets.theta.high)
        n, d = case.scenario.x0.shape[0], case.run.theta.shape[1]
        draw = lambda n=n, R=R: (lambda v: v / np.linalg.norm(v) * R * rng.uniform(0.5, 1))(rng.normal(size=n))
        # Some pairs close together, where a quotient is the derivative; some with θ at a bound.
        x, theta = draw(), rng.choice([0.0, 1.0, rng.uniform()]) * high * np.ones(d)
        near = rng.choice([1e-4, 1.0])
        x2, theta2 = x + near * (draw() - x), theta + near * (rng.uniform(0, high, d) - theta)
        walk = np.clip(theta + np.cumsum(rng.uniform(-1, 1, (LAGS - 1, d)) * case.sets.theta_step, axis=0), 0, high)
        rows = jax.tree.map(lambda leaf: leaf[:LAGS], (case.scenario.t, case.scenario.a_star, case.scenario.w))
        arguments.append((x, x2, theta, theta2, walk, *rows))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *arguments)
    return [np.asarray(each) for each in jax.jit(jax.vmap(pair))(*stacked)]


@pytest.mark.parametrize("family", MAKERS)
def test_multi_step_lemmas(family):
    measured = multi_step_measurements(family)
    for constants, systems in zip((theory.multi_step_dynamics, theory.multi_step_cost), measured, strict=True):
        tightest = np.zeros(6)
        for case, rows in zip(cases(family), systems, strict=True):
            k = constants(case.constants, case.contraction)
            bound = np.array([k.L_x, k.L_theta, k.l_x_x, k.l_x_theta, k.l_theta_x, k.l_theta_theta])
            ratio = rows / (bound[:, None] * case.contraction.rho ** np.arange(LAGS))
            assert np.all(ratio <= 1 + 1e-6), (constants, case.constants, ratio.max(axis=1))
            tightest = np.maximum(tightest, ratio.max(axis=1))
        # None of the six is so large that nothing could violate it. (The planar loop is linear in x and in each θ.)
        assert np.all(tightest > 1e-3) or family == "planar"
        assert tightest[0] > 0.3
        assert tightest[4] > 0.03


@pytest.mark.parametrize("family", MAKERS)
def test_joint_contraction(family):
    """Two starts (x, y), (x', y') of the exact joint dynamics come together as γ says."""
    system = cases(family)[0].controller.system

    def step(start, inputs):
        (x, y), (theta, t, a, w) = start, inputs
        x_next, y_next, _, _ = system.sensitivity(x, y, theta, a, t)
        return (x_next + w, y_next), start

    measure = jax.jit(lambda one, two, rows: [jax.lax.scan(step, start, rows)[1] for start in (one, two)])
    rng, tightest = np.random.default_rng(3), 0.0
    for case in cases(family):
        radii = theory.radii(case.constants, case.contraction, x_radius=case.sets.x_radius)
        gamma = theory.joint_contraction(case.constants, case.contraction, radii).gamma
        n, d = case.scenario.x0.shape[0], case.run.theta.shape[1]
        R = (case.sets.x_radius - case.contraction.R_S) / case.contraction.C_bar
        x, x2 = (rng.normal(size=n) for _ in range(2))
        x, x2 = x / np.linalg.norm(x) * R, x2 / np.linalg.norm(x2) * R * rng.uniform()
        y, y2 = (rng.normal(size=(n, d)) for _ in range(2))
        y, y2 = (v / np.linalg.norm(v, 2) * radii.y * rng.choice([0.01, 1.0]) for v in (y, y2))
        nature = (case.scenario.t, case.scenario.a_star, case.scenario.w)
        rows = jax.tree.map(lambda leaf: leaf[:LAGS], (case.run.theta, *nature))
        (xs, ys), (xs2, ys2) = measure((x, y), (x2, y2), rows)
        distance = np.hypot(np.linalg.norm(xs - xs2, axis=1), np.linalg.norm(ys - ys2, ord=2, axis=(1, 2)))
        ratio = distance / (distance[0] * np.array([gamma(lag) for lag in range(LAGS)]))
        assert np.all(ratio <= 1 + 1e-9)
        tightest = max(tightest, ratio[1:].max())
    assert tightest > 0.1


def test_gradient_error_in_expectation():
    """Theorem 2, over 200 runs: bounded noise without memory, a residual linear in x, an estimator that learns.

    With so little noise the theorem says more than that the error is at most that of the farthest â.
    """
    steps, bound = 4000, 0.05
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.3 * x + v,
        residual=lambda x, a, t: a * x,
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    controller = st.Controller(system, st.Fixed(), st.GradientEstimator(5.0, constraint=st.Box(-0.3, 0.3)))

    @jax.jit
    @jax.vmap
    def run(key):
        scenario = st.Scenario(jnp.zeros(1), a_star=jnp.full((steps, 1), 0.3), w=st.Uniform(bound)(key, steps, 1))
        result = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.full(1, -0.3))
        mismatch = st.model_mismatch(system, scenario, result)
        return jnp.sum(mismatch.mismatch**2), jnp.sum(mismatch.mismatch_gradient**2)

    losses, gradients = run(jax.random.split(jax.random.key(0), 200))
    assert float(losses.mean()) <= bound**3 * steps  # the hypothesis
    slope, curvature = 0.6, 0.0
    assert bound <= theory.excitation_limit(slope=slope, curvature=curvature)
    right = theory.gradient_error_bound(
        noise_bound=bound, noise_covariance=bound**2 / 3, slope=slope, curvature=curvature, dimension=1, steps=steps
    )
    assert float(gradients.mean()) <= right
    assert right < steps * slope**2
    # The same with the loss that there was in place of the largest that the theorem allows: nearly attained.
    allowed = right * float(losses.mean()) / (bound**3 * steps)
    assert 0.1 * allowed < float(gradients.mean()) <= allowed
