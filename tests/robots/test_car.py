"""The car: its plant against closed forms, its model against differences and the plant, and the two together."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.robots import car
from selftune.robots.base import drive
from selftune.robots.car_plant import GRAVITY, Car, CarPlant, axle, changed, equations, random_car, runge_kutta

STILL = (0.0, 0.0, 0.0)
EASY = Car(rolling=0.0, air=0.0, load_loss=0.0)
"""A car of which the books tell all."""


def cornering(plain: Car) -> tuple[float, float]:
    """Cornering stiffness of the axles at their static load, N/rad, without load transfer."""
    wheelbase = plain.front + plain.rear
    weight = plain.mass * GRAVITY * plain.friction / wheelbase
    front, rear = weight * (plain.rear - plain.aft), weight * (plain.front + plain.aft)
    return plain.stiffness_front * front, plain.stiffness_rear * rear


def integrate(one: Car, state, seconds, step=1e-3, steer=0.0, drive=0.0):
    derivative = equations(one)
    for _ in range(round(seconds / step)):
        state = runge_kutta(derivative, state, step, steer, drive, STILL)
    return np.array(state)


def rolling_at(speed, yaw_rate=0.0, steering=0.0):
    return [0.0, 0.0, 0.0, speed, 0.0, yaw_rate, steering, 0.0, 0.0, 0.0]


# The plant.


@pytest.mark.parametrize("load", [5.0, 15.2, 30.0])
def test_tyre_curve(load):
    one = Car(load_loss=0.0)
    forces = axle(one, one.stiffness_front)
    peak = one.friction * load
    slip = 1e-6
    assert forces(slip, load, 0.0, 0.0)[1] / slip == pytest.approx(one.stiffness_front * peak, rel=1e-6)
    sides = [forces(angle, load, 0.0, 0.0)[1] for angle in np.linspace(0, 1.5, 3000)]
    assert max(sides) == pytest.approx(peak, rel=1e-5)
    assert 0.1 < np.linspace(0, 1.5, 3000)[np.argmax(sides)] < 0.6  # and falls beyond
    assert sides[-1] < 0.95 * peak
    assert forces(-0.1, load, 0.0, 0.0)[1] == -forces(0.1, load, 0.0, 0.0)[1]


def test_friction_ellipse_is_never_exceeded():
    """The peak, by hand: that of two wheels whose friction falls with their load."""
    rng = np.random.default_rng(0)
    one = Car()
    forces = axle(one, one.stiffness_rear)
    for slip, load, lean, along in rng.uniform([-2, 5, -0.9, -60], [2, 25, 0.9, 60], (2000, 4)):
        transfer = lean * load / 2
        wheels = np.array([load / 2 + transfer, load / 2 - transfer])
        peak = np.sum(one.friction * wheels * (1 - one.load_loss * (wheels / one.wheel_load - 1)))
        x, y = forces(slip, load, transfer, along)
        assert math.hypot(x, y) <= peak * (1 + 1e-12)
        assert x == pytest.approx(np.clip(along, -peak, peak))
    assert forces(0.3, 15.0, 3.0, 0.0)[1] < forces(0.3, 15.0, 0.0, 0.0)[1]  # load transfer costs grip


@pytest.mark.parametrize("aft", [0.0, 0.03])
def test_small_steering_turns_as_the_linear_bicycle_does(aft):
    """Yaw rate v δ / (L + K v²), with the understeer gradient K = m/L (b/C_f − a/C_r)."""
    one = replace(EASY, aft=aft)
    front, rear = cornering(one)
    wheelbase, speed, angle = one.front + one.rear, 2.0, 1e-3
    understeer = one.mass / wheelbase * ((one.rear - aft) / front - (one.front + aft) / rear)
    end = integrate(one, rolling_at(speed), 2.0, steer=angle)
    assert end[5] == pytest.approx(end[3] * angle / (wheelbase + understeer * end[3] ** 2), rel=1e-4)
    assert abs(understeer) * speed**2 > 0.01 * wheelbase  # else it would say nothing of the tyres


def test_coasts_down_as_the_closed_form():
    one = Car(rolling=0.4, air=0.05)
    drag = one.air / one.mass
    root, scale = math.sqrt(one.rolling * drag), math.sqrt(one.rolling / drag)
    seconds, start = 3.0, 3.0
    end = integrate(one, rolling_at(start), seconds)
    assert end[3] == pytest.approx(scale * math.tan(math.atan(start / scale) - root * seconds), rel=1e-6)
    assert np.all(end[[1, 2, 4, 5]] == 0)


def test_slope_pulls_a_car_downhill():
    one = replace(EASY, slope=(0.3, 0.0))
    assert integrate(one, rolling_at(1.0), 2.0)[3] == pytest.approx(1.0 + 0.3 * 2.0, rel=1e-9)


def test_integration_is_of_fourth_order():
    """Halving the step makes the error 16 times smaller; that of the step in use is far below the sensors' noise."""
    one, start = Car(trim=0.05), rolling_at(2.0, 1.0, 0.1)
    fine = integrate(one, start, 0.4, 1e-4, steer=0.25, drive=4.0)
    errors = [np.abs(integrate(one, start, 0.4, h, steer=0.25, drive=4.0) - fine).max() for h in (0.01, 0.005, 0.0025)]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(4, abs=0.5)
    assert np.log2(errors[1] / errors[2]) == pytest.approx(4, abs=0.5)
    assert errors[2] < 1e-5


