"""The `repr` of settings: Python that makes the same settings again, short, and possible for traced values too."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selftune as st
from selftune import models, policies
from selftune.foundation import settings_text

BOX = st.Box(0.0, [1.0, 50.0])
SETTINGS = [
    st.MGAPS(0.05),
    st.MGAPS(0.1 + 0.2, constraint=BOX, contraction_memory=1000),
    st.GAPS(20, 1e-4, constraint=st.Ball(2.0)),
    st.DiffTune(5, 1e-3),
    st.Fixed(),
    st.GradientEstimator(0.005, constraint=st.Simplex(2.0)),
    st.RLS(0.99, 10.0),
    st.KalmanEstimator(0.1, [0.2, 0.3]),
    st.Known(),
    st.Frozen(),
    st.Unconstrained(),
    st.Box(-np.inf, np.inf),
    st.Box({"kp": 0.0, "K": [[1.0, 2.0]]}, 3.0),
    st.Product({"kp": st.Box(0.0, 1.0), "rest": st.Unconstrained()}),
    st.Guard(),
    st.Guard(u_low=(-1.0, -2.0), u_high=3.0, rollback=None, window=100),
    st.Gaussian(0.1),
    st.OrnsteinUhlenbeck(0.9, [0.0, 0.01]),
    st.PiecewiseConstant(4000, -1.0, 1.0),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: type(settings).__name__)
def test_the_text_makes_the_same_settings_again(settings):
    again = eval(repr(settings), {name: getattr(st, name) for name in dir(st)} | {"inf": np.inf})
    assert bool(eqx.tree_equal(again, settings))


def test_the_text_is_short_and_leaves_out_defaults():
    made = st.MGAPS(learning_rate=0.05, constraint=st.Box(0.0, 50.0))
    assert repr(made) == "MGAPS(learning_rate=0.05, constraint=Box(low=0.0, high=50.0))"
    assert repr(st.MGAPS(0.05, constraint=st.Unconstrained(), contraction_memory=None)) == "MGAPS(learning_rate=0.05)"
    assert repr(st.Guard(rate=0.1, window=500)) == "Guard()"
    assert repr(st.Box(np.zeros(17), 1.0)) == "Box(low=float64[17], high=1.0)"
    assert repr(st.Box(np.zeros(16), 1.0)) == f"Box(low=[{', '.join(['0.0'] * 16)}], high=1.0)"


def test_a_number_of_float32_has_the_digits_of_float32():
    assert repr(st.Box(np.float32(0.1), np.float32(0.2))) == "Box(low=0.1, high=0.2)"


def dynamics(x, u, f, t):
    return x + u


class Own(st.AbstractTuner):
    """A tuner as a user writes it."""

    gain: float = 2.0
    table: jax.Array = eqx.field(default_factory=lambda: jnp.zeros(2))

    def init(self, system, x, theta):
        return None

    def update(self, system, x, theta, a_hat, t, state):
        raise NotImplementedError


def test_functions_and_transformations_have_names_without_addresses():
    system = st.System(dynamics, functools.partial(dynamics, f=0.5), lambda x, theta, f, t: x, jnp.sum)
    text = "System(dynamics=dynamics, residual=partial(dynamics, f=0.5), policy=<lambda>, cost=sum)"
    assert repr(system) == text
    assert repr(st.MatchedSystem(dynamics, dynamics, dynamics, dynamics)).startswith("MatchedSystem(dynamics=dynamics,")
    assert repr(st.MGAPS(optax.adam(0.1))) == "MGAPS(learning_rate=optax.chain(…))"
    assert repr(st.MGAPS(optax.constant_schedule(0.1))) == "MGAPS(learning_rate=<lambda>)"
    controller = st.Controller(system, st.MGAPS(0.05), st.RLS(0.99, 10.0))
    assert repr(controller) == (
        f"Controller(\n  system={text},\n  tuner=MGAPS(learning_rate=0.05),\n  estimator=RLS(covariance=10.0),\n)"
    )
    default = f"Controller(\n  system={text},\n  tuner=GaussNewton(),\n  estimator=AutoEstimator(),\n)"
    assert repr(st.Controller(system)) == default


FIRST = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
PID = policies.PID(kp=4.0, ki=2.0, kd=0.3, u_min=-6.0, u_max=6.0, rate_limit=5.0, anti_windup=policies.Clamping())
TEXTS = [
    (st.AutoEstimator(), "AutoEstimator()"),
    (st.AutoEstimator(constraint=st.Box(-1.0, 1.0)), "AutoEstimator(constraint=Box(low=-1.0, high=1.0))"),
    (st.KalmanEstimator(), "KalmanEstimator()"),
    (st.RLS(0.9), "RLS(forgetting=0.9)"),
    (policies.PID.standard(3.0, 2.0), "PID(kp=3.0, ki=1.5, tune_times=True, anti_windup=BackCalculation())"),
    (policies.StateFeedback([[1.0, -2.0]], u_max=3.0), "StateFeedback(K=[[1.0, -2.0]], u_max=[3.0])"),
    (policies.LeadLag(gain=-3.0, lead=1.0, lag=0.1), "LeadLag(gain=-3.0, lead=1.0, lag=0.1)"),
    (policies.LowPass([0.1, 0.3]), "LowPass(time_constant=[0.1, 0.3])"),
    (
        policies.Filtered(policies.LeadLag(gain=3.0, lead=1.0, lag=0.1), output=policies.LowPass(0.3)),
        "Filtered(policy=LeadLag(gain=3.0, lead=1.0, lag=0.1), output=LowPass(time_constant=0.3), size=1)",
    ),
    (policies.VelocityFilter(0.3, dt=0.1), "VelocityFilter(time_constant=0.3, dt=0.1)"),
    (
        policies.Luenberger([[0.3], [2.0]], measure=[[1.0, 0.0]], tunable=False),
        "Luenberger(L=[[0.3], [2.0]], measure=[[1.0, 0.0]], x=[0.0, 0.0], tunable=False)",
    ),
    (FIRST, "FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)"),
    (models.Delayed(FIRST, 3), "Delayed(model=FirstOrder(gain=2.0, time_constant=0.5, dt=0.01), samples=3)"),
    (
        models.DoubleIntegrator(
            mass=2.0, dt=0.01, output=("position", "velocity"), unknown=(models.Viscous(),), integrator=models.RK4()
        ),
        "DoubleIntegrator(\n  mass=2.0,\n  dt=0.01,\n  output=('position', 'velocity'),\n  unknown=(Viscous(),),\n"
        "  integrator=RK4(),\n)",
    ),
    (st.Tracking(error=2.0), "Tracking(error=2.0)"),
    (st.references.Sine(2.0, 3.0), "Sine(amplitude=2.0, seconds=3.0)"),
]


@pytest.mark.parametrize(("settings", "text"), TEXTS, ids=lambda value: type(value).__name__)
def test_the_parts_of_a_loop_show_their_numbers(settings, text):
    assert repr(settings) == text


def test_a_loop_shows_its_parts():
    text = repr(st.Loop(FIRST, PID))
    assert "plant=FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)," in text
    for part in ("kp=4.0", "ki=2.0", "kd=0.3", "u_max=[6.0]", "rate_limit=[5.0]", "anti_windup=Clamping()"):
        assert part in text
    assert "float" not in text


def test_a_policy_without_known_numbers_has_a_text():
    """While JAX traces, and where JAX replaced the arrays by their shapes."""
    texts = []
    jax.jit(lambda kp: texts.append(repr(policies.PID(kp=kp, ki=1.0))) or kp)(2.0)
    assert "kp=float64[]" in texts[0]
    assert repr(jax.eval_shape(lambda: policies.PID(kp=1.0))).startswith("PID(")
    assert repr(jax.tree.map(lambda leaf: None, PID)).startswith("PID(")


def test_settings_of_a_user():
    assert repr(Own()) == "Own()"
    assert repr(Own(3.0, jnp.ones(2))) == "Own(gain=3.0, table=[1.0, 1.0])"
    assert repr(Own(2, [1, (2,)])) == "Own(gain=2, table=[1, (2,)])"  # another type than the default


def test_values_that_are_not_known_are_shown_by_shape():
    texts = []

    def made(rate, bound):
        tuner = st.MGAPS(rate, constraint=st.Box(0.0, bound))
        texts.append(repr(tuner))
        return tuner

    jax.jit(made)(0.1, jnp.ones(2))
    jax.vmap(made)(jnp.ones(3), jnp.ones((3, 2)))
    jax.jvp(lambda rate: made(rate, 1.0).learning_rate, (0.1,), (1.0,))
    for text in texts:
        assert text.startswith("MGAPS(learning_rate=float")
        assert "Traced" not in text
    leaf_less = jax.tree.map(lambda leaf: None, st.MGAPS(0.1))
    assert repr(leaf_less) == "MGAPS(learning_rate=None)"
    assert "ShapeDtypeStruct" in repr(jax.eval_shape(lambda: st.MGAPS(0.1)))
    deleted = st.Box(jnp.zeros(2), jnp.ones(2))
    deleted.low.delete()
    assert repr(deleted) == "Box(low=float64[2], high=[1.0, 1.0])"


def test_a_scenario_shows_keys_and_long_arrays_by_shape():
    scenario = st.Scenario(jnp.ones(1), jnp.ones((100, 1)), st.Gaussian(0.1).stream(jax.random.key(0), (1,)))
    assert "a_star=float64[100, 1]" in repr(scenario)
    assert "w=Stream(process=Gaussian(sigma=0.1), key=key[], shape=(1,))" in repr(scenario)


def test_containers():
    assert settings_text.value({"a": (1,), "b": [None, "text"]}) == "{'a': (1,), 'b': [None, 'text']}"
    assert settings_text.value(jnp.array(True)) == "True"
    assert settings_text.value(np.arange(3)) == "[0, 1, 2]"
