import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

import selftune as st
from selftune.run import FIELDS
from selftune.simulate import _simulate
from tests.problems import golden, golden_controller, golden_scenario, planar_system

KEY = jax.random.key(0)
G = golden("planar")
START = dict(theta=G["theta0"], a_hat=G["a0"])


@pytest.fixture(scope="module")
def controller():
    return golden_controller("planar")


@pytest.fixture(scope="module")
def scenario():
    return golden_scenario("planar")


@pytest.fixture(scope="module")
def whole(controller, scenario):
    return st.simulate(controller, scenario, **START)


def assert_same(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


class TestRecording:
    def test_only_what_is_asked_for(self, controller, scenario, whole):
        run = st.simulate(controller, scenario, **START, record=("cost", "theta"))
        for name in FIELDS:
            if name in ("cost", "theta"):
                np.testing.assert_allclose(getattr(run, name), getattr(whole, name), rtol=1e-12)
            else:
                with pytest.raises(AttributeError, match=f"{name} was not recorded: .*'cost', 'theta'"):
                    getattr(run, name)
        run = st.simulate(controller, scenario, **START, record=())
        assert run.recorded == {}
        np.testing.assert_allclose(run.final.x, whole.final.x, rtol=1e-12)

    @pytest.mark.parametrize("stride", [2, 7, 100, 299, 300, 1000])
    def test_stride(self, controller, scenario, whole, stride):
        run = st.simulate(controller, scenario, **START, stride=stride)
        for name in FIELDS:
            np.testing.assert_allclose(getattr(run, name), getattr(whole, name)[::stride], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(run.final.x, whole.final.x, rtol=1e-10)

    def test_a_tuner_without_sensitivities_says_so(self, scenario):
        run = st.simulate(st.Controller(planar_system(), st.Fixed(), st.Known()), scenario, theta=G["theta0"])
        with pytest.raises(AttributeError, match="y was not recorded: this tuner keeps none"):
            run.y  # noqa: B018

    def test_final_follows_the_last_row(self, controller, scenario, whole):
        """One more step by hand from the last row is `final`."""
        last = scenario.row(len(scenario) - 1)
        x = controller.system.dynamics(whole.x[-1], whole.u[-1], whole.f[-1], last.t) + last.w
        np.testing.assert_allclose(whole.final.x, x, rtol=1e-12)
        theta = controller.tuner.constraint.project(whole.theta[-1] - G["eta"] * whole.gradient[-1])
        np.testing.assert_allclose(whole.final.state.theta, theta, rtol=1e-12)
        assert int(whole.final.t) == len(scenario)

    def test_memory_does_not_grow_with_the_number_of_steps(self, controller):
        """Compile 10⁸ steps with streams and no record, and ask the compiler how much memory it wants."""

        def memory(steps):
            ka, kw = jax.random.split(KEY)
            streams = st.Scenario(
                jnp.zeros(2),
                st.PiecewiseConstant(period=40_000, low=-1.0, high=1.0).stream(ka, 3),
                st.OrnsteinUhlenbeck(0.95, 0.1).stream(kw, 2),
                steps=steps,
            )
            start = controller.check_values(streams.x0, START["theta"], START["a_hat"])
            lower = getattr(_simulate, "lower")  # noqa: B009 (equinox's, unknown to the type checker)
            lowered = lower(controller, controller.system, streams, start, (), 1, jnp.asarray(1e8))
            analysis = lowered.compile().compiled.memory_analysis()
            return analysis.temp_size_in_bytes + analysis.output_size_in_bytes + analysis.argument_size_in_bytes

        assert memory(10**8) == memory(10**3)
        assert memory(10**8) < 100_000


class TestChunks:
    @pytest.mark.parametrize("cut", [1, 137, 299])
    @pytest.mark.parametrize("tuner", ["mgaps", "gaps5"])
    def test_bit_identical_to_one_go(self, scenario, tuner, cut):
        controller = golden_controller("planar", tuner)
        whole = st.simulate(controller, scenario, **START)
        first = st.simulate(controller, scenario[:cut], **START)
        second = st.simulate(controller, scenario[cut:], resume=first.final)
        for name in FIELDS:
            parts = [getattr(first, name), getattr(second, name)]
            np.testing.assert_array_equal(np.concatenate(parts), getattr(whole, name), err_msg=name)
        assert_same(second.final, whole.final)

    def test_streams_go_on_where_they_stopped(self, controller):
        def streams(steps):
            ka, kw, kv = jax.random.split(KEY, 3)
            return st.Scenario(
                jnp.zeros(2),
                st.RandomWalk(0.05, -1.0, 1.0).stream(ka, 3),
                st.OrnsteinUhlenbeck(0.9, 0.05).stream(kw, 2),
                st.Uniform(0.01).stream(kv, 2),
                steps=steps,
            )

        one_go = st.simulate(controller, streams(60), **START)
        first = st.simulate(controller, streams(25), **START)
        second = st.simulate(controller, streams(35), resume=first.final)
        np.testing.assert_array_equal(np.concatenate([first.x, second.x]), one_go.x)
        written_out = st.simulate(controller, streams(60).materialize(), **START)
        np.testing.assert_allclose(written_out.x, one_go.x, rtol=1e-10, atol=1e-12)

    def test_the_final_of_another_controller_is_refused(self, controller, scenario):
        other = st.simulate(golden_controller("planar", "gaps5"), scenario[:9], **START).final
        with pytest.raises(ValueError, match="resume: expected the `final` of a run of such a controller"):
            st.simulate(controller, scenario[9:], resume=other)

    def test_a_context_without_numbers_goes_on_counting(self, controller, scenario, whole):
        first = st.simulate(controller, scenario[:100], **START)
        rest = st.Scenario(scenario.x0, scenario.a_star[100:], scenario.w[100:], scenario.v[100:])
        np.testing.assert_array_equal(st.simulate(controller, rest, resume=first.final).x, whole.x[100:])


class TestTransformations:
    def test_vmap_over_everything(self, scenario):
        """Learning rates, θ₀ and disturbances at once: as if each were run alone."""

        def run(rate, theta, w):
            controller = st.Controller(
                planar_system(),
                st.MGAPS(rate, constraint=st.Box(G["theta_low"], G["theta_high"]), contraction_memory=50),
                st.GradientEstimator(0.05, constraint=st.Box(-1.0, 1.0)),
            )
            return st.simulate(
                controller, st.Scenario(G["x0"], G["a_star"], w, G["v"]), theta=theta, a_hat=jnp.zeros(3)
            )

        rates = jnp.array([1e-3, 1e-2, 2e-2])
        thetas = G["theta0"] + jnp.array([[0.0], [0.1], [0.2]])
        ws = G["w"] * jnp.array([0.5, 1.0, 2.0])[:, None, None]
        together = jax.jit(jax.vmap(run))(rates, thetas, ws)
        assert together.result.code.shape == (3,)
        for i in range(3):
            alone = run(rates[i], thetas[i], ws[i])
            for name in FIELDS:
                np.testing.assert_allclose(getattr(together, name)[i], getattr(alone, name), rtol=1e-9, atol=1e-11)

    def test_everything_may_be_made_inside_jit(self, scenario, whole):
        """From known arrays, which stay known there while all that is computed from them is traced."""
        known = {name: jnp.asarray(value) for name, value in G.items()}

        @jax.jit
        def run(scale):
            made = st.Scenario(known["x0"], known["a_star"], scale * known["w"], known["v"])
            tuner = st.MGAPS(known["eta"], constraint=st.Box(known["theta_low"], known["theta_high"]))
            estimator = st.GradientEstimator(
                known["iota"], preconditioner=known["P"], constraint=st.Box(known["a_low"], known["a_high"])
            )
            others = (
                st.Ball(known["eta"], center=known["theta0"]),
                st.Simplex(known["eta"]),
                st.RLS(known["iota"], known["P"]),
                st.KalmanEstimator(known["iota"], known["eta"]),
                st.OPRF(episode=3, radius=known["eta"], key=KEY, learning_rate=known["eta"]),
                st.RandomWalk(known["eta"], known["a_low"], known["a_high"])(KEY, 5, 3),
            )
            controller = st.Controller(planar_system(), tuner, estimator)
            return st.simulate(controller, made, theta=known["theta0"], a_hat=known["a0"]), others

        np.testing.assert_allclose(run(1.0)[0].x, whole.x, rtol=1e-12, atol=1e-13)
        with pytest.raises(ValueError, match=r"learning_rate: .*got -1\.0"):
            jax.jit(lambda x: st.MGAPS(-1.0).learning_rate * x)(1.0)

    def test_vmap_over_keys_of_the_scenario(self, controller):
        def run(key):
            ka, kw = jax.random.split(key)
            made = st.Scenario(jnp.zeros(2), st.RandomWalk(0.05, -1.0, 1.0)(ka, 20, 3), st.Gaussian(0.1)(kw, 20, 2))
            return st.simulate(controller, made, **START).x

        keys = jax.random.split(KEY, 3)
        np.testing.assert_allclose(jax.vmap(run)(keys)[2], run(keys[2]), rtol=1e-10)

    def test_vmap_over_a_batch_of_scenarios(self, controller, scenario, whole):
        batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), scenario)
        runs = jax.vmap(lambda scenario: st.simulate(controller, scenario, **START))(batch)
        np.testing.assert_allclose(runs.x[1], whole.x, rtol=1e-10, atol=1e-12)

    def test_differentiable(self, scenario):
        """Forward through the whole run, tuner and all: against a finite difference."""

        def total(rate):
            controller = st.Controller(planar_system(), st.MGAPS(rate), st.GradientEstimator(0.05))
            cost = st.simulate(controller, scenario[:50], theta=G["theta0"], a_hat=G["a0"]).cost
            return jnp.sum(cost)

        difference = (total(0.01 + 1e-6) - total(0.01 - 1e-6)) / 2e-6
        derivative = jax.jvp(total, (0.01,), (1.0,))[1]
        assert float(derivative) == pytest.approx(float(difference), rel=1e-5)

    def test_no_recompilation_for_new_numbers(self):
        traces = []

        def cost(x, u, theta, t):
            traces.append(1)
            return jnp.sum(x**2)

        system = st.MatchedSystem(
            dynamics=lambda x, v, t: 0.9 * x + 0.1 * v,
            residual=lambda x, a, t: a,
            actuation=lambda x, theta, t: -theta * x,
            cost=cost,
        )

        def run(rate, bound, theta, w):
            controller = st.Controller(
                system,
                st.MGAPS(rate, constraint=st.Box(0.0, bound)),
                st.GradientEstimator(rate, preconditioner=bound * jnp.ones(1)),
            )
            made = st.Scenario(jnp.ones(1), jnp.ones((9, 1)), w * jnp.ones((9, 1)))
            return st.simulate(controller, made, theta=jnp.array([theta]), a_hat=jnp.zeros(1), limit=1e6 * bound)

        first = run(0.1, 2, 1.0, 0.1)
        count = len(traces)
        assert count > 0
        second = run(np.float64(0.2), jnp.array(3.0), 0.5, 0.2)
        assert len(traces) == count
        assert float(jnp.max(jnp.abs(first.x - second.x))) > 0.01


