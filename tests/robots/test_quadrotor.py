"""The quadrotor: its model against MuJoCo, its plant's faults, and a flight that gets better."""

import subprocess
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import selftune as st
from selftune.foundation.rotations import rotation_matrix, rotation_rate
from selftune.robots import quadrotor, quadrotor_plant, render
from selftune.robots.base import drive

ROBOT = quadrotor.make()
SYSTEM = ROBOT.system
HOVER = np.array([quadrotor.MASS * quadrotor.GRAVITY, 0.0, 0.0, 0.0])


def commands(time):
    """Thrust and torques that turn and throw the body about, far from every limit; (4,)."""
    torques = np.array(quadrotor.MOMENTS) * np.array([30.0, -20.0, 10.0]) * np.sin(np.array([9.0, 7.0, 5.0]) * time)
    return np.concatenate([HOVER[:1] * (1 + 0.3 * np.sin(6.0 * time)), torques])


def by_mujoco(force, seconds):
    """The model's own body, integrated in steps of 50 µs, commands held for 2 ms."""
    model = mujoco.MjModel.from_xml_string(quadrotor_plant.xml(lag=quadrotor.LAG))
    model.opt.timestep = 5e-5
    data = mujoco.MjData(model)
    data.qvel[:3], data.act[:] = [0.5, -0.3, 0.2], HOVER[0] / 4
    data.xfrc_applied[1, :3] = force
    for i in range(round(seconds / 5e-5)):
        data.ctrl[:] = quadrotor_plant.MIXER @ commands(2e-3 * (i // 40))
        mujoco.mj_step(model, data)
    body = [data.qpos[:3], data.qvel[:3], quadrotor_plant.rotation_vector(data.qpos[3:7]), data.qvel[3:]]
    return np.concatenate([*body, quadrotor_plant.WRENCH @ data.act])


def by_model(force, seconds, dt):
    times = dt * np.arange(round(seconds / dt))
    held = np.array([commands(2e-3 * np.floor(time / 2e-3 + 1e-9)) for time in times])

    @jax.jit
    def rollout(x, held):
        return jax.lax.scan(lambda x, u: (quadrotor.dynamics(x, u, force, 0), None), x, held)[0]

    return np.asarray(rollout(np.concatenate([[0, 0, 0, 0.5, -0.3, 0.2], np.zeros(6), HOVER]), held))


def test_model_is_mujocos_free_body(monkeypatch):
    """To first order in the period: half of it, half the difference."""
    force, seconds = np.array([0.05, -0.08, 0.03]), 0.6
    truth = by_mujoco(force, seconds)
    assert np.linalg.norm(truth[6:9]) > 0.5
    scale = np.repeat([np.linalg.norm(truth[i : i + 3]) for i in (0, 3, 6, 9)], 3)
    errors = []
    for dt in (0.002, 0.001):
        monkeypatch.setattr(quadrotor, "DT", dt)
        x = by_model(force, seconds, dt)
        errors.append(np.linalg.norm((x - truth)[:12] / scale))
        np.testing.assert_allclose(x[12:], truth[12:], rtol=1e-9, atol=1e-12)  # the lag is exact
    assert errors[0] < 0.03
    assert 0.4 < errors[1] / errors[0] < 0.6


def test_reference_is_differentiated_right_and_repeats():
    t = np.arange(0, quadrotor.LAP, 37)
    at = jax.jit(jax.vmap(lambda t: jnp.stack(quadrotor.reference(t, jnp.float64))))
    now, before, after = at(t + 1), at(t), at(t + 2)
    slopes = (after - before) / (2 * quadrotor.DT)
    # Central differences: h²/6 times the third derivative, at most (2π/2 s)³ of each quantity's own size.
    scale = np.max(np.abs(now[:, 1:]), axis=(0, 2))
    np.testing.assert_allclose(slopes[:, :3] / scale[:, None], now[:, 1:] / scale[:, None], atol=1e-5)
    np.testing.assert_allclose(at(t + 5 * quadrotor.LAP), before, rtol=1e-12)


def test_smooth_where_it_hovers():
    jacobian = jax.jit(jax.jacfwd(SYSTEM.step, argnums=(0, 1)))
    for x in (np.zeros(16), quadrotor.start()):
        for leaf in jax.tree.leaves(jacobian(x, ROBOT.theta, ROBOT.a_hat, 0)):
            assert np.all(np.isfinite(leaf))


def test_float32_stays_float32():
    x, theta, a = (np.asarray(v, np.float32) for v in (quadrotor.start(), ROBOT.theta, ROBOT.a_hat))
    made = jax.eval_shape(SYSTEM.step, x, theta, a, 0)
    assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype(jnp.float32)}


def test_policy_stays_within_its_limits_and_the_guards_range():
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.normal(0, 3, (200, 6)), draw.normal(0, 1, (200, 3)), draw.normal(0, 5, (200, 7))], axis=1)
    u = jax.jit(jax.vmap(lambda x: SYSTEM.policy(x, ROBOT.theta, jnp.zeros(3), 0)))(x)
    assert np.all((u[:, 0] >= 0) & (u[:, 0] <= quadrotor.THRUST_LIMIT))
    guard = st.Guard(**ROBOT.guard)
    assert np.all(np.array(guard.u_low) < HOVER)
    assert np.all(np.array(guard.u_high) > HOVER)
    assert quadrotor.THRUST_LIMIT < 4 * quadrotor_plant.ROTOR_LIMIT


