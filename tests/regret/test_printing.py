"""What `print` shows of a result: numbers that can be checked by hand, of one run, of a batch and of a traced one."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from tests.problems import scalar_system
from tests.regret.cases import paper_scenario

STEPS = 60


def results(scenario: st.Scenario) -> dict[str, object]:
    system, box = scalar_system(), st.Box(0.0, 50.0)
    tuner = st.MGAPS(1e-3, constraint=box)
    tuned, fixed = (
        st.simulate(
            st.Controller(system, one, st.GradientEstimator(0.005)), scenario, theta=jnp.ones(1), a_hat=jnp.zeros(3)
        )
        for one in (tuner, st.Fixed())
    )
    regret = st.local_regret(system, scenario, tuned.theta, learning_rate=1e-3, constraint=box)
    return {
        "local": regret,
        "surrogate": regret.surrogate,
        "static": st.static_regret(system, scenario, tuned, constraint=box, starts=2),
        "mismatch": st.model_mismatch(system, scenario, tuned),
        "gap": st.exact_model_gap(system, scenario, tuned),
        "gap of x": st.exact_model_gap(system, scenario, fixed),
        "perturbations": st.perturbations(system, scenario, tuned, tuner=tuner),
        "quasi": st.quasi_regret(tuned, fixed),
        "lengths": st.path_lengths(system, scenario, tuned, key=jax.random.key(0)),
        "lengths of a scenario": st.path_lengths(system, scenario),
    }


@pytest.fixture(scope="module")
def one():
    return results(paper_scenario(0, STEPS))


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(?<![\w.^])-?\d+(?:\.\d+)?(?:e[-+]\d+)?(?![\w^])", text)]


def shown(values) -> list[float]:
    return [float(f"{float(value):.4g}") for value in values]


def test_local_regret_against_sums_by_hand(one):
    text, regret = str(one["local"]).splitlines(), one["local"]
    system, scenario = scalar_system(), paper_scenario(0, STEPS)
    held = st.surrogate(system, scenario, jnp.ones((STEPS, 1))).gradient  # θ stays far inside the box
    tuner, start = (np.sum(np.asarray(g) ** 2, axis=1) for g in (regret.projected_gradient, held))
    np.testing.assert_allclose(regret.untuned, np.cumsum(start), rtol=1e-10)
    half = STEPS // 2
    halves = [f(g) for f in (lambda g: g[:half].mean(), lambda g: g[half:].mean()) for g in (tuner, start)]
    growth = [np.log2(g.sum() / g[:half].sum()) for g in (tuner, start)]
    mean = np.abs(np.asarray(regret.projected_gradient)[half:].mean())
    assert numbers(text[0].replace(f"over {STEPS} steps", "")) == shown([tuner.sum(), tuner.mean()])
    assert numbers(text[1].replace("θ_0", "")) == shown([start.sum(), tuner.sum() / start.sum()])
    assert numbers(text[2].replace("θ_0", "")) == shown(halves)
    assert [float(found) for found in re.findall(r"T\^([\d.]+)", text[3])] == shown([*growth, 1])
    assert numbers(text[4].replace("θ_0", "")) == shown([*np.sqrt(halves[2:]), mean])
    assert len(text) == 5


def test_the_others_against_sums_by_hand(one):
    static, mismatch, quasi = one["static"], one["mismatch"], one["quasi"]
    cost = float(static.regret + static.minimum)
    assert numbers(str(static)) == shown([static.regret, STEPS, cost, static.minimum, *static.theta, 2, 2, 2])
    halves = lambda rows: [rows[: STEPS // 2].mean(), rows[STEPS // 2 :].mean()]
    assert numbers(str(mismatch).replace("ε'", "ε")) == shown(
        [
            STEPS,
            mismatch.total,
            *halves(mismatch.mismatch),
            mismatch.total_gradient,
            *halves(mismatch.mismatch_gradient),
        ]
    )
    gap = one["gap"]
    for line, rows in zip(str(gap).splitlines()[1:], (gap.gap_x, gap.gap), strict=True):
        assert numbers(line) == shown([*halves(rows), rows.max(), rows.argmax()])
    assert len(str(one["gap of x"]).splitlines()) == 2
    zeta = one["perturbations"]
    assert numbers(str(zeta)) == shown([STEPS, zeta.total, *halves(zeta.norm), zeta.norm.max(), zeta.norm.argmax()])
    lower = 100 * np.mean(np.asarray(quasi.difference) < 0)
    assert numbers(str(quasi)) == shown([STEPS, quasi.cumulative[-1], *halves(quasi.difference), lower])
    lengths = one["lengths"]
    assert numbers(str(lengths)) == shown([lengths.w, lengths.a_star, lengths.system])
    assert str(one["lengths of a scenario"]).endswith("not computed: no run was given")
    norm = np.abs(np.asarray(one["surrogate"].gradient)[:, 0])
    assert numbers(str(one["surrogate"])) == shown([STEPS, *halves(one["surrogate"].value), *halves(norm)])


def test_the_representation_has_the_small_numbers_and_the_shapes_of_the_others(one):
    static = one["static"]
    text = repr(static)
    assert text.startswith(
        f"StaticRegret(\n  regret={float(static.regret)},\n  cumulative=float64[{STEPS}],\n  theta=["
    )
    assert f"minimum={float(static.minimum)}" in text


def test_a_traced_result_and_a_batch_can_be_printed(one):
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, 3 * leaf if leaf.dtype == float else leaf]), one)
    seen = []

    def traced(made):
        seen.extend((str(result), repr(result)) for result in made.values())
        return made["local"].cumulative

    for transformed in (jax.vmap(traced), jax.jit(traced)):
        transformed(batch)
    assert len(seen) == 2 * len(one)
    assert all(text == representation for text, representation in seen)
    last = float(one["local"].cumulative[-1])
    expected = f"local regret {2 * last:.4g} (mean; {last:.4g} to {3 * last:.4g}) over {STEPS} steps, 2 runs"
    assert str(batch["local"]).startswith(expected)
    assert all(str(result) != repr(result) for result in batch.values())
    assert str(jax.eval_shape(lambda: one["local"])).startswith("LocalRegret(")


def test_one_step_and_numbers_that_are_not_finite(one):
    short = st.local_regret(scalar_system(), paper_scenario(0, 1), jnp.ones((1, 1)), learning_rate=1e-3)
    assert str(short).splitlines()[0] == "local regret 0 over 1 step: 0 per step"
    wild = jax.tree.map(lambda leaf: jnp.where(leaf > 0, jnp.inf, jnp.nan) if leaf.dtype == float else leaf, one)
    assert "nan" in str(wild["local"])
    assert all(str(result) for result in wild.values())


def test_a_run_in_place_of_its_thetas_is_refused():
    controller = st.Controller(scalar_system(), st.MGAPS(0.01), st.GradientEstimator(0.1))
    scenario = paper_scenario(0, 20)
    run = st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(scenario.a_star.shape[1:]))
    with pytest.raises(ValueError, match=r"thetas: expected 20 rows, .* got a Run; did you mean run\.theta\?"):
        st.local_regret(scalar_system(), scenario, run, learning_rate=0.1, constraint=st.Box(0.0, 2.0))
    with pytest.raises(ValueError, match=r"a_hat: .* such as a_hat=jnp\.zeros\(1\), got None"):
        st.simulate(controller, scenario, theta=jnp.ones(1))
