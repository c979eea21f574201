from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from .base import Signal, sampling_period, signal
from .continuous import AbstractContinuousModel
from .features import AbstractFeature, Load
from .integrators import AbstractIntegrator, Exact
from .unknown import Unknown


class FirstOrder(AbstractContinuousModel):
    r"""A plant with one time constant: $T \dot y = K (u + f) - (y - y_0)$.

    **Arguments:**

    - `gain`: K, the change of the output for a change of the control by 1, not zero; `time_constant`: T in seconds.
    - `dt`: the sampling period in seconds. Choose at most a fifth of T.
    - `rated_input`: the typical size of the control; the output's scale is |K| times this number.
    - `rest`: $y_0$, the output at rest with u = 0, such as 20 °C for a heater. Without it, the estimator must learn the
      offset as a load.
    - `units`: the units of the control and of the output, for tables and plots, such as `("%", "°C")`.
    - `unknown`: the features of the residual; `integrator`: `Exact`, `Euler` or `RK4`.

    Wrap the model in `Delayed` for a plant with dead time.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> model = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
        >>> print(model.dynamics(jnp.array([2.0]), jnp.ones(1), jnp.zeros(1), 0))  # the steady state of u = 1
        [2.]
        >>> heater = models.FirstOrder(0.8, 300.0, dt=1.0, rated_input=100.0, rest=20.0, units=("%", "°C"))
        >>> print(heater.x0, heater.outputs[0])
        [20.] Signal(name='output', unit='°C', scale=80.0)
    """

    gain: Array
    time_constant: Array
    rated_input: Array
    rest: Array
    output_matrix: Array
    unknown: Unknown
    integrator: AbstractIntegrator
    dt: float = eqx.field(static=True)
    units: tuple[str, str] = eqx.field(static=True)

    def __init__(
        self,
        gain: Any,
        time_constant: Any,
        dt: float,
        *,
        rated_input: Any = 1.0,
        rest: Any = 0.0,
        units: tuple[str, str] = ("1", "1"),
        unknown: tuple[AbstractFeature, ...] = (Load(),),
        integrator: AbstractIntegrator = Exact(),  # noqa: B008 (a constant)
    ):
        self.gain = arguments.number("gain", gain, lambda v: v != 0 and abs(v) < jnp.inf, "a finite number, not 0")
        self.time_constant = arguments.positive("time_constant", time_constant)
        self.rated_input = arguments.positive("rated_input", rated_input)
        self.rest = arguments.number("rest", rest, np.isfinite, "a finite number")
        self.dt = sampling_period(dt)
        if not (isinstance(units, tuple) and len(units) == 2 and all(isinstance(unit, str) for unit in units)):
            raise ArgumentError("units", 'the units of u and of the output, such as ("%", "°C")', f"{units!r}")
        self.units = units
        self.output_matrix = jnp.ones((1, 1), self.gain.dtype)
        self.unknown = Unknown(unknown, states=self.states, loads=self.controls)
        self.integrator = self.prepared(integrator, linear=True)

    @property
    def states(self) -> tuple[Signal, ...]:
        return (signal("output", self.units[1], abs(self.gain) * self.rated_input),)

    @property
    def controls(self) -> tuple[Signal, ...]:
        return (signal("input", self.units[0], self.rated_input),)

    @property
    def outputs(self) -> tuple[Signal, ...]:
        return self.states

    @property
    def x0(self) -> Float[Array, " n"]:
        return self.rest.astype(self.gain.dtype)[None]

    def derivative(self, x: Float[Array, " n"], u: Float[Array, " m"], load: Float[Array, " m"]) -> Array:
        return (self.gain * (u + load) - (x - self.rest)) / self.time_constant
