"""Theorem 1 beyond M-GAPS on matched systems: GAPS, schedules, and systems whose residual is not cancelled."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selftune as st
from selftune import theory
from selftune.experiments.certificates import special_cases
from selftune.theory.constants import NAMES

from .families import planar_case, scalar_case

THEOREM_1 = (
    "Lipschitzness of x",
    "Lipschitzness of θ",
    "stability of x",
    "stability of y",
    "distance, at every step",
    "distance, in all",
    "perturbation, at every step",
    "perturbation, in all",
)
REGRETS = ("regret of biased OGD", "regret of M-GAPS", "main theorem: regret")


def retuned(case, tuner, noise=None):
    """The case, with another tuner."""
    controller = st.Controller(case.controller.system, tuner, case.controller.estimator)
    run = st.simulate(controller, case.scenario, theta=case.run.theta[0], a_hat=case.run.a_hat[0])
    return st.certify(
        controller, case.scenario, run, case.sets,
        constants=case.constants, contraction=case.contraction, variation=case.variation, noise=noise, window=None,
    )  # fmt: skip


class TestGAPS:
    @pytest.mark.parametrize("seed", [0, 4])
    @pytest.mark.parametrize("buffer", [1, 4])
    def test_every_promise_is_kept(self, seed, buffer):
        case = scalar_case(np.random.default_rng(seed))
        tuner = case.controller.tuner
        certificate = retuned(case, st.GAPS(buffer, tuner.learning_rate, constraint=tuner.constraint))
        assert certificate.ok, certificate
        assert certificate.row("partial sums of the buffer").holds
        for name in (*THEOREM_1, "gradient bias"):
            assert certificate.row(name).must_hold, name

    def test_a_loop_that_first_grows(self):
        """With C̄ > 1 a sum of some of the slots may leave the ball in which the sum of all of them stays."""
        case = planar_case(np.random.default_rng(1))
        tuner = case.controller.tuner
        certificate = retuned(case, st.GAPS(3, tuner.learning_rate, constraint=tuner.constraint))
        assert certificate.ok
        assert certificate.row("partial sums of the buffer").verdict == "fails"
        assert certificate.row("distance, at every step").failed_hypotheses == ("partial sums of the buffer",)
        assert certificate.row("Lipschitzness of θ").must_hold

    def test_the_truncation_is_the_bias(self):
        """x' = ρx + bθ, h = x: GAPS's gradient lacks b ρ^B / (1 − ρ), which is all that the bound allows."""
        rho, b, buffer, steps = 0.8, 1.0, 3, 200
        system = st.MatchedSystem(
            dynamics=lambda x, v, t: rho * x + b * v,
            residual=lambda x, a, t: 0 * a,
            actuation=lambda x, theta, t: theta,
            cost=lambda x, u, theta, t: jnp.sum(x) + 10.0,
        )
        box = st.Box(-1.0, 1.0)
        controller = st.Controller(system, st.GAPS(buffer, 1e-5, constraint=box), st.Frozen())
        scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((steps, 1)), w=jnp.zeros((steps, 1)))
        run = st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        zero = dict.fromkeys(NAMES, 0.0)
        constants = st.Constants(**zero | dict(L_phi_x=rho, L_phi_u=b, L_psi_theta=1.0, L_h_x=1.0))
        contraction = st.Contraction(C_bar=1.0, rho=rho, R_S=b / (1 - rho))
        certificate = st.certify(
            controller, scenario, run,
            st.Sets(x_radius=11.0, u_radius=1.0, theta=box, a=box, theta_step=0.1),
            constants=constants, contraction=contraction, variation=0.0, window=None,
        )  # fmt: skip
        row = certificate.row("gradient bias")
        assert row.must_hold
        assert row.holds
        assert row.measured == pytest.approx(b * rho**buffer / (1 - rho), rel=1e-9)
        assert row.measured == pytest.approx(row.bound, rel=1e-9)
        assert row.measured == pytest.approx(theory.truncation_bias(constants, contraction, buffer=buffer))
        assert theory.gradient_bias(constants, contraction).per_rate * 1e-5 < row.measured
        assert certificate.row("regret of GAPS").must_hold


class TestSchedules:
    def test_theorem_1_holds_and_the_regret_is_not_spoken_of(self):
        case = scalar_case(np.random.default_rng(0))
        tuner = case.controller.tuner
        largest = float(tuner.learning_rate)
        schedule = optax.exponential_decay(largest, transition_steps=20, decay_rate=0.5)
        noise = st.Noise(bound=1.0, covariance=0.01)
        certificate = retuned(case, st.MGAPS(schedule, constraint=tuner.constraint), noise=noise)
        assert certificate.ok
        assert certificate.derived["η"] == pytest.approx(largest)
        for name in (*THEOREM_1, "gradient bias", "cost against surrogate"):
            assert certificate.row(name).must_hold, name
        for name in REGRETS:
            row = certificate.row(name)
            assert row.verdict == "not applicable"
            assert not row.must_hold
            assert "one η for all steps" in row.notes[0]
        plain = json.loads(certificate.to_json())
        assert next(row for row in plain["rows"] if row["name"] == REGRETS[0])["holds"] is None
        assert "not applicable" in str(certificate)

    def test_a_smaller_rate_has_a_smaller_bound(self):
        """Row by row, the bound on what a wrong model does to θ follows η_t and not the largest η."""
        case = scalar_case(np.random.default_rng(0))
        tuner = case.controller.tuner
        largest = float(tuner.learning_rate)
        tiny = st.MGAPS(lambda t: jnp.where(t == 0, largest, largest * 1e-6), constraint=tuner.constraint)
        row = retuned(case, tiny).row("perturbation, at every step")
        assert row.must_hold
        assert row.holds
        assert row.step is not None
        assert row.bound < 1e-4 * largest or row.step == 0


RADIUS, HIGHEST, SIZE, EFFORT, NOISE, RATE = 3.0, 0.5, 0.1, 0.2, 0.05, 1e-3
RHO = 0.5 + SIZE


def half_cancelled():
    """x' = x/2 + u + 2f, u = θ − f̂: the policy cancels half of the residual f = a sin x."""
    return st.System(
        dynamics=lambda x, u, f, t: x / 2 + u + 2 * f,
        residual=lambda x, a, t: a * jnp.sin(x),
        policy=lambda x, theta, f, t: theta - f,
        cost=lambda x, u, theta, t: 0.5 * jnp.sum(x**2) + 0.5 * EFFORT * jnp.sum(u**2),
    )


