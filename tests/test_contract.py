"""Every tuner, estimator and constraint keeps the contract; `selftune.testing` has the checks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selftune as st
from selftune import testing

pytestmark = pytest.mark.versions

STEPS = 12
# θ and a are pytrees of two leaves; the start is inside every constraint.
THETA = {"gain": jnp.array([0.3, 0.3]), "bias": jnp.array([0.2, 0.2])}
A_HAT = {"slope": jnp.array([0.25]), "level": jnp.array([0.25, 0.5])}

TUNERS = {
    "MGAPS": lambda c: st.MGAPS(0.5, constraint=c),
    "MGAPS adam": lambda c: st.MGAPS(optax.adam(0.3), constraint=c),
    "GAPS": lambda c: st.GAPS(buffer=3, learning_rate=0.5, constraint=c),
    "DiffTune": lambda c: st.DiffTune(episode=4, learning_rate=0.2, constraint=c),
    "OPRF": lambda c: st.OPRF(episode=2, radius=0.1, key=jax.random.key(0), learning_rate=0.1, constraint=c),
    "Fixed": lambda c: st.Fixed(),
    "GaussNewton": lambda c: st.GaussNewton(constraint=c, memory=20.0),
}
ESTIMATORS = {
    "GradientEstimator": lambda c: st.GradientEstimator(0.5, preconditioner=jnp.array([1.0, 2.0, 3.0]), constraint=c),
    "normalized": lambda c: st.GradientEstimator(0.8, normalized=True, constraint=c),
    "RLS": lambda c: st.RLS(forgetting=0.9, covariance=10.0, constraint=c),
    "KalmanEstimator": lambda c: st.KalmanEstimator(process_noise=0.1, observation_noise=0.1, constraint=c),
    "RLS()": lambda c: st.RLS(constraint=c),
    "KalmanEstimator()": lambda c: st.KalmanEstimator(constraint=c),
    "NormalizedGradient": lambda c: st.NormalizedGradient(constraint=c),
    "AutoEstimator": lambda c: st.AutoEstimator(constraint=c),
    "Known": lambda c: st.Known(),
    "Frozen": lambda c: st.Frozen(),
}
CONSTRAINTS = {
    "Unconstrained": (st.Unconstrained(), st.Unconstrained()),
    "Box": (st.Box(0.1, 0.35), st.Box(0.2, 0.55)),
    "Ball": (st.Ball(0.55), st.Ball(0.65)),
    "Simplex": (st.Simplex(), st.Simplex()),
    "Product": (
        st.Product({"gain": st.Ball(0.45), "bias": st.Box(0.1, 0.3)}),
        st.Product({"slope": st.Box(0.0, 0.3), "level": st.Simplex(0.75)}),
    ),
}


def test_every_public_tuner_and_estimator_is_here():
    def leaves(base):
        return {name for name in dir(st) if isinstance(kind := getattr(st, name), type) and issubclass(kind, base)} - {
            base.__name__
        }

    made = lambda makers: {type(make(st.Unconstrained())).__name__ for make in makers.values()}
    assert made(TUNERS) == leaves(st.AbstractTuner)
    assert made(ESTIMATORS) == leaves(st.AbstractEstimator)
    assert set(CONSTRAINTS) == leaves(st.AbstractConstraint)


# Steps without jit are slow: these properties are checked with one constraint for each tuner and estimator.
EAGER = (testing.check_jit_equals_eager, testing.check_round_trip)


def assert_contract(case, part: int, constraint: int):
    for check in testing.PROPERTIES:
        if check not in EAGER or part % len(CONSTRAINTS) == constraint:
            check(case)


def some_slow(names):
    """All pairs. Every gate has each part in a box, and the first part with each constraint."""
    pairs = [(name, constraint) for name in names for constraint in CONSTRAINTS]
    usual = [constraint == "Box" or name == next(iter(names)) for name, constraint in pairs]
    return [
        pytest.param(*pair, marks=() if is_usual else pytest.mark.slow)
        for pair, is_usual in zip(pairs, usual, strict=True)
    ]


@pytest.mark.parametrize(("tuner", "constraint"), some_slow(TUNERS))
def test_tuner(tuner, constraint):
    case = testing.TunerCase(TUNERS[tuner](CONSTRAINTS[constraint][0]))
    assert_contract(case, list(TUNERS).index(tuner), list(CONSTRAINTS).index(constraint))


@pytest.mark.parametrize(("estimator", "constraint"), some_slow(ESTIMATORS))
def test_estimator(estimator, constraint):
    case = testing.EstimatorCase(ESTIMATORS[estimator](CONSTRAINTS[constraint][1]))
    assert_contract(case, list(ESTIMATORS).index(estimator), list(CONSTRAINTS).index(constraint))


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_constraint(constraint):
    for part, like in zip(CONSTRAINTS[constraint], (THETA, A_HAT), strict=True):
        testing.check_constraint(part, like=like)


class Problem:
    """A system that counts its traces, and a scenario with parameters outside the small sets."""

    def __init__(self):
        self.traces = 0

        def cost(x, u, theta, t):
            self.traces += 1
            return jnp.sum(x**2) + 0.1 * jnp.sum((u - 1.0) ** 2)

        self.system = st.MatchedSystem(
            dynamics=lambda x, v, t: 0.8 * x + 0.2 * jnp.tanh(v),
            residual=lambda x, a, t: a["slope"] * jnp.sin(x) + a["level"],
            actuation=lambda x, theta, t: -theta["gain"] * x + theta["bias"],
            cost=cost,
        )

    @staticmethod
    def scenario(seed, dtype=jnp.float64):
        ka, kw, kv = jax.random.split(jax.random.key(seed), 3)
        a = st.RandomWalk(0.1, -1.0, 1.0)(ka, STEPS, 3).astype(dtype)
        return st.Scenario(
            jnp.array([1.0, -1.0], dtype),
            {"slope": a[:, :1], "level": a[:, 1:]},
            st.Gaussian(0.1)(kw, STEPS, 2).astype(dtype),
            st.Uniform(0.1)(kv, STEPS, 2).astype(dtype),
        )


def close(got, expected, tolerance=1e-9):
    """Same structure and, to rounding, same numbers."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def controller_of(problem, tuner, estimator, constraint):
    theta_set, a_set = CONSTRAINTS[constraint]
    return st.Controller(problem.system, TUNERS[tuner](theta_set), ESTIMATORS[estimator](a_set))


