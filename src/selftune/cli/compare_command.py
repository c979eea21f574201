"""`selftune compare`: stored runs, or the settings of a sweep."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from . import tables
from .options import Json, Quiet
from .screen import Screen, new_table, refusing


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Complete runs; each is compared with the first. Or one sweep."),
    ],
    over: Annotated[str | None, typer.Option(help="Sweep: the setting whose values are compared.")] = None,
    by: Annotated[
        list[str] | None, typer.Option(help="Sweep: compare separately at each value of this setting.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="Sweep: the value that the others are compared with.")] = None,
    last: Annotated[float | None, typer.Option(help="Sweep: count only the last share of each run.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare runs by total cost. Ratios are paired by seed if system and scenario are the same.

    For a sweep: compare the values of one setting, each with its best other settings. Differences are paired by seed.
    """
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments.comparison import compare as compare_runs
        from ..experiments.comparison import compare_sweep

        asked = {"over": over, "by": by or None, "to": to, "last": last}
        if (made := compare_sweep(folders, **asked)) is not None:
            screen.show(tables.comparison(made))
            screen.give(made)
            return
        rows = compare_runs(folders)
        table = new_table("mean and 95 % interval over seeds", "run", "seeds", "total cost", "ratio to the first")
        for row in rows:
            ratio = f"– ({row.reason})" if row.ratio is None else str(row.ratio)
            table.add_row(escape(row.name), str(row.seeds), escape(str(row.cost)), escape(ratio))
        screen.show(table)
        screen.give(rows)
