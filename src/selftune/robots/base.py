"""The base of all robots: a model with a policy, a plant that the model does not know, and the loop around both."""

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
from ..problem.system import AbstractSystem
from ..realtime.agent import Agent
from ..tuners import MGAPS
from ..tuners.base import AbstractTuner


class Plant(abc.ABC):
    """A simulated robot. It takes controls and returns measurements, with its own lag, limits, noise and delay.

    The randomness of a plant depends only on its seed: two plants with the same seed and the same controls are equal.
    """

    @abc.abstractmethod
    def reset(self) -> np.ndarray:
        """Return to the start of the task; returns the measurement x_0, (n,), of the model's state."""

    @abc.abstractmethod
    def step(self, u: np.ndarray) -> np.ndarray:
        """Apply the control for one period; returns the measurement x_{t+1}, (n,)."""

    @abc.abstractmethod
    def drop(self) -> None:
        """Drop the payload."""

    @property
    @abc.abstractmethod
    def truth(self) -> np.ndarray:
        """The true values of the model's state, (n,), from which the cost is computed."""

    @property
    @abc.abstractmethod
    def crashed(self) -> bool:
        """Whether the robot left the range in which a person would let it continue."""


@dataclass(frozen=True)
class Robot:
    """A model, the gains to tune, and the plants. θ and a are vectors."""

    name: str
    dt: float
    """The control period, in seconds."""
    system: AbstractSystem
    gains: tuple[str, ...]
    """The names of θ's components, which are logarithms."""
    theta: np.ndarray
    """The nominal gains, (d,). Detuned gains are multiples of them. They are not the best gains."""
    power: np.ndarray
    """(d,): if all feedback gains are multiplied by c, θ becomes θ + power · log c. For log ωn and log ζ it is ½."""
    theta_box: Box
    parameters: tuple[str, ...]
    """The names of a's components, with their units."""
    a_hat: np.ndarray
    a_box: Box
    learning_rate: float
    estimator_rate: float
    conditions: tuple[str, ...]
    """The conditions of the plant, such as "wind" or "payload"."""
    make_plant: Callable[[str, int, int], Plant] = field(repr=False)
    """(condition, seed, steps) to a plant. Changes halfway come after steps/2."""
    make_scenario: Callable[[int, jax.Array], Scenario] = field(repr=False)
    """(steps, key) to a scenario for `simulate`, with the model itself as the plant."""
    error: Callable[[Any, Any], Any] = field(repr=False)
    """(x, t) to the tracking error of step t, a vector in metres or radians; pure JAX."""
    lap: int
    """Steps of one period of the reference."""
    guard: Mapping[str, Any] = field(default_factory=dict)
    """The settings of a `Guard` for this robot."""
    a_scale: np.ndarray | float = 1.0
    """The typical size of a's components, or of the effect of their changes: the unit of the estimator's steps."""

    def detuned(self, factor: float) -> np.ndarray:
        """θ with all feedback gains multiplied by `factor`, projected onto Θ."""
        moved = self.theta + self.power * np.log(arguments.positive("factor", factor))
        return np.asarray(self.theta_box.project(jnp.asarray(moved)))

    def controller(self, tuner: AbstractTuner | None = None, estimator: AbstractEstimator | None = None) -> Controller:
        """A controller with the given tuner and estimator; by default M-GAPS and the normalized gradient estimator."""
        if tuner is None:
            tuner = MGAPS(self.learning_rate, constraint=self.theta_box)
        if estimator is None:
            scale = np.asarray(self.a_scale) ** 2
            estimator = GradientEstimator(self.estimator_rate, scale, constraint=self.a_box, normalized=True)
        return Controller(self.system, tuner, estimator)


@dataclass(frozen=True)
class Drive:
    """The record of a run on a plant; row t has the value used at step t. After a crash there are no more rows."""

    x: np.ndarray
    """The true state, (T, n)."""
    u: np.ndarray
    theta: np.ndarray
    """θ of every `stride`-th step; the same for â."""
    a_hat: np.ndarray
    cost: np.ndarray
    """The cost at the true state, (T,)."""
    error: np.ndarray
    """The tracking error, (T, e)."""
    crashed: bool


def drive(robot: Robot, agent: Agent, plant: Plant, steps: int, *, stride: int = 1) -> Drive:
    """Let an agent drive a plant from the start of its task, for `steps` steps or until it crashes.

    θ and â are read every `stride` steps, because reading takes longer than a step of the agent. A cost that depends
    on θ uses the last θ that was read.
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
    padded = np.zeros((steps, u[0].size))  # always the same length, for one compilation
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
