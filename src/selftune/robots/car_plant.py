"""A small car on a rough, sloping floor: two axles with magic-formula tyres, in plain Python, independent of the model.

Position and velocity are those of a point P of the chassis, the centre of mass of the empty car. A payload moves the
centre of mass, but not P.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import no_type_check

import numpy as np

from ..foundation.errors import ArgumentError
from .base import Plant

GRAVITY = 9.81
CONDITIONS = ("grip", "slippery", "payload")
NOISE = (0.002, 0.002, 0.003, 0.01, 0.005, 0.02, 0.002, 0.05)
"""Standard deviations of the measurement noise: m, m, rad, m/s, m/s, rad/s, rad, N."""


@dataclass(frozen=True)
class Car:
    """The parameters of the car and its floor, in SI units."""

    mass: float = 3.1
    inertia: float = 0.048
    front: float = 0.15
    """The distance from P to the front axle."""
    rear: float = 0.15
    aft: float = 0.0
    """The distance of the centre of mass behind P."""
    height: float = 0.05
    track: float = 0.2
    roll_front: float = 0.5
    """The front axle's share of the lateral load transfer."""
    settling: float = 0.04
    """Time constant of the load transfer."""

    friction: float = 0.9
    stiffness_front: float = 7.2
    """Cornering stiffness over peak side force, 1/rad."""
    stiffness_rear: float = 9.5
    shape: float = 1.35
    curvature: float = -0.2
    load_loss: float = 0.1
    """The share of the friction that a wheel loses when its load doubles."""

    steering_lag: float = 0.045
    steering_limit: float = 0.45
    steering_rate: float = 8.0
    trim: float = 0.0
    """The angle of the wheels when the servo is at zero."""
    drive_lag: float = 0.07
    drive_limit: float = 15.0
    drive_rear: float = 0.5

    rolling: float = 0.3
    """Rolling resistance, m/s²."""
    air: float = 0.03
    """Air resistance over speed squared, N·s²/m²."""
    slope: tuple[float, float] = (0.0, 0.0)
    """The floor's pull along x and y, m/s²."""
    roughness: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Standard deviations of the floor's pushes: m/s², m/s², rad/s²."""
    smoothness: float = 0.04
    """Correlation time of the pushes, s."""

    @property
    def wheel_load(self) -> float:
        """The load at which a wheel has its nominal friction: a quarter of the weight of the empty car."""
        return 3.1 * GRAVITY / 4


def random_car(rng: np.random.Generator) -> Car:
    """A car with randomly varied parameters, on a random floor."""

    def about(value: float, share: float) -> float:
        return value * (1 + share * rng.uniform(-1, 1))

    base = Car()
    pull, direction = rng.uniform(0.3, 0.6), rng.uniform(0, 2 * math.pi)
    return Car(
        mass=about(base.mass, 0.05),
        inertia=about(base.inertia, 0.1),
        friction=about(base.friction, 0.05),
        stiffness_front=about(base.stiffness_front, 0.1),
        stiffness_rear=about(base.stiffness_rear, 0.1),
        steering_lag=about(base.steering_lag, 0.1),
        drive_lag=about(base.drive_lag, 0.1),
        trim=rng.uniform(-0.03, 0.03),
        rolling=about(base.rolling, 0.3),
        slope=(pull * math.cos(direction), pull * math.sin(direction)),
        roughness=(0.7, 1.1, 3.0),
    )


def changed(car: Car, condition: str) -> Car:
    """The car after the change halfway: on a wet floor, or with a payload of 30 % of its mass at the tail."""
    if condition == "slippery":
        return replace(car, friction=0.7 * car.friction)
    if condition == "payload":
        load, behind = 0.3 * car.mass, 0.08
        aft = (car.mass * car.aft + load * behind) / (car.mass + load)
        inertia = car.inertia + car.mass * (aft - car.aft) ** 2 + load * (behind - aft) ** 2
        return replace(car, mass=car.mass + load, inertia=inertia, aft=aft, height=1.2 * car.height)
    return car


State = list[float]
"""x, y, heading; velocity along, across, yaw rate; steering angle, drive force; filtered acceleration along, across."""
Push = tuple[float, float, float]


