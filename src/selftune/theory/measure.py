"""The measured quantities of a certificate: the left sides of all theorems, measured once on a run."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..control.controller import Controller
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.constraints import Ball, Unconstrained
from ..problem.projected_step import constraint_of
from ..problem.scenario import Scenario
from ..problem.system import AbstractSystem, MatchedSystem
from ..regret import AutoWindow, local_regret, model_mismatch, path_lengths, perturbations, run_inputs
from ..regret.companion_trajectory import companion
from ..simulation.run import Run
from ..tuners import GAPS, MGAPS
from .constants import Constants, Contraction, Sets
from .joint import Joint
from .sampling import check_bounded, edge_or_inside, sample_constants, sample_contraction


class Rows(NamedTuple):
    """Quantities of each step that follow from the system, the run and the companion."""

    x: Array
    y: Array
    u: Array
    x_exact: Array
    y_exact: Array
    u_exact: Array
    gap: Array
    apart: Array
    """‖x − x̃‖ + ‖y − ỹ‖."""
    change_x: Array
    """‖q^x(â) − q^x(a*)‖ at the run's own (x, y, θ)."""
    change_y: Array
    change_theta: Array
    steps_theta: Array
    off_x: Array
    """The distance of the run's next x and θ from those that this controller computes from the current step."""
    off_theta: Array
    gradient: Array
    """G̃ of the companion, (T, d)."""
    cost: Array
    """The cost of the companion."""


@dataclass(frozen=True)
class Measured:
    rows: Any
    """`Rows`, as NumPy arrays."""
    mismatch: np.ndarray
    mismatch_gradient: np.ndarray
    zeta: np.ndarray
    surrogate: np.ndarray
    surrogate_error: np.ndarray
    gradient_error: np.ndarray
    """The estimated error of the surrogate's gradient, if it was computed with a window or interpolated."""
    bias: np.ndarray
    """‖G̃_t − ∇F_t(θ_t)‖."""
    surrogate_gradient: np.ndarray
    local_regret: float
    local_regret_error: float
    last_surrogate: float
    """F_{T−1}(θ_T), which must be non-negative for the regret bounds."""
    largest_control: float
    """The largest of ‖ψ − f‖ and ‖ψ‖ among samples of 𝒳 × Θ × 𝒜."""
    excess: float
    """Σ (ℓ̃_t(â_t) − ℓ̃_t(a*_t)): the loss in the estimator's lemma, with noise."""
    observation_noise: float
    path: float
    path_w: float
    memory_w: float
    """The largest correlation of an entry of w_t with an entry of w_{t−1}."""
    memory_v: float
    """The largest correlation of v_t with the past v_{t−1} and w_{t−1}; or |mean| / RMS of an entry of v, if larger."""
    revealed: float
    """The largest correlation of an entry of v_t with an entry of w_t."""
    theta_scale: float
    inside_theta: bool
    inside_a: bool
    affine: float


