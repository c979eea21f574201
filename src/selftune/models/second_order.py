from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..foundation import arguments
from . import continuous
from .base import Signal, sampling_period, signal
from .continuous import AbstractContinuousModel
from .features import AbstractFeature, Load
from .integrators import AbstractIntegrator, Exact
from .unknown import Unknown


class SecondOrder(AbstractContinuousModel):
    r"""A plant that can oscillate: $\ddot y = \omega_n^2 (K (u + f) - y) - 2 \zeta \omega_n \dot y$.

    **Arguments:**

    - `gain`: K, the change of the output for a change of the control by 1, not zero.
    - `natural_frequency`: $\omega_n$ in rad/s; `damping`: the damping ratio ζ ≥ 0.
    - `dt`: the sampling period in seconds.
    - `rated_input`: the typical size of the control; the output's scale is |K| times this number.
    - `unknown`: the features of the residual; `integrator`: `Exact`, `Euler` or `RK4`.

    `SecondOrder.from_time_constants` makes a plant of two lags.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> model = models.SecondOrder(gain=2.0, natural_frequency=10.0, damping=0.5, dt=0.01)
        >>> print(model.dynamics(jnp.array([2.0, 0.0]), jnp.ones(1), jnp.zeros(1), 0))  # the steady state of u = 1
        [2. 0.]
    """

    gain: Array
    natural_frequency: Array
    damping: Array
    rated_input: Array
    output_matrix: Array
    unknown: Unknown
    integrator: AbstractIntegrator
    dt: float = eqx.field(static=True)

    def __init__(
        self,
        gain: Any,
        natural_frequency: Any,
        damping: Any,
        dt: float,
        *,
        rated_input: Any = 1.0,
        unknown: tuple[AbstractFeature, ...] = (Load(),),
        integrator: AbstractIntegrator = Exact(),  # noqa: B008 (a constant)
    ):
        self.gain = arguments.number("gain", gain, lambda v: v != 0 and abs(v) < jnp.inf, "a finite number, not 0")
        self.natural_frequency = arguments.positive("natural_frequency", natural_frequency)
        self.damping = arguments.non_negative("damping", damping)
        self.rated_input = arguments.positive("rated_input", rated_input)
        self.dt = sampling_period(dt)
        self.output_matrix = continuous.selection(self.states, ("output",), self.gain.dtype)
        self.unknown = Unknown(unknown, states=self.states, loads=self.controls, position="output", velocity="rate")
        self.integrator = self.prepared(integrator, linear=True)

    @classmethod
    def from_time_constants(cls, gain: Any, time_constants: tuple[Any, Any], dt: float, **settings: Any):
        r"""Return the plant $K / ((T_1 s + 1)(T_2 s + 1))$; `settings` are the other arguments of `SecondOrder`.

        >>> from selftune import models
        >>> model = models.SecondOrder.from_time_constants(gain=1.0, time_constants=(0.5, 0.02), dt=0.01)
        >>> print(model.natural_frequency, model.damping)
        10.0 2.6
        """
        if not isinstance(time_constants, tuple) or len(time_constants) != 2:
            raise arguments.ArgumentError("time_constants", "two numbers", arguments.describe(time_constants))
        first, second = (arguments.positive("time_constants", one) for one in time_constants)
        mean = jnp.sqrt(first * second)
        return cls(gain, 1 / mean, (first + second) / (2 * mean), dt, **settings)

    @property
    def states(self) -> tuple[Signal, ...]:
        size = abs(self.gain) * self.rated_input
        return (signal("output", "1", size), signal("rate", "1/s", size * self.natural_frequency))

    @property
    def controls(self) -> tuple[Signal, ...]:
        return (signal("input", "1", self.rated_input),)

    @property
    def outputs(self) -> tuple[Signal, ...]:
        return self.states[:1]

    @property
    def x0(self) -> Float[Array, " n"]:
        return jnp.zeros(2, self.gain.dtype)

    def derivative(self, x: Float[Array, " n"], u: Float[Array, " m"], load: Float[Array, " m"]) -> Array:
        y, rate = x
        stiffness, friction = self.natural_frequency**2, 2 * self.damping * self.natural_frequency
        return jnp.stack([rate, stiffness * (self.gain * (u + load)[0] - y) - friction * rate])