def test_rotation_vector():
    for r in (np.zeros(3), [1e-13, 0, 0], [0.3, -0.2, 0.9], [0.0, 3.1, 0.0]):
        x, y, z, w = Rotation.from_rotvec(r).as_quat()
        for sign in (1, -1):
            np.testing.assert_allclose(quadrotor_plant.rotation_vector(sign * np.array([w, x, y, z])), r, atol=1e-15)


def test_rotation_matrix_and_rate():
    @jax.jit
    @jax.vmap
    def turn(r, body_rate):
        return jax.jvp(rotation_matrix, (r,), (rotation_rate(r, body_rate),))

    # Zero, either side of where the series end (r² = 0.01, 0.04 and 0.5), and large.
    sizes = np.array([0.0, 1e-9, 0.0999, 0.1001, 0.1999, 0.2001, 0.7071, 0.7072, 3.0])
    r = sizes[:, None] * np.array([0.6, 0.0, -0.8])
    body_rate = np.broadcast_to([0.3, -2.0, 1.1], r.shape)
    for vector, rate, R, moved in zip(r, body_rate, *turn(r, body_rate), strict=True):
        np.testing.assert_allclose(R, Rotation.from_rotvec(vector).as_matrix(), atol=1e-14)
        # The vector's rate is the one that makes the matrix turn with the body; the series' first left out is 2e-13.
        np.testing.assert_allclose(moved, R @ np.cross(np.eye(3), rate), atol=1e-12)


def flown(seed, condition="wind", steps=50):
    plant = ROBOT.make_plant(condition, seed, steps)
    return np.array([plant.reset(), *(plant.step(HOVER) for _ in range(steps))])


def test_plant_is_its_seed():
    np.testing.assert_array_equal(flown(3), flown(3))
    assert np.all(flown(3)[1:, :12] != flown(4)[1:, :12])
    plant = ROBOT.make_plant("wind", 3, 50)
    first, _, again = plant.reset(), plant.step(HOVER), plant.reset()
    np.testing.assert_array_equal(first, again)


def test_measurement_is_noisy_and_late():
    plant = ROBOT.make_plant("calm", 0, 100)
    seen, true = [plant.reset()], [plant.truth]
    for _ in range(400):
        seen.append(plant.step(HOVER))
        true.append(plant.truth)
    difference = np.array(seen)[1:, :12] - np.array(true)[:-1, :12]
    np.testing.assert_allclose(np.std(difference, axis=0), quadrotor_plant.NOISE, rtol=0.2)
    assert np.all(np.abs(np.mean(difference, axis=0)) < 0.2 * np.asarray(quadrotor_plant.NOISE))  # 4 standard errors


def test_rotors_lag_and_saturate():
    plant = ROBOT.make_plant("calm", 0, 100)
    seen, before = plant.reset(), plant.truth[12]
    for step in range(1, 101):
        seen = plant.step(np.array([2.0, 0.0, 0.0, 0.0]))
        time, limit = step * ROBOT.dt, 4 * quadrotor_plant.ROTOR_LIMIT
        # Rotors are up to 1 % stronger or weaker than they should be.
        expected = limit + (before - limit) * np.exp(-time / quadrotor_plant.ROTOR_LAG)
        np.testing.assert_allclose(plant.truth[12], expected, rtol=0.011)
        modelled = 2.0 + (HOVER[0] - 2.0) * np.exp(-time / quadrotor.LAG)
        np.testing.assert_allclose(seen[12], modelled, rtol=1e-9)  # the observer, which knows neither


def test_payload_comes_halfway():
    plant = ROBOT.make_plant("payload", 1, 40)
    plant.reset()
    speeds = []
    for _ in range(40):
        plant.step(HOVER)
        speeds.append(plant.truth[5])
    light, heavy = np.diff(speeds[:20]).mean() / ROBOT.dt, np.diff(speeds[20:]).mean() / ROBOT.dt
    thrust_over_mass = light + quadrotor.GRAVITY
    # The body tilts by nothing and drag is a few thousandths of its weight.
    assert heavy == pytest.approx(thrust_over_mass / (1 + quadrotor_plant.PAYLOAD) - quadrotor.GRAVITY, rel=0.02)


