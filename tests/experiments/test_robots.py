"""The robots' comparison, small: its numbers by an independent way; failures, interruptions and the checks."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import selftune as st
from selftune.cli.app import app
from selftune.experiments import report, robots
from selftune.experiments.registry import StoredRun
from selftune.experiments.robots import drives, figures
from selftune.experiments.robots.summary import summarize
from selftune.foundation.errors import InputError
from selftune.foundation.executors import Meter, Processes
from selftune.robots.base import Drive, drive
from selftune.storage.store import RunStore, open_run
from selftune.storage.tasks import run_tasks
from tests import drawings, quick_robot, snapshots
from tests.experiments import processes

ROOT = Path(__file__).parent.parent.parent
WIND, BRITTLE = "tests.quick_robot:make wind", "tests.quick_robot:make brittle"
SMALL = robots.Settings(
    cases=(WIND, BRITTLE),
    starts=(0.25, 30.0, 1.0),
    seeds=2,
    first_seed=0,
    seconds=8.0,
    rows=40,
    buffer=0,
    episodes=(1.0,),
    oprf_episode=0.0,
    search=8,
    search_seconds=4.0,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("robots") / "run"
    seen = []
    robots.compute(SMALL, out, workers=1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(400 * i, 1600) for i in range(5)]
    return out


@pytest.fixture(scope="module")
def dataset(folder):
    return open_run(folder)[0]


@pytest.mark.slow
def test_a_run_is_what_an_agent_does(dataset):
    robot = quick_robot.make()
    theta = robot.detuned(0.25)
    agent = st.Agent(robot.controller(), x=np.zeros(2), theta=theta, a_hat=robot.a_hat, guard=st.Guard(**robot.guard))
    whole = drive(robot, agent, robot.make_plant("wind", 1, 400), 400)
    kept = dataset.sel(case=WIND, start=0.25, algorithm="M-GAPS + EST", seed=1)
    np.testing.assert_array_equal(kept.theta, np.float32(whole.theta[::10]))
    np.testing.assert_array_equal(kept.a_hat, np.float32(whole.a_hat[::10]))
    np.testing.assert_allclose(kept.cost, whole.cost.reshape(40, 10).mean(1), rtol=1e-9)
    np.testing.assert_allclose(kept.mean_cost, whole.cost.mean(), rtol=1e-12)
    np.testing.assert_allclose(kept.half_cost, whole.cost.reshape(2, 200).mean(1), rtol=1e-12)
    np.testing.assert_allclose(kept.rmse, np.sqrt(np.mean(whole.error**2)), rtol=1e-12)
    at = 300 + np.arange(200) * 100 // 200
    np.testing.assert_array_equal(dataset.lap_state.sel(case=WIND, seed=1, lap="last"), np.float32(whole.x[at]))


def test_the_defaults_have_no_learning_rates(dataset):
    """The algorithm "Gauss–Newton" is the default tuner and estimator with the robot's boxes and guard alone."""
    robot = quick_robot.make()
    tuner, estimator = st.GaussNewton(constraint=robot.theta_box), st.AutoEstimator(constraint=robot.a_box)
    controller = st.Controller(robot.system, tuner, estimator)
    theta, guard = robot.detuned(0.25), st.Guard(**robot.guard)
    agent = st.Agent(controller, x=np.zeros(2), theta=theta, a_hat=robot.a_hat, guard=guard)
    whole = drive(robot, agent, robot.make_plant("wind", 1, 400), 400)
    kept = dataset.sel(case=WIND, start=0.25, algorithm="Gauss–Newton", seed=1)
    np.testing.assert_array_equal(kept.theta, np.float32(whole.theta[::10]))
    np.testing.assert_allclose(kept.mean_cost, whole.cost.mean(), rtol=1e-12)
    assert (dataset.result_code.sel(algorithm="Gauss–Newton") != -1).all()  # from every start


