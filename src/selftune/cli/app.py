"""The command `selftune`. Slow imports are inside the commands that need them."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..control import result_codes
from ..foundation.errors import InputError
from . import bench, sweep_command, tables
from .options import Fresh, Json, Out, Quiet, end, failed_checks, is_complete, plain, say_reused
from .screen import Screen, new_table, refusing, stoppable

app = typer.Typer(
    name="selftune",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Controllers that tune themselves while they run.",
    epilog="Exit codes: 0 success; 1 a check failed or a run diverged; 2 invalid usage, configuration or folder; "
    "130 interrupted. "
    "Results go to stdout, everything else to stderr.",
)

app.add_typer(bench.app, name="bench")
Workers = Annotated[int | None, typer.Option(min=1, help="Number of threads. Default: the number of cores.")]

_CERTIFICATES = ("certificates", "bounds")
_THEORY = ("rates", "gradient-errors", "gaps", "switches", "adversary")
"""The experiments of `selftune.experiments.rates`. The names are repeated here because that import is slow."""


def _print_version(asked: bool) -> bool:
    if asked:
        from importlib import metadata

        typer.echo(f"selftune {metadata.version('selftune')}")
        raise typer.Exit
    return asked


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Examples:  selftune reproduce   |   selftune reproduce --seeds 4 --periods 2 -o results/small")
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
        from ..storage import store

        settings = _paper_settings(seeds, periods, period)
        if fresh and (aside := store.set_aside(out)):
            screen.note(f"the earlier run in {out} was moved to {aside}")
        reused = is_complete(out)
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
        screen.show(f"data    {out / 'data.zarr'}" + ("" if report is None else f"\nreport  {report}"))
        screen.give(
            {
                "folder": str(out),
                "report": None if report is None else str(report),
                "manifest": plain(stored.manifest),
                "summary": plain(stored.summary),
            }
        )
    faults = failed_checks(stored.summary)
    for noise, one in certificates.items():
        faults += [f"theory, noise {noise}: {row['name']} is violated" for row in one["rows"] if _is_violated(row)]
    faults += _failed_findings(findings)
    end(screen, faults + _failed_runs(stored.dataset))


@app.command(epilog="Examples:  selftune verify   |   selftune verify rates   |   selftune verify certificates --json")
def verify(
    what: Annotated[
        list[str] | None,
        typer.Argument(help=f"Any of: {', '.join((*_CERTIFICATES, *_THEORY))}. Default: all."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the experiments' data and figures.")] = Path(
        "results/verify"
    ),
    steps: Annotated[int, typer.Option(min=4, help="Steps of each run that a certificate examines.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the certificates' runs.")] = 0,
    workers: Workers = None,
    data_only: Annotated[bool, typer.Option("--data-only", help="Write no figures and no report.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check the paper's theorems: certificates of single runs, and experiments that measure the rates.

    The exit code is 1 if an inequality that must hold is violated, or if a slope is larger than the theory allows.
    """
    screen = Screen(quiet, as_json)
    names = [*_CERTIFICATES, *_THEORY]
    with refusing():
        for name in what or ():
            if name not in names:
                raise InputError(f"{name}: expected any of {', '.join(names)}")
        asked = [name for name in names if not what or name in what]
        certificates, findings = _verified(screen, asked, steps, seed, workers)
        for name, certificate in certificates.items():
            screen.show(tables.certificate(name, certificate))
        faults = [f"{name}: {row.name} is violated" for name, one in certificates.items() for row in one.violated]
        for finding in findings.values():
            for part in tables.finding(finding):
                screen.show(part)
        if findings:
            from ..experiments.rates import run as theory

            written = theory.write(out, findings, data_only=data_only)
            screen.show(f"{'data' if data_only else 'report':6}  {written}")
        faults += _failed_findings(findings)
        screen.show("all required checks hold" if not faults else "some required checks fail")
        screen.give(
            {
                "certificates": {name: one.to_dict() for name, one in certificates.items()},
                "experiments": {name: plain(one) for name, one in findings.items()},
            }
        )
    end(screen, faults)


