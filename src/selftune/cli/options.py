"""What the commands have in common beside the screen: options, how a folder is found, and how a command ends."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from .screen import Screen

if TYPE_CHECKING:
    from pydantic import BaseModel

FAILED = 1

Out = Annotated[Path, typer.Option("--out", "-o", help="The run's folder; an interrupted run there is continued.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start anew; a run that is there is renamed, not deleted.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Give the result as JSON on stdout, and nothing else there.")]


def plain(model: "BaseModel") -> Any:
    """As JSON has it, where what is not a finite number is null."""
    return json.loads(model.model_dump_json())


def is_complete(folder: Any) -> bool:
    from ..storage import files
    from ..storage.store import read_manifest

    return files.exists(folder / "manifest.json") and read_manifest(folder).state == "complete"


def say_reused(screen: Screen, folder: Any, manifest: Any) -> None:
    from ..storage.store import computed_otherwise

    screen.note(f"{folder}: complete already; verified")
    for text in computed_otherwise(manifest):
        screen.note(f"computed by other code ({text}); --fresh computes it anew")


def end(screen: Screen, faults: list[str]) -> None:
    """With 1 if there are faults, which are said even where nothing else is."""
    shown = faults if len(faults) <= 20 else [*faults[:19], f"{len(faults) - 19} more"]
    for fault in shown:
        screen.err.print(f"[red]failed:[/] {escape(fault)}", soft_wrap=True)
    if faults:
        raise typer.Exit(FAILED)
