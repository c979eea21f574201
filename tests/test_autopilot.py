"""`Autopilot` against a simulated autopilot: gains that follow, limits, lost messages, refusals, and the way back."""

import dataclasses
import logging
import signal
import time

import numpy as np
import pytest

import selftune as st
from selftune import models, policies
from selftune.realtime.autopilot_parameters import Ending, Parameters
from selftune.testing.fake_autopilot import DT, FakeAutopilot

pytestmark = pytest.mark.slow  # the autopilot flies in real time, which a busy machine disturbs

FIRST = {"RATE_P": 1.0, "RATE_I": 0.5}
LOOP = st.Loop(
    models.FirstOrder(gain=2.0, time_constant=0.5, dt=DT), policies.PID(kp=1.0, ki=0.5, u_min=-20.0, u_max=20.0)
)
FOR_EVER = 10**9


def gains(theta):
    return {"RATE_P": np.exp(theta["log_kp"]), "RATE_I": np.exp(theta["log_ki"])}


@pytest.fixture(scope="module")
def only_agent():
    return LOOP.agent(guard=dataclasses.replace(LOOP.guard(), window=50))


@pytest.fixture
def agent(only_agent):
    only_agent.resume()
    only_agent.reset(x=LOOP.x, theta=LOOP.theta, a_hat=LOOP.a_hat)
    return only_agent


@pytest.fixture
def fake():
    with FakeAutopilot() as fake:
        yield fake


@pytest.fixture
def autopilot(fake):
    with st.Autopilot(fake.device, retry=0.1) as autopilot:
        yield autopilot


def tune(autopilot, agent, **options):
    defaults = dict(
        gains=gains,
        measurement=["ATTITUDE.rollspeed"],
        reference=["ATTITUDE_TARGET.body_roll_rate"],
        dt=DT,
        duration=0.7,
        interval=0.1,
        write=True,
    )
    return autopilot.tune(agent, **defaults | options)


def test_the_gains_follow_the_agent_within_the_limits_and_the_first_ones_come_back(fake, autopilot, agent):
    assert autopilot.system == 7
    assert autopilot.read(["RATE_P", "RATE_I"]) == FIRST
    run = tune(autopilot, agent, duration=1.2)
    assert (run.ended, run.is_safe, run.first) == (Ending.FINISHED, True, FIRST)
    assert run.best["RATE_P"] > 1.1  # the autopilot's gains are too low, and the agent has noticed
    assert fake.parameters == run.parameters == FIRST
    written = [(at, value) for at, name, value in fake.requests if name == "RATE_P"]
    assert len(written) >= 3
    values = np.array([1.0, *(value for _, value in written[:-1])])  # the last one is the way back
    assert np.all(values[1:] / values[:-1] < 1.0501)
    assert run.best["RATE_P"] in values[-2:]  # the last request may have had no answer yet
    assert np.diff([at for at, _ in written[:-1]]).min() > 0.05  # 0.1 s at the sender
    assert run.steps > 100


def test_nothing_is_written_without_the_flag(fake, autopilot, agent, caplog):
    with caplog.at_level(logging.INFO, "selftune"):
        run = tune(autopilot, agent, write=False)
    assert (fake.requests, fake.parameters) == ([], FIRST)
    assert (run.ended, run.is_safe, run.writes, run.parameters) == (Ending.FINISHED, True, 0, FIRST)
    assert gains(agent.theta)["RATE_P"] > 1.05
    assert "only read" in caplog.text


def test_keep_leaves_the_tuned_gains(fake, autopilot, agent):
    run = tune(autopilot, agent, keep=True, span=1.06, change=0.1)
    assert (run.ended, run.is_safe) == (Ending.FINISHED, True)
    assert fake.parameters == run.parameters == run.best
    assert run.best["RATE_P"] == pytest.approx(1.06)  # not beyond the span
    assert np.allclose([value for _, name, value in fake.requests if name == "RATE_P"], 1.06)


