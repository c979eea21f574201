"""Guards: each by itself against what it promises, both engines alike, and what is told of them."""

import ctypes
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.control import step_limits
from selftune.control.guarded_step import act as guarded_act
from selftune.control.guarded_step import begin
from selftune.foundation.errors import StoreError
from selftune.native.c import compilation

D = st.Decision
NAN = np.nan
OFF = dict(rate=None, authority=None, y_limit=None, rollback=None)
ENGINES = ("native", "xla")
both = pytest.mark.parametrize("engine", ENGINES)
natively = pytest.mark.parametrize("engine", ["native", pytest.param("xla", marks=pytest.mark.slow)])


@cache
def system():
    """A cart pushed by a spring of unknown strength; θ: logarithms of stiffness and damping."""

    def dynamics(x, v, t):
        return jnp.stack([x[0] + 0.05 * x[1], x[1] + 0.05 * v[0]])

    def error(x, t):
        phase = 0.05 * jnp.asarray(t).astype(x.dtype)
        return x - jnp.stack([jnp.sin(phase), jnp.cos(phase)])

    def actuation(x, theta, t):
        return jnp.stack([-jnp.sum(jnp.exp(theta) * error(x, t))])

    return st.MatchedSystem(
        dynamics,
        residual=lambda x, a, t: -a * x[:1],
        actuation=actuation,
        cost=lambda x, u, theta, t: error(x, t)[0] ** 2 + 0.001 * u[0] ** 2,
    )


def controller(rate=0.02, **settings):
    tuner = st.MGAPS(rate, constraint=st.Box(-1.0, 4.0), **settings)
    return st.Controller(system(), tuner, st.GradientEstimator(0.05, constraint=st.Box(0.0, 2.0), normalized=True))


def scenario(steps=600):
    ka, kw = jax.random.split(jax.random.key(0))
    a_star = st.Constant(0.8)(ka, steps, 1)
    return st.Scenario(x0=jnp.array([0.5, 0.0]), a_star=a_star, w=st.Gaussian(0.01)(kw, steps, 2))


START = dict(theta=np.zeros(2), a_hat=np.zeros(1))


def simulate(made, guard, steps=600, **settings):
    return st.simulate(made, scenario(steps), **START, guard=guard, engine="native", **settings)


def decided(run, decision):
    return (np.asarray(run.guard) & decision) != 0


def agent(engine="native", rate=0.02, x=(0.5, 0.0), **settings):
    return st.Agent(controller(rate), x=x, **START, engine=engine, guard=st.Guard(**settings))


def play(agent, steps, x=None, disturb=lambda t, x: x):
    """A cart that the agent drives; `disturb` is what becomes of the measurement. Returns θ and u, row by row."""
    x, rows = np.array([0.5, 0.0]) if x is None else x, []
    for t in steps:
        theta = agent.theta
        u = agent.act(disturb(t, x), t)
        rows.append((theta, u))
        x = np.array([x[0] + 0.05 * x[1], x[1] + 0.05 * (u[0] - 0.8 * x[0])])
        agent.observe_state(x)
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), x


