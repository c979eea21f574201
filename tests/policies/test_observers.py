"""Observers: gains of python-control, convergence, and derivatives of a loop that sees only a part of the state."""

import control
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import selftune as st
from selftune import policies

H = 0.02
A, B, C = np.array([[1.0, H], [0.0, 1.0 - 2.0 * H]]), np.array([[0.0], [4.0 * H]]), np.array([[1.0, 0.0]])


def motor(x, u, f, t):
    return jnp.asarray(A, x.dtype) @ x + jnp.asarray(B, x.dtype) @ (u + f)


def test_the_gain_is_that_of_the_stationary_kalman_filter():
    Q, R = np.diag([1e-6, 1e-3]), np.array([[1e-4]])
    observer = policies.Luenberger.kalman(A, C, Q, R)
    # `dlqe` gives the gain of the corrected estimate as well.
    L, P, _ = control.dlqe(A, np.eye(2), C, Q, R)
    gain = np.asarray(observer.gain(observer.theta))
    np.testing.assert_allclose(gain, P @ C.T @ np.linalg.inv(C @ P @ C.T + R), rtol=1e-9)
    assert np.allclose(L, gain) or np.allclose(L, A @ gain)
    sizes = policies.Luenberger.kalman(A, C, [1e-3, np.sqrt(1e-3)], 1e-2)
    np.testing.assert_allclose(sizes.gain(sizes.theta), gain, rtol=1e-9)


def test_the_observer_finds_the_state():
    observer = policies.Luenberger.kalman(A, C, [1e-3, 0.1], 1e-2)
    x, memory = jnp.array([0.5, -1.0]), observer.memory.initial
    for t in range(300):
        x_hat = observer.estimate(C @ x, memory, observer.theta, t)
        u = jnp.array([np.sin(0.1 * t)])
        memory = observer.update(memory, x_hat, u, jnp.zeros(1), motor, t)
        x = motor(x, u, jnp.zeros(1), t)
    np.testing.assert_allclose(memory["predicted"], x, atol=1e-9)


def test_the_velocity_filter_is_a_filtered_difference():
    observer = policies.VelocityFilter(0.05, dt=H, positions=2)
    position = np.cumsum(np.random.default_rng(0).normal(size=(50, 2)), axis=0)
    memory, found = observer.memory.initial, []
    for y in position:
        x_hat = observer.estimate(jnp.asarray(y), memory, observer.theta, 0)
        memory = observer.update(memory, x_hat, jnp.zeros(1), jnp.zeros(1), motor, 0)
        found.append(np.asarray(x_hat[2:]))
    time = H * np.arange(50)
    block = control.tf([1, -1], [0.05 + H, -0.05], H)
    for axis in range(2):
        expected = control.forced_response(control.ss(block), time, position[:, axis] - position[0, axis]).outputs
        np.testing.assert_allclose(np.array(found)[:, axis], expected, atol=1e-10)


def ramp(steps=60):
    """Periods with jitter, and the times of the steps: step t is at time[t], and lasts periods[t]."""
    periods = H * np.random.default_rng(0).uniform(0.5, 1.5, steps)
    return periods, np.concatenate([[0.0], np.cumsum(periods[:-1])])


@pytest.mark.parametrize("knows_the_future", [True, False])
def test_the_velocity_of_a_ramp_with_jitter(knows_the_future):
    """p = v·time gives v (1 − Π T/(T + h)) over all periods h before the step, whatever the periods are."""
    T, v = 0.05, 3.0
    observer = policies.VelocityFilter(T, dt=H)
    periods, time = ramp()
    memory = observer.memory.initial
    for t in range(len(time)):
        measured = jnp.asarray(periods[t - 1] if t else H)
        context = st.LoopContext(jnp.array(t), jnp.zeros(1), measured)
        if knows_the_future:
            context = context._replace(dt=jnp.asarray(periods[t]), last_dt=measured)
        x_hat = observer.estimate(jnp.array([v * time[t]]), memory, observer.theta, context)
        memory = observer.update(memory, x_hat, jnp.zeros(1), jnp.zeros(1), motor, context)
        expected = v * (1 - np.prod(T / (T + periods[:t])))
        np.testing.assert_allclose(x_hat, [v * time[t], expected], rtol=1e-12, atol=1e-14)


