"""Write the results of a run into its folder: certificates, figures and the report."""

from pathlib import Path
from typing import Any

import xarray as xr

from ..experiments import paper, report
from ..experiments.certificates import examples as certificate_examples
from ..experiments.paper import certificate_file, quantities
from ..experiments.paper import figures as paper_figures
from ..storage import files, manifest
from .screen import Screen

SEED, GAIN = 0, 1.0


def certify(screen: Screen, folder: Path, *, steps: int) -> tuple[dict[str, Any], bool]:
    """The certificates for a run of the paper's example, by the form of the noise; and whether they were made just now.

    A stored file is reused if it is about the same run and was made by the same code.
    """
    there = certificate_file.read(folder)
    about = {
        "settings": {
            "steps": steps,
            "seed": SEED,
            "gain": GAIN,
            "theta": [certificate_examples.LOWEST, certificate_examples.HIGHEST],
        },
        "versions": manifest.versions(),
    }
    if there is not None and {name: there.get(name) for name in about} == about:
        return there["certificates"], False
    made = {}
    with screen.progress("checking the theory on a run") as progress:
        for i, noise in enumerate(paper.NOISES):
            progress(i, len(paper.NOISES))
            one = certificate_examples.certify_example(
                noise_inside=noise == "inside", steps=steps, seed=SEED, gain=GAIN
            )
            made[noise] = one.to_dict()
    files.write(folder / certificate_file.NAME, files.as_json(about | {"certificates": made}))
    return made, True


def rates(screen: Screen, folder: Path) -> tuple[dict[str, Any], bool]:
    """The growth of the regret with T, stored with its figure in the folder; and whether it was measured just now."""
    from ..experiments.rates import figures, run

    there = run.read(folder, versions=manifest.versions())
    if "rates" in there:
        return there, False
    with screen.progress("measuring how the regret grows with T") as progress:
        made = {"rates": run.compute("rates", progress=lambda _, done, total: progress(done, total))}
    run.write(folder, made, data_only=True)
    for finding in made.values():
        figures.draw(finding, folder / "figures")
    return made, True


def present(
    screen: Screen, folder: Path, dataset: xr.Dataset, certificates: dict[str, Any], *, anew: bool = True
) -> Path:
    """Write the report, and the figures of a simulation, comparison or sweep. With `anew=False`: only missing files."""
    if "design" in dataset.attrs:
        return _present_sweep(screen, folder, dataset, anew)
    if "case" in dataset.dims:
        return _present_robots(screen, folder, dataset, anew)
    page, figures = folder / "report.html", folder / "figures"
    drawn = paper_figures.files(figures, certificates) if quantities.is_paper(dataset) else []
    draw = bool(drawn) and (anew or not all(path.is_file() for path in drawn))
    write = anew or not page.is_file()
    if not draw and not write:
        return page
    page_counts = 4  # writing the page takes about as long as drawing four files
    total = page_counts * write + len(drawn) * draw
    with screen.progress("writing and drawing") as progress:
        progress(0, total)
        if write:  # before the figures, because the report rejects data that cannot be drawn
            report.write(folder)
            progress(page_counts, total)
        if draw:
            paper_figures.draw_all(
                dataset,
                figures,
                certificates=certificates,
                progress=lambda done, _: progress(page_counts * write + done, total),
            )
    return page


def _present_sweep(screen: Screen, folder: Path, dataset: xr.Dataset, anew: bool) -> Path:
    from ..experiments.sweep import figures as sweep_figures

    page = folder / "report.html"
    if anew or not page.is_file():
        with screen.progress("drawing and writing") as progress:
            sweep_figures.draw_all(dataset, folder / "figures", progress=progress)
            report.write(folder)
    return page


def _present_robots(screen: Screen, folder: Path, dataset: xr.Dataset, anew: bool) -> Path:
    from ..experiments.robots import figures as robots_figures
    from ..storage import store

    page, figures = folder / "report.html", folder / "figures"
    if anew or not page.is_file() or not (figures / "overview.png").is_file():
        with screen.progress("drawing and writing") as progress:
            robots_figures.draw_all(dataset, store.read_manifest(folder).settings, figures, progress=progress)
            report.write(folder)  # after the figures, because the page contains some of them
    return page