class TestAnOrderlyRun:
    def test_is_left_alone(self):
        """The numbers are the same to the bit where no guard acts."""
        plain = st.simulate(controller(), scenario(), **START, engine="native")
        guarded = simulate(controller(), st.Guard())
        for name in ("x", "u", "theta", "a_hat", "y", "gradient", "cost"):
            np.testing.assert_array_equal(getattr(guarded, name), getattr(plain, name))
        assert set(np.unique(guarded.guard).tolist()) == {0, int(D.SAVED)}
        with pytest.raises(AttributeError, match="guard was not recorded: there was no guard"):
            _ = plain.guard

    def test_the_engines_agree_while_everything_happens(self):
        guard = st.Guard(
            x_limit=[0.9, 3.0], u_low=-0.5, u_high=0.4, rate=0.006, authority=0.1, y_limit=2.5, window=40, rollback=1.3
        )
        made = controller(1.0, contraction_memory=40)
        runs = [st.simulate(made, scenario(), **START, guard=guard, engine=engine) for engine in ENGINES]
        assert (runs[0].guard == runs[1].guard).all()
        for one in (D.REFUSED, D.SATURATED, D.LIMITED, D.HELD, D.RESET, D.EXPLODED, D.STILL, D.SAVED):
            assert decided(runs[0], one).any(), one
        for name in ("x", "u", "theta", "a_hat", "y"):
            np.testing.assert_allclose(getattr(runs[0], name), getattr(runs[1], name), rtol=1e-9, atol=1e-11)
        assert np.all((runs[0].theta >= -1) & (runs[0].theta <= 4))
        assert np.all((runs[0].u >= -0.5) & (runs[0].u <= 0.4))

    def test_in_parts_and_in_batches(self):
        guard, made = st.Guard(rate=0.002, window=50, rollback=1.5), controller(0.5)
        whole = simulate(made, guard)
        first = st.simulate(made, scenario()[:233], **START, guard=guard, engine="native")
        rest = st.simulate(made, scenario()[233:], resume=first.final, guard=guard, engine="native")
        np.testing.assert_array_equal(np.concatenate([first.guard, rest.guard]), whole.guard)
        np.testing.assert_array_equal(np.concatenate([first.theta, rest.theta]), whole.theta)
        with pytest.raises(ValueError, match="resume: expected the `final` of a run with this kind of controller"):
            st.simulate(made, scenario()[233:], resume=first.final)
        lanes = jax.vmap(
            lambda theta: (
                st.simulate(
                    made, scenario(), theta=theta, a_hat=np.zeros(1), guard=guard, engine="native", throw=False
                ).theta
            )
        )(jnp.zeros((2, 2)))
        np.testing.assert_array_equal(lanes[1], whole.theta)


def limit_step(guard, made, theta, wanted, reserve=None):
    no = jnp.asarray(False)
    options = dict(saturated=None, step_scale=None, reserve=reserve, still=no, forget=no)
    return step_limits.limit_step(guard, made, theta, wanted, **options)


class TestRate:
    def test_no_step_is_longer(self):
        run = simulate(controller(3.0), st.Guard(**OFF | dict(rate=0.004)))
        steps = np.linalg.norm(np.diff(run.theta, axis=0), axis=1) / 5  # the widths of Θ
        assert decided(run, D.LIMITED)[:-1].mean() > 0.5
        assert steps.max() <= 0.004 * (1 + 1e-12)
        free = decided(run, D.LIMITED)[:-1] & np.all((run.theta[1:] > -1) & (run.theta[1:] < 4), axis=1)
        assert free.sum() > 100
        np.testing.assert_allclose(steps[free], 0.004, rtol=1e-9)
        # Down the gradient.
        cosines = np.sum(np.diff(run.theta, axis=0) * -np.asarray(run.gradient)[:-1], axis=1)[free]
        assert np.all(cosines > 0)

    def test_each_number_of_theta_has_its_own_unit(self):
        """A number of θ in another unit, with its bounds, moves by the same share of Θ."""
        unit = np.array([1e3, 1e-2])
        guard = st.Guard(**OFF | dict(rate=0.05))
        ends = []
        for scale in (np.ones(2), unit):
            tuner = st.MGAPS(1.0, constraint=st.Box(scale * np.array([-1.0, 0.0]), scale * np.array([1.0, 8.0])))
            made = st.Controller(system(), tuner, st.Frozen())
            theta, wanted = scale * jnp.array([0.5, 4.0]), scale * jnp.array([0.9, 1.0])
            moved, limited, *_ = limit_step(guard, made, theta, wanted)
            assert limited
            ends.append(moved / scale)
        share = np.array([0.4 / 2, -3.0 / 8])
        np.testing.assert_allclose(
            ends[0], [0.5, 4.0] + 0.05 / np.linalg.norm(share) * np.array([0.4, -3.0]), rtol=1e-12
        )
        np.testing.assert_allclose(ends[1], ends[0], rtol=1e-12)

    def test_a_number_that_is_fixed_does_not_count(self):
        tuner = st.MGAPS(1.0, constraint=st.Box([0.5, 0.0], [0.5, 8.0]))
        made, guard = st.Controller(system(), tuner, st.Frozen()), st.Guard(**OFF | dict(rate=0.1))
        theta = jnp.array([0.5, 4.0])
        moved, limited, *_ = limit_step(guard, made, theta, jnp.array([0.5, 8.0]))
        assert limited
        np.testing.assert_allclose(moved, [0.5, 4.8], rtol=1e-12)

    def test_an_infinite_square_is_no_step(self):
        flat = jnp.array([0.0, 0.0], jnp.float32)
        made, guard = controller(), st.Guard(**OFF | dict(rate=0.1))
        moved, limited, *_ = limit_step(guard, made, flat, jnp.array([3e30, 1.0], jnp.float32))
        assert np.all(np.isfinite(moved))
        assert limited

    def test_short_steps_leave_a_reserve_for_longer_ones(self):
        made, guard = controller(), st.Guard(**OFF | dict(rate=0.01, burst=0.03))  # Θ is 5 wide
        theta, reserve, moved = jnp.array([0.0, 0.0]), jnp.asarray(0.0), []
        for wanted in (0.0, 0.005, 0.1, 0.1, 0.002, 0.0, 0.0, 0.0, 0.0, 0.1):  # in widths
            after, limited, _, reserve = limit_step(guard, made, theta, theta + jnp.array([5 * wanted, 0.0]), reserve)
            moved.append(float(after[0] - theta[0]) / 5)
            assert bool(limited) == (wanted > moved[-1] + 1e-9)
            theta = after
        np.testing.assert_allclose(moved, [0, 0.005, 0.025, 0.01, 0.002, 0, 0, 0, 0, 0.04], atol=1e-12)
        assert float(reserve) == pytest.approx(0, abs=1e-12)

    def test_a_run_with_a_reserve_stays_within_the_rate_on_average(self):
        run = simulate(controller(3.0), st.Guard(**OFF | dict(rate=0.004, burst=0.05)))
        steps = np.linalg.norm(np.diff(run.theta, axis=0), axis=1) / 5
        assert steps.max() > 0.004 * 1.5
        assert np.all(np.cumsum(steps) <= 0.004 * np.arange(1, len(steps) + 1) + 1e-9)


