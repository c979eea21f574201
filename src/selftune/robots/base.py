"""What the robots share: a model with a policy, a plant that it does not know, and the loop around the two."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..control.controller import Controller
from ..estimators import GradientEstimator
from ..estimators.base import AbstractEstimator
from ..foundation import arguments
from ..problem.constraints import Box
from ..problem.scenario import Scenario
from ..problem.system import System
from ..realtime.agent import Agent
from ..tuners import MGAPS
from ..tuners.base import AbstractTuner


class Plant(abc.ABC):
    """A robot at work: what takes the control and gives measurements, with lag, limits, noise and delay of its own.

    The randomness of a plant is that of its seed alone: two plants of one seed given the same controls are the same.
    """

    @abc.abstractmethod
    def reset(self) -> np.ndarray:
        """Go back to the start of the task; the measurement x_0, (n,), of the model's state."""

    @abc.abstractmethod
    def step(self, u: np.ndarray) -> np.ndarray:
        """Hold the control for one period; the measurement x_{t+1}, (n,)."""

    @abc.abstractmethod
    def drop(self) -> None:
        """Lose the payload, all at once."""

    @property
    @abc.abstractmethod
    def truth(self) -> np.ndarray:
        """The model's state as it really is, (n,): what the cost is judged by."""

    @property
    @abc.abstractmethod
    def crashed(self) -> bool:
        """Whether the robot left the range in which a person would have let it go on."""


@dataclass(frozen=True)
class Robot:
    """A model, the gains to tune, and the plants that it may meet. θ and a are vectors."""

    name: str
    dt: float
    """The control period, in seconds."""
    system: System
    gains: tuple[str, ...]
    """The names of θ's components, which are logarithms."""
    theta: np.ndarray
    """The nominal gains, (d,): what detuned ones are multiples of, not the best that there are."""
    power: np.ndarray
    """(d,): with all feedback gains multiplied by c, θ becomes θ + power · log c. For log ωn and log ζ it is ½."""
    theta_box: Box
    parameters: tuple[str, ...]
    """The names of a's components, with their units."""
    a_hat: np.ndarray
    a_box: Box
    learning_rate: float
    estimator_rate: float
    conditions: tuple[str, ...]
    """What may happen to the plant: "wind", "payload", …"""
    make_plant: Callable[[str, int, int], Plant] = field(repr=False)
    """(condition, seed, steps) to a plant: what is to change halfway does so after steps/2."""
    make_scenario: Callable[[int, jax.Array], Scenario] = field(repr=False)
    """(steps, key) to a scenario for `simulate`, with the model itself as the plant."""
    error: Callable[[Any, Any], Any] = field(repr=False)
    """(x, t) to the tracking error of step t in metres or radians, a vector; pure JAX."""
    lap: int
    """Steps of one period of the reference."""
    guard: Mapping[str, Any] = field(default_factory=dict)
    """The limits that fit this robot: settings of a `Guard`."""
    a_scale: np.ndarray | float = 1.0
    """How large each of a's components, or what it does when it changes, may be: the unit of the estimator's steps."""

    def detuned(self, factor: float) -> np.ndarray:
        """θ with all feedback gains multiplied by `factor`, inside Θ."""
        moved = self.theta + self.power * np.log(arguments.positive("factor", factor))
        return np.asarray(self.theta_box.project(jnp.asarray(moved)))

    def controller(self, tuner: AbstractTuner | None = None, estimator: AbstractEstimator | None = None) -> Controller:
        """M-GAPS and the normalized gradient estimator, or others in their place."""
        if tuner is None:
            tuner = MGAPS(self.learning_rate, constraint=self.theta_box)
        if estimator is None:
            scale = np.asarray(self.a_scale) ** 2
            estimator = GradientEstimator(self.estimator_rate, scale, constraint=self.a_box, normalized=True)
        return Controller(self.system, tuner, estimator)


@dataclass(frozen=True)
class Drive:
    """What happened on a plant; row t is the value used at step t. After a crash there are no more rows."""

    x: np.ndarray
    """The true state, (T, n)."""
    u: np.ndarray
    theta: np.ndarray
    """Of every `stride`-th step, as â."""
    a_hat: np.ndarray
    cost: np.ndarray
    """At the true state, (T,)."""
    error: np.ndarray
    """The tracking error, (T, e)."""
    crashed: bool


def drive(robot: Robot, agent: Agent, plant: Plant, steps: int, *, stride: int = 1) -> Drive:
    """Let an agent drive a plant from the start of its task, for `steps` steps or until it crashes.

    θ and â are read every `stride` steps, as reading takes longer than a step of the agent does; a cost that depends on
    θ is given the last one that was read.
    """
    measured = plant.reset()
    x = np.zeros((steps, measured.size))
    u, theta, a_hat = [], [], []
    for t in range(steps):
        x[t] = plant.truth
        if t % stride == 0:
            theta.append(agent.theta)
            a_hat.append(agent.a_hat)
        u.append(agent.act(measured, t))
        measured = plant.step(u[-1])
        agent.observe_state(measured)
        if plant.crashed:
            break
    driven = len(u)
    padded = np.zeros((steps, u[0].size))  # one length: one compilation
    padded[:driven] = u
    each = np.array(theta)[np.minimum(np.arange(steps) // stride, len(theta) - 1)]
    cost, error = _judge(robot.system.cost, robot.error, x, padded, each)
    return Drive(
        x=x[:driven],
        u=padded[:driven],
        theta=np.array(theta),
        a_hat=np.array(a_hat),
        cost=np.asarray(cost)[:driven],
        error=np.asarray(error)[:driven],
        crashed=plant.crashed,
    )


@partial(jax.jit, static_argnums=(0, 1))
def _judge(cost: Any, error: Any, x: Any, u: Any, theta: Any) -> tuple[jax.Array, jax.Array]:
    t = jnp.arange(len(x))
    return jax.vmap(cost)(x, u, theta, t), jax.vmap(error)(x, t)
