"""The agent: both engines against the golden trajectories, and what is refused. (Saving: `test_agent_files.py`.)"""

import threading
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.native.c import compilation
from tests.problems import SYSTEMS, golden, golden_controller, planar_system
from tests.test_golden import assert_golden

pytestmark = pytest.mark.versions

ENGINES = ("native", "xla")
both = pytest.mark.parametrize("engine", ENGINES)
NAN, INF = np.nan, np.inf


@cache
def made(name="planar", engine="native"):
    g = golden(name)
    return st.Agent(golden_controller(name), x=g["x0"], theta=g["theta0"], a_hat=g["a0"], engine=engine)


def fresh(name="planar", engine="native"):
    """An agent as new, without another compilation: tests reset the agent that was compiled first."""
    agent, g = made(name, engine), golden(name)
    agent.reset(x=g["x0"], theta=g["theta0"], a_hat=g["a0"])
    return agent


def state_of(agent):
    """All that is learned, and what it is learned from, bit by bit."""
    state = agent.state
    return [
        np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((state.controller, state.guard.window, state.x, state.t))
    ]


def by_hand(agent, x, t):
    """The control that the agent's gains and model give at x."""
    system = agent.controller.system
    return system.policy(x, agent.theta, system.residual(x, agent.a_hat, t), t)


def measured(name="planar"):
    g = golden(name)
    return g["mgaps_x"], g["mgaps_f_true"] + g["v"]


def play(agent, name="planar", steps=range(12)):
    x, f_obs = measured(name)
    controls = []
    for t in steps:
        controls.append(agent.act(x[t], t))
        agent.observe(f_obs[t])
    return np.array(controls)


@both
class TestState:
    def test_reset_is_a_new_agent(self, engine):
        g = golden("planar")
        new = st.Agent(golden_controller("planar"), x=g["x0"], theta=g["theta0"], a_hat=g["a0"], engine=engine)
        agent = fresh(engine=engine)
        play(agent)
        agent.act([NAN, 0.0])
        agent.reset(x=g["x0"], theta=g["theta0"], a_hat=g["a0"])
        assert agent.refused == 0
        assert agent.result.message == "ok"
        with pytest.raises(RuntimeError, match="info: expected to come after an act"):
            _ = agent.info
        np.testing.assert_array_equal(play(agent), play(new))
        assert state_of(agent) == state_of(new)

    def test_a_state_can_be_kept_and_put_back(self, engine):
        agent = fresh(engine=engine)
        play(agent, steps=range(6))
        kept = agent.state
        first = play(agent, steps=range(6, 12))
        agent.state = kept
        np.testing.assert_array_equal(play(agent, steps=range(6, 12)), first)

    def test_another_state_is_refused_and_nothing_changes(self, engine):
        agent = fresh(engine=engine)
        before = state_of(agent)
        with pytest.raises(ValueError, match=r"^state: expected the state of this agent, got"):
            agent.state = {"theta": np.ones(2)}
        wrong = eqx.tree_at(lambda s: s.x, agent.state, np.zeros(3))
        with pytest.raises(ValueError, match=r"^state: expected .*x to be float64\[2\], got float64\[3\]"):
            agent.state = wrong
        with pytest.raises(ValueError, match=r"^theta: "):
            agent.reset(x=np.zeros(2), theta=np.full(99, 1.0), a_hat=agent.a_hat)
        assert state_of(agent) == before


@cache
def trajectory(name, engine):
    agent, rows = fresh(name, engine), []
    g = golden(name)
    for t, (x, f_obs) in enumerate(zip(*measured(name), strict=True)):
        theta, a_hat = agent.theta, agent.a_hat
        u = agent.act(x, t)
        info = agent.info
        agent.observe(f_obs)
        assert agent.result.message == "ok"
        row = dict(x=x, u=u, theta=theta, a_hat=a_hat, cost=info.cost, f_hat=info.f_hat, f=g["mgaps_f_true"][t])
        rows.append(row | dict(y=info.tuner.y, gradient=info.tuner.gradient))
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


@both
@pytest.mark.parametrize("name", SYSTEMS)
def test_golden(name, engine):
    assert_golden(name, "mgaps", trajectory(name, engine))


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_engines_agree_to_rounding(name):
    native, xla = (trajectory(name, engine) for engine in ENGINES)
    for key in native:
        # Rounding of either, carried on by a loop that contracts.
        np.testing.assert_allclose(native[key], xla[key], rtol=1e-11, atol=1e-11 * np.abs(xla[key]).max(), err_msg=key)


