"""Flying bodies from MJCF files, read by MuJoCo's own compiler (extra `robots`)."""

# MuJoCo's bindings have no stubs.
# pyright: reportAttributeAccessIssue=false

import copy
import os
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from . import robot_files
from .robot_files import FILTERS, FREE

TILTED = 1e-3
"""The largest sideways force of a rotor, as a share of its thrust."""


class QuadrotorFile(NamedTuple):
    """The contents of a flying body's file. Columns of `wrench` are actuators."""

    name: str
    mass: float
    inertia: np.ndarray
    """About the center of mass, along the axes of the body, (3, 3)."""
    center: np.ndarray
    """The center of mass in the frame of the body, (3,)."""
    wrench: np.ndarray
    """Thrust and torques about the center of mass for one unit of each command, (4, k)."""
    low: np.ndarray
    high: np.ndarray
    """The limits of the commands; infinite where the file has none."""
    actuators: tuple[str, ...]
    gravity: float
    lag: float | None
    notes: tuple[str, ...]


def read(path: str | os.PathLike[str]) -> QuadrotorFile:
    """Read a flying body from an MJCF file; see `Quadrotor.from_file`."""
    model, notes = robot_files.compiled(path)
    name = robot_files.model_name(model, Path(path))

    def error(expected: str, got: str, hint: str = "") -> ArgumentError:
        return ArgumentError("path", f"a flying body with {expected}", f"{path}: {got}", hint)

    free = [j for j in range(model.njnt) if model.jnt_type[j] == FREE]
    flying = [j for j in free if robot_files.is_pushed(model, set(_bodies(model, j)))]
    if len(flying) != 1:
        got = "no free joint" if not free else f"{len(flying)} free bodies with actuators at their sites"
        hint = "an arm on a fixed base is a models.RobotArm" if not free else "give each rotor a site and an actuator"
        raise error("one free joint and rotors", got, hint)
    joint = flying[0]
    bodies = _bodies(model, joint)
    inner = [j for j in range(model.njnt) if j != joint and int(model.jnt_bodyid[j]) in bodies]
    if inner:
        names = ", ".join(model.joint(j).name or f"joint{j + 1}" for j in inner)
        notes.append(f"{names}: joints inside a flying body are fixed.")
    data = mujoco.MjData(model)
    at = int(model.jnt_qposadr[joint])
    data.qpos[at + 3 : at + 7] = 1, 0, 0, 0  # the axes of the body are those of the world
    mujoco.mj_forward(model, data)
    mass, center, inertia = _mass(model, data, bodies)
    if np.any(model.opt.gravity[:2]) or not model.opt.gravity[2] < 0:
        raise error("gravity along −z", f"gravity {model.opt.gravity}")
    wrench, used = _wrench(model, data, int(model.jnt_dofadr[joint]), center, error)
    low, high, lags = np.full(len(used), -np.inf), np.full(len(used), np.inf), []
    for n, i in enumerate(used):
        low[n], high[n] = _range(model, i)
        if model.actuator_dyntype[i] in FILTERS and model.actuator_dynprm[i, 0] > 0:
            lags.append(float(model.actuator_dynprm[i, 0]))
    return QuadrotorFile(
        name=name,
        mass=mass,
        inertia=inertia,
        center=center,
        wrench=wrench,
        low=low,
        high=high,
        actuators=tuple(model.actuator(i).name or f"actuator{i + 1}" for i in used),
        gravity=float(-model.opt.gravity[2]),
        lag=max(lags) if lags else None,
        notes=tuple(notes),
    )


def _bodies(model: Any, joint: int) -> list[int]:
    return sorted(robot_files.bodies_behind(model, int(model.jnt_bodyid[joint])))


