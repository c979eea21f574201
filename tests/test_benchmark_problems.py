"""The closed loops of the benchmarks: one dtype throughout, correct gradients, and the same results as C by hand."""

from functools import cache
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks._by_hand import BY_HAND, RECORD, hand_written
from benchmarks._problems import PROBLEMS

import selftune as st

names = pytest.mark.parametrize("name", PROBLEMS)


def rows(problem, scenario):
    """The run's rows, in NumPy, where looking at them compiles nothing."""
    fields = ("x", "u", "theta", "a_hat", "cost", "gradient")
    run = st.simulate(problem.controller, scenario, theta=problem.theta, a_hat=problem.a_hat, record=fields)
    assert run.result.message == "ok"
    return SimpleNamespace(**{name: np.asarray(getattr(run, name)) for name in fields})


@cache
def simulated(name):
    """A problem in float64, its scenario and its run, made once: compiling is most of the time here."""
    problem = PROBLEMS[name]()
    scenario = problem.scenario(10_000 if name in BY_HAND else 300, seed=1)
    return problem, scenario, rows(problem, scenario)


def check_run(problem, run, dtype):
    assert {field.dtype for field in vars(run).values()} == {jnp.dtype(dtype)}
    assert np.max(np.abs(run.theta[-1] - run.theta[0])) > 1e-3
    assert np.max(np.abs(run.a_hat[-1])) > 1e-3
    box, slack = problem.controller.tuner.constraint, 1e-6  # the bounds are rounded to the run's dtype
    assert np.all((np.asarray(box.low) - slack <= run.theta) & (run.theta <= np.asarray(box.high) + slack))


# `tests/robots` has the quadrotor in every gate.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "quadrotor" else ()) for name in PROBLEMS]
)
def test_runs_in_float64(name):
    problem, _, run = simulated(name)
    check_run(problem, run, jnp.float64)


@pytest.mark.slow
@names
def test_runs_in_float32(name):
    """On the float64 problem's numbers, as drawing its own would take as long to compile as the run."""
    problem = PROBLEMS[name](jnp.float32)
    drawn = eqx.filter_eval_shape(problem.scenario, 300)
    assert {leaf.dtype for leaf in jax.tree.leaves(drawn)} == {jnp.dtype(jnp.float32)}
    double = simulated(name)[1]
    a_star, w, v = (
        None if part is None else np.asarray(part, np.float32)[:300] for part in (double.a_star, double.w, double.v)
    )
    scenario = st.Scenario(np.float32(double.x0), a_star, w, v)
    check_run(problem, rows(problem, scenario), jnp.float32)


@pytest.mark.parametrize("name", ["arm", pytest.param("quadrotor", marks=pytest.mark.slow)])
def test_gradient_is_that_of_the_models_rollout(name):
    """M-GAPS's G_t, forward, against reverse mode through t steps of the model, all of θ_0…θ_t shifted alike.

    What the model does not foresee, disturbance and wrong parameters, is added as it was: it does not shift.
    """
    problem, scenario, run = simulated(name)
    system, steps = problem.controller.system, 40
    used = (np.arange(steps), run.x[1 : steps + 1], run.theta[:steps], run.a_hat[:steps])

    @jax.jit
    @jax.grad
    def gradient(shift, weights):
        def step(x, now):
            t, x_seen, theta, a_hat = now
            x_next, cost = system.step(x, theta + shift, a_hat, t)
            return x_next + jax.lax.stop_gradient(x_seen - x_next), cost

        return jnp.sum(weights * jax.lax.scan(step, scenario.x0, used)[1])

    for t in (1, 7, steps - 1):
        expected = gradient(np.zeros(problem.theta.shape), np.eye(steps)[t])
        scale = np.max(np.abs(expected))
        np.testing.assert_allclose(run.gradient[t], expected, rtol=1e-8, atol=1e-8 * scale)
    assert np.min(np.abs(expected)) > 1e-6 * scale  # every gain matters by now


@pytest.mark.parametrize("name", BY_HAND)
def test_agrees_with_c_by_hand(name):
    problem, scenario, ours = simulated(name)
    run, outputs = hand_written(problem, scenario)
    run()
    for field in RECORD:
        np.testing.assert_allclose(getattr(ours, field), outputs[field], rtol=1e-9, atol=1e-9, err_msg=field)
