import math
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


class DCMotor(AbstractContinuousModel):
    r"""A DC motor with a gear, driven by a voltage. Speed ω, angle and torques are those of the gear's output shaft.

    $$J \dot\omega = k N i - b \omega + \tau, \qquad L \dot i = u - R i - k N \omega, \qquad
    J = J_{load} + N^2 J_{rotor}$$

    Without an inductance, the current is $i = (u - k N \omega) / R$ and no state. τ is the unknown torque of load and
    friction. Its parameters have the unit N·m. The residual is the voltage of the same torque at standstill,
    $f = \tau R / (k N)$, so a policy that subtracts f from u cancels the torque in the steady state.

    **Arguments:**

    - `resistance`: R in Ω; `torque_constant`: k in N·m/A, which is also the constant of the induced voltage in V·s/rad.
    - `rotor_inertia`, `load_inertia`: in kg·m², of the rotor, and of the load on the output shaft.
    - `dt`: the sampling period in seconds.
    - `gear_ratio`: N, turns of the rotor for one turn of the output shaft.
    - `viscous_friction`: b in N·m·s/rad, the known friction at the output shaft.
    - `inductance`: L in H, or None to neglect it; the current is then no state.
    - `rated_voltage`: in V; the scales of speed, current and load follow from this number.
    - `output`: the controlled variable, "speed" or "position", or a tuple of both. Only a model with the output
      "position" has a position among its states.
    - `unknown`: the features of the residual; `integrator`: `Exact`, `Euler` or `RK4`.

    !!! Example

        >>> from selftune import models
        >>> motor = models.DCMotor(
        ...     resistance=1.2, torque_constant=0.04, rotor_inertia=2e-5, gear_ratio=20.0, dt=0.005, output="position"
        ... )
        >>> [state.name for state in motor.states], [parameter.name for parameter in motor.parameters]
        (['position', 'speed'], ['load', 'viscous', 'coulomb'])
    """

    resistance: Array
    torque_constant: Array
    rotor_inertia: Array
    load_inertia: Array
    gear_ratio: Array
    viscous_friction: Array
    inductance: Array | None
    rated_voltage: Array
    output_matrix: Array
    unknown: Unknown
    integrator: AbstractIntegrator
    output_names: tuple[str, ...] = eqx.field(static=True)
    dt: float = eqx.field(static=True)

    def __init__(
        self,
        resistance: Any,
        torque_constant: Any,
        rotor_inertia: Any,
        dt: float,
        *,
        load_inertia: Any = 0.0,
        gear_ratio: Any = 1.0,
        viscous_friction: Any = 0.0,
        inductance: Any = None,
        rated_voltage: Any = 24.0,
        output: str | tuple[str, ...] = "speed",
        unknown: tuple[AbstractFeature, ...] = (Load(), Viscous(), Coulomb()),
        integrator: AbstractIntegrator = Exact(),  # noqa: B008 (a constant)
    ):
        self.resistance = arguments.positive("resistance", resistance)
        self.torque_constant = arguments.positive("torque_constant", torque_constant)
        self.rotor_inertia = arguments.positive("rotor_inertia", rotor_inertia)
        self.load_inertia = arguments.non_negative("load_inertia", load_inertia)
        self.gear_ratio = arguments.positive("gear_ratio", gear_ratio)
        self.viscous_friction = arguments.non_negative("viscous_friction", viscous_friction)
        self.inductance = None if inductance is None else arguments.positive("inductance", inductance)
        self.rated_voltage = arguments.positive("rated_voltage", rated_voltage)
        self.dt = sampling_period(dt)
        self.output_names = continuous.output_names(output, ("speed", "position"))
        self.output_matrix = continuous.selection(self.states, self.output_names, self.resistance.dtype)
        torque_per_voltage = self.torque_constant * self.gear_ratio / self.resistance
        self.unknown = Unknown(
            unknown,
            states=self.states,
            loads=(signal("torque", "N·m", torque_per_voltage * self.rated_voltage),),
            position="position" if self._has_position else None,
            velocity="speed",
            control_per_load=1 / torque_per_voltage,
        )
        self.integrator = self.prepared(integrator, linear=True)

    @property
    def _has_position(self) -> bool:
        return "position" in self.output_names

    @property
    def states(self) -> tuple[Signal, ...]:
        no_load_speed = self.rated_voltage / (self.torque_constant * self.gear_ratio)
        position = (signal("position", "rad", math.pi),)
        current = (signal("current", "A", self.rated_voltage / self.resistance),)
        return (
            *(position if self._has_position else ()),
            signal("speed", "rad/s", no_load_speed),
            *(current if self.inductance is not None else ()),
        )

    @property
    def controls(self) -> tuple[Signal, ...]:
        return (signal("voltage", "V", self.rated_voltage),)

    @property
    def outputs(self) -> tuple[Signal, ...]:
        return continuous.select(self.states, self.output_names)

    @property
    def x0(self) -> Float[Array, " n"]:
        return jnp.zeros(len(self.states), self.resistance.dtype)

    def derivative(self, x: Float[Array, " n"], u: Float[Array, " m"], load: Float[Array, " m"]) -> Array:
        R, b = self.resistance, self.viscous_friction
        kN = self.torque_constant * self.gear_ratio
        J = self.load_inertia + self.gear_ratio**2 * self.rotor_inertia
        speed = x[1] if self._has_position else x[0]
        current = (u[0] - kN * speed) / R if self.inductance is None else x[-1]
        acceleration = (kN * current - b * speed + load[0] * kN / R) / J
        rates = [speed, acceleration] if self._has_position else [acceleration]
        if self.inductance is not None:
            rates.append((u[0] - R * current - kN * speed) / self.inductance)
        return jnp.stack(rates)
