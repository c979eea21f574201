"""Margins of loops against python-control, and against loops with more gain or more delay."""

import functools
import math
import warnings
from typing import Any

import control
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import selftune as st
from selftune import models, policies
from selftune.loop.stability import Linear, growth_time, margins_of

from ..models import robot_texts

PI = {"kp": 1.0, "ki": 2.0}
FIRST = {"gain": 2.0, "time_constant": 0.5}
DRIVE = {"motor_inertia": 0.002, "load_inertia": 0.004, "stiffness": 80.0, "damping": 0.01}
TANK = {"volume": 0.05, "flow": 1e-5, "loss": 8.0, "max_power": 3000.0, "inlet_temperature": 12.0}


def pid_tf(dt, kp, ki=0.0, kd=0.0, tf=0.0) -> Any:
    """The PID's transfer function, from the difference equations in its docstring: forward Euler for the integral, and
    backward Euler for the filtered derivative."""
    parts: Any = control.tf([kp], [1.0], dt)
    if ki:
        parts = parts + control.tf([ki * dt], [1.0, -1.0], dt)
    if kd:
        parts = parts + control.tf([kd, -kd], [tf + dt, -tf], dt)
    return parts


def sampled(numerator, denominator, dt) -> Any:
    return control.sample_system(control.tf(numerator, denominator), dt, method="zoh")


def two_mass_tf(dt):
    """From motor torque to the speed of the load."""
    J, K, k, d = (DRIVE[name] for name in ("motor_inertia", "load_inertia", "stiffness", "damping"))
    # K s² φ_L = (k + d s)(φ_M − φ_L) and J s² φ_M = u − (k + d s)(φ_M − φ_L)
    return sampled([d, k], np.polymul([1.0, 0.0], [J * K, d * (J + K), k * (J + K)]), dt)


def delay(samples, dt):
    return control.tf([1.0], [1.0] + [0.0] * samples, dt)


LOOPS = ("first order", "first order with delay", "second order", "double integrator", "two-mass drive")


@functools.cache
def loops():
    """Each loop, and its open-loop transfer function as python-control makes it."""
    first = models.FirstOrder(**FIRST, dt=0.01)
    first_tf = sampled([FIRST["gain"]], [FIRST["time_constant"], 1.0], 0.01)
    mass = models.DoubleIntegrator(mass=2.0, dt=0.01)
    drive = models.TwoMass(**DRIVE, dt=0.001, output="load_speed")
    second = models.SecondOrder(gain=1.5, natural_frequency=12.0, damping=0.3, dt=0.01)
    second_tf = sampled([1.5 * 144.0], [1.0, 2 * 0.3 * 12.0, 144.0], 0.01)
    return {
        "first order": (st.Loop(first, policies.PID(**PI)), first_tf * pid_tf(0.01, **PI)),
        "first order with delay": (
            st.Loop(models.Delayed(first, 7), policies.PID(**PI)),
            first_tf * delay(7, 0.01) * pid_tf(0.01, **PI),
        ),
        "second order": (st.Loop(second, policies.PID(kp=0.1, ki=1.0)), second_tf * pid_tf(0.01, 0.1, 1.0)),
        "double integrator": (
            st.Loop(mass, policies.PID(kp=20.0, ki=5.0, kd=12.0, derivative_filter=0.05)),
            sampled([0.5], [1.0, 0.0, 0.0], 0.01) * pid_tf(0.01, 20.0, 5.0, 12.0, 0.05),
        ),
        "two-mass drive": (
            st.Loop(drive, policies.PID(kp=0.01, ki=0.02)),
            two_mass_tf(0.001) * pid_tf(0.001, 0.01, 0.02),
        ),
    }


def poles(L):
    return np.abs(control.poles(control.feedback(L, 1)))


def all_margins(L):
    """All gain and phase margins, from the crossings of python-control's frequency response.

    `control.stability_margins` takes the crossings from the roots of polynomials. Poles near 1 cost so many digits
    there that it finds other crossings on other processors.
    """

    def response(w):
        return L(np.exp(1j * w * L.dt))

    def crossings(distance):
        grid = np.geomspace(1e-2, 0.9999 * np.pi / L.dt, 20_000)
        values = distance(grid)
        ends = np.flatnonzero(np.sign(values[:-1]) != np.sign(values[1:]))
        return np.array([scipy.optimize.brentq(distance, grid[i], grid[i + 1], xtol=1e-12) for i in ends])

    at_real = response(crossings(lambda w: response(w).imag))
    at_one = response(crossings(lambda w: np.abs(response(w)) - 1.0))
    return -1.0 / at_real.real[at_real.real < 0], np.degrees(np.angle(-at_one))


