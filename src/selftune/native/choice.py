"""The choice of the engine for `simulate`, `Agent` and `sweep`."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax

from ..foundation import jax_settings
from ..foundation.errors import ArgumentError
from .c.compilation import CompilerError, compiler
from .lowering.values import CapturedError, LoweringError

Engine = Literal["auto", "native", "xla"]
T = TypeVar("T")


def check_engine(engine: Any) -> Engine:
    if engine not in ("auto", "native", "xla"):
        raise ArgumentError("engine", "'auto', 'native' or 'xla'", f"{engine!r}")
    return engine


def settle(engine: Engine, *, stacklevel: int = 3) -> Engine:
    """Return the engine for this machine: `"auto"` becomes `"xla"` if JAX does not use a CPU or there is no C compiler.

    `"native"` without a C compiler raises `CompilerError`.
    """
    if engine == "native":
        compiler()
    if engine == "auto":
        if not _on_cpu():
            return "xla"
        try:
            compiler()
        except CompilerError as error:
            _warn(error, stacklevel + 1)
            return "xla"
    return engine


def run_with(
    engine: Engine, *, natively: Callable[[], T], by_xla: Callable[[], T]
) -> tuple[Literal["native", "xla"], T]:
    """Run with the engine; return the name of the engine that ran, and its result.

    `"auto"` uses the native engine on a CPU, if there is a C compiler and the program can be written in C. Otherwise
    XLA runs. On a CPU a warning then gives the reason, because XLA is several times slower there. There is no warning
    if a function has captured an array that JAX is tracing.
    """
    engine = settle(engine, stacklevel=4)
    if engine != "xla":
        try:
            return "native", natively()
        except (CompilerError, LoweringError) as error:
            if engine == "native":
                error.args = (f"{error}; engine='xla' can run it",)
                raise
            if not isinstance(error, CapturedError):  # common in JAX code, and not a fault
                _warn(error, 4)
    return "xla", by_xla()


def _warn(error: Exception, stacklevel: int) -> None:
    text = f"XLA runs this, because the faster native engine cannot: {error}. Use engine='xla' to avoid this warning."
    warnings.warn(text, RuntimeWarning, stacklevel=stacklevel)


def _on_cpu() -> bool:
    device = jax_settings.read("jax_default_device")
    if device is None:
        return jax.default_backend() == "cpu"
    return (device if isinstance(device, str) else device.platform) == "cpu"
