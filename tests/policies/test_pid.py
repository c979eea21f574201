"""PID loops against python-control, and what a PID on a real plant must do: limits, windup, bumps, refused steps."""

import control
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import policies

H = 0.05


def rollout(policy, plant, reference, theta=None, thetas=None, memory=None):
    """The outputs and controls of a policy on a linear plant (A, B, C), which starts at rest."""
    A, B, C = (jnp.asarray(matrix) for matrix in plant)
    thetas = [policy.theta if theta is None else theta] * len(reference) if thetas is None else thetas
    x, out = jnp.zeros(A.shape[0]), []
    if policy.memory is not None and memory is None:
        memory = policy.memory.initial

    @jax.jit
    def step(x, memory, r, theta):
        inputs = policies.Inputs.of(output=C @ x, reference=r, x=x, dt=H)
        u, memory = policy(inputs, memory, theta)
        return A @ x + B @ u, memory, inputs.output, u

    for r, theta in zip(reference, thetas, strict=True):
        x, memory, y, u = step(x, memory, jnp.atleast_1d(jnp.asarray(r, float)), theta)
        out.append((y, u, memory))
    return np.array([y[0] for y, _, _ in out]), np.array([u[0] for _, u, _ in out]), [memory for _, _, memory in out]


def sampled(*plant):
    return control.ss(control.c2d(control.tf(*plant), H))


def delayed(system, steps):
    return control.series(control.ss(control.tf([1], [1] + [0] * steps, H)), system)


PLANTS = {
    # Åström and Hägglund's test batch: first order plus dead time, three equal lags; and a double integrator.
    "first order with dead time": delayed(sampled([2.0], [1.0, 1.0]), 4),
    "three lags": sampled([1.0], [1.0, 3.0, 3.0, 1.0]),
    "double integrator": sampled([1.0], [1.0, 0.0, 0.0]),
}
LOOPS = {
    "P": ("three lags", policies.PID(0.8), (0.8, 0.0, 0.0)),
    "PI": ("first order with dead time", policies.PID(0.4, 0.5), (0.4, 0.5, 0.0)),
    "PID": ("three lags", policies.PID(1.5, 0.6, 1.2, derivative_filter=0.1), (1.5, 0.6, 1.2)),
    "standard form": ("three lags", policies.PID.standard(1.5, 2.5, 0.8, derivative_filter=0.1), (1.5, 0.6, 1.2)),
    "PD": ("double integrator", policies.PID(1.0, 0.0, 1.5, derivative_filter=0.1), (1.0, 0.0, 1.5)),
    "weights": ("three lags", policies.PID(1.5, 0.6, 1.2, derivative_filter=0.1, b=0.3, c=0.0), (1.5, 0.6, 1.2)),
    "on the error": ("three lags", policies.PID(1.5, 0.6, 1.2, derivative_filter=0.1, c=1.0), (1.5, 0.6, 1.2)),
    "reverse": ("three lags", policies.PID(-1.5, -0.6), (1.5, 0.6, 0.0)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_the_step_response_is_that_of_python_control(name):
    plant_name, pid, (kp, ki, kd) = LOOPS[name]
    plant, sign = PLANTS[plant_name], -1.0 if name == "reverse" else 1.0
    b, c = float(pid.b), float(pid.c)
    # The formulas of the docstring: a forward integral and a backward derivative, connected by name.
    blocks = [
        control.ss(plant, inputs="u", outputs="y"),
        control.ss([], [], [], [[1.0, -1.0], [b * kp, -kp], [c, -1.0]], H, inputs=["r", "y"], outputs=["e", "P", "d"]),
        control.ss(control.tf([ki * H], [1, -1], H), inputs="e", outputs="I"),
        control.ss(control.tf([kd, -kd], [0.1 + H, -0.1], H), inputs="d", outputs="D"),
        control.ss([], [], [], [[1.0, 1.0, 1.0]], H, inputs=["P", "I", "D"], outputs=["u"]),
    ]
    closed = control.interconnect(blocks, inputs="r", outputs="y")
    time = H * np.arange(200)
    reference = np.where(time > 0, 1.0, 0.0)  # a first step without an error, so that a derivative of it is known
    expected = control.forced_response(closed, time, reference).outputs
    A, B, C = (np.asarray(matrix) for matrix in (plant.A, plant.B, plant.C))
    y, _, _ = rollout(pid, (A, sign * B, C), reference)
    # Both sides round at each of 200 steps, in loops that amplify an error by less than 1000.
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-9)
    assert np.max(np.abs(expected)) > 0.3


def test_lead_lag_is_that_of_python_control():
    lead = policies.LeadLag(gain=4.0, lead=1.2, lag=0.1)
    plant = PLANTS["double integrator"]
    # (T s + 1) with s = (z − 1)/(h z) is ((T + h) z − T)/(h z).
    compensator = control.ss(control.tf([4.0 * (1.2 + H), -4.0 * 1.2], [0.1 + H, -0.1], H))
    closed = control.feedback(control.series(compensator, plant), 1)
    time = H * np.arange(200)
    expected = control.forced_response(closed, time, np.ones(200)).outputs
    y, _, _ = rollout(lead, (plant.A, plant.B, plant.C), np.ones(200))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-9)


