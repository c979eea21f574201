"""Suggestions for the learning rate: the largest that the theory admits, and one from a run."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PRNGKeyArray

from ..control.controller import Controller
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.projected_step import constraint_of
from ..problem.scenario import Scenario
from ..regret import AutoWindow, run_inputs, surrogate
from ..simulation.run import Run
from . import multi_step
from .constants import Constants, Contraction, Sets
from .measure import TheoryProblem


@dataclass(frozen=True)
class LearningRates:
    r"""Two suggestions for η. Each is the smaller of a limit from the step of θ and a limit from the curvature.

    !!! Example

        >>> import jax
        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> tuner = st.MGAPS(0.01, constraint=st.Box(0.0, 1.0))
        >>> controller = st.Controller(system, tuner, st.GradientEstimator(0.1))
        >>> scenario = st.Scenario(jnp.ones(1), a_star=jnp.ones((50, 1)), w=jnp.zeros((50, 1)))
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> rates = st.suggest_learning_rate(controller, scenario, run, key=jax.random.key(0))
        >>> rates.admissible, bool(rates.measured > 0)  # without `Sets`, only the measured one
        (None, True)
    """

    admissible: float | None
    r"""$\bar\eta = \min\{\epsilon_\theta / L_F, 1 / (2 \ell_F)\}$ of the theory: safe, and often tiny. None
    without `Sets`."""
    measured: float
    """The same formula with the measured gradients and curvatures: a rate to try with a guard."""
    gradient: tuple[float | None, float]
    r"""$L_F$ (None without `Sets`), and the largest $\|\nabla F_t(\theta_t)\|$ or $\|G_t\|$ of the run."""
    curvature: tuple[float | None, float]
    r"""$\ell_F$ (None without `Sets`), and the largest
    $\|\nabla F_t(\theta + \delta) - \nabla F_t(\theta)\| / \|\delta\|$ around the run."""
    sampled: bool
    """Whether the theory's constants were sampled; `admissible` may then be too large."""

    def __str__(self) -> str:
        source = "sampled constants" if self.sampled else "given constants"
        lines = [
            f"measured:   {self.measured:.3g} (gradient up to {self.gradient[1]:.3g}, "
            f"curvature up to {self.curvature[1]:.3g}; on this run)"
        ]
        if self.admissible is not None:
            lines.insert(
                0,
                f"admissible: {self.admissible:.3g} (gradient up to {self.gradient[0]:.3g}, "
                f"curvature up to {self.curvature[0]:.3g}; {source})",
            )
        return "\n".join(lines)


