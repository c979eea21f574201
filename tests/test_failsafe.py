"""The failsafe: a refused control is not held for ever. Float32 limits, stuck sensors, repeated observations."""

import ctypes

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.control import result_codes
from selftune.foundation.errors import StoreError
from selftune.native.c import compilation
from selftune.problem.loop_context import LoopContext
from tests.test_guard import START, D, controller, decided, natively, play, scenario, simulate

NAN = np.nan


def agent(engine="native", **settings):
    return st.Agent(controller(), x=(0.5, 0.0), **START, engine=engine, guard=st.Guard(**settings))


def codes(one, measurements, first=0):
    """Return the code and the control of each step."""
    rows = []
    for t, x in enumerate(measurements, first):
        u = one.act(x, t)
        rows.append((int(one.result.code), float(u[0])))
    return [row[0] for row in rows], np.array([row[1] for row in rows])


BAD, GOOD = [NAN, 0.1], [0.2, 0.1]


@natively
def test_the_safe_control_comes_stays_and_is_cleared(engine):
    one = agent(engine, bridge=2, safe_u=-0.25, safe_after=4)
    found, u = codes(one, [GOOD] + 7 * [BAD] + 3 * [GOOD])
    bad, safe = result_codes.NON_FINITE, result_codes.SAFE
    assert found == [0] + 4 * [bad] + 6 * [safe]
    assert np.all(u[5:] == -0.25)
    assert np.all(u[:5] != -0.25)
    assert one.is_latched
    assert one.decisions == D.REFUSED | D.FAILSAFE
    assert "latched" in repr(one)
    a_hat = one.a_hat
    one.observe_state(GOOD)
    assert one.result.message == "the safe control is in use at step 10"
    np.testing.assert_array_equal(one.a_hat, a_hat)
    one.clear()
    assert not one.is_latched
    found, u = codes(one, [BAD, GOOD], 11)  # blind again: the latch returns at once
    assert (found, one.is_latched) == ([safe, safe], True)
    one.clear()
    found, u = codes(one, [GOOD, GOOD], 13)
    assert found == [0, 0]
    assert np.all(u != -0.25)
    assert not one.is_latched


@natively
def test_without_a_latch_the_first_good_measurement_ends_it(engine):
    one = agent(engine, bridge=0, safe_u=0.1, safe_after=0, latch=False)
    found, u = codes(one, [GOOD, BAD, BAD, GOOD, BAD])
    assert found == [0, 4, 4, 0, 4]
    assert np.all(u[[1, 2, 4]] == 0.1)
    assert not one.is_latched


@natively
def test_the_safe_control_may_depend_on_the_last_good_state(engine):
    one = agent(engine, bridge=0, safe_u=lambda x: -2.0 * x[:1] - x[1:], safe_after=1, u_low=-0.45, u_high=1.0)
    _, u = codes(one, [[0.2, 0.05], BAD, BAD, [0.1, 0.1], [5.0, 0.0]])
    np.testing.assert_allclose(u[2:], [-0.45, -0.3, -0.45])  # the last one is clipped
    one = agent(engine, bridge=0, safe_u=lambda x: -2.0 * x[:1], safe_after=0)
    _, u = codes(one, [[0.2, 0.0], BAD, [0.1, 0.0], BAD])
    np.testing.assert_allclose(u[1:], [-0.4, -0.2, -0.2])  # a good x counts during the latch too


def test_every_kind_of_refusal_counts():
    """The measurement, the context, the reference, and a control that is not finite."""
    loop = st.System(
        dynamics=lambda x, u, f, t: x + 0.1 * u,
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: jnp.where(x > 50, jnp.nan, -theta * x + t["goal"]),
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    made = st.Controller(loop, st.MGAPS(0.01), st.Frozen())
    goal = {"goal": np.zeros(1)}
    for x, t, cause in (
        ([NAN], goal, "measurement"),
        ([2e3], goal, "too large"),
        ([0.5], {"goal": np.full(1, NAN)}, "context"),
        ([60.0], goal, "control"),
    ):
        guard = st.Guard(bridge=1, safe_u=7.0, safe_after=3, x_limit=1e3)
        one = st.Agent(made, x=[0.5], theta=[1.0], a_hat=[0.0], t=goal, guard=guard)
        u = [float(one.act(x, t)[0]) for _ in range(5)]
        assert u[3:] == [7.0, 7.0], cause
        assert 7.0 not in u[:3], cause
        assert one.is_latched
    loop = st.Loop(st.models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), st.policies.PID(kp=1.0, ki=2.0))
    one = loop.agent(guard=loop.guard(safe_u=0.5, safe_after=2))
    u = [float(one.act([0.0], reference=np.inf)[0]) for _ in range(4)]
    assert (u[2:], one.is_latched) == ([0.5, 0.5], True)


