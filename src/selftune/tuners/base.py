"""What every tuner is."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from ..problem.system import System


class TunerInfo(eqx.Module):
    """What a person or a metric reads of a tuner's step: the values used at step t."""

    gradient: Float[Array, " d"]
    """The gradient (or its estimate) at step t, flat in θ; zeros where the tuner has none."""
    y: Float[Array, "n d"] | None
    """The sensitivity of the state to θ, where the tuner keeps one."""
    contraction: Float[Array, ""] | None = None
    r"""A running estimate of ρ, the factor by which two close trajectories of the closed loop come together in a step:
    below 1 the loop contracts, above 1 it is unstable. For tuners that have a `contraction_memory`, where it is set."""


class AbstractTuner(eqx.Module):
    r"""ALG of the meta-framework (Algorithm "Meta-Framework"): settings only; the state is threaded.

    To add one, subclass, declare the settings as fields and implement the two methods: `docs/add-a-tuner.md`.
    """

    @abc.abstractmethod
    def init(self, system: System, x: Float[Array, " n"], theta: PyTree) -> PyTree:
        """The state before the first step."""

    @abc.abstractmethod
    def update(
        self, system: System, x: Float[Array, " n"], theta: PyTree, a_hat: PyTree, t: Any, state: PyTree
    ) -> tuple[PyTree, PyTree, TunerInfo]:
        r"""From what was used at step t to $\theta_{t+1}$: `(theta, state, info)`."""

    def reset(self, system: System, x: Float[Array, " n"], theta: PyTree, state: PyTree) -> PyTree:
        """The state of a tuner that goes on at θ without what it remembers of the trajectory, as a guard may ask for.

        By default the tuner starts anew.
        """
        return self.init(system, x, theta)
