"""The experiments, by the kind of their stored runs.

A folder of this package is an experiment if its `__init__.py` has a `KIND`: the word that its manifests have. The
folder's `page.py` then has an `EXPERIMENT`, the parts that commands use without knowing the kind.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import xarray as xr

from ..foundation.executors import Progress
from ..storage.manifest import Manifest, StoreError
from ..storage.store import open_run, read_manifest


@dataclass(frozen=True)
class StoredRun:
    """A complete run: its folder, its manifest, and its verified data in memory."""

    folder: Path
    manifest: Manifest
    dataset: xr.Dataset

    @classmethod
    def open(cls, folder: Path) -> "StoredRun":
        """Raises `StoreError` if the folder has no run, or if the run is incomplete, damaged or of unknown kind."""
        manifest = read_manifest(folder)
        return cls(folder, manifest, find(manifest.kind).load(folder))

    @cached_property
    def summary(self) -> Any:
        return find(self.manifest.kind).summarize(self)


@dataclass(frozen=True)
class Experiment:
    """The parts of an experiment that work on a stored run."""

    summarize: Callable[[StoredRun], Any]
    """The numbers that the command prints."""
    render: Callable[[StoredRun], str]
    """The page, as HTML."""
    draw: Callable[[StoredRun, Progress], Any] = lambda run, progress: None
    """Draw the figures for print into the run's folder `figures`."""
    figures: Callable[[StoredRun], list[Path]] = lambda run: []
    """Files that `draw` writes. `selftune` draws all figures again if one of these files is missing."""
    load: Callable[[Path], xr.Dataset] = lambda folder: open_run(folder)[0]
    """The verified data of a complete run."""
    plant_settings: tuple[str, ...] = ()
    """The settings of the plant and its noise; empty means all. Runs that agree in them are compared seed by seed."""


def find(kind: str) -> Experiment:
    """The experiment whose runs have this kind."""
    packages = kinds()
    if kind not in packages:
        raise StoreError(f"kind of the run: expected one of {', '.join(packages)}, got {kind!r}")
    return import_module(f"{packages[kind]}.page").EXPERIMENT


def kinds() -> dict[str, str]:
    """The package of each kind of run."""
    parent = __name__.rpartition(".")[0]
    folders = pkgutil.iter_modules(import_module(parent).__path__, f"{parent}.")
    names = [folder.name for folder in folders if folder.ispkg]
    return {kind: name for name in names if (kind := getattr(import_module(name), "KIND", None)) is not None}
