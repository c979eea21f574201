"""What a sweep answers: planted answers, brute force, and what must not be claimed."""

# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportOperatorIssue=false

import numpy as np
import pytest
import xarray as xr

import selftune as st
from selftune.sweeps.point_table import chosen_by_others, points, spans_decades, to_best
from selftune.sweeps.summary import compare_settings, standings
from tests import sweeps

RNG = np.random.default_rng(0)
START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    RNG.bit_generator.state = START


def line(cost, **options) -> xr.Dataset:
    return sweeps.dataset({"rate": np.arange(len(cost), dtype=float)}, cost, **options)


class TestBest:
    def test_a_planted_one_is_found_with_its_gap(self):
        found = st.best(sweeps.tuners())
        assert found.setting == {"learning_rate": 0.01, "tuner": "M-GAPS", "noise": 0.1}
        assert found.rivals == []
        assert found.chance == 1
        second = standings(points(sweeps.tuners()))[1]
        # Planted: 0.1; the mean of 16 differences has a standard deviation of 0.02 √2 / 4.
        assert second.setting["tuner"] == "GAPS"
        assert second.difference.mean == pytest.approx(0.1, abs=0.025)
        assert 0 < second.difference.low < second.difference.mean < second.difference.high

    def test_pairing_sees_what_intervals_apart_do_not(self):
        common, own = 10 * RNG.normal(size=16), 0.01 * RNG.normal(size=(2, 16))
        found = st.best(line(np.array([[1.0], [1.05]]) + common + own))
        other = standings(points(line(np.array([[1.0], [1.05]]) + common + own)))[1]
        assert found.cost.high > other.cost.low  # apart they overlap
        assert (found.setting, found.rivals, found.chance) == ({"rate": 0.0}, [], 1.0)

    def test_the_chance_is_what_brute_force_counts(self):
        cost = RNG.normal(size=(5, 16)) + 0.1 * np.arange(5)[:, None]
        found = st.best(line(cost))
        # By a way of its own: indices, not counts; means, not differences.
        drawn = np.random.default_rng(1).integers(0, 16, size=(20_000, 16))
        lowest = cost[:, drawn].mean(axis=-1).argmin(axis=0) == int(found.setting["rate"])
        # Two shares of 2,000 and 20,000 draws: the standard deviation of their difference is at most 0.012.
        assert found.chance == pytest.approx(lowest.mean(), abs=0.05)

    def test_a_fair_cost_is_not_low_and_the_winner_s_is(self):
        """40 settings that are all alike, 16 seeds, 300 sweeps: the true cost is 0."""
        cost = np.random.default_rng(5).normal(size=(300, 40, 16))
        winner = cost.mean(axis=2).min(axis=1)
        fair = np.array([chosen_by_others(one).mean() for one in cost])
        # The lowest of 40 means is 2.16 standard deviations below on average; a mean of 300 has 0.02 of its own.
        assert winner.mean() == pytest.approx(-2.16 / np.sqrt(16), abs=0.04)
        assert abs(fair.mean()) < 0.08
        # By hand, one sweep: without each seed in turn.
        each = [one[np.delete(one, seed, axis=1).mean(axis=1).argmin(), seed] for one in cost[:1] for seed in range(16)]
        found = st.best(line(cost[0]))
        assert found.fair is not None
        assert found.fair.mean == pytest.approx(np.mean(each), rel=1e-12)
        assert found.cost.mean == pytest.approx(winner[0], rel=1e-12)

    def test_who_is_as_good_is_a_rival_however_many_there_are(self):
        """40 settings that are all alike, 16 seeds, 100 sweeps: each is as good as the best."""
        together, alone = [], []
        for cost in np.random.default_rng(6).normal(size=(100, 40, 16)):
            less = to_best(cost)
            together.append(less.near)
            error = (cost - cost[less.difference.mean.argmin()]).std(axis=1, ddof=1) / 4
            alone.append(less.difference.mean <= 2.13 * error)  # Student's, with 15 degrees of freedom
        assert np.mean(together) > 0.95
        assert np.mean(alone) < 0.75  # what an interval for each by itself would claim

    def test_of_two_the_interval_is_nearly_student_s(self):
        cost = np.stack([np.zeros(16), 1 + RNG.normal(size=16)])
        less = to_best(cost)
        # 2.13 standard errors, but for the bootstrap's own error and the tails of these numbers.
        assert less.difference.reach[1] == pytest.approx(2.13 * cost[1].std(ddof=1) / 4, rel=0.1)

    def test_a_wild_setting_blurs_no_other(self):
        cost = RNG.normal(size=(5, 16)) * 0.01 + np.array([1.0, 1.1, 1.2, 1.3, 1e200])[:, None]
        cost[4, 3] = 1e300
        assert st.best(line(cost)).rivals == []

    def test_a_seed_that_nearly_diverged_does_not_choose(self):
        cost = np.ones((2, 4))
        cost[1, 2] = 1e20  # the sum of all less this one would be 0
        np.testing.assert_array_equal(chosen_by_others(cost), np.ones(4))

    def test_what_cannot_be_told_apart_is_named(self):
        same = RNG.normal(size=16)
        found = st.best(line([same, same, same + 1]))  # as the learning rate of a tuner that does not learn
        assert found.setting == {"rate": 0.0}
        assert [(one.setting["rate"], one.difference.low, one.difference.high) for one in found.rivals] == [(1, 0, 0)]
        assert found.chance == 1  # nothing is lower

    def test_failures_are_never_the_best_and_never_silent(self):
        failed = {(0, 3): (1, "diverged at step 10"), (2, 0): (3, "its task raised: boom")}
        found = st.best(line(np.array([[0.0], [5.0], [1.0]]) + RNG.normal(size=16), failed=failed))
        assert found.setting == {"rate": 1.0}
        assert [(one.setting["rate"], one.failed, one.runs, one.reason) for one in found.failed] == [
            (0.0, 1, 16, "diverged at step 10"),
            (2.0, 1, 16, "its task raised: boom"),
        ]
        assert "2 runs failed, at 2 of 3 settings; first failure: rate = 0: diverged at step 10" in str(found)

    def test_all_failed_is_refused_with_the_first_reason(self):
        data = line(np.zeros((3, 2)), failed={(i, 0): (1, f"diverged at step {i}") for i in range(3)})
        message = r"got failures at all 3 \(3 of 6 runs\); the first: rate = 0, seed 0: diverged at step 0"
        with pytest.raises(ValueError, match=message):
            st.best(data)

    def test_one_seed_does_not_know(self):
        found = st.best(line([[2.0], [1.0], [3.0]]))
        assert (found.setting, found.cost.low, found.fair, found.chance) == ({"rate": 1.0}, None, None, None)
        assert [one.setting["rate"] for one in found.rivals] == [0.0, 2.0]
        assert "one seed gives no confidence interval" in str(found)
        assert "mean cost of a step: 1 over 1 seed\n" in str(found)

    def test_the_edge_of_what_was_tried_is_said(self):
        rising = np.arange(3.0)[:, None] + np.zeros(16)
        assert st.best(line(rising)).edge == ["rate"]
        assert "rate is at the edge of the values tried" in str(st.best(line(rising)))
        assert st.best(line(np.abs(rising - 1))).edge == []
        # What failed was tried, too.
        assert st.best(line(rising, failed={(0, 0): (1, "diverged at step 10")})).edge == []

    def test_few_seeds_are_said(self):
        cost = np.array([[0.0], [1.0]]) + np.zeros(3)
        assert "with so few seeds" in str(st.best(line(cost)))
        assert "with so few seeds" not in str(st.best(line(cost[:, :1] + np.zeros(16))))

    @pytest.mark.parametrize("seeds", [2, 3, 5, 10])
    def test_what_costs_thousands_of_times_as_much_on_every_seed_is_told(self, seeds):
        """The costs of a seed share a factor, and differ by a third from setting to setting."""
        rng = np.random.default_rng(seeds)
        shared, own = np.exp(rng.normal(size=seeds)), np.exp(0.3 * rng.normal(size=(2, seeds)))
        found = st.best(line(np.array([[0.002], [6.0]]) * shared * own))
        worse = standings(points(line(np.array([[0.002], [6.0]]) * shared * own)))[1]
        assert (found.setting, found.rivals) == ({"rate": 0.0}, [])
        # By hand: the geometric mean of the ratios, and Student's interval of their logarithms, widened by a bootstrap.
        logs = np.log(3000 * own[1] / own[0])
        assert worse.ratio.mean == pytest.approx(np.exp(logs.mean()), rel=1e-12)
        reach = np.log(worse.ratio.high / worse.ratio.mean) / (logs.std(ddof=1) / np.sqrt(seeds))
        student = {2: 12.71, 3: 4.303, 5: 2.776, 10: 2.262}[seeds]
        assert (0.999 if seeds < 4 else 0.85) * student < reach < 1.3 * student
        assert worse.ratio.low > 1
        # The difference alone does not tell: what a seed shares is far larger.
        if seeds < 10:
            assert worse.difference.low < 0

    @pytest.mark.parametrize("seeds", [2, 3, 5, 10])
    @pytest.mark.parametrize("scale", [lambda z: z, np.exp, lambda z: 5 + z])
    def test_the_truth_is_not_lost_by_few_seeds(self, seeds, scale):
        """12 settings that are all alike, 200 sweeps: the first is the best or among the rivals in 95 % of them."""
        rng = np.random.default_rng(seeds)
        lost = [not to_best(scale(rng.normal(size=(12, seeds))), resamples=400).near[0] for _ in range(200)]
        # Of 200 with a chance of 5 % each, more than 18 come with a chance of 0.4 %.
        assert sum(lost) <= 18

    def test_slightly_worse_is_told_with_enough_seeds_alone(self):
        """A tenth more, of costs that vary by a fifth, in 100 sweeps."""
        rng = np.random.default_rng(7)
        told = {}
        for seeds in (3, 100):
            costs = np.array([[1.0], [1.1]]) * np.exp(0.2 * rng.normal(size=(100, 2, seeds)))
            made = [to_best(cost, resamples=400) for cost in costs]
            assert all(less.near.any() for less in made)
            told[seeds] = sum(not less.near[1] for less in made)
        # The logarithms' difference is 0.095, with a standard error of 0.16 and 0.028: 0.6 and 3.4 of them.
        assert told[3] < 20
        assert told[100] > 80

    @pytest.mark.parametrize("low", [0.0, -1.0])
    def test_costs_that_are_not_above_zero_are_compared_by_their_difference(self, low):
        cost = np.array([[low], [low + 1], [3.0]]) + 1e-3 * np.random.default_rng(8).random((3, 16))
        cost[0, 0] = low
        standing = standings(points(line(cost)))
        assert [one.setting["rate"] for one in standing] == [0, 1, 2]
        assert [one.ratio for one in standing] == [None] * 3
        assert [one.near for one in standing] == [True, False, False]
        # Against a best that is above zero, a setting with a zero somewhere has no ratio, and the others have.
        cost = np.array([[1.0], [2.0], [3.0]]) + np.zeros(16)
        cost[1, 0] = 0.0
        assert [one.ratio is None for one in standings(points(line(cost)))] == [False, True, False]

    def test_failures_do_not_come_into_the_ratios(self):
        cost = np.array([[1.0], [3000.0], [1e-9]]) * np.exp(0.1 * np.random.default_rng(9).normal(size=(3, 5)))
        failed = {(2, 0): (1, "diverged at step 10")}
        found = st.best(line(cost, failed=failed))
        assert (found.setting, found.rivals, len(found.failed)) == ({"rate": 0.0}, [], 1)

    def test_too_few_seeds_are_blamed_for_what_is_not_told(self):
        """Two seeds, 40 settings: nothing can be told of them all together, and the words are about the seeds."""
        cost = np.geomspace(1, 3000, 40)[:, None] * np.exp(0.3 * np.random.default_rng(10).normal(size=(40, 2)))
        found = st.best(line(cost))
        assert found.rivals
        assert (
            f"{len(found.rivals)} others cannot be distinguished from the best by 2 seeds: more seeds may help"
            in str(found)
        )
        many = st.best(line(np.ones((2, 16)) + 0.1 * RNG.normal(size=(2, 16))))
        assert "1 other cannot be distinguished from the best, the nearest" in str(many)

    def test_the_end_of_a_run_may_say_otherwise(self):
        data = line(np.array([[1.0], [2.0]]) + 0.01 * RNG.normal(size=16))
        parts = data.part_cost.copy()
        parts[1, :, 15:] = 0.5  # it learns late
        data = data.assign(part_cost=parts)
        assert st.best(data).setting == {"rate": 0.0}
        found = st.best(data, last=0.25)
        assert (found.setting, found.cost.mean) == ({"rate": 1.0}, 0.5)
        assert found.judged == "mean cost of a step in the last 25 % of the run"
        assert st.best(data, last=1.0).cost.mean == pytest.approx(st.best(data).cost.mean, rel=1e-12)

    def test_parts_count_by_their_length(self):
        data = line(np.ones((1, 16)), parts=2).assign_coords(part=[0, 900])
        data = data.assign(part_cost=(("rate", "seed", "part"), np.array([[[1.0, 11.0]] * 16])))
        assert st.best(data, last=1.0).cost.mean == pytest.approx(2.0)

    def test_any_value_is_a_setting(self):
        settings = {"schedule": ["1/t", "constant"], "buffer": [np.nan, 3.0], "guard": [True, False]}
        cost = np.array([0.0, 1.0])[:, None, None, None] + np.array([0, 2])[:, None, None] + np.zeros((2, 16))
        cost[..., 1, :] += 0.5
        found = st.best(sweeps.dataset(settings, cost))
        assert found.setting["schedule"] == "1/t"
        assert np.isnan(found.setting["buffer"])
        assert found.setting["guard"] is True
        assert str(found).startswith("schedule = 1/t, buffer = nan, guard = True\n")
        each = st.best(sweeps.dataset(settings, cost), over="buffer")
        assert [one.setting["schedule"] for one in each.values()] == ["1/t", "1/t"]

    def test_over_gives_one_for_each_value(self):
        each = st.best(sweeps.tuners(), over="tuner")
        assert list(each) == ["M-GAPS", "GAPS"]
        assert [one.setting["learning_rate"] for one in each.values()] == [0.01, 0.01]
        each = st.best(sweeps.tuners(), over=("tuner", "learning_rate"))
        assert each["GAPS", 1.0] is None
        assert each["M-GAPS", 1.0].setting["noise"] == 0.1
        assert [one.reason for one in each["M-GAPS", 1.0].failed] == ["a number stopped being finite at step 10"]

    def test_across_is_the_mean_over_what_nature_decides(self):
        rates, noises = [0.1, 0.2, 0.3], [1.0, 2.0]
        level = np.array([[0.0, 9.0], [2.0, 4.0], [1.0, 4.5]])  # of each the best alone would be 0.1 and 0.2
        cost = level[..., None] + 0.01 * RNG.normal(size=(3, 2, 16))
        data = sweeps.dataset({"rate": rates, "noise": noises}, cost, failed={(1, 0, 3): (1, "diverged at step 10")})
        found = st.best(data, across="noise")
        assert found.setting == {"rate": 0.3}
        assert found.cost.mean == pytest.approx(cost[2].mean(), rel=1e-12)
        assert found.judged == "mean cost of a step, the mean over noise"
        assert [(one.setting, one.failed, one.reason) for one in found.failed] == [
            ({"rate": 0.2}, 1, "diverged at step 10")
        ]
        listed = sweeps.dataset({"rate": [0.1, 0.2], "noise": [1.0, 2.0]}, np.zeros((2, 4)), design="random")
        with pytest.raises(ValueError, match="across: expected each of 2 values of noise with every other setting"):
            st.best(listed, across="noise")

    def test_a_selection_and_any_design_will_do(self):
        data = sweeps.tuners()
        assert st.best(data.sel(noise=0.2)).setting == {"learning_rate": 0.01, "tuner": "M-GAPS", "noise": 0.2}
        found = points(data)
        listed = sweeps.dataset(found.columns, found.cost, design="random", failed={})
        listed["result_code"] = ("point", "seed"), found.failed.astype(np.int32)
        same = {"setting", "cost", "fair", "chance", "rivals"}
        assert st.best(listed).model_dump(include=same) == st.best(data).model_dump(include=same)

        class Sweep:
            def to_dataset(self):
                return data

        assert st.best(Sweep()) == st.best(data)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"cost": "regret"}, "cost: expected a variable of the sweep, one of .*, got 'regret'"),
            ({"cost": "reason"}, "cost: expected a number for each of"),
            ({"last": 0.0}, "last: expected a share of the run, above 0 and at most 1, got 0.0"),
            ({"last": 0.5, "cost": "theta"}, "last: expected only with the cost 'mean_cost'"),
            ({"over": "tunr"}, r"over: expected a setting of the sweep, one of \['learning_rate', .*\], got 'tunr'"),
        ],
    )
    def test_bad_input_is_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            st.best(sweeps.tuners(), **options)

    def test_what_is_no_sweep_is_refused(self):
        with pytest.raises(ValueError, match="sweep: expected a Sweep, or the result of its to_dataset"):
            st.best("results/sweep")
        with pytest.raises(ValueError, match="sweep: expected at least one point and one seed"):
            st.best(sweeps.tuners().isel(seed=slice(0)))


