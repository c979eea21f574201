"""Quadrotors from MJCF texts, against MuJoCo's own dynamics; and files that are refused."""

# pyright: reportAttributeAccessIssue=false

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import selftune as st
from selftune import models, quadrotor_rules
from selftune.foundation.rotations import rotation_matrix
from selftune.robots.quadrotor_plant import rotation_vector

LAG = 'dyntype="filterexact" dynprm="0.03"'
PLACES = ((0.14, -0.18, 0.08), (-0.14, -0.18, 0.05), (-0.14, 0.18, 0.05), (0.14, 0.18, 0.08))


def drone_text(inside="", motors=None, mass=1.3):
    sites = "".join(f'<site name="r{i}" pos="{x} {y} {z}"/>' for i, (x, y, z) in enumerate(PLACES))
    motors = motors or "".join(
        f'<general name="m{i}" site="r{i}" gear="0 0 2 0 0 {s * 0.04}" ctrlrange="0 5" {LAG}/>'
        for i, s in enumerate((1, -1, 1, -1))
    )
    return f"""<mujoco model="tilted mass"><option gravity="0 0 -9.7"/>
      <asset><mesh name="hull" file="missing.obj"/></asset><worldbody><body name="drone" pos="1 2 3"><freejoint/>
      <geom type="box" size="0.1 0.03 0.02" pos="0.04 0.01 0.02" mass="{mass / 2}"/>
      <geom type="mesh" mesh="hull" mass="0"/>
      <body pos="-0.03 0 0.05" euler="10 20 30"><geom type="box" size="0.05 0.1 0.02" mass="{mass / 2}"/>{inside}</body>
      {sites}</body></worldbody><actuator>{motors}</actuator></mujoco>"""


def read(folder, text, **options):
    path = folder / "drone.xml"
    path.write_text(text)
    return models.Quadrotor.from_file(path, **options)


def test_accelerations_are_those_of_mujoco(tmp_path):
    """A center of mass beside the body's origin, a welded body, products of inertia, a mesh that is missing."""
    text = drone_text()
    drone = read(tmp_path, text)
    assert (drone.name, drone.lag, drone.gravity, drone.notes) == ("tilted mass", 0.03, 9.7, ())
    model = mujoco.MjModel.from_xml_string(text.replace('<geom type="mesh" mesh="hull" mass="0"/>', "").replace(
        '<mesh name="hull" file="missing.obj"/>', ""
    ))  # fmt: skip
    data = mujoco.MjData(model)
    assert np.isclose(drone.mass, model.body_subtreemass[1])
    rng = np.random.default_rng(0)
    for _ in range(5):
        mujoco.mj_resetData(model, data)
        quaternion, rate, commands = rng.normal(size=4), rng.normal(size=3), rng.uniform(0, 5, 4)
        data.qpos[3:7], data.qvel[3:], data.act[:] = quaternion / np.linalg.norm(quaternion), rate, commands
        mujoco.mj_forward(model, data)
        r = jnp.asarray(rotation_vector(data.qpos[3:7]))
        R = np.asarray(rotation_matrix(r))
        linear, angular = drone.accelerations(r, jnp.asarray(rate), jnp.array(drone.wrench) @ commands, jnp.zeros(3))
        np.testing.assert_allclose(angular, data.qacc[3:], rtol=1e-9, atol=1e-9)
        # MuJoCo has the acceleration of the body's origin, the model that of the center of mass.
        away, spin, turning = data.subtree_com[1] - data.xpos[1], R @ rate, R @ data.qacc[3:]
        wanted = data.qacc[:3] + np.cross(turning, away) + np.cross(spin, np.cross(spin, away))
        np.testing.assert_allclose(linear, wanted, rtol=1e-9, atol=1e-9)


def test_limits_are_those_of_the_rotors():
    x, y = [0.1, -0.1, -0.1, 0.1], [0.1, 0.1, -0.1, -0.1]
    wrench = [[1.0] * 4, y, [-one for one in x], [-0.02, 0.02, -0.02, 0.02]]
    drone = models.Quadrotor(1.0, (0.01, 0.01, 0.02), wrench, rotor_high=4.0, gravity=10.0)
    assert np.isclose(drone.thrust_limit, 16.0)
    # Hovering takes 2.5 N of each rotor: 1.5 N more and less at each.
    np.testing.assert_allclose(drone.torque_limits, [4 * 0.1 * 1.5, 4 * 0.1 * 1.5, 4 * 0.02 * 1.5])
    u = np.array([11.0, 0.1, -0.2, 0.03])
    np.testing.assert_allclose(np.array(drone.wrench) @ drone.rotor_commands(u), u)
    assert drone.rotor_commands([100.0, 0.0, 0.0, 0.0]).max() == 4.0
    assert np.isclose(drone.payload_limit, 0.8 * 0.6)