def test_a_fall_is_a_crash():
    plant = ROBOT.make_plant("calm", 0, 1000)
    plant.reset()
    assert not plant.crashed
    tilting = np.array([HOVER[0], 2e-5, 0.0, 0.0])
    for _ in range(1000):
        plant.step(tilting)
        if plant.crashed:
            break
    assert plant.crashed
    with pytest.raises(ValueError, match="condition"):
        ROBOT.make_plant("storm", 0, 10)


@cache
def pilot(factor):
    """M-GAPS and the estimator in one agent: compiling is most of the time here."""
    controller, x, theta = ROBOT.controller(), quadrotor.start(), ROBOT.detuned(factor)
    return st.Agent(controller, x=x, theta=theta, a_hat=ROBOT.a_hat, guard=st.Guard(**ROBOT.guard))


def flights(factor, steps, folder):
    """One with gains that stay, one with gains that are tuned, by the same agent."""
    agent = pilot(factor)
    agent.save(folder / "start")
    agent.freeze()
    before = drive(ROBOT, agent, ROBOT.make_plant("wind", 0, steps), steps)
    agent.load(folder / "start")
    return before, drive(ROBOT, agent, ROBOT.make_plant("wind", 0, steps), steps)


@pytest.mark.slow
def test_flies_better_within_eight_seconds(tmp_path):
    assert pilot(0.25).engine == "native"
    before, after = flights(0.25, 4000, tmp_path)
    assert not before.crashed
    assert not after.crashed
    np.testing.assert_array_equal(before.theta, before.theta[:1].repeat(4000, axis=0))
    assert after.cost[2000:].mean() < 0.2 * before.cost[2000:].mean()
    rmse = [np.sqrt(np.mean(np.sum(run.error[2000:] ** 2, axis=1))) for run in (before, after)]
    assert rmse[1] < 0.5 * rmse[0]
    box = ROBOT.theta_box
    assert np.all((after.theta >= np.asarray(box.low)) & (after.theta <= np.asarray(box.high)))


@pytest.mark.slow
def test_simulates_natively():
    scenario = ROBOT.make_scenario(1500, jax.random.key(0))
    start = dict(theta=ROBOT.detuned(0.25), a_hat=ROBOT.a_hat)
    run = st.simulate(ROBOT.controller(), scenario, **start, engine="native", record=("cost", "theta", "a_hat"))
    assert run.result.message == "ok"
    np.testing.assert_array_less(np.abs(run.theta[-1] - run.theta[0]).max(), 3.0)
    assert np.linalg.norm(run.a_hat[-1] - scenario.a_star[-1]) < np.linalg.norm(scenario.a_star[-1])


def test_no_picture_without_graphics(monkeypatch, tmp_path):
    path = np.zeros((5, 3))
    monkeypatch.setenv("MUJOCO_GL", "no such thing")
    assert not render.flight(path, path, tmp_path / "flight.png")
    with pytest.raises(ValueError, match="path_after"):
        render.flight(path, path[:, :2], tmp_path / "flight.png")


def test_a_picture_does_not_replace_the_file_of_a_link(monkeypatch, tmp_path):
    """The folder of a run may come from elsewhere."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "flight.png").symlink_to(tmp_path / "victim")

    def drawn(command, **options):
        Path(command[-1]).write_text("picture")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", drawn)
    assert render.flight(np.zeros((5, 3)), np.zeros((5, 3)), tmp_path / "flight.png")
    assert (tmp_path / "flight.png").read_text() == "picture"
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.slow
def test_picture(tmp_path):
    t = np.linspace(0, 2 * np.pi, 100)
    path = np.stack([np.sin(t), np.sin(2 * t) / 2, 0 * t], axis=1)
    if not render.flight(0.8 * path, path, tmp_path / "flight.png"):
        pytest.skip("no offscreen graphics here")
    from matplotlib import image

    colours = np.asarray(image.imread(tmp_path / "flight.png"))[..., :3]
    for colour in (render.BEFORE, render.AFTER):
        assert np.sum(np.all(np.abs(colours - np.array(colour)) < 0.12, axis=-1)) > 1000


@pytest.mark.slow
def test_recovers_where_fixed_gains_crash(tmp_path):
    left, saved = flights(2.0, 15_000, tmp_path)
    assert left.crashed
    assert not saved.crashed
    assert saved.cost[-6000:].mean() < 0.2
