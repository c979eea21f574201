"""The checks that come before a robot: every kind of mistake is made here on purpose, and must be named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.simulation._differences import compare, probe, relative_errors
from tests.problems import planar_system

X, THETA, A = jnp.array([0.3, -0.2]), jnp.array([1.0, 0.5, 0.1]), jnp.array([0.4])


def system(**changes):
    functions = dict(
        dynamics=lambda x, u, f, t: x + 0.1 * jnp.stack([x[1], u[0] + f[0]]),
        residual=lambda x, a, t: a * jnp.sin(x[:1]),
        policy=lambda x, theta, f, t: -theta[:1] * x[:1] - theta[1:2] * jnp.cos(x[1:]) + theta[2:] - f,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )
    return st.System(**(functions | changes))


class TestGradient:
    def test_a_right_system_passes(self):
        """At many points, each with its context."""
        x = jax.random.normal(jax.random.key(0), (7, 2))
        theta, a = jnp.array([1.0, 1.0, 0.2, 0.1]), jnp.array([0.1, 0.2, 0.3])
        found = st.check_gradient(planar_system(), x, theta, a, 10 * jnp.arange(7))
        assert found.ok
        assert found.wrong == found.notes == ()
        assert 0 <= found.error < 1e-7
        assert len(found.errors) == 15
        assert found.points == 7
        assert str(found).endswith("ok")

    def test_units_of_the_user(self):
        """Numbers of 1e-6 and of 1e6, which one step size for all would not do."""
        scaled = system(
            dynamics=lambda x, u, f, t: jnp.stack(
                [1e-6 * jnp.sin(1e6 * x[0]), 1e6 * jnp.sin(1e-6 * x[1]) + u[0] + f[0]]
            )
        )
        assert st.check_gradient(scaled, jnp.array([1e-6, 2e6]), THETA, A).ok

    @pytest.mark.parametrize("error", [1.01, -1.0])
    def test_a_wrong_derivative_is_caught_and_named(self, error):
        @jax.custom_jvp
        def square(x):
            return x**2

        @square.defjvp
        def _(primals, tangents):
            return square(*primals), error * 2 * primals[0] * tangents[0]

        wrong = system(cost=lambda x, u, theta, t: jnp.sum(x[:1]) ** 2 + square(x[1]) + 0.1 * jnp.sum(u**2))
        found = st.check_gradient(wrong, X, THETA, A)
        assert not found.ok
        (text,) = found.wrong
        assert text == f"cost: d h / d x[1] is {-0.4 * error:.6g}, by differences -0.4"
        assert found.where == "cost: d h / d x[1]"
        np.testing.assert_allclose(found.error, abs(error - 1) / max(1, abs(error)), rtol=1e-3)
        assert "cost: d h / d x" in str(found)
        assert "WRONG" in str(found)

    def test_derivatives_that_are_not_finite(self):
        rooted = system(policy=lambda x, theta, f, t: -theta[:1] * jnp.sqrt(jnp.sum(x**2)) - f)
        found = st.check_gradient(rooted, jnp.zeros(2), THETA, A)
        assert not found.ok
        assert found.wrong == ("policy: d u[0] / d x[0] is nan", "policy: d u[0] / d x[1] is nan")
        assert found.error == np.inf

    def test_a_value_that_is_not_finite(self):
        found = st.check_gradient(system(cost=lambda x, u, theta, t: jnp.log(x[1])), X, THETA, A)
        assert "cost: h is nan" in found.wrong

    def test_kinks_are_noted_where_they_are(self):
        def residual(x, a, t):
            return a * x + jnp.stack([jnp.clip(x[0], -0.2, 0.2), jnp.abs(x[1]), jax.nn.relu(x[2]), jnp.sign(x[3])])

        kinked = st.System(
            dynamics=lambda x, u, f, t: x + u + f,
            residual=residual,
            policy=lambda x, theta, f, t: theta,
            cost=lambda x, u, theta, t: jnp.sum(x**2),
        )
        at = jnp.array([[0.2, 0.0, 0.0, 0.0], [0.21, 0.01, -0.01, 0.01]])
        found = st.check_gradient(kinked, at, jnp.ones(4), jnp.zeros(1))
        assert found.ok
        assert found.notes == (
            "residual: d f[0] / d x[0] is 0.5 at a kink: 1 to the left, 0 to the right (at 1 of 2 points)",
            "residual: d f[1] / d x[1] is 1 at a kink: -1 to the left, 1 to the right (at 1 of 2 points)",
            "residual: d f[2] / d x[2] is 0 at a kink: 0 to the left, 1 to the right (at 1 of 2 points)",
            "residual: d f[3] / d x[3] is 0 at a jump, which a derivative cannot show (at 1 of 2 points)",
        )

    def test_a_derivative_beyond_both_sides_of_a_kink_is_wrong(self):
        @jax.custom_jvp
        def size(x):
            return jnp.abs(x)

        @size.defjvp
        def _(primals, tangents):
            return size(*primals), 3.0 * tangents[0]

        found = st.check_gradient(system(residual=lambda x, a, t: a + size(x[1:])), jnp.zeros(2), THETA, A)
        assert found.wrong == ("residual: d f[0] / d x[1] is 3, by differences 0",)

    def test_parameters_without_influence(self):
        theta = {"bias": jnp.array(0.1), "gain": jnp.array([1.0, 2.0])}
        half = system(
            policy=lambda x, theta, f, t: -theta["gain"][:1] * x[:1] + theta["bias"],
            residual=lambda x, a, t: a[:1] * x[:1],
        )
        found = st.check_gradient(half, X, theta, jnp.array([0.3, 0.4]))
        assert found.ok
        assert found.notes == (
            "theta['gain'][1] has no influence on the next state or the cost",
            "a_hat[1] has no influence on the residual",
        )

    @pytest.mark.usefixtures("as_a_user")
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (dict(system=None), "system: expected a System, got None"),
            (dict(x=jnp.array([jnp.nan, 0.0])), "x: expected finite numbers, got nan at index"),
            (dict(x=jnp.zeros((2, 2, 2))), r"x: expected a point \(n,\) or points \(N, n\), got float64\[2, 2, 2\]"),
            (dict(theta="low"), "theta: expected real numbers"),
            (dict(theta=jnp.zeros(2)), r"^theta: expected another shape, such as \(3,\)"),
            (dict(a_hat=[jnp.inf]), "a_hat: expected finite numbers"),
            (dict(x=jnp.zeros((3, 2)), t=jnp.arange(4)), "t: expected one context, or a leading axis of 3"),
            (dict(tolerance=0.0), "tolerance: expected a finite number > 0, got 0.0"),
        ],
    )
    def test_what_is_refused(self, changes, message):
        with pytest.raises(ValueError, match=message):
            st.check_gradient(**(dict(system=system(), x=X, theta=THETA, a_hat=A) | changes))


def linear(matrix):
    """x_{t+1} = (matrix + θ I) x."""
    return st.System(
        dynamics=lambda x, u, f, t: jnp.asarray(matrix) @ x + u,
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )


def quiet(steps, n=2):
    return st.Scenario(x0=jnp.ones(n) / 10, a_star=jnp.zeros((steps, 1)), w=jnp.zeros((steps, n)))


class TestContraction:
    @pytest.mark.parametrize(
        ("matrix", "rho"),
        [
            ([[0.9, 0.0], [0.0, 0.3]], 0.9),
            ([[0.9, 5.0], [0.0, 0.8]], 0.9),  # not normal
            ([[0.6, -0.72], [0.72, 0.6]], np.hypot(0.6, 0.72)),  # turning
        ],
    )
    def test_a_contractive_loop_with_its_eigenvalue(self, matrix, rho):
        found = st.check_contraction(linear(matrix), quiet(800), theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        assert found.ok
        np.testing.assert_allclose(found.rho, rho, rtol=3e-3)
        np.testing.assert_allclose(found.time_constant, -1 / np.log(rho), rtol=0.03)
        assert found.verdict.startswith("contracts: ")

    def test_gains_in_a_loop(self):
        """As θ grows, 0.9 + θ passes 1."""
        loop = linear(0.9 * np.eye(2))
        scan = [
            st.check_contraction(loop, quiet(800), theta=jnp.array([gain]), a_hat=jnp.zeros(1))
            for gain in (-0.1, 0.0999, 0.12, 0.3)
        ]
        np.testing.assert_allclose([found.rho for found in scan], [0.8, 0.9999, 1.02, 1.2], rtol=1e-6)
        assert [found.ok for found in scan] == [True, False, False, False]
        assert scan[1].verdict == "marginal: too close to 1 to decide within 400 steps; use more steps"
        assert scan[2].verdict == "UNSTABLE: a deviation grows e-fold in 50.5 steps"
        assert scan[3].verdict.startswith("UNSTABLE: the state diverged at step ")
        assert str(scan[0]) == "rho = 0.8000; contracts: a deviation shrinks e-fold in 4.48 steps"

    def test_a_plant_that_is_unstable_without_control_needs_a_rest(self):
        """x' = 1.05 x + u − 0.25 x: the loop has ρ = 0.8, and e-fold growth in 1 / log 1.05 = 20.5 steps without u."""
        loop = st.System(
            dynamics=lambda x, u, f, t: 1.05 * x + u + f,
            residual=lambda x, a, t: 0 * x,
            policy=lambda x, theta, f, t: -theta * x,
            cost=lambda x, u, theta, t: jnp.sum(x**2),
        )
        found = st.check_contraction(loop, quiet(800, n=1), theta=jnp.full(1, 0.25), a_hat=jnp.zeros(1))
        assert found.without_control == pytest.approx(1.05)
        assert "grows e-fold in 20.5 steps): use GaussNewton(rest=45)" in str(found)  # 10 · −1 / log 0.8 = 44.8
        stable = st.check_contraction(loop, quiet(800, n=1), theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        assert "rest" not in str(stable)  # the loop itself is unstable: first find gains

    def test_a_loop_that_contracts_only_at_the_end(self):
        late = st.System(
            dynamics=lambda x, u, f, t: jnp.where(t < 400, 1.02, 0.9) * x,
            residual=lambda x, a, t: a,
            policy=lambda x, theta, f, t: theta,
            cost=lambda x, u, theta, t: jnp.sum(x**2),
        )
        found = st.check_contraction(late, quiet(800, n=1), theta=jnp.zeros(1), a_hat=jnp.zeros(1), memory=50)
        assert found.rho < 0.91
        assert not found.ok
        assert found.verdict.startswith("contracts at the end, but not during the whole run: up to 1.02")

    def test_the_plant_drives_and_the_model_is_asked(self):
        model, plant = linear(0.5 * np.eye(2)), linear(0.9 * np.eye(2))
        found = st.check_contraction(model, quiet(80), theta=jnp.zeros(1), a_hat=jnp.zeros(1), plant=plant)
        np.testing.assert_allclose(found.rho, 0.5, rtol=1e-9)

    @pytest.mark.usefixtures("as_a_user")
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (dict(system=3), "system: expected a System, got 3"),
            (dict(scenario=None), "scenario: expected a Scenario, got None"),
            (dict(memory=0.0), "memory: expected None or a number of steps >= 1, got 0.0"),
            (dict(theta=[jnp.nan]), "theta: expected finite numbers"),
        ],
    )
    def test_what_is_refused(self, changes, message):
        arguments = dict(system=linear(np.eye(2)), scenario=quiet(8), theta=jnp.zeros(1), a_hat=jnp.zeros(1))
        with pytest.raises(ValueError, match=message):
            st.check_contraction(**(arguments | changes))


def test_a_kink_inside_the_larger_steps_is_no_error():
    """The anti-windup of a heater whose control rests near its lower limit of 0: the state is 100, the kink a little
    beside it. In float32, steps of 1 and 4 cross the kink, and smaller ones do not."""
    for kink in (100.2, 100.5, 101.5, 103.0, 99.8, 97.0):
        function = lambda z, kink=kink: z - 0.02 * jnp.maximum(z - kink, 0)
        z = jnp.array([100.0], jnp.float32)
        for slope, right in ((1.0 if kink > 100 else 0.98, True), (0.99, False)):
            block = compare(
                jax.tree.map(lambda leaf: leaf[None], probe(function, z, jnp.array([[slope]], jnp.float32)))
            )
            assert (relative_errors(block, 1e-3) <= 1e-3).all() == right, (kink, slope)
