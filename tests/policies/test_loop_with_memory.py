"""Policies inside a closed loop: derivatives, engines, guard and exported C."""

import re
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import selftune as st
from selftune import policies

H = 0.02
STEPS = 120


def motor(x, u, f, t):
    """Angle and speed of a motor."""
    return jnp.stack([x[0] + H * x[1], x[1] + H * (-2.0 * x[1] + 4.0 * (u[0] + f[0]))])


def reference(t, dtype):
    return jnp.where(jnp.asarray(t) % 80 < 40, jnp.asarray(1.0, dtype), jnp.asarray(-0.5, dtype))[None]


def system_of(policy, output=lambda x: x[:1]):
    def act(x, memory, theta, f, t):
        inputs = policies.Inputs(output(x), reference(t, x.dtype), x, f, jnp.asarray(H, x.dtype), t)
        return policy(inputs, memory, theta)

    return st.System(
        dynamics=motor,
        residual=lambda x, a, t: a[:1] - a[1:] * jnp.tanh(x[1:]),
        policy=act,
        cost=lambda x, memory, u, theta, t: jnp.sum((x[:1] - reference(t, x.dtype)) ** 2) + 0.01 * jnp.sum(u**2),
        memory=policy.memory,
    )


LIMITS = dict(u_min=-2.0, u_max=2.0)
LOOPS = {
    "PID": policies.PID(8.0, 4.0, 0.5, **LIMITS, rate_limit=60.0, compensation=1.0),
    "clamping": policies.PID.standard(8.0, 2.0, 0.06, **LIMITS, tune_filter=True, anti_windup=policies.Clamping()),
    "tracking time": policies.PID(8.0, 4.0, **LIMITS, anti_windup=policies.BackCalculation(0.3, tunable=True)),
    "Cascade": policies.Cascade(
        policies.PID(6.0, 1.0, u_min=-3.0, u_max=3.0), policies.PID(2.0, 8.0, **LIMITS), states=(1,), every=(3, 1)
    ),
    "Filtered": policies.Filtered(
        policies.PID(8.0, 4.0, 0.5, **LIMITS), output=policies.LowPass(0.02), control=policies.Notch(40.0)
    ),
}


def scenario(steps=STEPS):
    kw, kv = jax.random.split(jax.random.key(3))
    noise = 1e-3 * jax.random.normal(kw, (steps, 2))
    return st.Scenario(
        jnp.array([0.2, 0.0]),
        jnp.tile(jnp.array([-0.6, 0.2]), (steps, 1)),
        noise,
        1e-3 * jax.random.normal(kv, (steps, 1)),
    )


@pytest.mark.parametrize("name", LOOPS)
def test_y_and_the_gradient_are_those_of_the_whole_rollout(name):
    policy = LOOPS[name]
    system, a = system_of(policy), jnp.array([-0.6, 0.2])
    flat, unravel = ravel_pytree(policy.theta)
    start = system.first(jnp.array([0.2, 0.0]))

    def rollout(delta):  # θ shifted by the same δ at all steps
        theta = unravel(flat + delta)

        def step(loop, t):
            loop_next, cost = system.step(loop, theta, a, t)
            return loop_next, (loop_next, cost)

        return jax.lax.scan(step, start, jnp.arange(STEPS))[1]

    expected_y, expected_gradient = jax.jit(jax.jacfwd(rollout))(jnp.zeros_like(flat))

    def step(carry, t):
        loop, y = carry
        loop, y, _, gradient = system.sensitivity(loop, y, policy.theta, a, t)
        return (loop, y), (y, gradient)

    first = (start, jnp.zeros((start.size, flat.size)))
    _, (y, gradient) = jax.jit(lambda: jax.lax.scan(step, first, jnp.arange(STEPS)))()
    # Both differentiate the same program in forward mode: only the order of sums differs.
    for got, expected in ((y, expected_y), (gradient, expected_gradient)):
        scale = float(jnp.max(jnp.abs(expected)))
        assert scale > 1e-3
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_both_engines_tune_alike(name):
    policy = LOOPS[name]
    controller = st.Controller(
        system_of(policy), st.MGAPS(0.01, constraint=policy.constraint), st.GradientEstimator(0.1)
    )
    runs = [
        st.simulate(controller, scenario(), theta=policy.theta, a_hat=jnp.zeros(2), engine=engine)
        for engine in ("xla", "native")
    ]
    for field in ("x", "u", "cost"):
        # 120 steps of a stable loop, with sums in another order.
        np.testing.assert_allclose(*(getattr(run, field) for run in runs), rtol=0, atol=1e-9)
    theta = [ravel_pytree(run.final.state.theta)[0] for run in runs]
    np.testing.assert_allclose(*theta, rtol=0, atol=1e-9)
    assert np.any(np.abs(theta[0] - ravel_pytree(policy.theta)[0]) > 1e-6)  # it learned