def test_what_is_read_seldom_changes_nothing_else():
    robot, steps = quick_robot.make(), 50
    runs = []
    for stride in (1, 7):
        agent = drives._agent(SMALL, "tests.quick_robot:make", "M-GAPS + EST", None)
        agent.reset(x=np.zeros(2), theta=robot.theta, a_hat=robot.a_hat)
        runs.append(drive(robot, agent, robot.make_plant("wind", 0, steps), steps, stride=stride))
    np.testing.assert_array_equal(runs[1].theta, runs[0].theta[::7])
    np.testing.assert_array_equal(runs[1].x, runs[0].x)
    np.testing.assert_array_equal(runs[1].cost, runs[0].cost)


def test_a_run_that_fails_is_recorded(dataset, folder):
    failed = dataset.sel(case=BRITTLE, start=30.0, algorithm="EST")
    assert (failed.result_code == 1).all()
    assert (failed.driven < 8).all()
    assert np.isnan(failed.cost.values[:, -1]).all()
    assert np.isnan(failed.half_cost.sel(half="second")).all()
    assert (dataset.result_code.sel(start=[30.0, 1.0], algorithm="DiffTune 1") == -1).all()
    summary = summarize(dataset, open_run(folder)[1].settings)
    row = next(r for r in summary.rows if (r.case, r.start, r.algorithm) == (BRITTLE, 30.0, "EST"))
    assert (row.failed, row.runs, row.cost, row.to_static) == (2, 2, None, None)


def made(cost, *, crashed=False, theta=0.0):
    rows = np.zeros((len(cost), 1))
    return Drive(rows, rows, np.full((1, 1), theta), rows, np.asarray(cost, float), rows, crashed)


def test_failures_are_judged_on_cost_too():
    assert drives.judge(made([1, 1]), 2, level=2.0) == 0
    assert drives.judge(made([1, 1e40]), 2, level=2.0) == 1
    assert drives.judge(made([1]), 2, level=2.0) == 1
    assert drives.judge(made([1, 1], crashed=True), 2, level=2.0) == 1
    assert drives.judge(made([1, math.nan]), 2, level=2.0) == 2
    assert drives.judge(made([1, 1], theta=math.nan), 2, level=2.0) == 2


def test_convergence_time():
    reference = np.ones(8)
    cost = np.array([9.0, 3.0, 1.0, 1.0, 1.5, 1.0, 1.0, 1.0])
    # Means of two: 6, 2, 1, 1.25, 1.25, 1, 1.
    assert drives.convergence_time(cost, reference, 2, 1.3, dt=0.5) == 1.0
    assert drives.convergence_time(cost, reference, 2, 1.2, dt=0.5) == 2.5
    assert drives.convergence_time(cost, reference, 1, 9.0, dt=0.5) == 0.0
    assert math.isnan(drives.convergence_time(cost[::-1], reference, 2, 1.2, dt=0.5))


def test_the_regret_is_the_sum_of_differences(dataset, folder):
    rows = summarize(dataset, open_run(folder)[1].settings).rows
    row = next(r for r in rows if (r.case, r.start, r.algorithm) == (WIND, 0.25, "M-GAPS"))
    here = dataset.sel(case=WIND, start=0.25)
    difference = here.cost.sel(algorithm="M-GAPS") - here.cost.sel(algorithm="best static")
    assert row.regret is not None
    np.testing.assert_allclose(row.regret.mean, (0.2 * difference.sum("time")).mean(), rtol=1e-9)
    ratio = here.mean_cost.sel(algorithm="M-GAPS") / here.mean_cost.sel(algorithm="EST")
    assert row.to_estimator is not None
    np.testing.assert_allclose(row.to_estimator.mean, ratio.mean(), rtol=1e-12)


def test_the_best_static_gains_are_not_worse_than_known_ones(dataset):
    best = dataset.mean_cost.sel(case=WIND, algorithm="best static", start=0.25)
    assert (best < dataset.mean_cost.sel(case=WIND, algorithm="EST").min("start")).all()
    assert (dataset.convergence_time.sel(case=WIND, algorithm="best static") == 0).all()
    assert (dataset.static_tried > SMALL.search).all()


