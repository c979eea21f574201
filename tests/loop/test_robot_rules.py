"""Loops of robots: what the rules give, and that the loop follows its path and learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import models, policies, references, robot_rules
from selftune.policies.robot import soft_limit

from ..models import robot_texts


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    path = tmp_path_factory.mktemp("robots") / "two.xml"
    path.write_text(robot_texts.TWO_LINKS)
    return models.RobotArm.from_file(path)


def test_swing_has_its_own_derivatives():
    swing = references.Swing([0.3, -1.0], [0.2, 0.5], (1, 2), seconds=2.0)
    rows = np.asarray(swing.rows(jax.random.key(0), 20_001, 1e-4, 6))
    for k in (0, 2):
        slope = (rows[2:, k : k + 2] - rows[:-2, k : k + 2]) / 2e-4
        np.testing.assert_allclose(rows[1:-1, k + 2 : k + 4], slope, atol=1e-4)  # central differences of second order
    np.testing.assert_allclose(np.max(np.abs(rows[:, :2] - [0.3, -1.0]), axis=0), [0.2, 0.5], rtol=1e-6)
    np.testing.assert_allclose(rows[0], [0.3, -1.0, 0, 0, 0, 0], atol=1e-12)


def test_path_fits_ranges_and_torques(robot):
    path = robot_rules.joint_path(robot)
    rows = path.rows(jax.random.key(0), 400, 0.01, 6)
    torques = jax.vmap(robot.body.inverse_dynamics)(*jnp.split(rows, 3, axis=1))
    assert np.all(np.abs(torques) <= 0.6 * np.array(robot.torque_limits) + 1e-9)
    narrow = models.RobotArm(robot.body, robot.torque_limits, low=-0.1, high=0.1)
    np.testing.assert_allclose(robot_rules.joint_path(narrow).size, 0.04)
    with pytest.raises(st.ArgumentError, match="motors that can hold the robot at home"):
        robot_rules.joint_path(models.RobotArm(robot.body, (1.0, 1.0), home=(1.5, 0.0)))


def test_rated_torques_ignore_limits_that_no_motor_has(robot):
    strong = models.RobotArm(robot.body, 1e4, home=robot.home)
    assert np.all(np.array(strong.rated_torques) < 100)
    assert strong.torque_limits == (1e4, 1e4)


def test_rules_can_be_replaced(robot):
    loop = st.Loop(robot, policies.ComputedTorque(frequency=12.0, damping=[0.7, 0.9], u_max=5.0))
    gains = loop.gains(loop.theta)
    np.testing.assert_allclose(gains["frequency"], 12.0)
    np.testing.assert_allclose(gains["damping"], [0.7, 0.9])
    np.testing.assert_allclose(loop.policy.limits[1], 5.0)
    with pytest.raises(st.ArgumentError, match="without numbers"):
        st.Loop(models.FirstOrder(gain=1.0, time_constant=1.0, dt=0.1), policies.ComputedTorque())


@pytest.mark.slow
def test_loop_is_stable_and_its_gradients_are_right(robot):
    loop = st.Loop(robot, policies.ComputedTorque())
    margins = loop.margins()
    assert margins.is_stable
    assert margins.gain_margin > 2
    t = loop._first_context()._replace(reference=jnp.array([0.65, 0.75, 0.1, -0.1, 0.5, 0.2]))
    memory = {"u": jnp.zeros(2)}
    found = st.check_gradient(
        loop.system,
        loop.x[None] + 0.01,
        loop.theta,
        loop.a_hat + 0.1,
        jax.tree.map(lambda v: v[None], t),
        memory=memory,
    )
    assert found.ok


@pytest.mark.parametrize("kind", [policies.ComputedTorque, policies.GravityPD, policies.VelocityCascade])
def test_policies_follow_the_path_of_the_model(robot, kind):
    """On the exact model, without noise: the error stays a small part of the swing."""
    loop = st.Loop(robot, kind())
    rows = loop.reference.rows(jax.random.key(0), 2000, robot.dt, 6)
    system = loop.system

    @jax.jit
    def run(rows):
        def step(z, wanted):
            t = st.LoopContext(jnp.zeros((), jnp.int32), wanted)
            z, _ = system.step(z, loop.theta, loop.a_hat, t)
            return z, system.split(z)[0]

        return jax.lax.scan(step, system.first(loop.x), rows)[1]

    error = np.asarray(run(rows))[:-1, :2] - np.asarray(rows)[1:, :2]
    assert np.max(np.abs(error)) < {"ComputedTorque": 0.01, "GravityPD": 0.06, "VelocityCascade": 0.1}[kind.__name__]


def test_cost_of_a_robot(robot):
    cost = robot_rules.joint_cost(robot)
    assert isinstance(cost, st.JointTracking)
    assert isinstance(cost, st.AbstractStateCost)
    x = robot.x0
    reference = jnp.concatenate([x[:2] + 0.02, jnp.zeros(4)])
    np.testing.assert_allclose(cost(x, x[4:], reference), 1.0, rtol=1e-6)


def test_tool_path_reaches_its_points(robot):
    turn = np.linspace(0, 2 * np.pi, 100, endpoint=False)[:, None]
    home = np.asarray(robot.body.tool_pose(jnp.array(robot.home))[0])
    circle = home + 0.05 * np.hstack([np.cos(turn) - 1, 0 * turn, np.sin(turn)])
    path = robot_rules.tool_path(robot, circle)
    found = jax.vmap(lambda q: robot.body.tool_pose(q)[0])(path.values[:, :2])
    np.testing.assert_allclose(found, circle, atol=1e-5)
    with pytest.raises(st.ArgumentError, match="points within the reach"):
        robot_rules.tool_path(robot, circle + 5.0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_the_torque_limit_has_a_sharp_knee(dtype):
    """A torque below the one that the weight needs disturbs the arm, so the limit must not be felt far below it."""

    def limited(share):
        limit = jnp.asarray([2.0, 50.0], dtype)
        return np.asarray(soft_limit(jnp.asarray(share, dtype) * limit, limit) / limit)

    np.testing.assert_allclose(limited(0.75), 0.75, rtol=0.013)  # 1.2 % below
    np.testing.assert_allclose(limited(-1.0), -(2 ** (-1 / 8)), rtol=1e-5)
    np.testing.assert_allclose(limited(1e30), 1.0, rtol=1e-5)  # the eighth power does not overflow
