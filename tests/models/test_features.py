"""The features of residuals: values, signs, bounds, and their place in the dynamics."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import models
from tests.models.plants import ALL, DRIVE, LINEAR, MODELS, MOTOR, rollout, typical

MASS = 2.0
MATCHED = [name for name in MODELS if name not in {"motor inductance", "two mass", "two mass angles"}]
V = 0.4
VALUES = {
    "load": (models.Load(), [1.0]),
    "gravity": (models.Gravity(), [-np.sin(0.7), -np.cos(0.7)]),
    "viscous": (models.Viscous(), [-V]),
    "coulomb": (models.Coulomb(width=0.1), [-np.tanh(4.0)]),
    "coulomb, default width": (models.Coulomb(), [-np.tanh(V / 0.02)]),
    "stribeck": (models.Stribeck(speed=0.5), [-np.tanh(8.0) * np.exp(-0.64)]),
    "stribeck, width": (models.Stribeck(speed=0.5, width=0.4), [-np.tanh(1.0) * np.exp(-0.64)]),
    "basis": (
        models.RadialBasis([0.5, 1.0], width=0.2, state="position"),
        [np.exp(-0.5), np.exp(-0.5 * (0.3 / 0.2) ** 2)],
    ),
    "basis in the plane": (
        models.RadialBasis([[0.5, 0.0]], width=[0.2, 0.8], state=("position", "velocity")),
        [np.exp(-0.5 * (1.0 + 0.25))],
    ),
    "of another state": (models.Viscous(state="position"), [-0.7]),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    feature, expected = VALUES[name]
    model = models.DoubleIntegrator(MASS, dt=0.01, unknown=(feature,))
    x = jnp.array([0.7, V])
    got = [float(model.residual(x, e, 0)[0]) for e in jnp.eye(len(model.a_hat))]
    np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_friction_takes_energy_from_the_plant():
    friction = (models.Viscous(), models.Coulomb(), models.Stribeck(0.3))
    model = models.DoubleIntegrator(MASS, dt=0.01, unknown=friction)
    for v in (-0.5, -0.01, 0.02, 0.8):
        assert float(model.residual(jnp.array([0.0, v]), jnp.full(3, 0.2), 0)[0]) * v < 0


def test_random_fourier_features_approximate_the_kernel():
    """The Gaussian kernel of the length; the error of D = 4000 features is about 1/√D."""
    feature = models.RandomFourier(jax.random.key(1), state=("position", "velocity"), length=[0.5, 2.0], count=4000)
    a, b = jnp.array([0.1, 0.3]), jnp.array([0.5, -0.4])
    kernel = np.exp(-0.5 * ((0.4 / 0.5) ** 2 + (0.7 / 2.0) ** 2))
    inner = feature.values(a, jnp.ones(2)) @ feature.values(b, jnp.ones(2))
    assert float(inner) == pytest.approx(kernel, abs=4 / np.sqrt(4000))
    again = models.RandomFourier(jax.random.key(1), state=("position", "velocity"), length=[0.5, 2.0], count=4000)
    np.testing.assert_array_equal(again.frequencies, feature.frequencies)


@pytest.mark.parametrize(
    ("activation", "numpy"), [(jnp.tanh, np.tanh), (jax.nn.relu, lambda z: np.maximum(z, 0.0))], ids=["tanh", "relu"]
)
def test_the_last_layer_of_a_network(activation, numpy):
    rng = np.random.default_rng(0)
    W, b = [rng.normal(size=(6, 2)), rng.normal(size=(4, 6))], [rng.normal(size=6), rng.normal(size=4)]
    feature = models.LastLayer(W, b, activation=activation)
    model = models.DoubleIntegrator(MASS, dt=0.01, unknown=(feature,))
    x, a = rng.normal(size=2), rng.normal(size=5)
    expected = a[:4] @ numpy(W[1] @ numpy(W[0] @ x + b[0]) + b[1]) + a[4]
    np.testing.assert_allclose(model.residual(jnp.asarray(x), jnp.asarray(a), 0), [expected], rtol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_every_residual_is_linear_in_a_and_zero_for_the_nominal_model(name):
    model = MODELS[name]()
    x, _, a = typical(model, np.random.default_rng(0))
    assert not np.any(model.residual(x, model.a_hat, 0))
    b = jnp.flip(a)
    np.testing.assert_allclose(
        model.residual(x, 2 * a - 3 * b, 0), 2 * model.residual(x, a, 0) - 3 * model.residual(x, b, 0), rtol=1e-12
    )
    assert bool(model.a_constraint.contains(model.a_hat))
    low, high = model.a_constraint.low, model.a_constraint.high
    assert np.all(np.isfinite(low))
    assert np.all(high > low)
    assert len(model.parameters) == len(low)
    assert [one.scale for one in model.parameters] == np.maximum(np.abs(low), np.abs(high)).tolist()
    assert len({one.name for one in model.parameters}) == len(model.parameters)


@pytest.mark.parametrize("name", MATCHED)
def test_a_matched_load_is_cancelled_by_the_control(name):
    """The control u - f with the residual f has the effect of u without a residual."""
    model = MODELS[name]()
    x, u, _ = typical(model, np.random.default_rng(1))
    u = jnp.abs(u)
    f = 0.1 * u
    np.testing.assert_allclose(model.dynamics(x, u - f, f, 0), model.dynamics(x, u, 0 * f, 0), rtol=1e-12, atol=1e-14)


def test_a_load_elsewhere_is_cancelled_in_the_steady_state():
    """Behind the inductance or the shaft, u - f with f ends in the steady state of u without f."""
    model = models.DCMotor(**MOTOR, inductance=2e-3, dt=0.002)
    u, f = jnp.full((1000, 1), 7.0), jnp.array([2.0])
    ends = [rollout(model, model.x0, u - f, f)[-1], rollout(model, model.x0, u)[-1]]
    assert float(ends[0][0]) == pytest.approx(float(ends[1][0]), rel=1e-12)
    assert abs(float(rollout(model, model.x0, u, f)[-1, 0] - ends[1][0])) > 1.0
    drive = models.TwoMass(**DRIVE | {"damping": 0.1}, dt=0.001)
    end = rollout(drive, drive.x0, jnp.full((2000, 1), -0.3), jnp.array([0.3]))[-1]
    # It decays as exp(-t d/2 (1/J_m + 1/J_l)), which is exp(-75) here; the shaft carries the torque.
    np.testing.assert_allclose(end, [0.0, 0.0, -0.3 / DRIVE["stiffness"]], atol=1e-12)


@pytest.mark.parametrize("name", LINEAR)
def test_a_gain_error_scales_the_control(name):
    model = MODELS[name](unknown=ALL)
    x, u, _ = typical(model, np.random.default_rng(2))
    u, m = 0.5 * jnp.abs(u), len(model.controls)
    f = model.residual(x, jnp.concatenate([jnp.zeros(m), jnp.full(m, 0.3)]), 0)
    np.testing.assert_array_equal(f, jnp.concatenate([jnp.zeros(m), jnp.full(m, 0.3)]))
    np.testing.assert_allclose(model.dynamics(x, u, f, 0), model.dynamics(x, 1.3 * u, 0 * f, 0), rtol=1e-12, atol=1e-14)


def test_the_motors_parameters_are_torques():
    """A load of τ N·m at the output shaft accelerates the inertia by τ / J, from standstill and without control."""
    for settings in ({}, {"inductance": 2e-3}):
        model = models.DCMotor(**MOTOR, dt=1e-4, **settings)
        f = model.residual(model.x0, jnp.array([0.5, 0.0, 0.0]), 0)
        inertia = 3e-3 + 20.0**2 * 2e-5
        rate = model.derivative(model.x0, jnp.zeros(1), f)
        assert float(rate[0]) == pytest.approx(0.5 / inertia, rel=1e-12)
    assert [one.unit for one in model.parameters] == ["N·m", "N·m/(rad/s)", "N·m"]
    assert model.parameters[0].scale == pytest.approx(24.0 * 0.8 / 1.2)  # the stall torque at the rated voltage


def test_gravity_holds_the_lever_where_mechanics_says():
    """The torque m g l sin(q) is held by the voltage that gives the opposite torque."""
    model = models.DCMotor(**MOTOR, dt=0.002, output="position", unknown=(models.Gravity(),))
    x, a = jnp.array([0.6, 0.0]), jnp.array([1.5, 0.0])
    f = model.residual(x, a, 0)
    hold = jnp.array([1.5 * np.sin(0.6) * 1.2 / 0.8])
    np.testing.assert_allclose(model.dynamics(x, hold, f, 0), x, atol=1e-15)


def test_names_of_several_features_and_controls():
    unknown = (models.Coulomb(), models.Coulomb(state="angular_velocity"), models.Load())
    model = models.CartPole(0.02, unknown=unknown)
    assert [one.name for one in model.parameters] == ["coulomb", "coulomb_2", "load"]
    signals = (models.Signal("valve", "%", 50.0), models.Signal("heater", "W", 900.0))
    model = models.StateSpace([[-1.0]], [[1.0, 2.0]], [[1.0]], dt=0.1, controls=signals, unknown=ALL)
    assert model.parameters == (
        models.Signal("load[0]", "%", 50.0),
        models.Signal("load[1]", "W", 900.0),
        models.Signal("gain_error[0]", "1", 0.5),
        models.Signal("gain_error[1]", "1", 0.5),
    )
    f = model.residual(model.x0, jnp.arange(4.0), 0)
    np.testing.assert_array_equal(f, [0.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("estimator", [st.GradientEstimator(0.3), st.RLS(1.0, 100.0)], ids=["gradient", "rls"])
def test_an_estimator_finds_friction_and_load_from_transitions(estimator):
    """The residual is not measured: it is inferred from the states, as an Agent does."""
    model = models.DoubleIntegrator(MASS, dt=0.05, unknown=(models.Load(), models.Viscous()))
    truth = jnp.array([0.4, 0.7])
    system = st.System(
        dynamics=model.dynamics,
        residual=model.residual,
        policy=lambda x, theta, f, t: -theta * x[:1],
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    a, state = model.a_hat, estimator.init(system, model.x0, model.a_hat)

    @jax.jit
    def learn(x, u, a, state):
        following = model.dynamics(x, u, model.residual(x, truth, 0), 0)
        f = st.infer_residual(system, x, u, following, 0, f=model.residual(x, a, 0), iterations=1)
        a, state, _ = estimator.update(system, x, f, a, 0, state)
        return a, state

    rng = np.random.default_rng(0)
    for _ in range(300):
        a, state = learn(jnp.asarray(rng.standard_normal(2)), jnp.asarray(rng.standard_normal(1)), a, state)
    np.testing.assert_allclose(a, truth, atol=1e-4)


class Square(models.AbstractFeature):
    """Drag: −a v |v|."""

    state: tuple[str, ...] | None = eqx.field(static=True, default=None)
    reads = "velocity"

    def values(self, z, scale):
        return -z * jnp.abs(z)

    def parameters(self, read, load):
        return (models.Parameter("drag", f"{load.unit}/({read[0].unit})²", 0.0, load.scale / read[0].scale ** 2),)


def test_a_feature_of_your_own():
    model = models.DoubleIntegrator(MASS, dt=0.01, rated_force=8.0, rated_speed=2.0, unknown=(models.Load(), Square()))
    assert isinstance(model.unknown, models.Unknown)
    assert model.parameters[1] == models.Signal("drag", "N/(m/s)²", 2.0)
    assert float(model.residual(jnp.array([0.0, -3.0]), jnp.array([1.0, 0.5]), 0)[0]) == 1.0 + 4.5
