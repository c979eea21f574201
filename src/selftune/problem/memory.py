"""The memory of a policy: the numbers that a policy keeps between steps."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..foundation import arguments
from ..foundation.errors import ArgumentError


def keep_before(before: PyTree, after: PyTree, u: Array) -> PyTree:
    """Return the memory before the step: a refused measurement changes nothing."""
    return before


def keep_after(before: PyTree, after: PyTree, u: Array) -> PyTree:
    """Return the memory after the step, which the policy computed from the predicted measurement."""
    return after


def keep(memory: PyTree, initial: PyTree) -> PyTree:
    """Return the memory as it is: a rollback does not change it."""
    return memory


def start_again(memory: PyTree, initial: PyTree) -> PyTree:
    """Return the first memory: a rollback resets it."""
    return initial


class Memory(eqx.Module):
    r"""The numbers that a policy keeps between steps, such as the integral of a PID, and how a guard treats them.

    The memory $s$ is a part of the closed loop: $(u_t, s_{t+1}) = \pi_t(x_t, s_t, \theta_t, \hat f_t)$. The tuner
    differentiates it with respect to θ, the `Agent` keeps and saves it, and the exported C contains it.

    **Arguments:**

    - `initial`: the first memory, any pytree of numbers.
    - `refused`: the rule for a step whose measurement the guard refuses, `(before, after, u) -> memory`. `after` is
      the policy's memory for the predicted measurement, and `u` is the control that the agent returned. The default
      is `before`, so that an integral does not wind up. A delay line stores `u`; an observer uses `after`.
    - `restored`: the rule for a rollback of θ and â, `(memory, initial) -> memory`. By default the memory stays.

    !!! Example

        >>> import selftune as st
        >>> memory = st.Memory({"integral": 0.0, "derivative": 0.0})
        >>> memory.size
        2
    """

    initial: PyTree
    refused: Callable[[PyTree, PyTree, Array], PyTree] = keep_before
    restored: Callable[[PyTree, PyTree], PyTree] = keep

    def __init__(
        self,
        initial: Any,
        *,
        refused: Any = keep_before,
        restored: Any = keep,
    ):
        self.initial = arguments.real_tree("memory", initial)
        self.refused, self.restored = refused, restored
        for name, rule in {"refused": refused, "restored": restored}.items():
            if not callable(rule):
                raise ArgumentError(name, "a function", arguments.describe(rule))

    @property
    def size(self) -> int:
        """How many numbers the memory has."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.initial))

    def start(self, dtype: Any) -> PyTree:
        """Return the first memory in the dtype of x."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self.initial)

    def unravel(self, flat: Float[Array, " s"]) -> PyTree:
        """Return the numbers of `flat` as a memory."""
        return ravel_pytree(self.start(flat.dtype))[1](flat)


def as_memory(value: Any) -> Memory | None:
    """Return the argument `memory` of a system as a `Memory`."""
    return value if value is None or isinstance(value, Memory) else Memory(value)
