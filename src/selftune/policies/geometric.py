"""The geometric controller of a quadrotor: position → attitude → torques."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..foundation.rotations import rotation_matrix
from ..problem.constraints import AbstractConstraint, Box
from . import base
from .base import AbstractPolicy, Inputs, Parameter
from .robot import with_derivatives


class Geometric(AbstractPolicy):
    r"""A controller on SE(3) for a quadrotor, after Lee, Leok and McClamroch (CDC 2010), with smooth limits.

    A wanted force for the position, an attitude R_d with its third axis along this force, and torques for the attitude:

    $$F = m \left(\ddot r + \mathrm{limit}(\omega^2 (r - p) + 2 \zeta \omega (\dot r - v)) + g e_3\right) - \hat f,$$
    $$\tau = J\, \mathrm{limit}(-\omega_R^2 e_R - 2 \zeta_R \omega_R (\Omega - \Omega_d)) + \Omega \times J \Omega,
    \qquad e_R = \tfrac12 (R_d^\top R - R^\top R_d)^\vee$$

    The control is (thrust, torques). The smooth limit is $l \tanh(v / l)$. The first axis of R_d has no y component,
    and the wanted rates Ω_d follow from the jerk.

    The policy reads position, velocity, rotation vector and body rates from the first 12 components of x. The reference
    has position, velocity, acceleration and jerk, 12 numbers; derivatives that are left out are 0.

    θ: the logarithms of natural frequencies (rad/s) and damping ratios: `log_frequency` and `log_damping` of the
    position, (3,), and `log_attitude_frequency` and `log_attitude_damping` of tilt and yaw, (2,).

    **Arguments:**

    - `mass` (kg), `moments` (the moments of inertia, (3,), kg·m²), `gravity` (m/s²).
    - `frequency`, `damping`, `attitude_frequency`, `attitude_damping`: the start gains.
    - `acceleration_limit`: of the feedback for the position, m/s². `thrust_limit`: the largest thrust, N.
      `angular_limit`: the largest angular acceleration about each axis, rad/s².
    - `constraint`: Θ; by default frequencies between 1/4 and 4 times, and ratios between 1/3 and 3 times the start.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import policies
        >>> policy = policies.Geometric(mass=0.032, moments=(16.6e-6, 16.7e-6, 29.3e-6))
        >>> hover = policies.Inputs.of(output=[0.0] * 3, reference=[0.0] * 3, x=[0.0] * 12, f=[0.0] * 3, dt=0.002)
        >>> u, _ = policy(hover, None, policy.theta)
        >>> print(u[1:], bool(abs(u[0] - 0.032 * 9.81) < 1e-3))
        [0. 0. 0.] True
    """

    theta: dict[str, Array]
    constraint: AbstractConstraint
    mass: Array
    moments: Float[Array, " 3"]
    gravity: Array
    acceleration_limit: Array
    thrust_limit: Array
    angular_limit: Float[Array, " 3"]

    def __init__(
        self,
        mass: Any,
        moments: Any,
        *,
        gravity: Any = 9.81,
        frequency: Any = 4.5,
        damping: Any = 0.8,
        attitude_frequency: Any = (32.0, 8.0),
        attitude_damping: Any = (0.7, 0.8),
        acceleration_limit: Any = 6.0,
        thrust_limit: Any = 0.7,
        angular_limit: Any = (250.0, 250.0, 40.0),
        constraint: AbstractConstraint | None = None,
    ):
        self.mass, self.gravity = arguments.positive("mass", mass), arguments.positive("gravity", gravity)
        self.moments = jnp.array(arguments.fit_shape("moments", arguments.variances("moments", moments), (3,)))
        start = {"frequency": (frequency, 3), "damping": (damping, 3)}
        start |= {"attitude_frequency": (attitude_frequency, 2), "attitude_damping": (attitude_damping, 2)}
        self.theta = {
            f"log_{name}": jnp.log(arguments.fit_shape(name, arguments.variances(name, value), (size,)))
            for name, (value, size) in start.items()
        }
        self.acceleration_limit = arguments.positive("acceleration_limit", acceleration_limit)
        self.thrust_limit = arguments.positive("thrust_limit", thrust_limit)
        angular = arguments.variances("angular_limit", angular_limit)
        self.angular_limit = jnp.array(arguments.fit_shape("angular_limit", angular, (3,)))
        reach = {name: math.log(4.0 if "frequency" in name else 3.0) for name in self.theta}
        default = Box(*({name: leaf + s * reach[name] for name, leaf in self.theta.items()} for s in (-1, 1)))
        self.constraint = base.checked_constraint(constraint, self.theta, default)

    @property
    def memory(self) -> None:
        return None

    @property
    def limits(self) -> tuple[Array, Array]:
        """Thrust between 0 and its limit. The torques also cancel the gyroscopic torque, so they have no limit."""
        infinite = jnp.full_like(self.moments, jnp.inf)
        return (
            jnp.concatenate([jnp.zeros_like(self.thrust_limit)[None], -infinite]),
            jnp.concatenate([self.thrust_limit[None], infinite]),
        )

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        units = {"frequency": "rad/s", "attitude_frequency": "rad/s"}
        axes = {"frequency": "xyz", "damping": "xyz"}
        return tuple(
            Parameter(
                f"log {name.replace('_', ' ')} {axis}", units.get(name, ""), damps="damping" in name, is_logarithm=True
            )
            for name in sorted(key.removeprefix("log_") for key in self.theta)
            for axis in axes.get(name, ("tilt", "yaw"))
        )

    def gains(self, theta: PyTree) -> dict[str, Array]:
        """Return the natural frequencies (rad/s) and the damping ratios of position and attitude."""
        return {name.removeprefix("log_"): jnp.exp(value) for name, value in theta.items()}

    def __call__(self, inputs: Inputs, memory: PyTree, theta: PyTree) -> tuple[Float[Array, " m"], PyTree]:
        x, f = inputs.x, inputs.f
        p, v, r, body_rate = x[:12].reshape(4, 3)
        settings = (self.mass, self.moments, self.gravity, self.acceleration_limit, self.thrust_limit)
        mass, inertia, gravity, acceleration_limit, thrust_limit = (value.astype(x.dtype) for value in settings)
        wanted, wanted_velocity, wanted_acceleration, wanted_jerk = with_derivatives(inputs.reference, 3, 4)
        gains = self.gains(theta)
        frequency, ratio = gains["frequency"], gains["damping"]
        (tilt, yaw), (tilt_ratio, yaw_ratio) = gains["attitude_frequency"], gains["attitude_damping"]
        up = jnp.array([0.0, 0.0, 1.0], x.dtype)

        feedback = frequency**2 * (wanted - p) + 2 * ratio * frequency * (wanted_velocity - v)
        force = wanted_acceleration + soft_limit(feedback, acceleration_limit) - f / mass + gravity * up
        R = rotation_matrix(r)
        half = thrust_limit / 2
        thrust = half + soft_limit(mass * jnp.sum(force * R[:, 2]) - half, half)

        z = _unit(force)
        y = _unit(jnp.cross(z, jnp.array([1.0, 0.0, 0.0], x.dtype)))
        wanted_R = jnp.stack([jnp.cross(y, z), y, z], axis=1)
        swing = wanted_R.T @ wanted_jerk / jnp.sum(force * z)
        wanted_rate = jnp.stack([-swing[1], swing[0], swing[0] * z[1] / y[1]])
        difference = wanted_R.T @ R
        error = jnp.stack([difference[2, 1], difference[0, 2], difference[1, 0]])
        error = (error - jnp.stack([difference[1, 2], difference[2, 0], difference[0, 1]])) / 2
        stiffness = jnp.stack([tilt, tilt, yaw]) ** 2
        damping = 2 * jnp.stack([tilt_ratio * tilt, tilt_ratio * tilt, yaw_ratio * yaw])
        angular = -stiffness * error - damping * (body_rate - wanted_rate)
        angular = soft_limit(angular, self.angular_limit.astype(x.dtype))
        return jnp.concatenate([thrust[None], inertia * angular + jnp.cross(body_rate, inertia * body_rate)]), None


def soft_limit(v: Array, limit: Array) -> Array:
    """Return v limited smoothly to ±limit."""
    return limit * jnp.tanh(v / limit)


def _unit(v: Array) -> Array:
    return v / jnp.sqrt(jnp.sum(v * v) + 1e-9)
