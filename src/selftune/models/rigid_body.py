"""A tree of rigid links on a fixed base: its equations of motion in JAX, as small as the geometry allows."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..foundation import arguments, settings_text
from ..foundation.errors import ArgumentError
from . import _scalars as sc
from ._link_frames import Frame, link_frames, snapped

Triple = tuple[float, float, float]
IDENTITY = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


class Link(NamedTuple):
    """One joint and the link that it moves.

    The link's frame is given where the joint has the value `zero`. Mass, center and inertia are those of all bodies
    that move with the link.

    !!! Example

        >>> from selftune import models
        >>> arm = models.Link("shoulder", axis=(0.0, 1.0, 0.0), mass=2.0, center=(0.0, 0.0, -0.3))
        >>> arm.kind, arm.parent
        ('hinge', -1)
    """

    name: str
    parent: int = -1
    """The number of the link that carries this one; −1 is the base."""
    kind: Literal["hinge", "slide"] = "hinge"
    position: Triple = (0.0, 0.0, 0.0)
    """The origin of the link's frame, in the frame of the parent (m)."""
    rotation: tuple[Triple, Triple, Triple] = IDENTITY
    """The axes of the link's frame as columns, in the frame of the parent."""
    axis: Triple = (0.0, 0.0, 1.0)
    """The joint's axis, in the link's frame."""
    anchor: Triple = (0.0, 0.0, 0.0)
    """A point on the joint's axis, in the link's frame (m)."""
    zero: float = 0.0
    mass: float = 0.0
    center: Triple = (0.0, 0.0, 0.0)
    """The center of mass, in the link's frame (m)."""
    inertia: tuple[Triple, Triple, Triple] = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    """About the center of mass, in the axes of the link's frame (kg·m²)."""
    armature: float = 0.0
    """The inertia of the motor as seen at the joint (kg·m², or kg for a slide)."""
    damping: float = 0.0
    stiffness: float = 0.0
    rest: float = 0.0
    """The value at which the joint's spring has no force."""