def test_state_feedback_starts_from_the_gains_of_python_control():
    plant = PLANTS["three lags"]
    Q, R = np.diag([1.0, 2.0, 3.0]), np.array([[0.5]])
    regulator = policies.StateFeedback.lqr(plant.A, plant.B, Q, R, C=plant.C)
    gains = regulator.gains(regulator.theta)
    np.testing.assert_allclose(gains["K"], control.dlqr(plant.A, plant.B, Q, R)[0], rtol=1e-9)
    placed = policies.StateFeedback.place(plant.A, plant.B, [0.5, 0.6, 0.7])
    poles = np.linalg.eigvals(plant.A - plant.B @ np.asarray(placed.gains(placed.theta)["K"]))
    np.testing.assert_allclose(np.sort(poles.real), [0.5, 0.6, 0.7], rtol=1e-8)
    y, _, _ = rollout(regulator, (plant.A, plant.B, plant.C), np.ones(400))
    assert abs(y[-1] - 1.0) < 1e-6  # the feed-forward brings the output to the reference


def test_integral_action_by_lqr_rejects_a_load():
    A, B, C = np.array([[1.0, H], [0.0, 1.0]]), np.array([[H**2 / 2], [H]]), np.array([[1.0, 0.0]])
    options = dict(C=C, integral_cost=[[4.0]], dt=H, u_min=-9.0, u_max=9.0)
    regulator = policies.StateFeedback.lqr(A, B, np.eye(2), [[0.5]], **options)
    x, memory = jnp.zeros(2), regulator.memory.initial
    for _ in range(400):
        inputs = policies.Inputs.of(output=C @ x, reference=[1.0], x=x, dt=H)
        u, memory = regulator(inputs, memory, regulator.theta)
        x = A @ x + B @ (u + 0.4)  # a constant load
    np.testing.assert_allclose(x, [1.0, 0.0], atol=1e-6)  # 20 s, with all poles faster than 1 s
    np.testing.assert_allclose(memory["integral"], [-0.4], atol=1e-6)


