import functools
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.control.run_fields import FIELDS as ALL_FIELDS
from selftune.simulation.simulator import _simulate_by_xla, _SimulationProblem
from tests.problems import golden, golden_controller, golden_scenario, planar_system

simulate = functools.partial(st.simulate, engine="xla")
"""Here XLA is tested; tests/native/test_loop.py compares the native engine with it."""
ROOT = Path(__file__).parent.parent
KEY = jax.random.key(0)
G = golden("planar")
START = dict(theta=G["theta0"], a_hat=G["a0"])
# The fields of every run. The others depend on the tuner, the guard, the sensors or the policy; they have own tests.
FIELDS = tuple(name for name in ALL_FIELDS if name not in ("contraction", "guard", "measured", "reference", "memory"))


@pytest.fixture(scope="module")
def controller():
    return golden_controller("planar")


@pytest.fixture(scope="module")
def scenario():
    return golden_scenario("planar")


@pytest.fixture(scope="module")
def whole(controller, scenario):
    return simulate(controller, scenario, **START)


def assert_same(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


class TestRecording:
    def test_only_what_is_asked_for(self, controller, scenario, whole):
        run = simulate(controller, scenario, **START, record=("cost", "theta"))
        for name in FIELDS:
            if name in ("cost", "theta"):
                np.testing.assert_allclose(getattr(run, name), getattr(whole, name), rtol=1e-12)
            else:
                with pytest.raises(AttributeError, match=f"{name} was not recorded: .*'cost', 'theta'"):
                    getattr(run, name)
        run = simulate(controller, scenario, **START, record=())
        assert run.recorded == {}
        np.testing.assert_allclose(run.final.x, whole.final.x, rtol=1e-12)

    @pytest.mark.parametrize(
        "stride", [7, 299, 300, 1000, *(pytest.param(stride, marks=pytest.mark.slow) for stride in (2, 100))]
    )
    def test_stride(self, controller, scenario, whole, stride):
        run = simulate(controller, scenario, **START, stride=stride)
        for name in FIELDS:
            np.testing.assert_allclose(getattr(run, name), getattr(whole, name)[::stride], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(run.final.x, whole.final.x, rtol=1e-10)

    def test_a_tuner_without_sensitivities_says_so(self, scenario):
        run = simulate(st.Controller(planar_system(), st.Fixed(), st.Known()), scenario, theta=G["theta0"])
        with pytest.raises(AttributeError, match="y was not recorded: this tuner does not compute it"):
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
            problem = _SimulationProblem(controller, None, controller.system, streams, start, jnp.asarray(1e8), False)
            lower = getattr(_simulate_by_xla, "lower")  # noqa: B009 (equinox's, unknown to the type checker)
            lowered = lower(problem, (), 1)
            analysis = lowered.compile().compiled.memory_analysis()
            return analysis.temp_size_in_bytes + analysis.output_size_in_bytes + analysis.argument_size_in_bytes

        assert memory(10**8) == memory(10**3)
        assert memory(10**8) < 100_000


@pytest.mark.bits
class TestChunks:
    @pytest.mark.parametrize("cut", [1, 137, 299])
    @pytest.mark.parametrize("tuner", ["mgaps", "gaps5"])
    def test_bit_identical_to_one_go(self, scenario, tuner, cut):
        controller = golden_controller("planar", tuner)
        whole = simulate(controller, scenario, **START)
        first = simulate(controller, scenario[:cut], **START)
        second = simulate(controller, scenario[cut:], resume=first.final)
        for name in FIELDS:
            parts = [getattr(first, name), getattr(second, name)]
            np.testing.assert_array_equal(np.concatenate(parts), getattr(whole, name), err_msg=name)
        assert_same(second.final, whole.final)

    def test_streams_go_on_where_they_stopped(self):
        """To the last bit, with XLA as it comes: what makes the tests compile faster makes it round otherwise."""
        script = "from tests.test_simulate import check_streams; check_streams()"
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"XLA_FLAGS": "", "JAX_ENABLE_X64": "1", "PYTHONPATH": path}
        subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=True)

    def test_the_final_of_another_controller_is_refused(self, controller, scenario):
        other = simulate(golden_controller("planar", "gaps5"), scenario[:9], **START).final
        with pytest.raises(ValueError, match="resume: expected the `final` of a run with this kind of controller"):
            simulate(controller, scenario[9:], resume=other)

    def test_a_context_without_numbers_goes_on_counting(self, controller, scenario, whole):
        first = simulate(controller, scenario[:100], **START)
        rest = st.Scenario(scenario.x0, scenario.a_star[100:], scenario.w[100:], scenario.v[100:])
        np.testing.assert_array_equal(simulate(controller, rest, resume=first.final).x, whole.x[100:])


