"""Which engine runs: native by default on a CPU, XLA where the native engine cannot, and never in silence."""

import ctypes
import math
import platform
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selftune as st
from selftune.native.c import compilation
from selftune.native.c.compilation import CompilerError
from selftune.native.loop import _compiled
from selftune.native.lowering.from_jaxpr import LoweringError

START = {"theta": jnp.ones(1), "a_hat": jnp.zeros(1)}
STEPS = 60


def controller(policy=lambda x, theta, f, t: -theta * x - f, rate=1e-2):
    system = st.System(
        dynamics=lambda x, u, f, t: x + 0.1 * (u + f),
        residual=lambda x, a, t: a * jnp.cos(x),
        policy=policy,
        cost=lambda x, u, theta, t: jnp.sum(x**2) + 0.1 * jnp.sum(u**2),
    )
    return st.Controller(system, st.MGAPS(rate, constraint=st.Box(0.0, 8.0)), st.GradientEstimator(0.05))


def scenario(steps=STEPS):
    key_a, key_w = jax.random.split(jax.random.key(0))
    return st.Scenario(jnp.ones(1), st.Constant(0.5)(key_a, steps, 1), st.Gaussian(0.1)(key_w, steps, 1))


def not_in_c(x, theta, f, t):
    return -theta * x * jnp.linalg.svd(jnp.outer(x, x) + 1.0)[1][0]


class TestByDefault:
    def test_simulate_and_agent_run_natively(self):
        run = st.simulate(controller(), scenario(), **START)
        assert run.engine == "native"
        assert st.simulate(controller(), scenario(), **START, engine="xla").engine == "xla"
        assert st.Agent(controller(), x=[1.0], **START).engine == "native"

    def test_another_device_runs_xla(self, monkeypatch):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        assert st.simulate(controller(), scenario(), **START).engine == "xla"
        with jax.default_device(jax.devices("cpu")[0]):
            assert st.simulate(controller(), scenario(), **START).engine == "native"


class TestNotInC:
    def test_simulate_falls_back_with_a_warning_that_names_operation_and_line(self):
        with pytest.warns(RuntimeWarning, match=r"XLA runs this.*the operation 'svd', at .*test_choice\.py:\d+"):
            run = st.simulate(controller(not_in_c), scenario(), **START)
        assert run.engine == "xla"
        expected = st.simulate(controller(not_in_c), scenario(), **START, engine="xla")
        np.testing.assert_array_equal(run.x, expected.x)

    def test_the_reason_is_found_once(self, monkeypatch):
        from selftune.native import loop

        lowered = []
        monkeypatch.setattr(loop, "lower_step", lambda *a, **options: lowered.append(1) or _refuse())
        made = controller(lambda x, theta, f, t: -theta * x)
        for _ in range(3):
            with pytest.warns(RuntimeWarning, match="made up"):
                st.simulate(made, scenario(), **START)
        assert lowered == [1]

    def test_agent_falls_back_too(self):
        with pytest.warns(RuntimeWarning, match="the operation 'svd'"):
            agent = st.Agent(controller(not_in_c), x=[1.0], **START)
        assert agent.engine == "xla"
        assert np.isfinite(agent.act([1.0])).all()

    @pytest.mark.parametrize("run", [st.simulate, st.Agent])
    def test_native_refuses(self, run):
        given = {"scenario": scenario()} if run is st.simulate else {"x": [1.0]}
        with pytest.raises(LoweringError, match=r"'svd', at .*test_choice\.py:\d+.*; engine='xla' can run it"):
            run(controller(not_in_c), **given, **START, engine="native")

    def test_a_captured_traced_array_falls_back_without_a_warning(self):
        def cost(gain):
            made = controller(lambda x, theta, f, t: -theta * gain * x)
            return st.simulate(made, scenario(), **START, engine="auto").cost

        batch = jax.vmap(cost)(jnp.array([0.5, 1.0]))
        single = st.simulate(controller(lambda x, theta, f, t: -theta * 0.5 * x), scenario(), **START, engine="xla")
        np.testing.assert_allclose(batch[0], single.cost, rtol=1e-12)


