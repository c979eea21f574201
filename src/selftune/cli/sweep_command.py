"""`selftune sweep`: many settings of a configuration, with many seeds, on this machine or on a cluster."""

from pathlib import Path
from typing import Annotated, cast

import typer

from .options import Fresh, Json, Modules, Quiet, begin, end, say_reused, show_files
from .screen import Screen, refusing, stoppable


def sweep(
    config: Annotated[
        Path,
        typer.Argument(help="A TOML file with a table named sweep, such as the cart-sweep.toml of `selftune new`."),
    ],
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="The sweep's folder or URL. Default: results/NAME.")
    ] = None,
    modules: Modules = None,
    executor: Annotated[
        str | None,
        typer.Option(help="The address of a Dask scheduler, tls://… or, unprotected, tcp://… Default: this machine."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of tasks at a time on this machine. Default: the number of cores.")
    ] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often a failed task is tried again.")] = 2,
    redo_failed: Annotated[
        bool, typer.Option("--redo-failed", help="Also repeat the tasks that an earlier call recorded as failed.")
    ] = False,
    data_only: Annotated[bool, typer.Option("--data-only", help="Write no figures and no report.")] = False,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run every setting of a design with every seed, and find the best setting and its confidence interval.

    A run that diverges or an invalid setting does not stop the sweep. The table and the exit code report failures.

    To continue an interrupted sweep, run the same command again.
    """
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments.registry import StoredRun
        from ..experiments.sweep.config import SweepConfig
        from ..storage import files
        from ..sweeps.summary import failures, in_words, points, standings
        from ..sweeps.sweeper import Sweep
        from ..sweeps.sweeper import sweep as run_sweep
        from . import tables

        loaded = SweepConfig(config, modules=modules or ())
        given = out or str(Path("results") / config.stem)
        folder = files.as_folder(given)
        reused = begin(screen, folder, fresh) and not redo_failed
        if executor is not None:
            loaded.pack_modules()
        is_begun = files.is_created(folder / "data.zarr", "zarr.json")
        screen.note(f"{len(loaded.design.points)} settings, {len(loaded.loaded.config.run.seed_list)} seeds")
        with screen.progress("simulating") as progress, stoppable(screen):
            done = run_sweep(
                **loaded.arguments(),
                folder=given,
                executor=executor,
                workers=workers,
                retries=retries,
                redo=Sweep(given).failed_tasks() if redo_failed and is_begun else (),
                progress=progress,
            )
        # The place may be in an object store; then no page is written.
        stored, report = StoredRun(cast(Path, folder), done.manifest, done.to_dataset()), None
        if reused:
            say_reused(screen, folder, done.manifest)
        found, chosen = points(stored.dataset), stored.summary
        failed = failures(found)
        if not data_only and isinstance(folder, Path):
            from ..experiments.report import present

            with screen.progress("drawing and writing") as progress:
                report = present(stored, progress, anew=not reused)
        if chosen is None:
            screen.show("every setting has at least one failed run")
        else:
            for part in tables.sweep(chosen, standings(found, 10)):
                screen.show(part)
        show_files(screen, given, report, {"best": chosen, "failed": failed, "manifest": done.manifest})
    end(screen, [f"{in_words(one.setting)}: {one.failed} of {one.runs} runs: {one.reason}" for one in failed])
