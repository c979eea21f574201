"""`selftune report`: the figures and the page of a stored run, again."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Quiet
from .screen import Screen, refusing


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a complete run.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a run's report and draw its figures again."""
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments.registry import StoredRun
        from ..experiments.report import present

        stored = StoredRun.open(folder)
        with screen.progress("drawing and writing") as progress:
            written = present(stored, progress)
        screen.show(f"report  {written}")
        screen.give({"report": str(written)})