class RigidBody(eqx.Module):
    r"""Rigid links in a tree of hinge and slide joints, on a fixed base.

    $$M(q)\,\ddot q + c(q, \dot q) = \tau$$

    c contains the Coriolis forces, gravity, damping and springs. `inverse_dynamics` is the recursion of Newton and
    Euler; `mass_matrix` uses composite rigid bodies; `forward_dynamics` solves for the acceleration with a
    factorization that keeps the zeros of the tree. All functions are pure JAX functions with a state of any floating
    dtype, and both engines run them.

    The constants are plain numbers of the program. Each link gets a frame with z along its joint's axis and x along
    the common normal to the next axis (Denavit and Hartenberg, as modified by Craig), and constants within 1e-12 of
    0 or ±1 become exactly 0 or ±1. Those parts of a link's inertia that do not change when the joint turns are moved
    to the parent (Gautier and Khalil, 1990). So many products are 0 and are left out of the program.

    **Arguments:**

    - `links`: one `Link` for each joint; a parent comes before its children.
    - `gravity`: the acceleration of free fall, (3,), in m/s².
    - `tool`: the number of the link that carries the tool; None takes the last link.
    - `tool_position`, `tool_rotation`: the tool's frame in the frame of that link.

    !!! Example

        A pendulum of 2 kg at a length of 0.3 m. Held horizontally, it needs 2 · 9.81 · 0.3 N·m:

        >>> import jax.numpy as jnp
        >>> from selftune import models
        >>> link = models.Link("shoulder", axis=(0.0, -1.0, 0.0), mass=2.0, center=(0.0, 0.0, -0.3))
        >>> pendulum = models.RigidBody((link,), tool_position=(0.0, 0.0, -0.6))
        >>> horizontal, rest = jnp.array([jnp.pi / 2]), jnp.zeros(1)
        >>> print(pendulum.inverse_dynamics(horizontal, rest, rest).round(3))
        [5.886]
        >>> print(pendulum.tool_pose(horizontal)[0].round(3))
        [0.6 0.  0. ]
    """

    __repr__ = settings_text.show

    links: tuple[Link, ...] = eqx.field(static=True)
    gravity: Triple = eqx.field(static=True)
    tool: int = eqx.field(static=True)
    tool_position: Triple = eqx.field(static=True)
    tool_rotation: tuple[Triple, Triple, Triple] = eqx.field(static=True)

    def __init__(
        self,
        links: Sequence[Link],
        *,
        gravity: Any = (0.0, 0.0, -9.81),
        tool: int | None = None,
        tool_position: Any = (0.0, 0.0, 0.0),
        tool_rotation: Any = IDENTITY,
    ):
        if not links:
            raise ArgumentError("links", "at least one Link", "none")
        for link in links:
            arguments.instance("links", link, Link)
        self.links = tuple(_plain(i, link) for i, link in enumerate(links))
        self.gravity = _triple("gravity", gravity)
        tool = len(links) - 1 if tool is None else arguments.whole("tool", tool)
        if not tool < len(links):
            raise ArgumentError("tool", f"the number of a link, from 0 to {len(links) - 1}", f"{tool}")
        self.tool, self.tool_position = tool, _triple("tool_position", tool_position)
        self.tool_rotation = _rotation("tool_rotation", tool_rotation)

    @property
    def joints(self) -> int:
        return len(self.links)

    def without_damping(self) -> "RigidBody":
        """Return the same body with joints that have no damping."""
        tool = {"tool": self.tool, "tool_position": self.tool_position, "tool_rotation": self.tool_rotation}
        return RigidBody([link._replace(damping=0.0) for link in self.links], gravity=self.gravity, **tool)

    @property
    def _frames(self) -> tuple[Frame, ...]:
        return link_frames(self.links, self.tool, self.tool_position)

    def _turns(self, q: Any) -> list[Any]:
        """Return, for each joint, the matrix that rotates a vector from its own frame to that of its parent, and the
        position of its origin in the frame of the parent."""
        found, q = [], _scalars(q)
        for i, frame in enumerate(self._frames):
            if frame.is_hinge:
                angle = sc.plus(q[i], frame.offset)
                cos, sin = (
                    (math.cos(angle), math.sin(angle)) if isinstance(angle, float) else (lax.cos(angle), lax.sin(angle))
                )
                C = frame.rotation
                turned = tuple(
                    (
                        sc.plus(sc.times(cos, row[0]), sc.times(sin, row[1])),
                        sc.minus(sc.times(cos, row[1]), sc.times(sin, row[0])),
                        row[2],
                    )
                    for row in C
                )
                found.append((turned, frame.position))
            else:
                way = sc.plus(q[i], frame.offset)
                along = tuple(row[2] for row in frame.rotation)
                found.append((frame.rotation, sc.add(frame.position, sc.scale(way, along))))
        return found

    def _down(self, i: int, turns: list[Any], v: Any) -> sc.Vector:
        """Return a vector of the parent's frame in the frame of link i."""
        return sc.apply(sc.transpose(turns[i][0]), v)

    def _motion(self, turns: list[Any], rate: Any, acceleration: Any, gravity: Any) -> list[Any]:
        """Return, for each link, angular velocity, the matrix U = [ω̇] + [ω][ω], angular acceleration, and the
        acceleration of the origin, in its own frame. Gravity is an acceleration of the base."""
        motions: list[Any] = []
        base = (sc.ZERO, None, sc.ZERO, sc.scale(-1.0, gravity))
        for i, frame in enumerate(self._frames):
            spin, U, turning, push = motions[frame.parent] if frame.parent >= 0 else base
            position = turns[i][1]
            carried = push if U is None else sc.add(push, sc.apply(U, position))
            spin, turning, push = (self._down(i, turns, v) for v in (spin, turning, carried))
            if frame.is_hinge:
                around = (sc.times(spin[1], rate[i]), sc.times(-1.0, sc.times(spin[0], rate[i])), acceleration[i])
                turning = sc.add(turning, around)
                spin = (spin[0], spin[1], sc.plus(spin[2], rate[i]))
            else:
                coriolis = (
                    sc.times(2.0, sc.times(spin[1], rate[i])),
                    sc.times(-2.0, sc.times(spin[0], rate[i])),
                    acceleration[i],
                )
                push = sc.add(push, coriolis)
            motions.append((spin, _acceleration_matrix(spin, turning), turning, push))
        return motions

    def inverse_dynamics(
        self, q: Float[Array, " j"], rate: Float[Array, " j"], acceleration: Float[Array, " j"]
    ) -> Float[Array, " j"]:
        """Return the joint torques (forces for slides) of a motion, (j,)."""
        rates, accelerations = _scalars(rate), _scalars(acceleration)
        forces = self._inverse(self._turns(q), rates, accelerations, self.gravity)
        places = _scalars(q)
        torques = [self._with_joint(i, force, places[i], rates[i], accelerations[i]) for i, force in forces]
        return _vector(torques, q)

    def _with_joint(self, i: int, force: Any, q: Any, rate: Any, acceleration: Any) -> Any:
        """Return the torque with the armature, the damping and the spring of joint i."""
        link = self.links[i]
        force = sc.plus(force, sc.times(link.armature, acceleration))
        force = sc.plus(force, sc.times(link.damping, rate))
        return sc.plus(force, sc.times(link.stiffness, sc.minus(q, link.rest)))

    def _inverse(self, turns: list[Any], rate: Any, acceleration: Any, gravity: Any) -> list[tuple[int, Any]]:
        motions = self._motion(turns, rate, acceleration, gravity)
        forces: list[Any] = []
        for frame, (spin, U, turning, push) in zip(self._frames, motions, strict=True):
            momentum = sc.apply(frame.inertia, spin)
            force = sc.add(sc.scale(frame.mass, push), sc.apply(U, frame.moment))
            torque = sc.add(sc.apply(frame.inertia, turning), sc.cross(spin, momentum), sc.cross(frame.moment, push))
            forces.append((force, torque))
        return self._collect(turns, forces)

    def _collect(self, turns: list[Any], forces: list[Any]) -> list[tuple[int, Any]]:
        """Return the torque of each joint that these forces and torques on the links need, with its number."""
        torques: list[tuple[int, Any]] = []
        for i in reversed(range(self.joints)):
            frame, (force, torque) = self._frames[i], forces[i]
            torques.append((i, torque[2] if frame.is_hinge else force[2]))
            if frame.parent >= 0:
                R, position = turns[i]
                above, twist = forces[frame.parent]
                force, torque = sc.apply(R, force), sc.apply(R, torque)
                twist = sc.add(twist, torque, sc.cross(position, force))
                forces[frame.parent] = (sc.add(above, force), twist)
        return torques[::-1]

    def gravity_torque(self, q: Float[Array, " j"]) -> Float[Array, " j"]:
        """Return the torques that hold the links at rest, with their springs, (j,)."""
        return self.inverse_dynamics(q, jnp.zeros_like(q), jnp.zeros_like(q))

    def mass_matrix(self, q: Float[Array, " j"]) -> Float[Array, "j j"]:
        """Return M, (j, j): symmetric, and 0 for joints in different branches of the tree."""
        entries = self._mass_entries(self._turns(q))
        joints = range(self.joints)
        return _vector([entries.get((max(i, j), min(i, j)), 0.0) for i in joints for j in joints], q).reshape(
            self.joints, self.joints
        )

    def _mass_entries(self, turns: list[Any]) -> dict[tuple[int, int], Any]:
        """Return the entries of M that may differ from 0, by (joint, joint before it on the way to the base)."""
        frames = self._frames
        whole = [(frame.mass, frame.moment, frame.inertia) for frame in frames]
        entries: dict[tuple[int, int], Any] = {}
        for i in reversed(range(self.joints)):
            frame, (mass, moment, inertia) = frames[i], whole[i]
            # The momentum of the links behind joint i, when only this joint moves with the rate 1.
            if frame.is_hinge:
                linear, angular = (sc.times(-1.0, moment[1]), moment[0], 0.0), sc.transpose(inertia)[2]
            else:
                linear, angular = (0.0, 0.0, mass), (moment[1], sc.times(-1.0, moment[0]), 0.0)
            entries[i, i] = sc.plus(angular[2] if frame.is_hinge else linear[2], self.links[i].armature)
            at = i
            while frames[at].parent >= 0:
                R, position = turns[at]
                linear, angular = sc.apply(R, linear), sc.apply(R, angular)
                angular = sc.add(angular, sc.cross(position, linear))
                at = frames[at].parent
                entries[i, at] = angular[2] if frames[at].is_hinge else linear[2]
            if frame.parent >= 0:
                whole[frame.parent] = _joined(whole[frame.parent], _moved((mass, moment, inertia), *turns[i]))
        return entries

    def forward_dynamics(
        self, q: Float[Array, " j"], rate: Float[Array, " j"], torque: Float[Array, " j"], *, step: float = 0.0
    ) -> Float[Array, " j"]:
        r"""Return the joint accelerations under these torques, (j,).

        With a `step` in seconds, the damping D and the springs K count at the end of the step, as if the inertia were
        $M + \text{step} \cdot D + \text{step}^2 K$. A step with this acceleration is stable for any damping.

        The derivative follows from that of the inverse dynamics, $d\ddot q = M^{-1}(d\tau - d\,\mathrm{ID}(q, \dot q,
        \ddot q))$, so that nobody differentiates the factorization.
        """
        return _forward_dynamics(self, q, rate, torque, step)

    def tool_pose(self, q: Float[Array, " j"]) -> tuple[Float[Array, " 3"], Float[Array, "3 3"]]:
        """Return the position of the tool and the axes of its frame as columns, in the frame of the base."""
        turns = self._turns(q)
        position, rotation = self._tool
        at = self.tool
        while at >= 0:
            R, origin = turns[at]
            position, rotation = sc.add(origin, sc.apply(R, position)), sc.product(R, rotation)
            at = self._frames[at].parent
        return _vector(position, q), _vector([v for row in rotation for v in row], q).reshape(3, 3)

    def tool_jacobian(self, q: Float[Array, " j"]) -> Float[Array, "6 j"]:
        """Return the Jacobian of the tool: the velocity of its origin, then its angular velocity, in the frame of the
        base."""
        turns = self._turns(q)
        point = self._tool[0]
        columns: dict[int, Any] = {}
        at = self.tool
        # Columns in the frame of the link `at`; each step toward the base rotates all of them.
        while at >= 0:
            R, origin = turns[at]
            z = (0.0, 0.0, 1.0)
            columns[at] = (sc.cross(z, point), z) if self._frames[at].is_hinge else (z, sc.ZERO)
            columns = {i: tuple(sc.apply(R, v) for v in column) for i, column in columns.items()}
            point = sc.add(origin, sc.apply(R, point))
            at = self._frames[at].parent
        still = (sc.ZERO, sc.ZERO)
        return jnp.stack(
            [
                _vector((*linear, *angular), q)
                for linear, angular in (columns.get(i, still) for i in range(self.joints))
            ],
            axis=1,
        )

    def payload_torque(
        self, q: Float[Array, " j"], rate: Float[Array, " j"], acceleration: Float[Array, " j"]
    ) -> Float[Array, " j"]:
        """Return the torques that move and carry one kilogram at the tool, (j,)."""
        turns = self._turns(q)
        motions = self._motion(turns, _scalars(rate), _scalars(acceleration), self.gravity)
        point = self._tool[0]
        forces: list[Any] = [(sc.ZERO, sc.ZERO)] * self.joints
        _, U, _, push = motions[self.tool]
        force = sc.add(push, sc.apply(U, point))
        forces[self.tool] = (force, sc.cross(point, force))
        return _vector([torque for _, torque in self._collect(turns, forces)], q)

    @property
    def _tool(self) -> tuple[Any, Any]:
        """The tool's position and rotation in the frame that the recursion uses."""
        frame = self._frames[self.tool]
        to_frame = np.array(frame.from_link_rotation).T
        position = to_frame @ (np.array(self.tool_position) - np.array(frame.from_link_position))
        return snapped(position), tuple(map(snapped, to_frame @ np.array(self.tool_rotation)))


