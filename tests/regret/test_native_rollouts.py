"""The native engine of the metrics: the numbers of XLA, in lanes and one by one, with threads and with Ctrl-C."""

import os
import signal
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks._problems import arm, scalar

import selftune as st
from selftune.native import loop
from selftune.native.lanes import LANES

MAKERS = {"scalar": (scalar, 300), "arm": (arm, 70)}


class Example(NamedTuple):
    controller: st.Controller
    scenario: st.Scenario
    run: st.Run

    @property
    def case(self):
        return self.controller.system, self.scenario, self.run.theta


@cache
def example(name: str) -> Example:
    maker, steps = MAKERS[name]
    problem = maker()
    scenario = problem.scenario(steps)
    return Example(
        problem.controller,
        scenario,
        st.simulate(problem.controller, scenario, theta=problem.theta, a_hat=problem.a_hat),
    )


METRICS = {
    "surrogate": lambda e, engine: st.surrogate(*e.case, engine=engine),
    "a window": lambda e, engine: st.surrogate(*e.case, window=25, engine=engine),
    "a chosen window": lambda e, engine: st.surrogate(*e.case, window=st.AutoWindow(1e-3), engine=engine),
    "local_regret": lambda e, engine: st.local_regret(*e.case, learning_rate=1e-3, engine=engine),
    "static_regret": lambda e, engine: st.static_regret(
        *e.case[:2], e.run, starts=e.run.theta[:5] * jnp.linspace(0.8, 1.2, 5)[:, None], iterations=4, engine=engine
    ),
    "exact_model_gap": lambda e, engine: st.exact_model_gap(*e.case[:2], e.run, engine=engine),
    "perturbations": lambda e, engine: st.perturbations(*e.case[:2], e.run, tuner=e.controller.tuner, engine=engine),
}


def assert_close(a, b):
    """Equal to 1e-10 of the largest number of each array. Rounding is amplified in estimates of errors, which are made
    of small differences, and in gaps, which are distances between nearly equal states."""
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        if jax.tree_util.keystr(path) == ".spread":
            continue  # a difference of two of the minima, which are compared
        x, y = np.asarray(x, float), np.asarray(y, float)
        assert np.array_equal(np.isfinite(x), np.isfinite(y))
        y, x = y[np.isfinite(y)], x[np.isfinite(y)]
        loose = 1e-4 if "error" in jax.tree_util.keystr(path) else 1e-10
        np.testing.assert_allclose(x, y, rtol=0, atol=loose * np.abs(y).max(initial=0) + 1e-14, err_msg=f"{path}")


@pytest.mark.parametrize("metric", METRICS)
def test_the_numbers_of_xla(metric, monkeypatch):
    # Lanes in the first two, which have a group of fewer than LANES lanes, too.
    monkeypatch.setattr(loop, "WORTH_LANES", 0 if metric in ("surrogate", "a window") else 10**12)
    case = example("scalar")
    assert len(case.scenario) % LANES
    assert_close(METRICS[metric](case, "native"), METRICS[metric](case, "xla"))


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_the_numbers_of_xla_on_a_robot(metric):
    assert_close(METRICS[metric](example("arm"), "native"), METRICS[metric](example("arm"), "xla"))


@pytest.mark.parametrize("window", [None, 25])
def test_lanes_and_threads_change_no_bit(monkeypatch, window):
    def result(worth, workers):
        monkeypatch.setattr(loop, "WORTH_LANES", worth)
        return st.surrogate(*example("scalar").case, window=window, workers=workers, engine="native")

    alone = result(10**12, 1)
    for other in (result(0, 1), result(0, 3)):
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_rollout_that_diverges_leaves_the_others_alone(monkeypatch):
    monkeypatch.setattr(loop, "WORTH_LANES", 0)
    system, scenario, thetas = example("scalar").case
    wild = thetas.at[200].set(1e9)  # in the middle of a group
    calm, found = (st.surrogate(system, scenario, rows, engine="native") for rows in (thetas, wild))
    others = np.arange(len(scenario)) != 200
    np.testing.assert_array_equal(np.asarray(found.value)[others], np.asarray(calm.value)[others])
    assert not np.isfinite(found.value[200])
    assert not np.isfinite(st.surrogate(system, scenario, wild, engine="xla").value[200])


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_the_work(workers):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    calls = []

    def progress(done, total):
        calls.append((done, total))
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    steps = 4_000
    problem = scalar()
    try:
        with pytest.raises(KeyboardInterrupt):
            st.surrogate(
                problem.controller.system,
                problem.scenario(steps),
                jnp.tile(problem.theta, (steps, 1)),
                workers=workers,
                progress=progress,
                engine="native",
            )
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls[-1][0] < calls[-1][1] / 2


def test_xla_runs_where_c_cannot():
    """An SVD has no C; the reason is given once for each metric."""
    system = st.MatchedSystem(
        dynamics=lambda x, v, t: 0.5 * x + v,
        residual=lambda x, a, t: a,
        actuation=lambda x, theta, t: -theta * x * jnp.linalg.svd(x[:, None] + 1.0, compute_uv=False),
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    scenario = st.Scenario(jnp.ones(1), a_star=jnp.ones((20, 1)), w=jnp.zeros((20, 1)))
    thetas = jnp.full((20, 1), 0.1)
    with pytest.warns(RuntimeWarning, match="XLA runs this.*svd"):
        found = st.surrogate(system, scenario, thetas)
    assert_close(found, st.surrogate(system, scenario, thetas, engine="xla"))


def test_under_jit_only_xla_runs():
    system, scenario, thetas = example("scalar").case
    with pytest.raises(ValueError, match="engine: expected 'auto' or 'xla' under jit and vmap"):
        jax.jit(lambda thetas: st.surrogate(system, scenario, thetas, engine="native").value)(thetas)
