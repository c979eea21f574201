"""Faults: each does what it says, and robots that learn come back from them."""

import numpy as np
import pytest
from benchmarks.faults import FAST, Bench, campaign

from selftune.robots import arm
from selftune.robots.base import Plant
from selftune.robots.faults import KINDS, Fault, Faulty


class Counter(Plant):
    """Measures the number of the step, twice from sensors and once not; remembers what was applied."""

    def reset(self):
        self.t, self.applied, self.dropped = 0, [], None
        return self.truth

    def step(self, u):
        self.t += 1
        self.applied.append(float(u[0]))
        return self.truth

    def drop(self):
        self.dropped = self.t

    @property
    def truth(self):
        return np.array([self.t + 1.0, self.t + 1.0, self.t + 1.0])

    @property
    def crashed(self):
        return False


def measured(kind, steps=20, seed=1):
    plant = Counter()
    faulty = Faulty(plant, Fault(kind, 10, 6, seed), sensed=2)
    rows = [faulty.reset(), *(faulty.step(np.ones(1)) for _ in range(steps - 1))]
    assert np.array_equal(faulty.truth, plant.truth)
    return np.array(rows), plant


@pytest.mark.parametrize("kind", KINDS)
def test_only_in_its_time_and_only_sensors(kind):
    rows, plant = measured(kind)
    right = np.arange(1.0, 21.0)
    outside = np.r_[0:10, 16:20]
    np.testing.assert_array_equal(rows[outside], np.stack([right[outside]] * 3, axis=1))
    np.testing.assert_array_equal(rows[:, 2], right)
    lost = kind == "actuator"
    np.testing.assert_array_equal(plant.applied, [0.0 if lost and 10 <= t < 16 else 1.0 for t in range(19)])
    assert plant.dropped == (10 if kind == "payload" else None)
    np.testing.assert_array_equal(measured(kind)[0], rows)  # by its seed alone


def test_what_each_gives():
    during = {kind: measured(kind)[0][10:16, :2] for kind in KINDS}
    assert np.isnan(during["nan"]).any(axis=1).all()
    assert np.isinf(during["inf"]).any(axis=1).all()
    np.testing.assert_array_equal(during["stuck"], 10.0)
    late = np.arange(11.0, 17.0)[:, None] - during["delayed"]
    assert np.all(late == late[0, 0])
    assert 2 <= late[0, 0] <= 8
    assert 0 < np.isnan(during["dropped"]).all(axis=1).sum() < 6
    assert 0 < np.any(during["outlier"] >= 1000, axis=1).sum() < 6
    for quiet in ("actuator", "payload"):
        np.testing.assert_array_equal(during[quiet][:, 0], np.arange(11.0, 17.0))


def test_what_is_no_fault_is_refused():
    with pytest.raises(ValueError, match="got 'gremlin'"):
        Fault("gremlin", 0, 1, seed=0)


@pytest.fixture(scope="module")
def bench():
    return Bench(arm.make())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, FAST])
def test_the_arm_comes_back(bench, kind):
    one = bench.case(kind, seed=1)
    assert one.finite
    assert one.inside
    assert one.recovered, one


@pytest.mark.slow
def test_a_thousand_cases():
    outcomes = campaign(1000)
    assert all(one.finite and one.inside for one in outcomes)
    assert np.mean([one.recovered for one in outcomes]) >= 0.95
