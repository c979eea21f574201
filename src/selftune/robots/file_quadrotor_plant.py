"""A quadrotor from a file as a plant in MuJoCo: another mass, slower rotors, drag, wind, noise, delay and a payload."""

# MuJoCo's bindings have no stubs.
# pyright: reportAttributeAccessIssue=false

import mujoco
import numpy as np

from ..foundation import arguments
from ..loop import quadrotor_rules
from ..models.quadrotor import Quadrotor
from .quadrotor_plant import rotation_vector

PHYSICS = 0.001
"""The longest step of the physics, in seconds."""
HEAVIER, TURNS_HARDER, WEAKER = (1.0, 1.06), (1.0, 1.1), (0.99, 1.01)
"""The ranges of the factors on the mass, on the moments of inertia and on the force of each rotor."""
SLOWER = 1.25
"""The time constant of the rotors, relative to the model's."""
DRAG, SQUARE_DRAG = 0.03, 0.013
"""Drag as shares of the weight: at 1 m/s, and at 1 m/s squared."""
CRASH_DISTANCE, CRASH_TILT = 3.0, 100.0
"""The distance from the reference (m) and the tilt (degrees) that count as a crash."""


class FileQuadrotorPlant:
    """A quadrotor in MuJoCo that differs from its model; `measure` and `step` are those that `commission` calls.

    The seed draws mass, inertia, the force of each rotor, drag and the noise. Position, velocity, rotation and rates
    arrive one period late. The last four numbers of the measurement are the commands, filtered with the lag of the
    model. The payload changes at `payload_step`.

    **Arguments:**

    - `drone`: the model; `seed`.
    - `payload`: the mass in kg that hangs at the center, before and after the step `payload_step`.
    - `payload_step`: the step at which the payload changes; None if it does not change.
    - `wind`: the speed of the air in m/s, from a direction that the seed draws, with gusts.
    """

    def __init__(
        self,
        drone: Quadrotor,
        seed: int,
        *,
        payload: tuple[float, float] = (0.0, 0.0),
        payload_step: int | None = None,
        wind: float = 0.0,
    ):
        arguments.instance("drone", drone, Quadrotor)
        self.drone, self.seed = drone, arguments.whole("seed", seed)
        self.payload, self.payload_step = payload, payload_step
        draw = np.random.default_rng([self.seed, 9])
        self.mass = drone.mass * draw.uniform(*HEAVIER)
        stretch = np.sqrt(draw.uniform(*TURNS_HARDER))
        self.xml = _mjcf(drone, self.mass, stretch**2 * np.array(drone.inertia))
        self.model = mujoco.MjModel.from_xml_string(self.xml)
        self.model.actuator_gainprm[:, 0] = draw.uniform(*WEAKER, self.model.nu)
        self._body_inertia = self.model.body_inertia[1].copy()
        self.drag = DRAG * drone.weight * draw.uniform(0.8, 1.2, 3)
        self.square_drag = SQUARE_DRAG * drone.weight * draw.uniform(0.8, 1.2)
        heading = draw.uniform(0, 2 * np.pi)
        self.wind = arguments.non_negative("wind", wind) * np.array([np.cos(heading), np.sin(heading), 0.1])
        self._noise = quadrotor_rules.measurement_noise(drone)[:12]
        self._substeps = round(drone.dt / self.model.opt.timestep)
        self._mixer, self._matrix = np.linalg.pinv(np.array(drone.wrench)), np.array(drone.wrench)
        self._share = float(drone.filtered_wrench(0.0, 1.0))
        self.data = mujoco.MjData(self.model)
        self.reset()

    def reset(self) -> np.ndarray:
        """Return to hovering at the origin, and return the measurement, (16,)."""
        self._draw = np.random.default_rng([self.seed, 10])
        self.steps, self._gust = 0, np.zeros(3)
        self.load(self.payload[0])
        mujoco.mj_resetData(self.model, self.data)
        hover = np.array([self.drone.weight, 0.0, 0.0, 0.0])
        self.data.act[:] = self._mixer @ hover
        mujoco.mj_forward(self.model, self.data)
        self._wrench, self._late = hover, self._sensed()
        return self.measure()

    def measure(self) -> np.ndarray:
        """Return the present measurement, (16,)."""
        return np.concatenate([self._late, self._wrench])

    def step(self, u: np.ndarray) -> np.ndarray:
        """Apply thrust and torques, (4,), for one period, and return the next measurement, (16,)."""
        if self.payload_step is not None and self.steps == self.payload_step:
            self.load(self.payload[1])
        self._gust += self.drone.dt * -self._gust
        self._gust += 0.2 * np.linalg.norm(self.wind) * np.sqrt(2 * self.drone.dt) * self._draw.standard_normal(3)
        self.data.ctrl[:] = self._mixer @ u  # MuJoCo limits the commands of the rotors
        for _ in range(self._substeps):
            flow = self.wind + self._gust - self.data.qvel[:3]
            self.data.xfrc_applied[1, :3] = (self.drag + self.square_drag * np.sqrt(flow @ flow)) * flow
            mujoco.mj_step(self.model, self.data)
        self._wrench = self._wrench + self._share * (u - self._wrench)
        self.steps += 1
        now, self._late = self._late, self._sensed()
        return np.concatenate([now, self._wrench])

    @property
    def truth(self) -> np.ndarray:
        """The true state, (16,)."""
        return np.concatenate([self._motion(), self._matrix @ (self.model.actuator_gainprm[:, 0] * self.data.act)])

    def has_crashed(self, reference: np.ndarray) -> bool:
        """Return whether the quadrotor is far from its reference or upside down; NaN counts too."""
        qpos = self.data.qpos
        upright = 1 - 2 * (qpos[4] ** 2 + qpos[5] ** 2)  # the cosine of the tilt
        near = np.linalg.norm(qpos[:3] - reference[:3]) < CRASH_DISTANCE
        return not (near and upright > np.cos(np.radians(CRASH_TILT)))

    def load(self, mass: float) -> None:
        """Set the mass of the payload."""
        self.carried = mass
        self.model.body_mass[1] = self.mass + mass
        self.model.body_inertia[1] = self._body_inertia * (1 + 0.2 * mass / self.mass)
        mujoco.mj_setConst(self.model, mujoco.MjData(self.model))  # with separate data, because it overwrites them

    def _motion(self) -> np.ndarray:
        qpos, qvel = self.data.qpos, self.data.qvel
        return np.concatenate([qpos[:3], qvel[:3], rotation_vector(qpos[3:7]), qvel[3:]])

    def _sensed(self) -> np.ndarray:
        return self._motion() + self._noise * self._draw.standard_normal(12)


