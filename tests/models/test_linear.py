"""Linear models against python-control: sampling, responses, steady states."""

from typing import Any

import control as python_control
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import selftune as st
from selftune import models
from selftune.models.integrators import hold_integral
from tests.models.plants import DRIVE, FIRST, LINEAR, MODELS, MOTOR, SECOND, TANK, rollout, typical

control: Any = python_control  # its annotations say that a transfer function may be None

CLOSE = 1e-9
"""Of the largest number: rounding, amplified over a few hundred steps."""


def assert_close(got, expected, tolerance=CLOSE):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.max(np.abs(expected)))


def first():
    return control.tf([FIRST["gain"]], [FIRST["time_constant"], 1.0])


def second():
    wn = SECOND["natural_frequency"]
    return control.tf([SECOND["gain"] * wn**2], [1.0, 2 * SECOND["damping"] * wn, wn**2])


def motor(inductance):
    """From the voltage to the speed, as a textbook writes the transfer function."""
    k = MOTOR["torque_constant"] * MOTOR["gear_ratio"]
    inertia = MOTOR["load_inertia"] + MOTOR["gear_ratio"] ** 2 * MOTOR["rotor_inertia"]
    electrical = control.tf([1.0], [inductance, MOTOR["resistance"]])
    mechanical = control.tf([1.0], [inertia, MOTOR["viscous_friction"]])
    return control.feedback(k * electrical * mechanical, k)


def drive(output):
    """Motor torque to the speed of motor or load: the shaft's impedance between two inertias."""
    s = control.tf("s")
    jm, jl, shaft = DRIVE["motor_inertia"], DRIVE["load_inertia"], DRIVE["stiffness"] / s + DRIVE["damping"]
    load = shaft / (jl * s + shaft)  # load speed for motor speed
    motor = 1 / (jm * s + jl * s * load)
    return control.minreal(motor * load if output == "load_speed" else motor, verbose=False)


SISO = {
    "first order": (MODELS["first order"](), first()),
    "second order": (MODELS["second order"](), second()),
    "two lags": (
        models.SecondOrder.from_time_constants(3.0, (0.4, 0.03), dt=0.02),
        3.0 * control.tf([1], [0.4, 1]) * control.tf([1], [0.03, 1]),
    ),
    "double integrator": (MODELS["double integrator"](), control.tf([1.0], [2.0, 0.0, 0.0])),
    "motor": (MODELS["motor"](), motor(0.0)),
    "motor with inductance": (models.DCMotor(**MOTOR, dt=0.002, inductance=2e-3), motor(2e-3)),
    "motor position": (MODELS["motor position"](), motor(0.0) * control.tf([1], [1, 0])),
    "two mass": (MODELS["two mass"](), drive("load_speed")),
    "two mass, motor": (models.TwoMass(**DRIVE, dt=0.001, output="motor_speed"), drive("motor_speed")),
}


@pytest.mark.parametrize("name", SISO)
def test_responses_are_those_of_control(name):
    """The exact sampling, driven by a random control that is constant between samples."""
    model, transfer = SISO[name]
    u = np.random.default_rng(0).standard_normal(200)
    sampled = control.sample_system(transfer, model.dt, method="zoh")
    expected = control.forced_response(sampled, np.arange(200) * model.dt, u).outputs
    x = rollout(model, model.x0, jnp.asarray(u)[:, None])
    assert_close(jax.vmap(model.output)(x[:-1])[:, 0], expected)


@pytest.mark.parametrize("name", LINEAR)
def test_sampled_matrices_are_those_of_control(name):
    model = MODELS[name]()
    rest, nothing = model.x0, jnp.zeros(len(model.controls))
    at = jnp.full(len(model.controls), 0.3 * model.controls[0].scale)  # inside the heater's limits
    A = jax.jacfwd(model.derivative)(rest, at, nothing)
    B = jax.jacfwd(lambda u: model.derivative(rest, u, nothing))(at)
    C = np.asarray(model.output_matrix)
    sampled = control.ss(np.asarray(A), np.asarray(B), C, 0 * C @ np.asarray(B)).sample(model.dt)
    f = jnp.zeros(len(model.controls))
    assert_close(jax.jacfwd(lambda x: model.dynamics(x, at, f, 0))(rest), sampled.A, 1e-12)
    assert_close(jax.jacfwd(lambda u: model.dynamics(rest, u, f, 0))(at), sampled.B, 1e-11)


