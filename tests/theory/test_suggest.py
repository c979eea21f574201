import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import theory

from .families import scalar_case


def test_both_answers():
    case = scalar_case(np.random.default_rng(2))
    arguments = (case.controller, case.scenario, case.run, case.sets)
    given = dict(constants=case.constants, contraction=case.contraction, window=None)
    rates = st.suggest_learning_rate(*arguments, **given, key=jax.random.key(0))
    limit = theory.learning_rate_limit(case.constants, case.contraction, theta_step=case.sets.theta_step)
    assert rates.admissible == pytest.approx(limit)
    assert rates.admissible is not None
    assert rates.measured >= rates.admissible
    for bound, largest in (rates.gradient, rates.curvature):
        assert bound is not None
        assert largest <= bound
    assert not rates.sampled
    assert "admissible:" in str(rates)
    assert "given constants" in str(rates)


def test_the_curvature_is_that_of_the_surrogate():
    """x' = x/2 + θ, h = x²/2: F_t'' tends to 1/(1 − 1/2)² = 4, and the gradient to 4θ."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.5 * x + v,
        residual=lambda x, a, t: 0 * a,
        actuation=lambda x, theta, t: theta,
        cost=lambda x, u, theta, t: 0.5 * jnp.sum(x**2),
    )
    box = st.Box(-1.0, 1.0)
    controller = st.Controller(system, st.MGAPS(1e-3, constraint=box), st.Frozen())
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((60, 1)), w=jnp.zeros((60, 1)))
    run = st.simulate(controller, scenario, theta=jnp.full(1, 0.5), a_hat=jnp.zeros(1))
    sets = st.Sets(x_radius=2.0, u_radius=1.0, theta=box, a=box, theta_step=0.5)
    constants = st.Constants(**dict.fromkeys(theory.constants.NAMES, 1.0), source={"L_h_x": "sampled"})
    known = dict(constants=constants, contraction=st.Contraction(C_bar=1.0, rho=0.5, R_S=2.0))
    rates = st.suggest_learning_rate(controller, scenario, run, sets, **known, key=jax.random.key(0), window=None)
    assert rates.curvature[1] == pytest.approx(4.0, rel=1e-6)
    assert rates.gradient[1] == pytest.approx(2.0, rel=0.05)
    assert rates.measured == pytest.approx(min(0.5 / rates.gradient[1], 1 / 8))
    assert rates.sampled


def test_any_system_without_sets():
    """x' = x/2 + θ as a plain `System`, h = x²/2: the same curvature 4; ε_θ is 1/100 of the diameter 2 of Θ."""
    system = st.System(
        dynamics=lambda x, u, f, t: 0.5 * x + u,
        residual=lambda x, a, t: 0 * a,
        policy=lambda x, theta, f, t: theta,
        cost=lambda x, u, theta, t: 0.5 * jnp.sum(x**2),
    )
    controller = st.Controller(system, st.MGAPS(1e-3, constraint=st.Box(-1.0, 1.0)), st.Frozen())
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((60, 1)), w=jnp.zeros((60, 1)))
    run = st.simulate(controller, scenario, theta=jnp.full(1, 0.5), a_hat=jnp.zeros(1))
    rates = st.suggest_learning_rate(controller, scenario, run, key=jax.random.key(0), window=None)
    assert rates.admissible is None
    assert rates.curvature == (None, pytest.approx(4.0, rel=1e-6))
    assert rates.measured == pytest.approx(0.02 / rates.gradient[1])
    assert str(rates).startswith("measured:")


def test_refusals(as_a_user):
    case = scalar_case(np.random.default_rng(2), steps=10)
    arguments = (case.controller, case.scenario, case.run)
    with pytest.raises(ValueError, match="sets: expected Sets"):
        st.suggest_learning_rate(*arguments, 3, key=jax.random.key(0))
    with pytest.raises(ValueError, match="sets: expected Sets, because constants"):
        st.suggest_learning_rate(*arguments, constants=case.constants, key=jax.random.key(0))
    unbounded = st.Controller(case.controller.system, st.MGAPS(1e-3), case.controller.estimator)
    with pytest.raises(ValueError, match="controller: expected a controller whose tuner has a bounded constraint"):
        st.suggest_learning_rate(unbounded, case.scenario, case.run, key=jax.random.key(0))
    with pytest.raises(ValueError, match="key: expected a PRNG key"):
        st.suggest_learning_rate(*arguments, case.sets, key=3)
    with pytest.raises(ValueError, match="directions: expected a whole number >= 1"):
        st.suggest_learning_rate(*arguments, case.sets, key=jax.random.key(0), directions=0)
