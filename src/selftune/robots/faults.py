"""Faults of sensors and actuators, inserted between a plant and its controller."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from ..foundation.errors import ArgumentError
from .base import Plant

SENSOR = ("nan", "inf", "stuck", "delayed", "dropped", "outlier")
"""Faults of sensors: one number is NaN or infinite; the measurement is stuck; it is delayed; samples are dropped (they
become NaN); numbers are outliers, a hundred times too large."""
KINDS = (*SENSOR, "actuator", "payload")
"""All faults. Also: the control is lost and replaced by zeros; the payload drops."""


@dataclass(frozen=True)
class Fault:
    """A fault from step `begin` on, for `steps` steps. A dropped payload does not come back."""

    kind: str
    begin: int
    steps: int
    seed: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ArgumentError("kind", f"one of {', '.join(KINDS)}", f"{self.kind!r}")


class Faulty(Plant):
    """A plant with a fault. The seed of the fault decides which numbers are wrong and when.

    `sensed` is the number of components of the measurement that come from sensors. They are the first ones.
    """

    def __init__(self, plant: Plant, fault: Fault, sensed: int):
        self._plant, self._fault, self._sensed = plant, fault, sensed

    def reset(self) -> np.ndarray:
        self._draw = np.random.default_rng([self._fault.seed, 3])
        self._lag = int(self._draw.integers(2, 9))
        self._component = int(self._draw.integers(self._sensed))
        self._t = 0
        x = self._plant.reset()
        self._past = deque([x], maxlen=self._lag + 1)
        self._last = x
        return self._corrupt(x)

    def step(self, u: np.ndarray) -> np.ndarray:
        if self._is_on and self._fault.kind == "actuator":
            u = np.zeros_like(u)
        if self._t == self._fault.begin and self._fault.kind == "payload":
            self._plant.drop()
        x = self._plant.step(u)
        self._t += 1
        self._past.append(x)
        return self._corrupt(x)

    @property
    def truth(self) -> np.ndarray:
        return self._plant.truth

    @property
    def crashed(self) -> bool:
        return self._plant.crashed

    def drop(self) -> None:
        self._plant.drop()

    @property
    def _is_on(self) -> bool:
        return self._fault.begin <= self._t < self._fault.begin + self._fault.steps

    def _corrupt(self, x: np.ndarray) -> np.ndarray:
        if not self._is_on or self._fault.kind not in SENSOR:
            self._last = x
            return x
        x, sensors = x.copy(), slice(0, self._sensed)
        match self._fault.kind:
            case "nan":
                x[self._component] = np.nan
            case "inf":
                x[self._component] = np.inf * self._draw.choice([-1, 1])
            case "stuck":
                x[sensors] = self._last[sensors]
            case "delayed":
                x[sensors] = self._past[0][sensors]
            case "dropped" if self._draw.random() < 0.5:
                x[sensors] = np.nan
            case "outlier" if self._draw.random() < 0.3:
                x[int(self._draw.integers(self._sensed))] *= 100.0
        return x
