import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selftune as st
from tests.problems import golden, golden_controller, planar_system, scalar_system

G = golden("planar")
X = jnp.asarray(G["x0"])
START = dict(theta=G["theta0"], a_hat=G["a0"])


def test_act_uses_what_it_was_given_and_then_tunes():
    """u_t, cost and f̂ are of θ_t and â_t, not of what the tuner makes of them."""
    controller = golden_controller("planar")
    system = controller.system
    state = controller.init(X, **START)
    u, after, info = controller.act(state, X, 3)
    f_hat = system.residual(X, state.a_hat, 3)
    np.testing.assert_array_equal(u, system.policy(X, state.theta, f_hat, 3))
    np.testing.assert_array_equal(info.u, u)
    np.testing.assert_array_equal(info.cost, system.cost(X, u, state.theta, 3))
    np.testing.assert_array_equal(info.f_hat, f_hat)
    assert float(jnp.max(jnp.abs(after.theta - state.theta))) > 0
    np.testing.assert_array_equal(after.a_hat, state.a_hat)


def test_observe_moves_the_estimate_alone():
    controller = golden_controller("planar")
    state = controller.init(X, **START)
    after = controller.observe(state, X, jnp.ones(2), 0)
    np.testing.assert_array_equal(after.theta, state.theta)
    assert float(jnp.max(jnp.abs(after.a_hat - state.a_hat))) > 0


def test_reveal_tells_the_oracle_and_nobody_else():
    truth = jnp.array([0.1, 0.2, 0.3])
    oracle = st.Controller(planar_system(), st.Fixed(), st.Known())
    np.testing.assert_array_equal(oracle.reveal(oracle.init(X, **START), truth).a_hat, truth)
    other = golden_controller("planar")
    np.testing.assert_array_equal(other.reveal(other.init(X, **START), truth).a_hat, G["a0"])


def test_the_estimator_s_init_gets_the_first_context():
    """Also an estimator of the user; without a context, t is 0."""

    class Remembers(st.AbstractEstimator):
        def init(self, system, x, a_hat, t=0):
            return t

        def update(self, system, x, f_obs, a_hat, t, state):
            raise NotImplementedError

    controller = st.Controller(planar_system(), st.Fixed(), Remembers())
    assert controller.init(X, **START, t=7).estimator == 7
    assert controller.init(X, **START).estimator == 0


def test_plain_jit_works_on_bound_methods():
    controller = golden_controller("planar")
    state = controller.init(X, **START)
    u, _, _ = jax.jit(controller.act)(state, X, 0)
    np.testing.assert_allclose(u, controller.act(state, X, 0)[0], rtol=1e-14)