def test_info_is_the_controllers():
    g, controller = golden("planar"), golden_controller("planar")
    state = controller.init(g["x0"], theta=g["theta0"], a_hat=g["a0"])
    _, _, expected = jax.jit(controller.act)(state, g["x0"], 3)
    for engine in ENGINES:
        agent = fresh(engine=engine)
        agent.act(g["x0"], 3)
        assert agent.info.guard.decisions == 0
        found = eqx.tree_at(lambda info: info.guard, agent.info, None)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert isinstance(got, np.ndarray)
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


def test_a_state_is_observed_as_the_residual_that_explains_it():
    system, x_next = planar_system(), np.array([0.4, 0.1])
    for engine in ENGINES:
        agent = fresh(engine=engine)
        play(agent)
        x, a_hat = measured()[0][12], agent.a_hat
        u = agent.act(x, 12)
        agent.observe_state(x_next)
        learned = agent.a_hat
        play(fresh(engine=engine))
        agent.act(x, 12)
        agent.observe(st.infer_residual(system, *map(jnp.asarray, (x, u, x_next)), 12))
        assert not np.array_equal(agent.a_hat, a_hat)
        np.testing.assert_allclose(learned, agent.a_hat, rtol=1e-12)


class TestNumPy:
    @both
    def test_what_is_given_is_the_callers(self, engine):
        agent = fresh(engine=engine)
        x = measured()[0][0].copy()
        u, theta, info = agent.act(x), agent.theta, agent.info
        kept = u.copy(), theta.copy(), info.u.copy(), info.tuner.gradient.copy()
        x[:] = NAN
        play(agent)
        for got, expected in zip((u, theta, info.u, info.tuner.gradient), kept, strict=True):
            np.testing.assert_array_equal(got, expected)
        u[:], theta[:] = NAN, NAN
        assert np.all(np.isfinite(agent.theta))
        assert np.all(np.isfinite(agent.act([NAN, 0.0])))

    @both
    def test_numbers_come_in_any_form(self, engine):
        expected = fresh(engine=engine).act(np.array([1.0, -2.0]), 4)
        forms = [[1, -2], (1.0, -2.0), np.array([1, -2], np.int8), np.float16([1, -2]), jnp.array([1.0, -2.0])]
        for x in [*forms, np.array([[1.0, 9.0], [-2.0, 9.0]])[:, 0]]:
            for t in (4, np.int64(4), np.array(4), jnp.asarray(4)):
                np.testing.assert_array_equal(fresh(engine=engine).act(x, t), expected)

    @both
    def test_float32(self, engine):
        g = golden("scalar")
        x0, theta, a_hat = (g[key].astype(np.float32) for key in ("x0", "theta0", "a0"))
        agent = st.Agent(golden_controller("scalar"), x=x0, theta=theta, a_hat=a_hat, engine=engine)
        got = play(agent, "scalar", range(100))  # doubles come in
        assert {leaf.dtype for leaf in (got, agent.theta, agent.a_hat, agent.info.cost)} == {np.dtype(np.float32)}
        # A hundred steps of a loop that contracts: a few of float32's roundings.
        np.testing.assert_allclose(got, g["mgaps_u"][:100], rtol=1e-4, atol=1e-5)
        assert np.isfinite(agent.act([1e300]))
        assert agent.result.code == st.Result.NON_FINITE
        agent.observe([1e300])


class TestSteps:
    @both
    def test_they_are_counted(self, engine):
        x = measured()[0]
        numbered = play(fresh(engine=engine))
        agent = fresh(engine=engine)
        counted = []
        for now, f_obs in zip(x[:12], measured()[1], strict=False):
            counted.append(agent.act(now))
            agent.observe(f_obs)
        np.testing.assert_array_equal(counted, numbered)
        agent.act(x[0], 40)
        agent.act([NAN, 0.0])
        assert agent.result.message == "a number stopped being finite at step 41"
        agent.act([INF, 0.0])
        assert int(agent.result.step) == 42
        agent.act([NAN, 0.0], 2**31 - 1)
        agent.act([NAN, 0.0])
        assert int(agent.result.step) == 2**31 - 1

    def test_the_first_has_the_number_that_was_given(self):
        g = golden("planar")
        agent = st.Agent(golden_controller("planar"), x=g["x0"], theta=g["theta0"], a_hat=g["a0"], t=7)
        np.testing.assert_array_equal(agent.act(g["x0"]), fresh().act(g["x0"], 7))

    @both
    def test_act_twice_tunes_twice_and_observes_nothing(self, engine):
        agent = fresh(engine=engine)
        agent.act([0.5, 0.5])
        theta = agent.theta
        agent.act([0.5, 0.5])
        assert not np.array_equal(agent.theta, theta)
        np.testing.assert_array_equal(agent.a_hat, golden("planar")["a0"])

    @both
    def test_an_observation_comes_after_an_act(self, engine):
        agent = fresh(engine=engine)
        assert agent.result.message == "ok"
        before = state_of(agent)
        for name, call in {
            "observe": lambda: agent.observe([0.0, 0.0]),
            "observe_state": lambda: agent.observe_state([0.0, 0.0]),
            "info": lambda: agent.info,
        }.items():
            with pytest.raises(RuntimeError, match=rf"^{name}: expected to come after (act|an act)"):
                call()
        assert state_of(agent) == before