def test_the_search_finds_a_minimum_and_survives_crashes():
    settings = dataclasses.replace(SMALL, search=40)

    def cost(theta):
        return math.inf if theta[0] > 2.2 else 1 + np.sum((theta - np.array([2.0, -1.0])) ** 2)

    robot = quick_robot.make()
    theta, tried = drives.best_static(settings, robot, [np.array([1.4, 0.0])], cost, cost)
    # log 0.2 is where Θ ends.
    np.testing.assert_allclose(theta, [2.0, -1.0], atol=0.05)
    assert tried <= 41
    worse = drives.best_static(settings, robot, [np.array([1.4, 0.0])], cost, lambda theta: -cost(theta))
    np.testing.assert_array_equal(worse[0], [1.4, 0.0])


def test_the_checks_are_judged_at_the_full_settings_alone(dataset, folder):
    kept = open_run(folder)[1].settings
    assert all(check.holds is None for check in summarize(dataset, kept).checks)
    renamed = dataset.assign_coords(case=["arm payload", "quadrotor wind"], start=[0.25, 2.0, 1.0])
    full = dataclasses.asdict(robots.Settings(seconds=90.0, cases=("arm payload", "quadrotor wind")))
    checks = {check.name: check for check in summarize(renamed, full).checks}
    assert set(checks) == {
        f"{case}, from {what}"
        for case in ("arm payload", "quadrotor wind")
        for what in ("0.25: failures", "0.25: cost / EST", "0.25: last quarter / best static", "2: share that recovers")
    }
    assert checks["arm payload, from 0.25: failures"].holds
    assert checks["arm payload, from 0.25: cost / EST"].holds is False  # the cart's gains are not that bad
    lower = renamed.copy(deep=True)
    at = dict(start=0.25, algorithm="M-GAPS + EST")
    lower.mean_cost.loc[at] = lower.mean_cost.sel(start=0.25, algorithm="best static").values
    lower.cost.loc[at] = lower.cost.sel(start=0.25, algorithm="best static").values
    lower.mean_cost.loc[dict(start=0.25, algorithm="EST")] = 4 * lower.mean_cost.sel(at).values
    lower.result_code.loc[dict(at, case="quadrotor wind")] = 1
    checks = {check.name: check.holds for check in summarize(lower, full).checks}
    assert checks["arm payload, from 0.25: cost / EST"]
    assert checks["arm payload, from 0.25: last quarter / best static"]
    assert checks["quadrotor wind, from 0.25: failures"] is False


def test_a_task_that_is_done_again_is_the_same(folder):
    before = open_run(folder)[1]
    with RunStore.begin(
        folder, kind="robots", settings=before.settings, layout=robots.layout(SMALL, _loaded())
    ) as store:
        store.redo((1, 0))
    assert robots.compute(SMALL, folder, workers=1) == before


def _loaded():
    return {"tests.quick_robot:make": quick_robot.make()}


@pytest.mark.slow
def test_the_report_and_the_figures(folder, dataset):
    page = report.write(StoredRun.open(folder)).read_text()
    for text in ("M-GAPS + EST", "2/2", "not judged", "log frequency".removeprefix("log "), "selftune bench robots"):
        assert text in page
    settings = open_run(folder)[1].settings
    for figure in figures.make_figures(dataset, settings).values():
        drawings.check(figure)
    first, second, _ = figures.costs(dataset, settings, BRITTLE).axes
    series = {one.label: one for one in first.series}
    here = dataset.sel(case=BRITTLE, start=0.25, algorithm="EST").cost.mean("seed").values
    np.testing.assert_allclose(series["EST"].y, [here[max(0, i - 9) : i + 1].mean() for i in range(40)], rtol=1e-6)
    assert "EST" not in {one.label for one in second.series}  # no run of it ended well
    assert "EST: 2 of 2 failed" in {text.text for text in figures.overview(dataset).axes[1].texts}
    assert [axes.title for axes in figures.gains(dataset, settings, WIND).axes] == ["frequency", "damping"]