def test_windup():
    """A step that the actuator cannot follow: only without anti-windup does the integral grow with the wait."""
    plant = sampled([1.0], [1.0, 1.0])
    reference = np.concatenate([np.full(200, 3.0), np.full(200, 0.5)])  # 3.0 needs u = 3, the limit is 1
    recovery, largest = {}, {}
    for rule in (policies.Windup(), policies.BackCalculation(), policies.BackCalculation(0.2), policies.Clamping()):
        pid = policies.PID(2.0, 2.0, u_min=-1.0, u_max=1.0, anti_windup=rule)
        y, u, memory = rollout(pid, (plant.A, plant.B, plant.C), reference)
        assert np.all(np.abs(u) <= 1.0)
        name = f"{type(rule).__name__} {getattr(rule, 'tracking_time', None)}"
        far = np.flatnonzero(np.abs(y[200:] - 0.5) > 0.05)
        recovery[name] = len(far) and int(far[-1]) + 1
        largest[name] = max(abs(float(m["integral"][0])) for m in memory)
    windup, slow, fast, clamping = recovery.values()
    assert windup > 150
    assert max(slow, fast, clamping) < windup / 2
    integral = list(largest.values())
    assert integral[0] > 30.0
    # Back-calculation at rest: ki e = (v − u)/Tt with v = kp e + I, here e ≥ 2 and Tt ≤ 1, so |I| ≤ u + ki e Tt + kp e.
    assert max(integral[1:]) < 1.0 + 2.0 * 3.0 + 2.0 * 3.0


def test_back_calculation_rests_where_the_formula_says():
    pid = policies.PID(2.0, 1.0, u_min=-1.0, u_max=1.0, anti_windup=policies.BackCalculation(0.5))
    memory, inputs = pid.memory.initial, policies.Inputs.of(output=[0.0], reference=[3.0], dt=H)
    for _ in range(2000):
        _, memory = pid(inputs, memory, pid.theta)
    # ki e + (u − v)/Tt = 0 with v = kp e + I: I = u + ki e Tt − kp e = 1 + 1.5 − 6.
    np.testing.assert_allclose(memory["integral"], [-3.5], rtol=1e-9)


def test_a_change_of_ki_makes_no_bump_and_the_rate_limit_holds():
    plant = PLANTS["three lags"]
    pid = policies.PID(1.0, 0.5)
    faster = {**pid.theta, "log_ki": pid.theta["log_ki"] + np.log(10.0)}
    matrices, reference = (plant.A, plant.B, plant.C), np.ones(101)
    _, before, _ = rollout(pid, matrices, reference)
    _, after, _ = rollout(pid, matrices, reference, thetas=[pid.theta] * 100 + [faster])
    np.testing.assert_array_equal(before, after)  # at the step of the change, u is the same
    limited = policies.PID(5.0, 2.0, rate_limit=0.7, u_start=0.1)
    _, u, _ = rollout(limited, matrices, reference)
    steps = np.diff(u, prepend=0.1)
    assert np.max(np.abs(steps)) <= 0.7 * H * (1 + 1e-12)
    assert np.sum(np.abs(steps) > 0.7 * H * (1 - 1e-9)) > 10  # the limit is met


def test_the_derivative_does_not_kick_at_the_start_nor_at_a_step_of_the_reference():
    pid = policies.PID(1.0, 0.0, 10.0)
    memory, seen = pid.memory.initial, []
    for reference in (5.0, 5.0, 6.0):
        u, memory = pid(policies.Inputs.of(output=[5.0], reference=[reference], dt=H), memory, pid.theta)
        seen.append(float(u[0]))
    np.testing.assert_allclose(seen, [0.0, 0.0, 1.0], atol=1e-12)


@pytest.mark.parametrize("times", [False, True], ids=["parallel", "standard"])
def test_both_forms_are_the_same_controller(times):
    pid = policies.PID(2.0, 0.5, 1.0, tune_times=times, u_max=3.0)
    gains = pid.gains(pid.theta)
    np.testing.assert_allclose([gains[n] for n in ("kp", "ki", "kd", "tf")], [2.0, 0.5, 1.0, 0.05], rtol=1e-12)
    np.testing.assert_allclose(gains["tt"], np.sqrt(4.0 * 0.5), rtol=1e-12)
    assert set(pid.theta) == ({"log_kp", "log_ti", "log_td"} if times else {"log_kp", "log_ki", "log_kd"})


