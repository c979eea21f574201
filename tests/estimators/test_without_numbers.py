"""Estimators that take their scales from their set and from the data."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import testing
from selftune.estimators import _scales
from selftune.estimators.kalman import KalmanState
from tests.estimators.test_updates import data, linear_system, run

TRUTH = jnp.array([0.5, -1.0, 2.0])
BOX = st.Box([-4.0, -20.0, -9.0], [6.0, 10.0, 9.0])
MAKERS = {
    "kalman": lambda c: st.KalmanEstimator(constraint=c),
    "rls": lambda c: st.RLS(constraint=c),
    "gradient": lambda c: st.NormalizedGradient(constraint=c),
}
SETS = {"box": BOX, "half-open": st.Box([-4.0, -jnp.inf, -9.0], [6.0, 10.0, 9.0]), "no bounds": st.Unconstrained()}


def scales_of(state):
    if isinstance(state, _scales.Scales):
        return state
    return state.scales if isinstance(state, KalmanState) else state.learned.scales


class Reference:
    """The rules as the docstrings state them, in NumPy, with covariances instead of square roots."""

    def __init__(self, k, p, variance):
        self.count, self.noise, self.F = 0, np.zeros(k), np.zeros(k)
        self.mean, self.M, self.variance = np.zeros((k, p)), np.zeros((k, p)), variance
        self.P, self.P0, self.level = np.diag(variance), variance, np.zeros(k)

    def observe(self, e, J):
        self.count = min(self.count + 1, 300)
        self.noise = self.noise + (e**2 - self.noise) / self.count
        self.F = np.maximum(self.F, self.noise * (self.count / 300) ** 2)
        self.mean = self.mean + (J**2 - self.mean) / self.count
        self.M = np.maximum(self.M, self.mean)
        before, learned = self.P0, 1 / (self.M / self.F[:, None]).sum(0)
        self.P0 = np.where(self.variance > 0, self.variance, learned)
        self.P = self.P + np.diag(np.maximum(self.P0 - before, 0))

    def kalman(self, a, e, J):
        self.observe(e, J)
        V = np.maximum(self.noise, (300 / self.count - 1) * (J**2 * self.P0).sum(1))
        R = np.linalg.inv(self.P) + J.T / V @ J
        a = a + np.linalg.solve(R, J.T @ (e / V))
        self.P = (1 - 1e-4) * np.linalg.inv(R) + 1e-4 * np.diag(self.P0)
        return a

    def rls(self, a, e, J):
        before = self.level
        self.observe(e, J)
        self.level = self.noise + np.maximum(0.99 * (before - self.noise), 0)
        rise = np.minimum(before / self.level, 1) if before.all() else np.ones_like(before)
        forgetting = 0.99 * np.prod(rise) ** (1 / rise.size)
        R = forgetting * np.linalg.inv(self.P) + (1 - forgetting) * np.diag(1 / self.P0) + J.T / self.level @ J
        self.P = np.linalg.inv(R)
        return a + np.linalg.solve(R, J.T @ (e / self.level))

    def gradient(self, a, e, J):
        self.observe(e, J)
        trace = np.trace(np.diag(1 / self.noise) @ J @ np.diag(self.P0) @ J.T)
        return a + 0.06 * self.P0 * (J.T @ (e / self.noise)) / (e.size + trace)


@pytest.mark.parametrize("bounds", ["box", "no bounds"])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", MAKERS)
def test_against_numpy(name, k, bounds):
    """500 steps, so that the window of 300 is passed. No estimate reaches a bound of the box."""
    features, observations = data(jax.random.key(1), 500, k, 3, TRUTH, noise=0.3)
    a, state, _ = run(MAKERS[name](SETS[bounds]), features, observations, jnp.zeros(3))
    variance = np.array([10.0, 30.0, 18.0]) ** 2 / 12 if bounds == "box" else np.zeros(3)
    reference, expected = Reference(k, 3, variance), np.zeros(3)
    for J, y in zip(np.asarray(features), np.asarray(observations), strict=True):
        expected = getattr(reference, name)(expected, y - 0.3 - J @ expected, J)
    # The reference inverts covariances whose condition number is up to 1e4.
    np.testing.assert_allclose(a, expected, rtol=1e-9)
    np.testing.assert_allclose(scales_of(state).noise, reference.noise, rtol=1e-9)
    if name != "gradient":
        np.testing.assert_allclose(state.covariance, reference.P, rtol=1e-8, atol=1e-10)


def scaled_system(x_unit, f_unit, a_unit):
    """f = sin-features of x times a + 0.3, in other units of x, f and a."""

    def residual(x, a, t):
        x, a = x / x_unit, a / a_unit
        features = jnp.stack([jnp.sin(x), jnp.cos(2 * x), x], axis=1)
        return f_unit * (features @ a + 0.3)

    return st.System(
        dynamics=lambda x, u, f, t: x,
        residual=residual,
        policy=lambda x, theta, f, t: f,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )


UNITS = [
    (1e3, jnp.ones(2), jnp.ones(3)),
    (1.0, jnp.array([1e3, 1e-3]), jnp.ones(3)),
    (1.0, jnp.ones(2), jnp.array([1e-3, 1e3, 1e3])),
    (1e-3, jnp.array([1e-3, 1e3]), jnp.array([1e3, 1e-3, 1.0])),
]


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        pytest.param(name, bounds, marks=pytest.mark.slow if name == "kalman" and bounds != "box" else ())
        for name in MAKERS
        for bounds in SETS
    ],
)
def test_predictions_do_not_depend_on_units(name, bounds):
    kx, kv = jax.random.split(jax.random.key(2))
    states, noise = jax.random.normal(kx, (400, 2)), 0.1 * jax.random.normal(kv, (400, 2))
    low, high = SETS[bounds].bounds(TRUTH)
    # A truth outside of the box on one side: the bound is active, and the projection must not depend on units either.
    truth = TRUTH.at[2].set(12.0)

    def innovations(x_unit, f_unit, a_unit):
        system = scaled_system(x_unit, f_unit, a_unit)
        estimator = MAKERS[name](st.Unconstrained() if bounds == "no bounds" else st.Box(low * a_unit, high * a_unit))

        def step(carry, row):
            x, v = row
            f_obs = system.residual(x, truth * a_unit, 0) + f_unit * v
            a, state, info = estimator.update(system, x, f_obs, carry[0], 0, carry[1])
            return (a, state), info.innovation / f_unit

        start = jnp.zeros(3), estimator.init(system, states[0] * x_unit, jnp.zeros(3))
        return eqx.filter_jit(jax.lax.scan)(step, start, (states * x_unit, noise))[1]

    expected = innovations(1.0, jnp.ones(2), jnp.ones(3))
    assert float(jnp.mean(expected[200:] ** 2)) < 0.5 * float(jnp.mean(expected[:2] ** 2))  # it learns
    for units in UNITS:
        np.testing.assert_allclose(innovations(*units), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", MAKERS)
def test_learns_the_noise_level_of_each_component(name):
    """The mean of 300 squares has a standard error of 8 %. The level also contains J P Jᵀ, here a few percent of V."""
    sigma = jnp.array([0.3, 3.0])
    features, observations = data(jax.random.key(3), 6000, 2, 3, TRUTH, noise=0.0)
    observations = observations + sigma * jax.random.normal(jax.random.key(4), observations.shape)
    _, state, _ = run(MAKERS[name](st.Box(-3.0, 3.0)), features, observations, jnp.zeros(3))
    np.testing.assert_allclose(scales_of(state).noise / sigma**2, 1.0, atol=0.35)


@pytest.mark.parametrize("name", MAKERS)
def test_a_first_innovation_of_zero_does_not_make_the_estimate_certain(name):
    """A sensor that repeats its first value explains the first step by a = 0 exactly. The noisy data that follow must
    still count: a constant of 2 is learned in 100 steps."""
    v = 0.5 * jax.random.normal(jax.random.key(14), (100, 1))
    observations = jnp.concatenate([jnp.full((1, 1), 0.3), 2.3 + v])
    a, _, _ = run(MAKERS[name](st.Box(-4.0, 4.0)), jnp.ones((101, 1, 1)), observations, jnp.zeros(1))
    np.testing.assert_allclose(a, 2.0, atol=0.3)


@pytest.mark.parametrize("bounds", ["box", "no bounds"])
@pytest.mark.parametrize("name", MAKERS)
def test_follows_a_drift(name, bounds):
    """Parameters that cross a tenth of the box in 1000 steps: the error stays far below the distance that they move."""
    steps = 6000
    phase = 2e-3 * jnp.arange(float(steps))[:, None] + jnp.arange(3.0)
    truth = TRUTH + jnp.sin(phase)
    features = jax.random.normal(jax.random.key(5), (steps, 1, 3))
    observations = jnp.einsum("tkp,tp->tk", features, truth) + 0.3
    observations = observations + 0.1 * jax.random.normal(jax.random.key(6), observations.shape)
    _, _, innovations = run(MAKERS[name](SETS[bounds]), features, observations, jnp.zeros(3))
    excess = float(jnp.mean(innovations[1000:] ** 2)) / 0.01 - 1
    fixed = float(jnp.mean(jnp.sum((truth - TRUTH) ** 2, axis=1))) / 0.01  # with the best constant estimate
    assert excess < 0.05 * fixed


@pytest.mark.parametrize("bounds", ["box", "no bounds"])
@pytest.mark.parametrize("name", ["kalman", "rls"])
def test_without_excitation_the_covariance_stays_bounded(name, bounds):
    """10⁵ steps of pure noise: the estimate stays, the covariance is back at its prior, and it learns again."""
    estimator = MAKERS[name](SETS[bounds])
    features, observations = data(jax.random.key(7), 1000, 1, 3, TRUTH, noise=0.1)
    learned, state, _ = run(estimator, features, observations, jnp.zeros(3))
    noise = 0.3 + 0.1 * jax.random.normal(jax.random.key(8), (100_000, 1))
    a, quiet, _ = run(estimator, jnp.zeros((100_000, 1, 3)), noise, learned, state=state)
    np.testing.assert_allclose(a, learned, rtol=1e-12)
    prior = _scales.prior(scales_of(quiet), SETS[bounds], learned)
    # In 10⁵ steps the distance to the prior decays to exp(−10) of the prior, or further.
    np.testing.assert_allclose(np.linalg.eigvalsh(quiet.covariance), np.sort(prior), rtol=1e-4)
    a, _, _ = run(estimator, features, observations, a, state=quiet)
    np.testing.assert_allclose(a, TRUTH, atol=0.1)


@pytest.mark.parametrize("name", MAKERS)
def test_data_without_noise_and_without_any_information(name):
    """Zeros everywhere, then exact data: no level of zero divides."""
    for constraint in SETS.values():
        zeros = jnp.zeros((400, 2, 3))
        a, state, _ = run(MAKERS[name](constraint), zeros, jnp.full((400, 2), 0.3), jnp.ones(3))
        np.testing.assert_array_equal(a, jnp.ones(3))
        features, observations = data(jax.random.key(9), 5000, 2, 3, TRUTH, noise=0.0)
        a, state, _ = run(MAKERS[name](constraint), features, observations, a, state=state)
        np.testing.assert_allclose(a, TRUTH, atol=5e-3 if name == "gradient" else 1e-6)
        assert bool(jnp.isfinite(jax.flatten_util.ravel_pytree(state)[0]).all())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(("p", "k"), [(1, 1), (2, 3), (7, 2), pytest.param(22, 3, marks=pytest.mark.slow)])
def test_any_size_stays_in_the_box(p, k, dtype):
    kf, kt, kv = jax.random.split(jax.random.key(p), 3)
    features = jax.random.normal(kf, (300, k, p), dtype)
    truth = 1.5 * jax.random.uniform(kt, (p,), dtype, -1.0, 1.0)  # some components outside of the box
    observations = jnp.einsum("tkp,p->tk", features, truth) + dtype(0.3)
    observations = observations + dtype(0.1) * jax.random.normal(kv, observations.shape, dtype)
    box = st.Box(-1.0, 1.0)
    for name, make in MAKERS.items():
        system = linear_system(p, k)
        estimator = make(box)

        @eqx.filter_jit
        def steps(estimator, system=system):
            def step(carry, row):
                a, state, _ = estimator.update(system, row[0].ravel(), row[1], carry[0], 0, carry[1])
                return (a, state), a

            a = jnp.zeros(p, dtype)
            return jax.lax.scan(step, (a, estimator.init(system, features[0].ravel(), a)), (features, observations))

        (a, state), estimates = steps(estimator)
        assert estimates.dtype == dtype
        assert bool(jax.vmap(box.contains)(estimates).all())
        if name != "gradient":
            assert np.linalg.eigvalsh(np.asarray(state.covariance, np.float64)).max() <= 4 / 12 * 1.001
        if p <= 7:  # while a bound is active, the others are near the constrained least squares, not the truth
            assert float(jnp.mean((a - jnp.clip(truth, -1, 1)) ** 2)) < 0.2


def test_the_larger_an_outlier_the_less_it_moves_the_estimate():
    """An outlier e raises the noise level by e²/300, and so the step shrinks as 1/e."""
    features, observations = data(jax.random.key(10), 2000, 1, 3, TRUTH, noise=0.1)
    for make in (MAKERS["kalman"], MAKERS["gradient"]):
        a, state, _ = run(make(BOX), features, observations, jnp.zeros(3))
        moved = [
            float(jnp.linalg.norm(run(make(BOX), features[:1], observations[:1] + e, a, state=state)[0] - a))
            for e in (1e3, 1e6)
        ]
        assert moved[1] < 0.01 * moved[0]


# The choice


def bent_system():
    """A residual that is not affine in a."""
    return st.System(
        dynamics=lambda x, u, f, t: 0.8 * x + 0.2 * jnp.tanh(u + f),
        residual=lambda x, a, t: a[:1] * jnp.tanh(a[1:] * x) + 0.1 * t["wind"],
        policy=lambda x, theta, f, t: -theta * x - f,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )


def test_auto_is_kalman_or_the_normalized_gradient():
    features, observations = data(jax.random.key(11), 50, 1, 3, TRUTH)
    chosen, state, _ = run(st.AutoEstimator(constraint=BOX), features, observations, jnp.zeros(3))
    kalman, _, _ = run(st.KalmanEstimator(constraint=BOX), features, observations, jnp.zeros(3))
    assert isinstance(state, KalmanState)
    np.testing.assert_array_equal(chosen, kalman)
    system, x, a, t = bent_system(), jnp.ones(2), jnp.array([0.5, 0.5]), {"wind": jnp.zeros(2)}
    auto, gradient = st.AutoEstimator(constraint=st.Box(0.0, 2.0)), st.NormalizedGradient(constraint=st.Box(0.0, 2.0))
    results = [e.update(system, x, jnp.ones(2), a, t, e.init(system, x, a, t))[0] for e in (auto, gradient)]
    np.testing.assert_array_equal(*results)
    assert float(jnp.linalg.norm(results[0] - a)) > 0
    testing.check_estimator(auto, system=system, x=x, theta=jnp.ones(2), a_hat=a, t=t)


def loop_runs(estimator, affine, dtype, **options):
    system = st.System(
        dynamics=lambda x, u, f, t: 0.8 * x + 0.2 * jnp.tanh(u + f),
        residual=lambda x, a, t: a[:2] * jnp.sin(x) + (a[2] if affine else jnp.tanh(a[2])),
        policy=lambda x, theta, f, t: -theta * x - f,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    ka, kw, kv = jax.random.split(jax.random.key(12), 3)
    scenario = st.Scenario(
        jnp.ones(2, dtype),
        st.PiecewiseConstant(150, -1.0, 1.0)(ka, 400, 3).astype(dtype),
        st.Gaussian(0.3)(kw, 400, 2).astype(dtype),
        st.Gaussian(0.05)(kv, 400, 2).astype(dtype),
    )
    controller = st.Controller(system, st.MGAPS(1e-3, constraint=st.Box(0.0, 2.0)), estimator)
    return st.simulate(controller, scenario, theta=jnp.ones(2, dtype), a_hat=jnp.zeros(3, dtype), **options)


@pytest.mark.parametrize("bounds", ["box", "no bounds"])
@pytest.mark.parametrize("name", ["auto, affine", "auto, not affine", "rls"])
def test_native_gives_the_numbers_of_xla(name, bounds):
    constraint = st.Box(-2.0, 2.0) if bounds == "box" else st.Unconstrained()
    estimator = (st.RLS if name == "rls" else st.AutoEstimator)(constraint=constraint)
    native, xla = (
        loop_runs(estimator, name != "auto, not affine", jnp.float64, engine=engine) for engine in ("native", "xla")
    )
    assert native.engine == "native"
    # The loop feeds rounding errors back over 400 steps.
    np.testing.assert_allclose(native.a_hat, xla.a_hat, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("affine", [True, False])
def test_native_in_float32_with_a_guard(affine):
    """The guard's rollback needs `reset` in the lowered program too."""
    estimator = st.AutoEstimator(constraint=st.Box(-2.0, 2.0))
    native, xla = (
        loop_runs(estimator, affine, jnp.float32, guard=st.Guard(), engine=engine) for engine in ("native", "xla")
    )
    assert native.a_hat.dtype == jnp.float32
    np.testing.assert_allclose(native.a_hat, xla.a_hat, atol=1e-3)


