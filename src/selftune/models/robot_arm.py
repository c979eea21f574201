"""An arm, or any other tree of joints on a fixed base, with motors that follow their commands with a lag."""

import math
import os
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..foundation import arguments, extras
from ..foundation.errors import ArgumentError
from ..problem.constraints import Box
from ..problem.loop_context import LoopContext, coming_period
from .base import AbstractModel, Signal, sampling_period
from .rigid_body import RigidBody

DT, LAG = 0.002, 0.008
"""The control period and the time constant of the motors, in seconds, if neither the user nor the file gives them."""
POSITION_ERROR = 0.02
"""The error of a hinge that counts as 1, in radians; for a slide, times its length (`RobotArm.lengths`)."""
SLIP = 0.1
"""The wanted rate of a hinge (rad/s) at which dry friction is nearly whole; for a slide, times its length."""
FRICTION, OFFSET = 0.1, 0.25
"""The largest friction and the largest offset of a joint's torque, as shares of its rated torque."""
CARRIED = 0.5
"""The largest payload needs this share of some joint's rated torque, with the arm stretched out."""
RATED, BRISK = 3.0, 10.0
"""The rated torque is at most three times the torque for the weight of the arm and for a brisk acceleration, in rad/s²
(for a slide, times its length). Files often give limits that are far beyond that, such as 1000 N·m for a finger."""
USUAL_REACH = (0.01, 30.0)
"""Outside this range (m), the lengths of a file are probably not in metres."""
GYRATION = 3.0
"""A link whose radius of gyration exceeds this multiple of the reach probably has its inertia in another unit."""
INNER = 0.5
"""Without a keyframe, the home position is within this share of each joint's range."""


