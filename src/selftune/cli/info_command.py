"""`selftune info`: versions, devices, and the manifest of a run."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from ..foundation import json_values
from ..foundation.errors import InputError
from .options import (
    Json,
    Quiet,
)
from .screen import Screen, refusing


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
            facts["manifest"] = run.manifest
            facts["tasks"] = f"{sum(map(run.done, run.tasks))} of {len(run.tasks)} done"
            try:
                run.verify()
                facts["arrays"] = "verified: the arrays of all completed tasks match their checksums"
            except StoreError as error:
                facts["arrays"], harmed = "damaged: an array differs from its checksum", str(error)
        for name, value in json_values.plain(facts).items():
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
        "git": git,
        "devices": ", ".join(str(device) for device in jax.devices()),
        "cores": os.cpu_count(),
        "compiler": version.partition("\n")[0] or "none found (cc)",
    }
