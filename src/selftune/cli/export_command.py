"""`selftune export`: a controller as C, or for browsers."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Quiet, Target
from .screen import Screen, refusing


def export(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CONTROLLER", help="A controller, or a function that returns one, in a module or .py file."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the files.")],
    kind: Annotated[
        Target,
        typer.Option("--target", help="c: C99 for a microcontroller. web: WebAssembly for browsers and Node.js."),
    ] = Target.C,
    x: Annotated[str | None, typer.Option(help="The first state: 0,0 or JSON. Default: x of the module.")] = None,
    theta: Annotated[str | None, typer.Option(help="θ₀. Default: theta of the module.")] = None,
    a_hat: Annotated[str | None, typer.Option(help="â₀. Default: a_hat of the module.")] = None,
    t: Annotated[str | None, typer.Option(help="An example of a step's context t, if t is more than a number.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    name: Annotated[str | None, typer.Option(help="The prefix of all names in C. Default: the folder's name.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite files that were changed or that selftune did not write.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a controller as C99 for a microcontroller, or for browsers, with a recorded run that tests the code."""
    screen = Screen(quiet, as_json)
    with refusing():
        from . import exporting

        given = {"x": x, "theta": theta, "a_hat": a_hat, "t": t}
        about = exporting.export(target, out, given, kind, dtype=dtype, name=name, overwrite=overwrite)
        if kind is Target.C:
            screen.show(exporting.table(about))
            screen.show(f"{exporting.sizes(about)}\nC       {out}")
        else:
            screen.show(
                f"{about['size']:,} bytes of WebAssembly, check it with: node {out / 'check.mjs'}\nweb     {out}"
            )
        given = {key: about[key] for key in ("costs", "size") if key in about}
        screen.give({"folder": str(out), "name": about["name"], "files": sorted(about["files"]), **given})
