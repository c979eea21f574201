"""`selftune export`: a controller for another program."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Quiet, Target
from .screen import Screen, refusing

LABELS = {Target.C: "C", Target.WEB: "web", Target.FMU: "FMU", Target.ARDUINO: "Arduino"} | {
    Target.ROS2: "ROS 2",
    Target.PX4: "PX4",
    Target.CRAZYFLIE: "app",
}


def export(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME", help="A controller or a loop, or a function that makes one, in a module or .py file."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the files.")],
    kind: Annotated[
        Target,
        typer.Option(
            "--target",
            help="c: C99 for a microcontroller. web: WebAssembly for browsers and Node.js. fmu: units of FMI 3.0 and "
            "2.0 for Simulink, OpenModelica and other tools. arduino: a library for Arduino and PlatformIO. "
            "ros2, px4, crazyflie: a package, a module, an app; compiled in tests, not run.",
        ),
    ] = Target.C,
    x: Annotated[str | None, typer.Option(help="The first state: 0,0 or JSON. Default: x of the module.")] = None,
    theta: Annotated[str | None, typer.Option(help="θ₀. Default: theta of the module.")] = None,
    a_hat: Annotated[str | None, typer.Option(help="â₀. Default: a_hat of the module.")] = None,
    t: Annotated[str | None, typer.Option(help="An example of a step's context t, if t is more than a number.")] = None,
    dt: Annotated[float | None, typer.Option(help="The sampling period in seconds. Default: dt of the module.")] = None,
    inputs: Annotated[
        str | None, typer.Option(help="px4, crazyflie: the fields of the inputs, with commas between them.")
    ] = None,
    outputs: Annotated[
        str | None, typer.Option(help="px4, crazyflie: the fields of the controls, with commas between them.")
    ] = None,
    platforms: Annotated[
        list[str] | None,
        typer.Option(
            "--platform",
            metavar="NAME",
            help="fmu: a platform beside this machine's whose binary is added, such as x86_64-windows. The option may "
            "be repeated.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    name: Annotated[str | None, typer.Option(help="The prefix of all names in C. Default: the folder's name.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite files that were changed or that selftune did not write.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a controller for another program, such as C99 for a microcontroller, with a recorded run that tests it."""
    screen = Screen(quiet, as_json)
    with refusing():
        from . import exporting

        given = {"x": x, "theta": theta, "a_hat": a_hat, "t": t, "dt": None if dt is None else f"{dt!r}"}
        own = exporting.own_options(kind, {"inputs": inputs, "outputs": outputs}, platforms or [])
        about = exporting.export(target, out, given, kind, **own, dtype=dtype, name=name, overwrite=overwrite)
        if kind is Target.C:
            screen.show(exporting.table(about))
        screen.show(f"{exporting.summary(kind, about, out)}\n{LABELS[kind]:8}{out}")
        given = {key: about[key] for key in ("costs", "size") if key in about}
        screen.give({"folder": str(out), "name": about["name"], "files": sorted(about["files"]), **given})
