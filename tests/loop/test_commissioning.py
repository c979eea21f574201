"""`commission`: what it finds on good and bad plants, what it sends to them, and what it gives back."""

import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import models, policies, references
from selftune.loop.dry_run import Watch
from tests import browser

DT, GAIN, TIME = 0.01, 2.0, 0.5
STEPS = 600
CHECKS = ["shapes", "stability", "simulation", "gradients", "contraction"]
DRY = ["dry run", "saturation", "control effect", "model", "estimator", "choices"]


class Plant:
    """A first-order plant in NumPy, which keeps all controls that it got. At step `bad_at` the sensor gives `bad`."""

    def __init__(self, gain=GAIN, time=TIME, load=0.0, bad_at=None, bad=np.nan, noise=2e-3):
        self.decay, self.gain, self.load = math.exp(-DT / time), gain, load
        self.x, self.sent, self.bad_at, self.bad = 0.0, [], bad_at, bad
        self.rng, self.noise = np.random.default_rng(0), noise

    def measure(self):
        if len(self.sent) == self.bad_at:
            return np.array([self.bad])
        return np.array([self.x + self.noise * self.rng.normal()])

    def step(self, u):
        assert u.shape == (1,)
        self.sent.append(float(u[0]))
        self.x = self.decay * self.x + (1 - self.decay) * self.gain * (float(u[0]) + self.load)
        return self.measure()


class TimedPlant(Plant):
    """A plant whose clock has the given periods."""

    def __init__(self, periods, **options):
        super().__init__(**options)
        self.periods, self.time = periods, 5.0

    def step(self, u):
        measured = super().step(u)
        self.time += self.periods[(len(self.sent) - 1) % len(self.periods)]
        return measured


def make_loop(kp=1.0, ki=2.0, limit=10.0, samples=0, **options):
    model = models.FirstOrder(gain=GAIN, time_constant=TIME, dt=DT)
    plant = models.Delayed(model, samples=samples) if samples else model
    return st.Loop(plant, policies.PID(kp=kp, ki=ki, u_min=-limit, u_max=limit), **options)


@pytest.fixture(scope="module")
def loop():
    return make_loop(reference=references.Steps(1.0, low=0.0, high=0.5))  # five steps fit into the guard's window


@pytest.fixture(scope="module")
def plant():
    return Plant(gain=1.3 * GAIN, time=1.3 * TIME, load=0.1)


@pytest.fixture(scope="module")
def good(loop, plant):
    """A plant with gain and time constant 30 % above those of the model."""
    return st.commission(loop, plant, steps=STEPS)


def verdicts(commissioned):
    return {row.name: row.verdict for row in commissioned.rows}


def test_a_good_loop_is_a_go(good):
    assert isinstance(good, st.Commissioned)
    assert good.ok
    assert good.reasons == ()
    assert [row.name for row in good.rows] == CHECKS + DRY
    assert all(isinstance(row, st.CommissioningStep) for row in good.rows)
    assert str(good).splitlines()[-1] == "GO"
    assert repr(good) == "<Commissioned: go, 11 checks>"


def test_the_plant_gets_every_control_of_two_dry_runs_within_its_limits(good, plant):
    assert len(plant.sent) == 2 * STEPS
    assert max(map(abs, plant.sent)) <= 10.0
    sent = np.concatenate([good.log.u, good.learning_log.u])[:, 0]
    np.testing.assert_array_equal(sent, plant.sent)


def test_the_dry_run_with_learning_paused_is_the_policy_with_its_start_gains(good):
    """A PI controller in NumPy gives the same controls."""
    integral, expected = 0.0, []
    for measured, reference in zip(good.log.measurement[:, 0], good.log.reference[:, 0], strict=True):
        error = reference - measured
        expected.append(1.0 * error + integral)
        integral += 2.0 * DT * error
    np.testing.assert_allclose(good.log.u[:, 0], expected, rtol=1e-9, atol=1e-9)  # rounding of 600 sums