def test_a_cost_that_is_not_finite_is_not_blind():
    """Nothing is learned from it, but the control is that of the measurement."""
    bad_cost = st.System(
        dynamics=lambda x, u, f, t: x + 0.1 * u,
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.log(x[0]),
    )
    made = st.Controller(bad_cost, st.MGAPS(0.01), st.Frozen())
    one = st.Agent(made, x=[0.5], theta=[1.0], a_hat=[0.0], guard=st.Guard(safe_after=2))
    u = [float(one.act([-0.5], t)[0]) for t in range(6)]
    assert u == 6 * [0.5]
    assert not one.is_latched


def test_the_engines_agree_in_a_simulation():
    """The plant leaves its limits, and the run ends with the safe control."""
    guard = st.Guard(x_limit=(0.6, 3.0), bridge=5, safe_u=0.05, safe_after=20, u_low=-0.1, u_high=0.2)
    runs = [st.simulate(controller(), scenario(), **START, guard=guard, engine=engine) for engine in ("native", "xla")]
    np.testing.assert_array_equal(runs[0].guard, runs[1].guard)
    np.testing.assert_allclose(runs[0].u, runs[1].u, rtol=1e-9, atol=1e-11)
    safe = np.flatnonzero(decided(runs[0], D.FAILSAFE))
    np.testing.assert_array_equal(safe, np.arange(safe[0], 600))
    assert np.all(np.asarray(runs[0].u)[safe] == 0.05)
    assert bool(runs[0].final.state.guard.failsafe.latched)
    assert "safe control" in str(runs[0])


def test_off_the_last_control_is_held():
    one = agent(bridge=1, safe_u=None, safe_after=2)
    found, u = codes(one, [GOOD] + 300 * [BAD] + [GOOD])
    assert found == [0] + 300 * [2] + [0]
    assert np.all(u[2:-1] == u[1])
    assert not one.is_latched


def test_the_default_is_zero_after_200_steps():
    one = agent()
    _, u = codes(one, [GOOD] + 202 * [BAD])
    assert u[200] != 0
    assert np.all(u[201:] == 0)
    limited = agent(u_low=0.3, u_high=2.0, safe_after=0, bridge=0)
    _, u = codes(limited, [GOOD, BAD])
    assert u[1] == 0.3  # zero is outside the range


def test_the_latch_is_saved(tmp_path):
    one = agent(bridge=0, safe_after=0)
    codes(one, [GOOD, BAD])
    one.save(tmp_path / "one.npz")
    other = agent(bridge=0, safe_after=0).load(tmp_path / "one.npz")
    assert other.is_latched
    assert float(other.act(GOOD, 2)[0]) == 0
    plain = agent(bridge=0, safe_u=None)
    with pytest.raises(StoreError, match="the state of another agent"):
        plain.load(tmp_path / "one.npz")


C_MAIN = """
extern int probe(void);
int probe(void)
{
    static cart_state s;
    cart_info info;
    const float good[2] = {0.3f, 0.1f}, bad[2] = {NAN, 0.1f};
    float u[1];
    cart_init(&s);
    if (cart_act(&s, good, 0, u, &info) != CART_OK) return 1;
    for (int t = 1; t < 4; t++) if (cart_act(&s, bad, t, u, &info) != CART_NON_FINITE) return 2;
    if (cart_act(&s, bad, 4, u, &info) != CART_SAFE || u[0] != 0.125f) return 3;
    if (cart_act(&s, good, 5, u, &info) != CART_SAFE || u[0] != 0.125f) return 4;
    if (info.guard_decisions != CART_REFUSED + CART_FAILSAFE) return 5;
    if (cart_observe_state(&s, good) != CART_SAFE) return 6;
    cart_clear(&s);
    if (cart_act(&s, good, 6, u, &info) != CART_OK || u[0] == 0.125f) return 7;
    if (cart_observe_state(&s, good) != CART_OK) return 8;
    if (cart_observe_state(&s, good) != CART_REPEATED) return 9;
    return 0;
}
"""