def _refuse():
    raise LoweringError("a made up reason")


@pytest.fixture(params=["no compiler", "wrong CC"])
def no_compiler(request, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    if request.param == "wrong CC":
        monkeypatch.setenv("CC", "no-such-compiler")
        return "CC: expected the command of a C compiler, got 'no-such-compiler'"
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("selftune.native.c.compilation.has_zig", lambda: False)
    return "needs a C compiler, and none was found"


class TestWithoutACompiler:
    def test_xla_runs_with_a_warning(self, no_compiler):
        with pytest.warns(RuntimeWarning, match=f"XLA runs this, .*{no_compiler}"):
            run = st.simulate(controller(), scenario(), **START)
        assert run.engine == "xla"
        with pytest.warns(RuntimeWarning, match=no_compiler):
            agent = st.Agent(controller(), x=[1.0], **START)
        assert agent.engine == "xla"
        np.testing.assert_allclose(agent.act([1.0]), [-1.0])

    def test_native_is_refused(self, no_compiler):
        with pytest.raises(CompilerError, match=no_compiler):
            st.simulate(controller(), scenario(), **START, engine="native")
        with pytest.raises(CompilerError, match=no_compiler):
            st.Agent(controller(), x=[1.0], **START, engine="native")

    @pytest.mark.parametrize("no_compiler", ["no compiler"], indirect=True)
    def test_who_asks_for_xla_hears_nothing(self, no_compiler, tmp_path):
        def sweep(folder, **options):
            return st.sweep(
                lambda rate: controller(rate=rate),
                lambda key: st.Scenario(jnp.ones(1), jnp.ones((20, 1)), st.Gaussian(0.1)(key, 20, 1)),
                {"rate": [0.01]},
                seeds=1,
                folder=tmp_path / folder,
                **START,
                **options,
            )

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            st.simulate(controller(), scenario(), **START, engine="xla")
            st.Agent(controller(), x=[1.0], **START, engine="xla")
            assert sweep("xla", engine="xla").is_complete
        with pytest.warns(RuntimeWarning, match=no_compiler) as caught:
            assert sweep("auto").is_complete
        assert len(caught) == 1

    def test_a_compiler_that_fails_is_named(self, monkeypatch, tmp_path):
        monkeypatch.setenv("CC", "false")
        monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path))
        made = controller(lambda x, theta, f, t: -1.01 * theta * x)  # a program that is not compiled yet
        with pytest.warns(RuntimeWarning, match="the C compiler, false, rejected a program"):
            run = st.simulate(made, scenario(), **START)
        assert run.engine == "xla"


class TestFastMath:
    """A compiler that assumes that no number is NaN removes the guard, so its programs are refused."""

    @pytest.fixture(autouse=True)
    def fast(self, monkeypatch, tmp_path):
        monkeypatch.setenv("CC", "gcc -ffast-math")
        monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path))
        _compiled.cache_clear()  # a loop keeps its program, which another compiler made

    MESSAGE = r"(?s)the C compiler, gcc -ffast-math, rejected a program.*selftune: compile without -ffast-math"

    def test_native_is_refused(self):
        with pytest.raises(CompilerError, match=self.MESSAGE):
            st.Agent(controller(), x=[1.0], **START, engine="native")
        with pytest.raises(CompilerError, match=self.MESSAGE):
            st.simulate(controller(), scenario(), **START, engine="native")

    def test_auto_runs_xla(self):
        with pytest.warns(RuntimeWarning, match=self.MESSAGE):
            agent = st.Agent(controller(), x=[1.0], **START)
        assert np.isfinite(agent.act([np.nan])).all()


