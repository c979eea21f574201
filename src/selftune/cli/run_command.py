"""`selftune run`: the controller of a configuration on its scenario."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Fresh, Json, Modules, Quiet, Workers, begin, end, failed_runs, say_reused
from .screen import Screen, refusing, stoppable


def run(
    config: Annotated[Path, typer.Argument(help="A TOML file, such as the cart.toml of `selftune new`.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run's folder. Default: results/NAME.")] = None,
    modules: Modules = None,
    workers: Workers = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run your own controller on a scenario, once for each seed, and write a report.

    The file names a function that makes the system, and this command runs the module of the function.
    """
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments import user
        from ..experiments.registry import StoredRun
        from ..experiments.report import present
        from ..experiments.user.config import Loaded

        loaded = Loaded(config, modules=modules or ())
        folder = out or Path("results") / config.stem
        reused = begin(screen, folder, fresh)
        with screen.progress("simulating") as progress, stoppable(screen):
            user.compute(loaded, folder, workers=workers, progress=progress)
        stored = StoredRun.open(folder)
        if reused:
            say_reused(screen, folder, stored.manifest)
        with screen.progress("drawing and writing") as progress:
            report = present(stored, progress, anew=not reused)
        dataset, cost = stored.dataset, stored.summary
        failed = {int(seed): int(code) for seed, code in zip(dataset.seed, dataset.result_code, strict=True) if code}
        screen.show(f"total cost over {loaded.config.scenario.steps:,} steps, {dataset.sizes['seed']} seeds: {cost}")
        screen.show(f"data    {folder / 'data.zarr'}\nreport  {report}")
        screen.give(
            {
                "folder": str(folder),
                "report": str(report),
                "total_cost": cost,
                "failed_seeds": failed,
                "manifest": stored.manifest,
            }
        )
    end(screen, failed_runs(dataset))
