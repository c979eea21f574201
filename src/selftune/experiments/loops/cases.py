"""The loops of the comparison: for each, the model, the true plants, the cost, the reference and the nominal gains."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import selftune as st
from selftune import models, policies, references

LOOPS = ("motor position", "motor speed", "tank", "two-mass drive", "dead time")
PLANTS = ("exact", "light", "heavy", "delayed")
"""The true plants: the model itself; parameters that are 30 % wrong, so that the plant reacts more strongly or more
weakly to the control; and the first of these with a delay that the model does not have."""
LIGHT, HEAVY = (1.3, 0.7), (0.7, 1.3)
"""The factors on a plant's gain and on its inertia or time constant."""


@dataclass(frozen=True)
class Case:
    """One loop. `plant(gain, inertia, delay)` returns the plant with two factors and a number of samples of delay."""

    name: str
    plant: Callable[[float, float, int], Any]
    delay: int
    """The delay of the model, in samples."""
    hidden: int
    """The delay of the plant "delayed" that the model does not have, in samples."""
    gains: dict[str, float]
    """The nominal gains: the best static gains of the model, rounded to one digit."""
    limits: tuple[float, float]
    cost: st.Tracking
    reference: Any
    noise: float

    @property
    def model(self) -> Any:
        return self.plant(1.0, 1.0, self.delay)

    def true_plant(self, name: str) -> Any:
        """Return the plant with this name of `PLANTS`, or None for the model itself."""
        gain, inertia = {"exact": (1.0, 1.0), "light": LIGHT, "heavy": HEAVY, "delayed": LIGHT}[name]
        return self.plant(gain, inertia, self.delay + (self.hidden if name == "delayed" else 0))

    def loop(self, gains: dict[str, float] | None = None) -> st.Loop:
        """Return the loop with these gains, by default the nominal ones."""
        low, high = self.limits
        chosen: dict[str, Any] = dict(self.gains if gains is None else gains)
        policy = policies.PID(**chosen, u_min=low, u_max=high)
        return st.Loop(self.model, policy, self.cost, self.reference, noise=self.noise)

    @property
    def starts(self) -> dict[str, dict[str, float]]:
        """The start gains by name: nominal, each gain ten times too low and too high, and all gains."""
        factors = {"nominal": {}}
        factors |= {f"{name} {word}": {name: factor} for name in self.gains for word, factor in OFF.items()}
        factors |= {f"all {word}": dict.fromkeys(self.gains, factor) for word, factor in OFF.items()}
        return {
            word: {name: gain * factor.get(name, 1.0) for name, gain in self.gains.items()}
            for word, factor in factors.items()
        }


def _cost(effort: Any, effort_rate: Any) -> st.Tracking:
    return st.Tracking(effort=effort, effort_rate=effort_rate)


def _steps(hold: float, low: Any, high: Any) -> references.Steps:
    return references.Steps(hold=hold, low=low, high=high)


OFF = {"/10": 0.1, "×10": 10.0}


def _motor(output: str, load_inertia: float) -> Callable[[float, float, int], Any]:
    def plant(gain: float, inertia: float, delay: int) -> Any:
        motor = models.DCMotor(
            resistance=1.2,
            torque_constant=0.04 * gain,
            rotor_inertia=2e-5 * inertia,
            gear_ratio=20.0,
            load_inertia=load_inertia * inertia,
            dt=0.005,
            output=output,
            unknown=(models.Load(bound=2.0), models.Viscous(bound=0.2), models.Coulomb(bound=2.0)),
        )
        return models.Delayed(motor, samples=delay)

    return plant


def _tank(gain: float, inertia: float, delay: int) -> Any:
    tank = models.HeatedTank(
        volume=0.05 * inertia,
        flow=1e-5 / gain,
        loss=8.0 / gain,
        max_power=3000.0,
        dt=20.0,
        unknown=(models.Load(bound=500.0),),
    )
    return models.Delayed(tank, samples=delay)


def _two_mass(gain: float, inertia: float, delay: int) -> Any:
    drive = models.TwoMass(
        motor_inertia=0.002 * inertia / gain,
        load_inertia=0.004 * inertia / gain,
        stiffness=80.0,
        damping=0.05,
        dt=0.001,
        output="motor_speed",
        unknown=(models.Load(bound=4.0), models.Viscous(bound=0.005), models.Coulomb(bound=1.0)),
    )
    return models.Delayed(drive, samples=delay)


def _first_order(gain: float, inertia: float, delay: int) -> Any:
    plant = models.FirstOrder(gain=2.0 * gain, time_constant=0.5 * inertia, dt=0.02, unknown=(models.Load(bound=0.5),))
    return models.Delayed(plant, samples=delay)


@cache
def load(name: str) -> Case:
    """Return one of `LOOPS`."""
    if name == "motor position":
        return Case(
            name,
            plant=_motor("position", 0.01),
            delay=1,
            hidden=2,
            gains={"kp": 20.0, "ki": 20.0, "kd": 0.2},
            limits=(-24.0, 24.0),
            cost=_cost(0.01, 1e-5),
            reference=_steps(1.0, -1.5, 1.5),
            noise=1e-3,
        )
    if name == "motor speed":
        return Case(
            name,
            plant=_motor("speed", 0.01),
            delay=1,
            hidden=2,
            gains={"kp": 1.0, "ki": 40.0},
            limits=(-24.0, 24.0),
            cost=_cost(0.01, 1e-5),
            reference=_steps(1.0, 0.0, 20.0),
            noise=0.1,
        )
    if name == "tank":
        return Case(
            name,
            plant=_tank,
            delay=3,
            hidden=2,
            gains={"kp": 1000.0, "ki": 1.5, "kd": 1500.0},
            limits=(0.0, 3000.0),
            cost=_cost(0.01, 1.0),
            reference=_steps(6000.0, 30.0, 45.0),
            noise=0.05,
        )
    if name == "two-mass drive":
        return Case(
            name,
            plant=_two_mass,
            delay=1,
            hidden=1,
            gains={"kp": 0.2, "ki": 1.0, "kd": 1e-4},
            limits=(-10.0, 10.0),
            cost=_cost(0.001, 1e-8),
            reference=_steps(0.4, -50.0, 50.0),
            noise=0.2,
        )
    return Case(
        name,
        plant=_first_order,
        delay=5,
        hidden=2,
        gains={"kp": 2.0, "ki": 3.0, "kd": 0.06},
        limits=(-10.0, 10.0),
        cost=_cost(0.01, 1e-5),
        reference=_steps(4.0, -2.0, 2.0),
        noise=5e-3,
    )
