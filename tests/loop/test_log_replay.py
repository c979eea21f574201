"""`replay`: the model along a log, the inferred disturbances, the predicted savings, and the page."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import models, policies
from selftune.loop import log_replay
from tests import browser

DT, STEPS = 0.01, 2400


def make_loop(kp=0.4, ki=0.4, **options):
    plant = models.FirstOrder(gain=2.0, time_constant=0.5, dt=DT)
    return st.Loop(plant, policies.PID(kp=kp, ki=ki, u_min=-10.0, u_max=10.0), **options)


def drive(loop, theta=None):
    """A log of a plant that the model does not know, without learning, and its mean cost."""
    plant = models.FirstOrder(gain=1.7, time_constant=0.7, dt=DT)
    scenario = loop.scenario(STEPS, 0, plant=plant)
    a_star = jnp.full_like(scenario.a_star, -0.2)
    scenario = st.Scenario(plant.x0, a_star, scenario.w, t=scenario.t, measurement_noise=scenario.measurement_noise)
    idle, guard = loop.controller(st.Fixed(), st.Frozen()), loop.guard(rollback=None)
    run = loop.simulate(scenario=scenario, plant=plant, controller=idle, guard=guard, theta=theta)
    return st.PlantLog(run.measured, run.u, run.reference), float(np.mean(run.cost))


@pytest.fixture(scope="module")
def loop():
    return make_loop(noise=2e-3)


@pytest.fixture(scope="module")
def log(loop):
    return drive(loop)[0]


@pytest.fixture(scope="module")
def replayed(loop, log):
    return st.replay(loop, log)


def test_the_disturbances_explain_the_log_exactly(loop, log, replayed):
    x, u = (jnp.asarray(rows) for rows in (log.measurement, log.u))
    scenario = replayed.scenario
    for t in (0, 7, 1000, STEPS - 2):
        f = loop.plant.residual(x[t], scenario.a_star[t], None)
        np.testing.assert_allclose(loop.plant.dynamics(x[t], u[t], f, None) + scenario.w[t], x[t + 1], atol=1e-12)
    np.testing.assert_allclose(replayed.before.u, u, atol=1e-9)
    assert replayed.reproduction < 1e-9
    assert replayed["re-simulation"].verdict == "ok"


def test_the_estimator_learns_what_the_plant_has(replayed):
    before, after = (np.sqrt(np.mean(rows[-800:] ** 2)) for rows in (replayed.mismatch, replayed.mismatch_learned))
    assert after < 0.8 * before
    assert replayed.a_hat[0] == 0
    assert -0.6 < replayed.a_hat[-1] < -0.1  # the load, and what the wrong gain looks like
    assert {"gradients", "contraction", "model", "estimator"} <= {row.name for row in replayed.rows}


def test_the_predictions_hold_on_the_plant_itself(loop, replayed):
    """The suggested gains save on the true plant about as much as predicted, though the prediction saw one log only."""
    assert replayed.start_saving.low > 0.1
    truth = 1 - drive(loop, replayed.start_theta)[1] / drive(loop)[1]
    assert abs(truth - replayed.start_saving.share) < 0.15
    assert replayed.saving.share > 0.1
    assert loop.margins(replayed.start_theta).gain_margin >= 2


@pytest.mark.slow
def test_good_gains_are_kept(loop, replayed):
    good = replayed.start_theta
    again = st.replay(loop, drive(loop, good)[0], theta=good)
    assert again.start_saving.share < 0.1
    if not again.start_saving.low > 0:
        assert again.start_theta is again.theta
        assert "Keep the logged gains" in again["start gains"].sentence


@pytest.mark.slow
def test_another_controller_made_the_log(loop, log):
    found = st.replay(loop, log, theta=make_loop(kp=4.0, ki=4.0).theta)
    assert found["re-simulation"].verdict == "warning"
    assert "not the controller that made the log" in found["re-simulation"].sentence
    assert found.reproduction is not None
    assert found.reproduction > 0.1


@pytest.mark.slow
def test_a_delay_is_found(loop, log):
    early = np.concatenate([log.u[8:], np.repeat(log.u[-1:], 8, axis=0)])  # recorded 8 steps before it acts
    found = st.replay(loop, st.PlantLog(log.measurement, early, log.reference))
    assert abs(found.delay - 8) <= 1, found["delay"].numbers  # the model has another gain and another time constant
    assert f"models.Delayed(…, samples={found.delay})" in found["delay"].sentence


@pytest.mark.slow
def test_an_observer():
    plant = models.SecondOrder(gain=1.0, natural_frequency=4.0, damping=0.3, dt=DT)
    loop = st.Loop(plant, policies.PID(kp=0.5, ki=1.0, u_min=-10.0, u_max=10.0))
    idle = loop.controller(st.Fixed(), st.Frozen())
    run = loop.simulate(1000, seed=0, controller=idle, guard=loop.guard(rollback=None))
    log = st.PlantLog(run.measured, run.u, run.reference)
    found = st.replay(loop, log)
    assert found.reproduction is not None
    assert found.reproduction < 1e-6


def test_a_no_go_still_describes_the_log(loop, log):
    found = st.replay(loop, st.PlantLog(log.measurement, -log.u, log.reference))
    assert not found.ok
    assert "the plant reacts in the other direction" in found.reasons[0]
    assert found.mismatch.shape == (STEPS - 1, 1)


@pytest.mark.slow
def test_rows_that_are_not_finite(loop, log):
    measured = log.measurement.copy()
    measured[1500] = np.nan
    found = st.replay(loop, st.PlantLog(measured, log.u, log.reference))
    assert len(found.log) == 1500
    assert "900 rows from there on are left out" in found["log"].sentence


def test_the_interval():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(60):  # costs whose true saving is 30 %, correlated over about 20 steps
        noise = np.convolve(rng.normal(size=4020), np.ones(21) / 21, "valid")
        before = 2 + noise
        found = log_replay.saving(before, 1.4 + 0.5 * np.convolve(rng.normal(size=4020), np.ones(21) / 21, "valid"))
        inside += found.low < 0.3 < found.high
    assert 50 <= inside <= 60  # 95 % of 60 are 57; fewer than 50 have a probability of 1e-4
    assert np.isnan(log_replay.saving(np.ones(100), np.ones(100)).low)
    exact = log_replay.saving(np.ones(1000), 0.5 * np.ones(1000))
    assert exact == st.Saving(0.5, 0.5, 0.5, cost_before=1.0, cost_after=0.5, blocks=50)


def test_the_page_and_the_files(replayed, tmp_path):
    page = replayed.report(tmp_path / "report")
    text = page.read_text()
    assert str(replayed.saving) in text
    assert "Model mismatch over time" in text
    found = json.loads((page.parent / "replay.json").read_text())
    assert found["saving"]["share"] == pytest.approx(replayed.saving.share)
    again = st.read_log(page.parent / "log.csv", dt=DT)
    np.testing.assert_array_equal(again.u, replayed.log.u)
    question = "[...document.querySelectorAll('.plot')].map((plot) => plot.querySelectorAll('.main-svg').length)"
    answer, console = browser.look(page, tmp_path, question)
    assert console == []
    assert (
        len(answer) == 9
    )  # outputs, mismatch, control, cost and â of the log; costs and three gains of the re-simulation
    assert all(count > 0 for count in answer)


def test_mistakes(loop, log):
    with pytest.raises(st.ArgumentError, match="log: expected a PlantLog, or the path of a log file"):
        st.replay(loop, 3)
    with pytest.raises(st.ArgumentError, match="mapping: expected None, because the log is a PlantLog"):
        st.replay(loop, log, {})
    with pytest.raises(st.ArgumentError, match="log: expected a log with 1 measurements, 1 controls"):
        st.replay(loop, st.PlantLog(np.zeros((200, 2)), np.zeros(200), np.zeros(200)))
    with pytest.raises(st.ArgumentError, match="log: expected a log of at least 100 steps"):
        st.replay(loop, log[:50])
