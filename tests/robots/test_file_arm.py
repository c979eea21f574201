"""The plant of a robot from a file agrees with the model where it should, and a robot tunes itself on it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selftune import models, robot_rules
from selftune.robots import file_tuning, file_tuning_page
from selftune.robots.file_arm_plant import FileArmPlant, Mismatch

from ..models import robot_texts

EXACT = Mismatch(heavier=(1.0, 1.0), viscous=(0.0, 0.0), dry=(0.0, 0.0), slower=1.0, delay=0, noise=0.0)


def load(folder, text, **options):
    path = folder / "robot.xml"
    path.write_text(text)
    return models.RobotArm.from_file(path, **options)


@pytest.mark.parametrize("text", [robot_texts.TWO_LINKS, robot_texts.NESTED])
def test_plant_without_mismatch_is_the_model(tmp_path, text):
    """Over 0.2 s with the same commands: the rest is the difference of the integrators."""
    robot = load(tmp_path, text)
    plant = FileArmPlant(robot, 0, payload=(0.0, 0.0), mismatch=EXACT)
    step = jax.jit(lambda x, u: robot.dynamics(x, u, jnp.zeros(robot.joints), 0))
    x, measured = robot.x0, plant.reset()
    np.testing.assert_allclose(measured, x, atol=1e-9)
    for t in range(100):
        u = np.array(robot.hold) + 0.1 * np.array(robot.rated_torques) * np.sin(0.05 * t)
        x, measured = step(x, jnp.asarray(u)), plant.step(u)
    moved = np.abs(measured - np.asarray(robot.x0)).max()
    np.testing.assert_allclose(measured, x, atol=0.02 * moved)


def test_payload_is_a_mass_at_the_tool(tmp_path):
    robot = load(tmp_path, robot_texts.TWO_LINKS, tool="tool")
    plant = FileArmPlant(robot, 0, payload=(0.0, 2.0), payload_step=0, mismatch=EXACT)
    plant.step(np.array(robot.hold))
    q = jnp.array(robot.home)
    zero = jnp.zeros(2)
    plant.data.qpos[:], plant.data.qvel[:] = robot.home, 0.0
    import mujoco

    mujoco.mj_forward(plant.model, plant.data)  # type: ignore[attr-defined]
    wanted = robot.body.gravity_torque(q) + 2.0 * robot.body.payload_torque(q, zero, zero)
    np.testing.assert_allclose(plant.data.qfrc_bias, wanted, atol=1e-8)


def test_the_seed_decides(tmp_path):
    robot = load(tmp_path, robot_texts.TWO_LINKS)
    first, again, other = (FileArmPlant(robot, seed) for seed in (1, 1, 2))
    u = np.array(robot.hold)
    np.testing.assert_array_equal(first.step(u), again.step(u))
    assert not np.array_equal(first.model.body_mass, other.model.body_mass)
    assert not first.has_crashed(np.concatenate([robot.home, np.zeros(4)]))
    assert first.has_crashed(np.full(6, 9.0))


@pytest.mark.slow
def test_a_robot_tunes_itself(tmp_path):
    """From a quarter of the gains: lower cost, and a payload near the true one."""
    robot = load(tmp_path, robot_texts.TWO_LINKS, tool="tool")
    tuned = file_tuning.tune(robot, seconds=12.0, with_commissioning=False)
    assert not tuned.run.crashed
    # The gains alone: both laps have the heavy payload and the learned parameters.
    assert tuned.after.cost.mean() < 0.7 * tuned.before.cost.mean()
    np.testing.assert_allclose(tuned.before.payload, tuned.after.payload)
    robust = tuned.robustness
    assert robust is not None
    assert robust.tuned == tuned.loop.margins(tuned.run.last_theta)
    small = robust.tuned.gain_margin < 2 or robust.tuned.phase_margin < 30
    assert bool(robust.faults) == small == (robust.safer is not None)
    if small:
        assert robust.safer_margins.gain_margin >= 2
        assert robust.safer_margins.phase_margin >= 30
    found = tuned.payload_estimates()
    light, heavy = robot_rules.payloads(robot)
    assert (found["light truth"], found["heavy truth"]) == (light, heavy)
    # The links are up to 12 % heavier than the model says, which also looks like a payload.
    assert abs((found["heavy estimate"] - found["light estimate"]) / (heavy - light) - 1) < 0.3
    page = file_tuning_page.write(tuned, tmp_path / "out", with_video=False)
    text = page.read_text()
    assert "shoulder" in text
    assert "the payload that the estimator finds" in text
    import tomllib

    gains = tomllib.loads((tmp_path / "out" / "tuned.toml").read_text())
    assert ("gains_with_margins" in gains) == small == ("Small margins" in text)
    np.testing.assert_allclose(gains["gains"]["frequency"], tuned.run.theta["frequency"][-1], rtol=1e-5)
    assert gains["robot"]["joints"] == ["shoulder", "elbow"]