def test_thrust_and_torques_as_actuators(tmp_path):
    """As in files of the Crazyflie: the actuators are thrust and torques, some with a negative sign."""
    gears = ("0 0 1 0 0 0", "0 0 0 -1 0 0", "0 0 0 0 -1 0", "0 0 0 0 0 -1")
    ranges = ("0 16", *["-0.001 0.001"] * 3)
    motors = "".join(
        f'<motor site="r0" gear="{gear}" ctrlrange="{limits}"/>' for gear, limits in zip(gears, ranges, strict=True)
    )
    text = drone_text('<body><joint name="prop" axis="0 0 1"/><geom size="0.01" mass="0.01"/></body>', motors)
    with pytest.raises(st.ArgumentError, match="rotors that lift more than the weight"):
        read(tmp_path, text)  # the force at rotor 0 turns the body, and the torques are too weak against that
    drone = read(tmp_path, text, rotor_limits=([0.0, -5.0, -5.0, -5.0], [30.0, 5.0, 5.0, 5.0]))
    assert drone.notes == ("prop: joints inside a flying body are fixed.",)
    np.testing.assert_allclose(np.array(drone.wrench)[:, 1:], np.vstack([np.zeros(3), -np.eye(3)]), atol=1e-12)
    weak = models.Quadrotor(1.0, (0.01,) * 3, np.eye(4), rotor_low=[0, -1e-3, -1, -1], rotor_high=[20, 1e-3, 1, 1])
    assert weak.notes == ("The rotors turn the hovering body with only 0.1 rad/s² about one axis: check their limits.",)


ROTOR = '<motor site="r{i}" gear="{gear}" {limits}/>'


def motors(gears, limits='ctrlrange="0 5"'):
    return "".join(ROTOR.format(i=i, gear=gear, limits=limits) for i, gear in enumerate(gears))


SPINS = ["0 0 2 0 0 0.04", "0 0 2 0 0 -0.04"] * 2
SOLID = "<mujoco><worldbody><body>{joint}<geom size='0.1'/></body></worldbody></mujoco>"
REFUSED = {
    "arm": (SOLID.format(joint="<joint name='a'/>"), "no free joint"),
    "ball": (SOLID.format(joint="<freejoint/>"), "0 free bodies with actuators"),
    "no limits": (drone_text(motors=motors(SPINS, "")), "the file gives no ctrlrange for actuator1"),
    "weak": (drone_text(motors=motors(SPINS), mass=9.0), "rotors that lift more than the weight"),
    "same spin": (drone_text(motors=motors(["0 0 2 0 0 0"] * 4)), "a matrix of rank 3; .*diagonally opposite"),
    "tilted": (drone_text(motors=motors(["0 1 2 0 0 0.04", *SPINS[1:]])), "a sideways force of 'actuator1'"),
    "servo": (
        drone_text(motors=motors(SPINS[:3]) + f'<general site="r3" gear="{SPINS[3]}" biastype="affine" biasprm="1"/>'),
        "another kind at 'actuator4'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_files(tmp_path, name):
    text, match = REFUSED[name]
    with pytest.raises(st.ArgumentError, match=match):
        read(tmp_path, text)


def test_refused_arguments(tmp_path):
    good = dict(mass=1.0, inertia=(0.01,) * 3, wrench=np.eye(4), rotor_low=[0, -1, -1, -1], rotor_high=[20, 1, 1, 1])
    models.Quadrotor(**good)
    for change, match in (
        (dict(mass=-1.0), "mass: expected"),
        (dict(inertia=(0.01, 0.01)), "inertia: expected three moments"),
        (dict(inertia=(0.01, 0.01, -0.01)), "inertia: expected three moments"),
        (dict(wrench=np.eye(3)), r"wrench: expected a \(4, k\) matrix"),
        (dict(rotor_low=30.0), "rotor_low: expected less than rotor_high"),
        (dict(rotor_high=[1.0, 2.0]), "rotor_high"),
        (dict(lag=0.0), "lag: expected"),
    ):
        with pytest.raises(st.ArgumentError, match=match):
            models.Quadrotor(**(good | change))
    with pytest.raises(st.ArgumentError, match=r"rotor_limits: expected a pair \(low, high\)"):
        read(tmp_path, drone_text(), rotor_limits=3.0)
    arm = tmp_path / "drone.xml"
    with pytest.raises(st.ArgumentError, match=r"read a quadrotor with models.Quadrotor.from_file"):
        models.RobotArm.from_file(arm)


def test_loop_by_rule(tmp_path):
    drone = read(tmp_path, drone_text(), lag=0.024)
    loop = st.Loop(drone, quadrotor_rules.geometric(drone))
    gains = loop.gains(loop.theta)
    tilt = float(gains["attitude_frequency"][0])
    angular = np.array(drone.torque_limits) / np.diag(np.array(drone.inertia))
    assert np.isclose(tilt, min(0.85 / 0.027, np.sqrt(0.5 * min(angular[:2]) / 0.1)))
    np.testing.assert_allclose(gains["frequency"], tilt / 7)
    assert loop.constraint.contains(loop.theta)
    assert loop.guard().safe_u == (drone.weight, 0.0, 0.0, 0.0)
    hovering = jnp.concatenate([drone.x0, jnp.zeros(0)])
    u, _ = loop.policy(
        st.policies.Inputs.of(output=[0.0] * 6, reference=[0.0] * 12, x=hovering, f=[0.0] * 3, dt=0.002),
        None,
        loop.theta,
    )
    np.testing.assert_allclose(u, drone.x0[12:], rtol=1e-3, atol=1e-9)
    weak = models.Quadrotor(1.0, (0.01,) * 3, np.eye(4), rotor_low=[0, -1, -1, -1], rotor_high=[9.9, 1, 1, 1])
    assert quadrotor_rules.flight_path(weak).size[0] < 0.2
    none = models.Quadrotor(1.0, (0.01,) * 3, np.eye(4), rotor_low=[0, -1e-9, -1, -1], rotor_high=[20, 1e-9, 1, 1])
    with pytest.raises(st.ArgumentError, match="rotors that allow a motion beside hovering"):
        quadrotor_rules.flight_path(none)
