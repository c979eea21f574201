"""The loops' comparison, small: the rules by closed forms, the batch against single runs, and the checks."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from typer.testing import CliRunner

import selftune as st
from selftune import models, policies
from selftune.cli.app import app
from selftune.experiments import loops, report
from selftune.experiments.loops import batches, figures, rules
from selftune.experiments.loops.cases import LOOPS, load
from selftune.experiments.loops.run import RULES, STATIC
from selftune.experiments.loops.summary import summarize
from selftune.experiments.registry import StoredRun
from selftune.foundation.errors import InputError
from selftune.storage.store import open_run
from tests import drawings

SMALL = loops.Settings(
    loops=("motor speed",), plants=("delayed",), seeds=2, first_seed=0, periods=4, rows=8, rounds=1, candidates=6
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("loops") / "run"
    seen = []
    loops.compute(SMALL, out, workers=1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 800), (800, 800)]
    return out


@pytest.fixture(scope="module")
def dataset(folder):
    return open_run(folder)[0]


@pytest.mark.slow
def test_a_run_of_the_batch_is_that_of_the_loop(dataset):
    case = load("motor speed")
    loop = case.loop(case.starts["kp ×10"])
    theta = loop.back_off(gain_margin=2.0)
    run = loop.simulate(800, 1, plant=case.true_plant("delayed"), theta=theta)
    kept = dataset.sel(loop="motor speed", plant="delayed", start="kp ×10", seed=1)
    # The batch has the widths of the box as inputs of the program, and the single run has them as constants.
    np.testing.assert_allclose(kept.cost, np.asarray(run.cost).reshape(8, 100).mean(1), rtol=1e-6)
    np.testing.assert_allclose(kept.mean_cost, np.mean(run.cost), rtol=1e-6)
    np.testing.assert_allclose(kept.last_cost, np.mean(run.cost[-200:]), rtol=1e-6)
    np.testing.assert_allclose(kept.theta.sel(gain="kp"), run.theta["log_kp"][::100], rtol=1e-5)
    assert np.isnan(kept.theta.sel(gain="kd")).all()
    moved = ravel_pytree(loop.theta)[0] - ravel_pytree(theta)[0]
    np.testing.assert_allclose(kept.backed_off, np.exp(np.max(moved)), rtol=1e-9)


@pytest.mark.slow
def test_fixed_gains_are_those_of_a_loop_without_a_tuner(dataset):
    case = load("motor speed")
    gains = {name: float(np.exp(dataset.rival_theta.sel(rival="SIMC", gain=name)[0, 0, 0])) for name in case.gains}
    loop = case.loop(gains)
    guard = loop.guard(rollback=None, authority=None)
    controller = loop.controller(tuner=st.Fixed())
    run = loop.simulate(800, 0, plant=case.true_plant("delayed"), controller=controller, guard=guard)
    kept = dataset.sel(rival="SIMC", seed=0).squeeze()
    np.testing.assert_allclose(kept.rival_mean, np.mean(run.cost), rtol=1e-6)
    np.testing.assert_allclose(kept.rival_last, np.mean(run.cost[-200:]), rtol=1e-6)


@pytest.mark.slow
def test_no_rule_beats_the_best_static_gains(dataset):
    cost = dataset.rival_mean.where(dataset.rival_code == 0)
    assert (cost.sel(rival=STATIC) <= cost.min("rival") * (1 + 1e-12)).all()
    assert (dataset.rival_code.sel(rival=STATIC) == 0).all()


@pytest.mark.slow
def test_the_nominal_gains_have_margins_and_the_starts_are_ten_times_off():
    for name in LOOPS:
        case = load(name)
        found = case.loop().margins()
        assert found.is_stable
        assert found.gain_margin > 1.9  # the rounded best gains of a dead time are near the limit of 2
        assert len(case.starts) == 3 + 2 * len(case.gains)
        for start, gains in case.starts.items():
            factors = {gain: gains[gain] / case.gains[gain] for gain in gains}
            word, _, change = start.partition(" ")
            wanted = {"": 1.0, "/10": 0.1, "×10": 10.0}[change]
            assert all(math.isclose(factors[g], wanted if word in (g, "all") else 1.0) for g in factors)


def test_the_process_of_a_first_order_plant_and_of_a_motor():
    first = models.Delayed(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.02), samples=5)
    process = rules.process_of(first)
    assert not process.is_integrating
    np.testing.assert_allclose([process.gain, *process.lags, process.dead_time], [2.0, 0.5, 0.11], rtol=1e-9)
    motor = models.DCMotor(
        resistance=1.2, torque_constant=0.04, rotor_inertia=2e-5, gear_ratio=20.0, load_inertia=0.01, dt=0.005,
        output="position",
    )  # fmt: skip
    process = rules.process_of(models.Delayed(motor, samples=1))
    inertia, constant = 0.01 + 400 * 2e-5, 0.04 * 20
    assert process.is_integrating
    # The gain is a difference quotient at ε = 1e-7, with an error of the order of ε / (1 − pole).
    np.testing.assert_allclose(process.gain, 1 / constant, rtol=1e-4)
    np.testing.assert_allclose([*process.lags, process.dead_time], [inertia * 1.2 / constant**2, 0.0075], rtol=1e-7)


def test_the_ultimate_gain_is_the_gain_margin_of_a_proportional_loop():
    plant = models.Delayed(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.02), samples=5)
    gain, period = rules.ultimate_of(plant)
    np.testing.assert_allclose(gain, st.Loop(plant, policies.PID(kp=1.0)).margins().gain_margin, rtol=1e-6)
    # At this frequency, the phase of the sampled plant is −180°.
    z, pole = np.exp(2j * np.pi * 0.02 / period), math.exp(-0.02 / 0.5)
    np.testing.assert_allclose(gain * 2.0 * (1 - pole) / (z - pole) / z**5, -1.0, atol=1e-6)


def test_the_rules_by_hand():
    process = rules.Process(gain=1.0, is_integrating=False, lags=(1.0,), dead_time=1.0)
    assert _close(rules.amigo(process, derivative=False), kp=0.25, ki=0.25 / 1.0)
    assert _close(rules.amigo(process, derivative=True), kp=0.65, ki=0.65 * 1.1 / 1.2, kd=0.65 * 0.5 / 1.3)
    assert _close(rules.simc(process, derivative=False), kp=0.5, ki=0.5)
    integrating = rules.Process(gain=2.0, is_integrating=True, lags=(0.4,), dead_time=0.1)
    # In the series form: Kc = 1/(2 · 0.2), Ti = 0.8, Td = 0.4.
    assert _close(rules.simc(integrating, derivative=True), kp=2.5 * 1.5, ki=2.5 / 0.8, kd=2.5 * 0.4)
    # Without a derivative, half of the lag is dead time: Kc = 1/(2 · 2 · 0.3), Ti = 8 · 0.3.
    assert _close(rules.simc(integrating, derivative=False), kp=1 / 1.2, ki=1 / 1.2 / 2.4)
    assert _close(rules.amigo(integrating, derivative=True), kp=0.45, ki=0.45 / 4.0, kd=0.45 * 0.25)
    ultimate = rules.Ultimate(gain=10.0, period=2.0)
    assert _close(rules.ziegler_nichols(ultimate, derivative=True), kp=6.0, ki=6.0, kd=1.5)
    assert _close(rules.tyreus_luyben(ultimate, derivative=False), kp=3.125, ki=3.125 / 4.4)


def _close(gains, **wanted):
    return gains.keys() == wanted.keys() and all(math.isclose(gains[name], wanted[name]) for name in wanted)


def test_a_relay_measures_the_ultimate_gain_and_period():
    plant = models.Delayed(models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.02), samples=5)
    measured = rules.relay(plant, 1.0, (-10.0, 10.0), 0.0, steps=1000)
    exact = rules.ultimate_of(plant)
    # The describing function neglects harmonics: errors of 5 to 25 % are normal (Åström and Hägglund).
    np.testing.assert_allclose(measured.gain, exact.gain, rtol=0.25)
    np.testing.assert_allclose(measured.period, exact.period, rtol=0.15)


def test_the_integral_time_is_bounded_by_the_reference():
    case = load("motor position")  # a period of 1 s
    loop = case.loop(case.starts["ki /10"])
    np.testing.assert_allclose(np.exp(loop.constraint.low["log_ki"]), 20.0 / 20.0)
    assert loop.constraint.low["log_kp"] == loop.policy.constraint.low["log_kp"]
    slow = case.loop(case.gains | {"ki": 0.5})  # the start gains stay allowed
    np.testing.assert_allclose(np.exp(slow.constraint.low["log_ki"]), 0.5)
    own = st.Box(*({name: value + d for name, value in loop.theta.items()} for d in (-9.0, 9.0)))
    given = policies.PID(**case.gains, constraint=own).constraint_within(20.0)
    assert given.low == own.low
    standard = policies.PID.standard(kp=2.0, ti=1.0)
    np.testing.assert_allclose(np.exp(standard.constraint_within(20.0).high["log_ti"]), 20.0)
    np.testing.assert_allclose(np.exp(standard.constraint_within(500.0).high["log_ti"]), 100.0)
    cascade = policies.Cascade(policies.PID(kp=2.0), policies.PID(kp=1.0, ki=5.0), states=(1,))
    whole = st.Loop(models.DoubleIntegrator(mass=1.0, dt=0.01), cascade).constraint
    inner = whole.parts["level_2"]
    assert inner.low["log_ki"] > cascade.levels[1].constraint.low["log_ki"]


def test_back_off_gives_the_margin_from_unstable_gains():
    case = load("two-mass drive")
    loop = case.loop(case.starts["kp ×10"] | {"kp": 20 * case.gains["kp"]})
    assert not loop.margins().is_stable or loop.margins().gain_margin < 2
    found = loop.margins(loop.back_off(gain_margin=2.0))
    # The amount is found by 20 bisections of an interval of 0.05 in θ.
    np.testing.assert_allclose(found.gain_margin, 2.0, rtol=1e-4)


def test_rows_and_quarters():
    cost = np.arange(12.0)
    np.testing.assert_allclose(batches.in_rows(cost, 4), [1, 4, 7, 10])
    np.testing.assert_allclose(batches.in_rows(cost, 5), [0.5, 2.5, 5, 7.5, 10])
    assert batches.last_quarter(cost) == 10


@pytest.mark.slow
def test_the_checks_are_judged_at_the_full_settings_alone(dataset, folder):
    kept = open_run(folder)[1].settings
    assert all(check.holds is None for check in summarize(dataset, kept).checks)
    full = dataclasses.asdict(loops.Settings(seeds=12, loops=SMALL.loops, plants=SMALL.plants)) | {"about": {}}
    here = dataset.copy(deep=True)
    here.last_cost[...] = 1.19 * here.rival_last.sel(rival=STATIC)
    here["theta"][...] = here.theta + 0.1 * here.row
    names = [
        f"motor speed, lighter, more delay: {what}"
        for what in (
            "last quarter / best static, worst start",
            "failed runs",
            "runs in which every gain moved, or the cost is within 2 % of the best",
        )
    ]
    assert {check.name: check.holds for check in summarize(here, full).checks} == dict.fromkeys(names, True)
    here.last_cost.loc[dict(start="ki /10")] *= 1.1
    here.result_code.loc[dict(start="kp /10", seed=1)] = 1
    here.theta.loc[dict(start="nominal", seed=0, gain="kp")] = 0.0
    checks = {check.name: check for check in summarize(here, full).checks}
    assert [checks[name].holds for name in names] == [False, False, False]
    assert checks[names[1]].measured.mean == 1
    np.testing.assert_allclose(checks[names[0]].measured.mean, 1.19 * 1.1)
    # A gain need not move if the cost is as low as with the best static gains.
    here.last_cost.loc[dict(start="nominal", seed=0)] = 1.01 * here.rival_last.sel(rival=STATIC, seed=0).values
    assert {check.name: check for check in summarize(here, full).checks}[names[2]].holds


@pytest.mark.slow
def test_the_report_and_the_figures(folder, dataset):
    page = report.write(StoredRun.open(folder)).read_text()
    for text in ("motor speed", "kp ×10", "not judged", "SIMC", "selftune bench loops"):
        assert text in page
    settings = open_run(folder)[1].settings
    made = figures.make_figures(dataset, settings)
    assert list(made) == ["overview", "cost-motor-speed", "gains-motor-speed"]
    for figure in made.values():
        drawings.check(figure)
    series = {one.label: one for one in made["gains-motor-speed"].axes[0].series}
    start = float(jnp.exp(jnp.mean(dataset.theta.sel(start="kp /10", gain="kp").values[0, 0, :, 0])))
    np.testing.assert_allclose(series["kp /10"].y[0], start / load("motor speed").gains["kp"], rtol=1e-6)


@pytest.mark.slow
def test_the_command(folder, tmp_path):
    shown = CliRunner().invoke(app, ["bench", "loops", "--loops", "pump", "-o", str(tmp_path / "x")])
    assert shown.exit_code == 2
    assert "pump" in shown.output
    with pytest.raises(InputError, match="plants: expected some of exact"):
        loops.Settings(plants=("wet",))
    assert set(RULES) == {"Ziegler–Nichols", "SIMC", "AMIGO", "relay"}