def half_cancelled_joint(**changed):
    """By hand: with the exact model x' = x/2 + a* sin x + θ and y' = (1/2 + a* cos x) y + 1.

    A wrong model moves x' by ε, y' by ε' |y|, and G = (x − q u f_x) y + q u through u and f_x.
    """
    Ry, U, q = 1.1 / (1 - RHO), HIGHEST + SIZE, EFFORT
    numbers = dict(
        alpha_x=1.0, beta_x=0.0, alpha_y=0.0, beta_y=Ry,
        alpha_theta=RATE * q * (Ry * SIZE + 1), beta_theta=RATE * q * Ry * U,
        L_theta_x=RATE * (Ry * (1 + q * (SIZE**2 + U * SIZE)) + q * SIZE), L_theta_y=RATE * (RADIUS + q * U * SIZE),
        rho=RHO, gamma=1.0, gamma_linear=SIZE * Ry / RHO,
        x_star=(HIGHEST + NOISE) / (1 - RHO), y_star=1 / (1 - RHO), y_radius=Ry,
    )  # fmt: skip
    return st.Joint(**numbers | changed)


def half_cancelled_run(tuner=None, steps=300):
    gains, model = st.Box(0.0, HIGHEST), st.Box(-SIZE, SIZE)
    tuner = tuner or st.MGAPS(RATE, constraint=gains)
    controller = st.Controller(half_cancelled(), tuner, st.GradientEstimator(0.05, constraint=model))
    ka, kw = jax.random.split(jax.random.key(3))
    scenario = st.Scenario(
        jnp.zeros(1),
        a_star=st.PiecewiseConstant(50, -SIZE, SIZE)(ka, steps, 1),
        w=st.Uniform(NOISE)(kw, steps, 1),
    )
    run = st.simulate(controller, scenario, theta=jnp.full(1, HIGHEST), a_hat=jnp.full(1, -SIZE))
    sets = st.Sets(x_radius=RADIUS, u_radius=1.0, theta=gains, a=model, theta_step=0.1)
    return controller, scenario, run, sets


