"""A batch in vector lanes gives what its runs give one by one, bit for bit."""

import platform
import shutil
import subprocess

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks._problems import PROBLEMS

import selftune as st
from selftune.native import interruption, lanes, loop
from selftune.native.c import compilation
from selftune.native.roles import ROLES, Role
from tests.problems import golden, golden_controller, golden_scenario

STEPS = 300
LONG = ("arm", "quadrotor")
"""They take long to compile."""


@pytest.fixture
def made(monkeypatch):
    """The loops that simulations make, and a switch between lanes and one run after another."""
    loops = []
    build = loop.Loop.__init__
    monkeypatch.setattr(loop.Loop, "__init__", lambda self, *parts: (build(self, *parts), loops.append(self))[0])
    loop._compiled.cache_clear()
    yield loops
    loop._compiled.cache_clear()


def in_lanes(monkeypatch, function, *batch, lanes_run=True):
    """Return a batch, run in lanes and one by one; `lanes_run` says whether the program has lanes at all."""
    calls = []
    found = loop.Loop.lanes_function

    def watched(self, modes):
        function = found(self, modes)
        calls.append(function is not None)
        return function

    monkeypatch.setattr(loop, "MIN_LANES", 2)
    results = []
    for worth in (0, 10**18):
        monkeypatch.setattr(loop, "WORTH_LANES", worth)
        loop._compiled.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop.Loop, "lanes_function", watched)
            results.append(jax.vmap(function)(*batch))
        if worth == 0:
            assert calls == [lanes_run]
    assert len(calls) == 1
    return results


def assert_same_bits(one, other):
    one, other = ((run.recorded, run.final, run.outcome) for run in (one, other))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        np.testing.assert_array_equal(np.signbit(np.where(a == a, a, 0)), np.signbit(np.where(b == b, b, 0)))


def runs_of(problem, **options):
    def run(scenario):
        return st.simulate(
            problem.controller,
            scenario,
            theta=problem.theta,
            a_hat=problem.a_hat,
            engine="native",
            throw=False,
            **options,
        )

    return run


def seeds_of(problem, count, steps=STEPS):
    return jax.vmap(lambda seed: problem.scenario(steps, seed))(np.arange(count))


@pytest.mark.parametrize("guard", [None, st.Guard()])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in PROBLEMS])
def test_each_lane_is_the_run_itself(monkeypatch, name, guard):
    problem = PROBLEMS[name]()
    for count, stride in ((lanes.LANES + 5, 1), (3, 7)):
        assert_same_bits(*in_lanes(monkeypatch, runs_of(problem, guard=guard, stride=stride), seeds_of(problem, count)))


@pytest.mark.parametrize("name", ["scalar", "pendulum"])
def test_single_precision(monkeypatch, name):
    problem = PROBLEMS[name](jnp.float32)
    assert_same_bits(*in_lanes(monkeypatch, runs_of(problem), seeds_of(problem, 11)))


def test_settings_and_starts_that_vary(monkeypatch):
    g = golden("planar")
    scenario = golden_scenario("planar")

    def run(rate, theta):
        controller = golden_controller("planar")
        tuner = st.MGAPS(rate, constraint=controller.tuner.constraint)
        return st.simulate(
            st.Controller(controller.system, tuner, controller.estimator),
            scenario,
            theta=theta,
            a_hat=g["a0"],
            engine="native",
        )

    rates = jnp.geomspace(1e-5, 1e-3, 6)
    assert_same_bits(*in_lanes(monkeypatch, run, rates, jnp.outer(jnp.linspace(0.9, 1.1, 6), g["theta0"])))


def test_tiles_chunks_and_lanes_that_are_left_over(monkeypatch):
    monkeypatch.setattr(interruption, "FIRST", 101)
    monkeypatch.setattr(interruption, "GROWTH", 1)
    problem = PROBLEMS["scalar"]()
    for count, stride in ((lanes.LANES, 3), (2 * lanes.LANES + 1, 1), (2, 64)):
        assert_same_bits(*in_lanes(monkeypatch, runs_of(problem, stride=stride), seeds_of(problem, count, 257)))


def test_lanes_that_fail_do_not_disturb_others(monkeypatch):
    problem = PROBLEMS["pendulum"]()
    scenarios = seeds_of(problem, 9)
    w = np.array(scenarios.w)
    w[2, 40, 0] = np.nan
    w[5, 70, 1] = np.inf
    w[7, 10, 1] = 1e200
    spoiled = eqx.tree_at(lambda scenario: scenario.w, scenarios, jnp.asarray(w))
    good, bad = (in_lanes(monkeypatch, runs_of(problem), batch) for batch in (scenarios, spoiled))
    assert_same_bits(*bad)
    assert [int(code) for code in bad[0].outcome.code] == [0, 0, 2, 0, 0, 2, 0, 1, 0]
    fine = np.array([0, 1, 3, 4, 6, 8])
    np.testing.assert_array_equal(bad[0].x[fine], good[0].x[fine])


