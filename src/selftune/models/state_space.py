from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from .base import Signal, sampling_period, signal
from .continuous import AbstractContinuousModel
from .features import AbstractFeature, Load
from .integrators import AbstractIntegrator, Exact, Sampled
from .unknown import Unknown


class StateSpace(AbstractContinuousModel):
    r"""A linear plant, $\dot x = A x + B (u + f)$, $y = C x$, with any number of states, controls and outputs.

    **Arguments:**

    - `A`, `B`, `C`: matrices (n, n), (n, m) and (q, n), in continuous time. With `integrator=Sampled()` they are those
      of the sampled system, $x_{t+1} = A x_t + B (u_t + f_t)$.
    - `dt`: the sampling period in seconds.
    - `states`, `controls`, `outputs`: the signals with names, units and scales. By default the names are x0, x1, …,
      u0, … and y0, …, and all scales are 1.
    - `unknown`: the features of the residual. Every control has its own parameters for each feature.
    - `integrator`: `Exact`, `Euler` or `RK4`; `Sampled` for matrices of the sampled system.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> plant = models.StateSpace([[0.0, 1.0], [-4.0, -2.0]], [[0.0], [4.0]], [[1.0, 0.0]], dt=0.1)
        >>> print(plant.dynamics(jnp.array([1.0, 0.0]), jnp.ones(1), jnp.zeros(1), 0))  # the steady state of u = 1
        [1. 0.]
    """

    A: Array
    B: Array
    output_matrix: Array
    unknown: Unknown
    integrator: AbstractIntegrator
    state_signals: tuple[Signal, ...] = eqx.field(static=True)
    control_signals: tuple[Signal, ...] = eqx.field(static=True)
    output_signals: tuple[Signal, ...] = eqx.field(static=True)
    dt: float = eqx.field(static=True)

    def __init__(
        self,
        A: Any,
        B: Any,
        C: Any,
        dt: float,
        *,
        states: tuple[Signal, ...] | None = None,
        controls: tuple[Signal, ...] | None = None,
        outputs: tuple[Signal, ...] | None = None,
        unknown: tuple[AbstractFeature, ...] = (Load(),),
        integrator: AbstractIntegrator = Exact(),  # noqa: B008 (a constant)
    ):
        self.A, self.B, self.output_matrix = (
            arguments.real_array(name, value) for name, value in (("A", A), ("B", B), ("C", C))
        )
        if self.A.ndim != 2 or self.A.shape[0] != self.A.shape[1] or self.A.size == 0:
            raise ArgumentError("A", "a square matrix", arguments.describe(self.A))
        n = len(self.A)
        if self.B.ndim != 2 or self.B.shape[0] != n or self.B.size == 0:
            raise ArgumentError("B", f"shape ({n}, m)", arguments.describe(self.B))
        if self.output_matrix.ndim != 2 or self.output_matrix.shape[1] != n or self.output_matrix.size == 0:
            raise ArgumentError("C", f"shape (q, {n})", arguments.describe(self.output_matrix))
        self.dt = sampling_period(dt)
        self.state_signals = _signals("states", states, "x", n)
        self.control_signals = _signals("controls", controls, "u", self.B.shape[1])
        self.output_signals = _signals("outputs", outputs, "y", len(self.output_matrix))
        self.unknown = Unknown(unknown, states=self.states, loads=self.controls)
        if isinstance(integrator, Sampled):
            self.integrator = integrator
        else:
            self.integrator = self.prepared(integrator, linear=True)

    @classmethod
    def from_control(cls, sys: Any, dt: float, **settings: Any) -> "StateSpace":
        """Return the model of a `StateSpace` or `TransferFunction` of python-control.

        A continuous system is sampled with `dt`. A discrete system must have the sampling period `dt`, or none (True).
        The signals have the names that the system gives them. The system must be strictly proper (D = 0).

        **Arguments:** `sys`; `dt`; `settings`, the other arguments of `StateSpace`.

            >>> import control
            >>> from selftune import models
            >>> plant = models.StateSpace.from_control(control.tf([2.0], [0.5, 1.0]), dt=0.01)
            >>> print(plant.A)
            [[-2.]]
        """
        system = sys
        if not hasattr(sys, "A") and hasattr(sys, "num") and hasattr(sys, "den"):
            import control  # the caller has it, because `sys` is one of its objects

            system = cast(Any, control.ss(sys))
        if not all(hasattr(system, name) for name in "ABCD"):
            raise ArgumentError("sys", "a StateSpace or TransferFunction of python-control", arguments.describe(sys))
        if np.any(np.asarray(system.D) != 0):
            raise ArgumentError("sys", "a strictly proper system, with D = 0", f"D = {np.asarray(system.D).tolist()}")
        period = system.dt or None  # 0 and None both mean continuous time
        if period is not None:
            settings = {"integrator": Sampled()} | settings
            if period is not True and not np.isclose(period, dt, rtol=1e-9, atol=0.0):
                raise ArgumentError("dt", f"the sampling period of the system, {period}", f"{dt}")
        for ours, theirs in (("states", "state_labels"), ("controls", "input_labels"), ("outputs", "output_labels")):
            signals = tuple(Signal(name, "1", 1.0) for name in getattr(system, theirs, ()))
            settings = {ours: signals or None} | settings
        return cls(system.A, system.B, system.C, dt, **settings)

    @property
    def states(self) -> tuple[Signal, ...]:
        return self.state_signals

    @property
    def controls(self) -> tuple[Signal, ...]:
        return self.control_signals

    @property
    def outputs(self) -> tuple[Signal, ...]:
        return self.output_signals

    @property
    def x0(self) -> Float[Array, " n"]:
        return jnp.zeros(len(self.A), self.A.dtype)

    def derivative(self, x: Float[Array, " n"], u: Float[Array, " m"], load: Float[Array, " m"]) -> Array:
        return self.A @ x + self.B @ (u + load)


def _signals(name: str, value: Any, letter: str, count: int) -> tuple[Signal, ...]:
    if value is None:
        return tuple(signal(f"{letter}{i}", "1", 1.0) for i in range(count))
    if not isinstance(value, tuple) or len(value) != count or not all(isinstance(one, Signal) for one in value):
        raise ArgumentError(name, f"a tuple of {count} Signal", arguments.describe_tree(value))
    return value