def test_one_pid_for_each_axis():
    both = policies.PID([2.0, -3.0], [0.5, -1.0], [1.0, -0.3], u_min=[-1.0, -2.0], u_max=[1.0, 2.0])
    alone = [policies.PID(2.0, 0.5, 1.0, u_min=-1.0, u_max=1.0), policies.PID(-3.0, -1.0, -0.3, u_min=-2.0, u_max=2.0)]
    memory, memories = both.memory.initial, [pid.memory.initial for pid in alone]
    for t in range(5):
        y, r = np.sin([1.0 + t, 2.0 * t]), np.cos([0.3 * t, 0.5])
        u, memory = both(policies.Inputs.of(output=y, reference=r, dt=H), memory, both.theta)
        for i, pid in enumerate(alone):
            own, memories[i] = pid(policies.Inputs.of(output=y[[i]], reference=r[[i]], dt=H), memories[i], pid.theta)
            np.testing.assert_allclose(u[i], own[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: policies.PID(0.0), "kp: expected at least one gain"),
        (lambda: policies.PID(1.0, -1.0), "kp: expected the same sign as ki and kd"),
        (lambda: policies.PID([1.0, 0.0]), "kp: expected a gain other than 0 on every axis"),
        (lambda: policies.PID([1.0, 2.0], [1.0, 2.0, 3.0]), "kp: expected gains with one number for each axis"),
        (lambda: policies.PID(0.0, 1.0, 1.0), "derivative_filter: expected a time constant"),
        (lambda: policies.PID(1.0, u_min=1.0, u_max=-1.0), "u_min: expected less than u_max"),
        (lambda: policies.PID(1.0, u_max=np.inf), "u_max: expected finite numbers"),
        (lambda: policies.PID(1.0, rate_limit=-1.0), "rate_limit: expected numbers > 0"),
        (lambda: policies.PID(1.0, anti_windup="clamp"), "anti_windup: expected an AntiWindup"),
        (lambda: policies.PID(1.0, b=[1.0, 1.0]), "b: expected a number, or one for each axis"),
        (lambda: policies.PID(1.0, units="V"), "units: expected the units of u and of the output"),
        (lambda: policies.PID.standard(0.0, 1.0), "kp: expected"),
        (lambda: policies.PID.standard(1.0, -1.0), "ti: expected numbers > 0"),
        (lambda: policies.PID(1.0, constraint=st.Box(5.0, 6.0)), "theta: expected a point of its constraint"),
    ],
)
def test_mistakes_are_refused(make, message, as_a_user):
    with pytest.raises(st.ArgumentError, match=message):
        make()


def test_an_output_of_the_wrong_size_is_refused():
    pid = policies.PID([1.0, 2.0])
    with pytest.raises(st.ArgumentError, match="output: expected shape"):
        pid(policies.Inputs.of(output=[1.0], reference=[1.0], dt=H), None, pid.theta)


def test_jitter_on_a_ramp():
    """y = v·time: the filtered derivative is kd v (1 − Π T/(T + h)), with the periods h before the step. The integral
    is the sum of errors times the periods after them, and the rate limit counts the time since the last step."""
    v, T, kd, ki = 2.0, 0.03, 0.4, 0.7
    periods = H * np.random.default_rng(0).uniform(0.5, 1.5, 60)
    time = np.concatenate([[0.0], np.cumsum(periods[:-1])])
    pid = policies.PID(kp=1.0, ki=ki, kd=kd, derivative_filter=T)
    limited = policies.PID(kp=1e6, rate_limit=5.0)
    memory, limited_memory = pid.memory.initial, limited.memory.initial
    for t in range(60):
        last = periods[t - 1] if t else H
        inputs = policies.Inputs.of([v * time[t]], [0.0], dt=periods[t])._replace(last_dt=jnp.asarray(last))
        u, memory = pid(inputs, memory, pid.theta)
        derivative = -kd * v * (1 - np.prod(T / (T + periods[:t])))
        integral = -ki * v * np.sum(periods[:t] * time[:t])
        np.testing.assert_allclose(u, [-v * time[t] + derivative + integral], rtol=1e-12, atol=1e-14)
        far = inputs._replace(output=jnp.zeros(1), reference=jnp.ones(1))
        u, limited_memory = limited(far, limited_memory, limited.theta)
        np.testing.assert_allclose(u, [5.0 * (H + time[t])], rtol=1e-12)


