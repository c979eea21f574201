"""The page and the figures of any stored run. The page, `report.html`, contains all its data and needs no network."""

from pathlib import Path

from ..storage import files
from .registry import Progress, StoredRun, find


def write(run: StoredRun) -> Path:
    """Write `report.html`. A reader sees either the old page or the new page, never a part of one.

    The page depends only on the files of the run's folder. Raises `StoreError` if the page cannot be made of the data.
    """
    path = run.folder / "report.html"
    files.write(path, find(run.manifest.kind).render(run).encode())
    return path


def present(run: StoredRun, progress: Progress, *, anew: bool = True) -> Path:
    """Draw the figures and write the page. With `anew=False`: only if a file is missing."""
    experiment, page = find(run.manifest.kind), run.folder / "report.html"
    if anew or not all(path.is_file() for path in [page, *experiment.figures(run)]):
        experiment.draw(run, progress)  # before the page, which may contain figures
        write(run)
    return page