class TestLengths:
    @pytest.mark.parametrize("record", [FIELDS, ()])
    @pytest.mark.parametrize("stride", [1, 3])
    def test_no_steps(self, controller, scenario, record, stride):
        run = st.simulate(controller, scenario[:0], **START, record=record, stride=stride)
        assert run.result.message == "ok"
        np.testing.assert_array_equal(run.final.x, scenario.x0)
        np.testing.assert_array_equal(run.final.state.theta, G["theta0"])
        if record:
            assert run.x.shape == (0, 2)
            assert run.y.shape == (0, 2, 4)

    def test_one_step(self, controller, scenario, whole):
        run = st.simulate(controller, scenario[:1], **START)
        np.testing.assert_array_equal(run.x, whole.x[:1])
        np.testing.assert_allclose(run.final.x, whole.x[1], rtol=1e-14)


def unstable(growth, cost=lambda x, u, theta, t: jnp.sum(x**2)):
    return st.System(
        dynamics=lambda x, u, f, t: growth * x + u,
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: theta,
        cost=cost,
    )


def run_unstable(system, tuner=None, **options):
    controller = st.Controller(system, tuner or st.Fixed(), st.Frozen())
    made = st.Scenario(jnp.ones(1), jnp.zeros((40, 1)), jnp.zeros((40, 1)))
    return st.simulate(controller, made, theta=jnp.zeros(1), a_hat=jnp.zeros(1), **options)


