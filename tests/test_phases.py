"""The phase of an oscillation after many steps: against exact fractions, in both dtypes and both engines."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.foundation.phases import _PI
from selftune.robots import arm, car, quadrotor

STEPS = np.array([0, 1, 7, -1, -1000, 123_456, 10**6, 10**9, 2**31 - 1, -(2**31)], np.int64)


def exact(t, rate):
    """The angle by fractions, in [−π, π]."""
    angle = Fraction(rate) * int(t) / (2 * _PI)
    return float((angle - round(angle)) * 2 * _PI)


@pytest.mark.parametrize("rate", [0.002, 0.1, 1.0, -0.3, 7.5, 1e-9, 2 * np.pi / 480])
def test_against_fractions(rate):
    for dtype, tolerance in ((jnp.float32, 4e-7), (jnp.float64, 4e-10)):
        found = st.phase(jnp.asarray(STEPS, jnp.int32), rate, dtype)
        assert found.dtype == dtype
        wanted = np.array([exact(t, rate) for t in STEPS])
        error = np.remainder(np.asarray(found, float) - wanted + np.pi, 2 * np.pi) - np.pi
        assert np.abs(error).max() <= tolerance


def test_the_plain_product_is_wrong():
    t, rate = 10**9, 0.002
    plain = jnp.float32(rate) * jnp.float32(t)
    error = np.remainder(float(plain) - exact(t, rate) + np.pi, 2 * np.pi) - np.pi
    assert abs(np.degrees(error)) > 1


def test_both_engines_give_the_same_bits():
    """A policy that follows a sine, from a late step on."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: x + 0.1 * v,
        residual=lambda x, a, t: a,
        actuation=lambda x, theta, t: -theta * (x - st.phase(t, 0.37, x.dtype)),
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    made = st.Controller(system, st.Fixed(), st.Frozen())
    agents = [
        st.Agent(made, x=np.zeros(1, np.float32), theta=np.ones(1, np.float32), a_hat=np.zeros(1, np.float32), engine=e)
        for e in ("native", "xla")
    ]
    for t in (0, 5, 10**9, 2**31 - 1):
        u = [float(one.act([0.0], t)[0]) for one in agents]
        assert u[0] == u[1]
        np.testing.assert_allclose(u[0], exact(t, 0.37), atol=4e-7)


def test_batches_and_wrong_arguments():
    rows = jax.vmap(lambda t: st.phase(t, 0.1))(jnp.arange(5))
    np.testing.assert_allclose(rows, 0.1 * np.arange(5), rtol=1e-12)
    with pytest.raises(ValueError, match="t: expected the number of the step, an integer"):
        st.phase(0.5, 0.1)
    with pytest.raises(ValueError, match="rate: expected a finite number"):
        st.phase(1, np.inf)


@pytest.mark.parametrize("make", [arm.make, car.make, quadrotor.make], ids=["arm", "car", "quadrotor"])
def test_the_references_of_the_robots_do_not_drift(make):
    """After many laps, a robot in float32 gets the control of the first lap, bit for bit."""
    robot = make()
    theta, a_hat = (jnp.asarray(value, jnp.float32) for value in (robot.theta, robot.a_hat))
    x = jnp.asarray(robot.make_scenario(1, jax.random.key(0)).x0, jnp.float32)
    laps = 10**9 // robot.lap * robot.lap
    for t in (1, robot.lap // 3):
        first, late = (
            robot.system.policy(x, theta, robot.system.residual(x, a_hat, step), step)
            for step in (jnp.asarray(t, jnp.int32), jnp.asarray(t + laps, jnp.int32))
        )
        assert first.dtype == jnp.float32
        np.testing.assert_array_equal(first, late)
        assert np.any(np.asarray(first) != 0)