@dataclass(frozen=True)
class TheoryProblem:
    controller: Controller
    system: Any
    """A `MatchedSystem`, unless a `Joint` was given."""
    tuner: MGAPS | GAPS
    scenario: Scenario
    run: Run
    sets: Sets
    rates: np.ndarray
    """η_t by row: a constant, or the values of a schedule."""

    @staticmethod
    def make(
        controller: Any, scenario: Any, run: Any, sets: Any, joint: Any = None, plain: bool = False
    ) -> "TheoryProblem":
        """Raise `ValueError` if the theory does not apply. `plain`: only M-GAPS with a number on a `MatchedSystem`."""
        arguments.instance("controller", controller, Controller)
        system, tuner = controller.system, controller.tuner
        if system.memory is not None:
            raise ArgumentError(
                "controller", "a system without memory, because the theorems are about such systems", "one with memory"
            )
        if joint is not None and not isinstance(joint, Joint):
            raise ArgumentError("joint", "Joint or None", arguments.describe(joint))
        if joint is None and not isinstance(system, MatchedSystem):
            hint = "write the system as a MatchedSystem if its policy is u = −f + ψ(x, θ)"
            hint += "" if plain else "; otherwise give joint=Joint(...), the properties of the joint dynamics"
            raise ArgumentError(
                "controller",
                "a controller whose system is a selftune.MatchedSystem",
                f"a controller whose system is a {type(system).__name__}",
                hint,
            )
        admitted = MGAPS if plain else (MGAPS, GAPS)
        rate = tuner.learning_rate if isinstance(tuner, (MGAPS, GAPS)) else None
        if not isinstance(tuner, admitted) or isinstance(rate, optax.GradientTransformation):
            kinds = "MGAPS and its learning rate is a number"
            kinds = kinds if plain else "MGAPS or GAPS and its learning rate is a number or a schedule"
            raise ArgumentError(
                "controller",
                f"a controller whose tuner is {kinds} (the theory has no Lipschitz constants for "
                "the step of an optax transformation)",
                f"the tuner {arguments.describe(tuner)}",
            )
        if plain and not isinstance(rate, jax.Array):
            raise ArgumentError(
                "controller",
                "a controller whose tuner is MGAPS and its learning rate is a number",
                f"the learning rate {arguments.describe(rate)}",
            )
        if not isinstance(sets, Sets):
            raise ArgumentError("sets", "Sets", arguments.describe(sets))
        scenario = run_inputs.problem(system, scenario)
        for name in ("x", "u", "y", "gradient", "theta", "a_hat", "f"):
            run_inputs.recorded(run, name, scenario=scenario)
        if not bool(jnp.all(run.outcome.ok)):
            raise ArgumentError("run", "a run that succeeded", f"one where {run.result.message}")
        theta, a = (jax.tree.map(lambda leaf: leaf[0], tree) for tree in (run.theta, scenario.a_star))
        for name, value, constraint in (("theta", theta, sets.theta), ("a", a, sets.a)):
            check_bounded(f"sets.{name}", constraint, value)
        return TheoryProblem(controller, system, tuner, scenario, run, sets, _rates(rate, len(scenario)))

    @property
    def learning_rate(self) -> float:
        """η, or the largest η of a schedule."""
        return float(self.rates.max())

    @property
    def scheduled(self) -> bool:
        return not isinstance(self.tuner.learning_rate, jax.Array)

    @property
    def matched(self) -> bool:
        return isinstance(self.system, MatchedSystem)

    def known(self, constants: Any, contraction: Any, keys: Any) -> tuple[Constants, Contraction]:
        """The given constants; those that are None are sampled."""
        which: Any = (self.system, self.scenario, self.sets)
        theta = jax.tree.map(lambda leaf: leaf[0], self.run.theta)
        if constants is None:
            constants = sample_constants(*which, theta=theta, key=keys[0])
        if contraction is None:
            contraction = sample_contraction(*which, theta=theta, key=keys[1])
        for name, value, kind in (("constants", constants, Constants), ("contraction", contraction, Contraction)):
            if not isinstance(value, kind):
                raise ArgumentError(name, f"{kind.__name__} or None", arguments.describe(value))
        return constants, contraction

    def measure(self, window: int | AutoWindow | None) -> Measured:
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
        rates = jnp.asarray(self.rates, scenario.x0.dtype)
        rows = step_rows(system, self.tuner, scenario, run.x, run.y, run.theta, run.a_hat, final, run.final.x, rates)
        self._check_belongs(rows)
        # The estimator projects onto its own set. Its lemma needs a* to be in that set.
        own = constraint_of(self.controller.estimator) or Unconstrained()
        excess, noise, inside_theta, inside_a, affine = _facts(
            system, scenario, run.x, run.theta, run.a_hat, sets.theta, sets.a, own
        )
        lengths = path_lengths(system, scenario)
        w = np.asarray(scenario.w, float)
        v = np.zeros((len(w), 1)) if scenario.v is None else np.asarray(scenario.v, float)
        return Measured(
            rows=jax.tree.map(lambda leaf: np.asarray(leaf, float), rows),
            mismatch=np.asarray(mismatch.mismatch, float),
            mismatch_gradient=np.asarray(mismatch.mismatch_gradient, float),
            zeta=np.asarray(zeta.norm, float),
            surrogate=np.asarray(F.value, float),
            surrogate_error=np.asarray(F.value_error, float),
            gradient_error=np.asarray(F.gradient_error, float),
            bias=np.linalg.norm(np.asarray(rows.gradient - F.gradient, float), axis=1),
            surrogate_gradient=np.linalg.norm(np.asarray(F.gradient, float), axis=1),
            local_regret=float(regret.cumulative[-1]),
            local_regret_error=float(regret.cumulative_error[-1]),
            last_surrogate=float(_last_surrogate(system, scenario, final)),
            largest_control=float(_largest_control(system, scenario, Ball(sets.x_radius), sets.theta, sets.a, final))
            if self.matched
            else 0.0,
            excess=float(excess),
            observation_noise=float(noise),
            path=float(lengths.a_star),
            path_w=float(lengths.w),
            memory_w=_correlation(w[1:], w[:-1]),
            memory_v=max(_correlation(v[1:], v[:-1]), _correlation(v[1:], w[:-1]), _mean(v)),
            revealed=_correlation(v, w),
            theta_scale=float(jnp.max(jnp.abs(run_inputs.flat_rows(run.theta)))),
            inside_theta=bool(inside_theta) and bool(sets.theta.contains(final)),
            inside_a=bool(inside_a),
            affine=float(affine),
        )

    def _check_belongs(self, rows: Rows) -> None:
        """Raise `ValueError` for a run of another controller, plant or scenario, or a run that was resumed."""
        run, scenario = self.run, self.scenario
        begins = bool(jnp.all(run.x[0] == scenario.x0)) and not bool(jnp.any(run.y[0]))
        unit = 2.0**12 * float(jnp.finfo(scenario.x0.dtype).eps)
        # Optax computes schedules in float32, which two engines round differently.
        rounding = 64 * float(jnp.finfo(jnp.float32).eps) * np.asarray(rows.steps_theta) if self.scheduled else 0.0
        for name, off, values, more in (
            ("x", rows.off_x, run.x, 0.0),
            ("theta", rows.off_theta, run_inputs.flat_rows(run.theta), rounding),
        ):
            wrong = np.asarray(off) > unit * (1 + float(jnp.max(jnp.abs(values)))) + more
            if begins and wrong.any():
                raise ArgumentError(
                    "run",
                    "a run of this controller on this scenario, without a separate plant",
                    f"one whose {name} after step {int(np.argmax(wrong))} differs from what they compute",
                )
        if not begins:
            raise ArgumentError("run", "a run from the scenario's first step, with y = 0", "one that was resumed")


