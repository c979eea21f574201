"""Designs: every combination, or points from ranges; and what is refused."""

import numpy as np
import pytest

import selftune as st
from selftune.sweeps.design import grid


def test_a_grid_has_every_combination_in_order():
    design = grid({"rate": [0.1, 0.2], "tuner": ["a", "b", "c"]})
    assert isinstance(design, st.Design)
    assert design.kind == "grid"
    assert design.names == ("rate", "tuner")
    assert [tuple(point.values()) for point in design.points] == [(r, t) for r in (0.1, 0.2) for t in "abc"]


def test_arrays_and_numpy_numbers_become_plain():
    design = grid({"rate": np.geomspace(0.1, 10.0, 3), "theta": np.ones((2, 2)) * [[1], [2]], "on": [np.bool_(True)]})
    assert design.column("rate")[:1] == [0.1]
    assert design.points[-1]["theta"] == [2.0, 2.0]
    assert all(type(point["on"]) is bool for point in design.points)


@pytest.mark.parametrize("draw", [st.random_design, st.latin_hypercube])
def test_drawn_points_depend_on_the_seed_alone(draw):
    over = {"rate": st.Range(1e-4, 1e-1, log=True), "noise": st.Range(-1, 1), "tuner": ["a", "b"]}
    one, again, other = draw(over, 50, seed=3), draw(over, 50, seed=3), draw(over, 50, seed=4)
    assert one == again
    assert one.points != other.points
    rates = np.array(one.column("rate"))
    assert np.all((rates >= 1e-4) & (rates <= 1e-1))
    assert 10 < np.sum(rates < np.sqrt(1e-4 * 1e-1)) < 40  # evenly in the logarithm
    assert set(one.column("tuner")) == {"a", "b"}


def test_a_latin_hypercube_has_one_point_in_each_part_of_every_setting():
    design = st.latin_hypercube({"a": st.Range(0.0, 1.0), "b": st.Range(1.0, 100.0, log=True)}, 20, seed=1)
    assert sorted(int(20 * a) for a in design.column("a")) == list(range(20))
    assert sorted(int(20 * np.log(b) / np.log(100.0)) for b in design.column("b")) == list(range(20))


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: grid({}), "grid: expected a mapping"),
        (lambda: grid([1]), "grid: expected a mapping"),
        (lambda: grid({"rate": []}), "rate: expected at least one value"),
        (lambda: grid({"rate": 0.1}), "rate: expected a list of values, got 0.1"),
        (lambda: grid({"tuner": "MGAPS"}), "tuner: expected a list of values, got 'MGAPS'"),
        (lambda: grid({"rate": [0.1, 0.1]}), "rate: expected each value once"),
        (lambda: grid({"rate": [lambda: 1]}), "rate: expected numbers, strings"),
        (lambda: grid({"rate": st.Range(0, 1)}), "rate: expected a list of values, got a Range"),
        (lambda: grid({"seed": [1]}), "'seed', which is reserved"),
        (lambda: st.Range(1, 1), "low < high"),
        (lambda: st.Range(0, 1, log=True), "low: expected a number > 0"),
        (lambda: st.Range(float("nan"), 1), "low: expected a finite number"),
        (lambda: st.random_design({"a": st.Range(0, 1)}, 0, seed=0), "points: expected a whole number >= 1"),
        (lambda: st.latin_hypercube({"a": st.Range(0, 1)}, 2, seed=-1), "seed: expected a whole number"),
    ],
)
def test_what_is_no_design_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