def radius_with_delay(L, samples):
    """The spectral radius of the closed loop with this many more samples of delay, as a matrix with a queue."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        A, b, c, _ = (np.asarray(part) for part in control.ssdata(control.tf2ss(L)))
    n = len(A)
    closed = np.zeros((n + samples, n + samples))
    closed[:n, :n] = A if samples else A - b @ c
    if samples:
        closed[:n, [n]] = b
        closed[n : n + samples - 1, n + 1 :] = np.eye(samples - 1)
        closed[[-1], :n] = -c
    return np.max(np.abs(np.linalg.eigvals(closed)))


@pytest.mark.parametrize("name", LOOPS)
class TestAgainstPythonControl:
    def test_gain_and_phase(self, name):
        loop, L = loops()[name]
        found = loop.margins()
        assert found.is_stable
        assert found.spectral_radius == pytest.approx(max(poles(L)), abs=1e-6)
        gains, phases = all_margins(L)
        # A crossing at half the sampling frequency is not among these: the next test finds that one by the closed loop.
        if np.any(gains > 1):
            assert found.gain_margin == pytest.approx(np.min(gains[gains > 1]), rel=1e-6)
        assert found.phase_margin == pytest.approx(np.min(np.abs(phases)), abs=1e-4)
        assert found.gain_reduction == pytest.approx(max((g for g in gains if 1e-4 < g < 1), default=0.0), rel=1e-4)
        assert phases.size

    def test_gain_margin_by_the_closed_loop(self, name):
        loop, L = loops()[name]
        margin = loop.margins().gain_margin
        if math.isfinite(margin):
            assert max(poles(0.999 * margin * L)) < 1 < max(poles(1.001 * margin * L))

    def test_delay_margin_by_brute_force(self, name):
        loop, L = loops()[name]
        samples = loop.margins().delay_margin / loop.plant.dt
        below, above = math.floor(samples), math.ceil(samples)
        assert above > 1
        assert radius_with_delay(L, below) < 1 < radius_with_delay(L, above)


def test_the_margins_of_a_sharp_resonance():
    """A resonance that is much narrower than a grid of frequencies decides the delay margin."""
    w, zeta, small, dt = 0.7, 1e-6, 3e-6, 1.0
    # Velocity feedback of an oscillator: the peak of |L| is small / (2 ζ w) = 2.1, and its width is about 1e-6.
    G = control.sample_system(control.ss([[0, 1], [-(w**2), -2 * zeta * w]], [[0], [1]], [[0, 1]], 0), dt)
    A, B, C = (np.asarray(part) for part in (G.A, G.B, G.C))
    found = margins_of(Linear(A, B, -small * C, dt))
    assert found.is_stable

    def radius(samples):
        """Of the loop with this many samples of delay."""
        n = samples + 2
        closed = np.zeros((n, n))
        closed[:2, :2] = A
        if samples == 0:
            closed[:2, :2] -= small * B @ C
        else:
            closed[:2, [2]] = B
            closed[2 : n - 1, 3:n] = np.eye(samples - 1)
            closed[[n - 1], :2] = -small * C
        return np.max(np.abs(np.linalg.eigvals(closed)))

    samples = found.delay_margin / dt
    assert 0 < samples < math.pi / w
    assert radius(math.floor(samples)) < 1 < radius(math.ceil(samples))


def test_states_that_depend_on_each_other_are_no_instability():
    """The angles of motor and load differ by the twist: one of the five states is redundant."""
    drive = models.TwoMass(**DRIVE, dt=0.001, output=("motor_angle", "load_angle"))
    loop = st.Loop(drive, policies.StateFeedback([[0.01, 0.02, 0.0, 0.5, 0.5]]), full_state=True)
    closed = loop.linearized()
    assert np.max(np.abs(np.linalg.eigvals(closed.A + closed.B @ closed.C))) >= 1 - 1e-9
    assert loop.margins().is_stable


def test_several_controls():
    """Each control alone is raised until the loop with the other control is unstable; the worst one counts."""
    A, B, C = np.array([[-1.0, 0.3], [0.2, -2.0]]), np.array([[1.0, 0.2], [0.0, 3.0]]), np.eye(2)
    dt, k, i = 0.1, np.array([6.0, 4.0]), np.array([3.0, 2.0])
    loop = st.Loop(models.StateSpace(A, B, C, dt=dt), policies.PID(kp=k, ki=i))
    G = control.sample_system(control.ss(A, B, C, np.zeros((2, 2))), dt)
    A, B, C = (np.asarray(part) for part in (G.A, G.B, G.C))

    def radius(factors):
        # x and the integrals I: u = D (−k y + I), I⁺ = I − i h y
        gain = np.diag(factors)
        closed = np.block([[A - B @ gain @ np.diag(k) @ C, B @ gain], [-np.diag(i * dt) @ C, np.eye(2)]])
        return np.max(np.abs(np.linalg.eigvals(closed)))

    found = loop.margins()
    assert found.spectral_radius == pytest.approx(radius([1.0, 1.0]), rel=1e-9)
    edges = []
    for j in range(2):
        factors = np.linspace(1.0, 20.0, 20_001)
        edges.append(next(f for f in factors if radius([f if n == j else 1.0 for n in range(2)]) >= 1))
    assert found.gain_margin == pytest.approx(min(edges), abs=1e-3)  # the grid's step


def cart():
    plant = models.CartPole(dt=0.02, output=("position", "angle"))
    f = plant.residual(plant.x0, plant.a_hat, 0)
    A, B = (np.asarray(part) for part in jax.jacfwd(plant.dynamics, (0, 1))(plant.x0, jnp.zeros(1), f, 0))
    return plant, A, B


def radius_at(A, B, K, degrees):
    return np.max(np.abs(np.linalg.eigvals(A - np.exp(1j * np.radians(degrees)) * B @ K)))


def test_a_plant_that_is_unstable_without_control():
    plant, A, B = cart()
    policy = policies.StateFeedback.lqr(A, B, np.diag([1.0, 0.1, 10.0, 0.1]), [[0.1]])
    K = np.asarray(policy.gains(policy.theta)["K"])
    found = st.Loop(plant, policy, full_state=True).margins()
    L = control.ss(A, B, K, 0, plant.dt)
    gains, phases = all_margins(L)
    assert found.gain_reduction == pytest.approx(max(g for g in gains if g < 1), rel=1e-4)
    assert 0 < found.gain_reduction < 1
    # python-control also finds a pair of crossings that rounding makes near frequency zero, so the eigenvalues decide:
    # a control that is turned by an angle in the complex plane is stable up to the margin, in both directions.
    assert np.min(np.abs(np.abs(phases) - found.phase_margin)) < 1e-3
    turned = [[radius_at(A, B, K, sign * share * found.phase_margin) for sign in (1, -1)] for share in (0.99, 1.01)]
    assert max(turned[0]) < 1 < max(turned[1])

    def radius(factor):
        return np.max(np.abs(np.linalg.eigvals(A - factor * B @ K)))

    assert radius(found.gain_reduction * 1.01) < 1 < radius(found.gain_reduction * 0.99)
    # The upper margin is at half the sampling frequency, which python-control does not count.
    assert radius(found.gain_margin * 0.999) < 1 < radius(found.gain_margin * 1.001)


def test_an_unstable_loop():
    found = st.Loop(models.FirstOrder(**FIRST, dt=0.01), policies.PID(kp=1000.0)).margins()
    assert not found.is_stable
    assert str(found).startswith("UNSTABLE")
    assert (found.gain_margin, found.delay_margin) == (1.0, 0.0)


def test_the_time_in_which_a_deviation_grows():
    assert growth_time(np.diag([0.5, -math.exp(0.1)])) == pytest.approx(10.0, rel=1e-12)
    assert growth_time(np.diag([0.5, 1.0])) == math.inf
    assert growth_time(np.empty((0, 0))) == math.inf


class TestRest:
    """Newton's method finds the state at which a simulation of the loop ends."""

    @pytest.mark.parametrize(
        ("plant", "policy"),
        [
            (models.HeatedTank(**TANK, dt=5.0), policies.PID(kp=200.0, ki=0.5, u_min=0.0, u_max=3000.0)),
            (models.HeatedTank(**TANK, dt=5.0), policies.PID(kp=200.0, u_min=0.0, u_max=3000.0)),
            (
                models.DCMotor(resistance=1.0, torque_constant=0.05, rotor_inertia=1e-4, dt=0.001),
                policies.PID(kp=0.1, ki=1.0, u_min=-24.0, u_max=24.0),
            ),
            (
                models.DCMotor(1.0, 0.05, 1e-4, dt=0.001, output="position", unknown=(models.Viscous(),)),
                policies.PID(kp=5.0, ki=1.0, kd=0.2, u_min=-24.0, u_max=24.0),
            ),
        ],
        ids=["tank, PI", "tank, P", "motor speed", "motor position"],
    )
    def test_equals_the_end_of_a_simulation(self, plant, policy):
        from selftune.loop.stability import _rest

        loop = st.Loop(plant, policy)
        level = plant.output(plant.x0) + 1e-3 * jnp.asarray([one.scale for one in plant.outputs])
        t = st.LoopContext(jnp.zeros((), jnp.int32), level)
        system, theta = loop.system, loop.theta
        found = _rest(system, loop.x, theta, loop.a_hat, t)[0]

        @jax.jit
        def settle(z):
            return jax.lax.fori_loop(0, 40_000, lambda _, z: system.step(z, theta, loop.a_hat, t)[0], z)

        expected = settle(settle(system.first(loop.x)))
        scale = np.maximum(np.abs(np.asarray(expected)), 1e-3)
        np.testing.assert_allclose(found / scale, expected / scale, atol=1e-6)  # the slow end of the transient
        if isinstance(plant, models.HeatedTank):
            assert system.control(found, theta, loop.a_hat, t)[0] > 0, "the heater must be on"


