from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import arguments
from . import continuous
from .base import Signal, sampling_period, signal
from .continuous import AbstractContinuousModel
from .features import AbstractFeature, Load, Viscous
from .integrators import AbstractIntegrator, Exact
from .unknown import Unknown


class DoubleIntegrator(AbstractContinuousModel):
    r"""A mass that a force moves: $m \ddot p = u + f$.

    **Arguments:**

    - `mass`: m in kg; `dt`: the sampling period in seconds.
    - `rated_force`, `rated_speed`, `stroke`: the typical force in N, speed in m/s and position in m.
    - `output`: the controlled state, "position" or "velocity", or a tuple of both.
    - `unknown`: the features of the residual; `integrator`: `Exact`, `Euler` or `RK4`.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> model = models.DoubleIntegrator(mass=2.0, dt=0.1)
        >>> print(model.dynamics(model.x0, jnp.array([4.0]), jnp.zeros(1), 0))  # dt²/2 and dt times 4 N / 2 kg
        [0.01 0.2 ]
    """

    mass: Array
    rated_force: Array
    rated_speed: Array
    stroke: Array
    output_matrix: Array
    unknown: Unknown
    integrator: AbstractIntegrator
    output_names: tuple[str, ...] = eqx.field(static=True)
    dt: float = eqx.field(static=True)

    def __init__(
        self,
        mass: Any,
        dt: float,
        *,
        rated_force: Any = 1.0,
        rated_speed: Any = 1.0,
        stroke: Any = 1.0,
        output: str | tuple[str, ...] = "position",
        unknown: tuple[AbstractFeature, ...] = (Load(), Viscous()),
        integrator: AbstractIntegrator = Exact(),  # noqa: B008 (a constant)
    ):
        self.mass = arguments.positive("mass", mass)
        self.rated_force = arguments.positive("rated_force", rated_force)
        self.rated_speed = arguments.positive("rated_speed", rated_speed)
        self.stroke = arguments.positive("stroke", stroke)
        self.dt = sampling_period(dt)
        self.output_names = continuous.output_names(output, ("position", "velocity"))
        self.output_matrix = continuous.selection(self.states, self.output_names, self.mass.dtype)
        self.unknown = Unknown(
            unknown, states=self.states, loads=self.controls, position="position", velocity="velocity"
        )
        self.integrator = self.prepared(integrator, linear=True)

    @property
    def states(self) -> tuple[Signal, ...]:
        return (signal("position", "m", self.stroke), signal("velocity", "m/s", self.rated_speed))

    @property
    def controls(self) -> tuple[Signal, ...]:
        return (signal("force", "N", self.rated_force),)

    @property
    def outputs(self) -> tuple[Signal, ...]:
        return continuous.select(self.states, self.output_names)

    @property
    def x0(self) -> Float[Array, " n"]:
        return jnp.zeros(2, self.mass.dtype)

    def derivative(self, x: Float[Array, " n"], u: Float[Array, " m"], load: Float[Array, " m"]) -> Array:
        return jnp.stack([x[1], (u + load)[0] / self.mass])