@pytest.mark.slow
def test_every_algorithm_and_every_figure(tmp_path):
    everything = dataclasses.replace(SMALL, cases=(WIND,), buffer=3, oprf_episode=1.0)
    robots.compute(everything, tmp_path / "run", workers=1)
    dataset, manifest = open_run(tmp_path / "run")
    assert (dataset.result_code.sel(start=0.25) == 0).all()
    directions = dataset.theta.sel(algorithm="OPRF", start=0.25).values[0]
    assert not np.array_equal(directions[0], directions[1])  # of another seed
    assert len(figures.draw_all(dataset, manifest.settings, tmp_path / "figures")) == 8


def test_a_path_is_drawn_of_what_flies():
    angle = np.linspace(0, 2 * np.pi, 50)
    flown = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
    data = xr.Dataset(
        {
            "lap_state": (("case", "seed", "lap", "point", "state"), np.stack([1.2 * flown, flown])[None, None]),
            "lap_error": (
                ("case", "seed", "lap", "point", "component"),
                np.stack([0.2 * flown, 0 * flown])[None, None],
            ),
        },
        {"case": ["quadrotor wind"]},
    )
    assert figures.has_path(data, "quadrotor wind")
    figure = figures.path(data, "quadrotor wind")
    drawings.check(figure)
    line, desired = figure.axes[0].series
    np.testing.assert_allclose(desired.x[:-1], flown[:, 0])
    np.testing.assert_allclose(line.y, 1.2 * flown[:, 1])


def _begin(folder):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.experiments.processes", str(folder)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    before, until = len(list((folder / "tasks").glob("*.json"))), time.monotonic() + 120
    while len(list((folder / "tasks").glob("*.json"))) == before and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


@pytest.mark.slow
def test_processes_that_are_interrupted_end_what_they_began(tmp_path):
    process = _begin(tmp_path / "run")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everyone hears it
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130, error
    with processes.begin(tmp_path / "run") as store:
        assert 2 <= sum(map(store.done, store.tasks)) < 6


@pytest.mark.slow
def test_processes_are_killed_and_continued(tmp_path):
    folder = tmp_path / "run"
    process = _begin(folder)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL  # it was alive
    until = time.monotonic() + 20
    while _members(process.pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _members(process.pid)  # its workers followed it
    with processes.begin(folder) as store:
        run_tasks(store, partial(processes.square, 0.0), [1] * 6, Processes(1), Meter(None))
    np.testing.assert_array_equal(open_run(folder)[0].square, np.arange(6) ** 2)


def _members(group):
    """The processes of a group, without those that have ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[2] == str(group) and fields[0] not in "ZX":
            found.append(stat.parent.name)
    return found


def invoke(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "100", "TERMINAL_WIDTH": "100"})


@pytest.mark.parametrize("command", [("bench",), ("bench", "robots"), ("bench", "loops")])
def test_help(command):
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    snapshots.check(f"help-{'-'.join(command)}.txt", result.stdout)


def test_bad_robots_are_exit_code_2(tmp_path, monkeypatch):
    result = invoke("bench", "robots", "--robots", "submarine", "-o", tmp_path / "run")
    assert result.exit_code == 2
    assert "arm, quadrotor, car, or module:function, got 'submarine'" in result.stderr
    monkeypatch.setitem(sys.modules, "mujoco", None)
    for name in [name for name in sys.modules if name.startswith("selftune.robots.arm")]:
        monkeypatch.delitem(sys.modules, name)
    robots.load.cache_clear()
    with pytest.raises(InputError, match=r"MuJoCo is not installed: pip install 'selftune\[robots\]'"):
        robots.load("arm")
    robots.load.cache_clear()
    with pytest.raises(InputError, match="expected a condition of"):
        robots.compute(robots.Settings(cases=("tests.quick_robot:make rain",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_are_refused_by_name():
    for change in ({"seeds": 0}, {"starts": ()}, {"starts": (1.0, 1.0)}, {"episodes": (-1.0,)}, {"seconds": 0.0}):
        with pytest.raises(ValueError, match=rf"^{next(iter(change))}: expected"):
            robots.Settings(**change)
