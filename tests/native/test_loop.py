"""`simulate(..., engine="native")` gives the run that XLA gives: rows, state, result, in one go or in parts."""

import importlib
import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks._problems import PROBLEMS

import selftune as st
from selftune.native.lowering.from_jaxpr import lower
from selftune.problem.system import linearize_step
from tests import test_contract as contract
from tests.problems import golden, golden_controller, golden_scenario, random_scenario, random_system
from tests.test_golden import assert_golden, cases

pytestmark = pytest.mark.versions

simulate_module = importlib.import_module("selftune.simulation.simulator")


def both(controller, scenario, **settings):
    return [st.simulate(controller, scenario, engine=engine, **settings) for engine in ("xla", "native")]


def assert_same(got, expected, tolerance=1e-11):
    """Same structure, shapes and dtypes; numbers to `tolerance` of the largest of their array. Engines may differ."""
    got, expected = (
        (one.recorded, one.final, one.outcome) if isinstance(one, st.Run) else one for one in (got, expected)
    )
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        size = float(np.max(np.abs(b))) if b.size else 0.0
        # A number of θ on the edge of its set is zero up to the rounding of numbers of size 1.
        absolute = max(tolerance * size, 1e-15) if tolerance else 0.0
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=absolute)


PLANAR = golden("planar")
START = {"theta": PLANAR["theta0"], "a_hat": PLANAR["a0"]}


@cases
def test_golden(name, tuner):
    g = golden(name)
    run = st.simulate(
        golden_controller(name, tuner), golden_scenario(name), theta=g["theta0"], a_hat=g["a0"], engine="native"
    )
    assert_golden(name, tuner, run.recorded)
    assert run.result.message == "ok"