class TestAuthority:
    def test_gains_do_not_grow_while_it_is_short(self):
        tight = OFF | dict(u_low=-0.3, u_high=0.3, authority=0.2, window=50)
        run = simulate(controller(0.2), st.Guard(**tight))
        free = simulate(controller(0.2), st.Guard(**tight | dict(authority=None)))
        held = decided(run, D.HELD)
        assert held.sum() > 100
        assert decided(free, D.SATURATED).mean() > 0.15
        assert np.all(np.diff(run.theta, axis=0)[held[:-1]] <= 0)
        np.testing.assert_array_equal(decided(run, D.SATURATED), np.any(np.abs(run.u) == 0.3, axis=1))

    def test_what_is_no_gain_may(self):
        tight = OFF | dict(u_low=-0.3, u_high=0.3, authority=0.2, window=50, growth=[1, 0])
        run = simulate(controller(0.2), st.Guard(**tight))
        held = decided(run, D.HELD)[:-1]
        steps = np.diff(run.theta, axis=0)[held]
        assert np.all(steps[:, 0] <= 0)
        assert np.any(steps[:, 1] > 0)


def test_a_large_y_is_forgotten():
    run = simulate(controller(0.01), st.Guard(**OFF | dict(y_limit=3.0)))
    resets = np.flatnonzero(decided(run, D.RESET))
    assert 1 <= resets.size < 60
    np.testing.assert_array_equal(resets, np.flatnonzero(5 * np.abs(run.y).max(axis=(1, 2)) > 3.0))  # Θ is 5 wide
    np.testing.assert_array_equal(run.y[resets + 1], 0)
    np.testing.assert_array_equal(run.theta[resets + 1], run.theta[resets])


def test_an_excursion_is_not_the_end_of_control():
    """Where the plant really is beyond the limits, the loop stays closed, and the last good gains come back."""
    one = agent(x_limit=(1.5, 15.0), bridge=20, window=50)
    play(one, range(200))
    good = one.state.guard.window.good.theta
    x, given = np.array([3.0, 0.0]), []
    for t in range(200, 400):
        u = one.act(x, t)
        given.append(one.decisions)
        x = np.array([x[0] + 0.05 * x[1], x[1] + 0.05 * (u[0] - 0.8 * x[0])])
        one.observe_state(x)
        if t == 221:
            np.testing.assert_array_equal(one.theta, good)
    assert next(i for i, d in enumerate(given) if D.EXPLODED in d) == 20
    assert given[20] == D.REFUSED | D.EXPLODED
    assert abs(x[0]) < 1.5
    assert one.result.message == "ok"


