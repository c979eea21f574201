"""Doubles on their way through a callback: whatever JAX is set to in its threads."""

import subprocess
import sys
import textwrap

ELSEWHERE = """
    import threading
    import jax, jax.numpy as jnp, numpy as np
    import selftune as st

    system = st.MatchedSystem(
        dynamics=lambda x, v, t: x + 0.1 * v,
        residual=lambda x, a, t: a * jnp.cos(x),
        actuation=lambda x, theta, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )

    def cost(rate, seed):
        w = st.Gaussian(0.1)(jax.random.key(seed), 20_000, 1)
        scenario = st.Scenario(jnp.ones(1), jnp.full((20_000, 1), 0.5), w)
        controller = st.Controller(system, st.MGAPS(rate), st.GradientEstimator(0.05))
        start = {"theta": jnp.ones(1), "a_hat": jnp.zeros(1)}
        return st.simulate(controller, scenario, **start, engine="native", record=("cost",)).cost

    def work():
        with jax.enable_x64(True):
            over = jnp.linspace(0.01, 0.1, 32), jnp.arange(32)
            jitted = np.asarray(jax.jit(jax.vmap(cost))(*over))
            assert jitted.dtype == np.float64
            print(np.allclose(jitted, jax.vmap(cost)(*over), rtol=1e-9, atol=0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""


def test_doubles_under_jit_where_they_are_on_in_a_thread_alone():
    """In a process of its own: doubles that are taken for floats end in a crash."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ELSEWHERE)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
