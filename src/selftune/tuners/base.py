"""The base class of all tuners."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from ..foundation import settings_text
from ..problem.system import AbstractSystem


class TunerInfo(eqx.Module):
    """A tuner's report of one step, for people and metrics: the values used at step t."""

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