class TestBridge:
    def test_the_model_stands_in(self):
        made = controller()
        guard = st.Guard(bridge=3)
        state = begin(made, guard, np.array([0.5, 0.0]), **START, t=0)
        u, state, info = guarded_act(made, guard, state, jnp.array([0.5, 0.0]), 0)
        x, expected = jnp.array([0.5, 0.0]), []
        theta, a_hat = state.theta, state.a_hat
        for t in range(1, 6):
            x = system().dynamics(x, u, system().residual(x, a_hat, t - 1), t - 1)
            u = system().policy(x, theta, system().residual(x, a_hat, t), t)
            given, state, info = guarded_act(made, guard, state, jnp.array([NAN, 0.1]), t)
            expected.append(np.asarray(u if t <= 3 else expected[2]))
            np.testing.assert_allclose(given, expected[-1], rtol=1e-12)
            assert (int(state.code), int(state.refused), int(info.guard.decisions)) == (2, t, D.REFUSED)
        assert np.all(state.theta == theta)

    @natively
    def test_a_short_outage_costs_little(self, engine):
        def outage(t, x):
            return [NAN, NAN] if 200 <= t < 260 else x

        ends = [play(agent(engine), range(260))[2]]
        for bridge in (0, 100):
            one = agent(engine, bridge=bridge)
            ends.append(play(one, range(260), disturb=outage)[2])
            assert one.refused == 60
        whole, without, bridged = (x[0] for x in ends)
        assert abs(bridged - whole) < 0.05
        assert abs(without - whole) > 0.15


class TestLoad:
    """What another agent remembers, under this one's guard."""

    @pytest.mark.slow
    def test_with_another_window(self, tmp_path):
        one = agent(window=500)
        _, _, x = play(one, range(4000))
        one.save(tmp_path / "one.npz")
        other = agent(window=50).load(tmp_path / "one.npz")
        other.act(x, 4000)
        assert D.EXPLODED not in other.decisions

    def test_a_control_that_is_repeated_is_clipped(self, tmp_path):
        one = agent(bridge=0)
        one.act([5.0, 0.0], 0)
        one.save(tmp_path / "one.npz")
        other = agent(bridge=0, u_low=-0.1, u_high=0.1, authority=None).load(tmp_path / "one.npz")
        np.testing.assert_array_equal(np.abs(other.act([NAN, 0.0], 1)), 0.1)

    def test_what_would_be_restored_is_checked(self, tmp_path):
        one = agent(window=10)
        play(one, range(50))
        state = one.state
        one.state = eqx.tree_at(lambda s: s.guard.window.good.theta, state, np.array([9.0, 0.0]))
        one.save(tmp_path / "one.npz")
        with pytest.raises(StoreError, match="theta: expected a point of its constraint"):
            agent(window=10).load(tmp_path / "one.npz")


@both
def test_a_y_that_overflows_is_forgotten(engine):
    one = agent(engine)
    play(one, range(5))
    state = one.state
    y = np.full_like(state.controller.tuner.y, 1e308)
    one.state = eqx.tree_at(lambda s: s.controller.tuner.y, state, y)
    one.act([20.0, -30.0], 5)
    assert one.decisions == D.RESET
    np.testing.assert_array_equal(one.state.controller.tuner.y, 0)


@both
def test_what_is_too_large_is_not_learned_from(engine):
    """Neither as the x of an `act`, nor as the one that followed it."""
    one = agent(engine, x_limit=(1.5, 15.0))
    _, _, x = play(one, range(19))
    one.act(x, 19)
    a_hat = one.a_hat
    one.observe_state([0.5, -1000.0])
    assert (one.result.message, one.refused) == ("the state diverged at step 19", 1)
    np.testing.assert_array_equal(one.a_hat, a_hat)
    one.observe_state([0.5, -10.0])
    assert np.any(one.a_hat != a_hat)


@natively
@pytest.mark.parametrize("tuner", [st.Fixed(), st.DiffTune(episode=20, learning_rate=0.01)])
def test_other_tuners(engine, tuner):
    made = st.Controller(system(), tuner, st.Frozen())
    one = st.Agent(made, x=[0.5, 0.0], **START, engine=engine, guard=st.Guard(window=10))
    play(one, range(15))
    one.freeze()
    one.resume()
    one.restore()
    play(one, range(15, 30))
    assert one.result.message == "ok"


