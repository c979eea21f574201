"""The manifest of a stored run: its settings, the code that computed it, its result codes and its checksums."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import jax
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ..foundation.errors import StoreError as StoreError

FORMAT = "selftune run"
SCHEMA_VERSION = 1
_PACKAGES = ("selftune", "jax", "jaxlib", "numpy", "equinox", "optax", "xarray", "zarr")


class Git(BaseModel):
    """The state of the source tree that selftune ran from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    commit: str
    dirty: bool


class Manifest(BaseModel):
    """`manifest.json`. It has no date and no path: the same run gives the same bytes at any time and place."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["selftune run"] = FORMAT
    schema_version: Literal[1] = SCHEMA_VERSION
    kind: str = Field(description="The kind of the run: 'paper', 'robots', 'run' or 'sweep'.")
    state: Literal["running", "complete"]
    settings: dict[str, JsonValue] = Field(description="All settings that determine the numbers.")
    task_dims: tuple[str, ...] = Field(description="The dimensions along which tasks are counted.")
    versions: dict[str, str]
    platform: dict[str, str]
    git: Git | None = Field(description="None if selftune does not run from a tracked source tree.")
    results: dict[str, int] = Field(description="The number of runs with each result code; empty until complete.")
    checksums: dict[str, str] = Field(
        description="SHA-256 of each coordinate's values and, once complete, of the checksums of each array's tasks."
    )


def versions() -> dict[str, str]:
    """The versions of the code that computes. For selftune, a hash of the sources covers uncommitted changes too."""
    packages = {name: metadata.version(name) for name in _PACKAGES}
    source = digest_of_sources(Path(__file__).parents[1])
    return {"python": platform.python_version(), **packages, "source": source}


@cache  # this process imported the sources as they were at its start
def digest_of_sources(folder: Path) -> str:
    """SHA-256 of the names and contents of all Python files under `folder`."""
    sha256 = hashlib.sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*.py")):
        content = path.read_bytes()
        sha256.update(f"{name} {len(content)}\n".encode() + content)
    return sha256.hexdigest()


def machine() -> dict[str, str]:
    """The properties of the machine that influence how numbers are rounded."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "backend": jax.default_backend(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def git_state() -> Git | None:
    """The commit of the source tree, and whether it has changes; None for an installed copy, or without git."""
    package = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        process = subprocess.run(
            ["git", "-C", str(package), *arguments], capture_output=True, text=True, check=True, timeout=30
        )
        return process.stdout

    try:
        # An installed copy may be inside another repository, so check that git tracks this package.
        git("ls-files", "--error-unmatch", "__init__.py")
        return Git(commit=git("rev-parse", "HEAD").strip(), dirty=bool(git("status", "--porcelain", "--", ".").strip()))
    except (OSError, subprocess.SubprocessError):
        return None


def parse(text: str | bytes, place: str) -> Manifest:
    """The manifest in `text`. Raises a `StoreError` that begins with `place`."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise StoreError(f"{place}: not readable as JSON ({error})") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise StoreError(f"{place}: not the manifest of a selftune run (no format = {FORMAT!r})")
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise StoreError(
            f"{place}: schema version {raw.get('schema_version')!r} is unknown here; "
            f"this selftune reads version {SCHEMA_VERSION}"
        )
    try:
        # Validate by JSON's rules, where a tuple is an array.
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StoreError(f"{place}: {where}: {first['msg']}") from None


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The differences of two mappings, in words. `ours` is stored in the folder; `theirs` is the current one."""
    texts = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs or ours[name] != theirs[name]:
            texts.append(f"{name} {_show(ours, name)} there, {_show(theirs, name)} now")
    return texts


def _show(mapping: Mapping[str, Any], name: str) -> str:
    text = repr(mapping[name]) if name in mapping else "missing"
    return text if len(text) <= 120 else f"{text[:100]}… ({len(text):,} characters)"
