import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import scalar_system
from tests.regret.cases import paper_scenario


def run(steps: int, **options) -> st.Run:
    controller = st.Controller(scalar_system(), st.Fixed(), st.Known())
    return st.simulate(controller, paper_scenario(0, steps), theta=jnp.full(1, 3.0), **options)


def test_cumulative_difference():
    controller = st.Controller(scalar_system(), st.Fixed(), st.Known())
    other = st.simulate(controller, paper_scenario(0, 50), theta=jnp.ones(1))
    q = st.quasi_regret(run(50), other)
    np.testing.assert_array_equal(q.difference, run(50).cost - other.cost)
    np.testing.assert_allclose(q.cumulative[-1], run(50).cost.sum() - other.cost.sum(), rtol=1e-12)
    assert not st.quasi_regret(other, other).cumulative.any()


def test_bad_input_is_refused_by_name():
    with pytest.raises(ValueError, match="reference_run: expected as many costs as in run"):
        st.quasi_regret(run(50), run(49))
    with pytest.raises(ValueError, match="reference_run: expected a run that recorded cost"):
        st.quasi_regret(run(50), run(50, record=("x",)))
