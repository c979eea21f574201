"""Robots that other people wrote, against MuJoCo and Pinocchio: `make test-robots-from-files` installs them."""

import importlib.util
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selftune import models

from .mujoco_oracle import Oracle

pytestmark = pytest.mark.slow

MJCF = {
    "robosuite": [f"models/assets/robots/{name}/robot.xml" for name in (
        "baxter", "iiwa", "jaco", "kinova3", "panda", "sawyer", "spot_arm", "tiago", "ur5e", "xarm7",
    )],
    "dm_control": ["suite/manipulator.xml", "suite/reacher.xml", "suite/finger.xml", "suite/ball_in_cup.xml"],
    "gymnasium_robotics": ["envs/assets/kitchen_franka/kitchen_assets/kitchen_env_model.xml"],
}  # fmt: skip
URDF = [
    "panda_description/urdf/panda.urdf",
    "ur_description/urdf/ur3_robot.urdf",
    "ur_description/urdf/ur5_gripper.urdf",
    "ur_description/urdf/ur10_robot.urdf",
    "kinova_description/robots/kinova.urdf",
    "xarm_description/urdf/xarm7.urdf",
    "z1_description/urdf/z1.urdf",
    "so_arm_description/urdf/so100.urdf",
    "talos_data/robots/talos_left_arm.urdf",
    "tiago_pro_description/robots/tiago_pro.urdf",
    "double_pendulum_description/urdf/double_pendulum.urdf",
    "asr_twodof_description/urdf/TwoDofs.urdf",
]
TOLERANCE = 1e-10
"""Rounding errors, relative to the largest entry."""


def folder(package):
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        if os.environ.get("SELFTUNE_NEEDS_ROBOTS"):
            pytest.fail(f"{package} is not installed")
        pytest.skip(f"{package} is not installed")
    return Path(found.submodule_search_locations[0])


def descriptions():
    # The files of example-robot-data lie beside the modules.
    return folder("pinocchio").parents[3] / "share/example-robot-data/robots"


def compare(path, robot, oracle):
    body = robot.body
    inverse, mass = jax.jit(body.inverse_dynamics), jax.jit(body.mass_matrix)
    for q, rate, acceleration in np.random.default_rng(0).normal(size=(3, 3, robot.joints)):
        wanted = oracle.at(q, rate, acceleration)
        size = max(1.0, np.abs(wanted.torque).max())
        found = inverse(*map(jnp.asarray, (q, rate, acceleration)))
        np.testing.assert_allclose(found, wanted.torque, atol=TOLERANCE * size, err_msg=str(path))
        scale = max(1.0, np.abs(wanted.mass_matrix).max())
        np.testing.assert_allclose(mass(jnp.asarray(q)), wanted.mass_matrix, atol=TOLERANCE * scale)


@pytest.mark.parametrize(("package", "file"), [(package, file) for package, files in MJCF.items() for file in files])
def test_mjcf(package, file):
    path = folder(package) / file
    robot = models.RobotArm.from_file(path, torque_limits=100.0)
    compare(path, robot, Oracle(path, robot))


@pytest.mark.parametrize("file", URDF)
def test_urdf(file):
    path = descriptions() / file
    robot = models.RobotArm.from_file(path, torque_limits=100.0)
    compare(path, robot, Oracle(path, robot))


@pytest.mark.parametrize("file", [file for file in URDF if "tiago" not in file])
def test_urdf_against_pinocchio(file):
    """Pinocchio reads the URDF itself: nothing of this comparison comes from MuJoCo."""
    pinocchio = pytest.importorskip("pinocchio")
    path = descriptions() / file
    robot = models.RobotArm.from_file(path, torque_limits=100.0)
    model = pinocchio.buildModelFromUrdf(str(path))
    names = [link.name for link in robot.body.links]
    fixed = [i for i in range(1, model.njoints) if model.names[i] not in names]
    rest = pinocchio.neutral(model)
    model = pinocchio.buildReducedModel(model, fixed, rest) if fixed else model
    data = model.createData()
    order = [names.index(name) for name in list(model.names)[1:]]
    body = robot.body.without_damping()
    for q, rate, acceleration in np.random.default_rng(0).normal(size=(3, 3, robot.joints)):
        place = []
        for i, joint in zip(order, list(model.joints)[1:], strict=True):  # a continuous joint has cosine and sine
            place += [q[i]] if joint.nq == 1 else [np.cos(q[i]), np.sin(q[i])]
        wanted = pinocchio.rnea(model, data, np.array(place), rate[order], acceleration[order])
        found = np.asarray(body.inverse_dynamics(*map(jnp.asarray, (q, rate, acceleration))))[order]
        armature = np.array([link.armature for link in body.links])[order] * acceleration[order]
        size = max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(found - armature, wanted, atol=TOLERANCE * size)
        M = np.asarray(pinocchio.crba(model, data, np.array(place)))
        M = np.triu(M) + np.triu(M, 1).T
        np.testing.assert_allclose(np.asarray(body.mass_matrix(jnp.asarray(q)))[np.ix_(order, order)], M, atol=1e-9)
