"""The theory beside a run of the paper's simulation: certificates of one run, and the growth of the regret with T."""

from pathlib import Path
from typing import Any

from ...storage import files, manifest
from ..certificates import examples
from ..rates import figures, run
from ..registry import Progress
from . import certificate_file
from .run import NOISES

SEED, GAIN = 0, 1.0


def certify(folder: Path, progress: Progress, *, steps: int) -> tuple[dict[str, Any], bool]:
    """The certificates for a run of the paper's example, by the form of the noise; and whether they were made just now.

    A stored file is reused if it is about the same run and was made by the same code.
    """
    stored = certificate_file.read(folder)
    settings = {"steps": steps, "seed": SEED, "gain": GAIN, "theta": [examples.LOWEST, examples.HIGHEST]}
    about = {"settings": settings, "versions": manifest.versions()}
    if stored is not None and {name: stored.get(name) for name in about} == about:
        return stored["certificates"], False
    certificates = {}
    for i, noise in enumerate(NOISES):
        progress(i, len(NOISES))
        certificate = examples.certify_example(noise_inside=noise == "inside", steps=steps, seed=SEED, gain=GAIN)
        certificates[noise] = certificate.to_dict()
    files.write(folder / certificate_file.NAME, files.as_json(about | {"certificates": certificates}))
    return certificates, True


def measure_rates(folder: Path, progress: Progress) -> tuple[dict[str, Any], bool]:
    """The growth of the regret with T, stored with its figure in the folder; and whether it was measured just now."""
    stored = run.read(folder, versions=manifest.versions())
    if "rates" in stored:
        return stored, False
    findings = {"rates": run.compute("rates", progress=lambda _, done, total: progress(done, total))}
    run.write(folder, findings, data_only=True)
    for finding in findings.values():
        figures.draw(finding, folder / "figures")
    return findings, True
