"""The cart-pole against SciPy's integrator, its energy, and its linearization."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from selftune import models
from tests.models.plants import rollout

SETTINGS = dict(cart_mass=0.8, pole_mass=0.3, length=0.4, cart_friction=0.2, pivot_friction=0.01)
START = np.array([0.1, -0.4, 0.7, 1.5])
CONTROLS = np.array([3.0, -5.0, 1.0, 4.0, -2.0])


def textbook(x, force, M, m, l, I, b, c, g=9.81):  # noqa: E741
    """The two equations of motion, solved for the accelerations by NumPy."""
    _, v, angle, w = x
    cos, sin = np.cos(angle), np.sin(angle)
    mass = np.array([[M + m, m * l * cos], [m * l * cos, I + m * l**2]])
    right = np.array([force - b * v + m * l * w**2 * sin, m * g * l * sin - c * w])
    acceleration, angular = np.linalg.solve(mass, right)
    return [v, acceleration, w, angular]


PHYSICS = dict(M=0.8, m=0.3, l=0.4, I=0.3 * 0.4**2 / 3, b=0.2, c=0.01)


def reference(dt):
    x = START
    for u in CONTROLS:
        x = solve_ivp(
            lambda t, x, u=u: textbook(x, u, **PHYSICS), (0, dt), x, method="DOP853", rtol=1e-12, atol=1e-13
        ).y[:, -1]
    return x


def end(integrator, dt, **settings):
    model = models.CartPole(dt, **SETTINGS, **settings, integrator=integrator)
    return np.asarray(rollout(model, jnp.asarray(START), jnp.asarray(CONTROLS)[:, None])[-1])


@pytest.mark.parametrize(("integrator", "order"), [(models.Euler, 1), (models.RK4, 4)])
def test_order_of_convergence(integrator, order):
    expected = reference(0.1)
    errors = [np.max(np.abs(end(integrator(n), 0.1) - expected)) for n in (8, 16)]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.35)


def test_against_solve_ivp():
    np.testing.assert_allclose(end(models.RK4(32), 0.1), reference(0.1), atol=1e-9)  # (h = 3 ms)⁴ times its constant


def test_a_point_mass_on_a_light_cart_falls_as_written():
    """No inertia about the center of mass: the other value of the argument."""
    physics = PHYSICS | {"I": 0.0}
    model = models.CartPole(0.1, **SETTINGS, pole_inertia=0.0)
    got = model.derivative(jnp.asarray(START), jnp.array([2.0]), jnp.array([0.5]))
    np.testing.assert_allclose(got, textbook(START, 2.5, **physics), rtol=1e-13)


def test_energy_is_constant_without_friction():
    model = models.CartPole(0.01, cart_mass=0.8, pole_mass=0.3, length=0.4, integrator=models.RK4(4))
    x = np.asarray(rollout(model, jnp.asarray(START), jnp.zeros((500, 1))))
    _, v, angle, w = x.T
    M, m, l, I = 0.8, 0.3, 0.4, 0.3 * 0.4**2 / 3  # noqa: E741
    kinetic = 0.5 * (M + m) * v**2 + m * l * v * w * np.cos(angle) + 0.5 * (I + m * l**2) * w**2
    energy = kinetic + m * 9.81 * l * np.cos(angle)
    np.testing.assert_allclose(energy, energy[0], rtol=1e-7)  # 5 s of RK4 with h = 2.5 ms
    momentum = (M + m) * v + m * l * w * np.cos(angle)
    np.testing.assert_allclose(momentum, momentum[0], atol=1e-8)


def test_upright_and_hanging_are_equilibria():
    model = models.CartPole(0.02)
    for angle in (0.0, np.pi):
        x = jnp.array([0.3, 0.0, angle, 0.0])
        np.testing.assert_allclose(model.dynamics(x, jnp.zeros(1), jnp.zeros(1), 0), x, atol=1e-15)
    upright = np.linalg.eigvals(np.asarray(jax.jacfwd(model.derivative)(model.x0, jnp.zeros(1), jnp.zeros(1))))
    # θ'' = m g l (M + m) θ / ((I + m l²)(M + m) - (m l)²)
    M, m, l = 1.0, 0.1, 0.5  # noqa: E741
    pole = np.sqrt(m * 9.81 * l * (M + m) / (4 / 3 * m * l**2 * (M + m) - (m * l) ** 2))
    assert max(upright.real) == pytest.approx(pole, rel=1e-9)
