"""`selftune commission`: check a loop, make a dry run on its plant, and decide whether it may learn."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from .options import Json, Quiet, end
from .screen import Screen, new_table, refusing


def commission(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:LOOP", help="A Loop, or a function that returns one, in a module or .py file."),
    ],
    plant: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:PLANT",
            help="The plant: an object with measure() and step(u), a model, or a function or class that makes one. "
            "Default: the loop's own model.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=100, help="The number of steps of each dry run.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the simulation and of a random reference.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder for the report. Default: none.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check a loop, make a dry run on its plant without learning, choose its settings, and decide: go or no-go."""
    screen = Screen(quiet, as_json)
    with refusing(), ExitStack() as stack:
        import selftune as st

        from ..loop.commissioning import text_of
        from ..loop.dry_run import Plant
        from ..models.base import AbstractModel
        from . import tables, targets

        modules = targets.Modules(stack)
        loop = modules.find(target, "LOOP", "motor.py:loop", st.Loop, "a selftune.Loop")
        given: Any = None
        if plant is not None:
            given = modules.find(plant, "PLANT", "motor.py:plant", AbstractModel | Plant, "a plant or a model")
        made = targets.blaming(target, "stopped", lambda: st.commission(loop, given, steps=steps, seed=seed))
        report = None if out is None else made.report(out)
        screen.show(tables.of_checks("commissioning", made.rows))
        if made.guard_rules:
            limits = new_table("guard", "setting", "value", "rule")
            for rule in made.guard_rules:
                limits.add_row(rule.setting, text_of(rule.value), escape(rule.rule))
            screen.show(limits)
        screen.show("go" if made.ok else "no-go")
        if report is not None:
            screen.show(f"report  {report}")
        screen.give({"report": None if report is None else str(report), **made.to_json()})
    end(screen, list(made.reasons))
