from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import arguments
from . import continuous
from .base import Signal, sampling_period, signal
from .continuous import AbstractContinuousModel
from .features import AbstractFeature, Coulomb, Load, Viscous
from .integrators import RK4, AbstractIntegrator
from .unknown import Unknown


class CartPole(AbstractContinuousModel):
    r"""A pole on a cart that a force moves. The angle θ is 0 if the pole stands upright.

    $$(M + m)\ddot p + m l (\ddot\theta \cos\theta - \dot\theta^2 \sin\theta) = u + f - b \dot p$$
    $$(I + m l^2)\ddot\theta + m l\,\ddot p \cos\theta = m g l \sin\theta - c\,\dot\theta$$

    The residual f is the unknown force on the cart.

    **Arguments:**

    - `dt`: the sampling period in seconds.
    - `cart_mass`, `pole_mass`: M, m in kg; `length`: l in m, from the pivot to the pole's center of mass.
    - `pole_inertia`: I in kg·m², about the center of mass; None means a uniform rod, $m l^2 / 3$.
    - `cart_friction`, `pivot_friction`: b in N·s/m and c in N·m·s/rad, the known friction; `gravity`: g in m/s².
    - `rated_force`: the typical force in N.
    - `output`: the controlled states, one or more of "position", "velocity", "angle" and "angular_velocity". The
      default reference of a `Loop` moves the first one.
    - `unknown`: the features of the residual, with the cart's velocity; `integrator`: `RK4` or `Euler`.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> model = models.CartPole(dt=0.02)
        >>> leaning = jnp.array([0.0, 0.0, 0.1, 0.0])
        >>> falling = model.dynamics(leaning, jnp.zeros(1), jnp.zeros(1), 0)
        >>> bool(falling[2] > 0.1)
        True
    """

    cart_mass: Array
    pole_mass: Array
    length: Array
    pole_inertia: Array
    cart_friction: Array
    pivot_friction: Array
    gravity: Array
    rated_force: Array
    output_matrix: Array
    unknown: Unknown
    integrator: AbstractIntegrator
    output_names: tuple[str, ...] = eqx.field(static=True)
    dt: float = eqx.field(static=True)

    def __init__(
        self,
        dt: float,
        *,
        cart_mass: Any = 1.0,
        pole_mass: Any = 0.1,
        length: Any = 0.5,
        pole_inertia: Any = None,
        cart_friction: Any = 0.0,
        pivot_friction: Any = 0.0,
        gravity: Any = 9.81,
        rated_force: Any = 10.0,
        output: str | tuple[str, ...] = "position",
        unknown: tuple[AbstractFeature, ...] = (Load(), Viscous(), Coulomb()),
        integrator: AbstractIntegrator = RK4(),  # noqa: B008 (a constant)
    ):
        self.cart_mass = arguments.positive("cart_mass", cart_mass)
        self.pole_mass = arguments.positive("pole_mass", pole_mass)
        self.length = arguments.positive("length", length)
        rod = self.pole_mass * self.length**2 / 3
        self.pole_inertia = rod if pole_inertia is None else arguments.non_negative("pole_inertia", pole_inertia)
        self.cart_friction = arguments.non_negative("cart_friction", cart_friction)
        self.pivot_friction = arguments.non_negative("pivot_friction", pivot_friction)
        self.gravity = arguments.positive("gravity", gravity)
        self.rated_force = arguments.positive("rated_force", rated_force)
        self.dt = sampling_period(dt)
        self.output_names = continuous.output_names(output, tuple(one.name for one in self.states))
        self.output_matrix = continuous.selection(self.states, self.output_names, self.cart_mass.dtype)
        self.unknown = Unknown(
            unknown, states=self.states, loads=self.controls, position="position", velocity="velocity"
        )
        self.integrator = self.prepared(integrator, linear=False)

    @property
    def states(self) -> tuple[Signal, ...]:
        pendulum = jnp.sqrt(self.gravity / self.length)  # rad/s
        return (
            signal("position", "m", 2 * self.length),
            signal("velocity", "m/s", 2 * self.length * pendulum),
            signal("angle", "rad", 0.5),
            signal("angular_velocity", "rad/s", 0.5 * pendulum),
        )

    @property
    def controls(self) -> tuple[Signal, ...]:
        return (signal("force", "N", self.rated_force),)

    @property
    def outputs(self) -> tuple[Signal, ...]:
        return continuous.select(self.states, self.output_names)

    @property
    def x0(self) -> Float[Array, " n"]:
        return jnp.zeros(4, self.cart_mass.dtype)

    def derivative(self, x: Float[Array, " n"], u: Float[Array, " m"], load: Float[Array, " m"]) -> Array:
        _, velocity, angle, turning = x
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        total, ml = self.cart_mass + self.pole_mass, self.pole_mass * self.length
        inertia = self.pole_inertia + ml * self.length
        # Cramer's rule for [[total, ml cos], [ml cos, inertia]] (p'', θ'') = (push, twist).
        push = u[0] + load[0] - self.cart_friction * velocity + ml * turning**2 * sin
        twist = ml * self.gravity * sin - self.pivot_friction * turning
        determinant = total * inertia - (ml * cos) ** 2
        acceleration = (inertia * push - ml * cos * twist) / determinant
        angular = (total * twist - ml * cos * push) / determinant
        return jnp.stack([velocity, acceleration, turning, angular])
