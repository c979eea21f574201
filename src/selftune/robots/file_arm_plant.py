"""A robot from a file as a plant in MuJoCo: heavier links, friction, slower motors, noise, delay and a payload."""

# MuJoCo's bindings have no stubs.
# pyright: reportAttributeAccessIssue=false

from collections import deque
from dataclasses import dataclass

import mujoco
import numpy as np

from ..foundation import arguments
from ..loop import robot_rules
from ..models.rigid_body import Link
from ..models.robot_arm import RobotArm

PHYSICS = 0.001
"""The longest step of the physics, in seconds."""
HEAVIER = (1.02, 1.12)
"""The range of the factors on the masses and inertias of the links."""
VISCOUS, DRY = (0.01, 0.025), (0.01, 0.025)
"""Ranges of the friction, as shares of the rated torque; viscous friction at 1 rad/s."""
SLOWER = 1.25
"""The time constant of the motors, relative to the model's."""
CRASH_ANGLE, CRASH_RATE = 1.5, 30.0
"""Errors of a hinge (rad, rad/s) that count as a crash; for a slide, times its length."""


@dataclass(frozen=True)
class Mismatch:
    """How a plant differs from the model of its controller. The defaults are the same for all robots.

    !!! Example

        >>> from selftune.robots.file_arm_plant import Mismatch
        >>> Mismatch(delay=0).delay
        0
    """

    heavier: tuple[float, float] = HEAVIER
    viscous: tuple[float, float] = VISCOUS
    dry: tuple[float, float] = DRY
    slower: float = SLOWER
    delay: int = 1
    """The delay of the measured positions and rates, in control periods."""
    noise: float = 1.0
    """The noise, as a multiple of `robot_rules.measurement_noise`."""


def mjcf(robot: RobotArm, links: tuple[Link, ...], *, lag: float, payload: float = 0.0) -> str:
    """Return the robot in MuJoCo's XML, from its model's numbers, with a payload at the tool.

    The activation of each actuator is its torque. It follows the command, limited to the motor's range, with a lag.
    """
    body = robot.body
    children: dict[int, list[int]] = {}
    for i, link in enumerate(links):
        children.setdefault(link.parent, []).append(i)

    def numbers(values: object) -> str:
        return " ".join(repr(float(v)) for v in np.ravel(np.asarray(values, float)))

    def quaternion(rotation: object) -> str:
        q = np.zeros(4)
        mujoco.mju_mat2Quat(q, np.ravel(np.asarray(rotation, float)))
        return numbers(q)

    def element(i: int) -> str:
        link = links[i]
        I = np.array(link.inertia)  # noqa: E741
        limited = np.isfinite(robot.low[i]) and np.isfinite(robot.high[i])
        joint = (
            f'<joint name="joint{i}" type="{link.kind}" axis="{numbers(link.axis)}" pos="{numbers(link.anchor)}" '
            f'ref="{link.zero!r}" armature="{link.armature!r}" damping="{link.damping!r}" '
            f'stiffness="{link.stiffness!r}" springref="{link.rest!r}"'
            + (f' limited="true" range="{robot.low[i]!r} {robot.high[i]!r}"/>' if limited else "/>")
        )
        mass = max(link.mass, 1e-9)
        full = [I[0, 0], I[1, 1], I[2, 2], I[0, 1], I[0, 2], I[1, 2]]
        if np.linalg.eigvalsh(I)[0] <= 1e-15:
            full = [1e-9, 1e-9, 1e-9, 0, 0, 0]
        inertial = f'<inertial pos="{numbers(link.center)}" mass="{mass!r}" fullinertia="{numbers(full)}"/>'
        tool = ""
        if i == body.tool:
            tool = (
                f'<body name="payload" pos="{numbers(body.tool_position)}"><inertial pos="0 0 0" mass="{payload!r}" '
                f'diaginertia="1e-12 1e-12 1e-12"/><geom type="sphere" size="{0.03 * robot.reach!r}"/></body>'
            )
        inside = "".join(element(k) for k in children.get(i, []))
        shapes = _shapes(robot, links, i, children.get(i, []))
        return (
            f'<body name="link{i}" pos="{numbers(link.position)}" quat="{quaternion(link.rotation)}">'
            f"{joint}{inertial}{shapes}{tool}{inside}</body>"
        )

    motors = "".join(
        f'<general joint="joint{i}" dyntype="filterexact" dynprm="{lag!r}" ctrllimited="true" '
        f'ctrlrange="{-limit!r} {limit!r}"/>'
        for i, limit in enumerate(robot.torque_limits)
    )
    steps = max(1, int(np.ceil(robot.dt / PHYSICS - 1e-9)))
    return f"""<mujoco model="robot"><compiler angle="radian" balanceinertia="true" boundmass="1e-10"
      boundinertia="1e-13" inertiafromgeom="false"/>
    <option timestep="{robot.dt / steps!r}" gravity="{numbers(body.gravity)}" integrator="implicitfast">
      <flag contact="disable"/></option>
    <default><geom contype="0" conaffinity="0" mass="0"/></default>
    <worldbody>{"".join(element(i) for i in children[-1])}</worldbody>
    <actuator>{motors}</actuator></mujoco>"""