def _mass(model: Any, data: Any, bodies: list[int]) -> tuple[float, np.ndarray, np.ndarray]:
    """Return mass, center of mass in the frame of the first body, and inertia about it."""
    masses = model.body_mass[bodies]
    mass = float(masses.sum())
    center = masses @ data.xipos[bodies] / mass
    inertia = np.zeros((3, 3))
    for body in bodies:
        R, away = data.ximat[body].reshape(3, 3), data.xipos[body] - center
        inertia += R @ np.diag(model.body_inertia[body]) @ R.T
        inertia += model.body_mass[body] * (away @ away * np.eye(3) - np.outer(away, away))
    inertia = (inertia + inertia.T) / 2
    # Products of inertia that are rounding errors would make the model larger.
    small = np.abs(inertia) < 1e-12 * np.trace(inertia)
    return mass, center - data.xpos[bodies[0]], np.where(small, 0.0, inertia)


def _wrench(model: Any, data: Any, dof: int, center: np.ndarray, error: Any) -> tuple[np.ndarray, list[int]]:
    """Return the wrench matrix and the actuators that it belongs to. MuJoCo computes the forces of unit commands."""
    plain = copy.copy(model)
    plain.actuator_ctrllimited[:] = 0
    plain.actuator_forcelimited[:] = 0
    plain.actuator_dyntype[:] = mujoco.mjtDyn.mjDYN_NONE

    def forces(i: int, size: float) -> np.ndarray:
        data.ctrl[:], data.act[:] = 0, 0
        data.ctrl[int(model.actuator_ctrladr[i])] = size
        if (last := int(model.actuator_actadr[i] + model.actuator_actnum[i])) > 0:
            data.act[last - 1] = size  # an actuator with a lag, in its steady state
        mujoco.mj_fwdActuation(plain, data)
        force, torque = np.split(np.array(data.qfrc_actuator[dof : dof + 6]), 2)
        return np.concatenate([force, torque - np.cross(center, force)])

    columns, used = [], []
    for i in range(model.nu):
        zero = forces(i, 0.0)
        biased = data.actuator_force[i] != 0
        column, twice = (forces(i, size) - zero for size in (1.0, 2.0))
        if not np.any(column):
            continue
        name = model.actuator(i).name or f"actuator{i + 1}"
        if biased or not np.allclose(twice, 2 * column, rtol=1e-9):
            hint = "use <motor>, or <general> without a bias"
            raise error("rotors whose force is proportional to their command", f"another kind at {name!r}", hint)
        if np.max(np.abs(column[:2])) > TILTED * max(abs(column[2]), 1e-300):
            hint = "tilted rotors are not supported; write the model as four functions"
            raise error("rotors along the z axis of the body", f"a sideways force of {name!r}", hint)
        columns.append(np.where(np.abs(column) < 1e-15 * np.max(np.abs(column)), 0.0, column)[2:])
        used.append(i)
    return np.array(columns).T, used


def _range(model: Any, i: int) -> tuple[float, float]:
    """Return the limits of an actuator's command; the limits of its force count too."""
    low, high = -np.inf, np.inf
    control = int(model.actuator_ctrladr[i])
    if model.actuator_ctrllimited[control]:
        low, high = map(float, model.actuator_ctrlrange[control])
    gain = float(model.actuator_gainprm[i, 0])
    if model.actuator_forcelimited[i] and gain:
        a, b = sorted(float(force) / gain for force in model.actuator_forcerange[i])
        low, high = max(low, a), min(high, b)
    return low, high


def check_limits(found: QuadrotorFile, given: Any) -> tuple[Any, Any]:
    """Return the limits of the commands; those that the user gives replace those of the file."""
    if given is None:
        missing = [n for n, a, b in zip(found.actuators, found.low, found.high, strict=True) if not np.isfinite(b - a)]
        if missing:
            expected = "the least and the largest commands, because the file gives no ctrlrange for " + ", ".join(
                missing
            )
            raise ArgumentError("rotor_limits", expected, "None", "give rotor_limits=(low, high)")
        return found.low, found.high
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ArgumentError("rotor_limits", "a pair (low, high)", arguments.describe(given))
    return given[0], given[1]
