"""PD control of joints with gravity compensation."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..problem.constraints import AbstractConstraint, Unconstrained
from .base import Inputs, Parameter
from .computed_torque import ComputedTorque
from .robot import AbstractRobotPolicy, RobotNumbers, given_settings, unfitted


class GravityPD(AbstractRobotPolicy):
    r"""PD control of a robot's joints that also carries the weight of the robot.

    $$u = \mathrm{limit}\big(g(q) + J \big(\ddot r + \omega^2 (r - q) + 2 \zeta \omega (\dot r - \dot q)\big)
    - \hat f\big)$$

    g are the torques of the weight, and J is the constant inertia of each joint in the home position. Joints do not
    know of each other: this needs less computation than `ComputedTorque`, and is worse at high speed. θ is that of
    `ComputedTorque`.

    The numbers come from the robot of the `Loop`; see `models.RobotArm`.

    **Arguments:** `frequency`, `damping`, `u_max`, `constraint`: as in `ComputedTorque`.

    !!! Example

        >>> import selftune as st
        >>> from selftune import models, policies
        >>> link = models.Link("shoulder", axis=(0.0, -1.0, 0.0), mass=2.0, center=(0.0, 0.0, -0.3))
        >>> robot = models.RobotArm(models.RigidBody((link,)), torque_limits=20.0, lag=0.007)
        >>> loop = st.Loop(robot, policies.GravityPD(damping=0.8))
        >>> print(loop.gains(loop.theta)["frequency"].round(3), loop.gains(loop.theta)["damping"].round(3))
        [25.] [0.8]
    """

    inner: ComputedTorque | None
    given: dict[str, Any]

    def __init__(
        self,
        *,
        frequency: Any = None,
        damping: Any = None,
        u_max: Any = None,
        constraint: AbstractConstraint | None = None,
    ):
        self.given = given_settings(constraint, frequency=frequency, damping=damping, u_max=u_max)
        self.inner = None

    def for_robot(self, robot: RobotNumbers) -> "GravityPD":
        simple = robot._replace(inverse_dynamics=_Simple(robot.gravity_torque, jnp.asarray(robot.inertia)))
        return eqx.tree_at(
            lambda policy: policy.inner,
            self,
            ComputedTorque(**self.given).for_robot(simple),
            is_leaf=lambda leaf: leaf is None,
        )

    @property
    def _fitted(self) -> ComputedTorque:
        if self.inner is None:
            raise unfitted(self)
        return self.inner

    @property
    def theta(self) -> dict[str, Array]:  # pyright: ignore[reportIncompatibleVariableOverride] (Equinox allows this)
        return {} if self.inner is None else self.inner.theta

    @property
    def constraint(self) -> AbstractConstraint:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Unconstrained() if self.inner is None else self.inner.constraint

    @property
    def memory(self) -> None:
        return None

    @property
    def limits(self) -> tuple[Array, Array]:
        return self._fitted.limits

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self._fitted.parameters

    def gains(self, theta: PyTree) -> dict[str, Array]:
        """Return the natural frequencies (rad/s) and the damping ratios."""
        return {name.removeprefix("log_"): jnp.exp(value) for name, value in theta.items()}

    def __call__(self, inputs: Inputs, memory: PyTree, theta: PyTree) -> tuple[Float[Array, " m"], PyTree]:
        return self._fitted(inputs, memory, theta)


class _Simple(eqx.Module):
    """Torques of the weight and of a constant inertia at each joint."""

    gravity_torque: Any
    inertia: Array

    def __call__(self, q: Array, rate: Array, acceleration: Array) -> Array:
        return self.gravity_torque(q) + self.inertia.astype(q.dtype) * acceleration