class TestResult:
    def test_diverged(self):
        run = run_unstable(unstable(10.0), limit=1e6, throw=False)
        # x_{t+1} = 10^{t+1} exceeds 10⁶ first when step 6 makes 10⁷.
        assert (int(run.result.code), int(run.result.step)) == (st.Result.DIVERGED, 6)
        assert run.result.message == "the state diverged at step 6"
        assert not bool(run.result.ok)

    def test_diverged_at_the_last_step(self):
        run = run_unstable(unstable(10.0), limit=1e39, throw=False)
        assert (int(run.result.code), int(run.result.step)) == (st.Result.DIVERGED, 39)

    def test_non_finite(self):
        """A cost that stops being a number: nothing but the cost shows it, and it is seen."""
        cost = lambda x, u, theta, t: jnp.sum(x) * jnp.where(t == 13, jnp.nan, 1.0)
        run = run_unstable(unstable(0.5, cost), throw=False)
        assert (int(run.result.code), int(run.result.step)) == (st.Result.NON_FINITE, 13)
        assert run.result.message == "a number stopped being finite at step 13"

    def test_an_infinite_gradient_does_not_hide_behind_the_projection(self):
        cost = lambda x, u, theta, t: jnp.sum(theta) * jnp.where(t == 5, jnp.inf, 1.0)
        run = run_unstable(unstable(0.5, cost), st.MGAPS(1e-3, constraint=st.Box(-1.0, 1.0)), throw=False)
        assert (int(run.result.code), int(run.result.step)) == (st.Result.NON_FINITE, 5)

    def test_what_a_tuner_remembers_is_its_own(self):
        """An infinity in a tuner's memory, say the best cost so far, is no failure."""

        class Best(st.AbstractTuner):
            def init(self, system, x, theta):
                return jnp.array(jnp.inf)

            def update(self, system, x, theta, a_hat, t, state):
                return theta, state, st.TunerInfo(gradient=jnp.zeros(1), y=None)

        assert run_unstable(unstable(0.5), Best()).result.message == "ok"

    def test_an_estimator_that_overflows_is_seen(self):
        system = st.System(
            dynamics=lambda x, u, f, t: jnp.tanh(x + u),
            residual=lambda x, a, t: a * 1e200 * x,
            policy=lambda x, theta, f, t: theta,
            cost=lambda x, u, theta, t: jnp.sum(x**2),
        )
        estimator = st.GradientEstimator(1.0, constraint=st.Box(-1.0, 1.0))
        made = st.Scenario(jnp.ones(1), jnp.ones((9, 1)), jnp.zeros((9, 1)))
        controller = st.Controller(system, st.Fixed(), estimator)
        run = st.simulate(controller, made, theta=jnp.zeros(1), a_hat=jnp.zeros(1), throw=False)
        assert (int(run.result.code), int(run.result.step)) == (st.Result.NON_FINITE, 0)

    def test_no_limit(self):
        run = run_unstable(unstable(10.0), limit=jnp.inf)
        assert float(run.final.x[0]) == pytest.approx(1e40)

    def test_throw_carries_the_run(self):
        with pytest.raises(st.SimulationError, match="simulate: the state diverged at step 6") as error:
            run_unstable(unstable(10.0), limit=1e6)
        run = error.value.run
        np.testing.assert_allclose(run.x[:7, 0], 10.0 ** np.arange(7))

    def test_under_vmap_each_run_has_its_own(self):
        run = jax.vmap(lambda growth: run_unstable(unstable(growth), limit=1e6))(jnp.array([0.5, 10.0, 100.0]))
        np.testing.assert_array_equal(run.result.step, [-1, 6, 3])
        assert run.result.message == "2 of 3 runs failed; run 1: the state diverged at step 6"
        with pytest.raises(st.SimulationError, match="2 of 3 runs failed"):
            run.raise_if_failed()

    def test_ok_is_returned(self):
        run = run_unstable(unstable(0.5))
        assert run.raise_if_failed() is run