def test_payload_moves_the_centre_of_mass_and_not_the_point_that_is_measured():
    """The same car told in two ways: from P, and from its centre of mass."""
    one = replace(Car(), aft=0.03)
    two = replace(one, aft=0.0, front=one.front + 0.03, rear=one.rear - 0.03)
    yaw_rate = 1.2
    there = rolling_at(2.0, yaw_rate, 0.2)
    here = list(there)
    here[0], here[4] = -0.03, -0.03 * yaw_rate
    there, here = (integrate(c, s, 1.0, steer=0.2, drive=3.0) for c, s in ((one, there), (two, here)))
    heading = here[2]
    assert there[2:4] == pytest.approx(here[2:4], rel=1e-9)
    assert there[:2] == pytest.approx(here[:2] + 0.03 * np.array([math.cos(heading), math.sin(heading)]), rel=1e-9)
    assert there[4] == pytest.approx(here[4] + 0.03 * here[5], rel=1e-9)

    loaded = changed(Car(), "payload")
    assert loaded.mass == pytest.approx(1.3 * Car().mass)
    assert loaded.aft > 0
    assert loaded.inertia > Car().inertia


def driven(plant, steps, seed=0):
    controls = np.random.default_rng(seed).normal([0.17, 2.0], [0.02, 1.0], (steps, 2))
    return np.array([plant.reset(), *[plant.step(u) for u in controls]])


def test_plants_are_those_of_their_seed():
    robot = car.make()
    plant = robot.make_plant("grip", 3, 100)
    first = driven(plant, 80)
    assert np.array_equal(first, driven(plant, 80))
    assert np.array_equal(first, driven(robot.make_plant("grip", 3, 100), 80))
    assert not np.allclose(first[0], driven(robot.make_plant("grip", 4, 100), 0)[0])
    for condition in ("slippery", "payload"):
        other = driven(robot.make_plant(condition, 3, 100), 80)
        assert np.array_equal(first[:51], other[:51])
        assert not np.allclose(first[-1], other[-1], rtol=1e-3)
    with pytest.raises(ValueError, match="condition: expected one of grip, slippery, payload, got 'ice'"):
        robot.make_plant("ice", 3, 100)


def test_measurements_are_late_and_noisy_and_a_spin_is_a_crash():
    plant = CarPlant(EASY, "grip", 0, 1000, car.reference, car.DT, noise=(0.0,) * 8, delay=2)
    truths, measured = [], [plant.reset()]
    for _ in range(10):
        truths.append(plant.truth)
        measured.append(plant.step(np.array([0.2, 1.0])))
    assert np.array_equal(measured[2:], truths[:9])
    assert not plant.crashed
    for _ in range(400):
        plant.step(np.array([9.0, 0.0]))
    assert plant.crashed
    assert plant.truth[6] <= EASY.steering_limit


# The model.


def state_about_the_circle(seed, spread=1.0):
    rng = np.random.default_rng(seed)
    speed = car.MEAN_SPEED
    middle = [0.0, 0.0, 0.0, speed, 0.0, speed / car.RADIUS, 0.2, 1.0]
    return rng.normal(middle, spread * np.array([0.1, 0.1, 0.1, 0.2, 0.1, 0.3, 0.05, 1.0]))


