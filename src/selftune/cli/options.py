"""What all commands share: options, the start in a folder, and the exit code."""

import enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..control import result_codes
from .screen import Screen

FAILED = 1


class Target(enum.StrEnum):
    """What `selftune export` writes a controller for."""

    C = "c"
    WEB = "web"
    FMU = "fmu"
    ARDUINO = "arduino"
    ROS2 = "ros2"
    PX4 = "px4"
    CRAZYFLIE = "crazyflie"


Out = Annotated[Path, typer.Option("--out", "-o", help="The run's folder. An interrupted run there is continued.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start again. An earlier run is renamed, not deleted.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")]
Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        metavar="NAME",
        help="An installed module whose code the file may run. Modules beside the file need no permission.",
    ),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Number of threads. Default: the number of cores.")]


def begin(screen: Screen, folder: Any, fresh: bool) -> bool:
    """With `fresh`, rename the folder of an earlier run. Return whether the folder has a complete run."""
    from ..storage import files
    from ..storage.store import read_manifest, set_aside

    if fresh and (aside := set_aside(folder)):
        screen.note(f"the earlier run in {folder} was moved to {aside}")
    return files.exists(folder / "manifest.json") and read_manifest(folder).state == "complete"


def say_reused(screen: Screen, folder: Any, manifest: Any) -> None:
    from ..storage.store import computed_otherwise

    screen.note(f"{folder}: complete already; verified")
    for text in computed_otherwise(manifest):
        screen.note(f"computed by other code ({text}); --fresh computes it again")


def show_files(screen: Screen, folder: Any, report: Path | None, results: dict[str, Any]) -> None:
    """Print where the data and the report are; as JSON, also the results."""
    screen.show(f"data    {folder}/data.zarr" + ("" if report is None else f"\nreport  {report}"))
    screen.give({"folder": str(folder), "report": None if report is None else str(report), **results})


def failed_checks(summary: Any) -> list[str]:
    """A message for each failed check of a summary."""
    return [f"check: {c.name}: expected {c.expected}, got {c.measured}" for c in summary.checks if c.holds is False]


def failed_findings(findings: dict[str, Any]) -> list[str]:
    """A message for each failed check of the theory's experiments."""
    return [
        f"{name}: {check.name}: expected {check.expected}, got {check.measured}"
        for name, one in findings.items()
        for check in one.failed
    ]


def failed_runs(dataset: Any) -> list[str]:
    """A message for each run that did not succeed."""
    codes = dataset.result_code.stack(run=dataset.result_code.dims)
    messages = []
    for run in codes[codes != 0]:
        at = {str(dim): run[dim].item() for dim in dataset.result_code.dims}
        step = f" at step {int(dataset.failed_at.sel(at))}" if "failed_at" in dataset else ""
        how = result_codes.WORDS.get(int(run), "failed")
        messages.append(f"{', '.join(f'{dim} {value}' for dim, value in at.items())}: {how}{step}")
    return messages


def end(screen: Screen, faults: list[str]) -> None:
    """Print the faults, even with --quiet, and exit with code 1 if there are any."""
    lines = faults if len(faults) <= 20 else [*faults[:19], f"{len(faults) - 19} more"]
    for fault in lines:
        screen.err.print(f"[red]failed:[/] {escape(fault)}", soft_wrap=True)
    if faults:
        raise typer.Exit(FAILED)
