"""The choice of the way to propagate tangents: the smallest program, and no more translations than it needs."""

import jax.numpy as jnp
import pytest

import selftune as st
from selftune.native import loop, step

BOX = st.Box(0.1, 40.0)


def system(length=1):
    """Return a system whose dynamics are a chain of functions of the control: each tangent goes through all of them."""

    def dynamics(x, u, f, t):
        force = u[0] + f[0]
        for _ in range(length):
            force = jnp.sin(force) + 0.1 * force
        return jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * force])

    return st.System(
        dynamics=dynamics,
        residual=lambda x, a, t: jnp.stack([a[0] * x[1] + a[1] * jnp.tanh(5.0 * x[1])]),
        policy=lambda x, theta, f, t: jnp.stack([-jnp.sum(theta * jnp.resize(x, theta.shape)) - f[0]]),
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.01 * jnp.sum(u**2),
    )


def lowered(controller, d=2):
    """Return the C of a simulation, and how many programs were translated for it."""
    count, lower, sources = [], step.lower, []

    class EnoughError(Exception):
        pass

    def build(source, **options):
        sources.append(source)
        raise EnoughError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "lower", lambda *given, **options: count.append(1) or lower(*given, **options))
        patch.setattr(loop, "build", build)
        loop._compiled.cache_clear()
        scenario = st.Scenario(jnp.ones(2), jnp.zeros((3, 2)), jnp.zeros((3, 2)))
        with pytest.raises(EnoughError):
            st.simulate(controller, scenario, theta=jnp.ones(d), a_hat=jnp.zeros(2), engine="native")
    loop._compiled.cache_clear()
    return sources[0], len(count)


def twice(controller, d=2):
    """Return the same if the way is chosen before the program is translated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "_one_by_one", lambda *_: None)
        return lowered(controller, d)


def test_a_small_program_is_translated_once():
    controller = st.Controller(system(), st.MGAPS(0.02, constraint=BOX), st.GradientEstimator(0.02))
    assert lowered(controller) == (twice(controller)[0], 1)


def test_a_large_program_of_a_small_loop_is_translated_once():
    controller = st.Controller(system(), st.GaussNewton(constraint=BOX), st.KalmanEstimator())
    assert lowered(controller) == (twice(controller)[0], 2)  # and the loop alone, to see its size


def test_a_large_loop_has_the_smallest_way():
    controller = st.Controller(system(12), st.MGAPS(0.02, constraint=BOX), st.GradientEstimator(0.02))
    source, _ = lowered(controller, 6)
    assert source == twice(controller, 6)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "SMALL", 10**6)  # so the first way is taken
        assert len(lowered(controller, 6)[0]) > len(source)
