"""selftune against the independent program, on problems that neither was made with."""

import subprocess
import sys
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.independent import algorithms
from tests.independent.problems import CASES

pytestmark = pytest.mark.versions
FIELDS = {
    "x": "x",
    "u": "u",
    "theta": "theta",
    "a_hat": "a_hat",
    "y": "y",
    "gradient": "grad",
    "cost": "cost",
    "f_hat": "f_hat",
    "f": "f_true",
}
PREFIX = 40  # steps whose surrogates are computed: each is a rollout for each derivative

# The largest problem takes as long to compile as two others; so does GAPS by the native engine.
cases = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "network")) for name in CASES]
)
tuners = pytest.mark.parametrize("tuner", ["mgaps", "gaps"])


@cache
def expected(name: str, tuner: str) -> dict[str, np.ndarray]:
    case = CASES[name]
    return algorithms.run(case.problem, case.buffer if tuner == "gaps" else None)


@cache
def system(name: str) -> st.System:
    matched, dynamics, residual, policy, cost = CASES[name].functions(jnp)
    if matched:
        return st.MatchedSystem(dynamics=dynamics, residual=residual, actuation=policy, cost=cost)
    return st.System(dynamics=dynamics, residual=residual, policy=policy, cost=cost)


def constraint(given) -> st.AbstractConstraint:
    if isinstance(given, algorithms.Box):
        return st.Box(given.low, given.high)
    return st.Ball(given.radius, given.center) if isinstance(given, algorithms.Ball) else st.Unconstrained()


@cache
def controller(name: str, tuner: str) -> st.Controller:
    problem, theta_set = CASES[name].problem, constraint(CASES[name].problem.theta_set)
    made = {
        "mgaps": st.MGAPS(problem.eta, constraint=theta_set),
        "gaps": st.GAPS(CASES[name].buffer, problem.eta, constraint=theta_set),
    }
    estimator = st.GradientEstimator(problem.iota, preconditioner=problem.P, constraint=constraint(problem.a_set))
    return st.Controller(system(name), made[tuner], estimator)


def scenario(name: str) -> st.Scenario:
    problem = CASES[name].problem
    return st.Scenario(problem.x0, problem.a_star, problem.w, problem.v)


@cache
def simulated(name: str, tuner: str, engine: str = "xla") -> st.Run:
    problem = CASES[name].problem
    return st.simulate(controller(name, tuner), scenario(name), theta=problem.theta0, a_hat=problem.a0, engine=engine)


def assert_close(got, wanted, what: str) -> None:
    """To 1e-9 of the array's size: the loops contract, so that rounding of 1e-16 a step stays far below."""
    wanted = np.asarray(wanted)
    assert np.shape(got) == wanted.shape, what
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9 * np.abs(wanted).max(), err_msg=what)


@pytest.mark.parametrize(
    ("tuner", "engine"),
    [("mgaps", "xla"), ("mgaps", "native"), ("gaps", "xla"), pytest.param("gaps", "native", marks=pytest.mark.slow)],
)
@cases
def test_runs(name, tuner, engine):
    run = simulated(name, tuner, engine)
    for field, theirs in FIELDS.items():
        assert_close(run.recorded[field], expected(name, tuner)[theirs], field)
    assert_close(run.final.state.theta, expected(name, tuner)["theta_end"], "final theta")


@tuners
@cases
def test_metrics_of_a_run(name, tuner):
    problem, truth, run = CASES[name].problem, expected(name, tuner), simulated(name, tuner)
    mismatch = st.model_mismatch(system(name), scenario(name), run)
    assert_close(mismatch.mismatch, truth["eps"], "mismatch")
    assert_close(mismatch.mismatch_gradient, truth["eps_prime"], "mismatch of the gradient")
    exact = algorithms.companion(problem, truth["theta"], truth["theta_end"])
    gap = st.exact_model_gap(system(name), scenario(name), run)
    assert_close(gap.x, exact["x"], "companion's x")
    assert_close(gap.y, exact["y"], "companion's y")
    assert_close(gap.gap, algorithms.gap(truth["x"], truth["y"], exact), "gap")
    buffer = CASES[name].buffer if tuner == "gaps" else None
    zeta = algorithms.companion(problem, truth["theta"], truth["theta_end"], buffer)["zeta"]
    found = st.perturbations(system(name), scenario(name), run, tuner=controller(name, tuner).tuner)
    assert_close(found.perturbation, zeta, "perturbations")
    assert np.abs(zeta).max() > 1e-6  # or the two would agree about nothing


@cases
def test_surrogate_and_local_regret(name):
    problem, thetas = CASES[name].problem, expected(name, "mgaps")["theta"]
    whole = st.surrogate(system(name), scenario(name), thetas)
    steps = [*range(PREFIX), 2 * PREFIX, len(problem) - 1]
    truth = [algorithms.surrogate(problem, thetas, t) for t in steps]
    gradients = np.stack([gradient for _, gradient in truth])
    assert_close(np.asarray(whole.value)[steps], [value for value, _ in truth], "surrogate")
    assert_close(np.asarray(whole.gradient)[steps], gradients, "its gradient")
    regret = st.local_regret(
        system(name),
        scenario(name)[:PREFIX],
        thetas[:PREFIX],
        learning_rate=problem.eta,
        constraint=constraint(problem.theta_set),
    )
    assert_close(regret.cumulative, algorithms.local_regret(problem, thetas[:PREFIX], gradients[:PREFIX]), "regret")


@cases
def test_the_sets_of_the_problems_bind(name):
    """Each set but the whole space cuts a step short at least five times, so that a projection matters."""
    problem, truth = CASES[name].problem, expected(name, "mgaps")
    steps = truth["theta"] - problem.eta * truth["grad"]
    short = sum(not np.array_equal(problem.theta_set.project(step), step) for step in steps)
    assert short >= 5 or isinstance(problem.theta_set, algorithms.Everything)
    # What a projection onto a boundary gives is left by any move outward.
    outward = truth["a_hat"] * (1 + 1e-9)
    short = sum(not np.array_equal(problem.a_set.project(step), step) for step in outward)
    assert short >= 5 or isinstance(problem.a_set, algorithms.Everything)


def test_a_derivative_is_exact_to_rounding():
    z = np.array([0.3, -0.7])
    got = algorithms.derivative(lambda z: np.stack([np.sin(z[0] * z[1]), z[0] ** 3 / (1 + z[1] ** 2)]), z)
    x, y = z
    c = np.cos(x * y)
    want = [[y * c, x * c], [3 * x**2 / (1 + y**2), -2 * y * x**3 / (1 + y**2) ** 2]]
    np.testing.assert_allclose(got, want, rtol=1e-15)


def test_the_program_is_independent():
    """It runs where neither JAX nor selftune is loaded."""
    code = (
        "import sys; from tests.independent import algorithms, golden, problems; "
        "sys.exit(any(name.split('.')[0] in ('jax', 'selftune') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
