"""Every model runs in both engines with the same numbers, in float32 too, and is compiled once for all its values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import models
from tests.models.plants import MODELS, typical
from tests.native.test_loop import assert_same

pytestmark = pytest.mark.versions

RNG = np.random.default_rng(0)
NETWORK = [RNG.normal(size=(3, 2)), RNG.normal(size=(2, 3))], [np.zeros(3), np.zeros(2)]
EXTRA = {
    "substeps": lambda: models.SecondOrder(1.0, 5.0, 0.5, 0.02, integrator=models.RK4(3)),
    "delayed": lambda: models.Delayed(MODELS["motor"](), 3),
    "all features": lambda: models.DoubleIntegrator(
        2.0,
        0.01,
        unknown=(
            models.Load(),
            models.Gravity(),
            models.Viscous(),
            models.Coulomb(),
            models.Stribeck(0.2),
            models.GainError(),
            models.RandomFourier(jax.random.key(0), state="position", length=0.3, count=3),
            models.RadialBasis([-0.5, 0.5], width=0.3, state="velocity"),
            models.LastLayer(*NETWORK),
            models.LastLayer(*NETWORK, activation=jax.nn.relu),
        ),
    ),
}


def closed_loop(model):
    """A proportional controller of all outputs, whose unknown part is estimated."""
    size = jnp.array([one.scale for one in model.outputs])
    control = jnp.array([one.scale for one in model.controls])
    spread = jnp.ones((len(model.controls), len(model.outputs))) / len(model.outputs)
    system = st.System(
        dynamics=model.dynamics,
        residual=model.residual,
        policy=lambda x, theta, f, t: control * (spread @ (theta[0] - theta[1] * model.output(x) / size)),
        cost=lambda x, u, theta, t: jnp.mean((model.output(x) / size - 0.2) ** 2) + 0.01 * jnp.mean((u / control) ** 2),
    )
    estimator = st.GradientEstimator(1e-3, constraint=model.a_constraint)
    controller = st.Controller(system, st.MGAPS(1e-3), estimator)
    rng = np.random.default_rng(1)
    x, _, a = typical(model, rng)
    scenario = st.Scenario(x, jnp.tile(a, (20, 1)), jnp.zeros((20, len(x))))
    return controller, scenario, dict(theta=jnp.array([0.3, 0.4]), a_hat=model.a_hat)


@pytest.mark.parametrize("name", [*[pytest.param(name, marks=pytest.mark.slow) for name in MODELS], *EXTRA])
def test_native_gives_the_run_of_xla(name):
    controller, scenario, start = closed_loop((MODELS | EXTRA)[name]())
    xla, native = (st.simulate(controller, scenario, engine=engine, **start) for engine in ("xla", "native"))
    assert native.engine == "native"
    assert_same(native, xla)


def test_jitter_in_both_engines():
    """References and measured periods come from the scenario; the exact steps add up to the true time."""
    model = models.FirstOrder(2.0, 0.5, dt=0.01)
    system = st.System(
        dynamics=model.dynamics,
        residual=model.residual,
        policy=lambda x, theta, f, t: theta * t.reference,
        cost=lambda x, u, theta, t: jnp.sum((t.reference - model.output(x)) ** 2),
    )
    periods = jnp.asarray(0.01 * (1 + 0.3 * np.random.default_rng(0).uniform(-1, 1, 50)))
    t = st.LoopContext(step=jnp.arange(50), reference=jnp.full((50, 1), 3.0), dt=periods)
    scenario = st.Scenario(model.x0, a_star=jnp.zeros((50, 1)), w=jnp.zeros((50, 1)), t=t)
    controller = st.Controller(system, st.Fixed(), st.Frozen())
    runs = [
        st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=model.a_hat, engine=engine)
        for engine in ("xla", "native")
    ]
    assert_same(*runs)
    expected = 6.0 * (1 - np.exp(-np.sum(np.asarray(periods)) / 0.5))
    assert float(runs[0].final.x[0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", [*MODELS, *EXTRA])
def test_float32(name):
    """A state in float32 stays in float32, and the step is that of float64 up to rounding."""
    model = (MODELS | EXTRA)[name]()
    x, u, a = typical(model, np.random.default_rng(0))
    step = jax.jit(lambda x, u, a: model.dynamics(x, u, model.residual(x, a, 0), 0))
    wide, narrow = step(x, u, a), step(*(v.astype(jnp.float32) for v in (x, u, a)))
    assert narrow.dtype == model.output(narrow).dtype == model.measure(narrow, 0).dtype == jnp.float32
    size = np.array([one.scale for one in model.states])
    assert np.max(np.abs(np.asarray(wide) - np.asarray(narrow)) / size) < 1e-5  # a hundred roundings of 6e-8


def test_models_made_in_float32():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        for name in ("motor inductance", "cart-pole", "tank", "all features"):
            model = (MODELS | EXTRA)[name]()
            assert model.x0.dtype == model.a_hat.dtype == jnp.float32
            f = model.residual(model.x0, model.a_hat, 0)
            assert model.dynamics(model.x0, jnp.zeros(len(model.controls)), f, 0).dtype == jnp.float32


def test_other_values_do_not_compile_again():
    traces = []

    @eqx.filter_jit
    def step(model, x):
        traces.append(model)
        return model.dynamics(x, jnp.ones(1), jnp.zeros(1), 0)

    results = [
        step(models.SecondOrder(gain, frequency, 0.5, dt=0.01), jnp.zeros(2))
        for gain, frequency in ((1.0, 5.0), (2.0, 7.0), (3.0, 9.0))
    ]
    assert len(traces) == 1
    assert len({float(x[0]) for x in results}) == 3


@pytest.mark.parametrize("name", [*MODELS, *EXTRA])
def test_sizes_agree(name):
    model = (MODELS | EXTRA)[name]()
    n, m, q = len(model.states), len(model.controls), len(model.outputs)
    assert model.x0.shape == (n,)
    assert model.a_hat.shape == (len(model.parameters),)
    assert model.output(model.x0).shape == model.measure(model.x0, 0).shape == (q,)
    f = model.residual(model.x0, model.a_hat, 0)
    assert model.dynamics(model.x0, jnp.zeros(m), f, 0).shape == (n,)
    for one in (*model.states, *model.controls, *model.outputs, *model.parameters):
        assert isinstance(one.scale, float)
        assert 0 < one.scale < np.inf
        assert one.unit
    assert {one.name for one in model.outputs} <= {one.name for one in model.states} or name == "state space"
