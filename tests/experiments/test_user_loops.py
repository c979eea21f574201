"""`selftune run` and sweeps of loops, of systems with memory and sensors, and with references."""

import json

import jax
import numpy as np
import pytest

import selftune as st
from selftune.experiments import user
from selftune.experiments.sweep.config import SweepConfig
from selftune.experiments.user import summary
from selftune.experiments.user.config import ConfigError, Loaded
from selftune.storage.store import RunStore

MODULE = """
import jax.numpy as jnp
import selftune as st
from selftune import models, policies

def make(kp=1.0, dt=0.05, output="position"):
    return st.Loop(
        models.DCMotor(1.0, 0.05, 1e-4, dt=dt, output=output, load_inertia=1e-2),
        policies.PID(kp=kp, ki=0.5, kd=0.1, u_min=-10.0, u_max=10.0),
    )

loop = make()

def pi(measured, memory, theta, f, t):
    error = t.reference - measured
    return theta[0] * error + memory, memory + 0.05 * theta[1] * error

def written(sensor=True):
    sensors = {"measure": lambda x, t: x[:1], "estimate": lambda y, s, theta, t: jnp.concatenate([y, 0.0 * s])}
    return st.System(
        dynamics=lambda x, u, f, t: x + 0.05 * jnp.stack([x[1], u[0] + f[0] - x[1] - x[0]]),
        residual=lambda x, a, t: a,
        policy=pi if sensor else (lambda x, memory, theta, f, t: pi(x[:1], memory, theta, f, t)),
        cost=lambda x, memory, u, theta, t: jnp.sum((t.reference - x[:1]) ** 2) + 0.01 * jnp.sum(u**2),
        memory=jnp.zeros(1),
        **(sensors if sensor else {}),
    )

def plain():
    return st.System(
        dynamics=lambda x, u, f, t: x + 0.05 * (u + f),
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: theta * (t.reference - x),
        cost=lambda x, u, theta, t: jnp.sum((t.reference - x) ** 2),
    )
"""
LOOP = """
[system]
make = "drives:make"

[scenario]
steps = 60

[run]
seeds = 2
stride = 3
record = ["x", "measured", "memory", "theta", "a_hat", "y", "cost", "guard"]
"""
SYSTEM = """
[system]
make = "drives:written"

[tuner]
name = "MGAPS"
learning_rate = 0.01

[estimator]
name = "GradientEstimator"
learning_rate = 0.05

[scenario]
x0 = [0.0, 0.0]
steps = 40
a_star = { process = "Constant", value = 0.2 }
w = { process = "Gaussian", sigma = 0.01 }

[scenario.t]
reference = [0.0, 1.0, 1.0, 0.5]

[run]
seeds = 2
theta = [1.0, 0.5]
a_hat = [0.0]
record = ["x", "measured", "memory", "theta", "y", "cost"]
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    (tmp_path / "drives.py").write_text(MODULE)
    monkeypatch.delitem(__import__("sys").modules, "drives", raising=False)

    def loaded(text, **files):
        for name, content in files.items():
            (tmp_path / f"{name}.csv").write_text(content)
        (tmp_path / "mine.toml").write_text(text)
        return Loaded(tmp_path / "mine.toml")

    return loaded


def stored(loaded, tmp_path):
    user.compute(loaded, tmp_path / "run", workers=1)
    return RunStore(tmp_path / "run").dataset()


class TestLoop:
    @pytest.mark.slow
    def test_the_run_is_that_of_the_loop(self, load, tmp_path):
        loaded = load(LOOP)
        data = stored(loaded, tmp_path)
        assert data.sizes["memory_number"] == data.memory.shape[-1]
        with jax.enable_x64(True):
            scenario = loaded.loop.scenario(60, jax.random.key(1))
            run = loaded.loop.simulate(scenario=scenario)
        np.testing.assert_array_equal(data.x[1], run.x[::3])
        np.testing.assert_array_equal(data.measured[1], run.measured[::3])
        np.testing.assert_array_equal(data.y[1], run.y[::3])
        np.testing.assert_array_equal(data.guard[1], run.guard[::3])
        flat = np.concatenate([np.reshape(leaf, (60, -1)) for leaf in jax.tree.leaves(run.memory)], axis=1)
        np.testing.assert_array_equal(data.memory[1], flat[::3])
        theta = np.stack(jax.tree.leaves(run.theta), axis=1)
        np.testing.assert_array_equal(data.theta[1], theta[::3])
        assert float(data.total_cost[1]) == pytest.approx(float(run.cost.sum()), rel=1e-12)

    @pytest.mark.slow
    def test_without_a_record_it_stores_the_signals_of_a_loop_with_their_names(self, load, tmp_path):
        loaded = load(LOOP[: LOOP.index("record")])
        data = stored(loaded, tmp_path)
        assert {"measured", "reference", "u", "theta", "cost", "guard"} <= set(data.data_vars)
        with jax.enable_x64(True):
            reference = loaded.loop.scenario(60, jax.random.key(1)).t.reference
        np.testing.assert_array_equal(data.reference[1], reference[::3])
        assert data.parameter.values.tolist() == ["log kd", "log ki", "log kp"]
        assert data.output.values.tolist() == data.measurement.values.tolist() == ["position / rad"]
        assert "log kp at the end" in [row.name for row in summary.rows(data)]

    @pytest.mark.parametrize(
        ("table", "reference"),
        [
            ("[0.0, 1.0, 0.5]", np.tile([0.0, 1.0, 0.5], 20)),
            ("2.0", np.full(60, 2.0)),
            ('"wanted.csv"', np.tile([0.0, 3.0], 30)),
            (
                '{ signal = "Square", seconds = 0.4, low = -1.0, high = 1.0 }',
                np.tile([1, 1, 1, 1, -1, -1, -1, -1], 8)[:60],
            ),
        ],
    )
    def test_references(self, load, table, reference):
        loaded = load(f"{LOOP}[scenario.t]\nreference = {table}\n", wanted="position\n0.0\n3.0\n")
        with jax.enable_x64(True):
            np.testing.assert_array_equal(loaded.scenario(jax.random.key(0)).t.reference[:, 0], reference)

    def test_a_module_may_hold_the_loop_itself(self, load):
        loaded = load(LOOP.replace("drives:make", "drives:loop"))
        assert isinstance(loaded.loop, st.Loop)
        assert loaded.guard == loaded.loop.guard()

    def test_another_tuner_gets_the_constraints_of_the_loop(self, load):
        tables = '[tuner]\nname = "MGAPS"\nlearning_rate = 0.01\n[estimator]\nname = "RLS"\n'
        loaded = load(LOOP + tables)
        assert loaded.controller.tuner.constraint == loaded.loop.constraint
        assert loaded.controller.estimator.constraint == loaded.loop.plant.a_constraint

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("[run]", "[run]\ntheta = [1.0]", "run.theta: expected none, because the loop has its own"),
            ("steps = 60", "steps = 60\nx0 = [0.0]", "scenario.x0: expected none, because the loop has its own"),
            (
                "steps = 60",
                'steps = 60\nv = { process = "Gaussian", sigma = 1.0 }',
                "scenario.v: expected none, because the agent",
            ),
            (
                "steps = 60",
                "steps = 60\nt = { reference = [[1.0, 2.0, 3.0]] }",
                "scenario.t.reference: values: expected",
            ),
            ("steps = 60", "steps = 60\nt = { reference = 1.0, dt = 0.1 }", "scenario.t.dt: expected none"),
            ("steps = 60", 'steps = 60\nt = { reference = "no.csv" }', "scenario.t.reference: no.csv cannot be read"),
            (
                "steps = 60",
                'steps = 60\nt = { reference = { signal = "Squar" } }',
                "scenario.t.reference",
            ),
            (
                "steps = 60",
                'steps = 60\nt = { reference = { signal = "Square", seconds = -1.0, low = 0.0, high = 1.0 } }',
                "scenario.t.reference.seconds: expected a finite number > 0",
            ),
        ],
    )
    def test_wrong_values(self, load, old, new, message):
        with pytest.raises(ConfigError, match=message), jax.enable_x64(True):
            user.check(load(LOOP.replace(old, new)))

    @pytest.mark.slow
    def test_a_loop_without_sensors_has_no_memory_to_hide(self, load, tmp_path):
        data = stored(load(LOOP.replace('"drives:make"', '"drives:make"\narguments = { output = "speed" }')), tmp_path)
        assert data.sizes["measurement"] == 1

    @pytest.mark.slow
    def test_a_run_is_not_continued_with_another_reference(self, load, tmp_path):
        text = f'{LOOP}[scenario.t]\nreference = "wanted.csv"\n'
        user.compute(load(text, wanted="1.0\n2.0\n"), tmp_path / "run", workers=1)
        with pytest.raises(st.ArgumentError.__mro__[2], match="sha256"):  # a StoreError
            user.compute(load(text, wanted="1.0\n3.0\n"), tmp_path / "run", workers=1)

    @pytest.mark.slow
    def test_sweep(self, load, tmp_path):
        text = LOOP + '[sweep]\nover = { "system.arguments.kp" = [0.5, 1.0], "scenario.steps" = [60] }\n'
        load(text)
        config = SweepConfig(tmp_path / "mine.toml")
        with jax.enable_x64(True):
            done = st.sweep(**config.arguments(), folder=tmp_path / "sweep")
            data = done.to_dataset()
            assert config.loaded.make_system is not None
            loop = config.loaded.make_system(kp=0.5)
            run = loop.simulate(scenario=loop.scenario(60, jax.random.key(1)))
        assert np.all(data.result_code == 0), data.reason.values
        np.testing.assert_allclose(data.memory[0, 0, 1, :, -1], np.asarray(run.memory["u"])[::3, 0])
        assert float(data.mean_cost[0, 0, 1]) == pytest.approx(float(run.cost.mean()), rel=1e-9)


class TestSystem:
    def test_a_system_with_memory_and_sensors(self, load, tmp_path):
        loaded = load(SYSTEM)
        data = stored(loaded, tmp_path)
        with jax.enable_x64(True):
            scenario = loaded.scenario(jax.random.key(1))
            run = st.simulate(loaded.controller, scenario, **loaded.start)
        np.testing.assert_array_equal(scenario.t.reference[:, 0], np.tile([0.0, 1.0, 1.0, 0.5], 10))
        for name in ("x", "measured", "memory", "theta", "y", "cost"):
            np.testing.assert_array_equal(data[name][1], getattr(run, name))
        assert data.y.dims == ("seed", "time", "loop_state", "parameter")
        assert data.sizes["loop_state"] == 3

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"drives:written": "drives:plain", "[0.0, 0.0]": "[0.0]", "[1.0, 0.5]": "[1.0]"},
                "the policy has no memory",
            ),
            ({'"drives:written"': '"drives:written"\narguments = { sensor = false }'}, "the controller gets the state"),
            (
                {
                    "1.0, 0.5]\n\n[run]": "1.0, 0.5]\n\n[run]",
                    "[0.0, 1.0, 1.0, 0.5]": '{ signal = "Hold", value = 1.0 }',
                },
                "dt is missing",
            ),
        ],
    )
    def test_fields_that_are_absent_are_named(self, load, changes, message):
        text = SYSTEM
        for old, new in changes.items():
            text = text.replace(old, new)
        if "memory" in message:
            text = text.replace('"measured", ', "")
        with pytest.raises(ConfigError, match=message), jax.enable_x64(True):
            user.check(load(text))

    def test_a_signal_with_its_sampling_period(self, load):
        signal = '{ signal = "Sine", amplitude = 2.0, seconds = 1.0 }\ndt = 0.25'
        loaded = load(SYSTEM.replace("[0.0, 1.0, 1.0, 0.5]", signal))
        with jax.enable_x64(True):
            rows = loaded.scenario(jax.random.key(0)).t.reference[:4, 0]
        np.testing.assert_allclose(rows, [0.0, 2.0, 0.0, -2.0], atol=1e-12)

    def test_sweep_records_memory(self, load, tmp_path):
        load(SYSTEM + '[sweep]\nover = { "tuner.learning_rate" = [0.01, 0.02] }\n')
        config = SweepConfig(tmp_path / "mine.toml")
        with jax.enable_x64(True):
            data = st.sweep(**config.arguments(), folder=tmp_path / "sweep").to_dataset()
        assert dict(data.memory.sizes) == {"tuner.learning_rate": 2, "seed": 2, "time": 40, "memory_number": 1}
        assert np.all(data.result_code == 0), data.reason.values


def test_settings_are_json(load, tmp_path):
    user.compute(load(LOOP), tmp_path / "run", workers=1)
    settings = json.loads((tmp_path / "run" / "manifest.json").read_text())["settings"]
    assert settings["system"]["sha256"].keys() == {"drives.py"}