OBSERVERS = {
    "Luenberger": policies.Luenberger.kalman(A, C, [1e-3, 0.1], 1e-2),
    "VelocityFilter": policies.VelocityFilter(0.05, dt=H),
    "constant": policies.Luenberger.kalman(A, C, [1e-3, 0.1], 1e-2, tunable=False),
}


def system_of(observer):
    pid = policies.PID(8.0, 4.0, u_min=-2.0, u_max=2.0)
    inner = policies.PID(0.3)

    def act(measured, memory, theta, f, t):
        x = observer.estimate(measured, memory["observer"], theta["observer"], t)
        one = jnp.ones_like(measured)
        inputs = policies.Inputs(measured, one, x, f, jnp.asarray(H, x.dtype), t)
        u, own = pid(inputs, memory["policy"], theta["policy"])
        damping, _ = inner(inputs._replace(output=x[1:], reference=0 * one), None, theta["inner"])
        u = u + damping - f
        return u, {"policy": own, "observer": observer.update(memory["observer"], x, u, f, motor, t)}

    system = st.System(
        dynamics=motor,
        residual=lambda x, a, t: a * jnp.tanh(x[1:]),
        policy=act,
        cost=lambda x, memory, u, theta, t: jnp.sum((x[:1] - 1.0) ** 2) + 0.01 * jnp.sum(u**2),
        memory={"policy": pid.memory.initial, "observer": observer.memory.initial},
        measure=lambda x, t: x[:1],
        estimate=lambda measured, memory, theta, t: observer.estimate(
            measured, memory["observer"], theta["observer"], t
        ),
    )
    return system, {"observer": observer.theta, "policy": pid.theta, "inner": inner.theta}


@pytest.mark.parametrize("name", OBSERVERS)
def test_y_covers_the_observer(name):
    system, theta = system_of(OBSERVERS[name])
    flat, unravel = ravel_pytree(theta)
    start, a = system.first(jnp.array([0.2, 0.1])), jnp.array([-0.3])

    def rollout(delta):
        step = lambda loop, t: (lambda out: (out[0], out))(system.step(loop, unravel(flat + delta), a, t))
        return jax.lax.scan(step, start, jnp.arange(60))[1]

    expected_y, expected_gradient = jax.jit(jax.jacfwd(rollout))(jnp.zeros_like(flat))

    def step(carry, t):
        loop, y, _, gradient = system.sensitivity(*carry, theta, a, t)
        return (loop, y), (y, gradient)

    first = (start, jnp.zeros((start.size, flat.size)))
    _, (y, gradient) = jax.jit(lambda: jax.lax.scan(step, first, jnp.arange(60)))()
    for got, expected in ((y, expected_y), (gradient, expected_gradient)):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10 * float(jnp.max(jnp.abs(expected))))
    assert np.all(np.any(np.abs(np.asarray(gradient)) > 0, axis=0))  # every number matters, also those of the observer


def test_mistakes_are_refused(as_a_user):
    for make, message in [
        (lambda: policies.Luenberger([[1.0], [2.0]], measure=[[1.0, 0.0, 0.0]]), "measure: expected a matrix"),
        (lambda: policies.Luenberger([1.0], measure=[[1.0]]), "L: expected a matrix"),
        (lambda: policies.VelocityFilter([0.1, 0.2], dt=H, positions=3), "time_constant: expected a shape"),
        (lambda: policies.VelocityFilter(-1.0, dt=H), "time_constant: expected numbers > 0"),
        (lambda: policies.StateFeedback([1.0]), "K: expected a matrix"),
        (lambda: policies.StateFeedback([[1.0]], integral=[[1.0], [2.0]]), "integral: expected a matrix"),
        (
            lambda: policies.StateFeedback.lqr(A, B, np.eye(2), [[1.0]], integral_cost=[[1.0]]),
            "integral_cost: expected",
        ),
        (lambda: policies.Cascade(policies.PID(1.0), states=()), "levels: expected two"),
        (lambda: policies.Cascade(policies.PID(1.0), policies.PID(1.0), states=(1, 2)), "states: expected an entry"),
        (lambda: policies.Cascade(policies.PID(1.0), policies.PID(1.0), states=(1,), every=(2,)), "every: expected"),
        (lambda: policies.ComputedTorque(3.0, 1), "inverse_dynamics: expected a function"),
    ]:
        with pytest.raises(st.ArgumentError, match=message):
            make()