def test_angles_that_are_too_large_for_lanes(monkeypatch):
    """Such a lane computes the sine of 10⁷ and more as a single run does, with the digits of 2/π that it needs."""
    problem = PROBLEMS["pendulum"]()
    scenarios = seeds_of(problem, 7)
    x0 = np.array(scenarios.x0)
    x0[3, 0], x0[5, 0] = 1e7, -1.6e6
    far = eqx.tree_at(lambda scenario: scenario.x0, scenarios, jnp.asarray(x0))
    in_vectors, one_by_one = in_lanes(monkeypatch, runs_of(problem), far)
    assert_same_bits(in_vectors, one_by_one)
    assert int((abs(in_vectors.x[3, :, 0]) > 1.5e6).sum()) > 100


@pytest.mark.parametrize(
    "policy",
    [
        lambda x, theta, f, t: -theta * jnp.mod(x, 3.0) - f,
        lambda x, theta, f, t: -theta * jnp.nextafter(x, 1.0) - f,
        lambda x, theta, f, t: -theta * x - f + (7 // (1 + jnp.asarray(t))).astype(x.dtype),
    ],
)
def test_operations_without_a_vector_form_run_one_by_one(monkeypatch, policy):
    system = st.System(
        dynamics=lambda x, u, f, t: x + 0.1 * (u + f),
        residual=lambda x, a, t: a * x,
        policy=policy,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + jnp.sum(u**2),
    )
    controller = st.Controller(system, st.Fixed(), st.GradientEstimator(0.1))

    def run(x0):
        scenario = st.Scenario(x0, jnp.zeros((20, 1)), jnp.zeros((20, 1)))
        return st.simulate(controller, scenario, theta=jnp.ones(1), a_hat=jnp.zeros(1), engine="native")

    assert_same_bits(*in_lanes(monkeypatch, run, jnp.linspace(0.5, 1.5, 5)[:, None], lanes_run=False))


def test_short_batches_compile_nothing(monkeypatch):
    problem = PROBLEMS["scalar"]()
    loop._compiled.cache_clear()
    monkeypatch.setattr(loop, "lanes_source", lambda *_: pytest.fail("compiled for lanes"))
    jax.vmap(runs_of(problem))(seeds_of(problem, 8, 20))


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("gcc"), reason="reads x86-64 code of gcc")
@pytest.mark.parametrize("level", compilation.LEVELS)
@pytest.mark.parametrize("name", ["scalar", "pendulum"])
def test_the_compiler_writes_vector_instructions(monkeypatch, tmp_path, made, name, level):
    """Nearly all products and sums of the loop over lanes are vector instructions."""
    problem = PROBLEMS[name]()
    runs_of(problem, guard=st.Guard())(problem.scenario(2))
    modes = [lanes.Mode.OWN for leaf in made[-1].program.inputs if ROLES[leaf.group] is Role.SERIES]
    source, assembly = tmp_path / "lanes.c", tmp_path / "lanes.s"
    source.write_text(lanes.lanes_source(made[-1], modes))
    flags = [flag for flag in compilation.VECTOR_FLAGS if flag not in ("-fPIC", "-shared")]
    flags += [*compilation.HELPFUL_FLAGS, f"-march={level}"]
    subprocess.run(["gcc", *flags, "-S", source, "-o", assembly], check=True)
    text = assembly.read_text()
    packed, single = (sum(text.count(f"{op}{kind}\t") for op in ("mul", "add", "sub")) for kind in ("pd", "sd"))
    assert packed > 50
    assert single < packed / 10


class TestLevelOfTheProcessor:
    @pytest.mark.parametrize(
        ("flags", "level"),
        [
            ("fpu sse2", None),
            ("ssse3 sse4_1 sse4_2 popcnt", "x86-64-v2"),
            ("ssse3 sse4_1 sse4_2 popcnt avx2 bmi1 bmi2 f16c fma movbe", "x86-64-v3"),
            ("avx2 bmi1 bmi2 f16c fma movbe", None),  # a level needs all lower ones
            (" ".join(word for words in compilation.LEVELS.values() for word in words), "x86-64-v4"),
        ],
    )
    def test_from_what_linux_says(self, tmp_path, flags, level):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n")
        assert compilation._level(tmp_path / "cpuinfo") == level

    def test_of_other_processors(self, tmp_path):
        (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
        assert compilation._level(tmp_path / "cpuinfo") is None
        assert compilation._level(tmp_path / "nothing") is None

    def test_a_compiler_that_does_not_know_it(self, monkeypatch):
        monkeypatch.setattr(compilation, "_accepts", lambda *_: False)
        assert compilation.vector_flags() == compilation.VECTOR_FLAGS