def test_the_mismatch_agrees_with_numpy(good, loop):
    """The model's predictions one step and many steps ahead, by recursion in NumPy."""
    numbers = good["model"].numbers
    y, u = good.log.measurement[:, 0], good.log.u[:, 0]
    decay, horizon = math.exp(-DT / TIME), numbers["horizon"]
    one = y[1:] - (decay * y[:-1] + (1 - decay) * GAIN * u[:-1])
    rows = len(y) - horizon
    ahead = y[:rows].copy()
    for i in range(horizon):
        ahead = decay * ahead + (1 - decay) * GAIN * u[i : i + rows]
    many, noise = y[horizon:] - ahead, float(loop.noise[0])
    rms = lambda e: np.sqrt(np.mean(e**2))
    # The exact discretization of the model and this one differ by rounding only.
    np.testing.assert_allclose(numbers["one_step"], [rms(one)], rtol=1e-9)
    np.testing.assert_allclose(numbers["many_steps"], [rms(many)], rtol=1e-9)
    np.testing.assert_allclose(numbers["one_step_over_noise"], [rms(one) / noise], rtol=1e-9)
    np.testing.assert_allclose(
        numbers["unexplained"], rms(many) / max(rms(y[horizon:] - y[:rows]), 0.1 * GAIN), rtol=1e-9
    )
    assert 10 <= horizon <= 50


def test_the_control_effect_agrees_with_a_regression(good):
    numbers = good["control effect"].numbers
    y, u = good.log.measurement[:, 0], good.log.u[:, 0]
    decay, horizon = math.exp(-DT / TIME), numbers["horizon"]
    rows = len(y) - horizon
    effect = np.zeros(rows)
    for i in range(horizon):
        effect = decay * effect + (1 - decay) * GAIN * u[i : i + rows]
    slope = np.polyfit(effect, y[horizon:] - decay**horizon * y[:rows], 1)[0]
    np.testing.assert_allclose(numbers["ratio"], [slope], rtol=1e-6)
    assert 0.7 < slope < 1.3  # the plant's gain is 1.3, its speed 1/1.3 of the model's


def test_the_estimator_learns_what_the_model_lacks(good):
    numbers = good["estimator"].numbers
    assert numbers["after"]["many_steps"][0] < 0.7 * numbers["before"]["many_steps"][0]
    assert good.a_hat.shape == (1,)
    assert float(good.a_hat[0]) == numbers["a_hat"]["load"] != 0
    np.testing.assert_array_equal(good.learning_replay.a_hat[-1], good.a_hat)


def test_the_replayed_estimator_is_that_of_an_agent(good, loop):
    """An agent that is frozen and sees the recorded measurements learns the same â, if it sends the same controls."""
    agent = loop.agent(guard=loop.guard())
    agent.pause()
    rows = zip(good.log.measurement, good.log.reference, strict=True)
    for measured, reference in rows:
        agent.act(measured, reference=reference)
    agent.freeze()
    estimates = []
    for measured, reference in zip(good.learning_log.measurement, good.learning_log.reference, strict=True):
        estimates.append(float(agent.a_hat[0]))
        agent.act(measured, reference=reference)
    # The agent's first transition, from the paused to the frozen run, is not in the replay; later ones outweigh it.
    np.testing.assert_allclose(
        good.learning_replay.a_hat[300:, 0], [*estimates[301:], float(agent.a_hat[0])], atol=0.02
    )


def test_the_log_of_a_run_gives_the_findings_of_the_live_run(good, loop, tmp_path):
    good.log.write_csv(tmp_path / "log.csv")
    log = st.read_log(tmp_path / "log.csv", dt=DT)
    found = st.commission(loop, log, steps=STEPS)
    assert found.ok
    for name in [*CHECKS, "dry run", "saturation", "control effect", "model"]:
        live, recorded = good[name], found[name]
        assert recorded.verdict == live.verdict
        assert recorded.numbers == live.numbers
    assert found.learning_log is not None
    assert found.guard == good.guard


