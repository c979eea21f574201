"""The innovation gate: one wild observation moves nothing, and the world may change."""

import jax
import jax.numpy as jnp
import numpy as np

import selftune as st
from selftune.control import innovation_gate
from tests.test_guard import START, D, decided, scenario, system

GUARD = st.Guard(window=100)


def gate(innovations, guard=GUARD, offset=0.0):
    """Return, for each innovation, whether it was an outlier; and the gate in the end."""
    rows = jnp.asarray(innovations)
    first = innovation_gate.start(guard, rows.shape[1], rows.dtype)
    return jax.lax.scan(lambda gate, e: innovation_gate.test(guard, gate, e, e + offset), first, rows)


def noise(size, seed=0, k=2):
    return np.random.default_rng(seed).normal(size=(size, k)) * [1.0, 1e-3]


def test_outliers_of_each_component_are_found_and_counted():
    rows = noise(400)
    rows[200, 0], rows[300, 1] = 1e8, -0.05
    end, outliers = gate(rows)
    assert np.flatnonzero(outliers).tolist() == [200, 300]
    assert int(end.gated) == 2
    np.testing.assert_allclose(end.scale, np.abs(rows[310:]).mean(axis=0), rtol=0.2)


def test_units_do_not_matter():
    rows = noise(500, 1)
    rows[::37] *= 100
    for unit in (1e-9, 1e9):
        np.testing.assert_array_equal(gate(rows)[1], gate(unit * rows)[1])
    for dtype in (np.float32, np.float64):
        np.testing.assert_array_equal(gate(rows)[1], gate((1e-25 * rows).astype(dtype))[1])


def test_the_way_back_when_the_world_has_changed():
    """A thousand times larger for ever: accepted after five outliers. A thousand times smaller: the scale follows,
    so that outliers are found again."""
    rows = noise(300)
    _, outliers = gate(np.concatenate([rows, 1000 * rows, rows]))
    assert np.flatnonzero(outliers).tolist() == list(range(300, 305))
    small = 1e-6 * noise(600)
    small[500] *= 1e4
    end, outliers = gate(np.concatenate([rows, small]))
    assert np.flatnonzero(outliers).tolist() == [800]
    assert float(end.scale[0]) < 1e-4


def test_rounding_errors_are_no_scale():
    """Without noise the innovation is a rounding error; a larger rounding error is no outlier."""
    rows = np.full((200, 1), 1e-17)
    rows[100] = 1e-12
    assert not np.any(gate(rows, offset=1.0)[1])
    rows[150] = 1e-3
    assert np.flatnonzero(gate(rows, offset=1.0)[1]).tolist() == [150]


class TestWithAnEstimator:
    def run(self, spike, **settings):
        """A noisy observation for 600 steps, with one wild residual at step 300."""
        made = st.Controller(system(), st.Fixed(), st.RLS(1.0, 10.0, constraint=st.Box(0.0, 2.0)))
        v = 0.01 * np.random.default_rng(0).normal(size=(600, 1))
        v[300] += spike
        base = scenario()
        scene = st.Scenario(x0=base.x0, a_star=base.sources[0], w=base.sources[1], v=jnp.asarray(v))
        return st.simulate(made, scene, **START, guard=st.Guard(**settings), engine="native")

    def test_one_residual_does_not_pin_the_estimate(self):
        gated, free = self.run(-9.9e7), self.run(-9.9e7, gate=None)
        assert np.flatnonzero(decided(gated, D.GATED)).tolist() == [300]
        assert np.all(np.abs(np.asarray(gated.a_hat)[100:] - 0.8) < 0.05)
        assert np.asarray(free.a_hat)[301] == 2.0  # at its bound, and far away ever after
        assert np.all(np.asarray(free.a_hat)[301:] > 1.5)
        assert int(gated.final.state.guard.gate.gated) == 1

    def test_a_run_without_outliers_has_the_same_bits(self):
        gated, free = self.run(0.0), self.run(0.0, gate=None)
        for name in ("x", "u", "a_hat"):
            np.testing.assert_array_equal(getattr(gated, name), getattr(free, name))
        np.testing.assert_array_equal(gated.guard, free.guard)

    def test_an_agent_tells(self):
        made = st.Controller(system(), st.Fixed(), st.RLS(1.0, 10.0, constraint=st.Box(0.0, 2.0)))
        agent = st.Agent(made, x=np.zeros(2), **START)
        random = np.random.default_rng(0)
        for t in range(100):
            agent.act([0.5, 0.1], t)
            agent.observe([-0.4 + 0.01 * random.normal()])
        a_hat = agent.a_hat
        agent.act([0.5, 0.1], 100)
        agent.observe([9.9e7])
        assert agent.result.message == "the observation was an outlier at step 100"
        np.testing.assert_array_equal(agent.a_hat, a_hat)
        assert agent.refused == 1
        agent.act([0.5, 0.1], 101)
        assert int(agent.info.guard.gated) == 1