def _rates(rate: Any, steps: int) -> np.ndarray:
    if isinstance(rate, jax.Array):
        return np.full(steps, float(rate))
    with jax.numpy_dtype_promotion("standard"):
        return np.asarray(jax.vmap(rate)(jnp.arange(steps, dtype=jnp.int32)), float).reshape(-1) * np.ones(steps)


def _correlation(left: np.ndarray, right: np.ndarray) -> float:
    """The largest |Pearson correlation| of a column of `left` with a column of `right`; zero for constant columns."""

    def standard(columns: np.ndarray) -> np.ndarray:
        centered = columns - columns.mean(axis=0)
        size = np.linalg.norm(centered, axis=0)
        # A column that is constant up to rounding has no correlation.
        still = size <= 1e-12 * np.sqrt(len(columns)) * (np.abs(columns).max(axis=0) + 1e-300)
        return np.where(still, 0.0, centered / np.where(still, 1.0, size))

    if len(left) < 2:
        return 0.0
    return float(np.abs(standard(left).T @ standard(right)).max())


def _mean(columns: np.ndarray) -> float:
    """The largest |mean| / RMS of a column; zero for columns of zeros."""
    size = np.sqrt(np.mean(columns**2, axis=0))
    return float((np.abs(columns.mean(axis=0)) / np.where(size > 0, size, 1.0)).max())


