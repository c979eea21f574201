"""Releases of JAX that must not be used, and why. `pyproject.toml` excludes them; a test compares the two lists.

Both faults are in jaxlib; pip installs the same release of jaxlib as of jax.
"""

import warnings
from importlib import metadata
from typing import NamedTuple


class Fault(NamedTuple):
    what: str
    issue: str


_SINGLE = Fault(
    "computes wrong numbers on a CPU: in float32, jit(vmap(f)) is wrong from row 32,768 on "
    "if f reduces the product of a matrix and a vector",
    "https://github.com/jax-ml/jax/issues/39103",
)
KNOWN_BAD = {
    "0.9.1": _SINGLE,
    "0.9.2": _SINGLE,
    "0.10.0": _SINGLE,
    "0.10.1": _SINGLE,
    "0.10.2": Fault(
        "computes wrong numbers on a CPU: jit(vmap(f)) is wrong from row 16,384 on (32,768 in float32) "
        "if f reduces the product of a matrix and a vector",
        "https://github.com/jax-ml/jax/issues/39103",
    ),
    "0.11.1": Fault(
        "takes quadratic time on a CPU for a scan that stacks its outputs",
        "https://github.com/jax-ml/jax/issues/40101",
    ),
}
"""Found with `python -m tests.canary` on every release from 0.9 to 0.12.0.1; the issue names only 0.10.2."""


def complaint() -> str:
    """Return the fault of the installed JAX and what to install instead; empty if no fault is known."""
    version = metadata.version("jaxlib").partition("+")[0]
    if (fault := KNOWN_BAD.get(version)) is None:
        return ""
    others = ",".join(f"!={bad}" for bad in KNOWN_BAD)
    return (
        f"jaxlib {version} {fault.what} ({fault.issue}). "
        f"Install another release: pip install --upgrade 'jax>=0.9,{others}'"
    )


def warn() -> None:
    """Warn, on the line that imports selftune, if the installed JAX has a known fault."""
    if text := complaint():
        warnings.warn(text, RuntimeWarning, stacklevel=3)