def _forward_dynamics(body: RigidBody, q: Array, rate: Array, torque: Array, step: float) -> Array:
    def factors(q: Array) -> Any:
        entries = body._mass_entries(body._turns(q))
        for i, link in enumerate(body.links):
            entries[i, i] = sc.plus(entries[i, i], step * link.damping + step**2 * link.stiffness)
        return _factorized(entries, body._frames)

    def solve(factors: tuple[Any, Any], force: Array) -> Array:
        L, inverse = factors
        return _vector(_solved(L, inverse, body._frames, _scalars(force)), force)

    @jax.custom_jvp
    def accelerate(q: Array, rate: Array, torque: Array) -> Array:
        return solve(factors(q), torque - body.inverse_dynamics(q, rate, jnp.zeros_like(q)))

    @accelerate.defjvp
    def derivative(primals: Any, tangents: Any) -> tuple[Array, Array]:
        (q, rate, torque), (dq, drate, dtorque) = primals, tangents
        known = factors(q)
        acceleration = solve(known, torque - body.inverse_dynamics(q, rate, jnp.zeros_like(q)))
        change = jax.jvp(lambda q, rate: body.inverse_dynamics(q, rate, acceleration), (q, rate), (dq, drate))[1]
        return acceleration, solve(known, dtorque - change)

    return accelerate(q, rate, torque)


