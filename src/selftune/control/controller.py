"""The controller, Algorithm "Meta-Framework": a tuner (ALG) and an estimator (EST) for one system, step by step."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from ..estimators.auto import AutoEstimator
from ..estimators.base import AbstractEstimator, EstimatorInfo
from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from ..problem import projected_step
from ..problem.system import AbstractSystem
from ..tuners.base import AbstractTuner, TunerInfo
from ..tuners.gauss_newton import GaussNewton


class ControllerState(eqx.Module):
    """The values that the next step needs: θ, â, the states of tuner and estimator, and the policy's memory.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.1))
        >>> scenario = st.Scenario(jnp.ones(1), a_star=jnp.ones((50, 1)), w=jnp.zeros((50, 1)))
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> state = run.final.state  # after the last step
        >>> state.theta.shape, bool(abs(state.a_hat[0] - 1) < 0.1)
        ((1,), True)
    """

    theta: PyTree
    a_hat: PyTree
    tuner: PyTree
    estimator: PyTree
    memory: PyTree = None
    """The memory of the policy; None if the system has no memory."""


class Info(eqx.Module):
    """The report of one step, for people and metrics: the values used at step t.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.1))
        >>> agent = st.Agent(controller, x=jnp.ones(1), theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> u = agent.act(jnp.ones(1), 0)
        >>> print(agent.info.u, agent.info.cost, agent.info.tuner.gradient)
        [-0.] 1.0 [0.]
    """

    u: Float[Array, " m"]
    cost: Float[Array, ""]
    f_hat: Float[Array, " k"]
    guard: PyTree
    """The guard's report (`GuardInfo`); None without a guard."""
    tuner: TunerInfo
    x_hat: Float[Array, " n"] | None = None
    """The estimated state; None if the whole state is measured."""


class Controller(eqx.Module):
    r"""A policy that tunes itself while it runs (Algorithm "Meta-Framework").

    One step, in the paper's order:

    1. `act`: $\hat f_t = f_t(x_t, \hat a_t)$, $u_t = \pi_t(x_t, \theta_t, \hat f_t)$, cost $h_t(x_t, u_t, \theta_t)$;
       then ALG gives $\theta_{t+1}$.
    2. The plant moves: $x_{t+1} = g_t(x_t, u_t, f_t(x_t, a^*_t)) + w_t$.
    3. `observe`: from the observation $\tilde f_t$, EST gives $\hat a_{t+1}$.

    All methods are pure: they can be jitted (`jax.jit(controller.act)`), vmapped, scanned, or called one sample at
    a time.

    **Arguments:** `system`, the model, policy and cost; `tuner`, ALG; `estimator`, EST. By default these are
    `GaussNewton()` and `AutoEstimator()`, which need no numbers. Give them their sets, if you know bounds of θ and a:
    `GaussNewton(constraint=…)`, `AutoEstimator(constraint=…)`.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.1 * v,
        ...     residual=lambda x, a, t: a * jnp.cos(x),
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
        ... )
        >>> controller = st.Controller(system, tuner=st.MGAPS(0.05), estimator=st.GradientEstimator(0.1))
        >>> x = jnp.array([1.0])
        >>> state = controller.init(x, theta=jnp.ones(1), a_hat=jnp.zeros(1))
        >>> for t in range(3):
        ...     u, state, info = controller.act(state, x, t)
        ...     f = 0.5 * jnp.cos(x)  # what nature adds
        ...     state = controller.observe(state, x, f, t)
        ...     x = x + 0.1 * (u + f)
        >>> print(bool(state.theta[0] > 1.0), bool(state.a_hat[0] > 0.0))
        True True
    """

    def __repr__(self) -> str:
        return settings_text.show(self, always=("tuner", "estimator"))

    system: AbstractSystem
    tuner: AbstractTuner = eqx.field(default_factory=GaussNewton)
    estimator: AbstractEstimator = eqx.field(default_factory=AutoEstimator)

    def __check_init__(self) -> None:
        for name, kind in {"system": AbstractSystem, "tuner": AbstractTuner, "estimator": AbstractEstimator}.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                hint = f" (did you mean {value.__name__}(...)?)" if isinstance(value, type) else ""
                if isinstance(value, AbstractSystem | AbstractTuner | AbstractEstimator):
                    hint = "; the order is Controller(system, tuner, estimator)"
                raise ArgumentError(name, f"a selftune {name}", f"{value!r}{hint}")

    # `jax.jit` hashes the bound method. Hashing by identity makes `jax.jit(controller.act)` work like `eqx.filter_jit`.
    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def init(self, x: Any, *, theta: Any, a_hat: Any, t: Any = 0) -> ControllerState:
        r"""Return the state before step `t`, from the first x, $\theta_0 \in \Theta$ and $\hat a_0 \in \mathcal A$.

        Everything is checked here, once: the shapes of the four functions, that JAX traces each function to the same
        program every time, that all numbers are finite and have the dtype of x, and that θ and â are inside their
        constraints.
        """
        x, theta, a_hat = self.check_values(x, theta, a_hat)
        self.system.check(x, theta, a_hat, t, thorough=True)
        loop_state = self.system.first(x)
        return ControllerState(
            theta=theta,
            a_hat=a_hat,
            tuner=self.tuner.init(self.system, loop_state, theta),
            estimator=self.estimator.init(self.system, x, a_hat, t),
            memory=self.system.split(loop_state)[1],
        )

    def check_values(self, x: Any, theta: Any, a_hat: Any) -> tuple[Array, PyTree, PyTree]:
        """Return x, θ and â as arrays; raise `ValueError` if one is not finite, not of x's dtype, or outside its
        constraint."""
        x = arguments.real_array("x", x)
        theta = arguments.real_tree("theta", theta, dtype=x.dtype)
        a_hat = arguments.real_tree("a_hat", a_hat, dtype=x.dtype)
        for name, value, owner in (("theta", theta, self.tuner), ("a_hat", a_hat, self.estimator)):
            if (constraint := projected_step.constraint_of(owner)) is not None:
                projected_step.check_inside(name, value, constraint)
        return x, theta, a_hat

    def act(self, state: ControllerState, x: Float[Array, " q"], t: Any) -> tuple[Array, ControllerState, Info]:
        r"""Return `(u, state, info)`: $u_t$ from $\theta_t$ and $\hat a_t$; `state` has ALG's $\theta_{t+1}$.

        `x` is the measurement: the whole state, unless the system has a function `measure`.
        """
        system, theta, a_hat, memory = self.system, state.theta, state.a_hat, state.memory
        measured = _like("x", x, theta)
        with jax.named_scope("selftune.estimate"):
            x = system.state_estimate(measured, memory, theta, t)
        system.check(x, theta, a_hat, t)  # only shapes: costs nothing once compiled
        with jax.named_scope("selftune.residual"):
            f_hat = system.residual(x, a_hat, t)
        with jax.named_scope("selftune.control"):
            u, following = system.decide(measured, memory, theta, f_hat, t)
        with jax.named_scope("selftune.cost"):
            cost = system.stage_cost(x, memory, u, theta, t)
        with jax.named_scope("selftune.tuner"):
            loop = system.at_measurement(measured, x, t)
            theta, tuner, info = self.tuner.update(loop, system.join(x, memory), theta, a_hat, t, state.tuner)
        after = ControllerState(theta, a_hat, tuner, state.estimator, following)
        return u, after, Info(u, cost, f_hat, None, info, x if system.estimate is not None else None)

    def observe(
        self, state: ControllerState, x: Float[Array, " n"], f_obs: Float[Array, " k"], t: Any
    ) -> ControllerState:
        r"""Return the state with EST's $\hat a_{t+1}$, from the observation $\tilde f_t$ at $x_t$; give the `x` and `t`
        of the last `act`. If only a part of the state is measured, give `info.x_hat` of that `act` as `x`."""
        return self._observe(state, x, f_obs, t)[0]

    def _observe(self, state: ControllerState, x: Array, f_obs: Array, t: Any) -> tuple[ControllerState, EstimatorInfo]:
        x, f_obs = _like("x", x, state.a_hat), _like("f_obs", f_obs, state.a_hat)
        k = self.system.check_plant(x, state.a_hat, t)
        if f_obs.shape != (k,):
            raise ArgumentError("f_obs", f"shape ({k},), that of the residual", arguments.describe(f_obs))
        with jax.named_scope("selftune.estimator"):
            a_hat, estimator, info = self.estimator.update(self.system, x, f_obs, state.a_hat, t, state.estimator)
        return ControllerState(state.theta, a_hat, state.tuner, estimator, state.memory), info

    def reveal(self, state: ControllerState, a_star: PyTree) -> ControllerState:
        r"""Return the state with the true $a^*_t$ in place of â, if the estimator is an oracle (`Known`). For any other
        estimator, return `state`. Call it before `act`."""
        if not self.estimator.is_oracle:
            return state
        return ControllerState(state.theta, a_star, state.tuner, state.estimator, state.memory)


def _like(name: str, value: Any, params: PyTree) -> Array:
    """Return a measurement in the dtype of the parameters, so that a float64 sensor value keeps a float32 state
    float32."""
    return arguments.real_array(name, value, finite=False).astype(jax.tree.leaves(params)[0].dtype)
