"""`print(run)` and `run.result` tell how a run went, also where its numbers are finite and the run is ruined."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st

STEPS = 400
START = {"theta": jnp.ones(1), "a_hat": jnp.zeros(1)}


def system(growth=1.0, cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2)):
    return st.System(
        dynamics=lambda x, u, f, t: growth * x + 0.1 * (u + f),
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: -theta * x - f,
        cost=cost,
    )


def scenario(x0=1.0, noise=0.1):
    return st.Scenario(jnp.full(1, x0), jnp.zeros((STEPS, 1)), st.Gaussian(noise)(jax.random.key(1), STEPS, 1))


def run(tuner=None, made=None, scene=None, **options):
    controller = st.Controller(made or system(), tuner or st.MGAPS(1e-2, constraint=st.Box(0.0, 8.0)), st.Frozen())
    return st.simulate(controller, scene or scenario(), **START, **options)


@pytest.mark.parametrize("engine", ["native", "xla"])
def test_costs_are_those_of_the_first_and_the_last_tenth(engine):
    done = run(engine=engine)
    expected = [float(jnp.mean(done.cost[:40])), float(jnp.mean(done.cost[-40:]))]
    np.testing.assert_allclose(done.result.costs, expected, rtol=1e-12)
    found = done.diagnosis
    np.testing.assert_allclose([found.first_cost, found.last_cost], expected, rtol=1e-12)
    assert (found.steps, found.engine, found.result, found.first_bad, found.warnings()) == (
        STEPS,
        engine,
        "ok",
        None,
        [],
    )
    assert found.theta is not None
    np.testing.assert_array_equal(found.theta[1], done.theta[-1])


def test_a_ruined_run_is_not_just_ok():
    """A gain that is too low: x grows by 10 % a step, every number stays finite."""
    done = run(st.Fixed(), system(1.2), limit=np.inf)
    first, last = np.asarray(done.result.costs)
    assert float(last / first) > 1e6
    assert done.result.message == f"ok, but the cost rose: {first:.4g} in the first tenth, {last:.4g} in the last"
    assert bool(done.result.ok)
    assert f"! The mean cost rose from {first:.4g} in the first tenth to {last:.4g} in the last." in str(done)


def test_a_run_that_is_ruined_early_says_that_a_bound_sets_theta():
    """A cost that rewards a small gain: θ falls to its bound in the first tenth, and no later cost rises."""
    done = run(
        st.MGAPS(1.0, constraint=st.Box(0.0, 8.0), contraction_memory=50),
        system(cost=lambda x, u, theta, t: jnp.sum(theta)),
    )
    held = done.result.held
    assert held is not None
    assert held[0] > 0.9
    assert done.result.message == f"ok; the constraint held θ[0] back in {100 * held[0]:.0f} % of the steps"
    assert done.result.contraction == pytest.approx(1.0, abs=0.1)
    assert run().result.held is None


def test_the_share_of_steps_at_a_bound():
    """The optimum is above the box: θ climbs to the upper bound and the gradient pushes it outward from there on."""
    done = run(st.MGAPS(1.0, constraint=st.Box(0.0, 1.2)))
    outward = (np.asarray(done.theta[:, 0]) == 1.2) & (np.asarray(done.gradient[:, 0]) < 0)
    inward = (np.asarray(done.theta[:, 0]) == 0.0) & (np.asarray(done.gradient[:, 0]) > 0)
    assert outward.mean() > 0.3
    np.testing.assert_allclose(done.diagnosis.held, [(outward | inward).mean()], atol=1e-12)


@pytest.mark.parametrize("constraint", [st.Ball(0.5, center=[1.0]), st.Product(st.Box(0.5, 1.5)), st.Box(0.5, 1.5)])
def test_every_kind_of_constraint_has_such_a_share(constraint):
    """In one dimension these three sets are the same interval."""
    done = run(st.MGAPS(1.0, constraint=constraint))
    reference = run(st.MGAPS(1.0, constraint=st.Box(0.5, 1.5)))
    assert 0.2 < float(np.sum(reference.diagnosis.held)) < 1.0
    np.testing.assert_allclose(done.diagnosis.held, reference.diagnosis.held, atol=0.01)


def test_half_of_the_steps_at_a_bound_is_said():
    """Without noise and effort a higher gain is better at every step, and θ₀ = 1 is the highest that is allowed."""
    made = system(cost=lambda x, u, theta, t: jnp.sum(x**2))
    done = run(st.MGAPS(1e-4, constraint=st.Box(0.0, 1.0)), made, scenario(noise=1e-30))
    np.testing.assert_allclose(done.diagnosis.held, [1.0], atol=0.01)
    assert "! The constraint held θ[0] back in at least half of the steps" in str(done)


def test_contraction_and_guard_are_told():
    done = run(st.MGAPS(1e-3, contraction_memory=50), guard=st.Guard(x_limit=0.5))
    assert done.diagnosis.contraction == pytest.approx(float(done.contraction[-1]))
    refused = int(np.count_nonzero(np.asarray(done.guard) & st.Decision.REFUSED))
    assert refused > 0
    assert f"refused: {refused} steps" in str(done)
    unstable = run(st.Fixed(contraction_memory=50), system(1.2), limit=np.inf)
    assert "! The closed loop does not contract (ρ̂ = 1.1)" in str(unstable)


class TestFailures:
    @pytest.mark.parametrize("engine", ["native", "xla"])
    def test_which_number_went_bad_first(self, engine):
        """x grows by 10 % a step; √(20 − x) is NaN from the first x > 20 on, at step 32: 1.1³² = 21.1."""
        made = system(1.2, cost=lambda x, u, theta, t: jnp.sum(jnp.sqrt(20 - x)))
        with pytest.raises(st.SimulationError) as caught:
            run(st.Fixed(), made, scenario(noise=1e-12), engine=engine)
        assert str(caught.value) == "simulate: a number stopped being finite at step 32 (cost = nan)"
        assert "! The first number that went bad at that step: cost = nan." in str(caught.value.run)
        assert caught.value.run.diagnosis.steps == 32

    def test_which_state_diverged(self):
        done = run(st.Fixed(), system(1.2), scenario(noise=1e-12), limit=20.0, throw=False)
        assert done.diagnosis.first_bad == done.result.first_bad == "the next x = 21.11"
        assert done.result.message == "the state diverged at step 31 (the next x = 21.11)"

    def test_a_run_that_continues_from_a_bad_state(self):
        """It has failed before its first step, so it has no good step."""
        controller = st.Controller(system(1.2), st.Fixed(contraction_memory=50), st.Frozen())
        scene = scenario(noise=1e-12)
        head = st.simulate(controller, scene, **START, limit=20.0, throw=False)
        tail = st.simulate(controller, scene[:1], resume=head.final, limit=20.0, throw=False)
        assert "diverged" in tail.result.message
        assert tail.diagnosis.steps == 0
        with pytest.raises(st.SimulationError):
            st.simulate(controller, scene[:1], resume=head.final, limit=20.0)

    def test_a_bad_number_that_was_not_recorded_is_not_guessed(self):
        made = system(1.2, cost=lambda x, u, theta, t: jnp.sum(jnp.sqrt(20 - x)))
        done = run(st.Fixed(), made, scenario(noise=1e-12), throw=False, record=("x",))
        assert done.diagnosis.first_bad is None
        strided = run(st.Fixed(), made, scenario(noise=1e-12), throw=False, stride=7)
        assert strided.diagnosis.first_bad is None

    def test_steps_count_on_after_a_resume(self):
        made = system(1.2, cost=lambda x, u, theta, t: jnp.sum(jnp.sqrt(20 - x)))
        controller = st.Controller(made, st.Fixed(), st.Frozen())
        scene = scenario(noise=1e-12)
        head = st.simulate(controller, scene[:20], **START)
        tail = st.simulate(controller, scene[20:], resume=head.final, throw=False)
        assert int(tail.result.step) == 32
        assert tail.diagnosis.first_bad == "cost = nan"
        assert tail.diagnosis.steps == 12


class TestShown:
    def test_what_was_not_recorded_is_left_out(self):
        assert str(run(record=(), engine="native")) == f"Run of {STEPS} steps, native engine: ok"

    def test_a_batch(self):
        controller = st.Controller(system(), st.Fixed(), st.Frozen())
        batch = jax.vmap(lambda theta: st.simulate(controller, scenario(), theta=theta, a_hat=jnp.zeros(1)))(
            jnp.array([[1.0], [2.0], [3.0]])
        )
        first, last = np.median(batch.result.costs, axis=0)
        assert str(batch) == (
            f"3 runs of {STEPS} steps, native engine: ok\n"
            f"  mean cost    {first:.4g} in the first tenth, {last:.4g} in the last (medians over the runs)"
        )
        one = jax.tree.map(lambda leaf: leaf[1], batch)
        assert str(one).startswith(f"Run of {STEPS} steps, native engine: ok\n  mean cost")
        assert repr(batch).startswith(f"<Run of 3 × {STEPS} steps, engine='native', recorded: ")

    def test_while_jax_traces(self):
        shown = []

        @jax.jit
        def inside(theta):
            done = st.simulate(st.Controller(system(), st.Fixed(), st.Frozen()), scenario(), theta=theta, a_hat=[0.0])
            shown.extend([str(done), repr(done)])
            return done.result.code

        inside(jnp.ones(1))
        assert shown[0] == shown[1]
        assert shown[0].endswith("; traced>")


def test_rollbacks_are_told():
    found = run(guard=st.Guard()).diagnosis
    assert not any("restored" in text for text in found.warnings())
    told = dataclasses.replace(found, decisions={"exploded": 2, "unstable": 1}).warnings()
    assert [text for text in told if "restored earlier θ and â 3 times" in text]


def test_the_share_of_steps_at_a_bound_and_the_names_of_theta():
    found = dataclasses.replace(run().diagnosis, theta=(np.zeros(2), np.ones(2)), names=("kp", "ki"))
    for held, text in (([0.0, 0.0], "never"), ([0.0, 0.001], "below 1 % of the steps"), ([0.0, 0.2], "[0, 20] %")):
        assert f"at a bound   {text}" in str(dataclasses.replace(found, held=np.array(held)))
    assert "θ            kp from 0 to 1, ki from 0 to 1" in str(found)
    bound = dataclasses.replace(found, held=np.array([0.0, 0.9])).warnings()
    assert "The constraint held ki back" in bound[0]


@pytest.mark.parametrize("theta", [[1.0, 2.0], {"kp": 1.0, "unused": 2.0}])
def test_a_number_of_theta_without_influence_is_named(theta):
    def first(theta):
        return theta["kp"] if isinstance(theta, dict) else theta[0]

    made = st.System(
        dynamics=lambda x, u, f, t: x + 0.1 * (u + f),
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: -first(theta) * x - f,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    controller = st.Controller(made, st.MGAPS(1e-3), st.Frozen())
    start = {"theta": jax.tree.map(jnp.asarray, theta) if isinstance(theta, dict) else jnp.array(theta)}
    done = st.simulate(controller, scenario(), **start, a_hat=jnp.zeros(1))
    name = "unused" if isinstance(theta, dict) else "θ[1]"
    assert done.result.message == f"ok; {name} has no influence: the policy and the cost do not use this part of θ"
    assert f"No step depends on {name}" in str(done)
    assert done.result.unused == (name,)