WRONG = (
    "-funsafe-math-optimizations",
    "-ffast-math -fno-finite-math-only",
    "-fno-finite-math-only -ffast-math",
    "-Ofast -fno-finite-math-only",
    "-fassociative-math -fno-signed-zeros",
)
ARITHMETIC = """
#include <stdint.h>
int same(void) { volatile float x = 0.3f; float big = 12582912.0f; return (x + big) - big != x; }
double plus_zero(double x) { return x + 0.0; }
"""


@pytest.mark.parametrize("flags", ["", *WRONG])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_options_that_make_numbers_wrong_are_switched_off(monkeypatch, tmp_path, compiler, flags):
    """They make the elementary functions wrong, and not all of them have a macro that would tell the C of them."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    monkeypatch.setenv("CC", f"{compiler} {flags}")
    monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path))
    library = compilation.build(ARITHMETIC)
    assert library.same() == 1
    library.plus_zero.restype, library.plus_zero.argtypes = ctypes.c_double, [ctypes.c_double]
    assert math.copysign(1, library.plus_zero(-0.0)) == 1
    # gcc would link code that makes the whole process flush subnormal numbers to zero.
    (compiled,) = tmp_path.glob("*.so")
    assert b"set_fast_math" not in compiled.read_bytes()
    assert np.nextafter(0.0, 1.0) * np.float64(1.0) > 0


@pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="for gcc on x86-64")
def test_options_that_shorten_all_numbers_of_the_process_do_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "gcc -mpc32")
    monkeypatch.setenv("SELFTUNE_CACHE", str(tmp_path))
    compilation.build("int one(void); int one(void) { return 1; }")
    assert np.longdouble(1) + np.finfo(np.longdouble).eps > 1


class TestDifferentiated:
    """XLA computes the derivative, however `grad`, `jit` and `vmap` are nested; the value alone stays native."""

    @staticmethod
    def loss(theta, engine, engines, rate=1e-2):
        run = st.simulate(controller(rate=rate), scenario(), theta=theta, a_hat=jnp.zeros(1), engine=engine)
        engines.append(run.engine)
        return jnp.sum(run.cost)

    @pytest.mark.parametrize(
        ("name", "expected"),
        {
            "jit": "native",
            "grad": "xla",
            "grad of jit": "native",  # traced before it is known that it will be differentiated
            "jit of grad": "xla",
            "jvp": "xla",
            "jit of vmap": "native",
            "grad of vmap": "xla",
        }.items(),
    )
    def test_it_agrees_with_xla(self, name, expected):
        thetas = jnp.array([[1.0], [2.0]])

        def result(engine, engines):
            def loss(theta):
                return self.loss(theta, engine, engines)

            return {
                "jit": lambda: jax.jit(loss)(thetas[0]),
                "grad": lambda: jax.grad(loss)(thetas[0]),
                "grad of jit": lambda: jax.grad(jax.jit(loss))(thetas[0]),
                "jit of grad": lambda: jax.jit(jax.grad(loss))(thetas[0]),
                "jvp": lambda: jax.jvp(lambda rate: self.loss(thetas[0], engine, engines, rate), (0.01,), (1.0,))[1],
                "jit of vmap": lambda: jax.jit(jax.vmap(loss))(thetas),
                "grad of vmap": lambda: jax.grad(lambda many: jnp.sum(jax.vmap(loss)(many)))(thetas),
            }[name]()

        auto, xla = [], []
        np.testing.assert_allclose(result("auto", auto), result("xla", xla), rtol=1e-10)
        assert (auto, xla) == ([expected], ["xla"])

    def test_the_derivative_is_right(self):
        def loss(theta):
            return self.loss(theta, "auto", [])

        step = 1e-6
        difference = (loss(jnp.array([1.0 + step])) - loss(jnp.array([1.0 - step]))) / (2 * step)
        np.testing.assert_allclose(jax.grad(jax.jit(loss))(jnp.ones(1))[0], difference, rtol=1e-6)
