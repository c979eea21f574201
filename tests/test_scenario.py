import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

import selftune as st

KEY = jax.random.key(0)
PROCESSES = {
    "ou": st.OrnsteinUhlenbeck(decay=0.9, sigma=0.1),
    "uniform": st.Uniform(bound=0.5),
    "gaussian": st.Gaussian(sigma=0.2),
    "truncated": st.Gaussian(sigma=0.2, truncate=1.0),
    "piecewise": st.PiecewiseConstant(period=7, low=[-1.0, 0.0], high=[1.0, 2.0]),
    "walk": st.RandomWalk(sigma=0.3, low=-1.0, high=1.0),
    "sinusoid": st.Sinusoid(amplitude=[1.0, 2.0], period=50.0, phase=0.3, offset=1.0),
    "constant": st.Constant([1.0, 2.0]),
}
each = pytest.mark.parametrize("name", PROCESSES)
RANDOM = [name for name in PROCESSES if name not in ("sinusoid", "constant")]


@pytest.mark.bits
@each
def test_shape_and_determinism(name):
    process = PROCESSES[name]
    rows = process(KEY, 100, 2)
    assert rows.shape == (100, 2)
    np.testing.assert_array_equal(rows, process(KEY, 100, (2,)))
    # Row t does not depend on how many rows are made.
    np.testing.assert_array_equal(process(KEY, 30, 2), rows[:30])
    if name in RANDOM:
        assert float(jnp.max(jnp.abs(rows - process(jax.random.key(1), 100, 2)))) > 0.01


@each
def test_a_stream_is_the_same_numbers(name):
    process = PROCESSES[name]
    stream = process.stream(KEY, 2)
    state, rows = stream.start(jnp.float64), []
    for t in range(20):
        value, state = stream.next(state, jnp.asarray(t), jnp.float64)
        rows.append(value)
    np.testing.assert_allclose(jnp.stack(rows), process(KEY, 20, 2), rtol=1e-12)


@each
def test_under_vmap_over_keys(name):
    keys = jax.random.split(KEY, 3)
    together = jax.vmap(lambda key: PROCESSES[name](key, 10, 2))(keys)
    np.testing.assert_allclose(together[1], PROCESSES[name](keys[1], 10, 2), rtol=1e-12)


def test_ornstein_uhlenbeck():
    w = st.OrnsteinUhlenbeck(decay=0.95, sigma=0.1)(KEY, 200_000, 1)[:, 0]
    assert float(w[0]) == 0.0
    kicks = w[1:] - 0.95 * w[:-1]
    # Mean, deviation and correlation of 2·10⁵ draws: a standard error of 1/√N = 0.0022 each, relative to σ.
    assert float(jnp.std(kicks)) == pytest.approx(0.1, rel=0.01)
    assert abs(float(jnp.mean(kicks))) < 0.1 * 0.01
    assert abs(float(jnp.corrcoef(kicks[1:], kicks[:-1])[0, 1])) < 0.01
    assert float(jnp.std(w)) == pytest.approx(0.1 / np.sqrt(1 - 0.95**2), rel=0.05)


def test_bounded_draws():
    u = st.Uniform(bound=0.5)(KEY, 50_000, 1)
    assert float(jnp.max(jnp.abs(u))) <= 0.5
    assert float(jnp.std(u)) == pytest.approx(0.5 / np.sqrt(3), rel=0.02)
    g = st.Gaussian(sigma=0.2, truncate=1.0)(KEY, 50_000, 1)
    assert float(jnp.max(jnp.abs(g))) <= 0.2
    assert float(jnp.std(g)) == pytest.approx(0.2 * 0.53956, rel=0.02)  # of a normal cut at one sigma
    assert float(jnp.std(st.Gaussian(sigma=0.2)(KEY, 50_000, 1))) == pytest.approx(0.2, rel=0.02)


def test_piecewise_constant():
    a = st.PiecewiseConstant(period=7, low=[-1.0, 0.0], high=[1.0, 2.0])(KEY, 7_000, 2).reshape(1000, 7, 2)
    np.testing.assert_array_equal(a, jnp.broadcast_to(a[:, :1], a.shape))
    assert int(jnp.sum(jnp.all(a[1:, 0] == a[:-1, 0], axis=-1))) == 0
    np.testing.assert_allclose(jnp.mean(a[:, 0], axis=0), [0.0, 1.0], atol=0.08)
    np.testing.assert_allclose(jnp.min(a[:, 0], axis=0), [-1.0, 0.0], atol=0.01)
    np.testing.assert_allclose(jnp.max(a[:, 0], axis=0), [1.0, 2.0], atol=0.01)