def _factorized(entries: dict[tuple[int, int], Any], frames: tuple[Frame, ...]) -> tuple[Any, Any]:
    """Return L and the inverse of D, where M = Lᵀ D L. The factorization runs from the last joint to the first: L then
    has entries only where M has (Featherstone, *Rigid Body Dynamics Algorithms*, section 6.5)."""
    M = dict(entries)
    L: dict[tuple[int, int], Any] = {}
    inverse: list[Any] = [0.0] * len(frames)
    for k in reversed(range(len(frames))):
        above = _ancestors(frames, k)
        inverse[k] = sc.inverse(M[k, k])
        for n, i in enumerate(above):
            L[k, i] = sc.times(M[k, i], inverse[k])
            for j in above[n:]:
                M[i, j] = sc.minus(M[i, j], sc.times(L[k, i], M[k, j]))
    return L, inverse


def _solved(L: Any, inverse: Any, frames: tuple[Frame, ...], force: list[Any]) -> list[Any]:
    """Return M⁻¹ force."""
    x = list(force)
    for k in reversed(range(len(frames))):  # Lᵀ y = force
        for i in _ancestors(frames, k):
            x[i] = sc.minus(x[i], sc.times(L[k, i], x[k]))
    x = [sc.times(value, inverse[k]) for k, value in enumerate(x)]
    for k in range(len(frames)):  # L x = D⁻¹ y
        for i in _ancestors(frames, k):
            x[k] = sc.minus(x[k], sc.times(L[k, i], x[i]))
    return x