class TestBackOff:
    def loop(self, **gains):
        plant = models.Delayed(models.FirstOrder(**FIRST, dt=0.01), samples=10)
        return st.Loop(plant, policies.PID(**({"kp": 4.0, "ki": 4.0} | gains)))

    @pytest.mark.parametrize(
        ("gain", "phase", "delay"),
        [(1.5, 0.0, 0.1), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(2.0, 0, 0), (1.2, 60.0, 0)])],
    )
    def test_reaches_the_margins_and_not_more(self, gain, phase, delay):
        loop = self.loop()
        theta = loop.back_off(gain_margin=gain, phase_margin=phase, delay_margin=delay)
        found = loop.margins(theta)
        reached = np.array([found.gain_margin, found.phase_margin, found.delay_margin])
        wanted = np.array([gain, phase, delay])
        assert np.all(reached >= wanted)
        # One of the margins is met without a reserve: the bisection ends after 12 halvings of 0.2.
        assert np.any(np.isclose(reached, wanted, rtol=1e-3))
        assert all(float(theta[name]) <= float(loop.theta[name]) for name in theta)

    def test_an_unstable_start(self):
        loop = self.loop(kp=40.0, ki=40.0)
        assert not loop.margins().is_stable
        found = loop.margins(loop.back_off(gain_margin=2.0))
        assert found.gain_margin >= 2.0
        assert found.phase_margin >= 30.0
        assert found.gain_margin < 2.002 or found.phase_margin < 30.1

    def test_only_the_gain_that_is_too_high_falls(self):
        """A mass with too little damping: its phase margin falls if both gains fall together."""
        plant = models.Delayed(models.DoubleIntegrator(mass=1.0, dt=0.01), samples=1)
        loop = st.Loop(plant, policies.PID(kp=200.0, kd=6.0))
        assert loop.margins().phase_margin < 15
        both = {name: value - 1.0 for name, value in loop.theta.items()}
        assert loop.margins(both).phase_margin < loop.margins().phase_margin
        theta = loop.back_off()
        assert loop.margins(theta).phase_margin == pytest.approx(30.0, rel=1e-2)
        assert float(theta["log_kd"]) == pytest.approx(float(loop.theta["log_kd"]))
        assert float(theta["log_kp"]) < float(loop.theta["log_kp"]) - 0.5

    def test_enough_already(self):
        loop = self.loop(kp=0.5, ki=0.5)
        assert loop.back_off(gain_margin=2.0) is loop.theta or loop.back_off(gain_margin=2.0) == loop.theta

    def test_the_observers_gains_stay(self):
        """Lower gains of the feedback give this loop a larger gain margin; the observer has gains in θ, too."""
        plant = models.SecondOrder(gain=1.5, natural_frequency=12.0, damping=0.8, dt=0.01)
        system = control.ss([[0.0, 1.0], [-144.0, -19.2]], [[0.0], [216.0]], [[1.0, 0.0]], 0.0).sample(0.01)
        observer = policies.Luenberger.kalman(system.A, system.C, Q=np.diag([1e-6, 1e-2]), R=[[1e-4]])
        loop = st.Loop(plant, policies.StateFeedback([[1.0, 0.1]]), observer=observer)
        wanted = 1.3 * loop.margins().gain_margin
        theta = loop.back_off(gain_margin=wanted, phase_margin=0.0)
        np.testing.assert_array_equal(theta["observer"]["L"], loop.theta["observer"]["L"])
        change = np.asarray(theta["policy"]["K"] - loop.theta["policy"]["K"])
        assert np.all(change <= 0)
        assert np.any(change < 0)
        assert loop.margins(theta).gain_margin == pytest.approx(wanted, rel=1e-3)  # bisection: 12 halvings of 0.2

    def test_gains_return_toward_a_start_that_has_the_margins(self):
        """Lower gains of a PID from far above a start that is good: the result is no farther than that start."""
        loop = self.loop(kp=1.0, ki=1.0)
        assert loop.back_off() == loop.theta
        high = {"log_kp": loop.theta["log_kp"] + 1.0, "log_ki": loop.theta["log_ki"] + 2.0}
        theta = loop.back_off(high | {k: v for k, v in loop.theta.items() if k not in high})
        found = loop.margins(theta)
        assert found.gain_margin >= 2.0
        assert found.phase_margin >= 30.0
        assert np.hypot(*(float(high[name] - theta[name]) for name in high)) <= np.hypot(1.0, 2.0)

    def test_an_arm_with_unequal_joints(self, tmp_path):
        """Joints with different gains disturb each other. Lower gains alone gave frequencies of 6 and 7 rad/s here."""
        path = tmp_path / "arm.urdf"
        path.write_text(robot_texts.ARM_URDF)
        loop = st.Loop(models.RobotArm.from_file(path, tool="tool0"), policies.ComputedTorque())
        tuned = {"log_damping": jnp.log(jnp.array([0.43, 1.17])), "log_frequency": jnp.log(jnp.array([28.0, 45.0]))}
        before = loop.margins(tuned)
        assert before.gain_margin < 1.5
        assert before.phase_margin < 20
        theta = loop.back_off(tuned)
        found = loop.margins(theta)
        assert found.gain_margin >= 2.0
        assert found.phase_margin >= 30.0
        assert np.all(np.asarray(loop.gains(theta)["frequency"]) > 20.0)
        box = loop.constraint
        assert all(np.all((box.low[k] <= theta[k]) & (theta[k] <= box.high[k])) for k in theta)

    def test_margins_that_no_gain_reaches(self):
        plant, A, B = cart()  # lower gains let the pole fall
        policy = policies.StateFeedback.lqr(A, B, np.diag([1.0, 0.1, 10.0, 0.1]), [[0.1]])
        with pytest.raises(ValueError, match=r"phase_margin, delay_margin: expected margins that lower gains can give"):
            st.Loop(plant, policy, full_state=True).back_off(gain_margin=50.0)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"gain_margin": 0.5}, "gain_margin: expected a number >= 1"),
            ({"phase_margin": 180.0}, "phase_margin: expected degrees from 0 to 180"),
            ({"delay_margin": -1.0}, "delay_margin: expected a number of seconds >= 0"),
        ],
    )
    def test_wrong_arguments(self, wrong, message):
        with pytest.raises(ValueError, match=message):
            self.loop().back_off(**wrong)


def test_margins_need_one_sampling_rate():
    drive = models.DCMotor(1.0, 0.05, 1e-4, dt=0.001, output="position")
    cascade = policies.Cascade(policies.PID(kp=20.0), policies.PID(kp=0.5, ki=1.0), states=(1,), every=(10, 1))
    with pytest.raises(ValueError, match="policy: expected a policy with one sampling rate"):
        st.Loop(drive, cascade).margins()
    same = policies.Cascade(policies.PID(kp=20.0), policies.PID(kp=0.5, ki=1.0), states=(1,))
    assert st.Loop(drive, same).margins().is_stable


def test_the_text_of_margins():
    assert str(st.Margins(2.0, 0.0, 60.0, 0.1, 0.9)) == "gain ×2 up, ×0 down; delay 0.1 s; phase 60°"
