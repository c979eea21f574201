"""The certificate: what must hold on the paper's example, and what it says when something does not."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selftune as st
from selftune.experiments.certificates.examples import (
    HIGHEST,
    LARGEST,
    LOWEST,
    certify_example,
    example_constants,
    made_for_it,
)
from selftune.experiments.paper.run import example_system
from selftune.theory import Row

from .families import planar_case, scalar_case

CHAIN = (
    "Lipschitzness of x",
    "Lipschitzness of θ",
    "stability of x",
    "stability of y",
    "distance, at every step",
    "distance, in all",
    "perturbation, at every step",
    "perturbation, in all",
)


@pytest.fixture(scope="module")
def case():
    return scalar_case(np.random.default_rng(0))


class TestThePapersExample:
    @pytest.mark.parametrize("noise_inside", [False, True])
    def test_the_chain_of_theorem_1(self, noise_inside):
        """With given constants, and every row of the chain bound to hold."""
        certificate = certify_example(noise_inside=noise_inside, steps=2000, seed=0)
        assert certificate.ok
        for name in CHAIN:
            row = certificate.row(name)
            assert row.must_hold, f"{name}: {row.failed_hypotheses}"
            assert row.holds
            assert not row.sampled
        assert certificate.row("Lipschitzness of x").measured > 0.9999 * certificate.row("Lipschitzness of x").bound

    def test_what_does_not_hold_is_said(self):
        certificate = certify_example(noise_inside=False, steps=2000, seed=0)
        assert certificate.row("η in its range").verdict == "fails"
        regret = certificate.row("regret of M-GAPS")
        assert regret.failed_hypotheses == ("η in its range",)
        assert not regret.must_hold
        assert "no less than T L_F²" in regret.vacuous
        assert "small noise" in certificate.row("gradient error").failed_hypotheses
        assert "η in its range" in certificate.row("main theorem: regret").failed_hypotheses

    @pytest.mark.slow
    def test_its_constants_are_those_that_a_search_finds(self):
        """The hand's against the machine's: none below, most attained."""
        radius = 3.0
        given = example_constants(radius)
        system = example_system()
        scenario = st.Scenario(jnp.zeros(1), a_star=jnp.zeros((9, 3)), w=jnp.zeros((9, 1)))
        sets = st.Sets(
            x_radius=radius,
            u_radius=HIGHEST * radius + 6 * LARGEST,
            theta=st.Box(LOWEST, HIGHEST),
            a=st.Box(-0.25, 0.25),
            theta_step=1.0,
        )
        found = st.sample_constants(system, scenario, sets, theta=jnp.ones(1), key=jax.random.key(0))
        for name, source in found.source.items():
            assert source == "sampled"
            assert getattr(found, name) <= getattr(given, name) * (1 + 1e-9), name
            assert getattr(found, name) >= 0.97 * getattr(given, name), name


def test_a_problem_on_which_every_hypothesis_holds():
    certificate = made_for_it(steps=1000, seed=0)
    assert len(certificate.rows) > 30
    assert all(row.holds for row in certificate.rows)
    assert all(row.must_hold or row.in_expectation for row in certificate.rows if row.kind == "inequality")


class TestLies:
    """A constant given too small is found out: the inequality that rests on it must hold, and does not."""

    def test_a_violation_is_no_matter_of_taste(self, case):
        lie = case.constants.replace(L_phi_u=case.constants.L_phi_u / 3)
        certificate = st.certify(
            case.controller, case.scenario, case.run, case.sets,
            constants=lie, contraction=case.contraction, variation=case.variation, window=None,
        )  # fmt: skip
        assert not certificate.ok
        assert "Lipschitzness of x" in [row.name for row in certificate.violated]
        assert "VIOLATED" in str(certificate)
        assert str(certificate).splitlines()[-1].startswith("VIOLATED: Lipschitzness of x")

    def test_a_loop_that_forgets_less_than_was_said(self):
        case = planar_case(np.random.default_rng(3))
        lie = st.Contraction(C_bar=1.0, rho=case.contraction.rho, R_S=1e-3)
        certificate = st.certify(
            case.controller, case.scenario, case.run, case.sets,
            constants=case.constants, contraction=lie, variation=0.0, window=None,
        )  # fmt: skip
        assert "stability of x" in [row.name for row in certificate.violated]

    def test_sampled_constants_accuse_nobody(self, case):
        """The same lie, labelled as sampled, is a lower estimate and no violation."""
        values = {name: getattr(case.constants, name) for name in case.constants.source}
        sampled = st.Constants(**values | {"L_phi_u": values["L_phi_u"] / 3}, source={"L_phi_u": "sampled"})
        certificate = st.certify(
            case.controller, case.scenario, case.run, case.sets,
            constants=sampled, contraction=case.contraction, variation=case.variation, window=None,
        )  # fmt: skip
        row = certificate.row("Lipschitzness of x")
        assert certificate.ok
        assert not row.holds
        assert row.verdict == "does not hold"
        assert row.sampled == ("L_phi_u",)


class TestHypotheses:
    def certify(self, case, **sets):
        base = dict(
            x_radius=case.sets.x_radius,
            u_radius=case.sets.u_radius,
            theta=case.sets.theta,
            a=case.sets.a,
            theta_step=case.sets.theta_step,
        )
        return st.certify(
            case.controller, case.scenario, case.run, st.Sets(**base | sets),
            constants=case.constants, contraction=case.contraction, variation=case.variation, window=None,
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("sets", "name"),
        [
            (dict(x_radius=0.01), "state in its ball"),
            (dict(u_radius=0.01), "control in its ball"),
            (dict(theta=st.Box(0.0, 1e-6)), "θ in Θ"),
            (dict(a=st.Box(-1e-9, 1e-9)), "a in 𝒜"),
            (dict(theta_step=1e-12), "slow θ"),
        ],
    )
    def test_each_can_fail(self, case, sets, name):
        certificate = self.certify(case, **sets)
        assert certificate.row(name).verdict == "fails"
        blamed = [row for row in certificate.rows if name in row.failed_hypotheses]
        assert blamed
        assert not any(row.must_hold for row in blamed)

    def test_a_loop_that_does_not_contract(self, case):
        loose = st.Contraction(C_bar=1.0, rho=1.0, R_S=10.0)
        certificate = st.certify(
            case.controller, case.scenario, case.run, case.sets,
            constants=case.constants, contraction=loose, variation=case.variation, window=None,
        )  # fmt: skip
        assert certificate.ok
        assert certificate.row("contraction").verdict == "fails"
        assert certificate.row("distance, in all").vacuous == "the bound is infinite"
        json.loads(certificate.to_json())

    @pytest.mark.parametrize(
        "estimator",
        [
            st.RLS(forgetting=0.99, covariance=1.0),
            st.GradientEstimator(0.1, normalized=True),
            st.GradientEstimator(0.1, preconditioner=jnp.array([1.0, 2.0])),
        ],
    )
    def test_other_estimators_leave_their_lemma_out(self, case, estimator):
        controller = st.Controller(case.controller.system, case.controller.tuner, estimator)
        run = st.simulate(controller, case.scenario, theta=case.run.theta[0], a_hat=jnp.zeros(2))
        certificate = st.certify(
            controller, case.scenario, run, case.sets,
            constants=case.constants, contraction=case.contraction, variation=case.variation, window=None,
        )  # fmt: skip
        assert certificate.row("plain gradient estimator").verdict == "fails"
        assert "estimator's loss" not in [row.name for row in certificate.rows]


@pytest.mark.slow
def test_everything_may_be_sampled(case):
    certificate = st.certify(case.controller, case.scenario, case.run, case.sets, key=jax.random.key(0), window=None)
    assert certificate.binding == ()
    assert certificate.conclusion == "no inequality must hold: constants are sampled, or hypotheses fail"
    assert "V_sys" in certificate.row("regret of M-GAPS").sampled
    assert "L_phi_u" in certificate.row("Lipschitzness of x").sampled


def test_as_json(case):
    plain = json.loads(case.certify(noise=st.Noise(bound=1.0, covariance=0.01)).to_json())
    assert plain["ok"] is True
    assert {row["name"] for row in plain["rows"]} >= {*CHAIN, "main theorem: regret"}
    row = next(row for row in plain["rows"] if row["name"] == "distance, in all")
    assert row["slack"] == pytest.approx(row["bound"] - row["measured"])
    assert row["given"][-3:] == ["C_bar", "rho", "R_S"]
    assert plain["constants"]["L_phi_u"]["source"] == "given"
    assert {"α_θ", "C", "η̄", "ζ̄", "Ĉ_5", "C_f'", "C_ℓhθθ"} <= set(plain["derived"])
    assert "contraction's ball" in json.dumps(plain)
    assert next(row for row in plain["rows"] if row["name"] == "contraction's ball")["bound"] == "inf"


def test_as_a_table(case):
    lines = str(case.certify()).splitlines()
    assert lines[0].split()[:3] == ["verdict", "property", "or"]
    assert lines[-1].startswith("all 1")
    assert sum("distance, in all" in line for line in lines) == 1


def test_rows():
    row = Row(name="n", kind="inequality", statement="", reference="", measured=1.0, bound=2.0)
    assert (row.holds, row.must_hold, row.slack, row.verdict) == (True, True, 1.0, "holds")
    nan = Row(name="n", kind="inequality", statement="", reference="", measured=math.nan, bound=2.0)
    assert (nan.holds, nan.verdict) == (False, "VIOLATED")


class TestRefusals:
    def refused(self, case, match, **bad):
        good = dict(
            controller=case.controller, scenario=case.scenario, run=case.run, sets=case.sets,
            constants=case.constants, contraction=case.contraction, variation=0.0,
        )  # fmt: skip
        with pytest.raises(ValueError, match=match):
            st.certify(**good | bad)

    def test_by_name(self, case, as_a_user):
        system, tuner, estimator = case.controller.system, case.controller.tuner, case.controller.estimator
        self.refused(case, "controller: expected a Controller", controller=3)
        no_mgaps = (
            "controller: expected a controller whose tuner is MGAPS or GAPS and its learning rate is a number or a "
            r"schedule \(.*\), got the tuner"
        )
        for other in (st.Fixed(), st.MGAPS(optax.adam(0.1))):
            self.refused(case, no_mgaps, controller=st.Controller(system, other, estimator))
        general = st.System(system.dynamics, system.residual, system.policy, system.cost)
        no_match = (
            "controller: expected a controller whose system is a selftune.MatchedSystem, .* system is a System; write"
        )
        self.refused(case, no_match, controller=st.Controller(general, tuner, estimator))
        self.refused(case, "sets: expected Sets", sets=None)
        self.refused(case, "constants: expected Constants", constants=1.0)
        self.refused(case, "contraction: expected Contraction", contraction=1.0)
        self.refused(case, "noise: expected Noise", noise=0.1)
        self.refused(case, "variation: expected", variation=-1.0)
        self.refused(case, "key: expected a PRNG key, because constants must be sampled", constants=None)

    def test_a_run_that_lacks_rows(self, case, as_a_user):
        start = dict(theta=case.run.theta[0], a_hat=case.run.a_hat[0])
        short = st.simulate(case.controller, case.scenario, **start, record=("x", "theta"))
        self.refused(case, "run: expected a run that recorded u", run=short)
        strided = st.simulate(case.controller, case.scenario, **start, stride=2)
        self.refused(case, r"run.x: expected 100 rows", run=strided)
        with pytest.raises(ValueError, match=r"name: expected one of .*distance, in all.*, got 'distances'"):
            case.certify().row("distances")


def test_a_loop_that_does_not_contract_gets_advice():
    """Numbers that are not finite are shown as "none", and the text says what to do."""
    fails = dict(kind="hypothesis", statement="", reference="")
    rows = (
        Row(name="contraction", measured=1.005, bound=1.0, **fails),
        Row(name="room for every control", measured=8.0, bound=2.0, **fails),
        Row(name="small mismatch of the update", measured=math.inf, bound=-math.inf, **fails),
    )
    certificate = st.Certificate(rows=rows, constants=None, contraction=None, derived={})
    assert [line.split()[-2:] for line in str(certificate).splitlines()[1:4]] == [
        ["1.005", "1"],
        ["8", "2"],
        ["none", "none"],
    ]
    assert len(certificate.advice) == 1
    assert certificate.advice[0] in str(certificate)
    assert "ρ = 1.005. Almost every other bound depends on ρ < 1. Make Θ smaller" in certificate.advice[0]
    contracts = st.Certificate(rows=rows[1:], constants=None, contraction=None, derived={})
    assert contracts.advice == [
        "Trajectories of the proofs leave the sets. Increase Sets.u_radius to at least 8, or make Θ smaller."
    ]
