"""The guard's rule against a loop that oscillates by itself: its counts against a plain program, and whole runs."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import references
from selftune.control import self_oscillation
from selftune.experiments.loops import cases

D = st.Decision


def guard(**changes):
    return st.Guard(**(dict(u_low=[-2.0, 0.0], u_high=[2.0, 1.0], rate=0.01, swing=0.25, window=40) | changes))


def plain_counts(controls, wanted, *, low, high, share, window):
    """The rule as a plain program: the swings since the last change, and those in excess, after each step."""
    m = controls.shape[1]
    peak, up, last, bottom, top = [0.0] * m, [True] * m, [0.0] * m, [0.0] * m, [0.0] * m
    pace = [(high[j] - low[j]) / 7 for j in range(m)]
    since = excess = quiet = 0
    rest = window // 2
    before, trend, rows = wanted[0], np.zeros(wanted.shape[1]), []
    for u, r in zip(controls, wanted, strict=True):
        swung = False
        for j in range(m):
            peak[j] = max(peak[j], u[j]) if up[j] else min(peak[j], u[j])
            if abs(peak[j] - u[j]) >= max(share * (top[j] - bottom[j]), 7 * pace[j]):
                swung, up[j], peak[j] = True, not up[j], u[j]
            bottom[j] = min(u[j], bottom[j] + (u[j] - bottom[j]) / window)
            top[j] = max(u[j], top[j] + (u[j] - top[j]) / window)
            pace[j] += (abs(u[j] - last[j]) - pace[j]) / window
            last[j] = u[j]
        now = np.sign(r - before)
        changed = any(one != 0 and one != last for one, last in zip(now, trend, strict=True))
        before, trend = r, now
        quiet = 0 if swung else quiet + 1
        if quiet >= rest or (changed and since <= 3):
            excess = 0
        if quiet >= rest or changed:
            since = 0
        since += swung
        if swung and since > 3:
            excess += 1
        rows.append((since, min(excess, 4)))
        excess = min(excess, 4)
    return np.array(rows)


@pytest.mark.parametrize("seed", range(4))
def test_counts_equal_those_of_a_plain_program(seed):
    random = np.random.default_rng(seed)
    steps, settings = 3000, guard()
    t = np.arange(steps)[:, None]
    loud = np.repeat(random.uniform(0, 1.5, steps // 100), 100)[:, None]  # quiet and loud times
    controls = np.clip(loud * np.sin(t * [0.2, 0.3]) + 0.05 * random.normal(size=(steps, 2)), [-2, 0], [2, 1])
    held = np.repeat(random.normal(size=(steps // 150, 1)), 150, axis=0)
    wanted = np.concatenate([held, np.where(t < 1500, 0, np.sin(t / 90))], axis=1)
    begun = self_oscillation.start(settings, jnp.zeros(2), st.LoopContext(jnp.array(0), jnp.asarray(wanted[0])))

    def step(swings, row):
        u, last_u, *wanted = row
        contexts = (st.LoopContext(jnp.array(0), one) for one in wanted)
        after = self_oscillation.count(settings, swings, u, last_u, *contexts)
        return after, (after.since, after.excess, after.is_oscillating)

    earlier = np.concatenate([np.zeros((1, 2)), controls[:-1]]), np.concatenate([wanted[:1], wanted[:-1]])
    rows = tuple(map(jnp.asarray, (controls, earlier[0], wanted, earlier[1])))
    since, excess, oscillates = jax.lax.scan(step, begun, rows)[1]
    expected = plain_counts(controls, wanted, low=[-2, 0], high=[2, 1], share=0.25, window=40)
    np.testing.assert_array_equal(np.stack([since, excess], axis=1), expected)
    assert 0.05 < np.mean(oscillates) < 0.95
    np.testing.assert_array_equal(oscillates, expected[:, 1] == 4)


def test_a_context_without_a_reference_counts_as_one_that_rests():
    settings = guard(u_low=-4.0, u_high=4.0, window=100)  # the sine uses a quarter of the range
    swings, last = self_oscillation.start(settings, jnp.zeros(1), jnp.array(0)), jnp.zeros(1)
    step = jax.jit(lambda swings, u, last: self_oscillation.count(settings, swings, u, last, None, None))
    turns, oscillates = [], []
    for u in np.sin(2 * np.pi * np.arange(600) / 50):
        after = step(swings, jnp.full(1, u), last)
        turns.append(int(after.since) - int(swings.since))
        oscillates.append(bool(after.is_oscillating))
        swings, last = after, jnp.full(1, u)
    assert sum(turns[-200:]) == 8  # two in each period
    assert sum(turns[: oscillates.index(True) + 1]) == 7  # three swings are explained, and four more are not
    for _ in range(50):
        swings = step(swings, last, last)
    assert not swings.is_oscillating


def test_noise_is_no_oscillation():
    settings = guard(u_low=-1.0, u_high=1.0, window=500)
    noise = np.clip(0.3 * np.random.default_rng(0).normal(size=(5000, 1)), -1, 1)  # from limit to limit
    swings = self_oscillation.start(settings, jnp.zeros(1), jnp.array(0))

    def step(carry, u):
        after = self_oscillation.count(settings, carry[0], u, carry[1], None, None)
        return (after, u), after.is_oscillating

    oscillates = jax.lax.scan(step, (swings, jnp.zeros(1)), jnp.asarray(noise))[1]
    assert not np.any(oscillates)


@pytest.mark.parametrize("off", [dict(swing=None), dict(rate=None), dict(u_low=-np.inf), dict(u_high=np.inf)])
def test_off(off):
    assert self_oscillation.start(guard(**off), jnp.zeros(2), jnp.array(0)) is None


def test_gains_fall_in_proportion_to_the_size_of_their_gradients():
    settings = guard(growth=[1, -1, 0, 1], rate=0.02)
    theta, widths = jnp.array([0.5, 1.0, 2.0, 3.0]), jnp.array([1.0, 2.0, 5.0, 4.0])
    gradient = jnp.array([-3.0, 2.0, 100.0, 0.0])
    moved = self_oscillation.lowered(settings, theta, widths, gradient)
    # In widths: 3 and 4 parts of 5; the third number is no gain, and the fourth has no effect.
    np.testing.assert_allclose(moved - theta, [-0.02 * 0.6 * 1.0, 0.02 * 0.8 * 2.0, 0, 0], rtol=1e-12, atol=1e-15)
    assert np.linalg.norm((moved - theta) / widths) == pytest.approx(0.02)
    spared = guard(growth=[1, -1, 0, 1], calming=[0, -1, 0, 1], rate=0.02)
    np.testing.assert_allclose(
        self_oscillation.lowered(spared, theta, widths, gradient) - theta, [0, 0.02 * 2.0, 0, 0], rtol=1e-12, atol=1e-15
    )
    huge = self_oscillation.lowered(settings, theta, widths, 1e300 * gradient)
    np.testing.assert_allclose(huge, moved, rtol=1e-12)
    for unknown in (0.0, np.nan, np.inf):
        stays = self_oscillation.lowered(settings, theta, widths, jnp.full(4, unknown))
        np.testing.assert_array_equal(stays, theta)


@pytest.mark.parametrize("wrong", [0, 1.0, -0.1, np.nan, "half", True, [0.1, 0.2]])
def test_wrong_shares_are_refused(wrong):
    with pytest.raises(ValueError, match="swing: expected a number > 0 and < 1, or None"):
        st.Guard(swing=wrong)


@cache
def oscillating():
    """A speed loop with too much integral action, whose true plant is weaker and heavier than the model."""
    case = cases.load("motor speed")
    loop = case.loop(case.starts["ki ×10"])
    theta = {name: value - 2.0 for name, value in loop.theta.items()}  # a phase margin of 18° on the model
    return loop, case.true_plant("heavy"), theta


def drive(steps, **options):
    loop, plant, theta = oscillating()
    return loop.simulate(steps, 3, plant=plant, theta=theta, **options)


def test_a_loop_that_oscillates_is_damped_and_then_tuned():
    loop, _, theta = oscillating()
    run, without = drive(6000), drive(6000, guard=loop.guard(swing=None))
    damped = (np.asarray(run.guard) & D.DAMPED) != 0
    assert damped.any()
    assert not damped[2000:].any()
    assert not (np.asarray(without.guard) & D.DAMPED).any()
    # Without the rule, the tuner needs half of the run to end the oscillation.
    assert run.cost.mean() < 0.5 * without.cost.mean()
    assert run.cost[-2000:].mean() < without.cost[-2000:].mean()
    # While it is damped, the gains fall at the rate, and the integral gain, which dominates, falls most.
    way = {name: np.diff(np.asarray(rows, float))[damped[:-1]] for name, rows in run.theta.items()}
    assert all(float(np.max(steps)) <= 0 for steps in way.values())
    assert way["log_ki"].sum() < 3 * way["log_kp"].sum() < 0
    low, high = loop.constraint.bounds(theta)
    flat = np.stack([way["log_ki"], way["log_kp"]], axis=1) / np.asarray(high - low)
    np.testing.assert_allclose(np.linalg.norm(flat, axis=1), loop.guard().rate, rtol=1e-6)
    # Before the first swing too many, both runs are the same.
    first = int(np.argmax(damped))
    np.testing.assert_array_equal(run.u[:first], without.u[:first])


@pytest.mark.slow
def test_both_engines_damp_it():
    native, xla = (drive(1000, engine=engine) for engine in ("native", "xla"))
    assert (np.asarray(native.guard) & D.DAMPED).any()
    np.testing.assert_array_equal(native.guard, xla.guard)
    np.testing.assert_allclose(native.theta["log_ki"], xla.theta["log_ki"], rtol=1e-9)


@pytest.mark.slow
def test_an_agent_does_what_the_simulation_does(caplog):
    loop, _, theta = oscillating()
    run = drive(1000)
    agent = loop.agent(theta=theta)
    for measured, wanted, u in zip(*(np.asarray(part) for part in (run.measured, run.reference, run.u)), strict=True):
        # The agent's C is compiled apart from that of the simulation, and may round differently.
        np.testing.assert_allclose(agent.act(measured, reference=wanted), u, rtol=1e-6)
    assert any("damped" in record.message for record in caplog.records)


@pytest.mark.slow
def test_gains_that_are_fixed_or_paused_stay():
    loop, _, theta = oscillating()
    run = drive(1500, controller=loop.controller(tuner=st.Fixed()))
    for name, rows in run.theta.items():
        np.testing.assert_array_equal(rows, np.full_like(rows, theta[name]))
    agent = loop.agent(theta=theta)
    agent.pause()
    for measured, wanted in zip(np.asarray(run.measured), np.asarray(run.reference), strict=True):
        agent.act(measured, reference=wanted)
    assert agent.theta["log_ki"] == theta["log_ki"]


@pytest.mark.slow
def test_loops_that_do_not_oscillate_are_left_alone():
    loop = cases.load("motor speed").loop()
    run, without = (loop.simulate(4000, 0, guard=loop.guard(**change)) for change in ({}, dict(swing=None)))
    for name in ("u", "cost", "guard"):
        np.testing.assert_array_equal(getattr(run, name), getattr(without, name))
    # A sine that asks for more than the motor can do: u goes from limit to limit, but not by itself.
    fast = loop.simulate(4000, 0, reference=references.Sine(40.0, seconds=0.4))
    assert np.mean((np.asarray(fast.guard) & D.SATURATED) != 0) > 0.3
    assert not (np.asarray(fast.guard) & D.DAMPED).any()
