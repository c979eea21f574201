import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st

EPISODE, RADIUS, RATE = 5, 0.05, 2e-4


def bandit(minimum):
    """No dynamics to speak of: the cost of a step is a quadratic of θ, around `minimum`."""
    return st.System(
        dynamics=lambda x, u, f, t: 0.0 * x,
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: x,
        cost=lambda x, u, theta, t: jnp.sum((theta - minimum) ** 2),
    )


def run(key, constraint, steps, minimum):
    tuner = st.OPRF(episode=EPISODE, radius=RADIUS, key=key, learning_rate=RATE, constraint=constraint)
    scenario = st.Scenario(jnp.zeros(1), jnp.zeros((steps, 1)), jnp.zeros((steps, 1)))
    controller = st.Controller(bandit(minimum), tuner, st.Frozen())
    return st.simulate(controller, scenario, theta=jnp.array([0.5, -0.5, 0.0]), a_hat=jnp.zeros(1))


def test_update_rule():
    """Recover the centres from what was deployed and what it cost, and find the rule of the docstring in them."""
    out = run(jax.random.key(1), st.Unconstrained(), 8 * EPISODE, jnp.array([1.0, 1.0, 1.0]))
    deployed = np.asarray(out.theta).reshape(8, EPISODE, 3)
    np.testing.assert_array_equal(deployed, np.repeat(deployed[:, :1], EPISODE, axis=1))
    totals = np.asarray(out.cost).reshape(8, EPISODE).sum(axis=1)
    center = deployed[0, 0]
    for i in range(1, 8):
        direction = (deployed[i, 0] - center) / RADIUS
        assert np.linalg.norm(direction) == pytest.approx(1.0, abs=1e-9)
        center = center - RATE * 3 / RADIUS * (totals[i] - totals[i - 1]) * direction


def test_finds_the_minimum_from_costs_alone():
    out = run(jax.random.key(2), st.Unconstrained(), 40_000, jnp.array([1.0, 1.0, 1.0]))
    center = out.final.state.tuner.center
    assert float(jnp.linalg.norm(center - 1.0)) < 0.1  # it started 1.9 away


def test_the_deployed_theta_stays_inside():
    box = st.Box(-0.52, 0.52)
    out = run(jax.random.key(2), box, 2_000, jnp.array([3.0, 3.0, 3.0]))
    assert bool(jax.vmap(box.contains)(out.theta).all())
    assert float(jnp.max(out.theta)) == 0.52


def test_randomness_is_the_keys():
    minimum = jnp.ones(3)
    first, again, other = (run(jax.random.key(k), st.Unconstrained(), 50, minimum).theta for k in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert float(jnp.max(jnp.abs(first - other))) > 1e-3