class TestGuard:
    @both
    def test_what_has_another_form_is_refused_by_name(self, engine):
        agent = fresh(engine=engine)
        play(agent)
        before, values = state_of(agent), (agent.theta, agent.a_hat)
        for wrong in (1.0, [1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]], ["a", "b"], [True, False], [1j, 0j], None, [[1.0], 2]):
            for name, call in {"measurement": agent.act, "f_obs": agent.observe, "x_next": agent.observe_state}.items():
                with pytest.raises(ValueError, match=rf"^{name}: expected 2 real numbers, got "):
                    call(wrong)
        for t in (1.5, True, "a", 2**31, [1, 2]):
            with pytest.raises(ValueError, match=r"^t: expected the number of the step"):
                agent.act([0.0, 0.0], t)
        assert state_of(agent) == before
        assert agent.refused == 0
        np.testing.assert_array_equal(values[0], agent.theta)

    @pytest.mark.bits
    @both
    @pytest.mark.parametrize(
        ("bad", "code"),
        [
            ([NAN, 0.0], st.Result.NON_FINITE),
            ([0.0, -INF], st.Result.NON_FINITE),
            ([2e8, 0.0], st.Result.DIVERGED),
            ([0.0, 1e200], st.Result.DIVERGED),
        ],
    )
    def test_a_bad_state_leaves_no_trace(self, engine, bad, code):
        expected = play(fresh(engine=engine))
        agent = fresh(engine=engine)
        controls = play(agent, steps=range(6))
        before = state_of(agent)
        predicted = agent.state.predicted
        given = agent.act(bad, 6)
        np.testing.assert_allclose(given, by_hand(agent, predicted, 6), rtol=1e-12)
        np.testing.assert_array_equal(agent.info.u, given)
        assert agent.decisions == agent.info.guard.decisions == st.Decision.REFUSED
        assert (int(agent.result.code), int(agent.result.step), agent.refused) == (code, 6, 1)
        for observe in (agent.observe, agent.observe_state):  # of a step that was refused
            observe([0.1, 0.1])
            assert (int(agent.result.code), agent.refused) == (code, 1)
        assert state_of(agent) == before
        np.testing.assert_array_equal([*controls, *play(agent, steps=range(6, 12))], expected)
        assert (agent.result.message, int(agent.result.step), agent.refused) == ("ok", -1, 1)

    @pytest.mark.bits
    @both
    @pytest.mark.parametrize("bad", [[NAN, 0.0], [0.0, INF], [-INF, NAN]])
    def test_a_bad_observation_leaves_no_trace(self, engine, bad):
        expected = play(fresh(engine=engine))
        agent = fresh(engine=engine)
        controls = play(agent, steps=range(6))
        x, f_obs = measured()
        controls = [*controls, agent.act(x[6])]
        before = state_of(agent)
        for count, observe in enumerate((agent.observe, agent.observe_state), start=1):
            observe(bad)
            assert (int(agent.result.code), int(agent.result.step)) == (st.Result.NON_FINITE, 6)
            assert agent.refused == count
        assert state_of(agent) == before
        agent.observe(f_obs[6])
        assert agent.result.message == "ok"
        np.testing.assert_array_equal([*controls, *play(agent, steps=range(7, 12))], expected)

    @both
    def test_before_the_first_step_the_first_state_stands_in(self, engine):
        agent = fresh(engine=engine)
        expected = by_hand(agent, golden("planar")["x0"], 0)
        np.testing.assert_allclose(agent.act([NAN, NAN]), expected, rtol=1e-12)

    @pytest.mark.parametrize(("engine", "count"), [("native", 2000), ("xla", 300)])
    def test_garbage_never_gets_through(self, engine, count):
        agent, g = fresh(engine=engine), golden("planar")
        random = np.random.default_rng(0)
        wild = np.array([NAN, INF, -INF, 1e300, -1e300, 1e160, 3e7, 5e-324, 0.0])

        def sample():
            normal = random.normal(size=2) * 10.0 ** random.integers(-3, 4)
            return np.where(random.random(2) < 0.15, random.choice(wild, 2), normal)

        accepted = 0
        for _ in range(count):
            u = agent.act(sample())
            accepted += int(agent.result.code) == st.Result.OK
            (agent.observe if random.random() < 0.5 else agent.observe_state)(sample())
            assert np.all(np.isfinite(u))
            assert np.all((g["theta_low"] <= agent.theta) & (agent.theta <= g["theta_high"]))
            assert np.all((g["a_low"] <= agent.a_hat) & (agent.a_hat <= g["a_high"]))
        assert count / 4 < accepted < count * 0.9
        assert agent.refused > count / 10

    def test_a_gradient_that_is_not_finite_is_refused(self):
        """Projected, an infinite step would end on the boundary, as if nothing had been wrong."""
        system = st.System(
            dynamics=lambda x, u, f, t: x,
            residual=lambda x, a, t: a,
            policy=lambda x, theta, f, t: -theta,
            cost=lambda x, u, theta, t: jnp.sum(jnp.sqrt(theta)),
        )
        controller = st.Controller(system, st.MGAPS(0.1, constraint=st.Box(0.0, 1.0)), st.GradientEstimator(0.1))
        agent = st.Agent(controller, x=[1.0], theta=[0.0], a_hat=[0.0])
        agent.act([1.0])
        assert np.isinf(agent.info.tuner.gradient)
        assert agent.result.message == "a number stopped being finite at step 0"


