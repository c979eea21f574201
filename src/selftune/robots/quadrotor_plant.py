"""The quadrotor in MuJoCo: a free body with four rotors, in moving air. The model contains none of this."""

# MuJoCo's bindings have no stubs.
# pyright: reportAttributeAccessIssue=false
import mujoco
import numpy as np

from ..foundation.errors import ArgumentError
from .base import Plant
from .quadrotor import DT, GRAVITY, LAG, LAP, MASS, MOMENTS, SIZE, start

ARM = 0.0325
"""The distance of each rotor from the centre, along x and along y, in metres."""
YAW_PER_THRUST = 0.006
"""A rotor's reaction torque per newton of its thrust, in metres."""
ROTOR_LIMIT = 0.2
"""The largest thrust of a rotor, in newtons; the smallest is zero."""
ROTOR_LAG = 0.03
PHYSICS = 0.001
TOGGLE = 12.0
"""Seconds after which the wind starts or stops."""
PAYLOAD = 0.6
"""The payload's mass / the quadrotor's mass."""
NOISE = np.array([1e-3] * 3 + [4e-3] * 3 + [1e-3] * 3 + [1e-2] * 3)
"""Standard deviations of the measurement noise: position, velocity, rotation vector, body rates."""

_PLACES = ((1, 1), (-1, 1), (-1, -1), (1, -1))
_SPINS = (-1, 1, -1, 1)
WRENCH = np.array(
    [[1.0] * 4, [ARM * y for _, y in _PLACES], [-ARM * x for x, _ in _PLACES], [YAW_PER_THRUST * s for s in _SPINS]]
)
"""The matrix from the four rotors' thrusts to (thrust, torques)."""
MIXER = np.linalg.inv(WRENCH)


def xml(mass: float = MASS, moments: tuple[float, ...] = MOMENTS, lag: float = ROTOR_LAG) -> str:
    """The quadrotor in MuJoCo's XML; rotors follow their commands with `lag`, within their limits."""
    sites = "".join(f'<site name="r{i}" pos="{x * ARM} {y * ARM} 0"/>' for i, (x, y) in enumerate(_PLACES))
    rotors = "".join(
        f'<general site="r{i}" gear="0 0 1 0 0 {YAW_PER_THRUST * s}" dyntype="filterexact" dynprm="{lag}" '
        f'gaintype="fixed" biastype="none" ctrllimited="true" ctrlrange="0 {ROTOR_LIMIT}"/>'
        for i, s in enumerate(_SPINS)
    )
    return f"""<mujoco>
  <compiler autolimits="true" inertiafromgeom="false"/>
  <option timestep="{PHYSICS}" gravity="0 0 {-GRAVITY}" integrator="implicitfast"><flag contact="disable"/></option>
  <worldbody><body name="quadrotor"><freejoint/>
    <inertial pos="0 0 0" mass="{mass}" diaginertia="{" ".join(map(str, moments))}"/>{sites}
  </body></worldbody>
  <actuator>{rotors}</actuator>
</mujoco>"""


def rotation_vector(quaternion: np.ndarray) -> np.ndarray:
    """The rotation vector: axis times angle, with an angle of at most π."""
    w, v = quaternion[0], quaternion[1:]
    if w < 0:
        w, v = -w, -v
    sine = np.sqrt(v @ v)
    return v * (2.0 if sine < 1e-12 else 2 * np.arctan2(sine, w) / sine)


