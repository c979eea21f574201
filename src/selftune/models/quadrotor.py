"""A quadrotor, or another flying body whose rotors all push along one axis."""

import math
import os
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..foundation import arguments, extras
from ..foundation.errors import ArgumentError
from ..foundation.rotations import rotation_matrix, rotation_rate
from ..problem.constraints import Box
from ..problem.loop_context import LoopContext, coming_period
from .base import AbstractModel, Signal, sampling_period

DT, LAG = 0.002, 0.024
"""The control period and the time constant of the rotors, in seconds, if neither the user nor the file gives them."""
POSITION_ERROR, VELOCITY_ERROR = 0.1, 0.5
"""The errors of position (m) and velocity (m/s) that count as 1."""
WIND, DRAG, LIGHTER, CARRIED = 0.5, 0.2, 0.3, 0.8
"""Bounds of a: the wind's force and the drag at 1 m/s, as shares of the weight; the mass that the body may lack, as a
share of its mass; the largest payload, as a share of what the rotors lift beyond the weight."""
SLUGGISH = 1.0
"""A quadrotor whose rotors turn it more slowly than this (rad/s²) gets a note."""


class Quadrotor(AbstractModel):
    r"""A flying body with rotors along its z axis: $x = (p, v, r, \Omega, w)$, $u$ = commanded thrust and torques.

    $$m \dot v = w_1 R(r)\, e_3 - m g e_3 + f, \qquad J \dot\Omega = w_{2:4} - \Omega \times J \Omega, \qquad
    T \dot w = u - w$$

    p and v are the position and the velocity of the center of mass, r is the rotation vector of the body, Ω its rates
    about its own axes, and w the thrust and the torques, which follow their commands with the time constant T of the
    rotors. `rotor_commands(u)` divides thrust and torques among the rotors. The residual f is a force, linear in a:

    $$f = (a_1, a_2, 0) - a_{3:5} \circ v - a_6 (\ddot r + g e_3)$$

    $a_1, a_2$ are the force of a horizontal wind (N), $a_{3:5}$ drag (N·s/m), and $a_6$ is a payload (kg), whose
    acceleration is taken from the reference. The reference has position, velocity, acceleration and jerk, 12 numbers. A
    `Loop` measures the whole state: for w, use the commands, filtered with T (`filtered_wrench`).

    **Arguments:**

    - `mass` (kg); `inertia` (kg·m²): three moments of inertia, or a symmetric (3, 3) matrix, about the center of mass.
    - `wrench`: (4, k), thrust (N) and torques (N·m) for one unit of each of the k rotor commands.
    - `rotor_low`, `rotor_high`: the limits of the rotor commands, each a number or one for each rotor.
    - `gravity` (m/s²); `dt`: the control period in seconds; `lag`: T in seconds.
    - `notes`: sentences about the file, for people.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> x, y = [0.03, -0.03, -0.03, 0.03], [0.03, 0.03, -0.03, -0.03]
        >>> wrench = [[1.0] * 4, y, [-one for one in x], [-0.006, 0.006, -0.006, 0.006]]
        >>> drone = models.Quadrotor(0.03, (16e-6, 16e-6, 29e-6), wrench, rotor_low=0.0, rotor_high=0.15)
        >>> print(round(drone.thrust_limit, 3), drone.rotor_commands([0.2943, 0.0, 0.0, 0.0]).round(4))
        0.6 [0.0736 0.0736 0.0736 0.0736]
        >>> bool(jnp.allclose(drone.dynamics(drone.x0, drone.x0[12:], jnp.zeros(3), 0), drone.x0))  # hovers
        True
    """

    mass: float = eqx.field(static=True)
    inertia: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    wrench: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    rotor_low: tuple[float, ...] = eqx.field(static=True)
    rotor_high: tuple[float, ...] = eqx.field(static=True)
    gravity: float = eqx.field(static=True)
    dt: float = eqx.field(static=True)
    lag: float = eqx.field(static=True)
    thrust_limit: float = eqx.field(static=True)
    """The largest thrust without torques, in N."""
    torque_limits: tuple[float, ...] = eqx.field(static=True)
    """The largest torque about each axis while the body hovers, in N·m."""
    name: str = eqx.field(static=True)
    notes: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        mass: float,
        inertia: Any,
        wrench: Any,
        *,
        rotor_low: Any = 0.0,
        rotor_high: Any,
        gravity: float = 9.81,
        dt: float = DT,
        lag: float = LAG,
        name: str = "quadrotor",
        notes: Sequence[str] = (),
    ):
        self.mass, self.gravity = (float(arguments.positive(n, v)) for n, v in (("mass", mass), ("gravity", gravity)))
        self.inertia = _inertia(inertia)
        matrix = np.asarray(arguments.real_array("wrench", wrench), float)
        if matrix.ndim != 2 or matrix.shape[0] != 4 or not matrix.shape[1]:
            raise ArgumentError("wrench", "a (4, k) matrix, a column for each rotor", arguments.describe(wrench))
        self.wrench = tuple(tuple(map(float, row)) for row in matrix)
        limits = {"rotor_low": rotor_low, "rotor_high": rotor_high}
        rows = (arguments.real_array(n, v) for n, v in limits.items())
        size = (matrix.shape[1],)
        self.rotor_low, self.rotor_high = (
            tuple(map(float, arguments.fit_shape(n, row, size))) for n, row in zip(limits, rows, strict=True)
        )
        if not all(a < b for a, b in zip(self.rotor_low, self.rotor_high, strict=True)):
            raise ArgumentError("rotor_low", "less than rotor_high", f"{self.rotor_low} and {self.rotor_high}")
        self.dt, self.lag = sampling_period(dt), float(arguments.positive("lag", lag))
        self.thrust_limit, self.torque_limits = _limits(matrix, self.rotor_low, self.rotor_high, self.weight)
        self.name, self.notes = name, tuple(notes)
        slowest = min(np.array(self.torque_limits) / np.diag(np.array(self.inertia)))
        if slowest < SLUGGISH:
            self.notes += (
                f"The rotors turn the hovering body with only {slowest:.2g} rad/s² about one axis: check their limits.",
            )

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        rotor_limits: Any = None,
        dt: float = DT,
        lag: float | None = None,
    ) -> "Quadrotor":
        """Read a flying body from an MJCF file with MuJoCo's own compiler (extra `robots`).

        The file has one body with a free joint, on which actuators act at sites or bodies: rotors, or, as in the
        Crazyflie of MuJoCo Menagerie, thrust and torques themselves. Mass and inertia are those of all bodies that move
        with the free joint; `drone.notes` names the inner joints, such as those of propellers, which are fixed. A body
        whose rotors cannot lift its weight, or cannot turn it about all three axes, is an error that says what to do.

        **Arguments:**

        - `path`: an MJCF file (`.xml`). A URDF has no actuators, so it describes no rotors.
        - `rotor_limits`: the pair of the least and the largest command, each a number or one for each actuator; by
          default the `ctrlrange` or `forcerange` of the actuators.
        - `dt`: the control period in seconds; `lag`: by default that of the file's actuators, otherwise 24 ms.

        !!! Example

            >>> import tempfile, pathlib
            >>> from selftune import models
            >>> rotors = [(0.1, -0.1, 1), (-0.1, -0.1, -1), (-0.1, 0.1, 1), (0.1, 0.1, -1)]
            >>> sites = "".join(f'<site name="r{i}" pos="{x} {y} 0"/>' for i, (x, y, _) in enumerate(rotors))
            >>> motors = "".join(
            ...     f'<motor site="r{i}" gear="0 0 1 0 0 {0.02 * spin}" ctrlrange="0 8"/>'
            ...     for i, (_, _, spin) in enumerate(rotors)
            ... )
            >>> text = f'''<mujoco><worldbody><body name="drone"><freejoint/>
            ...   <inertial pos="0 0 0" mass="1.3" diaginertia="0.01 0.012 0.02"/>{sites}</body></worldbody>
            ...   <actuator>{motors}</actuator></mujoco>'''
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "drone.xml")
            ...     _ = path.write_text(text)
            ...     drone = models.Quadrotor.from_file(path)
            >>> round(drone.thrust_limit, 6), round(drone.mass, 6)
            (32.0, 1.3)
        """
        files = extras.load("models.quadrotor_files", asked_for="Quadrotor.from_file", extra="robots")
        found = files.read(path)
        low, high = files.check_limits(found, rotor_limits)
        if lag is None:
            lag = found.lag
        return cls(
            found.mass,
            found.inertia,
            found.wrench,
            rotor_low=low,
            rotor_high=high,
            gravity=found.gravity,
            dt=dt,
            lag=LAG if lag is None else lag,
            name=found.name,
            notes=found.notes,
        )

    @property
    def weight(self) -> float:
        """The thrust of hovering, in N."""
        return self.mass * self.gravity

    @property
    def latency(self) -> float:
        """The time in seconds from a measurement to the rotors' thrust: the lag and one and a half periods."""
        return self.lag + 1.5 * self.dt

    @property
    def states(self) -> tuple[Signal, ...]:
        signals = list(self.outputs)
        for name, unit, scale in (("rotation", "rad", 0.1), ("rate", "rad/s", 1.0)):
            signals += [Signal(f"{name} {axis}", unit, scale) for axis in "xyz"]
        return (*signals, *(one._replace(name=f"true {one.name}") for one in self.controls))

    @property
    def controls(self) -> tuple[Signal, ...]:
        torques = (Signal(f"torque {axis}", "N·m", size) for axis, size in zip("xyz", self.torque_limits, strict=True))
        return (Signal("thrust", "N", self.weight), *torques)

    @property
    def outputs(self) -> tuple[Signal, ...]:
        return self.references[:6]

    @property
    def references(self) -> tuple[Signal, ...]:
        pace, signals = VELOCITY_ERROR / POSITION_ERROR, []
        for power, name in enumerate(("position", "velocity", "acceleration", "jerk")):
            unit = ("m", "m/s", "m/s²", "m/s³")[power]
            signals += [Signal(f"{name} {axis}", unit, POSITION_ERROR * pace**power) for axis in "xyz"]
        return tuple(signals)

    @property
    def parameters(self) -> tuple[Signal, ...]:
        named = [("wind x", "N"), ("wind y", "N"), *((f"drag {axis}", "N·s/m") for axis in "xyz"), ("payload", "kg")]
        return tuple(
            Signal(name, unit, float(size)) for (name, unit), size in zip(named, self._bounds()[1], strict=True)
        )

    @property
    def payload_limit(self) -> float:
        """The largest payload that the estimator may find, in kg."""
        return CARRIED * (self.thrust_limit - self.weight) / self.gravity

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        wind, drag = WIND * self.weight, DRAG * self.weight
        low = [-wind, -wind, 0.0, 0.0, 0.0, -LIGHTER * self.mass]
        return np.array(low), np.array([wind, wind, drag, drag, drag, self.payload_limit])

    @property
    def x0(self) -> Float[Array, " 16"]:
        return jnp.asarray(np.concatenate([np.zeros(12), [self.weight], np.zeros(3)]))

    @property
    def a_hat(self) -> Float[Array, " 6"]:
        return jnp.zeros(6)

    @property
    def a_constraint(self) -> Box:
        low, high = self._bounds()
        return Box(jnp.asarray(low), jnp.asarray(high))

    def accelerations(
        self, r: Float[Array, " 3"], rate: Float[Array, " 3"], wrench: Float[Array, " 4"], f: Float[Array, " 3"]
    ) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
        """Return the acceleration of the center of mass in the world, and the angular acceleration about the body's
        axes, from the rotation vector, the body rates, thrust and torques, and another force in the world."""
        up = jnp.array([0.0, 0.0, 1.0], r.dtype)
        linear = (wrench[0] * rotation_matrix(r)[:, 2] + f) / self.mass - self.gravity * up
        inertia = np.array(self.inertia)
        if np.any(inertia - np.diag(np.diag(inertia))):
            J, inverse = jnp.asarray(inertia, r.dtype), jnp.asarray(np.linalg.inv(inertia), r.dtype)
            return linear, inverse @ (wrench[1:] - jnp.cross(rate, J @ rate))
        moments = jnp.asarray(np.diag(inertia), r.dtype)
        return linear, (wrench[1:] - jnp.cross(rate, moments * rate)) / moments

    def dynamics(self, x: Float[Array, " n"], u: Float[Array, " m"], f: Float[Array, " k"], t: Any) -> Array:
        p, v, r, rate = x[:12].reshape(4, 3)
        period = coming_period(t)
        dt = jnp.asarray(self.dt, x.dtype) if period is None else period.astype(x.dtype)
        wrench = self.filtered_wrench(x[12:], u, dt)
        linear, angular = self.accelerations(r, rate, wrench, f)
        v, rate = v + dt * linear, rate + dt * angular
        return jnp.concatenate([p + dt * v, v, r + dt * rotation_rate(r, rate), rate, wrench])

    def filtered_wrench(self, wrench: Any, u: Any, dt: Any = None) -> Any:
        """Return thrust and torques one period later, (4,); NumPy arrays stay NumPy arrays."""
        if dt is None or not hasattr(dt, "dtype"):
            share: Any = 1 - math.exp(-(self.dt if dt is None else dt) / self.lag)
        else:
            share = 1 - jnp.exp(-dt / self.lag)
        return wrench + share * (u - wrench)

    def rotor_commands(self, u: Any) -> np.ndarray:
        """Return the commands of the rotors, (k,), for thrust and torques, (4,), within the limits of the rotors."""
        commands = np.linalg.pinv(np.array(self.wrench)) @ np.asarray(u, float)
        return np.clip(commands, self.rotor_low, self.rotor_high)

    def residual(self, x: Float[Array, " n"], a: Float[Array, " p"], t: Any) -> Array:
        wanted = t.reference[6:9].astype(x.dtype) if isinstance(t, LoopContext) else jnp.zeros(3, x.dtype)
        lifted = wanted + jnp.array([0.0, 0.0, self.gravity], x.dtype)
        wind = jnp.concatenate([a[:2], jnp.zeros(1, a.dtype)])
        return wind - a[2:5] * x[3:6] - a[5] * lifted

    def output(self, x: Float[Array, " n"]) -> Array:
        return x[:6]

    def measure(self, x: Float[Array, " n"], t: Any) -> Array:
        return self.output(x)