class TestGeneralSystems:
    def test_theorem_1(self):
        noise = st.Noise(bound=NOISE, covariance=NOISE**2 / 3)
        certificate = st.certify(*half_cancelled_run(), joint=half_cancelled_joint(), noise=noise)
        assert certificate.ok, certificate
        for name in (*THEOREM_1, "Lipschitzness of y"):
            row = certificate.row(name)
            assert row.must_hold, (name, row.failed_hypotheses)
            assert row.measured > 0
            assert row.given == ("joint",)
        # The model's error moves x' by ε, no more and no less.
        row = certificate.row("Lipschitzness of x")
        assert row.measured == pytest.approx(row.bound, rel=1e-9)
        for name in ("gradient bias", "regret of M-GAPS", "main theorem: regret", "gradient error", "estimator's loss"):
            assert certificate.row(name).verdict == "not applicable"
        assert certificate.constants is None
        assert json.loads(certificate.to_json())["constants"] == {}

    def test_the_estimator_with_the_constants_of_f(self):
        zero = dict.fromkeys(NAMES, 0.0)
        f = st.Constants(**zero | dict(L_f_x=SIZE, L_f_a=1.0, ell_f_x=1.0, ell_f_a=1.0))
        noise = st.Noise(bound=NOISE, covariance=NOISE**2 / 3)
        certificate = st.certify(*half_cancelled_run(), joint=half_cancelled_joint(), constants=f, noise=noise)
        assert certificate.ok
        assert certificate.row("estimator's loss").must_hold
        assert certificate.row("main theorem: distance").verdict in ("holds", "vacuous")
        assert certificate.row("main theorem: regret").verdict == "not applicable"

    @pytest.mark.parametrize(
        ("lie", "row"),
        [
            (dict(alpha_x=0.3), "Lipschitzness of x"),
            (dict(beta_y=0.1), "Lipschitzness of y"),
            (dict(rho=0.05, gamma_linear=0.0), "distance, at every step"),
            (dict(y_star=0.5), "stability of y"),
        ],
    )
    def test_lies_are_found_out(self, lie, row):
        certificate = st.certify(*half_cancelled_run(), joint=half_cancelled_joint(**lie))
        assert row in [each.name for each in certificate.violated]

    def test_gaps_has_a_buffer_that_the_property_does_not_speak_of(self):
        tuner = st.GAPS(4, RATE, constraint=st.Box(0.0, HIGHEST))
        certificate = st.certify(*half_cancelled_run(tuner), joint=half_cancelled_joint())
        assert certificate.ok
        assert certificate.row("distance, in all").failed_hypotheses == ("partial sums of the buffer",)
        assert certificate.row("perturbation, at every step").must_hold

    def test_refusals(self, as_a_user):
        controller, scenario, run, sets = half_cancelled_run()
        with pytest.raises(
            ValueError, match=r"system is a System; write the system as a MatchedSystem if .* give joint=Joint"
        ):
            st.certify(controller, scenario, run, sets)
        with pytest.raises(ValueError, match="joint: expected Joint"):
            st.certify(controller, scenario, run, sets, joint=3)
        with pytest.raises(ValueError, match="rho: expected"):
            half_cancelled_joint(rho=-1.0)
        assert half_cancelled_joint(rho=1.0).contraction.total == math.inf


class TestHowTheNoiseCame:
    """Property 4 and the assumption on the environment, as far as the scenario's own w and v tell."""

    NAMES = ("noise without memory", "unbiased observation", "observation hides w")

    def verdicts(self, certificate):
        return tuple(certificate.row(name).holds for name in self.NAMES)

    def test_independent_noises(self):
        kw, kv = jax.random.split(jax.random.key(0))
        made = special_cases.observed(st.Uniform(0.1)(kw, 2000, 1), st.Uniform(0.1)(kv, 2000, 1))
        assert self.verdicts(made) == (True, True, True)

    def test_an_observation_inferred_from_the_next_state(self):
        """`infer_residual` gives f + w / 0.1: unbiased, as w is new at every step, but the estimator knows w_t."""
        w = st.Uniform(0.1)(jax.random.key(0), 2000, 1)
        made = special_cases.observed(w, w / 0.1)
        assert self.verdicts(made) == (True, True, False)
        assert "observation hides w" in made.row("gradient error").failed_hypotheses

    def test_the_same_under_ornstein_uhlenbeck_noise(self):
        made = special_cases.inferred_observation(steps=2000, seed=0)
        assert self.verdicts(made) == (False, False, False)

    def test_the_inferred_observation_is_that(self):
        """The oracle of the two tests above."""
        system = st.MatchedSystem(
            dynamics=lambda x, v, t: 0.5 * x + 0.1 * v,
            residual=lambda x, a, t: a,
            actuation=lambda x, theta, t: -theta * x,
            cost=lambda x, u, theta, t: jnp.sum(x**2),
        )
        x, u, f, w = (jnp.array([v]) for v in (0.3, -0.2, 0.7, 0.05))
        x_next = 0.5 * x + 0.1 * (u + f) + w
        assert jnp.allclose(st.infer_residual(system, x, u, x_next, 0), f + w / 0.1)

    def test_a_biased_sensor(self):
        kw, kv = jax.random.split(jax.random.key(1))
        v = 0.1 + st.Uniform(0.1)(kv, 2000, 1)
        made = special_cases.observed(st.Uniform(0.1)(kw, 2000, 1), v)
        assert self.verdicts(made) == (True, False, True)