@no_type_check  # the tests check types at run time, which would take longer than the physics
def axle(car: Car, stiffness: float) -> Callable[[float, float, float, float], tuple[float, float]]:
    """The two wheels of an axle, with one slip angle: a function from `(slip, load, transfer, along)` to the forces
    (along, across).

    One wheel has `transfer` more than half of the load, the other less. The largest force of a wheel is its load times
    a friction that falls with the load; the axle's largest force is the sum of both. The force `along` is limited to
    that sum. The side force is that of the magic formula, reduced to the friction ellipse.
    """
    grip, loss = car.friction * (1 + car.load_loss), car.friction * car.load_loss / car.wheel_load
    sharpness, shape, curvature = stiffness / car.shape, car.shape, car.curvature
    sin, atan, sqrt = math.sin, math.atan, math.sqrt

    def forces(slip: float, load: float, transfer: float, along: float) -> tuple[float, float]:
        if load < 0.1:
            load = 0.1
        peak = grip * load - loss * (load * load / 2 + 2 * transfer * transfer)
        if peak < 0.01:
            peak = 0.01
        along = peak if along > peak else -peak if along < -peak else along
        share = along / peak
        b = sharpness * slip
        side = peak * sin(shape * atan(b - curvature * (b - atan(b))))
        return along, side * sqrt(1 - share * share)

    return forces


@no_type_check  # the tests check types at run time, which would take longer than the physics
def equations(car: Car) -> Callable[[State, float, float, Push], State]:
    """The derivative of the state, as a function of state, steering and drive commands and the floor's push. Parameters
    are read once, because attribute access would take as long as the physics."""
    m, inertia, lf, lr, d = car.mass, car.inertia, car.front, car.rear, car.aft
    front_arm, rear_arm = lf + d, lr - d
    wheelbase, lift = lf + lr, m * car.height
    roll = lift / car.track
    roll_front, roll_rear, pitch = car.roll_front * roll, (1 - car.roll_front) * roll, lift / wheelbase
    front_load, rear_load = m * GRAVITY * rear_arm / wheelbase, m * GRAVITY * front_arm / wheelbase
    front, rear = axle(car, car.stiffness_front), axle(car, car.stiffness_rear)
    drive_front, drive_rear, trim = 1 - car.drive_rear, car.drive_rear, car.trim
    rolling, air, (slope_x, slope_y) = car.rolling, car.air / m, car.slope
    steering_lag, steering_rate, drive_lag, settling = car.steering_lag, car.steering_rate, car.drive_lag, car.settling
    sin, cos, atan2, tanh = math.sin, math.cos, math.atan2, math.tanh

    def derivative(state: State, steer: float, drive: float, push: Push) -> State:
        _, _, heading, vx, vy, r, angle, force, ax, ay = state
        wheel = angle + trim
        forward = vx if vx > 0.2 else 0.2
        sin_h, cos_h, sin_w, cos_w = sin(heading), cos(heading), sin(wheel), cos(wheel)

        front_slip = wheel - atan2(vy + lf * r, forward)
        fx, fy = front(front_slip, front_load - pitch * ax, roll_front * ay, drive_front * force)
        rear_slip = -atan2(vy - lr * r, forward)
        rx, ry = rear(rear_slip, rear_load + pitch * ax, roll_rear * ay, drive_rear * force)
        side = fy * cos_w + fx * sin_w
        drag = rolling * tanh(20 * vx) + air * vx * abs(vx)
        along = (fx * cos_w - fy * sin_w + rx) / m - drag + slope_x * cos_h + slope_y * sin_h + push[0]
        across = (side + ry) / m + slope_y * cos_h - slope_x * sin_h + push[1]
        turning = (front_arm * side - rear_arm * ry) / inertia + push[2]

        rate = (steer - angle) / steering_lag
        return [
            vx * cos_h - vy * sin_h,
            vx * sin_h + vy * cos_h,
            r,
            along + vy * r - d * r * r,
            across - vx * r + d * turning,
            turning,
            steering_rate if rate > steering_rate else -steering_rate if rate < -steering_rate else rate,
            (drive - force) / drive_lag,
            (along - ax) / settling,
            (across - ay) / settling,
        ]

    return derivative


@no_type_check  # the tests check types at run time, which would take longer than the physics
def runge_kutta(derivative: Callable[..., State], state: State, step: float, *held: object) -> State:
    """One step of the classical fourth-order method."""
    half, sixth = step / 2, step / 6
    k1 = derivative(state, *held)
    k2 = derivative([s + half * k for s, k in zip(state, k1)], *held)  # noqa: B905
    k3 = derivative([s + half * k for s, k in zip(state, k2)], *held)  # noqa: B905
    k4 = derivative([s + step * k for s, k in zip(state, k3)], *held)  # noqa: B905
    return [s + sixth * (a + 2 * (b + c) + d) for s, a, b, c, d in zip(state, k1, k2, k3, k4)]  # noqa: B905


