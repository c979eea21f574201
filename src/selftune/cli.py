"""The command `selftune`. What is heavy is imported by the commands that need it."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ._screen import Screen, new_table, refusing, start_jax

if TYPE_CHECKING:
    from pydantic import BaseModel

    from .experiments.summary import Summary

FAILED = 1

app = typer.Typer(
    name="selftune",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Controllers that tune themselves while they run.",
    epilog="Exit codes: 0 all is well; 1 a check failed or a run diverged; 2 bad usage, configuration or folder. "
    "Results go to stdout, all else to stderr.",
)

Out = Annotated[Path, typer.Option("--out", "-o", help="The run's folder; an interrupted run there is continued.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start anew; a run that is there is renamed, not deleted.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Give the result as JSON on stdout, and nothing else there.")]
Workers = Annotated[int | None, typer.Option(min=1, help="How many threads; as many as there are cores by default.")]


@app.command(epilog="Examples:  selftune reproduce   |   selftune reproduce --seeds 4 --periods 2 -o results/small")
def reproduce(
    out: Out = Path("results/paper"),
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; 32 by default.")] = None,
    periods: Annotated[int | None, typer.Option(min=1, help="How many draws of a*; 5 by default.")] = None,
    period: Annotated[int | None, typer.Option(min=2, help="Steps of a period; 40,000, as in the paper.")] = None,
    workers: Workers = None,
    data_only: Annotated[bool, typer.Option("--data-only", help="Without figures and report.")] = False,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run the paper's simulation: data, checks, figures and a report.

    A second call on a complete folder verifies and shows it.
    """
    start_jax()
    screen = Screen(quiet, as_json)
    with refusing():
        from . import store
        from .experiments import paper
        from .experiments.summary import summarize

        settings = _paper_settings(seeds, periods, period)
        if fresh and (aside := store.set_aside(out)):
            screen.note(f"what was in {out} is now in {aside}")
        reused = (out / "manifest.json").is_file() and store.read_manifest(out).state == "complete"
        screen.note(_describe_settings(settings))
        with screen.progress("simulating") as progress:
            manifest = paper.run(settings, out, workers=workers, progress=progress)
        dataset, manifest = store.open_run(out)
        if reused:
            screen.note(f"{out}: complete already; verified")
            for text in store.computed_otherwise(manifest):
                screen.note(f"computed by other code ({text}); --fresh computes it anew")
        summary = summarize(dataset, manifest.settings)
        certificates, report = {}, None
        if not data_only:
            certificates, anew = _certificates(screen, out, steps=min(settings.steps, 20_000))
            report = _present(screen, out, dataset, certificates, anew=anew or not reused)
        for part in _paper_tables(summary):
            screen.show(part)
        screen.show(f"data    {out / 'data.zarr'}" + ("" if report is None else f"\nreport  {report}"))
        screen.give(
            {
                "folder": str(out),
                "report": None if report is None else str(report),
                "manifest": _plain(manifest),
                "summary": _plain(summary),
            }
        )
    sound = all(certificate["ok"] for certificate in certificates.values())
    _exit(screen, summary.ok and sound and set(manifest.results) == {"0"})


