"""The arm in MuJoCo, with masses that differ from the model's, friction, slower actuators, noise and delay."""

# pyright does not see MuJoCo's names, which come from C++.
# pyright: reportAttributeAccessIssue=false

import math
from collections import deque
from collections.abc import Iterable
from functools import cache

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from ..foundation.errors import ArgumentError
from .arm import DT, GRAVITY, LAG, LAP, Arm
from .base import Plant

PHYSICS_DT = 0.001
PLANT_LAG = 0.020
DELAY = 1
"""The delay of the measured angles and rates, in control periods."""
ANGLE_NOISE, RATE_NOISE = 3e-4, 0.02
LIGHT, HEAVY = 0.2, 0.7
"""The payload before and after the change (kg)."""
ERROR_LIMIT, RATE_LIMIT = 1.5, 20.0
"""The tracking error of the angle (rad) and of the rate (rad/s) that count as a crash."""


def mjcf(
    arm: Arm,
    masses: Iterable[float],
    payload: float,
    *,
    damping: Iterable[float] = (0.0, 0.0, 0.0),
    friction: Iterable[float] = (0.0, 0.0, 0.0),
) -> str:
    """The arm in MuJoCo's XML: rods in the x–z plane that hang along −z at angles of zero, with a point mass at the
    tip.

    The activation of each actuator is its torque. It follows the command, clamped to the limits, with a first-order
    lag.
    """
    masses, damping, friction = list(masses), list(damping), list(friction)
    body = f"""<body name="payload" pos="0 0 {-arm.lengths[-1]}">
      <inertial pos="0 0 0" mass="{payload}" diaginertia="1e-12 1e-12 1e-12"/>
      <geom type="sphere" size="0.03" rgba="0.8 0.3 0.2 1"/></body>"""
    for i in reversed(range(arm.links)):
        length, spin = arm.lengths[i], masses[i] * arm.lengths[i] ** 2 / 12
        body = f"""<body name="link{i + 1}" pos="0 0 {-arm.lengths[i - 1] if i else 0.0}">
      <joint name="joint{i + 1}" axis="0 -1 0" armature="{arm.rotors[i]}"
        damping="{damping[i]}" frictionloss="{friction[i]}"/>
      <inertial pos="0 0 {-length / 2}" mass="{masses[i]}" diaginertia="{spin} {spin} 1e-6"/>
      <geom type="capsule" fromto="0 0 0 0 0 {-length}" size="0.02"/>
      {body}</body>"""
    motors = "\n".join(
        f"""<general joint="joint{i + 1}" dyntype="filterexact" dynprm="{PLANT_LAG}" ctrlrange="{-limit} {limit}"/>"""
        for i, limit in enumerate(arm.limits)
    )
    return f"""<mujoco model="arm">
    <option timestep="{PHYSICS_DT}" gravity="0 0 {-GRAVITY}" integrator="implicitfast"/>
    <default><geom contype="0" conaffinity="0" mass="0"/></default>
    <visual><global offwidth="1280" offheight="960"/></visual>
    <worldbody><light pos="0 -2 2"/><camera name="side" pos="0.2 -2.2 -0.2" xyaxes="1 0 0 0 0 1"/>{body}</worldbody>
    <actuator>{motors}</actuator></mujoco>"""


@cache
def _lap(arm: Arm) -> np.ndarray:
    """The desired angles and rates at every step of a lap, (LAP, 2 · links)."""
    return np.asarray(jax.vmap(lambda t: jnp.concatenate(arm.reference(t, float)[:2]))(np.arange(LAP)))


class ArmPlant(Plant):
    """An arm with a payload of 0.2 kg. The seed draws link masses (5–12 % too heavy), friction and the start."""

    def __init__(self, arm: Arm, condition: str, seed: int, steps: int):
        if condition not in ("payload", "disturbance", "nominal"):
            raise ArgumentError("condition", '"payload", "disturbance" or "nominal"', f"{condition!r}")
        n, draw = arm.links, np.random.default_rng([seed, 0])
        masses = np.array(arm.masses) * draw.uniform(1.05, 1.12, n)
        high = np.array(arm.limits)
        strength = high / arm.limits[0]
        damping, friction = draw.uniform(0.1, 0.3, n) * strength, draw.uniform(0.2, 0.5, n) * strength
        self._offset = draw.normal(0.0, 0.03, n)
        self.disturbance = 0.1 * high * np.array([1.0, -1.0, 0.6])[:n] * draw.uniform(0.8, 1.2, n)
        self._condition, self._seed, self._half = condition, seed, steps / 2
        self._limits = -high, high
        self._wanted = _lap(arm)
        self._noise_scale, self._bounds = np.repeat([[ANGLE_NOISE, RATE_NOISE], [ERROR_LIMIT, RATE_LIMIT]], n, axis=1)
        self._follow = 1 - math.exp(-DT / LAG)
        self.xml = mjcf(arm, masses, LIGHT, damping=damping, friction=friction)
        self.model = mujoco.MjModel.from_xml_string(self.xml)
        self.data = mujoco.MjData(self.model)
        self.reset()

    def reset(self) -> np.ndarray:
        self._noise = np.random.default_rng([self._seed, 1])
        self._set_payload(LIGHT)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = self._wanted[0, : self._offset.size] + self._offset
        mujoco.mj_forward(self.model, self.data)
        # At the start, the actuators hold the arm against gravity.
        self.data.act[:] = np.clip(self.data.qfrc_bias, *self._limits)
        self._torque = self.data.act.copy()
        self._past = deque([self._motion()] * (DELAY + 1), maxlen=DELAY + 1)
        self._steps, self._crashed = 0, False
        return self._measurement()

    def step(self, u: np.ndarray) -> np.ndarray:
        if self._steps >= self._half:
            self._happen()
        self.data.ctrl[:] = u
        mujoco.mj_step(self.model, self.data, nstep=round(DT / PHYSICS_DT))
        # The controller's estimate of the torque: its command, filtered with the lag of the model.
        self._torque += self._follow * (np.clip(u, *self._limits) - self._torque)
        self._steps += 1
        motion = self._motion()
        self._past.append(motion)
        # Written so that NaN counts as a crash too.
        self._crashed |= not np.all(np.abs(motion - self._wanted[self._steps % LAP]) < self._bounds)
        return self._measurement()

    def drop(self) -> None:
        self._set_payload(1e-6)

    @property
    def truth(self) -> np.ndarray:
        return np.concatenate([self._past[-1], self.data.act])

    @property
    def crashed(self) -> bool:
        return self._crashed

    def _motion(self) -> np.ndarray:
        return np.concatenate([self.data.qpos, self.data.qvel])

    def _measurement(self) -> np.ndarray:
        noise = self._noise_scale * self._noise.standard_normal(self._noise_scale.size)
        return np.concatenate([self._past[0] + noise, self._torque])

    def _happen(self) -> None:
        if self._condition == "payload" and self._steps < self._half + 1:
            self._set_payload(HEAVY)
        if self._condition == "disturbance":
            self.data.qfrc_applied[:] = self.disturbance

    def _set_payload(self, mass: float) -> None:
        self.model.body("payload").mass = mass
        mujoco.mj_setConst(self.model, mujoco.MjData(self.model))  # with separate data, because it overwrites them
