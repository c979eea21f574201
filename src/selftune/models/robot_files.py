"""Robots from MJCF and URDF files, read by MuJoCo's own compiler (extra `robots`)."""

# MuJoCo's bindings have no stubs.
# pyright: reportAttributeAccessIssue=false

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import mujoco
import numpy as np

from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..foundation.suggestions import nearest
from .rigid_body import Link

HAND = 3
"""Branches behind a chain of at least this many joints are fingers, if each of them has fewer joints than the chain."""
LEAST_MASS = 1e-9
"""The mass (kg) of a moving body for which the file gives none."""
# MuJoCo's arrays have plain integers, which Python does not find in a tuple of MuJoCo's enumerations.
MESHES = tuple(map(int, (mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_HFIELD, mujoco.mjtGeom.mjGEOM_SDF)))
FREE, BALL, SLIDE, HINGE = (
    int(getattr(mujoco.mjtJoint, f"mjJNT_{kind}")) for kind in ("FREE", "BALL", "SLIDE", "HINGE")
)
AT_JOINT = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
FILTERS = (int(mujoco.mjtDyn.mjDYN_FILTER), int(mujoco.mjtDyn.mjDYN_FILTEREXACT))
LOOPS = (int(mujoco.mjtEq.mjEQ_CONNECT), int(mujoco.mjtEq.mjEQ_WELD))


class RobotFile(NamedTuple):
    """The contents of a robot's file, as far as a model of its motion needs them. Rows of arrays are joints."""

    name: str
    links: tuple[Link, ...]
    gravity: tuple[float, float, float]
    tool: int
    tool_position: tuple[float, float, float]
    tool_rotation: Any
    torque_limits: np.ndarray
    """In N·m, or N for slides; NaN for joints whose limit the file does not give."""
    low: np.ndarray
    high: np.ndarray
    """The ranges of the joints; infinite for joints without a range."""
    home: np.ndarray | None
    """The joints in the file's keyframe; None without a keyframe."""
    lag: float | None
    """The time constant of the actuators, if the file gives one."""
    notes: tuple[str, ...]
    """What was left out or changed, in sentences."""


def read(
    path: str | os.PathLike[str],
    *,
    fixed: Sequence[str] = (),
    joints: Sequence[str] | None = None,
    tool: str | None = None,
) -> RobotFile:
    """Read a robot from an MJCF or URDF file; see `RobotArm.from_file`."""
    model, notes = compiled(path)
    return _Reader(model, Path(path), notes).read(fixed, joints, tool)


