from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import arguments
from . import continuous
from .base import Signal, sampling_period, signal
from .continuous import AbstractContinuousModel
from .features import AbstractFeature, Coulomb, Load, Viscous
from .integrators import AbstractIntegrator, Exact
from .unknown import Unknown


class TwoMass(AbstractContinuousModel):
    r"""A motor that drives a load through a flexible shaft. The control is the motor's torque.

    $$J_m \dot\omega_m = u - s, \qquad J_l \dot\omega_l = s + f, \qquad \dot\delta = \omega_m - \omega_l, \qquad
    s = c\,\delta + d\,(\omega_m - \omega_l)$$

    s is the torque of the shaft and δ its twist. The residual f is the unknown torque on the load. A policy that
    subtracts f from u cancels this torque in the steady state.

    **Arguments:**

    - `motor_inertia`, `load_inertia`: $J_m$, $J_l$ in kg·m².
    - `stiffness`: c in N·m/rad; `damping`: d in N·m·s/rad, both of the shaft.
    - `dt`: the sampling period in seconds.
    - `rated_torque`: the typical torque in N·m; `rated_speed`: the typical speed in rad/s.
    - `output`: the controlled variable: "load_speed", "motor_speed", "load_angle" or "motor_angle", or a tuple of
      these. An angle becomes a state only if it is an output.
    - `unknown`: the features of the residual, with the load's speed as velocity; `integrator`: `Exact`, `Euler` or
      `RK4`.

    !!! Example

        >>> from selftune import models
        >>> drive = models.TwoMass(motor_inertia=0.002, load_inertia=0.004, stiffness=80.0, damping=0.01, dt=0.001)
        >>> [state.name for state in drive.states], [output.name for output in drive.outputs]
        (['motor_speed', 'load_speed', 'twist'], ['load_speed'])
        >>> print(drive.resonance.round(1))  # rad/s
        244.9
    """

    motor_inertia: Array
    load_inertia: Array
    stiffness: Array
    damping: Array
    rated_torque: Array
    rated_speed: Array
    output_matrix: Array
    unknown: Unknown
    integrator: AbstractIntegrator
    output_names: tuple[str, ...] = eqx.field(static=True)
    dt: float = eqx.field(static=True)

    def __init__(
        self,
        motor_inertia: Any,
        load_inertia: Any,
        stiffness: Any,
        damping: Any,
        dt: float,
        *,
        rated_torque: Any = 1.0,
        rated_speed: Any = 100.0,
        output: str | tuple[str, ...] = "load_speed",
        unknown: tuple[AbstractFeature, ...] = (Load(), Viscous(), Coulomb()),
        integrator: AbstractIntegrator = Exact(),  # noqa: B008 (a constant)
    ):
        self.motor_inertia = arguments.positive("motor_inertia", motor_inertia)
        self.load_inertia = arguments.positive("load_inertia", load_inertia)
        self.stiffness = arguments.positive("stiffness", stiffness)
        self.damping = arguments.non_negative("damping", damping)
        self.rated_torque = arguments.positive("rated_torque", rated_torque)
        self.rated_speed = arguments.positive("rated_speed", rated_speed)
        self.dt = sampling_period(dt)
        possible = ("load_speed", "motor_speed", "load_angle", "motor_angle")
        self.output_names = continuous.output_names(output, possible)
        self.output_matrix = continuous.selection(self.states, self.output_names, self.stiffness.dtype)
        self.unknown = Unknown(
            unknown,
            states=self.states,
            loads=self.controls,
            position="load_angle" if "load_angle" in self.output_names else None,
            velocity="load_speed",
        )
        self.integrator = self.prepared(integrator, linear=True)

    @property
    def states(self) -> tuple[Signal, ...]:
        return (
            signal("motor_speed", "rad/s", self.rated_speed),
            signal("load_speed", "rad/s", self.rated_speed),
            signal("twist", "rad", self.rated_torque / self.stiffness),
            *(signal(name, "rad", jnp.pi) for name in self._angles),
        )

    @property
    def _angles(self) -> tuple[str, ...]:
        return tuple(name for name in ("load_angle", "motor_angle") if name in self.output_names)

    @property
    def controls(self) -> tuple[Signal, ...]:
        return (signal("torque", "N·m", self.rated_torque),)

    @property
    def outputs(self) -> tuple[Signal, ...]:
        return continuous.select(self.states, self.output_names)

    @property
    def x0(self) -> Float[Array, " n"]:
        return jnp.zeros(len(self.states), self.stiffness.dtype)

    @property
    def resonance(self) -> Float[Array, ""]:
        """The frequency in rad/s at which motor and load swing against each other, without damping."""
        return jnp.sqrt(self.stiffness * (1 / self.motor_inertia + 1 / self.load_inertia))

    def derivative(self, x: Float[Array, " n"], u: Float[Array, " m"], load: Float[Array, " m"]) -> Array:
        motor, driven, twist = x[0], x[1], x[2]
        shaft = self.stiffness * twist + self.damping * (motor - driven)
        speeds = {"load_angle": driven, "motor_angle": motor}
        return jnp.stack(
            [
                (u[0] - shaft) / self.motor_inertia,
                (shaft + load[0]) / self.load_inertia,
                motor - driven,
                *(speeds[name] for name in self._angles),
            ]
        )