@eqx.filter_jit
def step_rows(
    system: AbstractSystem,
    tuner: MGAPS | GAPS,
    scenario: Scenario,
    x: Array,
    y: Array,
    thetas: PyTree,
    a_hats: PyTree,
    final: PyTree,
    final_x: Array,
    rates: Array,
) -> Rows:
    x_exact, y_exact = _companion(system, tuner, scenario, thetas)
    matched = isinstance(system, MatchedSystem)

    def append(rows: Array, last: Array) -> Array:
        return jnp.concatenate([rows[1:], last[None]])

    following = (append(x, final_x), jax.tree.map(append, thetas, final))

    def at(
        tau: Array, eta: Array, x: Array, y: Array, theta: PyTree, a_hat: PyTree, after: Any, xe: Array, ye: Array
    ) -> Any:
        x_after, theta_after = after
        now = scenario.row(tau)
        flat, unravel = ravel_pytree(theta)

        def update(x: Array, y: Array, a: PyTree) -> tuple[Array, Array, Array]:
            _, y_next, cost, G = system.sensitivity(x, y, theta, a, now.t)
            return ravel_pytree(tuner.constraint.project(unravel(flat - eta * G)))[0], y_next, jnp.append(G, cost)

        def control(x: Array, a: PyTree, true: Array) -> tuple[Array, Array]:
            """u, and the largest norm of the inputs of φ and h: u and, for a matched system, u + f."""
            u = system.policy(x, theta, system.residual(x, a, now.t), now.t)
            size = jnp.linalg.norm(u)
            return u, jnp.maximum(size, jnp.linalg.norm(u + true)) if matched else size

        true, true_exact = (system.residual(each, now.a_star, now.t) for each in (x, xe))
        (u, size), (u_true, size_true) = (control(x, a, true) for a in (a_hat, now.a_star))
        moved = system.dynamics(x, u, true, now.t)
        updated, y_model, _ = update(x, y, a_hat)
        updated_true, y_true, _ = update(x, y, now.a_star)
        flat_after = ravel_pytree(theta_after)[0]
        _, _, exact = update(xe, ye, now.a_star)
        return Rows(
            x=jnp.linalg.norm(x),
            y=_operator_norm(y),
            u=jnp.maximum(size, size_true),
            x_exact=jnp.linalg.norm(xe),
            y_exact=_operator_norm(ye),
            u_exact=control(xe, now.a_star, true_exact)[1],
            gap=jnp.hypot(jnp.linalg.norm(x - xe), _operator_norm(y - ye)),
            apart=jnp.linalg.norm(x - xe) + _operator_norm(y - ye),
            change_x=jnp.linalg.norm(moved - system.dynamics(x, u_true, true, now.t)),
            change_y=_operator_norm(y_model - y_true),
            change_theta=jnp.linalg.norm(updated - updated_true),
            steps_theta=jnp.linalg.norm(flat_after - flat),
            off_x=jnp.linalg.norm(x_after - now.w - moved),
            off_theta=jnp.linalg.norm(flat_after - updated),
            gradient=exact[:-1],
            cost=exact[-1],
        )

    steps = jnp.arange(len(scenario))
    return jax.vmap(at)(steps, rates, x, y, thetas, a_hats, following, x_exact, y_exact)


def _companion(
    system: AbstractSystem, tuner: MGAPS | GAPS, scenario: Scenario, thetas: PyTree
) -> tuple[Float[Array, "T n"], Float[Array, "T n d"]]:
    """x̃ and ỹ; for GAPS, ỹ is the sum of its own buffer."""
    if isinstance(tuner, MGAPS):
        return companion(system, scenario, thetas)

    def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
        x, state = carry
        tau, theta = inputs
        now = scenario.row(tau)
        _, state, info = tuner.update(system, x, theta, now.a_star, now.t, state)
        return (system.step(x, theta, now.a_star, now.t)[0] + now.w, state), (x, info.y)

    first = jax.tree.map(lambda rows: rows[0], thetas)
    start = (scenario.x0, tuner.init(system, scenario.x0, first))
    return jax.lax.scan(step, start, (jnp.arange(len(scenario)), thetas))[1]


