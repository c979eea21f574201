"""Sweeps in this process: every run is what `simulate` gives, whatever happens to others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.foundation.errors import StoreError

STEPS = 60
SYSTEM = st.MatchedSystem(
    dynamics=lambda x, v, t: x + 0.1 * v,
    residual=lambda x, a, t: a * jnp.cos(x),
    actuation=lambda x, theta, t: -theta * x,
    cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
)
START = {"theta": jnp.ones(1), "a_hat": jnp.zeros(1)}
GRID = {"learning_rate": [0.01, 0.1, 1.0], "noise": [0.1, 0.3]}


def controller(learning_rate=0.1, tuner="MGAPS", buffer=3):
    made = {"MGAPS": lambda: st.MGAPS(learning_rate), "GAPS": lambda: st.GAPS(buffer, learning_rate)}[tuner]()
    return st.Controller(SYSTEM, made, st.GradientEstimator(0.05))


def scenario(key, noise=0.2):
    ka, kw = jax.random.split(key)
    return st.Scenario(jnp.ones(1), st.Constant(0.5)(ka, STEPS, 1), noise * st.Gaussian(1.0)(kw, STEPS, 1))


def by_hand(make_controller, make_scenario, seed, **options):
    return st.simulate(make_controller, make_scenario(jax.random.key(seed)), **START, throw=False, **options)


@pytest.mark.parametrize("engine", ["native", "xla"])
def test_every_run_is_what_simulate_gives(tmp_path, engine):
    done = st.sweep(controller, scenario, GRID, [5, 2], **START, folder=tmp_path / "s", engine=engine, lanes=4)
    assert isinstance(done, st.Sweep)
    data = done.to_dataset()
    assert dict(data.mean_cost.sizes) == {"learning_rate": 3, "noise": 2, "seed": 2}
    assert data.attrs == {"design": "grid", "settings": ["learning_rate", "noise"], "steps": STEPS}
    for rate in GRID["learning_rate"]:
        for noise in GRID["noise"]:
            for seed in (5, 2):
                run = by_hand(controller(rate), lambda key, noise=noise: scenario(key, noise), seed)
                here = data.sel(learning_rate=rate, noise=noise, seed=seed)
                np.testing.assert_allclose(here.mean_cost, np.mean(run.cost), rtol=1e-12)
                np.testing.assert_allclose(here.part_cost, np.mean(run.cost.reshape(20, 3), axis=1), rtol=1e-12)
                np.testing.assert_allclose(here.theta_end, run.final.state.theta, rtol=1e-12)
                assert (int(here.result_code), int(here.failed_at), str(here.reason.values)) == (0, -1, "")
    np.testing.assert_array_equal(data.part, np.arange(0, STEPS, 3))


@pytest.mark.bits
def test_tuners_and_buffers_are_programs_of_their_own(tmp_path):
    over = {"tuner": ["MGAPS", "GAPS"], "buffer": [2, 60], "learning_rate": [0.05, 0.2]}
    data = st.sweep(controller, scenario, over, 2, **START, folder=tmp_path / "s").to_dataset()
    mgaps, gaps = (data.mean_cost.sel(tuner=name) for name in ("MGAPS", "GAPS"))
    np.testing.assert_array_equal(mgaps.sel(buffer=2), mgaps.sel(buffer=60))
    assert np.all(gaps.sel(buffer=2) != gaps.sel(buffer=60))
    np.testing.assert_allclose(gaps.sel(buffer=60), mgaps.sel(buffer=60), rtol=1e-9)  # a buffer as long as the run


def test_a_function_that_looks_at_its_values_is_one_program_a_point(tmp_path):
    def looks(key, noise):
        return scenario(key, noise if noise > 0.2 else 0.0)

    data = st.sweep(controller, looks, {"noise": [0.1, 0.3]}, 2, **START, folder=tmp_path / "s").to_dataset()
    for noise, used in ((0.1, 0.0), (0.3, 0.3)):
        run = by_hand(controller(), lambda key, used=used: scenario(key, used), 1)
        np.testing.assert_allclose(data.mean_cost.sel(noise=noise, seed=1), np.mean(run.cost), rtol=1e-12)


def test_a_bad_cell_fails_alone_and_says_why(tmp_path):
    over = {"learning_rate": [0.1, -1.0, float("nan"), 1e7]}
    done = st.sweep(controller, scenario, over, 3, **START, folder=tmp_path / "s", limit=50.0)
    data = done.to_dataset()
    np.testing.assert_array_equal(data.result_code.isel(seed=0), [0, 3, 3, 1])
    np.testing.assert_array_equal(np.isfinite(data.mean_cost).all("seed"), [True, False, False, False])
    said = [str(text) for text in data.reason.isel(seed=0).values]
    assert said[0] == ""
    assert "learning_rate: expected a finite number > 0" in said[1]
    assert "got nan" in said[2]
    assert said[3] == f"the state diverged at step {int(data.failed_at.isel(learning_rate=3, seed=0))}"
    assert done.manifest.results == {"0": 3, "1": 3}
    alone = st.sweep(controller, scenario, {"learning_rate": [0.1]}, 3, **START, folder=tmp_path / "a").to_dataset()
    np.testing.assert_allclose(data.mean_cost.isel(learning_rate=0), alone.mean_cost.isel(learning_rate=0), rtol=1e-12)


def test_where_every_cell_is_bad_the_first_fault_is_raised(tmp_path):
    with pytest.raises(ValueError, match="learning_rate: expected a finite number > 0"):
        st.sweep(controller, scenario, {"learning_rate": [-1.0, 0.0]}, 2, **START, folder=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_designs_that_draw_have_points(tmp_path):
    design = st.latin_hypercube({"learning_rate": st.Range(0.01, 1.0, log=True), "noise": [0.1, 0.3]}, 5, seed=0)
    data = st.sweep(controller, scenario, design, 2, **START, folder=tmp_path / "s").to_dataset()
    assert dict(data.mean_cost.sizes) == {"point": 5, "seed": 2}
    assert data.attrs["design"] == "latin hypercube"
    rate, noise = (float(data[name][3]) for name in ("learning_rate", "noise"))
    run = by_hand(controller(rate), lambda key: scenario(key, noise), 1)
    np.testing.assert_allclose(data.mean_cost.isel(point=3, seed=1), np.mean(run.cost), rtol=1e-12)


def test_what_is_recorded_and_first_values_by_setting(tmp_path):
    over = {"gain": [[0.5], [2.0]]}
    data = st.sweep(
        controller, scenario, over, 2, theta=lambda gain: gain, a_hat=jnp.zeros(1),
        folder=tmp_path / "s", record=("x", "theta", "cost"), stride=7,
    ).to_dataset()  # fmt: skip
    assert data.x.dims == ("gain", "seed", "time", "state")
    np.testing.assert_array_equal(data.time, np.arange(0, STEPS, 7))
    np.testing.assert_array_equal(data.gain, ["[0.5]", "[2.0]"])
    np.testing.assert_array_equal(data.theta.isel(time=0, parameter=0), [[0.5, 0.5], [2.0, 2.0]])
    run = st.simulate(
        controller(), scenario(jax.random.key(1)), theta=jnp.array([2.0]), a_hat=jnp.zeros(1), record=("x",)
    )
    np.testing.assert_allclose(data.x.isel(gain=1, seed=1), run.x[::7], rtol=1e-12)


@pytest.mark.bits
def test_seeds_are_common_to_points_and_a_controller_draws_its_own(tmp_path):
    def draws(key, noise):
        return st.Controller(SYSTEM, st.OPRF(5, 0.1, key, 0.05), st.GradientEstimator(0.05))

    over = {"noise": [0.1, 0.2]}
    data = st.sweep(
        draws, lambda key: scenario(key), over, 2, **START, folder=tmp_path / "s", record=("theta", "x")
    ).to_dataset()
    np.testing.assert_array_equal(data.theta.isel(noise=0), data.theta.isel(noise=1))
    assert not np.array_equal(data.theta.isel(noise=0, seed=0), data.theta.isel(noise=0, seed=1))


def test_in_single_precision(tmp_path):
    with jax.enable_x64(False):
        start = {"theta": jnp.ones(1, jnp.float32), "a_hat": jnp.zeros(1, jnp.float32)}

        def single(key):
            drawn = scenario(key)
            return st.Scenario(jnp.ones(1, jnp.float32), drawn.a_star, drawn.w)

        data = st.sweep(controller, single, {"learning_rate": [0.1, 0.2]}, 2, **start, folder=tmp_path / "s")
        assert data.to_dataset().mean_cost.dtype == np.float32


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {"lerning_rate": [0.1]}}, "grid: expected parameters of make_controller or make_scenario, got 'lern"),
        (
            {"make_controller": lambda rate: None, "grid": {"noise": [0.1]}},
            "expected make_controller's parameter 'rate'",
        ),
        ({"make_controller": 3}, "make_controller: expected a function"),
        ({"make_scenario": lambda noise: None}, "make_scenario: expected a function with a parameter `key`"),
        ({"make_controller": lambda learning_rate: 3}, "make_controller: expected it to return a Controller"),
        ({"make_scenario": lambda key, noise: 3}, "make_scenario: expected it to return a Scenario"),
        ({"seeds": 0}, "seeds: expected a whole number >= 1"),
        ({"seeds": [1, 1]}, "seeds: expected whole numbers below 2³¹, each once"),
        ({"seeds": "many"}, "seeds: expected a number of seeds"),
        ({"engine": "gpu"}, "engine: expected 'auto', 'native' or 'xla'"),
        ({"record": ("z",)}, "record: expected names from"),
        ({"lanes": 0}, "lanes: expected a whole number >= 1"),
        ({"retries": -1}, "retries: expected a whole number >= 0"),
        ({"limit": -1.0}, "limit: expected a number > 0"),
        ({"redo": "all"}, "redo: expected the numbers of tasks"),
        ({"redo": [99]}, "redo: expected tasks below"),
        ({"executor": 3}, "executor: expected None, the address"),
        ({"theta": jnp.ones((2, 2, 2))}, r"theta: expected another shape, such as \(1,\)"),
        ({"record": ("guard",)}, "record: expected no 'guard'"),
        ({"grid": {"noise": [1, 1.0]}}, "noise: expected each value once"),
        ({"theta": lambda theta_end: 1, "grid": {"theta_end": [1.0]}}, "expected names that are not names of results"),
        ({"theta": lambda key: 1}, "expected theta's parameter 'key'"),
        ({"make_scenario": lambda key, noise: scenario(key)[:0]}, "make_scenario: expected at least one step"),
        ({"workers": 0}, "workers: expected a whole number >= 1"),
    ],
)
def test_what_is_refused_at_the_door(tmp_path, change, message):
    given = {"make_controller": controller, "make_scenario": scenario, "grid": GRID, "seeds": 2, **START}
    with pytest.raises(ValueError, match=message):
        st.sweep(**{**given, **change}, folder=tmp_path / "s")
    assert not (tmp_path / "s").exists() or change.get("redo") == [99]


def test_a_tuner_without_a_learning_rate_beside_tuners_with_one(tmp_path):
    """The fixed tuner is one point, not one for each learning rate, and no result names a learning rate for it."""

    def either(learning_rate, tuner):
        if tuner == "fixed":
            return st.Controller(SYSTEM, st.Fixed(), st.GradientEstimator(0.05))
        return controller(learning_rate, tuner)

    grids = [
        {"tuner": ["MGAPS"], "learning_rate": [0.01, 0.1, 0.2], "noise": [0.1, 0.3]},
        {"tuner": ["fixed"], "noise": [0.1, 0.3]},
    ]
    done = st.sweep(either, scenario, grids, 2, **START, folder=tmp_path / "s")
    data = done.to_dataset()
    assert dict(data.mean_cost.sizes) == {"point": 8, "seed": 2}
    assert st.Sweep(tmp_path / "s").design.kind == "grids"
    found = st.best(done, over="tuner", across="noise")
    assert found["fixed"].setting == {"tuner": "fixed"}
    assert found["fixed"].edge == []
    assert str(found["fixed"]).splitlines()[0] == "tuner = fixed"
    assert found["MGAPS"].setting == {"tuner": "MGAPS", "learning_rate": 0.2}
    assert found["MGAPS"].edge == ["learning_rate"]
    by_hand_cost = np.mean(by_hand(either(np.nan, "fixed"), lambda key: scenario(key, 0.3), 1).cost)
    point = int(np.flatnonzero((data.tuner == "fixed") & (data.noise == 0.3))[0])
    np.testing.assert_allclose(data.mean_cost.isel(point=point).sel(seed=1), by_hand_cost, rtol=1e-12)


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ([], "grid: expected at least one mapping"),
        ([{"noise": [0.1]}, {"noise": [0.1]}], "grid: expected each point once"),
        ([{"noise": [0.1]}, 3], "grid: expected a mapping from names"),
    ],
)
def test_grids_that_cannot_be_joined(tmp_path, grids, message):
    with pytest.raises(ValueError, match=message):
        st.sweep(controller, scenario, grids, 2, **START, folder=tmp_path / "s")


def test_steps_must_be_the_same_everywhere(tmp_path):
    def longer(key, steps):
        return scenario(key)[:steps]

    with pytest.raises(ValueError, match="expected runs of the same steps"):
        st.sweep(controller, longer, {"steps": [20, 30]}, 2, **START, folder=tmp_path / "s")


def test_no_point_is_lost_beside_one_that_cannot_be(tmp_path):
    def positive(gain):
        if gain < 0:
            raise ValueError("gain: expected a number > 0")
        return jnp.full(1, gain)

    for name, gains in {"last": [1.0, 2.0, -1.0], "first": [-1.0, 1.0, 2.0], "middle": [1.0, -1.0, 2.0]}.items():
        done = st.sweep(
            controller, scenario, {"gain": gains}, 2, theta=positive, a_hat=jnp.zeros(1), folder=tmp_path / name
        )
        codes = done.to_dataset().result_code.isel(seed=0).values
        assert codes.tolist() == [3 if gain < 0 else 0 for gain in gains]


def test_jax_is_set_in_every_thread_as_it_was_at_the_call(tmp_path):
    with jax.default_prng_impl("rbg"):
        data = st.sweep(controller, scenario, {"noise": [0.1]}, 1, **START, folder=tmp_path / "s", workers=2)
        run = by_hand(controller(), lambda key: scenario(key, 0.1), 0)
    np.testing.assert_allclose(data.to_dataset().mean_cost.values.item(), np.mean(run.cost), rtol=1e-12)
    with pytest.raises(StoreError, match="jax"):
        st.sweep(controller, scenario, {"noise": [0.1]}, 1, **START, folder=tmp_path / "s")


def test_a_theta_that_can_be_called_is_no_function_of_settings(tmp_path):
    class Gain(eqx.Module):
        value: jax.Array

        def __call__(self, x):
            return -self.value * x

    system = st.MatchedSystem(
        lambda x, v, t: x + 0.1 * v, SYSTEM.residual, lambda x, theta, t: theta(x), lambda x, u, theta, t: jnp.sum(x**2)
    )

    def make(learning_rate):
        return st.Controller(system, st.MGAPS(learning_rate), st.GradientEstimator(0.05))

    data = st.sweep(
        make, scenario, {"learning_rate": [0.1]}, 1, theta=Gain(jnp.ones(1)), a_hat=jnp.zeros(1), folder=tmp_path / "s"
    ).to_dataset()
    assert np.isfinite(data.mean_cost).all()


@pytest.mark.parametrize("engine", ["native", pytest.param("xla", marks=pytest.mark.slow)])
def test_streams_guards_and_a_plant_of_its_own(tmp_path, engine):
    guard = st.Guard(rate=1e-3)
    plant = st.System(
        dynamics=lambda x, u, f, t: x + 0.11 * (u + f),
        residual=lambda x, a, t: a * jnp.cos(x),
        policy=lambda x, theta, f, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )

    def streamed(key, noise):
        ka, kw = jax.random.split(key)
        a_star, w = st.Constant(0.5).stream(ka, 1), st.Gaussian(noise).stream(kw, 1)
        return st.Scenario(jnp.ones(1), a_star, w, steps=STEPS)

    options = {"guard": guard, "plant": plant, "engine": engine}
    data = st.sweep(
        controller, streamed, {"noise": [0.1, 0.3]}, 2, **START, **options, record=("guard", "theta"),
        folder=tmp_path / "s",
    ).to_dataset()  # fmt: skip
    run = by_hand(controller(), lambda key: streamed(key, 0.3), 1, **options)
    here = data.sel(noise=0.3, seed=1)
    np.testing.assert_allclose(here.mean_cost, np.mean(run.cost), rtol=1e-12)
    np.testing.assert_array_equal(here.guard, run.guard)
    np.testing.assert_allclose(here.theta, run.theta, rtol=1e-12)
    assert np.any(here.guard & int(st.Decision.LIMITED))


def test_an_oracle_needs_no_first_estimate(tmp_path):
    def known(learning_rate):
        return st.Controller(SYSTEM, st.MGAPS(learning_rate), st.Known())

    over = {"learning_rate": [0.1]}
    data = st.sweep(known, scenario, over, 1, theta=jnp.ones(1), folder=tmp_path / "s").to_dataset()
    run = st.simulate(known(0.1), scenario(jax.random.key(0)), theta=jnp.ones(1))
    np.testing.assert_allclose(data.mean_cost.values.item(), np.mean(run.cost), rtol=1e-12)