def test_it_tells_what_it_will_do_and_takes_over_a_plant_that_runs(caplog):
    """The plant rests at 2, with u = 1.1: the first control is 1.1, although the first reference is another."""
    loop, plant = make_loop(reference=references.Steps(1.0, low=1.0, high=2.0)), Plant(load=-0.1, noise=1e-6)
    plant.x = 2.0
    guard = loop.guard(x_low=-1.0, stuck=50)
    with caplog.at_level("WARNING", logger="selftune"):
        made = st.commission(loop, plant, steps=150, u=1.1, guard=guard)
    (said,) = (record.message for record in caplog.records)
    assert said.startswith("two dry runs of 150 steps (1.5 s) each")
    assert "The reference goes from 1" in said
    assert abs(plant.sent[0] - 1.1) < 1e-9
    assert len(plant.sent) == 300
    assert (made.guard.x_low, made.guard.stuck) == (-1.0, 50)
    own = {rule.setting for rule in made.guard_rules if rule.rule == "your own setting, from guard="}
    assert own == {"x_low", "stuck"}


def test_the_choices(good, loop):
    assert good.controller.tuner.memory >= 20 * good["contraction"].numbers["time_constant"]
    assert isinstance(good.controller.estimator, st.AutoEstimator)
    assert "KalmanEstimator" in good["choices"].sentence
    assert {rule.setting for rule in good.guard_rules} == {
        "x_limit", "f_limit", "y_limit", "window", "cost_floor", "cost_ceiling", "u_low", "u_high", "x_low", "x_high",
        "stuck", "safe_u", "safe_after", "rate", "burst",
    }  # fmt: skip
    page = (Path(__file__).parents[2] / "docs" / "commissioning.md").read_text()
    listed = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page.split("## The limits of the guard")[1], flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(listed))) == {rule.setting for rule in good.guard_rules}
    assert good.guard.u_low == (-10.0,)
    assert not any("given" in rule.rule for rule in good.guard_rules)
    window = good.guard.window
    means = [np.mean(good.replay.cost[i : i + window]) for i in range(STEPS - window + 1)]
    np.testing.assert_allclose(good.level, max(means), rtol=1e-9)
    assert all(rule.rule in str(good) for rule in good.guard_rules)