def _mjcf(drone: Quadrotor, mass: float, inertia: np.ndarray) -> str:
    """Return a free body in MuJoCo's XML. Each actuator makes the thrust and the torques of a rotor at the center."""

    def numbers(values: object) -> str:
        return " ".join(repr(float(v)) for v in np.ravel(np.asarray(values, float)))

    rotors = "".join(
        f'<general site="center" gear="0 0 {numbers(column)}" dyntype="filterexact" dynprm="{SLOWER * drone.lag!r}" '
        f'ctrllimited="true" ctrlrange="{low!r} {high!r}"/>'
        for column, low, high in zip(np.array(drone.wrench).T, drone.rotor_low, drone.rotor_high, strict=True)
    )
    full = inertia[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]
    steps = max(1, int(np.ceil(drone.dt / PHYSICS - 1e-9)))
    return f"""<mujoco model="quadrotor"><compiler inertiafromgeom="false"/>
    <option timestep="{drone.dt / steps!r}" gravity="0 0 {-drone.gravity!r}" integrator="implicitfast">
      <flag contact="disable"/></option>
    <worldbody><body name="quadrotor"><freejoint/><site name="center"/>
      <inertial pos="0 0 0" mass="{mass!r}" fullinertia="{numbers(full)}"/></body></worldbody>
    <actuator>{rotors}</actuator></mujoco>"""
