"""One flipped bit in the memory of a controller: it refuses a few good measurements at most, and θ is inside Θ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.control import guarded_step, result_codes
from selftune.native.lowering.from_jaxpr import leaf_names
from tests.test_guard import START, system

STEPS, LONGEST = 100, 3
"""Steps after the flipped bit, and how many good measurements in a row may be refused."""


def flips(state):
    """Return all states with one flipped bit, as one batch, and the names of the flipped numbers."""
    names, leaves = zip(*leaf_names(state), strict=True)
    leaves = [np.asarray(leaf) for leaf in leaves]
    rows, flipped = [], []
    for i, leaf in enumerate(leaves):
        kind = {1: np.uint8, 4: np.uint32, 8: np.uint64}[leaf.dtype.itemsize]
        for j in range(leaf.size):
            for bit in range(1 if leaf.dtype == bool else 8 * leaf.dtype.itemsize):
                changed = leaf.copy().reshape(-1)
                changed.view(kind)[j] ^= kind(1) << kind(bit)
                rows.append([changed.reshape(leaf.shape) if n == i else other for n, other in enumerate(leaves)])
                flipped.append(names[i])
    batch = [np.stack(column) for column in zip(*rows, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(state), batch), flipped


def longest_run(flags):
    """Return the length of the longest run of true flags in each row."""
    run, longest = np.zeros((2, len(flags)), int)
    for column in flags.T:
        run = np.where(column, run + 1, 0)
        longest = np.maximum(longest, run)
    return longest


@pytest.mark.parametrize(
    ("tuner", "estimator"),
    [
        (st.MGAPS(0.02, constraint=st.Box(-1.0, 4.0)), st.RLS(0.99, 10.0, constraint=st.Box(0.0, 2.0))),
        pytest.param(
            st.GaussNewton(constraint=st.Box(-1.0, 4.0)), st.AutoEstimator(st.Box(0.0, 2.0)), marks=pytest.mark.slow
        ),
        pytest.param(st.MGAPS(0.02), st.RLS(1.0, 10.0), marks=pytest.mark.slow),
        pytest.param(st.GaussNewton(), st.AutoEstimator(), marks=pytest.mark.slow),
    ],
)
def test_one_flipped_bit(tuner, estimator):
    made, guard = (
        st.Controller(system(), tuner, estimator),
        st.Guard(window=10, safe_after=30, u_low=-50.0, u_high=50.0),
    )

    def step(carry, t):
        state, x = carry
        u, state, _ = guarded_step.act(made, guard, state, x, t)
        x = jnp.stack([x[0] + 0.05 * x[1], x[1] + 0.05 * (u[0] - 0.8 * x[0])])
        state, observed, _ = guarded_step.observe_state(made, guard, state, x)
        acted = jnp.where(state.code == result_codes.REPEATED, result_codes.OK, state.code)
        return (state, x), (acted, observed, u, state.theta)

    first = guarded_step.begin(made, guard, jnp.array([0.5, 0.0]), **START, t=jnp.asarray(0, jnp.int32))
    run = jax.jit(lambda state, x, t: jax.lax.scan(step, (state, x), t))
    (state, x), _ = run(first, jnp.array([0.5, 0.0]), jnp.arange(50, dtype=jnp.int32))
    batch, flipped = flips(state)
    t = jnp.arange(50, 50 + STEPS, dtype=jnp.int32)
    _, (acted, observed, u, theta) = jax.jit(jax.vmap(run, in_axes=(0, None, None)))(batch, x, t)
    flipped = np.array(flipped)
    others = flipped != "guard_failsafe_latched"  # its end is the caller's decision
    assert len(flipped) > 2000
    assert np.all(np.isfinite(u))
    is_deaf = np.isin(observed, (result_codes.OK, result_codes.OUTLIER), invert=True)
    for is_refused in (np.asarray(acted) != 0, is_deaf):
        wedged = (longest_run(is_refused) > LONGEST) & others
        assert not wedged.any(), sorted(set(flipped[wedged]))
        assert np.any(is_refused[others])  # some bits matter
    if isinstance(tuner.constraint, st.Box):
        assert np.all((np.asarray(theta)[:, -1] >= -1) & (np.asarray(theta)[:, -1] <= 4))