@pytest.mark.slow
def test_the_agent_learns_and_the_cost_falls(good, loop):
    agent, fixed = good.agent(), good.agent()
    fixed.pause()
    assert float(agent.state.guard.window.level) == good.level
    np.testing.assert_array_equal(agent.a_hat, good.a_hat)
    costs = []
    for one in (agent, fixed):
        plant = Plant(gain=1.3 * GAIN, time=1.3 * TIME, load=0.1)
        measured, total = plant.measure(), []
        for t in range(6_000):
            u = one.act(measured, reference=[1.0 + (t // 250) % 2])
            total.append(float(one.info.cost))
            measured = plant.step(u)
        costs.append(np.mean(total[-1000:]))
    assert costs[0] < 0.8 * costs[1]
    assert agent.refused == 0


@pytest.mark.slow
def test_an_unstable_start_is_a_no_go_that_touches_no_plant(tmp_path):
    loop, plant = make_loop(kp=8.0, ki=8.0, samples=10), Plant()
    found = st.commission(loop, plant, steps=STEPS)
    assert not found.ok
    assert verdicts(found) == {"shapes": "ok", "stability": "no-go"}
    assert "UNSTABLE" in found.reasons[0]
    assert "loop.back_off(gain_margin=2)" in found.reasons[0]
    assert plant.sent == []
    assert str(found).endswith("NO-GO: stability")
    with pytest.raises(ValueError, match=r"^The commissioning ended with NO-GO: stability: UNSTABLE.*force=True"):
        found.agent()
    assert isinstance(found.agent(force=True), st.Agent)
    assert "No-go" in found.report(tmp_path).read_text()
    # The advice works.
    theta = loop.back_off(gain_margin=2.0)
    assert f"kp = {float(loop.gains(theta)['kp']):.3g}" in found.reasons[0]
    again = st.commission(loop, Plant(), steps=STEPS, theta=theta)
    assert again["stability"].verdict == "ok"
    assert again.ok


@pytest.mark.slow
def test_small_margins_are_a_warning():
    loop = make_loop(kp=3.5, ki=4.0, samples=10)  # a gain margin of 1.12
    found = st.commission(loop, Plant(), steps=STEPS)
    assert found["stability"].verdict == "warning"
    assert "gain margin is 1.12" in found["stability"].sentence
    assert "back_off" in found["stability"].sentence


@pytest.mark.slow
def test_a_weak_start_is_called_dangerous():
    found = st.commission(make_loop(kp=0.01, ki=0.02), Plant(), steps=STEPS)
    assert found["simulation"].verdict == "warning"
    assert "dangerous before anything is learned" in found["simulation"].sentence


def test_the_wrong_sign_of_the_plant_is_a_no_go(loop):
    plant = Plant(gain=-GAIN)
    found = st.commission(loop, plant, steps=STEPS)
    assert not found.ok
    assert found["dry run"].verdict == "no-go"
    assert found["control effect"].verdict == "no-go"
    np.testing.assert_allclose(found["control effect"].numbers["ratio"], [-1.0], atol=0.05)  # noise of the sensor
    assert "other direction" in found["control effect"].sentence
    assert len(plant.sent) == found["dry run"].numbers["steps"] < STEPS
    assert max(map(abs, plant.sent)) <= 10.0


def test_a_bad_measurement_stops_the_dry_run_at_that_step(loop):
    plant = Plant(bad_at=137, bad=np.nan)
    found = st.commission(loop, plant, steps=STEPS)
    assert not found.ok
    assert len(plant.sent) == 137
    assert found["dry run"].numbers["steps"] == 137
    assert found["dry run"].sentence.startswith("Stopped at step 137: the measurement")
    assert len(found.log) == 137
    assert "estimator" not in verdicts(found)


def test_the_conditions_that_stop_a_dry_run():
    """Five times the simulated range or the scale, and thirty times the largest mean cost of twenty steps."""
    measured, costs = np.array([[1.0, -0.1], [-2.0, 0.1]] * 20), np.full(40, 0.5)
    watch = Watch.of(measured, costs, scales=np.array([1.0, 3.0]), cost_of_scale=0.1)
    for good in ([10.0, 15.0], [-10.0, -15.0]):
        assert watch.check_measurement(np.array(good)) == ""
    for bad in ([10.1, 0.0], [0.0, -15.1], [np.inf, 0.0], [0.0, np.nan]):
        assert watch.check_measurement(np.array(bad)) != ""
    assert watch.check_cost(20 * 15.0) == ""  # one bad step alone does not count
    assert watch.check_cost(20 * 0.1) != ""
    assert watch.again().check_cost(1.0) == ""
    assert watch.again().check_cost(np.nan) != ""


def test_a_fault_in_the_second_dry_run_stops_it_too(loop):
    plant = Plant(bad_at=STEPS + 50)
    found = st.commission(loop, plant, steps=STEPS)
    assert len(plant.sent) == STEPS + 50
    assert found["estimator"].verdict == "no-go"
    assert "Stopped after 50 steps" in found["estimator"].sentence


def test_a_bad_first_measurement_sends_nothing(loop):
    plant = Plant(bad_at=0)
    found = st.commission(loop, plant, steps=STEPS)
    assert plant.sent == []
    assert not found.ok
    assert found.log is None


def test_a_cost_that_explodes_stops_the_dry_run():
    """The output stays within its range, but the control is punished beyond a limit that the model never reaches."""
    cost = lambda error, u, rate: jnp.sum(error**2) + 1e6 * jnp.sum(jnp.maximum(jnp.abs(u) - 2.5, 0.0) ** 2)
    loop, plant = make_loop(cost=cost), Plant(gain=0.1 * GAIN)
    found = st.commission(loop, plant, steps=STEPS)
    assert "mean cost of 20 steps" in found["dry run"].sentence
    assert len(plant.sent) == found["dry run"].numbers["steps"] < STEPS


def test_a_nan_in_a_log_ends_the_log(good, loop):
    measured = good.log.measurement.copy()
    measured[200] = np.nan
    found = st.commission(loop, st.PlantLog(measured, good.log.u, good.log.reference), steps=STEPS)
    assert not found.ok
    assert found["dry run"].numbers["steps"] == 200
    assert len(found.log) == 200


def test_a_log_with_controls_beyond_the_limits_is_a_warning(good, loop):
    u = good.log.u.copy()
    u[:6] = 11.0
    found = st.commission(loop, st.PlantLog(good.log.measurement, u, good.log.reference), steps=STEPS)
    assert found["saturation"].verdict == "warning"
    assert found["saturation"].numbers["outside"] == 6 / STEPS


def test_a_plant_that_saturates_is_a_warning():
    found = st.commission(make_loop(limit=0.5), plant := Plant(), steps=STEPS)
    assert found.ok
    assert found["saturation"].verdict == "warning"
    share = np.mean(np.abs(plant.sent[:STEPS]) >= 0.5)
    assert found["saturation"].numbers["share"] == share > 0.2


def test_a_wrong_derivative_is_a_no_go_that_touches_no_plant():
    cost = lambda error, u, rate: jnp.sum(jax.lax.stop_gradient(error) * error) + 0.01 * jnp.sum(u**2)
    found = st.commission(make_loop(cost=cost), plant := Plant(), steps=STEPS)
    assert verdicts(found)["gradients"] == "no-go"
    assert "cost" in found["gradients"].sentence
    assert plant.sent == []


@pytest.mark.slow
def test_the_sampling_period(loop):
    rng = np.random.default_rng(0)
    steady = st.commission(loop, TimedPlant([DT]), steps=STEPS)
    assert steady["sampling"].verdict == "ok"
    np.testing.assert_allclose(steady.log.time, 5.0 + DT * np.arange(STEPS))
    periods = DT * rng.uniform(0.7, 1.3, STEPS)
    jittery = st.commission(loop, TimedPlant(periods), steps=STEPS)
    assert jittery["sampling"].verdict == "warning"
    off = np.abs(periods[: STEPS - 1] / DT - 1)
    np.testing.assert_allclose(jittery["sampling"].numbers["jitter"], np.quantile(off, 0.99), rtol=1e-6)
    wrong = st.commission(loop, TimedPlant([4 * DT]), steps=STEPS)
    assert wrong["sampling"].verdict == "no-go"


def test_a_clock_that_stands_still_stops_the_dry_run(loop):
    plant = TimedPlant([DT, 0.0])
    found = st.commission(loop, plant, steps=STEPS)
    assert "did not increase" in found["dry run"].sentence
    assert len(plant.sent) == 2


@pytest.mark.slow
def test_a_loop_with_jitter_gets_the_measured_periods():
    periods = DT * np.random.default_rng(1).uniform(0.7, 1.3, STEPS)
    found = st.commission(make_loop(jitter=True), TimedPlant(periods), steps=STEPS)
    assert found["sampling"].verdict == "ok"
    assert found.ok


@pytest.mark.slow
def test_models_as_plants_and_loops_with_an_observer():
    loop = make_loop(samples=5)
    own = st.commission(loop, steps=STEPS)
    assert own.ok
    assert own["model"].numbers["one_step_over_noise"][0] < 5
    assert own.agent().act([0.0], reference=[1.0]).shape == (1,)
    other = models.Delayed(models.FirstOrder(gain=0.8 * GAIN, time_constant=TIME, dt=DT), samples=8)
    assert st.commission(loop, other, steps=STEPS).ok


class RunawayPlant:
    """x' = rate · x + gain · (u + load), sampled exactly, with a dead time in steps."""

    def __init__(self, rate=5.0, gain=1.0, delay=0):
        self.decay, self.gain = math.exp(0.02 * rate), gain * math.expm1(0.02 * rate) / rate
        self.x, self.queue, self.rng = 0.0, [0.0] * delay, np.random.default_rng(0)

    def measure(self):
        return np.array([self.x + 1e-3 * self.rng.normal()])

    def step(self, u):
        self.queue.append(float(u[0]))
        self.x = self.decay * self.x + self.gain * (self.queue.pop(0) + 0.05)
        return self.measure()


@pytest.fixture(scope="module")
def runaway():
    model = models.StateSpace([[5.0]], [[1.0]], [[1.0]], dt=0.02)
    policy = policies.PID(kp=12.0, ki=12.0, u_min=-20.0, u_max=20.0)
    return st.Loop(model, policy, reference=references.Steps(2.0, low=0.0, high=0.5))


def test_a_plant_that_runs_away_without_control_is_predicted_as_far_as_it_can_be(runaway):
    """A deviation grows e-fold in 1 / log(exp(5 · 0.02)) = 10 steps. Over 50 steps it grows 150-fold, so that the
    prediction errors of a plant whose pole is 25 % faster were many times larger than its motion, a false no-go."""
    found = st.commission(runaway, RunawayPlant(rate=6.25), steps=STEPS)
    assert found["stability"].numbers["growth_time"] == pytest.approx(10.0, rel=1e-9)
    assert 9 <= found["model"].numbers["horizon"] <= 10  # 10 but for rounding
    assert found.ok, found.reasons
    assert found["estimator"].numbers["after"]["unexplained"] < 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [pytest.param({"gain": -1.0}, id="sign"), pytest.param({"gain": 1 / 3}, id="gain / 3"),
              pytest.param({"delay": 6}, id="dead time")]
)  # fmt: skip
def test_a_wrong_model_of_a_plant_that_runs_away_is_a_no_go(runaway, wrong):
    assert not st.commission(runaway, RunawayPlant(**wrong), steps=STEPS).ok


@pytest.mark.slow
def test_three_times_the_gain_is_a_warning(runaway):
    found = st.commission(runaway, RunawayPlant(gain=3.0), steps=STEPS)
    assert found["control effect"].verdict == "warning"


def test_the_page_is_drawn_in_a_browser_without_a_complaint(good, tmp_path):
    page = good.report(tmp_path / "report")
    assert sorted(path.name for path in page.parent.iterdir()) == [
        "commissioning.html", "commissioning.json", "dry-run.csv", "estimator-run.csv"
    ]  # fmt: skip
    question = "[...document.querySelectorAll('.plot')].map((plot) => plot.querySelectorAll('.main-svg').length)"
    answer, console = browser.look(page, tmp_path, question)
    assert console == []
    assert len(answer) == 9  # outputs, control, cost and prediction errors of both runs; â of the second
    assert all(count > 0 for count in answer)
    text = page.read_text()
    assert all(row.name in text for row in good.rows)
    np.testing.assert_array_equal(st.read_log(page.parent / "dry-run.csv", dt=DT).u, good.log.u)


def test_a_log_survives_csv(tmp_path):
    rng = np.random.default_rng(0)
    log = st.PlantLog(rng.normal(size=(7, 2)), rng.normal(size=(7, 3)), rng.normal(size=(7, 2)), np.arange(7) / 3)
    log.write_csv(tmp_path / "log.csv")
    again = st.read_log(tmp_path / "log.csv", dt=1 / 3)
    for name in ("measurement", "u", "reference"):
        np.testing.assert_array_equal(getattr(again, name), getattr(log, name))
    np.testing.assert_allclose(again.time, log.time, atol=1e-9)  # nanoseconds
    (tmp_path / "bad.csv").write_text("measurement,u\n1,2\n")
    with pytest.raises(Exception, match="expected a column reference"):
        st.read_log(tmp_path / "bad.csv", dt=DT)


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
def test_wrong_arguments(loop, good):
    with pytest.raises(st.ArgumentError, match="loop: expected"):
        st.commission(3)
    with pytest.raises(st.ArgumentError, match=r"plant: expected None, a model, a PlantLog, or an object with"):
        st.commission(loop, "motor")
    with pytest.raises(st.ArgumentError, match="steps: expected"):
        st.commission(loop, steps=10)
    with pytest.raises(st.ArgumentError, match="seed: expected"):
        st.commission(loop, seed=-1)
    with pytest.raises(st.ArgumentError, match="1 measurements, 1 controls and 1 references"):
        st.commission(loop, st.PlantLog(np.zeros((200, 2)), np.zeros(200), np.zeros(200)), steps=STEPS)
    with pytest.raises(st.ArgumentError, match="u: expected 3 rows"):
        st.PlantLog([0.0, 0.0, 0.0], [0.0], [0.0, 0.0, 0.0])
    with pytest.raises(st.ArgumentError, match="time: expected 2 increasing"):
        st.PlantLog([0.0, 0.0], [0.0, 0.0], [0.0, 0.0], time=[1.0, 1.0])
    with pytest.raises(KeyError, match="the rows are shapes"):
        good["nothing"]


class Failing(Plant):
    """A plant whose step number `at` does something else."""

    def __init__(self, at, instead):
        super().__init__()
        self.at, self.instead = at, instead

    def step(self, u):
        measured = super().step(u)
        return self.instead() if len(self.sent) >= self.at else measured


def _fail(error):
    raise error


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        (lambda: _fail(OSError("the bus is gone")), "the plant raised OSError: the bus is gone"),
        (lambda: _fail(KeyboardInterrupt()), "interrupted from the keyboard"),
        (lambda: [0.0, 1.0], "expected measurements of 1 real numbers"),
        (lambda: "12 V", "expected measurements of 1 real numbers"),
        (lambda: [1j], "expected measurements of 1 real numbers"),
        (lambda: [[1.0], [2.0, 3.0]], "expected measurements of 1 real numbers"),
        (lambda: None, "expected measurements of 1 real numbers"),
    ],
)
def test_a_plant_that_fails_is_a_no_go(loop, instead, reason):
    """Whatever the plant does, the dry run stops at once, says why, and keeps the steps before."""
    plant = Failing(150, instead)
    found = st.commission(loop, plant, steps=STEPS)
    assert not found.ok
    assert found["dry run"].verdict == "no-go"
    assert reason in found["dry run"].sentence
    assert len(plant.sent) == 150
    assert len(found.log) == 150
    assert reason in str(found)


