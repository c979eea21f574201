"""Legitimate runs with honest constants, where an inequality fails as a hypothesis does: that is said, not accused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.theory.constants import NAMES

from .families import planar_case, scalar_case

BOX = st.Box(-1.0, 1.0)


def constants(**given):
    return st.Constants(**dict.fromkeys(NAMES, 0.0) | given)


def controller(system, rate, gains, estimator=None):
    return st.Controller(
        system, st.MGAPS(rate, constraint=gains), estimator or st.GradientEstimator(0.05, constraint=BOX)
    )


def certify(
    control, scenario, run, *, k, contraction, gains, x_radius, u_radius, theta_step=1.0, variation=0.0, **more
):
    sets = st.Sets(x_radius=x_radius, u_radius=u_radius, theta=gains, a=BOX, theta_step=theta_step)
    return st.certify(
        control, scenario, run, sets, constants=k, contraction=contraction, variation=variation,
        **dict(window=None) | more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("x_radius", "u_radius", "blamed"),
    [
        (0.005, 1.0, "room for every trajectory"),
        pytest.param(3.0, 0.005, "room for every control"),
    ],
)
def test_the_surrogate_goes_where_the_run_did_not(x_radius, u_radius, blamed):
    """θ is 0 while it matters and moves when it does not: the run stays at 0, the surrogate of the last θ does not."""
    steps, rho, b, weight = 80, 0.9, 0.1, 200.0
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: rho * x + b * v,
        residual=lambda x, a, t: 0 * a,
        actuation=lambda x, theta, t: t * theta,
        cost=lambda x, u, theta, t: weight / 2 * jnp.sum(x**2) + (1 - t) / 2 * jnp.sum((theta - 1) ** 2),
    )
    gains = st.Box(0.0, 1.0)
    control = controller(system, 0.9, gains)
    on = jnp.where(jnp.arange(steps) < 70, 1.0, 0.0)
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((steps, 1)), w=jnp.zeros((steps, 1)), t=on)
    run = st.simulate(control, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
    k = constants(
        L_phi_x=rho, L_phi_u=b, L_psi_theta=1, L_h_x=weight * 0.005, ell_h_x=weight, L_h_theta=1, ell_h_theta=1
    )
    certificate = certify(
        control, scenario, run, k=k, contraction=st.Contraction(C_bar=1, rho=rho, R_S=1.0),
        gains=gains, x_radius=x_radius, u_radius=u_radius, variation=1.5,
    )  # fmt: skip
    row = certificate.row("size of the gradient")
    assert not row.holds
    assert blamed in row.failed_hypotheses
    assert certificate.ok


def test_a_residual_that_changes_by_itself():
    """f is 1 and −1 in turn, at one and the same a: its variation is the caller's to give, or is sampled."""
    steps = 600
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.5 * x,
        residual=lambda x, a, t: t + 0 * a,
        actuation=lambda x, theta, t: theta,
        cost=lambda x, u, theta, t: 0.5 * jnp.sum(u**2),
    )
    gains = st.Box(0.0, 1.0)
    control = controller(system, 0.2, gains)
    turns = jnp.where(jnp.arange(steps) % 2 == 1, 1.0, -1.0)
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((steps, 1)), w=jnp.zeros((steps, 1)), t=turns)
    run = st.simulate(control, scenario, theta=jnp.full(1, 0.5), a_hat=jnp.zeros(1))
    problem = dict(
        k=constants(L_phi_x=0.5, L_psi_theta=1, L_h_u=2.0, ell_h_u=1), gains=gains, x_radius=0.1, u_radius=2.0,
        contraction=st.Contraction(C_bar=1, rho=0.5, R_S=0.0), theta_step=1.9,
    )  # fmt: skip
    lie = certify(control, scenario, run, **problem, variation=0.0)
    assert [row.name for row in lie.violated] == ["regret of biased OGD"]
    honest = certify(control, scenario, run, **problem, variation=2.0 * (steps - 1))
    assert honest.ok
    assert honest.row("regret of biased OGD").must_hold
    found = certify(control, scenario, run, **problem | dict(variation=None), key=jax.random.key(0))
    assert found.row("regret of biased OGD").bound == pytest.approx(honest.row("regret of biased OGD").bound)
    assert found.row("regret of biased OGD").sampled == ("V_sys",)