@pytest.mark.parametrize("seed", range(3))
def test_from_control(seed):
    np.random.seed(seed)  # noqa: NPY002 (control.rss draws from NumPy's global generator)
    system = control.rss(4, 2, 2, strictly_proper=True)
    model = models.StateSpace.from_control(system, dt=0.05)
    assert [one.name for one in model.states] == system.state_labels
    assert [one.name for one in model.controls] == system.input_labels
    assert [one.name for one in model.outputs] == system.output_labels
    u = np.random.default_rng(seed).standard_normal((100, 2))
    expected = control.forced_response(system.sample(0.05), np.arange(100) * 0.05, u.T)
    x = rollout(model, model.x0, jnp.asarray(u))
    assert_close(jax.vmap(model.output)(x[:-1]).T, expected.outputs)
    already = models.StateSpace.from_control(system.sample(0.05), dt=0.05)
    assert isinstance(already.integrator, models.Sampled)
    assert_close(rollout(already, model.x0, jnp.asarray(u)), x, 1e-12)


def test_from_a_transfer_function():
    transfer = control.tf([1.0, 3.0], [1.0, 0.4, 2.0, 0.5])
    model = models.StateSpace.from_control(transfer, dt=0.1)
    expected = control.step_response(transfer.sample(0.1), np.arange(150) * 0.1).outputs
    x = rollout(model, model.x0, jnp.ones((149, 1)))
    assert_close(jax.vmap(model.output)(x)[:, 0], expected)


def test_from_control_refuses_what_does_not_fit():
    with pytest.raises(st.ArgumentError, match="sys: expected a StateSpace or TransferFunction"):
        models.StateSpace.from_control(3.0, dt=0.1)
    with pytest.raises(st.ArgumentError, match="sys: expected a strictly proper system"):
        models.StateSpace.from_control(control.tf([1.0, 2.0], [1.0, 1.0]), dt=0.1)
    with pytest.raises(st.ArgumentError, match=r"dt: expected the sampling period of the system, 0\.2"):
        models.StateSpace.from_control(control.tf([1.0], [1.0, 0.5], 0.2), dt=0.1)


@pytest.mark.parametrize(
    ("name", "u", "expected"),
    [
        ("first order", 1.5, [3.0]),
        ("second order", 2.0, [-3.0, 0.0]),
        # k N (u - k N ω) / R = b ω
        ("motor", 24.0, [24.0 * 0.8 / 1.2 / (0.01 + 0.8**2 / 1.2)]),
        # The heat that leaves is 10⁻⁵ · 4.18·10⁶ + 8 = 49.8 W/K.
        ("tank", 1000.0, [(41.8 * 12.0 + 8.0 * 20.0 + 1000.0) / 49.8]),
        ("tank", 5000.0, [(41.8 * 12.0 + 8.0 * 20.0 + 3000.0) / 49.8]),
        ("tank", -100.0, [(41.8 * 12.0 + 8.0 * 20.0) / 49.8]),
    ],
)
def test_steady_states(name, u, expected):
    """In closed form; a rollout of 40 time constants ends there, as exp(-40) is below rounding."""
    model = MODELS[name]()
    slowest = {"first order": 0.5, "second order": 1 / 3.6, "motor": 0.05, "tank": 4197.0}[name]
    steps = int(40 * slowest / model.dt)
    end = rollout(model, model.x0, jnp.full((steps, 1), u))[-1]
    np.testing.assert_allclose(end, expected, atol=1e-9 * max(map(abs, expected)))


def test_the_tank_rests():
    model = MODELS["tank"]()
    assert_close(rollout(model, model.x0, jnp.zeros((5, 1))), np.tile(model.x0, (6, 1)), 1e-14)
    assert_close(model.time_constant, TANK["volume"] * 4.18e6 / 49.8, 1e-14)