class CarPlant(Plant):
    """A car that follows `reference(t)`; its state is measured relative to the reference.

    **Arguments:**

    - `car`: the car until halfway; then the `condition` changes it (`changed`).
    - `reference`: a function from the step to the desired (x, y, heading, speed).
    - `noise`: of the measurements; `delay`: of the measurements, in periods.
    - `substeps`: of the integration, in a control period.
    """

    def __init__(
        self,
        car: Car,
        condition: str,
        seed: int,
        steps: int,
        reference: Callable[[int], tuple[float, float, float, float]],
        dt: float,
        *,
        noise: tuple[float, ...] = NOISE,
        delay: int = 2,
        substeps: int = 4,
    ):
        if condition not in CONDITIONS:
            raise ArgumentError("condition", f"one of {', '.join(CONDITIONS)}", f"{condition!r}")
        self.car, self._later, self._half = car, changed(car, condition), steps // 2
        self._seed, self._reference, self._dt = seed, reference, dt
        self._noise, self._delay, self._substeps = noise, delay, substeps

    def reset(self) -> np.ndarray:
        self._rng = np.random.default_rng([self._seed, 1])
        self._draws: list[list[float]] = []
        self._t, self._derivative = 0, equations(self.car)
        x, y, heading, speed = self._reference(0)
        aside = self._rng.uniform(-0.1, 0.1)
        x, y = x - aside * math.sin(heading), y + aside * math.cos(heading)
        self._state = [x, y, heading, 0.9 * speed, *[0.0] * 6]
        self._push = (0.0, 0.0, 0.0)
        self._crashed = False
        self._truth = self._seen()
        self._past = deque([self._truth] * (self._delay + 1), maxlen=self._delay + 1)
        return self._measured(self._draw())

    def step(self, u: np.ndarray) -> np.ndarray:
        steer = max(-self.car.steering_limit, min(self.car.steering_limit, float(u[0])))
        drive = max(-self.car.drive_limit, min(self.car.drive_limit, float(u[1])))
        if self._t == self._half:
            self._derivative = equations(self._later)
        draw = self._draw()
        decay = math.exp(-self._dt / self.car.smoothness)
        fresh = math.sqrt(1 - decay * decay)
        px, py, pr = self._push
        sx, sy, sr = self.car.roughness
        self._push = (
            decay * px + fresh * sx * draw[8],
            decay * py + fresh * sy * draw[9],
            decay * pr + fresh * sr * draw[10],
        )
        small = self._dt / self._substeps
        for _ in range(self._substeps):
            self._state = runge_kutta(self._derivative, self._state, small, steer, drive, self._push)
        self._t += 1
        self._truth = self._seen()
        self._past.append(self._truth)
        along, across, turned, speed = self._truth[:4]
        inside = abs(along) < 1.0 and abs(across) < 1.0 and abs(turned) < 1.2 and speed > 0.3
        self._crashed = self._crashed or not inside
        return self._measured(draw)

    def drop(self) -> None:
        self._derivative = equations(self.car)

    @property
    def truth(self) -> np.ndarray:
        return np.array(self._truth)

    @property
    def crashed(self) -> bool:
        return self._crashed

    @property
    def position(self) -> np.ndarray:
        """The position of the car on the floor, (2,)."""
        return np.array(self._state[:2])

    def _seen(self) -> list[float]:
        """The errors along, across and in heading, in the frame of the reference, and the rest of the model's state."""
        wanted_x, wanted_y, wanted_heading, _ = self._reference(self._t)
        x, y, heading, *rest = self._state[:8]
        c, s = math.cos(wanted_heading), math.sin(wanted_heading)
        dx, dy = x - wanted_x, y - wanted_y
        turned = math.remainder(heading - wanted_heading, 2 * math.pi)
        return [c * dx + s * dy, c * dy - s * dx, turned, *rest]

    def _measured(self, draw: list[float]) -> np.ndarray:
        return np.array([x + s * z for x, s, z in zip(self._past[0], self._noise, draw, strict=False)])

    def _draw(self) -> list[float]:
        """The random numbers of a step. They are drawn in blocks, because single draws take as long as the physics."""
        if not self._draws:
            self._draws = self._rng.standard_normal((256, 11)).tolist()[::-1]
        return self._draws.pop()
