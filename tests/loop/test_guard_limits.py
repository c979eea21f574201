"""`suggest_guard`: the limits follow their rules, a normal run is never refused, and an outlier is."""

import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import models, policies

STEPS = 1_500


@pytest.fixture(scope="module")
def loop():
    return st.Loop(
        models.SecondOrder(gain=1.5, natural_frequency=4.0, damping=0.4, dt=0.02),
        policies.PID(kp=1.0, ki=1.5, kd=0.1, u_min=-5.0, u_max=5.0),
    )


@pytest.fixture(scope="module")
def run(loop):
    return loop.simulate(STEPS, seed=0)


@pytest.fixture(scope="module")
def suggestion(loop, run):
    return st.suggest_guard(run, base=loop.guard(), x_scale=_scale(loop), f_scale=1.0, time_constant=30.0)


def _scale(loop):
    return loop.plant.outputs[0].scale


def _peak(rows):
    """The definition, with loops: the largest median of five values in a row."""
    return max(np.median(np.abs(rows[i : i + 5])) for i in range(len(rows) - 4))


def test_every_setting_follows_its_rule(loop, run, suggestion):
    assert isinstance(suggestion, st.GuardSuggestion)
    assert all(isinstance(rule, st.GuardRule) for rule in suggestion.rules)
    guard, base = suggestion.guard, loop.guard()
    np.testing.assert_allclose(guard.x_limit, [10 * max(_scale(loop), _peak(run.measured[:, 0]))])
    observed = np.asarray(run.f_hat + run.innovation)[:, 0]
    np.testing.assert_allclose(guard.f_limit, [10 * max(1.0, _peak(observed))])
    widths = np.asarray(loop.constraint.widths(loop.theta))
    columns = (np.asarray(run.y) * widths).reshape(STEPS, -1)
    np.testing.assert_allclose(guard.y_limit, 20 * max(_peak(column) for column in columns.T))
    assert guard.window == max(base.window, 300)
    cost = np.asarray(run.cost)
    filtered = [np.median(cost[i : i + 5]) for i in range(STEPS - 4)]
    np.testing.assert_allclose(guard.cost_floor, np.mean(filtered) / 4)
    np.testing.assert_allclose(guard.cost_ceiling, 100 * np.mean(filtered))
    for name in ("u_low", "u_high", "rate", "growth", "rollback", "bridge", "contraction", "authority"):
        assert getattr(guard, name) == getattr(base, name)


def test_the_table_has_each_setting_with_its_rule(suggestion):
    lines = str(suggestion).splitlines()
    assert [line.split()[0] for line in lines] == [rule.setting for rule in suggestion.rules]
    assert all(rule.rule in line for rule, line in zip(suggestion.rules, lines, strict=True))


def test_a_longer_time_constant_needs_a_longer_window(run, loop):
    assert st.suggest_guard(run, base=loop.guard(), time_constant=400.0).guard.window == 4000


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_normal_run_with_another_seed_is_never_refused_nor_rolled_back(loop, suggestion, seed):
    other = loop.simulate(3 * STEPS, seed=seed, guard=suggestion.guard)
    bad = st.Decision.REFUSED | st.Decision.RESET | st.Decision.EXPLODED
    assert not np.any(np.asarray(other.guard) & int(bad))


def test_an_outlier_of_100_scales_is_refused(loop, suggestion):
    agent = loop.agent(guard=suggestion.guard)
    agent.act([0.0], reference=[0.5])
    assert st.Decision.REFUSED not in agent.decisions
    agent.act([100 * _scale(loop)], reference=[0.5])
    assert st.Decision.REFUSED in agent.decisions


def test_outliers_in_the_dry_run_do_not_raise_a_limit(loop, run, suggestion):
    spoilt = dict(run.recorded)
    for name in ("measured", "innovation", "cost", "y"):
        rows = np.array(run.recorded[name])
        rows[[100, 101, 700]] = 1e6
        spoilt[name] = rows
    spoilt["measured"][900] = np.nan
    other = st.suggest_guard(
        _record(spoilt, run.constraint), base=loop.guard(), x_scale=_scale(loop), f_scale=1.0, time_constant=30.0
    )
    for name in ("x_limit", "f_limit", "y_limit", "cost_floor"):
        # Dropping three rows of 1500 and shifting medians beside them changes little.
        np.testing.assert_allclose(getattr(other.guard, name), getattr(suggestion.guard, name), rtol=0.02)


def _record(recorded, constraint=None):
    run = object.__new__(st.Run)
    object.__setattr__(run, "constraint", constraint)
    object.__setattr__(run, "recorded", recorded)
    return run


def test_a_short_manoeuvre_in_a_long_rest_is_not_refused():
    rows = np.zeros((1000, 1))
    rows[500:520] = 3.0
    guard = st.suggest_guard(_record({"x": rows, "cost": rows[:, 0]})).guard
    assert guard.x_limit == (30.0,)


def test_what_was_not_recorded_or_did_not_move_stays_as_it_was():
    base = st.Guard(x_limit=7.0, f_limit=5.0, y_limit=3.0, cost_floor=0.25)
    found = st.suggest_guard(_record({"x": np.zeros((20, 2)), "cost": np.zeros(20)}), base=base)
    assert found.guard == base
    assert all(rule.rule.startswith("given") for rule in found.rules)


@pytest.mark.usefixtures("as_a_user")
def test_wrong_arguments(run):
    with pytest.raises(st.ArgumentError, match="run: expected"):
        st.suggest_guard(3)
    with pytest.raises(st.ArgumentError, match="at least 5 recorded steps"):
        st.suggest_guard(_record({"cost": np.ones(3)}))
    with pytest.raises(st.ArgumentError, match="one run"):
        st.suggest_guard(_record({"cost": jnp.ones((4, 50))}))
    with pytest.raises(st.ArgumentError, match="base: expected"):
        st.suggest_guard(run, base=1.0)
    with pytest.raises(st.ArgumentError, match="x_scale: expected"):
        st.suggest_guard(run, x_scale=[1.0, 2.0, 3.0])
    with pytest.raises(st.ArgumentError, match="x_scale: expected"):
        st.suggest_guard(run, x_scale=-1.0)
    with pytest.raises(st.ArgumentError, match="time_constant: expected"):
        st.suggest_guard(run, time_constant=-1.0)
