"""From a differential equation to a step of length dt: exact for linear models, Euler, and Runge–Kutta."""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..foundation import arguments
from ..foundation.errors import ArgumentError

Rate = Callable[[Array], Array]


class AbstractIntegrator(eqx.Module):
    """One step of the differential equation dx/dt = rate(x), in which the control is constant."""

    @abc.abstractmethod
    def prepare(self, rate: Rate, x: Float[Array, " n"], dt: float, *, linear: bool) -> "AbstractIntegrator":
        """Return the integrator for a model, at the model's construction; `linear`: whether `rate` is affine in x."""

    @abc.abstractmethod
    def step(self, rate: Rate, x: Float[Array, " n"], dt: float, measured: Array | None) -> Float[Array, " n"]:
        """Return the state after one sampling period: `dt`, or `measured` if the context has this number."""


class Exact(AbstractIntegrator):
    r"""The exact solution of a linear model whose control is constant between samples (zero-order hold).

    $$x_{t+1} = x_t + \Phi\,\dot x(x_t, u_t, f_t), \qquad \Phi = \int_0^{dt} e^{A s}\,ds$$

    $\Phi$ is computed once, when the model is made. This form has less rounding error than $e^{A\,dt} x + \dots$ if the
    plant is slow, because $e^{A\,dt}$ is then close to 1. A model with one state computes $\Phi$ at every step, so it
    accepts a measured sampling period; a model with more states refuses it. Models that are not linear refuse `Exact`.
    To change a parameter, make a new model: `eqx.tree_at` would keep the old $\Phi$.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> model = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.5, integrator=models.Exact())
        >>> print(model.dynamics(model.x0, jnp.ones(1), jnp.zeros(1), 0).round(6))  # 2 (1 - exp(-1))
        [1.264241]
    """

    jacobian: Array | None
    hold: Array | None

    def __init__(self):
        self.jacobian = self.hold = None

    def prepare(self, rate: Rate, x: Float[Array, " n"], dt: float, *, linear: bool) -> "AbstractIntegrator":
        if not linear:
            raise ArgumentError("integrator", "Euler or RK4, because the model is not linear", "Exact")
        jacobian = jax.jit(jax.jacfwd(rate))(x)  # one compilation; without jit, each operation has its own
        hold = jnp.asarray(hold_integral(jacobian, dt), x.dtype)
        return eqx.tree_at(
            lambda one: (one.jacobian, one.hold), self, (jacobian, hold), is_leaf=lambda leaf: leaf is None
        )

    def step(self, rate: Rate, x: Float[Array, " n"], dt: float, measured: Array | None) -> Float[Array, " n"]:
        assert self.jacobian is not None  # `prepare` has set both
        assert self.hold is not None
        if measured is None:
            return x + self.hold @ rate(x)
        if x.shape != (1,):
            raise ArgumentError(
                "t",
                "a context without dt, because Exact prepares its matrix for one sampling period",
                f"dt {arguments.describe(measured)}",
                "give the model integrator=RK4()",
            )
        pole = self.jacobian[0, 0]
        safe = jnp.where(pole == 0, 1.0, pole)
        return x + jnp.where(pole == 0, measured, jnp.expm1(safe * measured) / safe) * rate(x)


class Euler(AbstractIntegrator):
    r"""The explicit Euler method, $x \leftarrow x + h\,\dot x$ with $h = dt/\text{substeps}$. The error is of order h.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> model = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01, integrator=models.Euler())
        >>> print(model.dynamics(model.x0, jnp.ones(1), jnp.zeros(1), 0))
        [0.04]
    """

    substeps: int = eqx.field(static=True, default=1, converter=lambda v: arguments.count("substeps", v))

    def prepare(self, rate: Rate, x: Float[Array, " n"], dt: float, *, linear: bool) -> "AbstractIntegrator":
        return self

    def step(self, rate: Rate, x: Float[Array, " n"], dt: float, measured: Array | None) -> Float[Array, " n"]:
        h = (dt if measured is None else measured) / self.substeps
        return _repeated(self.substeps, lambda x: x + h * rate(x), x)


class RK4(AbstractIntegrator):
    r"""The classical Runge–Kutta method with steps of length $h = dt/\text{substeps}$. The error is of order h⁴.

    !!! Example

        >>> from selftune import models
        >>> model = models.CartPole(dt=0.02, integrator=models.RK4(substeps=2))
    """

    substeps: int = eqx.field(static=True, default=1, converter=lambda v: arguments.count("substeps", v))

    def prepare(self, rate: Rate, x: Float[Array, " n"], dt: float, *, linear: bool) -> "AbstractIntegrator":
        return self

    def step(self, rate: Rate, x: Float[Array, " n"], dt: float, measured: Array | None) -> Float[Array, " n"]:
        h = (dt if measured is None else measured) / self.substeps

        def substep(x: Array) -> Array:
            k1 = rate(x)
            k2 = rate(x + h / 2 * k1)
            k3 = rate(x + h / 2 * k2)
            k4 = rate(x + h * k3)
            return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        return _repeated(self.substeps, substep, x)


class Sampled(AbstractIntegrator):
    r"""No integration: the matrices of a `StateSpace` are those of the sampled system, $x_{t+1} = A x_t + B u_t$.

    !!! Example

        >>> from selftune import models
        >>> model = models.StateSpace([[0.9]], [[0.1]], [[1.0]], dt=0.01, integrator=models.Sampled())
    """

    def prepare(self, rate: Rate, x: Float[Array, " n"], dt: float, *, linear: bool) -> "AbstractIntegrator":
        raise ArgumentError("integrator", "Exact, Euler or RK4", "Sampled", "only StateSpace accepts Sampled")

    def step(self, rate: Rate, x: Float[Array, " n"], dt: float, measured: Array | None) -> Float[Array, " n"]:
        if measured is not None:
            raise ArgumentError(
                "t",
                "a context without dt, because the matrices are those of one sampling period",
                f"dt {arguments.describe(measured)}",
            )
        return rate(x)


def _repeated(times: int, step: Callable[[Array], Array], x: Array) -> Array:
    """Return x after several steps, in a loop of the compiled program: its size does not grow with the substeps."""
    return step(x) if times == 1 else jax.lax.fori_loop(0, times, lambda _, x: step(x), x)


def hold_integral(A: Any, dt: Any) -> Any:
    r"""Return $\Phi(dt) = \int_0^{dt} e^{A s}\,ds$, (n, n), by scaling and doubling.

    A Taylor series gives $\Phi(h)$ for a small h, and $\Phi(2h) = 2\Phi(h) + A\,\Phi(h)^2$ doubles h until dt. A matrix
    with known values is computed in float64 by NumPy. A matrix that JAX is tracing has no norm yet; for such a matrix
    the number of doublings is large enough for ‖A dt‖ up to 10⁵.
    """
    if raw := arguments.known(A, dt):
        A, dt = (value.astype(np.float64) for value in raw)
        norm = float(np.linalg.norm(A, 1) * dt)
        doublings = max(0, math.ceil(math.log2(norm)) + 4) if norm > 0 else 0
        term = np.eye(len(A)) * dt / 2**doublings
    else:
        doublings = 21
        term = jnp.eye(len(A), dtype=A.dtype) * (dt / 2**doublings)
    h = dt / 2**doublings
    total = term
    for order in range(2, 14):  # ‖A h‖ ≤ 1/16, so the first neglected term is below 1e-26
        term = A @ term * (h / order)
        total = total + term
    for _ in range(doublings):
        total = 2 * total + A @ total @ total
    return total
