import gc
import itertools
import math
import random
import re
import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import planar_system, random_system, scalar_system

X, THETA, A = jnp.array([0.3, -0.2]), jnp.array([1.0, 0.5, 0.1]), jnp.array([0.4])


def system(**changes):
    functions = dict(
        dynamics=lambda x, u, f, t: x + 0.1 * jnp.concatenate([u, f]),
        residual=lambda x, a, t: a * jnp.sin(x[:1]),
        policy=lambda x, theta, f, t: theta[:1] * x[:1] - f,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    return st.System(**(functions | changes))


def test_check_returns_the_sizes():
    assert system().check(X, THETA, A, 0) == (2, 1, 1, 3, 1, 2, 0)
    assert random_system(jax.random.key(0), 6, 3, 2, 6, 4).check(jnp.zeros(6), jnp.zeros(4), jnp.zeros(6), 0) == (
        6,
        3,
        2,
        4,
        6,
        6,
        0,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(dynamics=lambda x, u, f, t: x[:1]), r"dynamics: expected shape \(2,\), that of x, got float64\[1\]"),
        (dict(residual=lambda x, a, t: a[0]), r"residual: expected shape \(k,\), got float64\[\]"),
        (dict(residual=lambda x, a, t: jnp.zeros((1, 1))), r"residual: expected shape \(k,\), got float64\[1, 1\]"),
        (dict(policy=lambda x, theta, f, t: jnp.sum(theta)), r"policy: expected shape \(m,\), got float64\[\]"),
        (dict(policy=lambda x, theta, f, t: (x, x)), r"policy: expected one array of shape \(m,\)"),
        (dict(cost=lambda x, u, theta, t: x), r"cost: expected shape \(\), got float64\[2\]"),
        (dict(cost=lambda x, u, theta, t: jnp.int32(0)), r"cost: expected dtype float64, that of x, got int32\[\]"),
        (
            dict(policy=lambda x, theta, f, t: theta @ x),
            r"policy: failed when traced with \(x float64\[2\], theta float64\[3\], f .*\) at test_system.py, line",
        ),
        (dict(cost=lambda x, u, theta, t: theta["gain"]), "cost: failed when traced"),
        (dict(policy=lambda x, theta, f, t: [f[0]]), r"policy: expected one array .*; write jnp.stack\(\[...\]\)"),
        (
            dict(cost=lambda x, u: 0.0),
            r"cost: expected a function of 4 arguments, \(x, u, theta, t\). The function failed",
        ),
    ],
)
def test_check_names_the_function_and_the_shapes(changes, message):
    with pytest.raises(ValueError, match=message):
        system(**changes).check(X, THETA, A, 0)


def assign(x, a, t):
    x[0] = a[0]
    return x[:1]


def fill(x, a, t):
    made = np.zeros(1)
    made[0] = x[0]
    return made


