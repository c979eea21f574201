"""A path of a robot's tool as a path of its joints, by the Jacobian of the tool."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..models.robot_arm import RobotArm
from .references import Recorded

CLOSE = 1e-6
"""The joints follow the tool's path up to this share of the reach."""
DAMPING = 1e-2
"""The damping of the inverse of the Jacobian near a singular position, as a share of the reach."""


def tool_path(robot: RobotArm, positions: Any, *, start: Any = None) -> Recorded:
    r"""Return the joints' positions, rates and accelerations for a periodic path of the tool.

    At each step, Newton's method with the Jacobian of the tool finds the joints nearest to those of the step before:
    $\Delta q = J^\top (J J^\top + \mu^2 I)^{-1} (p - p(q))$. Motions that do not move the tool are left out. The rates
    and accelerations are differences of the positions around the closed path.

    **Arguments:** `robot`; `positions`: the tool's position at each control period of a lap, (T, 3), in m, in the frame
    of the base; `start`: the joints from which the search starts; by default home.

    !!! Example

        >>> import jax.numpy as jnp, numpy as np
        >>> from selftune import models, robot_rules
        >>> down = dict(axis=(0.0, -1.0, 0.0), mass=1.0)
        >>> links = [models.Link("shoulder", **down, center=(0.0, 0.0, -0.2)),
        ...          models.Link("elbow", 0, position=(0.0, 0.0, -0.4), **down, center=(0.0, 0.0, -0.2))]
        >>> body = models.RigidBody(links, tool_position=(0.0, 0.0, -0.4))
        >>> robot = models.RobotArm(body, torque_limits=20.0, home=(0.3, 0.8), dt=0.01)
        >>> turn = np.linspace(0, 2 * np.pi, 200, endpoint=False)[:, None]
        >>> home = np.array(body.tool_pose(jnp.array(robot.home))[0])
        >>> circle = home - 0.05 * np.hstack([1 - np.cos(turn), 0 * turn, np.sin(turn)])
        >>> path = robot_rules.tool_path(robot, circle)
        >>> reached = body.tool_pose(path.values[50, :2])[0]
        >>> bool(np.linalg.norm(reached - circle[50]) < 1e-5)
        True
    """
    arguments.instance("robot", robot, RobotArm)
    wanted = np.asarray(positions, float)
    if wanted.ndim != 2 or wanted.shape[1] != 3 or len(wanted) < 8 or not np.all(np.isfinite(wanted)):
        raise ArgumentError("positions", "finite positions (T, 3), at least 8", arguments.describe(wanted))
    body, reach = robot.body, robot.reach

    @jax.jit
    def step(q: Any, p: Any) -> tuple[Any, Any]:
        J, error = body.tool_jacobian(q)[:3], p - body.tool_pose(q)[0]
        # Damped only as far as the error needs it, so that the last steps are those of Newton.
        mu = jnp.minimum(DAMPING * reach, jnp.linalg.norm(error))
        return q + J.T @ jnp.linalg.solve(J @ J.T + (mu**2 + 1e-12 * reach**2) * jnp.eye(3), error), error

    q = jnp.asarray(robot.home if start is None else start, float)
    rows = []
    for i, p in enumerate(np.vstack([wanted, wanted[:1]])):
        for _ in range(200):
            q, error = step(q, jnp.asarray(p))
            if float(jnp.linalg.norm(error)) < CLOSE * reach:
                break
        else:
            raise ArgumentError("positions", f"points within the reach of {reach:.3g} m", f"{p} (row {i})")
        rows.append(np.asarray(q))
    gap = rows.pop() - rows[0]
    # With more than three joints, the joints may end a lap elsewhere than they began: the gap is spread over the lap.
    table = np.array(rows) - np.linspace(0, 1, len(rows), endpoint=False)[:, None] * gap
    outside = (table < np.array(robot.low)) | (table > np.array(robot.high))
    if np.any(outside):
        row, joint = np.argwhere(outside)[0]
        got = f"{table[row, joint]:.3g} for {robot.body.links[joint].name} (row {row})"
        raise ArgumentError("positions", "points within the ranges of the joints", got)
    rate = (np.roll(table, -1, axis=0) - np.roll(table, 1, axis=0)) / (2 * robot.dt)
    acceleration = (np.roll(table, -1, axis=0) - 2 * table + np.roll(table, 1, axis=0)) / robot.dt**2
    return Recorded(np.concatenate([table, rate, acceleration], axis=1))
