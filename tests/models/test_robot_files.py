"""Robots from MJCF and URDF texts, and files that are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import models, policies
from selftune.problem.loop_context import LoopContext

from . import robot_texts
from .mujoco_oracle import Oracle


def save(folder, text, name="robot.xml"):
    path = folder / name
    path.write_text(text)
    return path


def mjcf(inside, after=""):
    body = f'<body name="arm">{inside}<geom type="sphere" size="0.1" pos="0 0 0.3"/></body>'
    return f"<mujoco><worldbody>{body}</worldbody>{after}</mujoco>"


JOINT = '<joint name="a" axis="0 1 0"/>'
MOTOR = '<actuator><motor joint="a" ctrllimited="true" ctrlrange="-5 5"/></actuator>'


def test_limits_of_all_kinds_of_actuators(tmp_path):
    robot = models.RobotArm.from_file(save(tmp_path, robot_texts.NESTED))
    assert [link.name for link in robot.body.links] == ["turn", "push", "swing", "side"]
    assert robot.torque_limits == (40.0, 40.0, 9.0, 5.0)  # forcerange; gear · ctrlrange; the smaller; forcerange
    assert robot.lag == 0.012
    np.testing.assert_allclose(robot.low, [-np.radians(120), -0.2, -np.radians(90), -np.inf])
    assert robot.body.gravity == (0.5, -0.3, -9.0)


def test_urdf(tmp_path):
    path = save(tmp_path, robot_texts.ARM_URDF, "arm.urdf")
    robot = models.RobotArm.from_file(path, tool="tool0")
    assert robot.name == "planar"
    assert robot.torque_limits == (30.0, 15.0)
    assert robot.high == (2.0, np.inf)
    assert robot.notes == (
        "left, right are coupled and are fixed at home.",
        "The dry friction of the file is not in the model: the estimator learns it.",
    )
    assert np.isclose(sum(link.mass for link in robot.body.links), 1.5 + 0.9 + 0.1)
    position, _ = robot.body.tool_pose(jnp.zeros(2))
    np.testing.assert_allclose(position, [0, 0, 0.5 - 0.4 - 0.3], atol=1e-12)
    q, rate, acceleration = np.random.default_rng(0).normal(size=(3, 2))
    wanted = Oracle(path, robot).at(q, rate, acceleration)
    found = robot.body.inverse_dynamics(*map(jnp.asarray, (q, rate, acceleration)))
    np.testing.assert_allclose(found, wanted.torque, atol=1e-10)


def test_keyframe_is_home(tmp_path):
    robot = models.RobotArm.from_file(save(tmp_path, robot_texts.TWO_LINKS))
    assert robot.home == (0.6, 0.8)
    np.testing.assert_allclose(robot.x0[4:], robot.body.gravity_torque(jnp.array(robot.home)), atol=1e-12)


def test_home_is_inside_the_range(tmp_path):
    path = save(tmp_path, mjcf('<joint name="a" axis="0 1 0" range="20 100"/>', MOTOR))
    assert np.isclose(models.RobotArm.from_file(path).home[0], np.radians(40))


def test_include_and_gravity_off(tmp_path):
    save(tmp_path, f"<mujocoinclude>{JOINT}</mujocoinclude>", "part.xml")
    text = mjcf('<include file="part.xml"/>', '<option><flag gravity="disable"/></option>' + MOTOR)
    robot = models.RobotArm.from_file(save(tmp_path, text))
    assert robot.body.gravity == (0.0, 0.0, 0.0)
    assert robot.hold == (0.0,)
    assert robot.rated_torques[0] > 0


def test_passive_joints_hands_and_objects(tmp_path):
    finger = (
        '<body pos="0 {y} 0.1"><joint name="finger{y}" type="slide" axis="0 1 0"/><geom size="0.01" mass="0.1"/></body>'
    )
    chain, close = "", ""
    for name in "abc":
        chain += f'<body pos="0 0 0.2"><joint name="{name}" axis="0 1 0"/><geom size="0.02" pos="0 0 0.1" mass="1"/>'
        close += "</body>"
    hand = finger.format(y=1) + finger.format(y=-1)
    motors = "".join(f'<motor joint="{n}" ctrlrange="-5 5"/>' for n in ("a", "b", "c", "finger1", "finger-1"))
    door = '<body pos="1 0 0"><joint name="door"/><geom size="0.1"/></body>'
    cube = '<body name="cube" pos="2 0 0"><freejoint/><geom size="0.1"/></body>'
    text = f"<mujoco><worldbody>{chain}{hand}{close}{door}{cube}</worldbody><actuator>{motors}</actuator></mujoco>"
    path = save(tmp_path, text)
    robot = models.RobotArm.from_file(path)
    assert [link.name for link in robot.body.links] == ["a", "b", "c"]
    assert robot.notes == (
        "The free body 'cube' is left out.",
        "door has no actuator and is fixed at home.",
        "finger1, finger-1 belong to a hand and are fixed at home.",
    )
    chosen = models.RobotArm.from_file(path, joints=("a", "b", "finger1"))
    assert [link.name for link in chosen.body.links] == ["a", "b", "finger1"]
    assert models.RobotArm.from_file(path, fixed=("b",)).joints == 2


def test_missing_mesh(tmp_path):
    asset = '<asset><mesh name="shape" file="missing.stl"/></asset>'
    inertial = '<inertial pos="0 0 0.3" mass="2" diaginertia="0.1 0.1 0.1"/>'
    shaped = f'<body>{JOINT}{inertial}<geom type="mesh" mesh="shape"/></body>'
    text = f"<mujoco>{asset}<worldbody>{shaped}</worldbody>{MOTOR}</mujoco>"
    assert models.RobotArm.from_file(save(tmp_path, text)).body.links[0].mass == 2.0
    without = text.replace(inertial, "")
    with pytest.raises(st.ArgumentError, match="takes its inertia from this mesh"):
        models.RobotArm.from_file(save(tmp_path, without))


LOOP = '<equality><connect body1="arm" anchor="0 0 0.2"/></equality>'
REFUSED = {
    "no joints": (mjcf(""), "at least one hinge or slide joint"),
    "floating": (mjcf('<freejoint/><body pos="0 0 1">' + JOINT + '<geom size="0.1"/></body>'), "floating base"),
    "ball": (mjcf('<joint name="b" type="ball"/>'), r"a ball joint, 'b'; fix it with fixed=\('b',\)"),
    "closed": (mjcf(JOINT, MOTOR + LOOP), "closed chain"),
    "no limits": (mjcf(JOINT), "the file gives no limit for a"),
    "underactuated": (
        mjcf('<joint name="p"/><body pos="0 0 1">' + JOINT + '<geom size="0.1"/></body>', MOTOR),
        "no actuator at 'p', which carries 'a'",
    ),
    "schema": ("<mujoco><nonsense/></mujoco>", "MuJoCo says"),
    "not a robot": ("<html/>", "an XML file with <html>"),
    "part": ("<mujocoinclude/>", "a part that other files include"),
    "not XML": ("hello", "not XML"),
    "unknown encoding": ('<?xml version="1.0" encoding="nonsense"?><mujoco/>', "not XML"),
    "only an object": (mjcf("<freejoint/>"), "only free bodies"),
    "missing include": (mjcf(JOINT, '<include file="gone.xml"/>'), "put that file at its place"),
    "part of a model": (mjcf('<joint name="a" class="big"/>', MOTOR), "give that file"),
    "a driven gripper": (
        mjcf('<joint name="p"/><body pos="0 0 1"><joint name="q"/><geom size="0.1"/><body pos="0 0 1">' + JOINT
             + '<geom size="0.1"/></body></body>', MOTOR),
        "before 'a' are p, q",
    ),
    "infinite torque": (mjcf(JOINT, MOTOR.replace("-5 5", "-inf inf")), "the file gives no limit for a"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_files(tmp_path, name):
    text, match = REFUSED[name]
    with pytest.raises(st.ArgumentError, match=match):
        models.RobotArm.from_file(save(tmp_path, text))


XACRO = 'xmlns:xacro="http://www.ros.org/wiki/xacro"'


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("</robot>", "<xacro:hand/></robot>", "<xacro:hand>"),
        ('lower="-2"', 'lower="${-pi / 2}"', "pi / 2"),
    ],
)
def test_remains_of_xacro(tmp_path, before, after, found):
    """MuJoCo ignores unknown elements of a URDF, so parts of the robot would be missing."""
    text = robot_texts.ARM_URDF.replace('name="planar"', f'name="planar" {XACRO}')
    assert models.RobotArm.from_file(save(tmp_path, text, "whole.urdf")).joints == 2
    with pytest.raises(st.ArgumentError, match=f"{found}.*expand it first"):
        models.RobotArm.from_file(save(tmp_path, text.replace(before, after, 1), "part.urdf"))


def test_missing_height_field(tmp_path):
    """The ground is not part of the robot, and its file is not needed."""
    asset = '<asset><hfield name="ground" file="gone.png" size="1 1 1 1"/></asset>'
    text = mjcf(JOINT, MOTOR).replace("<worldbody>", asset + '<worldbody><geom type="hfield" hfield="ground"/>')
    assert models.RobotArm.from_file(save(tmp_path, text)).joints == 1


def test_odd_numbers_are_notes(tmp_path):
    """A range that is upside down, and lengths in millimetres."""
    text = robot_texts.ARM_URDF.replace('lower="-2" upper="2"', 'lower="2" upper="-2"').replace("0 0 -0.4", "0 0 -400")
    robot = models.RobotArm.from_file(save(tmp_path, text, "arm.urdf"))
    assert np.isinf(robot.low[0])
    assert any("shoulder has no range" in note for note in robot.notes)
    assert any("Are the lengths in metres" in note for note in robot.notes)


def test_inertias_in_another_unit(tmp_path):
    """Inertias in kg·mm²: a note, which the error of the path repeats if the motors cannot move the arm."""
    text = robot_texts.ARM_URDF
    for value in ("0.02", "0.021", "0.004", "0.001", "0.0005"):
        text = text.replace(f'="{value}"', f'="{float(value) * 1e6:g}"', 9)
    robot = models.RobotArm.from_file(save(tmp_path, text, "arm.urdf"))
    assert any("shoulder: a radius of gyration" in note and "kg·m²" in note for note in robot.notes)
    weak = models.RobotArm(robot.body, 0.5)
    with pytest.raises(st.ArgumentError, match=r"correct the masses and inertias\. .*kg·m²"):
        st.Loop(weak, policies.ComputedTorque())
    right = models.RobotArm.from_file(save(tmp_path, robot_texts.ARM_URDF, "arm.urdf"))
    assert not any("radius of gyration" in note for note in right.notes)


def test_a_scara_carries_kilograms(tmp_path):
    """Gravity loads only the slide; a light last joint does not limit the payload to grams. A slide counts in half of
    its travel."""
    text = """<mujoco><worldbody><body><joint name="one" axis="0 0 1"/><geom size="0.05" pos="0.2 0 0" mass="4"/>
      <body pos="0.3 0 0"><joint name="z" type="slide" axis="0 0 1" range="-0.2 0"/><geom size="0.03" mass="1"/>
      <body><joint name="roll" axis="0 0 1"/><geom size="0.02" mass="0.1"/><site name="tool" pos="0.01 0 0"/>
      </body></body></body></worldbody><actuator><motor joint="one" ctrlrange="-40 40"/>
      <motor joint="z" ctrlrange="-80 80"/><motor joint="roll" ctrlrange="-3 3"/></actuator></mujoco>"""
    robot = models.RobotArm.from_file(save(tmp_path, text), tool="tool")
    assert robot.lengths == (1.0, 0.1, 1.0)
    # Half of the rated torque, over the weight of a kilogram for the slide and 10 rad/s² of it for the hinges.
    one, slide, roll = (0.5 * rated for rated in robot.rated_torques)
    expected = min(one / (10 * 0.31**2), slide / 9.81, roll / (10 * 0.01**2))
    np.testing.assert_allclose(robot.payload_limit, expected, rtol=0.02)  # 9.81 or the file's own gravity
    assert robot.payload_limit > 0.2


def test_infinite_mass(tmp_path):
    text = robot_texts.ARM_URDF.replace('mass value="0.9"', 'mass value="inf"')
    with pytest.raises(st.ArgumentError, match=r"finite masses and inertias, got .*'fore' with inf kg"):
        models.RobotArm.from_file(save(tmp_path, text, "arm.urdf"))


def test_torque_limits_by_name(tmp_path):
    """Those that are named replace the file's, and the others stay."""
    path = save(tmp_path, robot_texts.TWO_LINKS)
    assert models.RobotArm.from_file(path, torque_limits={"elbow": 7}).torque_limits == (20.0, 7.0)
    with pytest.raises(
        st.ArgumentError, match=r"expected names among shoulder, elbow, got 'elbw' \(did you mean elbow"
    ):
        models.RobotArm.from_file(path, torque_limits={"elbw": 7})
    with pytest.raises(st.ArgumentError, match="torque_limits: expected a finite number > 0"):
        models.RobotArm.from_file(path, torque_limits={"elbow": -7})
    path = save(tmp_path, robot_texts.TWO_LINKS.partition("<actuator>")[0] + "</mujoco>")
    with pytest.raises(st.ArgumentError, match=r"no limit for elbow, got \{'shoulder': 9\}"):
        models.RobotArm.from_file(path, torque_limits={"shoulder": 9})


