"""The function that makes the certificate of a run."""

from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from ..control.controller import Controller
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..problem.constraints import Ball
from ..problem.scenario import Scenario
from ..regret import AutoWindow, path_lengths
from ..simulation.run import Run
from .certificate import Certificate
from .claims import Claims
from .constants import Constants, Contraction, Sets, number
from .estimator_claims import Noise, estimator_rows
from .joint import Joint
from .measure import TheoryProblem, residual_variation


def certify(
    controller: Controller,
    scenario: Scenario,
    run: Run,
    sets: Sets,
    *,
    constants: Constants | None = None,
    contraction: Contraction | None = None,
    joint: Joint | None = None,
    noise: Noise | None = None,
    variation: float | None = None,
    key: PRNGKeyArray | None = None,
    window: int | AutoWindow | None = AutoWindow(),
) -> Certificate:
    r"""Check the paper's theorems on a run.

    Each row of the certificate is a hypothesis or an inequality. It has both sides as numbers, the constants in the
    bound (given or sampled), and the hypotheses that fail. An inequality *must* hold if its hypotheses hold on the run
    and its constants are given; `Certificate.ok` says whether all such inequalities hold. A bound is called vacuous if
    it is larger than a bound that follows from the sets alone. A theorem that does not apply to this controller is
    called not applicable, with the reason.

    The theorems need small model errors to conclude that states and parameters stay in their sets. If they did stay in
    their sets on the run, the inequalities that follow are checked even if the model errors were not small.

    The rows depend on the controller:

    | controller | rows |
    |---|---|
    | `MGAPS` with a number, on a `MatchedSystem` | all |
    | `GAPS` with a number | all; its truncation is added to the gradient bias and to the regret bounds |
    | a schedule for the learning rate | Theorem 1, gradient bias, distance; no regret, because its theorem has one η |
    | any `System`, with `joint` | Theorem 1; with `constants` for f also the estimator and the distance |

    **Arguments:**

    - `run`: a run of this controller on this scenario that recorded every field at every step, from the first step.
    - `constants`, `contraction`: yours, or None to sample them.
    - `joint`: the properties of the joint dynamics, for a system that is not matched. `contraction` is then not used,
      and of `constants`, which may be None, only those of f.
    - `noise`: for the theorems on the estimator's gradient error; None leaves those rows out. The scenario shows how
      the noise entered: correlation of w over time, or of v with w (as in inferred observations), is a failed
      hypothesis.
    - `variation`: $V_{sys}$ (`path_lengths`) and, if f depends on t itself, also $\sum_t \sup_{x,a} \|f_t(x, a) -
      f_{t-1}(x, a)\|$; None samples both. Zero if nothing depends on t. The part of a* is known, and added separately.
    - `key`: for everything that is sampled.
    - `window`: as in `surrogate`.

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
        >>> known = dict(constants=constants, contraction=st.Contraction(C_bar=1, rho=0.5, R_S=0.2), variation=0.0)
        >>> certificate = st.certify(controller, scenario, run, sets, **known)
        >>> row = certificate.row("distance, in all")
        >>> certificate.ok, row.verdict, f"{row.measured:.2f} ≤ {row.bound:.2f}"
        (True, 'holds', '0.20 ≤ 0.31')
    """
    problem = TheoryProblem.make(controller, scenario, run, sets, joint)
    if noise is not None and not isinstance(noise, Noise):
        raise ArgumentError("noise", "Noise or None", arguments.describe(noise))
    if joint is not None:
        if constants is not None and not isinstance(constants, Constants):
            raise ArgumentError("constants", "Constants or None", arguments.describe(constants))
        claims = Claims(problem, problem.measure(window), constants, None, joint=joint)
    else:
        claims = _matched_claims(problem, constants, contraction, variation, key, window)
    claims.rows()
    estimator_rows(claims, noise)
    return Certificate(tuple(claims.ledger.rows), claims.k, claims.c, claims.derived())


def _matched_claims(
    problem: TheoryProblem,
    constants: Constants | None,
    contraction: Contraction | None,
    variation: float | None,
    key: PRNGKeyArray | None,
    window: int | AutoWindow | None,
) -> Claims:
    needs_key = [
        name
        for name, v in {"constants": constants, "contraction": contraction, "variation": variation}.items()
        if v is None
    ]
    if needs_key and key is None:
        raise ArgumentError("key", f"a PRNG key, because {', '.join(needs_key)} must be sampled", "None")
    keys: Any = (None,) * 3 if key is None else jax.random.split(arguments.key("key", key), 3)
    constants, contraction = problem.known(constants, contraction, keys)
    source = "given"
    if variation is None:
        source = "sampled"
        sampled: Any = path_lengths(problem.system, problem.scenario, problem.run, key=keys[2]).system
        sets = problem.sets
        own = residual_variation(problem.system, problem.scenario, Ball(sets.x_radius), sets.a, keys[2])
        variation = float(sampled) + float(own)
    variation = number("variation", variation)
    measured = problem.measure(window)
    return Claims(problem, measured, constants, contraction, variation=variation, variation_source=source)