def test_lost_packets_are_sent_again(fake, autopilot, agent):
    fake.drop_requests = 2
    assert autopilot.read(["RATE_P"]) == {"RATE_P": 1.0}
    time.sleep(0.2)  # requests that a busy machine has sent twice arrive before requests get lost again
    fake.at_request = {1: lambda: setattr(fake, "drop_requests", 2), 4: lambda: setattr(fake, "drop_answers", 1)}
    run = tune(autopilot, agent, duration=1.2)
    assert (run.ended, run.is_safe) == (Ending.FINISHED, True)
    assert run.best["RATE_P"] > 1.0
    assert [value for _, _, value in fake.requests[:3]] == [fake.requests[0][2]] * 3


def test_lost_measurements_are_bridged(fake, autopilot, agent):
    fake.at_request = {1: lambda: setattr(fake, "drop_steps", 7)}
    run = tune(autopilot, agent)
    assert run.ended is Ending.FINISHED
    assert 7 <= run.missed < run.steps


@pytest.mark.parametrize("errors", [False, True])
def test_a_refused_parameter_ends_the_run(fake, autopilot, agent, errors):
    fake.refuses, fake.errors = {"RATE_P"}, errors
    # The autopilot has applied the first request for the other gain; it must come back as well.
    run = tune(autopilot, agent, duration=5.0, patience=0.5)
    assert run.ended is Ending.REFUSED
    assert ("READ_ONLY" if errors else "not confirmed after 5 requests") in run.detail
    assert fake.parameters == FIRST
    assert run.is_safe is not errors  # without an answer that has the value, nothing is confirmed


@pytest.mark.parametrize("errors", [False, True])
def test_an_unknown_name_is_an_error(fake, autopilot, errors):
    fake.errors = errors
    got = "error MAV_PARAM_ERROR_DOES_NOT_EXIST" if errors else "to which nothing was answered"
    with pytest.raises(st.ArgumentError, match=f"names: expected parameters of the autopilot, got 'RATE_X', {got}"):
        autopilot.read(["RATE_X"])


def test_an_integer_is_no_gain(fake, autopilot):
    fake.parameters["COUNT"] = 3.0
    with pytest.raises(st.ArgumentError, match="real numbers"):
        autopilot.read(["COUNT"])


def test_after_a_lost_link_the_first_gains_come_back(fake, agent):
    fake.at_request = {2: lambda: setattr(fake, "silent_until", fake.steps + 250)}  # 1 s
    with st.Autopilot(fake.device, timeout=0.5, retry=0.1) as autopilot:
        run = tune(autopilot, agent, duration=20.0)
    assert (run.ended, run.is_safe) == (Ending.LINK_LOST, True)
    assert run.best["RATE_P"] > 1.0
    assert fake.parameters == FIRST


def test_a_clock_that_jumps_ends_the_run(fake, autopilot, agent):
    """The time between two messages would otherwise be filled with steps without a measurement."""
    fake.at_request = {2: lambda: setattr(fake, "clock", 10**7)}
    run = tune(autopilot, agent, duration=20.0)
    assert (run.ended, run.is_safe) == (Ending.LINK_LOST, True)
    assert "the clock of ATTITUDE jumps by" in run.detail
    assert fake.parameters == FIRST


def test_a_link_that_stays_lost_is_reported(fake, agent, caplog):
    fake.at_request = {2: lambda: setattr(fake, "silent_until", FOR_EVER)}
    with st.Autopilot(fake.device, timeout=0.5, retry=0.1) as autopilot:
        run = tune(autopilot, agent, duration=20.0, patience=0.3)
    assert (run.ended, run.is_safe) == (Ending.LINK_LOST, False)
    assert "NOT written back: RATE_P = 1" in caplog.text


def test_the_guards_rollback_is_written_at_once(fake, autopilot, agent, caplog):
    fake.at_request = {3: lambda: setattr(fake, "gyro", 40.0)}
    run = tune(autopilot, agent, duration=1.2, keep=True)
    assert "exploded" in caplog.text
    values = np.array([1.0, *(value for _, name, value in fake.requests if name == "RATE_P")])
    ratios = values[1:] / values[:-1]
    assert ratios.min() < 1 / 1.06  # further than one change, down to the last good gain
    assert run.parameters == fake.parameters


def test_another_sender_wins(fake, autopilot, agent):
    fake.at_request = {2: lambda: fake.set("RATE_I", 0.75)}  # perhaps while a request for it is under way
    run = tune(autopilot, agent, duration=5.0)
    assert (run.ended, run.is_safe) == (Ending.CHANGED, True)
    assert fake.parameters == run.parameters == FIRST | {"RATE_I": 0.75}


