"""Agreement with the independent program, array by array, and of its files with it: `tests/golden/README.md`."""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import selftune as st
from tests.independent import algorithms
from tests.independent import golden as independent
from tests.problems import SYSTEMS, golden, golden_controller, golden_scenario

pytestmark = pytest.mark.versions

FIELDS = {
    "x": "x",
    "u": "u",
    "theta": "theta",
    "a_hat": "a_hat",
    "y": "y",
    "grad": "gradient",
    "cost": "cost",
    "f_hat": "f_hat",
    "f_true": "f",
}

cases = pytest.mark.parametrize(("name", "tuner"), [(name, tuner) for name in SYSTEMS for tuner in ("mgaps", "gaps5")])


def assert_golden(name: str, tuner: str, values: dict[str, np.ndarray]) -> None:
    for field, array in FIELDS.items():
        expected, got = golden(name)[f"{tuner}_{field}"], np.asarray(values[array])
        assert got.shape == expected.shape
        # 1e-9 relative to the array's size, the agreement that the two programs' own rounding allows after 600 steps.
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max(), err_msg=field)


@cases
def test_simulate(name, tuner):
    g = golden(name)
    run = st.simulate(golden_controller(name, tuner), golden_scenario(name), theta=g["theta0"], a_hat=g["a0"])
    assert_golden(name, tuner, run.recorded)
    assert run.result.message == "ok"


@cases
def test_simulate_under_vmap(name, tuner):
    g, controller = golden(name), golden_controller(name, tuner)
    half = {key: np.stack([0.5 * g[key], g[key]]) for key in ("w", "v")}

    def run(w, v):
        scenario = st.Scenario(g["x0"], g["a_star"], w, v)
        return st.simulate(controller, scenario, theta=g["theta0"], a_hat=g["a0"])

    both = jax.vmap(run)(half["w"], half["v"])
    assert_golden(name, tuner, jax.tree.map(lambda leaf: leaf[1], both.recorded))


@cases
def test_by_hand(name, tuner):
    """The three public calls, one sample at a time, with the plant written out."""
    g, controller = golden(name), golden_controller(name, tuner)
    system, scenario = controller.system, golden_scenario(name)
    act, observe = jax.jit(controller.act), jax.jit(controller.observe)
    x = scenario.x0
    state = controller.init(x, theta=g["theta0"], a_hat=g["a0"])
    rows = []
    for t in range(len(scenario)):
        now = scenario.row(t)
        theta, a_hat = state.theta, state.a_hat
        u, state, info = act(state, x, t)
        f = system.residual(x, now.a_star, t)
        state = observe(state, x, f + now.v, t)
        rows.append(
            dict(
                x=x,
                u=u,
                theta=theta,
                a_hat=a_hat,
                y=info.tuner.y,
                gradient=info.tuner.gradient,
                cost=info.cost,
                f_hat=info.f_hat,
                f=f,
            )
        )
        x = system.dynamics(x, u, f, t) + now.w
    assert_golden(name, tuner, {key: np.stack([row[key] for row in rows]) for key in rows[0]})


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_stored_files_are_what_the_program_makes(name):
    """All but the surrogates, which take seconds: of these a few steps, and the local regret from the stored ones."""
    stored, problem = golden(name), independent.PROBLEMS[name]()
    every, few = independent.arrays(problem, surrogates=False), range(0, len(problem), len(problem) // 12)
    assert stored.keys() - every.keys() == {"surrogate", "surrogate_grad", "local_regret"}
    found = [algorithms.surrogate(problem, every["mgaps_theta"], t) for t in few]
    every["surrogate"], every["surrogate_grad"] = (np.stack(part) for part in zip(*found, strict=True))
    gradients = stored["surrogate_grad"]
    every["local_regret"] = algorithms.local_regret(problem, every["mgaps_theta"], gradients)
    kept = stored | {key: stored[key][list(few)] for key in ("surrogate", "surrogate_grad")}
    assert max(independent.differences(every, kept).values()) <= independent.TOLERANCE


@pytest.mark.slow
def test_the_program_finds_every_array_as_stored_and_any_change_to_one(tmp_path):
    command = [sys.executable, "-m", "tests.independent", "--check"]
    root = Path(__file__).parents[1]
    assert subprocess.run(command, cwd=root, check=False).returncode == 0
    for name in SYSTEMS:
        changed = dict(golden(name))
        changed["surrogate"] = changed["surrogate"] + 1e-9 * changed["surrogate"].max()
        np.savez(tmp_path / f"{name}.npz", **changed)
    assert subprocess.run([*command, "--out", tmp_path], cwd=root, check=False).returncode == 1
