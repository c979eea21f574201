"""The benchmarks' closed loops: sound physics, one dtype throughout, gradients that are right, and their twins in C."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from benchmarks._by_hand import BY_HAND, RECORD, hand_written
from benchmarks._robots import GRAVITY, PROBLEMS, arm_system, quadrotor, quadrotor_system
from benchmarks._robots import rotation_matrix as matrix
from benchmarks._robots import rotation_rate as rate


def skew(r):
    return jnp.cross(jnp.eye(3), r)  # rows are e_i × r, and so its columns are r × e_i, with the sign turned twice


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_runs_in_its_own_dtype(name, dtype):
    problem = PROBLEMS[name](dtype)
    scenario = problem.scenario(300, seed=1)
    run = st.simulate(problem.controller, scenario, theta=problem.theta, a_hat=problem.a_hat)
    floats = [leaf for leaf in jax.tree.leaves((scenario, run)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert {leaf.dtype for leaf in floats} == {jnp.dtype(dtype)}
    assert run.result.message == "ok"
    assert float(jnp.max(jnp.abs(run.theta[-1] - run.theta[0]))) > 1e-3
    assert bool(problem.controller.tuner.constraint.contains(run.theta[-1]))
    assert float(jnp.max(jnp.abs(run.a_hat[-1]))) > 1e-3


@pytest.mark.parametrize("name", ["arm", "quadrotor"])
def test_gradient_is_that_of_the_rollout(name):
    """M-GAPS's G_t, forward, against reverse mode through the whole rollout, all of θ_0…θ_t shifted alike."""
    problem, steps = PROBLEMS[name](), 40
    system, scenario = problem.controller.system, problem.scenario(steps)
    run = st.simulate(st.Controller(system, problem.controller.tuner, st.Known()), scenario, theta=problem.theta)

    def costs(shift):
        def step(x, now):
            t, theta, row = now
            x_next, cost = system.step(x, theta + shift, row.a_star, t)
            return x_next + row.w, cost

        times = jnp.arange(steps)
        return jax.lax.scan(step, scenario.x0, (times, run.theta, jax.vmap(scenario.row)(times)))[1]

    few = jnp.array([1, 7, steps - 1])
    expected = jax.jit(jax.jacrev(lambda shift: costs(shift)[few]))(jnp.zeros_like(problem.theta))
    assert float(jnp.min(jnp.max(jnp.abs(expected), axis=0))) > 1e-6  # every gain matters
    np.testing.assert_allclose(run.gradient[few], expected, rtol=1e-8, atol=1e-8 * float(jnp.max(jnp.abs(expected))))


def test_quadrotor_is_smooth_where_it_does_not_rotate():
    problem = quadrotor()
    x, a, step = problem.scenario(1).x0, problem.a_hat, quadrotor_system().step
    np.testing.assert_array_equal(x[6:], 0)
    derivatives = jax.jit(jax.jacfwd(step, argnums=(0, 1, 2)))(x, problem.theta, a, 0)
    back = jax.jit(jax.jacrev(step, argnums=(0, 1, 2)))(x, problem.theta, a, 0)
    for forward, reverse in zip(jax.tree.leaves(derivatives), jax.tree.leaves(back), strict=True):
        assert bool(jnp.all(jnp.isfinite(forward)))
        np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-12 * float(jnp.max(jnp.abs(forward))))


# Zero, either side of where the two series end (r² = 0.01, 0.04 and 0.5), and large.
@pytest.mark.parametrize("size", [0.0, 1e-9, 0.0999, 0.1001, 0.1999, 0.2001, 0.7071, 0.7072, 3.0])
def test_rotations(size):
    r, body_rate = size * jnp.array([0.6, 0.0, -0.8]), jnp.array([0.3, -2.0, 1.1])
    R, moved = jax.jvp(matrix, (r,), (rate(r, body_rate),))
    np.testing.assert_allclose(R, jax.scipy.linalg.expm(skew(r)), atol=1e-13)
    # The vector's derivative is the one that makes the matrix turn at the body's rate. 1e-12: the series' first left out.
    np.testing.assert_allclose(moved, R @ skew(body_rate), atol=1e-12)


def test_arm_obeys_lagrange():
    """The step's acceleration against one derived from the energies of two rods."""
    masses, lengths, dt = (1.5, 1.0), (0.4, 0.35), 0.004

    def lagrangian(q, qd):
        angles, total, base = jnp.cumsum(q), 0.0, jnp.zeros(2)
        place = lambda angle: jnp.stack([jnp.sin(angle), -jnp.cos(angle)])
        for i, (mass, length) in enumerate(zip(masses, lengths, strict=True)):
            at = lambda q, i=i, length=length: sum(
                (lengths[j] * place(jnp.cumsum(q)[j]) for j in range(i)), length / 2 * place(jnp.cumsum(q)[i])
            )
            position, velocity = jax.jvp(at, (q,), (qd,))
            spin = jnp.sum(qd[: i + 1])
            total += mass * jnp.sum(velocity**2) / 2 + mass * length**2 / 24 * spin**2 - mass * GRAVITY * position[1]
        del angles, base
        return total

    @jax.jit
    def acceleration(q, qd, torque):
        force = jax.grad(lagrangian)(q, qd) - jax.jvp(lambda q: jax.grad(lagrangian, 1)(q, qd), (q,), (qd,))[1]
        return jnp.linalg.solve(jax.hessian(lagrangian, 1)(q, qd), torque + force)

    q, qd, torque = jnp.array([0.4, -1.1]), jnp.array([1.3, -2.2]), jnp.array([2.0, -0.7])
    x_next = arm_system().phi(jnp.concatenate([q, qd]), torque, 0)
    np.testing.assert_allclose((x_next[2:] - qd) / dt, acceleration(q, qd, torque), rtol=1e-11)
    np.testing.assert_allclose(x_next[:2], q + dt * x_next[2:], rtol=1e-15)


@pytest.mark.parametrize("name", BY_HAND)
def test_agrees_with_c_by_hand(name):
    problem = PROBLEMS[name]()
    scenario = problem.scenario(10_000)
    run, outputs = hand_written(problem, scenario)
    run()
    ours = st.simulate(problem.controller, scenario, theta=problem.theta, a_hat=problem.a_hat, record=RECORD)
    for field in RECORD:
        np.testing.assert_allclose(getattr(ours, field), outputs[field], rtol=1e-9, atol=1e-9, err_msg=field)
