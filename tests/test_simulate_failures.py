"""How runs end that do not end well, and what is refused before they begin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

import selftune as st
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
        assert run.result.message == "the state diverged at step 6 (the next x = 1e+07)"
        assert not bool(run.result.ok)

    def test_diverged_at_the_last_step(self):
        run = run_unstable(unstable(10.0), limit=1e39, throw=False)
        assert (int(run.result.code), int(run.result.step)) == (st.Result.DIVERGED, 39)

    def test_non_finite(self):
        """A cost that stops being a number: nothing but the cost shows it, and it is seen."""
        cost = lambda x, u, theta, t: jnp.sum(x) * jnp.where(t == 13, jnp.nan, 1.0)
        run = run_unstable(unstable(0.5, cost), throw=False)
        assert (int(run.result.code), int(run.result.step)) == (st.Result.NON_FINITE, 13)
        assert run.result.message == "a number stopped being finite at step 13 (cost = nan)"

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


@pytest.mark.usefixtures("as_a_user")
class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (dict(controller=None), "controller: expected a Controller, got None"),
            (dict(scenario={}), "scenario: expected a Scenario"),
            (dict(plant=3), "plant: expected a System or None, got 3"),
            (dict(theta=None), "theta: expected the first policy parameters, got None"),
            (dict(a_hat=None), r"a_hat: expected the first model parameters, such as a_hat=jnp.zeros\(1\), got None"),
            (
                dict(theta=jnp.ones(3)),
                r"theta: expected a value that fits its .*Box, got .*; low: .*\(3,\), got .*\[4\]",
            ),
            (dict(theta=jnp.full(4, jnp.nan)), "theta: expected finite numbers, got nan"),
            (dict(theta=jnp.full(4, 9.0)), "theta: expected a point of its constraint, Box"),
            (dict(theta="high"), "theta: expected real numbers, got 'high'"),
            (dict(theta=jnp.ones(4, complex)), "theta: expected real numbers"),
            (dict(theta=jnp.ones(4, jnp.float32)), r"theta: expected dtype float64, got float32\[4\]"),
            (dict(theta=()), "theta: expected at least one number"),
            (dict(a_hat=jnp.full(3, 9.0)), "a_hat: expected a point of its constraint, Box"),
            (dict(a_hat=jnp.zeros(2)), "a_hat: expected a value that fits its constraint"),
            (dict(record=("x", "thetas")), r"record: expected names from .*, got 'thetas' .did you mean theta\?"),
            (
                dict(scenario=st.Scenario(jnp.zeros(2), jnp.zeros((5, 7)), jnp.zeros((5, 2)))),
                r"a_star: expected rows like a_hat, \(3,\), because the plant is the model, got \(7,\); if the plant "
                r"has other parameters than the model, give the plant",
            ),
            (dict(stride=0), "stride: expected a whole number >= 1, got 0"),
            (dict(stride=1.5), "stride: expected a whole number >= 1"),
            (dict(limit=-1.0), "limit: expected a number > 0, got -1.0"),
            (dict(limit=jnp.nan), "limit: expected a number > 0, got nan"),
            (dict(record=None), "record: expected names from"),
            (dict(resume="there"), "theta, a_hat, x_hat: expected None together with resume"),
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
            (
                st.Scenario(x0, jnp.zeros((300, 0)), w),
                r"a_star: expected rows like a_hat, \(3,\), .*got \(0,\)",
            ),
            (
                st.Scenario(jnp.zeros(3), a_star, jnp.zeros((300, 3))),
                r"^x: expected another shape, such as \(2,\), .*got float64\[3\]",
            ),
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
        # A matrix with a vector's numbers may pass the constraint; `System.check` calls â by the name of its own a.
        blamed = {"theta": ("theta",), "a_hat": ("a_hat", "a", "preconditioner")}[name]
        try:
            run = st.simulate(controller, scenario[:2], **(START | {name: argument}))
        except ValueError as error:
            refused = str(error)
        else:
            assert np.shape(argument) == START[name].shape
            assert bool(run.result.ok)
            return
        assert refused.partition(":")[0] in blamed, refused
