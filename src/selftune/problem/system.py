"""The agent's model, which is the four functions g, f, π and h, and computations that need only these functions."""

import abc
import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from . import _tracing
from .memory import Memory, as_memory

Linearization: TypeAlias = tuple[tuple[Array, Array], Callable[[Array, Array], tuple[Array, Array]]]

ControlLinearization: TypeAlias = tuple[tuple[Array, Array], Callable[[Array, Array], tuple[Array, Array, Array]]]


class Sizes(NamedTuple):
    """The dimensions of a problem: state n, control m, residual k, policy parameters d, model parameters p, measurement
    q, memory s."""

    n: int
    m: int
    k: int
    d: int
    p: int
    q: int
    s: int


class AbstractSystem(eqx.Module):
    """The four functions of a system, and the computations that need only these functions.

    Most users need only `System` or `MatchedSystem`. To use a derivative of your own, subclass this class, declare the
    four functions as fields, and implement `linearize`.

    `step`, `control`, `linearize` and `sensitivity` are functions of the **loop state**: the state x of the plant,
    followed by the numbers of the policy's memory. `join` and `split` convert. Without a memory, the loop state is x.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> isinstance(system, st.AbstractSystem)
        True
        >>> x, theta, a = jnp.ones(1), jnp.full(1, 0.5), jnp.zeros(1)
        >>> x_next, cost = system.step(x, theta, a, 0)
        >>> print(round(float(x_next[0]), 3), cost)  # 0.8 x - 0.5 x, and x²
        0.3 1.0
    """

    __repr__ = settings_text.show

    dynamics: eqx.AbstractVar[Callable[..., Any]]
    residual: eqx.AbstractVar[Callable[..., Any]]
    policy: eqx.AbstractVar[Callable[..., Any]]
    cost: eqx.AbstractVar[Callable[..., Any]]
    memory: Memory | None = eqx.field(default=None, kw_only=True, converter=as_memory)
    measure: Callable[..., Any] | None = eqx.field(default=None, kw_only=True)
    estimate: Callable[..., Any] | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        for name in ("dynamics", "residual", "policy", "cost"):
            if not callable(getattr(self, name)):
                raise ArgumentError(name, "a function", arguments.describe(getattr(self, name)))
        for name in ("measure", "estimate"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ArgumentError(name, "a function or None", arguments.describe(value))
        if (self.measure is None) != (self.estimate is None):
            given, missing = ("measure", "estimate") if self.estimate is None else ("estimate", "measure")
            raise ArgumentError(missing, f"a function, because {given} is given", "None")
        if self.measure is not None and self.memory is None:
            raise ArgumentError("memory", "the numbers from which `estimate` computes the state", "None")

    def check(self, x: Any, theta: Any, a: Any, t: Any, *, thorough: bool = False) -> Sizes:
        """Trace the four functions with shapes only, without running them, and return the sizes.

        A function that does not fit raises `ValueError`, which names the function, the expected shape and the actual
        shape. If the functions fit together for another shape of `theta`, `a` or `x`, the error names that argument
        instead.

        `thorough`, which `Controller.init` uses, finds two more faults that JAX does not report:

        - A function that calls `np.random` or the like. Each function is traced twice, and the two programs must be the
          same, because the program of one trace runs at every step.
        - A fixed index that is out of range, such as `theta[2]` of two numbers. JAX would read the last number.
        """
        x = _vector("x", x)
        try:
            return self._sizes(x, theta, a, t, thorough=thorough)
        except _tracing.ImpureError:
            raise
        except ValueError as error:
            self._blame_arguments(error, x, theta, a, t)
            raise

    def _sizes(self, x: Any, theta: Any, a: Any, t: Any, *, thorough: bool) -> Sizes:
        options: Any = dict(dtype=x.dtype, thorough=thorough)
        k = self._residual_shape(x, a, t, thorough=thorough).shape[0]
        f = jax.ShapeDtypeStruct((k,), x.dtype)
        remembered, measured = {}, x
        if self.memory is not None:
            remembered = {"memory": jax.eval_shape(lambda: self._start_memory(x.dtype))}
        if self.measure is not None and self.estimate is not None:
            measured = _tracing.traced("measure", self.measure, {"x": x, "t": t}, rank=1, expected="(q,)", **options)
            given = {"measured": measured, **remembered, "theta": theta, "t": t}
            estimated = _tracing.traced(
                "estimate", self.estimate, given, rank=1, expected=f"{x.shape}, that of x", **options
            )
            if estimated.shape != x.shape:
                raise ArgumentError("estimate", f"shape {x.shape}, that of x", arguments.describe(estimated))
        given = {"x" if self.measure is None else "measured": measured, **remembered, "theta": theta, "f": f, "t": t}
        u = _tracing.traced(
            "policy", self.policy, given, rank=1, expected="(m,)", beside=remembered.get("memory"), **options
        )
        self._check_dynamics(x, u, f, t, thorough=thorough)
        given = {"x": x, **remembered, "u": u, "theta": theta, "t": t}
        _tracing.traced("cost", self.cost, given, rank=0, expected="()", **options)
        s = 0 if self.memory is None else self.memory.size
        return Sizes(n=x.shape[0], m=u.shape[0], k=k, d=_size(theta), p=_size(a), q=measured.shape[0], s=s)

    def _blame_arguments(self, error: ValueError, x: Any, theta: Any, a: Any, t: Any) -> None:
        """Raise an error for `theta`, `a` or `x` if another shape of this argument alone would make everything fit."""
        given = {"theta": theta, "a": a}
        if error.__cause__ is not None:  # x can cause an error inside a function, but not a wrong result shape
            given["x"] = x

        def fits(name: str, value: Any) -> bool:
            other = {"x": x, "theta": theta, "a": a} | {name: value}
            try:
                return bool(self._sizes(_vector("x", other["x"]), other["theta"], other["a"], t, thorough=True))
            except ValueError:
                return False

        for name, value in given.items():
            shapes = _tracing.other_shapes(value, (x.shape[0],), partial(fits, name))
            if name == "a" and isinstance(error, ArgumentError) and error.argument == "residual":
                # A vector that is not one: `a[0]` would also be a vector if a was a matrix, which is not the mistake.
                shapes = [shape for shape in shapes if len(shape) <= 1]
            if shapes:
                raise ArgumentError(
                    name,
                    f"another shape, such as {' or '.join(map(str, shapes))}, with which the four functions fit "
                    "together",
                    f"{arguments.describe_tree(value)}, with which they do not ({error})",
                ) from error

    def check_plant(self, x: Any, a: Any, t: Any, u: Any = None, k: int | None = None) -> int:
        """Trace `residual` with shapes only, and return k. Only the functions that a plant needs are traced.

        If `u` is given, `dynamics` is traced as well, and both get the thorough checks of `check`.
        """
        x = _vector("x", x)
        f = self._residual_shape(x, a, t, thorough=u is not None)
        if k is not None and f.shape != (k,):
            raise ArgumentError("residual", f"shape ({k},)", arguments.describe(f))
        if u is not None:
            self._check_dynamics(x, u, f, t, thorough=True)
        return f.shape[0]

    def _residual_shape(self, x: Any, a: Any, t: Any, *, thorough: bool) -> Any:
        given = {"x": x, "a": a, "t": t}
        return _tracing.traced(
            "residual", self.residual, given, rank=1, dtype=x.dtype, expected="(k,)", thorough=thorough
        )

    def _check_dynamics(self, x: Any, u: Any, f: Any, t: Any, *, thorough: bool = False) -> None:
        given = {"x": x, "u": u, "f": f, "t": t}
        x_next = _tracing.traced(
            "dynamics", self.dynamics, given, rank=1, dtype=x.dtype, expected=f"{x.shape}", thorough=thorough
        )
        if x_next.shape != x.shape:
            raise ArgumentError("dynamics", f"shape {x.shape}, that of x", arguments.describe(x_next))

    def join(self, x: Float[Array, " n"], memory: PyTree) -> Float[Array, " loop"]:
        """Return the loop state: x, followed by the numbers of the memory."""
        return x if self.memory is None else jnp.concatenate([x, ravel_pytree(memory)[0]])

    def split(self, loop_state: Float[Array, " loop"]) -> tuple[Float[Array, " n"], PyTree]:
        """Return x and the memory of a loop state; the memory is None if the policy has none."""
        if self.memory is None:
            return loop_state, None
        n = loop_state.shape[0] - self.memory.size
        return loop_state[:n], self.memory.unravel(loop_state[n:])

    def first(self, x: Float[Array, " n"]) -> Float[Array, " loop"]:
        """Return the loop state with this x and the first memory."""
        return self.join(x, self._start_memory(x.dtype))

    def _start_memory(self, dtype: Any) -> PyTree:
        return None if self.memory is None else self.memory.start(dtype)

    def measurement(self, x: Float[Array, " n"], t: Any) -> Float[Array, " q"]:
        """Return the measurement at x: x itself, unless the system has a function `measure`."""
        return x if self.measure is None else self.measure(x, t)

    def state_estimate(self, measured: Float[Array, " q"], memory: PyTree, theta: PyTree, t: Any) -> Float[Array, " n"]:
        """Return the state that a measurement and the memory stand for: the measurement itself, unless the system has a
        function `estimate`."""
        return measured if self.estimate is None else self.estimate(measured, memory, theta, t)

    def decide(
        self, measured: Float[Array, " q"], memory: PyTree, theta: PyTree, f: Float[Array, " k"], t: Any
    ) -> tuple[Float[Array, " m"], PyTree]:
        """Return the policy's control and its next memory, which is None if the policy has no memory."""
        if self.memory is None:
            return self.policy(measured, theta, f, t), None
        return self.policy(measured, memory, theta, f, t)

    def stage_cost(
        self, x: Float[Array, " n"], memory: PyTree, u: Float[Array, " m"], theta: PyTree, t: Any
    ) -> Float[Array, ""]:
        """Return the cost of a step with this state, memory and control."""
        return self.cost(x, u, theta, t) if self.memory is None else self.cost(x, memory, u, theta, t)

    def loop_cost(
        self, loop_state: Float[Array, " loop"], u: Float[Array, " m"], theta: PyTree, t: Any
    ) -> Float[Array, ""]:
        """Return the cost of a step with this loop state and control."""
        return self.stage_cost(*self.split(loop_state), u, theta, t)

    def control(self, loop_state: Float[Array, " loop"], theta: PyTree, a: PyTree, t: Any) -> Float[Array, " m"]:
        """Return the control of the closed loop by the model with parameters `a`."""
        return self._act(*self.split(loop_state), theta, a, t)[0]

    def _act(self, x: Array, memory: PyTree, theta: PyTree, a: PyTree, t: Any) -> tuple[Array, PyTree, Array]:
        """Return the control, the next memory, and the residual that the policy sees."""
        measured = self.measurement(x, t)
        f_hat = self.residual(self.state_estimate(measured, memory, theta, t), a, t)
        return *self.decide(measured, memory, theta, f_hat, t), f_hat

    def at_measurement(self, measured: Float[Array, " q"], x: Float[Array, " n"], t: Any) -> "AbstractSystem":
        """Return this system with a constant added to `measure`, so that x gives exactly this measurement.

        A tuner linearizes the closed loop at the estimated x. The estimate does not explain the whole measurement; the
        rest counts as measurement noise, which does not depend on θ.
        """
        if self.measure is None:
            return self
        return dataclasses.replace(self, measure=_BiasedMeasure(self.measure, measured - self.measure(x, t)))

    def step(self, x: Float[Array, " loop"], theta: PyTree, a: PyTree, t: Any) -> tuple[Array, Array]:
        r"""Return one step of the closed loop by the model with parameters `a`: $(\hat g_{t+1|t}, \hat h_{t|t})$.

        `x` is the loop state. With $a = a^*_t$ and the disturbance added, this is the multi-step dynamics of one step
        (Definition "Multi-Step Dynamics and Cost").
        """
        x, memory = self.split(x)
        u, following, f = self._act(x, memory, theta, a, t)
        if self.measure is not None:  # the policy sees the residual at the estimated state, the plant has its own
            f = self.residual(x, a, t)
        return self.join(self.dynamics(x, u, f, t), following), self.stage_cost(x, memory, u, theta, t)

    @abc.abstractmethod
    def linearize(self, x: Float[Array, " loop"], theta: PyTree, a: PyTree, t: Any) -> Linearization:
        r"""Return `step` at $(x, \theta)$ and its differential, as `(x_next, cost), push`; x is the loop state.

        `push(dx, dtheta)` takes m tangents at once, dx of shape (n + s, m) and dtheta of shape (d, m), flat in θ, and
        returns the tangents of `x_next`, (n + s, m), and of `cost`, (m,).
        """

    def linearize_with_control(
        self, x: Float[Array, " loop"], theta: PyTree, a: PyTree, t: Any
    ) -> ControlLinearization:
        """Return `step`, `control` and their differentials, as `(x_next, cost), push`.

        `push(dx, dtheta)` is that of `linearize`, and also returns the tangents of the control.
        """
        flat, unravel = ravel_pytree(theta)
        out, push_step = self.linearize(x, theta, a, t)
        _, push_control = jax.linearize(lambda x, flat: self.control(x, unravel(flat), a, t), x, flat)

        def push(dx: Array, dtheta: Array) -> tuple[Array, Array, Array]:
            return *push_step(dx, dtheta), jax.vmap(push_control, in_axes=1, out_axes=1)(dx, dtheta)

        return out, push

    def sensitivity(
        self, x: Float[Array, " loop"], y: Float[Array, "loop d"], theta: PyTree, a: PyTree, t: Any
    ) -> tuple[Array, Array, Array, Array]:
        r"""Return one step of the closed loop and of its derivative in θ, in forward mode; x is the loop state.

        $$y_{t+1} = \frac{\partial \hat g}{\partial x} y_t + \frac{\partial \hat g}{\partial \theta}, \qquad
        G_t = \frac{\partial \hat h}{\partial x} y_t + \frac{\partial \hat h}{\partial \theta}$$

        (Algorithm "M-GAPS".) Returns `x_next` (n + s,), `y_next` (n + s, d), `cost` () and `gradient` (d,).
        """
        with jax.named_scope("selftune.sensitivity"):
            (x_next, cost), push = self.linearize(x, theta, a, t)
            y_next, gradient = push(y, jnp.eye(y.shape[1], dtype=y.dtype))
        return x_next, y_next, cost, gradient

    def residual_and_jacobian(self, x: Float[Array, " n"], a: PyTree, t: Any) -> tuple[Array, Array]:
        r"""Return $f_t(x, a)$, (k,), and $\partial f_t / \partial a$, (k, p), flat in a."""
        flat, unravel = ravel_pytree(a)
        f, pull = jax.vjp(lambda flat: self.residual(x, unravel(flat), t), flat)
        (jacobian,) = jax.vmap(pull)(jnp.eye(f.shape[0], dtype=f.dtype))
        return f, jacobian


class _BiasedMeasure(eqx.Module):
    measure: Callable[..., Any]
    bias: Float[Array, " q"]

    def __call__(self, x, t):
        return self.measure(x, t) + self.bias


def linearize_step(system: AbstractSystem, x: Float[Array, " loop"], theta: PyTree, a: PyTree, t: Any) -> Linearization:
    """Return what `AbstractSystem.linearize` promises, by JAX's forward mode. No n×n Jacobian is formed."""
    flat, unravel = ravel_pytree(theta)
    out, jvp = jax.linearize(lambda x, flat: system.step(x, unravel(flat), a, t), x, flat)
    return out, jax.vmap(jvp, in_axes=(1, 1), out_axes=(1, 0))


class System(AbstractSystem):
    r"""The known part of the plant, as four pure JAX functions.

    $$x_{t+1} = g_t(x_t, u_t, f_t(x_t, a^*_t)) + w_t, \quad u_t = \pi_t(x_t, \theta_t, f_t(x_t, \hat a_t)),
    \quad c_t = h_t(x_t, u_t, \theta_t)$$

    (Section "Problem Setting".) `t` is the step's context: the integer step, unless the scenario gives other data.
    Everything that varies with time must reach the functions through `t`.

    **Arguments:**

    - `dynamics`: $g$, `(x (n,), u (m,), f (k,), t) -> (n,)`, without the disturbance $w$.
    - `residual`: $f$, `(x (n,), a, t) -> (k,)`; `a` is any pytree of p numbers.
    - `policy`: $\pi$, `(x (n,), theta, f (k,), t) -> (m,)`; `theta` is any pytree of d numbers.
    - `cost`: $h$, `(x (n,), u (m,), theta, t) -> ()`.

    - `memory`: the first values of the numbers that the policy keeps between steps, as a pytree or a `Memory`; None if
      the policy keeps none. With a memory $s$, two functions have other arguments: the policy is
      `(x, memory, theta, f, t) -> (u, memory)`, and the cost is `(x, memory, u, theta, t) -> ()`. The tuner's
      sensitivity $y$ then covers x and the memory, (n + s, d).
    - `measure`: `(x (n,), t) -> (q,)`, the measurement, if not all of x is measured. The policy's first argument is
      then the measurement. `estimate` is needed, too: `(measured (q,), memory, theta, t) -> (n,)`, the state that the
      measurement and the memory stand for, such as the state of an observer. Residual and cost get this state.

    Put saturation inside `policy` or `dynamics`: the tuner must differentiate what the plant really does.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.System(
        ...     dynamics=lambda x, u, f, t: x + 0.01 * (u + f),
        ...     residual=lambda x, a, t: a * jnp.sin(x),
        ...     policy=lambda x, theta, f, t: -theta * x - f,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
        ... )
        >>> system.check(x=jnp.zeros(1), theta=jnp.ones(1), a=jnp.zeros(1), t=0)
        Sizes(n=1, m=1, k=1, d=1, p=1, q=1, s=0)

        A PI controller keeps the integral of the error in its memory:

        >>> def pi(x, integral, theta, f, t):
        ...     integral = integral + 0.01 * theta["ki"] * (1.0 - x[0])
        ...     return (theta["kp"] * (1.0 - x) + integral - f), integral
        >>> system = st.System(
        ...     dynamics=lambda x, u, f, t: x + 0.01 * (u + f - x),
        ...     residual=lambda x, a, t: a * jnp.sin(x),
        ...     policy=pi,
        ...     cost=lambda x, integral, u, theta, t: jnp.sum((x - 1.0) ** 2) + 0.1 * jnp.sum(u**2),
        ...     memory=0.0,
        ... )
        >>> system.check(x=jnp.zeros(1), theta={"kp": jnp.ones(()), "ki": jnp.ones(())}, a=jnp.zeros(1), t=0)
        Sizes(n=1, m=1, k=1, d=2, p=1, q=1, s=1)
    """

    dynamics: Callable[..., Any]
    residual: Callable[..., Any]
    policy: Callable[..., Any]
    cost: Callable[..., Any]

    def linearize(self, x: Float[Array, " loop"], theta: PyTree, a: PyTree, t: Any) -> Linearization:
        """Return `step` and its differential, by JAX's forward mode."""
        return linearize_step(self, x, theta, a, t)


class MatchedSystem(System):
    r"""A system whose residual is added to the control (Section "Application: Matched Disturbance").

    $$x_{t+1} = \phi_t(x_t, u_t + f_t(x_t, a^*_t)) + w_t, \qquad u_t = -f_t(x_t, \hat a_t) + \psi_t(x_t, \theta_t)$$

    The policy cancels the estimated residual and adds its own control; here k = m. A `MatchedSystem` is a `System`,
    with `dynamics` and `policy` in the general form. It also has `phi` and `actuation`, which the theory uses.

    **Arguments:**

    - `dynamics`: $\phi$, `(x (n,), v (m,), t) -> (n,)`.
    - `residual`: $f$, `(x (n,), a, t) -> (m,)`.
    - `actuation`: $\psi$, `(x (n,), theta, t) -> (m,)`.
    - `cost`: $h$, `(x (n,), u (m,), theta, t) -> ()`.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.01 * v,
        ...     residual=lambda x, a, t: a * jnp.sin(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
        ... )
        >>> x_next, cost = system.step(jnp.ones(1), theta=jnp.ones(1), a=jnp.zeros(1), t=0)
        >>> print(x_next, cost)
        [0.99] 1.1
    """

    def __init__(
        self,
        dynamics: Callable[..., Any],
        residual: Callable[..., Any],
        actuation: Callable[..., Any],
        cost: Callable[..., Any],
    ):
        for name, function in {"dynamics": dynamics, "actuation": actuation}.items():
            if not callable(function):
                raise ArgumentError(name, "a function", arguments.describe(function))
        self.dynamics = _MatchedDynamics(dynamics)
        self.residual = residual
        self.policy = _CancellingPolicy(actuation)
        self.cost = cost

    @property
    def phi(self) -> Callable[..., Any]:
        r"""The function $\phi$ that was passed as `dynamics`."""
        return self.dynamics.phi  # pyright: ignore[reportFunctionMemberAccess]

    @property
    def actuation(self) -> Callable[..., Any]:
        r"""The function $\psi$ that was passed as `actuation`."""
        return self.policy.actuation  # pyright: ignore[reportFunctionMemberAccess]


# Modules instead of closures, so that two systems made of the same functions are equal and share a compilation.
class _MatchedDynamics(eqx.Module):
    phi: Callable[..., Any]

    def __repr__(self) -> str:
        return settings_text.value(self.phi)

    def __call__(self, x, u, f, t):
        return self.phi(x, u + f, t)


class _CancellingPolicy(eqx.Module):
    actuation: Callable[..., Any]
    given_as: ClassVar[str] = "actuation"

    def __repr__(self) -> str:
        return settings_text.value(self.actuation)

    def __call__(self, x, theta, f, t):
        return -f + self.actuation(x, theta, t)


def infer_residual(
    system: AbstractSystem,
    x: Float[Array, " n"],
    u: Float[Array, " m"],
    x_next: Float[Array, " n"],
    t: Any,
    *,
    f: Float[Array, " k"] | None = None,
    iterations: int = 3,
) -> Float[Array, " k"]:
    r"""Return the residual that explains a transition; use it if the residual is not measured.

    $$\tilde f_t = \arg\min_f \| g_t(x_t, u_t, f) - x_{t+1} \|^2$$

    The minimum is computed by Gauss–Newton iterations, starting from `f`. One iteration is exact if the dynamics are
    affine in the residual, as in mechanics. The disturbance $w_t$ cannot be separated from the residual, so it becomes
    observation noise in $\tilde f_t$, of size $\|(\partial g/\partial f)^+ w_t\|$. A direction of f that does not
    affect the transition keeps its value from `f`.

    Two of the paper's hypotheses do not hold for this observation. Property "perturb the input" fails, because
    $\hat a_{t+1}$ depends on the same $w_t$ as $x_{t+1}$. Under noise with a memory, such as `OrnsteinUhlenbeck`,
    $E[\tilde f_t \mid \mathcal F_t] = f_t$ fails too, because $w_t$ can be predicted.

    **Arguments:**

    - `f`: the first guess, of shape (k,), preferably $f_t(x_t, \hat a_t)$. The default is zeros like `u`, which needs
      k = m.
    - `iterations`: the number of Gauss–Newton iterations; 1 is enough for dynamics that are affine in f.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.5 * v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> x, u = jnp.array([1.0]), jnp.array([2.0])
        >>> print(st.infer_residual(system, x, u, x_next=x + 0.5 * (u + 3.0), t=0))
        [3.]
    """
    x, u, x_next = _vector("x", x), _vector("u", u), _vector("x_next", x_next)
    if f is None and not isinstance(system, MatchedSystem) and u.size == 1 and _takes_two(system, x, u, t):
        raise ArgumentError("f", "a first guess, such as f_hat, because these dynamics do not determine k", "None")
    estimate: Array = jnp.zeros_like(u) if f is None else _vector("f", f)
    iterations = arguments.count("iterations", iterations)
    system._check_dynamics(x, u, estimate, t)
    if x_next.shape != x.shape:
        raise ArgumentError("x_next", f"shape {x.shape}, that of x", arguments.describe(x_next))

    def g(f):
        return system.dynamics(x, u, f, t)

    identity = jnp.eye(estimate.shape[0], dtype=estimate.dtype)
    precision = jnp.finfo(estimate.dtype)
    for _ in range(iterations):
        J = jax.jacfwd(g)(estimate)
        # Scale the columns to unit length, so that weak and strong residuals are found equally well.
        length = jnp.sqrt(jnp.sum(J**2, axis=0))
        scale = jnp.where(length > 0, length, 1)
        J = J / scale
        # A ridge at rounding level makes the system solvable if g ignores a direction of f; the step along it is zero.
        normal = J.T @ J + 8 * precision.eps * identity
        step = jax.scipy.linalg.solve(normal, J.T @ (x_next - g(estimate)), assume_a="pos")
        estimate = estimate + step / scale
    return estimate


def _takes_two(system: AbstractSystem, x: Array, u: Array, t: Any) -> bool:
    """Return whether the dynamics accept a residual of two numbers. Then a residual of one number would be broadcast
    without an error."""
    try:
        return jax.eval_shape(system.dynamics, x, u, jax.ShapeDtypeStruct((2,), x.dtype), t).shape == x.shape
    except Exception:
        return False


def _vector(name: str, value: Any) -> Any:
    array = value if isinstance(value, jax.ShapeDtypeStruct) else arguments.real_array(name, value, finite=False)
    if array.ndim != 1 or array.shape[0] == 0:
        raise ArgumentError(name, "a vector of at least one number", arguments.describe(array))
    return array


def _size(tree: PyTree) -> int:
    return sum(math.prod(getattr(leaf, "shape", ())) for leaf in jax.tree.leaves(tree))