def test_random_walk():
    a = st.RandomWalk(sigma=0.01, low=-1.0, high=1.0)(KEY, 20_000, 3)
    assert float(jnp.max(jnp.abs(a))) <= 1.0
    inside = jnp.all(jnp.abs(a) < 0.95, axis=1)[:-1]
    assert float(jnp.std(jnp.diff(a, axis=0)[inside])) == pytest.approx(0.01, rel=0.05)


def test_sinusoid():
    a = st.Sinusoid(amplitude=[1.0, 2.0], period=50.0, phase=0.3, offset=1.0)(KEY, 100, 2)
    t = np.arange(100)
    np.testing.assert_allclose(a[:, 1], 1.0 + 2.0 * np.sin(2 * np.pi * t / 50 + 0.3), rtol=1e-12)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: st.OrnsteinUhlenbeck(decay=1.0, sigma=0.1), r"decay: expected a number in \[0, 1\), got 1.0"),
        (lambda: st.OrnsteinUhlenbeck(decay=jnp.nan, sigma=0.1), "decay: expected a number .*got nan"),
        (lambda: st.OrnsteinUhlenbeck(decay=0.5, sigma=-0.1), "sigma: expected finite numbers >= 0, got -0.1"),
        (lambda: st.Uniform(bound=jnp.inf), "bound: expected finite numbers"),
        (lambda: st.Gaussian(sigma=0.1, truncate=0.0), "truncate: expected a finite number > 0"),
        (lambda: st.PiecewiseConstant(period=0, low=0.0, high=1.0), "period: expected a whole number >= 1, got 0"),
        (lambda: st.PiecewiseConstant(period=2.5, low=0.0, high=1.0), "period: expected a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: st.PiecewiseConstant(period=2, low=1.0, high=0.0), "low: expected low <= high"),
        (lambda: st.RandomWalk(sigma=0.1, low=1.0, high=0.0), "low: expected low <= high"),
        (
            lambda: st.PiecewiseConstant(5, [-1.0, -1.0], [1.0, 1.0])(KEY, 9, 1),
            r"low: expected a shape that fits \(1,\)",
        ),
        (lambda: st.RandomWalk(0.1, [-1.0, -1.0], 1.0)(KEY, 9, 3), "low: expected a shape that fits"),
        (lambda: st.RandomWalk(0.1, [0.0, 0.0], [1.0, 1.0, 1.0]), "high: expected a shape that fits low's"),
        (lambda: st.Constant([1.0, 2.0])(KEY, 9, 3), "value: expected a shape that fits"),
        (lambda: st.Gaussian([0.1, 0.2])(KEY, 9, 3), "sigma: expected a shape that fits"),
        (lambda: st.Uniform(0.1)(KEY, 10, 2.0), "shape: expected a whole number >= 1, got 2.0"),
        (lambda: st.Sinusoid(amplitude=1.0, period=0.0), "period: expected"),
        (lambda: st.Constant(jnp.nan), "value: expected finite numbers, got nan"),
        (lambda: st.Uniform(0.1)(0, 10, 1), "key: expected a PRNG key such as jax.random.key"),  # pyright: ignore
        (lambda: st.Uniform(0.1)(KEY, -1, 1), "steps: expected a whole number >= 0, got -1"),
        (lambda: st.Uniform(0.1)(KEY, 10, 0), "shape: expected a whole number >= 1, got 0"),
    ],
)
def test_process_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def scenario(**changes):
    parts = dict(x0=jnp.zeros(2), a_star=jnp.zeros((5, 3)), w=jnp.zeros((5, 2)), v=jnp.zeros((5, 1)))
    return st.Scenario(**(parts | changes))


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(x0=jnp.zeros((2, 1))), r"x0: expected a vector of at least one number, got float64\[2, 1\]"),
        (dict(x0=jnp.array([0.0, jnp.nan])), r"x0: expected finite numbers, got nan at index \(1,\)"),
        (dict(x0=1.0), "x0: expected a vector"),
        (dict(w=jnp.zeros((4, 2))), "w: expected 5 rows, as a_star has, got 4"),
        (dict(w=jnp.zeros((5, 3))), r"w: expected rows of shape \(2,\), that of x0, got \(3,\)"),
        (dict(w=jnp.zeros((5, 2)).at[3, 1].set(jnp.inf)), r"w: expected finite numbers, got inf at index \(3, 1\)"),
        (dict(w=jnp.zeros((5, 2), jnp.float32)), r"w: expected dtype float64, that of x0, got float32\[5, 2\]"),
        (dict(w=jnp.zeros((5, 2), complex)), "w: expected real numbers"),
        (dict(v=jnp.zeros((6, 1))), "v: expected 5 rows, as a_star has, got 6"),
        (dict(t=jnp.arange(3)), "t: expected 5 rows, as a_star has, got 3"),
        (dict(a_star=None), "a_star: expected an array, a pytree of arrays or a stream, got None"),
        (dict(a_star=1.0), "a_star: expected an array with a leading axis of steps"),
        (dict(w=None), "w: expected an array"),
        (dict(w={"left": jnp.zeros((5, 2))}), "w: expected an array"),
        (dict(w=st.Gaussian(0.1)), "w: expected an array or a stream, got the process itself"),
        (dict(steps=7), "a_star: expected 7 rows, as steps has, got 5"),
        (dict(steps=-1), "steps: expected a whole number >= 0, got -1"),
    ],
)
def test_scenario_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        scenario(**changes)