def test_the_firmware_has_it(tmp_path):
    start = {name: value.astype(np.float32) for name, value in START.items()}
    guard = st.Guard(safe_u=0.125, safe_after=3)
    folder = st.export_c(controller(), tmp_path / "cart", x=[0.5, 0.0], **start, guard=guard)
    header, source = ((folder / f"cart.{kind}").read_text() for kind in "hc")
    assert "   safe_u: 0.125\n" in header
    library = compilation.build(header + source.replace('#include "cart.h"', "") + C_MAIN)
    library.probe.restype = ctypes.c_int
    assert library.probe() == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"safe_u": NAN}, "safe_u: expected a finite number, one for each control, a function of x, or None"),
        ({"safe_after": -1}, "safe_after: expected a whole number >= 0"),
        ({"gate": 1.0}, "gate: expected a number > 1, or None, got 1.0"),
        ({"stuck": 0}, "stuck: expected a whole number >= 1"),
        ({"cost_ceiling": 0.0}, "cost_ceiling: expected a number > 0, or None"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        st.Guard(**wrong)


def test_settings_that_do_not_fit_the_controller():
    for wrong, message in (
        (st.Guard(safe_u=[0.0, 0.0]), "safe_u: expected one number or 1, got 2"),
        (st.Guard(safe_u=lambda x: x), "safe_u: expected a function from x to one number or 1"),
    ):
        with pytest.raises(ValueError, match=message):
            simulate(controller(), wrong, 10)


class TestOneObservationForEachStep:
    @natively
    def test_the_second_is_refused(self, engine):
        one = agent(engine)
        _, _, x = play(one, range(30))
        one.act(x, 30)
        one.observe([0.3])
        a_hat = one.a_hat
        for again in (one.observe, one.observe_state):
            again([0.9] if again == one.observe else [0.3, 0.2])
            assert one.result.message == "the step was observed already at step 30"
            np.testing.assert_array_equal(one.a_hat, a_hat)
        assert one.refused == 0

    def test_one_that_was_refused_may_be_told_again(self):
        one = agent()
        one.act([0.5, 0.0], 0)
        a_hat = one.a_hat
        one.observe([NAN])
        np.testing.assert_array_equal(one.a_hat, a_hat)
        one.observe([-0.3])
        assert np.any(one.a_hat != a_hat)


class TestFloat32:
    """Limits that float32 cannot represent are rounded inwards, and never become infinite."""

    def agent(self, **settings):
        start = {name: value.astype(np.float32) for name, value in START.items()}
        x = np.array([0.5, 0.0], np.float32)
        return st.Agent(controller(), x=x, **start, guard=st.Guard(**settings))

    def test_the_control_is_inside_its_limits(self):
        assert float(np.float32(0.1)) > 0.1
        one = self.agent(u_low=-0.1, u_high=0.1)
        for x in ([5.0, 0.0], [-5.0, 0.0]):
            assert abs(float(one.act(x, 0)[0])) <= 0.1

    def test_a_measurement_beyond_its_limit_is_refused(self):
        one = self.agent(x_limit=0.1)
        one.act([np.float32(0.1), 0.0], 0)
        assert one.result.message == "the state diverged at step 0"

    def test_limits_that_overflow(self):
        one = self.agent(u_low=-1e39, u_high=1e39, x_limit=1e39, y_limit=1e39)
        assert np.isfinite(one.act([3e30, 3e30], 0)).all()
        with pytest.raises(
            ValueError, match=r"cost_floor: expected at most 3.403e\+38, the largest float32, got 1e\+39"
        ):
            self.agent(cost_floor=1e39)
        with pytest.raises(ValueError, match="u_low, u_high: expected a float32 between them"):
            self.agent(u_low=0.1, u_high=0.1 + 1e-12)


@natively
def test_a_spell_of_instability_does_not_wedge_the_tuner(engine):
    """Without a limit on y, its overflow refused every later step."""
    one = agent(engine, y_limit=None)
    _, _, x = play(one, range(20))
    state = one.state
    one.state = eqx.tree_at(
        lambda s: s.controller.tuner.y, state, np.full_like(state.controller.tuner.y, np.finfo(float).max)
    )
    one.act(x, 20)
    assert one.decisions == D.REFUSED | D.REPAIRED
    theta = one.theta
    play(one, range(21, 60), x)
    assert one.result.message == "ok"
    assert np.any(one.theta != theta)


def test_the_rollback_at_the_end_of_the_bridge_waits_for_a_finite_x():
    """The sample at which the rollback was due is NaN."""
    one = agent(x_limit=(1.5, 15.0), bridge=10, window=50)
    play(one, range(200))
    good = one.state.guard.window.good.theta
    given = []
    for t in range(200, 230):
        one.act([NAN, 0.0] if t in (210, 211) else [3.0, 0.0], t)
        given.append(one.decisions)
    assert [i for i, d in enumerate(given) if D.EXPLODED in d] == [12]
    np.testing.assert_array_equal(one.theta, good)


class TestStuckSensor:
    @natively
    def test_is_refused_until_it_moves(self, engine):
        one = agent(engine, stuck=3)
        _, _, x = play(one, range(60))
        found, _ = codes(one, 6 * [x] + [x + 0.01], 60)
        assert found == [0, 0, 0, 7, 7, 7, 0]
        assert one.refused == 3

    def test_a_plant_at_rest_is_not_stuck(self):
        still = st.System(
            dynamics=lambda x, u, f, t: x + 0.1 * (u + f),
            residual=lambda x, a, t: a,
            policy=lambda x, theta, f, t: -theta * x - f,
            cost=lambda x, u, theta, t: jnp.sum(x**2),
        )
        made = st.Controller(still, st.MGAPS(0.01), st.Frozen())
        one = st.Agent(made, x=[0.0], theta=[1.0], a_hat=[0.3], guard=st.Guard(stuck=2))
        for t in range(50):
            one.act([0.0], t)
        assert one.refused == 0


def test_a_loop_context_has_no_nan():
    """A NaN in the sampling period is a fault of the context."""
    loop = st.Loop(st.models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), st.policies.PID(kp=1.0, ki=2.0))
    t = LoopContext(step=jnp.array(0), reference=jnp.ones(1), dt=jnp.array(NAN))
    made, guard = loop.controller(), loop.guard()
    one = st.Agent(made, x=[0.0], theta=loop.theta, a_hat=loop.a_hat, t=t._replace(dt=jnp.array(0.01)), guard=guard)
    u = one.act([0.0], t)
    assert one.result.message == "a number stopped being finite at step 0"
    assert np.isfinite(u).all()


