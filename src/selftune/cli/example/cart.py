"""A cart with unknown friction and a slope under it: position and speed, a force, two gains.

selftune run cart.toml
selftune export cart.py:controller -o cart-c
"""

import jax.numpy as jnp

import selftune as st


def make(dt: float = 0.02) -> st.MatchedSystem:
    """x = (position, speed); the unknown acceleration is a₀ − a₁ tanh(speed / 0.1): slope, and dry friction."""
    return st.MatchedSystem(
        dynamics=lambda x, v, t: jnp.stack([x[0] + dt * x[1], x[1] + dt * v[0]]),
        residual=lambda x, a, t: jnp.stack([a[0] - a[1] * jnp.tanh(x[1] / 0.1)]),
        actuation=lambda x, theta, t: -jnp.sum(theta * x)[None],
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.01 * jnp.sum(u**2),
    )


def controller(dt: float = 0.02) -> st.Controller:
    """As in `cart.toml`."""
    return st.Controller(
        make(dt),
        tuner=st.MGAPS(0.02, constraint=st.Box([0.5, 0.5], [20.0, 20.0])),
        estimator=st.GradientEstimator(0.05, constraint=st.Box(-2.0, 2.0)),
    )


x, theta, a_hat = [1.0, 0.0], [1.0, 1.5], [0.0, 0.0]  # where an exported controller starts