class TestPlant:
    def test_the_tuner_sees_the_model_and_nature_is_the_plant(self, controller, scenario):
        """A plant with one more parameter and other dynamics, against a loop by hand."""
        model = controller.system
        plant = st.System(
            dynamics=lambda x, u, f, t: model.dynamics(x, 0.9 * u, f, t),
            residual=lambda x, a, t: model.residual(x, a[:3], t) + a[3],
            policy=lambda x, theta, f, t: jnp.full(2, jnp.nan),
            cost=lambda x, u, theta, t: jnp.array(jnp.nan),
        )
        a_star = jnp.concatenate([scenario.a_star, jnp.full((len(scenario), 1), 0.1)], axis=1)[:30]
        made = st.Scenario(scenario.x0, a_star, scenario.w[:30], scenario.v[:30])
        run = st.simulate(controller, made, **START, plant=plant)
        x, state = made.x0, controller.init(made.x0, **START)
        act, observe = jax.jit(controller.act), jax.jit(controller.observe)
        for t in range(30):
            np.testing.assert_allclose(run.x[t], x, rtol=1e-10, atol=1e-12)
            u, state, _ = act(state, x, t)
            f = model.residual(x, a_star[t, :3], t) + a_star[t, 3]
            state = observe(state, x, f + made.v[t], t)
            x = model.dynamics(x, 0.9 * u, f, t) + made.w[t]