def _operator_norm(matrix: Array) -> Array:
    return jnp.linalg.norm(matrix) if min(matrix.shape) == 1 else jnp.linalg.norm(matrix, 2)


@eqx.filter_jit
def _facts(
    system: AbstractSystem,
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
        # The deviation from affinity that the proof needs: the residual at a* minus its tangent at â.
        way = jax.tree.map(jnp.subtract, now.a_star, a_hat)
        _, slope = jax.jvp(lambda a: system.residual(x, a, now.t), (a_hat,), (way,))
        bend = jnp.linalg.norm(true - guess - slope)
        inside = a_set.contains(a_hat) & a_set.contains(now.a_star) & own.contains(now.a_star)
        return excess, jnp.linalg.norm(v), theta_set.contains(theta), inside, bend

    excess, noise, inside_theta, inside_a, bend = jax.vmap(at)(jnp.arange(len(scenario)), x, thetas, a_hats)
    return jnp.sum(excess), jnp.max(noise), jnp.all(inside_theta), jnp.all(inside_a), jnp.max(bend)


@eqx.filter_jit
def _last_surrogate(system: AbstractSystem, scenario: Scenario, theta: PyTree) -> Array:
    def step(x: Array, tau: Array) -> tuple[Array, Array]:
        now = scenario.row(tau)
        x_next, cost = system.step(x, theta, now.a_star, now.t)
        return x_next + now.w, cost

    return jax.lax.scan(step, scenario.x0, jnp.arange(len(scenario)))[1][-1]


_CONTROL_SEED = 0
"""The samples of the sets are fixed: the certificate of a run depends on the run and on the sets only."""


@eqx.filter_jit
def _largest_control(
    system: MatchedSystem, scenario: Scenario, x_set: Any, theta_set: Any, a_set: Any, theta: PyTree
) -> Array:
    """The largest control on samples of the sets. Half of the samples are at the edges, where controls are largest."""
    a = jax.tree.map(lambda leaf: leaf[0], scenario.a_star)

    def at(key: Array) -> Array:
        kx, kt, ka, ks = jax.random.split(key, 4)
        x = edge_or_inside(x_set, scenario.x0, kx)
        t = scenario.row(jax.random.randint(ks, (), 0, len(scenario))).t
        act = system.actuation(x, edge_or_inside(theta_set, theta, kt), t)
        f = system.residual(x, edge_or_inside(a_set, a, ka), t)
        return jnp.maximum(jnp.linalg.norm(act), jnp.linalg.norm(act - f))

    return jnp.max(jax.vmap(at)(jax.random.split(jax.random.key(_CONTROL_SEED), 1024)))


@eqx.filter_jit
def residual_variation(system: MatchedSystem, scenario: Scenario, x_set: Any, a_set: Any, key: Array) -> Array:
    """A lower estimate, by samples, of the total change of f over the steps at the same (x, a)."""
    a = jax.tree.map(lambda leaf: leaf[0], scenario.a_star)
    kx, ka = jax.random.split(key)
    x = jax.vmap(lambda key: edge_or_inside(x_set, scenario.x0, key))(jax.random.split(kx, 64))
    a = jax.vmap(lambda key: edge_or_inside(a_set, a, key))(jax.random.split(ka, 64))

    def step(before: Array, tau: Array) -> tuple[Array, Array]:
        now = jax.vmap(lambda x, a: system.residual(x, a, scenario.row(tau).t))(x, a)
        return now, jnp.max(jnp.linalg.norm(now - before, axis=1))

    first = jax.vmap(lambda x, a: system.residual(x, a, scenario.row(0).t))(x, a)
    return jnp.sum(jax.lax.scan(step, first, jnp.arange(len(scenario)))[1])