class RobotArm(AbstractModel):
    r"""A robot on a fixed base that motors drive at its joints: $x = (q, \dot q, \tau)$, $u$ = commanded torques.

    $$M(q)\,\ddot q + c(q, \dot q) = \tau + f, \qquad T \dot\tau = u - \tau$$

    The torques τ follow the commands with the time constant T of the motors. Without this lag in the model, a tuner
    would not see that high gains are harmful. The residual is linear in a:

    $$f = a_{\text{offset}} - a_{\text{viscous}}\, \dot r - a_{\text{Coulomb}} \tanh(\dot r / v)
    - a_{\text{payload}}\, \tau_1(q, \dot q, \ddot r)$$

    $\tau_1$ are the torques for one kilogram at the tool. They take the acceleration from the reference r, so that the
    residual is a function of the state. Friction is that of the wanted rate. With the measured rate, the friction of a
    joint that moves little inertia would stop the joint within less than a control period. A step of the model would
    then be unstable, and the sensitivities of the tuner would grow without bound. Damping that the file states is known
    and does not have this problem (`RigidBody.forward_dynamics`).

    The reference has the wanted positions, rates and accelerations of the joints, 3j numbers. The outputs are the
    positions and rates. A `Loop` measures the whole state: if the drives do not report their torques, use the
    commands, filtered with the time constant T (`filtered_torque`).

    **Arguments:**

    - `body`: the links and joints, a `RigidBody`.
    - `torque_limits`: the largest torque of each motor, in N·m, or N for a slide.
    - `low`, `high`: the ranges of the joints; infinite by default.
    - `home`: the joints at rest. By default the position nearest to 0 in the inner half of each range.
    - `dt`: the control period in seconds; `lag`: T in seconds.
    - `rated_torques`: the torques that count as 1, for friction, offsets, payload and cost. By default the torque
      limit, but at most three times the torque for the weight of the arm and for 10 rad/s².
    - `payload_limit`: the largest payload that the estimator may find, in kg. By default the payload that takes half of
      some joint's rated torque, with the arm stretched out.
    - `notes`: sentences about the file, for people.

    !!! Example

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> link = models.Link("shoulder", axis=(0.0, -1.0, 0.0), mass=2.0, center=(0.0, 0.0, -0.3))
        >>> robot = models.RobotArm(models.RigidBody((link,), tool_position=(0.0, 0.0, -0.6)), torque_limits=20.0)
        >>> [state.name for state in robot.states]
        ['shoulder', 'rate of shoulder', 'torque of shoulder']
        >>> [parameter.name for parameter in robot.parameters]
        ['payload', 'viscous shoulder', 'coulomb shoulder', 'offset shoulder']
        >>> robot.dynamics(robot.x0, jnp.zeros(1), jnp.zeros(1), 0).shape
        (3,)
    """

    body: RigidBody
    torque_limits: tuple[float, ...] = eqx.field(static=True)
    low: tuple[float, ...] = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)
    home: tuple[float, ...] = eqx.field(static=True)
    dt: float = eqx.field(static=True)
    lag: float = eqx.field(static=True)
    rated_torques: tuple[float, ...] = eqx.field(static=True)
    payload_limit: float = eqx.field(static=True)
    reach: float = eqx.field(static=True)
    """The largest distance of the tool from a joint's axis (m); the travel of the slides counts too."""
    hold: tuple[float, ...] = eqx.field(static=True)
    """The torques that hold the arm at home."""
    name: str = eqx.field(static=True)
    notes: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        body: RigidBody,
        torque_limits: Any,
        *,
        low: Any = -np.inf,
        high: Any = np.inf,
        home: Any = None,
        dt: float = DT,
        lag: float = LAG,
        rated_torques: Any = None,
        payload_limit: float | None = None,
        name: str = "robot",
        notes: Sequence[str] = (),
    ):
        arguments.instance("body", body, RigidBody)
        self.body, self.name, self.notes = body, name, tuple(notes)
        j = body.joints
        self.torque_limits = _row("torque_limits", arguments.variances("torque_limits", torque_limits), j)
        self.low, self.high = (_row(n, v, j) for n, v in (("low", low), ("high", high)))
        if not all(a < b for a, b in zip(self.low, self.high, strict=True)):
            raise ArgumentError("low", "less than high", f"low={self.low}, high={self.high}")
        self.home = _row("home", home_position(self.low, self.high) if home is None else home, j)
        for q, a, b, link in zip(self.home, self.low, self.high, body.links, strict=True):
            if not a <= q <= b:
                raise ArgumentError("home", f"a position of {link.name} between {a:g} and {b:g}", f"{q:g}")
        self.dt, self.lag = sampling_period(dt), float(arguments.positive("lag", lag))
        with jax.ensure_compile_time_eval():
            self.hold = tuple(map(float, body.gravity_torque(jnp.asarray(self.home))))
            self.reach, lift, weight, inertia = _sizes(body, self.low, self.high, self.home)
        self.notes += _large_inertias(body, self.reach)
        if not USUAL_REACH[0] < self.reach < USUAL_REACH[1]:
            self.notes += (f"The tool reaches {self.reach:.3g} m. Are the lengths in metres?",)
        if rated_torques is None:
            drag = np.array([link.damping for link in body.links])
            needed = RATED * (weight + np.array(self.lengths) * (BRISK * inertia + drag))
            rated_torques = np.minimum(self.torque_limits, needed)
        self.rated_torques = _row("rated_torques", arguments.variances("rated_torques", rated_torques), j)
        if payload_limit is None:
            payload_limit = CARRIED * float(np.min(np.array(self.rated_torques) / np.maximum(lift, 1e-9)))
        self.payload_limit = float(arguments.positive("payload_limit", payload_limit))

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        joints: Sequence[str] | None = None,
        fixed: Sequence[str] = (),
        tool: str | None = None,
        torque_limits: Any = None,
        home: Any = None,
        dt: float = DT,
        lag: float | None = None,
        payload_limit: float | None = None,
    ) -> "RobotArm":
        """Read a robot from an MJCF or URDF file with MuJoCo's own compiler (extra `robots`).

        Meshes are not needed, unless a body takes its inertia from one. All actuators become motors that set the torque
        of a joint. These joints are fixed at their home position, and `robot.notes` names them: joints without an
        actuator in a file that has actuators; joints that are coupled to others (mimic joints, equality constraints);
        and the fingers of a hand behind an arm. Loose objects, contacts, tendons and drag are left out. A floating
        base, a closed chain or a ball joint is an error that says what to do.

        **Arguments:**

        - `path`: an `.xml` or `.urdf` file.
        - `joints`: the names of the joints that the robot has, in place of the rules above; `fixed`: joints to fix.
        - `tool`: the name of a site or a body; by default the last body of the longest chain.
        - `torque_limits`: one number, one for each joint, or a dictionary of numbers by the names of joints. By default
          the `forcerange` of the actuators, the `ctrlrange` of motors, the joint's `actuatorfrcrange`, or the `effort`
          of a URDF.
        - `home`: by default the keyframe "home" or the first one. Without a keyframe, the position nearest to 0 in the
          inner half of each range.
        - `dt`, `payload_limit`: as in the class; `lag`: by default that of the file's actuators, otherwise 8 ms.

        !!! Example

            >>> import tempfile, pathlib
            >>> from selftune import models
            >>> text = '''<mujoco><worldbody><body><joint name="elbow" axis="0 1 0" range="-90 90"/>
            ...   <geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.4"/></body></worldbody>
            ...   <actuator><position joint="elbow" kp="100" forcerange="-30 30"/></actuator></mujoco>'''
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "arm.xml")
            ...     _ = path.write_text(text)
            ...     robot = models.RobotArm.from_file(path)
            >>> robot.torque_limits, robot.body.links[0].name
            ((30.0,), 'elbow')
        """
        files = extras.load("models.robot_files", asked_for="RobotArm.from_file", extra="robots")
        found = files.read(path, fixed=fixed, joints=joints, tool=tool)
        limits = files.check_limits(found.torque_limits, [link.name for link in found.links], torque_limits)
        body = RigidBody(
            found.links,
            gravity=found.gravity,
            tool=found.tool,
            tool_position=found.tool_position,
            tool_rotation=found.tool_rotation,
        )
        if home is None and found.home is not None:
            home = np.clip(found.home, found.low, found.high)
        if home is None:
            home = home_position(found.low, found.high, [link.zero for link in found.links])
        lag = lag if lag is not None else found.lag if found.lag is not None else LAG
        settings = {"low": found.low, "high": found.high, "home": home, "dt": dt, "lag": lag}
        return cls(body, limits, **settings, payload_limit=payload_limit, name=found.name, notes=found.notes)

    @property
    def joints(self) -> int:
        return self.body.joints

    @property
    def lengths(self) -> tuple[float, ...]:
        """For each joint the length in m that one radian stands for: 1 for a hinge; for a slide, half of its travel,
        but at most the reach of the arm."""
        halves = (0.5 * (high - low) for low, high in zip(self.low, self.high, strict=True))
        pairs = zip(self.body.links, halves, strict=True)
        return tuple(1.0 if link.kind == "hinge" else min(half, self.reach) for link, half in pairs)

    @property
    def latency(self) -> float:
        """The time in seconds from a measurement to the motor's torque: the lag and one and a half periods."""
        return self.lag + 1.5 * self.dt

    @property
    def states(self) -> tuple[Signal, ...]:
        return (*self.outputs, *(one._replace(name=f"torque of {one.name}") for one in self.controls))

    @property
    def controls(self) -> tuple[Signal, ...]:
        return tuple(
            Signal(link.name, "N·m" if link.kind == "hinge" else "N", rated)
            for link, rated in zip(self.body.links, self.rated_torques, strict=True)
        )

    @property
    def outputs(self) -> tuple[Signal, ...]:
        return self.references[: 2 * self.joints]

    @property
    def references(self) -> tuple[Signal, ...]:
        fast = 0.5 * bandwidth(self)
        signals = []
        for power, prefix in enumerate(("", "rate of ", "acceleration of ")):
            for link, length in zip(self.body.links, self.lengths, strict=True):
                unit = ("rad" if link.kind == "hinge" else "m") + ("", "/s", "/s²")[power]
                signals.append(Signal(prefix + link.name, unit, POSITION_ERROR * length * fast**power))
        return tuple(signals)

    @property
    def parameters(self) -> tuple[Signal, ...]:
        high = np.asarray(self._bounds()[1])
        names = [("payload", "kg")]
        for kind in ("viscous", "coulomb", "offset"):
            for link in self.body.links:
                torque, per = ("N·m", "rad/s") if link.kind == "hinge" else ("N", "m/s")
                names.append((f"{kind} {link.name}", f"{torque}/({per})" if kind == "viscous" else torque))
        return tuple(Signal(name, unit, float(size)) for (name, unit), size in zip(names, high, strict=True))

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        limits, lengths = np.array(self.rated_torques), np.array(self.lengths)
        viscous = FRICTION * limits / lengths  # at 1 rad/s
        known = np.array([link.damping for link in self.body.links])
        low = [[0.0], -np.minimum(viscous, known), 0 * limits, -OFFSET * limits]
        high = [[self.payload_limit], viscous, FRICTION * limits, OFFSET * limits]
        return np.concatenate(low), np.concatenate(high)

    @property
    def x0(self) -> Float[Array, " n"]:
        return jnp.asarray(np.concatenate([self.home, np.zeros(self.joints), self.hold]))

    @property
    def a_hat(self) -> Float[Array, " p"]:
        return jnp.zeros(1 + 3 * self.joints)

    @property
    def a_constraint(self) -> Box:
        low, high = self._bounds()
        return Box(jnp.asarray(low), jnp.asarray(high))

    def dynamics(self, x: Float[Array, " n"], u: Float[Array, " m"], f: Float[Array, " k"], t: Any) -> Array:
        q, rate, torque = jnp.split(x, 3)
        period = coming_period(t)
        dt = jnp.asarray(self.dt, x.dtype) if period is None else period.astype(x.dtype)
        after = self.filtered_torque(torque, u, dt)
        acceleration = self.body.forward_dynamics(q, rate, 0.5 * (torque + after) + f, step=self.dt)
        rate_after = rate + dt * acceleration
        return jnp.concatenate([q + 0.5 * dt * (rate + rate_after), rate_after, after])

    def filtered_torque(self, torque: Any, u: Any, dt: Any = None) -> Any:
        """Return the motors' torques one period later, (j,); NumPy arrays stay NumPy arrays."""
        if dt is None or not hasattr(dt, "dtype"):
            share: Any = 1 - math.exp(-(self.dt if dt is None else dt) / self.lag)
        else:
            share = 1 - jnp.exp(-dt / self.lag)
        return torque + share * (u - torque)

    def residual(self, x: Float[Array, " n"], a: Float[Array, " p"], t: Any) -> Array:
        j = self.joints
        q, rate, _ = jnp.split(x, 3)
        viscous, coulomb, offset = jnp.split(a[1:], 3)
        wanted = t.reference[j:].astype(x.dtype) if isinstance(t, LoopContext) else jnp.zeros(2 * j, x.dtype)
        wanted_rate, acceleration = jnp.split(wanted, 2)
        slip = jnp.asarray(SLIP * np.array(self.lengths), x.dtype)
        friction = viscous * wanted_rate + coulomb * jnp.tanh(wanted_rate / slip)
        return offset - friction - a[0] * self.body.payload_torque(q, rate, acceleration)

    def output(self, x: Float[Array, " n"]) -> Array:
        return x[: 2 * self.joints]

    def measure(self, x: Float[Array, " n"], t: Any) -> Array:
        return self.output(x)