@pytest.mark.slow
def test_a_start_outside_the_ball_of_contraction():
    """x' = x/2 + x³ contracts near 0 only, and the run starts beyond that."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.5 * x + x**3 + 0.1 * v,
        residual=lambda x, a, t: 0 * a,
        actuation=lambda x, theta, t: theta,
        cost=lambda x, u, theta, t: 0.5 * jnp.sum(x**2),
    )
    gains = st.Box(-0.01, 0.01)
    control = controller(system, 1e-6, gains)
    scenario = st.Scenario(jnp.full(1, 0.72), a_star=jnp.zeros((6, 1)), w=jnp.zeros((6, 1)))
    run = st.simulate(control, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
    k = constants(L_phi_x=2.9, L_phi_u=0.1, ell_phi_x=6, L_psi_theta=1, L_h_x=1.0, ell_h_x=1)
    certificate = certify(
        control, scenario, run, k=k, gains=gains, x_radius=0.9, u_radius=1.0,
        contraction=st.Contraction(C_bar=1, rho=0.77, R_S=0.005, R_C=0.3),
    )  # fmt: skip
    for name in ("stability of x", "stability of y"):
        assert "x_0 in the contraction's ball" in certificate.row(name).failed_hypotheses
    assert not certificate.row("stability of x").holds
    assert certificate.ok


@pytest.mark.slow
def test_a_cost_below_zero_at_the_end():
    """h = θ: what falls below zero is F at the θ after the last step."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.5 * x,
        residual=lambda x, a, t: 0 * a,
        actuation=lambda x, theta, t: 0 * theta,
        cost=lambda x, u, theta, t: jnp.sum(theta),
    )
    control = controller(system, 0.05, BOX)
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((1, 1)), w=jnp.zeros((1, 1)))
    run = st.simulate(control, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
    certificate = certify(
        control, scenario, run, k=constants(L_phi_x=0.5, L_h_theta=1), gains=BOX, x_radius=0.1, u_radius=1.0,
        contraction=st.Contraction(C_bar=1, rho=0.5, R_S=0.0),
    )  # fmt: skip
    assert certificate.row("non-negative cost").verdict == "fails"
    assert certificate.ok


@pytest.mark.slow
def test_a_residual_that_only_looks_affine():
    """a³ − 3a is the same at −1 and 1 as its chord is at the middle; not as its tangent is."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.5 * x,
        residual=lambda x, a, t: a**3 - 3 * a,
        actuation=lambda x, theta, t: 0 * theta,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    control = controller(system, 0.05, BOX)
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.ones((200, 1)), w=jnp.zeros((200, 1)))
    run = st.simulate(control, scenario, theta=jnp.zeros(1), a_hat=jnp.full(1, -1.0))
    certificate = certify(
        control, scenario, run, k=constants(L_phi_x=0.5, L_f_a=3), gains=BOX, x_radius=0.1, u_radius=5.0,
        contraction=st.Contraction(C_bar=1, rho=0.5, R_S=0.0),
    )  # fmt: skip
    assert certificate.row("residual affine in a").verdict == "fails"
    assert certificate.ok


def test_a_window_too_short_says_that_nothing_is_known():
    """The products of this closed loop first grow: a window of one step cannot say how far off its surrogate is."""
    case = planar_case(np.random.default_rng(6))
    exact, short = (
        st.certify(
            case.controller, case.scenario, case.run, case.sets,
            constants=case.constants, contraction=case.contraction, variation=case.variation, window=window,
        )
        for window in (None, 1)
    )  # fmt: skip
    assert exact.ok
    assert short.ok
    for name in ("size of the gradient", "cost against surrogate", "gradient bias", "regret of M-GAPS"):
        row = short.row(name)
        assert (row.verdict, row.vacuous) == ("vacuous", "the error of the surrogate is unknown with this window")
        assert np.isfinite(row.measured)
        assert "unknown" not in exact.row(name).vacuous
    assert exact.row("size of the gradient").verdict == "holds"


class TestARunOfSomethingElse:
    @pytest.fixture
    def case(self):
        return scalar_case(np.random.default_rng(0))

    def refused(self, case, run, match, control=None):
        with pytest.raises(ValueError, match=match):
            st.certify(
                control or case.controller, case.scenario, run, case.sets,
                constants=case.constants, contraction=case.contraction, variation=0.0, window=None,
            )  # fmt: skip

    def test_is_refused(self, case, as_a_user):
        start = dict(theta=case.run.theta[0], a_hat=case.run.a_hat[0])
        system = case.controller.system
        other = st.MatchedSystem(lambda x, v, t: 0.5 * x, system.residual, system.actuation, system.cost)
        driven = st.simulate(case.controller, case.scenario, **start, plant=other)
        self.refused(case, driven, "run: expected a run of this controller .* whose x after step 0")
        faster = st.Controller(system, st.MGAPS(10.0, constraint=case.sets.theta), case.controller.estimator)
        self.refused(case, case.run, "whose theta after step", control=faster)
        half = st.simulate(case.controller, case.scenario, **start).final
        resumed = st.simulate(case.controller, case.scenario, resume=half)
        self.refused(case, resumed, "run: expected a run from the scenario's first step")


@pytest.mark.slow
def test_an_unstable_loop_is_sampled_as_such():
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 3 * x + x**3 + v,
        residual=lambda x, a, t: 0 * a,
        actuation=lambda x, theta, t: theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((50, 1)), w=jnp.ones((50, 1)))
    sets = st.Sets(x_radius=1.0, u_radius=1.0, theta=BOX, a=BOX, theta_step=0.1)
    found = st.sample_contraction(system, scenario, sets, theta=jnp.zeros(1), key=jax.random.key(0), sequences=6)
    assert not found.contracts
    assert np.inf == found.R_S