def test_refused_measurements_in_the_middle_of_windup():
    """The actuator is at its limit, and the sensor fails: the integral stays, and the last control is the one sent."""
    pid = policies.PID(8.0, 4.0, 0.5, u_min=-0.1, u_max=0.1, rate_limit=50.0, anti_windup=policies.Windup())
    controller = st.Controller(system_of(pid), st.Fixed(), st.Frozen())
    agent = st.Agent(controller, x=[0.0, 0.0], theta=pid.theta, a_hat=[0.0, 0.0], guard=st.Guard(bridge=2))
    for t in range(20):
        agent.act(np.array([0.0, 0.0]), t)
    before = agent.state.controller.memory
    assert before["integral"][0] > 1.0  # it winds up
    for t in range(20, 26):
        u = agent.act(np.array([np.nan, 0.0]), t)
        memory = agent.state.controller.memory
        np.testing.assert_array_equal(memory["integral"], before["integral"])
        np.testing.assert_array_equal(memory["u"], u)
    agent.act(np.array([0.0, 0.0]), 26)
    assert agent.state.controller.memory["integral"][0] > before["integral"][0]


@pytest.mark.parametrize("resets", [False, True], ids=["keep", "reset"])
def test_a_rollback_treats_the_memory_as_the_policy_says(resets):
    pid = policies.PID(1.0, 4.0)
    rule = (lambda memory, initial: initial) if resets else (lambda memory, initial: memory)
    system = system_of(pid)
    memory = st.Memory(pid.memory.initial, refused=pid.memory.refused, restored=rule)
    system = st.System(system.dynamics, system.residual, system.policy, system.cost, memory=memory)
    controller = st.Controller(system, st.Fixed(), st.Frozen())
    agent = st.Agent(
        controller, x=[0.0, 0.0], theta=pid.theta, a_hat=[0.0, 0.0], guard=st.Guard(window=5, rollback=2.0)
    )
    for t in range(12):
        agent.act(np.array([0.5, 0.0]), t)
    before = agent.state.controller.memory["integral"]
    agent.restore()
    np.testing.assert_array_equal(agent.state.controller.memory["integral"], np.zeros(1) if resets else before)
    assert before[0] != 0.0


def test_the_cascade_holds_its_outer_control_and_counts_through_refused_steps():
    cascade = LOOPS["Cascade"]
    memory, commands = cascade.memory.initial, []
    for t in range(7):
        inputs = policies.Inputs.of(output=[0.02 * t], reference=[0.3], x=[0.02 * t, 0.0], dt=H)
        _, memory = cascade(inputs, memory, cascade.theta)
        commands.append(float(memory["level_1"]["control"][0]))
    assert commands[0] == commands[1] == commands[2] != commands[3] == commands[4] == commands[5] != commands[6]
    # The slow level is a PID with three times the period.
    outer = policies.PID(6.0, 1.0, u_min=-3.0, u_max=3.0)
    own = outer.memory.initial
    for t in (0, 3, 6):
        u, own = outer(policies.Inputs.of(output=[0.02 * t], reference=[0.3], dt=3 * H), own, outer.theta)
        np.testing.assert_allclose(u[0], commands[t], rtol=1e-12)
    before = memory
    _, after = cascade(policies.Inputs.of(output=[0.9], reference=[1.0], x=[0.9, 0.0], dt=H), before, cascade.theta)
    refused = cascade.memory.refused(before, after, jnp.array([0.7]))
    for level in ("level_1", "level_2"):
        np.testing.assert_array_equal(refused[level]["memory"]["integral"], before[level]["memory"]["integral"])
    assert float(refused["level_1"]["count"]) == float(after["level_1"]["count"])
    np.testing.assert_array_equal(refused["level_2"]["control"], [0.7])


def test_the_exported_c_replays(tmp_path):
    pid = LOOPS["PID"]
    controller = st.Controller(system_of(pid), st.MGAPS(0.01, constraint=pid.constraint), st.GradientEstimator(0.1))
    folder = st.export_c(controller, tmp_path / "pid", x=[0.2, 0.0], theta=pid.theta, a_hat=[0.0, 0.0], dtype="float64")
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "pid.c", "main.c", "-o", "replay", "-lm"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    printed = subprocess.run([folder / "replay"], capture_output=True, text=True, check=True).stdout
    # Recorded by the Agent in Python; the compiler may round sums differently.
    found = re.fullmatch(r"largest difference: (\S+)\n", printed)
    assert found
    assert float(found[1]) < 1e-12


def test_agent_and_simulate_agree():
    pid = LOOPS["PID"]
    controller = st.Controller(system_of(pid), st.MGAPS(0.01, constraint=pid.constraint), st.Frozen())
    run = st.simulate(controller, scenario(40), theta=pid.theta, a_hat=jnp.zeros(2))
    agent = st.Agent(controller, x=run.x[0], theta=pid.theta, a_hat=np.zeros(2))
    u = [agent.act(np.asarray(run.x[t]), t) for t in range(40)]  # the agent is given the measurement alone
    np.testing.assert_allclose(u, run.u, rtol=0, atol=1e-12)