def test_context_of_any_structure(scenario, whole):
    """The reference as a context in place of the time: the same trajectory."""
    flat = planar_system()
    time = jnp.arange(len(scenario)).astype(float)
    contexts = {"time": time, "unused": jnp.zeros((len(scenario), 4))}
    system = st.System(
        dynamics=flat.dynamics,
        residual=flat.residual,
        policy=lambda x, theta, f, t: flat.policy(x, theta, f, t["time"]),
        cost=lambda x, u, theta, t: flat.cost(x, u, theta, t["time"]),
    )
    controller = eqx.tree_at(lambda c: c.system, golden_controller("planar"), system)
    made = st.Scenario(scenario.x0, scenario.a_star, scenario.w, scenario.v, contexts)
    np.testing.assert_allclose(st.simulate(controller, made, **START).x, whole.x, rtol=1e-12, atol=1e-13)


def test_known_is_given_the_truth(scenario):
    controller = st.Controller(planar_system(), st.Fixed(), st.Known())
    run = st.simulate(controller, scenario, theta=G["theta0"])
    np.testing.assert_array_equal(run.a_hat, scenario.a_star)
    np.testing.assert_array_equal(run.f_hat, run.f)


def test_float32_stays_float32(scenario):
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), scenario)
    run = st.simulate(
        golden_controller("planar"), single, theta=G["theta0"].astype(np.float32), a_hat=G["a0"].astype(np.float32)
    )
    assert all(getattr(run, name).dtype == jnp.float32 for name in FIELDS)
    np.testing.assert_allclose(run.x, G["mgaps_x"], atol=2e-4)  # 300 steps of rounding at 6e-8, in a contracting loop