def _verified(
    screen: Screen, names: list[str], steps: int, seed: int, workers: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The certificates by problem and the findings by experiment. All are computed in parallel."""
    from ..experiments.certificates.examples import certificates
    from ..experiments.rates import run as theory
    from ..foundation import worker_pool

    experiments = [name for name in theory.EXPERIMENTS if name in names]
    makers = certificates([name for name in names if name in _CERTIFICATES], steps=steps, seed=seed)
    shares = dict.fromkeys([*experiments, *makers], 0.0)
    with screen.progress("verifying") as progress:

        def tell(name: str, done: int, total: int) -> None:
            shares[name] = done / max(total, 1)
            progress(round(1000 * sum(shares.values())), 1000 * len(shares))

        def make(name: str) -> Any:
            made = makers[name]() if name in makers else theory.compute(name, workers=workers, progress=tell)
            tell(name, 1, 1)
            return made

        # "rates" comes first: it takes longest and uses all cores. The others use one core each.
        order = list(range(len(shares), 0, -1))
        threads = worker_pool.check(workers, None)
        made = dict(
            zip(shares, worker_pool.run(make, list(shares), order, threads, worker_pool.Meter(None)), strict=True)
        )
    return {name: made[name] for name in makers}, {name: made[name] for name in experiments}


@app.command(epilog="Example:  selftune run examples/cart.toml -o results/cart")
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file; examples/cart.toml shows every table.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run's folder. Default: results/NAME.")] = None,
    workers: Workers = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run your own controller on a scenario, once for each seed."""
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments import user
        from ..experiments.registry import StoredRun
        from ..experiments.user.config import Loaded
        from ..storage import store

        loaded = Loaded(config)
        folder = out or Path("results") / config.stem
        if fresh and (aside := store.set_aside(folder)):
            screen.note(f"the earlier run in {folder} was moved to {aside}")
        reused = is_complete(folder)
        with screen.progress("simulating") as progress, stoppable(screen):
            user.compute(loaded, folder, workers=workers, progress=progress)
        stored = StoredRun.open(folder)
        if reused:
            say_reused(screen, folder, stored.manifest)
        dataset, cost = stored.dataset, stored.summary
        failed = {int(seed): int(code) for seed, code in zip(dataset.seed, dataset.result_code, strict=True) if code}
        screen.show(f"total cost over {loaded.config.scenario.steps:,} steps, {dataset.sizes['seed']} seeds: {cost}")
        screen.show(f"data    {folder / 'data.zarr'}")
        screen.give(
            {
                "folder": str(folder),
                "total_cost": plain(cost),
                "failed_seeds": failed,
                "manifest": plain(stored.manifest),
            }
        )
    end(screen, _failed_runs(dataset))


app.command(
    epilog="Examples:  selftune sweep examples/cart-sweep.toml   |   selftune sweep FILE --executor tcp://host:8786"
)(sweep_command.sweep)


@app.command(epilog="Example:  selftune export examples/cart.py:controller -o results/cart-c")
def export(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CONTROLLER", help="A controller, or a function that returns one, in a module or .py file."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the C files.")],
    x: Annotated[str | None, typer.Option(help="The first state: 0,0 or JSON. Default: x of the module.")] = None,
    theta: Annotated[str | None, typer.Option(help="θ₀. Default: theta of the module.")] = None,
    a_hat: Annotated[str | None, typer.Option(help="â₀. Default: a_hat of the module.")] = None,
    t: Annotated[str | None, typer.Option(help="An example of a step's context t, if t is more than a number.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    name: Annotated[str | None, typer.Option(help="The prefix of all names in C. Default: the folder's name.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite files that were changed or that selftune did not write.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a controller as C99 for a microcontroller, with a recorded run that tests the C code."""
    screen = Screen(quiet, as_json)
    with refusing():
        from . import exporting

        given = {"x": x, "theta": theta, "a_hat": a_hat, "t": t}
        about = exporting.export(target, out, given, dtype=dtype, name=name, overwrite=overwrite)
        screen.show(exporting.table(about))
        screen.show(f"{exporting.sizes(about)}\nC       {out}")
        screen.give(
            {"folder": str(out), "name": about["name"], "files": sorted(about["files"]), "costs": about["costs"]}
        )


@app.command(epilog="Example:  selftune report results/paper")
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a complete run.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a run's report again. For reproduce, bench robots and sweep, also draw the figures again."""
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments.registry import StoredRun
        from ..experiments.report import present

        stored = StoredRun.open(folder)
        with screen.progress("drawing and writing") as progress:
            written = present(stored, progress)
        screen.show(f"report  {written}")
        screen.give({"report": str(written)})


@app.command(
    epilog="Examples:  selftune compare results/cart results/cart-gaps   |   "
    "selftune compare results/sweep --over tuner --by noise"
)
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

    For a sweep: compare the values of one setting, each at its best, with differences paired by seed.
    """
    screen = Screen(quiet, as_json)
    with refusing():
        from ..experiments.comparison import compare as compare_runs
        from ..experiments.comparison import compare_sweep

        asked = {"over": over, "by": by or None, "to": to, "last": last}
        if (made := compare_sweep(folders, **asked)) is not None:
            screen.show(tables.comparison(made))
            screen.give(plain(made))
            return
        rows = compare_runs(folders)
        table = new_table("mean and 95 % interval over seeds", "run", "seeds", "total cost", "ratio to the first")
        for row in rows:
            ratio = f"– ({row.reason})" if row.ratio is None else str(row.ratio)
            table.add_row(escape(row.name), str(row.seeds), escape(str(row.cost)), escape(ratio))
        screen.show(table)
        screen.give([plain(row) for row in rows])


@app.command(epilog="Examples:  selftune info   |   selftune info results/paper --json")
def info(
    folder: Annotated[Path | None, typer.Argument(help="A run. Its manifest is shown too.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show versions, devices, compiler and settings. With a folder: also verify its arrays and show its manifest."""
    screen = Screen(quiet, as_json)
    with refusing():
        facts, harmed = _facts(), ""
        if folder is not None:
            from ..storage.store import RunStore, StoreError

            run = RunStore(folder)
            facts["manifest"] = plain(run.manifest)
            facts["tasks"] = f"{sum(map(run.done, run.tasks))} of {len(run.tasks)} done"
            try:
                run.verify()
                facts["arrays"] = "verified: the arrays of all completed tasks match their checksums"
            except StoreError as error:
                facts["arrays"], harmed = "damaged: an array differs from its checksum", str(error)
        for name, value in facts.items():
            for line in _lines(name, value):
                screen.show(line)
        screen.give(facts)
        if harmed:
            raise InputError(harmed)


def _lines(name: str, value: Any) -> list[str]:
    """One line for each value of nested mappings, with the path of names before the value."""
    if isinstance(value, dict) and value:
        return [line for key, one in value.items() for line in _lines(f"{name} {key}", one)]
    return [f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"]


def _facts() -> dict[str, Any]:
    import shutil
    import subprocess

    import jax

    from ..foundation import jax_releases
    from ..storage import manifest

    compiler = shutil.which("cc")
    version = ""
    if compiler:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    git = manifest.git_state()
    warning = jax_releases.complaint()
    return ({"warning": warning} if warning else {}) | {
        "versions": manifest.versions(),
        "platform": manifest.machine(),
        "git": None if git is None else plain(git),
        "devices": ", ".join(str(device) for device in jax.devices()),
        "cores": os.cpu_count(),
        "compiler": version.partition("\n")[0] or "none found (cc)",
    }


def _paper_settings(seeds: int | None, periods: int | None, period: int | None) -> Any:
    from ..experiments.paper.run import Settings

    given = {"seeds": seeds, "periods": periods, "period": period}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    steps = chosen.get("period", Settings.period) * chosen.get("periods", Settings.periods)
    horizons = tuple(horizon for horizon in Settings.horizons if horizon <= steps)
    if len(horizons) < 3:  # too few to fit a slope
        horizons = tuple(sorted({max(2, steps // part) for part in (4, 2, 1)}))
    return Settings(**chosen, horizons=horizons)


def _describe_settings(settings: Any) -> str:
    from ..experiments import paper

    def listed(names: list[str]) -> str:
        return ", ".join(f"{name} = {getattr(settings, name)}" for name in names)

    given = paper.given(vars(settings))
    chosen = [name for name in vars(settings) if name not in given]
    return f"given by the paper: {listed(given)}\nchosen here: {listed(chosen)}"


def _failed_findings(findings: dict[str, Any]) -> list[str]:
    """A message for each failed check of the theory's experiments."""
    return [
        f"{name}: {check.name}: expected {check.expected}, got {check.measured}"
        for name, one in findings.items()
        for check in one.failed
    ]


def _is_violated(row: dict[str, Any]) -> bool:
    return row.get("verdict") == "VIOLATED"


def _failed_runs(dataset: Any) -> list[str]:
    """A message for each run that did not succeed."""
    codes = dataset.result_code.stack(run=dataset.result_code.dims)
    messages = []
    for run in codes[codes != 0]:
        at = {str(dim): run[dim].item() for dim in dataset.result_code.dims}
        step = f" at step {int(dataset.failed_at.sel(at))}" if "failed_at" in dataset else ""
        how = result_codes.WORDS.get(int(run), "failed")
        messages.append(f"{', '.join(f'{dim} {value}' for dim, value in at.items())}: {how}{step}")
    return messages