def check_streams():
    controller = golden_controller("planar")

    def streams(steps):
        ka, kw, kv = jax.random.split(KEY, 3)
        return st.Scenario(
            jnp.zeros(2),
            st.RandomWalk(0.05, -1.0, 1.0).stream(ka, 3),
            st.OrnsteinUhlenbeck(0.9, 0.05).stream(kw, 2),
            st.Uniform(0.01).stream(kv, 2),
            steps=steps,
        )

    one_go = simulate(controller, streams(60), **START)
    first = simulate(controller, streams(25), **START)
    second = simulate(controller, streams(35), resume=first.final)
    np.testing.assert_array_equal(np.concatenate([first.x, second.x]), one_go.x)
    written_out = simulate(controller, streams(60).materialize(), **START)
    np.testing.assert_allclose(written_out.x, one_go.x, rtol=1e-10, atol=1e-12)


class TestTransformations:
    def test_vmap_over_everything(self, scenario):
        """Learning rates, θ₀ and disturbances at once: as if each were run alone."""

        def run(rate, theta, w):
            controller = st.Controller(
                planar_system(),
                st.MGAPS(rate, constraint=st.Box(G["theta_low"], G["theta_high"])),
                st.GradientEstimator(0.05, constraint=st.Box(-1.0, 1.0)),
            )
            return simulate(controller, st.Scenario(G["x0"], G["a_star"], w, G["v"]), theta=theta, a_hat=jnp.zeros(3))

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
            return simulate(controller, made, theta=known["theta0"], a_hat=known["a0"]), others

        np.testing.assert_allclose(run(1.0)[0].x, whole.x, rtol=1e-12, atol=1e-13)
        with pytest.raises(ValueError, match=r"learning_rate: .*got -1\.0"):
            jax.jit(lambda x: st.MGAPS(-1.0).learning_rate * x)(1.0)

    def test_vmap_over_keys_of_the_scenario(self, controller):
        def run(key):
            ka, kw = jax.random.split(key)
            made = st.Scenario(jnp.zeros(2), st.RandomWalk(0.05, -1.0, 1.0)(ka, 20, 3), st.Gaussian(0.1)(kw, 20, 2))
            return simulate(controller, made, **START).x

        keys = jax.random.split(KEY, 3)
        np.testing.assert_allclose(jax.vmap(run)(keys)[2], run(keys[2]), rtol=1e-10)

    def test_vmap_over_a_batch_of_scenarios(self, controller, scenario, whole):
        batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), scenario)
        runs = jax.vmap(lambda scenario: simulate(controller, scenario, **START))(batch)
        np.testing.assert_allclose(runs.x[1], whole.x, rtol=1e-10, atol=1e-12)

    def test_differentiable(self, scenario):
        """Forward through the whole run, tuner and all: against a finite difference."""

        def total(rate):
            controller = st.Controller(planar_system(), st.MGAPS(rate), st.GradientEstimator(0.05))
            cost = simulate(controller, scenario[:50], theta=G["theta0"], a_hat=G["a0"]).cost
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
            return simulate(controller, made, theta=jnp.array([theta]), a_hat=jnp.zeros(1), limit=1e6 * bound)

        first = run(0.1, 2, 1.0, 0.1)
        count = len(traces)
        assert count > 0
        second = run(np.float64(0.2), jnp.array(3.0), 0.5, 0.2)
        assert len(traces) == count
        assert float(jnp.max(jnp.abs(first.x - second.x))) > 0.01


class TestLengths:
    @pytest.mark.parametrize("record", [tuple(ALL_FIELDS), ()])
    @pytest.mark.parametrize("stride", [1, 3])
    def test_no_steps(self, controller, scenario, record, stride):
        run = simulate(controller, scenario[:0], **START, record=record, stride=stride)
        assert run.result.message == "ok"
        np.testing.assert_array_equal(run.final.x, scenario.x0)
        np.testing.assert_array_equal(run.final.state.theta, G["theta0"])
        if record:
            assert run.x.shape == (0, 2)
            assert run.y.shape == (0, 2, 4)

    def test_one_step(self, controller, scenario, whole):
        run = simulate(controller, scenario[:1], **START)
        np.testing.assert_array_equal(run.x, whole.x[:1])
        np.testing.assert_allclose(run.final.x, whole.x[1], rtol=1e-14)


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
        run = simulate(controller, made, **START, plant=plant)
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
    np.testing.assert_allclose(simulate(controller, made, **START).x, whole.x, rtol=1e-12, atol=1e-13)


def test_known_is_given_the_truth(scenario):
    controller = st.Controller(planar_system(), st.Fixed(), st.Known())
    run = simulate(controller, scenario, theta=G["theta0"])
    np.testing.assert_array_equal(run.a_hat, scenario.a_star)
    np.testing.assert_array_equal(run.f_hat, run.f)


def test_float32_stays_float32(scenario):
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), scenario)
    run = simulate(
        golden_controller("planar"), single, theta=G["theta0"].astype(np.float32), a_hat=G["a0"].astype(np.float32)
    )
    assert all(getattr(run, name).dtype == jnp.float32 for name in FIELDS)
    np.testing.assert_allclose(run.x, G["mgaps_x"], atol=2e-4)  # 300 steps of rounding at 6e-8, in a contracting loop
