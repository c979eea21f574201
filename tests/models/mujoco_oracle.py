"""MuJoCo's own dynamics of a file, for the joints that a model has."""

# pyright: reportAttributeAccessIssue=false

from typing import NamedTuple

import mujoco
import numpy as np

from selftune.models import RobotArm, robot_files


class Dynamics(NamedTuple):
    torque: np.ndarray
    bias: np.ndarray
    mass_matrix: np.ndarray


class Oracle:
    """The compiled file. Joints that the model fixes are at home and at rest."""

    def __init__(self, path, robot: RobotArm, fixed_at: dict[str, float] | None = None):
        self.model, _ = robot_files.compiled(path)
        # Only the equations of motion: no contact, no constraint, no actuator, no fluid, no compensation of gravity.
        flags = mujoco.mjtDisableBit.mjDSBL_CONSTRAINT | mujoco.mjtDisableBit.mjDSBL_ACTUATION
        self.model.opt.disableflags |= int(flags)
        self.model.opt.density = self.model.opt.viscosity = 0.0
        self.model.body_gravcomp[:] = 0.0
        self.model.tendon_stiffness[:] = 0.0
        self.model.tendon_damping[:] = 0.0
        self.data = mujoco.MjData(self.model)
        names = [self.model.joint(j).name or f"joint{j + 1}" for j in range(self.model.njnt)]
        joints = [names.index(link.name) for link in robot.body.links]
        self.places, self.dofs = self.model.jnt_qposadr[joints], self.model.jnt_dofadr[joints]
        self.start = np.array(self.model.qpos0)
        if self.model.nkey:
            keys = [self.model.key(k).name for k in range(self.model.nkey)]
            self.start = np.array(self.model.key_qpos[keys.index("home") if "home" in keys else 0])
        else:
            for j in range(self.model.njnt):
                if self.model.jnt_limited[j] and self.model.jnt_type[j] in (2, 3):  # slide, hinge
                    at = self.model.jnt_qposadr[j]
                    self.start[at] = np.clip(self.start[at], *self.model.jnt_range[j])

    def at(self, q, rate, acceleration) -> Dynamics:
        model, data = self.model, self.data
        data.qpos[:], data.qvel[:] = self.start, 0.0
        data.qpos[self.places], data.qvel[self.dofs] = q, rate
        mujoco.mj_forward(model, data)
        data.qacc[:] = 0.0
        data.qacc[self.dofs] = acceleration
        mujoco.mj_inverse(model, data)
        bias = np.zeros(model.nv)
        mujoco.mj_rne(model, data, 0, bias)
        M = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, data, M)
        return Dynamics(data.qfrc_inverse[self.dofs].copy(), bias[self.dofs], M[np.ix_(self.dofs, self.dofs)])
