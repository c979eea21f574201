"""`selftune verify`: the paper's theorems, by certificates and by experiments."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..foundation.errors import InputError
from . import tables
from .options import Json, Quiet, Workers, end, failed_findings
from .screen import Screen, refusing

_CERTIFICATES = ("certificates", "bounds")
_THEORY = ("rates", "gradient-errors", "gaps", "switches", "adversary")
"""The experiments of `selftune.experiments.rates`. The names are repeated here because that import is slow."""


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
        from ..experiments.certificates.examples import faults as certificate_faults

        for name in what or ():
            if name not in names:
                raise InputError(f"{name}: expected any of {', '.join(names)}")
        asked = [name for name in names if not what or name in what]
        certificates, findings = _verified(screen, asked, steps, seed, workers)
        for name, certificate in certificates.items():
            screen.show(tables.certificate(name, certificate))
        faults = certificate_faults(certificates)
        for finding in findings.values():
            for part in tables.finding(finding):
                screen.show(part)
        if findings:
            from ..experiments.rates import run as theory

            written = theory.write(out, findings, data_only=data_only)
            screen.show(f"{'data' if data_only else 'report':6}  {written}")
        faults += failed_findings(findings)
        screen.show("all required checks hold" if not faults else "some required checks fail")
        screen.give(
            {
                "certificates": {name: one.to_dict() for name, one in certificates.items()},
                "experiments": findings,
            }
        )
    end(screen, faults)


def _verified(
    screen: Screen, names: list[str], steps: int, seed: int, workers: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The certificates by problem and the findings by experiment. All are computed in parallel."""
    from ..experiments.certificates.examples import certificates
    from ..experiments.rates import run as theory
    from ..foundation.executors import Meter, Threads

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
        made = dict(zip(shares, Threads(workers).map(make, list(shares), Meter(None)), strict=True))
    return {name: made[name] for name in makers}, {name: made[name] for name in experiments}
