"""`selftune bench`: comparisons on more than the paper's example."""

from pathlib import Path
from typing import Annotated, Any

import typer

from . import tables
from .options import Fresh, Json, Out, Quiet, end, is_complete, plain, say_reused
from .screen import Screen, refusing, stoppable

app = typer.Typer(no_args_is_help=True, help="Compare tuners on more than the paper's example.")


@app.callback()
def _main() -> None:
    pass  # with it, a single command keeps its name


@app.command(
    epilog="Examples:  selftune bench robots   |   selftune bench robots --robots arm --seeds 2 --seconds 10 -o small"
)
def robots(
    out: Out = Path("results/robots"),
    robots: Annotated[
        list[str] | None,
        typer.Option(help="arm, quadrotor, car, or module:function of your own; once for each. All three by default."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; 10 by default.")] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="Of each run; 60 by default.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many processes; as many as there are cores by default.")
    ] = None,
    data_only: Annotated[bool, typer.Option("--data-only", help="Without figures and report.")] = False,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Let robots tune their gains on physics that they do not know: data, checks, figures and a report.

    Tuners, fixed gains and the best static ones, from gains too low and too high; with and without an estimator.

    A second call on a complete folder verifies and shows it.
    """
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments import robots as experiment
        from ..experiments.robots.summary import summarize
        from ..storage import store

        settings = _settings(robots, seeds, seconds)
        if fresh and (aside := store.set_aside(out)):
            screen.note(f"what was in {out} is now in {aside}")
        reused = is_complete(out)
        screen.note(", ".join(f"{name} = {value}" for name, value in vars(settings).items()))
        with screen.progress("driving") as progress, stoppable(screen):
            experiment.compute(settings, out, workers=workers, progress=progress)
        dataset, manifest = store.open_run(out)
        if reused:
            say_reused(screen, out, manifest)
        summary, report = summarize(dataset, manifest.settings), None
        if not data_only:
            from .write_report import present

            report = present(screen, out, dataset, {}, anew=not reused)
        for part in tables.robots(summary):
            screen.show(part)
        screen.show(f"data    {out / 'data.zarr'}" + ("" if report is None else f"\nreport  {report}"))
        screen.give(
            {
                "folder": str(out),
                "report": None if report is None else str(report),
                "manifest": plain(manifest),
                "summary": plain(summary),
            }
        )
    end(
        screen,
        [f"check: {c.name}: expected {c.expected}, got {c.measured}" for c in summary.checks if c.holds is False],
    )


def _settings(robots: list[str] | None, seeds: int | None, seconds: float | None) -> Any:
    from ..experiments.robots.run import ROBOTS, Settings, cases

    given = {"seeds": seeds, "seconds": seconds}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return Settings(cases=cases(list(dict.fromkeys(robots or ROBOTS))), **chosen)
