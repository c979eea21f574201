"""Observers, which estimate the state from a measurement of a part of it."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments, extras
from ..problem.constraints import AbstractConstraint, Unconstrained
from ..problem.loop_context import elapsed_period
from ..problem.memory import Memory, keep_after
from . import _matrices, base
from .base import Parameter


class AbstractObserver(eqx.Module):
    r"""An estimate of the state from the measurement and the memory.

    $$\hat x_t = \text{estimate}(y_t, s_t, \theta), \qquad s_{t+1} = \text{update}(s_t, \hat x_t, u_t, \hat f_t)$$

    The memory of an observer follows the prediction when the guard refuses a measurement, so that the observer stays
    with the plant. θ is `{}` if nothing of the observer is tuned.
    """

    theta: eqx.AbstractVar[dict[str, Array]]
    constraint: eqx.AbstractVar[AbstractConstraint]

    @property
    @abc.abstractmethod
    def memory(self) -> Memory:
        """The first memory, and how a guard treats it."""

    @property
    @abc.abstractmethod
    def parameters(self) -> tuple[Parameter, ...]:
        """One description for each number of θ."""

    @property
    def growth(self) -> tuple[int, ...]:
        """For each number of θ, whether a larger number is a higher gain (1), a lower gain (−1) or neither (0)."""
        return tuple(parameter.growth for parameter in self.parameters)

    @abc.abstractmethod
    def estimate(self, measured: Float[Array, " q"], memory: PyTree, theta: PyTree, t: Any) -> Float[Array, " n"]:
        """Return the estimated state of this step."""

    @abc.abstractmethod
    def update(
        self,
        memory: PyTree,
        x_hat: Float[Array, " n"],
        u: Float[Array, " m"],
        f: Float[Array, " k"],
        dynamics: Callable[..., Array],
        t: Any,
    ) -> PyTree:
        """Return the next memory, from this step's estimate and control, with the model's `dynamics(x, u, f, t)`."""


class Luenberger(AbstractObserver):
    r"""An observer with a constant gain: a prediction by the model, corrected by the measurement.

    $$\hat x_t = \bar x_t + L (y_t - c(\bar x_t)), \qquad \bar x_{t+1} = g(\hat x_t, u_t, \hat f_t)$$

    The model g may be nonlinear, and contains the estimated residual. θ has L, each number as a share of its start size
    (as K in `StateFeedback`), unless `tunable` is False.

    **Arguments:**

    - `L`: the start gain, (n, q).
    - `measure`: C, a matrix (q, n), or a function `(x, t) -> (q,)`.
    - `x`: the first prediction $\bar x_0$, (n,); zeros by default.
    - `tunable`: if False, L is constant and θ is empty.
    - `constraint`: Θ; by default θ moves by at most 10.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import policies
        >>> observer = policies.Luenberger(L=[[0.5], [2.0]], measure=[[1.0, 0.0]])
        >>> x_hat = observer.estimate(jnp.array([0.1]), observer.memory.initial, observer.theta, 0)
        >>> print(x_hat)
        [0.05 0.2 ]
        >>> def dynamics(x, u, f, t):
        ...     return jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u[0] + f[0])])
        >>> print(observer.update(None, x_hat, jnp.array([1.0]), jnp.array([0.0]), dynamics, 0)["predicted"])
        [0.07 0.3 ]
    """

    theta: dict[str, Array]
    constraint: AbstractConstraint
    scale: Float[Array, "n q"]
    fixed: Float[Array, "n q"] | None
    measure: Any
    x: Float[Array, " n"]

    def __init__(
        self,
        L: Any,
        measure: Any,
        *,
        x: Any = None,
        tunable: bool = True,
        constraint: AbstractConstraint | None = None,
    ):
        L = _matrices.matrix("L", L, (None, None))
        n, q = L.shape
        self.measure = measure if callable(measure) else _matrices.matrix("measure", measure, (q, n))
        x = jnp.zeros(n) if x is None else arguments.real_array("x", x)
        self.x = jnp.array(arguments.fit_shape("x", x, (n,)))
        self.scale = _matrices.scale_of(L)
        self.theta = {"L": L / self.scale} if tunable else {}
        self.fixed = None if tunable else L
        default = _matrices.box(self.theta) if tunable else Unconstrained()
        self.constraint = base.checked_constraint(constraint, self.theta, default)

    def __repr__(self) -> str:
        return base.described(self, lambda theta: {"L": self.gain(theta)}, tunable=self.fixed is None)

    @classmethod
    def kalman(cls, A: Any, C: Any, Q: Any, R: Any, **options: Any) -> "Luenberger":
        r"""Return an observer with the gain of the stationary Kalman filter.

        $$x_{t+1} = A x_t + w_t, \qquad y_t = C x_t + v_t$$

        **Arguments:**

        - `A`, `C`: matrices of the model in discrete time.
        - `Q`, `R`: the covariances of w and v as matrices; or vectors or numbers, which are the standard deviations
          (the sizes of the noise).
        - `options`: the other arguments of `Luenberger`.

        !!! Example

            >>> from selftune import policies
            >>> A, C = [[1.0, 0.1], [0.0, 1.0]], [[1.0, 0.0]]
            >>> observer = policies.Luenberger.kalman(A, C, Q=[0.001, 0.1], R=0.01)
            >>> print(observer.gain(observer.theta).round(3))
            [[0.77 ]
             [4.798]]
        """
        A, C = (np.asarray(_matrices.matrix(n, v, (None, None))) for n, v in zip("AC", (A, C), strict=True))
        design = extras.load("policies._linear_design", asked_for="Luenberger.kalman")
        L = design.kalman(A, C, _covariance("Q", Q, A.shape[0]), _covariance("R", R, C.shape[0]))
        return cls(L, C, **options)

    @property
    def memory(self) -> Memory:
        return Memory({"predicted": self.x}, refused=keep_after)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(p for name, share in self.theta.items() for p in _matrices.describe(name, share))

    def gain(self, theta: PyTree) -> Float[Array, "n q"]:
        """Return L of θ."""
        if self.fixed is not None:
            return self.fixed
        return self.scale.astype(theta["L"].dtype) * theta["L"]

    def estimate(self, measured: Array, memory: PyTree, theta: PyTree, t: Any) -> Array:
        predicted = memory["predicted"]
        if callable(self.measure):
            expected: Any = self.measure(predicted, t)
        else:
            expected = self.measure.astype(predicted.dtype) @ predicted
        return predicted + self.gain(theta).astype(predicted.dtype) @ (measured - expected)

    def update(
        self, memory: PyTree, x_hat: Array, u: Array, f: Array, dynamics: Callable[..., Array], t: Any
    ) -> PyTree:
        return {"predicted": dynamics(x_hat, u, f, t)}


class VelocityFilter(AbstractObserver):
    r"""Velocities from measured positions, by a filtered difference; the state is $x = (p, \dot p)$.

    $$\hat{\dot p}_t = \frac{T \hat{\dot p}_{t-1} + p_t - p_{t-1}}{T + h}$$

    The filter needs no model. If the context is a `LoopContext` with a measured period, h is the time since the last
    step; otherwise h is `dt`. The estimate is late by about T. Before the second measurement the velocity is 0. θ: the
    logarithm of T, unless `tunable` is False.

    **Arguments:**

    - `time_constant`: T in seconds, a number, or one for each position.
    - `dt`: the sampling period h in seconds.
    - `positions`: how many positions are measured.
    - `tunable`: if False, T is constant and θ is empty.
    - `constraint`: Θ; by default T between 1/100 and 100 times the start.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import policies
        >>> observer = policies.VelocityFilter(time_constant=0.1, dt=0.1)
        >>> memory, u, f, dynamics = observer.memory.initial, jnp.zeros(1), jnp.zeros(1), lambda x, u, f, t: x
        >>> for position in (0.3, 0.4, 0.5):  # 1 m/s
        ...     x_hat = observer.estimate(jnp.array([position]), memory, observer.theta, 0)
        ...     memory = observer.update(memory, x_hat, u, f, dynamics, 0)
        ...     print(x_hat.round(3))
        [0.3 0. ]
        [0.4 0.5]
        [0.5  0.75]
    """

    theta: dict[str, Array]
    constraint: AbstractConstraint
    time_constant: Array
    dt: Float[Array, ""]
    positions: int = eqx.field(static=True)

    def __init__(
        self,
        time_constant: Any,
        *,
        dt: Any,
        positions: int = 1,
        tunable: bool = True,
        constraint: AbstractConstraint | None = None,
    ):
        self.time_constant = arguments.variances("time_constant", time_constant)
        self.positions = arguments.count("positions", positions)
        arguments.fit_shape("time_constant", self.time_constant, (self.positions,))
        self.dt = arguments.positive("dt", dt)
        self.theta = {"log_time_constant": jnp.log(self.time_constant)} if tunable else {}
        default = base.log_box(self.theta) if tunable else Unconstrained()
        self.constraint = base.checked_constraint(constraint, self.theta, default)

    def __repr__(self) -> str:
        return base.described(self, lambda theta: {}, tunable=bool(self.theta))

    @property
    def memory(self) -> Memory:
        zero = jnp.zeros(self.positions, self.dt.dtype)
        return Memory({"position": zero, "velocity": zero, "started": zero[0]}, refused=keep_after)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return base.logarithms(self.theta, {"time_constant": "s"}, growth={"time_constant": -1})

    def estimate(self, measured: Array, memory: PyTree, theta: PyTree, t: Any) -> Array:
        elapsed = elapsed_period(t)
        h = (self.dt if elapsed is None else elapsed).astype(measured.dtype)
        T = jnp.exp(theta["log_time_constant"]) if theta else self.time_constant.astype(measured.dtype)
        change = jnp.where(memory["started"] > 0, measured - memory["position"], jnp.zeros_like(measured))
        return jnp.concatenate([measured, (T * memory["velocity"] + change) / (T + h)])

    def update(
        self, memory: PyTree, x_hat: Array, u: Array, f: Array, dynamics: Callable[..., Array], t: Any
    ) -> PyTree:
        position, velocity = jnp.split(x_hat, 2)
        return {"position": position, "velocity": velocity, "started": jnp.ones_like(memory["started"])}


def _covariance(name: str, value: Any, size: int) -> np.ndarray:
    """Return a covariance matrix, from a matrix or from standard deviations."""
    array = np.asarray(arguments.positive_definite(name, value), float)
    return array if array.ndim == 2 else np.diag(np.broadcast_to(array, (size,)) ** 2)
