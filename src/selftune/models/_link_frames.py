"""Frames of links in which most constants of the equations of motion are exactly 0 or ±1."""

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .rigid_body import Link

NEAR = 1e-12
"""A constant this close to 0 or ±1, relative to its scale, becomes exactly that."""
PARALLEL = 1e-9
"""Two axes with a smaller sine between them count as parallel."""


class Frame(NamedTuple):
    """The constants of a link in its own frame: z is the axis of the joint. All numbers are plain floats."""

    parent: int
    is_hinge: bool
    position: Any
    """The origin in the frame of the parent, (3,); for a slide, at the joint's zero position."""
    rotation: Any
    """The axes as columns in the frame of the parent, before the joint turns, (3, 3)."""
    offset: float
    """The number that is added to the joint's value."""
    mass: float
    moment: Any
    """Mass times center of mass, (3,)."""
    inertia: Any
    """About the origin, (3, 3)."""
    from_link_position: Any
    """The origin in the frame of the `Link`."""
    from_link_rotation: Any
    """The axes as columns in the frame of the `Link`; for a hinge, at the joint's zero position."""


def snapped(values: Any, scale: float = 1.0) -> tuple[float, ...]:
    """Return floats; those within 1e-12 of 0, 1 or −1, in units of the scale, become exact."""
    result = []
    for value in np.asarray(values, float):
        for exact in (0.0, 1.0, -1.0) if scale == 1.0 else (0.0,):
            if abs(value - exact) <= NEAR * scale:
                value = exact
        result.append(float(value))
    return tuple(result)


@cache
def link_frames(links: "tuple[Link, ...]", tool: int, tool_position: Any) -> tuple[Frame, ...]:
    """Return the frames of all links."""
    rotations, origins = _in_base(links)  # of the links' own frames, with all joints at their zeros
    axes = [R @ np.array(link.axis) for R, link in zip(rotations, links, strict=True)]
    anchors = [o + R @ np.array(link.anchor) for R, o, link in zip(rotations, origins, links, strict=True)]
    main = _main_children(links)
    frames_R: list[np.ndarray] = []
    frames_o: list[np.ndarray] = []
    for i, link in enumerate(links):
        before_R = frames_R[link.parent] if link.parent >= 0 else np.eye(3)
        before_o = frames_o[link.parent] if link.parent >= 0 else np.zeros(3)
        z, child = axes[i], main[i]
        target = None
        if child is not None:
            target = axes[child], anchors[child]
        elif i == tool:
            target = None, origins[i] + rotations[i] @ np.asarray(tool_position)
        frames_o.append(_origin(anchors[i], z, before_o, target))
        frames_R.append(_axes(z, frames_o[-1], before_R, target, turns=link.kind == "hinge"))
    frames = [_frame(i, links, rotations, origins, frames_R, frames_o) for i in range(len(links))]
    return tuple(_regrouped(frames))


def _in_base(links: "tuple[Link, ...]") -> tuple[list[np.ndarray], list[np.ndarray]]:
    rotations: list[np.ndarray] = []
    origins: list[np.ndarray] = []
    for link in links:
        R, o = (rotations[link.parent], origins[link.parent]) if link.parent >= 0 else (np.eye(3), np.zeros(3))
        rotations.append(R @ np.array(link.rotation))
        origins.append(o + R @ np.array(link.position))
    return rotations, origins


def _main_children(links: "tuple[Link, ...]") -> list[int | None]:
    """Return, for each link, the child with the most links behind it."""
    size = [1] * len(links)
    for i in reversed(range(len(links))):
        if links[i].parent >= 0:
            size[links[i].parent] += size[i]
    main: list[int | None] = [None] * len(links)
    for i, link in enumerate(links):
        best = main[link.parent] if link.parent >= 0 else None
        if link.parent >= 0 and (best is None or size[i] > size[best]):
            main[link.parent] = i
    return main


def _origin(anchor: np.ndarray, z: np.ndarray, before: np.ndarray, target: Any) -> np.ndarray:
    """Return the point of the axis on the common normal to the next axis; without a next axis that is not parallel,
    the point nearest to the origin of the parent."""
    if target is not None and target[0] is not None:
        other, point = target
        normal = np.cross(z, other)
        if (square := normal @ normal) > PARALLEL**2:
            return anchor + z * (np.cross(point - anchor, other) @ normal / square)
    return anchor + z * ((before - anchor) @ z)


