"""`Delayed` and `Quantized`, and a sampling period in the context."""

import control
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import models
from selftune.models.base import AbstractWrappedModel
from tests.models.plants import FIRST, MODELS, rollout, typical


@pytest.mark.parametrize("samples", [1, 4])
def test_a_delay_is_that_of_control(samples):
    """The sampled plant times z^-k, and the response of the plant without a delay, k samples later."""
    plain = models.FirstOrder(**FIRST, dt=0.02)
    model = models.Delayed(plain, samples)
    u = np.random.default_rng(0).standard_normal(100)
    sampled = control.tf([FIRST["gain"]], [FIRST["time_constant"], 1.0]).sample(0.02)
    late = sampled * control.tf([1.0], [1.0] + [0.0] * samples, 0.02)
    expected = control.forced_response(late, np.arange(100) * 0.02, u).outputs
    x = rollout(model, model.x0, jnp.asarray(u)[:, None])
    got = jax.vmap(model.output)(x[:-1])[:, 0]
    np.testing.assert_allclose(got, expected, atol=1e-12)
    undelayed = rollout(plain, plain.x0, jnp.asarray(u)[:, None])
    np.testing.assert_array_equal(got[samples:], undelayed[: 100 - samples, 0])


@pytest.mark.parametrize("name", MODELS)
def test_any_model_can_be_delayed(name):
    """The first k controls arrive k steps later; residual, output and measurement are those of the model."""
    plain = MODELS[name](unknown=(models.Load(), models.GainError()))
    model, m = models.Delayed(plain, 2), len(plain.controls)
    x, u, a = typical(plain, np.random.default_rng(0), 6)
    f = plain.residual(x, a, 0)
    queue = u[:2].reshape(-1)
    late = rollout(model, jnp.concatenate([x, queue]), u[2:], f)
    prompt = rollout(plain, x, u[:4], f)
    n = len(plain.states)
    np.testing.assert_array_equal(late[:, :n], prompt)
    np.testing.assert_array_equal(late[-1, n:], u[-2:].reshape(-1))
    np.testing.assert_array_equal(model.residual(late[0], a, 0), f)
    np.testing.assert_array_equal(model.measure(late[0], 0), plain.output(x))
    assert len(model.states) == len(model.x0) == n + 2 * m
    assert (model.dt, model.outputs, model.parameters) == (plain.dt, plain.outputs, plain.parameters)


def test_delays_add():
    plain = models.FirstOrder(**FIRST, dt=0.02)
    twice, once = models.Delayed(models.Delayed(plain, 1), 2), models.Delayed(plain, 3)
    u = jnp.asarray(np.random.default_rng(0).standard_normal((20, 1)))
    np.testing.assert_array_equal(rollout(twice, twice.x0, u)[:, 0], rollout(once, once.x0, u)[:, 0])


def test_quantized_measurements():
    model = models.Quantized(models.CartPole(0.02, output=("position", "angle")), resolution=[0.001, 0.01])
    x, _, _ = typical(model, np.random.default_rng(0))
    got, exact = np.asarray(model.measure(x, 0)), np.asarray(model.output(x))
    np.testing.assert_allclose(got / [0.001, 0.01], np.round(exact / [0.001, 0.01]), rtol=1e-12)
    assert np.all(np.abs(got - exact) <= [0.0005, 0.005])
    assert not np.any(jax.jacfwd(lambda x: model.measure(x, 0))(x))  # as the docstring says
    late = models.Delayed(model, 1)
    np.testing.assert_array_equal(late.measure(jnp.append(x, 0.0), 0), got)


@pytest.mark.parametrize(
    "wrap",
    [lambda model: models.Delayed(model, 2), lambda model: models.Quantized(model, 0.1)],
    ids=["delay", "sensor"],
)
def test_wrappers_share_the_signals_of_their_model(wrap):
    """The common base has the six attributes that no wrapper changes; a wrapper does not define them again."""
    plain = MODELS["motor"](unknown=(models.Load(), models.Viscous()))
    model = wrap(plain)
    for name in ("dt", "controls", "outputs", "parameters"):
        assert getattr(model, name) == getattr(plain, name)
    np.testing.assert_array_equal(model.a_hat, plain.a_hat)
    np.testing.assert_array_equal(model.a_constraint.high, plain.a_constraint.high)
    assert isinstance(model, AbstractWrappedModel)
    shared = {"dt", "controls", "outputs", "parameters", "a_hat", "a_constraint"}
    assert not shared & set(vars(type(model)))


@pytest.mark.parametrize(
    "model",
    [
        MODELS["first order"](),
        MODELS["tank"](),
        models.StateSpace([[0.0]], [[2.0]], [[1.0]], dt=0.1),
        MODELS["double integrator"](integrator=models.RK4()),
        MODELS["cart-pole"](),
        MODELS["motor"](integrator=models.Euler(3)),
    ],
    ids=["first order", "tank", "integrator", "RK4", "cart-pole", "Euler"],
)
def test_a_measured_period_takes_the_place_of_dt(model):
    """The step of a context with dt is that of a model with this dt; without dt, the nominal one."""
    x, u, _ = typical(model, np.random.default_rng(0))
    u, f = jnp.abs(u), jnp.zeros(len(model.controls))
    context = st.LoopContext(step=jnp.array(3), reference=jnp.zeros(1))
    np.testing.assert_array_equal(model.dynamics(x, u, f, context), model.dynamics(x, u, f, 3))
    halves = context._replace(dt=jnp.array(model.dt / 2))
    twice = model.dynamics(model.dynamics(x, u, f, halves), u, f, halves)
    whole = model.dynamics(x, u, f, context)
    assert not np.array_equal(model.dynamics(x, u, f, halves), whole)
    exact = isinstance(model.integrator, models.Exact)
    # Euler in halves is more exact than in one step, so the two differ by their own error.
    tolerance = 1e-12 if exact else 1e-3
    np.testing.assert_allclose(twice, whole, rtol=tolerance, atol=tolerance)
    nominal = context._replace(dt=jnp.array(model.dt))
    np.testing.assert_allclose(model.dynamics(x, u, f, nominal), whole, rtol=1e-13)


def test_constant_matrices_refuse_a_measured_period():
    context = st.LoopContext(step=jnp.array(0), reference=jnp.zeros(1), dt=jnp.array(0.01))
    for model in (MODELS["two mass"](), models.StateSpace([[0.9]], [[0.1]], [[1.0]], 0.1, integrator=models.Sampled())):
        with pytest.raises(st.ArgumentError, match="t: expected a context without dt"):
            model.dynamics(model.x0, jnp.zeros(1), jnp.zeros(1), context)