def test_plain_lists_and_integers_are_taken():
    controller = st.Controller(scalar_system(), st.MGAPS(1e-4), st.GradientEstimator(0.005))
    state = controller.init([0.0], theta=[1], a_hat=[0, 0, 0])
    assert state.theta.dtype == jnp.float64
    assert state.a_hat.shape == (3,)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: st.Controller(None, st.Fixed(), st.Known()), "system: expected a selftune system, got None"),
        (lambda: st.Controller(scalar_system(), st.Known(), st.Known()), "tuner: expected a selftune tuner"),
        (lambda: st.Controller(scalar_system(), st.Fixed, st.Known()), r"did you mean Fixed\(\.\.\.\)\?"),
        (lambda: st.Controller(scalar_system(), st.Fixed(), None), "estimator: expected a selftune estimator"),
        (lambda: st.MGAPS(0.0), "learning_rate: expected a finite number > 0, an optax .*got 0.0"),
        (lambda: st.MGAPS(-1e-3), "learning_rate: .*got -0.001"),
        (lambda: st.MGAPS(jnp.nan), "learning_rate: .*got nan"),
        (lambda: st.MGAPS(jnp.inf), "learning_rate: .*got inf"),
        (lambda: st.MGAPS("fast"), "learning_rate: expected real numbers, got 'fast'"),
        (lambda: st.MGAPS([0.1, 0.2]), r"learning_rate: expected a finite number .*, got float64\[2\]"),
        (lambda: st.MGAPS(optax.adam), "learning_rate: expected a schedule from the step to a number"),
        (lambda: st.KalmanEstimator([0.1, 0.1], 1.0, covariance=[1.0, 1.0, 1.0]), "process_noise: expected one entry"),
        (lambda: st.MGAPS(0.1, constraint=(0.0, 1.0)), "constraint: expected a constraint such as selftune.Box"),
        (lambda: st.GAPS(buffer=0, learning_rate=0.1), "buffer: expected a whole number >= 1, got 0"),
        (lambda: st.GAPS(buffer=2.0, learning_rate=0.1), "buffer: expected a whole number >= 1, got 2.0"),
        (lambda: st.DiffTune(episode=-1, learning_rate=0.1), "episode: expected a whole number >= 1, got -1"),
        (lambda: st.OPRF(episode=5, radius=0.0, key=jax.random.key(0), learning_rate=0.1), "radius: expected"),
        (lambda: st.OPRF(episode=5, radius=0.1, key=0, learning_rate=0.1), "key: expected a PRNG key"),
        (lambda: st.GradientEstimator(0.0), "learning_rate: expected .*got 0.0"),
        (lambda: st.GradientEstimator(0.1, preconditioner=[-1.0]), "preconditioner: expected numbers > 0"),
        (lambda: st.GradientEstimator(0.1, preconditioner=jnp.ones((2, 3))), "preconditioner: .*square matrix"),
        (lambda: st.GradientEstimator(0.1, preconditioner=jnp.ones((2, 2))), "preconditioner: .*positive definite"),
        (lambda: st.RLS(forgetting=0.0, covariance=1.0), r"forgetting: expected a number in \(0, 1\], got 0.0"),
        (lambda: st.RLS(forgetting=1.1, covariance=1.0), "forgetting: expected .*got 1.1"),
        (lambda: st.RLS(forgetting=0.9, covariance=0.0), "covariance: expected numbers > 0"),
        (lambda: st.KalmanEstimator(-1.0, 1.0), "process_noise: expected numbers > 0"),
        (lambda: st.KalmanEstimator(0.1, 0.0), "observation_noise: expected numbers > 0"),
        (lambda: st.KalmanEstimator(2.0, 0.1, covariance=1.0), "process_noise: expected less than covariance"),
    ],
)
def test_construction_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (st.GradientEstimator(0.1, preconditioner=jnp.eye(2)), "preconditioner: expected one entry for each of 3"),
        (st.RLS(0.9, [1.0, 2.0]), "covariance: expected one entry for each of 3"),
        (st.KalmanEstimator([0.1, 0.1], 1.0), "process_noise: expected one entry for each of 3"),
        (st.KalmanEstimator(0.1, 1.0, covariance=[1.0, 1.0]), "covariance: expected one entry for each of 3"),
    ],
)
def test_settings_of_the_wrong_size_are_refused_at_init(estimator, message):
    controller = st.Controller(planar_system(), st.Fixed(), estimator)
    with pytest.raises(ValueError, match=message):
        controller.init(X, **START)


class TestMeasurements:
    controller = golden_controller("planar")
    state = controller.init(X, **START)

    @pytest.mark.usefixtures("as_a_user")
    def test_of_the_wrong_shape_are_refused_by_name(self):
        with pytest.raises(ValueError, match=r"f_obs: expected shape \(2,\), that of the residual, got float64\[1\]"):
            self.controller.observe(self.state, X, jnp.ones(1), 0)
        with pytest.raises(ValueError, match="x: expected a vector"):
            self.controller.act(self.state, jnp.float64(0.0), 0)
        with pytest.raises(ValueError, match=r"^dynamics: expected shape \(1,\), that of x, got float64\[2\]"):
            self.controller.act(self.state, jnp.zeros(1), 0)

    @pytest.mark.usefixtures("as_a_user")
    def test_lists_and_doubles_are_taken_in_the_states_dtype(self):
        single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), START)
        state = self.controller.init(X.astype(jnp.float32), **single)
        u, state, _ = self.controller.act(state, [0.3, -0.2], 0)
        state = self.controller.observe(state, np.array([0.3, -0.2]), [0.1, 0.2], 0)
        assert u.dtype == jnp.float32
        assert state.theta.dtype == state.a_hat.dtype == jnp.float32


@pytest.mark.usefixtures("as_a_user")
def test_a_class_or_an_exchanged_part_is_refused_with_what_to_write():
    system = scalar_system()
    with pytest.raises(ValueError, match=r"tuner: .*did you mean MGAPS\(\.\.\.\)\?"):
        st.Controller(system, tuner=st.MGAPS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"the order is Controller\(system, tuner, estimator\)$"):
        st.Controller(system, st.GradientEstimator(0.1), st.MGAPS(0.1))  # type: ignore[arg-type]
