"""What a certificate is made of: every quantity of the theorems' left sides, measured once on a run."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .. import _check
from ..constraint import Unconstrained
from ..controller import Controller
from ..regret import _inputs, local_regret, model_mismatch, path_lengths, perturbations
from ..regret._companion import companion
from ..run import Run
from ..scenario import Scenario
from ..system import MatchedSystem
from ..tuners import MGAPS
from .constants import Sets
from .sampling import diameter


class Rows(NamedTuple):
    """Per step; what only the system, the run and the companion can say."""

    x: Array
    y: Array
    u: Array
    x_exact: Array
    y_exact: Array
    u_exact: Array
    gap: Array
    change_x: Array
    """‖q^x(â) − q^x(a*)‖ at the run's own (x, y, θ)."""
    change_theta: Array
    steps_theta: Array
    gradient: Array
    """G̃ of the companion, (T, d)."""
    cost: Array
    """The companion's."""


@dataclass(frozen=True)
class Measured:
    rows: Any
    """`Rows`, in NumPy."""
    mismatch: np.ndarray
    mismatch_gradient: np.ndarray
    zeta: np.ndarray
    surrogate: np.ndarray
    surrogate_error: np.ndarray
    bias: np.ndarray
    """‖G̃_t − ∇F_t(θ_t)‖, plus what the surrogate's gradient may be off by."""
    surrogate_gradient: np.ndarray
    local_regret: float
    excess: float
    """Σ (ℓ̃_t(â_t) − ℓ̃_t(a*_t)): the loss that the estimator's lemma is about, noise included."""
    observation_noise: float
    path: float
    path_w: float
    theta_scale: float
    inside_theta: bool
    inside_a: bool
    affine: float


@dataclass(frozen=True)
class Problem:
    controller: Controller
    system: MatchedSystem
    tuner: MGAPS
    scenario: Scenario
    run: Run
    sets: Sets
    learning_rate: float

    @staticmethod
    def make(controller: Any, scenario: Any, run: Any, sets: Any) -> "Problem":
        if not isinstance(controller, Controller):
            raise ValueError(f"controller: expected a Controller, got {_check.describe(controller)}")
        system, tuner = controller.system, controller.tuner
        if not isinstance(system, MatchedSystem):
            raise ValueError(f"controller: expected one of a MatchedSystem, got {type(system).__name__}")
        if not isinstance(tuner, MGAPS) or not isinstance(tuner.learning_rate, jax.Array):
            raise ValueError(
                f"controller: expected one with MGAPS and a number for its learning rate, got {_check.describe(tuner)}"
            )
        if not isinstance(sets, Sets):
            raise ValueError(f"sets: expected Sets, got {_check.describe(sets)}")
        scenario = _inputs.problem(system, scenario)
        for name in ("x", "u", "y", "theta", "a_hat", "f"):
            _inputs.recorded(run, name, scenario=scenario)
        if not bool(jnp.all(run.result.ok)):
            raise ValueError(f"run: expected one that went well, got one where {run.result.message}")
        theta, a = (jax.tree.map(lambda leaf: leaf[0], tree) for tree in (run.theta, scenario.a_star))
        for name, value, constraint in (("theta", theta, sets.theta), ("a", a, sets.a)):
            if not math.isfinite(diameter(constraint, value)):
                raise ValueError(f"sets.{name}: expected a bounded Box, Ball, Simplex or Product, got {constraint!r}")
        return Problem(controller, system, tuner, scenario, run, sets, float(tuner.learning_rate))

    def measure(self, window: Any) -> Measured:
        system, scenario, run, sets = self.system, self.scenario, self.run, self.sets
        mismatch = model_mismatch(system, scenario, run)
        zeta = perturbations(system, scenario, run, tuner=self.tuner)
        regret = local_regret(
            system,
            scenario,
            run.theta,
            learning_rate=self.learning_rate,
            constraint=self.tuner.constraint,
            window=window,
        )
        F = regret.surrogate
        final = run.final.state.theta
        rows = step_rows(system, self.tuner, scenario, run.x, run.y, run.theta, run.a_hat, final)
        error = np.asarray(F.gradient_error)
        # The estimator projects onto a set of its own, which must contain a* for its lemma to hold.
        own = getattr(self.controller.estimator, "constraint", None) or Unconstrained()
        excess, noise, inside_theta, inside_a, affine = _facts(
            system, scenario, run.x, run.theta, run.a_hat, sets.theta, sets.a, own
        )
        lengths = path_lengths(system, scenario)
        return Measured(
            rows=jax.tree.map(lambda leaf: np.asarray(leaf, float), rows),
            mismatch=np.asarray(mismatch.mismatch, float),
            mismatch_gradient=np.asarray(mismatch.mismatch_gradient, float),
            zeta=np.asarray(zeta.norm, float),
            surrogate=np.asarray(F.value, float),
            surrogate_error=np.asarray(F.value_error, float),
            bias=np.linalg.norm(np.asarray(rows.gradient - F.gradient, float), axis=1) + error,
            surrogate_gradient=np.linalg.norm(np.asarray(F.gradient, float), axis=1) + error,
            local_regret=float(regret.cumulative[-1] + regret.cumulative_error[-1]),
            excess=float(excess),
            observation_noise=float(noise),
            path=float(lengths.a_star),
            path_w=float(lengths.w),
            theta_scale=float(jnp.max(jnp.abs(_inputs.flat_rows(run.theta)))),
            inside_theta=bool(inside_theta),
            inside_a=bool(inside_a),
            affine=float(affine),
        )


