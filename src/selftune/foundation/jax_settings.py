"""The settings of JAX that decide numbers and errors. They are local to a thread, so workers must be given them."""

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
    return {name: getattr(jax.config, name) for name in _CONTEXTS}


@contextmanager
def applied(settings: Mapping[str, Any]) -> Iterator[None]:
    """A context with these settings."""
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(_CONTEXTS[name](value))
        yield
