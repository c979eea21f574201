"""The playground as a part of the site, if it is built: `make playground`."""

import shutil
from pathlib import Path

from .places import REPOSITORY, ROOT, SITE

BUILT = ROOT / "playground" / "dist"
GUIDE = '<meta name="guide" content="https://selftune.github.io/selftune/latest/" />'
"""The playground's links to the guide begin with this address, unless the site serves the playground."""
INSTRUCTIONS = f'href="{REPOSITORY}/playground/README.md"'
"""Without a built playground, the page of the playground links to the instructions."""


def add(site: Path = SITE, built: Path = BUILT) -> bool:
    """Copy the built playground to playground/app of the site, and link to it; return whether it is built."""
    if not (built / "index.html").is_file():
        return False
    app, page = site / "playground" / "app", site / "playground" / "index.html"
    shutil.copytree(built, app)
    _replace(app / "index.html", GUIDE, '<meta name="guide" content="../../" />')
    _replace(page, INSTRUCTIONS, 'href="app/"')
    return True


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    if old not in text:
        raise ValueError(f"{path}: expected {old}")
    path.write_text(text.replace(old, new), encoding="utf-8")
