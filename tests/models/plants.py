"""The models that many tests run, and rollouts of a model."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from selftune import models

FIRST = dict(gain=2.0, time_constant=0.5)
SECOND = dict(gain=-1.5, natural_frequency=12.0, damping=0.3)
MOTOR = dict(
    resistance=1.2, torque_constant=0.04, rotor_inertia=2e-5, load_inertia=3e-3, gear_ratio=20.0, viscous_friction=0.01
)
DRIVE = dict(motor_inertia=0.002, load_inertia=0.004, stiffness=80.0, damping=0.01)
TANK = dict(volume=0.05, flow=1e-5, loss=8.0, max_power=3000.0, inlet_temperature=12.0)
ALL = (models.Load(), models.GainError())

MODELS = {
    "first order": lambda **s: models.FirstOrder(**FIRST, dt=0.01, **s),
    "second order": lambda **s: models.SecondOrder(**SECOND, dt=0.01, **s),
    "double integrator": lambda **s: models.DoubleIntegrator(mass=2.0, dt=0.01, **s),
    "motor": lambda **s: models.DCMotor(**MOTOR, dt=0.002, **s),
    "motor position": lambda **s: models.DCMotor(**MOTOR, dt=0.002, output="position", **s),
    "motor inductance": lambda **s: models.DCMotor(
        **MOTOR, dt=0.002, inductance=2e-3, output=("speed", "position"), **s
    ),
    "two mass": lambda **s: models.TwoMass(**DRIVE, dt=0.001, **s),
    "two mass angles": lambda **s: models.TwoMass(**DRIVE, dt=0.001, output=("motor_angle", "load_angle"), **s),
    "tank": lambda **s: models.HeatedTank(**TANK, dt=5.0, **s),
    "cart-pole": lambda **s: models.CartPole(dt=0.02, output=("position", "angle"), **s),
    "state space": lambda **s: models.StateSpace(
        [[0.0, 1.0], [-4.0, -2.0]], [[0.0, 1.0], [4.0, 0.5]], [[1.0, 0.0], [0.3, 0.2]], dt=0.1, **s
    ),
}
LINEAR = [name for name in MODELS if name not in {"cart-pole"}]


@eqx.filter_jit
def rollout(model, x, controls, f=None, t=0):
    """The states x_0, …, x_T for controls (T, m)."""
    f = jnp.zeros(model.residual(x, model.a_hat, t).shape, x.dtype) if f is None else f

    def step(x, u):
        following = model.dynamics(x, u, f, t)
        return following, following

    return jnp.concatenate([x[None], jax.lax.scan(step, x, controls)[1]])


def typical(model, rng, *shape):
    """Random controls, states and parameters of typical size."""
    sizes = [[one.scale for one in signals] for signals in (model.states, model.controls)]
    x = np.asarray(model.x0) + 0.3 * rng.standard_normal(len(sizes[0])) * sizes[0]
    u = 0.5 * rng.standard_normal((*shape, len(sizes[1]))) * sizes[1]
    low, high = np.asarray(model.a_constraint.low), np.asarray(model.a_constraint.high)
    return jnp.asarray(x), jnp.asarray(u), jnp.asarray(low + (high - low) * rng.random(len(low)) * 0.9)