@contextmanager
def _warnings_as(notes: list[str]) -> Iterator[None]:
    """Collect MuJoCo's warnings, which it would write to a file in the current folder."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: notes.append(f"MuJoCo warns: {' '.join(str(text).split())}."))
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def compiled(path: str | os.PathLike[str]) -> tuple[Any, list[str]]:
    """Return the file as MuJoCo compiles it, without meshes that only have a shape, and notes about it."""
    notes: list[str] = []
    with _warnings_as(notes):
        return _compiled(*_parsed(Path(path)), notes, path), notes


def _parsed(path: Path) -> tuple[Any, bool]:
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no such file"
        raise ArgumentError("path", "an MJCF or URDF file", f"{path}: {what}", "give the path of an .xml or .urdf file")
    expand = f"expand it first: xacro {path.name} > {path.name.split('.')[0]}_expanded.urdf"
    if path.suffix == ".xacro":
        raise ArgumentError("path", "an MJCF or URDF file", f"{path}: a xacro file", expand)
    try:
        tree = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, ValueError, LookupError, OSError) as error:  # also an unknown encoding
        raise ArgumentError("path", "an MJCF or URDF file", f"{path}: not XML ({error})") from None
    root = tree.tag
    if root == "robot" and (found := _xacro(tree)):
        # MuJoCo would leave out unknown elements, and with them links of the robot.
        raise ArgumentError("path", "an MJCF or URDF file", f"{path}: a file with xacro, {found}", expand)
    if root == "mujocoinclude":
        hint = "give the file that includes it"
        raise ArgumentError("path", "an MJCF or URDF file", f"{path}: a part that other files include", hint)
    if root not in ("mujoco", "robot"):
        hint = "the first element of an MJCF file is <mujoco>, that of a URDF file is <robot>"
        raise ArgumentError("path", "an MJCF or URDF file", f"{path}: an XML file with <{root}>", hint)
    try:
        return mujoco.MjSpec.from_file(str(path)), root == "robot"
    except (ValueError, RuntimeError) as error:
        raise _refused(path, error) from None


def _xacro(root: ElementTree.Element) -> str:
    """Return an element or an expression that only the program xacro understands; "" if there is none."""
    for element in root.iter():
        name = str(element.tag)
        if "/xacro}" in name and name.split("}")[1] not in ("property", "arg"):
            return f"<xacro:{name.split('}')[1]}>"
    for part in (part for part in root if part.tag in ("link", "joint")):
        for element in part.iter():
            for attribute, value in element.items():
                if "${" in value and attribute != "filename":  # meshes are not needed
                    return repr(value)
    return ""


REFUSED = {
    "already included": "remove that <include>",
    "'include'": "the file includes another file: put that file at its place",
    "'model'": "the file attaches another file: put that file at its place",
    "unknown default class": "if another file includes this one, give that file",
    "unknown transmission target": "if another file includes this one, give that file",
    "unknown element": "if another file includes this one, give that file",
    "not found in tendon": "if another file includes this one, give that file",
    "free joint": "floating bases are not supported; make the joint fixed",
    "global coordinates": "load and save the file with MuJoCo 2.3.3, which converts it",
}
"""What to do about messages of MuJoCo that contain these words."""


def _refused(path: Any, error: Exception, hint: str = "") -> ArgumentError:
    text = " ".join(str(error).split())
    hint = hint or next((hint for words, hint in REFUSED.items() if words in text), "")
    hint = hint or "correct the file as the message says; `python -m mujoco.viewer --mjcf=FILE` shows the same message"
    return ArgumentError("path", "a file that MuJoCo compiles", f"{path}: MuJoCo says: {text}", hint)


def _compiled(spec: Any, is_urdf: bool, notes: list[str], path: Any) -> Any:
    """Compile the robot without the parts that only have a look, whose files may be missing."""
    _strip(spec, is_urdf)
    _make_positive(spec, notes)
    for _ in range(3):  # each remedy is tried once
        try:
            return _quietly(spec)
        except (ValueError, RuntimeError) as error:
            _remedy(spec, path, error, notes)
    raise AssertionError("a remedy was tried twice")


def _remedy(spec: Any, path: Any, error: Exception, notes: list[str]) -> None:
    """Change what MuJoCo refuses, and note it; raise `ArgumentError` if there is no remedy."""
    text = str(error)
    if "mjMINVAL" in text and not spec.compiler.boundmass:
        spec.compiler.boundmass, spec.compiler.boundinertia = LEAST_MASS, 1e-3 * LEAST_MASS
        notes.append(f"Moving bodies without a mass get {LEAST_MASS:g} kg.")
    elif "A + B" in text and not spec.compiler.balanceinertia:
        spec.compiler.balanceinertia = True
        notes.append(
            "The inertia of a body cannot be that of any mass (A + B < C). MuJoCo replaces its moments by their mean; "
            "correct the file."
        )
    elif any(word in text for word in ("mesh", "Mesh", "opening file", "resource")):
        hint = "a body takes its inertia from this mesh: put the mesh beside the file, or give the body an <inertial>"
        raise _refused(path, error, hint) from None
    else:
        raise _refused(path, error) from None


def _quietly(spec: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MuJoCo warns of attributes that it will drop in a later release
        return spec.compile()


def _make_positive(spec: Any, notes: list[str]) -> None:
    """Replace moments of inertia that are not positive, which MuJoCo refuses even for a body that does not move."""
    changed = []
    for body in spec.bodies:
        if not body.explicitinertial or np.isnan(body.fullinertia[0]):
            continue
        xx, yy, zz, xy, xz, yz = body.fullinertia
        moments, axes = np.linalg.eigh(np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]))
        if moments[0] > 1e-15:
            continue
        # The least moments that a body with the largest of them may have.
        moments = np.maximum(moments, max(1e-3 * moments[2], 1e-3 * LEAST_MASS))
        full = axes @ np.diag(moments) @ axes.T
        body.fullinertia = [full[0, 0], full[1, 1], full[2, 2], full[0, 1], full[0, 2], full[1, 2]]
        changed.append(body.name)
    if changed:
        text = "The inertia of " + ", ".join(changed) + " is not positive definite; its least moments are raised."
        notes.append(text + " Correct the file if these links move.")


def _strip(spec: Any, is_urdf: bool) -> None:
    spec.compiler.fusestatic = False  # keep the names of welded bodies, such as a tool's
    spec.compiler.discardvisual = False
    from_geoms = spec.compiler.inertiafromgeom == mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_TRUE
    for body in spec.bodies:
        explicit = bool(body.explicitinertial) and not from_geoms
        for geom in list(body.geoms):
            geom.material = ""
            # Every link of a URDF has its own inertia; a link without one has no mass. In MJCF, many files give the
            # mass 0 to the shapes that are only for the eye.
            weightless = explicit or body.name == "world" or geom.mass == 0
            if is_urdf or (int(geom.type) in MESHES and weightless):
                spec.delete(geom)
        for site in body.sites:
            site.material = ""
    for tendon in spec.tendons:
        tendon.material = ""
    used = {geom.meshname for geom in spec.geoms}
    for group in (spec.sensors, spec.pairs, spec.excludes, spec.skins, spec.tuples, spec.cameras, spec.lights):
        for part in list(group):
            spec.delete(part)
    for mesh in list(spec.meshes):
        if mesh.name not in used:
            spec.delete(mesh)
        else:
            mesh.material = ""
    heights = {geom.hfieldname for geom in spec.geoms}
    for field in list(spec.hfields):
        if field.name not in heights:
            spec.delete(field)
    for group in (spec.materials, spec.textures):
        for part in list(group):
            spec.delete(part)


def model_name(model: Any, path: Path) -> str:
    """Return the name that the file gives to its robot; the name of the file if there is none."""
    first = model.names.split(b"\0", 1)[0].decode()
    return first if first and first != "MuJoCo Model" else path.stem


def bodies_behind(model: Any, body: int) -> set[int]:
    """Return this body and all bodies that it carries."""
    found = {body}
    for b in range(body + 1, model.nbody):
        if int(model.body_parentid[b]) in found:
            found.add(b)
    return found


def is_pushed(model: Any, bodies: set[int]) -> bool:
    """Return whether an actuator acts on one of these bodies itself, as a rotor does."""
    for i, kind in enumerate(model.actuator_trntype):
        target = model.actuator_trnid[i, 0]
        if kind == mujoco.mjtTrn.mjTRN_SITE and int(model.site_bodyid[target]) in bodies:
            return True
        if kind == mujoco.mjtTrn.mjTRN_BODY and int(target) in bodies:
            return True
    return False


class _Reader:
    """The joints of a compiled file: which of them the arm has, and their links."""

    def __init__(self, model: Any, path: Path, notes: list[str]):
        self.model, self.path, self.notes = model, path, notes
        self.kind = model.jnt_type
        self.names = [model.joint(j).name or f"joint{j + 1}" for j in range(model.njnt)]
        self.ignored: set[int] = set()  # bodies of loose objects

    def read(self, fixed: Sequence[str], joints: Sequence[str] | None, tool: str | None) -> RobotFile:
        model = self.model
        kept = self._kept(fixed, joints)
        if not kept:
            has = "only free bodies, and no joints" if all(kind == FREE for kind in self.kind) else "all joints fixed"
            raise self._error("at least one hinge or slide joint that moves", has if model.njnt else "no joints")
        for body in np.flatnonzero(~np.isfinite(model.body_mass) | ~np.isfinite(model.body_inertia).all(axis=1)):
            raise self._error(
                "finite masses and inertias", f"{self._body(int(body))!r} with {model.body_mass[body]:g} kg"
            )
        data = mujoco.MjData(model)
        home = self._keyframe()
        at = np.array(model.qpos0)
        for j in set(range(model.njnt)) - set(kept):
            if self.kind[j] in (HINGE, SLIDE):
                a = model.jnt_qposadr[j]
                at[a] = home[a] if home is not None else self._inside(j, float(at[a]))
        data.qpos[:] = at
        mujoco.mj_kinematics(model, data)
        link_of = self._link_of_bodies(kept)
        self._check_loops(link_of)
        links = self._links(kept, link_of, data)
        tool_link, position, rotation = self._tool(tool, kept, links, link_of, data)
        address = model.jnt_qposadr[kept]
        limited = model.jnt_limited[kept].astype(bool)
        for j in kept:
            low, high = model.jnt_range[j]
            if low > high:  # MuJoCo ignores it without a word; some simulators mean "no range"
                self.notes.append(
                    f"{self.names[j]} has no range, as its lower limit {low:g} is above the upper {high:g}."
                )
        self._say_passive(kept)
        off = model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_GRAVITY
        limits, lag = self._limits(kept)
        return RobotFile(
            name=model_name(model, self.path),
            links=links,
            gravity=_triple(np.zeros(3) if off else model.opt.gravity),
            tool=tool_link,
            tool_position=_triple(position),
            tool_rotation=tuple(tuple(map(float, row)) for row in rotation),
            torque_limits=limits,
            low=np.where(limited, model.jnt_range[kept, 0], -np.inf),
            high=np.where(limited, model.jnt_range[kept, 1], np.inf),
            home=None if home is None else np.array(home[address]),
            lag=lag,
            notes=tuple(self.notes),
        )

    def _error(self, expected: str, got: str, hint: str = "") -> ArgumentError:
        return ArgumentError("path", f"a robot with {expected}", f"{self.path}: {got}", hint)

    # Which joints the arm has.

    def _kept(self, fixed: Sequence[str], joints: Sequence[str] | None) -> list[int]:
        model = self.model
        asked = set(self._numbers("fixed", fixed))
        if joints is not None:
            wanted = self._numbers("joints", joints)
            asked |= set(range(model.njnt)) - set(wanted)
        free = [j for j in range(model.njnt) if self.kind[j] == FREE]
        moved = [self._behind(j) for j in range(model.njnt)]
        for j in free:
            inside = [k for k in moved[j] if k != j]
            flies = is_pushed(model, bodies_behind(model, int(model.jnt_bodyid[j])))
            if any(k not in asked for k in inside) or flies:
                hint = "legs, hands and vehicles are not supported; for an arm on a cart, remove the free joint"
                if flies:
                    hint = (
                        "read a quadrotor with models.Quadrotor.from_file, and tune it in Python: see Quadrotors in "
                        "docs/robots-from-files.md and examples/drone_from_file.py"
                    )
                raise self._error("a fixed base", f"a floating base (free joint {self.names[j]!r})", hint)
            self.ignored |= bodies_behind(model, int(model.jnt_bodyid[j]))
            self.notes.append(f"The free body {self._body(int(model.jnt_bodyid[j]))!r} is left out.")
        usable = [j for j in range(model.njnt) if j not in free and int(model.jnt_bodyid[j]) not in self.ignored]
        for j in usable:
            if self.kind[j] == BALL and j not in asked:
                hint = f"fix it with fixed=({self.names[j]!r},), or replace it by three hinges in the file"
                raise self._error("hinge and slide joints", f"a ball joint, {self.names[j]!r}", hint)
        kept = [j for j in usable if j not in asked]
        if joints is not None:
            return kept
        driven = self._driven()
        # A joint that the user fixes still makes the chain longer that carries a hand.
        fingers = self._fingers([j for j in usable if not driven or j in driven])
        if driven and (passive := [j for j in kept if j not in driven]):
            for j in passive:
                if below := [k for k in moved[j] if k in driven and k in kept]:
                    way = ", ".join(self.names[k] for k in usable if below[0] in moved[k] and k not in driven)
                    hint = (
                        f"name the joints that have motors, joints=(…): before {self.names[below[0]]!r} are {way}; "
                        f"or give fixed=({self.names[j]!r},), or give the joint an actuator"
                    )
                    raise self._error(
                        "an actuator at each joint",
                        f"no actuator at {self.names[j]!r}, which carries {self.names[below[0]]!r}",
                        hint,
                    )
            kept = [j for j in kept if j in driven]
            self._say_fixed(passive, "has no actuator", "have no actuator")
        kept = self._without(kept, self._coupled(), "is coupled to another joint", "are coupled", moved)
        return self._without(kept, fingers, "belongs to a hand", "belong to a hand", moved)

    def _numbers(self, argument: str, names: Sequence[str]) -> list[int]:
        if isinstance(names, str):
            raise ArgumentError(argument, "a tuple of names of joints", f"{names!r}")
        for name in names:
            if name not in self.names:
                listed = ", ".join(self.names)
                raise ArgumentError(argument, f"some of {listed}", f"{name!r}{nearest(name, self.names)}")
        return [self.names.index(name) for name in names]

    def _driven(self) -> set[int]:
        return {int(self.model.actuator_trnid[i, 0]) for i in self._motors()}

    def _motors(self) -> list[int]:
        """Return the actuators that act on a joint."""
        return [i for i, kind in enumerate(self.model.actuator_trntype) if kind in AT_JOINT]

    def _coupled(self) -> list[int]:
        """Return the joints of active equality constraints between joints or tendons."""
        model, found = self.model, set()
        for e in range(model.neq):
            if not model.eq_active0[e]:
                continue
            ids = [int(i) for i in (model.eq_obj1id[e], model.eq_obj2id[e]) if i >= 0]
            if model.eq_type[e] == mujoco.mjtEq.mjEQ_JOINT and len(ids) == 2:
                found |= set(ids)
            elif model.eq_type[e] == mujoco.mjtEq.mjEQ_JOINT:
                found.add(ids[0])
            elif model.eq_type[e] == mujoco.mjtEq.mjEQ_TENDON:
                for tendon in ids:
                    start, count = model.tendon_adr[tendon], model.tendon_num[tendon]
                    for w in range(start, start + count):
                        if model.wrap_type[w] == mujoco.mjtWrap.mjWRAP_JOINT:
                            found.add(int(model.wrap_objid[w]))
        return sorted(found)

    def _fingers(self, kept: list[int]) -> list[int]:
        """Return the joints of hands: short branches behind a longer chain."""
        parent = {j: self._before(j, kept) for j in kept}
        children: dict[int | None, list[int]] = {}
        for j, p in parent.items():
            children.setdefault(p, []).append(j)

        def behind(j: int) -> list[int]:
            return [j, *(k for child in children.get(j, []) for k in behind(child))]

        found: list[int] = []
        for j in kept:
            length, at = 1, j
            while (above := parent[at]) is not None:
                length, at = length + 1, above
            branches = [behind(child) for child in children.get(j, [])]
            if len(branches) > 1 and length >= HAND and all(len(branch) < length for branch in branches):
                found += [k for branch in branches for k in branch]
        return sorted(set(found))

    def _without(self, kept: list[int], gone: list[int], one: str, many: str, moved: list[list[int]]) -> list[int]:
        gone = [j for j in gone if j in kept]
        rest = [j for j in kept if j not in gone]
        for j in gone:
            if below := [k for k in moved[j] if k in rest]:
                hint = f"a coupled joint inside an arm is not supported; fix it with fixed=({self.names[j]!r},)"
                got = f"{self.names[j]!r}, which {one} and carries {self.names[below[0]]!r}"
                raise self._error("joints that move by themselves", got, hint)
        if not rest:
            return kept  # all joints of the file are like this: the file is a hand
        self._say_fixed(gone, one, many)
        return rest

    def _say_fixed(self, gone: list[int], one: str, many: str) -> None:
        if not gone:
            return
        names = ", ".join(self.names[j] for j in gone)
        text = f"{names} {one} and is fixed" if len(gone) == 1 else f"{names} {many} and are fixed"
        self.notes.append(f"{text} at home.")

    def _say_passive(self, kept: list[int]) -> None:
        model = self.model
        if np.any(model.dof_frictionloss[model.jnt_dofadr[kept]] > 0):
            self.notes.append("The dry friction of the file is not in the model: the estimator learns it.")
        if np.any(model.body_gravcomp != 0):
            self.notes.append("The gravity compensation of the file is left out: the controller computes it.")
        if model.opt.density or model.opt.viscosity:
            self.notes.append("The drag of air or water is left out.")
        dofs = model.jnt_dofadr[kept]
        if np.any(model.dof_dampingpoly[dofs]) or np.any(model.jnt_stiffnesspoly[kept]):
            self.notes.append("Damping and springs are linear in the model; their higher terms are left out.")
        if model.ntendon and (np.any(model.tendon_stiffness) or np.any(model.tendon_damping)):
            self.notes.append("The springs and the damping of tendons are left out.")

    # The tree.

    def _body(self, body: int) -> str:
        return self.model.body(int(body)).name or f"body{body}"

    def _behind(self, j: int) -> list[int]:
        """Return the joints that joint j moves, and itself."""
        model, body = self.model, int(self.model.jnt_bodyid[j])
        bodies = bodies_behind(model, body)
        return [k for k in range(model.njnt) if int(model.jnt_bodyid[k]) in bodies and k >= j]

    def _before(self, j: int, kept: list[int]) -> int | None:
        """Return the nearest joint of `kept` that moves joint j."""
        model, body = self.model, int(self.model.jnt_bodyid[j])
        same = [k for k in kept if int(model.jnt_bodyid[k]) == body and k < j]
        while not same and body:
            body = int(model.body_parentid[body])
            same = [k for k in kept if int(model.jnt_bodyid[k]) == body]
        return same[-1] if same else None

    def _link_of_bodies(self, kept: list[int]) -> np.ndarray:
        """Return the number of the link of each body; −1 is the base, −2 a loose object."""
        model = self.model
        found = np.full(model.nbody, -1)
        for body in range(1, model.nbody):
            own = [n for n, j in enumerate(kept) if int(model.jnt_bodyid[j]) == body]
            found[body] = own[-1] if own else found[model.body_parentid[body]]
            if body in self.ignored:
                found[body] = -2
        return found

    def _check_loops(self, link_of: np.ndarray) -> None:
        model = self.model
        for e in range(model.neq):
            if not model.eq_active0[e] or model.eq_type[e] not in LOOPS:
                continue
            bodies = [int(model.eq_obj1id[e]), int(model.eq_obj2id[e])]
            if model.eq_objtype[e] == mujoco.mjtObj.mjOBJ_SITE:
                bodies = [int(model.site_bodyid[b]) for b in bodies]
            one, other = (int(link_of[b]) for b in bodies)
            if one != other and -2 not in (one, other):
                hint = (
                    "closed chains are not supported; remove the <equality>, or fix the joints of the loop: fixed=(…)"
                )
                got = f"a closed chain ({self._body(bodies[0])!r} and {self._body(bodies[1])!r} are connected)"
                raise self._error("a tree of links", got, hint)

    def _links(self, kept: list[int], link_of: np.ndarray, data: Any) -> tuple[Link, ...]:
        """Return the links. All frames have the axes of the base while the joints are at their zeros."""
        model = self.model
        links = []
        for n, j in enumerate(kept):
            before = self._before(j, kept)
            parent = -1 if before is None else kept.index(before)
            origin = data.xanchor[j]
            mass, moment = 0.0, np.zeros(3)
            for body in np.flatnonzero(link_of == n):
                mass += model.body_mass[body]
                moment = moment + model.body_mass[body] * (data.xipos[body] - origin)
            center = moment / mass if mass > 0 else np.zeros(3)
            inertia = np.zeros((3, 3))
            for body in np.flatnonzero(link_of == n):
                R = data.ximat[body].reshape(3, 3)
                away = data.xipos[body] - origin - center
                inertia += R @ np.diag(model.body_inertia[body]) @ R.T
                inertia += model.body_mass[body] * (away @ away * np.eye(3) - np.outer(away, away))
            inertia = (inertia + inertia.T) / 2
            dof, is_hinge = model.jnt_dofadr[j], self.kind[j] == HINGE
            motors = [i for i in self._motors() if int(model.actuator_trnid[i, 0]) == j]
            geared = model.actuator_gear[motors, 0] ** 2  # an actuator's own inertia and damping, seen at the joint
            links.append(
                Link(
                    name=self.names[j],
                    parent=parent,
                    kind="hinge" if is_hinge else "slide",
                    position=_triple(origin - (data.xanchor[kept[parent]] if parent >= 0 else 0.0)),
                    axis=_triple(data.xaxis[j]),
                    zero=float(model.qpos0[model.jnt_qposadr[j]]),
                    mass=float(mass),
                    center=_triple(center),
                    inertia=(_triple(inertia[0]), _triple(inertia[1]), _triple(inertia[2])),
                    armature=float(model.dof_armature[dof] + geared @ model.actuator_armature[motors]),
                    damping=float(model.dof_damping[dof] + geared @ model.actuator_damping[motors]),
                    stiffness=float(model.jnt_stiffness[j]),
                    rest=float(model.qpos_spring[model.jnt_qposadr[j]]),
                )
            )
        self._check_masses(links)
        return tuple(links)

    def _check_masses(self, links: list[Link]) -> None:
        behind = [link.mass for link in links]
        for i in reversed(range(len(links))):
            if links[i].parent >= 0:
                behind[links[i].parent] += behind[i]
        for link, mass in zip(links, behind, strict=True):
            if mass <= 10 * LEAST_MASS and link.armature == 0:
                hint = "give its links an <inertial> with a mass"
                raise self._error("links that have a mass", f"joint {link.name!r} moves no mass", hint)

    # The other numbers.

    def _keyframe(self) -> np.ndarray | None:
        model = self.model
        names = [model.key(k).name for k in range(model.nkey)]
        if not names:
            return None
        return np.array(model.key_qpos[names.index("home") if "home" in names else 0])

    def _inside(self, j: int, value: float) -> float:
        low, high = self.model.jnt_range[j]
        return float(np.clip(value, low, high)) if self.model.jnt_limited[j] else float(value)

    def _limits(self, kept: list[int]) -> tuple[np.ndarray, float | None]:
        """Return the largest torque of each joint, and the time constant of the actuators."""
        model = self.model
        limits = np.full(len(kept), np.nan)
        lags = []
        for i in self._motors():
            joint = int(model.actuator_trnid[i, 0])
            if joint not in kept:
                continue
            n = kept.index(joint)
            own = abs(model.actuator_gear[i, 0]) * self._force_limit(i)
            limits[n] = own if np.isnan(limits[n]) else limits[n] + own
            if model.actuator_dyntype[i] in FILTERS and model.actuator_dynprm[i, 0] > 0:
                lags.append(float(model.actuator_dynprm[i, 0]))
        for n, j in enumerate(kept):
            if model.jnt_actfrclimited[j]:
                low, high = np.abs(model.jnt_actfrcrange[j])
                if min(low, high) > 0:
                    limits[n] = np.nanmin([limits[n], min(low, high)])
        return np.where((limits > 0) & np.isfinite(limits), limits, np.nan), max(lags) if lags else None

    def _force_limit(self, i: int) -> float:
        """Return the largest force of an actuator before its gear; NaN if there is no limit."""
        model, found = self.model, []
        if model.actuator_forcelimited[i]:
            found.append(min(abs(model.actuator_forcerange[i])))
        fixed_gain = model.actuator_gaintype[i] == mujoco.mjtGain.mjGAIN_FIXED
        bias = model.actuator_biastype[i] != mujoco.mjtBias.mjBIAS_NONE and np.any(model.actuator_biasprm[i])
        integrates = model.actuator_dyntype[i] == mujoco.mjtDyn.mjDYN_INTEGRATOR
        control = int(model.actuator_ctrladr[i])
        if fixed_gain and not bias and not integrates and model.actuator_ctrllimited[control]:
            found.append(abs(model.actuator_gainprm[i, 0]) * min(abs(model.actuator_ctrlrange[control])))
        found = [force for force in found if force > 0]
        return min(found) if found else np.nan

    def _tool(
        self, name: str | None, kept: list[int], links: tuple[Link, ...], link_of: np.ndarray, data: Any
    ) -> tuple[int, np.ndarray, np.ndarray]:
        """Return the link of the tool, and the tool's position and rotation in the frame of that link."""
        model = self.model
        bodies = {model.body(b).name: b for b in range(1, model.nbody) if model.body(b).name}
        sites = {model.site(s).name: s for s in range(model.nsite) if model.site(s).name}
        if name is not None:
            if name in sites:
                body, position, R = int(model.site_bodyid[sites[name]]), data.site_xpos, data.site_xmat
                position, R = position[sites[name]], R[sites[name]]
            elif name in bodies:
                body = bodies[name]
                position, R = data.xpos[body], data.xmat[body]
            else:
                listed = [*sites, *bodies]
                raise ArgumentError("tool", "the name of a site or a body", f"{name!r}{nearest(name, listed)}")
            link = int(link_of[body])
            if link < 0:
                raise ArgumentError("tool", "a site or a body that the joints move", f"{name!r}")
        else:
            link = _end(links)
            # The last body of that link, as files list a flange or a tool frame after the link itself.
            body = int(np.flatnonzero(link_of == link)[-1])
            position, R = data.xpos[body], data.xmat[body]
        origin = data.xanchor[kept[link]]
        position = np.array(position - origin)
        if name is None:
            axis = np.array(links[link].axis)
            off_axis = position - axis * (position @ axis)
            if links[link].kind == "hinge" and np.linalg.norm(position) < 1e-6 and np.linalg.norm(off_axis) < 1e-6:
                position = np.array(links[link].center)
        return link, position, np.array(R).reshape(3, 3)