def test_model_moves_as_a_plant_of_its_own_numbers():
    """With tyres that are linear so far, and the plant's load and floor as the model has them: one step, and the task's
    reference, which the two write each in its own way."""
    one = Car(
        mass=car.MASS,
        inertia=car.INERTIA,
        friction=100.0,
        stiffness_front=car.FRONT_STIFFNESS / (car.MASS * GRAVITY / 2 * 100),
        stiffness_rear=car.REAR_STIFFNESS / (car.MASS * GRAVITY / 2 * 100),
        height=0.0,
        load_loss=0.0,
        steering_lag=car.STEERING_LAG,
        drive_lag=car.DRIVE_LAG,
        drive_rear=1.0,
        rolling=0.3,
        air=0.0,
        slope=(0.2, -0.4),
    )
    plant = CarPlant(one, "grip", 0, 1000, car.reference, car.DT, noise=(0.0,) * 8)
    system, u, a = car.make().system, np.array([0.25, 3.0]), np.array([0.0, 0.0, 0.0, 0.3, 0.2, -0.4])
    motion = jax.jit(lambda x, t: car._motion(x, u, system.residual(x, a, t), t, 0.0))
    step = jax.jit(lambda x, t: system.dynamics(x, u, system.residual(x, a, t), t))
    for t in range(0, 900, 37):
        plant.reset()
        x = state_about_the_circle(t, spread=0.3)  # the model takes an angle for its tangent
        wanted_x, wanted_y, heading, _ = car.reference(t)
        c, s = math.cos(heading), math.sin(heading)
        place = [wanted_x + c * x[0] - s * x[1], wanted_y + s * x[0] + c * x[1], heading + x[2]]
        plant._state, plant._t = [*place, *x[3:], 0.0, 0.0], t
        rates = np.array(equations(one)(plant._state, *u, STILL))[3:8]
        np.testing.assert_allclose(motion(x, t)[3:], rates, atol=0.04 * np.abs(rates).max())
        plant.step(u)
        # Second order at 10 ms, where the tyres settle in 20.
        change = plant.truth - x
        np.testing.assert_allclose(step(x, t) - x, change, rtol=0.02, atol=0.1 * np.abs(change).max())
        np.testing.assert_allclose((step(x, t) - x)[:2], change[:2], atol=2e-4)


def test_jacobians_are_those_of_differences():
    robot = car.make()
    a = np.array([0.2, -0.1, 0.4, 0.3, 0.2, -0.3])
    step = jax.jit(
        lambda x, theta: jnp.concatenate([y[None] if y.ndim == 0 else y for y in system.step(x, theta, a, 7)])
    )
    system = robot.system
    x, theta = state_about_the_circle(1), robot.detuned(0.5)
    exact = jax.jacfwd(step, argnums=(0, 1))(x, theta)
    for matrix, at in zip(exact, (0, 1), strict=True):
        for i in range(matrix.shape[1]):
            shift = 1e-6 * np.eye(matrix.shape[1])[i]
            pair = [step(x + s * shift, theta) if at == 0 else step(x, theta + s * shift) for s in (1, -1)]
            np.testing.assert_allclose(matrix[:, i], (pair[0] - pair[1]) / 2e-6, rtol=1e-5, atol=1e-6)


def test_jacobians_are_finite_far_from_the_circle():
    robot = car.make()
    push = jax.jit(lambda x: robot.system.sensitivity(x, jnp.ones((8, 6)), robot.theta, robot.a_hat, 0))
    for x in (np.zeros(8), np.full(8, 50.0), np.full(8, -50.0)):
        _, y, _, gradient = push(x)
        assert np.all(np.isfinite(y))
        assert np.all(np.isfinite(gradient))