@eqx.filter_jit
def step_rows(
    system: MatchedSystem,
    tuner: MGAPS,
    scenario: Scenario,
    x: Array,
    y: Array,
    thetas: PyTree,
    a_hats: PyTree,
    final: PyTree,
) -> Rows:
    x_exact, y_exact = companion(system, scenario, thetas)
    following = jax.tree.map(lambda rows, last: jnp.concatenate([rows[1:], last[None]]), thetas, final)

    def at(tau: Array, x: Array, y: Array, theta: PyTree, a_hat: PyTree, after: PyTree, xe: Array, ye: Array) -> Any:
        now = scenario.row(tau)
        flat, unravel = ravel_pytree(theta)
        eta = jnp.asarray(tuner.learning_rate, flat.dtype)

        def update(x: Array, y: Array, a: PyTree) -> tuple[Array, Array]:
            _, _, cost, G = system.sensitivity(x, y, theta, a, now.t)
            return ravel_pytree(tuner.constraint.project(unravel(flat - eta * G)))[0], jnp.append(G, cost)

        act = system.actuation(x, theta, now.t)
        error = system.residual(x, now.a_star, now.t) - system.residual(x, a_hat, now.t)
        change_x = system.phi(x, act + error, now.t) - system.phi(x, act, now.t)
        change_theta = update(x, y, a_hat)[0] - update(x, y, now.a_star)[0]
        _, exact = update(xe, ye, now.a_star)
        control = jnp.maximum(
            jnp.linalg.norm(act - system.residual(x, a_hat, now.t)),
            jnp.maximum(jnp.linalg.norm(act + error), jnp.linalg.norm(act - system.residual(x, now.a_star, now.t))),
        )
        act_exact = system.actuation(xe, theta, now.t)
        control_exact = jnp.maximum(
            jnp.linalg.norm(act_exact), jnp.linalg.norm(act_exact - system.residual(xe, now.a_star, now.t))
        )
        return Rows(
            x=jnp.linalg.norm(x),
            y=_operator_norm(y),
            u=control,
            x_exact=jnp.linalg.norm(xe),
            y_exact=_operator_norm(ye),
            u_exact=control_exact,
            gap=jnp.hypot(jnp.linalg.norm(x - xe), _operator_norm(y - ye)),
            change_x=jnp.linalg.norm(change_x),
            change_theta=jnp.linalg.norm(change_theta),
            steps_theta=jnp.linalg.norm(ravel_pytree(after)[0] - flat),
            gradient=exact[:-1],
            cost=exact[-1],
        )

    steps = jnp.arange(len(scenario))
    return jax.vmap(at)(steps, x, y, thetas, a_hats, following, x_exact, y_exact)


def _operator_norm(matrix: Array) -> Array:
    return jnp.linalg.norm(matrix) if min(matrix.shape) == 1 else jnp.linalg.norm(matrix, 2)


@eqx.filter_jit
def _facts(
    system: MatchedSystem,
    scenario: Scenario,
    x: Array,
    thetas: PyTree,
    a_hats: PyTree,
    theta_set: Any,
    a_set: Any,
    own: Any,
) -> tuple[Array, Array, Array, Array, Array]:
    def at(tau: Array, x: Array, theta: PyTree, a_hat: PyTree) -> Any:
        now = scenario.row(tau)
        true, guess = system.residual(x, now.a_star, now.t), system.residual(x, a_hat, now.t)
        v = jnp.zeros_like(true) if now.v is None else now.v
        excess = jnp.sum((guess - true - v) ** 2) - jnp.sum(v**2)
        middle = jax.tree.map(lambda a, b: (a + b) / 2, now.a_star, a_hat)
        bend = jnp.linalg.norm(system.residual(x, middle, now.t) - (true + guess) / 2)
        inside = a_set.contains(a_hat) & a_set.contains(now.a_star) & own.contains(now.a_star)
        return excess, jnp.linalg.norm(v), theta_set.contains(theta), inside, bend

    excess, noise, inside_theta, inside_a, bend = jax.vmap(at)(jnp.arange(len(scenario)), x, thetas, a_hats)
    return jnp.sum(excess), jnp.max(noise), jnp.all(inside_theta), jnp.all(inside_a), jnp.max(bend)