def assert_inside(run, estimator, constraint):
    """θ in Θ and â in 𝒜 at every step and after the last."""
    theta_set, a_set = CONSTRAINTS[constraint]
    assert bool(jax.vmap(theta_set.contains)(run.theta).all())
    assert bool(theta_set.contains(run.final.state.theta))
    if estimator != "Known":
        assert bool(jax.vmap(a_set.contains)(run.a_hat).all())
        assert bool(a_set.contains(run.final.state.a_hat))


# Each tuner and each estimator at least once, each pair with a constraint.
PAIRS = [
    tuple(list(table)[(i + shift) % len(table)] for table, shift in ((TUNERS, 0), (ESTIMATORS, 2), (CONSTRAINTS, 0)))
    for i in range(max(len(TUNERS), len(ESTIMATORS)))
]


@pytest.mark.parametrize(("tuner", "estimator", "constraint"), PAIRS, ids=str)
def test_simulate(tuner, estimator, constraint):
    problem = Problem()
    controller = controller_of(problem, tuner, estimator, constraint)
    start = dict(theta=THETA, a_hat=A_HAT)
    scenario, other = problem.scenario(0), problem.scenario(1)

    # One trace, whatever the number of steps, and none for new numbers.
    run = st.simulate(controller, scenario, **start)
    traces = problem.traces
    second = st.simulate(controller, other, **start)
    assert problem.traces == traces

    assert_inside(run, estimator, constraint)

    # Steps by hand without jit give what the scan gave.
    x, state = scenario.x0, controller.init(scenario.x0, **start)
    for t in range(2):
        now = scenario.row(t)
        state = controller.reveal(state, now.a_star)
        close((x, state.theta, state.a_hat), jax.tree.map(lambda leaf, t=t: leaf[t], (run.x, run.theta, run.a_hat)))
        u, state, _ = controller.act(state, x, t)
        f = problem.system.residual(x, now.a_star, t)
        state = controller.observe(state, x, f + now.v, t)
        x = problem.system.dynamics(x, u, f, t) + now.w

    # A batch is a loop.
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), scenario, other)
    batch = jax.vmap(lambda scenario: st.simulate(controller, scenario, **start, record=("x", "theta", "a_hat")))(both)
    for i, alone in enumerate((run, second)):
        got = jax.tree.map(lambda leaf, i=i: leaf[i], (batch.x, batch.theta, batch.a_hat))
        close(got, (alone.x, alone.theta, alone.a_hat), tolerance=1e-7)
