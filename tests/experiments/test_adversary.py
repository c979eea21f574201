"""The adversary stays within its budget, beats simple estimators, and Theorem 1 stands."""

import jax
import jax.numpy as jnp
import pytest

import selftune as st
from selftune.experiments.rates import adversary, figures
from tests import drawings

STEPS = 60


@pytest.fixture(scope="module")
def probes():
    return adversary.probe(epsilons=(1e-3, 0.3), steps=STEPS, seed=0)


def test_theorem_1_stands(probes):
    for each in probes:
        assert each.ok
        assert 0 < each.distance <= 1
        assert 0 < each.perturbation <= 1
        for certificate in each.certificates.values():
            assert certificate.row("distance, in all").must_hold
            assert certificate.row("perturbation, in all").must_hold
    assert [each.is_allowed for each in probes] == [True, False]


def test_the_finding_has_a_row_for_each_epsilon_and_a_figure(probes, monkeypatch, tmp_path):
    monkeypatch.setattr(adversary, "probe", lambda **size: probes)
    finding = adversary.find(steps=STEPS)
    assert [row[0] for row in finding.rows] == ["0.001", "0.3"]
    # Two bounds for each ε, the two promised conclusions where Theorem 1 allows ε, and the certificates.
    assert len(finding.checks) == 2 * 2 + 2 + 1
    assert finding.failed == []
    drawings.check(figures.adversary(finding))
    assert all(path.is_file() for path in figures.draw(finding, tmp_path))


def test_the_budget_is_used_and_kept(probes):
    """α_x = 1/2 times the largest ε_t is measured by the certificate itself."""
    for each in probes:
        for goal, certificate in each.certificates.items():
            used = certificate.row("small mismatch of the state").measured / 0.5
            assert used <= each.epsilon * (1 + 1e-9)
            if goal == "distance":
                assert used == pytest.approx(each.epsilon)


def test_no_simple_estimator_does_more():
    """Against a model that is off by ε in one direction all the time, and against random ones of the same budget."""
    epsilon, scenario = (
        0.01,
        st.Scenario(
            jnp.zeros(1), a_star=jnp.zeros((STEPS, 2)), w=st.Uniform(adversary.NOISE)(jax.random.key(0), STEPS, 1)
        ),
    )
    theta = jnp.array([0.5, 0.0])

    def distance(rows):
        return adversary._certify(scenario, theta, rows).row("distance, in all").measured

    worst = distance(
        adversary.worst_estimates(
            adversary._SYSTEM, adversary.TUNER, scenario, theta,
            epsilon=jnp.asarray(epsilon), weights=jnp.array([0.0, 1.0]),
        )
    )  # fmt: skip
    constant = jnp.tile(jnp.array([epsilon, 0.0]), (STEPS, 1))
    coins = epsilon * jnp.sign(jax.random.normal(jax.random.key(1), (STEPS, 1))) * jnp.array([1.0, 0.0])
    for rows in (constant, -constant, coins):
        assert distance(rows) <= worst * (1 + 1e-9)


def test_replay_gives_its_rows():
    rows = jnp.arange(6.0).reshape(3, 2)
    estimator, a_hat = adversary.Replay(rows), rows[0]
    state = estimator.init(adversary._SYSTEM, jnp.zeros(1), a_hat)
    for following in (rows[1], rows[2], rows[2]):
        a_hat, state, _ = estimator.update(adversary._SYSTEM, jnp.zeros(1), jnp.zeros(1), a_hat, 0, state)
        assert jnp.array_equal(a_hat, following)