def test_filters_with_jitter_on_a_ramp():
    """The low-pass filter and the lead-lag compensator are late by v T (1 − Π T/(T + h)), with the periods before the
    step."""
    v, T = 2.0, 0.03
    periods = H * np.random.default_rng(0).uniform(0.5, 1.5, 60)
    time = np.concatenate([[0.0], np.cumsum(periods[:-1])])
    smooth = policies.Filtered(policies.PID(kp=1.0), output=policies.LowPass(T))
    lag = policies.LeadLag(gain=1.0, lead=1e-9, lag=T)
    smooth_memory, lag_memory = smooth.memory.initial, lag.memory.initial
    for t in range(60):
        last = jnp.asarray(periods[t - 1] if t else H)
        inputs = policies.Inputs.of([v * time[t]], [0.0], dt=periods[t])._replace(last_dt=last)
        late = v * time[t] - v * T * (1 - np.prod(T / (T + periods[:t])))
        u, smooth_memory = smooth(inputs, smooth_memory, smooth.theta)
        np.testing.assert_allclose(u, [-late], rtol=1e-10, atol=1e-14)
        u, lag_memory = lag(inputs, lag_memory, lag.theta)
        np.testing.assert_allclose(u, [-late], rtol=1e-7, atol=1e-8)  # the lead of 1 ns is left


@pytest.mark.parametrize("form", ["parallel", "standard"])
def test_a_pid_can_be_made_while_jax_traces(form):
    """The controls of a batch of PIDs, under `jit` and `vmap`, are those of PIDs that are made one by one. The
    derivative by the gains is that of finite differences."""

    def controls(gains):
        if form == "parallel":
            pid = policies.PID(kp=gains[0], ki=gains[1], kd=gains[2], u_min=-3.0, u_max=3.0)
        else:
            pid = policies.PID.standard(kp=gains[0], ti=gains[1], td=gains[2], u_min=-3.0, u_max=3.0)
        memory, found = pid.memory.initial, []
        for y in (0.0, 0.3, 0.5, 0.6):
            u, memory = pid(policies.Inputs.of([y], [1.0], dt=H), memory, pid.theta)
            found.append(u)
        return jnp.concatenate(found)

    batch = jnp.array([[2.0, 1.0, 0.1], [4.0, 0.5, 0.01], [-1.0, -2.0, -0.3]])
    if form == "standard":
        batch = jnp.abs(batch)
    expected = jnp.stack([controls(gains.tolist()) for gains in batch])
    # XLA may join operations, which changes the last bits.
    np.testing.assert_allclose(jax.jit(jax.vmap(controls))(batch), expected, rtol=1e-13)
    slope = jax.jit(jax.jacfwd(controls))(batch[0])
    steps = 1e-6 * np.eye(3)
    differences = [(controls(batch[0] + step) - controls(batch[0] - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(slope, np.stack(differences, axis=1), rtol=1e-7, atol=1e-7)  # 1e-16 / 1e-6 and h²


def test_a_gain_of_zero_is_left_out_while_jax_traces():
    made = jax.jit(lambda kp: policies.PID(kp=kp, ki=0.0).theta)(2.0)
    assert set(made) == {"log_kp"}
    with pytest.raises(st.ArgumentError, match="kd: expected a gain other than 0 on every axis"):
        jax.jit(lambda kp: policies.PID(kp=kp, kd=[1.0, 0.0]).theta)(2.0)
