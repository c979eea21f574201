import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import golden_scenario, planar_system

THETA = jnp.array([1.0, 1.0, 0.2, 0.1])


def test_no_steps():
    ideal = st.ideal_ogd(planar_system(), golden_scenario("planar")[:0], theta=THETA, learning_rate=0.1)
    assert ideal.theta.shape == (0, 4)
    np.testing.assert_array_equal(ideal.final, THETA)


def test_a_slice_keeps_its_step_numbers():
    """The reference of this problem moves with t: a slice is not the beginning."""
    scenario = golden_scenario("planar")
    part = st.ideal_ogd(planar_system(), scenario[50:60], theta=THETA, learning_rate=1e-3)
    expected = planar_system().step(scenario.x0, THETA, scenario.a_star[50], 50)[1]
    assert float(part.surrogate[0]) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(system=None), "system: expected a System, got None"),
        (dict(scenario=planar_system()), "scenario: expected a Scenario"),
        (dict(theta=jnp.full(4, 9.0)), "theta: expected a point of its constraint"),
        (dict(theta=jnp.full(4, jnp.nan)), "theta: expected finite numbers"),
        (dict(learning_rate=0.0), "learning_rate"),
        (dict(constraint="box"), "constraint: expected a constraint"),
    ],
)
def test_refused(changes, message):
    good = dict(
        system=planar_system(),
        scenario=golden_scenario("planar")[:3],
        theta=THETA,
        learning_rate=0.1,
        constraint=st.Box(-2.0, 2.0),
    )
    with pytest.raises(ValueError, match=message):
        st.ideal_ogd(**(good | changes))
