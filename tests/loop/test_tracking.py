"""The cost of tracking: its closed form, its scales, and wrong arguments."""

import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st


def test_the_closed_form():
    cost = st.Tracking(2.0, 0.5, 0.1, output_scale=[1.0, 4.0], control_scale=10.0)
    error, u, rate = jnp.array([3.0, 8.0]), jnp.array([5.0]), jnp.array([-20.0])
    expected = 2.0 * (3.0**2 + 2.0**2) + 0.5 * 0.5**2 + 0.1 * 2.0**2
    np.testing.assert_allclose(cost(error, u, rate), expected, rtol=1e-14)


def test_scales_come_from_the_plant_unless_given():
    made = st.Tracking(control_scale=3.0).scaled_to((2.0, 5.0), (7.0,))
    np.testing.assert_array_equal(made.output_scale, [2.0, 5.0])
    np.testing.assert_array_equal(made.control_scale, [3.0])
    found = made(jnp.array([2.0, 5.0]), jnp.array([3.0]), jnp.zeros(1))
    np.testing.assert_allclose(found, 2.01, rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: st.Tracking(error=-1.0), "error: expected a finite number >= 0"),
        (lambda: st.Tracking(effort=np.inf), "effort: expected a finite number >= 0"),
        (lambda: st.Tracking(effort_rate="x"), "effort_rate: expected real numbers"),
        (lambda: st.Tracking(output_scale=0.0), "output_scale: expected numbers > 0"),
        (lambda: st.Tracking(control_scale=[1.0, -1.0]), "control_scale: expected numbers > 0"),
        (lambda: st.Tracking(output_scale=[1.0, 2.0, 3.0]).scaled_to((1.0, 1.0), (1.0,)), "output_scale: expected one"),
    ],
)
def test_wrong_arguments(as_a_user, make, message):
    with pytest.raises(st.ArgumentError, match=message):
        make()


def test_flight_tracking_counts_every_error():
    cost = st.FlightTracking(position=0.1, velocity=0.5, hover=3.0, torque=[0.2, 0.2, 0.1])
    x = jnp.zeros(16).at[:6].set(jnp.array([0.1, 0.0, 0.2, 0.5, 0.0, 0.0]))
    reference = jnp.zeros(12).at[2].set(0.1)
    u = jnp.array([4.5, 0.2, 0.0, 0.3])
    # Position: one scale along x and one along z; velocity: one scale; thrust: half of the weight; torques: 1 and 3.
    assert np.isclose(cost(x, u, reference), 1 + 1 + 0.3 + 0.02 * 0.25 + 1 + 9)
    with pytest.raises(st.ArgumentError, match="hover"):
        st.FlightTracking(0.1, 0.5, hover=0.0, torque=0.2)