def _ancestors(frames: tuple[Frame, ...], i: int) -> list[int]:
    """Return the joints between joint i and the base, the nearest first."""
    found = []
    while frames[i].parent >= 0:
        i = frames[i].parent
        found.append(i)
    return found


def _acceleration_matrix(spin: sc.Vector, turning: sc.Vector) -> sc.Matrix:
    """Return U = [ω̇] + [ω][ω]: a point r of the link has the acceleration U r relative to the link's origin."""
    x, y, z = spin
    xx, yy, zz, xy, xz, yz = (sc.times(a, b) for a, b in ((x, x), (y, y), (z, z), (x, y), (x, z), (y, z)))
    return (
        (sc.times(-1.0, sc.plus(yy, zz)), sc.minus(xy, turning[2]), sc.plus(xz, turning[1])),
        (sc.plus(xy, turning[2]), sc.times(-1.0, sc.plus(xx, zz)), sc.minus(yz, turning[0])),
        (sc.minus(xz, turning[1]), sc.plus(yz, turning[0]), sc.times(-1.0, sc.plus(xx, yy))),
    )


def _moved(inertia: Any, R: Any, position: Any) -> Any:
    """Return mass, first moment and inertia of a link in the frame of its parent."""
    mass, moment, matrix = inertia
    moment = sc.apply(R, moment)
    turned = sc.product(sc.product(R, matrix), sc.transpose(R))
    # With the position p: I + 2 (h·p) 1 − h pᵀ − p hᵀ + m ((p·p) 1 − p pᵀ)
    between, square = sc.dot(moment, position), sc.times(mass, sc.dot(position, position))
    middle = sc.plus(sc.times(2.0, between), square)
    rows = []
    for i in range(3):
        row = []
        for j in range(3):
            entry = turned[i][j] if i <= j else rows[j][i]
            if i <= j:
                mixed = sc.plus(sc.times(moment[i], position[j]), sc.times(position[i], moment[j]))
                mixed = sc.plus(mixed, sc.times(mass, sc.times(position[i], position[j])))
                entry = sc.minus(sc.plus(entry, middle) if i == j else entry, mixed)
            row.append(entry)
        rows.append(row)
    return mass, sc.add(moment, sc.scale(mass, position)), tuple(map(tuple, rows))


