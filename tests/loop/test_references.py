"""References: their values, their periods, their phase in long runs in float32, and wrong arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune import references
from selftune.loop.references import as_reference

KEY = jax.random.key(0)


def rows(reference, steps=8, dt=0.25, q=1):
    found = reference.rows(KEY, steps, dt, q)
    assert found.shape == (steps, q)
    return np.asarray(found)


@pytest.mark.parametrize(
    ("reference", "expected", "period"),
    [
        (references.Hold(2.0), [2.0] * 8, np.inf),
        (references.Square(1.0, low=-1.0, high=3.0), [3.0, 3.0, -1.0, -1.0] * 2, 4.0),
        (references.Ramp(slope=2.0, start=1.0), 1 + 0.5 * np.arange(8), np.inf),
        (references.Ramp(slope=-2.0, end=-1.0), [0, -0.5, -1, -1, -1, -1, -1, -1], np.inf),
        (references.Sine(2.0, seconds=1.0, offset=0.5), 0.5 + 2 * np.sin(np.pi / 2 * np.arange(8)), 4.0),
        (references.Sine(1.0, seconds=1.0, phase=np.pi / 2), np.cos(np.pi / 2 * np.arange(8)), 4.0),
        (references.Recorded([0.0, 1.0, 3.0]), [0, 1, 3, 0, 1, 3, 0, 1], 3.0),
        (references.Function(lambda s: s**2), (0.25 * np.arange(8)) ** 2, np.inf),
    ],
)
def test_values_and_periods(reference, expected, period):
    np.testing.assert_allclose(rows(reference)[:, 0], expected, atol=1e-12)
    assert reference.period(0.25) == period


def test_steps_hold_each_level_and_stay_in_the_range():
    found = rows(references.Steps(0.5, low=[-1.0, 10.0], high=[1.0, 20.0]), steps=2000, q=2)
    levels = found.reshape(1000, 2, 2)
    np.testing.assert_array_equal(levels[:, 0], levels[:, 1])
    assert np.all(np.abs(found[:, 0]) <= 1)
    assert np.all((found[:, 1] >= 10) & (found[:, 1] <= 20))
    # A thousand uniform levels: the mean of each is within five standard errors.
    np.testing.assert_allclose(levels[:, 0].mean(0), [0.0, 15.0], atol=5 * 10 / np.sqrt(12 * 1000))
    assert references.Steps(0.5, 0.0, 1.0).period(0.25) == 2.0


def test_one_number_is_for_every_output():
    np.testing.assert_array_equal(rows(references.Hold(2.0), q=3), np.full((8, 3), 2.0))
    np.testing.assert_array_equal(rows(references.Hold([1.0, 2.0]), q=2)[0], [1.0, 2.0])
    np.testing.assert_array_equal(rows(references.Recorded([[1.0, 2.0], [3.0, 4.0]]), q=2)[3], [3.0, 4.0])


@pytest.mark.parametrize("kind", ["sine", "square", "function"])
def test_the_phase_is_right_in_long_runs_in_float32(kind):
    """At time 10⁷ s, float32 has a resolution of 1 s; the period of the signal is 1 s."""
    steps, dt = 1000, 1e4 + 0.3  # as many periods as 10⁹ samples of 10 ms have
    times = np.arange(steps) * dt
    made = {
        "sine": (lambda: references.Sine(1.0, seconds=1.0), np.sin(2 * np.pi * np.mod(times, 1.0))),
        "square": (lambda: references.Square(1.0, low=0.0, high=1.0), None),
        "function": (lambda: references.Function(lambda s: jnp.mod(s, 1.0)), np.mod(times, 1.0)),
    }
    make, expected = made[kind]
    with jax.enable_x64(False):
        found = np.asarray(make().rows(KEY, steps, dt, 1))[:, 0]
        assert found.dtype == np.float32
    if expected is None:
        expected = np.where(np.mod((times + 0.5 * dt), 1.0) < 0.5, 1.0, 0.0)
    # The phase in double precision has an error of 1e7 · 2e-16; the value is rounded to float32.
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda s: 1.0 if s > 0.25 else 0.0,
        lambda s: np.heaviside(s - 0.25, 0.0),
        lambda s: jnp.where(s > 0.25, 1.0, 0.0),
    ],
    ids=["if", "NumPy", "JAX"],
)
def test_a_function_may_be_plain_python(function):
    found = references.Function(function).rows(KEY, 5, 0.1, 2)
    np.testing.assert_array_equal(found, [[0.0, 0.0]] * 3 + [[1.0, 1.0]] * 2)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, references.Hold),
        (np.ones(3), references.Recorded),
        ([[1.0, 2.0]], references.Recorded),
        (jnp.sin, references.Function),
        (references.Hold(1.0), references.Hold),
    ],
)
def test_as_reference(value, kind):
    assert isinstance(as_reference(value), kind)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: references.Hold([1.0, 2.0]).rows(KEY, 4, 0.1, 3), "value: expected one number or 3"),
        (lambda: references.Hold(np.nan), "value: expected finite numbers"),
        (lambda: references.Steps(0.0, 0.0, 1.0), "hold: expected a finite number > 0"),
        (lambda: references.Steps(1.0, 2.0, 1.0), "low: expected at most high"),
        (lambda: references.Steps(1.0, [0.0, 0.0], 1.0).rows(KEY, 4, 0.1, 1), "low: expected one number for each step"),
        (
            lambda: references.Square(1.0, 0.0, [1.0, 2.0]).rows(KEY, 4, 0.1, 1),
            "high: expected one number for each step",
        ),
        (lambda: references.Recorded([]), "values: expected an array"),
        (lambda: references.Recorded(np.ones((2, 2, 2))), "values: expected an array"),
        (lambda: references.Recorded(np.ones((4, 2))).rows(KEY, 4, 0.1, 3), "values: expected one number or 3"),
        (lambda: references.Function(lambda s: jnp.ones(2)).rows(KEY, 4, 0.1, 3), "function: expected one number or 3"),
        (
            lambda: references.Function(lambda s: None).rows(KEY, 4, 0.1, 1),
            "function: expected a function that returns",
        ),
        (
            lambda: references.Function(lambda s: jnp.where(s > 0.7, jnp.nan, 1.0)).rows(KEY, 4, 0.5, 1),
            r"function: expected finite numbers, got \[nan\] at 1 s",
        ),
        (lambda: references.Sine(1.0, seconds=-1.0), "seconds: expected a finite number > 0"),
        (lambda: as_reference("fast"), "reference: expected a reference of selftune.references, a number"),
        (lambda: as_reference(references.Steps), "reference: expected .*, got the class Steps, not an object of it"),
        (lambda: as_reference([0.0, np.nan]), "reference: expected finite numbers"),
        (lambda: as_reference([]), "reference: expected an array"),
        (lambda: as_reference(None), "reference: expected real numbers"),
    ],
)
def test_wrong_arguments(as_a_user, make, message):
    with pytest.raises(st.ArgumentError, match=message):
        make()
