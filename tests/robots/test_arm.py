"""The arm: its model against MuJoCo's, its plant against what it says of itself, and the two in a loop."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import selftune as st
from selftune.robots import arm, arm_plant
from selftune.robots.base import drive

sizes = pytest.mark.parametrize("links", [2, 3])


def mujoco_arm(links, payload=1e-14):
    """MuJoCo's arm with the model's own masses, without friction."""
    it = arm.ARMS[links]
    model = mujoco.MjModel.from_xml_string(arm_plant.mjcf(it, it.masses, payload))
    return model, mujoco.MjData(model)


def inverse_dynamics(links, payload, q, rate, acceleration):
    model, data = mujoco_arm(links, payload)
    data.qpos[:], data.qvel[:], data.qacc[:] = q, rate, acceleration
    mujoco.mj_inverse(model, data)
    return data.qfrc_inverse.copy()


def motions(links, count=5):
    return np.random.default_rng(links).normal(0.0, [[1.0], [3.0], [10.0]], (count, 3, links))


@sizes
def test_mass_matrix_and_bias_are_mujocos(links):
    own, zero = arm.ARMS[links].own, np.zeros(links)
    torques = jax.jit(lambda *motion: arm.torques(own, *motion))
    columns = jax.jit(jax.jacfwd(lambda a, q: arm.torques(own, q, jnp.zeros_like(q), a)))
    model, data = mujoco_arm(links)
    for q, rate, _ in motions(links):
        data.qpos[:], data.qvel[:] = q, rate
        mujoco.mj_forward(model, data)
        mass = np.zeros((links, links))
        mujoco.mj_fullM(model, data, mass)
        np.testing.assert_allclose(columns(zero, q), mass, atol=1e-8)
        np.testing.assert_allclose(torques(q, rate, zero), data.qfrc_bias, atol=1e-8)


@sizes
def test_forward_dynamics_are_mujocos(links):
    own = arm.ARMS[links].own
    accelerations = jax.jit(lambda *motion: arm.accelerations(own, *motion))
    model, data = mujoco_arm(links)
    for q, rate, torque in motions(links):
        data.qpos[:], data.qvel[:], data.qfrc_applied[:] = q, rate, torque
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(accelerations(q, rate, torque), data.qacc, rtol=1e-8, atol=1e-8)


@sizes
def test_payload_is_what_mujoco_feels_of_one(links):
    """Inertia and gravity: a kilogram more at the tip, moving as the reference wants."""
    robot, it = arm.make(links), arm.ARMS[links]
    residual, reference = jax.jit(robot.system.residual), lambda t: it.reference(t, float)
    only_payload = np.eye(robot.a_hat.size)[0]
    for t, (q, rate, _) in enumerate(motions(links)):
        x = np.concatenate([q, rate, np.zeros(links)])
        acceleration = np.asarray(reference(t)[2])
        with_it, without = (inverse_dynamics(links, mass, q, rate, acceleration) for mass in (1.0, 1e-14))
        np.testing.assert_allclose(residual(x, only_payload, t), without - with_it, atol=1e-8)


def test_friction_and_disturbance():
    """Each parameter does its own work: its feature, in its unit. Friction is that of the wanted rate."""
    robot, t = arm.make(2), 100
    first, second = np.asarray(arm.ARMS[2].reference(t, float)[1])
    x = np.array([0.3, -0.4, 2.0, -1e-3, 5.0, 6.0])
    jacobian = jax.jit(robot.system.residual_and_jacobian)(x, robot.a_hat, t)[1]
    assert len(robot.parameters) == robot.a_hat.size
    coulomb = -np.tanh(np.array([first, second]) / 0.1)
    by_hand = [[-first, 0.0, coulomb[0], 0.0, 1.0, 0.0], [0.0, -second, 0.0, coulomb[1], 0.0, 1.0]]
    np.testing.assert_allclose(jacobian[:, 1:], by_hand, atol=1e-12)


@sizes
def test_references_rates_are_its_differences(links):
    it = arm.ARMS[links]
    t = np.arange(-1, arm.LAP + 2)
    q, rate, acceleration = map(np.asarray, jax.jit(jax.vmap(lambda t: it.reference(t, float)))(t))
    # Central differences of a sinusoid are off by (ω dt)²/6 of themselves, and ω is at most 2π · 3 / (4 s).
    for value, slope in ((q, rate), (rate, acceleration)):
        np.testing.assert_allclose((value[2:] - value[:-2]) / (2 * arm.DT), slope[1:-1], rtol=6e-5, atol=1e-9)
    np.testing.assert_allclose(q[0], q[arm.LAP], atol=1e-12)
    assert not np.any(rate[1])


def test_step_has_the_jacobian_of_differences():
    robot, rng = arm.make(3), np.random.default_rng(0)
    motion = np.concatenate([*arm.ARMS[3].reference(7, float)[:2], np.zeros(3)])
    at = np.concatenate([motion + 0.1 * rng.normal(size=9), robot.theta])
    a = rng.uniform(0.1, 0.5, robot.a_hat.size)

    def step(z):
        return jnp.append(*robot.system.step(z[:9], z[9:], a, 7))

    @jax.jit
    def both(z):
        h = 1e-6 * np.eye(z.size)
        return jax.jacfwd(step)(z), (jax.vmap(step)(z + h) - jax.vmap(step)(z - h)).T / 2e-6

    np.testing.assert_allclose(*both(at), rtol=1e-6, atol=1e-6)


def test_torque_is_clamped_and_still_has_a_slope():
    robot, limits = arm.make(2), np.array(arm.ARMS[2].limits)
    far = np.array([-3.0, 3.0, 0.0, 0.0, 0.0, 0.0])
    policy = jax.jit(robot.system.policy)
    u = policy(far, robot.theta, np.zeros(2), 0)
    assert np.all(np.abs(u) < limits)
    assert np.all(np.abs(u) > 0.99 * limits)
    slope = jax.jit(jax.jacfwd(robot.system.policy))(far, robot.theta, np.zeros(2), 0)
    assert np.all(np.isfinite(slope))
    assert np.max(np.abs(slope)) < 5.0  # where nothing clamps it is ωn² M ≈ 500


def commands(count, links=2):
    return np.random.default_rng(0).normal(0.0, 4.0, (count, links))


def measured(plant, controls):
    return np.array([plant.reset(), *(plant.step(u) for u in controls)])


def test_plant_is_that_of_its_seed():
    robot, controls = arm.make(2), commands(40)
    one = robot.make_plant("payload", 3, 40)
    run = measured(one, controls)
    np.testing.assert_array_equal(run, measured(one, controls))  # also after a reset, and with the first payload again
    np.testing.assert_array_equal(run, measured(robot.make_plant("payload", 3, 40), controls))
    assert np.all(np.max(np.abs(run - measured(robot.make_plant("payload", 4, 40), controls)), axis=0)[:4] > 1e-3)


@pytest.mark.parametrize("condition", ["payload", "disturbance"])
def test_what_happens_happens_halfway(condition):
    robot, controls = arm.make(2), commands(40)
    calm, plant = (robot.make_plant(name, 0, 40) for name in ("nominal", condition))
    apart = []
    for u in controls:
        for one in (calm, plant):
            one.step(u)
        apart.append(np.max(np.abs(calm.truth - plant.truth)))
    assert np.all(np.array(apart[:20]) == 0)
    assert np.all(np.array(apart[20:]) > 1e-4)


def test_actuators_lag_and_limits():
    plant, limits = arm.make(2).make_plant("nominal", 0, 100), np.array(arm.ARMS[2].limits)
    plant.reset()
    start, belief = plant.truth[4:], plant.reset()[4:]
    for i in range(1, 6):
        x = plant.step(10 * limits)
        elapsed = i * arm.DT
        np.testing.assert_allclose(plant.truth[4:], limits + np.exp(-elapsed / 0.020) * (start - limits), rtol=1e-9)
        np.testing.assert_allclose(x[4:], limits + np.exp(-elapsed / 0.016) * (belief - limits), rtol=1e-9)
    assert not plant.crashed
    for _ in range(200):
        plant.step(10 * limits)
    assert np.all(np.abs(plant.truth[4:]) <= limits)
    assert plant.crashed


def test_measurements_are_late_and_noisy():
    plant = arm.make(2).make_plant("nominal", 0, 500)
    plant.reset()
    truth, seen = [plant.truth], []
    for u in commands(500):
        seen.append(plant.step(u))
        truth.append(plant.truth)
    noise = np.array(seen)[:, :4] - np.array(truth)[:-1, :4]
    np.testing.assert_allclose(
        np.std(noise, axis=0), np.repeat([arm_plant.ANGLE_NOISE, arm_plant.RATE_NOISE], 2), rtol=0.15
    )


def test_unknown_requests_are_refused():
    with pytest.raises(ValueError, match="links: expected 2 or 3"):
        arm.make(4)
    with pytest.raises(ValueError, match="condition: expected"):
        arm.make(2).make_plant("wind", 0, 10)


def test_a_robot_is_made_once():
    assert arm.make() is arm.make(2) is arm.make(links=2)
    assert arm.make(3) is not arm.make(2)


def test_scenario_is_the_payloads():
    scenario = arm.make(3).make_scenario(10, jax.random.key(0))
    np.testing.assert_array_equal(scenario.a_star[:, 0], [0.2] * 5 + [0.7] * 5)
    assert scenario.x0.shape == (9,)


@pytest.mark.slow
@sizes
def test_engines_agree_on_the_scenario(links):
    robot = arm.make(links)
    scenario = robot.make_scenario(60, jax.random.key(0))
    start = dict(theta=robot.detuned(0.25), a_hat=robot.a_hat)
    runs = [st.simulate(robot.controller(), scenario, **start, engine=engine) for engine in ("native", "xla")]
    for name in ("x", "u", "theta", "a_hat", "cost"):
        np.testing.assert_allclose(*(getattr(run, name) for run in runs), rtol=1e-9, atol=1e-9, err_msg=name)
    assert np.max(np.abs(runs[0].theta[-1] - start["theta"])) > 1e-3


@sizes
def test_float32_stays_float32(links):
    """In every number on the way too, though 64 bits could be had."""
    robot = arm.make(links)
    x, theta, a = (jnp.asarray(v, jnp.float32) for v in (np.zeros(3 * links), robot.theta, robot.a_hat))
    assert robot.system.check(x, theta, a, 0) == (3 * links, links, links, 2 * links, 1 + 3 * links, 3 * links, 0)
    assert "f64" not in str(
        jax.make_jaxpr(robot.system.sensitivity)(x, jnp.zeros((x.size, theta.size), x.dtype), theta, a, 0)
    )


@pytest.mark.slow
def test_gains_too_low_are_raised():
    """One seed of the comparison, cut short: three laps from a quarter of the gains."""
    robot, steps = arm.make(2), 3_000
    agent = st.Agent(robot.controller(), x=np.zeros(6), theta=robot.detuned(0.25), a_hat=robot.a_hat)
    run = drive(robot, agent, robot.make_plant("nominal", 0, steps), steps)
    assert agent.engine == "native"
    assert not run.crashed
    assert np.mean(run.cost[-robot.lap :]) < 0.2
    assert np.all(run.theta[-1, :2] > run.theta[0, :2] + np.log(1.2))

    assert abs(run.a_hat[-1, 0] - 0.2) < 0.15  # the payload; the links are heavier than the model believes, too


@pytest.mark.slow
def test_compensation_of_the_true_friction_costs_more_than_none():
    """So an estimator that finds all of the friction quickly pays for it, which docs/robots.md says."""
    robot = arm.make()
    controller = robot.controller(st.Fixed(), st.Frozen())
    plant = robot.make_plant("nominal", 0, 4000)
    agent = st.Agent(controller, x=plant.reset(), theta=robot.detuned(0.5), a_hat=robot.a_hat)
    friction = np.concatenate([plant.model.dof_damping, plant.model.dof_frictionloss])
    costs = []
    for share in (1.0, 0.0):
        a_hat = np.concatenate([[0.28], share * friction, np.zeros(2)])  # the links are heavier than in the model
        agent.reset(x=plant.reset(), theta=robot.detuned(0.5), a_hat=a_hat)
        costs.append(drive(robot, agent, plant, 4000).cost[1000:].mean())
    assert costs[0] > 1.3 * costs[1]