@both
def test_nothing_is_compiled_in_the_loop(engine, monkeypatch, caplog):
    traces = 0

    def cost(x, u, theta, t):
        nonlocal traces
        traces += 1
        return jnp.sum(x**2) + 0.1 * jnp.sum(u**2)

    system = st.MatchedSystem(
        dynamics=lambda x, v, t: x + 0.1 * v,
        residual=lambda x, a, t: a * jnp.cos(x),
        actuation=lambda x, theta, t: -theta * x,
        cost=cost,
    )
    controller = st.Controller(system, st.MGAPS(0.05), st.GradientEstimator(0.1))
    agent = st.Agent(controller, x=[1.0], theta=[1.0], a_hat=[0.0], engine=engine)
    before = traces
    assert before > 0
    monkeypatch.setattr(compilation, "build", None)
    with jax.log_compiles():
        for x in ([1.0], np.float32([0.5]), [2], [NAN]):
            assert agent.act(x).shape == (1,)
            agent.observe([0.1])
            agent.observe_state(x)
            assert agent.theta.shape == agent.a_hat.shape == agent.info.f_hat.shape == (1,)
            assert agent.result.step >= -1
    assert traces == before
    assert [record.getMessage() for record in caplog.records if "ompil" in record.getMessage()] == []


class TestDoor:
    def make(self, controller=None, **changed):
        start = dict(x=[0.0], theta=[1.0], a_hat=[0.0, 0.0, 0.0])
        return st.Agent(controller or golden_controller("scalar"), **start | changed)

    def test_refused_by_name(self, as_a_user):
        system = SYSTEMS["scalar"]()
        with pytest.raises(ValueError, match="controller: expected a Controller, got"):
            self.make(system)
        with pytest.raises(
            ValueError, match="controller: expected an estimator that learns from observations, got Known"
        ):
            self.make(st.Controller(system, st.MGAPS(0.1), st.Known()))
        for wrong, message in {
            ("engine", "nonsense"): "engine: expected 'auto', 'native' or 'xla', got 'nonsense'",
            ("guard", 1.0): "guard: expected a Guard, got",
            ("guard", st.Guard(x_limit=[1.0, 2.0])): "x_limit: expected one number or 1, got 2",
            ("x", (NAN,)): "x: expected finite numbers",
            ("theta", (99.0,)): "theta: expected a point of its constraint",
            ("t", ()): "t: expected at least one number",
        }.items():
            with pytest.raises(ValueError, match=message):
                self.make(**dict([wrong]))


@both
def test_no_update_is_lost_if_another_thread_changes_the_mode(engine):
    """The state is read, changed and written back in one piece, also while C runs without Python's lock."""
    agent, steps = fresh(engine=engine), 20_000 if engine == "native" else 500
    ended, changes = threading.Event(), []

    def change():
        while not ended.is_set():
            agent.freeze()
            agent.resume()
            agent.pause()
            _ = agent.theta
            changes.append(1)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(steps):
            agent.act([np.nan, 0.0])
    finally:
        ended.set()
        thread.join()
    assert changes
    assert agent.refused == steps