@app.command(epilog="Examples:  selftune verify   |   selftune verify --steps 5000 --json")
def verify(
    steps: Annotated[int, typer.Option(min=4, help="Of each run that is looked at.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the runs' randomness.")] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Hold the paper's theorems against runs of its example, and of a problem made for them.

    Ends with 1 if an inequality that must hold does not.
    """
    start_jax()
    screen = Screen(quiet, as_json)
    with refusing():
        from .experiments.verify import verify as verify_all

        with screen.progress("verifying") as progress:
            count = 0

            def tell(name: str) -> None:
                nonlocal count
                progress(count, 3)
                count += 1

            certificates = verify_all(steps=steps, seed=seed, progress=tell)
        for name, certificate in certificates.items():
            screen.show(_certificate_table(name, certificate))
        bad = {name: [row.name for row in one.violated] for name, one in certificates.items() if not one.ok}
        screen.show("every inequality that must hold does" if not bad else f"violated: {bad}")
        screen.give({name: certificate.to_dict() for name, certificate in certificates.items()})
    _exit(screen, not bad)


@app.command(epilog="Example:  selftune run examples/cart.toml -o results/cart")
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file; examples/cart.toml shows every table.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run's folder; results/NAME by default.")] = None,
    workers: Workers = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run your own controller on a scenario, over seeds."""
    start_jax()
    screen = Screen(quiet, as_json)
    with refusing():
        from . import store
        from .config import Loaded
        from .experiments import user
        from .experiments.summary import interval

        loaded = Loaded(config)
        folder = out or Path("results") / config.stem
        if fresh and (aside := store.set_aside(folder)):
            screen.note(f"what was in {folder} is now in {aside}")
        with screen.progress("simulating") as progress:
            manifest = user.run(loaded, folder, workers=workers, progress=progress)
        dataset, manifest = store.open_run(folder)
        cost = interval(dataset.total_cost)
        failed = {int(seed): int(code) for seed, code in zip(dataset.seed, dataset.result_code, strict=True) if code}
        screen.show(f"total cost over {loaded.config.scenario.steps:,} steps, {dataset.sizes['seed']} seeds: {cost}")
        for seed, code in failed.items():
            at = int(dataset.failed_at.sel(seed=seed))
            screen.note(f"seed {seed}: {'diverged' if code == 1 else 'a number stopped being finite'} at step {at}")
        screen.show(f"data    {folder / 'data.zarr'}")
        screen.give(
            {
                "folder": str(folder),
                "total_cost": _plain(cost),
                "failed_seeds": failed,
                "manifest": _plain(manifest),
            }
        )
    _exit(screen, not failed)


@app.command(epilog="Example:  selftune report results/paper")
def report(
    folder: Annotated[Path, typer.Argument(help="A complete run.")], quiet: Quiet = False, as_json: Json = False
) -> None:
    """Write a run's report anew."""
    start_jax()
    screen = Screen(quiet, as_json)
    with refusing():
        from . import report as reports

        with screen.progress("writing the report"):
            written = reports.write(folder)
        screen.show(f"report  {written}")
        screen.give({"report": str(written)})


@app.command(epilog="Example:  selftune compare results/cart results/cart-gaps")
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Complete runs; the first is what others are divided by.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Put runs side by side: total costs, and their ratios, paired where seeds and scenario are the same."""
    start_jax()
    screen = Screen(quiet, as_json)
    with refusing():
        from .experiments.compare import compare as compare_runs

        rows = compare_runs(folders)
        table = new_table("mean and 95 % interval over seeds", "run", "seeds", "total cost", "against the first")
        for row in rows:
            ratio = f"– ({row.reason})" if row.ratio is None else str(row.ratio)
            table.add_row(escape(row.name), str(row.seeds), escape(str(row.cost)), escape(ratio))
        screen.show(table)
        screen.give([_plain(row) for row in rows])


@app.command(epilog="Examples:  selftune info   |   selftune info results/paper --json")
def info(
    folder: Annotated[Path | None, typer.Argument(help="A run, whose manifest is shown too.")] = None,
    as_json: Json = False,
) -> None:
    """Show versions, devices, compiler and settings; and a run's manifest."""
    start_jax()
    screen = Screen(False, as_json)
    with refusing():
        facts = _facts()
        if folder is not None:
            from .store import read_manifest

            facts["manifest"] = _plain(read_manifest(folder))
        for name, value in facts.items():
            for key, one in value.items() if isinstance(value, dict) else [("", value)]:
                screen.show(f"{name} {key}".strip() + f": {one}")
        screen.give(facts)


def _facts() -> dict[str, Any]:
    import shutil
    import subprocess

    import jax

    from . import manifest

    compiler = shutil.which("cc")
    version = ""
    if compiler:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    git = manifest.git_state()
    return {
        "versions": manifest.versions(),
        "platform": manifest.machine(),
        "git": None if git is None else _plain(git),
        "devices": ", ".join(str(device) for device in jax.devices()),
        "cores": os.cpu_count(),
        "compiler": version.partition("\n")[0] or "none found (cc)",
    }


def _paper_settings(seeds: int | None, periods: int | None, period: int | None) -> Any:
    from .experiments.paper import Settings

    given = {"seeds": seeds, "periods": periods, "period": period}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    steps = chosen.get("period", Settings.period) * chosen.get("periods", Settings.periods)
    horizons = tuple(horizon for horizon in Settings.horizons if horizon <= steps)
    if len(horizons) < 3:  # too few to show growth
        horizons = tuple(sorted({max(2, steps // part) for part in (4, 2, 1)}))
    return Settings(**chosen, horizons=horizons)


def _describe_settings(settings: Any) -> str:
    from .experiments import paper

    def listed(names: list[str]) -> str:
        return ", ".join(f"{name} = {getattr(settings, name)}" for name in names)

    given = paper.given(vars(settings))
    chosen = [name for name in vars(settings) if name not in given]
    return f"given by the paper: {listed(given)}\nchosen here: {listed(chosen)}"


def _certificates(screen: Screen, out: Path, *, steps: int) -> tuple[dict[str, Any], bool]:
    """The theory on a run of the paper's example, by the form of the noise; and whether it was made just now.

    What is there is kept, if it is of the same run and made by the same code.
    """
    from . import _certificates, _files, manifest
    from .experiments import paper, verify

    there, seed, gain = _certificates.read(out), 0, 1.0
    about = {
        "settings": {"steps": steps, "seed": seed, "gain": gain, "theta": [verify.LOWEST, verify.HIGHEST]},
        "versions": manifest.versions(),
    }
    if there is not None and {name: there.get(name) for name in about} == about:
        return there["certificates"], False
    made = {}
    with screen.progress("holding the theory against a run") as progress:
        for i, noise in enumerate(paper.NOISES):
            progress(i, len(paper.NOISES))
            one = verify.certify_example(noise_inside=noise == "inside", steps=steps, seed=seed, gain=gain)
            made[noise] = one.to_dict()
    _files.write(out / _certificates.NAME, _files.as_json(about | {"certificates": made}))
    return made, True


def _present(screen: Screen, out: Path, dataset: Any, certificates: dict[str, Any], *, anew: bool) -> Path:
    """Figures and report; what is there is kept unless the data are new."""
    from . import plots
    from . import report as reports

    written = out / "report.html"
    if anew or not written.is_file():
        with screen.progress("drawing and writing") as progress:
            progress(0, 2)
            plots.draw_all(dataset, out / "figures", certificates=certificates)
            progress(1, 2)
            written = reports.write(out)
    return written


def _paper_tables(summary: "Summary") -> list[Table | str]:
    names = ("M-GAPS", "fixed gain", "exact model", "GAPS")
    costs = new_table("total cost, mean over seeds", "noise", "θ₀", *names, "best static")
    ratios = new_table(
        "paired ratios of costs, with 95 % bootstrap intervals",
        *("noise", "θ₀ = θ_a", "M-GAPS / fixed gain", "M-GAPS / best static *"),
    )
    checks = new_table("checks", "what", "expected", "measured", "")
    for row in summary.rows:
        start = (row.noise, f"{row.gain:g}")
        costs.add_row(*start, *(f"{row.cost[name].mean:.4g}" for name in names), f"{row.static_cost.mean:.4g}")
        ratios.add_row(*start, *("" if one is None else escape(str(one)) for one in (row.ratio, row.after)))
    words = {True: "[green]holds[/]", False: "[red]FAILS[/]", None: "not judged"}
    for check in summary.checks:
        checks.add_row(escape(check.name), check.expected, escape(str(check.measured)), words[check.holds])
    note = "not judged: other settings than the paper's\n" if any(c.holds is None for c in summary.checks) else ""
    return [costs, ratios, checks, note + _NOTE]


def _certificate_table(name: str, certificate: Any) -> Table:
    table = new_table(name, "", "property or theorem", "measured", "bound", "notes")
    colors = {"holds": "green", "vacuous": "yellow", "fails": "yellow", "does not hold": "yellow", "VIOLATED": "red"}
    for row in certificate.rows:
        verdict = f"[{colors[row.verdict]}]{row.verdict}[/]"
        table.add_row(
            verdict, escape(row.name), f"{row.measured:.4g}", f"{row.bound:.4g}", escape("; ".join(row.notes))
        )
    return table


_NOTE = """\
* the best static gain in hindsight, from the second period on. Inside Δ(…) the
  noise is Δ times weaker and gradients Δ² times smaller: with learning rate η
  M-GAPS is still on its way there, with η/Δ² it arrives.
"""


def _plain(model: "BaseModel") -> Any:
    """As JSON has it, where what is not a finite number is null."""
    return json.loads(model.model_dump_json())


def _exit(screen: Screen, ok: bool) -> None:
    if not ok:
        screen.err.print("[red]a check failed, or a run did[/]")
        raise typer.Exit(FAILED)