@pytest.mark.parametrize("engine", ["native", "xla"])
def test_a_value_that_the_sensor_cannot_give_counts_as_no_value(engine):
    """A wire breaks, and the sensor reads 0 °C: the heater holds its control, and then takes the safe one."""
    model = st.models.FirstOrder(gain=0.8, time_constant=300.0, dt=1.0, rated_input=100.0)
    loop = st.Loop(model, st.policies.PID(kp=2.0, ki=0.02, u_min=0.0, u_max=100.0))
    guard = loop.guard(x_low=5.0, x_high=120.0, bridge=2, safe_after=5, safe_u=10.0)
    agent = loop.agent(u=50.0, measurement=40.0, reference=40.0, guard=guard, engine=engine)
    theta, a_hat = agent.theta, agent.a_hat
    sent = [float(agent.act(y, reference=40.0)[0]) for y in [40.0] + 7 * [0.0] + [121.0]]
    np.testing.assert_allclose(sent, 6 * [50.0] + 3 * [10.0], rtol=1e-6)
    assert agent.is_latched
    agent.clear()
    assert agent.act(130.0, reference=40.0) == 10.0, "still blind"
    agent.clear()
    agent.act(40.0, reference=40.0)
    agent.act(0.0, reference=40.0)
    assert agent.result.message.startswith("a measurement is outside the range of its sensor")
    np.testing.assert_array_equal(np.ravel(list(agent.theta.values())), np.ravel(list(theta.values())))
    np.testing.assert_allclose(agent.a_hat, a_hat, rtol=1e-5)


def test_the_limits_of_a_range_fit_together():
    with pytest.raises(st.ArgumentError, match=r"x_low, x_high: expected x_low < x_high, got 5\.0 and 1\.0"):
        st.Guard(x_low=5.0, x_high=1.0)
    model = st.models.FirstOrder(gain=0.8, time_constant=300.0, dt=1.0)
    loop = st.Loop(model, st.policies.PID(kp=2.0))
    with pytest.raises(st.ArgumentError, match="x_low: expected one number or 1, got 2"):
        loop.agent(guard=st.Guard(x_low=[1.0, 2.0]))
