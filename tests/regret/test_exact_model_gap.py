import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import SYSTEMS, golden, golden_scenario, scalar_system
from tests.regret.cases import golden_run, paper_scenario


@pytest.mark.parametrize("name", SYSTEMS)
def test_golden(name):
    g = golden(name)
    c = st.exact_model_gap(SYSTEMS[name](), golden_scenario(name), golden_run(name))
    for got, field in ((c.x, "x_exact"), (c.y, "y_exact"), (c.gap, "gap")):
        np.testing.assert_allclose(got, g[field], rtol=1e-8, atol=1e-8 * np.abs(g[field]).max(), err_msg=field)
    np.testing.assert_allclose(c.gap_x, np.linalg.norm(g["mgaps_x"] - g["x_exact"], axis=1), atol=1e-8)


def test_the_companion_is_the_run_where_the_model_is_known():
    system, scenario = scalar_system(), paper_scenario(0, 100)
    run = st.simulate(st.Controller(system, st.MGAPS(1e-3), st.Known()), scenario, theta=jnp.ones(1))
    c = st.exact_model_gap(system, scenario, run)
    np.testing.assert_allclose(c.gap, 0, atol=1e-13)  # rounding of numbers of size 1, over 100 steps
    np.testing.assert_allclose(c.x, run.x, atol=1e-13)


def test_without_y_there_is_the_gap_of_x():
    system, scenario = scalar_system(), paper_scenario(0, 50)
    run = st.simulate(st.Controller(system, st.Fixed(), st.Frozen()), scenario, theta=jnp.ones(1), a_hat=jnp.zeros(3))
    c = st.exact_model_gap(system, scenario, run)
    assert c.gap is None
    assert c.gap_x[0] == 0
    assert (c.gap_x[1:] > 0).all()


def test_bad_input_is_refused_by_name():
    system, scenario = scalar_system(), paper_scenario(0, 20)
    run = st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.ones(1), record=("x",))
    with pytest.raises(ValueError, match="run: expected a run that recorded theta"):
        st.exact_model_gap(system, scenario, run)
    with pytest.raises(ValueError, match=r"run.x: expected 19 rows"):
        st.exact_model_gap(
            system,
            scenario[:19],
            st.simulate(st.Controller(system, st.Fixed(), st.Known()), scenario, theta=jnp.ones(1)),
        )
