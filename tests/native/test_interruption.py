"""Ctrl-C: calls into C are short, and the runs of a batch end together."""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import pytest

import selftune as st
from selftune.native import interruption
from selftune.native.interruption import Interruption


class Clock:
    """A clock that runs only while C does: each step takes the same time."""

    def __init__(self, monkeypatch, seconds_a_step):
        self.now, self.seconds = 0.0, seconds_a_step
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def call(self, begin, end):
        self.now += 1e-7 + (end - begin) * self.seconds


@pytest.mark.parametrize("steps", [0, 1, 63, 64, 65, 1_000_000, 10**9])
@pytest.mark.parametrize("seconds", [1e-9, 1e-7, 5e-6, 1e-3, 0.3])
def test_calls_cover_all_steps_and_each_is_short(monkeypatch, steps, seconds):
    if seconds * steps > 1e5:
        steps = int(1e3 / seconds)
    clock, expected, longest, calls = Clock(monkeypatch, seconds), 0, 0.0, 0
    for begin, end in Interruption().calls(steps):
        assert begin == expected
        before = clock.now
        clock.call(begin, end)
        # The first call is made without knowledge; the largest programs have steps of milliseconds.
        longest, expected, calls = max(longest, clock.now - before if begin or seconds < 0.1 else 0.0), end, calls + 1
    assert expected == steps
    assert longest <= max(0.2, 1.01 * seconds)
    assert calls <= 12 + 2 * steps * seconds / interruption.SECONDS  # and not many more than are needed


def test_an_error_ends_the_runs_of_all_threads(monkeypatch):
    monkeypatch.setattr("selftune.foundation.executors.cores", lambda: 2)
    stop, ended, running = Interruption(), [], threading.Barrier(2, timeout=20)

    def run(item):
        for i, _ in enumerate(stop.calls(10**12)):
            if i == 0:
                running.wait()
            if item == "fails":
                raise KeyboardInterrupt
            time.sleep(0.001)
        ended.append(item)

    with pytest.raises(KeyboardInterrupt):
        stop.run_all(run, ["long", "fails"])
    assert ended == ["long"]  # though it had 10¹² steps


def problem():
    system = st.System(
        dynamics=lambda x, u, f, t: 0.9 * x + 0.1 * (u + f),
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    controller = st.Controller(system, st.MGAPS(1e-3), st.GradientEstimator(0.1))
    scenario = st.Scenario(jnp.ones(1), jnp.ones((200_000, 1)), jnp.zeros((200_000, 1)))
    return controller, scenario


@pytest.fixture
def ctrl_c():
    """Python's own reaction to Ctrl-C: a shell that starts the tests in the background switches it off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("batch", [0, 3])
def test_a_signal_interrupts_a_run(monkeypatch, batch):
    """After the signal, each run of the batch makes at most the call that it is in, and the next."""
    controller, scenario = problem()
    made, sent, calls = [], threading.Event(), Interruption.calls
    monkeypatch.setattr(interruption, "SECONDS", 1e-5)  # many calls

    def watched(stop, steps):
        for part in calls(stop, steps):
            made.append(sent.is_set())
            yield part
            if len(made) == 12:
                sent.set()
                os.kill(os.getpid(), signal.SIGINT)
            if sent.is_set():
                time.sleep(0.05)  # the main thread handles the signal meanwhile

    monkeypatch.setattr(Interruption, "calls", watched)

    def run(theta):
        return st.simulate(controller, scenario, theta=theta, a_hat=jnp.zeros(1), record=(), engine="native")

    with pytest.raises(KeyboardInterrupt):
        jax.vmap(run)(jnp.ones((batch, 1))) if batch else run(jnp.ones(1))
    assert len(made) >= 12
    assert made.count(True) <= 2 * max(batch, 1)


@pytest.mark.parametrize("engine", ["native", "xla"])
def test_more_steps_than_32_bits_count_are_refused(engine):
    """XLA would run for hours without reacting to Ctrl-C, and then count from −2³¹."""
    controller, scenario = problem()
    stream = st.Constant(0.0).stream(jax.random.key(0), 1)
    for steps in (2**31, 2**40):
        with pytest.raises(ValueError, match=rf"steps: expected at most 2,147,483,647.*got {steps:,}"):
            st.Scenario(jnp.ones(1), stream, stream, steps=steps)
    start = {"theta": jnp.ones(1), "a_hat": jnp.zeros(1), "engine": engine}
    final = st.simulate(controller, scenario[:2], **start).final
    late = st.Final(final.x, final.state, jnp.asarray(2**31 - 3, jnp.int32), final.streams)
    assert st.simulate(controller, scenario[:2], resume=late, engine=engine).final.t == 2**31 - 1
    with pytest.raises(ValueError, match=r"resume: .* counted in 32 bits, got one that ends at step 2,147,483,648"):
        st.simulate(controller, scenario[:3], resume=late, engine=engine)
