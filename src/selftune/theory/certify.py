"""From a run to its certificate."""

from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from .. import _check
from ..controller import Controller
from ..regret import path_lengths
from ..run import Run
from ..scenario import Scenario
from .certificate import Certificate
from .claims import Claims
from .constants import Constants, Contraction, Sets, _number
from .estimator_claims import Noise, estimator_rows
from .measure import Problem
from .sampling import sample_constants, sample_contraction


def certify(
    controller: Controller,
    scenario: Scenario,
    run: Run,
    sets: Sets,
    *,
    constants: Constants | None = None,
    contraction: Contraction | None = None,
    noise: Noise | None = None,
    variation: float | None = None,
    key: PRNGKeyArray | None = None,
    window: int | str | None = "auto",
) -> Certificate:
    r"""Hold the paper's theorems against a run of M-GAPS on a matched-disturbance system.

    Each row of the certificate is a hypothesis or an inequality, with both sides as numbers, the constants it rests on
    and whether they were given or sampled, and the hypotheses that fail. An inequality whose hypotheses hold on the run
    with given constants *must* hold: `Certificate.ok` says whether all of these do. A bound that says no more than the
    sets themselves is called vacuous.

    The theorems ask for small model errors in order to conclude that states and parameters stay in their sets. Where
    the run itself shows that they did, the inequalities that follow are checked without asking how that came about.

    **Arguments:**

    - `run`: one that recorded `x`, `u`, `y`, `theta`, `a_hat` and `f`, every step, from the first.
    - `constants`, `contraction`: yours, or None to have them sampled.
    - `noise`: for the theorems on the estimator's gradient error; None leaves those rows out.
    - `variation`: $V_{sys}$; None samples it (`path_lengths`). Zero where nothing depends on t.
    - `key`: for whatever is sampled.
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
        >>> certificate = st.certify(controller, scenario, run, sets, variation=0.0, key=jax.random.key(1))
        >>> row = certificate.row("distance, in all")
        >>> certificate.ok, row.verdict, bool(row.measured < row.bound)
        (True, 'holds', True)
    """
    problem = Problem.make(controller, scenario, run, sets)
    theta0 = jax.tree.map(lambda leaf: leaf[0], run.theta)
    needs_key = [
        name
        for name, v in {"constants": constants, "contraction": contraction, "variation": variation}.items()
        if v is None
    ]
    if needs_key and key is None:
        raise ValueError(f"key: expected a PRNG key, as {', '.join(needs_key)} are to be sampled, got None")
    keys: Any = (None,) * 3 if key is None else jax.random.split(_check.key("key", key), 3)
    arguments: Any = (problem.system, problem.scenario, sets)
    if constants is None:
        constants = sample_constants(*arguments, theta=theta0, key=keys[0])
    if contraction is None:
        contraction = sample_contraction(*arguments, theta=theta0, key=keys[1])
    variation_source = "given"
    if variation is None:
        variation_source = "sampled"
        sampled: Any = path_lengths(problem.system, problem.scenario, run, key=keys[2]).system
        variation = float(sampled)
    variation = _number("variation", variation)
    for name, value, kind in (("constants", constants, Constants), ("contraction", contraction, Contraction)):
        if not isinstance(value, kind):
            raise ValueError(f"{name}: expected {kind.__name__} or None, got {_check.describe(value)}")
    if noise is not None and not isinstance(noise, Noise):
        raise ValueError(f"noise: expected Noise or None, got {_check.describe(noise)}")
    measured = problem.measure(window)
    claims = Claims(problem, measured, constants, contraction, variation=variation, variation_source=variation_source)
    claims.rows()
    estimator_rows(claims, noise)
    return Certificate(tuple(claims.ledger.rows), constants, contraction, claims.derived())
