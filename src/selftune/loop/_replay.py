"""The model of a loop along a recorded run: estimated states, costs, predictions, and what the estimator learns."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..control.controller import Controller
from ..estimators.base import AbstractEstimator
from ..estimators.frozen import Frozen
from ..logs.plant_log import PlantLog
from ..problem.loop_context import LoopContext
from ..problem.system import infer_residual
from .control_loop import Loop, _split_theta, _start_control

STARTS = 1000
"""The largest number of predictions over many steps. Neighbouring ones say nearly the same, and a model of a robot with
seven joints takes tens of microseconds for a step."""


class Replay(NamedTuple):
    """The values of each step, as NumPy arrays. Row t of `predicted` and `f_obs` needs the measurement of step t + 1,
    so these have one row less."""

    x: np.ndarray
    """The estimated state, (T, n)."""
    a_hat: np.ndarray
    """The parameters that step t used, (T, p)."""
    cost: np.ndarray
    f_hat: np.ndarray
    f_obs: np.ndarray
    predicted: np.ndarray
    """The measurement of step t + 1, predicted at step t, (T − 1, q)."""


class Forecast(NamedTuple):
    """Predictions over many steps, with the recorded controls."""

    horizon: int
    starts: np.ndarray
    """The steps at which the predictions begin, (s,)."""
    predicted: np.ndarray
    """The measurements of the steps starts + horizon, predicted at the starts, (s, q)."""
    effects: np.ndarray | None
    """The part of each prediction that one control causes during the horizon, (m, s, q)."""


def contexts(loop: Loop, log: PlantLog) -> LoopContext:
    """Return the contexts of all steps, as the agent gets them: the period of a step is the last measured one."""
    dtype, dt = loop.plant.x0.dtype, float(loop.plant.dt)
    periods = None
    if loop.jitter:
        measured = np.full(len(log) - 1, dt) if log.time is None else np.diff(log.time)
        periods = jnp.asarray(np.concatenate([[dt], measured]), dtype)
    return LoopContext(jnp.arange(len(log), dtype=jnp.int32), jnp.asarray(log.reference, dtype), periods, periods)


def replay(
    loop: Loop, log: PlantLog, *, theta: PyTree, a_hat: PyTree, estimator: AbstractEstimator | None = None
) -> Replay:
    """Follow a log with the loop's model. θ is constant, and so is â if there is no `estimator`.

    The state and its memory are those of the recorded controls, whatever policy computed these controls.
    """
    estimator = Frozen() if estimator is None else estimator
    controller = Controller(loop.system, estimator=estimator)
    t = contexts(loop, log)
    first = jax.tree.map(lambda leaf: leaf[0], t)
    state = controller.init(loop.x, theta=theta, a_hat=a_hat, t=first).estimator
    measured, u = (jnp.asarray(rows, loop.x.dtype) for rows in (log.measurement, log.u))
    rows = _scan(loop, estimator, theta, a_hat, state, measured, u, t)
    x, a, cost, f_hat, f_obs, predicted = (np.asarray(part) for part in rows)
    return Replay(x, a, cost, f_hat, f_obs[:-1], predicted[:-1])


@eqx.filter_jit
def _scan(
    loop: Loop,
    estimator: AbstractEstimator,
    theta: PyTree,
    a_hat: PyTree,
    state: PyTree,
    measured: Array,
    u: Array,
    t: LoopContext,
) -> Any:
    system, plant, observer = loop.system, loop.plant, loop.observer
    theta_observer = _split_theta(theta, observer)[1]
    measure = (lambda x, t: x) if observer is None else plant.measure

    def estimate(m: Array, memory: PyTree, t: Any) -> Array:
        return m if observer is None else observer.estimate(m, memory, theta_observer, t)

    def step(carry: Any, row: Any) -> Any:
        memory, last_u, a, state = carry
        m, u, t, m_next = row
        x = estimate(m, memory, t)
        f = plant.residual(x, a, t)
        cost = system.cost(x, {"u": last_u}, u, theta, t)
        if observer is not None:
            memory = observer.update(memory, x, u, f, plant.dynamics, t)
        f_obs = infer_residual(system, x, u, estimate(m_next, memory, t), t, f=f)
        predicted = measure(plant.dynamics(x, u, f, t), t)
        a_next, state, _ = estimator.update(system, x, f_obs, a, t, state)
        return (memory, u, a_next, state), (x, a, cost, f, f_obs, predicted)

    memory = None if observer is None else observer.memory.start(measured.dtype)
    following = jnp.concatenate([measured[1:], measured[-1:]])
    last_u = _start_control(loop.policy).astype(u.dtype)
    return jax.lax.scan(step, (memory, last_u, a_hat, state), (measured, u, t, following))[1]


def forecast(loop: Loop, log: PlantLog, replayed: Replay, horizon: int, *, with_effects: bool = False) -> Forecast:
    """Predict `horizon` steps ahead, with the state and the parameters of the step at which a prediction begins.

    The starts are every step, or `STARTS` steps at equal distances if there are more. `with_effects`: also compute the
    effect of each control.
    """
    dtype = loop.x.dtype
    t = contexts(loop, log)
    u = jnp.asarray(log.u, dtype)
    rows = len(log) - horizon
    starts = np.arange(0, rows, -(-rows // STARTS), dtype=np.int32)
    x, a = (jnp.asarray(values[starts], dtype) for values in (replayed.x, replayed.a_hat))

    def predicted(u: Array) -> np.ndarray:
        return np.asarray(_ahead(loop, jnp.asarray(starts), x, a, u, t, horizon))

    ahead, effects = predicted(u), None
    if with_effects:
        effects = np.stack([ahead - predicted(u.at[:, j].set(0)) for j in range(u.shape[1])])
    return Forecast(horizon, starts, ahead, effects)


@eqx.filter_jit
def _ahead(loop: Loop, starts: Array, x: Array, a: Array, u: Array, t: LoopContext, horizon: int) -> Array:
    plant = loop.plant
    measure = (lambda x, t: x) if loop.observer is None else plant.measure

    def one(start: Array, x: Array, a: Array) -> Array:
        def step(i: Any, x: Array) -> Array:
            now = jax.tree.map(lambda leaf: leaf[start + i], t)
            return plant.dynamics(x, u[start + i], plant.residual(x, a, now), now)

        last = jax.tree.map(lambda leaf: leaf[start + horizon], t)
        return measure(jax.lax.fori_loop(0, horizon, step, x), last)

    return jax.vmap(one)(starts, x, a)
