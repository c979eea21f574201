"""`selftune bench`: comparisons on systems other than the paper's example."""

from pathlib import Path
from typing import Annotated, Any

import typer

from . import tables
from .options import Fresh, Json, Out, Quiet, begin, end, failed_checks, say_reused, show_files
from .screen import Screen, refusing, stoppable

app = typer.Typer(no_args_is_help=True, help="Compare tuners on systems other than the paper's example.")


@app.callback()
def _main() -> None:
    pass  # without a callback, Typer would drop the name of a single command


@app.command(
    epilog="Examples:  selftune bench robots   |   selftune bench robots --robots arm --seeds 2 --seconds 10 -o small"
)
def robots(
    out: Out = Path("results/robots"),
    robots: Annotated[
        list[str] | None,
        typer.Option(
            help="arm, quadrotor, car, or module:function of your own. Repeat for several. Default: all three."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds. Default: 10.")] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="Length of each run in seconds. Default: 60.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes. Default: the number of cores.")
    ] = None,
    data_only: Annotated[bool, typer.Option("--data-only", help="Write no figures and no report.")] = False,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Tune robots' gains on physics that the model does not know, and write data, checks, figures and a report.

    Compares tuners, fixed gains and the best static gains, from gains that are too low or too high.

    M-GAPS and fixed gains run with and without an estimator.

    If the folder already has a complete run, the command verifies that run and shows its results.
    """
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments import robots as experiment

        settings = _settings(robots, seeds, seconds)
        _run(screen, experiment, settings, out, workers, data_only, fresh, "driving", tables.robots)


@app.command(
    epilog="Examples:  selftune bench loops   |   selftune bench loops --loops tank --seeds 2 --periods 20 -o small"
)
def loops(
    out: Out = Path("results/loops"),
    loops: Annotated[
        list[str] | None,
        typer.Option(
            help='"motor position", "motor speed", tank, "two-mass drive" or "dead time". Repeat for several. '
            "Default: all."
        ),
    ] = None,
    plants: Annotated[
        list[str] | None,
        typer.Option(help="exact, light, heavy or delayed: the true plant. Repeat for several. Default: all."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds. Default: 10.")] = None,
    periods: Annotated[
        int | None, typer.Option(min=4, help="Length of each run, in periods of the reference. Default: 60.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes. Default: the number of cores.")
    ] = None,
    data_only: Annotated[bool, typer.Option("--data-only", help="Write no figures and no report.")] = False,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Tune PID loops from gains ten times too low or too high, and write data, checks, figures and a report.

    Compares the self-tuning loop with the best static gains, Ziegler–Nichols, SIMC, AMIGO and relay tuning.

    The true plants differ from the model: wrong parameters, a delay that the model does not have, unknown load and
    friction.

    If the folder already has a complete run, the command verifies that run and shows its results.
    """
    from ..experiments.loops.run import Settings

    given = {"loops": loops, "plants": plants, "seeds": seeds, "periods": periods}
    chosen: dict[str, Any] = {
        name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments import loops as experiment

        settings = Settings(**chosen)
        _run(screen, experiment, settings, out, workers, data_only, fresh, "simulating", tables.loops)


@app.command(
    epilog="Examples:  selftune bench arms   |   selftune bench arms --robots z1 --robots arm.urdf --seeds 1 -o small"
)
def arms(
    out: Out = Path("results/arms"),
    robots: Annotated[
        list[str] | None,
        typer.Option(help="The name of a robot, or an MJCF or URDF file. Repeat for several. Default: all names."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds. Default: 5.")] = None,
    seconds: Annotated[float | None, typer.Option(min=2, help="Length of each run in seconds. Default: 60.")] = None,
    tries: Annotated[
        int | None, typer.Option(min=1, help="Number of static gains that the search tries. Default: 40.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes. Default: the number of cores.")
    ] = None,
    data_only: Annotated[bool, typer.Option("--data-only", help="Write no figures and no report.")] = False,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Tune arms from other people's files, with a payload that grows fivefold, and write data, checks and a report.

    Compares learning with fixed gains and with the best static gains, from gains that are too low or too high.

    The robots come from packages on PyPI, which must be installed; see docs/robots-from-files.md.

    If the folder already has a complete run, the command verifies that run and shows its results.
    """
    given = {"robots": robots, "seeds": seeds, "seconds": seconds, "tries": tries}
    chosen: dict[str, Any] = {
        name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments import arms as experiment

        settings = experiment.Settings(**chosen)
        _run(screen, experiment, settings, out, workers, data_only, fresh, "driving", tables.arms)


def _run(
    screen: Screen,
    experiment: Any,
    settings: Any,
    out: Path,
    workers: int | None,
    data_only: bool,
    fresh: bool,
    verb: str,
    show: Any,
) -> None:
    """Compute what the folder does not have, write figures and report, and print the tables."""
    from ..experiments.registry import StoredRun

    reused = begin(screen, out, fresh)
    screen.note(", ".join(f"{name} = {value}" for name, value in vars(settings).items()))
    with screen.progress(verb) as progress, stoppable(screen):
        experiment.compute(settings, out, workers=workers, progress=progress)
    stored, report = StoredRun.open(out), None
    if reused:
        say_reused(screen, out, stored.manifest)
    if not data_only:
        from ..experiments.report import present

        with screen.progress("drawing and writing") as progress:
            report = present(stored, progress, anew=not reused)
    for part in show(stored.summary):
        screen.show(part)
    show_files(screen, out, report, {"manifest": stored.manifest, "summary": stored.summary})
    end(screen, failed_checks(stored.summary))


def _settings(robots: list[str] | None, seeds: int | None, seconds: float | None) -> Any:
    from ..experiments.robots.run import ROBOTS, Settings, cases

    given = {"seeds": seeds, "seconds": seconds}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return Settings(cases=cases(list(dict.fromkeys(robots or ROBOTS))), **chosen)