class QuadrotorPlant(Plant):
    """A quadrotor whose mass, inertia and rotors differ from the model's, with lag, limits, drag, noise and a delay of
    one sample. The seed draws its parameters.

    `condition` is "calm", "wind" (in gusts, on and off every 12 s, on first) or "payload" (60 % more mass from step
    `steps // 2` on). The four states of the actuators are not measured: the plant filters the commands as the model
    does.
    """

    def __init__(self, condition: str, seed: int, steps: int):
        if condition not in ("calm", "wind", "payload"):
            raise ArgumentError("condition", "'calm', 'wind' or 'payload'", f"{condition!r}")
        self._condition, self._seed, self._half = condition, seed, steps // 2
        draw = np.random.default_rng([seed, 1])
        self.mass = 0.033 * draw.uniform(0.97, 1.03)
        self.moments = np.array(MOMENTS) * draw.uniform(1.0, 1.1, 3)
        self.xml = xml(self.mass, tuple(self.moments), ROTOR_LAG)
        self.model = mujoco.MjModel.from_xml_string(self.xml)
        self.model.actuator_gainprm[:, 0] = draw.uniform(0.99, 1.01, 4)
        self._data, self._scratch = mujoco.MjData(self.model), mujoco.MjData(self.model)
        self.linear_drag = 0.01 * draw.uniform(0.8, 1.2, 3)
        self.square_drag = 0.004 * draw.uniform(0.8, 1.2)
        heading, strength = draw.uniform(0, 2 * np.pi), draw.uniform(2.0, 3.0)
        self.wind = strength * np.array([np.cos(heading), np.sin(heading), 0.1])
        self._start = start()
        self._start[:3] += draw.normal(0, 0.02, 3)
        self._turn = 2 * np.pi / LAP * np.array([1, 2, 1])

    def reset(self) -> np.ndarray:
        self._draw = np.random.default_rng([self._seed, 2])
        self._load(0.0)
        mujoco.mj_resetData(self.model, self._data)
        self._data.qpos[:3], self._data.qvel[:3] = self._start[:3], self._start[3:6]
        self._data.act[:] = self.mass * GRAVITY / 4
        self._t, self._gust, self._filtered = 0, np.zeros(3), self._start[12:].copy()
        mujoco.mj_forward(self.model, self._data)
        self._late = self._sense()
        return np.concatenate([self._late, self._filtered])

    def step(self, u: np.ndarray) -> np.ndarray:
        model, data = self.model, self._data
        if self._condition == "payload" and self._t == self._half:
            self._load(PAYLOAD * self.mass)
        air = self._air()
        data.ctrl[:] = MIXER @ u
        for _ in range(round(DT / PHYSICS)):
            flow = air - data.qvel[:3]
            data.xfrc_applied[1, :3] = (self.linear_drag + self.square_drag * np.sqrt(flow @ flow)) * flow
            mujoco.mj_step(model, data)
        self._filtered += (1 - np.exp(-DT / LAG)) * (u - self._filtered)
        self._t += 1
        late, self._late = self._late, self._sense()
        return np.concatenate([late, self._filtered])

    def drop(self) -> None:
        self._load(0.0)

    @property
    def truth(self) -> np.ndarray:
        wrench = WRENCH @ (self.model.actuator_gainprm[:, 0] * self._data.act)
        return np.concatenate([self._body(), wrench])

    @property
    def crashed(self) -> bool:
        x = self._body()
        upright = 1 - 2 * (self._data.qpos[4] ** 2 + self._data.qpos[5] ** 2)  # the cosine of the tilt
        away = x[:3] - np.array(SIZE) * np.sin(self._turn * self._t)
        return not (np.all(np.isfinite(x)) and upright > -0.17 and away @ away < 9.0)

    def _body(self) -> np.ndarray:
        qpos, qvel = self._data.qpos, self._data.qvel
        return np.concatenate([qpos[:3], qvel[:3], rotation_vector(qpos[3:7]), qvel[3:]])

    def _sense(self) -> np.ndarray:
        return self._body() + NOISE * self._draw.standard_normal(12)

    def _air(self) -> np.ndarray:
        """The velocity of the air: gusts of about a second around a wind that comes and goes."""
        if self._condition != "wind":
            return np.zeros(3)
        blowing = int(self._t * DT / TOGGLE) % 2 == 0
        self._gust += -DT * self._gust + 0.6 * np.sqrt(2 * DT) * self._draw.standard_normal(3)
        return (self.wind + self._gust) if blowing else 0.2 * self._gust

    def _load(self, payload: float) -> None:
        self.model.body_mass[1] = self.mass + payload
        self.model.body_inertia[1] = self.moments * (1 + 0.2 * payload / self.mass)
        mujoco.mj_setConst(self.model, self._scratch)