def _inertia(value: Any) -> tuple[tuple[float, ...], ...]:
    array = np.asarray(arguments.real_array("inertia", value), float)
    matrix = np.diag(array) if array.shape == (3,) else array
    expected = "three moments > 0, or a symmetric positive definite (3, 3) matrix"
    if matrix.shape != (3, 3) or not np.allclose(matrix, matrix.T) or np.linalg.eigvalsh(matrix)[0] <= 0:
        raise ArgumentError("inertia", expected, arguments.describe(value))
    return tuple(tuple(map(float, row)) for row in matrix)


def _limits(wrench: np.ndarray, low: Any, high: Any, weight: float) -> tuple[float, tuple[float, ...]]:
    """Return the largest thrust without torques, and the largest torque about each axis at the thrust of hovering."""
    from scipy.optimize import linprog

    sizes = np.maximum(np.max(np.abs(wrench), axis=1), 1e-300)
    rows, bounds = wrench / sizes[:, None], list(zip(low, high, strict=True))  # rows of similar size suit the solver
    if np.linalg.matrix_rank(rows) < 4:
        raise ArgumentError(
            "wrench",
            "rotors that make thrust and torques about all three axes",
            f"a matrix of rank {np.linalg.matrix_rank(rows)}",
            "the last number of a rotor's gear is its reaction torque, such as gear='0 0 1 0 0 0.02'; rotors that are "
            "diagonally opposite have the same sign, and neighbours have different signs",
        )

    def most(row: int, sign: float, others: dict[int, float]) -> float:
        fixed, values = list(others), [value / sizes[i] for i, value in others.items()]
        found = linprog(-sign * rows[row], A_eq=rows[fixed], b_eq=values, bounds=bounds)
        return float(-found.fun * sizes[row]) if found.success else 0.0

    thrust = most(0, 1.0, {1: 0.0, 2: 0.0, 3: 0.0})
    if thrust <= weight:
        raise ArgumentError(
            "rotor_high",
            f"rotors that lift more than the weight, {weight:.4g} N",
            f"{thrust:.4g} N",
            "give larger limits: rotor_limits=(low, high) of from_file",
        )
    torques = []
    for axis in (1, 2, 3):
        rest = {0: weight} | {i: 0.0 for i in (1, 2, 3) if i != axis}
        torques.append(min(most(axis, 1.0, rest), most(axis, -1.0, rest)))
    if min(torques) <= 0:
        raise ArgumentError("rotor_high", "rotors that turn the body while it hovers", f"torques of {torques} N·m")
    return thrust, tuple(torques)
