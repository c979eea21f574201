"""The benchmarks' closed loops: sound physics, one dtype throughout, gradients that are right, and their twins in C."""

from functools import cache
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from benchmarks._by_hand import BY_HAND, RECORD, hand_written
from benchmarks._robots import GRAVITY, PROBLEMS, arm_system, quadrotor

import selftune as st
from selftune.robots.rotation import rotation_matrix, rotation_rate

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


@names
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


@pytest.mark.parametrize("name", ["arm", "quadrotor"])
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


def test_quadrotor_is_smooth_where_it_does_not_rotate():
    problem = quadrotor()
    x = jnp.zeros(12)
    jacobian = jax.jit(jax.jacfwd(problem.controller.system.step))
    for leaf in jacobian(x, problem.theta, problem.a_hat, 0):
        assert np.all(np.isfinite(leaf))


def skew(r):
    """The matrix of r ×."""
    return np.cross(np.eye(3), r)


def test_rotations():
    @jax.jit
    @jax.vmap
    def turn(r, body_rate):
        return jax.jvp(rotation_matrix, (r,), (rotation_rate(r, body_rate),))

    # Zero, either side of where the series end (r² = 0.01, 0.04 and 0.5), and large.
    sizes = np.array([0.0, 1e-9, 0.0999, 0.1001, 0.1999, 0.2001, 0.7071, 0.7072, 3.0])
    r = sizes[:, None] * np.array([0.6, 0.0, -0.8])
    body_rate = np.broadcast_to([0.3, -2.0, 1.1], r.shape)
    for vector, rate, R, moved in zip(r, body_rate, *turn(r, body_rate), strict=True):
        np.testing.assert_allclose(R, scipy.linalg.expm(skew(vector)), atol=1e-14)
        # The vector's rate is the one that makes the matrix turn with the body; the series' first left out is 2e-13.
        np.testing.assert_allclose(moved, R @ skew(rate), atol=1e-12)


def test_arm_obeys_lagrange():
    """The step's acceleration against d/dt ∂L/∂q̇ = ∂L/∂q + τ, from where the rods' centres are and how they spin."""
    dt, masses, inertias = 0.004, (1.5, 1.0), (1.5 * 0.4**2 / 12, 1.0 * 0.35**2 / 12)
    arms = np.array([[0.2, 0.0], [0.4, 0.175]])  # from the origin along each link to the centre of the first, second

    def lagrangian(q, qd):
        angles, spins = np.cumsum(q), np.cumsum(qd)
        velocities = np.stack([arms @ (np.cos(angles) * spins), arms @ (np.sin(angles) * spins)])
        kinetic = masses @ np.sum(velocities**2, axis=0) / 2 + inertias @ spins**2 / 2
        return kinetic + GRAVITY * (masses @ (arms @ np.cos(angles)))

    def derivative(function, z, h=1e-4):
        return np.stack([(function(z + e) - function(z - e)) / (2 * h) for e in h * np.eye(2)], axis=-1)

    def momentum(q, qd):
        return derivative(lambda qd: lagrangian(q, qd), qd)

    q, qd, torque = np.array([0.4, -1.1]), np.array([1.3, -2.2]), np.array([2.0, -0.7])
    force = derivative(lambda q: lagrangian(q, qd), q) - derivative(lambda q: momentum(q, qd), q) @ qd
    acceleration = np.linalg.solve(derivative(lambda qd: momentum(q, qd), qd), torque + force)
    x_next = jax.jit(arm_system().phi)(np.concatenate([q, qd]), torque, 0)
    # Differences of step 1e-4, twice: h² and eps / h² are both about 1e-8.
    np.testing.assert_allclose((x_next[2:] - qd) / dt, acceleration, rtol=1e-6)
    np.testing.assert_allclose(x_next[:2], q + dt * x_next[2:], rtol=1e-14)


@pytest.mark.parametrize("name", BY_HAND)
def test_agrees_with_c_by_hand(name):
    problem, scenario, ours = simulated(name)
    run, outputs = hand_written(problem, scenario)
    run()
    for field in RECORD:
        np.testing.assert_allclose(getattr(ours, field), outputs[field], rtol=1e-9, atol=1e-9, err_msg=field)