@pytest.fixture
def ctrl_c():
    """Python's own reaction to Ctrl-C: a shell that starts the tests in the background switches it off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_writes_the_first_gains_back(fake, autopilot, agent):
    def interrupted(theta):
        if fake.requests:
            signal.raise_signal(signal.SIGINT)
        return gains(theta)

    with pytest.raises(KeyboardInterrupt):
        tune(autopilot, agent, gains=interrupted, duration=5.0)
    assert len(fake.requests) >= 2
    assert fake.parameters == FIRST


def test_a_blind_agent_ends_the_run(fake, autopilot, agent):
    fake.at_request = {1: lambda: setattr(fake, "gyro", np.nan)}
    run = tune(autopilot, agent, duration=20.0)
    assert (run.ended, run.is_safe) == (Ending.BLIND, True)
    assert fake.parameters == FIRST


def test_a_disarmed_autopilot_teaches_nothing(fake, autopilot, agent):
    fake.is_armed = False
    autopilot.read(FIRST)  # until a heartbeat has told so
    assert tune(autopilot, agent, duration=0.3).steps < 25
    assert fake.requests == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measurement": ["ATTITUDE.rol"]}, "measurement: expected a field of ATTITUDE: time_boot_ms, roll, "),
        ({"measurement": ["ALTITUDES.x"]}, "measurement: expected fields of MAVLink messages"),
        ({"measurement": []}, "measurement: expected at least one field"),
        ({"reference": ["ATTITUDE_TARGET.q"]}, r"reference: expected ATTITUDE_TARGET.q\[0\] … \[3\]"),
        ({"dt": 0.05}, "dt: expected the period of ATTITUDE, 0.02 s, got 0.05; let the autopilot send"),
        ({"gains": lambda theta: {"RATE_P": 2.0}}, "gains: expected RATE_P = 1, as in the autopilot, got 2; make"),
        ({"gains": lambda theta: {"RATE_P": np.nan}}, "gains: expected a function that returns one finite number"),
        ({"gains": lambda theta: {"ZERO": 0.0}}, "gains: expected parameters that are not 0, got ZERO = 0"),
        ({"gains": lambda theta: {"A_NAME_THAT_IS_TOO_LONG": 1.0}}, "names: expected names of parameters, 1 to 16"),
        ({"span": 1.0}, "span: expected a finite number > 1"),
    ],
)
def test_wrong_arguments(wrong_place, agent, options, message):
    with pytest.raises(st.ArgumentError, match=message):
        tune(wrong_place, agent, **options)


@pytest.fixture(scope="module")
def wrong_place():
    with FakeAutopilot(ZERO=0.0) as fake, st.Autopilot(fake.device) as autopilot:
        yield autopilot
        assert fake.requests == []


def test_wrong_connections():
    for device in ("tcp:127.0.0.1:5760", "flight.bin"):
        with pytest.raises(st.ArgumentError, match="device: expected udpin:HOST:PORT, udpout:HOST:PORT, or a serial"):
            st.Autopilot(device)
    with pytest.raises(ConnectionError, match=r"no heartbeat of an autopilot within 0.1 s"):
        st.Autopilot("udpin:127.0.0.1:0", timeout=0.02)
    with pytest.raises(ConnectionError, match="cannot be opened"):
        st.Autopilot("/dev/no-such-port")


def test_a_step_is_limited_in_both_directions_and_for_both_signs(wrong_place):
    parameters = Parameters(wrong_place._link, {"A": 1.0, "B": -2.0}, may_write=False, span=1.5, retry=1.0)
    values, is_out_of_reach = parameters.limited({"A": 1.02, "B": -2.001}, 0.05)
    assert (values, is_out_of_reach) == ({"A": 1.02}, False)  # B is too near to be worth a write
    values, is_out_of_reach = parameters.limited({"A": -3.0, "B": -4.0}, 0.25)
    assert (values, is_out_of_reach) == ({"A": 0.8, "B": -2.5}, True)
    assert parameters.inside({"A": 9.0, "B": -9.0}) == {"A": 1.5, "B": -3.0}
    assert parameters.inside({"A": -9.0, "B": 9.0}) == {"A": 1 / 1.5, "B": -2.0 / 1.5}