def test_momentum_and_energy_of_the_two_masses():
    """Without damping and torque, both are constant: the exact sampling keeps them to rounding."""
    settings = DRIVE | {"damping": 0.0}
    model = models.TwoMass(**settings, dt=0.001)
    x = rollout(model, jnp.array([30.0, -20.0, 0.1]), jnp.zeros((2000, 1)))
    motor, load, twist = np.asarray(x).T
    jm, jl, c = DRIVE["motor_inertia"], DRIVE["load_inertia"], DRIVE["stiffness"]
    energy = 0.5 * jm * motor**2 + 0.5 * jl * load**2 + 0.5 * c * twist**2
    assert_close(energy, np.full(2001, energy[0]), 1e-11)
    momentum = jm * motor + jl * load
    assert_close(momentum, np.full(2001, momentum[0]), 1e-11)
    # It swings with the resonance: a period later the state is the same, up to the sampling.
    w = float(model.resonance)
    np.testing.assert_allclose(w, np.sqrt(c * (1 / jm + 1 / jl)))
    t = np.arange(2001) * 0.001
    relative = (motor - load)[0] * np.cos(w * t) - 0.1 * w * np.sin(w * t)
    assert_close(motor - load, relative, 1e-10)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize(("integrator", "order"), [(models.Euler, 1), (models.RK4, 4)])
def test_integrators_converge_to_the_exact_step(name, integrator, order):
    rng = np.random.default_rng(3)
    exact = MODELS[name]()
    x, u, _ = typical(exact, rng)
    u = jnp.abs(u)
    f = jnp.zeros(len(exact.controls))
    size = np.array([one.scale for one in exact.states])
    errors = []
    for substeps in (16, 32):
        model = MODELS[name](integrator=integrator(substeps))
        errors.append(np.max(np.abs(model.dynamics(x, u, f, 0) - exact.dynamics(x, u, f, 0)) / size))
    if errors[1] > 1e-13:  # else rounding alone is left: RK4 is exact for a double integrator
        assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.25)
    else:
        assert order == 4


@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 30.0])
def test_the_hold_integral(scale):
    """Against SciPy's matrix exponential, with known values and with traced values."""
    A = scale * np.random.default_rng(0).standard_normal((4, 4)) - scale * 2 * np.eye(4)
    block = np.block([[A, np.eye(4)], [np.zeros((4, 8))]])
    expected = scipy.linalg.expm(block * 0.7)[:4, 4:]
    assert_close(hold_integral(A, 0.7), expected, 1e-12)
    # 21 doublings, each of which adds a rounding error
    assert_close(jax.jit(hold_integral)(A, 0.7), expected, 1e-11)
    assert_close(hold_integral(np.zeros((2, 2)), 0.7), 0.7 * np.eye(2), 1e-16)


def test_models_are_made_inside_traced_code():
    """A plant's parameter as the argument of a derivative: finite differences agree."""

    def end(inertia):
        settings = MOTOR | {"load_inertia": inertia}
        model = models.DCMotor(**settings, dt=0.002, inductance=2e-3)
        x = model.x0
        for _ in range(5):
            x = model.dynamics(x, jnp.array([10.0]), jnp.zeros(1), 0)
        return x[0]

    slope = jax.jit(jax.grad(end))(0.003)
    h = 1e-6  # the cube root of rounding, relative to the inertia
    assert float(slope) == pytest.approx((float(end(0.003 + h)) - float(end(0.003 - h))) / (2 * h), rel=1e-5)


def test_an_output_at_rest_that_is_not_zero(as_a_user):
    model = models.FirstOrder(**FIRST, dt=0.01, rest=20.0, units=("%", "°C"))
    zero = models.FirstOrder(**FIRST, dt=0.01)
    u, f = jnp.array([0.7]), jnp.array([0.2])
    np.testing.assert_allclose(model.dynamics(model.x0, 0 * u, 0 * f, 0), 20.0, rtol=1e-12)
    # The same motion as that of the model without a rest, 20 above it.
    np.testing.assert_allclose(
        model.dynamics(jnp.array([23.0]), u, f, 0), 20 + zero.dynamics(jnp.array([3.0]), u, f, 0)
    )
    assert [one.unit for one in (*model.controls, *model.outputs)] == ["%", "°C"]
    loop = st.Loop(model, st.policies.PID(kp=1.0, ki=0.5, u_min=0.0, u_max=100.0))
    assert loop.margins().is_stable
    with pytest.raises(st.ArgumentError, match="units: expected the units of u and of the output"):
        models.FirstOrder(**FIRST, dt=0.01, units="%")  # pyright: ignore[reportArgumentType]
    with pytest.raises(st.ArgumentError, match="rest: expected a finite number, got nan"):
        models.FirstOrder(**FIRST, dt=0.01, rest=np.nan)
