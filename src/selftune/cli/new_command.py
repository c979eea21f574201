"""The command `selftune new`: write an example to start from."""

import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from ..foundation.errors import InputError
from ..storage import files
from .options import Json, Quiet
from .screen import Screen, refusing

FILES = ("cart.py", "cart.toml", "cart-sweep.toml")


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for the files. It is created if needed.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write an example to start from: a system in Python, and its configurations for run and sweep.

    Existing files are never overwritten.
    """
    screen = Screen(quiet, as_json)
    with refusing():
        paths = [folder / name for name in FILES]
        for path in paths:
            if path.exists() or path.is_symlink():
                raise InputError(f"{path}: the file exists already; name another folder")
        example = resources.files(f"{__package__}.example")
        for path in paths:
            files.write(path, (example / path.name).read_bytes())
            screen.show(f"wrote   {path}")
        command = f"selftune run {shlex.quote(str(folder / 'cart.toml'))}"
        screen.show(f"next    {command}")
        screen.give({"files": [str(path) for path in paths], "next": command})
