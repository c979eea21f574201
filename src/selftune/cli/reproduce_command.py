"""`selftune reproduce`: the paper's simulation, its checks and its report."""

from pathlib import Path
from typing import Annotated, Any

import typer

from . import tables
from .options import (
    Fresh,
    Json,
    Out,
    Quiet,
    Workers,
    begin,
    end,
    failed_checks,
    failed_findings,
    failed_runs,
    say_reused,
    show_files,
)
from .screen import Screen, refusing, stoppable


def reproduce(
    out: Out = Path("results/paper"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds. Default: 32.")] = None,
    periods: Annotated[
        int | None, typer.Option(min=1, help="Number of periods, each with its own a*. Default: 5.")
    ] = None,
    period: Annotated[
        int | None, typer.Option(min=2, help="Steps in a period. Default: 40,000, as in the paper.")
    ] = None,
    workers: Workers = None,
    data_only: Annotated[bool, typer.Option("--data-only", help="Write no figures and no report.")] = False,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run the paper's simulation, and write data, checks, figures and a report.

    If the folder already has a complete run, the command verifies that run and shows its results.
    """
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments import paper
        from ..experiments.registry import StoredRun

        settings = _paper_settings(seeds, periods, period)
        reused = begin(screen, out, fresh)
        screen.note(_describe_settings(settings))
        with screen.progress("simulating") as progress, stoppable(screen):
            paper.compute(settings, out, workers=workers, progress=progress)
        stored = StoredRun.open(out)
        if reused:
            say_reused(screen, out, stored.manifest)
        certificates, findings, report = {}, {}, None
        if not data_only:
            from ..experiments.paper import theory
            from ..experiments.report import present

            with screen.progress("checking the theory on a run") as progress:
                certificates, made = theory.certify(out, progress, steps=min(settings.steps, 20_000))
            if settings == paper.Settings():  # a smaller run must end soon, so it does not measure the rates
                with screen.progress("measuring how the regret grows with T") as progress:
                    findings, grown = theory.measure_rates(out, progress)
                made = made or grown
            with screen.progress("drawing and writing") as progress:
                report = present(stored, progress, anew=made or not reused)
        for part in [
            *tables.paper(stored.summary),
            *(part for one in findings.values() for part in tables.finding(one)),
        ]:
            screen.show(part)
        show_files(screen, out, report, {"manifest": stored.manifest, "summary": stored.summary})
    faults = failed_checks(stored.summary)
    for noise, one in certificates.items():
        violated = [row["name"] for row in one["rows"] if row.get("verdict") == "VIOLATED"]
        faults += [f"theory, noise {noise}: {name} is violated" for name in violated]
    faults += failed_findings(findings)
    end(screen, faults + failed_runs(stored.dataset))


def _paper_settings(seeds: int | None, periods: int | None, period: int | None) -> Any:
    from ..experiments.paper.run import Settings

    given = {"seeds": seeds, "periods": periods, "period": period}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    steps = chosen.get("period", Settings.period) * chosen.get("periods", Settings.periods)
    horizons = tuple(horizon for horizon in Settings.horizons if horizon <= steps)
    if len(horizons) < 3:  # too few to fit a slope
        horizons = tuple(sorted({max(2, steps // part) for part in (4, 2, 1)}))
    regret_seeds = min(Settings.regret_seeds, chosen.get("seeds", Settings.seeds))
    return Settings(**chosen, horizons=horizons, regret_seeds=regret_seeds)


def _describe_settings(settings: Any) -> str:
    from ..experiments import paper

    def listed(names: list[str]) -> str:
        return ", ".join(f"{name} = {getattr(settings, name)}" for name in names)

    given = paper.given(vars(settings))
    chosen = [name for name in vars(settings) if name not in given]
    return f"given by the paper: {listed(given)}\nchosen here: {listed(chosen)}"
