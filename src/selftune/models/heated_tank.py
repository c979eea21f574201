from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from .base import Signal, sampling_period, signal
from .continuous import AbstractContinuousModel
from .features import AbstractFeature, Load
from .integrators import AbstractIntegrator, Exact
from .unknown import Unknown


class HeatedTank(AbstractContinuousModel):
    r"""A stirred tank with an electric heater, through which liquid flows. The state is the temperature ϑ in °C.

    $$C \dot\vartheta = \text{clip}(u, 0, P) + f + q c\,(\vartheta_{in} - \vartheta) + h\,(\vartheta_{amb} - \vartheta),
    \qquad C = V c$$

    The heater cannot cool, and its power has a limit: beyond 0 and P the derivative by u is zero. The residual f is the
    unknown heat in W.

    **Arguments:**

    - `volume`: V in m³; `flow`: q in m³/s; `loss`: h in W/K, through the wall. `flow` and `loss` are not both zero.
    - `dt`: the sampling period in seconds.
    - `max_power`: P in W, the largest heater power; the scale of the temperature is the rise in the steady state that
      half of this power gives.
    - `inlet_temperature`, `ambient_temperature`: $\vartheta_{in}$, $\vartheta_{amb}$ in °C.
    - `heat_capacity`: c in J/(m³·K), of the liquid; the default is that of water.
    - `unknown`: the features of the residual; `integrator`: `Exact`, `Euler` or `RK4`.

    Wrap the model in `Delayed` for a sensor that sits behind a pipe.

    !!! Example

        >>> from selftune import models
        >>> tank = models.HeatedTank(volume=0.05, flow=1e-5, loss=8.0, max_power=3000.0, dt=5.0)
        >>> print(tank.x0, tank.time_constant.round())  # °C, and seconds
        [20.] 4197.0
    """

    volume: Array
    flow: Array
    loss: Array
    max_power: Array
    inlet_temperature: Array
    ambient_temperature: Array
    heat_capacity: Array
    output_matrix: Array
    unknown: Unknown
    integrator: AbstractIntegrator
    dt: float = eqx.field(static=True)

    def __init__(
        self,
        volume: Any,
        flow: Any,
        loss: Any,
        max_power: Any,
        dt: float,
        *,
        inlet_temperature: Any = 20.0,
        ambient_temperature: Any = 20.0,
        heat_capacity: Any = 4.18e6,
        unknown: tuple[AbstractFeature, ...] = (Load(),),
        integrator: AbstractIntegrator = Exact(),  # noqa: B008 (a constant)
    ):
        self.volume = arguments.positive("volume", volume)
        self.flow = arguments.non_negative("flow", flow)
        self.loss = arguments.non_negative("loss", loss)
        if (raw := arguments.known(self.flow, self.loss)) and not any(raw):
            raise ArgumentError("loss", "flow or loss > 0", "both 0")
        self.max_power = arguments.positive("max_power", max_power)
        finite = "a finite number"
        self.inlet_temperature = arguments.number("inlet_temperature", inlet_temperature, jnp.isfinite, finite)
        self.ambient_temperature = arguments.number("ambient_temperature", ambient_temperature, jnp.isfinite, finite)
        self.heat_capacity = arguments.positive("heat_capacity", heat_capacity)
        self.dt = sampling_period(dt)
        self.output_matrix = jnp.ones((1, 1), self.volume.dtype)
        self.unknown = Unknown(unknown, states=self.states, loads=self.controls)
        self.integrator = self.prepared(integrator, linear=True)

    @property
    def _loss_per_kelvin(self) -> Array:
        """The heat in W that leaves the tank by the flow and through the wall, for each kelvin."""
        return self.flow * self.heat_capacity + self.loss

    @property
    def time_constant(self) -> Float[Array, ""]:
        """The time constant of the temperature in seconds."""
        return self.volume * self.heat_capacity / self._loss_per_kelvin

    @property
    def states(self) -> tuple[Signal, ...]:
        return (signal("temperature", "°C", self.max_power / 2 / self._loss_per_kelvin),)

    @property
    def controls(self) -> tuple[Signal, ...]:
        return (signal("power", "W", self.max_power / 2),)

    @property
    def outputs(self) -> tuple[Signal, ...]:
        return self.states

    @property
    def x0(self) -> Float[Array, " n"]:
        entering = self.flow * self.heat_capacity * self.inlet_temperature + self.loss * self.ambient_temperature
        return (entering / self._loss_per_kelvin)[None]

    def derivative(self, x: Float[Array, " n"], u: Float[Array, " m"], load: Float[Array, " m"]) -> Array:
        heat = jnp.clip(u, 0.0, self.max_power) + load - self._loss_per_kelvin * (x - self.x0)
        return heat / (self.volume * self.heat_capacity)