C_MAIN = """
extern int probe(void);
int probe(void)
{
    static cart_state s;
    cart_info info;
    const float x[2] = {0.3f, 0.1f}, next[2] = {0.32f, 0.05f};
    float u[1], theta, a_hat;
    cart_init(&s);
    for (int t = 0; t < 30; t++) { cart_act(&s, x, t, u, &info); cart_observe_state(&s, next); }
    theta = s.theta[0]; a_hat = s.a_hat[0];
    cart_pause(&s);
    cart_act(&s, x, 30, u, &info); cart_observe_state(&s, next);
    if (s.theta[0] != theta || s.a_hat[0] != a_hat || info.guard_decisions != CART_STILL) return 1;
    cart_freeze(&s);
    cart_act(&s, x, 31, u, &info); cart_observe_state(&s, next);
    if (s.theta[0] != theta || s.a_hat[0] == a_hat) return 2;
    cart_resume(&s);
    if (s.tuner_y[0] != 0 || s.guard_mode != CART_LEARNING) return 3;
    for (int t = 32; t < 60; t++) { cart_act(&s, x, t, u, &info); cart_observe_state(&s, next); }
    if (s.theta[0] == theta) return 4;
    cart_restore(&s);
    if (s.theta[0] != s.guard_window_good_theta[0] || s.a_hat[0] != s.guard_window_good_a_hat[0]) return 5;
    return 0;
}
"""


def test_the_firmware_has_them(tmp_path):
    start = {name: value.astype(np.float32) for name, value in START.items()}
    folder = st.export_c(controller(), tmp_path / "cart", x=[0.5, 0.0], **start, guard=st.Guard(window=10))
    header, source = ((folder / f"cart.{kind}").read_text() for kind in "hc")
    assert "   rate: 0.1\n" in header
    assert "   window: 10\n" in header
    library = compilation.build(header + source.replace('#include "cart.h"', "") + C_MAIN)
    probe = library.probe
    probe.restype = ctypes.c_int
    assert probe() == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"x_limit": 0.0}, "x_limit: expected a number > 0, or one for each component, or None, got 0.0"),
        ({"x_limit": NAN}, "x_limit: expected a number > 0"),
        ({"f_limit": [[1.0]]}, "f_limit: expected a number > 0"),
        ({"bridge": -1}, "bridge: expected a whole number >= 0"),
        ({"u_low": 1.0, "u_high": 1.0}, "u_low, u_high: expected u_low < u_high, got 1.0 and 1.0"),
        ({"u_low": NAN}, "u_low: expected a number, or one for each control"),
        ({"rate": 0.0}, "rate: expected a number > 0, or None, got 0.0"),
        ({"rate": True}, "rate: expected a number > 0"),
        ({"burst": 0.0}, "burst: expected a number > 0, or None, got 0.0"),
        ({"calming": 2.0}, "calming: expected −1, 0 or 1 for each θ, got 2.0"),
        ({"authority": "much"}, "authority: expected a number > 0"),
        ({"growth": 2.0}, "growth: expected −1, 0 or 1 for each θ, got 2.0"),
        ({"rollback": 1.0}, "rollback: expected a number > 1, or None, got 1.0"),
        ({"window": 0}, "window: expected a whole number >= 1"),
        ({"cost_floor": -1.0}, "cost_floor: expected a number ≥ 0"),
    ],
)
def test_wrong_settings_are_refused_by_name(wrong, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        st.Guard(**wrong)


def test_a_guard_is_a_guard(as_a_user):
    with pytest.raises(ValueError, match="guard: expected a Guard or None, got 3"):
        simulate(controller(), 3)


def test_settings_fit_the_controller():
    for wrong, message in {
        ("x_limit", (1.0, 2.0, 3.0)): "x_limit: expected one number or 2, got 3",
        ("u_low", (-1.0, -1.0)): "u_low: expected one number or 1, got 2",
        ("growth", (1, 1, 1)): "growth: expected one number or 2, got 3",
    }.items():
        with pytest.raises(ValueError, match=message):
            simulate(controller(), st.Guard(**dict([wrong])))


def test_decisions_in_words():
    assert str(st.Decision(0)) == "none"
    assert str(st.Decision.REFUSED | st.Decision.SATURATED) == "refused, saturated"
