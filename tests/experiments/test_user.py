"""A user's run: what does not fit is refused before anything is written; what is stored is what `simulate` gives."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.experiments import user
from selftune.experiments.user.config import ConfigError, Loaded
from selftune.storage.store import open_run

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def load(folder, *changes):
    text = (EXAMPLES / "cart.toml").read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "cart.toml").write_text(text)
    (folder / "cart.py").write_text((EXAMPLES / "cart.py").read_text())
    return Loaded(folder / "cart.toml")


@pytest.mark.bits
def test_it_is_what_simulate_gives(tmp_path, monkeypatch):
    """Also in chunks, after each of which there is something to tell."""
    monkeypatch.setattr("selftune.experiments.user.run._LEAST_CHUNK", 40)
    loaded = load(tmp_path, ("steps = 20_000", "steps = 90"), ("seeds = 8", "seeds = [7]"))
    told = []
    manifest = user.compute(loaded, tmp_path / "run", progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    dataset = open_run(tmp_path / "run")[0]
    keys = jax.random.split(jax.random.key(7), 3)
    drawn = [
        loaded.processes[name](key, 90, n) for name, key, n in zip(("a_star", "w", "v"), keys, (2, 2, 1), strict=True)
    ]
    controller = st.Controller(loaded.system, loaded.tuner, loaded.estimator)
    record = ("x", "theta", "a_hat", "cost")
    scenario = st.Scenario(jnp.array([1.0, 0.0]), *drawn)
    run = st.simulate(controller, scenario, theta=jnp.array([1.0, 1.5]), a_hat=jnp.zeros(2), record=record)
    assert manifest.results == {"0": 1}
    assert list(dataset.time) == [0, 20, 40, 60, 80]
    np.testing.assert_array_equal(dataset.x.sel(seed=7), run.x[::20])
    np.testing.assert_array_equal(dataset.theta.sel(seed=7), run.theta[::20])
    np.testing.assert_allclose(dataset.total_cost.sel(seed=7), jnp.sum(run.cost), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("theta = [1.0, 1.5]", "theta = [0.0, 1.5]"), "toml:28: run.theta: expected a point of its constraint"),
        (("theta = [1.0, 1.5]", "theta = [1.0, 1.5, 2.0]"), "toml:28: run.theta: expected another shape, such as (2,)"),
        (
            ("a_hat = [0.0, 0.0]", "a_hat = [0.0]"),
            "toml:29: run.a_hat: expected another shape, such as (2,)",
        ),
        (("x0 = [1.0, 0.0]", "x0 = [1.0]"), "scenario.x0: expected another shape, such as (2,)"),
        (("sigma = [0.0, 0.01]", "sigma = [0.0, 0.01, 1.0]"), "toml:23: scenario.w: sigma: expected a shape that fits"),
    ],
)
def test_what_does_not_fit_is_refused_first(tmp_path, change, message):
    loaded = load(tmp_path, change)
    with pytest.raises(ConfigError) as caught:
        user.compute(loaded, tmp_path / "run")
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_an_infinite_bound_is_kept_as_a_word_and_what_is_imported_by_its_digest(tmp_path):
    changes = [("high = [20.0, 20.0]", "high = inf"), ("cart:make", "wagon:make"), ("steps = 20_000", "steps = 2")]
    (tmp_path / "wheels.py").write_text("from cart import make")
    (tmp_path / "wagon.py").write_text("from wheels import make")
    manifest = user.compute(
        load(tmp_path, *changes, ("seeds = 8", "seeds = 1"), ("stride = 20", "stride = 1")), tmp_path / "run"
    )
    settings: Any = manifest.settings
    assert settings["tuner"]["constraint"]["high"] == "inf"
    assert settings["system"]["sha256"].keys() >= {"wagon.py", "wheels.py"}


def test_a_fault_of_the_user_s_code_is_said_with_its_line(tmp_path):
    (tmp_path / "barrow.py").write_text((EXAMPLES / "cart.py").read_text().replace("jnp.tanh", "jnp.than"))
    with pytest.raises(
        ConfigError, match=r"toml:26: run: residual: failed when traced .* at barrow\.py, line 16: .*than"
    ):
        user.compute(load(tmp_path, ("cart:make", "barrow:make")), tmp_path / "run")


def test_a_guard_is_used_and_recorded(tmp_path):
    short = [("steps = 20_000", "steps = 60"), ("seeds = 8", "seeds = 1"), ('"a_hat", "cost"', '"guard", "cost"')]
    with pytest.raises(ConfigError, match=r"run\.record: there is no table \[guard\]"):
        user.compute(load(tmp_path, *short), tmp_path / "run")
    tight = ("[scenario]", "[guard]\nu_low = -0.1\nu_high = 0.1\n\n[scenario]")
    user.compute(load(tmp_path, *short, tight), tmp_path / "run")
    decided = open_run(tmp_path / "run")[0].guard.sel(seed=0).values.astype(int)
    assert decided[0] & st.Decision.SATURATED
    wrong = ("[scenario]", "[guard]\nx_limit = [1.0, 1.0, 1.0]\n\n[scenario]")
    with pytest.raises(ConfigError, match=r"guard\.x_limit: expected one number or 2, got 3"):
        user.compute(load(tmp_path, *short, wrong), tmp_path / "other")


def test_what_a_tuner_does_not_keep_cannot_be_recorded(tmp_path):
    constraint = '\nconstraint = { name = "Box", low = [0.5, 0.5], high = [20.0, 20.0] }'
    changes = [('"MGAPS"\nlearning_rate = 0.02' + constraint, '"Fixed"'), ('"a_hat", "cost"', '"y", "cost"')]
    with pytest.raises(ConfigError, match=r"run\.record: the tuner Fixed keeps no y"):
        user.compute(load(tmp_path, *changes), tmp_path / "run")
