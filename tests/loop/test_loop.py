"""`Loop`: the same loop by hand, in simulation, in real time and in C; and what real loops have."""

import subprocess
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import models, policies, references

FIRST = {"gain": 2.0, "time_constant": 0.5, "dt": 0.01}
MOTOR = {"resistance": 1.0, "torque_constant": 0.05, "rotor_inertia": 1e-4, "load_inertia": 2e-3, "dt": 0.01}
DRIVE = {"motor_inertia": 0.002, "load_inertia": 0.004, "stiffness": 80.0, "damping": 0.01, "dt": 0.001}


def pi_loop(**options):
    return st.Loop(models.FirstOrder(**FIRST), policies.PID(kp=1.0, ki=0.5, u_min=-10.0, u_max=10.0), **options)


def position_loop(**options):
    """Only the position is measured, so the loop has an observer."""
    policy = policies.PID(kp=1.0, ki=0.2, kd=0.2, u_min=-24.0, u_max=24.0)
    return st.Loop(models.DCMotor(**MOTOR, output="position"), policy, **options)


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.mark.bits
def test_the_loop_written_by_hand_is_the_same_bit_for_bit():
    loop, plant, pid = position_loop(), models.DCMotor(**MOTOR, output="position"), position_loop().policy
    observer, scale = loop.observer, (plant.outputs[0].scale, plant.controls[0].scale)

    def estimate(measured, memory, theta, t):
        return observer.estimate(measured, memory["observer"], {}, t)

    def policy(measured, memory, theta, f, t):
        x = estimate(measured, memory, theta, t)
        inputs = policies.Inputs(measured, t.reference, x, f, jnp.asarray(plant.dt), t)
        u, inner = pid(inputs, memory["policy"], theta)
        return u, {"u": u, "policy": inner, "observer": {"predicted": plant.dynamics(x, u, f, t)}}

    def cost(x, memory, u, theta, t):
        error = jnp.sum(((t.reference - plant.output(x)) / scale[0]) ** 2)
        rate = jnp.sum(((u - memory["u"]) / plant.dt / scale[1]) ** 2)
        return 0.0 + 1.0 * error + 0.01 * jnp.sum((u / scale[1]) ** 2) + 0.0 * rate

    start = {"u": jnp.zeros(1), "policy": pid.memory.initial, "observer": {"predicted": jnp.zeros(2)}}
    by_hand = st.System(
        dynamics=plant.dynamics,
        residual=plant.residual,
        policy=policy,
        cost=cost,
        memory=start,
        measure=plant.measure,
        estimate=estimate,
    )
    scenario, box = loop.scenario(300, 1), loop.constraint
    tuner, estimator = st.MGAPS(0.05, constraint=box), st.RLS()
    options = {"theta": loop.theta, "a_hat": loop.a_hat, "guard": loop.guard(), "infer": True, "engine": "native"}
    runs = [
        st.simulate(st.Controller(system, tuner, estimator), scenario, **options) for system in (loop.system, by_hand)
    ]
    for name in ("x", "measured", "memory", "theta", "a_hat", "u", "cost", "gradient"):
        for ours, theirs in zip(leaves(runs[0].recorded[name]), leaves(runs[1].recorded[name]), strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
    assert np.any(leaves(runs[0].theta)[0] != leaves(runs[0].theta)[0][0]), "the tuner must move θ"


@pytest.mark.parametrize("engine", ["native", pytest.param("xla", marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [pi_loop, pytest.param(position_loop, marks=pytest.mark.slow)])
def test_an_agent_makes_the_steps_of_a_simulation(make, engine):
    loop = make()
    scenario = loop.scenario(120, 2)
    run = loop.simulate(scenario=scenario, engine=engine)
    agent = loop.agent(engine=engine, history=5)
    for t in range(120):
        u = agent.act(run.measured[t], reference=scenario.t.reference[t])
        # The agent's C is compiled apart from that of the simulation, and may round differently.
        np.testing.assert_allclose(u, run.u[t], rtol=1e-9, atol=1e-11)
    for ours, theirs in zip(leaves(agent.theta), leaves(run.final.state.theta), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(agent.a_hat, run.final.state.a_hat, rtol=1e-7, atol=1e-9)
    assert np.any(np.abs(agent.a_hat) > 1e-4), "the estimator must learn"
    kept = agent.history()
    seen = kept.x if loop.observer is None else kept.measured
    np.testing.assert_array_equal(seen, np.asarray(run.measured[-5:]))


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
def test_the_exported_c_replays_the_run(tmp_path, dtype):
    folder = position_loop().export_c(tmp_path / "c", name="loop", dtype=dtype)
    build = ["cc", "-std=c99", "-O2", "-Wall", "-Werror", "loop.c", "main.c", "-o", "replay", "-lm"]
    subprocess.run(build, cwd=folder, check=True)
    done = subprocess.run(["./replay"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class TestAgent:
    def test_save_load_and_reset(self, tmp_path):
        loop = pi_loop()
        first, second = loop.agent(), loop.agent()
        ys = np.random.default_rng(0).normal(size=(40, 1))
        for y in ys[:20]:
            first.act(y, reference=1.0)
        first.save(tmp_path / "agent.npz")
        second.load(tmp_path / "agent.npz")
        for y in ys[20:]:
            assert first.act(y, reference=1.0) == second.act(y, reference=1.0)
        second.reset(x=loop.x, theta=loop.theta, a_hat=loop.a_hat)
        fresh = loop.agent()
        for y in ys[:5]:
            assert second.act(y, reference=0.5) == fresh.act(y, reference=0.5)

    def test_measurements_that_are_not_finite(self):
        agent = position_loop().agent()
        for t in range(30):
            agent.act([0.01 * t], reference=1.0)
        integral = np.array(agent.state.controller.memory["policy"]["integral"])
        before, theta = agent.state.controller.memory["observer"]["predicted"].copy(), agent.theta
        for _ in range(5):
            u = agent.act([np.nan], reference=1.0)
            assert np.all(np.isfinite(u))
            assert agent.result.code != 0
        memory = agent.state.controller.memory
        np.testing.assert_array_equal(memory["policy"]["integral"], integral)
        assert np.all(memory["observer"]["predicted"] != before), "the observer follows its model"
        assert leaves(agent.theta) == leaves(theta)
        assert agent.refused == 6  # five measurements, and the observation of the step before them
        agent.act([0.3], reference=1.0)
        assert agent.result.code == 0

    @pytest.mark.parametrize("engine", ["native", "xla"])
    def test_a_reference_that_is_not_finite_holds_the_control(self, engine):
        agent = pi_loop().agent(engine=engine)
        u = agent.act(0.2, reference=1.0)  # one output: a number is enough
        memory = agent.state.controller.memory
        for bad in (np.nan, np.inf, -np.inf):
            np.testing.assert_array_equal(agent.act([0.2], reference=bad), u)
            assert agent.result.code == agent.result.NON_FINITE
        assert leaves(agent.state.controller.memory) == leaves(memory)
        agent.act([0.2], reference=1.0)
        assert agent.result.code == 0

    @pytest.mark.parametrize(
        ("options", "signals", "message"),
        [
            ({}, {}, "reference: expected the 1 wanted numbers of this step"),
            ({}, {"ref": 1.0}, "act: expected no other signals than reference, got ref"),
            ({}, {"reference": [1.0, 2.0]}, "reference: expected 1 real numbers"),
            ({}, {"reference": "fast"}, "reference: expected 1 real numbers"),
            ({}, {"reference": 1.0, "dt": 0.01}, "dt: expected None, because the loop has no jitter"),
            ({}, {"reference": 1.0, "last_dt": 0.01}, "last_dt: expected None, because the loop has no jitter"),
            ({"jitter": True}, {"reference": 1.0, "dt": 0.01, "last_dt": -1.0}, "last_dt: expected the period of this"),
            ({"jitter": True}, {"reference": 1.0}, "dt: expected the period of this step"),
            ({"jitter": True}, {"reference": 1.0, "dt": 0.0}, "dt: expected the period of this step, a number"),
            ({"jitter": True}, {"reference": 1.0, "dt": np.nan}, "dt: expected the period of this step, a number"),
        ],
    )
    def test_wrong_signals(self, options, signals, message):
        agent = _agent(**options)
        with pytest.raises((st.ArgumentError, TypeError), match=message):
            agent.act([0.0], **signals)
        assert np.all(np.isfinite(agent.act([0.0], reference=1.0, **({"dt": 0.01} if options else {}))))


@cache  # an agent takes seconds to make
def _agent(**options):
    return pi_loop(**options).agent()


def test_jitter():
    """The steps of a first-order plant add up to the exact response after the true time; the PID integrates it too."""
    plant = models.FirstOrder(**FIRST)
    loop = st.Loop(plant, policies.PID(kp=1e-9, ki=2.0), jitter=True, noise=0.0, reference=1.0)
    periods = 0.01 * (1 + 0.5 * np.random.default_rng(0).uniform(-1, 1, 50))
    made = loop.scenario(50, 0, periods=periods)
    scenario = st.Scenario(made.x0, 0 * made.a_star, made.w, t=made.t, measurement_noise=made.measurement_noise)
    run = loop.simulate(scenario=scenario, controller=loop.controller(st.Fixed(), st.Frozen()))
    x, integral = 0.0, 0.0
    for t, h in enumerate(periods):
        u = 1e-9 * (1 - x) + integral
        assert float(run.u[t, 0]) == pytest.approx(u, rel=1e-9, abs=1e-12)
        integral += 2.0 * h * (1 - x)
        x = np.exp(-h / 0.5) * x + 2.0 * (1 - np.exp(-h / 0.5)) * u
    assert float(run.final.x[0]) == pytest.approx(x, rel=1e-9)
    with pytest.raises(st.ArgumentError, match="periods: expected None, because the loop has no jitter"):
        pi_loop().scenario(50, 0, periods=periods)


@pytest.mark.parametrize("kind", ["PID", "Filtered", "Cascade"])
def test_the_first_rate_counts_from_the_start_control(kind):
    """A PID that starts at u = 3 and stays there has no rate at the first step; without `u_start` it jumps."""
    cost = lambda error, u, rate: jnp.sum(rate**2)

    def first_cost(u_start):
        pid = policies.PID(kp=1.0, ki=1.0, u_start=u_start, u_max=9.0)
        policy = {
            "PID": pid,
            "Filtered": policies.Filtered(pid, output=policies.LowPass(0.1)),
            "Cascade": policies.Cascade(policies.PID(kp=1.0), pid, states=(0,)),
        }[kind]
        loop = st.Loop(models.FirstOrder(**FIRST), policy, cost)
        assert loop.system.memory.initial["u"] == u_start
        t = loop._first_context()
        first = loop.system.first(loop.x)
        u = loop.system.control(first, loop.theta, loop.a_hat, t)
        np.testing.assert_allclose(u, [u_start], rtol=1e-14)
        return loop.system.step(first, loop.theta, loop.a_hat, t)[1]

    assert first_cost(3.0) == 0.0


def test_the_default_reference_moves_as_many_outputs_as_there_are_controls():
    """The cart moves and its pole stays upright; a plant with two controls moves both outputs."""
    cart = models.CartPole(dt=0.02, output=("position", "angle"))
    K = [[-1.0, -2.0, -30.0, -6.0]]
    rows = st.Loop(cart, policies.StateFeedback(K), full_state=True).scenario(3000, 0).t.reference
    assert len(np.unique(rows[:, 0])) > 1
    assert np.all(rows[:, 1] == 0.0)
    plant = models.StateSpace([[-1.0, 0.3], [0.2, -2.0]], np.eye(2), np.eye(2), dt=0.05)
    rows = st.Loop(plant, policies.PID(kp=[1.0, 1.0])).scenario(3000, 0).t.reference
    assert all(len(np.unique(column)) > 1 for column in rows.T)


@pytest.mark.slow
def test_a_moving_mass_with_jitter():
    """A mass with a constant velocity: the velocity filter gives v (1 − Π T/(T + h)) in the simulation, where step t
    lasts h_t, and the cost has the rate of u over the period before the step."""
    plant = models.DoubleIntegrator(mass=1e9, dt=0.01, integrator=models.RK4(), unknown=(models.Load(),))
    T, v = 0.03, 0.5
    observer = policies.VelocityFilter(T, dt=0.01)
    cost = lambda error, u, rate: jnp.sum(rate)
    pid = policies.PID(kp=2.0)
    loop = st.Loop(plant, pid, cost, jitter=True, noise=0.0, reference=0.0, observer=observer)
    periods = 0.01 * (1 + 0.5 * np.random.default_rng(0).uniform(-1, 1, 50))
    made = loop.scenario(50, 0, periods=periods)
    start = jnp.array([0.0, v])
    scenario = st.Scenario(start, 0 * made.a_star, made.w, t=made.t, measurement_noise=made.measurement_noise)
    controller, guard = loop.controller(st.Fixed(), st.Frozen()), loop.guard()
    run = loop.simulate(scenario=scenario, controller=controller, guard=guard)
    time = np.concatenate([[0.0], np.cumsum(periods[:-1])])
    expected = [v * (1 - np.prod(T / (T + periods[:t]))) for t in range(50)]
    np.testing.assert_allclose(run.memory["observer"]["velocity"][1:, 0], expected[:-1], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(run.u[:, 0], -2.0 * v * time, rtol=1e-6, atol=1e-9)  # the mass is almost not moved by u
    np.testing.assert_allclose(run.cost[1:], -2.0 * v, rtol=1e-6)
    agent = loop.agent(controller=controller, guard=guard)
    before = [0.01, *periods[:-1]]
    for t in range(50):
        u = agent.act(run.measured[t], reference=0.0, dt=periods[t], last_dt=before[t])
        np.testing.assert_array_equal(u, run.u[t])


@pytest.mark.slow
def test_full_state_needs_no_observer():
    loop = position_loop(full_state=True)
    assert loop.observer is None
    run = loop.simulate(30, 0)
    assert run.measured.shape == (30, 2)
    agent = loop.agent()
    assert agent.act([0.0, 0.0], reference=1.0).shape == (1,)


class TestTruePlant:
    @pytest.mark.slow
    def test_a_delay_that_the_model_does_not_know(self):
        run = position_loop().simulate(60, 0, plant=models.Delayed(models.DCMotor(**MOTOR, output="position"), 4))
        assert run.x.shape == (60, 6)
        np.testing.assert_array_equal(run.x[1:, -1], run.u[:-1, 0])  # the youngest control in the queue

    @pytest.mark.slow
    def test_a_sensor_that_rounds(self):
        plant = models.Quantized(models.DCMotor(**MOTOR, output="position"), 0.01)
        run = position_loop(noise=0.0).simulate(60, 0, plant=plant)
        np.testing.assert_allclose(
            np.asarray(run.measured) / 0.01, np.round(np.asarray(run.measured) / 0.01), atol=1e-9
        )
        np.testing.assert_allclose(run.measured, run.x[:, :1], atol=0.005 + 1e-12)

    def test_another_state_needs_an_observer(self):
        with pytest.raises(st.ArgumentError, match="plant: expected 1 states like the model"):
            pi_loop().simulate(10, 0, plant=models.Delayed(models.FirstOrder(**FIRST), 2))


def test_the_tuner_sees_a_delay_of_the_model():
    """The sensitivity of the output to kp is 0 until the delayed control arrives."""
    loop = st.Loop(models.Delayed(models.FirstOrder(**FIRST), 5), policies.PID(kp=1.0), noise=0.0, reference=1.0)
    run = loop.simulate(20, 0, controller=loop.controller(st.MGAPS(1e-12), st.Frozen()))
    sensitivity = np.asarray(run.y)[:, 0, 0]
    assert np.all(sensitivity[:6] == 0)
    assert np.all(sensitivity[6:] > 0)


@pytest.mark.slow
def test_gains_of_the_observer_are_tuned():
    plant = models.DoubleIntegrator(mass=1.0, dt=0.02)
    observer = policies.Luenberger([[0.5], [3.0]], [[1.0, 0.0]])
    loop = st.Loop(plant, policies.StateFeedback([[4.0, 3.0]], feedforward=[[4.0]]), observer=observer, noise=0.02)
    assert set(loop.theta) == {"observer", "policy"}
    assert np.size(loop.guard().growth) == 2 + 3
    assert np.asarray(loop.guard().growth)[:2].tolist() == [0, 0]
    run = loop.simulate(400, 0)
    assert np.any(np.asarray(run.final.state.theta["observer"]["L"]) != np.asarray(loop.theta["observer"]["L"]))
    assert set(loop.gains(run.final.state.theta)) == {"K", "feedforward"}


def pid(plant, share=0.05, **options):
    """A PID for each output, with weak gains in the units of the plant."""
    kp = share * np.array([c.scale for c in plant.controls]) / np.array([o.scale for o in plant.outputs])
    limit = np.array([c.scale for c in plant.controls])
    kp, limit = (kp, limit) if len(kp) > 1 else (kp[0], limit[0])
    return policies.PID(kp=kp, ki=0.1 * kp / plant.dt / 50, u_min=-limit, u_max=limit, **options)


def feedback(plant):
    f = plant.residual(plant.x0, plant.a_hat, 0)
    A, B = jax.jacfwd(plant.dynamics, (0, 1))(plant.x0, jnp.zeros(len(plant.controls)), f, 0)
    Q, R = (np.diag([one.scale**-2.0 for one in signals]) for signals in (plant.states, plant.controls))
    return policies.StateFeedback.lqr(A, B, Q, R)


def cascade(plant):
    limit = plant.controls[0].scale
    outer = policies.PID(kp=5.0, u_min=-20.0, u_max=20.0)
    return policies.Cascade(outer, policies.PID(kp=0.05, ki=0.1, u_min=-limit, u_max=limit), states=(1,), every=(5, 1))


TANK = {"volume": 0.05, "flow": 1e-5, "loss": 8.0, "max_power": 3000.0, "dt": 5.0}
PAIRS = {
    "first order, PI": (lambda: models.FirstOrder(**FIRST), pid),
    "second order, PI": (lambda: models.SecondOrder(1.5, 12.0, 0.3, dt=0.01), pid),
    "double integrator, state feedback": (lambda: models.DoubleIntegrator(mass=2.0, dt=0.01), feedback),
    "double integrator, lead-lag": (
        lambda: models.DoubleIntegrator(mass=2.0, dt=0.01),
        lambda plant: policies.LeadLag(gain=4.0, lead=1.0, lag=0.1),
    ),
    "motor speed, filtered PI": (
        lambda: models.DCMotor(**MOTOR),
        lambda plant: policies.Filtered(pid(plant), output=policies.LowPass(0.02)),
    ),
    "motor position, cascade": (lambda: models.DCMotor(**MOTOR, output="position"), cascade),
    "two-mass drive, PI": (lambda: models.TwoMass(**DRIVE), pid),
    "tank, PI": (lambda: models.HeatedTank(**TANK), pid),
    "cart-pole, state feedback": (lambda: models.CartPole(dt=0.02, output=("position", "angle")), feedback),
    "two outputs, PI for each": (
        lambda: models.StateSpace(
            [[-1.0, 0.3], [0.2, -2.0]], [[1.0, 0.2], [0.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]], dt=0.05
        ),
        pid,
    ),
    "first order with delay, PI": (lambda: models.Delayed(models.FirstOrder(**FIRST), 3), pid),
}


IN_EVERY_GATE = ("motor position, cascade", "double integrator, state feedback", "first order with delay, PI")


@pytest.mark.parametrize(
    "name", [name if name in IN_EVERY_GATE else pytest.param(name, marks=pytest.mark.slow) for name in PAIRS]
)
def test_every_policy_and_model_in_a_loop(name):
    plant, make = PAIRS[name][0](), PAIRS[name][1]
    loop = st.Loop(plant, make(plant))
    run = loop.simulate(40, 0)
    assert run.engine == "native"
    assert run.outcome.ok
    low, high = loop.policy.limits
    assert np.all((run.u >= low) & (run.u <= high))
    assert jax.tree.structure(run.final.state.theta) == jax.tree.structure(loop.theta)
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves(run.gradient))
    # The recorded cost is that of the true state and of the reference.
    error = np.asarray(loop.scenario(40, 0).t.reference) - np.asarray(jax.vmap(plant.output)(run.x))
    u = np.asarray(run.u)
    rate = np.diff(u, axis=0, prepend=np.zeros((1, u.shape[1]))) / plant.dt
    expected = jax.vmap(loop.cost)(jnp.asarray(error), run.u, jnp.asarray(rate))
    np.testing.assert_allclose(run.cost, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: st.Loop(3, policies.PID(kp=1.0)), "plant: expected a Model"),
        (lambda: st.Loop(models.FirstOrder(**FIRST), 3), "policy: expected a Policy"),
        (lambda: pi_loop(cost=3), "cost: expected a Tracking or a function"),
        (lambda: pi_loop(noise=-1.0), "noise: expected numbers >= 0"),
        (lambda: pi_loop(noise=[1.0, 2.0]), "noise: expected a shape that fits"),
        (lambda: pi_loop(observer=3), "observer: expected an Observer or None"),
        (
            lambda: position_loop(full_state=True, observer=policies.Luenberger([[0.1], [0.1]], [[1.0, 0.0]])),
            "observer: expected None, because full_state=True",
        ),
        (lambda: position_loop(observer=policies.Luenberger([[0.1]], [[1.0]])), "estimate"),
        (
            lambda: st.Loop(models.FirstOrder(**FIRST), policies.PID(kp=[1.0, 1.0])),
            "policy: expected a policy with 1 controls, as the plant has, got one with 2",
        ),
        (
            lambda: st.Loop(models.TwoMass(**DRIVE, output=("motor_speed", "load_speed")), policies.PID(kp=1.0)),
            "policy: expected a policy for the plant's 2 outputs, 3 states and 1 controls",
        ),
        (
            lambda: st.Loop(models.DCMotor(**MOTOR), policies.StateFeedback([[1.0, 2.0]])),
            "policy: expected a policy for the plant's 1 outputs, 1 states and 1 controls",
        ),
        (
            lambda: st.Loop(models.Quantized(models.DCMotor(**MOTOR), 0.1), policies.PID(kp=1.0)),
            "plant: expected a model whose sensors have a derivative",
        ),
        (
            lambda: pi_loop().simulate(10),
            r"seed: expected a number that starts .* got None; write simulate\(steps=10, seed=0",
        ),
        (lambda: pi_loop().simulate(0), "steps: expected a whole number >= 1, got 0"),
        (lambda: pi_loop().simulate(1e3), "steps: expected a whole number >= 1, got 1000.0"),
        (lambda: pi_loop().agent(u=1.0), "measurement: expected the present value, because u, measurement and"),
        (
            lambda: pi_loop().agent(u=1.0, measurement=[1.0, 2.0], reference=1.0),
            "measurement: expected 1 real number, got",
        ),
        (lambda: pi_loop().agent(u=1e6, measurement=1.0, reference=1.0), "u: expected a control within the limits"),
        (
            lambda: st.Loop(models.FirstOrder(**FIRST), policies.PID(kp=1.0)).agent(
                u=1.0, measurement=1.0, reference=1.0
            ),
            r"u: expected None, because the PID has no integral \(ki\)",
        ),
        (lambda: pi_loop().simulate(10, 0, scenario=pi_loop().scenario(10, 0)), "scenario: expected None together"),
        (lambda: pi_loop().simulate(10, 0, reference=[[1.0, 2.0]]), "values: expected one number for each step"),
        (lambda: pi_loop(reference=[[1.0, 2.0]]), "values: expected one number for each step"),
        (lambda: pi_loop(cost=lambda error, u: error), r"cost: expected a function of error \(1,\), u \(1,\) and rate"),
        (
            lambda: st.Loop(
                models.FirstOrder(**FIRST), policies.Cascade(policies.PID(1.0), policies.PID(1.0), states=(1,))
            ),
            "policy: expected .* got one that failed .states: expected components of the state, from 0 to 0, got 1",
        ),
        (lambda: pi_loop().plot(3), "run: expected a Run, an Agent or its history"),
        (lambda: pi_loop(reference="step"), "reference: expected a reference of selftune.references"),
        (lambda: st.Loop(policies.PID(kp=1.0), models.FirstOrder(**FIRST)), "plant: expected a Model, got a PID$"),
        (
            lambda: pi_loop().simulate(10, 0, plant=models.FirstOrder(**(FIRST | {"dt": 0.02}))),
            "plant: expected the sampling period of the model, dt=0.01, got dt=0.02",
        ),
        (
            lambda: position_loop().simulate(
                10, 0, plant=models.TwoMass(**DRIVE | {"dt": 0.01}, output=("motor_speed",) * 2)
            ),
            "plant: expected 1 outputs, as the model has, got 2",
        ),
        (lambda: pi_loop().margins(jnp.zeros(2)), r"theta: expected a θ like loop.theta, \{'log_ki'"),
        (lambda: pi_loop().gains({"log_kp": 0.0}), "theta: expected a θ like loop.theta"),
        (lambda: pi_loop().back_off(jnp.zeros(2)), "theta: expected a θ like loop.theta"),
    ],
)
def test_wrong_arguments(as_a_user, make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_float32():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        run = position_loop().simulate(50, 0)
        assert run.x.dtype == run.u.dtype == run.measured.dtype == jnp.float32
        assert run.outcome.ok


def test_datasets_and_figures_of_a_loop():
    run = pi_loop().simulate(30, 0)
    data = run.to_dataset(names={"x": ["speed"]})
    assert data.loop_state.values.tolist() == ["speed", "policy.integral[0]", "u[0]"]
    assert data.memory.dims == ("time", "memory_number")
    assert len(run.plot(["memory", "measured", "y"]).axes) >= 3


def legends(figure):
    return [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes if axes.get_legend()]


def test_the_reference_is_recorded_and_drawn_with_the_output():
    loop = pi_loop()
    scenario = loop.scenario(30, 0)
    run = loop.simulate(scenario=scenario)
    np.testing.assert_array_equal(run.reference, scenario.t.reference)
    assert legends(run.plot())[:2] == [["measured[0]", "reference"], ["$x$[0]"]]
    first, *others = legends(loop.plot(run))
    assert first == ["output", "reference"]
    assert ["output"] not in others  # the state is the output, and is not drawn again
    whole = position_loop()
    assert legends(whole.plot(whole.simulate(30, 0)))[0] == ["position / rad", "reference"]
    assert any("speed / rad/s" in names for names in legends(whole.plot(whole.simulate(30, 0))))
    agent = loop.agent(history=10)
    for wanted in (1.0, 2.0):
        agent.act([0.5], reference=wanted)
    np.testing.assert_array_equal(agent.history().reference[:, 0], [1.0, 2.0])
    assert legends(loop.plot(agent.history()))[0] == ["output", "reference"]


def test_the_text_of_a_run_names_the_gains():
    text = str(pi_loop().simulate(100, 0))
    assert "log_ki from " in text
    assert ", log_kp from " in text


def test_the_repr_shows_the_numbers():
    assert "policy=PID(kp=1.0, ki=0.5, " in repr(pi_loop())
    assert repr(policies.PID(kp=2.0, ki=4.0)).startswith("PID(kp=2.0, ki=4.0, anti_windup=BackCalculation(")
    assert repr(models.FirstOrder(**FIRST)).startswith("FirstOrder(gain=2.0, time_constant=0.5, ")
    assert repr(st.references.Square(2.0, low=0.0, high=1.0)) == "Square(seconds=2.0, low=0.0, high=1.0)"
    assert repr(st.Tracking(effort=0.5)) == "Tracking(effort=0.5)"
    assert "time_constant=0.5" in repr(pi_loop())


def test_the_default_derivative_filter_is_short_against_the_reference():
    plant = models.SecondOrder(gain=1.0, natural_frequency=3.0, damping=1.0, dt=0.02)
    steps = references.Steps(8.0, -1.0, 1.0)

    def filter_time(policy):
        return float(st.Loop(plant, policy, reference=steps).policy.gains(policy.theta)["tf"])

    assert filter_time(policies.PID(kp=0.1, kd=2.0)) == pytest.approx(8.0 / 50)
    assert filter_time(policies.PID(kp=2.0, kd=2.0)) == pytest.approx(0.1)  # kd / (10 kp) is short enough
    assert filter_time(policies.PID(kp=0.1, kd=2.0, derivative_filter=0.7)) == pytest.approx(0.7)  # the user's choice
    filtered = policies.Filtered(policies.PID(kp=0.1, kd=2.0), output=policies.LowPass(0.05))
    assert filter_time(filtered) == pytest.approx(8.0 / 50)


@pytest.mark.slow  # two long runs
def test_a_loop_whose_kp_is_ten_times_too_low_for_kd_is_tuned():
    """Without the bound of the filter, the last quarter costs twice as much."""
    plant = models.SecondOrder(gain=1.0, natural_frequency=3.0, damping=0.3, dt=0.02)
    pid = policies.PID(kp=0.2, ki=3.0, kd=0.8, u_min=-10.0, u_max=10.0)
    cost, steps = st.Tracking(effort=0.01, effort_rate=1e-4), references.Steps(8.0, -1.0, 1.0)
    loop = st.Loop(plant, pid, cost, steps, noise=0.002)
    scenario = loop.scenario(24_000, 200)
    right = loop.theta | {"log_kp": loop.theta["log_kp"] + np.log(10)}
    tuned, best = (
        float(loop.simulate(scenario=scenario, theta=theta, record=("cost",)).cost[-6_000:].mean())
        for theta in (loop.theta, right)
    )
    assert tuned < 1.1 * best


@pytest.mark.parametrize("samples", [0, 3])
def test_an_agent_takes_over_a_plant_that_rests_at_another_place(samples, tmp_path):
    """The plant rests at 55 °C with 56.5 %. Its gain times 56.5 is not 55: the rest is a load, known from the start."""
    tank = models.FirstOrder(gain=0.8, time_constant=300.0, dt=1.0, rated_input=100.0)
    pid = policies.PID(kp=2.0, ki=0.02, kd=3.0, u_min=0.0, u_max=100.0, rate_limit=10.0)
    loop = st.Loop(models.Delayed(tank, samples) if samples else tank, pid)
    agent = loop.agent(u=56.5, measurement=55.0, reference=60.0)
    np.testing.assert_allclose(agent.act(55.0, reference=60.0), 56.5, rtol=1e-12)
    load = 55.0 / 0.8 - 56.5
    np.testing.assert_allclose(agent.a_hat, load, rtol=1e-6)
    agent = loop.agent(u=56.5, measurement=55.0, reference=55.0)
    y, queue = 55.0, [56.5] * samples
    for step in range(300):
        queue.append(float(agent.act(y, reference=55.0)[0]))
        y = 0.8 * (queue[0] + load) + (y - 0.8 * (queue.pop(0) + load)) * np.exp(-1 / 300)
        assert abs(y - 55.0) < 1e-6, f"the plant left its rest at step {step}"
    agent.save(tmp_path / "agent")
    resumed = loop.agent().load(tmp_path / "agent")
    assert resumed.act(y, reference=55.0) == agent.act(y, reference=55.0)
    without = loop.agent()
    assert without.act(55.0, reference=55.0) == 0.0, "without u, the control jumps to 0"


def test_gains_are_plain_numbers_and_the_delay_line_is_not_drawn():
    loop = st.Loop(
        models.Delayed(models.SecondOrder(1.0, 2.0, 0.5, dt=0.05), 4),
        policies.PID(kp=1.0, ki=0.3),
    )
    gains = loop.gains(loop.theta)
    assert {name: type(gain) for name, gain in gains.items()} == dict.fromkeys(("kp", "ki", "tt"), float)
    run = loop.simulate(30, seed=0)
    agent = loop.agent(history=10)
    for _ in range(5):
        agent.act(0.1, reference=0.2)
    for drawn in (run, agent):
        legends = filter(None, (axes.get_legend() for axes in loop.plot(drawn).axes))
        labels = [text.get_text() for legend in legends for text in legend.get_texts()]
        assert "output" in labels
        assert not any("[t-" in label for label in labels)
    assert run.x.shape == (30, 6), "the run keeps the delay line"