def test_a_plant_that_fails_in_the_second_dry_run_is_a_no_go(loop):
    found = st.commission(loop, Failing(STEPS + 50, lambda: _fail(RuntimeError("late"))), steps=STEPS)
    assert verdicts(found)["dry run"] == "ok"
    assert found["estimator"].verdict == "no-go"
    assert "late" in found["estimator"].sentence


@pytest.mark.parametrize("name", ["measure", "time"])
def test_a_plant_that_fails_before_the_first_step_gets_nothing(loop, name):
    class Broken(Plant):
        pass

    broken = property(lambda self: _fail(OSError("no answer")))
    setattr(Broken, name, broken if name == "time" else lambda self: _fail(OSError("no answer")))
    plant = Broken()
    found = st.commission(loop, plant, steps=STEPS)
    assert "no answer" in found["dry run"].sentence
    assert plant.sent == []


@pytest.mark.parametrize("noise", [2e-3, 0.0])
def test_a_sensor_that_stands_still_is_a_no_go(loop, noise):
    """The model predicts motions that are not there: its gradients would be wrong. Without noise in the first
    measurement, all measurements are equal."""
    plant = Failing(0, lambda: [0.0])
    plant.noise = noise
    found = st.commission(loop, plant, steps=STEPS)
    assert found["estimator"].verdict == "no-go"
    assert "check the sensor" in found["estimator"].sentence


def test_a_time_that_is_none_is_no_time(loop):
    plant = Plant()
    plant.time = None
    assert "sampling" not in verdicts(st.commission(loop, plant, steps=STEPS))


def test_wrong_arguments_are_refused_before_the_plant_is_touched(loop):
    plant = Plant()
    with pytest.raises(st.ArgumentError, match=r"theta: expected a θ like loop\.theta"):
        st.commission(loop, plant, theta=[1.0, 2.0, 3.0])
    with pytest.raises(st.ArgumentError, match="at least 100 steps"):
        st.commission(loop, st.PlantLog(*(np.zeros((50, 1)) for _ in range(3))))
    other = models.FirstOrder(gain=GAIN, time_constant=TIME, dt=2 * DT)
    with pytest.raises(st.ArgumentError, match=r"plant: expected the sampling period of the model, dt=0\.01"):
        st.commission(loop, other)
    assert plant.sent == []
