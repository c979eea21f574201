"""Robots' files that are installed with other packages."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from ..foundation.errors import ArgumentError
from ..foundation.suggestions import nearest
from ..models import robot_files

PLACES = {
    "robosuite": ("robosuite", "", "models/assets/robots/*/robot.xml"),
    "dm_control": ("dm_control", "", "suite/*.xml"),
    "gymnasium": ("gymnasium", "", "envs/mujoco/assets/*.xml"),
    "gymnasium-robotics": ("gymnasium_robotics", "", "envs/assets/kitchen_franka/kitchen_assets/kitchen_env_model.xml"),
    "example-robot-data": ("pinocchio", "../../../..", "share/example-robot-data/robots/*/*/*.urdf"),
}
"""For each package on PyPI: a module, the folder relative to the module, and the pattern of its files."""
MOST = 14
"""Robots with more joints are not listed: their programs take minutes to compile."""


def folders(package: str) -> Iterator[Path]:
    """Yield the folders with the files of a package, if it is installed; the package is not imported."""
    module, above, _ = PLACES[package]
    found = importlib.util.find_spec(module)
    for place in (found.submodule_search_locations or []) if found else []:
        yield (Path(place) / above).resolve()


def files() -> Iterator[tuple[str, Path]]:
    """Yield the package and the path of every file that may be a robot."""
    for package, (_, _, pattern) in PLACES.items():
        for folder in folders(package):
            yield from ((package, path) for path in sorted(folder.glob(pattern)))


def short_name(package: str, path: Path) -> str:
    """Return the name of a file for the command, such as "robosuite/panda"."""
    return f"{package}/{path.parent.name if path.stem == 'robot' else path.stem}"


def find(name: str) -> Path:
    """Return the file with this short name."""
    names = {short_name(package, path): path for package, path in files()}
    if name not in names:
        given = f"{name}: no such file or robot{nearest(name, names)}"
        hint = "`selftune tune` lists the robots that are installed"
        raise ArgumentError("path", "a file, or the name of an installed robot", given, hint)
    return names[name]


def robots() -> Iterator[tuple[str, Path, str, int]]:
    """Yield package, path, name and number of joints of every robot that can be tuned without further arguments."""
    for package, path in files():
        try:
            found = robot_files.read(path)
            robot_files.check_limits(found.torque_limits, [link.name for link in found.links], None)
        except ArgumentError:
            continue
        if len(found.links) <= MOST:
            yield package, path, found.name, len(found.links)