def test_a_scenario_of_streams_needs_its_length():
    streams = dict(a_star=st.Constant(0.5).stream(KEY, 3), w=st.Gaussian(0.1).stream(KEY, 2), v=None)
    with pytest.raises(ValueError, match="steps: expected a whole number"):
        scenario(**streams)
    assert len(scenario(**streams, steps=10)) == 10


@pytest.mark.usefixtures("as_a_user")
def test_slices_keep_their_step_numbers():
    part = scenario(a_star=jnp.arange(15.0).reshape(5, 3))[2:4]
    assert len(part) == 2
    np.testing.assert_array_equal(part.t, [2, 3])
    np.testing.assert_array_equal(part.a_star, [[6.0, 7.0, 8.0], [9.0, 10.0, 11.0]])
    np.testing.assert_array_equal(part[1:].t, [3])
    assert len(scenario()[4:2]) == 0
    for bad in (slice(0, 4, 2), 3):
        with pytest.raises(ValueError, match=r"scenario\[\.\.\.\]: expected a slice of consecutive steps"):
            scenario()[bad]  # pyright: ignore[reportArgumentType]


def test_noise_of_its_own_for_each_component():
    w = st.Gaussian([0.1, 10.0])(KEY, 5000, 2)
    np.testing.assert_allclose(jnp.std(w, axis=0), [0.1, 10.0], rtol=0.05)


def test_materialize_keeps_the_streams_dtype_and_so_its_numbers():
    single = st.Scenario(
        jnp.zeros(1, jnp.float32), st.Constant(0.0).stream(KEY, 1), st.Gaussian(1.0).stream(KEY, 1), steps=4
    )
    stream = single.w
    rows = [stream.next(None, jnp.asarray(t), jnp.float32)[0] for t in range(4)]
    written = single.materialize().w
    assert written.dtype == jnp.float32
    np.testing.assert_allclose(written, jnp.stack(rows), rtol=1e-6)


@pytest.mark.bits
def test_materialize_writes_streams_out():
    process = st.OrnsteinUhlenbeck(0.9, 0.1)
    streamed = scenario(w=process.stream(KEY, 2))
    np.testing.assert_array_equal(streamed.materialize().w, process(KEY, 5, 2))
    with pytest.raises(ValueError, match="a stream cannot be sliced"):
        streamed[1:]


@settings(max_examples=25, deadline=None)
@given(steps=hs.integers(0, 6), n=hs.integers(1, 3), p=hs.integers(1, 3))
def test_any_consistent_shapes_are_taken(steps, n, p):
    made = st.Scenario(np.zeros(n), np.zeros((steps, p)), np.zeros((steps, n)))
    assert len(made) == steps
    assert made.w.shape == (steps, n)