def bandwidth(robot: RobotArm) -> float:
    """Return the natural frequency (rad/s) that the latency allows: 0.25 / latency."""
    return 0.25 / robot.latency


def home_position(low: Any, high: Any, zero: Any = 0.0) -> np.ndarray:
    """Return the position nearest to `zero` within the inner half of each range."""
    low, high = np.asarray(low, float), np.asarray(high, float)
    limited = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        middle, half = 0.5 * (low + high), 0.5 * INNER * (high - low)
    zero = np.broadcast_to(np.asarray(zero, float), low.shape)
    inside = np.clip(zero, np.where(limited, middle - half, low), np.where(limited, middle + half, high))
    return np.asarray(inside)


def _sizes(body: RigidBody, low: Any, high: Any, home: Any) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Return the reach (m); and for each joint, over random positions, the largest torque of one kilogram at the tool,
    the largest torque of the arm's weight, and the largest inertia.

    One kilogram is a weight, with the arm stretched out. A joint that gravity cannot load, such as the joints of a
    SCARA, only accelerates the kilogram, by 10 rad/s².
    """
    low, high, home = (np.asarray(v, float) for v in (low, high, home))
    slides = np.array([link.kind == "slide" for link in body.links])
    travel = np.sum(np.where(slides & np.isfinite(high - low), high - low, 0.0))
    around = np.random.default_rng(0).uniform(-1.5, 1.5, (64, body.joints))
    positions = jnp.asarray(np.clip(np.vstack([home, home + around]), low, high))

    @jax.vmap
    def measure(q: Array) -> tuple[Array, Array, Array, Array]:
        jacobian, gravity = body.tool_jacobian(q)[:3], jnp.asarray(body.gravity, q.dtype)
        return jacobian, jacobian.T @ gravity, body.gravity_torque(q), jnp.diagonal(body.mass_matrix(q))

    with jax.ensure_compile_time_eval():
        jacobians, loads, weights, inertias = (np.asarray(part) for part in measure(positions))
    arms = np.max(np.linalg.norm(jacobians, axis=1), axis=0)
    reach = float(max([*arms[~slides], travel]))
    sizes = (np.max(np.abs(part), axis=0) for part in (weights, inertias))
    lift = 9.81 * arms
    lift = np.where(np.max(np.abs(loads), axis=0) > 1e-3 * lift, lift, np.where(slides, 0.0, BRISK * arms**2))
    return (reach if reach > 1e-3 else 1.0), lift, *sizes


def _large_inertias(body: RigidBody, reach: float) -> tuple[str, ...]:
    """Return a note if the inertias of links are those of much larger bodies."""
    sizes = {
        link.name: math.sqrt(max(np.linalg.eigvalsh(np.array(link.inertia))[-1], 0.0) / link.mass)
        for link in body.links
        if link.mass > 0
    }
    large = [name for name, size in sizes.items() if size > GYRATION * reach]
    if not large:
        return ()
    worst = max(large, key=lambda name: sizes[name])
    return (
        f"The inertia of {', '.join(large)} is that of a much larger body than the robot ({worst}: a radius of "
        f"gyration of {sizes[worst]:.3g} m). Are the inertias in kg·m²?",
    )


def _row(name: str, value: Any, size: int) -> tuple[float, ...]:
    try:
        array = np.broadcast_to(np.asarray(value, float), (size,))
    except (TypeError, ValueError):
        raise ArgumentError(name, f"one number or {size}, one for each joint", arguments.describe(value)) from None
    if np.any(np.isnan(array)):
        raise ArgumentError(name, "numbers", f"{array}")
    return tuple(map(float, array))