def _joined(one: Any, other: Any) -> Any:
    rows = tuple(sc.add(a, b) for a, b in zip(one[2], other[2], strict=True))
    return sc.plus(one[0], other[0]), sc.add(one[1], other[1]), rows


def _scalars(vector: Any) -> list[Any]:
    """Return the numbers of a vector; a vector of known zeros stays known."""
    if isinstance(vector, list):
        return vector
    raw = arguments.known(vector)
    if raw and not np.any(raw[0]):
        return [0.0] * raw[0].shape[0]
    vector = jnp.asarray(vector)
    return [lax.index_in_dim(vector, i, keepdims=False) for i in range(vector.shape[0])]


def _vector(values: Sequence[Any], like: Array) -> Array:
    return lax.concatenate(
        [lax.full((1,), v, like.dtype) if isinstance(v, float) else lax.expand_dims(v, (0,)) for v in values], 0
    )


def _triple(name: str, value: Any) -> Triple:
    array = np.asarray(value, float)
    if array.shape != (3,) or not np.all(np.isfinite(array)):
        raise ArgumentError(name, "three finite numbers", arguments.describe(value))
    x, y, z = map(float, array)
    return x, y, z


def _rotation(name: str, value: Any) -> Any:
    array = np.asarray(value, float)
    if array.shape != (3, 3) or not np.allclose(array @ array.T, np.eye(3), atol=1e-6):
        raise ArgumentError(name, "a rotation matrix (3, 3)", arguments.describe(array))
    return tuple(tuple(map(float, row)) for row in array)


def _plain(i: int, link: Link) -> Link:
    """Return a link whose numbers are plain floats, after checking them."""
    if not -1 <= link.parent < i:
        raise ArgumentError("links", "parents that come before their children", f"parent {link.parent} of link {i}")
    if link.kind not in ("hinge", "slide"):
        raise ArgumentError("kind", "'hinge' or 'slide'", f"{link.kind!r}")
    axis = np.asarray(link.axis, float)
    if not np.linalg.norm(axis) > 1e-9:
        raise ArgumentError("axis", "a direction", f"{link.axis}")
    inertia = np.asarray(link.inertia, float)
    if inertia.shape != (3, 3) or not np.allclose(inertia, inertia.T, atol=1e-9 + 1e-6 * np.abs(inertia).max()):
        raise ArgumentError("inertia", "a symmetric matrix (3, 3)", f"{link.inertia}")
    for name in ("mass", "armature", "damping", "stiffness"):
        if not 0 <= getattr(link, name) < np.inf:
            raise ArgumentError(name, "a finite number >= 0", f"{getattr(link, name)}")
    numbers = {
        name: float(getattr(link, name)) for name in ("zero", "mass", "armature", "damping", "stiffness", "rest")
    }
    return link._replace(
        position=_triple("position", link.position),
        rotation=_rotation("rotation", link.rotation),
        axis=tuple(map(float, axis / np.linalg.norm(axis))),
        anchor=_triple("anchor", link.anchor),
        center=_triple("center", link.center),
        inertia=tuple(tuple(map(float, row)) for row in inertia),
        **numbers,
    )
