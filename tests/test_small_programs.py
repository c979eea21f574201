"""Programs that NumPy runs in place of XLA: the same bits, and XLA for everything else."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.foundation import small_programs
from selftune.foundation.small_programs import small_program

pytestmark = pytest.mark.versions
X = jnp.array([-0.0, 1.5, -2.0])


def without_xla(function, *given):
    """Return the results, and whether NumPy computed them."""
    by_numpy, computed = [], small_programs._computed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_programs, "_computed", lambda *each: by_numpy.append(True) or computed(*each))
        results = small_program(function)(*given)
    return results, by_numpy == [True]


def check(function, *given, by_numpy=True):
    got, is_numpy = without_xla(function, *given)
    assert is_numpy == by_numpy
    expected = eqx.filter_jit(function)(*given)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert type(one) is type(other)
        if eqx.is_array(one):
            assert (one.shape, one.dtype, one.weak_type) == (other.shape, other.dtype, other.weak_type)
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
        else:
            assert one == other


@pytest.mark.bits
@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.zeros((2, 3)),
        lambda x: {"a": x, "b": (x[1], jnp.ones(2, jnp.int32)), "c": "text", "d": None},
        lambda x: jnp.all(x >= 0) & ~jnp.any(jnp.isnan(x)),
        lambda x: jnp.clip(x, -1.0, 1.0),
        lambda x: jnp.where(x > 0, x, -x),
        lambda x: jnp.concatenate([x, jnp.zeros(2)])[1:4].reshape(1, 3).T,
        lambda x: x.astype(jnp.float32),
        lambda x: jnp.arange(4) * 2 + 1,
        lambda x: jnp.eye(3),
        lambda x: (jnp.sin(x), x)[1],  # nothing depends on the sine
        lambda x: (jnp.maximum(x, -x), jnp.minimum(x, -x), jnp.maximum(-x, x), jnp.minimum(-x, x)),
        lambda x: jnp.maximum(jnp.zeros(8), -jnp.zeros(8)),
        lambda x: jnp.clip(x, 0.0, 1.0),
        lambda x: [jnp.bitwise_and.reduce(jnp.array([6, 3])), jnp.bitwise_or.reduce(jnp.array([[6, 3]]), axis=1)],
    ],
)
def test_numbers_that_are_moved_or_compared(function):
    check(function, X)


@pytest.mark.bits
@pytest.mark.parametrize(
    "function",
    [
        lambda x: 3.0 * x,
        lambda x: x - 1.0,
        lambda x: jnp.sin(x),
        lambda x: jnp.sum(x),
        lambda x: jax.lax.fori_loop(0, 3, lambda i, y: -y, x),
    ],
)
def test_xla_computes_the_rest(function):
    check(function, X, by_numpy=False)


def test_xla_converts_numbers_of_16_bits():
    check(lambda x: x.astype(jnp.float16), jnp.array([1 + 2.0**-11 + 1e-12]), by_numpy=False)  # XLA rounds twice
    check(lambda x: x.astype(jnp.int32), jnp.array([jnp.nan, jnp.inf], jnp.bfloat16), by_numpy=False)


def test_a_weak_dtype_stays_weak():
    check(lambda x: jnp.asarray(1.0), X, by_numpy=False)
    assert small_program(lambda x: jnp.asarray(1.0))(X).weak_type


def test_keys_pass_through():
    key = jax.random.key(3)
    got, is_numpy = without_xla(lambda key, x: (key, x[:1]), key, X)
    assert is_numpy
    assert jnp.array_equal(jax.random.key_data(got[0]), jax.random.key_data(key))
    _, is_numpy = without_xla(lambda key: jax.random.split(key), key)
    assert not is_numpy


def test_a_program_is_traced_once_for_each_kind_of_arguments():
    traces = []

    @small_program
    def function(x, setting):
        traces.append(setting)
        return jnp.zeros(x.shape), setting

    for setting in (1, 1.0, True, 1, 1.0, True):
        assert type(function(X, setting)[1]) is type(setting)
    assert len(traces) == 3
    function(X[:2], 1)
    assert len(traces) == 4

    @small_program
    def by_xla(x):
        traces.append(x)
        return 2.0 * x

    del traces[:]
    for _ in range(3):
        by_xla(X)
    assert len(traces) == 1


def test_inside_other_programs():
    function = small_program(lambda x: jnp.all(x >= 0))
    assert not jax.jit(function)(X)
    assert jax.vmap(function)(X).tolist() == [True, True, False]
    with jax.disable_jit():
        assert not function(X)


def test_known_numbers_inside_other_programs():
    function = small_program(lambda x: (jnp.clip(x, 0.0, 1.0), x > 0))
    clipped, positive = jax.jit(lambda y: (y * function(X)[0], function(X)[1]))(2.0)
    assert clipped.tolist() == [0.0, 2.0, 0.0]
    assert positive.tolist() == [False, True, False]


def test_arrays_of_numpy_inside_other_programs():
    function = small_program(lambda x: jnp.clip(x, 0.0, 1.0))
    for transform in (jax.jit, jax.grad):
        assert transform(lambda y: y * jnp.sum(function(np.array([-1.0, 0.5]))))(1.0) == 0.5


def test_a_captured_array_that_is_traced():
    def outer(y):
        return small_program(lambda x: jnp.where(x > y, x, y))(X)

    assert jax.jit(outer)(1.0).tolist() == [1.0, 1.5, 1.0]
    assert jax.vmap(outer)(jnp.array([1.0, 2.0])).tolist() == [[1.0, 1.5, 1.0], [2.0, 2.0, 2.0]]


def test_numbers_of_numpy_get_the_dtype_of_jax():
    with jax.enable_x64(False):
        got = small_program(lambda x: (x, x[1:], x > 0))(np.array([1.0, 1e-50]))
        assert [leaf.dtype for leaf in got] == [jnp.float32, jnp.float32, bool]
        assert got[2].tolist() == [True, False]


def test_results_do_not_share_memory():
    given = np.ones(1000)
    got = small_program(lambda x: (x, x.reshape(10, 100), jnp.zeros(1000)))(given)
    given[:] = 2.0
    assert all(float(leaf.max()) < 2.0 for leaf in got)


def test_an_error_of_the_function_is_raised():
    def wrong(x):
        raise st.ArgumentError("x", "another", "this")

    with pytest.raises(st.ArgumentError, match="x: expected another"):
        small_program(wrong)(X)


@pytest.mark.parametrize("constraint", [st.Box(0.0, 1.0), st.Unconstrained(), st.Product([st.Box(0.0, 1.0)])])
def test_a_constraint_is_checked_without_xla(constraint):
    value = [jnp.array([0.5, 0.25])] if isinstance(constraint, st.Product) else jnp.array([0.5, 0.25])
    got, is_numpy = without_xla(lambda constraint, value: constraint.contains(value), constraint, value)
    assert bool(got)
    assert is_numpy


@pytest.mark.bits
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [-3, -1, 0, 1, 2, 3, 5, 8])
def test_operations_of_reals_have_the_bits_of_jax(dtype, exponent):
    random = np.random.default_rng(0)
    # No result is subnormal: XLA computes with such numbers as with zeros.
    x, y = (random.normal(size=200).astype(dtype) * 2.0 ** random.integers(-5, 5, 200) for _ in range(2))
    x, y = (np.append(each, [0.0, -0.0, np.inf, -np.inf, np.nan]).astype(dtype) for each in (x, y))
    rules, params = small_programs.OF_REALS, {"y": exponent}
    pairs = [
        (rules["div"]({}, x, y), jax.lax.div(x, y)),
        (rules["sqrt"]({}, abs(x)), jax.lax.sqrt(abs(x))),
        (rules["integer_pow"](params, x), jax.lax.integer_pow(x, exponent)),
    ]
    for own, expected in pairs:
        assert own.dtype == expected.dtype
        np.testing.assert_array_equal(np.where(np.isnan(own), 0, own), np.where(np.isnan(expected), 0, expected))
        np.testing.assert_array_equal(np.isnan(own), np.isnan(expected))