def _shapes(robot: RobotArm, links: tuple[Link, ...], i: int, children: list[int]) -> str:
    """Return capsules from a joint to the next ones and to the tool, in place of meshes."""
    radius = 0.035 * robot.reach
    link = links[i]
    start = np.array(link.anchor)
    ends = [np.array(links[k].position) + np.array(links[k].rotation) @ np.array(links[k].anchor) for k in children]
    if i == robot.body.tool:
        ends.append(np.array(robot.body.tool_position))
    if not ends:
        ends.append(np.array(link.center))
    text = f'<geom type="sphere" size="{1.2 * radius!r}" pos="{" ".join(map(repr, map(float, start)))}"/>'
    for end in ends:
        if np.linalg.norm(end - start) > 1e-3 * robot.reach:
            points = " ".join(repr(float(v)) for v in (*start, *end))
            text += f'<geom type="capsule" size="{radius!r}" fromto="{points}"/>'
    return text


class FileArmPlant:
    """A robot in MuJoCo that differs from its model; `measure` and `step` are those that `commission` calls.

    The seed draws heavier links, friction and the noise. The drives report no torque: the third part of the
    measurement is the command, filtered with the lag of the model. The payload changes at `payload_step`.

    **Arguments:**

    - `robot`: the model; `seed`.
    - `payload`: the mass at the tool in kg, before and after the step `payload_step`; None for `robot_rules.payloads`.
    - `payload_step`: the step at which the payload changes; None if it does not change.
    - `mismatch`: how the plant differs from the model.
    """

    def __init__(
        self,
        robot: RobotArm,
        seed: int,
        *,
        payload: tuple[float, float] | None = None,
        payload_step: int | None = None,
        mismatch: Mismatch | None = None,
    ):
        self.robot, self.seed = robot, arguments.whole("seed", seed)
        self.payload = robot_rules.payloads(robot) if payload is None else payload
        self.payload_step = payload_step
        self.mismatch = mismatch = Mismatch() if mismatch is None else mismatch
        draw = np.random.default_rng([seed, 7])
        rated, lengths = np.array(robot.rated_torques), np.array(robot.lengths)
        links = []
        for link in robot.body.links:
            factor = draw.uniform(*mismatch.heavier)
            inertia = tuple(map(tuple, factor * np.array(link.inertia)))
            links.append(link._replace(mass=factor * link.mass, inertia=inertia))
        viscous = draw.uniform(*mismatch.viscous, robot.joints) * rated / lengths
        dry = draw.uniform(*mismatch.dry, robot.joints) * rated
        self.xml = mjcf(robot, tuple(links), lag=mismatch.slower * robot.lag, payload=max(self.payload[0], 1e-9))
        self.model = mujoco.MjModel.from_xml_string(self.xml)
        self.order = np.array([self.model.joint(f"joint{i}").dofadr[0] for i in range(robot.joints)])
        self.model.dof_damping[self.order] += viscous
        self.model.dof_frictionloss[self.order] += dry
        self._substeps = round(robot.dt / self.model.opt.timestep)
        # The numbers of the robot that each step needs: attributes of an Equinox module take microseconds to read.
        self._limits, self._share = np.array(robot.torque_limits), float(robot.filtered_torque(0.0, 1.0))
        self._bounds = np.concatenate([CRASH_ANGLE * lengths, CRASH_RATE * lengths])
        self._noise = mismatch.noise * robot_rules.measurement_noise(robot)[: 2 * robot.joints]
        self.data = mujoco.MjData(self.model)
        self.reset()

    def reset(self) -> np.ndarray:
        """Return to the home position, and return the measurement."""
        self._draw = np.random.default_rng([self.seed, 8])
        self.steps = 0
        self.load(self.payload[0])
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[self.order] = self.robot.home
        mujoco.mj_forward(self.model, self.data)
        hold = self.data.qfrc_bias[self.order] - self.data.qfrc_passive[self.order]
        self.data.act[:] = np.clip(hold, -self._limits, self._limits)
        self._torque = self.data.act.copy()
        self._past = deque([self._motion()] * (self.mismatch.delay + 1), maxlen=self.mismatch.delay + 1)
        self._last = self._measurement()
        return self._last

    def measure(self) -> np.ndarray:
        """Return the present measurement, (3j,)."""
        return self._last

    def step(self, u: np.ndarray) -> np.ndarray:
        """Apply the commands for one period, and return the next measurement, (3j,)."""
        if self.payload_step is not None and self.steps == self.payload_step:
            self.load(self.payload[1])
        command = np.minimum(np.maximum(u, -self._limits), self._limits)
        self.data.ctrl[:] = command
        mujoco.mj_step(self.model, self.data, nstep=self._substeps)
        self._torque = self._torque + self._share * (command - self._torque)
        self.steps += 1
        self._past.append(self._motion())
        self._last = self._measurement()
        return self._last

    @property
    def truth(self) -> np.ndarray:
        """The true state (q, rates, torques), (3j,)."""
        return np.concatenate([self._past[-1], self.data.act])

    def has_crashed(self, reference: np.ndarray) -> bool:
        """Return whether the robot is far from its reference; NaN counts too."""
        motion = self._past[-1]
        return not (np.abs(motion - reference[: motion.size]) < self._bounds).all()

    def load(self, mass: float) -> None:
        """Set the mass at the tool."""
        self.carried = mass
        self.model.body("payload").mass = max(mass, 1e-9)
        mujoco.mj_setConst(self.model, mujoco.MjData(self.model))  # with separate data, because it overwrites them

    def _motion(self) -> np.ndarray:
        return np.concatenate([self.data.qpos[self.order], self.data.qvel[self.order]])

    def _measurement(self) -> np.ndarray:
        noise = self._noise * self._draw.standard_normal(self._noise.size)
        return np.concatenate([self._past[0] + noise, self._torque])