def test_policy_cancels_what_the_residual_says():
    """On the circle with every error zero, the model with a residual stays there as well as the one without."""
    system, theta = car.make().system, car.make().theta

    def settle(a):
        def step(x, t):
            f = system.residual(x, a, t)
            x = system.dynamics(x, system.policy(x, theta, f, t), f, t)
            return x, x[:2]

        x = np.array([0.0, 0.0, 0.0, car.MEAN_SPEED, 0.0, car.MEAN_SPEED / car.RADIUS, 0.2, 0.0])
        errors = jax.lax.scan(step, x, jnp.arange(1500))[1]
        return float(jnp.sqrt(jnp.mean(errors[900:] ** 2)))

    with_residual = np.array([0.3, -0.2, 0.5, 0.3, 0.0, 0.0])
    assert settle(with_residual) < settle(np.zeros(6)) + 2e-3
    assert settle(np.zeros(6)) < 0.01


def test_float32_stays_float32():
    robot = car.make()
    x, theta, a_hat = (np.float32(v) for v in (state_about_the_circle(0), robot.theta, robot.a_hat))
    traced = jax.make_jaxpr(robot.system.sensitivity)(x, np.ones((8, 6), np.float32), theta, a_hat, np.int32(3))
    assert "f64" not in str(traced)
    assert {leaf.dtype for leaf in traced.out_avals} == {jnp.dtype(jnp.float32)}


# The two together.


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """From a quarter of the gains: tuned, and left as they are; 15 s, with the guard."""
    robot, steps, path = car.make(), 1_500, tmp_path_factory.mktemp("car") / "start.npz"
    start = {"x": np.zeros(8), "theta": robot.detuned(0.25), "a_hat": robot.a_hat}
    agent = st.Agent(robot.controller(), **start, guard=st.Guard(**robot.guard))
    assert agent.engine == "native"
    agent.save(path)
    tuned = drive(robot, agent, robot.make_plant("grip", 1, steps), steps)
    assert agent.refused == 0
    agent.load(path).freeze()
    return tuned, drive(robot, agent, robot.make_plant("grip", 1, steps), steps)


def rmse(run, part):
    return np.sqrt(np.mean(np.sum(run.error[part] ** 2, axis=1)))


@pytest.mark.slow
def test_tuning_improves_the_drive(runs):
    tuned, fixed = runs
    last = slice(1_500 - car.LAP, None)
    assert not tuned.crashed
    assert not fixed.crashed
    assert rmse(tuned, last) < rmse(tuned, slice(0, 200)) / 3
    assert tuned.cost[last].mean() < fixed.cost[last].mean() / 3
    box = car.make().theta_box
    assert np.all((tuned.theta >= box.low) & (tuned.theta <= box.high))


@pytest.mark.slow
def test_estimator_finds_slope_and_drag(runs):
    one = random_car(np.random.default_rng([1, 0]))
    tuned, _ = runs
    assert tuned.a_hat[-1][3:] == pytest.approx([one.rolling, *one.slope], abs=0.25)
    assert np.hypot(*one.slope) > 0.3


def test_scenario_is_within_what_the_estimator_may_find():
    robot = car.make()
    scenario = robot.make_scenario(50, jax.random.key(0))
    sizes = robot.system.check(scenario.x0, robot.theta, scenario.a_star[0], 0)
    assert sizes == (8, 2, 3, 6, 6, 8, 0)
    assert np.all((scenario.a_star > robot.a_box.low) & (scenario.a_star < robot.a_box.high))
    assert scenario.v.shape == (50, 3)


@pytest.mark.slow
def test_scenario_runs_natively():
    robot = car.make()
    scenario = robot.make_scenario(600, jax.random.key(0))
    run = st.simulate(robot.controller(), scenario, theta=robot.detuned(0.5), a_hat=robot.a_hat, engine="native")
    assert run.result.message == "ok"
    assert np.all(np.isfinite(run.cost))
    assert np.max(np.abs(run.x[:, :2])) < 0.5
    assert np.max(np.abs(run.theta[-1] - run.theta[0])) > 0.01


def test_detuning_multiplies_the_feedback():
    """Four times the gains: stiffness ωn² and damping 2ζωn both, and the feedforward as it was."""
    robot = car.make()
    before, after = np.exp(robot.theta), np.exp(robot.detuned(0.25))
    assert after[0] ** 2 == pytest.approx(before[0] ** 2 / 4)
    assert after[0] * after[1] == pytest.approx(before[0] * before[1] / 4)
    assert after[2] == pytest.approx(before[2] / 4)
    assert after[5] == pytest.approx(before[5])
