"""Tests and docstring examples alike run in float64, with strict promotion and jaxtyping's run-time checks."""

import gc
import os
from importlib import metadata
from pathlib import Path

# Compiling is most of the tests' time, and what is compiled runs for moments: XLA need not try hard. The second flag
# halves it again, but a version of XLA that does not know it ends the process.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    + (" --xla_cpu_use_fusion_emitters=false" if metadata.version("jaxlib").startswith(("0.9.", "0.10.")) else ""),
)
# Many tests compile the same programs. The tests of bits, which compile as users do, keep no programs.
if os.environ["XLA_FLAGS"]:
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".pytest_cache" / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    # XLA logs an error for each kept program, because it does not find its own settings among the CPU's features.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# What the native engine compiles is kept with what else the tests keep.
os.environ.setdefault("SELFTUNE_CACHE", str(Path(__file__).parent / ".pytest_cache" / "native"))

import jax
import jaxtyping
import pytest
import tests.typechecker  # noqa: F401  (so that the import hook finds it)

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

# JAX makes many objects while it traces, and they outlive the trace: looking for garbage among them as often as Python
# does by itself takes a tenth of the tests' time. Imported modules are never garbage.
gc.freeze()
gc.set_threshold(50_000, 20, 50)


def pytest_ignore_collect(collection_path, config):
    """Do not import files without a test of bits when only these are asked for: to import all takes half a minute."""
    if config.option.markexpr.startswith("bits") and collection_path.suffix == ".py":
        return "mark.bits" not in collection_path.read_text() or None
    return None


@pytest.fixture
def as_a_user():
    """Without the tests' own checks: what is refused must be refused by the library itself."""
    jaxtyping.config.update("jaxtyping_disable", True)
    with jax.numpy_dtype_promotion("standard"):
        yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps():
    """Forget compiled programs when there are too many: each has memory maps, Linux allows 65,530 of them in a process,
    and XLA crashes beyond that."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 40_000:
        jax.clear_caches()
        gc.collect()