def test_refused_arguments(tmp_path):
    path = save(tmp_path, robot_texts.TWO_LINKS)
    for options, match in (
        (dict(joints=("shouldr",)), "did you mean shoulder"),
        (dict(fixed="elbow"), "fixed: expected a tuple of names"),
        (dict(tool="hand"), "tool: expected the name of a site or a body"),
        (dict(torque_limits=-1.0), "torque_limits: expected numbers > 0"),
        (dict(home=(9.0, 0.0)), "home: expected a position of shoulder between -2.5 and 2.5"),
        (dict(fixed=("shoulder", "elbow")), "at least one hinge or slide joint"),
    ):
        with pytest.raises(st.ArgumentError, match=match):
            models.RobotArm.from_file(path, **options)
    with pytest.raises(st.ArgumentError, match="no such file"):
        models.RobotArm.from_file(tmp_path / "missing.xml")
    with pytest.raises(st.ArgumentError, match="a folder"):
        models.RobotArm.from_file(tmp_path)
    with pytest.raises(st.ArgumentError, match="expand it first"):
        models.RobotArm.from_file(save(tmp_path, "<robot/>", "arm.urdf.xacro"))


def test_forward_dynamics_is_finite_for_much_damping(tmp_path):
    """A joint whose damping acts within a tenth of a period: the step of the model is stable."""
    robot = models.RobotArm.from_file(
        save(tmp_path, mjcf('<joint name="a" axis="0 1 0" damping="20000"/>', MOTOR)), dt=0.01
    )
    step = jax.jit(lambda x: robot.dynamics(x, jnp.array([1.0]), jnp.zeros(1), 0))
    x = robot.x0.at[1].set(1.0)
    for _ in range(20):
        x = step(x)
    assert abs(float(x[1])) < 0.1


def test_friction_keeps_the_step_of_a_light_joint_stable(tmp_path):
    """Friction acts against the wanted rate, so that a joint with hardly any inertia does not amplify its own rate."""
    light = '<joint name="a" axis="0 1 0"/><inertial pos="0 0 0" mass="0.01" diaginertia="1e-5 1e-5 1e-5"/>'
    text = f"<mujoco><worldbody><body>{light}</body></worldbody>{MOTOR}</mujoco>"
    robot = models.RobotArm(models.RobotArm.from_file(save(tmp_path, text)).body, 5.0, rated_torques=5.0)
    a = robot.a_constraint.high.at[3].set(0.0)  # the largest payload and friction, no offset

    def next_rate(rate, wanted):
        t = LoopContext(jnp.zeros((), int), jnp.array([0.0, wanted, 0.0]))
        x = robot.x0.at[1].set(rate)
        return robot.dynamics(x, jnp.zeros(1), robot.residual(x, a, t), t)[1]

    rate = jnp.array(0.02)
    assert abs(jax.grad(next_rate)(rate, 0.0)) < 1 + 1e-9
    assert next_rate(rate, 0.3) < next_rate(rate, 0.0) < next_rate(rate, -0.3)