def _axes(z: np.ndarray, origin: np.ndarray, before: np.ndarray, target: Any, *, turns: bool) -> np.ndarray:
    """Return the axes of a frame with this z."""
    x = None
    if turns and target is not None:
        other, point = target
        normal = np.zeros(3) if other is None else np.cross(z, other)
        if np.linalg.norm(normal) <= PARALLEL:  # toward the next axis, or toward the tool
            normal = (point - origin) - z * ((point - origin) @ z)
        if np.linalg.norm(normal) > PARALLEL:
            x = normal / np.linalg.norm(normal)
    if x is None:
        x = _plain_x(z, before)
    return np.stack([x, np.cross(z, x), z], axis=1)


def _plain_x(z: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return a direction that is perpendicular to z and to the axis of the parent."""
    x = np.cross(before[:, 2], z)
    if np.linalg.norm(x) <= PARALLEL:
        x = before[:, 0] - z * (before[:, 0] @ z)
    return x / np.linalg.norm(x)


def _frame(i: int, links: Any, rotations: Any, origins: Any, frames_R: Any, frames_o: Any) -> Frame:
    link, R, o = links[i], frames_R[i], frames_o[i]
    before_R = frames_R[link.parent] if link.parent >= 0 else np.eye(3)
    before_o = frames_o[link.parent] if link.parent >= 0 else np.zeros(3)
    is_hinge = link.kind == "hinge"
    relative = before_R.T @ R
    offset = -link.zero
    if is_hinge:
        # relative = (a rotation with simple numbers) · (a turn about z), and the turn joins that of the joint.
        x = _plain_x(relative[:, 2], np.eye(3))
        simple = np.stack([x, np.cross(relative[:, 2], x), relative[:, 2]], axis=1)
        turn = simple.T @ relative
        offset += np.arctan2(turn[1, 0], turn[0, 0])
        relative = simple
    to_frame = R.T @ rotations[i]
    shift = rotations[i].T @ (o - origins[i])
    center = to_frame @ (np.array(link.center) - shift)
    inertia = to_frame @ np.array(link.inertia) @ to_frame.T
    inertia = inertia + link.mass * (center @ center * np.eye(3) - np.outer(center, center))
    return Frame(
        link.parent,
        is_hinge,
        snapped(before_R.T @ (o - before_o)),
        tuple(map(snapped, relative)),
        snapped([offset])[0],
        float(link.mass),
        link.mass * center,
        (inertia + inertia.T) / 2,
        shift,
        to_frame.T,
    )


def _regrouped(frames: list[Frame]) -> list[Frame]:
    """Return the frames with those parts of each link's inertia moved to its parent that a turn of the joint does not
    change. The motion of all joints stays the same."""
    frames = list(frames)
    for i in reversed(range(len(frames))):
        frame = frames[i]
        mass, moment, inertia = frame.mass, np.array(frame.moment), np.array(frame.inertia)
        if frame.is_hinge:
            kept = 0.0, np.array([moment[0], moment[1], 0.0]), inertia - inertia[1, 1] * np.diag([1.0, 1.0, 0.0])
            gone = mass, np.array([0.0, 0.0, moment[2]]), inertia[1, 1] * np.diag([1.0, 1.0, 0.0])
            if frame.parent >= 0:
                above = frames[frame.parent]
                C, p = np.array(frame.rotation), np.array(frame.position)
                h = C @ gone[1]
                matrix = C @ gone[2] @ C.T + 2 * (h @ p) * np.eye(3) - np.outer(h, p) - np.outer(p, h)
                matrix = matrix + mass * (p @ p * np.eye(3) - np.outer(p, p))
                frames[frame.parent] = above._replace(
                    mass=above.mass + mass,
                    moment=np.array(above.moment) + h + mass * p,
                    inertia=np.array(above.inertia) + matrix,
                )
            mass, moment, inertia = kept
        size = max(float(np.abs(inertia).max()), 1e-300)
        reach = max(float(np.abs(moment).max()), 1e-300)
        frames[i] = frame._replace(
            mass=float(mass),
            moment=snapped(moment, reach),
            inertia=tuple(snapped(row, size) for row in inertia),
        )
    return frames