class TestCompare:
    def test_differences_are_those_that_were_planted(self):
        made = compare_settings(sweeps.tuners(), "tuner", "noise")
        assert [(one.by["noise"], one.value) for one in made.sides] == [
            (noise, tuner) for noise in (0.1, 0.2) for tuner in ("M-GAPS", "GAPS")
        ]
        assert [one.difference is None for one in made.sides] == [True, False] * 2
        for side, gap in zip(made.sides[1::2], (0.1, 0.4), strict=True):
            assert side.setting == {"learning_rate": 0.01}
            assert side.difference.low < side.difference.mean < side.difference.high
            assert side.difference.mean == pytest.approx(gap, abs=0.025)  # as in TestBest
        assert [one.failed for one in made.sides] == [0, 16, 1, 16]
        turned = compare_settings(sweeps.tuners(), "tuner", "noise", to="GAPS")
        assert turned.sides[0].difference.mean == pytest.approx(-made.sides[1].difference.mean, rel=1e-9)

    def test_who_tried_more_has_no_advantage(self):
        """Two tuners that are alike; of one there are 30 learning rates, of the other one: 25 sweeps."""
        rng, gaps = np.random.default_rng(2), []
        columns = {"tuner": np.array(["a"] + ["b"] * 30), "rate": np.arange(31.0)}
        for _ in range(25):
            data = sweeps.dataset(columns, rng.normal(size=(31, 16)), design="random")
            gaps.append(compare_settings(data, "tuner").sides[1].difference.mean)
        # The winner's own mean would be 0.5 low; a mean of 25 has a standard deviation of about 0.07.
        assert abs(np.mean(gaps)) < 0.25

    def test_all_failed_and_nothing_to_compare_to_are_said(self):
        made = compare_settings(sweeps.tuners(), "tuner", ["noise", "learning_rate"])
        lost = made.sides[-1]
        assert (lost.value, lost.setting, lost.cost, lost.reason) == ("GAPS", None, None, "diverged at step 10")
        by_itself = compare_settings(sweeps.tuners(seeds=1), "tuner")
        assert by_itself.sides[1].difference.low is None
        with pytest.raises(ValueError, match="to: expected a value of tuner, one of"):
            compare_settings(sweeps.tuners(), "tuner", to="OPRF")
        with pytest.raises(ValueError, match="by: expected other settings than over"):
            compare_settings(sweeps.tuners(), "tuner", "tuner")

    def test_numbers_compare_as_words_do(self):
        made = compare_settings(line(np.arange(3.0)[:, None] + np.zeros(16)), "rate", to="1")
        assert [None if one.difference is None else one.difference.mean for one in made.sides] == [-1, None, 1]


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([1e-3, 1e-2, 1e-1], True),
        ([0.1, 1.0], True),
        (np.linspace(1, 100, 30), False),
        ([0.0, 1e-3, 1.0], False),
        ([1, 2, 3], False),
        ([-1.0, 100.0], False),
    ],
)
def test_a_logarithmic_axis_is_for_decades(values, answer):
    assert spans_decades(values) == answer
