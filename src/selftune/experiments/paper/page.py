"""The page about a run of the paper's simulation."""

from typing import Any

import numpy as np
import xarray as xr

from ...reporting import datasets, pages, plotly_figures
from ...reporting.statistics import Band
from ...storage.manifest import StoreError
from ..rates import page as rates_page
from ..rates import run as rates
from ..registry import Experiment, Progress, StoredRun
from . import certificate_file, figures, quantities
from .quantities import NOISE, OURS, RESCALED
from .run import Settings, given
from .summary import summarize

VERDICTS = {"holds": "good", "vacuous": "warn", "fails": "bad", "not promised": "none", "not checked": "none"}
COLUMNS = {
    "total_cost": "total cost",
    "to_fixed": "relative to fixed gain",
    "to_exact": "relative to exact model",
    "to_static": "relative to best static gain",
    "to_static_later": "the same, after the first period",
}


def render(run: StoredRun) -> str:
    """The page, with the certificates and the findings that the folder has."""
    _check(run)
    dataset, failed = datasets.usable(run.dataset)
    settings, standings = run.manifest.settings, quantities.standings(dataset)
    theory = _theory(run)
    return pages.render(
        "experiments/paper/page.html",
        title="M-GAPS against a fixed gain",
        eyebrow="selftune · Online Policy Optimization in Unknown Nonlinear Systems, simulation appendix",
        answers=[_answer(dataset, noise, costs) for noise, costs in standings.items()],
        failed=failed,
        headlines=_headlines(standings),
        sizes=dataset.sizes,
        runs=int(np.prod([dataset.sizes[name] for name in (*quantities.CELL, "seed")])),
        steps=datasets.steps(dataset),
        columns=[title for name, title in COLUMNS.items() if name in standings[next(iter(standings))][OURS]],
        tables=[(NOISE.get(noise, noise), _groups(costs)) for noise, costs in standings.items()],
        checks=(summarize(dataset, settings) if failed else run.summary).checks,
        panels=plotly_figures.panels(figures.make_figures(dataset)),
        certified_run=theory.get("settings", {}),
        certificates=[_certificate(certificate, noise) for noise, certificate in theory["certificates"].items()],
        findings=rates_page.findings(rates.read(run.folder)),
        about=pages.about(run.manifest, _command(settings), set(settings) - set(given(settings))),
    )


def _draw(run: StoredRun, progress: Progress) -> None:
    _check(run)
    folder = run.folder / "figures"
    figures.draw_all(run.dataset, folder, certificates=_theory(run)["certificates"], progress=progress)


def _theory(run: StoredRun) -> dict[str, Any]:
    """The content of `certificate.json`; without certificates if there is no file."""
    return certificate_file.read(run.folder) or {"certificates": {}}


def _check(run: StoredRun) -> None:
    try:
        quantities.check(run.dataset)
    except ValueError as error:
        raise StoreError(f"{run.folder}: no report can be made: {error}") from None


EXPERIMENT = Experiment(
    summarize=lambda run: summarize(run.dataset, run.manifest.settings),
    render=render,
    draw=_draw,
    figures=lambda run: figures.files(run.folder / "figures", _theory(run)["certificates"]),
    plant_settings=("decay", "sigma", "period", "periods", "x0"),
)


def _answer(dataset: xr.Dataset, noise: str, costs: dict[str, xr.Dataset]) -> dict[str, Any]:
    """The numbers of the first sentences, for one form of the noise."""
    return {
        "noise": NOISE.get(noise, noise),
        "best": float(dataset.static_gain.sel(noise=noise).mean()),
        "ours": _compared(costs[OURS]),
        "rescaled": _compared(costs[RESCALED]) if RESCALED in costs else None,
    }


def _compared(ours: xr.Dataset) -> dict[str, Any]:
    later = "to_static_later" in ours
    to_static = ours["to_static_later" if later else "to_static"].sel(band="mean").values
    return {
        "to_fixed": list(zip(ours.gain.values, ours.to_fixed.sel(band="mean").values, strict=True)),
        "later": later,
        "to_static": [pages.number(to_static.min()), pages.number(to_static.max())],
    }


def _headlines(standings: dict[str, dict[str, xr.Dataset]]) -> list[dict[str, Any]]:
    noise, costs = next(iter(standings.items()))
    ours = costs[OURS]
    texts = {
        "to_fixed": "of the fixed gain's cost, at best,",
        "to_static_later": "of the best static gain's cost after the first period, at worst,",
        "to_exact": "of the cost with the exact model, at worst,",
    }
    headlines = []
    for name, text in texts.items():
        if name in ours:
            means = ours[name].sel(band="mean").values
            pick = int(np.argmin(means) if name == "to_fixed" else np.argmax(means))
            band = Band(*ours[name].isel(gain=pick).values)
            headlines.append(
                {"band": band, "text": text, "gain": float(ours.gain[pick]), "noise": NOISE.get(noise, noise)}
            )
    return headlines


def _groups(costs: dict[str, xr.Dataset]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The rows of a table of costs, by start."""
    first = next(iter(costs.values()))
    return [
        (
            f"{gain:.3g}",
            [
                {
                    "name": name,
                    "color": quantities.color(name, i),
                    "ours": name == OURS,
                    "bands": {column: Band(*row[column].sel(gain=gain).values) for column in COLUMNS if column in row},
                }
                for i, (name, row) in enumerate(costs.items())
            ],
        )
        for gain in first.gain.values
    ]


def _certificate(certificate: dict[str, Any], noise: str) -> dict[str, Any]:
    inequalities = quantities.inequalities(certificate)
    verdicts = [quantities.verdict(row) for row in inequalities]
    return {
        "title": NOISE.get(noise, noise),
        "counts": [f"{verdicts.count(word)} {word}" for word in VERDICTS if word in verdicts],
        "panels": plotly_figures.panels(figures.all_bounds({noise: certificate})),
        "inequalities": [_row(row) for row in inequalities],
        "hypotheses": [_row(row) for row in certificate["rows"] if row not in inequalities],
        "values": {
            name: certificate[name] for name in ("constants", "contraction", "derived") if certificate.get(name)
        },
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    verdict = quantities.verdict(row)
    return {
        **{name: row.get(name, "") for name in ("name", "reference", "statement")},
        **{name: row.get(name) for name in ("measured", "bound", "slack")},
        "verdict": verdict,
        "color": VERDICTS[verdict],
        "failed": row.get("failed_hypotheses") or [],
        "constants": {how: row[how] for how in ("given", "sampled") if row.get(how)},
    }


def _command(settings: dict[str, Any]) -> str:
    """The command that repeats the run, as far as the command line has options for the settings."""
    default = Settings()
    other = {name: settings.get(name) for name in ("seeds", "periods", "period")}
    options = [f"--{name} {value}" for name, value in other.items() if value not in (None, getattr(default, name))]
    return " ".join(["selftune reproduce", *options])