LONG = ("arm", "quadrotor")
"""They take long to compile."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in PROBLEMS])
def test_robots_over_ten_thousand_steps(name):
    problem = PROBLEMS[name]()
    xla, native = both(problem.controller, problem.scenario(10_000), theta=problem.theta, a_hat=problem.a_hat, stride=7)
    assert_same(native, xla)
    assert native.result.message == "ok"


# Every tuner, every estimator and every constraint: the others of all pairs in `make test-slow`.
PAIRS = [
    (tuner, estimator, list(contract.CONSTRAINTS)[(i + j) % len(contract.CONSTRAINTS)])
    for (i, tuner), (j, estimator) in itertools.product(enumerate(contract.TUNERS), enumerate(contract.ESTIMATORS))
]
_ROWS, _COLUMNS = len(contract.TUNERS), len(contract.ESTIMATORS)
FEW = [PAIRS[_COLUMNS * (i % _ROWS) + (i + 1) % _COLUMNS] for i in range(max(_ROWS, _COLUMNS))]


@pytest.mark.parametrize(
    ("tuner", "estimator", "constraint"),
    [*FEW, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS if pair not in FEW)],
)
def test_every_tuner_and_estimator(tuner, estimator, constraint):
    controller = contract.controller_of(contract.Problem(), tuner, estimator, constraint)
    xla, native = both(
        controller, contract.Problem.scenario(0), theta=contract.THETA, a_hat=contract.A_HAT, throw=False
    )
    assert_same(native, xla, 1e-9)


def test_the_few_are_all_tuners_estimators_and_constraints():
    assert {pair[0] for pair in FEW} == set(contract.TUNERS)
    assert {pair[1] for pair in FEW} == set(contract.ESTIMATORS)
    assert {pair[2] for pair in FEW} == set(contract.CONSTRAINTS)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_any_length_and_stride(steps):
    controller, scenario = golden_controller("planar"), golden_scenario("planar")[:steps]
    for stride in (1, 3):
        xla, native = both(controller, scenario, **START, stride=stride)
        assert_same(native, xla)


def test_in_parts_bit_for_bit(monkeypatch):
    controller, scenario = golden_controller("planar"), golden_scenario("planar")
    whole = st.simulate(controller, scenario, **START, engine="native")
    head = st.simulate(controller, scenario[:251], **START, engine="native")
    tail = st.simulate(controller, scenario[251:], resume=head.final, engine="native")
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), head.recorded, tail.recorded)
    assert_same(joined, whole.recorded, 0)
    assert_same(tail.final, whole.final, 0)
    # And in more than one call into C.
    for first in (1, 100):
        monkeypatch.setattr("selftune.native.interruption.FIRST", first)
        assert_same(st.simulate(controller, scenario, **START, engine="native"), whole, 0)


def test_a_new_number_compiles_nothing(monkeypatch):
    controller, scenario = golden_controller("planar"), golden_scenario("planar")
    st.simulate(controller, scenario[:7], **START, engine="native")
    monkeypatch.setattr("selftune.native.loop.build", lambda *_: pytest.fail("compiled again"))
    monkeypatch.setattr("selftune.native.loop.lower_step", lambda *_: pytest.fail("lowered again"))
    tuner = st.MGAPS(learning_rate=1e-3, constraint=controller.tuner.constraint)
    other = st.Controller(controller.system, tuner, controller.estimator)
    # Nor does another number of steps.
    xla, native = both(other, scenario[:100], theta=0.9 * START["theta"], a_hat=START["a_hat"])
    assert_same(native, xla)


def batched(engine):
    controller, scenario = golden_controller("planar"), golden_scenario("planar")

    def run(w, learning_rate):
        tuner = st.MGAPS(learning_rate, constraint=controller.tuner.constraint)
        other = st.Scenario(scenario.x0, scenario.a_star, w, scenario.v)
        return st.simulate(st.Controller(controller.system, tuner, controller.estimator), other, **START, engine=engine)

    return run


def test_batches():
    scales = jnp.array([0.5, 1.0, 2.0])
    w, rates = scales[:, None, None] * golden_scenario("planar").w, jnp.array([1e-3, 1e-2])
    over_both = [jax.vmap(lambda w, one=run: jax.vmap(lambda r: one(w, r))(rates))(w) for run in map(batched, ENGINES)]
    assert over_both[1].x.shape == (3, 2, 300, 2)
    assert_same(over_both[1], over_both[0])
    # One lane of a batch is the run by itself, and jit changes nothing.
    alone = batched("native")(w[1], rates[1])
    assert_same(jax.tree.map(lambda leaf: leaf[1, 1], over_both[1]), alone, 0)
    assert_same(jax.jit(jax.vmap(batched("native"), in_axes=(0, None)))(w, rates[1]).x[1], alone.x, 0)


ENGINES = ("xla", "native")


def test_a_batch_over_random_keys():
    """OPRF's key is an argument of the program, and its Threefry is JAX's."""
    scenario = contract.Problem.scenario(0)
    system = contract.Problem().system

    def run(key, engine):
        tuner = st.OPRF(episode=2, radius=0.1, key=key, learning_rate=0.1, constraint=st.Box(0.1, 0.35))
        controller = st.Controller(system, tuner, st.Frozen())
        return st.simulate(controller, scenario, theta=contract.THETA, a_hat=contract.A_HAT, engine=engine)

    keys = jax.random.split(jax.random.key(3), 3)
    xla, native = (jax.vmap(lambda key, engine=engine: run(key, engine))(keys) for engine in ENGINES)
    assert_same(native, xla)
    assert not np.allclose(native.theta["gain"][0], native.theta["gain"][1])


@pytest.mark.slow
def test_streams_in_parts(monkeypatch):
    controller = golden_controller("planar")
    scenario = st.Scenario(
        PLANAR["x0"],
        st.RandomWalk(0.01, -1.0, 1.0).stream(jax.random.key(1), 3),
        st.OrnsteinUhlenbeck(0.9, 0.01).stream(jax.random.key(2), 2),
        steps=1000,
    )
    xla, native = both(controller, scenario, **START, stride=7)
    assert_same(native, xla)
    monkeypatch.setattr(simulate_module, "_STREAMED", 100)
    assert_same(st.simulate(controller, scenario, **START, stride=7, engine="native"), native, 0)


def test_a_context_of_arrays():
    system = st.System(
        dynamics=lambda x, u, f, t: x + 0.1 * (u + f),
        residual=lambda x, a, t: a * jnp.where(t["on"], 1.0, 0.0),
        policy=lambda x, theta, f, t: -theta * (x - t["reference"]) - f,
        cost=lambda x, u, theta, t: jnp.sum((x - t["reference"]) ** 2) * t["weight"][t["mode"]],
    )
    controller = st.Controller(system, st.MGAPS(0.05), st.GradientEstimator(0.1))
    steps = np.arange(40)
    t = {
        "reference": np.sin(0.3 * steps)[:, None],
        "on": steps % 3 > 0,
        "mode": (steps % 2).astype(np.int32),
        "weight": np.tile([1.0, 3.0], (40, 1)),
    }
    scenario = st.Scenario(jnp.zeros(1), jnp.full((40, 1), 0.3), jnp.zeros((40, 1)), t=t)
    xla, native = both(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1))
    assert_same(native, xla)


def test_float32():
    problem = PROBLEMS["pendulum"](dtype=jnp.float32)
    xla, native = both(problem.controller, problem.scenario(300), theta=problem.theta, a_hat=problem.a_hat)
    assert native.x.dtype == jnp.float32
    assert_same(native, xla, 2e-4)


@pytest.mark.parametrize("limit", [1e8, np.inf, 0.5])
def test_failures_have_the_same_code_and_step(limit):
    system = st.System(
        dynamics=lambda x, u, f, t: 3.0 * x + u + f,
        residual=lambda x, a, t: a,
        policy=lambda x, theta, f, t: -theta * x,
        cost=lambda x, u, theta, t: jnp.sum(x**2),
    )
    scenario = st.Scenario(jnp.ones(1), jnp.zeros((900, 1)), jnp.zeros((900, 1)))
    controller = st.Controller(system, st.Fixed(), st.Frozen())
    runs = both(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1), limit=limit, throw=False)
    codes = [(int(run.result.code), int(run.result.step)) for run in runs]
    assert codes[0] == codes[1]
    assert codes[0][0] != st.Result.OK
    with pytest.raises(st.SimulationError, match="at step"):
        st.simulate(controller, scenario, theta=jnp.zeros(1), a_hat=jnp.zeros(1), limit=limit, engine="native")


def test_a_failure_on_the_way():
    controller, scenario = golden_controller("planar"), golden_scenario("planar")
    for bad in (1e9, np.inf):
        w = np.array(scenario.w)
        w[100, 0] = bad if np.isfinite(bad) else 1e308
        disturbed = st.Scenario(10.0 * scenario.x0 if bad > 1e9 else scenario.x0, scenario.a_star, w, scenario.v)
        xla, native = both(controller, disturbed, **START, throw=False)
        assert (int(native.result.code), int(native.result.step)) == (int(xla.result.code), int(xla.result.step))
        assert int(native.result.step) == 100


class TestRefused:
    @pytest.mark.usefixtures("as_a_user")
    def test_an_unknown_engine(self):
        with pytest.raises(ValueError, match="engine: expected 'auto', 'native' or 'xla', got 'c'"):
            st.simulate(golden_controller("planar"), golden_scenario("planar"), **START, engine="c")

    def test_what_cannot_be_written_in_c_by_name_and_line(self):
        def policy(x, theta, f, t):
            return -theta * x * jnp.linalg.svd(jnp.outer(x, x))[1][0]

        controller = self.controller(policy)
        with pytest.raises(NotImplementedError, match=r"the operation 'svd', at .*\.py:\d+"):
            st.simulate(controller, self.scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1), engine="native")

    def test_a_function_that_has_captured_a_traced_array(self):
        def run(gain):
            controller = self.controller(lambda x, theta, f, t: -theta * gain * x)
            return st.simulate(controller, self.scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1), engine="native")

        with pytest.raises(NotImplementedError, match="captured an array under jit or vmap"):
            jax.vmap(run)(jnp.ones(2))

    scenario = st.Scenario(jnp.ones(1), jnp.zeros((5, 1)), jnp.zeros((5, 1)))

    @staticmethod
    def controller(policy):
        system = st.System(
            dynamics=lambda x, u, f, t: 0.5 * x + u + f,
            residual=lambda x, a, t: a,
            policy=policy,
            cost=lambda x, u, theta, t: jnp.sum(x**2),
        )
        return st.Controller(system, st.Fixed(), st.Frozen())


def small_loop(**functions):
    system = st.System(
        **{
            "dynamics": lambda x, u, f, t: 0.9 * x + 0.1 * (u + f),
            "residual": lambda x, a, t: a * jnp.sin(x),
            "policy": lambda x, theta, f, t: -theta * x - f,
            "cost": lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
        }
        | functions
    )
    return st.Controller(system, st.MGAPS(1e-3), st.GradientEstimator(1e-3))


def test_a_quotient_that_is_rounded_is_a_division():
    """49 · (1/49) is below one: where a divisor is shared, a whole step would be lost."""
    controller = small_loop(
        dynamics=lambda x, u, f, t: jnp.stack([x[0] + 1.0, x[1]]),
        policy=lambda x, theta, f, t: theta * jnp.floor(x[0] / x[1]) + 0.01 * (x[0] + theta) / x[1],
    )
    scenario = st.Scenario(jnp.array([0.0, 49.0]), a_star=jnp.zeros((120, 2)), w=jnp.zeros((120, 2)))
    xla, native = both(controller, scenario, theta=jnp.ones(2), a_hat=jnp.zeros(2))
    assert_same(native, xla)
    x = np.array([49.0, 49.0])
    agents = [st.Agent(controller, x=x, theta=np.ones(2), a_hat=np.zeros(2), engine=e) for e in ("xla", "native")]
    np.testing.assert_allclose(*(agent.act(x) for agent in agents), rtol=1e-12)


RANDOM = random_system(jax.random.key(2), n=6, m=3, k=3, p=4, d=8)
RANDOM_RUN = {"theta": jnp.full(8, 0.3), "a_hat": jnp.zeros(4)}


def test_a_while_loop_that_has_no_derivative_in_reverse():
    def cost(x, u, theta, t):
        def turn(carry):
            return carry[0] + 1, carry[1] + jnp.sum(x**2)

        return jax.lax.while_loop(lambda carry: carry[0] < 3, turn, (0, jnp.sum(theta**2) + jnp.sum(u**2)))[1]

    system = st.System(RANDOM.dynamics, RANDOM.residual, RANDOM.policy, cost)
    controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.05))
    xla, native = both(controller, random_scenario(jax.random.key(3), 30, n=6, p=4, k=3), **RANDOM_RUN)
    assert_same(native, xla)


def test_a_derivative_of_the_users_own():
    class Halved(st.AbstractSystem):
        dynamics: Callable
        residual: Callable
        policy: Callable
        cost: Callable

        def linearize(self, x, theta, a, t):
            out, push = linearize_step(self, x, theta, a, t)
            return out, lambda dx, dtheta: jax.tree.map(lambda tangent: 0.5 * tangent, push(dx, dtheta))

    system = Halved(RANDOM.dynamics, RANDOM.residual, RANDOM.policy, RANDOM.cost)
    controller = st.Controller(system, st.MGAPS(0.01), st.GradientEstimator(0.05))
    xla, native = both(controller, random_scenario(jax.random.key(3), 30, n=6, p=4, k=3), **RANDOM_RUN)
    assert_same(native, xla)


def test_a_setting_of_another_type_is_another_program():
    class Scaled(eqx.Module):
        by: float

        def __call__(self, x, theta, f, t):
            return -theta * x * (2.0 if isinstance(self.by, float) else 0.5)

    scenario = st.Scenario(jnp.ones(2), a_star=jnp.zeros((9, 2)), w=jnp.zeros((9, 2)))
    for by in (1, 1.0):
        xla, native = both(small_loop(policy=Scaled(by)), scenario, theta=jnp.ones(2), a_hat=jnp.zeros(2))
        assert_same(native, xla)


def test_what_a_state_cannot_hold_is_refused_by_name():
    noisy = optax.chain(optax.add_noise(0.1, 0.5, 0), optax.sgd(0.1))
    controller = st.Controller(small_loop().system, st.MGAPS(noisy), st.GradientEstimator(1e-3))
    scenario = st.Scenario(jnp.ones(2), a_star=jnp.zeros((9, 2)), w=jnp.zeros((9, 2)))
    with pytest.raises(NotImplementedError, match="random key"):
        st.simulate(controller, scenario, theta=jnp.ones(2), a_hat=jnp.zeros(2), engine="native")
    scenario = st.Scenario(jnp.ones(2), jnp.zeros((9, 2)), jnp.zeros((9, 2)), t=jnp.zeros(9, jnp.uint8))
    with pytest.raises(NotImplementedError, match="t: numbers of dtype uint8"):
        st.simulate(small_loop(), scenario, theta=jnp.ones(2), a_hat=jnp.zeros(2), engine="native")


def test_a_python_number_has_the_dtype_that_jax_gave_it():
    def wave(t, x):
        return x - jnp.sin(0.05 * t) + jnp.clip(t, 0, 7)

    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        program = lower(lambda t, x: {"y": wave(t, x)}, {"t": jnp.int32(3), "x": jnp.float32(1)})
    assert {str(program.graph.dtypes[node]) for node in program.live()} <= {"int32", "float32"}


@pytest.mark.parametrize("shapes", [((3, 0), (0,)), ((0, 3), (3, 2)), ((2, 0), (0, 2))])
def test_products_of_nothing(shapes):
    left, right = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes)
    program = lower(lambda a, b: {"y": a @ b, "z": jnp.sum(a, axis=1)}, {"a": left, "b": right})
    assert program.outputs[0].shape == np.zeros(shapes[0]).dot(np.zeros(shapes[1])).shape


@pytest.mark.slow
def test_what_is_too_large_to_be_written_out_has_loops(monkeypatch):
    key = jax.random.key(0)
    tuner = st.GAPS(buffer=6, learning_rate=1e-3)
    controller = st.Controller(random_system(key, 6, 2, 2, 3, 6), tuner, st.Frozen())
    scenario, start = random_scenario(key, 20, 6, 3, 2), {"theta": jnp.zeros(6), "a_hat": jnp.zeros(3)}
    monkeypatch.setattr("selftune.native.lowering.from_jaxpr.MAX_NODES", 3_000)
    xla, native = both(controller, scenario, **start)
    assert_same(native, xla)
    monkeypatch.setattr("selftune.native.lowering.from_jaxpr.MAX_NODES", 1_000)
    other = st.Controller(random_system(key, 6, 2, 2, 3, 6), tuner, st.Frozen())
    with pytest.raises(NotImplementedError, match="a program of more than 1,000 numbers, at "):
        st.simulate(other, scenario, **start, engine="native")
