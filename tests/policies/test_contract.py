"""Every public policy keeps the contract of `selftune.testing`."""

import jax.numpy as jnp
import pytest

import selftune as st
from selftune import models, policies, robot_rules, testing

pytestmark = pytest.mark.versions

LIMITS = dict(u_min=-3.0, u_max=3.0)


def torque(q, rate, acceleration):
    return 2.0 * acceleration + jnp.sin(q) + 0.1 * rate**2


ROBOT = models.RobotArm(
    models.RigidBody([models.Link("shoulder", axis=(0.0, -1.0, 0.0), mass=2.0, center=(0.0, 0.0, -0.3), damping=0.2)]),
    torque_limits=20.0,
)
JOINT = {"x": [0.1, 0.2, 0.3], "reference": [0.3, 0.1, 0.2], "output": [0.1, 0.2], "f": [0.1]}

POLICIES = {
    "P": (policies.PID(2.0), {}),
    "I": (policies.PID(0.0, 2.0, **LIMITS), {}),
    "PI": (policies.PID(2.0, 1.0, **LIMITS), {}),
    "PID": (policies.PID(2.0, 1.0, 0.1, u_min=-1.0, u_max=1.0, rate_limit=30.0), {}),
    "reverse": (policies.PID(-2.0, -1.0, -0.1, c=1.0, feedforward=0.5, compensation=1.0), {"f": [0.3]}),
    "standard": (policies.PID.standard(2.0, 4.0, 0.5, b=0.5, tune_filter=True, anti_windup=policies.Clamping()), {}),
    "tracking time": (
        policies.PID(2.0, 1.0, **LIMITS, anti_windup=policies.BackCalculation(0.2, tunable=True)),
        {"reference": [4.0]},
    ),
    "axes": (policies.PID([2.0, -3.0], [1.0, -0.5], [0.1, -0.2], derivative_filter=[0.01, 0.02], u_max=9.0), {}),
    "Cascade": (
        policies.Cascade(
            policies.PID(20.0, 1.0, u_min=-5.0, u_max=5.0, rate_limit=100.0),
            policies.PID(0.5, 10.0, 0.01, u_min=-8.0, u_max=8.0),
            policies.PID(1.0, 200.0, u_min=-24.0, u_max=24.0),
            states=(1, 2),
            every=(2, 1, 1),
        ),
        {"x": [0.0, 0.1, 0.2]},
    ),
    "StateFeedback": (policies.StateFeedback([[2.0, 0.5], [0.0, -1.0]], u_max=7.0), {"x": [0.1, 0.2]}),
    "integral": (
        policies.StateFeedback([[2.0, 0.5]], integral=[[3.0]], feedforward=[[2.0]], compensation=1.0, **LIMITS),
        {"x": [0.1, 0.2], "f": [0.1]},
    ),
    "LeadLag": (policies.LeadLag(2.0, 0.5, 0.05, u_max=10.0), {}),
    "Filtered": (
        policies.Filtered(
            policies.PID(2.0, 1.0, 0.1, **LIMITS),
            output=policies.LowPass(0.02),
            reference=policies.LowPass(0.1),
            control=policies.Notch(30.0),
        ),
        {},
    ),
    "ComputedTorque": (
        policies.ComputedTorque(torque, 2, frequency=3.0, u_max=20.0),
        {"x": [0.1, 0.2, 0.3, 0.4], "reference": [0.3, 0.1, 0.2, 0.2, 0.0, 0.1]},
    ),
    "ComputedTorque of a robot": (robot_rules.fitted_policy(policies.ComputedTorque(), ROBOT), JOINT),
    "GravityPD": (robot_rules.fitted_policy(policies.GravityPD(), ROBOT), JOINT),
    "VelocityCascade": (robot_rules.fitted_policy(policies.VelocityCascade(), ROBOT), JOINT),
    "Geometric": (
        policies.Geometric(0.032, (16.6e-6, 16.7e-6, 29.3e-6)),
        {"x": [0.1] * 12, "reference": [0.2] * 12, "f": [0.01] * 3, "output": [0.1] * 3},
    ),
}


def test_every_public_policy_is_here():
    leaves = {
        name
        for name, kind in vars(policies).items()
        if isinstance(kind, type) and issubclass(kind, policies.AbstractPolicy)
    }
    assert {type(policy).__name__ for policy, _ in POLICIES.values()} == leaves - {
        "AbstractPolicy",
        "AbstractRobotPolicy",
    }


@pytest.mark.parametrize("name", POLICIES)
def test_policy(name):
    policy, inputs = POLICIES[name]
    testing.check_policy(policy, **inputs)


ROBOT_POLICIES = {
    policies.ComputedTorque: ("frequency", "damping", "u_max"),
    policies.GravityPD: ("frequency", "damping", "u_max"),
    policies.VelocityCascade: ("position_gain", "velocity_gain", "integral_time"),
}


@pytest.mark.parametrize("kind", ROBOT_POLICIES)
def test_policies_of_robots_refuse_wrong_settings(kind):
    """At once, where the user writes them; the number of joints is known only in a loop."""
    for name in ROBOT_POLICIES[kind]:
        for value in (-1.0, 0.0, float("nan"), [1.0, -2.0], "fast", [[1.0]]):
            with pytest.raises(st.ArgumentError, match=f"^{name}: expected"):
                kind(**{name: value})
        with pytest.raises(st.ArgumentError, match=f"^{name}: expected"):
            robot_rules.fitted_policy(kind(**{name: [1.0, 2.0]}), ROBOT)
    with pytest.raises(st.ArgumentError, match=r"without numbers"):
        _ = kind().limits