def test_float32_loop_and_rollback_with_a_guard():
    for affine in (True, False):
        estimator = st.AutoEstimator(constraint=st.Box(-2.0, 2.0))
        single = loop_runs(estimator, affine, jnp.float32, guard=st.Guard(), engine="xla")
        double = loop_runs(estimator, affine, jnp.float64, guard=st.Guard(), engine="xla")
        assert single.a_hat.dtype == jnp.float32
        np.testing.assert_allclose(single.a_hat, double.a_hat, atol=1e-2)


def test_a_reset_forgets_the_data_and_keeps_the_structure():
    system = linear_system(3, 1)
    features, observations = data(jax.random.key(13), 50, 1, 3, TRUTH)
    for constraint in SETS.values():
        for make in MAKERS.values():
            a, state, _ = run(make(constraint), features, observations, jnp.zeros(3))
            fresh = make(constraint).init(system, features[0].ravel(), a)
            again = make(constraint).reset(system, features[0].ravel(), a, state)
            assert jax.tree.structure(fresh) == jax.tree.structure(again)
            jax.tree.map(np.testing.assert_array_equal, fresh, again)


def test_some_numbers_may_be_given():
    """With V or P₀ or both given, the rest is learned; with all of them the default Q is 1e-4 P₀."""
    features, observations = data(jax.random.key(14), 200, 1, 3, TRUTH, noise=0.1)
    given = st.KalmanEstimator(observation_noise=0.01, covariance=2.0)
    explicit = st.KalmanEstimator(2e-4, 0.01, covariance=2.0)
    for one, other in zip(*(run(e, features, observations, jnp.zeros(3))[:2] for e in (given, explicit)), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), one, other)
    box = st.Box(-3.0, 3.0)
    for half in (
        st.KalmanEstimator(observation_noise=0.01, constraint=box),
        st.KalmanEstimator(covariance=3.0, constraint=box),
        st.KalmanEstimator(1e-4, covariance=3.0, constraint=box),
    ):
        np.testing.assert_allclose(run(half, features, observations, jnp.zeros(3))[0], TRUTH, atol=0.1)


def test_refusals():
    with pytest.raises(ValueError, match="covariance: expected a number, because process_noise is given"):
        st.KalmanEstimator(process_noise=1e-4)
    with pytest.raises(ValueError, match=r"share: expected a number in \(0, 1\]"):
        st.NormalizedGradient(share=2.0)
    with pytest.raises(ValueError, match="constraint: expected a constraint"):
        st.AutoEstimator(constraint=None)
