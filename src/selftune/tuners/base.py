"""The base class of all tuners."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from ..foundation import settings_text
from ..problem.system import AbstractSystem


class TunerInfo(eqx.Module):
    """A tuner's report of one step, for people and metrics: the values used at step t.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: 0.8 * x + v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> tuner, x, theta = st.MGAPS(0.01), jnp.ones(1), jnp.zeros(1)
        >>> state = tuner.init(system, x, theta)
        >>> theta, state, _ = tuner.update(system, x, theta, jnp.zeros(1), 0, state)
        >>> theta, state, info = tuner.update(system, 0.8 * x, theta, jnp.zeros(1), 1, state)
        >>> print(info.y, info.gradient)  # dx/dθ = -1 after one step, so dh/dθ = 2 x dx/dθ = -1.6
        [[-1.]] [-1.6]
    """

    gradient: Float[Array, " d"]
    """The gradient (or its estimate) at step t, flat in θ; zeros if the tuner has none."""
    y: Float[Array, "n d"] | None
    """The sensitivity of the state to θ; None if the tuner does not compute it."""
    contraction: Float[Array, ""] | None = None
    r"""A running estimate of ρ, the factor by which the distance of two close trajectories of the closed loop changes
    in one step. Below 1 the loop contracts, above 1 it is unstable. None unless the tuner's `contraction_memory` is
    set."""


class AbstractTuner(eqx.Module):
    r"""ALG of the meta-framework (Algorithm "Meta-Framework"): it holds only settings; the state is passed from call to
    call.

    To add a tuner, subclass, declare the settings as fields and implement the two methods: `docs/add-a-tuner.md`.

    !!! Example

        >>> import jax.numpy as jnp, selftune as st
        >>> class Shrink(st.AbstractTuner):  # halves θ at each step
        ...     def init(self, system, x, theta):
        ...         return None
        ...     def update(self, system, x, theta, a_hat, t, state):
        ...         return theta / 2, state, st.TunerInfo(gradient=theta / 2, y=None)
        >>> theta, _, _ = Shrink().update(None, jnp.zeros(1), jnp.ones(2), jnp.zeros(1), 0, None)
        >>> print(theta)
        [0.5 0.5]
    """

    __repr__ = settings_text.show

    @abc.abstractmethod
    def init(self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree) -> PyTree:
        """Return the state before the first step."""

    @abc.abstractmethod
    def update(
        self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree, a_hat: PyTree, t: Any, state: PyTree
    ) -> tuple[PyTree, PyTree, TunerInfo]:
        r"""Return `(theta, state, info)` with $\theta_{t+1}$, from the values used at step t."""

    def reset(self, system: AbstractSystem, x: Float[Array, " n"], theta: PyTree, state: PyTree) -> PyTree:
        """Return the state of a tuner that continues at θ but forgets the trajectory; a guard calls this.

        By default this is the state before the first step.
        """
        return self.init(system, x, theta)