def _triple(values: Any) -> tuple[float, float, float]:
    x, y, z = map(float, values)
    return x, y, z


def _end(links: tuple[Link, ...]) -> int:
    """Return the last link of the longest chain; the first such chain if there are several."""
    depth = [0] * len(links)
    for i, link in enumerate(links):
        depth[i] = 1 + (depth[link.parent] if link.parent >= 0 else 0)
    return depth.index(max(depth))


def check_limits(limits: np.ndarray, names: Sequence[str], given: Any) -> np.ndarray:
    """Return the torque limits, of which those that the user gives replace those of the file."""
    if given is not None and not isinstance(given, Mapping):
        return np.array(arguments.fit_shape("torque_limits", arguments.variances("torque_limits", given), limits.shape))
    limits = np.array(limits)
    for name, limit in (given or {}).items():
        if name not in names:
            listed = ", ".join(names)
            raise ArgumentError("torque_limits", f"names among {listed}", f"{name!r}{nearest(str(name), list(names))}")
        limits[list(names).index(name)] = float(arguments.positive("torque_limits", limit))
    missing = [name for name, limit in zip(names, limits, strict=True) if not limit > 0]
    if missing:
        raise ArgumentError(
            "torque_limits",
            "the largest torques, because the file gives no limit for " + ", ".join(missing),
            "None" if given is None else f"{dict(given)}",
            "give torque_limits=… in N·m (N for slides), one number, one for each joint, or numbers by the names of "
            "joints; or give the file actuators with a forcerange, or <limit effort=…> in a URDF",
        )
    return limits
