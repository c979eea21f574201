"""Wrong arguments are refused by an error that names the argument."""

import jax
import numpy as np
import pytest

import selftune as st
from selftune import models
from tests.models.plants import DRIVE, FIRST, MODELS, MOTOR, SECOND, TANK

pytestmark = pytest.mark.usefixtures("as_a_user")

WRONG = [
    *(("gain", models.FirstOrder, FIRST, value) for value in (0.0, np.inf, "2", [1.0, 2.0])),
    ("time_constant", models.FirstOrder, FIRST, -0.5),
    ("dt", models.FirstOrder, FIRST, 0.0),
    ("rated_input", models.FirstOrder, FIRST, 0.0),
    ("unknown", models.FirstOrder, FIRST, ()),
    ("unknown", models.FirstOrder, FIRST, ("load",)),
    ("unknown", models.FirstOrder, FIRST, (models.Coulomb(),)),  # no velocity
    ("integrator", models.FirstOrder, FIRST, "exact"),
    ("integrator", models.FirstOrder, FIRST, models.Sampled()),
    ("natural_frequency", models.SecondOrder, SECOND, 0.0),
    ("damping", models.SecondOrder, SECOND, -0.1),
    ("mass", models.DoubleIntegrator, {}, 0.0),
    ("output", models.DoubleIntegrator, {"mass": 1.0}, "speed"),
    ("output", models.DoubleIntegrator, {"mass": 1.0}, ()),
    *((name, models.DCMotor, MOTOR, -1.0) for name in (*MOTOR, "inductance", "rated_voltage")),
    ("output", models.DCMotor, MOTOR, "angle"),
    ("unknown", models.DCMotor, MOTOR, (models.Gravity(),)),  # no position
    *((name, models.TwoMass, DRIVE, -1.0) for name in (*DRIVE, "rated_torque", "rated_speed")),
    *((name, models.HeatedTank, TANK, -1.0) for name in ("volume", "flow", "loss", "max_power", "heat_capacity")),
    ("loss", models.HeatedTank, TANK | {"flow": 0.0}, 0.0),
    ("inlet_temperature", models.HeatedTank, TANK, np.nan),
    *((name, models.CartPole, {}, -1.0) for name in ("cart_mass", "pole_mass", "length", "pole_inertia", "gravity")),
    *((name, models.CartPole, {}, -1.0) for name in ("cart_friction", "pivot_friction", "rated_force")),
    ("integrator", models.CartPole, {}, models.Exact()),
    ("output", models.CartPole, {}, "angel"),
    ("A", models.StateSpace, dict(B=[[1.0]], C=[[1.0]]), [[1.0, 2.0]]),
    ("B", models.StateSpace, dict(A=[[1.0]], C=[[1.0]]), [1.0]),
    ("C", models.StateSpace, dict(A=[[1.0]], B=[[1.0]]), [[1.0, 2.0]]),
    ("states", models.StateSpace, dict(A=[[1.0]], B=[[1.0]], C=[[1.0]]), ("x",)),
]


@pytest.mark.parametrize(("name", "make", "settings", "value"), WRONG)
def test_models(name, make, settings, value):
    with pytest.raises(st.ArgumentError) as error:
        make(**{"dt": 0.01} | settings | {name: value})
    assert error.value.argument == name


FEATURES = [
    ("bound", lambda: models.Load(bound=0.0)),
    ("bound", lambda: models.GainError(1.0)),
    ("width", lambda: models.Coulomb(width=-1.0)),
    ("speed", lambda: models.Stribeck(0.0)),
    ("state", lambda: models.Viscous(state=3)),
    ("state", lambda: models.CartPole(0.02, unknown=(models.Viscous(state="speed"),))),
    ("key", lambda: models.RandomFourier(0, state="position", length=1.0)),
    ("length", lambda: models.RandomFourier(jax.random.key(0), state="position", length=[1.0, 2.0])),
    ("count", lambda: models.RandomFourier(jax.random.key(0), state="position", length=1.0, count=0)),
    ("centers", lambda: models.RadialBasis([[1.0, 2.0]], width=1.0, state="position")),
    ("width", lambda: models.RadialBasis([1.0], width=0.0, state="position")),
    ("weights", lambda: models.LastLayer([], [])),
    ("weights", lambda: models.LastLayer([np.ones((2, 2)), np.ones((2, 3))], [np.ones(2), np.ones(2)])),
    ("biases", lambda: models.LastLayer([np.ones((2, 2))], [np.ones(3)])),
    ("activation", lambda: models.LastLayer([np.ones((2, 2))], [np.ones(2)], activation="tanh")),
    ("weights", lambda: MODELS["cart-pole"](unknown=(models.LastLayer([np.ones((2, 2))], [np.ones(2)]),))),
    ("substeps", lambda: models.RK4(0)),
    ("substeps", lambda: models.Euler(1.5)),
    ("model", lambda: models.Delayed(3, 2)),
    ("samples", lambda: models.Delayed(MODELS["tank"](), 0)),
    ("model", lambda: models.Quantized(None, 0.1)),
    ("resolution", lambda: models.Quantized(MODELS["tank"](), 0.0)),
    ("resolution", lambda: models.Quantized(MODELS["tank"](), [0.1, 0.2])),
    ("time_constants", lambda: models.SecondOrder.from_time_constants(1.0, (0.1,), dt=0.1)),
    ("dt", lambda: jax.jit(lambda dt: models.FirstOrder(1.0, 1.0, dt).x0)(0.1)),
]


@pytest.mark.parametrize(("name", "make"), FEATURES)
def test_features_integrators_and_wrappers(name, make):
    with pytest.raises(st.ArgumentError) as error:
        make()
    assert error.value.argument == name


def test_a_misspelled_state_gets_a_suggestion():
    with pytest.raises(st.ArgumentError, match=r"did you mean angle\?"):
        models.CartPole(0.02, output="angel")
