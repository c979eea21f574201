"""`selftune replay`: what a loop would have learned and saved, from a recorded run and without the plant."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from .options import Json, Quiet, end
from .screen import Screen, refusing


def replay(
    log: Annotated[
        Path,
        typer.Argument(help="A log: .csv, .parquet, .ulg, .mcap, or the folder of a ROS 2 bag.", show_default=False),
    ],
    loop: Annotated[
        str,
        typer.Option(metavar="MODULE:LOOP", help="A Loop, or a function that returns one, in a module or .py file."),
    ],
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--map",
            "-m",
            help="A TOML file that says where the signals are. Our own CSV files need none.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder for the report. Default: none.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Replay a recorded run: does the model fit, what would an agent have learned, and how much would it have saved?"""
    screen = Screen(quiet, as_json)
    with refusing(), ExitStack() as stack:
        import selftune as st

        from . import tables, targets

        found = targets.Modules(stack).find(loop, "LOOP", "motor.py:loop", st.Loop, "a selftune.Loop")
        made = targets.blaming(
            str(log), "cannot be replayed", lambda: st.replay(found, log, mapping, progress=screen.phase)
        )
        report = None if out is None else made.report(out)
        screen.show(tables.of_checks("replay", made.rows))
        if made.saving is not None:
            screen.show(f"predicted saving of the agent during the log  {escape(str(made.saving))}")
        if report is not None:
            screen.show(f"report  {report}")
        screen.give({"report": None if report is None else str(report), **made.to_json()})
    end(screen, list(made.reasons))
