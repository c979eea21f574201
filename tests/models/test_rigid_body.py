"""Rigid bodies against MuJoCo, and against each other's inverse and finite differences."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import selftune as st
from selftune import models

from . import robot_texts
from .mujoco_oracle import Oracle

TOLERANCE = 1e-10
"""Rounding errors of about 10³ operations, relative to the largest torque."""


@pytest.fixture(scope="module")
def nested(tmp_path_factory):
    path = tmp_path_factory.mktemp("robots") / "nested.xml"
    path.write_text(robot_texts.NESTED)
    robot = models.RobotArm.from_file(path, tool="tcp")
    return robot, Oracle(path, robot)


def motions(count, joints, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 3, joints))


def test_dynamics_are_those_of_mujoco(nested):
    robot, oracle = nested
    body = robot.body
    inverse, mass, bias = (
        jax.jit(body.inverse_dynamics),
        jax.jit(body.mass_matrix),
        jax.jit(lambda q, rate: body.without_damping().inverse_dynamics(q, rate, jnp.zeros_like(q))),
    )
    spring = np.array([link.stiffness for link in body.links]), np.array([link.rest for link in body.links])
    for q, rate, acceleration in motions(5, robot.joints):
        wanted = oracle.at(q, rate, acceleration)
        size = np.abs(wanted.torque).max()
        np.testing.assert_allclose(
            inverse(*map(jnp.asarray, (q, rate, acceleration))), wanted.torque, atol=TOLERANCE * size
        )
        np.testing.assert_allclose(mass(jnp.asarray(q)), wanted.mass_matrix, atol=TOLERANCE)
        # mj_rne has neither damping nor springs.
        found = bias(jnp.asarray(q), jnp.asarray(rate)) - spring[0] * (q - spring[1])
        np.testing.assert_allclose(found, wanted.bias, atol=TOLERANCE * size)


def test_forward_dynamics_inverts_the_inverse(nested):
    body = nested[0].body
    q, rate, torque = map(jnp.asarray, motions(1, body.joints)[0])
    acceleration = jax.jit(body.forward_dynamics)(q, rate, torque)
    np.testing.assert_allclose(jax.jit(body.inverse_dynamics)(q, rate, acceleration), torque, atol=1e-9)


def test_derivative_of_the_forward_dynamics(nested):
    body = nested[0].body
    q, rate, torque = map(jnp.asarray, motions(1, body.joints, seed=1)[0])
    change = tuple(map(jnp.asarray, motions(1, body.joints, seed=2)[0]))
    forward = jax.jit(lambda *z: body.forward_dynamics(*z, step=0.01))
    exact = jax.jvp(forward, (q, rate, torque), change)[1]
    h = 1e-6
    ends = [forward(*(z + s * h * dz for z, dz in zip((q, rate, torque), change, strict=True))) for s in (1, -1)]
    np.testing.assert_allclose(exact, (ends[0] - ends[1]) / (2 * h), rtol=1e-6, atol=1e-6)


def test_tool_and_payload(nested):
    robot, oracle = nested
    body, model, data = robot.body, oracle.model, oracle.data
    q, rate, acceleration = motions(1, robot.joints, seed=3)[0]
    oracle.at(q, rate, acceleration)
    site = model.site("tcp").id
    linear, angular = np.zeros((2, 3, model.nv))
    mujoco.mj_jacSite(model, data, linear, angular, site)
    position, rotation = body.tool_pose(jnp.asarray(q))
    np.testing.assert_allclose(position, data.site_xpos[site], atol=1e-12)
    np.testing.assert_allclose(rotation, data.site_xmat[site].reshape(3, 3), atol=1e-12)
    jacobian = jax.jit(body.tool_jacobian)(jnp.asarray(q))
    np.testing.assert_allclose(jacobian, np.vstack([linear, angular])[:, oracle.dofs], atol=1e-12)
    # One kilogram more at the tool, as MuJoCo sees it.
    before = oracle.at(q, rate, acceleration).torque
    tip = model.body("tip").id
    mass, center = model.body_mass[tip], model.body_ipos[tip].copy()
    away = model.site_pos[site] - center
    model.body_mass[tip] = mass + 1.0
    model.body_ipos[tip] = center + away / (mass + 1.0)
    reduced = mass / (mass + 1.0)
    inertia = np.diag(model.body_inertia[tip]) + reduced * (away @ away * np.eye(3) - np.outer(away, away))
    moments, axes = np.linalg.eigh(inertia)
    axes *= np.sign(np.linalg.det(axes))
    model.body_inertia[tip] = moments
    mujoco.mju_mat2Quat(model.body_iquat[tip], axes.ravel())
    mujoco.mj_setConst(model, mujoco.MjData(model))
    after = oracle.at(q, rate, acceleration).torque
    found = jax.jit(body.payload_torque)(*map(jnp.asarray, (q, rate, acceleration)))
    np.testing.assert_allclose(found, after - before, atol=1e-8)  # a difference of two rounded results


def test_planar_arm_needs_few_operations():
    """Frames along the axes: the program has only the products that the geometry needs."""
    links = [models.Link("a", axis=(0.0, -1.0, 0.0), mass=1.0, center=(0.0, 0.0, -0.2))]
    links.append(
        models.Link("b", 0, position=(0.0, 0.0, -0.4), axis=(0.0, -1.0, 0.0), mass=1.0, center=(0.0, 0.0, -0.2))
    )
    body = models.RigidBody(links)
    program = jax.make_jaxpr(body.inverse_dynamics)(*jnp.ones((3, 2)))
    products = sum(str(equation.primitive) in ("mul", "add", "sub", "neg") for equation in program.eqns)
    # By hand: 2 inertias, 1 coupling with sin and cos, 2 Coriolis terms and 2 weights are about 30 operations.
    assert products <= 60


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(parent=0), "links: expected parents"),
        (dict(kind="ball"), "kind: expected 'hinge' or 'slide'"),
        (dict(axis=(0.0, 0.0, 0.0)), "axis: expected a direction"),
        (dict(inertia=((1.0, 0.5, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))), "inertia: expected a symmetric"),
        (dict(mass=-1.0), "mass: expected a finite number >= 0"),
        (dict(rotation=((1.0, 0.0, 0.0), (0.0, 2.0, 0.0), (0.0, 0.0, 1.0))), "rotation: expected a rotation"),
    ],
)
def test_bad_links(change, match):
    with pytest.raises(st.ArgumentError, match=match):
        models.RigidBody([models.Link("a", mass=1.0)._replace(**change)])


def test_bad_bodies():
    with pytest.raises(st.ArgumentError, match="links: expected at least one"):
        models.RigidBody([])
    with pytest.raises(st.ArgumentError, match="tool: expected the number of a link"):
        models.RigidBody([models.Link("a", mass=1.0)], tool=3)