@pytest.mark.usefixtures("as_a_user")
class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (dict(controller=None), "controller: expected a Controller, got None"),
            (dict(scenario={}), "scenario: expected a Scenario"),
            (dict(plant=3), "plant: expected a System, got 3"),
            (dict(theta=None), "theta: expected the first policy parameters, got None"),
            (dict(a_hat=None), "a_hat: expected the first model parameters, got None"),
            (dict(theta=jnp.ones(3)), r"theta: does not fit its constraint, Box: low: .*\(3,\), got float64\[4\]"),
            (dict(theta=jnp.full(4, jnp.nan)), "theta: expected finite numbers, got nan"),
            (dict(theta=jnp.full(4, 9.0)), "theta: expected a point of its constraint, Box"),
            (dict(theta="high"), "theta: expected real numbers, got 'high'"),
            (dict(theta=jnp.ones(4, complex)), "theta: expected real numbers"),
            (dict(theta=jnp.ones(4, jnp.float32)), r"theta: expected dtype float64, got float32\[4\]"),
            (dict(theta=()), "theta: expected at least one number"),
            (dict(a_hat=jnp.full(3, 9.0)), "a_hat: expected a point of its constraint, Box"),
            (dict(a_hat=jnp.zeros(2)), "a_hat: does not fit its constraint"),
            (dict(record=("x", "thetas")), "record: expected names from .*, got 'thetas'; did you mean 'theta'"),
            (dict(stride=0), "stride: expected a whole number >= 1, got 0"),
            (dict(stride=1.5), "stride: expected a whole number >= 1"),
            (dict(limit=-1.0), "limit: expected a number > 0, got -1.0"),
            (dict(limit=jnp.nan), "limit: expected a number > 0, got nan"),
            (dict(record=None), "record: expected names from"),
            (dict(resume="there"), "theta, a_hat: expected None together with resume"),
            (dict(resume="there", theta=None, a_hat=None), "resume: expected the `final` of a run, got 'there'"),
        ],
    )
    def test_by_name(self, controller, scenario, changes, message):
        good = dict(controller=controller, scenario=scenario, **START)
        with pytest.raises(ValueError, match=message):
            st.simulate(**(good | changes))

    def test_scenarios_that_do_not_fit(self, controller, scenario):
        x0, a_star, w = scenario.x0, scenario.a_star, scenario.w
        for made, message in [
            (st.Scenario(x0, a_star, w, jnp.zeros((300, 3))), r"v: expected rows of shape \(2,\), .* got float64\[3\]"),
            (st.Scenario(x0, jnp.zeros((300, 0)), w), "a_star"),
            (st.Scenario(jnp.zeros(3), a_star, jnp.zeros((300, 3))), "policy|dynamics|residual"),
        ]:
            with pytest.raises(ValueError, match=message):
                st.simulate(controller, made, **START)
        known = st.Controller(planar_system(), st.Fixed(), st.Known())
        with pytest.raises(ValueError, match="a_star: expected rows like a_hat"):
            st.simulate(known, st.Scenario(x0, jnp.zeros((300, 4)), w), **START)

    @settings(max_examples=30, deadline=None)
    @given(
        shape=hs.lists(hs.integers(0, 3), max_size=3),
        value=hs.sampled_from([0.6, jnp.nan, jnp.inf, -1e30, True, "text", None]),
        name=hs.sampled_from(["theta", "a_hat"]),
    )
    def test_anything_else_is_a_clear_error_or_the_right_answer(self, controller, scenario, shape, value, name):
        argument = np.full(shape, value) if not isinstance(value, str) and value is not None else value
        try:
            run = st.simulate(controller, scenario[:2], **(START | {name: argument}))
        except ValueError as error:
            message = str(error)
            assert message.partition(":")[0] in (name, "preconditioner")
        else:
            assert np.shape(argument) == START[name].shape
            assert bool(run.result.ok)
