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
    assert system().check(X, THETA, A, 0) == (2, 1, 1, 3, 1)
    assert random_system(jax.random.key(0), 6, 3, 2, 6, 4).check(jnp.zeros(6), jnp.zeros(4), jnp.zeros(6), 0) == (
        6,
        3,
        2,
        4,
        6,
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
            r"policy: failed when traced with \(float64\[2\], float64\[3\]",
        ),
        (dict(cost=lambda x, u, theta, t: theta["gain"]), "cost: failed when traced"),
    ],
)
def test_check_names_the_function_and_the_shapes(changes, message):
    with pytest.raises(ValueError, match=message):
        system(**changes).check(X, THETA, A, 0)


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
    x_next, y_next, cost, gradient = system.sensitivity(x, y, theta, a, 2)
    step = lambda x, theta: system.step(x, theta, a, 2)
    (gx, hx), (gt, ht) = (jax.jacobian(step, argnums)(x, theta) for argnums in (0, 1))
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
