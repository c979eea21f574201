"""Compilation without optimizations, for programs that run once."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx

_F = TypeVar("_F", bound=Callable[..., Any])


def quickly_compiled(function: _F) -> _F:
    """Return `eqx.filter_jit` of a function, without the optimizations of XLA.

    Use it for programs that run once or a few times: compiling them takes most of the time. Do not use it for programs
    with loops: their steps may take 30 times as long.
    """
    jit: Any = eqx.filter_jit
    return jit(function, compiler_options={"xla_backend_optimization_level": 0})
