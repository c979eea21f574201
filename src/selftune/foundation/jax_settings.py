"""The settings of JAX that decide numbers and errors. They are local to a thread, so workers must be given them."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import jax

_CONTEXTS: dict[str, Any] = {
    "jax_enable_x64": jax.enable_x64,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_threefry_partitionable": jax.threefry_partitionable,
    "jax_default_matmul_precision": jax.default_matmul_precision,
}


def current() -> dict[str, Any]:
    """The settings of this thread."""
    return {name: read(name) for name in _CONTEXTS}


def read(name: str) -> Any:
    """The value of one setting in this thread. Type checkers do not know the attributes of `jax.config`."""
    return getattr(jax.config, name)


@contextmanager
def applied(settings: Mapping[str, Any]) -> Iterator[None]:
    """A context with these settings."""
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(_CONTEXTS[name](value))
        yield


def start_command() -> None:
    """Set double precision, and let XLA compile small loops whole (`docs/speed.md`), in a process that a command owns.

    XLA reads the variable when the first program runs.
    """
    flag = "xla_cpu_small_while_loop_byte_threshold"
    flags = os.environ.get("XLA_FLAGS", "")
    if flag not in flags and "xla_backend_extra_options" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={flag}=65536".strip()
    jax.config.update("jax_enable_x64", True)