def suggest_learning_rate(
    controller: Controller,
    scenario: Scenario,
    run: Run,
    sets: Sets | None = None,
    *,
    constants: Constants | None = None,
    contraction: Contraction | None = None,
    key: PRNGKeyArray,
    directions: int = 4,
    window: int | AutoWindow | None = AutoWindow(),
) -> LearningRates:
    r"""Suggest η for M-GAPS: the limit of Lemma "matched-disturbance robustness", and a value measured on a run.

    $$\bar\eta = \min\left\{\frac{\epsilon_\theta}{L_F}, \frac{1}{2 \ell_F}\right\}$$

    once with the theory's constants, which hold on the whole sets, and once with the largest measured gradient and
    curvature of the surrogate: along the run, and at points that are 1/100 of the size of Θ away, in `directions`
    random directions.

    Without `sets`, only the second value is computed. It needs a tuner with a bounded constraint Θ, and any `System`;
    $\epsilon_\theta$, the largest step of θ, is then 1/100 of the size of Θ. The first value needs a `MatchedSystem`.

    **Arguments:** as in `certify`; `key`: for the directions, and for everything that is sampled.

    !!! Example

        >>> import jax, jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.5 * x + 0.1 * v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: 0.5 * jnp.sum(x**2) + 0.05 * jnp.sum(u**2),
        ... )
        >>> gains, model = st.Box(0.0, 1.0), st.Box(-0.1, 0.1)
        >>> controller = st.Controller(
        ...     system, st.MGAPS(1e-3, constraint=gains), st.GradientEstimator(0.05, constraint=model)
        ... )
        >>> w = st.Uniform(0.1)(jax.random.key(0), 500, 1)
        >>> scenario = st.Scenario(jnp.zeros(1), a_star=jnp.full((500, 1), 0.1), w=w)
        >>> run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        >>> sets = st.Sets(x_radius=0.5, u_radius=1.0, theta=gains, a=model, theta_step=0.1)
        >>> constants = st.Constants(
        ...     L_phi_x=0.5, L_phi_u=0.1, ell_phi_x=0, ell_phi_u=0, L_psi_x=1, L_psi_theta=0.5, ell_psi_x=1,
        ...     ell_psi_theta=1, L_f_x=0, L_f_a=1, ell_f_x=0, ell_f_a=0, L_h_x=0.5, L_h_u=0.1, L_h_theta=0, ell_h_x=1,
        ...     ell_h_u=0.1, ell_h_theta=0,
        ... )  # fmt: skip
        >>> known = dict(constants=constants, contraction=st.Contraction(C_bar=1, rho=0.5, R_S=0.2))
        >>> rates = st.suggest_learning_rate(controller, scenario, run, sets, **known, key=jax.random.key(1))
        >>> print(f"{rates.admissible:.2g} {rates.measured:.2g}")  # the worst case is worse than what happened
        0.2 25
    """
    directions = arguments.count("directions", directions)
    keys = jax.random.split(arguments.key("key", key), directions + 2)
    F = source = None
    if sets is not None:
        problem = TheoryProblem.make(controller, scenario, run, sets, plain=True)
        constants, contraction = problem.known(constants, contraction, keys)
        F = multi_step.surrogate_constants(constants, contraction)
        source = bool(constants.sampled) or contraction.source == "sampled"
    elif constants is not None or contraction is not None:
        raise ArgumentError("sets", "Sets, because constants or a contraction are given", "None")
    gradient, curvature, reach = _measured(controller, scenario, run, sets, keys[2:], window)
    theta_step = reach if sets is None else sets.theta_step
    return LearningRates(
        admissible=None if F is None else _smallest(theta_step, F.L, F.ell),
        measured=_smallest(theta_step, gradient, curvature),
        gradient=(None if F is None else F.L, gradient),
        curvature=(None if F is None else F.ell, curvature),
        sampled=bool(source),
    )


def _measured(
    controller: Any, scenario: Any, run: Any, sets: Sets | None, keys: Any, window: Any
) -> tuple[float, float, float]:
    """Return the largest gradient and curvature of the surrogate along the run, and 1/100 of the size of Θ."""
    arguments.instance("controller", controller, Controller)
    system, scenario = controller.system, run_inputs.problem(controller.system, scenario)
    thetas, gradients = run_inputs.recorded(run, "theta", "gradient", scenario=scenario)
    theta = jax.tree.map(lambda leaf: leaf[0], thetas)
    constraint = constraint_of(controller.tuner) if sets is None else sets.theta
    size = np.inf if constraint is None else float(constraint.diameter(theta))
    if constraint is None or not 0 < size < np.inf:
        expected = "a controller whose tuner has a bounded constraint, such as selftune.Box(0.0, 1.0)"
        raise ArgumentError("controller", expected, f"the constraint {constraint!r}")
    here = np.asarray(surrogate(system, scenario, thetas, window=window).gradient, float)
    largest = max(np.linalg.norm(here, axis=1).max(), float(jnp.linalg.norm(gradients, axis=1).max()))
    reach, curvature = size / 100, 0.0
    for each in keys:
        # Move towards a random point of Θ, so that the point stays in a convex set.
        target = ravel_pytree(constraint.sample(each, theta))[0]

        def shift(theta: Any, target: jax.Array = target) -> Any:
            flat, unravel = ravel_pytree(theta)
            way = target - flat
            return unravel(flat + way * jnp.minimum(1.0, reach / jnp.maximum(jnp.linalg.norm(way), 1e-30)))

        moved = jax.vmap(shift)(thetas)
        there = np.asarray(surrogate(system, scenario, moved, window=window).gradient, float)
        step = jax.vmap(lambda a, b: jnp.linalg.norm(ravel_pytree(a)[0] - ravel_pytree(b)[0]))(moved, thetas)
        step = np.asarray(step, float)
        far = step > reach / 1e3  # for shorter steps, rounding errors would dominate the quotient
        if far.any():
            curvature = max(curvature, float((np.linalg.norm(there - here, axis=1)[far] / step[far]).max()))
    return float(largest), curvature, reach


def _smallest(theta_step: float, gradient: float, curvature: float) -> float:
    with np.errstate(divide="ignore"):
        return float(min(np.divide(theta_step, gradient), np.divide(1.0, 2 * curvature)))