@pytest.mark.parametrize(
    ("residual", "instead"),
    [
        (lambda x, a, t: a * math.sin(x[0]), "write jnp.sin for math.sin"),
        (lambda x, a, t: a * math.sin(x), "write jnp.sin for math.sin"),
        (lambda x, a, t: a * float(x[0]), r"x for float\(x\)"),
        (lambda x, a, t: a * np.sin(x[:1]), "write jnp.sin for np.sin"),
        (lambda x, a, t: a if x[0] > 0 else -a, r"write jnp.where\(condition, a, b\) .* for Python's `if`"),
        (lambda x, a, t: a if x > 0 else -a, r"write jnp.where\(condition, a, b\) .* for Python's `if`"),
        (lambda x, a, t: a * max(x[0], 0.0), "jnp.maximum"),
        (assign, r"write x = x.at\[0\].set\(value\) for x\[0\] = value"),
        (fill, r"write jnp.stack\(\[a, b\]\)"),
        (lambda x, a, t: a * [1.0, 2.0][t], r"write jnp.asarray\(values\)\[i\]"),
        (lambda x, a, t: x[x > 0], r"write jnp.where\(mask, x, 0.0\) for x\[mask\]"),
        (lambda x, a, t: x.append(1.0), r"write jnp.append\(x, value\)"),
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_what_is_no_jax_is_refused_with_what_to_write_instead(residual, instead):
    """The name of the function, what to write, and the line where it is to be written."""
    tried = system(residual=residual)
    message = rf"^residual: .*{instead}.*\. The function failed when traced with \(x .*\) at test_system.py, line \d+: "
    with pytest.raises(ValueError, match=message):
        tried.check(X, THETA, A, jnp.int32(0))


class Draws(eqx.Module):
    """A policy with arrays of its own, as a neural network has."""

    W: jax.Array

    def __call__(self, x, theta, f, t):
        return self.W @ x + np.random.default_rng().normal()


COUNTER = itertools.count()
KEPT = []


IMPURE = {
    "dynamics": lambda x, u, f, t: x + np.random.default_rng().normal(size=2),
    "residual": lambda x, a, t: a * random.random(),
    "policy": jax.jit(lambda x, theta, f, t: f + time.perf_counter()),
    "cost": lambda x, u, theta, t: jnp.sum(x) ** next(COUNTER),
}


class TestPurity:
    @pytest.mark.parametrize("name", list(IMPURE))
    def test_a_number_that_would_be_frozen_is_refused(self, name):
        tried = system(**{name: IMPURE[name]})
        message = (
            rf"^{name}: expected the same program whenever the function is traced.*Draw random numbers in the scenario"
        )
        controller = st.Controller(tried, st.MGAPS(0.1), st.GradientEstimator(0.1))
        with pytest.raises(ValueError, match=message):
            controller.init(X, theta=THETA, a_hat=A)
        with pytest.raises(ValueError, match=message):
            st.Agent(controller, x=X, theta=THETA, a_hat=A)
        scenario = st.Scenario(X, a_star=jnp.zeros((5, 1)), w=jnp.zeros((5, 2)))
        with pytest.raises(ValueError, match=message):
            st.simulate(controller, scenario, theta=THETA, a_hat=A)

    def test_so_is_a_plant_that_draws(self):
        scenario = st.Scenario(X, a_star=jnp.zeros((5, 1)), w=jnp.zeros((5, 2)))
        controller = st.Controller(system(), st.MGAPS(0.1), st.GradientEstimator(0.1))
        plant = system(dynamics=IMPURE["dynamics"])
        with pytest.raises(ValueError, match=r"plant .*: dynamics: expected the same program"):
            st.simulate(controller, scenario, theta=THETA, a_hat=A, plant=plant)

    def test_so_is_a_module_with_arrays_and_a_matched_actuation(self):
        with pytest.raises(ValueError, match=r"^policy: expected the same program"):
            system(policy=Draws(jnp.ones((1, 2)))).check(X, THETA, A, 0, thorough=True)
        drawing = st.MatchedSystem(
            lambda x, v, t: x + v,
            lambda x, a, t: a,
            jax.jit(lambda x, theta, t: theta * random.random()),
            lambda *_: 0.0,
        )
        with pytest.raises(ValueError, match=r"^actuation: expected the same program"):
            drawing.check(jnp.ones(1), jnp.ones(1), jnp.ones(1), 0, thorough=True)

    @pytest.mark.parametrize(
        "residual",
        [
            lambda x, a, t: a * np.array([3.0]) + np.random.default_rng(0).normal(size=1),  # a seed of its own
            lambda x, a, t: a + jax.random.normal(jax.random.key(0), (1,)),
            lambda x, a, t: jnp.where(x[:1] > 0, a, np.full(1, np.nan)),
            lambda x, a, t: (next(COUNTER), a)[1],  # counts, but computes nothing with it
            lambda x, a, t: jax.lax.scan(lambda c, _: (jnp.tanh(c) * np.float64(0.5), None), a, None, length=3)[0],
            lambda x, a, t: jax.nn.relu(a) + jax.jit(jnp.sin)(x[:1]),
        ],
    )
    def test_what_is_the_same_each_time_is_not_refused(self, residual):
        assert system(residual=residual).check(X, THETA, A, 0, thorough=True) == (2, 1, 1, 3, 1, 2, 0)

    def test_so_is_a_value_of_an_earlier_call(self):
        def residual(x, a, t):
            KEPT.append(a)
            return a + KEPT[0]

        with pytest.raises(ValueError, match=r"^residual: expected the same program .* an earlier call"):
            system(residual=residual).check(X, THETA, A, 0, thorough=True)

    def test_a_function_is_traced_twice_once(self):
        traces = []

        def residual(x, a, t):
            traces.append(x.shape)
            return a * jnp.sin(x[:1])

        tried = system(residual=residual)
        tried.check(X, THETA, A, 0, thorough=True)
        tried.check(X, THETA, A, 0)
        tried.check(X, THETA, A, 0, thorough=True)
        tried.check(X + 1, THETA, A, 7, thorough=True)
        assert len(traces) == 2

    def test_another_setting_of_jax_is_another_check(self):
        tried = system(residual=lambda x, a, t: a * np.ones(1, np.float32))
        with jax.numpy_dtype_promotion("standard"):
            tried.check(X, THETA, A, 0, thorough=True)
        with jax.numpy_dtype_promotion("strict"), pytest.raises(ValueError, match=r"^residual: .*promotion"):
            tried.check(X, THETA, A, 0)


class TestIndices:
    @pytest.mark.parametrize(
        "policy",
        [
            lambda x, theta, f, t: theta[3] * f,
            lambda x, theta, f, t: theta[-4] * f,
            lambda x, theta, f, t: theta[jnp.array([0, 3])][:1] * f,
            lambda x, theta, f, t: jax.jit(lambda theta: theta[3] * f)(theta),
            lambda x, theta, f, t: jnp.outer(theta, theta)[1, 3] * f,
        ],
    )
    def test_out_of_range_is_refused(self, policy):
        tried = system(policy=lambda x, theta, f, t: policy(x, jnp.stack([theta[0], theta[1], theta[2]]), f, t))
        with pytest.raises(ValueError, match=r"^policy: expected indices within its arrays, got one out of range"):
            tried.check(X, THETA, A, 0, thorough=True)

    @pytest.mark.parametrize(
        "policy",
        [
            lambda x, theta, f, t: theta[2] * theta[-3] * f,
            lambda x, theta, f, t: theta[jnp.array([0, -3, 2])][:1] * f,
            lambda x, theta, f, t: jnp.outer(theta, theta)[[0, 2], [2, 1]][:1] * f,
            lambda x, theta, f, t: theta[t % 3] * theta[jnp.argmax(theta)] * f,
            lambda x, theta, f, t: jnp.take(theta, jnp.array([9]), mode="fill", fill_value=1.0) * f,
            lambda x, theta, f, t: jnp.roll(theta, 1)[1:2] * jax.lax.dynamic_slice(theta, (2,), (1,)) * f,
        ],
    )
    def test_in_range_is_not(self, policy):
        assert system(policy=policy).check(X, THETA, A, jnp.int32(0), thorough=True).m == 1


class TestBlame:
    """Another shape of θ, or of a, is all that is needed: so the error is not about the function that noticed."""

    @pytest.mark.parametrize(
        ("policy", "theta", "other", "noticed"),
        [
            (lambda x, theta, f, t: -theta * x[:1] - f, jnp.ones(3), (1,), "dynamics: failed when traced"),
            (lambda x, theta, f, t: -theta[0] * x[:1], jnp.ones(()), (1,), "policy: failed when traced"),
            (lambda x, theta, f, t: -(theta[0] + theta[1]) * f, jnp.ones(1), (2,), "policy: .* out of range"),
            (lambda x, theta, f, t: -theta @ x, jnp.ones(2), (1, 2), "policy: expected shape"),
            (lambda x, theta, f, t: -theta @ x, jnp.ones((2, 1)), (1, 2), "policy: failed when traced"),
            (lambda x, theta, f, t: -theta["k"] * f, {"k": jnp.ones(2), "i": jnp.ones(1)}, (1,), "dynamics: failed"),
        ],
    )
    def test_theta(self, policy, theta, other, noticed):
        tried = system(policy=policy)
        message = rf"^theta: expected another shape, such as {re.escape(str(other))}.*\({noticed}"
        controller = st.Controller(tried, st.MGAPS(0.1), st.GradientEstimator(0.1))
        with pytest.raises(ValueError, match=message):
            controller.init(X, theta=theta, a_hat=A)
        with pytest.raises(ValueError, match=message):
            st.Agent(controller, x=X, theta=theta, a_hat=A)
        scenario = st.Scenario(X, a_star=jnp.zeros((5, 1)), w=jnp.zeros((5, 2)))
        with pytest.raises(ValueError, match=message):
            st.simulate(controller, scenario, theta=theta, a_hat=A)

    def test_a(self):
        with pytest.raises(ValueError, match=r"^a: expected another shape, such as \(1,\) or \(\), .*got float64\[4\]"):
            system().check(X, THETA, jnp.zeros(4), 0)

    def test_a_number_in_place_of_a_vector_is_a_mistake_of_the_residual(self):
        """`a[0]` would be a vector if a was a matrix, but nobody means that."""
        message = r"^residual: expected shape \(k,\), got float64\[\]; write jnp\.stack"
        with pytest.raises(ValueError, match=message):
            system(residual=lambda x, a, t: a[0]).check(X, THETA, jnp.zeros(2), 0)

    @pytest.mark.parametrize("thorough", [False, True])
    def test_exchanged_arguments(self, thorough):
        """θ has the shape of x, so no shape shows the mistake."""

        def policy(theta, x, f, t):
            return -theta[:1] * x[:1] - f

        message = (
            r"^policy: expected the arguments \(x, theta, f, t\) in this order, got \(theta, x, f, t\); check the order"
        )
        with pytest.raises(ValueError, match=message):
            system(policy=policy).check(X, jnp.ones(2), A, 0, thorough=thorough)

    def test_other_names_of_arguments_are_allowed(self):
        tried = system(policy=lambda s, gains, force, now: gains[:1] * s[:1] - force)
        assert tried.check(X, THETA, A, 0, thorough=True).m == 1

    def test_a_function_that_fits_no_shape_is_blamed_itself(self):
        with pytest.raises(ValueError, match=r"^dynamics: failed when traced with \(x float64\[2\], u float64\[2\]"):
            system(policy=lambda x, theta, f, t: theta[0] * x).check(X, THETA, A, 0)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("name", ["dynamics", "residual", "policy", "cost"])
def test_a_function_must_be_one(name):
    with pytest.raises(ValueError, match=f"{name}: expected a function, got 3.0"):
        system(**{name: 3.0})


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("name", ["dynamics", "actuation"])
def test_a_matched_function_must_be_one(name):
    good = planar_system()
    functions = dict(dynamics=good.phi, residual=good.residual, actuation=good.actuation, cost=good.cost)
    with pytest.raises(ValueError, match=f"{name}: expected a function, got None"):
        st.MatchedSystem(**(functions | {name: None}))


def test_matched_system_is_the_general_one():
    matched = planar_system()
    general = st.System(
        dynamics=lambda x, u, f, t: matched.phi(x, u + f, t),
        residual=matched.residual,
        policy=lambda x, theta, f, t: -f + matched.actuation(x, theta, t),
        cost=matched.cost,
    )
    x, theta, a = X, jnp.array([1.0, 1.0, 0.2, 0.1]), jnp.array([0.1, 0.2, 0.3])
    for got, expected in zip(matched.step(x, theta, a, 7), general.step(x, theta, a, 7), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
def test_a_check_is_not_remembered_for_another_function():
    """A new function may get the id of one that is gone."""

    class Policy(eqx.Module):
        shared: Callable
        own: Callable

        def __call__(self, x, theta, f, t):
            return self.shared(self.own(x))

    def shared(u):
        return u

    for m in (1, 2, 3, 4, 1, 3, 2):
        system = st.System(
            dynamics=lambda x, u, f, t: x + jnp.sum(u),
            residual=lambda x, a, t: a,
            policy=Policy(shared, lambda x, m=m: jnp.tile(x, m)),
            cost=lambda x, u, theta, t: jnp.sum(u**2),
        )
        assert system.check(jnp.ones(1), jnp.ones(1), jnp.ones(1), 0, thorough=True).m == m
        del system
        gc.collect()


def test_every_matched_system_is_a_system_and_the_base_is_abstract():
    assert isinstance(planar_system(), st.System)
    with pytest.raises(TypeError, match="abstract"):
        st.AbstractSystem()  # pyright: ignore[reportAbstractUsage]


def test_a_matched_system_holds_its_functions_once():
    class Linear(eqx.Module):
        W: jax.Array

        def __call__(self, x, v, t):
            return self.W * x + v

    made = st.MatchedSystem(Linear(jnp.array(0.5)), lambda x, a, t: a, lambda x, theta, t: theta, lambda *_: 0.0)
    assert len(jax.tree.leaves(eqx.filter(made, eqx.is_array))) == 1
    assert float(getattr(made.phi, "W")) == 0.5  # noqa: B009


def test_matched_policy_cancels_the_residual():
    """With the true parameters, the closed loop does not depend on them."""
    x, theta = X, jnp.array([1.0, 1.0, 0.2, 0.1])
    with_residual = planar_system().step(x, theta, jnp.array([0.1, 0.2, 0.3]), 3)[0]
    without = planar_system().step(x, theta, jnp.zeros(3), 3)[0]
    np.testing.assert_allclose(with_residual, without, rtol=1e-14)


def test_sensitivity_against_jacobians():
    system = random_system(jax.random.key(1), 4, 2, 3, 2, 5)
    x, theta, a = jnp.arange(4.0) / 4, jnp.arange(5.0) / 5, jnp.array([0.3, -0.2])
    y = jax.random.normal(jax.random.key(2), (4, 5))
    x_next, y_next, cost, gradient = jax.jit(lambda x, y, theta: system.sensitivity(x, y, theta, a, 2))(x, y, theta)
    step = jax.jit(lambda x, theta: system.step(x, theta, a, 2))
    (gx, hx), (gt, ht) = (jax.jit(jax.jacobian(step, argnums))(x, theta) for argnums in (0, 1))
    np.testing.assert_allclose(x_next, step(x, theta)[0], rtol=1e-14)
    np.testing.assert_allclose(cost, step(x, theta)[1], rtol=1e-14)
    np.testing.assert_allclose(y_next, gx @ y + gt, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gradient, hx @ y + ht, rtol=1e-12)


def test_residual_jacobian():
    a = {"gain": jnp.array([0.1, 0.2]), "bias": jnp.array(0.3)}
    system_ = system(residual=lambda x, a, t: jnp.sin(x) * a["gain"] + a["bias"] ** 2)
    f, J = system_.residual_and_jacobian(X, a, 0)
    np.testing.assert_allclose(f, jnp.sin(X) * a["gain"] + 0.09)
    # Flattened in the order of the keys: bias, then gain.
    np.testing.assert_allclose(J, jnp.array([[0.6, jnp.sin(X[0]), 0.0], [0.6, 0.0, jnp.sin(X[1])]]), rtol=1e-14)


class TestInferResidual:
    @pytest.mark.parametrize("iterations", [1, 3])
    def test_exact_for_affine_dynamics(self, iterations):
        system, x, u, f = scalar_system(), jnp.array([0.3]), jnp.array([-0.4]), jnp.array([0.17])
        x_next = system.dynamics(x, u, f, 0)
        got = st.infer_residual(system, x, u, x_next, 0, iterations=iterations)
        np.testing.assert_allclose(got, f, rtol=1e-12)

    def test_more_rows_than_residuals_is_least_squares(self):
        C = jax.random.normal(jax.random.key(0), (5, 2))
        wide = system(dynamics=lambda x, u, f, t: 0.5 * x + C @ f)
        x, x_next = jnp.ones(5), jnp.arange(5.0)
        got = st.infer_residual(wide, x, jnp.zeros(1), x_next, 0, f=jnp.zeros(2))
        np.testing.assert_allclose(got, jnp.linalg.lstsq(C, x_next - 0.5 * x)[0], rtol=1e-10)

    def test_nonlinear_dynamics_converge(self):
        curved = system(dynamics=lambda x, u, f, t: x + jnp.sinh(u + f))
        f = jnp.array([0.3, -0.2])
        x_next = curved.dynamics(X, jnp.array([0.1, 0.2]), f, 0)
        near = st.infer_residual(curved, X, jnp.array([0.1, 0.2]), x_next, 0, iterations=6)
        np.testing.assert_allclose(near, f, rtol=1e-10)

    def test_an_unseen_direction_stays_where_it_was(self):
        half = system(dynamics=lambda x, u, f, t: x + 0.1 * jnp.stack([f[0], 0.0 * f[0]]))
        got = st.infer_residual(half, X, jnp.zeros(1), X + jnp.array([0.05, 0.0]), 0, f=jnp.array([0.0, 7.0]))
        np.testing.assert_allclose(got, jnp.array([0.5, 7.0]), rtol=1e-10)

    def test_dynamics_without_residual_leave_the_guess(self):
        blind = system(dynamics=lambda x, u, f, t: x)
        got = st.infer_residual(blind, X, jnp.zeros(1), X + 1.0, 0, f=jnp.array([0.3]))
        np.testing.assert_array_equal(got, jnp.array([0.3]))

    @pytest.mark.parametrize("effect", [1e-3, 1e-6])
    def test_residuals_of_unequal_effect(self, effect):
        uneven = system(dynamics=lambda x, u, f, t: x + jnp.array([1.0, effect]) * f)
        x_next = X + jnp.array([1.0, effect]) * 0.7
        got = st.infer_residual(uneven, X, jnp.zeros(2), x_next, 0, iterations=1)
        np.testing.assert_allclose(got, jnp.full(2, 0.7), rtol=1e-8)

    def test_k_that_cannot_be_told_is_asked_for(self):
        spread = system(dynamics=lambda x, u, f, t: x + 0.1 * f)
        with pytest.raises(ValueError, match="f: expected a first guess, such as f_hat"):
            st.infer_residual(spread, X, jnp.zeros(1), X, 0)

    def test_jit_and_vmap(self):
        system = scalar_system()
        x_next = jnp.array([[0.1], [0.2]])
        infer = lambda x_next: st.infer_residual(system, jnp.zeros(1), jnp.zeros(1), x_next, 0)
        np.testing.assert_allclose(jax.jit(jax.vmap(infer))(x_next), x_next / 0.01, rtol=1e-12)

    @pytest.mark.usefixtures("as_a_user")
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (dict(x_next=jnp.zeros(2)), r"x_next: expected shape \(1,\), that of x, got float64\[2\]"),
            (dict(x=jnp.zeros((1, 1))), "x: expected a vector"),
            (dict(u=jnp.zeros(0)), "u: expected a vector of at least one number"),
            (dict(iterations=0), "iterations: expected a whole number >= 1, got 0"),
        ],
    )
    def test_refused(self, changes, message):
        good = dict(x=jnp.zeros(1), u=jnp.zeros(1), x_next=jnp.zeros(1), t=0)
        with pytest.raises(ValueError, match=message):
            st.infer_residual(scalar_system(), **(good | changes))


@pytest.mark.usefixtures("as_a_user")
def test_a_key_that_theta_has_not_is_named():
    tried = system(policy=lambda x, theta, f, t: -theta["kp"] * x[:1] - f)
    with pytest.raises(ValueError, match=r"^policy: KeyError: theta has no key 'kp'; its keys are 'k'\. The function"):
        tried.check(X, {"k": jnp.ones(1)}, A, jnp.int32(0))
